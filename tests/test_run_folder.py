"""The run folder: one process at a time, whatever became of the last; no state of it is a dead end."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

import safda
from safda import lock as lock_module
from safda.api import resume
from safda.errors import SafdaError, SafdaWarning
from safda.lock import Lock, locked
from safda.model import AdaptationModel
from safda.training import checkpoint
from safda.training.checkpoint import RunFolder
from tests.test_training import BEYOND, Killed, fit, killed_at, same

# --------------------------------------------------------------------------------------------------------- the lock


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(lock_module, "_BEAT", 0.05)
    monkeypatch.setattr(lock_module, "_POLL", 0.01)
    monkeypatch.setattr(lock_module, "_PATIENCE", 0.5)


def owned(path, machine="elsewhere", pid=1, count=0):
    draft = path.with_name("draft")
    draft.write_text(f"{pid} host-b {machine} abc {count:010d}\n")
    draft.replace(path)  # an owner signs at once: nobody ever finds the file empty


def test_whoever_comes_second_is_told_who_has_it_or_waits(tmp_path):
    path = tmp_path / ".lock"
    with locked(path, "run"):
        with pytest.raises(SafdaError, match=rf"^run: is in use by process {os.getpid()} on \S+; wait"):
            Lock(path, "run").acquire()
        waiting = threading.Thread(target=lambda: Lock(path, "run").acquire(wait=True), daemon=True)
        waiting.start()
        time.sleep(0.1)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_lock_ends_with_its_process(tmp_path):
    path = tmp_path / ".lock"
    code = """
