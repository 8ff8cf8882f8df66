"""Selective pseudo-labelling: its parts against literal transcriptions, and what a candidate begins with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import normalize

import safda
from safda.data import Domain, load_domain
from safda.methods import selective
from safda.methods.pseudo_labels import PseudoLabels
from safda.methods.selective import (
    class_means,
    discriminant_directions,
    matched_clusters,
    selective_pseudo_labels,
    selective_votes,
    surest,
)
from safda.nn.heads import FeatureScaling
from safda.presets import CANDIDATES
from tests.conftest import TINY, blobs
from tests.test_training import Killed, killed_at


def domain(name, rows, labels=None, classes=3):
    names = tuple("abcdefgh"[:classes])
    if labels is None:
        return Domain(name, torch.from_numpy(rows))
    return Domain(name, torch.from_numpy(rows), torch.from_numpy(labels), names)


def identity(rows):
    return rows.float()


def pairwise_directions(rows, labels, kept):
    """Solve for the directions with the matrix of all pairs, written out, in double precision."""
    rows, pairs = rows.astype(float), (labels[:, None] == labels[None]).astype(float)
    degrees = np.diag(pairs.sum(1))
    far = rows.T @ degrees @ rows
    near = rows.T @ (degrees - pairs) @ rows + np.eye(rows.shape[1])
    values, directions = np.linalg.eig(np.linalg.inv(near) @ far)
    order = np.argsort(-values.real)[:kept]
    return values.real[order], directions.real[:, order], far, near


def test_directions_are_those_of_the_matrix_of_all_pairs(monkeypatch):
    monkeypatch.setattr(selective, "_FEWEST_DIRECTIONS", 4)
    rows, labels = blobs(0, 0.0, classes=3, dim=7)
    values, directions, far, near = pairwise_directions(rows, labels, 4)
    found = discriminant_directions(rows, labels).astype(float)
    assert found.shape == (7, 4)
    np.testing.assert_allclose(far @ found, near @ found * values, rtol=1e-3, atol=1e-2)
    cosines = (normalize(found.T) * normalize(directions.T)).sum(1)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-4)


def test_there_are_enough_directions_for_all_classes_and_no_more_than_dimensions(monkeypatch):
    monkeypatch.setattr(selective, "_FEWEST_DIRECTIONS", 2)
    rows, labels = blobs(0, 0.0, classes=5, dim=6)
    assert discriminant_directions(rows, labels).shape == (6, 4)
    monkeypatch.setattr(selective, "_FEWEST_DIRECTIONS", 64)
    assert discriminant_directions(rows, labels).shape == (6, 6)


def literal_answers(source, labels, target, aligned):
    """The whole of it sample by sample, without a line of ours."""
    answers, chosen, classes = [-1] * len(target), [], sorted(set(labels.tolist()))
    for number in range(1, 11):
        rows = np.array([*source, *(target[i] for i in chosen)])
        known = np.array([*labels, *(answers[i] for i in chosen)])
        _, directions, *_ = pairwise_directions(rows, known, rows.shape[1])
        # eigenvectors are known up to their length, which tells what a direction counts: near-norm one
        near = pairwise_directions(rows, known, 1)[3]
        directions = directions / np.sqrt((directions * (near @ directions)).sum(0))
        ours = [row @ directions for row in source]
        theirs = [row @ directions for row in target]
        here = np.mean(ours, 0)
        there = np.mean(theirs, 0) if aligned else here
        ours = [(row - here) / np.linalg.norm(row - here) for row in ours]
        theirs = [(row - there) / np.linalg.norm(row - there) for row in theirs]
        means = []
        for k in classes:
            own = [row for row, label in zip(ours, labels, strict=True) if label == k]
            own += [theirs[i] for i in chosen if answers[i] == k]
            mean = np.mean(own, 0)
            means.append(mean / np.linalg.norm(mean))
        clusters = [mean.copy() for mean in means]
        for _ in range(30):
            nearest = [int(np.argmin([np.linalg.norm(row - each) for each in clusters])) for row in theirs]
            clusters = [np.mean([row for row, n in zip(theirs, nearest, strict=True) if n == k], 0) for k in classes]
        sure = []
        for i, row in enumerate(theirs):
            both = []
            for centres in (means, clusters):
                near_to = np.exp([-np.linalg.norm(row - centre) for centre in centres])
                both.append(near_to / near_to.sum())
            best = np.maximum(*both)
            answers[i] = int(best.argmax())
            sure.append(best.max())
        chosen = []
        for k in classes:
            own = sorted((i for i, answer in enumerate(answers) if answer == k), key=lambda i: -sure[i])
            chosen += own[: int(number / 10 * len(own))]
    return answers


@pytest.mark.parametrize("aligned", [False, True])
def test_answers_are_those_of_a_literal_transcription(aligned):
    (source, labels), (target, truth) = blobs(0, 0.0), blobs(1, 1.5)
    source, target = normalize(source), normalize(target)
    found = selective_pseudo_labels(source, labels, target, aligned).probabilities(target).argmax(1)
    assert found.tolist() == literal_answers(source, labels, target, aligned)
    assert 0.5 < (found == truth).mean() < 1  # not a case that any classifier gets right


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=30), st.floats(0, 1))
def test_the_surest_of_each_class_are_marked(answered, share):
    answers, confidence = (np.array(each) for each in zip(*answered, strict=True))
    chosen = surest(answers, confidence, share)
    for answer in set(answers.tolist()):
        own, marked = confidence[answers == answer], chosen[answers == answer]
        assert marked.sum() == int(share * len(own))
        assert own[marked].min(initial=1) >= own[~marked].max(initial=0)


@pytest.mark.parametrize("classes", [2, 20])
def test_directions_are_found_where_all_rows_share_a_large_shift(classes):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 32_000)
    rows = rng.normal(size=(len(labels), 50)) + rng.normal(size=(classes, 50))[labels] + 20 * rng.normal(size=50)
    rows = normalize(rows.astype(np.float32))
    directions = discriminant_directions(rows, labels)
    projected = rows.astype(float) @ directions
    middles = np.stack([projected[labels == label].mean(0) for label in range(classes)])
    nearest = ((projected[:500, None] - middles) ** 2).sum(2).argmin(1)
    assert np.mean(nearest == labels[:500]) > 0.95


def test_means_have_length_one_and_point_where_their_class_does():
    rows = np.array([[2, 0], [4, 0], [0, 1], [0, 9]], dtype=np.float32)
    np.testing.assert_allclose(class_means(rows, np.array([1, 1, 0, 0])), [[0, 1], [1, 0]])


def test_clusters_stand_at_the_place_of_their_class():
    means = np.eye(3, dtype=np.float32)
    rows = np.repeat(means[[2, 0, 1]], 4, axis=0) * 0.7 + np.float32(0.05)
    (clusters,) = matched_clusters(rows, means)
    np.testing.assert_allclose(clusters, 0.7 * means + 0.05, atol=1e-6)
    assert matched_clusters(rows[:2], means) == []  # fewer samples than classes: there are no clusters to find


def test_equal_rows_have_clusters_without_a_warning(recwarn):
    matched_clusters(np.ones((5, 3), dtype=np.float32), np.eye(3, dtype=np.float32))
    assert not recwarn.list


# ------------------------------------------------------------------------------------------------------------ votes


def test_a_vote_for_each_scaling(monkeypatch):
    (source, labels), (target, _) = blobs(0, 0.0), blobs(1, 0.5)
    domains = domain("source", source, labels), domain("target", target)
    scales = [identity, lambda rows: rows.sign(), lambda rows: rows**3]
    seen = []
    votes = selective_votes(*domains, scales, aligned=True, progress=lambda *done: seen.append(done))
    alone = [selective_votes(*domains, [scale], aligned=True) for scale in scales]
    np.testing.assert_allclose(votes, torch.stack(alone).mean(0), atol=1e-6)
    assert all(set(each.unique().tolist()) == {0.0, 1.0} for each in alone)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_where_a_whole_domain_is_shifted_alignment_takes_it_away():
    (source, labels), (target, truth) = blobs(0, 0.0, per_class=60), blobs(1, 0.0, per_class=60)
    shift = np.array([6, 0, 0, 0, 0, 0], dtype=np.float32)
    domains = domain("source", source, labels), domain("target", target + shift)
    right = {each: (selective_votes(*domains, [identity], each).argmax(1).numpy() == truth).mean() for each in (0, 1)}
    assert right[1] > 0.9 > 0.7 > right[0]


def test_what_is_learned_from_some_samples_answers_all(monkeypatch):
    (source, labels), (target, truth) = blobs(0, 0.0, per_class=100), blobs(1, 0.3, per_class=100)
    monkeypatch.setattr(selective, "_MOST_LEARNED", 40)
    votes = selective_votes(domain("source", source, labels), domain("target", target), [identity], aligned=True)
    assert votes.shape == (300, 3)
    assert (votes.argmax(1).numpy() == truth).mean() > 0.9


def test_a_class_that_is_in_none_of_these_gets_no_vote(monkeypatch):
    source, labels = blobs(0, 0.0, per_class=30)
    rows = np.r_[0:30, 31, 30, 60:90]  # of the second class two samples, neither of which is learned
    monkeypatch.setattr(selective, "_MOST_LEARNED", 20)
    one, other = domain("source", source[rows], labels[rows]), domain("target", blobs(1, 0.0)[0])
    learned = selective.evenly_spaced_rows(len(one), 20)
    assert 1 not in one.labels[learned]
    votes = selective_votes(one, other, [identity], aligned=False)
    assert votes[:, 1].sum() == 0
    np.testing.assert_allclose(votes.sum(1), 1)


def test_labels_that_a_user_has_given_are_learned():
    """Of two classes the names have changed places; whoever knows a few samples of the target can tell."""
    (source, labels), (target, truth) = blobs(0, 0.0, classes=2, per_class=5), blobs(1, 0.0, classes=2, per_class=60)
    swapped = 1 - truth
    told = torch.full((120,), -1)
    told[::3] = torch.from_numpy(swapped[::3])
    one = domain("source", source, labels, classes=2)
    other = Domain("target", torch.from_numpy(target), known_labels=told)
    unknown = np.arange(120) % 3 > 0
    answers = selective_votes(one, other, [identity], aligned=False).argmax(1).numpy()
    assert (answers == swapped)[unknown].mean() > 0.8
    alone = selective_votes(one, other.unlabelled(), [identity], aligned=False).argmax(1).numpy()
    assert (alone == swapped)[unknown].mean() < 0.2


def test_labels_that_a_user_has_given_are_learned_in_every_round(monkeypatch):
    (source, labels), (target, truth) = blobs(0, 0.0), blobs(1, 0.7)
    source, target = normalize(source), normalize(target)
    known = np.full(len(target), -1)
    known[::7] = (truth[::7] + 1) % 3  # not what a discriminant would say: it is never sure of these
    rounds = []
    usual = selective.discriminant_directions
    monkeypatch.setattr(selective, "discriminant_directions", lambda *given: rounds.append(given) or usual(*given))
    selective_pseudo_labels(source, labels, target, False, known)
    assert len(rounds) == 10
    for rows, classes in rounds:
        learned = {(*row, label) for row, label in zip(rows.tolist(), classes.tolist(), strict=True)}
        assert learned.issuperset((*target[i].tolist(), known[i]) for i in range(0, len(target), 7))


@pytest.mark.parametrize("samples", [1, 2, 30])
@pytest.mark.parametrize("rows", [np.zeros((30, 4), np.float32), np.full((30, 4), 1e6, np.float32)], ids=["0", "same"])
def test_features_that_tell_nothing_are_no_error(rows, samples):
    votes = selective_votes(domain("s", rows, np.arange(30) % 3), domain("t", rows[:samples]), [identity], True)
    np.testing.assert_allclose(votes.sum(1), 1)


# ---------------------------------------------------------------------------------------- what a candidate begins with


def test_the_ensemble_begins_with_the_average_of_its_members(tmp_path, monkeypatch):
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    y = np.random.default_rng(0).permutation(y)  # neighbours of other classes: there is an ensemble
    begun = []
    usual = PseudoLabels.warm_start

    def noted(self, probabilities):
        begun.append(probabilities.clone())
        usual(self, probabilities)

    monkeypatch.setattr(PseudoLabels, "warm_start", noted)
    knobs = {**TINY, "steps": 4, "choice.candidates": len(CANDIDATES)}
    safda.fit((X, y), X_target, out=tmp_path / "run", cpu=True, report=False, **knobs)
    of_networks = [
        safda.Adapted.load(tmp_path / "run" / "candidates" / name).predict(X_target).probabilities
        for name in ("mdd", "mcc", "mcc-again", "mcc-rooted", "mcc-rooted-again")
    ]
    source, target = load_domain((X, y)), load_domain(X_target)
    scalings = [FeatureScaling(6, kind, 512) for kind in ("centred", "rooted", "standardised")]
    for scaling in scalings:
        scaling.learn([source.inputs, target.inputs], torch.cat([source.inputs, target.inputs]))
    votes = [selective_votes(source, target, scalings, aligned).numpy() for aligned in (False, True)]
    np.testing.assert_allclose(begun[-1], np.mean([*of_networks, *votes], axis=0), atol=1e-5)


def test_where_neighbours_can_be_trusted_saf_and_an_ensemble_are_averaged(tmp_path, monkeypatch):
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    begun = []
    usual = PseudoLabels.warm_start
    monkeypatch.setattr(
        PseudoLabels, "warm_start", lambda self, given: (begun.append(given.clone()), usual(self, given))
    )
    knobs = {**TINY, "steps": 4, "choice.candidates": len(CANDIDATES)}
    safda.fit((X, y), X_target, out=tmp_path / "run", cpu=True, report=False, **knobs)
    both = [
        safda.Adapted.load(tmp_path / "run" / "candidates" / name).predict(X_target).probabilities
        for name in ("saf", "ensemble")
    ]
    np.testing.assert_allclose(begun[-1], np.mean(both, axis=0), atol=1e-6)


def test_an_ensemble_that_was_cut_short_goes_on_exactly(tmp_path):
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    np.savez(tmp_path / "s.npz", features=X, labels=np.random.default_rng(0).permutation(y))
    np.savez(tmp_path / "t.npz", features=X_target)
    ends = tmp_path / "s.npz", tmp_path / "t.npz"
    knobs = {**TINY, "steps": 4, "checkpoint_every": 2, "choice.candidates": len(CANDIDATES)}
    safda.fit(*ends, out=tmp_path / "whole", cpu=True, report=False, **knobs)
    with pytest.raises(Killed):  # in the third step of the ninth candidate
        safda.fit(*ends, out=tmp_path / "cut", cpu=True, report=False, callback=killed_at(8 * 4 + 3), **knobs)
    assert not (tmp_path / "cut/candidates/saf-ensemble/model.safetensors").exists()
    safda.resume(tmp_path / "cut", cpu=True, report=False)
    for name in ("candidates/saf-ensemble/model.safetensors", "choice.json", "predictions.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
