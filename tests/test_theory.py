"""The paper's theory against closed forms: no constant in it can be wrong unnoticed."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import math
from decimal import Decimal
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import safda
from safda.data import Domain
from safda.evaluation import theory
from safda.model import AdaptationModel
from safda.recipe import Recipe
from tests.conftest import TINY, blobs

# ------------------------------------------------------------------------------------------------ margins and terms


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


def check_closed_forms(of):
    """What the formulas must give, worked out by hand from the paper's equations."""
    exactly = {"rel": 1e-12, "abs": 1e-12}
    ours = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], dtype=torch.float64)
    first, last = torch.tensor([0, 0]), torch.tensor([2, 2])
    assert of.margin(ours, first).tolist() == pytest.approx([0.25, -0.3], **exactly)  # ½(0.7 − 0.2), ½(0.1 − 0.7)
    assert of.margin_loss(ours, first, 0.5).tolist() == pytest.approx([0.5, 1], **exactly)  # 1 − 0.25/0.5
    assert of.margin_loss(ours, last, 0.2).tolist() == pytest.approx([1, 0], **exactly)
    assert of.margin_risk(ours, first, 0.5).item() == pytest.approx(0.75, **exactly)
    says_first, says_last = (torch.nn.functional.one_hot(each, 3) for each in (first, last))
    assert of.margin_disparity(ours, says_last, 0.5).item() == pytest.approx(0.75, **exactly)
    certain = torch.tensor([[1, 0, 0], [0.8, 0.2, 0]], dtype=torch.float64)  # margins ½ and 0.3, so losses 0 and 0.4
    found = of.discrepancy(certain, says_first, ours, says_last, 0.5).item()
    assert found == pytest.approx(2 * (0.75 - 0.2), **exactly)
    assert of.h_divergence(1 / 8, 1 / 4) == 1.25  # 2·(1 − 3/8)
    assert of.sampling_terms(16, 25, 2 / math.e**2) == pytest.approx((0.5, 0.2), **exactly)  # 2·√(2/32), √(2/50)
    assert of.sampling_terms(4, 9, 2 / math.e**8) == pytest.approx((2, 2 / 3), **exactly)  # 2·√(8/8), √(8/18)


def test_formulas_have_their_closed_forms():
    check_closed_forms(theory)


def test_sampling_terms_are_the_theorems_in_other_arithmetic():
    log = (2 / Decimal("0.05")).ln()
    expected = 2 * (log / (2 * 2817)).sqrt(), (log / (2 * 795)).sqrt()
    assert theory.sampling_terms(2817, 795, 0.05) == pytest.approx(tuple(map(float, expected)), rel=1e-12)
    assert theory.sampling_terms(2817, 795) == theory.sampling_terms(2817, 795, 0.05)


FORMULAS = (
    "margin",
    "margin_loss",
    "margin_risk",
    "margin_disparity",
    "discrepancy",
    "h_divergence",
    "sampling_terms",
)


def faults():
    """The formulas' own source with one number or one sign wrong, in every way."""
    tree = ast.parse(inspect.getsource(theory))
    tree.body = [node for node in tree.body if getattr(node, "name", "") in FORMULAS]
    turned = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
    for number, node in enumerate(ast.walk(tree)):
        wrong = copy.deepcopy(tree)
        there = list(ast.walk(wrong))[number]
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            there.value = node.value + 1
        elif isinstance(node, ast.BinOp) and type(node.op) in turned:
            there.op = turned[type(node.op)]()
        else:
            continue
        yield f"line {node.lineno}, column {node.col_offset}: {ast.unparse(node)}", wrong


def loaded(tree):
    names = {**vars(theory)}
    exec(compile(ast.fix_missing_locations(tree), "theory", "exec"), names)
    return SimpleNamespace(**names)


def test_no_constant_of_a_formula_can_be_wrong_unnoticed():
    every = list(faults())
    assert len(every) > 25
    for where, wrong in every:
        noticed = False
        try:
            check_closed_forms(loaded(wrong))
        except Exception:  # a wrong dimension is an error of torch's
            noticed = True
        assert noticed, where


