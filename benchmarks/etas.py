"""SAFs with an η that is no part of the package: oracles, a learned reliability, a look-ahead. ``eta.py`` tries them.

Each is a :class:`~safda.methods.saf_method.SAFMethod` with another η, and in ``evidence`` what that reads::

    knobs = to_plain(recipe["saf"])
    safda.fit(source, target, recipe=recipe, methods=["mdd", LookAheadSAF(**knobs)])

An oracle looks at target labels in training. So it has its place here, where a study says what a better η could be
worth, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback
from safda.methods.base import Batch, Method, Phase
from safda.methods.mdd import MDD
from safda.methods.propagation import propagation_graph
from safda.methods.pseudo_labels import PseudoLabels
from safda.methods.saf import SAFOutput, cross_entropy_divergence, mix
from safda.methods.saf_method import SAFMethod
from safda.model import AdaptationModel
from safda.nn.network import Network

BETA = 0.2
HELD_OUT = 5  # each fifth sample of the source
PUSHES = (0.0, 0.2, 0.4)  # how far stand-ins go towards a target sample
FARTHEST = 8.0  # log-odds beyond this tell no more
OPINIONS = 3  # of the graph, of C∘B, of the adversary
COLUMNS = 2  # of evidence, for each opinion
VIRTUAL_STEP = 0.1  # of C∘B, in a look-ahead: about what the learning rate and momentum make of a step


# -------------------------------------------------------------------------------------------------- oracles


class OracleSAF(SAFMethod):
    """SAF that is told which pseudo-labels are right: η = 1 or 0 where one of a pair is, Beta otherwise.

    Args:
        truth: the target's classes.
        signal: if any, what it is told of a sample is its rightness times this plus normal noise, the same all through
            the run, and η is tilted by it: an oracle that errs, on hard samples no more often than on easy ones.
        knobs: SAF's.
    """

    def __init__(self, truth: Tensor, signal: float = 0.0, **knobs: Any) -> None:
        super().__init__(**knobs)
        self.truth, self.signal = truth, signal
        self.noise = torch.randn(len(truth), generator=torch.Generator().manual_seed(0))

    def build(self, net: Network) -> None:
        """Make M."""
        super().build(net)
        self.saf.eta = TiltedBeta() if self.signal else OracleEta()

    def evidence(self, batch: Batch, pseudo_labels: Tensor, logits: Tensor) -> Tensor:
        """Whether each pseudo-label is right; of one that errs, the log-odds of that."""
        rows = batch.target.rows
        right = (pseudo_labels.argmax(1) == self.truth[rows]).to(logits.dtype)
        told = self.signal * (self.signal * right + self.noise[rows]) if self.signal else right
        return told.unsqueeze(1)


class OracleEta(nn.Module):
    """η from evidence that is 1 where a sample's label is right and 0 elsewhere."""

    def forward(self, right: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return 1 or 0 where one label is right and the other wrong, and draw from Beta elsewhere."""
        better = right[first] - right[second]
        return torch.where(better == 0, _beta(len(first), right), (better > 0).to(right.dtype))


def _beta(count: int, like: Tensor) -> Tensor:
    return torch.distributions.Beta(BETA, BETA).sample((count, 1)).to(like)


# ---------------------------------------------------------------------------------------------- reliability


class TiltedBeta(nn.Module):
    """η ~ Beta, whose larger share goes to the first of a pair with probability σ(r₁ − r₂).

    With equal reliabilities r that is plain Beta: what comes of it comes of r, not of how much is mixed.

    Args:
        columns: of evidence; r = weights · evidence, and the weights begin at zero. Of a single one, r is the evidence.
        literal: η = σ(r₁ − r₂) instead.
    """

    def __init__(self, columns: int = 1, literal: bool = False) -> None:
        super().__init__()
        self.weights: Tensor
        self.register_buffer("weights", torch.zeros(columns) if columns > 1 else torch.ones(1))
        self.literal = literal

    def forward(self, evidence: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return η of each pair."""
        first_is_better = torch.sigmoid((evidence[first] - evidence[second]) @ self.weights.to(evidence)).unsqueeze(1)
        if self.literal:
            return first_is_better
        share = _beta(len(first), evidence)
        larger = torch.maximum(share, 1 - share)
        return torch.where(torch.rand_like(share) < first_is_better, larger, 1 - larger)


class ReliabilitySAF(SAFMethod):
    """SAF whose η follows a reliability r: the log-odds that a pseudo-label is right, learned where truth is known.

    It is known of stand-ins for the target: samples that nothing else in the run has seen. As often as labels
    propagate, the stand-ins' do too, and a logistic regression learns from what the graph, C∘B and the adversary say of
    them which are right. It is fitted to its end each time, from nothing: its weights, a buffer, are all the state.

    Args:
        stand_ins: a labelled domain, such as :func:`stand_ins` makes; with the target itself, an oracle.
        beyond: take away what the graph's sureness alone tells, so that no sample is passed over for being hard.
        literal: η = σ(r₁ − r₂), in place of a Beta that is tilted by it.
        knobs: SAF's.
    """

    def __init__(self, stand_ins: Domain, beyond: bool = False, literal: bool = False, **knobs: Any) -> None:
        super().__init__(**knobs)
        self.stand_ins, self.beyond, self.literal = stand_ins, beyond, literal

    def build(self, net: Network) -> None:
        """Make M."""
        super().build(net)
        self.saf.eta = TiltedBeta(OPINIONS * COLUMNS, self.literal)

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Make the graph of the stand-ins beside the source."""
        self._model = (cast(AdaptationModel, net),)  # in a tuple: it is no part of this module
        propagation = self._pseudo_labels.knobs.propagation
        self._graph, self._alpha = propagation_graph(source, self.stand_ins, propagation), propagation.alpha

    @property
    def _pseudo_labels(self) -> PseudoLabels:
        return cast(PseudoLabels, self._model[0].methods["pseudo_labels"])

    def refresh_every(self, steps: int, steps_per_epoch: float) -> int:
        """As often as labels propagate."""
        return self._pseudo_labels.refresh_every(steps, steps_per_epoch)

    @torch.no_grad()
    def refresh(self) -> None:
        """Learn from the stand-ins which labels are right."""
        (model,), (truth, _) = self._model, self.stand_ins.labelled("reliability")
        _, projected = model.project(self.stand_ins.batch(torch.arange(len(truth))))
        said, by_adversary = answers(model, model.methods["mdd"], projected)
        graph = self._graph.propagate(said, self._alpha)
        labels = graph.argmax(1)
        weights = reliability_weights(evidence_of(labels, graph, said, by_adversary), labels == truth, self.beyond)
        self.saf.eta.get_buffer("weights").copy_(weights)

    def evidence(self, batch: Batch, pseudo_labels: Tensor, logits: Tensor) -> Tensor:
        """What is said of the batch's pseudo-labels."""
        return batch_evidence(batch, pseudo_labels)


def batch_evidence(batch: Batch, pseudo_labels: Tensor) -> Tensor:
    """What the graph, C∘B and the adversary say of a batch's pseudo-labels; where nothing has propagated, C∘B twice."""
    said, by_adversary = answers(batch.net, batch.methods["mdd"], batch.split(batch.projected)[1].detach())
    graph = propagated(batch)
    graph = torch.where(graph.sum(1, keepdim=True) > 0, graph, said)
    return evidence_of(pseudo_labels.argmax(1), graph, said, by_adversary)


def evidence_of(labels: Tensor, *opinions: Tensor) -> Tensor:
    """Of each opinion on each sample, the log-odds that it gives to the label, and its entropy."""
    columns = []
    for probabilities in opinions:
        share = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
        columns += [torch.logit(share, 1e-6).clamp(-FARTHEST, FARTHEST), torch.special.entr(probabilities).sum(1)]
    return torch.stack(columns, 1)


def reliability_weights(evidence: Tensor, right: Tensor, beyond: bool = False) -> Tensor:
    """Fit σ(weights · evidence + offset) to what is right; ``beyond``, less the fit to the graph's evidence alone."""
    if right.all() or not right.any():
        return torch.zeros(evidence.shape[1])
    weights = _logistic_regression(evidence.numpy(), right.numpy())
    if beyond:
        weights[:COLUMNS] -= _logistic_regression(evidence[:, :COLUMNS].numpy(), right.numpy())
    return torch.from_numpy(weights).float()


def _logistic_regression(columns: NDArray[np.float32], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return its weights; columns are of unit variance for the penalty's sake."""
    spread = columns.std(0) + 1e-6
    weights: NDArray[np.float64] = LogisticRegression().fit(columns / spread, right).coef_[0] / spread
    return weights


@torch.no_grad()
def answers(net: Network, mdd: nn.Module | Method, projected: Tensor) -> tuple[Tensor, Tensor]:
    """What C∘B and the adversary say, as in use: nothing dropped, normalised by running statistics."""
    twin = cast(MDD, mdd).twin
    with in_evaluation(net.bottleneck, net.classifier, twin):
        embedding = net.bottleneck.finish(projected)
        return net.classifier(embedding).softmax(1), twin(embedding).softmax(1)


def propagated(batch: Batch) -> Tensor:
    """What the graph says of the batch's target rows; zeros as long as nothing is known."""
    return batch.methods["pseudo_labels"].training_state()["labels"][batch.target.rows]


@contextmanager
def in_evaluation(*modules: nn.Module) -> Iterator[None]:
    """Have modules that are in training in evaluation for a while."""
    for module in modules:
        module.eval()
    yield
    for module in modules:
        module.train()


def stand_ins(source: Domain, target: Domain) -> tuple[Domain, Domain]:
    """Part a source of features: what is left of it, and held-out samples that are pushed towards the target.

    All of those get the difference of the domains' means; then each is mixed with a random target sample, to several
    degrees.
    """
    rows = torch.arange(len(source))
    left, held_out = source.take(rows[rows % HELD_OUT != 0]), source.take(rows[rows % HELD_OUT == 0])
    here, held, there = (each.batch(torch.arange(len(each))).float() for each in (source, held_out, target))
    moved = held + there.mean(0) - here.mean(0)
    partners = there[torch.randint(len(there), (len(moved),), generator=torch.Generator().manual_seed(0))]
    labels, _ = held_out.labelled("a stand-in")
    pushed = torch.cat([torch.lerp(moved, partners, push) for push in PUSHES])
    return left, replace(held_out, name="stand-ins", inputs=pushed, labels=labels.repeat(len(PUSHES)), ids=None)


# ----------------------------------------------------------------------------------------------- look-ahead


class LookAheadSAF(SAFMethod):
    """SAF whose M learns by what its mixes teach: through one virtual step of C∘B.

    With half of a batch's pairs, C∘B makes a step that is never taken. What it would be worth is the cross-entropy of
    trusted samples of the other half: those of which C∘B, the graph and a second view (C∘B under dropout) say the
    same. M descends that, and L_M no longer reaches it.
    """

    def build(self, net: Network) -> None:
        """Make M."""
        super().build(net)
        self.saf.eta = ScoredEta(OPINIONS * COLUMNS)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """λ_M·L_M for C∘B, and for M what would come of the virtual step."""
        labels, logits = cast(PseudoLabels, batch.methods["pseudo_labels"]).of(batch)
        out = self.mixed(batch, labels, logits)
        batch.log(self, eta_mean=out.eta.mean(), eta_std=out.eta.std(correction=0))
        scores = cast(ScoredEta, self.saf.eta).score(self.evidence(batch, labels, logits))
        worth = look_ahead(batch, labels, scores, self.trusted(batch, logits), out)
        return {"saf": self.knobs.at(batch.progress) * out.loss, "saf_look_ahead": worth / VIRTUAL_STEP}

    def evidence(self, batch: Batch, pseudo_labels: Tensor, logits: Tensor) -> Tensor:
        """What is said of the batch's pseudo-labels."""
        return batch_evidence(batch, pseudo_labels)

    def trusted(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which target rows may judge."""
        graph, predicted = propagated(batch), logits.argmax(1)
        agree = (predicted == graph.argmax(1)) & (predicted == batch.target.logits.argmax(1))
        return agree & (graph.sum(1) > 0)


class ScoredEta(nn.Module):
    """η = σ(r₁ − r₂), where r is a small network's score of the evidence; η passes no gradient back."""

    def __init__(self, columns: int, width: int = 32) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(columns, affine=False)
        self.score = nn.Sequential(norm, nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, 1))

    @torch.no_grad()
    def forward(self, evidence: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return η of each pair."""
        scores = self.score(evidence)
        return torch.sigmoid(scores[first] - scores[second])


def look_ahead(batch: Batch, labels: Tensor, scores: Tensor, trusted: Tensor, out: SAFOutput) -> Tensor:
    """Cross-entropy of trusted samples after a virtual step of C∘B on the mixes of others; zero if there are none.

    Args:
        batch: the step's.
        labels: the target rows' pseudo-labels.
        scores: M's r of them, one column; nothing else gets a gradient.
        trusted: which of them may judge.
        out: the pairs that were drawn.
    """
    half = len(out.first) // 2
    first, second = out.first[:half], out.second[:half]
    others = torch.cat([out.first[half:], out.second[half:]])
    judges = others[trusted[others]]
    if half == 0 or len(judges) == 0:
        return 0 * scores.sum()
    features = batch.target.features.detach()
    heads = nn.Sequential(batch.net.bottleneck, batch.net.classifier)
    weights = {name: value.detach().requires_grad_() for name, value in heads.named_parameters()}
    with in_evaluation(batch.net.bottleneck, batch.net.classifier):
        eta = torch.sigmoid(scores[first] - scores[second])
        logits = functional_call(heads, weights, (mix(eta, features, first, second),))
        loss = cross_entropy_divergence(logits, mix(eta, labels, first, second))
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        stepped = {name: weights[name] - VIRTUAL_STEP * each for name, each in zip(weights, gradients, strict=True)}
        return F.cross_entropy(functional_call(heads, stepped, (features[judges],)), labels[judges].argmax(1))
