"""The paper's theory, measured: margins, margin disparity, its discrepancy between domains, and the bound's terms.

The functions of margins take probabilities, n×K, of a classifier C. The discrepancy is a supremum over auxiliary
classifiers C'; :func:`empirical_mdd` trains some, and sees on samples that they have not learned from how far they get.
:func:`measure` has all of it for a run, before and after it has adapted. docs/theory.md says what cannot be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

from safda.data import Domain
from safda.data.sampler import evenly_spaced_rows
from safda.methods.mdd import log_one_minus
from safda.model import AdaptationModel

#: ϱ: margins of probabilities are ½ at most, and half of that counts as clear.
THRESHOLD = 0.25
#: δ: the bound holds with probability 1 − 3δ.
DELTA = 0.05

_MOST_SAMPLES = 1024  # of each domain, evenly: so many show it, and cost a second or two
_FEWEST_SAMPLES = 8  # of each domain: with fewer, there is nothing left to learn from


# ---------------------------------------------------------------------------------------------------------- formulas


def margin(probabilities: Tensor, labels: Tensor) -> Tensor:
    """ρ: half the gap between the probability of a label and the largest of the others.

    >>> margin(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0]))
    tensor([0.2500])
    """
    own = probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    others = probabilities.scatter(-1, labels.unsqueeze(-1), float("-inf")).amax(-1)
    return (own - others) / 2


def margin_loss(probabilities: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """ρ̄: 1 for a negative margin, 0 beyond the threshold ϱ, and falling linearly in between.

    >>> margin_loss(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0]), threshold=0.5)
    tensor([0.5000])
    """
    return (1 - margin(probabilities, labels) / threshold).clamp(0, 1)


def margin_risk(probabilities: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """ε̂: the mean margin loss against true labels."""
    return margin_loss(probabilities, labels, threshold).mean(-1)


def margin_disparity(probabilities: Tensor, other: Tensor, threshold: float) -> Tensor:
    """Δ̂: the mean margin loss of ``probabilities`` against what the other classifier predicts."""
    return margin_loss(probabilities, other.argmax(-1), threshold).mean(-1)


def discrepancy(source: Tensor, other_source: Tensor, target: Tensor, other_target: Tensor, threshold: float) -> Tensor:
    """d̂ for one given pair of classifiers: twice what their disparity grows from source to target.

    The paper prints source minus target; as in MDD's own definition, it must be target minus source, or an
    adversary that disagrees on the target would make the bound smaller.
    """
    on_source = margin_disparity(source, other_source, threshold)
    on_target = margin_disparity(target, other_target, threshold)
    return 2 * (on_target - on_source)


def h_divergence(source_error: float, target_error: float) -> float:
    """d̂_H from a domain classifier's error on each domain: 2·(1 − their sum); 0 says they cannot be told apart.

    >>> h_divergence(0.5, 0.5), h_divergence(0.0, 0.0)
    (0.0, 2.0)
    """
    return 2 * (1 - (source_error + target_error))


def sampling_terms(sources: int, targets: int, delta: float = DELTA) -> tuple[float, float]:
    """The error bound's terms that depend on the numbers of samples alone, the source's and the target's.

    2·√(ln(2/δ) / 2|S|) and √(ln(2/δ) / 2|T|): the bound then holds with probability 1 − 3δ.

    >>> sampling_terms(16, 25, delta=2 / math.e**2)    # ln(2/δ) = 2
    (0.5, 0.2)
    """
    log = math.log(2 / delta)
    return 2 * math.sqrt(log / (2 * sources)), math.sqrt(log / (2 * targets))


# ------------------------------------------------------------------------- the supremum over auxiliary classifiers


class Discrepancy(NamedTuple):
    """The empirical MDD, and what it is made of.

    Attributes:
        held_out: 2·(Δ̂_T − Δ̂_S) on samples that C' has not learned from; a low estimate of the domains' own, since no
            training finds the very best C'. Zero at least: a C' that always disagrees reaches that.
        fitted: the same on the samples that it learned from: near to the theorem's d̂, and mostly overfitting.
        on_source, on_target: the disparities Δ̂ of ``held_out``.
    """

    held_out: float
    fitted: float
    on_source: float
    on_target: float


def empirical_mdd(
    source_embedding: Tensor,
    source_logits: Tensor,
    target_embedding: Tensor,
    target_logits: Tensor,
    *,
    threshold: float = THRESHOLD,
    seed: int = 0,
    restarts: int = 3,
    steps: int = 100,
) -> float:
    """Margin disparity discrepancy of a classifier between two domains, from 0 to 2, on held-out samples.

    The supremum over auxiliary classifiers C' is sought by training: see :func:`maximal_discrepancy`.

    >>> source, target = torch.rand(200, 2), torch.rand(200, 2) + torch.tensor([9.0, 0.0])
    >>> sure = torch.tensor([[9.0, -9.0]]).expand(200, 2)    # C always says the first class
    >>> empirical_mdd(source, sure, target, sure)            # C' can say the other on all of the target
    2.0
    """
    both = (source_embedding, source_logits), (target_embedding, target_logits)
    return maximal_discrepancy(*both, threshold=threshold, seed=seed, restarts=restarts, steps=steps).held_out


def maximal_discrepancy(
    source: tuple[Tensor, Tensor],
    target: tuple[Tensor, Tensor],
    *,
    threshold: float = THRESHOLD,
    seed: int = 0,
    restarts: int = 3,
    steps: int = 100,
) -> Discrepancy:
    """Train auxiliary classifiers C' to agree with C on the source and not on the target; return how far they get.

    Both domains are cut in halves. On each half, as many C' as ``restarts`` learn the smooth objective of MDD, from
    three quarters of it; by the fourth, the best is taken of all, as they are every 20 steps; its discrepancy is
    measured on the other half. What is returned is the mean of both halves. MDD's γ differs between them, from 1 down
    to 1/(K − 1): at a pointwise optimum C' leaves C where the target is denser than the source if it puts all of its
    doubt on one other class (γ = 1), or if it spreads it evenly over all others (γ = 1/(K − 1)).

    Args:
        source, target: embedding (n×width) and logits (n×K) of C; of more than 1,024 samples, that many, evenly.
        threshold: ϱ.
        seed: decides the halves and where training starts: the same again gives the same again.
        restarts: how many C' are trained on each half.
        steps: of their training.
    """
    generator = torch.Generator().manual_seed(seed)
    halves = tuple(_halves(*side, generator) for side in _on_one_scale(source, target))
    learn, select = _parts(halves, slice(0, 3)), _parts(halves, slice(3, 4))
    others = _Auxiliaries(restarts, source[0].shape[1], source[1].shape[1], generator)
    optimizer = torch.optim.AdamW(others.parameters(), lr=0.01)
    best, found = torch.full((2,), -math.inf), torch.zeros(2, 4)
    with torch.enable_grad():
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            torch.autograd.backward(others.loss(learn))
            optimizer.step()
            if step % 20 == 0 or step == steps:
                value, which = _seen(others, select, threshold)[0].max(1)
                each = torch.stack(
                    [*_seen(others, _exchanged(halves), threshold), _seen(others, learn, threshold)[0]], 2
                )
                better = value > best
                best = torch.where(better, value, best)
                found = torch.where(better[:, None], each[torch.arange(2), which], found)
    held_out, on_source, on_target, fitted = found.mean(0).tolist()
    return Discrepancy(max(held_out, 0.0), fitted, on_source, on_target)


class _Side(NamedTuple):
    """A domain's samples, in two halves: embedding (2×n×width) and C's probabilities (2×n×K)."""

    embedding: Tensor
    probabilities: Tensor


_Halves = tuple[_Side, ...]


def _on_one_scale(*sides: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Take some samples of each domain, and give each dimension of their embedding mean 0 and deviation 1 over both."""
    rows = [evenly_spaced_rows(len(embedding), _MOST_SAMPLES) for embedding, _ in sides]
    some = [embedding[of].float() for (embedding, _), of in zip(sides, rows, strict=True)]
    deviation, mean = torch.std_mean(torch.cat(some), 0)
    deviation = torch.where(deviation > 0, deviation, 1)
    return [
        ((each - mean) / deviation, logits[of].double().softmax(1))
        for each, (_, logits), of in zip(some, sides, rows, strict=True)
    ]


