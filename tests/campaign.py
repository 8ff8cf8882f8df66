"""A campaign of faults, ``python -m tests.campaign``: the result is the same, bit for bit, or one line tells why not.

Commands are killed at random moments and gone on with; disks are full from a random write on; two processes do the same
at once; each file of a run folder and of the cache is damaged in turn. Each command runs in a fork of this process,
which has loaded torch once. It ends with a table in Markdown and with 1 if anything failed. ``docs/reliability.md`` has
its figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from safda import lock
from safda.cli import main
from safda.nn.backbones import make_backbone
from safda.recipe import NetworkKnobs
from safda.training.checkpoint import RunFolder
from safda.training.loop import weights_of
from tests.conftest import TINY, blobs
from tests.test_pictures import folder as picture_folder

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
KNOBS = {**TINY, "checkpoint_every": 40}
BENCHMARK = """
title = "blobs"
domains = { A = "source.npz", B = "target.npz" }
tasks = ["A→B", "B→A"]
[change]
steps = 60
checkpoint_every = 20
batch = 8
log_every = 1
"network.bottleneck_width" = 16
"network.classifier_width" = 16
[rows.source]
[rows."mdd+saf"]
"""


def words(**knobs: object) -> list[str]:
    return [str(word) for key, value in knobs.items() for word in (f"--{key.replace('_', '-')}", value)]


# ------------------------------------------------------------------------------------------------------- one command


@dataclass
class Child:
    """A command in a fork of this process."""

    arguments: list[str]
    out: Path
    full_after: int = 10**9  # so many writes reach the disk, and no more
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.log = self.out.with_name(f"{self.out.name}.{time.monotonic_ns()}.log")
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                code = self._run()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def _run(self) -> int:
        handle = os.open(self.log, os.O_WRONLY | os.O_CREAT, 0o644)
        for stream in (1, 2):
            os.dup2(handle, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.environ["SAFDA_CACHE"] = str(_cache_of(self.out))
        lock._PATIENCE = 1.0
        fsync, writes = os.fsync, itertools.count()

        def write(file: int) -> None:
            if next(writes) >= self.full_after:
                raise OSError(28, "No space left on device")
            fsync(file)

        os.fsync = write
        try:
            return main(self.arguments)
        finally:
            self.log.with_suffix(".json").write_text(json.dumps({"writes": next(writes), "modules": list(sys.modules)}))

    def kill(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.seconds = time.monotonic() - self.begun
        return code

    @property
    def told(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def told_well(self) -> bool:
        """Whether an error was one line of ours."""
        wrong = any(word in self.told for word in ("Traceback", "unexpected error"))
        return not wrong and any(word in self.told for word in ("safda: error: ", "safda: failed: "))


@dataclass(frozen=True)
class Work:
    """Something that commands do, and what is to come of it."""

    name: str
    begin: Callable[[Path], list[str]]
    results: Callable[[Path], dict[str, bytes]]

    def go_on(self, out: Path) -> list[str]:
        """Return the command that goes on, whatever state there is."""
        if self.name in ("fit", "choice") and RunFolder(out).can_go_on:
            return ["resume", str(out), "--cpu"]
        return self.begin(out)


def files(*patterns: str) -> Callable[[Path], dict[str, bytes]]:
    def read(out: Path) -> dict[str, bytes]:
        found = sorted(path for pattern in patterns for path in out.glob(pattern))
        return {str(path.relative_to(out)): path.read_bytes() for path in found}

    return read


def arrays(out: Path) -> dict[str, bytes]:
    with np.load(out / "features.npz") as archive:
        return {name: archive[name].tobytes() for name in archive.files}


def all_work(data: Path) -> list[Work]:
    source, target = str(data / "source.npz"), str(data / "target.npz")

    def features(out: Path) -> list[str]:
        out.mkdir(exist_ok=True)
        weights = ["--backbone", "small-cnn", "--weights", str(data / "w.safetensors")]
        return ["features", str(data / "pictures"), "-o", str(out / "features.npz"), *weights]

    return [
        Work(
            "fit",
            lambda out: ["fit", source, target, "-o", str(out), "--cpu", *words(**KNOBS, steps=150)],
            files("model.safetensors", "metrics.jsonl", "predictions.csv", "summary.json"),
        ),
        Work("features", features, arrays),
        Work(
            "choice",
            lambda out: [
                *("fit", source, target, "-o", str(out), "--cpu", "--candidates", "2"),
                *words(**KNOBS, steps=60),
            ],
            files("model.safetensors", "choice.json", "predictions.csv", "summary.json"),
        ),
        Work(
            "bench",
            lambda out: ["bench", str(data / "blobs.toml"), "-o", str(out), "--seeds", "1", "--cpu"],
            files("blobs/results.csv", "blobs/differences.csv", "blobs/table.*"),
        ),
        Work(
            "tune",
            lambda out: ["tune", source, target, "-o", str(out), "--trials", "3", "--cpu", *words(**KNOBS, steps=60)],
            files("best.toml", "trials/*/model.safetensors", "trials/*/metrics.jsonl"),
        ),
    ]


# --------------------------------------------------------------------------------------------------------- the faults


@dataclass
class Campaign:
    """What was tried, and what came of it."""

    folder: Path
    chance: random.Random
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    whole: dict[str, tuple[dict[str, bytes], float, int]] = field(default_factory=dict)
    undisturbed: dict[str, Path] = field(default_factory=dict)
    made: int = 0

    def place(self) -> Path:
        self.made += 1
        return self.folder / f"{self.made:04d}"

    def note(self, fault: str, outcome: str, why: str = "") -> None:
        self.outcomes.setdefault(fault, Counter())[outcome] += 1
        if outcome == "failed":
            self.failures.append(f"{fault}: {why}")
            print(f"FAILED {fault}: {why}", flush=True)

    def reference(self, work: Work) -> None:
        """Do the work undisturbed: its results, how long it takes, and how often it writes."""
        child = Child(work.begin(out := self.place()), out)
        if child.wait():
            raise SystemExit(f"{work.name} fails undisturbed: {child.told}")
        about = json.loads(child.log.with_suffix(".json").read_text())
        for name in about["modules"]:  # so that later forks need not
            with suppress(Exception):
                import_module(name)
        child = Child(work.begin(again := self.place()), again)
        child.wait()
        self.whole[work.name] = work.results(out), child.seconds, about["writes"]
        self.undisturbed[work.name] = out
        if work.results(again) != work.results(out):
            raise SystemExit(f"{work.name} is not the same twice")
        print(f"{work.name}: {child.seconds:.1f} s and {about['writes']} writes undisturbed", flush=True)

    def compare(self, fault: str, work: Work, out: Path, told: list[str]) -> None:
        """Go on until it is done, and compare with the undisturbed."""
        for _ in range(3):
            child = Child(work.go_on(out), out)
            code = child.wait()
            told.append(f"{' '.join(child.arguments[:1])} → {code} {child.told.strip()[-300:]}")
            if not code:
                break
        expected = self.whole[work.name][0]
        same = not code and work.results(out) == expected
        self.note(fault, "equal" if same else "failed", " | ".join(told))
        if same:
            for left in self.folder.glob(f"{out.name}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def kill(self, work: Work, number: signal.Signals) -> None:
        out, told, most = self.place(), [], self.whole[work.name][1]
        for _ in range(self.chance.choice([1, 1, 2])):
            child = Child(work.go_on(out), out)
            time.sleep(self.chance.uniform(0, most))
            child.kill(number)
            code = child.wait()
            told.append(f"{number.name} → {code} {child.told.strip()[-200:]}")
            if "Traceback" in child.told or "unexpected" in child.told:
                return self.note(f"{number.name} of {work.name}", "failed", " | ".join(told))
        return self.compare(f"{number.name} of {work.name}", work, out, told)

    def fill_disk(self, work: Work) -> None:
        out, fault = self.place(), f"disk full in {work.name}"
        child = Child(work.begin(out), out, full_after=self.chance.randrange(self.whole[work.name][2]))
        code = child.wait()
        if code != 1 or not child.told_well:
            return self.note(fault, "failed", f"{code} {child.told[-300:]}")
        return self.compare(fault, work, out, [child.told[-200:]])

    def twice(self, work: Work) -> None:
        out, fault = self.place(), f"two of {work.name} at once"
        both = [Child(work.go_on(out), out)]
        time.sleep(self.chance.uniform(0, self.whole[work.name][1] / 2))
        both.append(Child(work.go_on(out), out))
        codes = [child.wait() for child in both]
        told = [f"{code} {child.told[-200:]}" for code, child in zip(codes, both, strict=True)]
        if any(code and not child.told_well for code, child in zip(codes, both, strict=True)) or all(codes):
            return self.note(fault, "failed", " | ".join(told))
        return self.compare(fault, work, out, told)

    def damage(self, work: Work, run: Path, file: Path, how: Callable[[bytes], bytes | None]) -> None:
        """Damage one file of a run, go on, and predict: what comes must be the undisturbed result, or one line."""
        out, fault = self.place(), f"{how.__name__} file of a run"
        shutil.copytree(run, out)
        content = how((out / file).read_bytes())
        (out / file).unlink() if content is None else (out / file).write_bytes(content)
        weights = self.whole[work.name][0]["model.safetensors"]
        child = Child(["resume", str(out), "--cpu"], out)
        code = child.wait()
        if code:
            good = code == 1 and child.told_well
            self.note(fault, "told" if good else "failed", f"{run.name}/{file}: {code} {child.told[-300:]}")
        else:
            same = (out / "model.safetensors").read_bytes() == weights
            self.note(fault, "equal" if same else "failed", f"{run.name}/{file}: another result")
        shutil.rmtree(out)

    def damage_cache(self, work: Work, file: Path, how: Callable[[bytes], bytes | None]) -> None:
        """Damage one file of a full cache, and do the work with it.

        Equal means to rounding here: a picture that is looked at by itself is added up in another order than in a
        batch.
        """
        out, fault = self.place(), f"{how.__name__} file of the cache"
        cache, whole = _cache_of(out), self.undisturbed[work.name]
        shutil.copytree(_cache_of(whole), cache)
        content = how((cache / file).read_bytes())
        (cache / file).unlink() if content is None else (cache / file).write_bytes(content)
        child = Child(work.begin(out), out)
        code = child.wait()
        same = not code and all(
            np.allclose(one, other, rtol=1e-4, atol=1e-6) if one.dtype.kind == "f" else (one == other).all()
            for one, other in zip(_arrays(out), _arrays(whole), strict=True)
        )
        self.note(fault, "equal" if same else "failed", f"{file}: {code} {child.told[-300:]}")


def _arrays(out: Path) -> list[np.ndarray]:
    with np.load(out / "features.npz") as archive:
        return [archive[name] for name in sorted(archive.files)]


def _cache_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.cache")


def flipped(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:] if len(content) > 5 else b"?"


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def garbled(content: bytes) -> bytes:
    return content[: len(content) // 3] + b"\xff\x00{[" + content[len(content) // 3 + 4 :]


def deleted(content: bytes) -> None:
    return None


def damages(file: Path) -> list[Callable[[bytes], bytes | None]]:
    """A flipped bit of a text may be another text as good; weights and the cache have digests."""
    return [truncated, garbled, deleted, *([flipped] if file.suffix == ".safetensors" else [])]


# ---------------------------------------------------------------------------------------------------------- the whole


def prepare(data: Path) -> None:
    data.mkdir()
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(data / f"{name}.npz", features=features, labels=labels, classes=np.array(["ant", "bee", "cat"]))
    picture_folder(data / "pictures")
    torch.manual_seed(0)
    save_file(weights_of(make_backbone(NetworkKnobs(), torch.zeros(3, 32, 32))[0]), data / "w.safetensors")
    (data / "blobs.toml").write_text(BENCHMARK)


def cut_run(campaign: Campaign, work: Work) -> Path:
    """A run that SIGTERM stopped in its midst, with two checkpoints."""
    while True:
        child = Child(work.begin(out := campaign.place()), out)
        while not (out / "checkpoints" / "step-00000080").exists():
            time.sleep(0.005)
        child.kill(signal.SIGTERM)
        if child.wait() == 128 + signal.SIGTERM:
            return out


def run(campaign: Campaign, kills: int, fills: int, pairs: int) -> None:
    prepare(campaign.folder / "data")
    every = all_work(campaign.folder / "data")
    for work in every:
        campaign.reference(work)
    for number in range(kills):
        campaign.kill(every[number % len(every)], campaign.chance.choice(SIGNALS))
    for number in range(fills):
        campaign.fill_disk(every[number % len(every)])
    for number in range(pairs):
        campaign.twice(every[number % len(every)])
    fit = every[0]
    done = campaign.place()
    assert not Child(fit.begin(done), done).wait()
    for stopped in (done, cut_run(campaign, fit)):
        for path in sorted(stopped.rglob("*")):
            if path.is_file():
                for how in damages(path):
                    campaign.damage(fit, stopped, path.relative_to(stopped), how)
    features = every[1]
    cache = _cache_of(campaign.undisturbed[features.name])
    for path in sorted(cache.rglob("*")):
        if path.is_file():
            for how in (*damages(path), *([flipped] if path.suffix != ".safetensors" else [])):
                campaign.damage_cache(features, path.relative_to(cache), how)


def report(campaign: Campaign) -> str:
    lines = ["| fault | times | gone on, equal bit for bit | told in one line | failed |", "|---|---:|---:|---:|---:|"]
    for fault, outcomes in sorted(campaign.outcomes.items()):
        counts = [outcomes[name] for name in ("equal", "told", "failed")]
        lines.append(f"| {fault} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Faults at random moments; see the module's own words.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--fills", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="safda-campaign-") as folder:
        campaign = Campaign(Path(folder), random.Random(options.seed))
        run(campaign, options.kills, options.fills, options.pairs)
    print(report(campaign))
    print(json.dumps({"seconds": round(time.monotonic() - began), "failures": len(campaign.failures)}))
    sys.exit(bool(campaign.failures))
