"""What is the matter with a run, in words: findings, each with its evidence and what to do about it.

:mod:`~safda.evaluation.verdict` says whether a run can be trusted; this says what happened to it. None of it looks at
target labels. :func:`observe` gathers numbers, :func:`diagnose` draws conclusions from a summary that holds them, so
that runs can be judged again by other rules. docs/diagnosis.md has how often each is right, and on what data the
thresholds were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from safda.classifier import Predictions
from safda.data import Domain
from safda.evaluation.label_shift import black_box_shift, class_shares, maximum_likelihood_shift, total_variation
from safda.evaluation.probe import Probe, cross_fit
from safda.evaluation.verdict import classes_do_not_show, swallowing_class
from safda.recipe import Recipe

#: How much a finding matters, most first.
SERIOUS, WARNING, NOTE = "serious", "warning", "note"

_LATE = 0.25  # of the training: what its last quarter shows is where it ended
_TWIN_WINS = 0.5  # D agrees with C on so much more of the source than of the target
_TOLD_APART = 0.9  # accuracy of a discriminator that has won
_BLIND = 0.05  # so near to a coin's is the accuracy of one that has learned nothing
_SOURCE_LOST = 0.15  # share of the source that the adapted classifier gets wrong and source only does not
_STUCK, _CONSTANT = 0.05, 0.01  # η this near to 0 or 1; η that varies no more than this
_LESS_INFORMATION = 0.05  # as a share of ln K
_MISSING, _RARE = 0.15, 0.6  # estimated share of a class beside the source's; share that is predicted beside it
_MUCH_MISSING = 0.09  # share of the source that is in such classes: of less, it is mostly wrong
_FEW_EXPECTED = 5  # samples of a class, if it were as frequent as in the source: with fewer it is chance
_UNLIKE = 0.15  # share of target samples that look like no class
_SHIFTED = 0.2  # total variation between the classes' frequencies
_CLEARER = 0.03  # confidence that a probe must have more if the domains' means are left as they are
_CHANGED = 0.02  # share of the target by which a class gains or loses
_NEIGHBOURS = 8
_MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know.

    Attributes:
        title: what it is, in a few words.
        evidence: the numbers that say so.
        advice: what to do.
        severity: :data:`SERIOUS`, :data:`WARNING` or :data:`NOTE`.
    """

    title: str
    evidence: str
    advice: str
    severity: str


# ------------------------------------------------------------------------------------------------------- what is seen


def observe(
    predictions: Predictions,
    features: tuple[Domain, Domain] | None,
    metrics: Sequence[Mapping[str, Any]],
    recipe: Recipe,
    confidence: NDArray[np.floating[Any]] | None = None,
) -> dict[str, Any]:
    """Gather the numbers that :func:`diagnose` looks at beside those of the verdict and of the theory.

    Args:
        predictions: what the adapted classifier says of the target.
        features: both domains as features; None where the network was trained on something else.
        metrics: lines of ``metrics.jsonl``.
        recipe: the experiment.
        confidence: the adapted classifier's, on source samples.

    Returns:
        plain values: ``training``, and where there are features ``probe``, ``priors`` and ``unlike``.
    """
    seen: dict[str, Any] = {"training": watch_training(metrics, recipe)}
    probe = features and chosen_probe(*features)
    if not probe:
        return seen
    shares = class_shares(probe.labels, len(predictions.classes))
    seen["probe"] = {"accuracy": probe.accuracy, "confidence": _mean_confidence(probe)}
    seen["priors"] = {
        name: {"source": round(float(own), 4), "estimated": round(float(estimated), 4)}
        for name, own, estimated in zip(predictions.classes, shares, estimated_priors(probe), strict=True)
    }
    if confidence is not None:
        seen["unlike"] = unlike_any_class(probe, predictions, confidence)
    return seen


def watch_training(metrics: Sequence[Mapping[str, Any]], recipe: Recipe) -> dict[str, Any]:
    """Return how the adversary and η stood in the last quarter of a training, and the adversary in the first."""
    size = math.ceil(_LATE * len(metrics))
    late = metrics[len(metrics) - size :]
    weighed = [name for name, knobs in recipe.of_methods.items() if hasattr(knobs, "weight")]
    seen: dict[str, Any] = {"weighed": weighed}
    for name in recipe.of_methods:
        if (on_source := _mean(late, f"{name}/agrees_on_source")) is not None:
            seen["twin"] = {"method": name, "source": on_source, "target": _mean(late, f"{name}/agrees_on_target")}
        metric = f"{name}/domain_accuracy"
        if (accuracy := _mean(late, metric)) is not None:
            there = [line for line in metrics if metric in line]  # an adversary may begin in a later stage, as ADDA's
            began = _mean(there[: math.ceil(_LATE * len(there))], metric)
            seen["discriminator"] = {"method": name, "early": began, "late": accuracy}
    if (mean := _mean(late, "saf/eta_mean")) is not None:
        learned = recipe["saf"].eta.source == "learned"
        seen["eta"] = {"mean": mean, "std": _mean(late, "saf/eta_std"), "learned": learned}
    return seen


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if isinstance(line.get(name), (int, float))]
    return float(np.mean(values)) if values else None