def _halves(embedding: Tensor, probabilities: Tensor, generator: torch.Generator) -> _Side:
    """Shuffle the samples of a domain and cut them in two; an odd one is left out."""
    size = len(embedding) // 2
    rows = torch.randperm(len(embedding), generator=generator)[: 2 * size].view(2, size)
    return _Side(embedding[rows], probabilities[rows])


def _parts(halves: _Halves, quarters: slice) -> _Halves:
    """Return some quarters of each half."""
    cut = [[len(part) for part in torch.arange(side.embedding.shape[1]).tensor_split(4)] for side in halves]
    spans = [slice(sum(sizes[: quarters.start]), sum(sizes[: quarters.stop])) for sizes in cut]
    return tuple(_Side(*(part[:, span] for part in side)) for side, span in zip(halves, spans, strict=True))


def _exchanged(halves: _Halves) -> _Halves:
    return tuple(_Side(*(part.flip(0) for part in side)) for side in halves)


class _Auxiliaries(nn.Module):
    """Several C' for each half, side by side: Linear · ReLU · Dropout · Linear, as C is."""

    _WIDTH, _DROPOUT = 64, 0.5

    def __init__(self, restarts: int, inputs: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self._restarts, self._generator = restarts, generator
        self.gamma = torch.logspace(0, -1, restarts, base=max(classes - 1, 1), dtype=torch.float32)
        self.hidden = self._drawn(2, inputs, restarts * self._WIDTH, scale=(2 / inputs) ** 0.5)
        self.offset = nn.Parameter(torch.zeros(2, 1, restarts * self._WIDTH))
        self.last = self._drawn(2, restarts, self._WIDTH, classes, scale=self._WIDTH**-0.5)
        self.last_offset = nn.Parameter(torch.zeros(2, restarts, 1, classes))

    def _drawn(self, *shape: int, scale: float) -> nn.Parameter:
        return nn.Parameter(scale * torch.randn(shape, generator=self._generator))

    def forward(self, embedding: Tensor, drop: bool = False) -> Tensor:
        """From 2×n×width to the logits of each C', 2×restarts×n×K."""
        hidden = F.relu(embedding @ self.hidden + self.offset)
        if drop:
            kept = torch.rand(hidden.shape, generator=self._generator) >= self._DROPOUT
            hidden = hidden * kept / (1 - self._DROPOUT)
        hidden = hidden.view(*hidden.shape[:2], self._restarts, self._WIDTH).transpose(1, 2)
        logits: Tensor = hidden @ self.last + self.last_offset
        return logits

    def loss(self, halves: _Halves) -> Tensor:
        """MDD's own: γ·CE(C'(s), Ĉ(s)) − log(1 − σ_Ĉ(t)(C'(t))), each C' with its γ; summed over all."""
        source, target = (self(side.embedding, drop=True) for side in halves)
        labels = [side.probabilities.argmax(2)[:, None].expand(-1, self._restarts, -1) for side in halves]
        agree = F.cross_entropy(source.flatten(0, 2), labels[0].flatten(), reduction="none").view(labels[0].shape)
        disagree = -log_one_minus(target.flatten(0, 2), labels[1].flatten()).view(labels[1].shape)
        return ((self.gamma * agree.mean(2) + disagree.mean(2)) / (1 + self.gamma)).sum()


@torch.no_grad()
def _seen(others: _Auxiliaries, halves: _Halves, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each C' (2×restarts) its discrepancy and its disparities on source and target."""
    probabilities = [side.probabilities[:, None].expand(-1, len(others.gamma), -1, -1) for side in halves]
    answers = [others(side.embedding) for side in halves]
    on_source, on_target = (
        margin_disparity(own, other, threshold) for own, other in zip(probabilities, answers, strict=True)
    )
    value = discrepancy(probabilities[0], answers[0], probabilities[1], answers[1], threshold)
    return value, on_source, on_target


def proxy_a_distance(source: Tensor, target: Tensor, seed: int = 0) -> float:
    """How well a linear classifier tells two domains apart, on held-out samples: 0 not at all, 2 perfectly.

    d̂_H of the half-spaces: a logistic regression on standardised dimensions, in five folds. Zero at least: who takes
    everything for the source reaches that.

    Args:
        source, target: embeddings, n×width; of more than 1,024 samples, that many, evenly.
        seed: decides the folds.

    >>> proxy_a_distance(torch.randn(100, 3), torch.randn(100, 3) + 99)
    2.0
    """
    sides = [side[evenly_spaced_rows(len(side), _MOST_SAMPLES)].double() for side in (source, target)]
    values, domain = torch.cat(sides).numpy(), np.repeat([0, 1], [len(side) for side in sides])
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced", max_iter=1000))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    wrong = cross_val_predict(classifier, values, domain, cv=folds) != domain
    return max(h_divergence(float(wrong[domain == 0].mean()), float(wrong[domain == 1].mean())), 0.0)


# ------------------------------------------------------------------------------------------------------------- of a run


@dataclass(frozen=True)
class Encoding:
    """What a network makes of some samples of both domains, each normalised as in training.

    Attributes:
        source, target: embedding (n×width) and logits (n×K).
        labels: class numbers of the source.
    """

    source: tuple[Tensor, Tensor]
    target: tuple[Tensor, Tensor]
    labels: Tensor

    @property
    def source_confidence(self) -> NDArray[np.float32]:
        """The largest probability of each source sample."""
        confidence: NDArray[np.float32] = self.source[1].softmax(1).amax(1).numpy()
        return confidence


def some_samples(domain: Domain) -> Domain:
    """Return as many samples of a domain as :func:`measure` looks at, evenly over it."""
    return domain.take(evenly_spaced_rows(len(domain), _MOST_SAMPLES))


@torch.no_grad()
def encode(model: AdaptationModel, source: Domain, target: Domain) -> Encoding:
    """Send samples of both domains through a network; where each has a norm of its own, the source gets its own."""
    model.eval()
    seen = model.encode_domains(source, target)
    values = (seen.embedding, model.answer(seen))
    sizes = [len(source), len(target)]
    of_source, of_target = zip(*(torch.split(each.float().cpu(), sizes) for each in values), strict=True)
    return Encoding(of_source, of_target, source.labelled("the error bound")[0])


def measure(
    before: Encoding | None, after: Encoding, threshold: float = THRESHOLD, delta: float = DELTA, seed: int = 0
) -> dict[str, dict[str, Any]] | None:
    """Measure what the paper's theory speaks of, of a source-only classifier and of the adapted one.

    Args:
        before: of the source-only classifier, from :func:`encode`; None if there is none.
        after: of the adapted one.
        threshold: ϱ.
        delta: δ.
        seed: of what is drawn.

    Returns:
        name → ``before`` (None if there is none), ``after``, and ``what`` it is in words; None of a few samples.
    """
    if min(len(after.source[0]), len(after.target[0])) < _FEWEST_SAMPLES:
        return None
    earlier, later = (each and _measured(each, threshold, delta, seed) for each in (before, after))
    words = _words(threshold, delta)
    return {
        name: {"before": earlier and round(earlier[name], 6), "after": round(value, 6), "what": words[name]}
        for name, value in (later or {}).items()
    }


def _measured(seen: Encoding, threshold: float, delta: float, seed: int) -> dict[str, float]:
    source, target = (logits.double().softmax(1) for _, logits in (seen.source, seen.target))
    found = maximal_discrepancy(seen.source, seen.target, threshold=threshold, seed=seed)
    risk = margin_risk(source, seen.labels, threshold).item()
    of_source, of_target = sampling_terms(len(source), len(target), delta)
    return {
        "source_error": (source.argmax(1) != seen.labels).double().mean().item(),
        "source_margin": margin(source, seen.labels).mean().item(),
        "target_margin": margin(target, target.argmax(1)).mean().item(),
        "source_margin_risk": risk,
        "source_disparity": found.on_source,
        "target_disparity": found.on_target,
        "mdd": found.held_out,
        "mdd_fitted": found.fitted,
        "source_sampling": of_source,
        "target_sampling": of_target,
        "bound_so_far": risk + found.held_out + of_source + of_target,
        "a_distance": proxy_a_distance(seen.source[0], seen.target[0], seed),
    }


def _words(threshold: float, delta: float) -> dict[str, str]:
    return {
        "source_error": "share of source samples that C gets wrong",
        "source_margin": "mean margin ρ of source samples, by their labels: from −½ to ½",
        "target_margin": "mean margin ρ of target samples, by C's own answers: from 0 to ½",
        "source_margin_risk": f"ε̂_S, the mean margin loss on the source (ϱ = {threshold:g})",
        "source_disparity": "Δ̂_S, the margin disparity on the source of C and a C' that seeks to differ on the target",
        "target_disparity": "Δ̂_T, the same on the target",
        "mdd": "d̂, the margin disparity discrepancy, by samples that C' has not seen: from 0 to 2",
        "mdd_fitted": "the same by samples that C' has learned from",
        "source_sampling": f"2·√(ln(2/δ)/2|S|), for the number of source samples looked at (δ = {delta:g})",
        "target_sampling": "√(ln(2/δ)/2|T|), for the number of target samples looked at",
        "bound_so_far": "ε̂_S + d̂ + both terms for numbers: the bound without λ and K, so no bound",
        "a_distance": "proxy A-distance: how well a linear classifier tells the domains apart, from 0 to 2",
    }


__all__ = [
    "DELTA",
    "THRESHOLD",
    "Discrepancy",
    "Encoding",
    "discrepancy",
    "empirical_mdd",
    "encode",
    "h_divergence",
    "margin",
    "margin_disparity",
    "margin_loss",
    "margin_risk",
    "maximal_discrepancy",
    "measure",
    "proxy_a_distance",
    "sampling_terms",
    "some_samples",
]
