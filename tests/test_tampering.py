"""Files that were tampered with, disks that refuse, output that goes nowhere: one line of error, or a right answer."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import safda
from safda import SAFClassifier, model, schema
from safda.api import resume
from safda.bench.benchmark import from_dict, load_benchmark
from safda.bench.lab import Lab, LabDomain, read_lab
from safda.cli import main
from safda.errors import SafdaError, SafdaWarning
from safda.io import read_json, read_text
from safda.recipe import PRESETS, Recipe, load_recipe, preset
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY, blobs
from tests.test_fuzz_readers import told_in_one_line
from tests.test_training import BEYOND, Killed, fit, killed_at


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was cut short and a finished one, with their domains: to be copied, not touched."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(folder / f"{name}.npz", features=features, labels=labels, classes=np.array(["ant", "bee", "cat"]))
    files = folder / "source.npz", folder / "target.npz"
    with pytest.raises(Killed):
        fit(files, folder / "cut", callback=killed_at(7), **BEYOND)
    fit(files, folder / "done", **BEYOND)
    return folder


def told(capsys, *words) -> str:
    """The one line that a command ends with."""
    assert main([str(word) for word in words]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert err.startswith("safda: error: "), err
    return err.removeprefix("safda: error: ").strip()


def changed(value, path, new):
    """A copy of plain values with the one at a path set, or gone."""
    copy = json.loads(json.dumps(value))
    *sections, last = path
    inner = copy
    for section in sections:
        inner = inner[section]
    if new is None and last in inner:
        del inner[last]
    else:
        inner[last] = new
    return copy


def deep(levels=100_000):
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (["input_type"], "load", "input_type must be a type of numbers, not 'load'"),
        (["input_type"], ["float32"], "input_type must be a type of numbers"),
        (["input_shape"], [10**13], "GB of memory"),
        (["input_shape"], [-3], "input_shape must be a list of sizes, not [-3]"),
        (["input_shape"], ["6"], "input_shape must be a list of sizes"),
        (["input_shape"], [], "input_shape must be a list of sizes, not []"),
        (["input_shape"], [7], "the weights do not fit the recipe"),
        (["classes"], None, "'classes' is missing"),
        (["classes"], ["ant", "ant", "bee"], "classes must be a list of two or more names, each once"),
        (["classes"], {"ant": 1}, "classes must be a list of two"),
        (["source"], None, "'source' is missing"),
        (["source", "name"], None, "source: 'name' is missing"),
        (["source", "samples"], "60", "source.samples must be a whole number from 0 on, not '60'"),
        (["format"], "3", "is of format '3'"),
        (["format"], 4, "is of format 4"),
        (["transform"], [1], "transform must be a table, not [1]"),
    ],
)
def test_tampered_data_json(runs, tmp_path, capsys, path, new, said):
    run = shutil.copytree(runs / "done", tmp_path / "run")
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps(changed(data, path, new)))
    assert said in told(capsys, "predict", run, runs / "target.npz", "-o", tmp_path / "p.csv")


@pytest.mark.parametrize("name", ["data.json", "recipe.toml"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b"[1, 2]", b'"text"', b"{", deep().encode(), b"x = " + deep().encode()]
)
@pytest.mark.parametrize("command", ["predict", "resume"])
def test_a_run_folder_of_another_form(runs, tmp_path, capsys, name, content, command):
    run = shutil.copytree(runs / "done", tmp_path / "run")
    (run / name).write_bytes(content)
    (run / "summary.json").unlink()  # or there is nothing to resume
    words = [command, run, *([runs / "target.npz", "-o", tmp_path / "p.csv"] if command == "predict" else [])]
    if (name, content) == ("recipe.toml", b""):
        assert "do not fit the recipe" in told(capsys, *words)
    else:
        assert f"{run / name}: " in told(capsys, *words)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": None}, "'step' is missing"),
        ({"step": "5"}, "step must be a whole number from 0 on, not '5'"),
        ({"step": -5}, "step must be a whole number from 0 on, not -5"),
        ({"step": True}, "step must be a whole number from 0 on, not True"),
        ({"step": 4}, "is of step 4, and of another checkpoint"),
        ({"scaler": [1]}, "scaler must be a table"),
        ({"scaler": {"scale": 1.0}}, "'growth_factor' is missing"),
        ([1], "its content must be a table, not [1]"),
    ],
)
def test_tampered_state_json(runs, tmp_path, change, said):
    run = shutil.copytree(runs / "cut", tmp_path / "run")
    for state in run.glob("checkpoints/*/state.json"):
        content = {"step": int(state.parent.name[5:]), "scaler": {}, **(change if isinstance(change, dict) else {})}
        content = {key: value for key, value in content.items() if value is not None}
        state.write_text(json.dumps(content if isinstance(change, dict) else change))
    with pytest.raises(SafdaError) as caught:
        resume(run, cpu=True)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "optimizer",
            lambda old: {**old, "bogus:momentum_buffer": next(iter(old.values())).clone()},
            "'bogus:momentum_buffer'",
        ),
        ("optimizer", lambda old: {key: value[:1] for key, value in old.items()}, "optimizer remembers does not fit"),
        ("methods", lambda old: {key: value[:3].clone() for key, value in old.items()}, "pseudo_labels remembers does"),
        ("methods", lambda old: {"pseudo_labels.labels": old["pseudo_labels.labels"]}, "'predictions' is missing"),
        ("model", lambda old: {key: old[key] for key in old if "bias" not in key}, "the weights do not fit the recipe"),
    ],
)
def test_tampered_tensors(runs, tmp_path, name, change, said):
    run = shutil.copytree(runs / "cut", tmp_path / "run")
    for file in run.glob(f"checkpoints/*/{name}.safetensors"):
        if tensors := load_file(file):  # at step 0 an optimizer remembers nothing
            save_file(change(tensors), file)
    with pytest.raises(SafdaError) as caught:
        resume(run, cpu=True)
    assert said in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def paths(value, prefix=()):
    """Every place in plain values."""
    yield prefix
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*prefix, key))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_value_in_any_place_is_one_line_or_a_right_answer(runs, draw):
    name = draw.draw(st.sampled_from(["data.json", "summary.json"]))
    whole = json.loads((runs / "done" / name).read_text())
    path = draw.draw(st.sampled_from(list(paths(whole))))
    new = draw.draw(JSON)
    run = runs / "fuzzed"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(runs / "done", run)
    (run / name).write_text(json.dumps(changed(whole, path, new) if path else new))
    try:
        adapted = safda.Adapted.load(run)
    except SafdaError:
        return
    answer = adapted.predict(runs / "target.npz").probabilities
    np.testing.assert_array_equal(answer, safda.Adapted.load(runs / "done").predict(runs / "target.npz").probabilities)


EXAMPLES = int(os.environ.get("SAFDA_FUZZ", "25"))


def recipe_or_one_line(text):
    recipe = told_in_one_line(lambda: Recipe.from_toml(text))
    assert recipe is None or Recipe.from_toml(recipe.to_toml()) == recipe


@settings(max_examples=4 * EXAMPLES)
@given(st.text(max_size=80))
def test_any_text_is_a_recipe_or_one_line(text):
    recipe_or_one_line(text)


@settings(max_examples=4 * EXAMPLES)
@given(st.sampled_from(sorted(PRESETS)), st.randoms(use_true_random=False), st.text(max_size=12))
def test_a_recipe_with_any_text_in_place_of_a_part_is_a_recipe_or_one_line(name, chance, new):
    text = preset(name).to_toml()
    start = chance.randrange(len(text))
    recipe_or_one_line(text[:start] + new + text[start + chance.randrange(20) :])


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=80) | st.text(max_size=80).map(str.encode) | JSON.map(lambda v: json.dumps(v).encode())
)
@pytest.mark.parametrize("form", ["RUN_DATA", "STATE", "SUMMARY", "CHOICE", "ESTIMATOR", "LAB", "RESULT"])
def test_any_content_is_of_a_form_or_one_line(tmp_path, form, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(SafdaError) as caught:  # none of so few bytes holds all that a form asks for
        read_json(tmp_path / "x.json", getattr(schema, form))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[adversary]\nname = ["mdd"]', "adversary.name must be a text, not ['mdd']"),
        ("adversary = 3", "adversary must be a table, not 3"),
        ("[saf]\nsharpen = 0", "saf.sharpen must be a number above 0, not 0"),
        ("[saf]\nsharpen = 'x'\nlabels = 'soft'", "saf.sharpen must be a number above 0"),
        (f"steps = {deep(5000)}", "not valid TOML"),
        ("network = 3", "is a section, not a value"),
        ("format = 3\nmethods = [['mdd']]", "must be a list of names"),
    ],
)
def test_tampered_recipes(tmp_path, capsys, content, said):
    (tmp_path / "r.toml").write_text(content if "format" in content else f"format = 2\n{content}")
    assert said in told(capsys, "recipe", tmp_path / "r.toml")


def test_a_name_that_no_recipe_can_hold_is_refused():
    with pytest.raises(SafdaError, match="cannot be written in UTF-8"):
        Recipe().override({"network.weights": "weights\udcff.safetensors"})


def test_a_file_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("safda.io._MOST_TEXT", 2**20)
    for read in (lambda: read_text(Path("/dev/zero")), lambda: load_recipe("/dev/zero")):
        with pytest.raises(SafdaError, match="/dev/zero: cannot be read: it is larger than 1 MB, or has no end"):
            read()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"domains": ["a.npz"]}, "domains must be a table"),
        ({"domains": {"A": 1, "B": "b"}}, "domains.A must be a text, not 1"),
        ({"tasks": "A→B"}, "tasks must be a list, not 'A→B'"),
        ({"title": 3}, "title must be a text"),
        ({"change": [1]}, "change must be a table"),
        ({"rows": {"mdd": [1]}}, "rows.mdd must be a table"),
        ({"rows": {"x": {"published": ["high"]}}}, "rows.x.published[0] must be a number"),
        ({"figure": "mdd"}, "figure must be a list"),
    ],
)
def test_tampered_benchmarks(change, said):
    whole = {"domains": {"A": "a", "B": "b"}, "tasks": ["A→B"], "rows": {"mdd": {}}}
    from_dict("mine", whole)
    with pytest.raises(SafdaError) as caught:
        from_dict("mine", {**whole, **change})
    assert said in str(caught.value)


def test_tampered_files_of_a_lab(tmp_path):
    (tmp_path / "digits").mkdir()
    for content, said in (("[]", "its content must be a table"), ("{}", "'benchmark' is missing"), (deep(), "JSON")):
        (tmp_path / "digits" / "lab.json").write_text(content)
        with pytest.raises(SafdaError, match=said):
            read_lab(tmp_path / "digits" / "lab.json")
    benchmark = load_benchmark("digits")
    lab = Lab(tmp_path, benchmark, {}, {name: LabDomain(name, "0") for name in benchmark.domains}, 1)
    cell = lab.cells()[0]
    lab.store.path(cell).mkdir(parents=True)
    (lab.store.path(cell) / "result.json").write_text('{"accuracy": "high"}')
    with pytest.warns(SafdaWarning, match=r"accuracy must be a number, not 'high'; its run will be scored again"):
        assert lab.store.result(cell) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "O"}, "dtype must be a type of numbers or texts, not 'O'"),
        ({"classes": ["x", "y", "z"]}, "its classes are not of their type"),
        ({"classes": [0, 1]}, "has 2 classes"),
        ({"feature_names": "abc"}, "feature_names must be a list"),
    ],
)
def test_tampered_estimators(tmp_path, change, said):
    X, y = blobs(0, 0.0)
    SAFClassifier(steps=1, knobs=TINY).fit(X, y).save(tmp_path / "model")
    file = tmp_path / "model" / "estimator.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(SafdaError) as caught:
        SAFClassifier.load(tmp_path / "model")
    assert said in str(caught.value)


def test_every_form_takes_what_is_written(runs):
    read_json(runs / "done" / "data.json", schema.RUN_DATA)
    read_json(runs / "done" / "summary.json", schema.SUMMARY)
    assert RunFolder.open(runs / "done").last_checkpoint().step == 24


# ------------------------------------------------------------------------------------------- disks, memory and output


def test_a_name_that_is_too_long_is_told(runs, tmp_path, capsys):
    words = [str(word) for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
    source, target, name = runs / "source.npz", runs / "target.npz", tmp_path / ("x" * 300)
    assert "File name too long" in told(capsys, "fit", source, target, "-o", name, "--steps", 1, *words)
    assert "File name too long" in told(capsys, "tune", source, target, "-o", name, "--trials", 1, *words)
    assert "File name too long" in told(capsys, "resume", name)
    assert "File name too long" in told(capsys, "predict", runs / "done", target, "-o", f"{name}.csv")


def test_a_folder_that_cannot_be_read_or_written_is_told(runs, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(runs / "cut", tmp_path / "run")

    def forbidden(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:  # whoever is root may read and write anything
        patch.setattr(Path, "stat", forbidden)
        assert told(capsys, "resume", run) == f"{run}: cannot be read: Permission denied"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", forbidden)
        assert told(capsys, "resume", run) == f"{run / 'data.json'}: cannot be read: Permission denied"
    with monkeypatch.context() as patch:
        patch.setattr("safda.lock.os.open", forbidden)
        assert told(capsys, "resume", run, "--cpu") == f"{run / '.lock'}: cannot be written: Permission denied"


def test_widths_that_need_more_memory_than_there_is_are_refused(runs, tmp_path, capsys, monkeypatch):
    class Memory:
        available = free = 10**9

    monkeypatch.setattr(model.psutil, "virtual_memory", Memory)
    monkeypatch.setattr(model.psutil, "swap_memory", Memory)
    wide = ["--network.bottleneck-width", 65536, "--network.classifier-width", 65536]
    line = told(capsys, "fit", runs / "source.npz", runs / "target.npz", "-o", tmp_path / "run", *wide)
    assert "need 51.5 GB of memory, and 2.0 GB are free" in line  # 3 · 4 · (6 · 65536 + 65536² + 65536 · 3) bytes
    assert not (tmp_path / "run").exists()


class Full(io.StringIO):
    def write(self, text):
        return len(text)

    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("words", [["recipe"], ["evaluate", "RUN", "TARGET"], ["predict", "RUN", "TARGET"]])
def test_output_that_cannot_be_written_is_told(runs, capsys, monkeypatch, words):
    places = {"RUN": runs / "done", "TARGET": runs / "target.npz"}
    monkeypatch.setattr(sys, "stdout", Full())
    line = told(capsys, *(places.get(word, word) for word in words))
    assert line == "what was to be printed: cannot be read or written: No space left on device"


def test_closed_output_stops_nothing(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["predict", str(runs / "done"), str(runs / "target.npz"), "-o", str(tmp_path / "p.csv")]) == 0
    assert (tmp_path / "p.csv").stat().st_size
    monkeypatch.undo()
