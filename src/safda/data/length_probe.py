"""A cheap classifier on part of the source, to see what a way of scaling features would lose."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

from safda.data.domain import Domain
from safda.data.sampler import evenly_spaced_rows

_MOST_SAMPLES, _FEWEST_SAMPLES = 2000, 40
_COMPONENTS = 64
_HELD_OUT = 0.3
_LENGTH_LOSS = 0.1  # of a probe's accuracy, by rows of length one: healthy sources lose 0.02 at most


def length_probe(source: Domain) -> tuple[float, float] | None:
    """Measure what the lengths of rows tell of their classes: the accuracy of a linear probe on held-out samples.

    Returns:
        with rows as they come, each column standardised, and with rows of length one; None of too few samples, or of
        a class so rare that none is left to learn from.

    >>> import torch
    >>> along = torch.tensor([[1.0, 2.0]]) * torch.tensor([1.0, 3.0]).repeat(50)[:, None] + torch.rand(100, 2) / 5
    >>> length_probe(Domain("lengths", along, torch.arange(100) % 2, ("short", "long")))[0]
    1.0
    """
    rows = evenly_spaced_rows(len(source), _MOST_SAMPLES)
    labels = source.labelled("a probe")[0][rows].numpy()
    if len(rows) < _FEWEST_SAMPLES:
        return None
    train, test = train_test_split(np.arange(len(rows)), test_size=_HELD_OUT, random_state=0)
    if len(np.unique(labels[train])) < 2:
        return None
    values = source.batch(rows).numpy().astype(np.float64)
    as_they_come, of_length_one = (
        _held_out_accuracy(each[train], labels[train], each[test], labels[test]) for each in (values, normalize(values))
    )
    return as_they_come, of_length_one


def loses_by_length(accuracies: tuple[float, float]) -> bool:
    """Return whether a probe's accuracies, from :func:`length_probe`, say so."""
    return accuracies[0] - accuracies[1] >= _LENGTH_LOSS


def _held_out_accuracy(
    train: NDArray[np.float64], known: NDArray[np.int64], test: NDArray[np.float64], truth: NDArray[np.int64]
) -> float:
    components = PCA(min(_COMPONENTS, *train.shape), random_state=0)
    probe = make_pipeline(StandardScaler(), components, LogisticRegression(max_iter=100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough will do
        return float(probe.fit(train, known).score(test, truth))
