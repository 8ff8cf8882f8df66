"""The contract that every method keeps: adversarial or not, with memory or without, in one step or in several.

A method is one :class:`Method` in one file: its knobs, the parts it adds to the network (``build``), and its losses
(``losses``), read from a :class:`Batch`. That is all most need. The rest is there for those that need more:

* ``setup``: look at both domains once, before training (a graph, an index of classes);
* ``phases``: several optimizer steps an iteration, or stages, and which parameters move in each;
* ``source_loss``: learn the source in another way than by C's cross-entropy;
* ``observe``: after each optimizer step, remember what ``losses`` kept of its samples, from every process;
* ``refresh``: every so many steps, do what is too dear for each, or what a sampler depends on;
* ``sampler``: choose the samples of a step;
* ``predict``: answer for the target in place of C;
* ``training_state``: what a checkpoint must hold of it beyond the weights.

Losses of several methods add up, and none knows of the others, of the optimizer or of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from safda.knobs import filled, knob
from safda.schedules import ramp

if TYPE_CHECKING:
    from safda.data import Domain
    from safda.data.loader import ProgressCallback
    from safda.data.sampler import Sampler
    from safda.nn.network import Encoded, Network


@dataclass(frozen=True)
class RampedWeight:
    """Knobs of a loss that begins small: λ(t) = weight · tanh(ramp · t/T)."""

    weight: float = knob(
        0.1, "final weight λ_D of what reaches F and B", low=0.0, high=100.0, search=(0.01, 1.0, "log")
    )
    ramp: float = knob(10.0, "how fast λ_D rises: tanh(ramp · t/T)", low=0.0, high=1e6)

    def at(self, progress: float) -> float:
        """Return λ(t) at progress t/T."""
        return ramp(progress, self.weight, self.ramp)


@dataclass(frozen=True)
class Phase:
    """One optimizer step of an iteration; every one of them sees the iteration's samples again.

    Attributes:
        name: to tell it from others.
        trains: prefixes of the names of parameters that move, such as ``"bottleneck."``; () is everything.
        times: how often it is repeated.
        supervised: whether the source's cross-entropy and all other methods take part.
    """

    name: str = "joint"
    trains: tuple[str, ...] = ()
    times: int = 1
    supervised: bool = True


@dataclass(frozen=True)
class Side:
    """One domain's part of a batch.

    Attributes:
        rows: which samples of the domain these are.
        inputs: as they went into the network.
        features: φ = F(x).
        embedding: B(φ).
        logits: C(B(φ)).
    """

    rows: Tensor
    inputs: Tensor
    features: Tensor
    embedding: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Batch:
    """One step's tensors, source rows first, then target rows, as they went through the network together.

    Attributes:
        net: the live network, for a method that sends something through it again.
        methods: all methods of the run, for one that builds on another.
        labels: the source rows' classes; there are as many source rows as labels.
        rows: which samples of their domain these are.
        inputs: as they went into the network.
        features: φ = F(x).
        projected: B's linear layer of φ, before its norm.
        embedding: B(φ).
        logits: C(B(φ)).
        progress: t/T, where T is the recipe's ``ramp_steps``, or the run's own length.
        target_labels: the target rows' classes where a user has given them, −1 elsewhere; None without any, as usual.
    """

    net: Network
    methods: Mapping[str, Method]
    labels: Tensor
    rows: Tensor
    inputs: Tensor
    features: Tensor
    projected: Tensor
    embedding: Tensor
    logits: Tensor
    progress: float
    target_labels: Tensor | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Part a tensor of all rows into source and target."""
        sources = len(self.labels)
        return values[:sources], values[sources:]

    @cached_property
    def source(self) -> Side:
        """The source's part."""
        return self._side(0)

    @cached_property
    def target(self) -> Side:
        """The target's part."""
        return self._side(1)

    def _side(self, which: int) -> Side:
        every = (self.rows, self.inputs, self.features, self.embedding, self.logits)
        return Side(*(self.split(values)[which] for values in every))

    def log(self, method: Method, **metrics: Tensor) -> None:
        """Note numbers that tell a person how a method fares; no gradient flows from them."""
        self.metrics.update({f"{method.name}/{name}": value.detach() for name, value in metrics.items()})

    def keep(self, method: Method, **tensors: Tensor) -> None:
        """Keep tensors, a line for each row, for the method's own :meth:`Method.observe`."""
        self.kept[method.name] = {name: values.detach() for name, values in tensors.items()}


