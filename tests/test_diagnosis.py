"""What is said to be the matter with a run: findings where they are due and not just beside it, and of real runs."""

from __future__ import annotations

import json
import re
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

import safda
from safda.classifier import Predictions
from safda.data import Domain
from safda.errors import SafdaWarning
from safda.evaluation.diagnosis import (
    NOTE,
    SERIOUS,
    WARNING,
    diagnose,
    estimated_priors,
    observe,
    unlike_any_class,
    watch_training,
)
from safda.evaluation.probe import Probe
from safda.recipe import Recipe, preset
from safda.training.checkpoint import RunFolder

# --------------------------------------------------------------------------------------------- what is concluded

CLASSES = ("ant", "bee", "cat", "dog")
SEEN = {"neighbours": 0.7, "shuffled": 0.1}
NOISE = {"neighbours": 0.24, "shuffled": 0.2}


def shares(predicted=(0.25,) * 4, before=None, source=(0.25,) * 4):
    """Shares of the four classes in the answers, in source-only's answers and in the source."""
    columns = {"source": source, "predicted": predicted, **({} if before is None else {"source_only": before})}
    return {name: {what: column[k] for what, column in columns.items()} for k, name in enumerate(CLASSES)}


def estimates(*estimated, source=(0.25,) * 4):
    """Estimated shares of the four classes in the target."""
    columns = zip(CLASSES, source, estimated, strict=True)
    return {name: {"source": own, "estimated": other} for name, own, other in columns}


def summary(classes=None, samples=100, structure=SEEN, information=None, error=None, seen=None, **training):
    """A summary of a run of which there is nothing to say but what is given."""
    after, before = ({"scores": {"information": each}} for each in information or (0.5, 0.5))
    return {
        "samples": samples,
        "classes": classes or shares(),
        "structure": structure,
        "adapted": after,
        "source_only": before if information else None,
        "theory": error and {"source_error": dict(zip(("before", "after"), error, strict=True))},
        "observations": {"training": training, **(seen or {})},
    }


def titles(**told):
    return [each["title"] for each in diagnose(summary(**told))]


def numbers(text):
    return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)]


class Case(NamedTuple):
    """What a summary tells that shows a finding, what others tell that just do not, and what is found in the first."""

    shows: dict[str, Any]
    does_not: list[dict[str, Any]]
    title: str
    severity: str
    evidence: list[float]  # the numbers in it, in their order
    in_noise: bool = True  # whether it is told of noise too


def dann(early, late):
    return {"discriminator": {"method": "dann", "early": early, "late": late}}


def eta(mean, std, learned=True):
    return {"eta": {"mean": mean, "std": std, "learned": learned}}


MISSING = {
    "classes": shares((0.28, 0.28, 0.14, 0.30)),
    "seen": {"priors": estimates(0.32, 0.32, 0.037, 0.323)},
    "samples": 20,
}

