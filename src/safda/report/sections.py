"""The sections of a report: what each tells of a run, or of several, as plain values for the page's template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from safda.evaluation.diagnosis import NOTE, SERIOUS, WARNING
from safda.evaluation.verdict import DISTRUST, DOUBT, TRUST
from safda.recipe import walk
from safda.report import charts
from safda.report.compare import LEVEL, RunDifference, compare
from safda.report.data import Oracle, RunReport
from safda.report.projection import Projection
from safda.report.tables import Table, TableCell, table

EXTREMES = 16  #: samples that are most certain, and as many that are least

_MOST_CLASSES = 40  # of a confusion matrix that can still be read
_MOST_PAIRS = 15  # of classes, those that are taken for each other most often
_VERDICTS = {
    TRUST: ("good", "Nothing looks wrong"),
    DOUBT: ("warn", "Look before you trust it"),
    DISTRUST: ("bad", "Do not trust this run"),
}
_TONES = {SERIOUS: "bad", WARNING: "warn", NOTE: "info"}
_HEADINGS = ("Losses", "Mixing weight η", "What methods tell of themselves", "Schedules")  # of curves


# ------------------------------------------------------------------------------------------------------- the verdict


def verdict(run: RunReport) -> dict[str, Any]:
    """Return what is to be thought of a run, in words."""
    word, words = run.summary.get("verdict", DOUBT), run.summary["words"]
    tone, heading = _VERDICTS.get(word, _VERDICTS[DOUBT])
    concerns = [_sentence(each) for each in run.summary.get("concerns", [])]
    return {"word": word, "tone": tone, "heading": heading, "words": _sentence(words), "concerns": concerns}


def _sentence(words: str) -> str:
    """Return words as a sentence.

    >>> _sentence("nothing looks wrong")
    'Nothing looks wrong.'
    """
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"


def figures(run: RunReport) -> list[dict[str, Any]]:
    """Return the few numbers to know first."""
    summary, found = run.summary, []

    def add(label: str, value: str, note: str = "", oracle: bool = False) -> None:
        found.append({"label": label, "value": value, "note": note, "oracle": oracle})

    estimate = summary.get("estimate")
    if isinstance(estimate, Mapping) and _is_number(estimate.get("accuracy")):
        low, high = estimate.get("low"), estimate.get("high")
        between = f"{low:.0%} to {high:.0%}" if _is_number(low) and _is_number(high) else ""
        add("Estimated accuracy", f"{estimate['accuracy']:.1%}", _joined(between, estimate.get("method")))
    if run.oracle:
        add("Accuracy: oracle", f"{run.oracle.evaluation.accuracy:.1%}", f"{_between(run.oracle)}, from labels", True)
    before, agreement = summary["source_only"], summary["agreement"]
    if agreement:
        kappa = f"kappa {agreement['kappa']:.2f}, 0 is chance"
        add("Same answer as source only", f"{agreement['share']:.0%}", kappa)
    earlier = f"source only: {before['confidence']:.2f}" if before else ""
    add("Mean confidence", f"{summary['adapted']['confidence']:.2f}", earlier)
    never = len(summary["never_predicted"])
    add("Classes predicted", f"{len(run.classes) - never} of {len(run.classes)}", f"{never} never" if never else "")
    add("Target samples", f"{summary['samples']:,}", f"{run.data['source']['samples']:,} of the source")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _joined(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part)


def _between(oracle: Oracle) -> str:
    """Return Wilson's interval for an accuracy, in words."""
    from scipy.stats import binomtest

    right = binomtest(int(oracle.right.sum()), len(oracle.right)).proportion_ci(LEVEL, method="wilson")
    return f"{right.low:.1%} to {right.high:.1%}"


def candidates(run: RunReport) -> Table | None:
    """Return what was chosen among, and the evidence."""
    choice = run.summary.get("choice")
    if not choice:
        return None
    seen = choice["evidence"]
    columns = list(dict.fromkeys(what for each in seen.values() for what in each))
    rows = [
        [name, "taken" if name == choice["chosen"] else "", *(each.get(what) for what in columns)]
        for name, each in seen.items()
    ]
    formats = dict.fromkeys(columns, ".3f")
    return table("Candidates: higher scores are better", ["candidate", "choice", *columns], rows, formats)


def scores(run: RunReport) -> Table:
    """Return the scores that need no labels."""
    after, before = run.summary["adapted"], run.summary["source_only"]
    columns = ["score", "adapted", *(["source only"] if before else [])]
    sides = [after, *([before] if before else [])]
    rows = [["mean confidence", *(each["confidence"] for each in sides)]]
    rows += [[name, *(each["scores"].get(name) for each in sides)] for name in after["scores"]]
    formats = dict.fromkeys(columns, ".3f")
    return table("Scores without labels: higher is better in each", columns, rows, formats)


