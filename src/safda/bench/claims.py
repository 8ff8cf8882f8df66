"""The paper's claims against our runs."""

from __future__ import annotations

from dataclasses import dataclass

from safda.bench.benchmark import Claim, claims
from safda.bench.results import Difference, Results
from safda.text import markdown

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "not enough runs"
_FEWEST_SEEDS = 3  # with two, an interval over many tasks of which one varies most covers 0.91 instead of 0.95


@dataclass(frozen=True)
class Verdict:
    """A claim, what our runs say of it, and the numbers."""

    claim: str
    verdict: str
    evidence: str


def judge(results: Results) -> list[Verdict]:
    """Judge every claim of the paper by the finished runs of one benchmark."""
    return [_judge_claim(claim, results) for claim in claims()]


def _judge_claim(claim: Claim, results: Results) -> Verdict:
    """One pair below zero refutes a claim; it holds when all are above, the whole interval each time.

    A claim on every task looks at each task. There, runs that are equal one by one (both at 100%) do not
    speak against it, as in the paper's own table.
    """
    verdicts, evidence = [], []
    for first, second in claim.better:
        tasks = results.benchmark.tasks
        scopes = {f"{markdown(task)} ": [task] for task in tasks} if claim.every_task else {"": tasks}
        found = {label: results.difference(first, second, scope) for label, scope in scopes.items()}
        verdicts += [_sign(difference, claim.every_task) for difference in found.values()]
        differences = "; ".join(f"{label}{_format_difference(each)}" for label, each in found.items())
        evidence.append(f"{first} − {second}: {differences}")
    verdict = FAILS if FAILS in verdicts else UNKNOWN if UNKNOWN in verdicts else HOLDS
    return Verdict(claim.text, verdict, ". ".join(evidence))


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
    """Write the claims of several benchmarks as Markdown."""
    parts = [
        "# The paper's claims, and our runs",
        "A difference is in points of accuracy at the last step, between runs of the same task and seed, with the 95% "
        "t interval over seeds. *Holds*: the whole interval is above zero, in every comparison. *Does not hold*: it is "
        f"below zero in one. *Not enough runs*: fewer than {_FEWEST_SEEDS} seeds of a task, an interval around zero, "
        "or none, since all differences are equal: these runs cannot tell.",
    ]
    for each in results:
        lines = [f"| {v.claim} | **{v.verdict}** | {v.evidence} |" for v in judge(each)]
        parts += [
            f"## {markdown(each.benchmark.title)}",
            "\n".join(["| claim | verdict | evidence |", "|---|---|---|", *lines]),
        ]
    return "\n\n".join(parts) + "\n"
