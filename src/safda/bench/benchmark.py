"""A benchmark is data: rows (methods) by columns (tasks), with the numbers that were published for them.

The paper's tables are TOML files in ``tables/``; a user's own is a file of the same form::

    title = "Accuracy (%) on fruit"
    preset = "default"                          # or a recipe file
    change = { steps = 2000, "mdd.margin" = 2 } # knobs by their path, in all rows that have them
    domains = { P = "photos.npz", S = "sketches.npz" }
    tasks = ["P→S", "S→P"]

    [rows.mdd]                                  # a row of methods.toml needs no more

    [rows.mine]
    title = "MDD, wider margin"
    change = { methods = ["mdd", "saf"], "mdd.margin" = 8 }

    [rows.theirs]                               # nothing to run: published only
    title = "Theirs"
    published = [81.2, 64.0]

    [variants.paper]                            # another recipe, to try rows in
    title = "as the paper has it"
    preset = "paper-frozen"

    [rows."mine@paper"]                         # the row above, in that recipe
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from safda.errors import SafdaError, nearest
from safda.io import parse_toml, read_text
from safda.recipe import Recipe, load_recipe
from safda.schema import BENCHMARK, check

_METRICS = ("accuracy", "mean_class_accuracy")
_ROW: dict[str, Any] = BENCHMARK["rows?"][str]
_VARIANT: dict[str, Any] = BENCHMARK["variants?"][str]


@dataclass(frozen=True)
class Variant:
    """A recipe that rows change: the benchmark's own, or another to try some of them in.

    Attributes:
        title: what tables and claims call it.
        preset: a preset or recipe file.
        change: knobs by their path, for all rows in it.
    """

    title: str
    preset: str
    change: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        name: what ``--rows`` calls it; ``NAME@VARIANT`` is row NAME in a variant.
        title: what a table calls it.
        variant: the recipe that it changes; "" is the benchmark's own.
        change: knobs by their path; None for a row that is published only.
        tasks: the tasks it is run on.
        published: task → published accuracy in percent.
        spread: task → its published spread.
        average: the published average.
    """

    name: str
    title: str
    variant: str
    change: Mapping[str, Any] | None
    tasks: tuple[str, ...]
    published: Mapping[str, float]
    spread: Mapping[str, float]
    average: float | None


