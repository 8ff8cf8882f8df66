"""Who may import whom. The listing of ``src/safda`` is the architecture; this keeps it true."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"

#: Rooms that know nothing of runs that were made: the engine, from the errors up to the loop.
ENGINE = {
    "text": set(),
    "errors": {"text"},
    "schema": {"errors"},
    "registry": {"errors"},
    "io": {"errors", "schema", "text"},
    "lock": {"errors", "io"},
    "turns": set(),
    "schedules": set(),
    "knobs": {"errors"},
    "formats": {"errors", "schema"},
    "presets": set(),
    "recipe": {"errors", "formats", "io", "knobs", "methods", "presets"},  # of methods the names, without torch
    "nn": {"errors", "recipe", "registry"},
    "data": {"errors", "io", "nn.vision", "registry", "text"},
    "methods": {"data", "errors", "knobs", "nn", "registry", "schedules"},
    "model": {"data", "errors", "methods", "nn", "recipe"},
    "training": {
        "data",
        "errors",
        "formats",
        "io",
        "lock",
        "methods",
        "model",
        "nn",
        "recipe",
        "schedules",
        "schema",
        "turns",
    },
    "extraction": {"data", "errors", "model", "nn", "recipe"},
}

#: Room → the rooms, or single modules of rooms, that it may import beside itself.
MAY_IMPORT = {
    **ENGINE,
    "view": {"text"},
    "predictions": {"io"},
    "exported": {"data", "errors", "io", "predictions", "schema"},  # and all of it without torch
    "export": {*ENGINE, "classifier", "evaluation", "exported", "predictions"},
    "classifier": {*ENGINE, "evaluation.oracle", "export", "predictions"},
    "evaluation": {*ENGINE, "classifier"},
    "report": {*ENGINE, "classifier", "evaluation"},
    "api": {*ENGINE, "classifier", "evaluation", "report"},
    "tuning": {*ENGINE, "classifier", "evaluation", "api"},
    "estimator": {*ENGINE, "classifier", "evaluation", "api", "view"},
    "bench": {*ENGINE, "classifier", "evaluation", "api", "report", "view"},
    "demo": {*ENGINE, "classifier", "evaluation", "api", "report", "view", "bench"},
}


@cache
def imports(for_types: bool = True) -> dict[str, set[str]]:
    """Each of our modules → those that it imports, wherever in it; in names, ``safda.`` is left out."""
    files = {_name(file): file for file in sorted((SOURCES / "safda").rglob("*.py"))}
    return {name: set(_imported(file, set(files), for_types)) for name, file in files.items()}


def _name(file: Path) -> str:
    parts = file.relative_to(SOURCES / "safda").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, known: set[str], for_types: bool):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if not for_types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("safda").strip(".") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            if _ours(node.module or ""):
                module = (node.module or "").removeprefix("safda").strip(".")
                for alias in node.names:
                    inner = f"{module}.{alias.name}".strip(".")
                    yield inner if inner in known else module


def _ours(module: str) -> bool:
    return module.split(".")[0] == "safda"


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_import_is_one_of_a_module_that_is_there():
    assert {"", "cli", "data.images", "nn.vision", "training.loop"} <= set(imports())
    assert "nn.vision" in imports()["data.images"]
    assert "data.digits" in imports()["data.loading"]  # 'from safda.data import digits' names a module
    assert {each for imported in imports().values() for each in imported} <= set(imports())


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_imports_only_what_stands_below_it(name):
    modules = [module for module in imports() if room(module) == name]
    allowed = MAY_IMPORT[name] | {name}
    for module in modules:
        upward = {each for each in imports()[module] if each not in allowed and room(each) not in allowed}
        assert not upward, f"{module} must not import {upward}"


def test_every_room_is_in_the_table():
    assert {room(module) for module in imports()} - {"", "cli"} == set(MAY_IMPORT)


def test_nobody_imports_the_command_line():
    assert [module for module, imported in imports().items() if "cli" in imported] == []


def test_recipes_know_of_methods_by_name_alone():
    assert {each for each in imports()["recipe"] if room(each) == "methods"} == {"methods"}


def test_no_module_imports_itself_in_a_circle():
    graph = {module: imported - {module} for module, imported in imports(for_types=False).items() if module}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_recipes_and_help_load_no_torch():
    code = """
import runpy, sys
import safda.recipe
loaded = [{"torch", "numpy"} & {*sys.modules}]
for words in (["--help"], ["doctor", "--help"]):
    sys.argv = ["safda", *words]
    try:
        runpy.run_module("safda.cli", run_name="__main__")
    except SystemExit as done:
        assert not done.code
    loaded.append({"torch", "numpy"} & {*sys.modules})
print(loaded, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage: safda" in ended.stdout
    assert ended.stderr == "[set(), set(), set()]\n"
