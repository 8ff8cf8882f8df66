"""Arrays in files and in memory, checked, with numpy alone: an exported model reads them without torch."""

from __future__ import annotations

import mmap
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safda.errors import SafdaError, first_line, reading

_CHUNK = 4096  # rows looked at together where the whole would not fit in memory


@dataclass(frozen=True)
class Segment:
    """One file of rows, all of one width, after a header of ``offset`` bytes."""

    path: Path
    offset: int
    dtype: np.dtype[Any]
    width: int

    @cached_property
    def _map(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return (len(self._map) - self.offset) // (self.width * self.dtype.itemsize)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Copy these rows out."""
        count = len(self)
        values = np.frombuffer(self._map, self.dtype, count * self.width, self.offset).reshape(count, self.width)
        copied = values[numbers].astype(np.float32, copy=False)
        # Pages once read would count as this process's memory until the whole file did.
        self._map.madvise(mmap.MADV_DONTNEED)
        return copied


@dataclass(frozen=True)
class Arrays:
    """Features, and what there is beside them.

    Attributes:
        name: what the user calls them.
        features: n×d, in memory or on disk; of embedded domains, samples of another shape.
        labels: class numbers, or None.
        classes: the classes' names.
        ids: a name for each sample, or None.
    """

    name: str
    features: NDArray[np.float32] | Segment
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        return (self.features.width,) if isinstance(self.features, Segment) else self.features.shape[1:]

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return these rows."""
        return self.features.rows(numbers) if isinstance(self.features, Segment) else self.features[numbers]


def read_npz(path: Path) -> Arrays:
    """Read ``features`` (n×d) and, where present, ``labels``, ``classes`` and ``paths``. Nothing is unpickled."""
    if not path.is_file():
        raise SafdaError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise SafdaError(f"{path}: is not a readable .npz file")
    with _reading_arrays(path), np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in ("features", "labels", "classes", "paths") if key in archive}
        present = ", ".join(archive.files) or "nothing"
    if "features" not in arrays:
        raise SafdaError(f"{path}: has no array 'features' (n×d); it has: {present}")
    return checked_arrays(
        str(path), arrays["features"], arrays.get("labels"), arrays.get("classes"), ids=arrays.get("paths")
    )


def map_npy(path: Path) -> Arrays:
    """Map an n×d array that stays on disk; its labels, if any, are in ``<name>.labels.npy`` beside it."""
    matrix = _mapped_array(path)
    _check_matrix(str(path), matrix)
    samples = len(matrix)
    segment = Segment(path, matrix.offset, matrix.dtype, matrix.shape[1])
    for first in range(0, samples, _CHUNK):
        _check_finite(str(path), segment.rows(np.arange(first, min(first + _CHUNK, samples))), first)
    beside = path.with_suffix(".labels.npy")
    if not beside.is_file():
        return Arrays(str(path), segment)
    return Arrays(str(path), segment, *_labels(str(beside), samples, _mapped_array(beside), None))


@contextmanager
def _reading_arrays(path: Path) -> Iterator[None]:
    with reading(path, f"{path.suffix} file"):
        try:
            yield
        except ValueError as error:
            if "pickle" in str(error) or "Python objects" in str(error):
                raise SafdaError(f"{path}: holds Python objects, which are never loaded; save plain arrays") from None
            raise


def _mapped_array(path: Path) -> np.memmap[Any, Any]:
    if not path.is_file():
        raise SafdaError(f"{path}: no such file")
    with _reading_arrays(path):
        array = np.lib.format.open_memmap(path, mode="r")
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        raise SafdaError(f"{path}: is stored column by column; save numpy.ascontiguousarray of it")
    return array


def checked_arrays(name: str, features: Any, labels: Any = None, classes: Any = None, ids: Any = None) -> Arrays:
    """Check arrays, with one line for what does not fit.

    Args:
        name: what to call them in errors.
        features: n×d numbers.
        labels: n class numbers, or names; None for unlabelled samples.
        classes: names of the class numbers 0, 1, …; without it, the distinct labels are the classes.
        ids: n names of the samples.
    """
    matrix = _as_array(name, "features", features)
    _check_matrix(name, matrix)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told as that
        matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    _check_finite(name, matrix)
    numbers, names = (None, ()) if labels is None else _labels(name, len(matrix), labels, classes)
    rows = None if ids is None else _as_array(name, "paths", ids)
    if rows is not None and rows.shape != (len(matrix),):
        raise SafdaError(f"{name}: 'paths' must be of shape ({len(matrix)},) to fit 'features', not {rows.shape}")
    unique = None if rows is None else unique_ids([str(each) for each in rows])
    return Arrays(name, matrix, numbers, names, unique)


def _as_array(name: str, what: str, values: Any) -> Any:
    """Return an array of anything that can be one; bytes become text."""
    if hasattr(values, "toarray"):  # scipy's, which numpy takes for a single object
        raise SafdaError(f"{name}: {what!r} is a sparse matrix, and dense rows are needed; give its .toarray()")
    try:
        array = plain_texts(np.asarray(values))
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError:
        raise SafdaError(f"{name}: {what!r} holds bytes that are not UTF-8; save text") from None
    except Exception as error:  # whatever the object raises that should be one
        raise SafdaError(f"{name}: {what!r} cannot be an array: {first_line(error)}") from None


def plain_texts(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of numpy's own texts where one of Python objects holds nothing else, as a pandas Series gives.

    >>> plain_texts(np.array(["ant", "bee"], dtype=object)).dtype, plain_texts(np.array(["ant", 1], dtype=object)).dtype
    (dtype('<U3'), dtype('O'))
    """
    if array.dtype.kind == "O" and array.size and all(isinstance(each, str) for each in array.flat):
        return array.astype(str)
    return array


def _check_matrix(name: str, matrix: Any) -> None:
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise SafdaError(f"{name}: 'features' must be a non-empty n×d array, not of shape {matrix.shape}")
    if matrix.dtype.kind not in "fiub":
        raise SafdaError(f"{name}: 'features' must be numbers, not {matrix.dtype}")


def _check_finite(name: str, matrix: Any, first_row: int = 0) -> None:
    fault = first_fault(matrix)
    if fault is not None:
        row, is_nan, count = fault
        kind = "NaN" if is_nan else "infinite (or too large for float32)"
        raise SafdaError(f"{name}: 'features' row {first_row + row} is {kind} ({count} such rows); remove or mend them")


def first_fault(matrix: Any) -> tuple[int, bool, int] | None:
    """Find what is not finite: the first such row, whether it has a NaN, and how many rows there are.

    >>> first_fault(np.array([[1.0, 2.0], [np.inf, 0.0], [np.nan, 0.0]]))
    (1, False, 2)
    """
    bad = ~np.isfinite(matrix).all(axis=1)
    row = int(bad.argmax())
    return (row, bool(np.isnan(matrix[row]).any()), int(bad.sum())) if bad[row] else None


def _labels(name: str, rows: int, given: Any, classes: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    labels = _as_array(name, "labels", given)
    if labels.shape != (rows,):
        raise SafdaError(f"{name}: 'labels' must be of shape ({rows},) to fit 'features', not {labels.shape}")
    if labels.dtype.kind not in "iubU":
        raise SafdaError(f"{name}: 'labels' must be whole numbers or texts, not {labels.dtype}")
    if classes is None:
        distinct, numbers = np.unique(labels, return_inverse=True)
        return numbers.astype(np.int64), tuple(str(c) for c in distinct)
    names = tuple(str(c) for c in _as_array(name, "classes", classes).ravel())
    if len(set(names)) != len(names):
        twice = next(c for c in names if names.count(c) > 1)
        raise SafdaError(f"{name}: 'classes' names {twice!r} more than once")
    if labels.dtype.kind == "U":
        unknown = sorted(set(labels.tolist()) - set(names))
        if unknown:
            raise SafdaError(f"{name}: label {unknown[0]!r} is not among 'classes'")
        return np.array([names.index(label) for label in labels], dtype=np.int64), names
    numbers = labels.astype(np.int64)
    outside = (numbers < 0) | (numbers >= len(names))
    if outside.any():
        row = int(outside.argmax())
        raise SafdaError(f"{name}: label {numbers[row]} in row {row} does not fit {len(names)} 'classes'")
    return numbers, names


def unique_ids(names: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each sample that no other has: one that is there again gets a number.

    >>> unique_ids(["a", "b", "a"])
    ('a', 'b', 'a (2)')
    """
    taken, seen = set(names), set[str]()
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(2))

    def unique(name: str) -> str:
        if name not in seen:
            seen.add(name)
            return name
        another = next(each for k in numbers[name] if (each := f"{name} ({k})") not in taken)
        taken.add(another)
        return another

    return tuple(map(unique, names))


#: Ending → what reads such a file of features.
ARRAYS: dict[str, Callable[[Path], Arrays]] = {".npz": read_npz, ".npy": map_npy}
