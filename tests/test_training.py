"""The loop and the run folder: nothing is lost, and a resumed run equals the one never stopped."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import safda
from safda.api import resume
from safda.data import load_domain, mixed_seed
from safda.data.loader import training_batches
from safda.errors import SafdaError
from safda.methods import METHODS
from safda.methods.saf import SAF
from safda.model import AdaptationModel
from safda.training import checkpoint
from safda.training.checkpoint import RunFolder
from safda.training.loop import _STEP_DRAWS, _stop_signals
from safda.turns import in_turn
from tests.conftest import TINY, blobs

STEPS = 24


def fit(files, out, **changes):
    return safda.fit(*files, out=out, cpu=True, **{**TINY, "steps": STEPS, "checkpoint_every": 5, **changes})


def same(one, other):
    """Bit-identical weights and the same metrics."""
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()


class Killed(BaseException):
    pass


def killed_at(step):
    def callback(done, metrics):
        if done == step:
            raise Killed

    return callback


BEYOND = {  # everything in which the default departs from the paper
    "network.features": "centred",
    "network.norm": "per-domain",
    "pseudo_labels.distribution_alignment": 1.0,
    "pseudo_labels.mode": "evaluation",
    "pseudo_labels.propagation.neighbours": 0.2,
    "pseudo_labels.temperature": 0.5,
}


@pytest.mark.parametrize("step", [1, 4, 5, 6, 13, STEPS - 1])
@pytest.mark.parametrize("changes", [{}, {**BEYOND, "methods": ["cdan+e", "saf"]}], ids=["mdd", "cdan+e"])
def test_a_run_that_dies_at_any_step_resumes_exactly(files, tmp_path, step, changes):
    fit(files, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(step), **changes)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("knobs", [{"optimizer.name": "adamw"}, {"optimizer.momentum": 0.0}], ids=["adamw", "plain"])
def test_any_optimizer_resumes_exactly(files, tmp_path, knobs):
    fit(files, tmp_path / "whole", **knobs)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(13), **knobs)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")
    fit(files, tmp_path / "sgd")
    assert (tmp_path / "sgd" / "model.safetensors").read_bytes() != (
        tmp_path / "cut" / "model.safetensors"
    ).read_bytes()


FORMER = """
preset = "default"
steps = {steps}
batch = {batch}
log_every = 1
checkpoint_every = {every}
[network]
bottleneck_width = 16
classifier_width = 16
[{optimizer}]
lr = 0.004
[adversary]
name = "mdd"
[saf]
eta = "learned"
width = 8
sharpen = 4.0
"""


def as_before(run, number):
    """Rewrite a run folder as safda wrote it in an earlier format."""
    recipe = RunFolder.open(run).recipe
    content = FORMER.format(
        steps=recipe.steps,
        batch=recipe.batch,
        every=recipe.checkpoint_every,
        optimizer="optimiser" if number == 1 else "optimizer",
    )
    (run / "recipe.toml").write_text(content if number == 1 else f"format = {number}\n{content}")
    data = json.loads((run / "data.json").read_text())
    assert data.pop("format") == 3
    (run / "data.json").write_text(json.dumps({**data, **({} if number == 1 else {"format": number})}))
    names = {"methods.mdd.": "adversary.", "methods.saf.saf.eta.": "saf.", "methods.pseudo_labels.": "saf."}

    def rewrite(file, suffix="", **renamed):
        found = load_file(file)
        for now, before in {**names, **renamed}.items():
            found = {name.replace(now, before): value for name, value in found.items()}
        file.unlink()
        return {name.removesuffix(suffix): value for name, value in found.items()}

    for folder in run.glob("checkpoints/*"):
        save_file(rewrite(folder / "model.safetensors"), folder / "model.safetensors")
        suffix, name = (":momentum_buffer", "momentum") if number == 1 else ("", "optimizer")
        save_file(rewrite(folder / "optimizer.safetensors", suffix), folder / f"{name}.safetensors")
        state = rewrite(folder / "methods.safetensors", **{"pseudo_labels.": ""})
        assert set(state) == {"predictions", "labels"}
        save_file(state, folder / "neighbours.safetensors")


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_folder_from_before_goes_on_and_one_from_later_is_refused(files, tmp_path, number):
    changes = {
        "saf.eta.source": "learned",
        "saf.eta.width": 8,
        "pseudo_labels.temperature": 0.25,
        "optimizer.lr": 0.004,
    }
    fit(files, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(13), **changes)
    as_before(tmp_path / "cut", number)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut" / "data.json").write_text(json.dumps({**RunFolder(tmp_path / "cut").data, "format": 4}))
    with pytest.raises(SafdaError, match=r"is of format 4, and this safda reads 1 to 3"):
        safda.Adapted.load(tmp_path / "cut")
    with pytest.raises(SafdaError, match=r"recipe: is of format 9"):
        safda.Recipe.from_toml("format = 9")


# Methods that need more of the loop than one step and the weights: phases, state, a sampler that depends on it.
DEMANDING = {
    "several phases": {"methods": ["mcd", "bsp", "saf"]},
    "state": {**BEYOND, "methods": ["dann", "saf"]},
    "a sampler": {"methods": ["ima", "saf"], "ima.relabel_every": 4},
}


@pytest.mark.parametrize("step", [4, 7, 9])
@pytest.mark.parametrize("name", DEMANDING)
def test_demanding_methods_resume_exactly(files, tmp_path, step, name):
    changes = {**DEMANDING[name], "steps": 12, "checkpoint_every": 1}
    fit(files, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(step), **changes)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("saf", "pseudo_labels")])
def test_every_method_resumes_exactly(files, tmp_path, name):
    """Killed amid a second stage and, since the target has been seen once by then, with a memory that counts."""
    methods = [name] if "saf" in METHODS[name].excludes else [name, "saf"]
    early = {
        "adda": {"adda.pretraining": 0.3},
        "cat": {"cat.start": 0.0, "cat.rise": 0.1, "cat.average": 0.9},
        "gta": {"gta.width": 4, "gta.noise": 8},
    }.get(name, {})
    files = ("digits-rendered", "digits-handwritten") if METHODS[name].pictures_only else files
    changes = {"methods": methods, "steps": 16, "checkpoint_every": 1, **early}
    fit(files, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(9), **changes)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_sampler_that_depends_on_state_is_not_read_ahead_of_it(files, monkeypatch):
    """The batches that are trained on are those of the pseudo-labels at their time, however many threads read."""
    seen = {}
    for threads in (0, 3):
        monkeypatch.setattr("safda.training.loop.training_batches", partial(training_batches, threads=threads))
        rows = seen[threads] = []
        forward = AdaptationModel.forward

        def noted(self, *batch, rows=rows, forward=forward):
            rows.append(batch[3].tolist())
            return forward(self, *batch)

        with monkeypatch.context() as patch:
            patch.setattr(AdaptationModel, "forward", noted)
            fit(files, None, methods=["ima"], steps=12, **{"ima.relabel_every": 4})
    assert len(seen[0]) == 12
    assert seen[0] == seen[3]


def test_labels_spread_while_training_goes_on(files, tmp_path):
    """They begin as zeros, and only spreading fills them in."""
    fit(files, tmp_path / "run", **BEYOND)
    known = RunFolder.open(tmp_path / "run").last_checkpoint().methods
    torch.testing.assert_close(known["pseudo_labels.labels"].sum(1), torch.ones(len(known["pseudo_labels.labels"])))


def test_labels_do_not_spread_before_half_the_target_has_been_seen(files, tmp_path):
    """Else the source's neighbours would be all that a large target hears of for long."""
    half_a_pass = len(load_domain(files[1])) // (2 * TINY["batch"])
    for steps, spread in ((half_a_pass, False), (half_a_pass + 1, True)):
        fit(files, tmp_path / str(steps), steps=steps, **BEYOND)
        known = RunFolder.open(tmp_path / str(steps)).last_checkpoint().methods
        assert bool(known["pseudo_labels.labels"].any()) == spread


