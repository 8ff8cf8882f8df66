"""SAFClassifier drops into skada: its pipelines, its splitters and its scorers, with nothing to set up."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from safda import SAFClassifier, make_scorer
from safda.evaluation.scores import density, entropy
from safda.evaluation.scores.weighting import density_ratio
from tests.conftest import blobs, outputs

with sklearn.config_context():  # importing skada turns metadata routing on for good; other tests are to go without
    from skada import make_da_pipeline
    from skada.metrics import (
        CircularValidation,
        DeepEmbeddedValidation,
        ImportanceWeightedScorer,
        MixValScorer,
        PredictionEntropyScorer,
        SoftNeighborhoodDensity,
        SupervisedScorer,
    )
    from skada.model_selection import (
        DomainShuffleSplit,
        LeaveOneDomainOut,
        SourceTargetShuffleSplit,
        StratifiedDomainShuffleSplit,
    )
    from skada.utils import source_target_merge

WIDTH = 32
SMALL = {
    "network.bottleneck_width": WIDTH,
    "network.classifier_width": WIDTH,
    "optimizer.lr": 0.02,
}


def small(**changes):
    return SAFClassifier(**{"steps": 30, "batch": 16, "knobs": SMALL, "random_state": 0, **changes})


def piped(**changes):
    return make_da_pipeline(StandardScaler(), small(**changes))


def weighing():
    """As a classifier must be for skada to weigh its score; so says skada of scikit-learn's own classifiers too."""
    return small().set_score_request(sample_weight=True)


@pytest.fixture(autouse=True)
def _routing():
    """As every process is that has imported skada."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def data():
    """Both domains as skada packs them, the target's labels masked; and those labels beside it."""
    (X, y), (X_target, y_target) = blobs(0, 0.0), blobs(1, 0.7)
    domain = np.repeat([1, -2], 60)
    rows, masked, _ = source_target_merge(X, X_target, y, None, sample_domain=domain)
    assert set(masked[domain < 0]) == {-1}
    return rows, masked, domain, np.concatenate([y, y_target])


def validated(estimator, data, scoring, splitter=None, **more):
    """Cross-validate as skada's users do; give each split's score, its estimator and the rows it was tested on."""
    X, y, domain, _ = data
    result = cross_validate(
        estimator,
        X,
        y,
        cv=splitter or SourceTargetShuffleSplit(2, test_size=0.4, random_state=0),
        params={"sample_domain": domain, **more},
        scoring=scoring,
        error_score="raise",
        return_estimator=True,
        return_indices=True,
    )
    return list(zip(result["test_score"], result["estimator"], result["indices"]["test"], strict=True))


def learned_classes(estimator):
    fitted = estimator if isinstance(estimator, SAFClassifier) else estimator[-1].get_estimator()
    return fitted.classes_.tolist()


# ------------------------------------------------------------------------------------------------- pipelines


def test_a_pipeline_gives_what_the_estimator_gives_on_scaled_rows(data):
    X, y, domain, truth = data
    pipeline = piped().fit(X, y, sample_domain=domain)
    scaler = StandardScaler().fit(X)
    alone = small().fit(scaler.transform(X), y, sample_domain=domain)
    target = X[domain < 0]
    np.testing.assert_array_equal(pipeline.predict_proba(target), alone.predict_proba(scaler.transform(target)))
    np.testing.assert_array_equal(pipeline.decision_function(target), alone.decision_function(scaler.transform(target)))
    np.testing.assert_array_equal(pipeline.transform(target), alone.transform(scaler.transform(target)))
    assert learned_classes(pipeline) == [0, 1, 2]
    assert pipeline.score(target, truth[domain < 0]) > 0.8  # chance is a third


