from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from safda.evaluation.oracle import calibration_error, score


@given(st.integers(0, 999), st.integers(2, 6), st.integers(1, 60))
def test_scores_equal_scikit_learns(seed, classes, samples):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(classes), samples)
    labels = rng.integers(0, classes, samples)
    result = score(probabilities, labels, tuple(map(str, range(classes))))
    predicted = probabilities.argmax(1)
    assert result.accuracy == pytest.approx(accuracy_score(labels, predicted))
    recalls = [np.mean(predicted[labels == k] == k) for k in np.unique(labels)]
    assert result.mean_class_accuracy == pytest.approx(np.mean(recalls))
    if set(predicted) <= set(labels):
        assert result.mean_class_accuracy == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert np.trace(result.confusion) == (predicted == labels).sum()


def test_calibration_error_by_hand():
    confidence = np.array([0.95, 0.95, 0.55, 0.55])
    right = np.array([True, False, True, False])
    assert calibration_error(confidence, right) == pytest.approx((abs(0.5 - 0.95) + abs(0.5 - 0.55)) / 2)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0