CASES = {
    "noise": Case(
        {"structure": NOISE},
        [{"structure": {"neighbours": 0.26, "shuffled": 0.2}}, {"structure": None}],
        "the source's classes do not show in the target",
        SERIOUS,
        [0.24, 0.20],
    ),
    "pile-up": Case(  # from a quarter, half of the way to everything is five eighths
        {"classes": shares((0.63, 0.13, 0.12, 0.12))},
        [],  # below it, classes are not as frequent as in the source
        "predictions pile up in one class, ant",
        SERIOUS,
        [63, 25],
    ),
    "source lost": Case(
        {"error": (0.05, 0.21)},
        [{"error": (0.05, 0.19)}, {"error": (None, 0.9)}],
        "what the source taught is lost",
        SERIOUS,
        [21, 5],
    ),
    "twin wins": Case(
        {"twin": {"source": 0.9, "target": 0.39}},
        [{"twin": {"source": 0.9, "target": 0.41}}, {"twin": {"source": 0.39, "target": 0.9}}],
        "the adversary wins",
        WARNING,
        [90, 39],
    ),
    "discriminator wins": Case(dann(0.6, 0.91), [dann(0.95, 0.89)], "the adversary wins", WARNING, [91]),
    "discriminator is blind": Case(
        dann(0.46, 0.54),
        [dann(0.44, 0.54), dann(0.46, 0.56), dann(0.56, 0.46), dann(0.54, 0.44)],
        "the adversary has learned nothing",
        NOTE,
        [46, 54],
    ),
    "η at 0": Case(
        eta(0.049, 0.001), [eta(0.051, 0.011), eta(0.049, 0.001, False)], "η is stuck at 0", WARNING, [0.049, 0.001]
    ),
    "η at 1": Case(
        eta(0.951, 0.2), [eta(0.949, 0.2), eta(0.951, 0.2, False)], "η is stuck at 1", WARNING, [0.951, 0.2]
    ),
    "constant η": Case(
        eta(0.4, 0.009), [eta(0.4, 0.011), eta(0.4, 0.0, False)], "η is a constant, 0.40", WARNING, [0.4, 0.009]
    ),
    "uninformed": Case(
        {"information": (0.44, 0.5)},
        [{"information": (0.46, 0.5)}, {"information": (0.9, 0.5)}],
        "nothing speaks for adapting",
        WARNING,
        [0.44, 0.5],
        in_noise=False,
    ),
    "missing": Case(  # fewer than 15% of a quarter by the estimate, and than 60% of it in the answers
        MISSING,
        [
            {**MISSING, "classes": shares((0.28, 0.28, 0.16, 0.28))},
            {**MISSING, "seen": {"priors": estimates(0.32, 0.32, 0.038, 0.322)}},
            {**MISSING, "samples": 19},  # of which a quarter is not five
        ],
        "one class missing from the target, or not recognised in it: cat",
        WARNING,
        [25.0, 14.0, 3.7],
        in_noise=False,
    ),
    "unlike": Case(
        {"seen": {"unlike": {"share": 0.16, "samples": ["x", "y"]}}},
        [{"seen": {"unlike": {"share": 0.14, "samples": ["x", "y"]}}}],
        "samples that look like no class of the source",
        NOTE,
        [16, 1],
        in_noise=False,
    ),
    "label shift": Case(
        {"classes": shares((0.18, 0.46, 0.18, 0.18)), "seen": {"priors": estimates(0.15, 0.55, 0.15, 0.15)}},
        [{"classes": shares((0.19, 0.44, 0.19, 0.18))}, {"seen": {"priors": estimates(0.1, 0.7, 0.1, 0.1)}}],
        "classes are not as frequent as in the source",
        WARNING,
        [21, 25, 46, 25, 18, 25, 18, 25, 18, 30],  # 0.46 − 0.25 came from elsewhere; the largest change first
        in_noise=False,
    ),
    "gained and lost": Case(
        {"classes": shares(before=(0.229, 0.271, 0.231, 0.269))},
        [{"classes": shares(before=(0.231, 0.269, 0.25, 0.25))}],
        "classes that gained and lost against source only",
        NOTE,
        [22.9, 25.0, 27.1, 25.0],
        in_noise=False,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_where_there_is_nothing_to_say_nothing_is_said():
    assert titles() == []
    assert titles(structure=None) == []


@every_case
def test_a_finding_is_made_where_it_shows_and_nothing_else(case):
    (found,) = diagnose(summary(**case.shows))
    assert (found["title"], found["severity"]) == (case.title, case.severity)
    assert numbers(found["evidence"]) == case.evidence
    assert found["advice"]
    assert json.loads(json.dumps(found)) == found  # as summary.json has it


@pytest.mark.parametrize(
    "told", [pytest.param(told, id=name) for name, case in CASES.items() for told in case.does_not]
)
def test_it_is_not_made_just_on_the_other_side_of_its_threshold(told):
    assert titles(**told) == []


@given(st.sets(st.sampled_from(sorted(CASES.keys() - {"noise"}))))
def test_of_several_findings_all_are_made_and_the_most_serious_come_first(names):
    told: dict[str, Any] = {}
    shown = []
    for case in map(CASES.__getitem__, sorted(names)):
        if not told.keys() & case.shows.keys():  # who speaks of the same things can not both be right
            told.update(case.shows)
            shown.append(case)
    found = [(each["title"], each["severity"]) for each in diagnose(summary(**told))]
    assert sorted(found) == sorted((case.title, case.severity) for case in shown)
    ranks = [["serious", "warning", "note"].index(severity) for _, severity in found]
    assert ranks == sorted(ranks)


@every_case
def test_in_noise_nothing_is_said_that_would_be_noise_too(case):
    first, *rest = titles(**{**case.shows, "structure": NOISE})
    assert first == CASES["noise"].title
    assert rest == ([case.title] if case.in_noise and first != case.title else [])


def test_a_change_of_two_points_is_told_whatever_floats_make_of_it():
    assert titles(classes=shares(before=(0.23, 0.27, 0.25, 0.25))) == [CASES["gained and lost"].title]


def test_nothing_is_called_estimated_where_nothing_was():
    source = (0.3, 0.1, 0.3, 0.3)
    (found,) = diagnose(summary(shares((0.33, 0.01, 0.33, 0.33), source=source)))
    assert numbers(found["evidence"]) == [10.0, 1.0]


def test_a_pile_that_is_less_is_a_shift_of_classes():
    for classes in (
        shares((0.62, 0.13, 0.13, 0.12)),
        shares((0.63, 0.13, 0.12, 0.12), source=(0.28, 0.24, 0.24, 0.24)),
    ):
        assert titles(classes=classes) == [CASES["label shift"].title]


@pytest.mark.parametrize(("share", "severity"), [(0.09, WARNING), (0.08, NOTE)])
def test_a_few_missing_samples_are_no_more_than_a_note(share, severity):
    rest = (1 - share) / 3
    classes = shares((1 / 3, 0.0, 1 / 3, 1 / 3), source=(rest, share, rest, rest))
    (found,) = diagnose(summary(classes))
    assert (found["title"].endswith(": bee"), found["severity"]) == (True, severity)


def test_a_pile_is_compared_with_what_source_only_said():
    piled = diagnose(summary(shares((0.1, 0.7, 0.1, 0.1), before=(0.2, 0.3, 0.25, 0.25))))[0]
    assert piled["title"].endswith(", bee")
    assert numbers(piled["evidence"]) == [70, 25, 30]


@pytest.mark.parametrize("case", ["pile-up", "source lost"])
def test_the_weights_to_lower_are_those_that_the_run_has(case):
    def advice(**training):
        return diagnose(summary(**CASES[case].shows, **training))[0]["advice"]

    assert advice(weighed=["mdd", "saf"]).startswith("lower --mdd.weight or --saf.weight,")
    assert advice(weighed=[]).startswith("lower --optimizer.lr,")
    assert advice().startswith("lower --optimizer.lr,")


def test_an_adversary_is_called_by_its_name():
    told = {"discriminator": {"method": "cdan", "early": 0.7, "late": 0.99}}
    (found,) = diagnose(summary(**told))
    assert "cdan's D" in found["evidence"]
    assert "--cdan.weight" in found["advice"]


def test_a_class_is_missing_by_the_answers_alone_where_nothing_was_estimated():
    def told(share):
        found = titles(classes=shares((0.3, 0.3, share, 0.4 - share)))
        return [title for title in found if title != CASES["label shift"].title]

    assert told(0.037) == ["one class missing from the target, or not recognised in it: cat"]
    assert told(0.038) == []


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (2, "2 classes missing from the target, or not recognised in it: c0, c1"),
        (5, "5 classes missing from the target, or not recognised in it: c0, c1, c2, c3, c4"),
        (7, "7 classes missing from the target, or not recognised in it: c0, c1, c2, c3, c4 and 2 more"),
    ],
)
def test_missing_classes_are_counted_together_and_the_first_five_named(gone, said):
    classes = {f"c{k}": {"source": 0.03, "predicted": 0.01 if k < gone else 0.03} for k in range(8)}
    priors = {name: {"source": 0.03, "estimated": 0.002} for name in classes}
    (found,) = diagnose(summary(classes, samples=1000, seen={"priors": priors}))
    assert found["title"] == said
    assert numbers(found["evidence"]) == pytest.approx([3 * gone, gone, round(0.2 * gone, 1)])