def test_a_domain_at_prediction_changes_nothing(data):
    X, y, domain, truth = data
    scaled = StandardScaler().fit_transform(X)
    for estimator, rows in ((piped(), X), (small(), scaled)):
        estimator.fit(rows, y, sample_domain=domain)
        for method in ("predict", "predict_proba", "decision_function"):
            ask = getattr(estimator, method)
            told = ask(rows, sample_domain=domain, allow_source=True)
            np.testing.assert_array_equal(told, ask(rows))
        told = estimator.score(rows, truth, sample_domain=domain, allow_source=True)
        assert told == estimator.score(rows, truth) == np.mean(estimator.predict(rows) == truth)


def test_target_labels_are_not_looked_at(data):
    X, y, domain, truth = data
    masked = piped().fit(X, y, sample_domain=domain)
    unmasked = piped().fit(X, truth.copy(), sample_domain=domain)  # a copy, since skada masks what it is given in place
    np.testing.assert_array_equal(masked.predict_proba(X), unmasked.predict_proba(X))
    assert learned_classes(unmasked) == [0, 1, 2]


def test_several_sources_and_targets(data):
    X, y, domain, _ = data
    many = np.where(domain >= 0, 1 + np.arange(len(X)) % 3, -4 - np.arange(len(X)) % 2)
    pipeline = piped().fit(X, y, sample_domain=many)
    np.testing.assert_array_equal(
        pipeline.predict_proba(X), piped().fit(X, y, sample_domain=domain).predict_proba(X)
    )  # which source and which target makes no difference


def test_scikit_learns_own_pipeline_hands_the_domains_on(data):
    X, y, domain, _ = data
    pipeline = make_pipeline(StandardScaler(), small()).fit(X, y, sample_domain=domain)
    np.testing.assert_array_equal(pipeline.predict_proba(X), piped().fit(X, y, sample_domain=domain).predict_proba(X))


def test_features_for_another_classifier(data):
    X, y, domain, truth = data
    pipeline = make_da_pipeline(StandardScaler(), small(), LogisticRegression()).fit(X, y, sample_domain=domain)
    assert pipeline[-1].get_estimator().n_features_in_ == WIDTH
    assert pipeline.score(X[domain < 0], truth[domain < 0], sample_domain=domain[domain < 0]) > 0.8


# --------------------------------------------------------------------------------- scorers, against other sources


@pytest.mark.parametrize("make", [piped, small])
def test_the_masks_of_target_labels_are_no_class_in_cross_validation(data, make):
    for _, estimator, _ in validated(make(), data, PredictionEntropyScorer()):
        assert learned_classes(estimator) == [0, 1, 2]


@pytest.mark.parametrize("make", [piped, small])
def test_supervised_score_is_the_accuracy(data, make):
    X, _, domain, truth = data
    for score, estimator, rows in validated(make(), data, SupervisedScorer(), target_labels=truth):
        target = rows[domain[rows] < 0]
        assert score == pytest.approx(np.mean(estimator.predict(X[target]) == truth[target]))
        assert score > 0.6  # chance is a third


@pytest.mark.parametrize("make", [piped, small])
def test_prediction_entropy_is_ours_in_other_units(data, make):
    X, _, domain, _ = data
    for score, estimator, rows in validated(make(), data, PredictionEntropyScorer()):
        probabilities = estimator.predict_proba(X[rows[domain[rows] < 0]])
        nats = -score * 3  # skada's mean is over samples and classes
        assert 1 - nats / math.log(3) == pytest.approx(entropy(outputs(probabilities)), abs=1e-5)


@pytest.mark.parametrize("make", [piped, small])
def test_soft_neighbourhood_density_is_ours_in_other_units(data, make):
    X, _, domain, _ = data
    for score, estimator, rows in validated(make(), data, SoftNeighborhoodDensity()):
        probabilities = estimator.predict_proba(X[rows[domain[rows] < 0]])
        assert score / math.log(len(probabilities) - 1) == pytest.approx(density(outputs(probabilities)), abs=1e-5)


