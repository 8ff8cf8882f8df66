"""Arrays as domains: ``.npz`` and ``.npy`` files, and arrays handed over in Python. Their features take F's place."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safda.data.array_files import Arrays, Segment, checked_arrays
from safda.data.domain import Domain
from safda.data.loader import evaluation_batches
from safda.data.memmap import MemmapRows
from safda.errors import SafdaError
from safda.io import new_file


def from_arrays(name: str, features: Any, labels: Any = None, classes: Any = None, ids: Any = None) -> Domain:
    """Make a domain of arrays, checked as :func:`safda.data.array_files.checked_arrays` does."""
    return as_domain(checked_arrays(name, features, labels, classes, ids))


def as_domain(arrays: Arrays) -> Domain:
    """Make a domain of arrays that were checked."""
    labels = None if arrays.labels is None else torch.from_numpy(arrays.labels)
    return Domain(arrays.name, _inputs(arrays), labels, arrays.classes, arrays.ids)


def _inputs(arrays: Arrays) -> torch.Tensor | MemmapRows:
    if isinstance(arrays.features, Segment):
        rows = np.arange(len(arrays))
        return MemmapRows([arrays.features], np.zeros_like(rows), rows)
    return shared_tensor(arrays.features)


def shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor in an array's own memory, even where that is read-only, as of a memory map: nobody writes to it.

    >>> torch.equal(shared_tensor(np.broadcast_to(np.float32(1), (2, 2))), torch.ones(2, 2))
    True
    """
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_npz(path: Path, domain: Domain) -> None:
    """Write a domain of features for :func:`~safda.data.load_domain`, whole or not at all, however large it is."""
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
