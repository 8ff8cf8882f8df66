from __future__ import annotations

import csv
import io
import json
import time

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import safda
from safda.cli import main
from safda.errors import SafdaError
from safda.methods import METHODS
from safda.view import LogLines, TrainingView, methods_table
from tests.conftest import MDD_ALONE, SHORT, SOURCE_ONLY, TINY, blobs, flat_digits
from tests.conftest import run_cli as run


def tiny(**more):
    return [w for k, v in {**TINY, "steps": 30, **more}.items() for w in (f"--{k.replace('_', '-')}", str(v))]


@pytest.fixture
def fitted(files, tmp_path, capsys):
    code, out, _ = run(capsys, "fit", *files, "-o", tmp_path / "run", *tiny())
    assert code == 0
    assert json.loads(out)["step"] == 30
    return tmp_path / "run"


def test_fit_predict_evaluate(fitted, files, tmp_path, capsys):
    _, labels = blobs(1, 0.7)
    tables = {}
    for suffix in ("csv", "jsonl", "parquet"):
        file = tmp_path / f"p.{suffix}"
        code, out, _ = run(capsys, "predict", fitted, files[1], "-o", file, "--probabilities")
        assert code == 0
        assert json.loads(out)["samples"] == 60
        if suffix == "csv":
            tables[suffix] = list(csv.DictReader(file.open()))
        elif suffix == "jsonl":
            tables[suffix] = [json.loads(line) for line in file.read_text().splitlines()]
        else:
            import pyarrow.parquet

            tables[suffix] = pyarrow.parquet.read_table(file).to_pylist()
    assert tables["jsonl"] == tables["parquet"]
    assert [{k: str(v) for k, v in row.items()} for row in tables["jsonl"]] == tables["csv"]
    row = tables["jsonl"][0]
    assert set(row) == {"id", "class", "confidence", "p(ant)", "p(bee)", "p(cat)"}
    assert row["p(ant)"] + row["p(bee)"] + row["p(cat)"] == pytest.approx(1, abs=1e-5)
    assert row["confidence"] == row[f"p({row['class']})"]

    code, out, _ = run(capsys, "evaluate", fitted, files[1], "--json")
    result = json.loads(out)
    right = np.array(["ant", "bee", "cat"])[labels] == [r["class"] for r in tables["jsonl"]]
    assert result["accuracy"] == pytest.approx(right.mean())
    assert result["class_accuracy"]["bee"] == pytest.approx(right[labels == 1].mean())
    assert np.sum(result["confusion"]) == 60
    code, out, _ = run(capsys, "evaluate", fitted, files[1])
    assert f"{right.mean():.1%}" in out


def test_python_and_the_command_line_give_the_same(fitted, files):
    adapted = safda.fit(*files, **{**TINY, "steps": 30})  # both use the preset default
    np.testing.assert_array_equal(
        adapted.predict(files[1]).probabilities, safda.Adapted.load(fitted).predict(files[1]).probabilities
    )


@pytest.fixture
def digits(tmp_path):
    """Drawn digits and handwritten ones as .npz files."""
    X, y, X_target, y_target = flat_digits()
    np.savez(tmp_path / "drawn.npz", features=X, labels=y)
    np.savez(tmp_path / "written.npz", features=X_target, labels=y_target)
    return tmp_path / "drawn.npz", tmp_path / "written.npz"


def test_adaptation_on_the_command_line_does_something(digits, tmp_path, capsys):
    knobs = [word for path, value in SHORT.items() for word in (f"--{path.replace('_', '-')}", value)]

    def accuracy(*words):
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        assert run(capsys, "fit", *digits, "-o", out, *knobs, *words)[0] == 0
        return json.loads(run(capsys, "evaluate", out, digits[1], "--json")[1])["accuracy"]

    source_only = accuracy("--adversary", "none", "--no-saf")
    assert accuracy() > source_only + 0.08
    assert accuracy("--mdd.weight", 0.3, "--no-saf") > source_only + 0.04