def test_samples_that_look_like_no_class_are_named():
    (found,) = diagnose(summary(seen={"unlike": {"share": 0.5, "samples": ["one.png", "two.png"]}}))
    assert found["evidence"].endswith("such as one.png, two.png")


def test_classes_that_changed_most_come_first_and_each_on_its_side():
    before, after = (0.4, 0.4, 0.1, 0.1), (0.3, 0.1, 0.25, 0.35)
    (found,) = diagnose(summary(shares(after, before)))
    assert found["evidence"] == (
        "gained: dog 10.0% → 35.0%, cat 10.0% → 25.0%; lost: bee 40.0% → 10.0%, ant 40.0% → 30.0%"
    )


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.lists(st.integers(1, 50), min_size=4, max_size=4))
def test_label_shift_is_told_by_how_much_must_move(target, source):
    target[0] += 1
    one, other = np.divide(source, sum(source)), np.divide(target, sum(target))
    moved = 1 - np.minimum(one, other).sum()  # what stays is what both have
    told = diagnose(summary(shares(other.tolist(), source=one.tolist()), samples=0))
    found = [each for each in told if each["title"] == CASES["label shift"].title]
    piled = any(each["title"].startswith("predictions pile up") for each in told)
    if abs(moved - 0.2) > 1e-9:
        assert len(found) == (moved > 0.2 and not piled)
    if found:
        assert numbers(found[0]["evidence"])[0] == pytest.approx(100 * moved, abs=0.5 + 1e-6)


