"""The report as one HTML file that needs nothing else: no network, no other file.

Whatever comes from outside (names of classes, files and runs, recipes) is escaped by the template's environment, and
what a terminal or a line would obey is made visible; JSON within the page has no character that HTML could read. As a
second wall, the page's own policy lets no script run but the one that belongs to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from safda.data import Domain
from safda.report import charts, sections
from safda.report.data import RunReport
from safda.report.page import asset, digest, json_in_html
from safda.report.tables import table
from safda.report.thumbnails import ContactSheet, contact_sheet
from safda.text import printable

_TILE, _SMALL_TILE, _MANY_TILES = 64, 40, 2500  # pixels; of more pictures than so many, smaller ones
_SECTIONS = {
    "verdict": "Verdict",
    "compare": "Side by side",
    "choice": "Choice",
    "diagnosis": "Diagnosis",
    "map": "Map",
    "confidence": "Confidence",
    "oracle": "Oracle",
    "classes": "Classes",
    "samples": "Samples",
    "training": "Training",
    "theory": "Theory",
    "recipe": "Recipe",
}


def render(runs: Sequence[RunReport]) -> str:
    """Return the page of a run, or of several side by side."""
    named = dict(zip(run_names(runs), runs, strict=True))
    sheets = contact_sheets(runs)
    shown = [_run_context(number, name, run, sheets) for number, (name, run) in enumerate(named.items())]
    several = len(runs) > 1
    script, frame = asset("report.js"), _frame()
    context: dict[str, Any] = {
        "version": metadata.version("safda"),
        "title": " and ".join(dict.fromkeys(run.title for run in runs)),
        "several": several,
        "runs": shown,
        "frame": frame,
        "comparison": sections.comparison(named) if several else None,
        "differences": sections.differences(named) if several else None,
        "labelled": next((run.oracle.name for run in runs if run.oracle), ""),
        "curves": [_with_tables(group) for group in sections.curves(named)],
        "curves_text": sections.curves_text(runs),
        "style": Markup(asset("report.css")),
        "script": Markup(script),
        "script_digest": digest(script),
        "sheets": [
            {"uri": Markup(sheet.uri), "columns": sheet.columns, "lines": sheet.lines} for sheet in sheets.values()
        ],
        "data": json_in_html(
            {
                "frame": frame,
                "sheets": [{"columns": sheet.columns} for sheet in sheets.values()],
                "maps": [_map_data(run, sheets) for run in runs],
            }
        ),
    }
    present = {"verdict", "classes", "training", "recipe", *(["compare"] if several else [])}
    of_runs = {"choice": "candidates", "diagnosis": "findings", "confidence": "histogram", "samples": "most"}
    for section in ("map", "oracle", "theory", *of_runs):
        present |= {section} if any(run[of_runs.get(section, section)] for run in shown) else set()
    context["sections"] = [(key, name) for key, name in _SECTIONS.items() if key in present]
    return _environment().get_template("page.html").render(context)


def run_names(runs: Sequence[RunReport]) -> list[str]:
    """Return what to call runs: the names of their folders or, where these are the same, their paths."""
    names = [run.path.resolve().name for run in runs]
    if len({*names}) < len(names):
        names = [str(run.path) for run in runs]
    return [
        printable(name) if names.count(name) == 1 else f"{printable(name)} ({k + 1})" for k, name in enumerate(names)
    ]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("safda.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
    )


def _frame() -> dict[str, int]:
    names = ("width", "height", "left", "right", "top", "bottom")
    sizes = (charts.WIDTH, charts.HEIGHT, charts.LEFT, charts.RIGHT, charts.TOP, charts.BOTTOM)
    return dict(zip(names, sizes, strict=True))


def _run_context(number: int, name: str, run: RunReport, sheets: Mapping[Any, ContactSheet]) -> dict[str, Any]:
    """Return all that the template shows of one run."""
    histogram, oracle, projection = sections.histogram(run), sections.oracle(run), run.projection
    if oracle:
        oracle["reliability"] = _with_table(oracle["reliability"])
    groups = {
        which: {
            "pictures": _pictures(run, rows, sheets),
            "table": sections.samples_table(run, rows, f"The {len(rows)} {which} certain target samples"),
        }
        for which, rows in sections.extremes(run).items()
    }
    return {
        "number": number,
        "name": name,
        "verdict": sections.verdict(run),
        "figures": sections.figures(run),
        "notes": run.notes,
        "candidates": sections.candidates(run),
        "findings": sections.findings(run),
        "map": projection and {"captions": list(projection.views), "text": sections.map_text(projection)},
        "histogram": histogram and _with_table(histogram),
        "scores": sections.scores(run),
        "oracle": oracle,
        "shares": sections.shares(run),
        "most": groups.get("most"),
        "least": groups.get("least"),
        "theory": sections.theory(run),
        "origin": sections.origin(run),
        "environment": sections.environment(run),
        "recipe": Markup("\n").join(escape(printable(line)) for line in run.recipe.to_toml().splitlines()),
    }


def _with_table(chart: charts.LineChart | charts.BarChart) -> dict[str, Any]:
    """Return a chart as the template draws it, with the table behind it."""
    return {**vars(chart), "table": table(chart.title, chart.columns, chart.rows)}


def _with_tables(group: Mapping[str, Any]) -> dict[str, Any]:
    return {**group, "charts": [_with_table(chart) for chart in group["charts"]]}


# ---------------------------------------------------------------------------------------------------------- pictures


def contact_sheets(runs: Sequence[RunReport]) -> dict[tuple[str, str], ContactSheet]:
    """Draw every picture that the page shows, once: (role, digest of the domain) → its pictures."""
    wanted: dict[tuple[str, str], set[int]] = defaultdict(set)
    domains: dict[tuple[str, str], Domain] = {}
    for run in runs:
        for role, domain in run.pictures.items():
            key = _key(run, role)
            domains[key] = domain
            if run.projection:
                wanted[key] |= {*run.projection.rows[("source", "target").index(role)].tolist()}
            if role == "target":
                wanted[key] |= {row for rows in sections.extremes(run).values() for row in rows}
    tile = _TILE if sum(map(len, wanted.values())) <= _MANY_TILES else _SMALL_TILE
    return {key: contact_sheet(domains[key], rows, tile) for key, rows in wanted.items() if rows}


def _key(run: RunReport, role: str) -> tuple[str, str]:
    return role, run.data[role]["digest"]


def _pictures(run: RunReport, rows: Sequence[int], sheets: Mapping[Any, ContactSheet]) -> list[dict[str, Any]] | None:
    """Return where the pictures of target samples are, and what is said under each; None where there are none."""
    key = _key(run, "target")
    if key not in sheets or run.samples is None:
        return None
    seen, sheet, number = run.samples, sheets[key], list(sheets).index(key)
    found = []
    for row in rows:
        line, column = divmod(sheet.places[row], sheet.columns)
        before = None if seen.source_only is None else seen.source_only[row]
        found.append(
            {
                "id": seen.ids[row],
                "sheet": number,
                "column": column,
                "line": line,
                "name": run.classes[seen.predicted[row]],
                "confidence": f"{seen.confidence[row]:.1%}",
                "before": "" if before in (None, seen.predicted[row]) else run.classes[before],
            }
        )
    return found


def _map_data(run: RunReport, sheets: Mapping[Any, ContactSheet]) -> dict[str, Any] | None:
    """Return what the page's script draws: a number or a text for each sample shown, the source's first."""
    projection, seen = run.projection, run.samples
    if projection is None:
        return None
    of_source, of_target = (rows.tolist() for rows in projection.rows)
    unknown: list[Any] = [None] * len(of_target)
    before = None if seen is None else seen.source_only
    keys = {role: _key(run, role) for role in ("source", "target")}
    places = {role: sheets[key].places if key in sheets else {} for role, key in keys.items()}
    return {
        "classes": [printable(name) for name in run.classes],
        "sources": len(of_source),
        "ids": [printable(each) for each in projection.ids],
        "labels": [*projection.labels.tolist(), *(unknown if seen is None else seen.predicted[of_target].tolist())],
        "confidence": [None] * len(of_source)
        + (unknown if seen is None else seen.confidence[of_target].round(4).tolist()),
        "before": [None] * len(of_source) + (unknown if before is None else before[of_target].tolist()),
        "views": [points.round(4).flatten().tolist() for points in projection.views.values()],
        "tiles": [places["source"].get(row) for row in of_source] + [places["target"].get(row) for row in of_target],
        "sheets": {role: list(sheets).index(key) if key in sheets else None for role, key in keys.items()},
    }
