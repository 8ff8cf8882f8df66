"""The paper's claims against our runs."""

from __future__ import annotations

from dataclasses import dataclass

from safda.bench.benchmark import Claim, claims
from safda.bench.results import Difference, Results
from safda.text import markdown

HOLDS, FAILS, UNKNOWN, NOT_RUN = "holds", "does not hold", "not enough runs", "not run"
_FEWEST_SEEDS = 3  # with two, an interval over many tasks of which one varies most covers 0.91 instead of 0.95


@dataclass(frozen=True)
class Verdict:
    """A claim, what our runs say of it, and the numbers."""

    claim: Claim
    verdict: str
    evidence: str


def judge(results: Results, variant: str = "") -> list[Verdict]:
    """Judge every claim of the paper by the finished runs of one benchmark, in its own recipe or in a variant."""
    return [_judge_claim(claim, results, f"@{variant}" if variant else "") for claim in claims()]


def _judge_claim(claim: Claim, results: Results, suffix: str) -> Verdict:
    """One pair below zero refutes a claim; it holds when all are above, the whole interval each time.

    A claim on every task looks at each task. There, runs that are equal one by one (both at 100%) do not
    speak against it, as in the paper's own table.
    """
    verdicts: list[str] = []
    evidence: list[str] = []
    there = False
    for first, second in claim.better:
        tasks = results.benchmark.tasks
        scopes = {f"{markdown(task)} ": [task] for task in tasks} if claim.every_task else {"": tasks}
        found = {label: results.difference(first + suffix, second + suffix, scope) for label, scope in scopes.items()}
        there = there or any(found.values())
        verdicts += [_sign(difference, claim.every_task) for difference in found.values()]
        differences = "; ".join(f"{label}{_format_difference(each)}" for label, each in found.items())
        evidence.append(f"{first} − {second}: {differences}")
    verdict = FAILS if FAILS in verdicts else UNKNOWN if UNKNOWN in verdicts else HOLDS
    return Verdict(claim, verdict if there else NOT_RUN, ". ".join(evidence))


def _sign(difference: Difference | None, equal_will_do: bool) -> str:
    if difference is None or difference.fewest < _FEWEST_SEEDS:
        return UNKNOWN
    if difference.equal and equal_will_do:
        return HOLDS
    if difference.interval is None:
        return UNKNOWN
    low, high = difference.interval
    return HOLDS if low > 0 else FAILS if high < 0 else UNKNOWN


def _format_difference(difference: Difference | None) -> str:
    if difference is None:
        return "no runs"
    interval = "[{:+.1f}, {:+.1f}]".format(*difference.interval) if difference.interval else "(no interval)"
    return f"{difference.mean:+.1f} {interval}, {difference.pairs} pairs"


def page(results: list[Results]) -> str:
    """Write the claims of several benchmarks as Markdown: the recipes of each side by side, then the numbers."""
    parts = [
        "# The paper's claims, and our runs",
        "A difference is in points of accuracy at the last step, between runs of the same task and seed, with the 95% "
        "t interval over seeds. *Holds*: the whole interval is above zero, in every comparison. *Does not hold*: it is "
        f"below zero in one. *Not enough runs*: fewer than {_FEWEST_SEEDS} seeds of a task, an interval around zero, "
        "or none, since all differences are equal: these runs cannot tell. *Not run*: there are none. Both rows of a "
        "difference are of the same recipe: MDD with the same ramps, features and norm as the SAF beside it.",
    ]
    for each in results:
        parts += [f"## {markdown(each.benchmark.title)}", *_section(each)]
    return "\n\n".join(parts) + "\n"


def _section(results: Results) -> list[str]:
    """Write verdicts, evidence, and where a claim does not hold what was tried."""
    variants = results.benchmark.variants
    recipes = [markdown(variant.title) for variant in variants.values()]
    by_claim = list(zip(*(judge(results, name) for name in variants), strict=True))
    verdicts = [[each[0].claim.text, *(f"**{judged.verdict}**" for judged in each)] for each in by_claim]
    evidence = [
        [judged.claim.text, recipe, judged.evidence]
        for each in by_claim
        for recipe, judged in zip(recipes, each, strict=True)
        if judged.verdict != NOT_RUN
    ]
    failed = [each[0].claim for each in by_claim if any(judged.verdict == FAILS for judged in each)]
    tried = [[claim.text, claim.tried] for claim in failed]
    settings = ", ".join(f"{key} = {value}" for key, value in results.settings.items())
    return [
        *([f"Settings: {markdown(settings)}."] if settings else []),
        _table(["claim", *recipes], verdicts),
        *([_table(["claim", "recipe", "evidence"], evidence)] if evidence else []),
        *([_table(["does not hold", "what was tried to make it hold"], tried)] if tried else []),
    ]


def _table(heading: list[str], lines: list[list[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