import pathlib, sys, time
from safda.lock import Lock
Lock(pathlib.Path(sys.argv[1]), "run").acquire()
print("got it", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        with pytest.raises(SafdaError, match=f"in use by process {process.pid} "):
            Lock(path, "run").acquire()
        process.kill()
        process.wait()
    with locked(path, "run"):
        assert path.read_text().startswith(f"{os.getpid()} ")
    assert path.read_text() == ""


def test_an_owner_on_another_machine_is_left_alone_while_it_gives_signs_of_life(tmp_path):
    path, ended = tmp_path / ".lock", threading.Event()

    def live():
        count = 0
        while not ended.wait(0.05):
            count += 1
            owned(path, count=count)

    owned(path)
    other = threading.Thread(target=live)
    other.start()
    with pytest.warns(SafdaWarning, match="looking for"), pytest.raises(SafdaError, match="process 1 on host-b"):
        Lock(path, "run").acquire()
    ended.set()
    other.join()
    with pytest.warns(SafdaWarning, match="looking for"), locked(path, "run"):  # it has died since
        assert "host-b" not in path.read_text()


@pytest.mark.parametrize("alive", [True, False])
def test_a_disk_without_locks_has_the_owners_process(tmp_path, monkeypatch, alive):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    gone = subprocess.Popen(["true"])
    gone.wait()
    owned(tmp_path / ".lock", lock_module._machine(), os.getpid() if alive else gone.pid)
    if alive:
        with pytest.raises(SafdaError, match=f"in use by process {os.getpid()}"):
            Lock(tmp_path / ".lock", "run").acquire()
    else:
        with locked(tmp_path / ".lock", "run") as lock:
            lock.check()


def test_signs_of_life_go_on_when_a_disk_that_was_away_is_back(tmp_path):
    path, away = tmp_path / ".lock", tmp_path / "away"
    with locked(path, "run") as lock:
        path.rename(away)
        time.sleep(0.2)  # several beats
        lock.check()
        away.rename(path)
        before = path.read_text()
        until = time.monotonic() + 10
        while path.read_text() == before and time.monotonic() < until:
            time.sleep(0.01)
        assert path.read_text() != before


def test_a_process_that_slept_while_its_lock_was_taken_over_leaves_all_alone(files, tmp_path):
    def taken_over(done, metrics):
        if done == 7:
            owned(tmp_path / "run" / ".lock", count=9)

    with pytest.raises(SafdaError, match="was taken over by process 1 on host-b"):
        fit(files, tmp_path / "run", callback=taken_over)
    assert RunFolder.open(tmp_path / "run").last_checkpoint().step == 5
    assert "host-b" in (tmp_path / "run" / ".lock").read_text()


def test_a_run_whose_folder_is_taken_away_ends_and_leaves_nothing(files, tmp_path):
    def taken_away(done, metrics):
        if done == 3:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(SafdaError, match="run: is gone; this process ends"):
        fit(files, tmp_path / "run", callback=taken_away, log_every=100)
    assert not (tmp_path / "run").exists()


def test_a_lock_that_cannot_be_read_for_a_while_is_not_taken_from_whoever_has_it(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    owned(tmp_path / ".lock", "another machine")
    before = (tmp_path / ".lock").read_text()
    with monkeypatch.context() as context:
        context.setattr(type(tmp_path), "read_text", lambda *_, **__: fail())
        with pytest.raises(SafdaError, match="in use by another process"):
            Lock(tmp_path / ".lock", "run").acquire()
    assert (tmp_path / ".lock").read_text() == before


def test_of_two_that_resume_one_goes_on_and_the_other_is_told(files, tmp_path):
    fit(files, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(12))
    reached, go_on = threading.Event(), threading.Event()

    def wait(done, metrics):
        if done == 15:
            reached.set()
            go_on.wait(60)

    first = threading.Thread(target=resume, args=[tmp_path / "cut"], kwargs={"cpu": True, "callback": wait})
    first.start()
    assert reached.wait(60)
    before = (tmp_path / "cut" / "metrics.jsonl").read_text()
    with pytest.raises(SafdaError, match=f"cut: is in use by process {os.getpid()} "):
        resume.__wrapped__(tmp_path / "cut", cpu=True)  # as another process would, and not in turn
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == before
    go_on.set()
    first.join()
    same(tmp_path / "whole", tmp_path / "cut")


# -------------------------------------------------------------------------------------------------------- dead ends


@pytest.mark.parametrize("moment", ["data.json", "environment.json", "metrics.jsonl", "recipe.toml", "step-00000000"])
def test_a_run_that_died_before_its_first_checkpoint_is_begun_again(files, tmp_path, monkeypatch, moment):
    fit(files, tmp_path / "whole")
    plain = checkpoint.write_bytes

    def killed(path, content):  # what a SIGKILL leaves is what is there now
        if moment in str(path):
            shutil.copytree(tmp_path / "run", tmp_path / "left", dirs_exist_ok=True)
            (tmp_path / "left" / ".data.json.1234.part").write_bytes(b"half")
            raise Killed
        plain(path, content)

    with monkeypatch.context() as patch:
        for module in (checkpoint, sys.modules["safda.io"]):
            patch.setattr(module, "write_bytes", killed)
        with pytest.raises(Killed):
            fit(files, tmp_path / "run")
    if moment == "step-00000000":
        with pytest.raises(SafdaError, match=r"before its first checkpoint; the same 'safda fit … -o .*left'"):
            resume(tmp_path / "left", cpu=True)
    fit(files, tmp_path / "left")
    same(tmp_path / "whole", tmp_path / "left")
    assert not list((tmp_path / "left").glob(".*.part"))


def test_ctrl_c_while_neighbours_are_sought_is_no_dead_end(files, tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AdaptationModel, "setup", stopped)
        with pytest.raises(KeyboardInterrupt):
            fit(files, tmp_path / "run", **BEYOND)
    with pytest.raises(SafdaError, match="stopped before its first checkpoint"):
        resume(tmp_path / "run")
    fit(files, tmp_path / "run", **BEYOND)
    fit(files, tmp_path / "whole", **BEYOND)
    same(tmp_path / "whole", tmp_path / "run")


def test_a_folder_with_anything_else_in_it_is_never_taken_over(files, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    with pytest.raises(SafdaError, match="is not empty"):
        fit(files, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"checkpoints", "thesis.tex"}


def test_a_folder_that_another_is_just_making_is_left_alone(files, tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run" / ".lock", "run"), pytest.raises(SafdaError, match="in use by process"):
        fit(files, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_run_that_another_made_meanwhile_is_not_swept_away(files, tmp_path, monkeypatch):
    plain = RunFolder._acquire

    def late(run):  # another process comes between our look and our lock, and is done before us
        monkeypatch.setattr(RunFolder, "_acquire", plain)
        fit(files, tmp_path / "run")
        plain(run)

    monkeypatch.setattr(RunFolder, "_acquire", late)
    with pytest.raises(SafdaError, match="already holds a run"):
        fit(files, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").finished


# ----------------------------------------------------------------------------------------------------------- damage


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in the numbers of the last tensor: a wrong one, and no other sign of it
    path.write_bytes(content)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-9])


def emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flipped),
        ("optimizer.safetensors", flipped),
        ("methods.safetensors", flipped),
        ("model.safetensors", truncated),
        ("optimizer.safetensors", os.unlink),
        ("state.json", emptied),
        ("state.json", os.unlink),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_told(files, tmp_path, name, damage):
    fit(files, tmp_path / "whole", **BEYOND)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(13), **BEYOND)
    newest = tmp_path / "cut" / "checkpoints" / "step-00000010"
    damage(newest / name)
    with pytest.warns(SafdaWarning, match=rf"step-00000010/{name}: .*; going on from step 5"):
        resume(tmp_path / "cut", cpu=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_where_every_checkpoint_is_damaged_that_is_said(files, tmp_path):
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", callback=killed_at(7))
    for path in (tmp_path / "cut" / "checkpoints").iterdir():
        truncated(path / "model.safetensors")
    with pytest.raises(SafdaError, match=r"none of its checkpoints can be read: .*; fit again in another folder"):
        resume(tmp_path / "cut", cpu=True)


@pytest.mark.parametrize("damage", [flipped, truncated, emptied])
def test_a_damaged_result_is_refused_and_made_again(files, tmp_path, damage):
    fit(files, tmp_path / "run")
    result = tmp_path / "run" / "model.safetensors"
    whole = result.read_bytes()
    damage(result)
    with pytest.raises(SafdaError, match=r"'safda resume .*run' makes it again"):
        safda.Adapted.load(tmp_path / "run")
    with pytest.warns(SafdaWarning, match="makes it again"):
        resume(tmp_path / "run", cpu=True)
    assert result.read_bytes() == whole


def test_a_damaged_summary_is_made_again(files, tmp_path):
    fit(files, tmp_path / "run")
    summary = tmp_path / "run" / "summary.json"
    whole = summary.read_text()
    summary.write_text(whole[:40])
    with pytest.warns(SafdaWarning, match=r"summary\.json: cannot be read"):
        resume(tmp_path / "run", cpu=True)
    assert summary.read_text() == whole