def test_discrepancy_is_large_where_two_classifiers_agree_on_the_source_only():
    sure = torch.eye(3)
    turned = sure.roll(1, 0)
    assert theory.discrepancy(sure, sure, sure, turned, 0.1).item() == 2
    assert theory.discrepancy(sure, sure, sure, sure, 0.1).item() == 0


# ---------------------------------------------------------------------------- the supremum over auxiliary classifiers


def always_first(count, classes, probability=1 - 1e-9):
    """Logits of a C that always says the first class, with this probability."""
    others = (1 - probability) / (classes - 1)
    return torch.tensor([[probability] + [others] * (classes - 1)], dtype=torch.float64).log().expand(count, -1)


def clouds(shift, dim=3, count=1024):
    generator = torch.Generator().manual_seed(3)
    source, target = (torch.randn(count, dim, generator=generator) for _ in range(2))
    target[:, 0] += shift
    return source, target


def total_variation(shift):
    """Of two unit Gaussians so far apart: 2Φ(shift/2) − 1."""
    return 2 * NormalDist().cdf(shift / 2) - 1


@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize("shift", [0.0, 1.5, 3.0])
def test_where_c_is_constant_the_supremum_is_twice_the_total_variation(classes, shift):
    """C' may say anything but C's class on any half-space: the best is where the target is denser."""
    source, target = clouds(shift)
    found = theory.empirical_mdd(source, always_first(1024, classes), target, always_first(1024, classes))
    assert found == pytest.approx(2 * total_variation(shift), abs=0.12)


@pytest.mark.parametrize(("probability", "threshold"), [(0.6, 0.25), (0.75, 0.5), (0.6, 0.1)])
def test_an_unsure_c_has_less_to_lose(probability, threshold):
    """Its margin loss is 1 − m/ϱ already where C' agrees, m = p − ½ with two classes: m/ϱ at most is left."""
    source, target = clouds(1.5)
    unsure = always_first(1024, 2, probability)
    found = theory.empirical_mdd(source, unsure, target, unsure, threshold=threshold)
    left = min((probability - 0.5) / threshold, 1)
    assert found == pytest.approx(2 * left * total_variation(1.5), abs=0.12 * left)


def test_a_third_of_the_target_where_the_source_never_is_counts_two_thirds():
    places = torch.tensor([[-1.0], [1.0], [3.0]])
    source, target = places[torch.arange(600) % 2], places[torch.arange(600) % 3]

    def by_sign(x):
        return torch.cat([-x, x], 1) * 9

    found = theory.maximal_discrepancy((source, by_sign(source)), (target, by_sign(target)))
    assert found.held_out == pytest.approx(2 / 3, abs=0.08)  # halves are drawn, not counted
    assert found.on_source == pytest.approx(0, abs=1e-9)
    assert 2 * (found.on_target - found.on_source) == pytest.approx(found.held_out, abs=1e-6)


def test_where_c_parts_the_line_the_supremum_is_that_of_intervals():
    """C says the sign of x; C' may differ on any set, the best is x > ¾ for the Gaussians at 0 and 1½."""
    source, target = clouds(1.5, dim=1)

    def by_sign(x):
        return torch.cat([-x, x], 1) * 50

    found = theory.empirical_mdd(source, by_sign(source), target, by_sign(target), steps=200)
    assert found == pytest.approx(2 * total_variation(1.5), abs=0.15)


def test_what_is_only_overfitting_is_not_taken_for_a_discrepancy():
    source, target = clouds(0.0, dim=200, count=200)
    found = theory.maximal_discrepancy((source, always_first(200, 3)), (target, always_first(200, 3)))
    assert found.fitted > 1.5
    assert found.held_out < 0.3


def test_the_same_seed_gives_the_same_discrepancy_and_leaves_the_generator_alone():
    sides = [(each, always_first(1024, 3)) for each in clouds(0.5)]
    state = torch.random.get_rng_state()
    one, again, another = (theory.maximal_discrepancy(*sides, seed=seed, steps=40) for seed in (5, 5, 6))
    assert one == again
    assert one != another
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_proxy_a_distance_of_gaussians_is_that_of_bayes(shift):
    """The best of all domain classifiers is linear, and errs with probability Φ(−shift/2)."""
    expected = 2 * (1 - 2 * NormalDist().cdf(-shift / 2))
    assert theory.proxy_a_distance(*clouds(shift, dim=5)) == pytest.approx(expected, abs=0.1)


