"""What is to be thought of an adapted classifier, in numbers and in words, where the target has no labels.

Nothing here is a proof: a classifier can be sure, even and wrong. What it looks at is what betrayed the failures that
we know: classes that swallow others, classes that vanish, and answers that have little to do any more with those of a
classifier that only learned the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from sklearn.metrics import cohen_kappa_score
from torch import Tensor

from safda.classifier import Adapted, Predictions
from safda.data import Domain
from safda.data.sampler import evenly_spaced_rows
from safda.evaluation.choice import SOURCE_ONLY
from safda.evaluation.label_shift import class_shares
from safda.evaluation.scores import Outputs, scores
from safda.methods.propagation import nearest_samples

TRUST, DOUBT, DISTRUST = "trust", "doubt", "do not trust"

# Agreement beyond chance (Cohen's kappa) of the adapted answers with source-only's, and by how much more of it there
# must be among samples that are near each other than there is once every column is shuffled by itself.
# docs/verdict.md has what both are on the data sets at hand, and on noise.
_DOUBTFUL_KAPPA, _BAD_KAPPA = 0.6, 0.3
_DOUBTFUL_STRUCTURE, _MIN_STRUCTURE = 0.5, 0.05
_NO_CHANCE = 0.001  # a p-value below which what is seen is not what shuffled columns give
_MIN_SAMPLES = 20  # with fewer, nothing can be said of neighbours
_MAX_SAMPLES = 4096  # so many are enough to see whether near ones are alike
_COSTS = ("outputs", "source", "pass", "fit", "graph")  # of scores: what a run can afford at its end
_MAX_NEVER_PREDICTED = 0.25  # share of the classes: if more are, something is wrong
_MIN_PER_CLASS = 5  # samples for each class: with fewer, some are missing by chance


def summarise(
    predictions: Predictions | Outputs,
    before: Predictions | Outputs | None,
    source_labels: Tensor,
    structure: Mapping[str, float] | None = None,
    choice: Mapping[str, Any] | None = None,
    estimate: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Summarise predictions without labels: shares of the classes, confidence, agreement, scores, a verdict.

    Args:
        predictions: what the adapted classifier says of the target; as outputs, with all that more scores look at.
        before: what a classifier says of it that only learned the source; None if there is none.
        source_labels: class numbers of the source.
        structure: how alike near samples look to that classifier, from :func:`neighbour_structure`.
        choice: which of several classifiers this is, from :func:`safda.evaluation.choice.choose`.
        estimate: of its accuracy, from :func:`safda.evaluation.estimate.estimate_accuracy`.

    Returns:
        plain values, as ``summary.json`` has them; ``verdict`` is one of trust, doubt and do not trust, and ``words``
        says why.
    """
    after, earlier = _outputs(predictions), None if before is None else _outputs(before)
    names, answers = after.target.classes, after.target_answers.numpy()
    shares = {
        "source": class_shares(source_labels.numpy(), len(names)),
        "predicted": class_shares(answers, len(names)),
    }
    if earlier is not None:
        shares["source_only"] = class_shares(earlier.target_answers.numpy(), len(names))
    summary: dict[str, Any] = {
        "samples": len(answers),
        "classes": {
            name: {what: round(float(each[k]), 4) for what, each in shares.items()} for k, name in enumerate(names)
        },
        "never_predicted": [name for k, name in enumerate(names) if not shares["predicted"][k]],
        "adapted": _confidence_and_scores(after),
        "source_only": earlier and _confidence_and_scores(earlier),
        "agreement": earlier and _agreement(earlier.target_answers.numpy(), answers),
        "structure": structure,
        "choice": choice,
        "estimate": estimate,
    }
    return {**summary, **judge(summary)}