# -------------------------------------------------------------------------------------------- what training showed


def lines(**columns):
    """Lines of metrics.jsonl, a / in a name written as __; a line goes without what is ""."""
    rows = zip(*columns.values(), strict=True)
    return [
        {"step": k, **{name.replace("__", "/"): value for name, value in zip(columns, row, strict=True) if value != ""}}
        for k, row in enumerate(rows)
    ]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_twin_and_eta_are_those_of_the_last_quarter(values):
    one, other = zip(*values, strict=True)
    metrics = lines(mdd__agrees_on_source=one, mdd__agrees_on_target=other, saf__eta_mean=other, saf__eta_std=one)
    seen = watch_training(metrics, Recipe())
    last = -(-len(values) // 4)  # a quarter, and of a few lines at least one
    assert seen["twin"].pop("method") == "mdd"
    assert seen["twin"] == pytest.approx({"source": fmean(one[-last:]), "target": fmean(other[-last:])})
    assert seen["eta"] == {
        "mean": pytest.approx(fmean(other[-last:])),
        "std": pytest.approx(fmean(one[-last:])),
        "learned": True,
    }


def test_a_discriminator_is_seen_early_and_late():
    accuracy = [0.9, 0.7, 0.6, 0.6, 0.6, 0.5, 0.55, 0.65]
    seen = watch_training(lines(dann__domain_accuracy=accuracy), Recipe().override({"methods": ["dann", "saf"]}))
    assert seen["discriminator"] == {"method": "dann", "early": pytest.approx(0.8), "late": pytest.approx(0.6)}
    assert "twin" not in seen


@pytest.mark.parametrize("name", ["mdd", "ima", "e-mixnet"])
def test_a_twin_is_seen_whichever_method_has_it(name):
    metrics = [{f"{name}/agrees_on_source": 0.9, f"{name}/agrees_on_target": 0.2}]
    seen = watch_training(metrics, Recipe().override({"methods": [name, "saf"]}))
    assert seen["twin"] == {"method": name, "source": 0.9, "target": 0.2}
    (found,) = diagnose(summary(**seen))
    assert f"--{name}.weight" in found["advice"]


def test_an_adversary_of_a_later_stage_is_early_when_it_begins():
    accuracy = [""] * 8 + [0.5, 0.7, 0.8, 0.8, 0.8, 0.9, 0.9, 1.0]  # the second half of sixteen lines
    seen = watch_training(lines(adda__domain_accuracy=accuracy), Recipe().override({"methods": ["adda"]}))
    assert seen["discriminator"] == {"method": "adda", "early": pytest.approx(0.6), "late": pytest.approx(0.9)}


def test_lines_without_a_number_do_not_count():
    metrics = lines(saf__eta_mean=[0.1, 0.1, 0.1, 0.1, 0.1, "", None, 0.4], saf__eta_std=[0.2] * 8)
    assert watch_training(metrics, Recipe())["eta"]["mean"] == pytest.approx(0.4)
    assert "eta" not in watch_training(metrics[:7], Recipe())  # whose last two have none


@pytest.mark.parametrize(
    ("recipe", "learned"),
    [
        (Recipe(), True),
        (preset("released"), True),
        (preset("default"), False),
        (Recipe().override({"saf.eta.source": "beta"}), False),
        (Recipe().override({"saf.eta.source": "constant"}), False),
        (preset("default").override({"saf.eta.source": "learned"}), True),
    ],
)
def test_only_an_eta_that_is_learned_can_be_stuck(recipe, learned):
    seen = watch_training(lines(saf__eta_mean=[0.99], saf__eta_std=[0.0]), recipe)
    assert seen["eta"]["learned"] is learned
    assert titles(**seen) == (["η is stuck at 1"] if learned else [])


@pytest.mark.parametrize(
    ("methods", "weighed"), [(["mdd", "saf"], ["mdd", "saf"]), (["coral"], ["coral"]), (["saf"], ["saf"]), ([], [])]
)
def test_of_no_training_there_is_nothing_to_see_but_what_could_be_weighed(methods, weighed):
    assert watch_training([], Recipe().override({"methods": methods})) == {"weighed": weighed}


# --------------------------------------------------------------------------------------------- what features show

NAMES = ("ant", "bee", "cat", "dog", "eel")


def clouds(seed, counts, dim=12):
    """So many samples around each axis in turn: features and labels."""
    labels = np.repeat(np.arange(len(counts)), counts)
    noise = np.random.default_rng(seed).normal(size=(len(labels), dim))
    return (5 * np.eye(dim)[labels] + noise).astype(np.float32), labels


def moved(features, by):
    """The same, as if all had been seen in another light: along one axis."""
    return features + np.float32(by) * np.eye(features.shape[1], dtype=np.float32)[0]


def domain(features, labels=None):
    if labels is None:
        return Domain("target", torch.from_numpy(features))
    return Domain("source", torch.from_numpy(features), torch.from_numpy(labels), NAMES)


def predictions(logits, classes=NAMES):
    ids = tuple(f"sample {row}" for row in range(len(logits)))
    return Predictions(ids, classes, np.asarray(logits, np.float32), np.zeros((len(logits), 2), np.float32))


@cache
def source():
    """The source of all that follows, and a classifier that knows it, which is none of safda's."""
    features, labels = clouds(10, [80] * 5)
    return features, labels, LogisticRegression(max_iter=500).fit(features, labels)


def observed(target):
    """What is observed of a target, of which that classifier has said something."""
    features, labels, classifier = source()
    return observe(
        predictions(classifier.decision_function(target)),
        (domain(features, labels), domain(target)),
        [],
        Recipe(),
        classifier.predict_proba(features).max(1),
    )


def rows_of(unlike):
    return [int(name.removeprefix("sample ")) for name in unlike["samples"]]


@pytest.mark.parametrize("gone", range(5))
def test_a_class_that_is_not_in_the_target_is_estimated_near_zero(gone):
    counts = [0 if k == gone else 75 for k in range(5)]
    priors = observed(clouds(20, counts)[0])["priors"]
    assert [each["source"] for each in priors.values()] == [0.2] * 5
    assert list(priors) == list(NAMES)
    assert priors[NAMES[gone]]["estimated"] < 0.01
    assert [each["estimated"] for each in priors.values()] == pytest.approx(np.divide(counts, 300), abs=0.02)


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_frequencies_are_estimated_whether_they_changed_or_the_domain_has_moved(seed):
    skewed = observed(clouds(seed, [100, 80, 60, 40, 20])[0])["priors"]
    assert [each["estimated"] for each in skewed.values()] == pytest.approx([0.33, 0.27, 0.2, 0.13, 0.07], abs=0.03)
    shifted = observed(moved(clouds(seed, [60] * 5)[0], 5))["priors"]  # where ants were, all others are now
    assert [each["estimated"] for each in shifted.values()] == pytest.approx([0.2] * 5, abs=0.03)


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize(("counts", "share"), [([50] * 5 + [50], 1 / 6), ([42] * 5 + [90], 0.3), ([60] * 5, 0.0)])
def test_what_the_source_lacks_is_found_and_named_and_nothing_else(counts, share, by):
    target, labels = clouds(24, counts)
    unlike = observed(moved(target, by))["unlike"]
    assert unlike["share"] == pytest.approx(share, abs=0.04)
    if share:
        assert len(unlike["samples"]) == 5
        assert set(labels[rows_of(unlike)]) == {5}


def test_what_gets_a_sure_answer_is_not_unlike_all_classes():
    target, labels = clouds(24, [42] * 5 + [90])
    features, known, classifier = source()
    logits = classifier.decision_function(target)
    logits[np.flatnonzero(labels == 5)[:60], 0] = 100
    seen = observe(
        predictions(logits),
        (domain(features, known), domain(target)),
        [],
        Recipe(),
        classifier.predict_proba(features).max(1),
    )
    assert seen["unlike"]["share"] == pytest.approx(0.1, abs=0.02)  # 30 of 300 are left
    assert min(rows_of(seen["unlike"])) >= 42 * 5 + 60


def random_probe(seed):
    """A probe that has looked at every other sample of a target, and what a classifier says of all of it."""
    rng = np.random.default_rng(seed)
    logits = [rng.normal(scale=3, size=(50, 3)), rng.normal(size=(40, 3)) - 1]
    features = [rng.normal(size=(len(each), 2)) for each in logits]
    probe = Probe(rng.integers(0, 3, 50), logits[0], np.arange(0, 80, 2), logits[1], features[0], features[1])
    return probe, predictions(rng.normal(size=(80, 3)), NAMES[:3]), rng.uniform(0.4, 1, 30)


@pytest.mark.parametrize("seed", range(6))
def test_samples_unlike_all_classes_are_those_that_a_plain_loop_finds(seed):
    probe, said, confidence = random_probe(seed)

    def around(logits, features):
        found = []
        for row, one in enumerate(features):
            cosine = [one @ each / np.linalg.norm(one) / np.linalg.norm(each) for each in features]
            nearest = sorted((k for k in range(len(features)) if k != row), key=lambda k: -cosine[k])[:8]
            found.append(fmean(logsumexp(logits[k]) for k in nearest))
        return found

    least = np.percentile(around(probe.source_logits, probe.source_features), 1)
    unsure = np.percentile(confidence, 25)
    energies = dict(zip(probe.target_rows.tolist(), around(probe.target_logits, probe.target_features), strict=True))
    unlike = [row for row, energy in energies.items() if energy < least and said.probabilities[row].max() < unsure]
    found = unlike_any_class(probe, said, confidence)
    assert 0 < len(unlike) < 40
    assert found["share"] == pytest.approx(len(unlike) / 40)
    assert rows_of(found) == sorted(unlike, key=energies.__getitem__)[:5]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=2, max_size=5))
