"""Neighbours are scikit-learn's, and labels spread as the closed form has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler, normalize

from safda.data import Domain
from safda.data.sampler import evenly_spaced_rows
from safda.errors import SafdaError
from safda.methods import propagation
from safda.methods.propagation import (
    FEATURES,
    LabelPropagation,
    PropagationKnobs,
    alignments,
    best_features,
    both_graphs,
    target_affinity,
    unaligned,
)


def features(rows, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(1, 1, (rows, 5)).astype(np.float32))


@pytest.fixture
def source():
    return Domain("source", features(40, seed=1), torch.arange(40) % 3, ("a", "b", "c"))


@pytest.fixture
def target():
    return Domain("target", features(60, seed=0) * torch.tensor([1, 3, 0.5, 2, 1]) + torch.tensor([0, 1, 0, -1, 0]))


RESCALED = {
    "centred": lambda rows: rows,
    "rooted": lambda rows: np.sign(rows) * np.sqrt(np.abs(rows)),
    "standardised": lambda rows: StandardScaler().fit_transform(rows),
}


def affinity_pair_by_pair(source, target, share, across, features="centred"):
    """All of L, source first, from scikit-learn's neighbours."""
    rescaled = (RESCALED[features](domain.inputs.numpy().astype(np.float64)) for domain in (source, target))
    units = [normalize(rows) for rows in rescaled]
    common = np.sqrt(units[0].std(0) * units[1].std(0))
    unit = np.concatenate([common * StandardScaler().fit_transform(rows) for rows in units])
    domain = np.repeat([0, 1], [len(source), len(target)])
    near = [[set() for _ in unit] for _ in range(2)]  # near[d][i]: the neighbours of i in domain d
    for d in range(2):
        there = np.flatnonzero(domain == d)
        search = NearestNeighbors(metric="cosine").fit(unit[there])
        found = search.kneighbors(unit, round(share * len(there)) + 1, return_distance=False)
        for i, order in enumerate(there[found]):
            near[d][i].update([j for j in order if j != i][: round(share * len(there))])
    weight = np.zeros((len(unit), len(unit)))
    for i, j in np.ndindex(weight.shape):
        ways = (j in near[domain[j]][i]) + (i in near[domain[i]][j])
        cosine = unit[i] @ unit[j] / np.linalg.norm(unit[i]) / np.linalg.norm(unit[j])
        weight[i, j] = (0, 0.05, 1)[ways] * (1 if domain[i] == domain[j] else across) * max(cosine, 0) ** 3
    degree = weight.sum(1)
    return weight / np.sqrt(np.outer(degree, degree))


@pytest.mark.parametrize("kind", FEATURES)
def test_edges_are_those_between_nearest_neighbours_by_cosine_of_features_alike_in_both_domains(source, target, kind):
    rows, affinity = target_affinity(source, target, alignments(source, target, kind), 0.1, 0.2)
    np.testing.assert_array_equal(rows, np.arange(40))
    expected = affinity_pair_by_pair(source, target, 0.1, 0.2, kind)[40:]
    np.testing.assert_allclose(affinity.toarray(), expected, atol=1e-5)


def test_in_all_features_the_affinity_is_the_mean_of_each(source, target):
    seen = []
    knobs = PropagationKnobs(neighbours=0.3, cross_domain=0.2, features="all")
    graph = LabelPropagation(source, target, knobs, progress=lambda done, total: seen.append(done / total))
    whole = np.mean([affinity_pair_by_pair(source, target, 0.1, 0.2, kind)[40:] for kind in FEATURES], axis=0)
    np.testing.assert_allclose(graph.affinity.toarray(), whole[:, 40:], atol=1e-5)
    np.testing.assert_allclose(graph.from_source, whole[:, :40] @ np.eye(3)[np.arange(40) % 3], atol=1e-5)
    assert graph.affinity.dtype == graph.from_source.dtype == np.float32
    assert seen == sorted(seen)  # one search, for whoever looks on
    assert seen[-1] == 1


def clusters(noise):
    """Four classes in eight dimensions, each class in two of them, and noise."""
    labels = np.arange(200) % 4
    return np.kron(np.eye(4), [[1, 1]])[labels] + noise(np.random.default_rng(0), (200, 8)), labels


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        ("centred", lambda rng, shape: 0.5 * rng.normal(size=shape)),
        ("rooted", lambda rng, shape: 3 * rng.binomial(1, 0.15, shape)),  # now and then something is too large
        ("standardised", lambda rng, shape: rng.normal(size=shape) * ([0.2, 50] * 4)),
    ],
)
def test_the_best_features_are_those_whose_neighbours_are_of_one_class(kind, noise):
    rows, labels = clusters(noise)

    def purity(rescaled):
        unit = normalize(rescaled)
        near = NearestNeighbors(metric="cosine").fit(unit - unit.mean(0)).kneighbors(n_neighbors=3)[1]
        return (labels[near] == labels[:, None]).mean()

    purities = {name: purity(rescale(rows)) for name, rescale in RESCALED.items()}
    assert max(purities, key=purities.get) == kind
    assert kind == "centred" or purities[kind] > purities["centred"] + 0.03
    domain = Domain("source", torch.from_numpy(rows).float(), torch.from_numpy(labels), tuple("abcd"))
    best, share = best_features(domain)
    assert best == kind
    assert share == pytest.approx(purities[kind])


