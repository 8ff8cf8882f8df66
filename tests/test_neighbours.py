"""Neighbours are scikit-learn's, and their mean prediction is what a plain loop gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from safda import neighbours
from safda.data import Domain
from safda.errors import SafdaError
from safda.neighbours import Neighbourhood, nearest_rows


@pytest.fixture
def features():
    return torch.from_numpy(np.random.default_rng(0).normal(1, 1, (60, 5)).astype(np.float32))


def test_neighbours_are_the_nearest_by_centred_cosine(features):
    rows, weights = nearest_rows(Domain("target", features), 4)
    unit = normalize(features.numpy().astype(np.float64))
    distance, expected = NearestNeighbors(n_neighbors=5, metric="cosine").fit(unit - unit.mean(0)).kneighbors()
    np.testing.assert_array_equal(rows.numpy(), expected[:, :4])
    np.testing.assert_allclose(weights.numpy(), np.clip(1 - distance[:, :4], 0, None) ** 3, atol=1e-5)


def test_many_samples_are_searched_among_some_and_never_find_themselves(features, monkeypatch):
    monkeypatch.setattr(neighbours, "_MOST_CANDIDATES", 20)
    rows, _ = nearest_rows(Domain("target", features), 4)
    assert len(rows.unique()) <= 20
    assert not (rows == torch.arange(60).unsqueeze(1)).any()


def test_the_mean_is_over_neighbours_that_have_been_seen(features):
    near = Neighbourhood(Domain("target", features), 0.3, classes=3)
    assert near.rows.shape == (60, 6)  # 0.3 of 60/3
    seen = torch.arange(0, 60, 2)
    said = torch.rand(30, 3).softmax(1)
    near.update(seen, said)
    for row, mean in enumerate(near.of(torch.arange(60))):
        known = [
            (w, said[r // 2]) for r, w in zip(near.rows[row].tolist(), near.weights[row], strict=True) if r % 2 == 0
        ]
        total = sum((w for w, _ in known), torch.tensor(0.0))
        expected = sum((w * p for w, p in known), torch.zeros(3)) / total if total > 0 else torch.zeros(3)
        torch.testing.assert_close(mean, expected)


def test_two_samples_are_each_others_neighbours_and_one_has_none():
    assert nearest_rows(Domain("target", torch.eye(2)), 5)[0].tolist() == [[1], [0]]
    alone = Neighbourhood(Domain("target", torch.ones(1, 2)), 0.2, classes=3)
    assert alone.of(torch.tensor([0])).tolist() == [[0, 0, 0]]


def test_pictures_are_told_what_neighbours_need():
    with pytest.raises(SafdaError, match=r"saf\.neighbours needs features: arrays, or pictures with network\.frozen"):
        Neighbourhood(Domain("target", torch.zeros(4, 3, 8, 8)), 0.2, classes=3)
