"""The presets train what they trained before methods had a contract: bit for bit, on a machine like the fixture's."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

import safda

FIXTURE = Path(__file__).parent / "fixtures" / "presets.json"
SMALL = {  # the recipe itself, and no choice among others
    "choice.candidates": 0,
    "network.bottleneck_width": 32,
    "network.classifier_width": 32,
    "saf.eta.width": 16,
    "batch": 16,
    "steps": 60,
    "cpu": True,
}
DIGITS = ("digits-rendered", "digits-handwritten")


def machine() -> str:
    """Return what may change the last bits of a sum: torch, and what the processor can do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else [platform.processor()]
    about = sorted({line for line in lines if line.startswith(("model", "flags", "cpu family"))})
    digest = hashlib.sha256("".join(about).encode()).hexdigest()[:16]
    return f"{platform.machine()} {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {digest}"


def arrays():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 30)
    source = (3 * np.eye(5, 24)[y] + rng.normal(size=(150, 24))).astype(np.float32)
    target_y = np.repeat(np.arange(5), 24)
    target = (3 * np.eye(5, 24)[target_y] + rng.normal(size=(120, 24)) + 0.7).astype(np.float32)
    return (source, y), target


def trained(name):
    """Return a digest of all weights, whatever they are called, one of the logits, and some of those."""
    changes = {**SMALL, "steps": 15} if name == "digits" else SMALL
    source, target = DIGITS if name == "digits" else arrays()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    adapted = safda.fit(source, target, recipe=name, **changes)
    logits = adapted.predict(target).logits
    torch.set_num_threads(threads)
    weights = [value.detach().numpy() for value in adapted.model.state_dict().values()]
    each = sorted(hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for value in weights)
    digests = hashlib.sha256("".join(each).encode()), hashlib.sha256(np.ascontiguousarray(logits).tobytes())
    return [digest.hexdigest()[:16] for digest in digests], logits[:8]


@pytest.mark.parametrize("name", ["default", "digits", "paper-office31", "released"])
def test_a_preset_trains_what_it_trained_before(name):
    known = json.loads(FIXTURE.read_text(encoding="utf-8"))
    digests, logits = trained(name)
    assert np.abs(logits - np.array(known[name]["logits"])).mean() < 0.01
    if known["machine"] == machine():
        assert digests == known[name]["digests"]
