"""An exported model in use, where there is no torch: onnxruntime, numpy and Pillow. :mod:`safda.export` makes one."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safda import schema
from safda.data.ahead import read_ahead
from safda.data.array_files import Arrays
from safda.data.files import EMBEDDED_NAMES, ImageFiles, Images, read_files
from safda.data.pixels import Transform, center_crop, decode
from safda.data.settings import num_workers
from safda.errors import SafdaError, first_line, reading
from safda.io import disk_errors
from safda.predictions import Predictions

if TYPE_CHECKING:
    from safda.data.loader import ProgressCallback

#: Of what is written beside a graph; a higher one is of a later safda.
FORMAT = 1
#: Names of a graph's input and outputs.
INPUT, OUTPUTS = "input", ("probabilities", "logits", "embedding")
_MOST_ROWS, _MOST_VALUES = 1024, 2**22  # in a batch
#: What a file's digest is called in its metadata, and what stands there while it is computed.
DIGEST, NO_DIGEST = "safda.digest", "0" * 32
# As a protocol buffer has it: the name, the mark and length of a text, and the text.
_DIGEST = re.compile(rf"(?<={re.escape(DIGEST)}\x12\x20)[0-9a-f]{{32}}".encode())
_JSON = ("safda", "classes", "input", "transform", "temperature")
_TYPES = {"uint8": "tensor(uint8)", "float32": "tensor(float)"}  # as onnxruntime calls them
_QUIET = 4  # of onnxruntime's log: what is wrong is told in one line, by us


@dataclass(frozen=True)
class Description:
    """What stands beside an exported graph, so that whoever has the file needs nothing else.

    Attributes:
        classes: names of the classes, in the order of the columns.
        input_shape: of one sample.
        input_type: of its numbers: ``uint8`` or ``float32``.
        transform: how a picture becomes a sample; None where samples are no pictures.
        temperature: what logits were divided by, within the graph.
        recipe: the experiment, as TOML.
        version: of the safda that wrote it.
    """

    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    input_type: str
    transform: Transform | None
    temperature: float
    recipe: str
    version: str

    def to_metadata(self) -> dict[str, str]:
        """Return texts by name, as an ONNX file and a ``.pt2`` archive hold them: JSON, but for the recipe."""
        values = {
            "safda": {"format": FORMAT, "version": self.version},
            "classes": self.classes,
            "input": {"shape": self.input_shape, "type": self.input_type},
            "temperature": self.temperature,
        }
        if self.transform:
            values["transform"] = {"short_side": self.transform.short_side, **asdict(self.transform)}
        texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        return {**texts, "preprocessing": self.preprocessing, "recipe": self.recipe, DIGEST: NO_DIGEST}

    @staticmethod
    def from_metadata(texts: Mapping[str, str], where: str) -> Description:
        """Read what :meth:`to_metadata` returned, every part of it checked.

        Args:
            texts: by name.
            where: the file, to begin an error with.
        """
        if "safda" not in texts:
            raise SafdaError(f"{where}: is an ONNX model, but none that 'safda export' has written")
        with reading(Path(where), "exported model"):
            values = {name: json.loads(texts[name]) for name in _JSON if name in texts}
        number = values["safda"].get("format") if isinstance(values["safda"], dict) else None
        if type(number) is int and number > FORMAT:
            raise SafdaError(f"{where}: is of format {number}, and this safda reads {FORMAT}; a newer one may read it")
        schema.check(values, schema.EXPORTED, where)
        transform = {f.name: values["transform"][f.name] for f in fields(Transform)} if "transform" in values else {}
        return Description(
            tuple(values["classes"]),
            tuple(values["input"]["shape"]),
            values["input"]["type"],
            Transform(**transform) if transform else None,
            float(values["temperature"]),
            texts.get("recipe", ""),
            values["safda"]["version"],
        )

    @property
    def preprocessing(self) -> str:
        """What must be done to a sample before the graph, in words: all that is not said here, the graph does."""
        if self.transform is None:
            return f"none: numbers as they come, {self.input_type} of shape n×{_times(self.input_shape)}"
        short, side = self.transform.short_side, self.transform.side
        size = (
            f"resize to {short}×{short}, whatever the ratio of its sides"
            if self.transform.squash
            else f"resize its short side to {short} and the long one alike, rounded down (to 4 times as much at most)"
        )
        return (
            f"a JPEG decoded at 1/2, 1/4 or 1/8 where both sides stay {short} or more; upright by EXIF, RGB of 8 bits, "
            f"on white where transparent; {size}, {self.transform.interpolation} with "
            f"antialiasing; cut out the {side}×{side} in the middle; n×{_times(self.input_shape)}, not normalised"
        )


class OnnxClassifier:
    """An exported classifier: pictures or arrays in, predictions out, without torch.

    Args:
        model: a file that :meth:`safda.Adapted.export` or ``safda export`` wrote, or its content.

    Attributes:
        about: what stands in the file beside the graph: recipe, temperature, transform, …
        classes: names of the classes.

    Example:
        >>> import numpy, pathlib, safda, tempfile
        >>> rng = numpy.random.default_rng(0)
        >>> y = rng.integers(0, 3, 90)
        >>> X, shifted = (numpy.eye(3)[y] * 3 + rng.normal(size=(90, 3)) + shift for shift in (0, 0.5))
        >>> adapted = safda.fit((X, y), shifted, steps=50, batch=16, **{"network.bottleneck_width": 32})
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        >>> adapted.export(file, shifted).parity.same_answers
        1.0
        >>> classifier = safda.OnnxClassifier(file)
        >>> classifier.predict(shifted).labels == adapted.predict(shifted).labels
        True
    """

    def __init__(self, model: str | Path | bytes) -> None:
        self.name = "the exported model" if isinstance(model, bytes) else str(model)
        self._session = _open(model, self.name)
        self.about = Description.from_metadata(self._session.get_modelmeta().custom_metadata_map, self.name)
        self.classes = self.about.classes
        self._check_graph()

    def _check_graph(self) -> None:
        """Make sure that the graph is what its description says."""
        about, session = self.about, self._session
        there = [(each.name, each.type, tuple(each.shape[1:])) for each in session.get_inputs()]
        wanted = [(INPUT, _TYPES[about.input_type], about.input_shape)]
        classes = {each.name: each.shape[1:] for each in session.get_outputs()}
        side = about.transform.side if about.transform else 0
        pictures = ("uint8", (3, side, side))
        if (
            there != wanted
            or not {*OUTPUTS} <= {*classes}
            or classes["logits"] != [len(about.classes)]
            or (about.transform and (about.input_type, about.input_shape) != pictures)
        ):
            raise SafdaError(f"{self.name}: is damaged: its graph is not what its metadata say; export it again")

    def predict(self, data: Any, progress: ProgressCallback | None = None) -> Predictions:
        """Predict the class of every sample.

        Args:
            data: a path, several pictures' paths or an n×d array, as :func:`safda.data.load_domain` takes them.
            progress: called with (done, total) as it goes on.
        """
        found = _samples(data)
        parts, done = [], 0
        for inputs in batches(self._inputs(found)):
            parts.append(self.run(inputs))
            done += len(inputs)
            if progress:
                progress(done, len(found))
        logits, embedding = (np.concatenate(part) for part in zip(*parts, strict=True))
        ids = found.ids or tuple(map(str, range(len(found))))
        bad = ~(np.isfinite(logits).all(1) & np.isfinite(embedding).all(1))
        if bad.any():  # otherwise all such samples would be of the first class, in silence
            raise SafdaError(
                f"{found.name}: the answer to {ids[int(bad.argmax())]} is not finite ({int(bad.sum())} such samples); "
                "its numbers are too large for the network, or the model is damaged"
            )
        skipped = found.skipped if isinstance(found, Images) else ()
        return Predictions(ids, self.classes, logits, embedding, skipped)

    def run(self, inputs: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return logits (over the temperature) and embedding of one batch, in the form that the graph takes."""
        logits, embedding = self._session.run(OUTPUTS[1:], {INPUT: inputs})
        return logits, embedding

    def _inputs(self, found: Arrays | Images) -> Arrays | PictureInputs:
        """Return samples as the graph takes them, or say that it does not."""
        wanted, transform = self.about.input_shape, self.about.transform
        if isinstance(found, Images):
            if transform is None:
                raise SafdaError(f"{found.name}: holds pictures, and {self.name} takes numbers of shape {wanted}")
            return PictureInputs(found.files, transform)
        if found.shape != wanted:
            raise SafdaError(f"{found.name}: its samples are of shape {found.shape}, and {self.name} takes {wanted}")
        return found