def test_who_is_always_sure_and_right_counts(counts):
    of_source, of_target = np.transpose(counts)
    of_target[0] += 1
    labels, answers = (np.repeat(np.arange(len(counts)), each) for each in (of_source, of_target))
    sure = 100 * np.eye(len(counts))
    probe = Probe(
        labels, sure[labels], np.arange(len(answers)), sure[answers], np.zeros((len(labels), 2)), np.zeros((1, 2))
    )
    assert estimated_priors(probe) == pytest.approx(of_target / of_target.sum(), abs=1e-6)


def test_what_there_are_no_features_of_is_seen_in_training_alone():
    features, labels, classifier = source()
    metrics = lines(mdd__agrees_on_source=[0.5, 0.75], mdd__agrees_on_target=[0.5, 0.25])
    said = predictions(classifier.decision_function(features[:19]))
    expected = {"training": {"weighed": ["mdd", "saf"], "twin": {"method": "mdd", "source": 0.75, "target": 0.25}}}
    assert observe(said, None, metrics, Recipe()) == expected
    few = domain(features, labels), domain(features[:19])  # of which nothing can be estimated
    assert observe(said, few, metrics, Recipe()) == expected


def test_without_the_source_s_confidence_nothing_is_said_of_samples_unlike_it():
    features, labels, classifier = source()
    said = predictions(classifier.decision_function(features))
    seen = observe(said, (domain(features, labels), domain(features)), [], Recipe())
    assert seen.keys() == {"training", "probe", "priors"}
    assert seen["probe"]["accuracy"] > 0.98
    assert 0.9 < seen["probe"]["confidence"] <= 1


