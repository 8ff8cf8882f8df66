"""The demonstration, with everything real but the number of steps."""

from __future__ import annotations

import dataclasses
import json

import pytest

from safda import recipe
from safda.cli import main
from safda.report import pictures


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setitem(recipe.PRESETS, "digits", dataclasses.replace(recipe.PRESETS["digits"], steps=2))
    monkeypatch.setattr(pictures, "_SHOWN", 60)


def test_the_demonstration_prints_a_table_draws_a_picture_and_goes_on_where_it_was(short, tmp_path, capsys):
    assert main(["demo", "-o", str(tmp_path), "--seeds", "2", "--all"]) == 0
    shown = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    methods = {"source only", "MDD", "MDD+SAF", "MDD+SAF to the letter", "DANN", "DANN+SAF", "CDAN", "CDAN+SAF"}
    assert set(results) == methods
    for name, accuracies in results.items():
        assert len(accuracies) == 2
        assert f"{100 * sum(accuracies) / 2:.1f} ±" in shown
        assert name in shown
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")

    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")}
    assert main(["demo", "-o", str(tmp_path), "--seeds", "2"]) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")} == before


def test_a_model_without_saf_has_no_mixing_weights(short):
    import safda
    from safda.data import load_domain

    adapted = safda.fit("digits-rendered", "digits-handwritten", **{"saf.enabled": False})
    assert len(pictures.mixing_weights(adapted, load_domain("digits-handwritten"))) == 0
