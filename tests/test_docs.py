"""The docs name things that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from safda import knobs
from safda.cli import main
from safda.errors import SafdaError
from safda.methods import METHODS
from safda.recipe import PRESETS, Recipe, walk
from safda.training.checkpoint import RunFolder

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
    of_methods = {f"{name}.": method.Knobs() for name, method in METHODS.items()}
    known = {path for path, _, _ in walk(Recipe(methods=()))}
    known |= {path for prefix, section in of_methods.items() for path, _, _ in knobs.walk(section, prefix)}
    sections = {path.split(".")[0] for path in known if "." in path}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {word for page in pages for word in re.findall(r"`(\w+(?:\.\w+)+)(?: = [^`]*)?`", page.read_text())}
    named = {word for word in named if word.split(".")[0] in sections and not word.endswith(".json")}
    assert named
    assert named <= known


def test_every_preset_is_in_the_reference():
    reference = (ROOT / "docs" / "reference.md").read_text()
    assert all(f"`{name}`" in reference for name in PRESETS)


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_example_method_in_contributing_is_all_that_it_takes(monkeypatch, tmp_path, files):
    """The page's own code, run as it stands there, where safda knows of no such method."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)[0]
    assert code == (ROOT / "src/safda/methods/coral.py").read_text()
    known = {name: entry for name, entry in METHODS.items() if name != "coral"}
    monkeypatch.setattr(METHODS, "_entries", known)
    with pytest.raises(SafdaError, match="'coral' is unknown"):
        Recipe().override({"methods": ["coral", "saf"]})
    (tmp_path / "a_file_of_its_own.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("a_file_of_its_own")
    words = ["--methods", "coral,saf", "--coral.weight", 2, "--steps", 4, "--cpu"]
    assert main([str(word) for word in ("fit", *files, "-o", tmp_path / "run", *words)]) == 0
    assert "coral" in Recipe().override({"methods": "coral, saf"}).to_toml()
    assert RunFolder.open(tmp_path / "run").metrics()[-1]["loss/coral"] > 0


def test_the_listing_in_contributing_names_every_module():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    there = {file.name for file in (ROOT / "src" / "safda").rglob("*.py")} - {"__init__.py"}
    inner = {file.name for file in (ROOT / "src" / "safda" / "bench").glob("*.py")} | {
        "figures.py",
        "pictures.py",
        "self_training.py",
    }
    assert [name for name in sorted(there - inner) if name not in page] == []
