"""What a score may look at, and the registry of scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from safda.classifier import Adapted, Predictions
from safda.data import AnyDomain, Domain
from safda.data.sampler import evenly_spaced_rows
from safda.errors import SafdaError, SafdaWarning, first_line
from safda.evaluation.theory import encode
from safda.registry import Registry

_MOST_SOURCE = 16384  # samples: evenly over the source, so many tell how it is answered
_MIXED_AT_ONCE = 256  # samples: pictures of as many fit into memory


class Missing(SafdaError):
    """A score asked for something that is not at hand."""


class SourceMissing(Missing):
    """… for the source: what is said of it, or its samples."""


class NetworkMissing(Missing):
    """… for the samples themselves, or for the network's answer to others."""


class ModelsMissing(Missing):
    """… for other models than the one that is scored."""


@dataclass(frozen=True)
class Outputs:
    """What a classifier says of both domains: all that a score may look at. Target labels are not among it.

    All but the first may be None, where it would cost too much; each is called once at most, when a score asks for it.

    Attributes:
        target: its predictions of the target.
        predict_source: returns its predictions of the source, and the source's labels.
        get_domains: returns source and target as the network takes them.
        predict_mixed: takes row numbers of target samples, as many of others, and the share of the first; returns the
            logits of their mixes.
        predict_by_others: returns what other models say of the target: of the same recipe, with other seeds.
    """

    target: Predictions
    predict_source: Callable[[], tuple[Predictions, Tensor]] | None = None
    get_domains: Callable[[], tuple[Domain, Domain]] | None = None
    predict_mixed: Callable[[Tensor, Tensor, float], Tensor] | None = None
    predict_by_others: Callable[[], Sequence[Predictions]] | None = None

    @classmethod
    def of(
        cls,
        adapted: Adapted,
        source: AnyDomain,
        predictions: Predictions,
        target: AnyDomain | None = None,
        others: Callable[[], Sequence[Predictions]] | None = None,
    ) -> Outputs:
        """Return the outputs of a classifier.

        Args:
            adapted: the classifier.
            source: the domain it was trained with, or labelled samples of it that were held out; pictures, or features
                of its frozen backbone.
            predictions: of the target.
            target: what they were made of; without it, scores that look at samples cannot be had.
            others: returns what other models say of it.
        """
        labels, _ = source.labelled("a score")

        def predict_source() -> tuple[Predictions, Tensor]:
            rows = evenly_spaced_rows(len(source), _MOST_SOURCE)
            return source_predictions(adapted, _for_network(adapted, source).take(rows)), labels[rows]

        if target is None:
            return cls(predictions, predict_source, predict_by_others=others)
        there = target

        def get_domains() -> tuple[Domain, Domain]:
            return _for_network(adapted, source), _for_network(adapted, there)

        def predict_mixed(rows: Tensor, partners: Tensor, share: float) -> Tensor:
            return mixed_logits(adapted, _for_network(adapted, there), rows, partners, share)

        return cls(predictions, predict_source, get_domains, predict_mixed, others)

    @property
    def target_logits(self) -> Tensor:
        """The target's logits, n×K."""
        return torch.from_numpy(self.target.logits)

    @cached_property
    def target_probabilities(self) -> Tensor:
        """Their softmax, n×K."""
        return torch.from_numpy(self.target.probabilities)

    @property
    def target_embedding(self) -> Tensor:
        """The bottleneck's output for the target, n×width."""
        return torch.from_numpy(self.target.embedding)

    @property
    def target_answers(self) -> Tensor:
        """The most probable class of each target sample, as its number."""
        return self.target_logits.argmax(1)

    @property
    def source_logits(self) -> Tensor:
        """The source's logits, m×K."""
        return torch.from_numpy(self._source[0].logits)

    @property
    def source_embedding(self) -> Tensor:
        """The bottleneck's output for the source, m×width."""
        return torch.from_numpy(self._source[0].embedding)

    @property
    def source_labels(self) -> Tensor:
        """The source's class numbers, m."""
        return self._source[1]

    @cached_property
    def _source(self) -> tuple[Predictions, Tensor]:
        if self.predict_source is None:
            raise SourceMissing("the source's outputs are not at hand, and a score asked for them")
        return self.predict_source()

    @cached_property
    def feature_domains(self) -> tuple[Domain, Domain]:
        """Source and target, whose samples are features."""
        if self.get_domains is None:
            raise NetworkMissing("the samples themselves are not at hand, and a score asked for them")
        domains = self.get_domains()
        for domain in domains:
            if len(domain.inputs.shape) != 2:
                raise NetworkMissing(
                    f"{domain.name}: a score needs features: arrays, or pictures with network.frozen = true"
                )
        return domains

    def mixed_logits(self, rows: Tensor, partners: Tensor, share: float) -> Tensor:
        """The classifier's logits for mixes of target samples."""
        if self.predict_mixed is None:
            raise NetworkMissing("the network is not at hand to answer for mixed samples, and a score asked for that")
        return self.predict_mixed(rows, partners, share)

    @cached_property
    def others(self) -> tuple[Predictions, ...]:
        """What other models say of the target; one at least."""
        others = tuple(self.predict_by_others()) if self.predict_by_others else ()
        if not others:
            raise ModelsMissing("a score compares models of several seeds, and there is but one model")
        return others