# ------------------------------------------------------------------------------------------------------ what is read


@dataclass(frozen=True)
class PictureInputs:
    """Picture files as a graph takes them."""

    files: ImageFiles
    transform: Transform

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        return 3, self.transform.side, self.transform.side

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read these pictures."""
        pictures = (self.files.decoded(row, lambda file: decode(file, self.transform)) for row in numbers.tolist())
        return np.stack([center_crop(each, self.transform.side).transpose(2, 0, 1) for each in pictures])


def batches(inputs: Arrays | PictureInputs) -> Iterator[NDArray[Any]]:
    """Yield samples in order, so many at once that memory stays small."""
    count = len(inputs)
    size = max(1, min(_MOST_ROWS, _MOST_VALUES // math.prod(inputs.shape)))
    parts = [np.arange(first, min(first + size, count)) for first in range(0, count, size)]
    return read_ahead(inputs.rows, parts, 0 if isinstance(inputs, Arrays) else num_workers())


def _samples(data: Any) -> Arrays | Images:
    """Read what a user names, without torch; but the embedded digits are made with it."""
    if not (isinstance(data, str) and data in EMBEDDED_NAMES):
        return read_files(data)
    try:
        from safda.data import load_domain

        domain = load_domain(data)
    except ImportError as error:
        raise SafdaError(f"{data}: is made with torch, which is not there ({first_line(error)})") from None
    return Arrays(domain.name, np.asarray(domain.inputs))


# -------------------------------------------------------------------------------------------------- the file itself


def sealed(content: bytes) -> bytes:
    """Return a file's content with its digest filled in."""
    return _DIGEST.sub(_digest(content).encode(), content, count=1)