def test_adaptation_in_python_does_something(digits):
    def accuracy(changes):
        return safda.fit(*digits, **SHORT, **changes).evaluate(digits[1]).accuracy

    source_only = accuracy(SOURCE_ONLY)
    assert accuracy({}) > source_only + 0.08
    assert accuracy(MDD_ALONE) > source_only + 0.04


def test_save_and_load(files, tmp_path):
    adapted = safda.fit(*files, **{**TINY, "steps": 5})
    adapted.save(tmp_path / "model")
    again = safda.Adapted.load(tmp_path / "model")
    assert again.recipe == adapted.recipe
    np.testing.assert_array_equal(again.predict(files[1]).probabilities, adapted.predict(files[1]).probabilities)


def test_a_recipe_file_and_overrides_one_by_one(files, tmp_path, capsys):
    code, text, _ = run(capsys, "recipe", "paper-office-home", *tiny())
    (tmp_path / "r.toml").write_text(text)
    words = ("--recipe", tmp_path / "r.toml", "--steps", 4, "--adversary", "cdan", "--no-saf")
    code, _, err = run(capsys, "fit", *files, "-o", tmp_path / "run", *words)
    assert code == 0, err
    recipe = safda.Adapted.load(tmp_path / "run").recipe
    assert (recipe.steps, recipe.methods, recipe.batch) == (4, ("cdan",), TINY["batch"])


def test_classes_are_matched_by_name(fitted, files, tmp_path, capsys):
    features, labels = blobs(1, 0.7)
    order = np.array([2, 0, 1])
    np.savez(tmp_path / "turned.npz", features=features, labels=order[labels], classes=np.array(["bee", "cat", "ant"]))
    results = [json.loads(run(capsys, "evaluate", fitted, f, "--json")[1]) for f in (files[1], tmp_path / "turned.npz")]
    assert results[0] == results[1]
    np.savez(tmp_path / "other.npz", features=features, labels=labels, classes=np.array(["ant", "bee", "dog"]))
    code, _, err = run(capsys, "evaluate", fitted, tmp_path / "other.npz")
    assert code == 1
    assert "class 'dog' was not in the source" in err


