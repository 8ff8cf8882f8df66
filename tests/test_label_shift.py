"""Estimated class priors against cases whose answer is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from safda.evaluation.label_shift import (
    black_box_shift,
    class_shares,
    maximum_likelihood_shift,
    total_variation,
)


def counted(table):
    """Samples of a table of counts: row and column number of each."""
    rows, columns = np.indices(np.shape(table))
    return np.repeat(rows.ravel(), np.ravel(table)), np.repeat(columns.ravel(), np.ravel(table))


def test_an_exact_confusion_matrix_gives_the_exact_priors():
    # P(ŷ|y) = [[0.8, 0.3], [0.2, 0.7]]; the source has 200 and 100 of the classes, the target one and nine tenths
    predicted, labels = counted([[160, 30], [40, 70]])
    target = np.repeat([0, 1], [350, 650])  # 0.1·0.8 + 0.9·0.3, 0.1·0.2 + 0.9·0.7
    assert black_box_shift(predicted, labels, target, 2) == pytest.approx([0.1, 0.9], abs=1e-12)


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_any_invertible_confusion_is_inverted(seed, classes):
    rng = np.random.default_rng(seed)
    confusion = rng.integers(0, 20, (classes, classes)) + 60 * np.eye(classes, dtype=int)  # ŷ by row, y by column
    weights = rng.integers(0, 4, classes)
    weights[rng.integers(classes)] += 1  # of the target's samples of a class to the source's
    predicted, labels = counted(confusion)
    target = np.repeat(np.arange(classes), confusion @ weights)
    truth = weights * confusion.sum(0)
    found = black_box_shift(predicted, labels, target, classes)
    assert found == pytest.approx(truth / truth.sum(), abs=1e-9)


def test_what_no_priors_explain_gives_the_nearest_that_do():
    predicted, labels = counted([[80, 30], [20, 70]])
    assert black_box_shift(predicted, labels, np.zeros(10, int), 2).tolist() == [1, 0]


LIKELIHOOD = np.array([[0.6, 0.1], [0.3, 0.3], [0.1, 0.6]])  # P(x|y) of three kinds of samples, two classes
SOURCE = np.array([0.75, 0.25])


def posterior(likelihood, priors):
    joint = likelihood * priors
    return joint / joint.sum(1, keepdims=True)


@pytest.mark.parametrize("truth", [[0.75, 0.25], [0.2, 0.8], [1.0, 0.0]])
def test_exact_posteriors_give_the_exact_priors(truth):
    kinds = np.repeat(np.arange(3), np.rint(1000 * LIKELIHOOD @ truth).astype(int))
    found = maximum_likelihood_shift(posterior(LIKELIHOOD, SOURCE)[kinds], SOURCE)
    assert found == pytest.approx(truth, abs=2e-3 if min(truth) == 0 else 1e-6)


@given(st.integers(0, 10**6))
def test_em_is_no_worse_than_an_optimizer(seed):
    rng = np.random.default_rng(seed)
    probabilities, priors = rng.dirichlet(np.ones(3), 40), rng.dirichlet(5 * np.ones(3))
    ratios = probabilities / priors

    def loss(free):
        q = np.exp(free - np.logaddexp.reduce(free))
        return -np.log(ratios @ q).mean()

    best = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000})
    found = maximum_likelihood_shift(probabilities, priors)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    assert -np.log(ratios @ found).mean() <= best.fun + 1e-6  # which may be less: near a corner, the simplex shrinks


def test_a_class_that_the_source_does_not_have_gets_nothing():
    found = maximum_likelihood_shift(np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]]), np.array([0.5, 0.5, 0.0]))
    assert found[2] == 0
    assert found.sum() == pytest.approx(1)


def test_total_variation_and_shares():
    assert total_variation(np.array([1.0, 0, 0]), np.array([0, 0.5, 0.5])) == 1
    assert class_shares(np.array([1, 1, 0, 1]), 3).tolist() == [0.25, 0.75, 0]
