"""What a report tells of a run: collected from its folder and, where they are still there, from its domains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from safda.classifier import Adapted, transform_of
from safda.data import AnyDomain, Domain
from safda.data.sampler import evenly_spaced_rows
from safda.errors import SafdaError
from safda.evaluation.answers import Answers, read_answers
from safda.evaluation.oracle import Evaluation
from safda.extraction import for_network
from safda.io import read_json
from safda.recipe import Recipe
from safda.report.projection import Projection, project
from safda.report.thumbnails import holds_pictures
from safda.training.checkpoint import CANDIDATES, FIRST_STAGE, RunFolder

Made = TypeVar("Made")

#: How often :func:`collect` calls its ``tick``, at most.
TICKS = 4

_MOST_LOGGED = 240  # lines of metrics that a curve is drawn through


@dataclass(frozen=True)
class Oracle:
    """How a run's predictions compare with labels that the user gave for it.

    Attributes:
        name: of the labelled domain.
        evaluation: all that is said of it.
        right: whether each answer is.
        confidence: of each.
    """

    name: str
    evaluation: Evaluation
    right: NDArray[np.bool_]
    confidence: NDArray[np.float64]


@dataclass(frozen=True)
class RunReport:
    """What a report tells of one run.

    Attributes:
        path: the run folder.
        data: where the domains came from, and the class names.
        summary: what is to be said of the result, without labels.
        recipe: the experiment: where there was a choice, what was taken.
        environment: what it ran on.
        metrics: lines of metrics, evenly chosen where there are many; steps of several stages count on.
        logged: how many lines there are.
        samples: what it says of each target sample, if that can be read.
        projection: both domains before and after, where they are at hand.
        pictures: source and target, where they are at hand and hold pictures: role → domain.
        oracle: how it compares with labels, where some were given.
        notes: what is left out of the report, and why.
    """

    path: Path
    data: dict[str, Any]
    summary: dict[str, Any]
    recipe: Recipe
    environment: dict[str, Any]
    metrics: list[dict[str, float]]
    logged: int
    samples: Answers | None
    projection: Projection | None = None
    pictures: dict[str, Domain] = field(default_factory=dict)
    oracle: Oracle | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        names: list[str] = self.data["classes"]
        return names

    @property
    def title(self) -> str:
        """From where to where."""
        return " → ".join(Path(self.data[role]["name"]).name for role in ("source", "target"))


def collect(
    run: RunFolder,
    adapted: Adapted | None = None,
    source: AnyDomain | None = None,
    target: AnyDomain | None = None,
    labels: AnyDomain | None = None,
    tick: Callable[[], None] = lambda: None,
) -> RunReport:
    """Collect what is to be told of a run that has ended.

    Args:
        run: its folder.
        adapted: its classifier, if it is at hand; otherwise it is loaded.
        source, target: its domains, if they are at hand; otherwise they are looked for where they were, and what needs
            them is left out if they are gone.
        labels: a labelled domain to compare predictions with, for an oracle's numbers.
        tick: called up to :data:`TICKS` times, as work goes on.
    """
    summary = run.summary
    if summary is None:
        raise SafdaError(f"{run.path}: has no summary yet; 'safda resume {run.path}' goes on with it, to its end")
    notes = _Notes()
    samples = notes.attempt("what is said of each sample", lambda: read_answers(run))
    model = adapted or notes.attempt("the map of both domains", lambda: Adapted.load(run.path))
    given = {"source": source, "target": target}
    domains: dict[str, AnyDomain] = {}
    for role, at_hand in given.items():
        domain = notes.attempt("map and pictures", partial(run.domain, role)) if at_hand is None else at_hand
        if domain is not None:
            domains[role] = domain
    tick()
    projection = None
    if model is not None and len(domains) == len(given):
        of_both = partial(project, model, **domains, before=_before(run, model, notes), tick=tick)
        projection = notes.attempt("the map of both domains", of_both)
    shown = {role: for_network(domain, transform_of(run.data)) for role, domain in domains.items()}
    metrics = joined_metrics(run)
    report = RunReport(
        path=run.path,
        data=run.data,
        summary=summary,
        recipe=run.recipe,
        environment=notes.attempt("environment", lambda: read_json(run.path / "environment.json", dict)) or {},
        metrics=[metrics[row] for row in evenly_spaced_rows(len(metrics), _MOST_LOGGED).tolist()],
        logged=len(metrics),
        samples=samples,
        projection=projection,
        pictures={role: domain for role, domain in shown.items() if holds_pictures(domain)},
        oracle=None if labels is None else consult(model or Adapted.load(run.path), labels),
        notes=notes,
    )
    tick()
    return report


class _Notes(list[str]):
    """What could not be had for a report, and why."""

    def attempt(self, what: str, make: Callable[[], Made]) -> Made | None:
        """Return what is made; or nothing, and note why."""
        try:
            return make()
        except SafdaError as error:
            self.append(f"{what}: left out, since {error}")
            return None


def _before(run: RunFolder, adapted: Adapted, notes: _Notes) -> Adapted | None:
    """Return the classifier whose backbone is the one from before: another one only where it was fine-tuned."""
    if not run.given_recipe.fine_tune.enabled:
        return adapted
    return notes.attempt("both domains before adaptation", lambda: Adapted.load(run.path / FIRST_STAGE))


def joined_metrics(run: RunFolder) -> list[dict[str, float]]:
    """Return the metrics of what a run took, all stages of it, with steps that count on."""
    lines: list[dict[str, float]] = []
    for stage in (RunFolder(run.path / FIRST_STAGE), run):
        before = lines[-1]["step"] if lines else 0
        for line in _own_metrics(stage) if stage.path.is_dir() else ():
            numbers = {name: value for name, value in line.items() if isinstance(value, (int, float))}
            finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
            lines.append({**finite, "step": before + line["step"]})
    return lines


def _own_metrics(stage: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics of a stage; where it chose among candidates, those of the one that was taken."""
    choice = stage.choice
    tried = {folder.name: folder for folder in (stage.path / CANDIDATES).glob("*")}
    if choice and choice["chosen"] in tried:
        return RunFolder(tried[choice["chosen"]]).metrics()
    return stage.metrics()


def consult(adapted: Adapted, labels: AnyDomain) -> Oracle:
    """Compare a classifier's predictions of a labelled domain with its labels."""
    predictions = adapted.predict(labels)
    evaluation = adapted.compare(predictions, labels)
    numbers, names = labels.labelled("an oracle")
    right = np.array([names[k] == name for k, name in zip(numbers.tolist(), predictions.labels, strict=True)])
    return Oracle(labels.name, evaluation, right, predictions.confidence.astype(np.float64))