def test_methods_are_listed_with_what_they_need_and_go_with(capsys):
    code, out, _ = run(capsys, "methods")
    listed = {each["method"]: each for each in map(json.loads, out.splitlines())}
    assert code == 0
    assert list(listed) == list(METHODS)
    assert all(each["paper"] and each["title"] for name, each in listed.items() if name != "pseudo_labels")
    assert listed["mcd"]["passes"] == "6"
    assert listed["mcd"]["cost"] == f"{METHODS['mcd'].cost:g}×"
    assert all(float(each["cost"].removesuffix("×")) >= 1 for each in listed.values())  # none is cheaper than none
    assert listed["mdd"]["saf"] == "yes"
    assert listed["adda"]["saf"] == f"no: {METHODS['adda'].excludes['saf']}"
    text = Console(width=160)
    with text.capture() as shown:
        text.print(methods_table(list(listed.values())))
    assert all(name in shown.get() for name in listed)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--stesp", "3"], 2, "did you mean '--steps'"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--steps", "x"], 1, "steps = 'x' must be a whole number"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--steps", "0"], 1, "the nearest right one is 1"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--adversary", "mddd"], 1, "did you mean 'mdd'"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--adversary", "adda"], 1, "ADDA lets C stand still by then; leave"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--recipe", "digit"], 1, "did you mean 'digits'"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--track", "tensorbord"], 1, "did you mean 'tensorboard'"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--precision", "fp16", "--cpu"], 1, "needs a GPU"),
        (["fit", "UNLABELLED", "TARGET", "-o", "RUN"], 1, "has no labels"),
        (["fit", "SOURCE", "digits-handwritten", "-o", "RUN"], 1, "of shape (1, 16, 16), the source's of shape (6,)"),
        (["fit", "SOURCE", "nowhere.npz", "-o", "RUN"], 1, "no such file"),
        (["fit", "SOURCE", "TARGET", "-o", "RUN", "--frozen"], 1, "so network.frozen has no meaning; leave it out"),
        (
            ["fit", "SOURCE", "TARGET", "-o", "RUN", "--backbone", "resnet18", "--weights", "w.safetensors"],
            1,
            "source.npz: holds features already, so network.backbone and network.weights have no meaning",
        ),
        (
            ["fit", "SOURCE", "TARGET", "-o", "RUN", "--network.image-size", "64"],
            1,
            "network.image_size has no meaning",
        ),
        (["tune", "SOURCE", "TARGET", "-o", "RUN", "--network.pretrained", "true"], 1, "pretrained has no meaning"),
        (["fit", "SOURCE"], 2, "required"),
        (["predict", "nowhere", "TARGET", "-o", "p.csv"], 1, "is not a run folder"),
        (["predict", "nowhere", "TARGET", "-o", "p.xls"], 1, "its ending must be one of .csv, .jsonl, .parquet"),
        (["predict", "nowhere", "TARGET", "-o", "no/such/p.csv"], 1, "there is no folder no/such; make it first"),
        (["predict", "nowhere", "TARGET", "-o", "FOLDER"], 1, "is a folder; name a file in it"),
        (["resume", "nowhere"], 1, "is not a run folder"),
        (["demo", "--seeds", "0"], 1, "at least one"),
        (["frobnicate"], 2, "invalid choice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_and_nothing_is_written(files, tmp_path, capsys, words, code, said):
    features, _ = blobs(0, 0.0)
    np.savez(tmp_path / "unlabelled.npz", features=features)
    places = {
        "SOURCE": files[0],
        "TARGET": files[1],
        "RUN": tmp_path / "run",
        "UNLABELLED": tmp_path / "unlabelled.npz",
        "FOLDER": tmp_path / "folder.csv",
    }
    (tmp_path / "folder.csv").mkdir()
    got, out, err = run(capsys, *(places.get(word, word) for word in words))
    assert got == code
    assert said in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (tmp_path / "run").exists()


def test_features_refuse_what_is_said_of_a_backbone_but_not_a_recipe_that_has_one(files, tmp_path):
    for given in ({"network.frozen": True}, {"network": {"frozen": True}}):
        with pytest.raises(SafdaError, match=r"source\.npz: holds features already, so network\.frozen has no meaning"):
            safda.fit(*files, **TINY, **given)
    with pytest.raises(SafdaError, match=r"^source: holds features already, so network\.backbone"):
        safda.fit(blobs(0, 0.0), blobs(1, 0.7)[0], backbone=nn.Identity(), **TINY)
    with pytest.raises(SafdaError, match=r"^source: holds features already, so network\.weights has no meaning"):
        safda.SAFClassifier(knobs={"network.weights": "w.safetensors"}).fit(*blobs(0, 0.0))
    (tmp_path / "r.toml").write_text('[network]\nbackbone = "resnet18"\nfrozen = true\n')
    for recipe in ("paper-office31", tmp_path / "r.toml", safda.preset("paper-office31")):
        safda.fit(*files, recipe=recipe, **TINY, steps=1)


def test_predictions_of_an_unknown_ending_are_refused(fitted, files, tmp_path, capsys):
    code, _, err = run(capsys, "predict", fitted, files[1], "-o", tmp_path / "p.xls")
    assert code == 1
    assert ".csv, .jsonl, .parquet" in err


def test_a_folder_that_takes_nothing_and_a_missing_pyarrow_are_found_out_before_the_work(tmp_path, monkeypatch):
    import os
    import sys

    from safda.io import require_table

    require_table(tmp_path / "p.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SafdaError, match="needs pyarrow"):
        require_table(tmp_path / "p.parquet")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # whoever is root may write anywhere
    with pytest.raises(SafdaError, match="nothing can be written in the folder"):
        require_table(tmp_path / "p.csv")


def test_an_unfinished_run_says_how_to_finish(files, tmp_path, capsys):
    def dies(step, metrics):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        safda.fit(*files, out=tmp_path / "run", callback=dies, **TINY)
    code, _, err = run(capsys, "predict", tmp_path / "run", files[1], "-o", tmp_path / "p.csv")
    assert code == 1
    assert f"safda resume {tmp_path / 'run'}" in err


def test_tensorboard_gets_the_metrics(files, tmp_path, capsys):
    code, _, err = run(capsys, "fit", *files, "-o", tmp_path / "run", "--track", "tensorboard", *tiny(steps=3))
    assert code == 0, err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = (tmp_path / "run").rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events.parent))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("loss/saf")] == [1, 2, 3]


