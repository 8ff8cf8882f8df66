"""Studies of the repository: their statistics move as they should, and their tables are what a hand computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import safda
from benchmarks import choice, open_set, operating_point, tabular_cases, with_saf
from benchmarks.hard_cases import Samples, write_cases
from safda.bench.benchmark import from_dict, load_benchmark
from safda.bench.results import Difference, Results, Run
from safda.data import load_domain
from safda.evaluation.choice import RULE
from safda.methods import METHODS
from safda.recipe import preset


def corners(classes, seed, per_class=60, dimensions=12):
    """Samples around corners of a cube, one corner a class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(classes, per_class)
    rows = np.eye(dimensions)[labels] + 0.15 * rng.normal(size=(len(labels), dimensions)) + 0.3
    order = rng.permutation(len(labels))
    return rows[order].astype(np.float32), labels[order]


@pytest.mark.parametrize("name", [name for name in open_set.STATISTICS if name != "unevenness of answers"])
def test_what_may_tell_unknown_classes_rises_when_there_are_some(name):
    source = corners(range(6), 0)
    closed, opened = (open_set.prepared(source, corners(range(k), 1)[0]) for k in (6, 9))
    statistic = open_set.STATISTICS[name]
    assert statistic(opened) > statistic(closed) + 0.02


def test_answers_are_uneven_where_one_class_takes_the_unknown_ones():
    source, (rows, labels) = corners(range(6), 0), corners(range(6), 1)
    seen = [open_set.prepared(source, rows[kept]) for kept in (labels < 6, labels < 2)]
    assert open_set.unevenness(seen[1]) > open_set.unevenness(seen[0]) + 0.2


def test_classes_are_taken_and_numbered_anew():
    rows, labels = open_set.without((np.arange(4.0)[:, None], np.array([0, 1, 2, 2])), np.array([2, 0]))
    assert rows.ravel().tolist() == [0.0, 2.0, 3.0]
    assert labels.tolist() == [0, 1, 1]


def test_statistics_are_judged_over_tasks_and_within_each():
    def line(task, taken, is_open, value):
        return {"task": task, "taken": taken, "open": is_open, "auc": 0.7} | dict.fromkeys(open_set.STATISTICS, value)

    lines = [line(task, 0.0, False, shift) for task, shift in (("set/a", 0), ("set/b", 10))]
    for taken in open_set.TAKEN:  # higher with unknown classes on each task, but tasks differ by more
        lines += [
            line(task, taken, known, shift + known) for task, shift in (("set/a", 0), ("set/b", 10)) for known in (0, 1)
        ]
    told = open_set.table(lines).splitlines()[2].split(" | ")
    areas = [1 / 2 * (3 / 6 + 6 / 6)] * 2  # of six targets without, three are below the lower and all below the higher
    assert told[1:] == [f"{areas[0]:.2f}", "2 of 2", f"{areas[1]:.2f}", "2 of 2 |"]
    assert open_set.by_sample(lines) == "set: 0.70 (0.70 to 0.70)"


def benchmark():
    rows = {
        "source": {},
        "mdd": {"published": [80.0, 90.0], "average": 85.0},
        "mdd+saf": {"published": [82.0, 92.0], "average": 87.0},
        "mdd+saf@other": {},
        "dann": {},
    }
    definition = {
        "title": "some",
        "preset": "digits",
        "domains": {"A": "a.npz", "B": "b.npz"},
        "tasks": ["A→B", "B→A"],
        "variants": {"other": {"title": "otherwise", "preset": "digits"}},
        "rows": rows,
    }
    return from_dict("some", definition)


def test_what_saf_adds_is_paired_by_task_and_seed():
    accuracies = {
        "mdd": {"A→B": [80, 82], "B→A": [90, 90]},
        "mdd+saf": {"A→B": [83, 85], "B→A": [91, 92]},
        "dann": {"A→B": [70], "B→A": [72]},
    }
    runs = [
        Run(row, task, seed, f"{row}{task}{seed}", value, {}, {}, 0.0)
        for row, tasks in accuracies.items()
        for task, values in tasks.items()
        for seed, value in enumerate(values)
    ]
    results = Results(benchmark(), runs)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in with_saf.table(results).splitlines()]
    assert lines[2][:2] == ["MDD", "85.5"]  # the best first
    assert lines[2][2].startswith("+2.2 [")  # the mean of 3, 3 and of 1, 2
    assert lines[2][3:6] == ["–", "85.0", "87.0"]
    assert lines[2][7] == "2"
    assert lines[3][:4] == ["DANN", "71.0", "–", "–"]


