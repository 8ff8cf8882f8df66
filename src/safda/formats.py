"""What earlier formats of recipes and run folders called things, so that those written before can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from safda.errors import SafdaError
from safda.schema import FORMER_RECIPE, check

#: Of recipes and run folders; a higher one is of a later safda. 1 spelled "optimiser", and had no number; 2 had one
#: "adversary" and all of SAF in one section.
FORMAT = 3

_LEAD = "mdd"  # of every preset before format 3

#: Path of a knob before format 3 → its path now, where its value is the same.
RENAMED = {
    "saf.eta": "saf.eta.source",
    **{f"saf.{key}": f"saf.eta.{key}" for key in ("width", "bottlenecks", "beta", "constant", "rectified", "ascend")},
    "saf.labels": "pseudo_labels.kind",
    "saf.label_mode": "pseudo_labels.mode",
    "saf.label_gradient": "pseudo_labels.gradient",
    "saf.align": "pseudo_labels.distribution_alignment",
    "saf.sharpen": "pseudo_labels.temperature",  # its value is not the same, but one over it
    "saf.neighbours": "pseudo_labels.propagation.neighbours",
    "saf.neighbour_share": "pseudo_labels.propagation.alpha",
    "saf.neighbour_across": "pseudo_labels.propagation.cross_domain",
    "saf.self_training": "self_training.weight",
    "saf.self_training_rise": "self_training.rise",
    "saf.enabled": "methods",
    "adversary.name": "methods",
    "fine_tune.neighbour_share": "fine_tune.alpha",
}

Value = TypeVar("Value")


def check_format(number: Any, where: str) -> None:
    """Refuse what a later safda has written."""
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise SafdaError(
            f"{where}: is of format {number!r}, and this safda reads 1 to {FORMAT}; a newer one may read it"
        )


def renamed(path: str, value: Any) -> str | None:
    """Return what a knob is called now that had this path before format 3; None if it had not.

    >>> renamed("saf.align", 0.5), renamed("adversary.weight", 0.1), renamed("saf.weight", 0.1)
    ('pseudo_labels.distribution_alignment', 'mdd.weight', None)
    """
    if path == "saf.eta" and isinstance(value, Mapping):  # a section now
        return None
    section, _, key = path.partition(".")
    return RENAMED.get(path) or (f"{_LEAD}.{key}" if section == "adversary" else None)


def is_former(values: Mapping[str, Any]) -> bool:
    """Return whether a recipe without a format number has keys that only earlier formats had."""
    if "optimiser" in values:
        return True
    sections = {key: inner for key, inner in values.items() if isinstance(inner, Mapping)}
    return any(renamed(f"{key}.{name}", inner[name]) for key, inner in sections.items() for name in inner)


def upgraded_recipe(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a recipe of format 1 or 2, whole or in part, in today's keys."""
    check(values, FORMER_RECIPE, where)
    values = {("optimizer" if key == "optimiser" else key): value for key, value in values.items()}
    adversary, saf = dict(values.pop("adversary", {})), dict(values.pop("saf", {}))
    name, enabled = adversary.pop("name", _LEAD), saf.pop("enabled", True)
    extra = {"weight": saf.pop("self_training", 0.0), "rise": saf.pop("self_training_rise", 0.0)}
    upgraded: dict[str, Any] = {}
    methods = [each for each, takes_part in ((name, name != "none"), ("saf", enabled)) if takes_part]
    if enabled and any(extra.values()):
        methods.append("self_training")
        upgraded["self_training"] = extra
    if methods != [_LEAD, "saf"] or "preset" not in values:
        upgraded["methods"] = methods
    if name != "none" and adversary:
        upgraded[name] = adversary
    if "sharpen" in saf:
        saf["sharpen"] = 1 / saf["sharpen"]
    for key, value in saf.items() if enabled else ():
        _put(upgraded, RENAMED.get(f"saf.{key}", f"saf.{key}"), value)
    fine_tune = dict(values.pop("fine_tune", {}))
    if "neighbour_share" in fine_tune:
        fine_tune["alpha"] = fine_tune.pop("neighbour_share")
    return {**values, **({"fine_tune": fine_tune} if fine_tune else {}), **upgraded}


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[key] = value


def upgraded_names(tensors: Mapping[str, Value], methods: tuple[str, ...]) -> dict[str, Value]:
    """Return the weights of a run of format 1 or 2, or what an optimizer knew of them, by today's names."""
    lead = next((name for name in methods if name not in ("saf", "self_training")), "none")
    prefixes = {
        "adversary.": f"methods.{lead}.",
        "saf.prior": "methods.pseudo_labels.prior",
        "saf.": "methods.saf.saf.eta.",
    }

    def upgraded(name: str) -> str:
        for before, now in prefixes.items():
            if name.startswith(before):
                return now + name.removeprefix(before)
        return name

    return {upgraded(name): value for name, value in tensors.items()}