@pytest.mark.parametrize("across", [0.0, 1.0])
def test_the_knobs_of_neighbours_reach_them(files, tmp_path, across):
    """With a share of 1 predictions do not count, so nobody says anything unless the source does."""
    fit(
        files,
        tmp_path / "run",
        **BEYOND,
        **{"pseudo_labels.propagation.alpha": 1.0, "pseudo_labels.propagation.cross_domain": across},
    )
    known = RunFolder.open(tmp_path / "run").last_checkpoint().methods
    assert bool(known["pseudo_labels.labels"].any()) == (across > 0)


def test_a_convolutional_run_resumes_exactly_too(tmp_path):
    digits = ("digits-rendered", "digits-handwritten")
    fit(digits, tmp_path / "whole", steps=8)
    with pytest.raises(Killed):
        fit(digits, tmp_path / "cut", callback=killed_at(6), steps=8)
    resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


def command(*words):
    return [sys.executable, "-m", "safda.cli", *map(str, words)]


def listens_to_hangups():
    """Undo what ``nohup pytest`` leaves to its children."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def started(files, run, steps):
    """A run in a process of its own, some steps into it; whatever the test finds, the process ends with it."""
    tiny = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
    process = subprocess.Popen(
        command("fit", *files, "-o", run, "--cpu", "--steps", steps, "--checkpoint-every", 50, *tiny),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listens_to_hangups,
    )
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 120
    with process:
        try:
            while not (metrics.exists() and metrics.read_text().count("\n") > 120):
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def test_sigkill_and_resume_give_the_run_never_stopped(files, tmp_path):
    steps = 1500
    with started(files, tmp_path / "cut", steps) as process:
        process.kill()
        process.communicate()
    assert not RunFolder.open(tmp_path / "cut").finished
    resume(tmp_path / "cut", cpu=True)
    fit(files, tmp_path / "whole", steps=steps, checkpoint_every=50)
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(files, tmp_path, number):
    with started(files, tmp_path / "run", 10**6) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"safda resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    last = RunFolder.open(tmp_path / "run").metrics()[-1]["step"]
    assert RunFolder.open(tmp_path / "run").last_checkpoint().step == last


def test_who_ignores_a_closed_terminal_goes_on():
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with _stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_a_checkpoint_that_was_being_written_is_not_read(files, tmp_path):
    with pytest.raises(Killed):
        fit(files, tmp_path / "run", callback=killed_at(12))
    draft = tmp_path / "run" / "checkpoints" / ".step-00000015"
    shutil.copytree(tmp_path / "run" / "checkpoints" / "step-00000010", draft)
    (draft / "model.safetensors").write_bytes(b"half")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    resume(tmp_path / "run", cpu=True)
    fit(files, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "run")


def test_resume_refuses_data_that_have_changed(files, tmp_path):
    import numpy as np

    with pytest.raises(Killed):
        fit(files, tmp_path / "run", callback=killed_at(7))
    features, _ = blobs(9, 0.0)
    np.savez(files[1], features=features)
    with pytest.raises(SafdaError, match="has changed since"):
        resume(tmp_path / "run", cpu=True)


def test_a_run_on_arrays_needs_them_again_to_go_on(files, tmp_path):
    arrays = blobs(0, 0.0), blobs(1, 0.7)[0]
    fit(arrays, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(arrays, tmp_path / "cut", callback=killed_at(7))
    with pytest.raises(SafdaError, match="source was an array"):
        resume(tmp_path / "cut", cpu=True)
    resume(tmp_path / "cut", source=arrays[0], target=arrays[1], cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_resuming_a_finished_run_changes_nothing(files, tmp_path):
    fit(files, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    resume(tmp_path / "run", cpu=True)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


def test_a_run_folder_says_everything(files, tmp_path):
    fit(files, tmp_path / "run", seed=3)
    run = RunFolder.open(tmp_path / "run")
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["seed"] == 3
    assert environment["packages"]["torch"] == torch.__version__
    assert run.data["classes"] == ["ant", "bee", "cat"]
    assert [line["step"] for line in run.metrics()] == list(range(1, STEPS + 1))
    assert {"loss", "loss/classification", "loss/mdd", "loss/saf", "saf/eta_mean", "saf/eta_std", "lr"} <= set(
        run.metrics()[0]
    )
    assert sorted(p.name for p in (run.path / "checkpoints").iterdir()) == ["step-00000020", "step-00000024"]


@pytest.mark.parametrize("steps", [6, 11])
@pytest.mark.parametrize("name", ["paper-frozen", "released-frozen"])
def test_on_frozen_features_the_rate_falls_by_the_step_however_long_the_run_is(files, tmp_path, name, steps):
    """The authors' formulas, step by step; the paper's ramps alone stretch over the run."""
    fit(files, tmp_path / "run", recipe=name, steps=steps)
    for t, line in enumerate(RunFolder.open(tmp_path / "run").metrics()):
        d, m = (t / 1000, t / 2000) if name == "released-frozen" else (10 * t / steps, 5 * t / steps)
        assert line["lr"] == pytest.approx(0.004 * (1 + 0.0002 * t) ** -0.75)
        assert line["mdd/weight"] == pytest.approx(0.1 * math.tanh(d))
        assert line["saf/weight"] == pytest.approx(0.1 * math.tanh(m))
    assert line["step"] == steps


def test_a_seed_decides_the_run(files, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(int.from_bytes(os.urandom(1), "little"))  # whatever the caller's generator has been through
        fit(files, tmp_path / name, seed=seed)
    same(tmp_path / "a", tmp_path / "b")
    assert (
        load_file(tmp_path / "a" / "model.safetensors").keys() == load_file(tmp_path / "c" / "model.safetensors").keys()
    )
    with pytest.raises(AssertionError):
        same(tmp_path / "a", tmp_path / "c")


def test_training_leaves_the_callers_generator_alone(files):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    fit(files, None)
    torch.testing.assert_close(torch.rand(3), wanted)


def test_runs_of_one_process_take_turns_and_may_be_nested():
    begun, order = threading.Event(), []

    @in_turn
    def run(name, during=lambda: None):
        begun.set()
        order.append(f"{name} begins")
        during()
        order.append(f"{name} ends")

    first = threading.Thread(target=run, args=["first", lambda: (run("inner"), time.sleep(0.2))])
    first.start()
    begun.wait(10)
    run("second")
    first.join()
    assert " ".join(order) == "first begins inner begins inner ends first ends second begins second ends"


def test_a_target_label_cannot_change_a_run(files, tmp_path):
    source, target = (load_domain(file) for file in files)
    fit((source, target), tmp_path / "a")
    fit((source, target.unlabelled()), tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


# ---------------------------------------------------------------------------------------------- what can fail


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(files, tmp_path, monkeypatch):
    from safda.methods.mdd import MDD

    plain, calls = MDD.losses, itertools.count(1)

    def breaks(self, *arguments):
        losses = plain(self, *arguments)
        return {"mdd": losses["mdd"] * float("nan")} if next(calls) == 13 else losses

    monkeypatch.setattr(MDD, "losses", breaks)
    with pytest.raises(SafdaError, match="mdd loss is not finite at step 13") as caught:
        fit(files, tmp_path / "run")
    assert "last good checkpoint" in str(caught.value)
    assert RunFolder.open(tmp_path / "run").last_checkpoint().step == 10
    monkeypatch.undo()
    resume(tmp_path / "run", cpu=True)  # and from there it can go on
    assert RunFolder.open(tmp_path / "run").finished


def test_weights_that_are_not_finite_are_never_saved(files, tmp_path, monkeypatch):
    def poison(done, metrics):
        if done == 7:
            for parameter in poisoned:
                parameter.data.fill_(float("inf"))

    poisoned = []
    from safda.model import AdaptationModel

    plain = AdaptationModel.__init__

    def remember(self, *arguments):
        plain(self, *arguments)
        poisoned.append(self.methods["mdd"].twin[0].weight)

    monkeypatch.setattr(AdaptationModel, "__init__", remember)
    with pytest.raises(SafdaError, match="not finite"):
        fit(files, tmp_path / "run", callback=poison)
    assert RunFolder.open(tmp_path / "run").last_checkpoint().step == 5


def test_a_full_disk_is_found_before_training_and_nothing_is_left(files, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 5))
    with pytest.raises(SafdaError, match=r"needs .* MB and the disk has 0\.0 MB free"):
        fit(files, tmp_path / "run", callback=lambda *_: pytest.fail("it trained"))
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_is_found_before_training(files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SafdaError, match="cannot be written"):
        fit(files, tmp_path / "file" / "run", callback=lambda *_: pytest.fail("it trained"))


def test_a_disk_that_fills_up_later_leaves_the_last_good_checkpoint(files, tmp_path, monkeypatch):
    plain = checkpoint.write_bytes

    def full(path, content):
        if "step-00000015" in str(path):
            raise OSError(28, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(checkpoint, "write_bytes", full)
    with pytest.raises(SafdaError, match="No space left on device"):
        fit(files, tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run", cpu=True)
    fit(files, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "run")


def test_a_folder_in_use_is_left_alone(files, tmp_path):
    fit(files, tmp_path / "run")
    with pytest.raises(SafdaError, match="already holds a run"):
        fit(files, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(SafdaError, match="not empty"):
        fit(files, tmp_path / "other")
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_a_folder_whose_names_are_only_like_ours_is_left_alone(files, tmp_path):
    for name in ("checkpoints/epoch-1.pt", "candidates/cv.pdf", "data.json"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("precious")
    with pytest.raises(SafdaError, match="not empty"):
        fit(files, tmp_path / "mine")
    assert len([each for each in (tmp_path / "mine").rglob("*") if each.is_file()]) == 3


def test_a_folder_of_runs_is_no_run(files, tmp_path):
    fit(files, tmp_path / "runs" / "a", steps=2)
    with pytest.raises(SafdaError, match="not empty"):
        fit(files, tmp_path / "runs")


# ---------------------------------------------------------------------------------------------- two processes


def in_two_processes(files, run, changes, command=("-m", "safda.cli")):
    words = [w for k, v in {**TINY, **changes}.items() for w in (f"--{k.replace('_', '-')}", _word(v))]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run(
        [*launcher, *command, "fit", *files, "-o", run, "--cpu", *words],
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _word(value):
    return ",".join(value) if isinstance(value, list) else str(value).lower()


def assert_alike(one, two):
    one, two = RunFolder.open(one), RunFolder.open(two)
    for ours, theirs in zip(one.metrics(), two.metrics(), strict=True):
        close = {k: pytest.approx(v, rel=1e-4, abs=1e-5) for k, v in ours.items() if k != "saf/eta_std"}
        assert {k: v for k, v in theirs.items() if k != "saf/eta_std"} == close
    torch.testing.assert_close(one.load_model(), two.load_model(), rtol=1e-3, atol=1e-5)


def test_two_processes_give_what_one_gives(files, tmp_path, monkeypatch):
    """Same global batch, same losses, same weights; SAF's pairs are those of the two shares."""
    changes = {**BEYOND, "network.dropout": 0.0, "steps": 12, "saf.weight": 1.0, "saf.eta.source": "learned"}
    in_two_processes(files, tmp_path / "two", changes)
    step = itertools.count()

    def pairs_of_both_shares(self, candidates):
        now, orders, rows = next(step), [], len(candidates)
        for process in range(2):
            generator = torch.Generator().manual_seed(mixed_seed(0, now, process, _STEP_DRAWS))
            orders.append(torch.randperm(rows // 2, generator=generator) + process * rows // 2)
        halves = [order.chunk(2) for order in orders]
        return tuple(torch.cat([half[i] for half in halves]) for i in range(2))

    monkeypatch.setattr(SAF, "draw_pairs", pairs_of_both_shares)
    fit(files, tmp_path / "one", **changes)
    assert_alike(tmp_path / "one", tmp_path / "two")


ROW_BY_ROW = [
    {"methods": ["mcd"]},
    {"methods": ["ima"], "ima.relabel_every": 4},
    {"methods": ["adda"]},
    {"methods": ["symnets", "mada", "afn"], "mada.width": 16, "mada.dropout": 0.0},
]


@pytest.mark.parametrize("changes", ROW_BY_ROW, ids=lambda changes: "+".join(changes["methods"]))
def test_two_processes_give_what_one_gives_where_no_rows_meet(files, tmp_path, changes):
    changes = {**changes, "network.dropout": 0.0, "steps": 10}
    in_two_processes(files, tmp_path / "two", changes)
    fit(files, tmp_path / "one", **changes)
    assert_alike(tmp_path / "one", tmp_path / "two")


LATE = """
import os, pathlib, time
from safda.cli import main
exists = pathlib.Path.exists
def late(path):  # the second process looks for a candidate's folder when the first has had time to make it
    if path.name == "recipe.toml" and os.environ["RANK"] == "1":
        time.sleep(1)
    return exists(path)
pathlib.Path.exists = late
raise SystemExit(main())
"""


def test_two_processes_choose_together_however_late_one_of_them_is(files, tmp_path):
    (tmp_path / "late.py").write_text(LATE)
    changes = {"choice.candidates": 1, "steps": 4}
    in_two_processes(files, tmp_path / "two", changes, [str(tmp_path / "late.py")])
    run = RunFolder.open(tmp_path / "two")
    assert run.finished
    assert len(run.choice["evidence"]) == 2


def test_a_batch_that_cannot_be_shared_is_refused():
    from types import SimpleNamespace

    from safda.training.loop import _shard

    with pytest.raises(SafdaError, match="make it a multiple of 3"):
        _shard(32, SimpleNamespace(num_processes=3, process_index=0))
    shares = [_shard(32, SimpleNamespace(num_processes=4, process_index=i)) for i in range(4)]
    assert sorted(row for share in shares for row in range(32)[share]) == list(range(32))
