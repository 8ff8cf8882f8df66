"""A trained classifier with its class names: predict, evaluate, save, load. And :func:`fit`, which makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safda.data import Domain, load_domain
from safda.data.feed import Count, evaluation_batches, feature_batches
from safda.data.pictures import Pictures
from safda.errors import SafdaError, nearest
from safda.features import for_network, frozen_features, picture_side
from safda.model import AdaptationModel
from safda.networks import Centred
from safda.recipe import Recipe, load_recipe, preset
from safda.runs import RunFolder
from safda.scoring import Evaluation, score
from safda.tables import write_table
from safda.training import Outcome, Watch, load_weights, make_accelerator, size_of, train, weights_of

_OF_THE_BACKBONE = tuple(f"network.{name}" for name in ("backbone", "pretrained", "weights", "frozen", "image_size"))


@dataclass(frozen=True)
class Predictions:
    """What a classifier says of a domain.

    Attributes:
        ids: a name for each sample.
        classes: all class names, in the order of the columns of ``logits``.
        logits: n×K.
        embedding: B's output, n×width.
        skipped: what could not be read: (id, why).
    """

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    logits: NDArray[np.float32]
    embedding: NDArray[np.float32]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """The probability of each class, n×K."""
        shifted = np.exp(self.logits - self.logits.max(1, keepdims=True))
        probabilities: NDArray[np.float32] = shifted / shifted.sum(1, keepdims=True)
        return probabilities

    @property
    def labels(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.classes[k] for k in self.logits.argmax(1)]

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Its probability."""
        highest: NDArray[np.float32] = self.probabilities.max(1)
        return highest

    def ranked(self, most: int) -> list[list[tuple[str, float]]]:
        """Give for each sample its most probable classes and their probabilities, the first one first."""
        probabilities = self.probabilities
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]
        return [
            [(self.classes[k], float(of_one[k])) for k in ks]
            for ks, of_one in zip(best.tolist(), probabilities, strict=True)
        ]

    def table(self, all_probabilities: bool = False) -> dict[str, list[Any]]:
        """Give columns: id, class, confidence and, on request, one column a class."""
        columns: dict[str, list[Any]] = {
            "id": list(self.ids),
            "class": self.labels,
            "confidence": self.confidence.tolist(),
        }
        if all_probabilities:
            columns.update({f"p({c})": p.tolist() for c, p in zip(self.classes, self.probabilities.T, strict=True)})
        return columns

    def write(self, path: str | Path, all_probabilities: bool = False) -> None:
        """Write ``.csv``, ``.jsonl`` or ``.parquet``, whole or not at all."""
        write_table(Path(path), self.table(all_probabilities))


class Adapted:
    """A classifier that training has adapted to a target.

    Example:
        >>> import numpy, safda
        >>> rng = numpy.random.default_rng(0)
        >>> y = rng.integers(0, 3, 90)
        >>> X, shifted = (numpy.eye(3)[y] * 3 + rng.normal(size=(90, 3)) + shift for shift in (0, 0.5))
        >>> adapted = safda.fit((X, y), shifted, steps=50, batch=16, **{"network.bottleneck_width": 32})
        >>> len(adapted.predict(shifted).labels), adapted.evaluate((shifted, y)).accuracy > 0.8
        (90, True)
    """

    def __init__(self, model: AdaptationModel, classes: tuple[str, ...], data: dict[str, Any]) -> None:
        self.model, self.classes, self._data = model.eval(), classes, data

    @property
    def recipe(self) -> Recipe:
        """The experiment that made it."""
        return self.model.recipe

    @torch.inference_mode()
    def predict(self, data: Any) -> Predictions:
        """Predict the class of every sample of a domain: a name, a path, several pictures' paths or an array."""
        shape = tuple(self._data["input_shape"])
        domain = for_network(load_domain(data), shape[-1])
        check_shape(domain, shape)
        device = next(self.model.parameters()).device
        domain = frozen_features(self.model, domain)
        parts = [self.model.predict(inputs.to(device)) for inputs in evaluation_batches(domain)]
        logits, embedding = (torch.cat(part).float().cpu() for part in zip(*parts, strict=True))
        ids = domain.ids or tuple(str(row) for row in range(len(domain)))
        return Predictions(ids, self.classes, logits.numpy(), embedding.numpy(), domain.skipped)

    def evaluate(self, data: Any) -> Evaluation:
        """Compare predictions with the labels of a domain. On a target, this is an oracle's number."""
        domain = load_domain(data)
        return self.compare(self.predict(domain), domain)

    def compare(self, predictions: Predictions, domain: Domain) -> Evaluation:
        """Compare predictions that were made of a domain with its labels; classes are matched by name."""
        labels, names = domain.labelled("evaluate")
        used = [names[k] for k in torch.unique(labels).tolist()]
        unknown = [name for name in used if name not in self.classes]
        if unknown:
            more = f" (nor were {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            hint = nearest(unknown[0], self.classes)
            hint = hint if "mean" in hint else f", whose classes are {_some(self.classes)}"
            raise SafdaError(f"{domain.name}: class {unknown[0]!r} was not in the source{more}{hint}")
        number = torch.tensor([self.classes.index(name) if name in self.classes else -1 for name in names])
        return score(predictions.probabilities, number[labels].numpy(), self.classes)

    def save(self, path: str | Path) -> None:
        """Write a folder that :meth:`load` reads, and every command that takes a run."""
        run = RunFolder.create(path, self.recipe, self._data, size_of(self.model))
        run.save_model(weights_of(self.model))

    @classmethod
    def load(cls, path: str | Path, backbone: nn.Module | None = None) -> Adapted:
        """Read a finished run, or a folder that :meth:`save` wrote. No code is run from it.

        Args:
            path: the folder.
            backbone: a network like the one that training was given, where it was given one.
        """
        run = RunFolder.open(path)
        weights = run.load_model()
        model, classes = _empty_model(run, backbone)
        load_weights(model, weights, str(path))
        return cls(model, classes, run.data)