def _check_seal(content: bytes, name: str) -> None:
    """Make sure that a file is what was written, before anyone interprets it; one without a digest goes unchecked."""
    found = _DIGEST.search(content)
    if found and found[0].decode() != _digest(_DIGEST.sub(NO_DIGEST.encode(), content, count=1)):
        raise SafdaError(
            f"{name}: is damaged: it does not hold what was written; export it again, or if another tool has changed "
            f"it on purpose, take {DIGEST!r} out of its metadata"
        )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _open(model: str | Path | bytes, name: str) -> Any:
    """Open a file in onnxruntime, or say in one line why it cannot be."""
    onnxruntime = require_onnxruntime()
    if not isinstance(model, bytes):
        if not Path(model).is_file():
            raise SafdaError(f"{model}: no such file")
        with disk_errors(Path(model), "read"):
            model = Path(model).read_bytes()
    _check_seal(model, name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = _threads()
    with reading(Path(name), "ONNX file"):
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def require_onnxruntime() -> Any:
    """Import onnxruntime, or say how to get it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise SafdaError(f"an .onnx file needs onnxruntime ({first_line(error)}): pip install onnxruntime") from None
    return onnxruntime


def _threads() -> int:
    """Return how many threads compute: as many as ``OMP_NUM_THREADS`` says, which torch obeys too, or all cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdecimal() and int(asked) else num_workers()


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


__all__ = ["Description", "OnnxClassifier"]
