"""The demonstration, with everything real but the number of steps."""

from __future__ import annotations

import re

import pytest

from safda import recipe
from safda.cli import main
from safda.report import figures


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setitem(recipe.PRESETS, "digits", {**recipe.PRESETS["digits"], "steps": 2})
    recipe.preset.cache_clear()
    monkeypatch.setattr(figures, "_MAX_POINTS", 60)
    yield
    recipe.preset.cache_clear()


def test_the_demonstration_prints_a_table_draws_a_picture_and_goes_on_where_it_was(short, tmp_path, capsys):
    assert main(["demo", "-o", str(tmp_path), "--seeds", "2", "--all"]) == 0
    shown = capsys.readouterr().out
    for name in ("Source only", "MDD", "MDD+SAF", "MDD+SAF to the letter", "DANN", "DANN+SAF", "CDAN", "CDAN+SAF"):
        row = re.search(rf"^ *{re.escape(name)} +│ +([\d.]+) ± [\d.]+ │ +([\d.]+)  ([\d.]+) *$", shown, re.M)
        assert row, f"{name} is not in\n{shown}"
        mean, *each = map(float, row.groups())
        assert mean == pytest.approx(sum(each) / 2, abs=0.11)
    assert "learned" not in shown  # another row's name for a run that is there
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")

    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    assert len(before) >= 16
    assert main(["demo", "-o", str(tmp_path), "--seeds", "2"]) == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")} == before


def test_a_model_without_saf_has_no_mixing_weights(short):
    import safda
    from safda.data import load_domain

    adapted = safda.fit("digits-rendered", "digits-handwritten", methods=["mdd"])
    assert len(figures.mixing_weights(adapted, load_domain("digits-handwritten"))) == 0
