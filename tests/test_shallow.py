"""The methods beside ours run on two small tasks and beat chance; their table is what a hand computes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sklearn

from safda.bench.benchmark import from_dict, load_benchmark
from safda.errors import SafdaError
from tests.conftest import blobs

with sklearn.config_context():  # importing skada turns metadata routing on for good; other tests are to go without
    from benchmarks import shallow

CHANCE = 1 / 3
TASKS = {"near→far": (0.0, 0.7), "far→near": (0.7, 0.0)}


@pytest.fixture(autouse=True)
def _routing():
    """As every process is that has imported skada."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def pair_of(task):
    (source, labels), (target, truth) = (blobs(seed, shift) for seed, shift in enumerate(TASKS[task]))
    return shallow.Pair(source, labels, target), truth


@pytest.fixture
def benchmark(tmp_path):
    """Two tasks as files, the target's classes in another order than the source's."""
    for name, seed, classes in (("near", 0, ["ant", "bee", "cat"]), ("far", 1, ["cat", "ant", "bee"])):
        features, labels = blobs(seed, 0.7 * seed)
        labels = np.array([classes.index(each) for each in np.array(["ant", "bee", "cat"])[labels]])
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels, classes=np.array(classes))
    domains = {"blobs/near": "near.npz", "blobs/far": "far.npz"}
    return from_dict(
        "tiny", {"domains": domains, "tasks": ["blobs/near→blobs/far", "blobs/far→blobs/near"], "rows": {"source": {}}}
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scaling", shallow.SCALINGS)
@pytest.mark.parametrize("method", shallow.METHODS)
def test_every_method_beats_chance_and_says_the_same_twice(method, scaling, task):
    pair, truth = pair_of(task)
    pair = pair.standardised(scaling)
    predicted = shallow.METHODS[method].predict(pair)
    assert (predicted == truth).mean() > CHANCE + 0.2
    assert np.array_equal(predicted, shallow.METHODS[method].predict(pair))


def test_each_domain_by_its_own_mean_undoes_a_shift_that_the_sources_leaves():
    pair, _ = pair_of("near→far")
    by_source, by_each = pair.standardised("source"), pair.standardised("each")
    np.testing.assert_allclose(by_source.source.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(by_each.target.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(by_each.target.std(0), 1, atol=1e-5)
    expected = (pair.target - pair.source.mean(0)) / pair.source.std(0)
    np.testing.assert_allclose(by_source.target, expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_the_source_has_each_class_in_proportion():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [600, 300, 100]))
    pair = shallow.Pair(np.arange(1000, dtype=np.float32)[:, None], labels, np.zeros((1, 1), np.float32))
    part = pair.part_of_source(100)
    assert np.bincount(part.labels).tolist() == [60, 30, 10]
    assert len(np.unique(part.source)) == 100
    assert np.array_equal(part.labels, labels[part.source[:, 0].astype(int)])


def test_only_what_is_too_large_is_made_smaller(monkeypatch):
    pair, _ = pair_of("near→far")
    assert shallow.METHODS["jdot"].within_reach(pair) is pair
    monkeypatch.setattr(shallow, "MOST_PRODUCTS", 100)
    monkeypatch.setattr(shallow, "MOST_PAIRS", 100)
    monkeypatch.setattr(shallow, "COMPONENTS", 4)
    monkeypatch.setattr(shallow, "ROWS", 30)
    sizes = {name: shallow.METHODS[name].within_reach(pair).source.shape for name in ("logistic", "coral", "jdot")}
    assert sizes == {"logistic": (60, 6), "coral": (60, 4), "jdot": (30, 4)}


def test_runs_are_scored_by_class_name_and_not_made_again(benchmark, tmp_path, monkeypatch):
    out, sets = tmp_path / "results.jsonl", shallow.data_sets(benchmark)
    assert sets == {"blobs": list(benchmark.tasks)}
    methods = ["logistic", "spreading"]
    lines = shallow.fill(out, benchmark, sets, tmp_path, methods[:1], ["source"])
    assert [json.loads(line) for line in out.read_text().splitlines()] == lines
    assert min(line["accuracy"] for line in lines) > 100 * CHANCE + 20  # by number, almost all would be wrong
    lines = shallow.fill(out, benchmark, sets, tmp_path, methods, ["source"])
    assert [line["method"] for line in lines] == ["logistic"] * 2 + ["spreading"] * 2
    monkeypatch.setattr(shallow, "run_task", None)
    assert shallow.fill(out, benchmark, sets, tmp_path, methods, ["source"]) == lines


def test_a_method_that_fails_is_told_and_others_go_on(benchmark, tmp_path, monkeypatch):
    def fails(pair):
        raise ValueError("no samples left")

    monkeypatch.setitem(shallow.METHODS, "jdot", shallow.Method("JDOT", fails))
    sets = shallow.data_sets(benchmark)
    lines = shallow.fill(tmp_path / "results.jsonl", benchmark, sets, tmp_path, ["jdot", "logistic"], ["source"])
    told = [line.get("failed") for line in lines]
    assert told == ["ValueError: no samples left", None] * 2


def test_target_labels_change_nothing_that_a_method_sees(benchmark, tmp_path):
    before, truth = shallow.load_pair(tmp_path / "near.npz", tmp_path / "far.npz")
    with np.load(tmp_path / "far.npz") as far:
        np.savez(tmp_path / "other.npz", features=far["features"], labels=far["labels"][::-1], classes=far["classes"])
    after, other_truth = shallow.load_pair(tmp_path / "near.npz", tmp_path / "other.npz")
    for name in ("source", "labels", "target"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert np.array_equal(other_truth, truth[::-1])


def line(method, task, accuracy, **more):
    sizes = {"source_rows": 10, "source_rows_all": 10, "width": 5, "width_all": 5, "unfinished": False}
    return {"method": method, "task": task, "accuracy": accuracy, **sizes, **more}


def test_the_table_by_hand():
    lines = [
        line("logistic", "a", 80.0),
        line("logistic", "b", 60.0),
        line("logistic", "c", 50.0),
        line("coral", "a", 78.5),  # −1.5: harmed
        line("coral", "b", 70.0, unfinished=True),
        line("coral", "c", 49.5, width=4),  # −0.5: not
        line("jdot", "a", 85.0, source_rows=9),  # and b is not there yet
        line("jdot", "c", 30.0),
        {**line("svm", "a", 0.0), "failed": "ValueError: why"},
        line("svm", "b", 61.0),
    ]
    told = shallow.table(lines, {"one": ["a", "b"], "two": ["c"]}).splitlines()
    assert told[:3] == ["| method | one (2) | two (1) | harmed |", "| --- | ---: | ---: | ---: |", told[2]]
    assert told[2] == "| logistic regression | 70.0 | 50.0 |  |"
    assert "| CORAL, SVM | 74.2 (−1.5) | 49.5 (−0.5) | 1 of 3 |" in told
    assert "| JDOT, logistic regression | – | 30.0 (−20.0) | 1 of 2 |" in told
    assert "| SVM | – | – | 0 of 1 |" in told
    assert told[-3:] == [
        "- SVM: failed on 1 of 2 tasks.",
        "- CORAL, SVM: with principal components of the features on 1 of 3 tasks, "
        "stopped at a limit of iterations on 1 of 3 tasks.",
        "- JDOT, logistic regression: with a part of the source on 1 of 2 tasks.",
    ]


def test_data_sets_are_those_of_the_suite_or_the_benchmark_itself():
    sets = shallow.data_sets(load_benchmark("suite"))
    assert sum(map(len, sets.values())) == len(load_benchmark("suite").tasks)
    assert len(sets["office-home"]) == 12
    flat = from_dict("hard", {"domains": {"A": "a.npz", "B": "b.npz"}, "tasks": ["A→B"], "rows": {"source": {}}})
    assert shallow.data_sets(flat) == {"hard": ["A→B"]}
    with pytest.raises(SafdaError, match="no data set 'surv'; did you mean 'surf'"):
        shallow.data_sets(load_benchmark("suite"), ["surv"])
    assert shallow.data_sets(flat, tasks=["A->B"]) == {"hard": ["A→B"]}
    with pytest.raises(SafdaError, match="no task 'A→C'; did you mean 'A→B'"):
        shallow.data_sets(flat, tasks=["A->C"])


def test_a_damaged_file_of_results_is_an_error_in_one_line(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"task": "a"}\n{"ta')
    with pytest.raises(SafdaError, match="is not lines of JSON"):
        shallow.read_lines(tmp_path / "results.jsonl")
