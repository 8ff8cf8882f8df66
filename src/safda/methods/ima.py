"""Implicit class-conditioned alignment (Jiang et al., ICML 2020): MDD on batches of the same classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.data import Domain
from safda.data.loader import ProgressCallback, evaluation_batches
from safda.data.sampler import EpochSampler, Sampler, mixed_seed
from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, mean_over_processes
from safda.methods.mdd import MDD
from safda.nn.network import Network

_CLASS_DRAWS, _SAMPLE_DRAWS = 0x1A, 0x1B  # keep these seeds apart from each other and from those of steps


@register("ima")
class ImA(MDD):
    """Each step draws classes, and samples of them from the source by label and from the target by pseudo-label.

    Pseudo-labels choose samples and nothing more. Logits of classes that the source's batch does not hold are set to
    zero, as in the authors' code, in the cross-entropy and in MDD's two terms; what the labels of those terms are is
    read before that.

    Jiang, Lao, Matwin, Havaei: Implicit class-conditioned domain alignment for unsupervised domain adaptation. ICML
    2020.
    """

    paper = "Jiang et al., ICML 2020"
    cost = 2.0

    @dataclass(frozen=True)
    class Knobs(MDD.Knobs):
        """Implicit class-conditioned alignment."""

        relabel_every: int = knob(20, "steps after which the target's pseudo-labels are made again", low=1, high=10**9)

    knobs: Knobs

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Take the source's labels, and make the target's first pseudo-labels, by an untrained network."""
        self._source_labels, _ = source.labelled("class-aligned batches")
        self._classes = net.classes
        self._predict: Callable[[], Tensor] = lambda: _predicted(net, target)  # not as an attribute: net holds this
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a copy what holds the network and the target: it is for the training in this process alone."""
        return {name: value for name, value in vars(self).items() if name != "_predict"}

    def refresh_every(self, steps: int, steps_per_epoch: float) -> int:
        """Make pseudo-labels again after so many steps."""
        return self.knobs.relabel_every

    def refresh(self) -> None:
        """Predict the whole target."""
        self._target_labels = self._predict()

    def sampler(self, role: str, default: Sampler) -> Sampler:
        """Choose samples class by class."""
        assert isinstance(default, EpochSampler)
        labels = (lambda: self._source_labels) if role == "source" else (lambda: self._target_labels)
        return ClassAlignedSampler(labels, self._classes, default.batch, default.seed, default.domain)

    def source_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of masked logits."""
        return F.cross_entropy(self._masked(batch, batch.source.logits), batch.labels)

    def twin_logits(self, batch: Batch) -> Tensor:
        """D's logits, masked."""
        return self._masked(batch, super().twin_logits(batch))

    def _masked(self, batch: Batch, logits: Tensor) -> Tensor:
        present = mean_over_processes(batch.labels.bincount(minlength=logits.shape[1]).float()) > 0
        return logits * present

    def training_state(self) -> dict[str, Tensor]:
        """The pseudo-labels by which samples are chosen."""
        return {"target_labels": self._target_labels}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on choosing by them."""
        self._target_labels = state["target_labels"]


class ClassAlignedSampler:
    """Batches of as many classes as fit, the same ones in both domains, and of each as many samples as fit.

    Samples of a class are drawn without replacement, unless it has too few. Where a class has none, or samples and
    classes do not come out even, random samples fill the batch.

    Args:
        labels: returns the class of each sample, as it is known when a batch is chosen.
        classes: number of classes.
        batch: samples in a step.
        seed: decides every draw, the classes' in both domains alike.
        domain: tells the domains' other draws apart.
    """

    def __init__(self, labels: Callable[[], Tensor], classes: int, batch: int, seed: int, domain: int) -> None:
        self.labels, self.classes, self.batch, self.seed, self.domain = labels, classes, batch, seed, domain

    def rows(self, step: int) -> Tensor:
        """Return the row numbers of one step's batch."""
        labels = self.labels()
        shared = _generator(self.seed, step, _CLASS_DRAWS)
        own = _generator(self.seed, step, _SAMPLE_DRAWS, self.domain)
        shots = max(1, self.batch // self.classes)
        ways = min(self.classes, self.batch // shots)
        parts = []
        for k in torch.randperm(self.classes, generator=shared)[:ways].tolist():
            members = (labels == k).nonzero().squeeze(1)
            if len(members) >= shots:
                parts.append(members[torch.randperm(len(members), generator=own)[:shots]])
            elif len(members):
                parts.append(members[torch.randint(len(members), (shots,), generator=own)])
        missing = self.batch - sum(map(len, parts))
        fill = torch.randperm(len(labels), generator=own)[:missing]
        if len(fill) < missing:
            fill = torch.randint(len(labels), (missing,), generator=own)
        return torch.cat([*parts, fill])


def _generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(mixed_seed(*parts))


@torch.no_grad()
def _predicted(net: Network, target: Domain) -> Tensor:
    """Return the class that C∘B, as it would answer in use, gives to each sample, or that a user has given."""
    training, device = net.training, next(net.parameters()).device
    net.eval()
    labels = [net.encode(inputs.to(device)).logits.argmax(1).cpu() for inputs in evaluation_batches(target)]
    net.train(training)
    found, known = torch.cat(labels), target.known_labels
    return found if known is None else torch.where(known >= 0, known, found)