def findings(run: RunReport) -> list[dict[str, Any]]:
    """Return what a diagnosis found, each with its evidence and what to do."""
    return [{**each, "tone": _TONES.get(each["severity"], "warn")} for each in run.summary.get("diagnosis") or []]


def theory(run: RunReport) -> Table | None:
    """Return what was measured of the paper's theory, a row a term: before, after, and what it is."""
    measured = run.summary.get("theory")
    if not measured:
        return None
    columns = ["before", "after", "what"]
    rows = [[_spoken(term), *(each.get(column) for column in columns)] for term, each in measured.items()]
    return table("Margins, disparities and what can be computed of the error bound", ["term", *columns], rows)


def _spoken(name: str) -> str:
    return name.replace("_", " ")


# ----------------------------------------------------------------------------------------------- samples and classes


def map_text(projection: Projection) -> str:
    """Say what a map shows, and what it leaves out."""
    said = []
    for role, rows, size in zip(("source", "target"), projection.rows, projection.sizes, strict=True):
        some = (
            f"{len(rows):,} of {size:,} {role} samples, evenly chosen"
            if len(rows) < size
            else f"all {size:,} {role} samples"
        )
        said.append(some)
    how = {
        "t-SNE": "t-SNE keeps neighbours together; distances between groups, and their sizes, mean little",
        "PCA": "the two directions in which samples vary most (PCA), since there are too many, or too few, for t-SNE",
    }[projection.method]
    return _sentence(f"{said[0]}, and {said[1]}: {how}")


def histogram(run: RunReport) -> charts.BarChart | None:
    """Return how many target samples there are of each confidence."""
    if run.samples is None:
        return None
    return charts.confidence_histogram("Target samples by confidence", run.samples.confidence)


def shares(run: RunReport) -> dict[str, Any]:
    """Return each class's share of the source, of source-only's answers and of the predictions."""
    classes = run.summary["classes"]
    kinds = {"source": "source", "source_only": "before", "predicted": "predicted"}
    kinds = {key: kind for key, kind in kinds.items() if all(key in each for each in classes.values())}
    most = max(each[key] for each in classes.values() for key in kinds) or 1.0
    rows = []
    for name, each in sorted(classes.items(), key=lambda item: -abs(item[1]["predicted"] - item[1]["source"])):
        change = each["predicted"] - each["source"]
        cells = [TableCell(f"{each[key]:.1%}", each[key]) for key in kinds]
        marks = [(kind, round(100 * each[key] / most, 2)) for key, kind in kinds.items()]
        rows.append({"name": name, "marks": marks, "cells": [*cells, TableCell(f"{100 * change:+.1f}", change)]})
    return {
        "has_before": "source_only" in kinds,
        "most": f"{most:.1%}",
        "columns": [*(key.replace("_", " ") for key in kinds), "predicted − source"],
        "caption": "In percent of all samples; the last column in points. The largest changes first.",
        "rows": rows,
    }


def extremes(run: RunReport) -> dict[str, list[int]]:
    """Return row numbers of the target samples to look at: the most and the least certain ones."""
    if run.samples is None:
        return {}
    order = np.argsort(-run.samples.confidence, kind="stable").tolist()
    return {"most": order[:EXTREMES], "least": order[::-1][:EXTREMES]}


def samples_table(run: RunReport, rows: Sequence[int], caption: str) -> Table:
    """Return some target samples as a table."""
    seen = run.samples
    assert seen is not None
    before = seen.source_only
    columns = ["sample", "class", "confidence", *([] if before is None else ["source only"])]
    cells = [
        [
            seen.ids[row],
            run.classes[seen.predicted[row]],
            float(seen.confidence[row]),
            *([] if before is None else [run.classes[before[row]]]),
        ]
        for row in rows
    ]
    return table(caption, columns, cells, {"confidence": ".1%"})


# ------------------------------------------------------------------------------------------------------- the oracle