def test_features_are_not_rescaled_for_next_to_nothing():
    rows, labels = clusters(lambda rng, shape: 0.01 * rng.normal(size=shape))  # pure in all of them
    domain = Domain("source", torch.from_numpy(rows).float(), torch.from_numpy(labels), tuple("abcd"))
    assert best_features(domain) == ("centred", 1.0)


def test_a_dimension_that_one_domain_does_not_use_is_not_compared(source, target):
    source.inputs[:, 4] = 0
    _, affinity = target_affinity(source, target, alignments(source, target), 0.1, 0.2)
    np.testing.assert_allclose(affinity.toarray(), affinity_pair_by_pair(source, target, 0.1, 0.2)[40:], atol=1e-5)


def test_many_samples_are_searched_among_some_and_never_find_themselves(source, target, monkeypatch):
    monkeypatch.setattr(propagation, "_MOST_CANDIDATES", 20)
    rows, affinity = target_affinity(source, target, alignments(source, target), 0.1, 0.2)
    assert len(rows) == 20
    assert affinity.shape == (60, 80)
    chosen = set(evenly_spaced_rows(60, 20).tolist())
    assert all(i in chosen or j in chosen for i, j in zip(*affinity[:, 20:].nonzero(), strict=True))
    assert not affinity[:, 20:].diagonal().any()
    assert propagation._NeighbourSearch(target, lambda batch: batch, 0.3).most == round(0.3 * 20)  # a share of those


def test_labels_are_those_of_label_spreading_in_closed_form(source, target):
    """(I − α·L)^−1·((1 − α)·P + α·L·Y_source); α so small that twenty rounds are as good as all."""
    graph = LabelPropagation(source, target, PropagationKnobs(neighbours=0.3, cross_domain=0.2))
    affinity = affinity_pair_by_pair(source, target, 0.3 / 3, 0.2)[40:]
    predictions = torch.rand(60, 3).softmax(1)
    predictions[::2] = 0  # not seen yet
    from_source = affinity[:, :40] @ np.eye(3)[source.labels]
    expected = np.linalg.solve(np.eye(60) - 0.4 * affinity[:, 40:], 0.6 * predictions.numpy() + 0.4 * from_source)
    labels = graph.propagate(predictions, alpha=0.4).numpy()
    np.testing.assert_allclose(labels, expected / expected.sum(1, keepdims=True), atol=1e-5)


def test_the_search_tells_how_far_it_is(source, target, monkeypatch):
    monkeypatch.setattr("safda.data.loader._MOST_ROWS", 25)
    told = []
    target_affinity(source, target, alignments(source, target), 0.1, 0.2, lambda done, of: told.append((done, of)))
    assert told == [(done, 200) for done in (25, 40, 65, 80, 105, 130, 140, 165, 190, 200)]


@pytest.mark.parametrize("copies", [1, 4])
def test_samples_that_do_not_differ_have_no_neighbours_and_hear_themselves(source, copies):
    graph = LabelPropagation(source, Domain("target", source.inputs[:1].repeat(copies, 1)), PropagationKnobs(0.2))
    predictions = torch.zeros(copies, 3)
    assert not graph.propagate(predictions, 0.9).any()
    predictions[0] = torch.tensor([0.25, 0.5, 0.25])
    assert graph.propagate(predictions, 0.9)[0].tolist() == [0.25, 0.5, 0.25]


def test_pictures_are_told_what_neighbours_need(source):
    with pytest.raises(SafdaError, match=r"label propagation needs features: arrays, or pictures with network\.frozen"):
        LabelPropagation(source, Domain("target", torch.zeros(4, 3, 8, 8)), PropagationKnobs(0.2))


@pytest.mark.parametrize("kind", FEATURES)
def test_unaligned_rows_keep_what_shifts_a_domain(source, target, kind):
    here, there = (domain.inputs.numpy().astype(np.float64) for domain in (source, target))
    both = np.concatenate([np.repeat(here, len(there), 0), np.repeat(there, len(here), 0)])  # each domain counts alike
    rescaled = {**RESCALED, "standardised": StandardScaler().fit(both).transform}[kind]
    units = [normalize(rescaled(rows)) for rows in (here, there)]
    mean = (units[0].mean(0) + units[1].mean(0)) / 2
    for way, domain, unit in zip(unaligned(source, target, kind), (source, target), units, strict=True):
        np.testing.assert_allclose(way(domain.inputs).numpy(), normalize(unit - mean), atol=1e-5)


def test_without_alignment_labels_find_a_target_whose_classes_are_of_other_shares():
    rng = np.random.default_rng(0)

    def domain(name, few):
        labels = (np.arange(200) >= few).astype(np.int64)
        rows = np.eye(6)[labels] * 2 + 0.2 * rng.normal(size=(200, 6))
        return Domain(name, torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labels), ("few", "many"))

    there, here = domain("source", 20), domain("target", 160)
    graphs = both_graphs(there, here.unlabelled(), PropagationKnobs(neighbours=0.2))
    aligned, as_they_are = (graph.source_labels(0.9).argmax(1).eq(here.labels).float().mean() for graph in graphs)
    assert as_they_are == 1.0
    assert aligned < 0.95


def test_a_graph_of_each_kind_is_made_once(source, target):
    knobs = PropagationKnobs(neighbours=0.2)
    first = both_graphs(source, target, knobs)
    assert [id(graph) for graph in both_graphs(source, target, knobs)] == [id(graph) for graph in first]
    assert propagation.propagation_graph(source, target, knobs) is first[0] is not first[1]
