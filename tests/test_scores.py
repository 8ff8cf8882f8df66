"""Scores without labels: against closed forms and naive transcriptions; tests/test_skada.py has skada's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import safda
from safda.classifier import Predictions
from safda.data import Domain, load_domain
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.scores import (
    COSTS,
    SCORES,
    ModelsMissing,
    NetworkMissing,
    Outputs,
    SourceMissing,
    about,
    density,
    entropy,
    information,
    nuclear_norm,
    score,
    scores,
)
from safda.evaluation.scores.weighting import controlled_mean, density_ratio
from tests.conftest import TINY, blobs, outputs

rng = np.random.default_rng(0)
OF_OUTPUTS = {"density", "entropy", "information", "nuclear_norm"}


def both_sides(target, source, labels, **more):
    """Outputs of a classifier whose logits and embedding are the same."""
    sides = [
        Predictions((), (), np.asarray(each, np.float32), np.asarray(each, np.float32)) for each in (target, source)
    ]
    return Outputs(sides[0], lambda: (sides[1], torch.as_tensor(labels)), **more)


# ------------------------------------------------------------------------------------------------------ the registry


def test_each_score_says_what_it_is_where_it_is_from_and_what_it_costs():
    assert set(SCORES) >= OF_OUTPUTS | {"source_accuracy", "iw", "dev", "mixval", "reverse"}
    assert set(SCORES) >= {"graph_agreement", "seed_agreement"}
    for name in SCORES:
        known = about(name)
        assert known.name == name
        assert known.what.endswith("Higher is better.")
        assert known.paper
        assert known.cost in COSTS
    assert {name for name in SCORES if about(name).cost == "outputs"} == OF_OUTPUTS


def test_a_score_that_fails_is_left_out_and_told(borrowed):
    @borrowed(SCORES).register("mine")
    def mine(outputs):
        return 1 / 0

    with pytest.warns(SafdaWarning, match=r"^the score 'mine' is left out \(ZeroDivisionError: division by zero\)$"):
        found = scores(outputs(np.eye(3)))
    assert found.keys() == OF_OUTPUTS & found.keys()
    assert "information" in found


def test_a_score_registered_without_a_word_is_taken_for_cheap(borrowed):
    @borrowed(SCORES).register("mine")
    def mine(outputs):
        return 1.0

    assert about("mine").cost == "outputs"
    assert scores(outputs(np.eye(3)))["mine"] == 1.0
    with pytest.raises(SafdaError, match="cost 'much' is none of outputs"):
        score("other", paper="", cost="much")


def test_what_is_not_finite_is_left_out(borrowed):
    borrowed(SCORES).register("odd")(lambda outputs: float("nan"))
    assert "odd" not in scores(outputs(np.eye(3)))


# ----------------------------------------------------------------------------------------- of the target's outputs


def test_a_collapse_pleases_entropy_and_density_but_not_the_others():
    good = outputs(rng.dirichlet([0.05] * 4, size=200))
    collapsed = outputs(np.eye(4)[np.zeros(200, dtype=int)])
    assert entropy(collapsed) > entropy(good)
    assert density(collapsed) > density(good)
    assert information(collapsed) < information(good)
    assert nuclear_norm(collapsed) < nuclear_norm(good)


def test_density_is_the_same_in_parts_as_at_once(monkeypatch):
    predictions = torch.rand(50, 5).softmax(1)
    similar = torch.nn.functional.normalize(predictions, dim=1)
    similar = (similar @ similar.T / 0.05)[~torch.eye(50, dtype=torch.bool)].view(50, 49).log_softmax(1)
    expected = -(similar.exp() * similar).sum(1).mean() / np.log(49)
    monkeypatch.setattr("safda.evaluation.scores.certainty._ROWS", 7)
    assert density(outputs(predictions)) == pytest.approx(float(expected), abs=1e-5)


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_nuclear_norm_is_numpys_and_a_share(samples, classes, seed):
    predictions = np.random.default_rng(seed).dirichlet([0.3] * classes, size=samples)
    found = nuclear_norm(outputs(predictions))
    most = np.sqrt(samples * min(samples, classes))
    assert found == pytest.approx(np.linalg.norm(predictions, "nuc") / most, abs=1e-5)
    assert 0 < found <= 1 + 1e-6


# -------------------------------------------------------------------------------------------------- with the source


def test_the_source_is_predicted_once_and_only_if_a_score_asks():
    calls, rows = [], np.eye(4, dtype=np.float32)

    def predict_source():
        calls.append(1)
        return Predictions((), (), rows, 2 * rows[:, :2]), torch.tensor([0, 1, 2, 0])

    both = outputs(rows, predict_source)
    assert entropy(both) > 0.99
    assert calls == []
    assert SCORES["source_accuracy"](both) == 0.75
    assert torch.equal(both.source_embedding, 2 * both.source_logits[:, :2])
    assert set(scores(both)) == OF_OUTPUTS | {"source_accuracy"}
    assert set(scores(both, COSTS)) >= OF_OUTPUTS | {"source_accuracy", "iw", "dev", "reverse"}
    assert calls == [1]


def test_without_the_rest_all_scores_are_there_that_need_none():
    alone = outputs(np.eye(4))
    assert set(scores(alone, COSTS)) == OF_OUTPUTS
    missing = {
        SourceMissing: ["source_accuracy", "iw", "dev", "reverse"],
        NetworkMissing: ["mixval", "graph_agreement"],
        ModelsMissing: ["seed_agreement"],
    }
    for kind, names in missing.items():
        for name in names:
            with pytest.raises(kind) as caught:
                SCORES[name](alone)
            assert "\n" not in str(caught.value)


def test_the_density_ratio_of_two_gaussians_is_the_known_one():
    source, target = rng.normal(size=(20_000, 1)), rng.normal(size=(10_000, 1)) + 0.7
    at = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_allclose(density_ratio(source, target, at), np.exp(0.7 * at - 0.7**2 / 2).ravel(), rtol=0.12)


def test_domains_that_are_far_apart_give_numbers():
    source, target = rng.normal(size=(50, 2)), rng.normal(size=(50, 2)) + 1e4
    far = both_sides(target, source, np.zeros(50, int))
    assert np.isfinite(density_ratio(source, target, np.concatenate([source, target]))).all()
    assert 0 <= SCORES["iw"](far) <= 1
    assert np.isfinite(SCORES["dev"](far))


def test_importance_weights_make_the_sources_accuracy_that_of_the_target():
    """Right below 1, wrong above: a classifier whose accuracy on any sample is known."""
    source, target = rng.normal(size=(4000, 1)), rng.normal(size=(4000, 1)) + 1
    there = Predictions((), (), np.hstack([1 - source, source - 1]).astype(np.float32), source.astype(np.float32))
    here = Predictions((), (), np.hstack([1 - target, target - 1]).astype(np.float32), target.astype(np.float32))
    found = SCORES["iw"](Outputs(here, lambda: (there, torch.zeros(4000, dtype=torch.long))))
    assert found == pytest.approx((target < 1).mean(), abs=0.04)
    assert (source < 1).mean() > found + 0.2


def test_the_control_variate_takes_away_what_weights_vary_by():
    weights, losses = rng.exponential(size=(2000, 30)), 0.3 + 0.1 * rng.random((2000, 30))
    plain = (weights * losses).mean(1)
    controlled = [controlled_mean(*each) for each in zip(weights, losses, strict=True)]
    assert np.mean(controlled) == pytest.approx(0.35, abs=0.005)
    assert np.std(controlled) < 0.2 * np.std(plain)


def test_reverse_validation_sees_classes_that_changed_names():
    source = np.repeat(6 * np.eye(3), 20, axis=0) + rng.normal(size=(60, 3))
    labels = np.repeat(np.arange(3), 20)
    moved = source + 0.5
    assert SCORES["reverse"](both_sides(moved, source, labels)) == 1.0
    swapped = Predictions((), (), moved[:, [1, 0, 2]].astype(np.float32), moved.astype(np.float32))
    there = Predictions((), (), source.astype(np.float32), source.astype(np.float32))
    assert SCORES["reverse"](Outputs(swapped, lambda: (there, torch.from_numpy(labels)))) == pytest.approx(1 / 3)
    collapsed = Predictions((), (), np.eye(3, dtype=np.float32)[np.zeros(60, int)], moved.astype(np.float32))
    assert SCORES["reverse"](Outputs(collapsed, lambda: (there, torch.from_numpy(labels)))) == pytest.approx(1 / 3)


def test_the_mdd_tells_domains_that_a_classifier_cannot_follow():
    rng = np.random.default_rng(0)  # its own: what others have drawn before must not matter
    near, far = (np.hstack([rng.normal(size=(100, 2)), shift + rng.normal(size=(100, 1))]) for shift in (0, 9))
    labels = np.zeros(100, int)
    source = np.hstack([rng.normal(size=(100, 2)), rng.normal(size=(100, 1))])
    of_near, of_far = (SCORES["mdd"](both_sides(each, source, labels)) for each in (near, far))
    assert -2 <= of_far < of_near - 0.4 < 0
    assert "mdd" not in scores(both_sides(near[:5], source, labels), COSTS)


def test_the_source_is_seen_by_its_own_norm_where_each_domain_has_one():
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 4.0)  # the target's statistics are far from the source's
    knobs = {**TINY, "steps": 80, "network.norm": "per-domain", "network.features": "as-is", "optimizer.lr": 0.02}
    adapted = safda.fit((X, y), X_target, recipe="default", cpu=True, **knobs)
    seen = Outputs.of(adapted, load_domain((X, y)), adapted.predict(X_target))
    projected = adapted.model.project(torch.from_numpy(X))[1].detach().double()
    norm = adapted.model.bottleneck.norm
    normed = (projected - projected.mean(0)) / (projected.var(0, unbiased=False) + norm.eps).sqrt()
    expected = (normed * norm.weight + norm.bias).relu().detach().numpy()
    np.testing.assert_allclose(seen.source_embedding.numpy(), expected, atol=1e-4)
    assert SCORES["source_accuracy"](seen) > adapted.evaluate((X, y)).accuracy + 0.1


# ----------------------------------------------------------------------------------------- with samples and models


@pytest.fixture(scope="module")
def run():
    """A small classifier, and the domains that it was made of."""
    source, target = (load_domain(part) for part in (blobs(0, 0.0), blobs(1, 0.7)[0]))
    return safda.fit(source, target, recipe="default", cpu=True, **{**TINY, "steps": 60}), source, target


def test_mixval_is_what_its_paper_says(run):
    adapted, source, target = run
    answers = adapted.predict(target).logits.argmax(1)
    order = np.random.RandomState(0).permutation(60)
    inputs = target.inputs.numpy()
    mixed = adapted.predict(0.55 * inputs + 0.45 * inputs[order]).logits.argmax(1)
    by_kind = {True: [], False: []}
    for i in range(60):
        by_kind[bool(answers[i] == answers[order[i]])].append(mixed[i] == answers[i])
    expected = np.mean([np.mean(by_kind[True]), np.mean(by_kind[False])])
    found = SCORES["mixval"](Outputs.of(adapted, source, adapted.predict(target), target))
    assert found == pytest.approx(expected)
    assert 0.5 < found < 1


def test_mixval_of_one_cluster_is_that_of_its_pairs_alone():
    one = outputs(np.eye(3)[[1] * 10])
    always = Outputs(one.target, predict_mixed=lambda rows, partners, share: torch.eye(3)[[1] * len(rows)])
    assert SCORES["mixval"](always) == 1.0


def test_mixing_pictures_is_mixing_what_the_network_sees():
    source, target = (load_domain(f"digits-{kind}") for kind in ("rendered", "handwritten"))
    some = [domain.take(torch.arange(0, len(domain), 60)) for domain in (source, target)]
    adapted = safda.fit(*some, recipe="digits", cpu=True, **{**TINY, "steps": 3})
    seen = Outputs.of(adapted, some[0], adapted.predict(some[1]), some[1])
    rows = torch.arange(len(some[1]))
    alone = seen.mixed_logits(rows, rows.flip(0), 1.0)  # all of the first, nothing of the second
    np.testing.assert_allclose(alone, seen.target_logits, atol=1e-4)
    assert 0 <= SCORES["mixval"](seen) <= 1
    with pytest.raises(NetworkMissing, match="needs features"):
        SCORES["graph_agreement"](seen)


def test_an_answer_that_neighbours_contradict_counts_against_a_classifier():
    features = np.concatenate([np.tile([1.0, 0.0], (10, 1)), np.tile([0.0, 1.0], (10, 1))]).astype(np.float32)
    features += 0.05 * rng.normal(size=features.shape).astype(np.float32)
    source = Domain("s", torch.from_numpy(features), torch.arange(20) // 10, ("left", "up"))
    target = Domain("t", torch.from_numpy(features + 0.01))
    answers = np.arange(20) // 10
    for wrong in (0, 1, 3):
        said = answers.copy()
        said[:wrong] = 1 - said[:wrong]
        seen = Outputs(outputs(0.9 * np.eye(2)[said] + 0.05).target, get_domains=lambda: (source, target))
        assert SCORES["graph_agreement"](seen) == pytest.approx(1 - wrong / 20)


# ------------------------------------------------------------------------------------------- scikit-learn's scorers


@pytest.fixture
def arrays():
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    return X, np.array(["ant", "bee", "cat"])[y], X_target


def small(**changes):
    return safda.SAFClassifier(**{"steps": 30, "batch": 16, "knobs": {"network.bottleneck_width": 16}, **changes})


def test_a_scorer_gives_what_the_score_gives(arrays):
    X, y, X_target = arrays
    knobs = {"network.bottleneck_width": 16, "network.norm": "joint"}  # by its own, a source looks otherwise
    classifier = small(random_state=0, knobs=knobs).fit(X, y, X_target=X_target)
    source = load_domain((X, y))
    seen = Outputs.of(classifier.adapted_, source, classifier.adapted_.predict(X_target), load_domain(X_target))
    for name in set(SCORES) - {"seed_agreement"}:
        assert safda.make_scorer(name, X_target)(classifier, X, y) == pytest.approx(SCORES[name](seen), abs=1e-4), name
    with pytest.raises(ModelsMissing):
        safda.make_scorer("seed_agreement", X_target)(classifier, X, y)


def test_rows_of_both_domains_are_told_apart_by_sample_domain(arrays):
    X, y, X_target = arrays
    classifier = small().fit(X, y, X_target=X_target)
    together, domain = np.concatenate([X_target, X]), np.repeat([-2, 1], 60)
    labels = np.concatenate([np.full(60, "?"), y])
    for name in ("entropy", "iw", "mixval"):
        apart = safda.make_scorer(name, X_target)(classifier, X, y)
        assert safda.make_scorer(name)(classifier, together, labels, sample_domain=domain) == apart


def test_a_grid_search_by_a_score_takes_what_scores_highest(arrays):
    X, y, X_target = arrays
    scorer = safda.make_scorer("nuclear_norm", X_target)
    search = GridSearchCV(small(), {"steps": [1, 40]}, scoring=scorer, cv=2, error_score="raise")
    search.fit(X, y, X_target=X_target)
    assert search.best_params_ == {"steps": 40}
    assert search.score(X, y) == scorer(search.best_estimator_, X, y)


@pytest.mark.filterwarnings("error")
def test_any_classifier_of_tables_can_be_scored(arrays):
    pandas = pytest.importorskip("pandas")
    X, y, X_target = arrays
    X, X_target = (pandas.DataFrame(each, columns=list("abcdef")) for each in (X, X_target))
    classifier = LogisticRegression().fit(X, y)
    for name in set(SCORES) - {"seed_agreement"}:
        assert np.isfinite(safda.make_scorer(name, X_target)(classifier, X, y))


@pytest.mark.parametrize("kind", [csr_matrix, coo_array])
def test_sparse_rows_score_as_dense_ones_do(arrays, kind):
    X, y, X_target = arrays
    classifier = make_pipeline(TruncatedSVD(3, random_state=0), LogisticRegression()).fit(X, y)
    sparse = kind(X), kind(X_target), kind(np.concatenate([X_target, X]))
    for name in set(SCORES) - {"seed_agreement"}:
        wanted = pytest.approx(safda.make_scorer(name, X_target)(classifier, X, y), abs=1e-4)
        assert safda.make_scorer(name, sparse[1])(classifier, sparse[0], y) == wanted, name
    labels, domain = np.concatenate([np.full(60, "?"), y]), np.repeat([-2, 1], 60)
    wanted = pytest.approx(safda.make_scorer("iw", X_target)(classifier, X, y), abs=1e-4)
    assert safda.make_scorer("iw")(classifier, sparse[2], labels, sample_domain=domain) == wanted


def test_a_class_that_training_did_not_see_is_no_reason_to_fail(arrays):
    X, y, X_target = arrays
    classifier = LogisticRegression().fit(X[y != "bee"], y[y != "bee"])
    assert np.isfinite(safda.make_scorer("dev", X_target)(classifier, X, y))


def test_what_a_scorer_lacks_is_told(arrays):
    X, y, X_target = arrays
    classifier = small(steps=1).fit(X, y, X_target=X_target)
    with pytest.raises(SafdaError, match="did you mean 'entropy'"):
        safda.make_scorer("entorpy")
    with pytest.raises(ValueError, match="needs target samples"):
        safda.make_scorer("entropy")(classifier, X, y)
    with pytest.raises(ValueError, match="no target sample"):
        safda.make_scorer("entropy")(classifier, X, y, sample_domain=np.ones(60))
    with pytest.raises(SourceMissing):
        safda.make_scorer("iw", X_target)(classifier, X)
