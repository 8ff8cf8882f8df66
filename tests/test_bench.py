"""The laboratory: tables as data, a grid that loses nothing, and numbers that say what they are."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from safda.bench import cells as cells_module
from safda.bench import claims as claims_module
from safda.bench import render
from safda.bench import results as results_module
from safda.bench.benchmark import claims, from_dict, load_benchmark, shipped
from safda.bench.engines import Engine, run_cells
from safda.bench.exchange import read_cells, take_cells
from safda.bench.lab import open_lab
from safda.bench.results import Difference, Results, Run, differences, paired_interval, tidy
from safda.bench.run import fill, write_tables
from safda.bench.view import GridView
from safda.cli import main
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.scores import SCORES
from safda.io import write_table
from safda.methods import METHODS
from safda.recipe import SOURCE_ONLY_CHANGES, preset, walk
from safda.view import LogLines
from tests.conftest import TINY, blobs
from tests.test_training import Killed, killed_at

CHANGE = {**TINY, "steps": 30, "checkpoint_every": 10}
DEFINITION = {
    "title": "Accuracy (%) on blobs",
    "change": CHANGE,
    "domains": {"A": "a.npz", "B": "b.npz"},
    "tasks": ["A→B", "B->A"],
    "rows": {
        "source": {"published": [50.0, 60.0], "average": 55.0},
        "mdd": {},
        "mdd+saf": {},
        "theirs": {"title": "Theirs", "published": [70.0, math.nan], "spread": [0.5, math.nan]},
    },
}


@pytest.fixture
def data(tmp_path):
    """Two labelled domains in a folder."""
    (tmp_path / "data").mkdir()
    for name, seed, shift in (("a", 0, 0.0), ("b", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(tmp_path / "data" / f"{name}.npz", features=features, labels=labels, classes=np.array(["x", "y", "z"]))
    return tmp_path / "data"


def lab_of(data, folder, definition=DEFINITION, seeds=2, settings=None):
    benchmark = from_dict("blobs", definition)
    return open_lab(folder, benchmark, data, benchmark.runnable(), settings or {}, seeds)


def accuracies(lab):
    return {(c.row, c.task, c.seed): (lab.store.result(c) or {}).get("accuracy") for c in lab.cells()}


def quiet():
    return Console(file=io.StringIO(), force_terminal=False)


# ---------------------------------------------------------------------------------------------------- tables


def test_the_papers_tables_are_all_there_and_every_runnable_row_makes_a_recipe():
    assert set(shipped()) == {
        *("office31", "office-home", "visda", "ablations", "adversaries", "tsne", "digits", "office31-features"),
        *("office-home-features", "tsne-features", "office31-methods", "digits-methods", "suite"),
    }
    for name in shipped():
        benchmark = load_benchmark(name)
        for row in benchmark.runnable():
            recipe = benchmark.recipe(row, {}, seed=3)
            assert recipe.seed == 3
            assert ("saf" in recipe.methods) == (row.name.partition("@")[0] not in ("source", *METHODS))
    assert len(load_benchmark("office31").tasks) == 6
    assert len(load_benchmark("office-home").tasks) == 12
    assert len(load_benchmark("office31").rows) == 17
    assert len(load_benchmark("ablations").runnable()) == 11
    for name, pictures in (("office31-methods", False), ("digits-methods", True)):
        rows = {row.name for row in load_benchmark(name).runnable()}
        leads = set(METHODS) - {"saf", "pseudo_labels", "self_training", "cdan+e"}
        leads -= set() if pictures else {each for each in leads if METHODS[each].pictures_only}
        with_saf = {f"{each}+saf" for each in leads if "saf" not in METHODS[each].excludes}
        twice = set() if pictures else {f"{each}@default" for each in with_saf}  # to the letter, and as the default
        assert rows == {"source", *leads, *with_saf, *twice}


def test_the_row_of_the_default_has_the_defaults_candidates():
    suite = load_benchmark("suite")
    row = next(row for row in suite.runnable() if row.name == "default")
    recipe = suite.recipe(row, {}, seed=0)
    for purity in (0.0, 1.0):
        assert recipe.candidates(purity) == preset("default").candidates(purity)


def test_methods_are_compared_with_every_layer_a_quarter_as_wide_as_printed():
    benchmark = load_benchmark("office31-methods")
    default = preset("default")
    for row in benchmark.runnable():
        recipe = benchmark.recipe(row, {}, seed=0)
        if row.variant == "default":  # and SAF is what the default has
            assert (recipe["saf"], recipe["pseudo_labels"]) == (default["saf"], default["pseudo_labels"])
        printed = preset("paper-frozen").override({"methods": list(recipe.methods)})
        as_printed = {path: value for path, _, value in walk(printed)}
        for path, _, value in walk(recipe):
            if path.endswith("width") and not (path == "saf.eta.width" and recipe["saf"].eta.source == "beta"):
                assert value == as_printed[path] // 4, (row.name, path)


@pytest.mark.parametrize("name", ["office31", "office-home"])
def test_published_averages_are_those_of_the_published_numbers(name):
    """A slip in a transcribed number would show here."""
    slips_of_the_paper = {("office31", "ima"): 88.5, ("office-home", "ima"): 69.7}  # it prints 88.8 and 69.5
    for row in load_benchmark(name).rows.values():
        average = slips_of_the_paper.get((name, row.name), row.average)
        assert sum(row.published.values()) / len(row.published) == pytest.approx(average, abs=0.1), row.title


def test_tables_of_the_same_experiment_agree():
    office, home = load_benchmark("office31"), load_benchmark("office-home")
    for name in ("ablations", "tsne"):
        for row in ("mdd", "mdd+saf"):
            for task, value in load_benchmark(name).rows[row].published.items():
                assert home.rows[row].published[task] == value
    for task, value in load_benchmark("adversaries").rows["dann"].published.items():
        assert office.rows["dann"].published[task] == value


@pytest.mark.parametrize(
    ("features", "tables"),
    [
        ("office31-features", ("office31", "adversaries")),
        ("office-home-features", ("office-home", "ablations")),
        ("tsne-features", ("tsne",)),
    ],
)
def test_tables_on_features_have_the_papers_numbers_and_all_its_rows(features, tables):
    ours = load_benchmark(features).rows
    for table in tables:
        for name, row in load_benchmark(table).rows.items():
            assert ours[name].published.items() >= row.published.items(), name
            assert ours[name].spread.items() >= row.spread.items(), name
            assert row.average is None or ours[name].average == row.average, name


def test_the_three_safs_are_the_presets_and_the_rows_beside_them_differ_as_their_names_say():
    """Else a claim would be judged of something else than it says."""
    for name, margin in (("office31-features", 4.0), ("office-home-features", 2.0)):
        benchmark = load_benchmark(name)

        def recipe(row, benchmark=benchmark):
            return benchmark.recipe(benchmark.rows[row], {}, seed=0)

        assert recipe("mdd+saf") == preset("paper-frozen").override({"mdd.margin": margin})
        assert recipe("mdd+saf@released") == preset("released-frozen").override({"mdd.margin": margin})
        assert recipe("mdd+saf@default") == preset("default").single()
        for variant in ("", "@released", "@default"):
            saf, mdd = recipe(f"mdd+saf{variant}"), recipe(f"mdd{variant}")
            assert mdd == saf.override({"methods": ["mdd"]})
        assert recipe("learned-eta") == recipe("mdd+saf")  # one run for both
    assert recipe("learned-eta@released") == recipe("mdd+saf@released")
    assert recipe("beta-eta@default") == recipe("mdd+saf@default")
    assert recipe("one-bottleneck@default")["saf"].eta.source == "learned"


def test_the_figure_from_features_needs_no_run_of_its_own():
    figure, table = load_benchmark("tsne-features"), load_benchmark("office-home-features")
    for row in figure.figure:
        assert figure.recipe(figure.rows[row], {}, 0) == table.recipe(table.rows[row], {}, 0)
    assert {task: figure.domains[task[:2]] for task in figure.tasks} == {"Cl→Rw": "Clipart.npz", "Ar→Pr": "Art.npz"}


def test_a_methods_knobs_are_turned_in_the_rows_that_have_it():
    rows = {name: {} for name in ("source", "dann", "mdd", "dann+saf")}
    change = {"steps": 7, "dann.width": 8, "saf": {"eta": {"width": 5}}}
    benchmark = from_dict("blobs", {**DEFINITION, "change": change, "rows": rows})
    found = {name: benchmark.recipe(row, {"mdd.margin": 3.0}, 0) for name, row in benchmark.rows.items()}
    assert {name: set(recipe.of_methods) for name, recipe in found.items()} == {
        "source": set(), "dann": {"dann"}, "mdd": {"mdd"}, "dann+saf": {"dann", "saf", "pseudo_labels"},
    }  # fmt: skip
    assert {recipe.steps for recipe in found.values()} == {7}
    assert (found["dann"]["dann"].width, found["dann+saf"]["dann"].width) == (8, 8)
    assert (found["dann+saf"]["saf"].eta.width, found["mdd"]["mdd"].margin) == (5, 3.0)
    with pytest.raises(SafdaError, match=r"'cdan\.width' is a knob of a method that takes no part"):
        benchmark.recipe(benchmark.rows["dann"], {"cdan.width": 8}, 0)


def test_every_claim_compares_rows_that_the_papers_tables_have():
    known = {name for table in shipped() for name in load_benchmark(table).rows}
    assert {row for claim in claims() for pair in claim.better for row in pair} <= known
    assert len(claims()) == 8
    assert all(claim.tried for claim in claims())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"domain": {}}, "did you mean 'domains'"),
        ({"tasks": []}, "'tasks' is missing or empty"),
        ({"tasks": ["A"]}, "must be 'SOURCE→TARGET'"),
        ({"tasks": ["A→Bb"]}, "no domain 'Bb'; did you mean 'B'?"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"figure": ["mdd"]}, "must name two of the rows"),
        ({"rows": {"mdd": {"publishd": []}}}, "did you mean 'published'"),
        ({"rows": {"mdd": {"published": [1.0]}}}, "a list of 2 numbers"),
        ({"rows": {"mdd": {"tasks": ["A→A"]}}}, "is not a task of the benchmark"),
        ({"rows": {"mdd": 3}}, "must be a table"),
        ({"rows": {"mdd@othr": {}}, "variants": {"other": {}}}, "no variant 'othr'; did you mean 'other'?"),
        (
            {"variants": {"other": {"presett": "digits"}}},
            "variants.other: unknown key 'presett'; did you mean 'preset'",
        ),
        ({"rows": {"mine": {"change": {"stesp": 3}}}}, "rows.mine.change: unknown key 'stesp'; did you mean 'steps'"),
    ],
)
def test_what_is_wrong_with_a_benchmark_is_told(change, said, data, tmp_path):
    with pytest.raises(SafdaError, match=re.escape(said)):
        lab_of(data, tmp_path / "lab", {**DEFINITION, **change})
    assert not (tmp_path / "lab").exists()


# ------------------------------------------------------------------------------------------------------ grid


def test_a_grid_is_filled_in_once_and_grows(data, tmp_path, monkeypatch):
    lab = lab_of(data, tmp_path / "lab")
    run_cells(lab.cells(), lab.folder, Engine())
    before = accuracies(lab)
    assert len(before) == 3 * 2 * 2
    assert None not in before.values()
    assert not list(lab.store.folder.glob("*/checkpoints"))  # finished runs need none

    def never(*_):
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(cells_module, "completed", never)
    again = lab_of(data, tmp_path / "lab", seeds=1)
    run_cells(again.cells(), again.folder, Engine())
    assert accuracies(again) == before  # what was run with two seeds stays in the table


def test_numbers_are_those_of_plain_runs(data, tmp_path):
    import safda
    from safda.bench.cells import limit_threads

    lab = lab_of(data, tmp_path / "lab", seeds=1)
    run_cells(lab.cells(), lab.folder, Engine())
    with limit_threads(1):
        adapted = safda.fit(data / "a.npz", data / "b.npz", recipe="default", **CHANGE, **{"methods": ["mdd"]})
    assert accuracies(lab)["mdd", "A→B", 0] == adapted.evaluate(data / "b.npz").accuracy


def test_benchmarks_share_the_cells_they_have_in_common(data, tmp_path):
    one = lab_of(data, tmp_path / "lab")
    fewer = from_dict("fewer", {**DEFINITION, "rows": {"mine": {"change": {"methods": ["mdd", "saf"]}}}})
    other = open_lab(tmp_path / "lab", fewer, data, fewer.runnable(), {}, 1)
    assert {cell.key for cell in other.cells()} < {cell.key for cell in one.cells()}


def test_what_another_lab_has_finished_is_not_run_again(data, tmp_path, monkeypatch, capsys):
    import tomli_w

    (data / "mine.toml").write_text(tomli_w.dumps({**DEFINITION, "figure": ["source", "mdd"]}))
    words = ["bench", str(data / "mine.toml"), "--steps", "5"]
    assert main([*words, "-o", str(tmp_path / "there"), "--rows", "mdd,source", "--seeds", "2"]) == 0
    cells = tmp_path / "there" / "mine" / "cells.jsonl"
    own = [*words, "-o", str(tmp_path / "here")]
    assert main([*own, "--rows", "mdd+saf", "--seeds", "1"]) == 0
    there, here = (tmp_path / each / "mine" / "results.csv" for each in ("there", "here"))
    before = here.read_text().splitlines()

    def never(*_):
        raise AssertionError("a cell was run that was known")

    monkeypatch.setattr(cells_module, "completed", never)
    assert main([*own, "--rows", "source", "--seeds", "1", "--cells", str(cells)]) == 0
    assert "figure.png: some of its cells are results of another lab" in capsys.readouterr().err
    both = {*there.read_text().splitlines(), *before}
    assert set(here.read_text().splitlines()) == both  # the second seed too, and what was here stays
    assert {len(json.loads(line)["class_accuracy"]) for line in cells.read_text().splitlines()} == {0}
    assert main([*own, "--rows", "source", "--seeds", "2"]) == 0  # without the file: they are the lab's now


def test_cells_of_another_recipe_and_runs_that_are_here_stay_as_they_are(data, tmp_path):
    lab = lab_of(data, tmp_path / "lab", seeds=1)
    run_cells(lab.cells()[:1], lab.folder, Engine())
    before = accuracies(lab)
    write_tables(lab)
    line = read_cells(lab.tables / "cells.jsonl")[0]
    other = lab.cells()[1]
    lab.store.note_failure(other, "no disk")
    take_cells(
        lab, [{**line, "accuracy": 0.2}, {**line, "key": "../evil"}, {**line, "key": other.key, "accuracy": 0.5}]
    )
    assert accuracies(lab) == {**before, ("source", "B→A", 0): 0.5}
    assert [lab.store.has_run(cell) for cell in lab.cells()[:2]] == [True, False]
    assert lab.store.failure(other) is None
    assert not list(tmp_path.rglob("evil*"))


def test_a_result_of_another_lab_that_is_damaged_is_made_here(data, tmp_path):
    lab = lab_of(data, tmp_path / "lab", seeds=1)
    cell = lab.cells()[0]
    lab.store.folder.mkdir()
    (lab.store.folder / f"{cell.key}.json").write_text("{}")
    with pytest.warns(SafdaWarning, match="'accuracy' is missing"):
        run_cells([cell], lab.folder, Engine())
    assert lab.store.has_run(cell)
    assert lab.store.result(cell)["class_accuracy"]


def test_a_benchmark_that_shows_classes_takes_no_cell_without_them(data, tmp_path):
    lab = lab_of(data, tmp_path / "lab", {**DEFINITION, "per_class": True}, seeds=1)
    known = {
        "key": lab.cells()[0].key,
        "accuracy": 0.5,
        "mean_class_accuracy": 0.5,
        "calibration_error": 0,
        "scores": {},
    }
    for classes, taken in (({}, None), ({"x": 0.5}, 0.5)):
        take_cells(lab, [{**known, "class_accuracy": classes}])
        assert accuracies(lab)["source", "A→B", 0] == taken


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: is not valid JSON; --cells takes a lab's cells.jsonl"),
        ('\n{"key": "a"}', "line 2: 'row' is missing"),
        ('{"key": "a", "row": "b", "task": "c", "seed": 10000000000}', "seed must be a whole number from 0 to 9,999"),
    ],
)
def test_a_line_that_is_no_cell_is_told_before_anything_is_written(text, said, tmp_path, capsys):
    (tmp_path / "cells.jsonl").write_text(text)
    assert main(["bench", "digits", "-o", str(tmp_path / "lab"), "--cells", str(tmp_path / "cells.jsonl")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "lab").exists()


def test_a_failed_cell_is_told_and_the_rest_goes_on(data, tmp_path, capsys):
    rows = {"wild": {"change": {"optimizer.lr": 10.0, "optimizer.momentum": 0.999}}, "source": {}}
    lab = lab_of(data, tmp_path / "lab", {**DEFINITION, "change": {**CHANGE, "steps": 60}, "rows": rows}, seeds=1)
    failures = fill(lab, lab.cells(), Engine(), quiet())
    assert len(failures) == 2
    assert failures[0].startswith("wild, A→B, seed 0: ")
    assert "not finite" in failures[0]
    assert [value is None for value in accuracies(lab).values()] == [True, True, False, False]
    assert "Source only" in (lab.tables / "table.md").read_text()


def test_other_settings_or_data_do_not_mix_into_a_lab(data, tmp_path):
    lab_of(data, tmp_path / "lab")
    with pytest.raises(SafdaError, match=r"holds blobs with its own settings, not steps = 7"):
        lab_of(data, tmp_path / "lab", settings={"steps": 7})
    features, labels = blobs(5, 0.0)
    np.savez(data / "a.npz", features=features, labels=labels)
    with pytest.raises(SafdaError, match=r"a\.npz: has changed"):
        lab_of(data, tmp_path / "lab")


def test_what_is_missing_is_told(data, tmp_path):
    with pytest.raises(SafdaError, match=r"needs --data, a folder with a\.npz, b\.npz"):
        lab_of(None, tmp_path / "lab")
    (data / "b.npz").unlink()
    with pytest.raises(SafdaError, match=r"domain B .* cannot be used: .*b\.npz: no such file"):
        lab_of(data, tmp_path / "lab")
    with pytest.raises(SafdaError, match=r"'theirs' is published only"):
        from_dict("blobs", DEFINITION).runnable(["theirs"])


def test_a_preset_that_is_asked_for_stands_in_place_of_the_benchmarks_own_with_its_changes():
    benchmark = from_dict("blobs", DEFINITION)
    row = benchmark.rows["mdd+saf"]
    assert benchmark.recipe(row, {}, seed=3).steps == CHANGE["steps"]
    assert benchmark.recipe(row, {"preset": "paper-visda"}, seed=3) == replace(preset("paper-visda"), seed=3)
    assert benchmark.recipe(row, {"preset": "paper-visda", "steps": 7}, seed=3).steps == 7


def test_a_row_in_a_variant_is_that_row_in_another_recipe():
    rows = {"mdd": {}, "mine": {"title": "Mine", "change": {"batch": 4}, "tasks": ["A→B"]}}
    variants = {"slow": {"title": "slowly", "preset": "paper-visda", "change": {"batch": 5, "log_every": 7}}}
    definition = {"rows": {**rows, "mdd@slow": {}, "mine@slow": {}}, "variants": variants}
    benchmark = from_dict("blobs", {**DEFINITION, **definition})
    mdd, mine = benchmark.rows["mdd@slow"], benchmark.rows["mine@slow"]
    assert (mdd.title, mine.title, mine.tasks) == ("MDD, slowly", "Mine, slowly", ("A→B",))
    changes = {"batch": 5, "log_every": 7, "methods": ["mdd"]}
    assert benchmark.recipe(mdd, {}, seed=0) == preset("paper-visda").override(changes)
    assert benchmark.recipe(mine, {}, seed=0) == preset("paper-visda").override({"batch": 4, "log_every": 7})
    asked = benchmark.recipe(mdd, {"preset": "digits", "steps": 7}, seed=0)  # the benchmark's own is replaced alone
    assert asked == preset("paper-visda").override({**changes, "steps": 7})


@pytest.mark.parametrize("step", [1, 10, 17])
def test_a_cell_that_dies_goes_on_exactly(data, tmp_path, monkeypatch, step):
    whole = lab_of(data, tmp_path / "whole", seeds=1)
    run_cells(whole.cells(), whole.folder, Engine())
    cut = lab_of(data, tmp_path / "cut", seeds=1)
    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "_end_with", lambda driver: killed_at(step))
        with pytest.raises(Killed):
            run_cells(cut.cells(), cut.folder, Engine())
    run_cells(cut.cells(), cut.folder, Engine())
    write_tables(whole)
    write_tables(cut)
    for name in ("results.csv", "results.parquet", "table.md", "table.tex", "differences.csv"):
        assert (whole.tables / name).read_bytes() == (cut.tables / name).read_bytes()


def test_a_cell_that_died_while_its_folder_was_made_begins_again(data, tmp_path):
    lab = lab_of(data, tmp_path / "lab", seeds=1)
    cell = lab.cells()[0]
    (lab.store.path(cell) / "checkpoints").mkdir(parents=True)
    (lab.store.path(cell) / ".lock").write_text("")  # the first thing that a run makes
    (lab.store.path(cell) / "data.json").write_text("{}")
    run_cells([cell], lab.folder, Engine())
    assert lab.store.result(cell) is not None


# --------------------------------------------------------------------------------------------------- results


def made_up(values, tasks=("A→B", "B→A")):
    """Results with these accuracies: row → task by seed."""
    runs = [
        Run(row, task, seed, f"{row}{task}{seed}", value, {}, {"information": -value, "entropy": 0, "density": 0}, 0.0)
        for row, by_task in values.items()
        for task, by_seed in zip(tasks, by_task, strict=True)
        for seed, value in enumerate(by_seed)
    ]
    return Results(from_dict("blobs", DEFINITION), runs)


RESULTS = made_up(
    {"mdd": [[80.0, 82.0, 84.0], [70.0, 70.0, 70.0]], "mdd+saf": [[81.0, 85.0, 86.0], [70.0, 70.0, 70.0]]}
)


def test_the_table_has_means_spreads_bold_and_published_numbers():
    lines = render.markdown(render.main_table(RESULTS)).splitlines()
    assert lines == [
        "| method | A→B | B→A | Avg |",
        "|---|---:|---:|---:|",
        "| Source only (published) | 50.0 | **60.0** | **55.0** |",
        "| Theirs (published) | **70.0 ± 0.5** | – | – |",
        "| MDD | 82.0 ± 2.0 | **70.0 ± 0.0** | 76.0 ± 1.0 |",
        "| MDD+SAF | **84.0 ± 2.6** | **70.0 ± 0.0** | **77.0 ± 1.3** |",
    ]
    assert "MDD+SAF & \\textbf{84.0$\\pm$2.6} & \\textbf{70.0$\\pm$0.0}" in render.latex(RESULTS)
    assert "A$\\to$B" in render.latex(RESULTS)


def test_the_oracle_shows_only_when_asked_and_the_choice_does_not_look_at_labels():
    plain, asked = (render.report(RESULTS, oracle) for oracle in (False, True))
    assert "racle" not in plain
    assert "## Oracle" in asked
    assert RESULTS.chosen("mdd", "A→B").accuracy == 80.0  # the made-up score likes the worst run best
    assert RESULTS.oracle("mdd", "A→B").accuracy == 84.0


def test_a_lab_from_before_a_score_was_there_is_still_read(data, tmp_path, monkeypatch, borrowed):
    lab = lab_of(data, tmp_path / "lab", seeds=1)
    run_cells(lab.cells(), lab.folder, Engine())
    borrowed(SCORES).register("newest")(lambda outputs: 0.5)
    write_tables(lab)
    lines = [line for line in csv.DictReader((lab.tables / "results.csv").open()) if line["kind"] == "ours"]
    assert {line["score/newest"] for line in lines} == {""}
    assert "" not in {line[f"score/{name}"] for line in lines for name in ("information", "source_accuracy")}
    more = lab_of(data, tmp_path / "lab", seeds=2)
    run_cells(more.cells(), more.folder, Engine())
    monkeypatch.setattr(results_module, "SELECTION_SCORE", "newest")
    results = Results.of(more)
    assert results.chosen("mdd", "A→B").seed == 1  # only the new run can be judged by it
    assert "## Chosen without labels" in render.report(results, oracle=False)


def test_where_no_run_has_the_score_none_is_chosen(monkeypatch):
    monkeypatch.setattr(results_module, "SELECTION_SCORE", "newest")
    assert RESULTS.chosen("mdd", "A→B") is None
    chosen = render.report(RESULTS, oracle=False).partition("## Chosen without labels")[2]
    assert "| MDD | – | – | – |" in chosen


def test_ours_stands_against_the_published():
    results = made_up({"source": [[51.0], [58.0]]})
    assert "| Source only | +1.0 | -2.0 | -0.5 |" in render.report(results, oracle=False)


def test_paired_differences_and_their_interval():
    found = RESULTS.difference("mdd+saf", "mdd", ["A→B"])
    expected = stats.ttest_rel([81.0, 85.0, 86.0], [80.0, 82.0, 84.0]).confidence_interval(0.95)
    assert found.interval == pytest.approx(tuple(expected))
    assert (found.mean, found.pairs, found.fewest, found.equal) == (2.0, 3, 3, False)
    level = RESULTS.difference("mdd+saf", "mdd", ["B→A"])
    assert level == Difference(mean=0.0, interval=None, pairs=3, fewest=3, equal=True)
    both = RESULTS.difference("mdd+saf", "mdd", ["A→B", "B→A"])
    assert (both.mean, both.pairs, both.fewest, both.equal) == (1.0, 6, 3, False)
    assert both.interval == pytest.approx([end / 2 for end in found.interval])  # what never varies adds no variance
    assert RESULTS.difference("mdd", "source", ["A→B"]) is None


def test_only_runs_of_the_same_seed_are_compared():
    results = made_up({"mdd": [[80.0, 82.0, 84.0, 99.0], []], "mdd+saf": [[81.0, 85.0, 86.0], [70.0]]})
    assert results.difference("mdd+saf", "mdd", ["A→B", "B→A"]) == RESULTS.difference("mdd+saf", "mdd", ["A→B"])


def test_the_file_of_differences_leaves_an_interval_that_there_is_not_empty(tmp_path):
    write_table(tmp_path / "differences.csv", differences(RESULTS))
    lines = list(csv.DictReader((tmp_path / "differences.csv").open()))
    assert [(x["first"], x["second"], x["task"], x["pairs"], float(x["difference"])) for x in lines] == [
        ("mdd+saf", "mdd", "A→B", "3", 2.0),
        ("mdd+saf", "mdd", "B→A", "3", 0.0),
        ("mdd+saf", "mdd", "all", "6", 1.0),
    ]
    assert [bool(x["low"]) for x in lines] == [bool(x["high"]) for x in lines] == [True, False, True]
    assert float(lines[0]["low"]) == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))


#: Differences of accuracies in percent, far enough from one another not to be equal but for rounding.
SEEDS = st.lists(st.integers(-10_000, 10_000), min_size=2, max_size=8, unique=True).map(
    lambda values: [value / 100 for value in values]
)
TASKS = st.lists(SEEDS, min_size=1, max_size=6)


@given(SEEDS)
def test_on_one_task_the_interval_is_that_of_the_paired_t_test(values):
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert paired_interval([values]).interval == pytest.approx(tuple(expected))


@given(TASKS)
def test_over_tasks_the_interval_is_welch_and_satterthwaites(by_task):
    k = len(by_task)
    means, variances = [], []  # of each task's mean difference
    for values in by_task:
        n = len(values)
        mean = sum(values) / n
        means.append(mean)
        variances.append(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    numerator = sum(variances) ** 2
    denominator = sum(v**2 / (len(values) - 1) for v, values in zip(variances, by_task, strict=True))
    quantile = stats.t(numerator / denominator).ppf(0.975)
    half = quantile * math.sqrt(sum(variances) / k**2)
    centre = sum(means) / k
    found = paired_interval(by_task)
    assert found.mean == pytest.approx(centre, abs=1e-9)
    assert found.interval == pytest.approx((centre - half, centre + half), abs=1e-9)


def test_two_tasks_alike_have_the_degrees_of_freedom_of_both():
    low, high = paired_interval([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).interval
    assert high - low == pytest.approx(2 * stats.t(4).ppf(0.975) * math.sqrt(2 * (1 / 3) / 4))


@given(TASKS, st.floats(-50, 50), st.floats(0.1, 10), st.randoms())
def test_the_interval_moves_stretches_and_turns_with_the_differences(by_task, shift, scale, random):
    low, high = paired_interval(by_task).interval

    def of(change):
        return paired_interval([[change(value) for value in values] for values in by_task]).interval

    assert of(lambda value: value + shift) == pytest.approx((low + shift, high + shift), abs=1e-6)
    assert of(lambda value: value * scale) == pytest.approx((low * scale, high * scale), abs=1e-6)
    assert of(lambda value: -value) == pytest.approx((-high, -low), abs=1e-6)
    mixed = [random.sample(values, len(values)) for values in random.sample(by_task, len(by_task))]
    assert paired_interval(mixed).interval == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("variances", [(1.0,), (0.2, 3.0), (0.1, 0.5, 1.0, 2.0)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_the_truth_as_often_as_it_says(seeds, variances):
    rng = np.random.default_rng(0)
    truth = np.arange(len(variances)) - 1.0
    noise = rng.normal(size=(2500, len(variances), seeds)) * np.sqrt(variances)[:, None]
    found = np.array([paired_interval(each).interval for each in noise + truth[:, None]]) - truth.mean()
    covered = (found[:, 0] <= 0) & (found[:, 1] >= 0)
    assert 0.93 <= covered.mean() <= 0.975
    for wrongly_better in (found[:, 0] > 0, found[:, 1] < 0):  # of two equal methods, one or the other
        assert 0.015 <= wrongly_better.mean() <= 0.035


def test_of_two_equal_methods_none_is_called_better_for_counts_that_agree():
    rng = np.random.default_rng(0)
    called = 0
    for differences_in_samples in rng.choice([-1, 1], size=(1000, 3)):  # all three agree in a quarter of the cases
        found = paired_interval([100 * differences_in_samples / 498])
        called += found.interval is not None and not found.interval[0] <= 0 <= found.interval[1]
    assert called == 0


@pytest.mark.parametrize("by_task", [[[2.0]], [[2.0, 3.0, 4.0], [1.0]], [[2.0, 2.0, 2.0]], [[1.0, 1.0], [3.0, 3.0]]])
def test_there_is_no_interval_without_a_variance(by_task):
    found = paired_interval(by_task)
    assert found.interval is None
    assert found.mean == pytest.approx(np.mean([np.mean(values) for values in by_task]))


def test_differences_that_are_equal_but_for_rounding_have_no_variance():
    ours, theirs = [94.3, 64.3, 0.3], [94.2, 64.2, 0.2]
    rounded = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert len(set(rounded)) > 1
    assert paired_interval([rounded]).interval is None


VERDICTS = [
    ([[80, 81, 82], [70, 71, 72]], [[84, 86, 86], [74, 75, 77]], "holds"),
    ([[80, 81, 82], [99, 99, 99]], [[84, 86, 86], [99, 99, 99]], "holds"),  # nothing to gain on the second
    ([[80, 81, 82], [70, 71, 72]], [[84, 86, 86], [66, 67, 67]], "does not hold"),
    ([[80, 81, 82], [70, 71, 72]], [[84, 86, 86], [69, 73, 73]], "not enough runs"),
    ([[80, 81, 82], [70, 71, 72]], [[81, 83, 83], [73, 73, 73]], "not enough runs"),  # all above, but three seeds
    ([[80, 81, 82], [70, 71, 72]], [[84, 86, 86], [71, 72, 73]], "not enough runs"),  # no variance on the second
    ([[80, 81], [70, 71]], [[84, 85.1], [73, 74.1]], "not enough runs"),
    ([[80, 81, 82], []], [[84, 86, 86], [73, 73, 73]], "not enough runs"),
]


@pytest.mark.parametrize(("mdd", "saf", "verdict"), VERDICTS)
def test_verdicts(mdd, saf, verdict):
    judged = claims_module.judge(made_up({"mdd": mdd, "mdd+saf": saf}))
    assert [v.verdict for v in judged if v.claim.text == "SAF improves MDD on every task"] == [verdict]
    assert {v.verdict for v in judged[1:]} == {"not run"}


def test_recipes_are_judged_side_by_side_each_beside_its_own_mdd():
    low, high = [[80, 81, 82], [70, 71, 72]], [[84, 86, 86], [74, 75, 77]]
    lowest = [[76, 76, 78], [65, 67, 67]]
    runs = made_up({"mdd": high, "mdd+saf": low, "mdd@mine": lowest, "mdd+saf@mine": low}).runs
    rows = {name: {} for name in ("mdd", "mdd+saf", "mdd@mine", "mdd+saf@mine")}
    variants = {"mine": {"title": "as I have it"}, "none": {}}
    definition = {**DEFINITION, "rows": rows, "variant": "as | they have it", "variants": variants}
    page = claims_module.page([Results(from_dict("blobs", definition), runs, {"steps": 7})])
    lines = page.splitlines()
    assert "| claim | as \\| they have it | as I have it | none |" in lines
    claim = claims()[0]
    assert f"| {claim.text} | **does not hold** | **holds** | **not run** |" in lines
    assert f"| {claim.text} | as I have it | mdd+saf − mdd: A→B +4.3 [+2.9, +5.8], 3 pairs; B→A +4.7 [" in page
    assert page.count(claim.tried) == 1
    assert page.count("what was tried") == 1
    assert claims()[2].tried not in page
    assert "Settings: steps = 7." in lines
    assert "what was tried" not in claims_module.page([RESULTS])  # nothing fails there


def test_the_evidence_of_a_claim_says_where_there_is_no_interval():
    evidence = claims_module.judge(RESULTS)[0].evidence
    assert evidence == "mdd+saf − mdd: A→B +2.0 [-0.5, +4.5], 3 pairs; B→A +0.0 (no interval), 3 pairs"


def test_one_seed_on_many_tasks_is_not_enough():
    judged = claims_module.judge(made_up({"dann": [[50.0], [50.0]], "dann+saf": [[60.0], [60.0]]}))
    assert {v.verdict for v in judged if v.claim.text == "SAF helps DANN"} == {"not enough runs"}


def test_the_tidy_table_holds_runs_and_published_numbers():
    columns = tidy(RESULTS)
    assert {len(column) for column in columns.values()} == {3 + 12}
    assert columns["kind"] == ["published"] * 3 + ["ours"] * 12
    assert columns["seed"][3:6] == [0, 1, 2]


def test_classes_have_columns_where_asked(data, tmp_path):
    definition = {
        **DEFINITION,
        "tasks": ["A→B"],
        "per_class": True,
        "metric": "mean_class_accuracy",
        "rows": {"mdd": {}},
    }
    lab = lab_of(data, tmp_path / "lab", definition, seeds=1)
    fill(lab, lab.cells(), Engine(), quiet())
    assert "| method | x | y | z | Mean |" in (lab.tables / "table.md").read_text()
    (line,) = csv.DictReader((lab.tables / "results.csv").open())
    mean = sum(float(line[f"accuracy/{name}"]) for name in "xyz") / 3
    assert float(line["accuracy"]) == pytest.approx(mean)


# --------------------------------------------------------------------------------------------- command line


def test_the_command_line_from_a_file_to_the_claims(data, tmp_path, capsys):
    import tomli_w

    (data / "mine.toml").write_text(tomli_w.dumps({**DEFINITION, "figure": ["source", "mdd"]}))
    words = ["bench", str(data / "mine.toml"), "-o", str(tmp_path / "lab"), "--steps", "12", "--seeds", "1"]
    assert main([*words, "--rows", "mdd,source", "--oracle"]) == 0
    out, _ = capsys.readouterr()
    for word in ("| MDD |", "| Source only (published) |", "## Against the paper", "## Oracle", "steps = 12"):
        assert word in out
    files = {file.name for file in (tmp_path / "lab" / "mine").iterdir()}
    tables = {"cells.jsonl", "results.csv", "results.parquet", "differences.csv", "table.md", "table.tex", "lab.json"}
    assert files == tables | {"figure.png"}
    assert main(["bench", "claims", "-o", str(tmp_path / "lab")]) == 0
    out, _ = capsys.readouterr()
    assert out == (tmp_path / "lab" / "claims.md").read_text()
    assert "| SAF improves MDD on every task | **not run** |" in out  # one of its rows was not


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["office13"], "did you mean 'office31'"),
        (["digits", "--rows", "mdd+sfa"], "did you mean 'mdd+saf'"),
        (["digits", "--seeds", "0"], "at least one"),
        (["digits", "--preset", "digit"], "did you mean 'digits'"),
        (["digits", "--engine", "rya"], "did you mean 'ray'"),
        (["digits", "--engine", "dask"], "needs the --address"),
        (["digits", "--jobs", "0"], "at least one"),
        (["digits", "--steps", "0"], "the nearest right one is 1"),
        (["office-home"], "needs --data, a folder with Art, Clipart, Product, Real World"),
        (["nowhere.toml"], "cannot be read"),
        (["claims"], "is not a lab"),
    ],
)
def test_errors_are_one_line(words, said, tmp_path, capsys):
    assert main(["bench", *words, "-o", str(tmp_path / "lab")]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (tmp_path / "lab").exists()


def test_the_live_table_fills_in_and_tells_the_time_left(data, tmp_path):
    lab = lab_of(data, tmp_path / "lab", seeds=2)
    view = GridView(lab, lab.cells())
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    console.print(view.render())
    assert "0 of 12 cells" in console.file.getvalue()
    run_cells(lab.cells()[:7], lab.folder, Engine())
    lab.store.note_failure(lab.cells()[8], "made up")
    console.print(view.render())
    shown = console.file.getvalue()
    value = 100 * json.loads((lab.store.path(lab.cells()[2]) / "result.json").read_text())["accuracy"]
    for word in ("7 of 12 cells", "MDD+SAF", "A→B", f"{value:.1f}", "1/2", "left", "1 failed"):
        assert word in shown


def test_rows_that_share_a_run_are_both_counted_in_a_log(data, tmp_path, monkeypatch, capsys):
    rows = {"mdd+saf": {}, "learned-eta": {"change": {"methods": ["mdd", "saf"]}}}
    lab = lab_of(data, tmp_path / "lab", {**DEFINITION, "rows": rows, "tasks": ["A→B"]}, seeds=1)
    run_cells(lab.cells(), lab.folder, Engine())
    monkeypatch.setattr(LogLines, "EVERY", 0.01)
    with GridView(lab, lab.cells()).live(quiet()):
        time.sleep(0.2)
    assert "blobs, cells: 2 of 2" in capsys.readouterr().err


def test_source_only_is_the_same_in_benchmarks_and_beside_a_run():
    row = load_benchmark("digits").rows["source"]
    assert dict(row.change) == SOURCE_ONLY_CHANGES