def chosen_probe(source: Domain, target: Domain) -> Probe | None:
    """Return a probe of both domains' features: aligned, unless it sees the target more clearly as it is."""
    aligned = cross_fit(source, target)
    plain = aligned and cross_fit(source, target, aligned=False)
    if not aligned or not plain:
        return aligned
    return plain if _mean_confidence(plain) > _mean_confidence(aligned) + _CLEARER else aligned


def _mean_confidence(probe: Probe) -> float:
    return float(softmax(probe.target_logits, axis=1).max(1).mean())


def estimated_priors(probe: Probe) -> NDArray[np.float64]:
    """Return the target's class frequencies, if they alone had changed: the mean of both estimators."""
    classes = probe.target_logits.shape[1]
    answers = probe.source_logits.argmax(1), probe.target_logits.argmax(1)
    by_confusion = black_box_shift(answers[0], probe.labels, answers[1], classes)
    probabilities = softmax(probe.target_logits, axis=1)
    by_likelihood = maximum_likelihood_shift(probabilities, class_shares(probe.labels, classes))
    mean: NDArray[np.float64] = (by_confusion + by_likelihood) / 2
    return mean


def unlike_any_class(probe: Probe, predictions: Predictions, confidence: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """Return which share of the target looks like no class, and some such samples, the clearest first.

    A sample does if its neighbours' energy (logsumexp of the probe's logits) is on average lower than that of 99% of
    the source's held-out samples, and the adapted classifier is less sure of it than of three quarters of the source.

    Args:
        probe: of both domains.
        predictions: of the adapted classifier, of the whole target.
        confidence: the adapted classifier's, on source samples.
    """
    own, other = (
        _neighbours_mean(np.logaddexp.reduce(logits, 1), features)
        for logits, features in (
            (probe.source_logits, probe.source_features),
            (probe.target_logits, probe.target_features),
        )
    )
    unsure = predictions.confidence[probe.target_rows] < np.quantile(confidence, 0.25)
    unlike = (other < np.quantile(own, 0.01)) & unsure
    clearest = probe.target_rows[unlike][np.argsort(other[unlike], kind="stable")][:_MOST_NAMED]
    return {"share": float(unlike.mean()), "samples": [predictions.ids[row] for row in clearest]}


def _neighbours_mean(values: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean value of each sample's nearest ones, by the cosine."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    most = min(_NEIGHBOURS, len(unit) - 1)
    nearest = np.argpartition(-similar, most - 1, axis=1)[:, :most]
    mean: NDArray[np.float64] = values[nearest].mean(1)
    return mean


# ---------------------------------------------------------------------------------------------------- what is concluded


def diagnose(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what is the matter with a run, most serious first, from a summary that holds ``observations``.

    >>> quiet = {"classes": {"ant": {"predicted": 0.5, "source": 0.5}, "bee": {"predicted": 0.5, "source": 0.5}}}
    >>> quiet.update(samples=100, structure=None, source_only=None, observations={"training": {}})
    >>> diagnose(quiet)
    []
    >>> eta = {"mean": 0.998, "std": 0.001, "learned": True}
    >>> print(diagnose({**quiet, "observations": {"training": {"eta": eta}}})[0]["title"])
    η is stuck at 1
    """
    found: list[Finding] = []
    for rule in (_noise, _pile_up, _source_lost, _adversary, _eta):
        found += rule(summary)
    if not classes_do_not_show(summary["structure"]):  # in noise, the rest would be noise too
        for rule in (_uninformed, _missing, _unlike, _label_shift, _gained_and_lost):
            found += rule(summary)
    return [asdict(each) for each in sorted(found, key=lambda each: (SERIOUS, WARNING, NOTE).index(each.severity))]


def _noise(summary: Mapping[str, Any]) -> Iterable[Finding]:
    if classes_do_not_show(summary["structure"]):
        near, chance = summary["structure"]["neighbours"], summary["structure"]["shuffled"]
        yield Finding(
            "the source's classes do not show in the target",
            f"samples near each other get the same source-only answer {near:.2f} beyond chance, and {chance:.2f} in "
            "noise made of the same numbers, of which source only is as sure",
            "make sure that both domains hold the same kinds of things, and that their features were made alike; "
            "'safda doctor' compares them",
            SERIOUS,
        )


def _pile_up(summary: Mapping[str, Any]) -> Iterable[Finding]:
    swallowing = swallowing_class(summary)
    if swallowing:
        name, share, usual = swallowing
        before = summary["classes"][name].get("source_only")
        earlier = "" if before is None else f", of source-only's answers {before:.0%}"
        yield Finding(
            f"predictions pile up in one class, {name}",
            f"it takes {share:.0%} of the target; of the source {usual:.0%}{earlier}",
            f"{_lighter(summary)}, and --pseudo-labels.distribution-alignment 1 keeps classes even; until then take "
            "the column source_only of predictions.csv",
            SERIOUS,
        )


def _source_lost(summary: Mapping[str, Any]) -> Iterable[Finding]:
    error = (summary.get("theory") or {}).get("source_error")
    if error and error["before"] is not None and error["after"] > error["before"] + _SOURCE_LOST:
        yield Finding(
            "what the source taught is lost",
            f"the adapted classifier gets {error['after']:.0%} of the source wrong, source only {error['before']:.0%}",
            f"{_lighter(summary)}, or train longer",
            SERIOUS,
        )


def _adversary(summary: Mapping[str, Any]) -> Iterable[Finding]:
    training = summary["observations"]["training"]
    twin, discriminator = training.get("twin"), training.get("discriminator")
    if twin and twin["source"] - twin["target"] > _TWIN_WINS:
        yield Finding(
            "the adversary wins",
            f"in the end D agrees with C on {twin['source']:.0%} of the source, {twin['target']:.0%} of the target",
            # Earlier summaries do not name the method: there was one that they knew.
            f"the domains stayed apart: try more steps, or a larger --{twin.get('method', 'mdd')}.weight",
            WARNING,
        )
    if discriminator and discriminator["late"] > _TOLD_APART:
        yield Finding(
            "the adversary wins",
            f"in the end {discriminator['method']}'s D tells the domains of {discriminator['late']:.0%} of the samples",
            f"the domains stayed apart: try a larger --{discriminator['method']}.weight, or more steps",
            WARNING,
        )
    elif discriminator and all(abs(discriminator[when] - 0.5) < _BLIND for when in ("early", "late")):
        yield Finding(
            "the adversary has learned nothing",
            f"{discriminator['method']}'s D tells the domains of {discriminator['early']:.0%} of the samples in the "
            f"beginning and of {discriminator['late']:.0%} in the end: a coin would do as well",
            "it gave the network no direction: try more steps or another adversary; that the domains look alike to it "
            "may also be the norm's work (network.norm)",
            NOTE,
        )


def _eta(summary: Mapping[str, Any]) -> Iterable[Finding]:
    eta = summary["observations"]["training"].get("eta")
    if not eta or not eta["learned"]:
        return
    end = 0 if eta["mean"] < _STUCK else 1 if eta["mean"] > 1 - _STUCK else None
    evidence = f"in the end its mean is {eta['mean']:.3f} and its deviation {eta['std']:.3f}"
    advice = (
        "SAF then {}; --saf.eta.source beta draws η at random, --saf.eta.ascend true lets it seek what teaches most"
    )
    if end is not None:
        yield Finding(
            f"η is stuck at {end}", evidence, advice.format("mixes nothing, and only trains on its own labels"), WARNING
        )
    elif eta["std"] < _CONSTANT:
        yield Finding(
            f"η is a constant, {eta['mean']:.2f}", evidence, advice.format("does not choose between samples"), WARNING
        )


def _uninformed(summary: Mapping[str, Any]) -> Iterable[Finding]:
    if not summary["source_only"]:
        return
    after, before = (max(0.0, summary[name]["scores"]["information"]) for name in ("adapted", "source_only"))
    if after < before - _LESS_INFORMATION:
        yield Finding(
            "nothing speaks for adapting",
            f"the adapted answers carry {after:.2f} of the information that they could, source-only's {before:.2f}",
            "compare the two columns of predictions.csv on samples that you know; if in doubt, take source only "
            "(--methods '')",
            WARNING,
        )


def _missing(summary: Mapping[str, Any]) -> Iterable[Finding]:
    priors, samples = summary["observations"].get("priors") or {}, summary["samples"]
    gone = [
        name
        for name, shares in summary["classes"].items()
        if shares["source"] * samples >= _FEW_EXPECTED
        and shares["predicted"] < _RARE * shares["source"]
        and priors.get(name, {"estimated": shares["predicted"]})["estimated"] < _MISSING * shares["source"]
    ]
    if gone:
        share = sum(summary["classes"][name]["source"] for name in gone)
        predicted = sum(summary["classes"][name]["predicted"] for name in gone)
        estimated = f", {sum(priors[name]['estimated'] for name in gone):.1%} as estimated" if priors else ""
        yield Finding(
            f"{_number(len(gone), 'class')} missing from the target, or not recognised in it: {_some(gone)}",
            f"{share:.1%} of the source; of the target {predicted:.1%} by the answers{estimated}",
            "if they cannot be there, leave them out of the source; if they may be rare, set "
            "--pseudo-labels.distribution-alignment 0, or SAF makes them as frequent as others; if they are there, "
            "label a few",
            WARNING if share >= _MUCH_MISSING else NOTE,
        )


def _unlike(summary: Mapping[str, Any]) -> Iterable[Finding]:
    unlike = summary["observations"].get("unlike")
    if unlike and unlike["share"] > _UNLIKE:
        yield Finding(
            "samples that look like no class of the source",
            f"{unlike['share']:.0%} of the target lies where 1% of the source does, and is answered less surely than "
            f"most of it; such as {_some(unlike['samples'])}",
            "look at these: they may be of classes that the source lacks; more often known ones look different",
            NOTE,
        )


def _label_shift(summary: Mapping[str, Any]) -> Iterable[Finding]:
    """Look at the answers: on data sets at hand their shares are nearer to the truth than estimates by a probe are."""
    classes = summary["classes"]
    source, predicted = (np.array([each[which] for each in classes.values()]) for which in ("source", "predicted"))
    moved = total_variation(source, predicted)
    if moved > _SHIFTED and not swallowing_class(summary):
        names = list(classes)
        most = [names[k] for k in np.argsort(-np.abs(predicted - source), kind="stable")[:_MOST_NAMED]]
        changes = ", ".join(f"{name} {classes[name]['source']:.1%} → {classes[name]['predicted']:.1%}" for name in most)
        yield Finding(
            "classes are not as frequent as in the source",
            f"{moved:.0%} of the answers would have to be others to be shared out as the source is: {changes}"
            f"{_estimated_shift(summary)}",
            "if that cannot be, label a few samples of these classes; if it is so, "
            "--pseudo-labels.distribution-alignment 0 lets them differ more",
            WARNING,
        )


def _estimated_shift(summary: Mapping[str, Any]) -> str:
    priors = summary["observations"].get("priors")
    if not priors:
        return ""
    source, estimated = (np.array([each[which] for each in priors.values()]) for which in ("source", "estimated"))
    return (
        f"; by an estimate that holds if a class looks alike in both domains, {total_variation(source, estimated):.0%}"
    )


def _gained_and_lost(summary: Mapping[str, Any]) -> Iterable[Finding]:
    changes = {
        name: round(shares["predicted"] - shares["source_only"], 4)  # as shares are
        for name, shares in summary["classes"].items()
        if "source_only" in shares
    }
    changes = {name: change for name, change in changes.items() if abs(change) >= _CHANGED}
    if changes:
        order = sorted(changes, key=lambda name: -abs(changes[name]))
        sides = {"gained": [n for n in order if changes[n] > 0], "lost": [n for n in order if changes[n] < 0]}
        parts = [
            f"{what}: {', '.join(_change(summary['classes'][name], name) for name in names[:_MOST_NAMED])}"
            for what, names in sides.items()
            if names
        ]
        yield Finding(
            "classes that gained and lost against source only",
            "; ".join(parts),
            "look at samples that changed sides: the columns class and source_only of predictions.csv",
            NOTE,
        )


def _lighter(summary: Mapping[str, Any]) -> str:
    """Return which weights of the run to lower."""
    knobs = [f"--{name}.weight" for name in summary["observations"]["training"].get("weighed", ())]
    return f"lower {' or '.join(knobs)}" if knobs else "lower --optimizer.lr"


def _change(shares: Mapping[str, float], name: str) -> str:
    return f"{name} {shares['source_only']:.1%} → {shares['predicted']:.1%}"


def _number(count: int, what: str) -> str:
    return f"one {what}" if count == 1 else f"{count} {what}es"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


__all__ = ["NOTE", "SERIOUS", "WARNING", "Finding", "diagnose", "observe", "watch_training"]