def test_a_gain_is_bold_only_where_its_interval_leaves_out_zero():
    assert with_saf.told(Difference(2.04, (1.0, 3.1), 18, 3, False)) == "**+2.0** [+1.0, +3.1]"
    assert with_saf.told(Difference(-2.0, (-3.0, -1.0), 18, 3, False)) == "**−2.0** [−3.0, −1.0]"
    assert with_saf.told(Difference(2.0, (-1.0, 5.0), 18, 3, False)) == "+2.0 [−1.0, +5.0]"
    assert with_saf.told(Difference(2.0, None, 6, 1, False)) == "+2.0"


def test_what_methods_cost_adds_up():
    assert with_saf.cost([]) == 1.0
    one, other = (with_saf.cost([name]) for name in ("cdan", "bsp"))
    assert one > other > 1
    assert with_saf.cost(["cdan", "bsp"]) == pytest.approx(one + other - 1)


def test_what_a_method_was_measured_at_is_not_said_of_one_derived_from_it():
    class Wider(METHODS["dann"]):
        name = "wider"

    assert METHODS["dann"].about()["cost"] == f"{METHODS['dann'].cost:g}×"
    assert Wider.about()["cost"] == "not measured"


def test_the_operating_point_is_looked_for_along_the_presets_own_schedules():
    assert (min(operating_point.STEPS), max(operating_point.STEPS)) == (500, 10_000)
    for name, reading in operating_point.READINGS.items():
        base = preset("released-frozen" if name == "released" else "paper-frozen")
        changes = {"ramp_steps": 100_000} if name == "printed" else {}
        expected = base.override({"methods": ["mdd"], "steps": 700, "seed": 3, **changes})
        assert reading.recipe(700, 3) == expected
        assert sorted({steps for run in reading.runs for steps in run}) == list(operating_point.STEPS)


@pytest.mark.parametrize("name", operating_point.READINGS)
def test_a_run_passes_through_those_that_end_sooner_unless_its_length_matters(name):
    (X, y), (there, labels) = corners(range(3), 0, per_class=20), corners(range(3), 1, per_class=20)
    source = load_domain((X, y))
    target = load_domain((there + np.linspace(0, 0.6, 12, dtype=np.float32), labels))
    reading, small = operating_point.READINGS[name], {"network.bottleneck_width": 16, "network.classifier_width": 16}

    def weights(steps, at):
        recipe, seen = reading.recipe(steps, 0).override({**small, "mdd.weight": 5.0}), {}

        class Watched(operating_point.Adapted):
            def answer(self, domain):
                seen.update({each: values.clone() for each, values in self.model.state_dict().items()})
                return super().answer(domain)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operating_point, "Adapted", Watched)
            accuracies = operating_point.curve(recipe, source, target, [at])
        assert list(accuracies) == [at]
        return accuracies[at], seen

    (short, ends), (long, passes) = weights(8, 8), weights(20, 8)
    same = all(torch.equal(values, passes[each]) for each, values in ends.items())
    assert same != reading.depends_on_length
    assert not same or short == long


def test_a_curve_ends_as_a_fit_of_the_same_recipe():
    source, target = (load_domain(corners(range(3), seed, per_class=20)) for seed in (0, 1))
    recipe = operating_point.READINGS["released"].recipe(12, 1)
    recipe = recipe.override({"network.bottleneck_width": 16, "network.classifier_width": 16})
    found = operating_point.curve(recipe, source, target, [4, 12])
    assert found[12] == 100 * safda.fit(source, target, recipe=recipe, cpu=True).evaluate(target).accuracy


def test_curves_are_means_over_seeds_and_of_all_tasks_or_none():
    def line(task, seed, accuracy):
        return {"reading": "printed", "task": task, "seed": seed, "steps": 10_000, "accuracy": accuracy}

    lines = [line("A→W", 0, {"500": 80.0, "1000": 90.0}), line("A→W", 1, {"500": 82.0})]
    lines += [line("A→D", 0, {"500": 70.0}), line("W→A", 0, {"500": 60.0})]
    rows = operating_point.table(lines).splitlines()
    of_reading = [row.split(" | ")[1:4] for row in rows if "100,000" in row]
    assert of_reading == [
        ["A→W", "81.0", "90.0"],
        ["A→D", "70.0", "–"],
        ["W→A", "60.0", "–"],
        ["mean", f"{(81 + 70 + 60) / 3:.1f}", "–"],
    ]