def test_what_nobody_foresaw_is_one_line_too(files, tmp_path, capsys, monkeypatch):
    import safda.api

    def breaks(*_, **__):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(safda.api, "start", breaks)
    code, _, err = run(capsys, "fit", *files, "-o", tmp_path / "run")
    assert code == 1
    assert err == "safda: unexpected error: RuntimeError: out of memory; --traceback shows where it came from\n"
    with pytest.raises(RuntimeError):
        main(["fit", *map(str, files), "-o", str(tmp_path / "run"), "--traceback"])


def test_help_teaches(capsys):
    code, out, _ = run(capsys, "fit", "--help")
    assert code == 0
    out = " ".join(out.split())
    for word in ("--adversary", "cdan, cdan+e, coral", "--saf.eta.source", "learned, beta, constant", "--recipe"):
        assert word in out


def test_the_live_view_shows_progress_losses_eta_and_health():
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with TrainingView("a → b", 10, console) as view:
        view(3, {"loss": 1.5, "loss/saf": 0.25, "saf/eta_mean": 0.4, "saf/eta_std": 0.1, "mdd/agrees_on_target": 0.75})
    shown = console.file.getvalue()
    for word in ("a → b", "3/10", "saf", "0.250", "eta mean", "0.400", "eta std", "agrees on target", "0.750"):
        assert word in shown


@pytest.mark.parametrize("quiet", [False, True])
def test_where_there_is_no_terminal_a_line_is_told_now_and_then(capsys, monkeypatch, quiet):
    from rich.console import Console

    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = Console(file=io.StringIO(), force_terminal=False, quiet=quiet)
    with TrainingView("a → b", 2000, console) as view:
        for step in range(2000):
            now = 0.05 * step
            view(step + 1, {"loss": 1.5})
    assert console.file.getvalue() == ""
    told = [f"safda: a → b, steps: {step} of 2,000" for step in ("601", "1,201", "1,801")]
    assert capsys.readouterr().err.splitlines() == ([] if quiet else told)


def test_a_grid_tells_how_far_it_is_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(LogLines, "EVERY", 0.01)
    few = ["--rows", "source", "--seeds", "1", "--steps", "30", "--cpu"]
    code, _, err = run(capsys, "bench", "digits", "-o", tmp_path / "lab", *few)
    assert code == 0
    assert "safda: digits, cells: 0 of 1" in err.splitlines()


def test_contradictions_are_told(tmp_path, capsys):
    both = ["digits-rendered", "digits-handwritten", "-o", tmp_path / "run"]
    for words, error in (
        (["fit", *both, "--no-choice", "--candidates", "3"], "not allowed with argument --no-choice"),
        (["fit", *both, "--methods", "dann", "--adversary", "cdan"], "leave --adversary and --no-saf out"),
        (["tune", *both, "--candidates", "3"], "tune compares single recipes; leave --candidates out"),
    ):
        code, _, err = run(capsys, *words)
        assert code in (1, 2)
        assert error in err
        assert not (tmp_path / "run").exists()


def test_a_table_of_numbers_is_told_from_a_list_of_pictures_before_any_weights_are_sought(tmp_path, capsys):
    (tmp_path / "s.csv").write_text("a,b,label\n1,2,x\n")
    code, _, err = run(capsys, "fit", tmp_path / "s.csv", tmp_path / "s.csv", "-o", tmp_path / "run")
    assert code == 1
    assert "has no column 'path'" in err
    assert "numbers go into an .npz file" in err


def test_a_line_for_a_person_stands_beside_what_is_for_machines(files, tmp_path, capsys):
    code, out, err = run(capsys, "fit", *files, "-o", tmp_path / "run", *tiny())
    assert code == 0
    assert f"safda: {json.loads(out)['summary']['words']}" in err.splitlines()
