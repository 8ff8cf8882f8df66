from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safda.evaluation import theory


def literal_margin_loss(p, y, threshold):
    """The paper's three cases, one sample at a time."""
    rho = 0.5 * (p[y] - max(p[k] for k in range(len(p)) if k != y))
    if rho < 0:
        return 1.0
    return 0.0 if rho > threshold else 1 - rho / threshold


@given(st.integers(0, 999), st.integers(2, 6), st.floats(0.01, 0.5))
def test_margin_quantities_equal_the_papers_cases(seed, classes, threshold):
    torch.manual_seed(seed)
    ours, others, labels = torch.randn(7, classes).softmax(1), torch.randn(7, classes), torch.randint(0, classes, (7,))
    risk = [literal_margin_loss(p.tolist(), y, threshold) for p, y in zip(ours, labels.tolist(), strict=True)]
    assert theory.margin_risk(ours, labels, threshold).item() == pytest.approx(sum(risk) / 7, abs=1e-5)
    disparity = [
        literal_margin_loss(p.tolist(), q.argmax().item(), threshold) for p, q in zip(ours, others, strict=True)
    ]
    assert theory.margin_disparity(ours, others, threshold).item() == pytest.approx(sum(disparity) / 7, abs=1e-5)


def test_discrepancy_is_large_where_two_classifiers_agree_on_the_source_only():
    sure = torch.eye(3)
    turned = sure.roll(1, 0)
    assert theory.discrepancy(sure, sure, sure, turned, 0.1).item() == 2
    assert theory.discrepancy(sure, sure, sure, sure, 0.1).item() == 0