class Method(nn.Module):
    """Base of all methods. A subclass declares its ``Knobs`` and defines ``losses``, and most of them ``build``.

    Whatever it needs to be made again is in its knobs, so that a run can be loaded from its folder.

    Args:
        knobs: values of its own knobs, each checked.

    Attributes:
        name: by which recipes know it, from :func:`safda.methods.register`.
        paper: where it is from, in a few words.
        requires: other methods that must be there too; they need not be named in a recipe.
        excludes: other methods that cannot be there, and why.
        rides: whether it is an add-on, that another method leads.
        passes: how often samples go through the network in an iteration, by its defaults.
        cost: how long an iteration takes, beside source-only training's, on 2048 features of 31 classes, or on small
            pictures: what ``benchmarks/methods.py`` measures, to two figures. None: not measured.
        pictures_only: whether it has no meaning on arrays.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    requires: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[Mapping[str, str]] = {}
    rides: ClassVar[bool] = False
    passes: ClassVar[int] = 1
    cost: ClassVar[float | None] = None
    pictures_only: ClassVar[bool] = False

    @dataclass(frozen=True)
    class Knobs:
        """None."""

    knobs: Any

    def __init__(self, **knobs: Any) -> None:
        super().__init__()
        self.knobs = filled(self.Knobs(), knobs, getattr(self, "name", type(self).__name__))

    @classmethod
    def about(cls) -> dict[str, str]:
        """Return what a user may want to know before taking it, as ``safda methods`` prints it."""
        title = (cls.Knobs.__doc__ or "").partition(";")[0].rstrip(".")
        cost = vars(cls).get("cost")  # its own: what another was measured at says nothing of a method derived from it
        return {
            "method": cls.name,
            "title": title,
            "paper": cls.paper,
            "needs": "pictures" if cls.pictures_only else "arrays or pictures",
            "passes": str(cls.passes),
            "cost": "not measured" if cost is None else f"{cost:g}×",
            "saf": f"no: {cls.excludes['saf']}" if "saf" in cls.excludes else "yes",
        }

    def build(self, net: Network) -> None:
        """Make the parts that this method adds, in the network's sizes. They are trained and saved with the rest."""

    def setup(self, net: Network, source: Domain, target: Domain, progress: ProgressCallback | None = None) -> None:
        """Look at both domains once, before training; their samples are features where the backbone is frozen.

        Args:
            net: the network, not yet trained.
            source: the labelled domain.
            target: the unlabelled one.
            progress: to call with (done, total) where it takes long.
        """

    def warm_start(self, probabilities: Tensor) -> None:
        """Begin a second stage of training, where the network gives these probabilities to the target's samples."""

    def phases(self, progress: float) -> Sequence[Phase]:
        """Return the optimizer steps of an iteration. One method of a run may say more than this."""
        return (Phase(),)

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return this step's losses by name. They are added to the step's total as they are: a method weighs its own.

        Called within the network's one forward pass, so every process computes its own rows.
        """
        return {}

    def source_loss(self, batch: Batch) -> Tensor | None:
        """Return a loss of the source's labels in place of C's cross-entropy; None leaves it at that."""
        return None

    def observe(self, seen: Mapping[str, Tensor]) -> None:
        """Learn from a step that was made.

        Args:
            seen: what :meth:`losses` has kept with :meth:`Batch.keep`, from all processes, so that all learn the same.
        """

    def refresh_every(self, steps: int, steps_per_epoch: float) -> int:
        """Return after how many steps :meth:`refresh` is due each time; 0: never.

        Args:
            steps: of the whole run.
            steps_per_epoch: in which the target is seen once.
        """
        return 0

    def refresh(self) -> None:
        """Do what is not for every step. What a sampler depends on may change here, and nowhere else."""

    def sampler(self, role: str, default: Sampler) -> Sampler:
        """Return who chooses the samples of a step, of the ``"source"`` or the ``"target"``."""
        return default

    def predict(self, net: Network, encoded: Encoded) -> Tensor | None:
        """Return the logits to answer with, in place of C's; None leaves it at those."""
        return None

    def training_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold beyond the weights."""
        return {}

    def load_training_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`training_state` returned."""


def overrides(method: Method, name: str) -> bool:
    """Return whether a method has a hook of its own, by the hook's name."""
    return getattr(type(method), name) is not getattr(Method, name)


def mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean of all processes' values, without gradient; with one process, the values."""
    if not (dist.is_available() and dist.is_initialized()):
        return values.detach()
    total = values.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def least_over_processes(count: int, device: torch.device) -> int:
    """Return the smallest of all processes' counts; with one process, its own."""
    if not (dist.is_available() and dist.is_initialized()):
        return count
    least = torch.tensor(count, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least)


def precisely(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function of rows that computes in float32 at least, though all around it is in mixed precision.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     torch.cov(torch.rand(2, 3)).dtype, precisely(torch.cov)(torch.rand(2, 3)).dtype
    (torch.bfloat16, torch.float32)
    """

    @wraps(function)
    def call(rows: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, enabled=False):
            return function(rows if rows.dtype == torch.float64 else rows.float())

    return call


def standing_still(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a module as a function that passes a gradient to its inputs and none to its weights."""
    weights = {name: value.detach() for name, value in module.named_parameters()}

    def call(rows: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, weights, (rows,))
        return outputs

    return call


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * -ctx.weight, None


def reverse(rows: Tensor, weight: float) -> Tensor:
    """Gradient reversal: the identity forwards, times −weight backwards.

    >>> x = torch.ones(3, requires_grad=True)
    >>> reverse(x, 0.5).sum().backward()
    >>> x.grad
    tensor([-0.5000, -0.5000, -0.5000])
    """
    reversed_rows: Tensor = _Reverse.apply(rows, weight)  # type: ignore[no-untyped-call]
    return reversed_rows
