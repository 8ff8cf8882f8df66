"""Text that others wrote is printed as it is, wherever it goes: nothing in it is obeyed, read as markup or computed."""

from __future__ import annotations

import csv
import io
import json
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from signal import Signals

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import safda
from safda.bench import claims
from safda.bench.benchmark import from_dict
from safda.bench.lab import Lab
from safda.bench.render import latex, report
from safda.bench.results import Results, Run
from safda.bench.view import GridView
from safda.cli import main
from safda.errors import Interrupted, SafdaError
from safda.io import write_table
from safda.report.figures import adaptation_figure
from safda.text import printable, to_json
from safda.view import TrainingView, evaluation_table, predictions_table, preflight_table
from tests.conftest import TINY, blobs

#: Clears the screen, closes markup that was never opened, ends a line, turns it round, is no UTF-8, and is a formula.
NASTY = "=1+1|[/bold]\x1b[2J\n\x9b31m\u202e\udcff$_{\\x"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def rendered(thing) -> str:
    console = Console(file=Terminal(), width=300, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(thing)
    return console.file.getvalue()


def harmless(shown: str) -> bool:
    """Whether nothing is in it that a terminal obeys but line ends, or that cannot be encoded."""
    return not any(unicodedata.category(c) in ("Cc", "Cs") or c == "\u202e" for c in shown.replace("\n", ""))


@given(st.text(st.characters()))
def test_any_text_becomes_one_harmless_line_and_json_stays_what_it_was(text):
    assert harmless(printable(text))
    assert "\n" not in printable(text)
    printable(text).encode()
    assert json.loads(to_json({text: [text]})) == {text: [text]}
    assert harmless(to_json([text], indent=2))


def test_what_can_be_printed_stays_as_it_is():
    text = "Straße, 日本語\u3000, naïve, 👩\u200d🔬, a\\b [x]"
    assert printable(text) == text


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """Two domains whose class, and whose folder, have such names; and a run on them."""
    folder = tmp_path_factory.mktemp("nasty") / "[bold]a\x1b[2J[x]$x_{$"
    folder.mkdir()
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(folder / f"{name}.npz", features=features, labels=labels, classes=np.array([NASTY, "bee", "[/]"]))
    files = folder / "source.npz", folder / "target.npz"
    safda.fit(*files, out=folder / "run", cpu=True, steps=3, **TINY)
    return folder, files


@pytest.mark.parametrize("is_terminal", [True, False])
def test_every_command_prints_names_as_they_are(nasty, is_terminal, monkeypatch):
    folder, (source, target) = nasty
    run = folder / ("on" if is_terminal else "off")
    tiny = [str(word) for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
    for words in (
        ["fit", source, target, "-o", run, "--steps", "3", "--cpu", *tiny],
        ["resume", run],
        ["doctor", source, target],
        ["predict", run, target],
        ["predict", run, target, "-o", folder / "p.csv"],
        ["evaluate", run, target],
    ):
        out, err = (Terminal() if is_terminal else io.StringIO() for _ in range(2))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = main([str(word) for word in words])
        monkeypatch.undo()
        assert code == 0, err.getvalue()
        shown = out.getvalue() + err.getvalue()
        assert not [each for each in ("\x1b[2J", "\x9b", "\u202e", "\udcff") if each in shown]
        assert is_terminal or harmless(shown)  # in a terminal rich has escape codes of its own


def test_tables_and_the_live_view_read_no_markup(nasty):
    _, files = nasty
    adapted = safda.Adapted.load(files[0].parent / "run")
    evaluation = adapted.evaluate(files[1]).to_dict()
    for table in (
        evaluation_table(evaluation),
        predictions_table([NASTY], [[(NASTY, 0.5)]]),
        preflight_table(
            {
                side: {
                    "name": NASTY,
                    "samples": 1,
                    "features": None,
                    "skipped": {},
                    "traits": {},
                    "duplicates": [],
                    "classes": {NASTY: 1},
                }
                for side in ("source", "target")
            }
        ),
    ):
        shown = rendered(table)
        assert harmless(shown)
        assert "=1+1|[/bold]\\u001b[2J\\n" in shown
    view = TrainingView(NASTY, 3, Console(file=io.StringIO(), width=300))
    view.progress(1, 2, NASTY)
    view(1, {f"loss/{NASTY}": 0.5})
    shown = rendered(view._render())
    assert shown.count("bold]\\u001b[2J") == 3
    assert harmless(shown)


def test_an_error_is_one_line_whatever_it_names(capsys):
    assert str(SafdaError(f"{NASTY}: no such file")) == f"{printable(NASTY)}: no such file"
    assert main(["predict", f"no{NASTY}", "x"]) == 1
    assert (
        capsys.readouterr().err == f"safda: error: no{printable(NASTY)}: is not a run folder (it has no recipe.toml)\n"
    )
    assert harmless(str(Interrupted(3, Signals.SIGTERM, Path(NASTY))))


def definition(**changes):
    rows = {"a": {"title": NASTY, "change": {}}, "b": {"title": "50% & more", "change": {}}}
    return {"title": NASTY, "domains": {"A|": "a.npz", "B": "b.npz"}, "tasks": ["A|→B"], "rows": rows, **changes}


def test_tables_of_a_benchmark_are_tables_whatever_the_names():
    benchmark = from_dict("mine", definition(per_class=True, variant=NASTY, variants={"v": {"title": NASTY}}))
    runs = [Run(row, "A|→B", 0, "key", 50.0, {NASTY: 1.0}, {"information": 1.0}, 0.0) for row in "ab"]
    results = Results(benchmark, runs, {"preset": NASTY})
    judged = claims.page([results])
    assert harmless(judged)
    lines = [line.replace("\\|", "").count("|") for line in judged.splitlines() if line.startswith("|")]
    assert set(lines) == {4}  # claim, two recipes; claim, recipe, evidence
    page = report(results, oracle=True)
    assert harmless(page)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines if "Avg" not in line} == {4}
    table = latex(results)
    assert harmless(table)
    assert "50\\% \\& more" in table
    assert "[/bold]\\textbackslash{}u001b" in table
    marks = table.replace("\\{", "")
    assert marks.count("{") == marks.count("}")
    assert len({line.replace("\\&", "").count("&") for line in table.splitlines() if line.endswith("\\\\")}) == 1


def test_the_live_grid_reads_no_markup(tmp_path):
    lab = Lab(tmp_path, from_dict("mine", definition()), {}, {}, 1)
    assert harmless(rendered(GridView(lab, []).render()))


def test_no_cell_of_a_csv_file_is_computed_and_numbers_stay_numbers(tmp_path):
    cells = ["=cmd|' /C calc'!A0", "@x", "+x", "-x", "-1", "+2.5", "a=b", NASTY, -0.5, None]
    write_table(tmp_path / "t.csv", {"=head": cells})
    (head,), *rows = csv.reader((tmp_path / "t.csv").open(encoding="utf-8", newline=""))
    read = [row[0] if row else "" for row in rows]
    assert head == "'=head"
    assert read[:7] == ["'=cmd|' /C calc'!A0", "'@x", "'+x", "'-x", "-1", "+2.5", "a=b"]
    assert read[7] == f"'{printable(NASTY)}"
    assert read[8:] == ["-0.5", ""]
    write_table(tmp_path / "t.jsonl", {"=head": cells})
    assert [json.loads(line)["=head"] for line in (tmp_path / "t.jsonl").read_text().splitlines()] == cells


def test_a_figure_reads_no_formula_in_a_name(nasty, tmp_path):
    adapted = safda.Adapted.load(nasty[0] / "run")
    source, target = (replace(safda.data.load_domain(file), name="$x_{$") for file in nasty[1])
    adaptation_figure(adapted, adapted, source, target, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size