def oracle(run: RunReport) -> dict[str, Any] | None:
    """Return how predictions compare with labels that were given."""
    if run.oracle is None:
        return None
    found = run.oracle.evaluation
    counts = np.array(found.confusion)
    by_class = [
        [name, int(counts[k].sum()), found.class_accuracy.get(name), int(counts[:, k].sum())]
        for k, name in enumerate(found.classes)
    ]
    return {
        "reliability": charts.reliability(
            "Reliability: how often it is right", run.oracle.confidence, run.oracle.right
        ),
        "text": f"On the dashed line, confidence would be accuracy. Calibration error {found.calibration_error:.1%}; "
        f"accuracy {found.accuracy:.1%} ({_between(run.oracle)}), mean over classes {found.mean_class_accuracy:.1%}, "
        f"{found.samples:,} labelled samples.",
        "classes": table(
            "Accuracy of each class", ["class", "labelled", "accuracy", "predicted"], by_class, {"accuracy": ".1%"}
        ),
        "pairs": _confused_pairs(counts, found.classes),
        "confusion": _confusion(counts, found.classes) if len(found.classes) <= _MOST_CLASSES else None,
    }


def _confused_pairs(counts: np.ndarray[Any, Any], names: Sequence[str]) -> Table | None:
    wrong = counts * ~np.eye(len(names), dtype=bool)
    worst = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    pairs = [(i, k) for i, k in zip(*np.unravel_index(worst, wrong.shape), strict=True) if wrong[i, k]]
    rows = [[names[i], names[k], int(wrong[i, k]), float(wrong[i, k] / counts[i].sum())] for i, k in pairs]
    columns = ["true class", "taken for", "samples", "share"]
    return table("Most often taken for another", columns, rows, {"share": ".0%"}) if rows else None


def _confusion(counts: np.ndarray[Any, Any], names: Sequence[str]) -> dict[str, Any]:
    rows = []
    for k, name in enumerate(names):
        total = max(int(counts[k].sum()), 1)
        cells = [
            {"count": int(count), "share": round(int(count) / total, 3), "right": j == k}
            for j, count in enumerate(counts[k])
        ]
        rows.append({"name": name, "cells": cells})
    return {"names": list(names), "rows": rows}


# ---------------------------------------------------------------------------------------------------------- training


def curve_names(runs: Iterable[RunReport]) -> list[str]:
    """Return what was logged, the sum of all losses first; η's deviation is shown with its mean."""
    names = dict.fromkeys(name for run in runs for line in run.metrics for name in line)
    shown = [name for name in names if name != "step" and not name.endswith("/eta_std")]
    return sorted(shown, key=lambda name: name != "loss")


def curves(runs: Mapping[str, RunReport]) -> list[dict[str, Any]]:
    """Return the curves of all runs, by what they are: losses, η, what methods tell, schedules."""
    groups: dict[str, list[charts.LineChart]] = {heading: [] for heading in _HEADINGS}
    for name in curve_names(runs.values()):
        series = {label: series_of(run, name) for label, run in runs.items()}
        series = {label: each for label, each in series.items() if each[0]}
        is_eta = name.endswith("/eta_mean")
        spread = {label: series_of(runs[label], _deviation(name))[1] for label in series} if is_eta else {}
        spread = {label: each for label, each in spread.items() if len(each) == len(series[label][1])}
        groups[group_of(name)].append(charts.line_chart(curve_title(name), series, spread, is_share=is_eta))
    return [{"title": heading, "charts": found} for heading, found in groups.items() if found]


def _deviation(name: str) -> str:
    return name.removesuffix("mean") + "std"


def series_of(run: RunReport, name: str) -> tuple[list[float], list[float]]:
    """Return the steps at which something was logged, and its values."""
    lines = [line for line in run.metrics if name in line]
    return [line["step"] for line in lines], [line[name] for line in lines]


def group_of(name: str) -> str:
    """Return under which heading a curve stands.

    >>> group_of("loss/mdd"), group_of("saf/weight")
    ('Losses', 'Schedules')
    """
    losses, eta, methods, schedules = _HEADINGS
    if name.split("/")[0] == "loss":
        return losses
    if "/eta_" in name:
        return eta
    return schedules if name == "lr" or name.endswith("/weight") else methods


def curve_title(name: str) -> str:
    """Return what a curve shows.

    >>> curve_title("loss"), curve_title("loss/mdd"), curve_title("mdd/agrees_on_source")
    ('loss, all together', 'loss: mdd', 'mdd: agrees on source')
    """
    if name.endswith("/eta_mean"):
        return "η: mean of a batch, and one deviation around it"
    first = {"loss": "loss, all together", "lr": "learning rate"}.get(name, name)
    return first.replace("/", ": ").replace("_", " ")