def fit(
    source: Any,
    target: Any,
    *,
    out: str | Path | None = None,
    recipe: Recipe | str | Path | None = None,
    watch: Watch | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    backbone: nn.Module | None = None,
    cache_decoded: bool = False,
    strict: bool = False,
    **overrides: Any,
) -> Adapted:
    """Adapt a classifier from a labelled source to an unlabelled target.

    Args:
        source: a domain with labels: a name, the path of a folder or a file, or a pair (features, labels).
        target: a domain; labels it may have are dropped at the door.
        out: a new run folder; None keeps everything in memory.
        recipe: a recipe, a preset's name or a TOML file; by default ``digits`` for the embedded digits,
            ``pictures`` for pictures and ``default`` for arrays.
        watch: called after every step.
        cpu: stay on the CPU even where there is a GPU.
        trackers: experiment trackers that accelerate knows, such as ``"tensorboard"``.
        backbone: a network of your own for F: from n×3×h×w to n×d. It is trained in place.
        cache_decoded: keep decoded pictures on disk, which takes some 200 kB for each at 224 pixels.
        strict: make an error of pictures that cannot be read, instead of skipping them.
        overrides: knobs by their path, as in ``steps=500`` or ``**{"adversary.name": "cdan"}``.
    """
    source, target = load_domain(source, "source", strict=strict), load_domain(target, "target", strict=strict)
    if not isinstance(recipe, Recipe):
        recipe = default_recipe(source) if recipe is None else load_recipe(recipe)
    check_knobs(source, {**overrides, **({} if backbone is None else {"network.backbone": backbone})})
    recipe = recipe.override(overrides)
    adapted, outcome = start(
        source, target, recipe, out, watch, cpu, trackers, backbone=backbone, cache_decoded=cache_decoded
    )
    if outcome.stopped_by:
        where = f"; safda.resume({str(out)!r}) goes on with it" if out else ""
        raise SafdaError(f"stopped by {outcome.stopped_by.name} after step {outcome.step}{where}")
    return adapted


def default_recipe(source: Domain) -> Recipe:
    """Give the recipe for a source that comes without one."""
    if isinstance(source.inputs, Pictures):
        return preset("pictures")
    return preset("digits" if source.name.startswith("digits-") else "default")