@dataclass(frozen=True)
class Benchmark:
    """A table to fill in.

    Attributes:
        name: what the command line calls it.
        title: the table's caption.
        variants: name → recipe that rows change; under "" the benchmark's own.
        domains: a domain's short name → its path under the data folder, or an embedded domain's name.
        tasks: the columns, each ``source→target`` in short names.
        metric: the field of an evaluation that counts.
        per_class: whether every class has a column of its own.
        figure: rows, two or more, whose t-SNE are to be drawn side by side; or none.
        rows: name → row, in the table's order.
        definition: the plain values it was made of.
    """

    name: str
    title: str
    variants: Mapping[str, Variant]
    domains: Mapping[str, str]
    tasks: tuple[str, ...]
    metric: str
    per_class: bool
    figure: tuple[str, ...]
    rows: Mapping[str, Row]
    definition: Mapping[str, Any]

    def runnable(self, chosen: Iterable[str] | None = None) -> list[Row]:
        """Return the rows that can be run: all, or those chosen."""
        there = {name: row for name, row in self.rows.items() if row.change is not None}
        if chosen is None:
            return list(there.values())
        for name in chosen:
            if name in self.rows and name not in there:
                raise SafdaError(f"{self.name}: row {name!r} is published only; runnable: {', '.join(there)}")
            if name not in there:
                raise SafdaError(f"{self.name}: no row {name!r}{nearest(name, there)}")
        return [there[name] for name in chosen]

    def recipe(self, row: Row, settings: Mapping[str, Any], seed: int) -> Recipe:
        """Return the recipe of one run: preset, the benchmark's changes, the settings, the row's changes, the seed.

        A preset among the settings stands in place of the benchmark's own with all its changes; rows of a variant keep
        theirs. A row is a single recipe, unless it says that it is a choice among several. Knobs of a method are turned
        in the rows that have it.
        """
        settings, variant = dict(settings), self.variants[row.variant]
        asked = settings.pop("preset", None)
        if asked is not None and not row.variant:
            variant = Variant(variant.title, asked, {})
        recipe = _with_methods_of(row, variant)
        recipe = recipe.override(self._of_its_methods(variant.change, recipe), f"{self.name}: change")
        recipe = recipe.override(self._of_its_methods(settings, recipe), f"{self.name}: settings")
        return recipe.override({**(row.change or {}), "seed": seed}, f"{self.name}: rows.{row.name}.change")

    def _of_its_methods(self, change: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
        """Leave out knobs of methods that other rows have and this one has not."""
        others = self._all_methods - set(recipe.of_methods)
        return {path: value for path, value in change.items() if path.partition(".")[0] not in others}

    @cached_property
    def _all_methods(self) -> set[str]:
        recipes = [_with_methods_of(row, self.variants[row.variant]) for row in self.runnable()]
        return {name for recipe in recipes for name in recipe.of_methods}


def _with_methods_of(row: Row, variant: Variant) -> Recipe:
    """Return a variant's single recipe with the methods of a row."""
    recipe = load_recipe(variant.preset).single()
    return recipe.override({key: value for key, value in (row.change or {}).items() if key == "methods"})


def shipped() -> list[str]:
    """Return the names of the benchmarks that come with the package."""
    return sorted(Path(file.name).stem for file in _resource("tables").iterdir())


def load_benchmark(name_or_path: str | Path) -> Benchmark:
    """Return the benchmark of that name, or the one in that TOML file."""
    name, path = str(name_or_path), Path(name_or_path)
    if name in shipped():
        return from_dict(name, parse_toml(_resource("tables", f"{name}.toml").read_text(encoding="utf-8"), name))
    if path.suffix != ".toml":
        raise SafdaError(f"no benchmark {name!r}{nearest(name, shipped())}; or give a .toml file of your own")
    return from_dict(path.stem, parse_toml(read_text(path), f"benchmark {path}"))


def from_dict(name: str, values: Mapping[str, Any]) -> Benchmark:
    """Make a benchmark of plain values, every one of them checked."""
    where = f"benchmark {name}"
    _check_keys(values, BENCHMARK, where)
    check(values, BENCHMARK, where)
    for key in ("domains", "tasks", "rows"):
        if not values.get(key):
            raise SafdaError(f"{where}: {key!r} is missing or empty")
    domains: dict[str, str] = values["domains"]
    tasks = tuple(_parse_task(task, domains, where) for task in values["tasks"])
    variants = _parse_variants(values, where)
    rows = {row: _parse_row(row, values["rows"], variants, tasks, domains, where) for row in values["rows"]}
    metric = values.get("metric", "accuracy")
    if metric not in _METRICS:
        raise SafdaError(f"{where}: metric = {metric!r} is unknown{nearest(str(metric), _METRICS)}")
    figure = tuple(values.get("figure", ()))
    if figure and (len(figure) < 2 or any(row not in rows for row in figure)):
        raise SafdaError(f"{where}: figure = {list(figure)!r} must name two of the rows, or more")
    return Benchmark(
        name=name,
        title=values.get("title", name),
        variants=variants,
        domains=domains,
        tasks=tasks,
        metric=metric,
        per_class=bool(values.get("per_class", False)),
        figure=figure,
        rows=rows,
        definition=values,
    )


@dataclass(frozen=True)
class Claim:
    """Something the paper says: in every pair, the first row is better than the second.

    Attributes:
        text: what it says.
        better: pairs of rows.
        every_task: whether it says so of every task, and not of their mean.
        tried: what was tried to make it hold, for a reader who is told that it does not.
    """

    text: str
    better: tuple[tuple[str, str], ...]
    every_task: bool
    tried: str


@cache
def claims() -> tuple[Claim, ...]:
    """Return the paper's claims."""
    listed = parse_toml(_resource("claims.toml").read_text(encoding="utf-8"), "claims")["claims"]
    return tuple(
        Claim(each["text"], tuple(map(tuple, each["better"])), each.get("every_task", False), each["tried"])
        for each in listed
    )


@cache
def _methods() -> dict[str, Any]:
    return parse_toml(_resource("methods.toml").read_text(encoding="utf-8"), "methods")


def _resource(*parts: str) -> Any:
    return resources.files("safda.bench").joinpath(*parts)


def _parse_variants(values: Mapping[str, Any], where: str) -> dict[str, Variant]:
    preset = values.get("preset", "default")
    variants = {"": Variant(values.get("variant", preset), preset, values.get("change", {}))}
    for name, about in values.get("variants", {}).items():
        _check_keys(about, _VARIANT, f"{where}: variants.{name}")
        variants[name] = Variant(about.get("title", name), about.get("preset", preset), about.get("change", {}))
    return variants


def _parse_row(
    name: str,
    rows: Mapping[str, Any],
    variants: Mapping[str, Variant],
    tasks: tuple[str, ...],
    domains: Mapping[str, str],
    where: str,
) -> Row:
    base, _, variant = name.partition("@")
    if variant not in variants:
        raise SafdaError(f"{where}: rows.{name}: no variant {variant!r}{nearest(variant, filter(None, variants))}")
    known = {"title": base, **_methods().get(base, {}), **rows.get(base, {})}
    if variant:
        known["title"] += f", {variants[variant].title}"
    own = rows[name]
    _check_keys(own, _ROW, f"{where}: rows.{name}")
    numbers = {}
    for key in ("published", "spread"):
        listed = own.get(key, [math.nan] * len(tasks))
        if not isinstance(listed, list) or len(listed) != len(tasks):
            raise SafdaError(f"{where}: rows.{name}.{key} must be a list of {len(tasks)} numbers, one a task")
        numbers[key] = {task: float(x) for task, x in zip(tasks, listed, strict=True) if not math.isnan(x)}
    about = {**known, **own}
    chosen = tuple(_parse_task(task, domains, where) for task in about.get("tasks", tasks))
    for task in chosen:
        if task not in tasks:
            raise SafdaError(f"{where}: rows.{name}.tasks: {task!r} is not a task of the benchmark")
    return Row(
        name=name,
        title=about["title"],
        variant=variant,
        change=about.get("change"),
        tasks=chosen,
        published=numbers["published"],
        spread=numbers["spread"],
        average=own.get("average"),
    )


def _parse_task(text: Any, domains: Mapping[str, str], where: str) -> str:
    """Return a task as ``source→target``, both of them known."""
    ends = [end.strip() for end in str(text).replace("->", "→").split("→")]
    if len(ends) != 2:
        raise SafdaError(f"{where}: task {text!r} must be 'SOURCE→TARGET' or 'SOURCE->TARGET'")
    for end in ends:
        if end not in domains:
            raise SafdaError(f"{where}: task {text!r}: no domain {end!r}{nearest(end, domains)}")
    return "→".join(ends)


def _check_keys(values: Mapping[str, Any], form: Mapping[str, Any], where: str) -> None:
    known = [key.removesuffix("?") for key in form]
    for key in values:
        if key not in known:
            raise SafdaError(f"{where}: unknown key {key!r}{nearest(key, known)}")
