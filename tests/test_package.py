"""The package as an editor and a type checker see it."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import safda


def test_the_public_names_are_shown():
    assert set(safda.__all__) <= set(dir(safda))
    assert "__version__" in dir(safda)
    assert all(hasattr(safda, name) for name in dir(safda))


def test_to_look_at_the_names_loads_nothing():
    code = "import sys, safda; dir(safda); print({'torch', 'sklearn'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"


def test_type_checkers_are_told_to_read_the_annotations():
    assert resources.files("safda").joinpath("py.typed").is_file()


def test_what_a_module_exports_is_there():
    from safda import api, classifier, data, methods, recipe

    for module in (api, classifier, data, methods, recipe):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