def start(
    source: Domain,
    target: Domain,
    recipe: Recipe,
    out: str | Path | None = None,
    watch: Watch | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    *,
    backbone: nn.Module | None = None,
    cache_decoded: bool = False,
    count: Count | None = None,
) -> tuple[Adapted, Outcome]:
    """Begin a run: check the domains, make the folder and the model, train."""
    _, classes = source.labelled("a training source")
    if len(classes) < 2:
        raise SafdaError(f"{source.name}: has one class only ({classes[0]!r}); a classifier needs two or more")
    side = picture_side(source, recipe, backbone)
    source, target = (for_network(domain, side, cache_decoded) for domain in (source, target.unlabelled()))
    shape = tuple(source.inputs.shape[1:])
    check_shape(target, shape)
    data = {
        "source": _origin(source),
        "target": _origin(target),
        "input_shape": list(shape),
        "input_type": str(source.inputs.dtype).removeprefix("torch."),
        "classes": list(classes),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = AdaptationModel(recipe, source.blank(), len(classes), backbone)
    accelerator = make_accelerator(recipe, cpu=cpu, trackers=trackers, folder=Path(out) if out else None)
    with accelerator.main_process_first():
        model.to(accelerator.device)
        source, target = (frozen_features(model, domain, count) for domain in (source, target))
    if isinstance(model.centring, Centred):
        knob = "network.features = 'centred'"
        model.centring.learn(chain.from_iterable(feature_batches(domain, knob) for domain in (source, target)))
    run = None
    if out is not None:
        if accelerator.is_main_process:
            RunFolder.create(out, recipe, data, size_of(model))
        accelerator.wait_for_everyone()
        run = RunFolder.open(out)
    outcome = train(model, source, target, accelerator=accelerator, run=run, watch=watch, count=count)
    return Adapted(model, classes, data), outcome


def resume(
    path: str | Path,
    *,
    source: Any = None,
    target: Any = None,
    watch: Watch | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    backbone: nn.Module | None = None,
    cache_decoded: bool = False,
    count: Count | None = None,
) -> tuple[Adapted, Outcome]:
    """Go on with a run that was stopped, from its last checkpoint, on the same data.

    Args:
        path: the run folder.
        source: the same source again, if it was an array; one that has a name is found by it.
        target: the same target again, if it was an array.
        watch: called after every step.
        cpu: stay on the CPU even where there is a GPU.
        trackers: experiment trackers that accelerate knows.
        backbone: the same network again, if one was handed over.
        cache_decoded: keep decoded pictures on disk.
        count: told (done, of how many) samples while anything is made ready for the first step.
    """
    run = RunFolder.open(path)
    if run.finished:
        return Adapted.load(path, backbone), Outcome(run.recipe.steps, None)
    data = run.data
    domains = []
    for role, given in (("source", source), ("target", target)):
        if given is None and data[role]["name"] == role:
            raise SafdaError(
                f"{path}: its {role} was an array, or pictures named one by one; "
                f"hand it over again: safda.resume(path, {role}=…)"
            )
        domain = load_domain(data[role]["name"] if given is None else given, role)
        domain = domain if role == "source" else domain.unlabelled()
        if domain.fingerprint() != data[role]["digest"]:
            raise SafdaError(
                f"{domain.name}: has changed since the run in {path} began; a resumed run needs the same data"
            )
        domains.append(for_network(domain, data["input_shape"][-1], cache_decoded))
    model, classes = _empty_model(run, backbone)
    accelerator = make_accelerator(run.recipe, cpu=cpu, trackers=trackers, folder=run.path)
    if run.recipe.network.frozen:
        load_weights(model, run.last_checkpoint().model, str(path))  # they hold the backbone that made the features
        domains = [frozen_features(model, domain, count) for domain in domains]
    outcome = train(model, *domains, accelerator=accelerator, run=run, watch=watch, resume=True, count=count)
    return Adapted(model, classes, data), outcome


def check_knobs(source: Domain, given: Mapping[str, Any]) -> None:
    """Refuse knobs of the backbone that a user turned for a source that has none: ignored, they would mislead.

    A preset or a recipe file may hold them: it serves pictures too.

    Args:
        source: the labelled domain.
        given: the knobs that were named one by one, by path.
    """
    sections = [f"{path}.{key}" for path, value in given.items() if isinstance(value, Mapping) for key in value]
    idle = [path for path in (*given, *sections) if path in _OF_THE_BACKBONE]
    if idle and len(source.inputs.shape) == 2:
        have, them = ("has", "it") if len(idle) == 1 else ("have", "them")
        raise SafdaError(
            f"{source.name}: holds features already, so {' and '.join(idle)} {have} no meaning; "
            f"leave {them} out, or name the pictures"
        )


def check_shape(domain: Domain, shape: tuple[int, ...]) -> None:
    """Make sure that a domain's inputs look like those of training."""
    there = tuple(domain.inputs.shape[1:])
    if isinstance(domain.inputs, Pictures) and len(shape) == 1:
        raise SafdaError(
            f"{domain.name}: holds pictures, the source rows of {shape[0]} numbers; "
            "'safda features' with the same backbone makes such rows of pictures"
        )
    if there != shape:
        raise SafdaError(f"{domain.name}: its samples are of shape {there}, the source's of shape {shape}")


def _empty_model(run: RunFolder, backbone: nn.Module | None) -> tuple[AdaptationModel, tuple[str, ...]]:
    """Make the network of a run; its weights come from the folder, so none are downloaded."""
    data, recipe = run.data, run.recipe
    classes = tuple(data["classes"])
    offline = replace(recipe, network=replace(recipe.network, pretrained=False, weights=""))
    sample = torch.zeros(tuple(data["input_shape"]), dtype=getattr(torch, data["input_type"]))
    model = AdaptationModel(offline, sample, len(classes), backbone)
    model.recipe = recipe
    return model, classes


def _origin(domain: Domain) -> dict[str, Any]:
    path = Path(domain.name)
    # Arrays have no path, nor have pictures that were named one by one.
    on_disk = path.exists() and (not domain.in_memory or path.suffix == ".npz")
    name = str(path.resolve()) if on_disk else domain.name
    skipped = [list(each) for each in domain.skipped]
    return {"name": name, "samples": len(domain), "digest": domain.fingerprint(), "skipped": skipped}


def _some(names: tuple[str, ...], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


__all__ = ["Adapted", "Predictions", "check_knobs", "default_recipe", "fit", "resume", "start"]
