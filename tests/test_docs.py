"""The docs name things that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from safda.recipe import PRESETS, Recipe, walk

ROOT = Path(__file__).parent.parent


def cited():
    """Every `file` `symbol` pair of the page on the paper."""
    rows = (ROOT / "docs" / "paper.md").read_text().splitlines()
    for row in rows:
        for file, symbols in re.findall(r"`(src/[\w/]+\.py)`((?:,? `[\w.]+`)+)", row):
            for symbol in re.findall(r"`([\w.]+)`", symbols):
                yield file, symbol


@pytest.mark.parametrize(("file", "symbol"), sorted(set(cited())))
def test_the_page_on_the_paper_points_at_code_that_is_there(file, symbol):
    module = importlib.import_module(file.removeprefix("src/").removesuffix(".py").replace("/", "."))
    found = module
    for part in symbol.split("."):
        found = getattr(found, part)


def test_the_page_on_the_paper_cites_the_whole_algorithm():
    assert len(set(cited())) > 20


def test_every_knob_that_the_docs_name_exists():
    knobs = {path for path, _, _ in walk(Recipe())}
    sections = {path.split(".")[0] for path in knobs if "." in path}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {word for page in pages for word in re.findall(r"`(\w+\.\w+)(?: = [^`]*)?`", page.read_text())}
    named = {word for word in named if word.split(".")[0] in sections} - {"adversary.name"}
    assert named
    assert named <= knobs


def test_every_preset_is_in_the_reference():
    reference = (ROOT / "docs" / "reference.md").read_text()
    assert all(f"`{name}`" in reference for name in PRESETS)


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_example_method_in_contributing_works(monkeypatch):
    """The page's own code, run as it stands there."""
    import torch

    from safda import recipe
    from safda.adversaries import ADVERSARIES
    from safda.model import AdaptationModel

    method, knobs = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    scope: dict = {}
    exec(method, scope)
    monkeypatch.setitem(ADVERSARIES, "coral", scope["CORAL"])
    scope = dict(vars(recipe))
    exec(knobs, scope)
    monkeypatch.setitem(recipe.ADVERSARIES, "coral", scope["CORAL"])
    chosen = Recipe().override({"adversary.name": "coral"})
    model = AdaptationModel(chosen, torch.zeros(5), 3)
    losses = model(torch.randn(6, 5), torch.randint(0, 3, (6,)), torch.randn(6, 5), 0.5).losses
    assert losses["coral"] > 0