def test_a_table_is_cut_by_a_column_that_is_then_left_out():
    rows = np.arange(40, dtype=np.float32).reshape(10, 4)[::-1].copy()
    low, high = tabular_cases.by_column(Samples(rows, np.arange(10)), 2)
    assert sorted([*low.labels, *high.labels]) == list(range(10))
    assert rows[low.labels, 2].max() < np.median(rows[:, 2]) < rows[high.labels, 2].min()
    np.testing.assert_array_equal(low.features, rows[low.labels][:, [0, 1, 3]])


def test_cases_are_the_same_wherever_they_are_made_and_load_as_a_benchmark(tmp_path):
    made = [{**tabular_cases.real_cases(), **tabular_cases.made_up_cases()} for _ in range(2)]
    for name, pair in made[0].items():
        for one, other in zip(pair, made[1][name], strict=True):
            np.testing.assert_array_equal(one.features, other.features)
            np.testing.assert_array_equal(one.labels, other.labels)
    some = {name: made[0][name] for name in ("wines distorted", "gases, one missing")}
    said = write_cases(tmp_path, "some", "Some of them", some)
    assert said.startswith("2 cases in ")
    benchmark = load_benchmark(tmp_path / "some.toml")
    assert list(benchmark.rows) == ["source", "mdd", "mdd+saf", "default"]
    for task, pair in zip(benchmark.tasks, some.values(), strict=True):
        for end, samples in zip(task.split("→"), pair, strict=True):
            domain = load_domain(tmp_path / benchmark.domains[end])
            assert torch.equal(domain.inputs, torch.from_numpy(samples.features))
    missing = load_domain(tmp_path / benchmark.domains["gases, one missing target"])
    assert len(torch.unique(missing.labels)) == tabular_cases.GASES - 1


def test_sensors_that_have_drifted_are_further_from_those_that_have_not():
    fresh, *later = (tabular_cases.gases(drift, np.random.default_rng(0)).features.mean(0) for drift in (0.0, 0.2, 0.8))
    near, far = (np.abs(np.log(each / fresh)).mean() for each in later)
    assert 0 < 3 * near < far


def judged(source_labels, neighbours=0.5):
    return {"source_labels": source_labels, "neighbours": neighbours, "information": 0.5, "agreement": 0.8}


def test_a_candidate_is_judged_in_the_graph_that_speaks_for_it_and_who_is_harmed_is_named():
    misled = {
        "set": "tables",
        "task": "cut",
        "seed": 1,
        "samples": 100,
        "purity": 0.9,
        "chosen": "source-only",
        "accuracy": {"source-only": 95.0, "mdd": 70.0},
        "alike": {"source-only": {"source-only": 1.0, "mdd": 0.8}, "mdd": {"source-only": 0.8, "mdd": 1.0}},
        "evidence": [
            {"source-only": judged(0.6), "mdd": judged(0.9)},  # aligned
            {"source-only": judged(0.95), "mdd": judged(0.5)},
        ],
    }
    assert choice._by(RULE, graphs=1)(misled) == "mdd"
    assert choice._by(RULE)(misled) == "source-only"
    assert choice._by(RULE._replace(deviations=7.0), graphs=1)(misled) == "source-only"  # 0.3 above, one is √0.2/10
    assert choice.by_harm([misled]).splitlines()[2:] == ["| tables | cut | 1 | the aligned graph alone | mdd | -25.0 |"]
    assert choice.by_harm([{**misled, "chosen": "mdd"}]).count("today's rule** | mdd | -25.0") == 1


def test_numbers_of_the_rule_are_chosen_for_a_data_set_without_looking_at_it():
    def line(name, adapted):
        return {
            "set": name,
            "samples": 100,
            "accuracy": {"source-only": 70.0, "mdd": adapted},
            "alike": {
                one: {other: 1.0 if one == other else 0.8 for other in ("source-only", "mdd")}
                for one in ("source-only", "mdd")
            },
            "evidence": [{"source-only": judged(0.6), "mdd": judged(0.65)}],  # above by one deviation, and not by two
        }

    lines = [line("gains", 80.0), line("loses", 60.0)]  # the evidence is the same
    best = choice.rules_of_the_others(lines)
    assert best["gains"].deviations >= 2 > best["loses"].deviations
    gains, loses = (row.split(" | ") for row in choice.by_set_left_out(lines, best).splitlines()[2:])
    assert (gains[0], gains[-3], gains[-1]) == ("| gains", "+0.0", "+0.0 |")
    assert (loses[0], loses[-3], loses[-1]) == ("| loses", "-10.0", "-10.0 |")