def curves_text(runs: Sequence[RunReport]) -> str:
    """Say what curves show, or why there are none."""
    if not any(run.metrics for run in runs):
        return "Nothing was logged."
    fewer = next((run for run in runs if len(run.metrics) < run.logged), None)
    some = f" {len(fewer.metrics)} of {fewer.logged:,} logged steps are shown, evenly chosen." if fewer else ""
    stages = (
        " Steps of fine-tuning count on from those before it." if any(r.recipe.fine_tune.enabled for r in runs) else ""
    )
    taken = (
        " Of several candidates, these are of the one that was taken."
        if any(r.summary.get("choice") for r in runs)
        else ""
    )
    return f"Thin: as logged; thick: a running mean.{some}{stages}{taken}"


# ------------------------------------------------------------------------------------------------- recipe and origin


def origin(run: RunReport) -> Table:
    """Return where the data came from, and what they were seen with."""
    rows = []
    for role in ("source", "target"):
        about = run.data[role]
        skipped = len(about.get("skipped", []))
        rows.append([role, about["name"], about["samples"], skipped or None])
    backbone = run.data.get("backbone")
    if backbone:
        rows.append(["backbone", _joined(backbone["name"], backbone["weights"]), None, None])
    rows += [
        ["run", str(run.path), None, None],
        ["methods", ", ".join(run.recipe.methods) or "source only", None, None],
    ]
    return table("Where it came from", ["part", "what", "samples", "skipped"], rows)


def environment(run: RunReport) -> Table:
    """Return what a run ran on."""
    plain = {name: value for name, value in run.environment.items() if not isinstance(value, Mapping)}
    inner = [each for each in run.environment.values() if isinstance(each, Mapping)]
    rows = [[name, str(value)] for part in (plain, *inner) for name, value in part.items() if value is not None]
    return table("What it ran on", ["part", "version or value"], rows)


# ------------------------------------------------------------------------------------------------------ several runs


def comparison(runs: Mapping[str, RunReport]) -> dict[str, Any]:
    """Return several runs side by side, and what every two of them differ by, sample by sample."""
    names, every = list(runs), list(runs.values())
    facts: dict[str, list[Any]] = {"verdict": [run.summary.get("verdict", "") for run in every]}
    for label in dict.fromkeys(each["label"] for run in every for each in figures(run)):
        known = [{each["label"]: each["value"] for each in figures(run)} for run in every]
        facts[label[:1].lower() + label[1:]] = [each.get(label) for each in known]
    for name in dict.fromkeys(name for run in every for name in run.summary["adapted"]["scores"]):
        facts[f"score: {name}"] = [TableCell(f"{v:.3f}", v) if v is not None else None for v in _score(every, name)]
    rows = [[fact, *values] for fact, values in facts.items()]
    pairs = compare(every)
    paired = [
        [
            f"{names[pair.second]} against {names[pair.first]}",
            _share(pair.agreement),
            _difference(pair.confidence, "{:+.3f}", 1),
            *([_difference(pair.accuracy, "{:+.1f}", 100)] if any(run.oracle for run in every) else []),
        ]
        for pair in pairs
    ]
    columns = ["runs", "same answer", "confidence, difference"]
    columns += ["accuracy (oracle), difference in points"] if any(run.oracle for run in every) else []
    apart = [pair for pair in pairs if not pair.same_target]
    text = "Differences are those of the same samples, the later run minus the earlier one, with 95% intervals."
    if apart:
        text += " Runs on different targets have no samples in common, so nothing is paired for them."
    return {
        "text": text,
        "table": table("Side by side", ["fact", *names], rows),
        "pairs": table("Paired differences", columns, paired),
    }


def _score(runs: Sequence[RunReport], name: str) -> list[float | None]:
    return [run.summary["adapted"]["scores"].get(name) for run in runs]


def _share(value: float | None) -> TableCell:
    return TableCell("") if value is None else TableCell(f"{value:.1%}", value)


def _difference(found: RunDifference | None, form: str, unit: float) -> TableCell:
    if found is None:
        return TableCell("")
    value, low, high = (form.format(unit * number) for number in (found.value, found.low, found.high))
    return TableCell(f"{value} ({low} to {high})", found.value)


def differences(runs: Mapping[str, RunReport]) -> Table | None:
    """Return the knobs that are not the same in all runs."""
    knobs = [
        {"methods": ", ".join(run.recipe.methods), **{p: v for p, _, v in walk(run.recipe)}} for run in runs.values()
    ]
    paths = [
        path for path in dict.fromkeys(p for each in knobs for p in each) if len({str(k.get(path)) for k in knobs}) > 1
    ]
    if not paths:
        return None
    rows = [[path, *(each.get(path) for each in knobs)] for path in paths]
    return table("Knobs in which the runs differ", ["knob", *runs], rows)
