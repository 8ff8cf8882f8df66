"""Tables for reading: Markdown and LaTeX in the paper's form, mean ± spread, the best in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from safda import text
from safda.bench.results import SELECTION_SCORE, Results, Stat, stat


@dataclass(frozen=True)
class ResultLine:
    """One line of a table: a method and its numbers, some of them missing."""

    title: str
    cells: tuple[Stat | None, ...]


@dataclass(frozen=True)
class ResultTable:
    """A heading for each column, and blocks of lines; the best of each column is bold within its block."""

    columns: tuple[str, ...]
    blocks: tuple[tuple[ResultLine, ...], ...]


def main_table(results: Results) -> ResultTable:
    """Return the published numbers, marked as such, and ours below them."""
    benchmark, rows = results.benchmark, results.benchmark.rows
    average = ("Avg",) if len(benchmark.tasks) > 1 else ()
    published = tuple(
        ResultLine(
            f"{row.title} (published)",
            (
                *(None for _ in results.classes),
                *(_published_stat(row.published.get(task), row.spread.get(task)) for task in benchmark.tasks),
                *(_published_stat(row.average, None) for _ in average),
            ),
        )
        for row in rows.values()
        if row.published
    )
    ours = tuple(
        ResultLine(
            rows[name].title,
            (
                *(results.class_stat(name, each) for each in results.classes),
                *(results.stat(name, task) for task in benchmark.tasks),
                *(results.average(name) for _ in average),
            ),
        )
        for name in results.rows
    )
    tasks = ("Mean",) if results.classes and len(benchmark.tasks) == 1 else benchmark.tasks
    return ResultTable((*results.classes, *tasks, *average), tuple(block for block in (published, ours) if block))


def _published_stat(mean: float | None, spread: float | None) -> Stat | None:
    return None if mean is None else Stat(mean, spread, 1)


def _single_runs(results: Results, pick: Callable[[str, str], float | None]) -> ResultTable:
    """Return a table with one run in each cell."""
    lines = []
    for name in results.rows:
        values = [pick(name, task) for task in results.benchmark.tasks]
        cells = [None if value is None else stat([value]) for value in values]
        there = [value for value in values if value is not None]
        cells.append(stat([sum(there) / len(there)]) if len(there) == len(values) else None)
        lines.append(ResultLine(results.benchmark.rows[name].title, tuple(cells)))
    return ResultTable((*results.benchmark.tasks, "Avg"), (tuple(lines),))


# -------------------------------------------------------------------------------------------------- Markdown


def report(results: Results, oracle: bool) -> str:
    """Write the whole page: the table, how far it is from the paper, the label-free choice, and if asked the oracle."""
    counts = {len(results.of_cell(row, task)) for row in results.rows for task in results.benchmark.rows[row].tasks}
    runs = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts, default=0)}"
    chosen = text.markdown(", ".join(f"{key} = {value}" for key, value in results.settings.items()))
    parts = [
        f"# {text.markdown(results.benchmark.title)}",
        f"Benchmark {text.markdown(results.benchmark.name)}{f', {chosen}' if chosen else ''}; "
        f"runs of each row and task: {runs}. "
        "Accuracy at the last step: mean ± standard deviation over seeds; the best of each block in bold.",
        markdown(main_table(results)),
    ]
    against = _against_the_paper(results)
    if against:
        parts += ["## Against the paper", "Ours minus published, in points.", against]
    parts += [
        "## Chosen without labels",
        "The accuracy of the one run, among the seeds of each row and task, "
        f"that the score `{SELECTION_SCORE}` likes best.",
        markdown(_single_runs(results, lambda row, task: _accuracy(results.chosen(row, task)))),
    ]
    if oracle:
        parts += [
            "## Oracle",
            "The best run by target labels. Nobody could have chosen it: this is not a result.",
            markdown(_single_runs(results, lambda row, task: _accuracy(results.oracle(row, task)))),
        ]
    return "\n\n".join(parts) + "\n"


def _accuracy(run: object) -> float | None:
    return getattr(run, "accuracy", None)


def _against_the_paper(results: Results) -> str:
    lines = []
    for name in results.rows:
        row = results.benchmark.rows[name]
        pairs = [(results.stat(name, task), row.published.get(task)) for task in results.benchmark.tasks]
        pairs.append((results.average(name), row.average))
        if row.published:
            gaps = [f"{ours.mean - theirs:+.1f}" if ours and theirs is not None else "–" for ours, theirs in pairs]
            lines.append(_markdown_line([text.markdown(row.title), *gaps]))
    heading = ["method", *map(text.markdown, results.benchmark.tasks), "Avg"]
    return "\n".join([_markdown_line(heading), _markdown_rule(heading), *lines]) if lines else ""


def markdown(table: ResultTable) -> str:
    """Write a table as Markdown."""
    heading = ["method", *map(text.markdown, table.columns)]
    lines = [_markdown_line(heading), _markdown_rule(heading)]
    for block in table.blocks:
        best = _best(block)
        for line in block:
            cells = [_cell(s, " ± ", "**{}**", best[i]) for i, s in enumerate(line.cells)]
            lines.append(_markdown_line([text.markdown(line.title), *cells]))
    return "\n".join(lines)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_rule(heading: Sequence[str]) -> str:
    return "|---" + "|---:" * (len(heading) - 1) + "|"


# ----------------------------------------------------------------------------------------------------- LaTeX


def latex(results: Results) -> str:
    """Write the main table as LaTeX, for the package booktabs."""
    table = main_table(results)
    lines = [
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        _latex_line(["Method", *map(text.latex, table.columns)]),
    ]
    for block in table.blocks:
        best = _best(block)
        lines.append("\\midrule")
        for line in block:
            cells = [_cell(s, "$\\pm$", "\\textbf{{{}}}", best[i]) for i, s in enumerate(line.cells)]
            lines.append(_latex_line([text.latex(line.title), *cells]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\".replace("–", "--")


# ----------------------------------------------------------------------------------------------------- cells


def _best(block: Sequence[ResultLine]) -> list[float | None]:
    """The highest number of each column, as it is printed, so that equals are all bold."""
    columns = zip(*(line.cells for line in block), strict=True)
    return [max((round(s.mean, 1) for s in column if s), default=None) for column in columns]


def _cell(value: Stat | None, plus_minus: str, bold: str, best: float | None) -> str:
    if value is None:
        return "–"
    shown = f"{value.mean:.1f}" + (f"{plus_minus}{value.spread:.1f}" if value.spread is not None else "")
    return bold.format(shown) if round(value.mean, 1) == best else shown