def judge(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``verdict``, ``concerns`` and ``words`` on what a summary, as ``summary.json`` has it, tells."""
    serious, slight = _concerns(summary)
    verdict = DISTRUST if serious else DOUBT if slight else TRUST
    return {"verdict": verdict, "concerns": [*serious, *slight], "words": _explain(summary, serious, slight)}


def _predicted_labels(predictions: Predictions) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = predictions.logits.argmax(1)
    return numbers


def _outputs(given: Predictions | Outputs) -> Outputs:
    return given if isinstance(given, Outputs) else Outputs(given)


def _confidence_and_scores(outputs: Outputs) -> dict[str, Any]:
    return {
        "confidence": float(outputs.target.confidence.mean()),
        "scores": scores(outputs, _COSTS),
    }


def _agreement(one: NDArray[np.int64], other: NDArray[np.int64]) -> dict[str, float]:
    """Return the share of equal answers, and Cohen's kappa: how far it is beyond chance, where 1 is all of the way."""
    share = float((one == other).mean())
    return {"share": share, "kappa": float(cohen_kappa_score(one, other)) if share < 1 else 1.0}


def neighbour_structure(source_only: Adapted, features: Domain, scaling: str = "centred") -> dict[str, float] | None:
    """Measure how alike samples that are near each other look to a classifier, and how alike they would by chance.

    If the classes that it learned show in the target at all, near samples mostly get the same answer. What is chance
    depends on the features; so it is measured, on the same ones with every column shuffled by itself.

    Args:
        source_only: a classifier that only learned the source.
        features: the target's.
        scaling: in which of :data:`~safda.methods.propagation.FEATURES` samples are near each other.

    Returns:
        the agreement of neighbours beyond chance (kappa), ``neighbours`` as it is and ``shuffled``; and ``p_value`` of
        the confidences being those of the shuffled samples (Kolmogorov–Smirnov). None of a few samples.
    """
    if len(features) < _MIN_SAMPLES:
        return None
    rows = evenly_spaced_rows(len(features), _MAX_SAMPLES)
    values = features.batch(rows)
    shuffled = torch.from_numpy(np.random.default_rng(0).permuted(values.numpy(), axis=0))
    both = [Domain(features.name, each) for each in (values, shuffled)]
    answers = [source_only.answer(each) for each in both]
    near, by_chance = (_neighbour_kappa(*each, scaling) for each in zip(answers, both, strict=True))
    same = ks_2samp(*(each.confidence for each in answers))
    return {"neighbours": near, "shuffled": by_chance, "p_value": float(same.pvalue)}


def _neighbour_kappa(answers: Predictions, to: Domain, scaling: str) -> float:
    labels, near = _predicted_labels(answers), nearest_samples(to, scaling)
    return _agreement(np.repeat(labels, np.diff(near.indptr)), labels[near.indices])["kappa"]


def _concerns(summary: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what looks wrong: reasons not to trust the predictions, and reasons to doubt them."""
    serious: list[str] = []
    slight: list[str] = []
    piled = _piled_class(summary)
    if piled:
        name, share, usual = piled
        telling = f"one class, {name}, takes {share:.0%} of the target (of the source {usual:.0%})"
        (serious if swallowing_class(summary) else slight).append(telling)
    never, known = len(summary["never_predicted"]), len(summary["classes"])
    if never > _MAX_NEVER_PREDICTED * known and summary["samples"] >= _MIN_PER_CLASS * known:
        slight.append(f"{never} of {known} classes are never predicted")
    if summary["samples"] < _MIN_SAMPLES:
        slight.append(f"{summary['samples']} samples are too few to tell")
    if _is_source_only(summary):
        slight.append("nothing speaks clearly for adapting, so source only was taken")
    agreement, structure = summary["agreement"], summary["structure"]
    if agreement is None:
        slight.append("there is no source-only classifier to compare with, since the whole network was trained")
    elif agreement["kappa"] < _DOUBTFUL_KAPPA:
        telling = f"it agrees with source only on {agreement['share']:.0%} of the samples"
        (serious if agreement["kappa"] < _BAD_KAPPA else slight).append(telling)
    if structure and _neighbours_tell_nothing(structure):
        telling = "to a source-only classifier, samples near each other look no more alike than in noise"
        (serious if classes_do_not_show(structure) else slight).append(telling)
    elif structure and structure["neighbours"] < _DOUBTFUL_STRUCTURE:
        slight.append("to a source-only classifier, samples near each other often look different")
    return serious, slight


def swallowing_class(summary: Mapping[str, Any]) -> tuple[str, float, float] | None:
    """Return the class that takes too much of the target, with its share of that and of the source, if one does.

    Where source only finds as much of it, among samples that look alike to it where they are near each other, that is
    how the target is, and no class has swallowed another.
    """
    piled = _piled_class(summary)
    if piled is None:
        return None
    name, _, usual = piled
    before, structure = summary["classes"][name].get("source_only"), summary["structure"]
    seen_before = before is not None and _is_pile(before, usual)
    return None if seen_before and structure and structure["neighbours"] > _DOUBTFUL_STRUCTURE else piled


def _piled_class(summary: Mapping[str, Any]) -> tuple[str, float, float] | None:
    name, shares = max(summary["classes"].items(), key=lambda item: item[1]["predicted"])
    return (name, shares["predicted"], shares["source"]) if _is_pile(shares["predicted"], shares["source"]) else None


def _is_pile(share: float, usual: float) -> bool:
    return share > (1 + usual) / 2  # more than half of the way from its share in the source to all there is


def classes_do_not_show(structure: Mapping[str, float] | None) -> bool:
    """Return whether the target looks like noise to a source-only classifier, from :func:`neighbour_structure`.

    Neighbours are then no more alike than in noise, and it is as sure as it is in noise. In features where neighbours
    tell little by nature, such as counts of words, the second shows that it sees something.
    """
    if structure is None:
        return False
    p_value = structure.get("p_value", 1.0)  # older runs lack it, and are judged as they were
    return _neighbours_tell_nothing(structure) and p_value > _NO_CHANCE


def _neighbours_tell_nothing(structure: Mapping[str, float]) -> bool:
    return structure["neighbours"] < structure["shuffled"] + _MIN_STRUCTURE


def _is_source_only(summary: Mapping[str, Any]) -> bool:
    choice = summary.get("choice") or {"chosen": None}
    return bool(choice["chosen"] == SOURCE_ONLY)


def _explain(summary: Mapping[str, Any], serious: list[str], slight: list[str]) -> str:
    parts = []
    if summary.get("choice") and not _is_source_only(summary):
        parts.append(f"{summary['choice']['chosen']} was taken of {len(summary['choice']['evidence'])} candidates")
    after = summary["adapted"]["confidence"]
    if summary["source_only"]:
        earlier = summary["source_only"]["confidence"]
        way = "rose" if after > earlier else "fell"
        parts.append(f"adaptation changed {1 - summary['agreement']['share']:.0%} of the predictions")
        parts.append(f"confidence {way} from {earlier:.2f} to {after:.2f}")
    else:
        parts.append(f"mean confidence is {after:.2f}")
    if summary.get("estimate") and not serious:
        likely, low, high = (f"{summary['estimate'][name]:.0%}" for name in ("accuracy", "low", "high"))
        parts.append(f"about {likely} of its answers are likely to be right ({low} to {high})")
    if serious:
        parts.append(f"{' and '.join([*serious, *slight])}: do not trust this run")
    elif slight:
        parts.append(f"{' and '.join(slight)}: look at some predictions before you trust this run")
    else:
        parts.append("nothing looks wrong")
    return "; ".join(parts)