@pytest.mark.parametrize(
    "make", [lambda: make_da_pipeline(StandardScaler(), weighing()), weighing], ids=["piped", "small"]
)
def test_importance_weighted_score_is_the_weighted_source_accuracy(data, make):
    X, y, domain, _ = data
    for score, estimator, rows in validated(make(), data, ImportanceWeightedScorer()):
        source, target = X[rows[domain[rows] >= 0]], X[rows[domain[rows] < 0]]
        on_source, on_target = (KernelDensity().fit(each).score_samples(source) for each in (source, target))
        right = estimator.predict(source) == y[rows[domain[rows] >= 0]]
        assert score == pytest.approx(np.average(right, weights=np.exp(on_target - on_source)))


@pytest.mark.parametrize("make", [piped, small])
def test_circular_validation_is_the_way_there_and_back(data, make):
    X, y, domain, _ = data
    for score, estimator, rows in validated(make(), data, CircularValidation()):
        source = rows[domain[rows] >= 0]
        there = np.where(domain[rows] < 0, estimator.predict(X[rows]), -1)
        assert set(there[domain[rows] < 0]) == {0, 1, 2}  # otherwise skada numbers the classes anew
        back = clone(make()).fit(X[rows], there, sample_domain=-domain[rows])
        assert score == pytest.approx(balanced_accuracy_score(y[source], back.predict(X[source])))


def test_deep_embedded_validation_looks_at_the_bottleneck(data):
    X, y, domain, _ = data
    scorer = DeepEmbeddedValidation(random_state=0)
    score = scorer(piped().fit(X, y, sample_domain=domain), X, y, sample_domain=domain)
    assert math.isfinite(score)
    assert scorer.domain_classifier_.n_features_in_ == WIDTH


@pytest.mark.parametrize("make", [piped, small])
def test_mixval_takes_the_estimator(data, make):
    scores = [score for score, *_ in validated(make(), data, MixValScorer(random_state=0))]
    assert all(0 <= score <= 1 for score in scores)


# ----------------------------------------------------------- our own scorers beside skada's, on the same arrays


class KnownRatio(BaseEstimator):
    """Densities whose ratio is known: what skada asks for in place of a kernel density."""

    def __init__(self, target=None, log_ratio=None):
        self.target, self.log_ratio = target, log_ratio

    def fit(self, X):
        self.is_target_ = np.array_equal(X, self.target)
        return self

    def score_samples(self, X):
        return self.log_ratio if self.is_target_ else np.zeros(len(X))


def test_our_importance_weighted_score_is_skadas_with_our_weights(data):
    X, y, domain, _ = data
    classifier = weighing().fit(X, y, sample_domain=domain)
    embedding = classifier.transform(X).astype(np.float64)
    ratio = density_ratio(embedding[domain >= 0], embedding[domain < 0], embedding[domain >= 0])
    theirs = ImportanceWeightedScorer(KnownRatio(X[domain < 0], np.log(ratio)))
    expected = theirs(classifier, X, y, sample_domain=domain)
    assert make_scorer("iw")(classifier, X, y, sample_domain=domain) == pytest.approx(expected, abs=1e-6)


def column_of_losses(y, probabilities):
    """Cross-entropy, one below the other: skada's own are side by side, and times its weights they make a square."""
    return -np.log(probabilities[np.arange(len(y)), y])[:, None]


def test_our_deep_embedded_validation_is_skadas(data):
    X, y, domain, _ = data
    pipeline = piped().fit(X, y, sample_domain=domain)
    expected = DeepEmbeddedValidation(loss_func=column_of_losses, random_state=0)(pipeline, X, y, sample_domain=domain)
    assert make_scorer("dev")(pipeline, X, y, sample_domain=domain) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("make", [piped, small])
def test_our_mixval_is_skadas(data, make):
    X, y, domain, _ = data
    estimator = make().fit(X, y, sample_domain=domain)
    expected = MixValScorer(random_state=0)(estimator, X, y, sample_domain=domain)
    assert make_scorer("mixval")(estimator, X, y, sample_domain=domain) == expected


