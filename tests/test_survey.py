"""A few labels: who is asked, what their answers say of all others, and how often the interval is right."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

import safda
from safda.cli import main
from safda.data import load_domain
from safda.data.labels import is_label_list
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.answers import read_answers
from safda.evaluation.survey import (
    CHANGED,
    LESS_SURE,
    SURE,
    draw,
    estimate_difference,
    estimate_share,
    evaluate_labels,
    keep_labels,
    label_list,
)
from safda.io import write_table
from safda.training.checkpoint import RunFolder
from safda.view import survey_table
from tests.conftest import TINY, blobs
from tests.test_fuzz_readers import damages, fuzz, told_in_one_line

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("header", "is_one"),
    [("id,class,label", True), ('"id","label"', True), ("id,filename,label", False), ("path,label", False)],
)
def test_a_list_of_labels_has_ids_and_a_manifest_has_paths(tmp_path, header, is_one):
    (tmp_path / "a.csv").write_text(f"{header}\n")
    assert is_label_list(tmp_path / "a.csv") == is_one


def population(size, accuracy, changed=0.2, informative=True):
    """A classifier that is right with the given probability: confidence, whether it changed, right, right before."""
    score = rng.normal(size=size)
    right = np.zeros(size, bool)
    right[np.argsort(score + rng.normal(size=size))[size - round(accuracy * size) :]] = True
    confidence = 1 / (1 + np.exp(-2 - (score if informative else rng.normal(size=size))))
    has_changed = rng.random(size) < changed
    before = np.where(has_changed, ~right & (rng.random(size) < 0.4), right)
    return confidence, has_changed, right, before


def parted(drawn, values):
    """Sizes of the strata, and the values of those that were drawn from each."""
    names = np.array(drawn.strata)
    rows = {name: drawn.rows[names == name] for name in dict.fromkeys(drawn.strata)}
    return [drawn.sizes[drawn.strata.index(name)] for name in rows], [values[each] for each in rows.values()]


# ----------------------------------------------------------------------------------------------------- the design


def test_every_sample_is_drawn_as_often_as_its_probability_says():
    confidence, changed, *_ = population(40, 0.7)
    times, said, rounds = np.zeros(40), np.zeros(40), 4000
    for seed in range(rounds):
        drawn = draw(confidence, changed, 12, seed)
        times[drawn.rows] += 1
        said[drawn.rows] = drawn.probabilities
        assert len(set(drawn.rows.tolist())) == 12
    assert (said > 0).all()
    assert np.abs(times / rounds - said).max() < 5 * np.sqrt(0.25 / rounds)


def test_changed_answers_and_unsure_ones_are_drawn_more_often():
    confidence, changed, *_ = population(3000, 0.7)
    drawn = draw(confidence, changed, 300)
    rate = dict(zip(drawn.strata, drawn.probabilities, strict=True))
    assert rate[CHANGED] == pytest.approx(2 * rate[SURE], rel=0.03)
    assert rate[LESS_SURE] == pytest.approx(1.5 * rate[SURE], rel=0.03)
    names = np.array(drawn.strata)
    assert changed[drawn.rows[names == CHANGED]].all()
    assert not changed[drawn.rows[names != CHANGED]].any()
    assert confidence[drawn.rows[names == LESS_SURE]].max() < confidence[drawn.rows[names == SURE]].min()


def test_a_longer_list_begins_with_the_shorter_one():
    confidence, changed, *_ = population(200, 0.7)
    lists = [set(draw(confidence, changed, n).rows.tolist()) for n in range(6, 201)]
    assert all(one < other for one, other in itertools.pairwise(lists))
    assert lists[-1] == set(range(200))


def test_whoever_stops_early_has_some_of_every_stratum():
    confidence, changed, *_ = population(3000, 0.7)
    strata = draw(confidence, changed, 100).strata
    for name in set(strata):
        assert strata[:25].count(name) == pytest.approx(strata.count(name) / 4, abs=2)


def test_some_may_be_left_out_and_there_may_be_nothing_to_compare_with():
    confidence, *_ = population(50, 0.7)
    drawn = draw(confidence, None, 20, among=np.arange(50) % 2 == 0)
    assert set(drawn.strata) == {SURE, LESS_SURE}
    assert not (drawn.rows % 2).any()
    assert sum(1 / p for p in drawn.probabilities) == pytest.approx(25)


# -------------------------------------------------------------------------------------------------- the estimates


def test_over_all_samples_that_could_be_drawn_the_estimates_are_right_on_average():
    outcomes = [np.array([True, False, True, True]), np.array([False, False, True])]
    gains = [np.array([1, 0, -1, 1]), np.array([0, -1, -1])]
    pairs = list(itertools.product(itertools.combinations(range(4), 2), itertools.combinations(range(3), 2)))
    share = [estimate_share([4, 3], [each[list(k)] for each, k in zip(outcomes, rows, strict=True)]) for rows in pairs]
    gained = [
        estimate_difference([4, 3], [each[list(k)] for each, k in zip(gains, rows, strict=True)], 10) for rows in pairs
    ]
    assert np.mean([each.value for each in share]) == pytest.approx(float(Fraction(4, 7)), abs=1e-12)
    assert np.mean([each.value for each in gained]) == pytest.approx(float(Fraction(-1, 10)), abs=1e-12)


def test_the_share_is_horvitz_and_thompsons():
    confidence, changed, right, _ = population(500, 0.7)
    drawn = draw(confidence, changed, 60)
    each = sum(float(right[row]) / p for row, p in zip(drawn.rows, drawn.probabilities, strict=True)) / 500
    assert estimate_share(*parted(drawn, right)).value == pytest.approx(each, abs=1e-12)


def test_of_one_large_stratum_the_interval_is_wilsons():
    right = np.arange(2000) < 1500
    known = stats.binomtest(1500, 2000).proportion_ci(0.95, method="wilson")
    found = estimate_share([10**9], [right])
    assert found.interval_95 == pytest.approx((known.low, known.high), abs=1e-4)
    assert found.interval_90[0] > known.low


def test_of_one_large_stratum_the_difference_is_bonett_and_prices():
    gains = np.repeat([1, -1, 0], [30, 12, 58])
    up, down, n = 31 / 102, 13 / 102, 102
    half = stats.norm.ppf(0.95) * np.sqrt((up + down - (up - down) ** 2) / n)
    low, high = estimate_difference([10**9], [gains], 10**9).interval_90
    assert (low, high) == pytest.approx((up - down - half, up - down + half), abs=1e-6)


def test_whoever_asks_everyone_knows():
    right = np.array([True, False, True])
    assert estimate_share([3], [right]).interval_95 == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert estimate_difference([3], [np.array([1, 0, 0])], 3).interval_95 == (
        pytest.approx(1 / 3),
        pytest.approx(1 / 3),
    )
    assert estimate_difference([], [], 3).interval_90 == (0, 0)


def coverage(size, accuracy, n, informative, rounds=500):
    """How often intervals hold the truth: of 90 and 95% of the accuracy, and of the difference; and a naive one of 90%.

    How many of a stratum's samples are right is hypergeometric, since all are drawn with the same probability.
    """
    confidence, changed, right, before = population(size, accuracy, informative=informative)
    drawn = draw(confidence, changed, n)
    everyone = draw(confidence, changed, size)
    sizes = dict(zip(drawn.strata, drawn.sizes, strict=True))
    counts = {name: drawn.strata.count(name) for name in sizes}
    rows = {name: everyone.rows[np.array(everyone.strata) == name] for name in sizes}
    gains = (right.astype(int) - before)[rows[CHANGED]]

    @cache
    def share(*hits):
        return estimate_share(
            list(sizes.values()), [np.arange(m) < k for k, m in zip(hits, counts.values(), strict=True)]
        )

    @cache
    def gained(up, down, zero):
        return estimate_difference([sizes[CHANGED]], [np.repeat([1, -1, 0], [up, down, zero])], size)

    found = np.zeros(5)
    for _ in range(rounds):
        hits = (rng.hypergeometric(right[rows[k]].sum(), (~right[rows[k]]).sum(), counts[k]) for k in sizes)
        ups = rng.multivariate_hypergeometric([(gains == sign).sum() for sign in (1, -1, 0)], counts[CHANGED])
        one, other = share(*map(int, hits)), gained(*map(int, ups))
        half = 1.645 * np.sqrt(one.value * (1 - one.value) / n)
        intervals = (
            one.interval_90,
            one.interval_95,
            other.interval_90,
            other.interval_95,
            (one.value - half, one.value + half),
        )
        truths = (*2 * [right.mean()], *2 * [gains.sum() / size], right.mean())
        found += [low - 1e-9 <= truth <= high + 1e-9 for (low, high), truth in zip(intervals, truths, strict=True)]
    return found / rounds


@given(st.lists(st.tuples(st.integers(2, 12), st.integers(0, 500), st.sampled_from([0.0, 0.5, 1.0])), min_size=1))
def test_an_interval_holds_its_own_share_to_the_last_bit(strata):
    outcomes = [np.arange(drawn) < drawn * share for drawn, _, share in strata]
    found = estimate_share([drawn + rest for drawn, rest, _ in strata], outcomes)
    for low, high in (found.interval_90, found.interval_95):
        assert 0 <= low <= found.value <= high <= 1


@pytest.mark.parametrize("n", [10, 20, 50])
def test_intervals_hold_the_truth_about_as_often_as_they_say(n):
    cases = itertools.product((0.02, 0.3, 0.8, 0.95, 0.99), (True, False))
    found = np.array([coverage(2000, accuracy, n, informative) for accuracy, informative in cases])
    of_90, of_95 = found[:, [0, 2]], found[:, [1, 3]]
    assert of_90.mean(0).min() > 0.89
    assert of_95.mean(0).min() > 0.94
    assert of_90.min() > 0.79  # of shares near 0 and 1 there are but few that a sample can have
    assert of_95.min() > 0.84
    assert of_90.mean() < 0.97  # and not by being wide


def test_a_naive_interval_would_be_wrong_where_accuracy_is_high():
    found = coverage(2000, 0.98, 20, informative=True)
    assert found[4] < 0.6 < 0.79 < found[0]


# -------------------------------------------------------------------------------------------------------- the run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and the truth by sample."""
    folder = tmp_path_factory.mktemp("survey")
    names = np.array(["ant", "bee", "=cat"])
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 1.5)):
        features, labels = blobs(seed, shift)
        np.savez(folder / f"{name}.npz", features=features, labels=labels, classes=names)
    safda.fit(folder / "source.npz", folder / "target.npz", out=folder / "run", cpu=True, **{**TINY, "steps": 30})
    return folder / "run", {str(row): str(names[k]) for row, k in enumerate(labels)}


