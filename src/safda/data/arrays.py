"""Arrays as domains: ``.npz`` and ``.npy`` files, and arrays handed over in Python. Their features take F's place."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from safda.data.domain import Domain, unique_ids
from safda.data.loader import evaluation_batches
from safda.data.memmap import MemmapRows, Segment
from safda.errors import SafdaError, first_line, reading
from safda.io import new_file

_CHUNK = 4096  # rows looked at together where the whole would not fit in memory


def from_npz(path: Path) -> Domain:
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
    return from_arrays(
        str(path), arrays["features"], arrays.get("labels"), arrays.get("classes"), ids=arrays.get("paths")
    )


def to_npz(path: Path, domain: Domain) -> None:
    """Write a domain of features as :func:`from_npz` reads it, whole or not at all, however large it is."""
    count, width = domain.inputs.shape
    arrays = {"paths": np.array(domain.ids or [str(row) for row in range(count)])}
    if domain.labels is not None:
        arrays.update(labels=domain.labels.numpy(), classes=np.array(domain.classes))
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": (count, width)}
    try:
        with new_file(path) as file, zipfile.ZipFile(file, "w") as archive:
            with archive.open("features.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, header)
                for rows in evaluation_batches(domain):  # numpy's own way would need all of them in memory
                    member.write(rows.numpy().astype("<f4", copy=False).tobytes())
            for name, values in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
    except OSError as error:
        raise SafdaError(f"{path}: cannot be written: {error.strerror}") from None


def from_npy(path: Path) -> Domain:
    """Map an n×d array that stays on disk; its labels, if any, are in ``<name>.labels.npy`` beside it."""
    matrix = _mapped_array(path)
    _check_matrix(str(path), matrix)
    count = len(matrix)
    segment = Segment(path, matrix.offset, matrix.dtype, matrix.shape[1])
    inputs = MemmapRows([segment], np.zeros(count, dtype=np.int64), np.arange(count))
    for rows in torch.split(torch.arange(count), _CHUNK):
        _check_finite(str(path), inputs[rows].numpy(), int(rows[0]))
    beside = path.with_suffix(".labels.npy")
    if not beside.is_file():
        return Domain(str(path), inputs)
    numbers, names = _labels(str(beside), count, _mapped_array(beside), None)
    return Domain(str(path), inputs, numbers, names)


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


def from_arrays(name: str, features: Any, labels: Any = None, classes: Any = None, ids: Any = None) -> Domain:
    """Make a domain of arrays, each checked, with one line for what does not fit.

    Args:
        name: what to call it in errors.
        features: n×d numbers.
        labels: n class numbers, or names; None for an unlabelled domain.
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
    return Domain(name, torch.from_numpy(matrix), numbers, names, unique)


def _as_array(name: str, what: str, values: Any) -> Any:
    """Return an array of anything that can be one; bytes become text."""
    try:
        array = np.asarray(values)
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError:
        raise SafdaError(f"{name}: {what!r} holds bytes that are not UTF-8; save text") from None
    except Exception as error:  # whatever the object raises that should be one
        raise SafdaError(f"{name}: {what!r} cannot be an array: {first_line(error)}") from None


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


def _labels(name: str, rows: int, given: Any, classes: Any) -> tuple[torch.Tensor, tuple[str, ...]]:
    labels = _as_array(name, "labels", given)
    if labels.shape != (rows,):
        raise SafdaError(f"{name}: 'labels' must be of shape ({rows},) to fit 'features', not {labels.shape}")
    if labels.dtype.kind not in "iubU":
        raise SafdaError(f"{name}: 'labels' must be whole numbers or texts, not {labels.dtype}")
    if classes is None:
        distinct, numbers = np.unique(labels, return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), tuple(str(c) for c in distinct)
    names = tuple(str(c) for c in _as_array(name, "classes", classes).ravel())
    if len(set(names)) != len(names):
        twice = next(c for c in names if names.count(c) > 1)
        raise SafdaError(f"{name}: 'classes' names {twice!r} more than once")
    if labels.dtype.kind == "U":
        unknown = sorted(set(labels.tolist()) - set(names))
        if unknown:
            raise SafdaError(f"{name}: label {unknown[0]!r} is not among 'classes'")
        return torch.tensor([names.index(label) for label in labels]), names
    numbers = labels.astype(np.int64)
    outside = (numbers < 0) | (numbers >= len(names))
    if outside.any():
        row = int(outside.argmax())
        raise SafdaError(f"{name}: label {numbers[row]} in row {row} does not fit {len(names)} 'classes'")
    return torch.from_numpy(numbers), names


#: Ending → what reads such a file of features.
ARRAYS: dict[str, Callable[[Path], Domain]] = {".npz": from_npz, ".npy": from_npy}