def test_of_a_source_without_two_samples_of_any_class_nothing_is_estimated():
    features, _, classifier = source()
    said = predictions(classifier.decision_function(features))
    single = Domain("source", torch.from_numpy(features[::16]), torch.arange(25), tuple(map(str, range(25))))
    assert observe(said, (single, domain(features)), [], Recipe()).keys() == {"training"}


# ------------------------------------------------------------------------------------------------------ real runs

SMALL = {
    "steps": 60,
    "batch": 16,
    "network.bottleneck_width": 32,
    "network.classifier_width": 32,
    "choice.candidates": 0,
}


def diagnosed(tmp_path, target, **knobs):
    """What is found in a run from a source of five classes, by title; its answers and all it knows of itself."""
    adapted = safda.fit(
        clouds(11, [40] * 5), target, out=tmp_path / "run", cpu=True, report=False, **{**SMALL, **knobs}
    )
    return {each["title"]: each for each in adapted.summary["diagnosis"]}, adapted


def test_a_run_that_is_nearly_always_right_has_nothing_to_be_warned_of(tmp_path):
    target, labels = clouds(1, [40] * 5)
    found, adapted = diagnosed(tmp_path, moved(target, 2.5))
    assert np.mean([int(each) for each in adapted.predict(moved(target, 2.5)).labels] == labels) > 0.95
    assert all(each["severity"] == NOTE for each in found.values())