def filled(run, truth, file, n=30, **changes):
    """Write a list as a person would fill it in."""
    columns = label_list(run, n)
    columns["label"] = [changes.get(f"_{each}", truth[each]) for each in columns["id"]]
    write_table(file, columns)
    return file


def test_the_list_and_what_it_tells(run, tmp_path, capsys):
    folder, truth = run
    file = tmp_path / "labels.csv"
    assert main(["label", str(folder), "--n", "30", "-o", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == {"labels": str(file), "samples": 30, "page": None}
    rows = list(csv.DictReader(file.open()))
    expected = ["id", "class", "confidence", "source_only", "stratum", "stratum_size", "probability", "label"]
    assert list(rows[0]) == expected
    assert sum(1 / float(row["probability"]) for row in rows) == pytest.approx(60)
    assert {row["label"] for row in rows} == {""}
    filled(folder, truth, file)
    assert main(["evaluate", str(folder), str(file)]) == 0
    result = json.loads(capsys.readouterr().out)
    by_hand = [row["class"].removeprefix("'") == truth[row["id"]] for row in rows]
    weighed = sum(ok / float(row["probability"]) for ok, row in zip(by_hand, rows, strict=True)) / 60
    assert result["accuracy"]["value"] == pytest.approx(weighed)
    low, high = result["accuracy"]["interval_95"]
    assert low < weighed < high
    assert result["labels"] == 30
    assert result["difference"]["value"] == pytest.approx(result["accuracy"]["value"] - result["source_only"]["value"])
    assert "samples are right, estimated from 30 labels" in result["words"]


@pytest.mark.parametrize(("guess", "held"), [(0.0, "too low"), (1.5, "too high"), (None, "in keeping")])
def test_the_estimate_without_labels_is_held_against_them(run, tmp_path, guess, held):
    folder, truth = run
    shutil.copytree(folder, tmp_path / "run")
    file = filled(folder, truth, tmp_path / "labels.csv")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps({**summary, "estimate": None}))
    usual = evaluate_labels(tmp_path / "run", file)
    assert usual["label_free"] is None
    guess = usual["accuracy"]["value"] if guess is None else guess
    summary["estimate"] = {"accuracy": guess, "low": 0.1, "high": 0.9, "level": 0.9, "method": "some"}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    result = evaluate_labels(tmp_path / "run", file)
    assert result["label_free"] == {"accuracy": guess, "low": 0.1, "high": 0.9}
    assert f"without labels it was estimated at {guess:.1%}, which is {held}" in result["words"]
    console = Console(file=io.StringIO(), width=120)
    console.print(survey_table(result))
    shown = console.file.getvalue()
    assert f"{result['difference']['value']:+.1%}" in shown
    assert f"{guess:.1%}" in shown


def test_a_list_of_everyone_gives_the_oracles_number(run, tmp_path):
    folder, truth = run
    file = filled(folder, truth, tmp_path / "labels.csv", n=1000)
    result = evaluate_labels(folder, file)
    known = safda.Adapted.load(folder).evaluate(folder.parent / "target.npz").accuracy
    assert result["accuracy"]["value"] == pytest.approx(known)
    assert result["accuracy"]["interval_95"] == (pytest.approx(known), pytest.approx(known))


def test_a_labelled_domain_is_evaluated_as_ever(run, capsys):
    assert main(["evaluate", str(run[0]), str(run[0].parent / "target.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 60


def test_samples_without_a_label_are_told_and_those_of_no_class_are_wrong(run, tmp_path):
    folder, truth = run
    first, second = label_list(folder, 30)["id"][:2]
    all_of_them = evaluate_labels(folder, filled(folder, truth, tmp_path / "a.csv"))
    some = evaluate_labels(folder, filled(folder, truth, tmp_path / "b.csv", **{f"_{first}": ""}))
    assert some["labels"] == 29
    assert "1 of the list have none" in some["words"]
    other = evaluate_labels(
        folder, filled(folder, truth, tmp_path / "c.csv", **{f"_{first}": "(other)", f"_{second}": "(other)"})
    )
    assert other["accuracy"]["value"] < all_of_them["accuracy"]["value"]
    assert other["labels"] == 30


def rewritten(file, change):
    """Change the rows of a list, as somebody might by hand."""
    rows = list(csv.reader(file.open()))
    change(rows)
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(rows)


def replace_id(rows):
    rows[3][0] = "sixty"


def repeat_a_row(rows):
    rows.append(rows[5])


def misspell(rows):
    rows[2][-1] = "bea"


def forget_all(rows):
    for row in rows[1:]:
        row[-1] = ""


def forget_a_stratum(rows):
    for row in rows[1:]:
        row[-1] = "" if row[4] == "sure" else row[-1]


def other_size(rows):
    rows[1][5] = "7"


def no_labels(rows):
    rows[0][-1] = "lable"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replace_id, "no sample of the target is called 'sixty'"),
        (repeat_a_row, "is there more than once"),
        (misspell, "label 'bea' is no class of the source; did you mean 'bee'?"),
        (forget_all, "holds no label yet"),
        (forget_a_stratum, "no sample of the stratum 'sure'"),
        (other_size, "has no size, or several"),
        (no_labels, "has no column 'label'; did you mean 'lable'?"),
    ],
)
def test_what_is_wrong_with_a_list_is_told_in_one_line(run, tmp_path, change, told, capsys):
    file = filled(*run, tmp_path / "labels.csv")
    rewritten(file, change)
    assert main(["evaluate", str(run[0]), str(file)]) == 1
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
    assert str(file) in said


def test_a_list_of_ones_own_is_taken_for_a_simple_random_sample_and_that_is_told(run, tmp_path):
    folder, truth = run
    (tmp_path / "mine.csv").write_text("id,label\n" + "".join(f"{row},{truth[str(row)]}\n" for row in range(0, 60, 4)))
    with pytest.warns(SafdaWarning, match="drawn with equal probability"):
        result = evaluate_labels(folder, tmp_path / "mine.csv")
    predicted = safda.Adapted.load(folder).predict(folder.parent / "target.npz").labels
    right = np.mean([predicted[row] == truth[str(row)] for row in range(0, 60, 4)])
    assert result["accuracy"]["value"] == pytest.approx(right)


def test_a_list_of_another_run_tells_of_this_one(run, tmp_path):
    folder, truth = run
    ends = folder.parent / "source.npz", folder.parent / "target.npz"
    safda.fit(*ends, out=tmp_path / "other", cpu=True, seed=5, **{**TINY, "steps": 3})
    result = evaluate_labels(tmp_path / "other", filled(folder, truth, tmp_path / "labels.csv"))
    strata = {row["stratum"]: [] for row in csv.DictReader((tmp_path / "labels.csv").open())}
    predicted = safda.Adapted.load(tmp_path / "other").predict(ends[1]).labels
    for row in csv.DictReader((tmp_path / "labels.csv").open()):
        strata[row["stratum"]].append((predicted[int(row["id"])] == truth[row["id"]], int(row["stratum_size"])))
    by_hand = sum(np.mean([ok for ok, _ in rows]) * rows[0][1] for rows in strata.values()) / 60
    assert result["accuracy"]["value"] == pytest.approx(by_hand)
    assert result["difference"]["value"] == pytest.approx(result["accuracy"]["value"] - result["source_only"]["value"])


def test_labels_that_are_there_are_kept(run, tmp_path, capsys):
    folder, truth = run
    file = filled(folder, truth, tmp_path / "labels.csv", n=20)
    assert main(["label", str(folder), "--n", "40", "-o", str(file)]) == 0
    labels = {row["id"]: row["label"] for row in csv.DictReader(file.open())}
    assert len(labels) == 40
    assert sum(bool(label) for label in labels.values()) == 20
    with pytest.raises(SafdaError, match="20 of them would be lost"):
        keep_labels({"id": ["x"]}, file)
    assert main(["label", str(folder), "--n", "10", "-o", str(file)]) == 1
    assert "would be lost" in capsys.readouterr().err
    assert {row["id"]: row["label"] for row in csv.DictReader(file.open())} == labels


def test_too_few_and_no_predictions_are_told(run, tmp_path, capsys):
    folder, _ = run
    assert main(["label", str(folder), "--n", "3", "-o", str(tmp_path / "l.csv")]) == 1
    assert "draw 10 or more" in capsys.readouterr().err
    assert main(["label", str(folder), "-o", str(folder / "predictions.csv")]) == 1
    assert "would be written over" in capsys.readouterr().err
    safda.Adapted.load(folder).save(tmp_path / "saved")
    assert main(["label", str(tmp_path / "saved"), "-o", str(tmp_path / "l.csv")]) == 1
    assert "predictions.csv: is not there" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"", b"id,class\n", b"id,class,confidence\n1,ant,0.5\n", b"\xff\xfe", b'"'])