def test_proxy_a_distance_is_never_negative():
    """Domains of exactly equal means look, to a fold that is held out, as if they were the other way round."""
    source, target = (each - each.mean(0) for each in clouds(0.0, dim=40, count=60))
    assert theory.proxy_a_distance(source, target) == 0


# ------------------------------------------------------------------------------------------------------------ of a run


def encoding(shift):
    """Of a C that always says the first class, and is wrong on an eighth of the source."""
    source, target = clouds(shift, count=64)
    logits = torch.tensor([[3.0, 0.0]]).expand(64, 2)
    return theory.Encoding((source, logits), (target, always_first(64, 2)), (torch.arange(64) < 8).long())


def test_measure_has_every_term_before_and_after():
    found = theory.measure(encoding(3.0), encoding(0.0), threshold=0.5, delta=2 / math.e**2)
    assert json.loads(json.dumps(found)) == found
    after = {name: each["after"] for name, each in found.items()}
    assert after["source_error"] == 1 / 8
    p = math.e**3 / (math.e**3 + 1)
    assert after["source_margin"] == pytest.approx((7 / 8 - 1 / 8) * (p - 0.5), abs=1e-6)
    assert after["source_margin_risk"] == pytest.approx(7 / 8 * (1 - (p - 0.5) / 0.5) + 1 / 8, abs=1e-6)
    assert after["target_margin"] == pytest.approx(0.5, abs=1e-6)
    assert (after["source_sampling"], after["target_sampling"]) == (2 / 8, 1 / 8)
    total = after["source_margin_risk"] + after["mdd"] + 3 / 8
    assert after["bound_so_far"] == pytest.approx(total, abs=2e-6)
    assert found["mdd"]["before"] > after["mdd"] + 0.5
    assert found["a_distance"]["before"] > after["a_distance"] + 0.5
    assert all(each["what"] for each in found.values())


def test_measure_does_without_source_only_and_says_nothing_of_a_few_samples():
    few = encoding(0.0)
    few = theory.Encoding(*((part[0][:7], part[1][:7]) for part in (few.source, few.target)), few.labels[:7])
    assert theory.measure(None, few) is None
    assert {each["before"] for each in theory.measure(None, encoding(0.0)).values()} == {None}


def test_each_domain_is_encoded_by_the_norm_that_training_gave_it():
    recipe = Recipe().override({**TINY, "network.norm": "per-domain"})
    model = AdaptationModel(recipe, torch.zeros(6), 3)
    (values, labels), (moved, _) = blobs(0, 0.0), blobs(1, 40.0)
    source = Domain("s", torch.from_numpy(values), torch.from_numpy(labels), ("a", "b", "c"))
    seen = theory.encode(model, source, Domain("t", torch.from_numpy(moved)))
    projected = model.bottleneck.linear(source.inputs)
    expected = torch.relu((projected - projected.mean(0)) / (projected.var(0, correction=0) + 1e-5).sqrt())
    assert torch.allclose(seen.source[0], expected, atol=1e-5)
    assert torch.allclose(seen.target[0], model.predict(torch.from_numpy(moved))[1], atol=1e-5)
    assert torch.equal(seen.labels, source.labels)


def test_every_fit_measures_what_it_did(tmp_path):
    (source, labels), (target, _) = blobs(0, 0.0), blobs(1, 1.0)
    adapted = safda.fit((source, labels), target, out=tmp_path / "run", steps=20, cpu=True, **TINY)
    found = adapted.summary["theory"]
    assert 0 <= found["mdd"]["after"] <= 2
    assert found["source_error"]["before"] is not None
    assert safda.Adapted.load(tmp_path / "run").summary["theory"] == found
    pictures = np.random.default_rng(0).random((24, 1, 16, 16), dtype=np.float32)
    whole = safda.fit(
        Domain("s", torch.from_numpy(pictures), torch.arange(24) % 2, ("a", "b")),
        Domain("t", torch.from_numpy(pictures)),
        out=tmp_path / "whole",
        recipe="digits",
        steps=2,
        cpu=True,
        **TINY,
    )
    assert whole.summary["theory"]["mdd"]["before"] is None  # the whole network was trained, so there is none
