"""What a look at both domains tells before any training: counts, oddities, what is skipped, what leaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from safda.data.domain import Domain
from safda.data.pictures import Pictures
from safda.errors import nearest

_EXAMPLES = 3


@dataclass(frozen=True)
class DomainReport:
    """What one domain holds.

    Attributes:
        name: of the domain.
        samples: how many can be used.
        classes: class name → how many; empty without labels.
        skipped: why → which, of what cannot be used.
        traits: what is odd and put right in reading → how many.
        duplicates: groups of samples of the same content.
    """

    name: str
    samples: int
    classes: dict[str, int]
    skipped: dict[str, list[str]]
    traits: dict[str, int]
    duplicates: list[list[str]]


@dataclass(frozen=True)
class Preflight:
    """What both domains hold, and what is to be said of it.

    Attributes:
        source: the labelled domain.
        target: the other one. Classes it may show are never trained with.
        leaked: pairs (in the source, in the target) of the same content.
        warnings: one line for each thing that deserves a look.
    """

    source: DomainReport
    target: DomainReport
    leaked: list[tuple[str, str]]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Give plain values, for JSON."""
        return asdict(self)


def preflight(source: Domain, target: Domain, batch: int) -> Preflight:
    """Look at both domains.

    Args:
        source: the labelled domain.
        target: the other one; of labels it may have, only the classes' names and counts are shown.
        batch: samples of each domain in a training step.
    """
    reports = _report(source), _report(target)
    leaked = _leaked(source, target)
    warnings = [line for report in reports for line in _oddities(report)]
    warnings += _about_classes(*reports, batch)
    if leaked:
        pairs = [f"{one} = {other}" for one, other in leaked]
        warnings.append(f"{len(leaked)} pictures are in both domains: {_some(pairs)}")
    return Preflight(*reports, leaked, warnings)


def _report(domain: Domain) -> DomainReport:
    skipped: dict[str, list[str]] = defaultdict(list)
    for each, why in domain.skipped:
        skipped[why].append(each)
    counts: dict[str, int] = {}
    if domain.labels is not None:
        numbers = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
        counts = dict(zip(domain.classes, numbers, strict=True))
    traits: Counter[str] = Counter()
    duplicates = []
    if isinstance(domain.inputs, Pictures):
        traits.update(trait for of_one in domain.inputs.traits for trait in of_one)
        duplicates = [ids for ids in _by_content(domain).values() if len(ids) > 1]
    return DomainReport(domain.name, len(domain), counts, dict(skipped), dict(traits), duplicates)


def _by_content(domain: Domain) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    if isinstance(domain.inputs, Pictures) and domain.ids is not None:
        for digest, each in zip(domain.inputs.digests, domain.ids, strict=True):
            groups[digest].append(each)
    return groups


def _leaked(source: Domain, target: Domain) -> list[tuple[str, str]]:
    ours, theirs = _by_content(source), _by_content(target)
    return [(ours[digest][0], theirs[digest][0]) for digest in ours if digest in theirs]


def _oddities(report: DomainReport) -> list[str]:
    lines = [f"skipped {len(ids)}, {why}: {_some(ids)}" for why, ids in report.skipped.items()]
    if report.duplicates:
        copies = sum(len(ids) - 1 for ids in report.duplicates)
        lines.append(f"{copies} copies of other pictures: {_some([' = '.join(ids) for ids in report.duplicates])}")
    single = [name for name, count in report.classes.items() if count == 1]
    if single:
        lines.append(f"{len(single)} classes have one sample only: {_some(single)}")
    return [f"{report.name}: {line}" for line in lines]


def _about_classes(source: DomainReport, target: DomainReport, batch: int) -> list[str]:
    lines = []
    if len(source.classes) > batch:
        lines.append(
            f"{source.name}: {len(source.classes)} classes, and a batch of {batch} cannot hold them all; think of more"
        )
    if source.classes and target.classes:
        extra = [name for name in target.classes if name not in source.classes]
        missing = [name for name in source.classes if name not in target.classes]
        if extra:
            hint = nearest(extra[0], missing) if missing else ""
            hint = hint if "mean" in hint else ""
            lines.append(f"{target.name}: {len(extra)} classes are not in the source: {_some(extra)}{hint}")
        if missing:
            lines.append(f"{target.name}: {len(missing)} classes of the source are not in it: {_some(missing)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (", …" if len(names) > _EXAMPLES else "")