def test_a_run_that_collapsed_is_said_to_pile_up_and_to_have_lost_the_source(tmp_path):
    target, _ = clouds(1, [40] * 5)
    only_its_own_labels = {  # doubled hard ones, weighed far too much, and nothing to keep classes even
        "saf.weight": 50.0,
        "saf.label_scale": 2.0,
        "pseudo_labels.kind": "hard",
        "pseudo_labels.distribution_alignment": 0.0,
        "pseudo_labels.propagation.neighbours": 0.0,
    }
    found, adapted = diagnosed(tmp_path, moved(target, 2.5), **only_its_own_labels)
    answers = adapted.predict(moved(target, 2.5)).labels
    most = max(set(answers), key=answers.count)
    piled = found[f"predictions pile up in one class, {most}"]
    assert piled["severity"] == SERIOUS
    assert numbers(piled["evidence"])[0] == round(answers.count(most) / 2)  # of 200, in percent
    assert "--saf.weight" in piled["advice"]
    assert found["what the source taught is lost"]["severity"] == SERIOUS
    assert "nothing speaks for adapting" in found


def test_a_target_without_a_class_is_said_to_miss_it(tmp_path):
    found, adapted = diagnosed(tmp_path, clouds(1, [50] * 4 + [0])[0])
    assert "one class missing from the target, or not recognised in it: 4" in found
    assert adapted.summary["observations"]["priors"]["4"]["estimated"] < 0.01
    assert not any(each["severity"] == SERIOUS for each in found.values())


def test_a_target_with_a_class_that_the_source_lacks_is_said_to_have_it(tmp_path):
    target, labels = clouds(1, [28] * 5 + [60])
    found, adapted = diagnosed(tmp_path, target)
    assert "samples that look like no class of the source" in found
    unlike = adapted.summary["observations"]["unlike"]
    assert unlike["share"] == pytest.approx(0.3, abs=0.06)
    assert set(labels[[int(row) for row in unlike["samples"]]]) == {5}
    assert not any(each["severity"] == SERIOUS for each in found.values())


def test_of_a_target_of_pure_noise_nothing_else_is_said(tmp_path):
    noise = np.random.default_rng(1).normal(size=(200, 12)).astype(np.float32)
    found, _ = diagnosed(tmp_path, noise)
    assert list(found) == ["the source's classes do not show in the target"]


def test_an_analysis_that_fails_does_not_lose_the_run(tmp_path, monkeypatch):
    def fail(*args):
        assert (tmp_path / "run" / "predictions.csv").is_file()  # they come first
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("safda.api.observe", fail)
    knobs = {**SMALL, "steps": 2}
    with pytest.warns(SafdaWarning, match=r"what is the matter could not.*ZeroDivisionError: nothing to divide by"):
        safda.fit(clouds(11, [4] * 5), clouds(1, [4] * 5)[0], out=tmp_path / "run", cpu=True, **knobs)
    run = RunFolder.open(tmp_path / "run")
    assert run.summary["words"]
    assert "diagnosis" not in run.summary
    assert (run.path / "report.html").is_file()


@every_case
def test_options_that_advice_names_are_the_commands_own(case):
    from safda.cli import _parser

    known = {option for each in _parser("fit")._subparsers._group_actions[0].choices["fit"]._actions
             for option in each.option_strings}  # fmt: skip
    for finding in diagnose(summary(**case.shows)):
        assert set(re.findall(r"--[\w.-]*\w", finding["advice"])) <= known
