"""What a look at both domains tells before any training: counts, oddities, what is skipped, what leaks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safda.data.domain import AnyDomain, Domain, ImageDomain
from safda.data.length_probe import length_probe, loses_by_length
from safda.data.pixels import HUGE
from safda.data.sampler import evenly_spaced_rows
from safda.data.statistics import RowStatistics, row_statistics
from safda.errors import first_few, nearest

# What deserves a line. Domains differ, or there would be nothing to adapt: these are set so that healthy pairs (SURF
# histograms, pixels of digits, words of reviews, networks' features) are passed over in silence.
_LENGTH_FACTOR = 3.0  # healthy pairs stay within 1.6; other units, or a scaler that one domain went without, do not
_COLUMN_FACTOR = 10.0  # of one column between the domains: adaptation is there for less than that
_COLUMNS_APART = 0.5  # share of such columns: a forgotten scaler moves most, while MNIST to USPS has a quarter
_MOST_COMPARED = 4096  # rows of each domain tell their scale
_IDLE_COLUMNS = 0.05  # share of columns that one domain alone lacks: MNIST's empty border is half of that


@dataclass(frozen=True)
class FeatureReport:
    """What the numbers of one domain look like.

    Attributes:
        shape: of a sample.
        length: mean length of a row.
        std: standard deviation of all values together.
        zeros: share of values that are zero.
        zero_rows: samples that are zeros only.
        constant: columns that never change.
    """

    shape: tuple[int, ...]
    length: float
    std: float
    zeros: float
    zero_rows: list[str]
    constant: list[int]


@dataclass(frozen=True)
class ScaleReport:
    """How the target's numbers are scaled: each ratio is the target's over the source's, None where one has none.

    Attributes:
        length: ratio of the rows' mean lengths.
        std: ratio of the standard deviations of all values.
        column: median ratio of the columns' standard deviations, over those that change in both domains.
        apart: columns that vary ten times as much in one domain, or more.
        constant_in_both: columns that never change in either domain: they tell nothing.
    """

    length: float | None
    std: float | None
    column: float | None
    apart: list[int]
    constant_in_both: list[int]


@dataclass(frozen=True)
class DomainReport:
    """What one domain holds.

    Attributes:
        name: of the domain.
        samples: how many can be used.
        classes: class name → how many; empty without labels.
        skipped: why → which, of what cannot be used.
        traits: what is odd and put right in reading → how many.
        duplicates: groups of samples of the same content; rows of zeros only are not among them.
        conflicts: those of them that are not of one class, each sample with its class.
        huge: pictures of so many pixels that each is decoded by itself.
        features: what its numbers look like; None for pictures.
    """

    name: str
    samples: int
    classes: dict[str, int]
    skipped: dict[str, list[str]]
    traits: dict[str, int]
    duplicates: list[list[str]]
    conflicts: list[list[tuple[str, str]]]
    huge: list[str]
    features: FeatureReport | None = None


@dataclass(frozen=True)
class Preflight:
    """What both domains hold, and what is to be said of it.

    Attributes:
        source: the labelled domain.
        target: the other one. Classes it may show are never trained with.
        leaked: pairs (in the source, in the target) of the same content.
        warnings: one line for each thing that deserves a look.
        same_shape: whether samples of both can go through one network.
        scales: how the target's numbers are scaled beside the source's; None for pictures and for other shapes.
    """

    source: DomainReport
    target: DomainReport
    leaked: list[tuple[str, str]]
    warnings: list[str]
    same_shape: bool = True
    scales: ScaleReport | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def preflight(source: AnyDomain, target: AnyDomain, batch: int, unit_rows: bool = True) -> Preflight:
    """Compare both domains before any training.

    Args:
        source: the labelled domain.
        target: the other one; of labels it may have, only the classes' names and counts are shown.
        batch: samples of each domain in a training step.
        unit_rows: whether every row will be made of length one.
    """
    rows = [None if isinstance(domain, ImageDomain) else row_statistics(domain) for domain in (source, target)]
    reports = _report(source, rows[0]), _report(target, rows[1])
    same_shape = _kind(reports[0]) == _kind(reports[1])
    leaked = _leaked(source, target, *rows) if same_shape else []
    scales = _scales(rows[0], rows[1]) if same_shape and rows[0] and rows[1] else None
    warnings = []
    if not same_shape:
        kinds = [_kind(report) for report in reports]
        warnings.append(f"{target.name}: its samples are {kinds[1]}, the source's {kinds[0]}; no run can have both")
    warnings += [line for report in reports for line in _domain_warnings(report)]
    ours, theirs = (report.features for report in reports)
    if scales and ours and theirs:
        warnings += _scale_warnings(target.name, ours, theirs, scales)
        warnings += _column_warnings(source.name, ours, theirs) + _column_warnings(target.name, theirs, ours)
    warnings += _class_warnings(*reports, batch)
    if unit_rows and isinstance(source, Domain) and source.labels is not None and len(source.inputs.shape) == 2:
        warnings += _length_warnings(source)
    if leaked:
        pairs = [f"{one} = {other}" for one, other in leaked]
        warnings.append(f"{len(leaked)} {_things(reports[0])} are in both domains: {first_few(pairs)}")
    return Preflight(*reports, leaked, warnings, same_shape, scales)


def scale_warnings(source: Domain, target: Domain) -> list[str]:
    """Return a line if features look as if one domain alone had gone through a scaler; judged by some of the rows.

    >>> y, rows = torch.arange(20) % 2, torch.ones(20, 3)
    >>> scale_warnings(Domain("here", rows, y, ("a", "b")), Domain("there", 100 * rows))
    ["there: the mean length of a row is 173, the source's is 1.73; bring both domains to one scale"]
    """
    if len(source.inputs.shape) != 2 or source.inputs.shape[1:] != target.inputs.shape[1:]:
        return []
    some = [domain.take(evenly_spaced_rows(len(domain), _MOST_COMPARED)) for domain in (source, target)]
    rows = [row_statistics(domain) for domain in some]
    ours, theirs = (_features(*each) for each in zip(some, rows, strict=True))
    return _scale_warnings(target.name, ours, theirs, _scales(*rows))


def _report(domain: AnyDomain, rows: RowStatistics | None) -> DomainReport:
    skipped: dict[str, list[str]] = defaultdict(list)
    for each, why in domain.skipped:
        skipped[why].append(each)
    counts: dict[str, int] = {}
    if domain.labels is not None:
        numbers = torch.bincount(domain.labels, minlength=len(domain.classes)).tolist()
        counts = dict(zip(domain.classes, numbers, strict=True))
    traits: Counter[str] = Counter()
    huge: list[int] = []
    if isinstance(domain, ImageDomain):
        traits.update(trait for of_one in domain.inputs.traits for trait in of_one)
        huge = [row for row, size in enumerate(domain.inputs.sizes) if math.prod(size) > HUGE]
    groups = _duplicate_groups(*_contents(domain, rows))
    features = _features(domain, rows) if rows and isinstance(domain, Domain) else None
    return DomainReport(
        domain.name,
        len(domain),
        counts,
        dict(skipped),
        dict(traits),
        [_ids(domain, group) for group in groups],
        _conflicts(domain, groups),
        _ids(domain, huge),
        features,
    )


def _features(domain: Domain, rows: RowStatistics) -> FeatureReport:
    shape = tuple(domain.inputs.shape[1:])
    empty, constant = _ids(domain, rows.empty.tolist()), np.flatnonzero(rows.constant).tolist()
    return FeatureReport(shape, rows.length, rows.std, rows.zeros, empty, constant)


def _scales(source: RowStatistics, target: RowStatistics) -> ScaleReport:
    changing = np.flatnonzero((source.columns > 0) & (target.columns > 0))
    ratios = target.columns[changing] / source.columns[changing]
    apart = changing[np.abs(np.log(ratios)) > np.log(_COLUMN_FACTOR)]
    return ScaleReport(
        _ratio(source.length, target.length),
        _ratio(source.std, target.std),
        float(np.median(ratios)) if len(ratios) else None,
        apart.tolist(),
        np.flatnonzero(source.constant & target.constant).tolist(),
    )


def _ratio(source: float, target: float) -> float | None:
    return target / source if source and target else None


# ---------------------------------------------------------------------------------------- what is there twice


def _contents(domain: AnyDomain, rows: RowStatistics | None) -> tuple[NDArray[np.int64], NDArray[np.bytes_]]:
    """Return row numbers, and digests of what is there; zeros are equal without being copies."""
    if rows is not None:
        there = np.setdiff1d(np.arange(len(domain)), rows.empty)
        return there, rows.digests[there]
    digests = domain.inputs.digests if isinstance(domain, ImageDomain) else ()
    return np.arange(len(digests)), np.array(digests, dtype=np.bytes_)


def _duplicate_groups(rows: NDArray[np.int64], contents: NDArray[np.bytes_]) -> list[list[int]]:
    """Return groups of rows of equal content."""
    _, groups_of, counts = np.unique(contents, return_inverse=True, return_counts=True)
    groups: dict[int, list[int]] = defaultdict(list)
    for at in np.flatnonzero(counts[groups_of] > 1).tolist():
        groups[int(groups_of[at])].append(int(rows[at]))
    return list(groups.values())


def _conflicts(domain: AnyDomain, groups: list[list[int]]) -> list[list[tuple[str, str]]]:
    """Return those groups of equal content whose labels differ, as (sample, class)."""
    if domain.labels is None:
        return []
    classes = [[domain.classes[k] for k in domain.labels[group].tolist()] for group in groups]
    return [
        list(zip(_ids(domain, group), names, strict=True))
        for group, names in zip(groups, classes, strict=True)
        if len(set(names)) > 1
    ]


def _leaked(
    source: AnyDomain, target: AnyDomain, source_rows: RowStatistics | None, target_rows: RowStatistics | None
) -> list[tuple[str, str]]:
    ours, our_contents = _contents(source, source_rows)
    theirs, their_contents = _contents(target, target_rows)
    _, here, there = np.intersect1d(our_contents, their_contents, return_indices=True)
    order = np.argsort(here)
    names = _ids(source, ours[here[order]].tolist()), _ids(target, theirs[there[order]].tolist())
    return list(zip(*names, strict=True))


def _ids(domain: AnyDomain, rows: list[int]) -> list[str]:
    return [str(row) if domain.ids is None else domain.ids[row] for row in rows]


# --------------------------------------------------------------------------------------------- what is to be said


def _kind(report: DomainReport) -> str:
    if report.features is None:
        return "pictures"
    shape = report.features.shape
    return f"rows of {shape[0]} numbers" if len(shape) == 1 else f"{'×'.join(map(str, shape))} numbers each"


def _things(report: DomainReport) -> str:
    return "pictures" if report.features is None else "rows"


def _scale_warnings(name: str, ours: FeatureReport, theirs: FeatureReport, scales: ScaleReport) -> list[str]:
    """Warn in one line of what is on another scale, since one cause is often behind it all."""
    parts = []
    if _beyond(scales.length, _LENGTH_FACTOR):
        parts.append(f"the mean length of a row is {theirs.length:.3g}, the source's is {ours.length:.3g}")
    elif _beyond(scales.std, _LENGTH_FACTOR):
        parts.append(f"values deviate by {theirs.std:.3g}, the source's by {ours.std:.3g}")
    apart, width = list(map(str, scales.apart)), math.prod(ours.shape)
    if len(apart) > _COLUMNS_APART * width:
        factor = f"over {_COLUMN_FACTOR:.0f} times as much in one domain"
        parts.append(f"{len(apart)} of {width} columns vary {factor} ({first_few(apart)})")
    return [f"{name}: {', and '.join(parts)}; bring both domains to one scale"] if parts else []


def _beyond(ratio: float | None, factor: float) -> bool:
    return ratio is not None and not 1 / factor <= ratio <= factor


def _column_warnings(name: str, own: FeatureReport, other: FeatureReport) -> list[str]:
    """Warn of columns that this domain alone does not use."""
    idle, width = sorted(set(own.constant) - set(other.constant)), math.prod(own.shape)
    if len(idle) <= _IDLE_COLUMNS * width:
        return []
    where = first_few(list(map(str, idle)))
    return [f"{name}: {len(idle)} of {width} columns never change, and in the other domain they do: {where}"]


def _domain_warnings(report: DomainReport) -> list[str]:
    lines = [f"skipped {len(ids)}, {why}: {first_few(ids)}" for why, ids in report.skipped.items()]
    if report.conflicts:
        groups = first_few([" = ".join(f"{each} ({name})" for each, name in group) for group in report.conflicts])
        lines.append(f"{len(report.conflicts)} {_things(report)} are there under several labels: {groups}; keep one")
    in_conflict = {group[0][0] for group in report.conflicts}
    alike = [ids for ids in report.duplicates if ids[0] not in in_conflict]
    if alike:
        copies = sum(len(ids) - 1 for ids in alike)
        lines.append(f"{copies} copies of other {_things(report)}: {first_few([' = '.join(ids) for ids in alike])}")
    if report.huge:
        cost = f"more than {HUGE / 1e6:.0f} million pixels, which takes time and memory"
        lines.append(f"{len(report.huge)} pictures have {cost}: {first_few(report.huge)}; smaller copies would do")
    if report.features and report.features.zero_rows:
        empty = report.features.zero_rows
        lines.append(f"{len(empty)} rows are zeros only: {first_few(empty)}")
    single = [name for name, count in report.classes.items() if count == 1]
    if single:
        lines.append(f"{len(single)} classes have one sample only: {first_few(single)}")
    return [f"{report.name}: {line}" for line in lines]


def _class_warnings(source: DomainReport, target: DomainReport, batch: int) -> list[str]:
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
            lines.append(f"{target.name}: {len(extra)} classes are not in the source: {first_few(extra)}{hint}")
        if missing:
            lines.append(f"{target.name}: {len(missing)} classes of the source are not in it: {first_few(missing)}")
    return lines


def _length_warnings(source: Domain) -> list[str]:
    """Warn where the classes show in what rows of length one have lost."""
    found = length_probe(source)
    if found is None or not loses_by_length(found):
        return []
    return [
        f"{source.name}: the lengths of rows tell classes apart: a linear probe is right of {found[0]:.0%} of held-out "
        f"samples with them, and of {found[1]:.0%} with rows of length one, as a single recipe of the default makes "
        "them; a choice among candidates looks for a scaling that keeps them; --network.features standardised does"
    ]