def test_our_reverse_validation_is_skadas_of_a_logistic_classifier(data):
    X, y, domain, _ = data
    pipeline = make_da_pipeline(LogisticRegression()).fit(X, y, sample_domain=domain)
    expected = CircularValidation()(pipeline, X, y, sample_domain=domain)
    alone = LogisticRegression().fit(X[domain >= 0], y[domain >= 0])
    assert make_scorer("reverse")(alone, X, y, sample_domain=domain) == pytest.approx(expected)
    assert 0.3 < expected < 1


def test_our_scorers_are_handed_the_domains_in_a_search_as_skadas_are(data):
    X, y, domain, _ = data
    for score, estimator, rows in validated(small(), data, make_scorer("iw")):
        assert score == make_scorer("iw", X[rows[domain[rows] < 0]])(
            estimator, X[rows[domain[rows] >= 0]], y[rows[domain[rows] >= 0]]
        )
    search = GridSearchCV(
        piped(),
        {"safclassifier__steps": [1, 30]},
        scoring=make_scorer("information"),
        cv=SourceTargetShuffleSplit(1, test_size=0.4, random_state=0),
        error_score="raise",
    ).fit(X, y, sample_domain=domain)
    assert search.best_params_["safclassifier__steps"] == 30


# ----------------------------------------------------------------------------------- splitters and grid searches


@pytest.mark.parametrize("kind", [SourceTargetShuffleSplit, StratifiedDomainShuffleSplit, DomainShuffleSplit])
def test_splitters_of_two_domains(data, kind):
    splits = validated(piped(), data, SoftNeighborhoodDensity(), kind(2, test_size=0.3, random_state=0))
    assert len(splits) == 2
    assert all(math.isfinite(score) and learned_classes(estimator) == [0, 1, 2] for score, estimator, _ in splits)


def test_every_domain_left_out_in_turn(data):
    X, _, domain, truth = data
    numbers = np.where(domain >= 0, 1, 2)  # each domain once as a source and once as a target, as the splitter wants it
    twice = np.concatenate([X, X]), np.concatenate([truth, np.full(len(X), -1)]), np.concatenate([numbers, -numbers])
    splitter = LeaveOneDomainOut(test_size=0.3, random_state=0)
    splits = validated(
        piped(), (*twice, None), SupervisedScorer(), splitter, target_labels=np.concatenate([truth, truth])
    )
    assert {tuple(np.unique(twice[2][rows])) for *_, rows in splits} == {(-1, 2), (-2, 1)}
    assert all(score > 0.6 for score, *_ in splits)  # chance is a third


def test_grid_search_without_target_labels(data):
    X, y, domain, truth = data
    search = GridSearchCV(
        piped(),
        {"safclassifier__steps": [1, 30], "safclassifier__adversary": ["mdd", "none"]},
        scoring=PredictionEntropyScorer(),
        cv=SourceTargetShuffleSplit(1, test_size=0.4, random_state=0),
        error_score="raise",
    ).fit(X, y, sample_domain=domain)
    assert search.best_params_["safclassifier__steps"] == 30  # after a single step, nothing is certain
    chosen = {name.removeprefix("safclassifier__"): value for name, value in search.best_params_.items()}
    again = piped(**chosen).fit(X, y, sample_domain=domain)
    np.testing.assert_array_equal(search.predict(X[domain < 0]), again.predict(X[domain < 0]))
    assert np.mean(search.predict(X[domain < 0]) == truth[domain < 0]) > 0.8


def test_the_example_in_the_reference_works(data):
    """The page's own code, run as it stands there."""
    X, y, domain, truth = data
    page = (Path(__file__).parent.parent / "docs" / "reference.md").read_text()
    (code,) = re.findall(r"```python\n(from skada.*?)```", page, re.S)
    scope = {"X": X, "y": y, "sample_domain": domain, "SAFClassifier": small}
    exec(code, scope)
    assert scope["search"].score(X, truth, sample_domain=domain) < 0  # an entropy's sign turned
