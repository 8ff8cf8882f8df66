"""A trained classifier as one file for elsewhere: ONNX, or torch's own ``.pt2``. It is compared with torch first.

The graph takes inputs as a run reads them (of pictures 8-bit pixels, cut to size) and holds all that follows:
normalisation, backbone, scaling of features, heads, whoever answers for the method, temperature and softmax. What comes
before, class names and recipe stand beside it (:class:`safda.exported.Description`).
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safda.data import EMBEDDED, AnyDomain, Domain, ImageDomain, load_domain
from safda.data.array_files import Arrays
from safda.data.loader import ProgressCallback
from safda.data.pixels import KERNELS, Transform
from safda.data.sampler import evenly_spaced_rows
from safda.errors import SafdaError, SafdaWarning, first_line
from safda.evaluation.calibration import fit_temperature
from safda.exported import (
    DIGEST,
    INPUT,
    OUTPUTS,
    Description,
    OnnxClassifier,
    PictureInputs,
    batches,
    require_onnxruntime,
    sealed,
)
from safda.io import disk_errors, require_writable, write_bytes
from safda.methods.base import overrides
from safda.model import AdaptationModel
from safda.nn.heads import FeatureScaling
from safda.predictions import Predictions

if TYPE_CHECKING:
    from safda.classifier import Adapted

_SAMPLES = 64  # on which a file is compared with torch
_AT_ONCE = 16
_RANDOM = 16  # … where there are none of the target
_TOLERANCE = 1e-3  # of a probability: what a wrong file exceeds by far, and rounding never reaches
_STAGES = 4  # traced, translated, compared, written
_LARGEST = 2**31 - 2**20  # bytes of weights in a protocol buffer, which an ONNX file is

#: Takes inputs, gives logits: what is compared with torch.
Answer = Callable[[NDArray[Any]], NDArray[np.float32]]


@dataclass(frozen=True)
class Parity:
    """How an exported file compares with torch.

    Attributes:
        samples: how many were compared.
        of: where they are from.
        max_difference: of a probability, the largest over all samples and classes.
        same_answers: share of samples with the same answer.
    """

    samples: int
    of: str
    max_difference: float
    same_answers: float


@dataclass(frozen=True)
class Exported:
    """What was exported.

    Attributes:
        path: the file.
        size: its bytes.
        opset: of its operators, for ONNX; None for ``.pt2``.
        temperature: what logits are divided by.
        parity: how it compares with torch.
        preprocessing: what comes before the graph, in words.
    """

    path: Path
    size: int
    opset: int | None
    temperature: float
    parity: Parity
    preprocessing: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "path": str(self.path)}


def export(
    adapted: Adapted,
    path: str | Path,
    data: Any = None,
    *,
    calibrate: Any = None,
    progress: ProgressCallback | None = None,
) -> Exported:
    """Write a classifier as ``.onnx`` or ``.pt2``, once it has been found to answer as torch does.

    Args:
        adapted: the classifier.
        path: the file.
        data: samples to compare on; by default the run's target, where it is found again as it was, or else random
            numbers.
        calibrate: a domain with labels that training has not seen, to fit the temperature on; without it, 1.
        progress: called with (done, total) as it goes on.

    Raises:
        SafdaError: if the file would answer otherwise than torch, or the network cannot be exported.
    """
    path = Path(path)
    require_exportable(path)
    form = _FORMATS[path.suffix]
    about = _describe(adapted, 1.0 if calibrate is None else _temperature(adapted, calibrate, progress))
    of, sample = _samples(adapted, data, progress)
    inputs = adapted.inputs(sample)  # what does not fit is told before the work
    report = progress or (lambda done, of: None)
    with _on_cpu(adapted.model) as model, _quietly():
        program = _traced(model, about)
        report(1, _STAGES)
        content, opset = form.written(program, about)
        report(2, _STAGES)
        theirs = _answers(form.answering(content), _read_without_torch(sample, about.transform))
        parity = _compared(adapted.answer(inputs), theirs, about.temperature, of)
        report(3, _STAGES)
    with disk_errors(path):
        write_bytes(path, content)
    report(4, _STAGES)
    return Exported(path, len(content), opset, about.temperature, parity, about.preprocessing)


def require_exportable(path: Path) -> None:
    """Make sure, before the work, that a file can be written there and that all is at hand that it takes."""
    require_writable(path, _FORMATS)
    _FORMATS[path.suffix].require()


def _describe(adapted: Adapted, temperature: float) -> Description:
    """Return what is to stand beside the graph; of this machine's folders nothing does."""
    data, recipe = adapted.data, adapted.recipe
    transform = Transform(**data["transform"]) if "transform" in data else None
    if transform and transform.interpolation not in KERNELS:
        raise SafdaError(
            f"pictures of this run are resized by {transform.interpolation!r}, and without torch they can only be by "
            f"{' or '.join(KERNELS)}; a network with another configuration can be exported"
        )
    network = replace(recipe.network, weights=Path(recipe.network.weights).name)
    return Description(
        adapted.classes,
        tuple(data["input_shape"]),
        data["input_type"],
        transform,
        temperature,
        replace(recipe, network=network).to_toml(),
        metadata.version("safda"),
    )