def _for_network(adapted: Adapted, domain: AnyDomain) -> Domain:
    """Return a domain as a classifier takes it; the very same one, if it holds features of its backbone already."""
    if isinstance(domain, Domain) and tuple(domain.inputs.shape[1:]) == (adapted.model.backbone_dim,):
        return domain
    return adapted.ready(domain)


def source_predictions(adapted: Adapted, source: Domain) -> Predictions:
    """Predict source samples as training saw them: where each domain has a norm of its own, by the source's."""
    seen = encode(
        adapted.model, source, target=source.take(torch.tensor([0]))
    )  # any row: what is said of it is dropped
    embedding, logits = (part.numpy() for part in seen.source)
    return Predictions(source.ids or tuple(map(str, range(len(source)))), adapted.classes, logits, embedding)


@torch.inference_mode()
def mixed_logits(adapted: Adapted, target: Domain, rows: Tensor, partners: Tensor, share: float) -> Tensor:
    """Return a classifier's logits for ``share`` of some target samples and the rest of others."""

    def inputs(some: Tensor) -> Tensor:
        return adapted.model.as_floats(target.batch(some).to(adapted.device))

    logits = [
        adapted.model.predict(share * inputs(some) + (1 - share) * inputs(others))[0].float().cpu()
        for some, others in zip(*(torch.split(each, _MIXED_AT_ONCE) for each in (rows, partners)), strict=True)
    ]
    return torch.cat(logits)


# ------------------------------------------------------------------------------------------------------ the registry

ScoreFunction: TypeAlias = Callable[[Outputs], float]
Function = TypeVar("Function", bound=ScoreFunction)

#: Name → score of a classifier's outputs; the higher, the better.
SCORES: Registry[ScoreFunction] = Registry("score", "safda.evaluation.scores")

#: What a score may cost beside the target's outputs → in words; the first two are cheap.
COSTS = {
    "outputs": "nothing: it looks at the target's outputs",
    "source": "the source's outputs: one pass",
    "pass": "the network's answer to as many samples again",
    "fit": "a small classifier, trained on embeddings: seconds",
    "graph": "a search for neighbours: seconds",
    "adversary": "several networks, trained on embeddings against each other: more seconds",
    "models": "another model, trained with another seed: as much as the run",
}
_CHEAP = ("outputs", "source")


@dataclass(frozen=True)
class About:
    """What is to be known of a score. Its direction is that of all: higher is better.

    Attributes:
        name: as in :data:`SCORES`.
        what: in a sentence.
        paper: where it comes from.
        cost: one of :data:`COSTS`.
    """

    name: str
    what: str
    paper: str
    cost: str


_ABOUT: dict[str, About] = {}


def score(name: str, *, paper: str, cost: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a score, with what is to be known of it.

    Args:
        name: what it is chosen by.
        paper: where it comes from.
        cost: one of :data:`COSTS`.
    """
    if cost not in COSTS:
        raise SafdaError(f"score {name!r}: cost {cost!r} is none of {', '.join(COSTS)}")

    def add(function: Function) -> Function:
        SCORES.register(name)(function)
        _ABOUT[name] = About(name, (function.__doc__ or "").strip().split("\n")[0], paper, cost)
        return function

    return add


def about(name: str) -> About:
    """Return what is to be known of a score; one that was registered without a word is taken for cheap.

    >>> about("information").cost
    'outputs'
    """
    SCORES[name]
    return _ABOUT.get(name, About(name, "", "", "outputs"))


def scores(outputs: Outputs, costs: Collection[str] = _CHEAP) -> dict[str, float]:
    """Return the scores of a classifier's outputs: those of some costs (the cheap ones) that can be had.

    A score that asks for what is not at hand, and one that is not finite, is left out; so is one that fails, and that
    is told.
    """
    found = {}
    for name in SCORES:
        if about(name).cost in costs:
            try:
                found[name] = SCORES[name](outputs)
            except Missing:
                continue
            except Exception as error:  # somebody's own, perhaps: what it is a score of is whole without it
                told = f"the score {name!r} is left out ({type(error).__name__}: {first_line(error)})"
                warnings.warn(told, SafdaWarning, stacklevel=2)
    return {name: value for name, value in found.items() if np.isfinite(value)}
