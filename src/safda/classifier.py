"""A trained classifier with its class names: predict, evaluate, save, load. :func:`safda.fit` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safda.data import AnyDomain, Domain, load_domain
from safda.data.images import TransformedImages
from safda.data.loader import ProgressCallback, evaluation_batches
from safda.data.pixels import Transform
from safda.errors import SafdaError, first_few, nearest
from safda.evaluation.oracle import Evaluation, score
from safda.extraction import for_network, frozen_features
from safda.model import AdaptationModel, require_memory
from safda.nn.weights import not_finite
from safda.predictions import Predictions
from safda.recipe import Recipe
from safda.training.checkpoint import RunFolder
from safda.training.loop import load_weights, size_of, weights_of
from safda.turns import borrowed_generator

if TYPE_CHECKING:
    from safda.export import Exported


class Adapted:
    """A classifier that training has adapted to a target.

    Attributes:
        model: the network.
        classes: names of the classes.
        data: what its run folder remembers of the data.
        summary: what is to be said of it without labels, where that was asked for: from
            :func:`safda.evaluation.verdict.summarise`.
        choice: where several recipes were tried, which was taken (``"chosen"``) and the evidence for each; else None.

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
        self.model, self.classes, self.data = model.eval(), classes, data
        self.summary: dict[str, Any] | None = None
        self.choice: dict[str, Any] | None = None

    @property
    def recipe(self) -> Recipe:
        """The experiment that made it."""
        return self.model.recipe

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    def ready(self, data: Any, progress: ProgressCallback | None = None) -> Domain:
        """Return a domain as the network takes it: pictures in its input size, or as a frozen backbone's features."""
        return frozen_features(self.model, self.inputs(data), progress)

    def inputs(self, data: Any) -> Domain:
        """Return a domain of inputs like those of training: pictures in the network's input size."""
        domain = for_network(load_domain(data), transform_of(self.data))
        check_shape(domain, tuple(self.data["input_shape"]))
        return domain

    def predict(self, data: Any, progress: ProgressCallback | None = None) -> Predictions:
        """Predict the class of every sample.

        Args:
            data: a domain: a name, a path, several pictures' paths or an array.
            progress: called with (done, total) while a frozen backbone looks at pictures it has not seen.
        """
        return self.answer(self.ready(data, progress))

    @torch.inference_mode()
    def answer(self, domain: Domain) -> Predictions:
        """Predict samples that are as the network takes them: its inputs, or features of its frozen backbone."""
        parts = [self.model.predict(inputs.to(self.device)) for inputs in evaluation_batches(domain)]
        logits, embedding = (torch.cat(part).float().cpu() for part in zip(*parts, strict=True))
        ids = domain.ids or tuple(str(row) for row in range(len(domain)))
        bad = ~(torch.isfinite(logits).all(1) & torch.isfinite(embedding).all(1))
        if bad.any():  # otherwise all such samples would be of the first class, in silence
            row = int(bad.nonzero()[0])
            raise SafdaError(
                f"{domain.name}: the answer to {ids[row]} is not finite ({int(bad.sum())} such samples): "
                f"{self._why_not_finite(domain.batch(torch.tensor([row])))}"
            )
        return Predictions(ids, self.classes, logits.numpy(), embedding.numpy(), domain.skipped)

    def _why_not_finite(self, sample: Tensor) -> str:
        weights = not_finite(self.model.state_dict())
        if weights:
            return f"the weights {weights[0]} are not; load another copy of the model, or train again"
        if not torch.isfinite(sample).all():
            return "the sample itself is not; remove or mend it"
        return f"numbers as large as {float(sample.abs().max()):.3g} are too much for the network; scale the data"

    def evaluate(self, data: Any) -> Evaluation:
        """Compare predictions with the labels of a domain. On a target, this is an oracle's number."""
        domain = load_domain(data)
        return self.compare(self.predict(domain), domain)

    def compare(self, predictions: Predictions, domain: AnyDomain) -> Evaluation:
        """Compare predictions that were made of a domain with its labels; classes are matched by name."""
        return score(predictions.probabilities, self.class_numbers(domain), self.classes)

    def class_numbers(self, domain: AnyDomain) -> NDArray[np.int64]:
        """Return the labels of a domain as this classifier numbers its classes."""
        labels, names = domain.labelled("evaluate")
        used = [names[k] for k in torch.unique(labels).tolist()]
        unknown = [name for name in used if name not in self.classes]
        if unknown:
            more = f" (nor were {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            hint = nearest(unknown[0], self.classes)
            hint = hint if "mean" in hint else f", whose classes are {first_few(self.classes, 8, count=True)}"
            raise SafdaError(f"{domain.name}: class {unknown[0]!r} was not in the source{more}{hint}")
        number = torch.tensor([self.classes.index(name) if name in self.classes else -1 for name in names])
        numbers: NDArray[np.int64] = number[labels].numpy()
        return numbers

    def export(self, path: str | Path, data: Any = None, *, calibrate: Any = None) -> Exported:
        """Write one file that answers elsewhere: ``.onnx``, for :class:`safda.OnnxClassifier`, or ``.pt2``.

        Args:
            path: the file.
            data: samples on which it is compared with torch; by default some of the target, where it is found again.
            calibrate: a domain with labels that training has not seen, to fit a temperature on; without it, 1.

        Raises:
            SafdaError: if it would answer otherwise than this classifier does.
        """
        from safda.export import export

        return export(self, path, data, calibrate=calibrate)

    def save(self, path: str | Path) -> None:
        """Write a folder that :meth:`load` reads, and every command that takes a run."""
        with RunFolder.create(path, self.recipe, self.data, size_of(self.model)).locked() as run:
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
        adapted = cls.empty(run, backbone)
        load_weights(adapted.model, weights, str(path))
        adapted.summary, adapted.choice = run.summary, run.choice
        return adapted

    @classmethod
    def empty(cls, run: RunFolder, backbone: nn.Module | None = None) -> Adapted:
        """Make the network of a run, to be filled from its folder: no weights are looked for elsewhere."""
        data, recipe = run.data, run.recipe
        offline = replace(recipe, network=replace(recipe.network, pretrained=False, weights=""))
        require_memory(recipe.network, data["input_shape"], len(data["classes"]))
        sample = torch.zeros(tuple(data["input_shape"]), dtype=getattr(torch, data["input_type"]))
        with borrowed_generator(recipe.seed):  # what is drawn is not used
            model = AdaptationModel(offline, sample, len(data["classes"]), backbone)
        model.recipe = recipe
        return cls(model, tuple(data["classes"]), data)


def check_shape(domain: Domain, shape: tuple[int, ...]) -> None:
    """Make sure that a domain's inputs look like those of training."""
    there = tuple(domain.inputs.shape[1:])
    if isinstance(domain.inputs, TransformedImages) and len(shape) == 1:
        raise SafdaError(
            f"{domain.name}: holds pictures, the source rows of {shape[0]} numbers; "
            "'safda features' with the same backbone makes such rows of pictures"
        )
    if there != shape:
        raise SafdaError(f"{domain.name}: its samples are of shape {there}, the source's of shape {shape}")


def transform_of(data: Mapping[str, Any]) -> Transform:
    """Return the transform of a run's backbone; for a run on anything else, it has no meaning."""
    return Transform(**data.get("transform") or {"side": data["input_shape"][-1]})


__all__ = ["Adapted", "Predictions"]