def _temperature(adapted: Adapted, calibrate: Any, progress: ProgressCallback | None) -> float:
    """Fit the temperature on labelled samples that training has not seen."""
    domain = load_domain(calibrate, "calibration", progress=progress)
    if domain.fingerprint() == adapted.data["source"]["digest"]:
        raise SafdaError(
            f"{domain.name}: is what the classifier was trained on, where it is surer than elsewhere; calibrate on "
            "labelled samples that it has not seen"
        )
    labels = adapted.class_numbers(domain)
    logits = adapted.predict(domain, progress).logits
    if (logits.argmax(1) == labels).all():  # the surer the better, without end
        what = f"all of its {len(labels)} samples are answered right, which sets no temperature; it stays 1"
        warnings.warn(f"{domain.name}: {what}", SafdaWarning, stacklevel=2)
        return 1.0
    return fit_temperature(logits, labels)


# ----------------------------------------------------------------------------------------------------------- the graph


class _Answering(nn.Module):
    """From inputs as a run reads them to probabilities, logits and embedding."""

    def __init__(self, model: AdaptationModel, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = _without_idle_methods(model), temperature

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Answer, with logits over the temperature."""
        logits, embedding = self.model.predict(inputs)
        if self.temperature != 1:
            logits = logits / self.temperature
        return logits.softmax(1), logits, embedding


def _without_idle_methods(model: AdaptationModel) -> AdaptationModel:
    """Return the same model without what its methods need for training alone, an adversary say."""
    answering = copy.copy(model)
    kept = {name: method for name, method in model.methods_by_name.items() if overrides(method, "predict")}
    answering._modules = {**model._modules, "methods": nn.ModuleDict(kept)}
    return answering


def _traced(model: AdaptationModel, about: Description) -> torch.export.ExportedProgram:
    """Trace a model for any number of samples."""
    sample = torch.zeros((2, *about.input_shape), dtype=getattr(torch, about.input_type))
    try:
        with torch.no_grad():
            program = torch.export.export(
                _Answering(model, about.temperature).eval(),
                (sample,),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )
    except Exception as error:  # of whatever a network does that cannot be traced
        fixed = "Constraints violated" in str(error)
        hint = "; len() of a tensor fixes how many samples it takes, .shape[0] does not" if fixed else ""
        raise SafdaError(f"the network cannot be exported: torch.export says: {first_line(error)}{hint}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names folders of this machine
    return program


@contextmanager
def _on_cpu(model: AdaptationModel) -> Iterator[AdaptationModel]:
    """Bring a model to the CPU for a while: a GPU may compute in fewer digits."""
    device = next(model.parameters()).device
    try:
        yield model.cpu().eval()
    finally:
        model.to(device)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what exporters say to their own developers from the user."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


# ----------------------------------------------------------------------------------------------------- forms of a file


class _Onnx:
    """ONNX: for onnxruntime, wherever that runs."""

    @staticmethod
    def require() -> None:
        """Make sure that all is there that it takes, before the work."""
        absent = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
        if absent:
            raise SafdaError(f"writing .onnx needs {' and '.join(absent)}: pip install {' '.join(absent)}")
        require_onnxruntime()

    @staticmethod
    def written(program: torch.export.ExportedProgram, about: Description) -> tuple[bytes, int | None]:
        """Return the file's content, and the version of its operators."""
        size = sum(value.nbytes for value in program.state_dict.values())
        if size > _LARGEST:
            raise SafdaError(f"the network takes {size / 1e9:.1f} GB, and an .onnx file holds 2; export it as .pt2")
        try:
            translated = torch.onnx.export(
                program, input_names=[INPUT], output_names=list(OUTPUTS), dynamo=True, verbose=False
            )
        except Exception as error:
            raise SafdaError(f"the network cannot be exported: torch.onnx says: {first_line(error)}") from error
        assert translated is not None
        translated.model.metadata_props.update(about.to_metadata())
        proto = translated.model_proto
        proto.graph.ClearField("value_info")  # shapes between the layers, which can be inferred
        for node in proto.graph.node:
            node.ClearField("metadata_props")  # the Python that it was made from
        for value in (*proto.graph.input, *proto.graph.output):
            value.ClearField("metadata_props")
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
        opset = next(each.version for each in proto.opset_import if not each.domain)
        return sealed(proto.SerializeToString()), opset

    @staticmethod
    def answering(content: bytes) -> Answer:
        """Return what answers from the file alone."""
        classifier = OnnxClassifier(content)
        return lambda inputs: classifier.run(inputs)[0]


class _TorchExport:
    """torch's own: for ``torch.export.load``, and AOTInductor from there."""

    @staticmethod
    def require() -> None:
        """It takes torch alone."""

    @staticmethod
    def written(program: torch.export.ExportedProgram, about: Description) -> tuple[bytes, int | None]:
        """Return the file's content; there is no version of operators."""
        buffer = io.BytesIO()
        texts = {name: text for name, text in about.to_metadata().items() if name != DIGEST}  # a zip has checksums
        torch.export.save(program, buffer, extra_files=texts)
        return buffer.getvalue(), None

    @staticmethod
    def answering(content: bytes) -> Answer:
        """Return what answers from the file alone: we have just written it ourselves, whatever its format may hold."""
        module = torch.export.load(io.BytesIO(content)).module()

        @torch.inference_mode()
        def answer(inputs: NDArray[Any]) -> NDArray[np.float32]:
            logits: NDArray[np.float32] = module(torch.from_numpy(inputs))[1].numpy()
            return logits

        return answer


_FORMATS: dict[str, type[_Onnx | _TorchExport]] = {".onnx": _Onnx, ".pt2": _TorchExport}


# ------------------------------------------------------------------------------------------------------------- parity


def _answers(answer: Answer, samples: Arrays | PictureInputs) -> NDArray[np.float32]:
    """Let a file answer, to the first sample alone and to the others together."""
    inputs = np.concatenate(list(batches(samples)))
    parts = [inputs[:1], *(inputs[first : first + _AT_ONCE] for first in range(1, len(inputs), _AT_ONCE))]
    return np.concatenate([answer(part) for part in parts])


def _compared(ours: Predictions, logits: NDArray[np.float32], temperature: float, of: str) -> Parity:
    """Compare torch's answers with a file's, each from samples that it has read by itself, and refuse what differs."""
    ours, theirs = replace(ours, logits=ours.logits / temperature), replace(ours, logits=logits)
    difference = float(np.abs(ours.probabilities - theirs.probabilities).max())
    same = float((ours.logits.argmax(1) == theirs.logits.argmax(1)).mean())
    if not difference <= _TOLERANCE:  # nor is NaN
        raise SafdaError(
            f"the exported network does not answer as torch does: on {len(logits)} samples ({of}) probabilities differ "
            f"by up to {difference:.2g}, and {same:.1%} of the answers are the same; nothing was written"
        )
    return Parity(len(logits), of, difference, same)


def _samples(adapted: Adapted, data: Any, progress: ProgressCallback | None) -> tuple[str, AnyDomain]:
    """Return where samples to compare on are from, and some of them."""
    if data is not None:
        domain = load_domain(data, progress=progress)
        return domain.name, _some(domain)
    try:
        domain = _target_again(adapted.data["target"], progress)
    except SafdaError as error:
        return f"random numbers: {error}", _random_samples(adapted)
    return Path(domain.name).name, _some(domain)


def _some(domain: AnyDomain) -> AnyDomain:
    return domain.take(evenly_spaced_rows(len(domain), _SAMPLES))


def _target_again(before: Mapping[str, Any], progress: ProgressCallback | None) -> AnyDomain:
    """Find a run's target again, as it was."""
    name = before["name"]
    if not (name in EMBEDDED or Path(name).is_absolute()):
        raise SafdaError("the run's target was an array, or pictures named one by one")
    domain = load_domain(name, progress=progress).unlabelled()
    if domain.fingerprint() != before["digest"]:
        raise SafdaError(f"{name}: the run's target has changed since")
    return domain


def _random_samples(adapted: Adapted) -> Domain:
    """Draw pixels, or numbers where the network expects its features to be."""
    rng, shape = np.random.default_rng(0), (_RANDOM, *adapted.data["input_shape"])
    if adapted.data["input_type"] == "uint8":
        return Domain("random pixels", torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8)))
    drawn = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    scaling = adapted.model.centring
    if isinstance(scaling, FeatureScaling) and len(shape) == 2:
        spread = scaling.scale.reciprocal().nan_to_num(posinf=0) if scaling.kind == "standardised" else 1
        drawn = drawn * spread + scaling.mean
    return Domain("random numbers", drawn)


def _read_without_torch(sample: AnyDomain, transform: Transform | None) -> Arrays | PictureInputs:
    if isinstance(sample, ImageDomain):
        assert transform is not None
        return PictureInputs(sample.inputs, transform)
    return Arrays(sample.name, sample.batch(torch.arange(len(sample))).numpy())


__all__ = ["Exported", "Parity", "export", "require_exportable"]
