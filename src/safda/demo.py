"""The demonstration: what adaptation does for digits, in a table and a picture."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from safda.adapted import Adapted, resume, start
from safda.data import load_domain
from safda.errors import SafdaError
from safda.recipe import Recipe, preset
from safda.report.pictures import adaptation_picture
from safda.runs import RunFolder, write_json
from safda.view import TrainingView

_METHODS: dict[str, Mapping[str, object]] = {
    "source only": {"adversary.name": "none", "saf.enabled": False},
    "MDD": {"adversary.name": "mdd", "saf.enabled": False},
    "MDD+SAF": {"adversary.name": "mdd"},
    "MDD+SAF to the letter": {"adversary.name": "mdd", "saf.align": False, "saf.ascend": False},
}
_MORE: dict[str, Mapping[str, object]] = {
    f"{name.upper()}{'+SAF' if saf else ''}": {"adversary.name": name, "saf.enabled": saf}
    for name in ("dann", "cdan")
    for saf in (False, True)
}


def demo(folder: Path, seeds: int, all_methods: bool, console: Console) -> int:
    """Train each method with each seed, print the table and draw the picture; give the exit code.

    "MDD+SAF" is the preset ``digits``; "to the letter" is the same without its two departures from the paper.

    Every run has its folder, so a demonstration that was stopped goes on where it was.
    """
    if seeds < 1:
        raise SafdaError(f"--seeds {seeds}: at least one run of each method is needed")
    torch.set_num_threads(1)  # as fast for so small a network, and the same numbers whatever the number of cores
    source, target = load_domain("digits-rendered"), load_domain("digits-handwritten")
    methods = {**_METHODS, **(_MORE if all_methods else {})}
    accuracies: dict[str, list[float]] = {}
    first: dict[str, Adapted] = {}
    for name, changes in methods.items():
        for seed in range(seeds):
            recipe = preset("digits").override({**changes, "seed": seed})
            run = folder / "runs" / f"{name.replace(' ', '-').lower()}-seed{seed}"
            adapted = _finished(run, recipe, TrainingView(f"{name}, seed {seed}", recipe.steps, console))
            if adapted is None:
                console.print(f"stopped; the same command goes on in {folder}")
                return 130
            first.setdefault(name, adapted)
            accuracies.setdefault(name, []).append(adapted.evaluate(target).accuracy)
        console.print(_line(name, accuracies[name]), highlight=False)
    picture = folder / "demo.png"
    adaptation_picture(first["source only"], first["MDD+SAF"], source, target, picture)
    write_json(folder / "results.json", accuracies)
    console.print(_table(accuracies, f"{source.name} → {target.name}, accuracy at the last step"))
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return 0


def _finished(path: Path, recipe: Recipe, view: TrainingView) -> Adapted | None:
    """Train a run, go on with it, or find it done; None if it was stopped."""
    with view:
        if (path / "recipe.toml").exists() and RunFolder.open(path).recipe == recipe:
            adapted, outcome = resume(path, watch=view)
        else:
            shutil.rmtree(path, ignore_errors=True)
            source, target = load_domain("digits-rendered"), load_domain("digits-handwritten")
            adapted, outcome = start(source, target, recipe, path, view, cpu=False, trackers=())
    return None if outcome.stopped_by else adapted


def _line(name: str, values: list[float]) -> str:
    return f"{name:<22} {' '.join(f'{value:.1%}' for value in values)}"


def _table(accuracies: Mapping[str, list[float]], title: str) -> Table:
    table = Table(title=title, show_edge=False)
    table.add_column("method")
    table.add_column("mean ± spread (%)", justify="right")
    table.add_column("each seed (%)", justify="right")
    for name, values in accuracies.items():
        percent = 100 * np.asarray(values)
        spread = f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else ""
        table.add_row(name, f"{percent.mean():.1f}{spread}", "  ".join(f"{value:.1f}" for value in percent))
    return table
