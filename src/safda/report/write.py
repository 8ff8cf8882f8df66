"""Write a report: of runs on disk, or of one that has just ended and whose domains are still at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safda.classifier import Adapted
from safda.data import AnyDomain, load_domain
from safda.data.loader import ProgressCallback
from safda.errors import SafdaError
from safda.io import disk_errors, require_writable, write_text
from safda.report.data import TICKS, collect
from safda.report.html import render, run_names
from safda.report.paper import write_figures
from safda.training.checkpoint import RunFolder

REPORT = "report.html"  #: in the run folder
ORACLE_REPORT = "report-oracle.html"  #: beside it, where labels were looked at: the one without stays


def write_report(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    labels: Any = None,
    figures: Sequence[str | Path] = (),
    progress: ProgressCallback | None = None,
) -> Path:
    """Write one HTML file on a run, or on several side by side, and return where it is.

    Args:
        runs: folders of runs that have ended.
        out: the file; by default ``report.html`` in the run's folder or, of several runs, here; with labels
            ``report-oracle.html``.
        labels: a labelled domain to compare predictions with. Numbers from it are an oracle's, and are called so.
        figures: files for figures too, ``.pdf`` or ``.png``.
        progress: called with (done, total) as it goes on: t-SNE takes some seconds a run.

    Raises:
        SafdaError: if a run has not ended, or a file cannot be written. Domains that are gone are no error: the report
            says what it lacks.

    Example:
        >>> import numpy, safda, tempfile
        >>> rng, run = numpy.random.default_rng(0), tempfile.mkdtemp() + "/run"
        >>> y = rng.integers(0, 2, 40)
        >>> X = numpy.eye(2)[y] * 3 + rng.normal(size=(40, 2))
        >>> small = {"steps": 5, "network.bottleneck_width": 8, "network.classifier_width": 8}
        >>> _ = safda.fit((X, y), X + 0.5, out=run, report=False, **small)
        >>> write_report([run]).name
        'report.html'
    """
    folders = [RunFolder.open(path) for path in runs]
    if not folders:
        raise SafdaError("a report needs a run: name its folder")
    name = REPORT if labels is None else ORACLE_REPORT
    path = Path(out) if out is not None else folders[0].path / name if len(folders) == 1 else Path(name)
    require_writable(path, [".html", ".htm"])
    for figure in figures:
        require_writable(Path(figure), [".pdf", ".png"])
    stages = _Stages(progress, len(folders) * TICKS + 1)
    labelled = None if labels is None else load_domain(labels)
    if labelled is not None:
        labelled.labelled("an oracle")  # asked before the work
    collected = [collect(run, labels=labelled, tick=stages.next) for run in folders]
    with disk_errors(path):
        write_text(path, render(collected))
    for figure in figures:
        write_figures(dict(zip(run_names(collected), collected, strict=True)), Path(figure))
    stages.end()
    return path


def write_run_report(
    run: RunFolder, adapted: Adapted, source: AnyDomain, target: AnyDomain, progress: ProgressCallback | None = None
) -> Path:
    """Write the report of a run that has just ended, into its folder.

    Args:
        run: its folder, with all results in it.
        adapted: its classifier.
        source, target: its domains.
        progress: called with (done, total) as it goes on.
    """
    stages, path = _Stages(progress, TICKS + 1), run.path / REPORT
    page = render([collect(run, adapted, source, target, tick=stages.next)])
    with disk_errors(path):
        write_text(path, page)
    stages.end()
    return path


class _Stages:
    """Counts stages of work, for whoever watches."""

    def __init__(self, progress: ProgressCallback | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, -1
        self.next()

    def next(self) -> None:
        """Another stage is done."""
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)

    def end(self) -> None:
        """All are, those too that there was nothing to do for."""
        self._done = self._total - 1
        self.next()