def test_damaged_predictions_are_told(run, tmp_path, damage, capsys):
    shutil.copytree(run[0], tmp_path / "run")
    (tmp_path / "run" / "predictions.csv").write_bytes(damage)
    assert main(["label", str(tmp_path / "run"), "-o", str(tmp_path / "l.csv")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("which", ["labels.csv", "predictions.csv"])
@fuzz
@given(damage=damages())
def test_a_damaged_list_or_damaged_predictions_are_told_or_give_an_estimate(run, tmp_path, which, damage):
    folder, truth = run
    copy = tmp_path / "run"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    files = {"labels.csv": filled(folder, truth, tmp_path / "labels.csv"), "predictions.csv": copy / "predictions.csv"}
    files[which].write_bytes(damage(files[which].read_bytes()))
    result = told_in_one_line(lambda: evaluate_labels(copy, files["labels.csv"]))
    if result is not None:
        low, high = result["accuracy"]["interval_95"]
        assert 0 <= low <= result["accuracy"]["value"] <= high <= 1


def test_labels_that_were_learned_prove_nothing(run, tmp_path, capsys):
    folder, truth = run
    ends = folder.parent / "source.npz", folder.parent / "target.npz"
    file = filled(folder, truth, tmp_path / "labels.csv", n=20)
    learned = tmp_path / "learned"
    knobs = {**TINY, "steps": 3}
    safda.fit(*ends, out=learned, cpu=True, target_labels=file, **knobs)
    assert main(["evaluate", str(learned), str(file)]) == 1
    assert "the run has learned 20 of its 20 labels" in capsys.readouterr().err
    fresh = label_list(learned, 30)
    assert not set(fresh["id"]) & set(label_list(folder, 20)["id"])
    assert sum(1 / p for p in fresh["probability"]) == pytest.approx(40)
    result = evaluate_labels(learned, filled(learned, truth, tmp_path / "fresh.csv"))
    assert result["samples"] == 40


def test_a_run_that_has_nothing_to_compare_with_is_estimated_too(tmp_path):
    safda.fit(
        "digits-rendered", "digits-handwritten", out=tmp_path / "run", cpu=True, report=False, **{**TINY, "steps": 2}
    )
    assert "source_only" not in read_answers(RunFolder.open(tmp_path / "run")).columns
    truth = load_domain("digits-handwritten")
    names = {str(row): truth.classes[k] for row, k in enumerate(truth.labels.tolist())}
    result = evaluate_labels(tmp_path / "run", filled(tmp_path / "run", names, tmp_path / "labels.csv"))
    low, high = result["accuracy"]["interval_90"]
    assert low <= result["accuracy"]["value"] <= high
    assert "difference" not in result


def test_a_list_that_lost_a_stratum_is_refused(run, tmp_path):
    folder, truth = run
    columns = label_list(folder, 30)
    columns["label"] = [truth[each] for each in columns["id"]]
    kept = [row for row, name in enumerate(columns["stratum"]) if name != columns["stratum"][0]]
    write_table(tmp_path / "lost.csv", {name: [cells[row] for row in kept] for name, cells in columns.items()})
    with pytest.raises(SafdaError, match=r"lines of some stratum are gone; put them back"):
        evaluate_labels(folder, tmp_path / "lost.csv")


@pytest.mark.filterwarnings("ignore::safda.errors.SafdaWarning")
def test_few_labels_are_refused_however_they_were_drawn(run, tmp_path):
    folder, truth = run
    for count in (9, 10):
        ids = list(truth)[:count]
        write_table(tmp_path / "mine.csv", {"id": ids, "label": [truth[each] for each in ids]})
        if count == 10:
            assert evaluate_labels(folder, tmp_path / "mine.csv")["labels"] == 10
        else:
            with pytest.raises(SafdaError, match=r"9 labels say next to nothing; fill in 10 or more$"):
                evaluate_labels(folder, tmp_path / "mine.csv")
