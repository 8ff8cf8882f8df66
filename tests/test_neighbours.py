"""Neighbours are scikit-learn's, and labels spread as the closed form has it."""

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


def test_labels_are_those_of_label_spreading_in_closed_form(features):
    """(1 − α)·(I − α·L)^−1·P, with L made pair by pair; α so small that twenty rounds are as good as all."""
    near = Neighbourhood(Domain("target", features), 3, neighbours=0.3, share=0.4)
    rows, weights = nearest_rows(Domain("target", features), 6)  # 0.3 of 60/3
    both = np.zeros((60, 60))
    for sample in range(60):
        for row, weight in zip(rows[sample].tolist(), weights[sample].tolist(), strict=True):
            both[sample, row] = both[row, sample] = weight if sample in rows[row].tolist() else 0.05 * weight
    degree = both.sum(1)
    alike = both / np.sqrt(np.outer(degree, degree))
    said = torch.rand(60, 3).softmax(1)
    said[::2] = 0  # not seen yet
    near.update(torch.arange(1, 60, 2), said[1::2])
    near.spread()
    expected = np.linalg.solve(np.eye(60) - 0.4 * alike, said.numpy())
    np.testing.assert_allclose(near.labels.numpy(), expected / expected.sum(1, keepdims=True), atol=1e-5)


def test_the_search_tells_how_far_it_is(features, monkeypatch):
    monkeypatch.setattr("safda.data.feed._MOST_ROWS", 25)
    told = []
    nearest_rows(Domain("target", features), 4, lambda done, of: told.append((done, of)))
    assert told == [(25, 60), (50, 60), (60, 60)]


def test_two_samples_are_each_others_neighbours_and_one_has_none():
    assert nearest_rows(Domain("target", torch.eye(2)), 5)[0].tolist() == [[1], [0]]
    alone = Neighbourhood(Domain("target", torch.ones(1, 2)), 3)
    alone.update(torch.tensor([0]), torch.tensor([[0.2, 0.3, 0.5]]))
    alone.spread()
    torch.testing.assert_close(alone.labels, torch.tensor([[0.2, 0.3, 0.5]]))


def test_pictures_are_told_what_neighbours_need():
    with pytest.raises(SafdaError, match=r"saf\.neighbours needs features: arrays, or pictures with network\.frozen"):
        Neighbourhood(Domain("target", torch.zeros(4, 3, 8, 8)), 3)
