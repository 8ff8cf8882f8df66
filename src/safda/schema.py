"""The form of every JSON and TOML file that is read, in one place: what is of another form is told in one line.

A form is a type; a :class:`Kind`; ``[form]``, a list of such; ``{"key": form, "perhaps?": form}``, a table with these
keys and maybe others; ``{str: form}``, a table with any keys; or a tuple of forms, of which one must do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safda.errors import SafdaError

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict: "a table",
    list: "a list",
}
_SHOWN = 60  # letters of a wrong value


@dataclass(frozen=True)
class Kind:
    """A form that a test decides."""

    name: str
    test: Callable[[Any], bool]


NATURAL = Kind("a whole number from 0 on", lambda value: type(value) is int and value >= 0)
POSITIVE = Kind("a whole number from 1 on", lambda value: type(value) is int and value >= 1)
_SEED = Kind("a whole number from 0 to 9,999", lambda value: type(value) is int and 0 <= value < 10_000)
NONE = Kind("nothing", lambda value: value is None)
EMPTY = Kind("an empty table", lambda value: value == {})
SHAPE = Kind(
    "a list of sizes",
    lambda value: isinstance(value, list) and bool(value) and all(POSITIVE.test(size) for size in value),
)
TORCH_TYPE = Kind(
    "a type of numbers",
    lambda value: value in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
)
NUMPY_TYPE = Kind(
    "a type of numbers or texts",
    lambda value: isinstance(value, str) and re.fullmatch(r"[<>|=]?([biuf][1248]|f16|U[0-9]{1,6})", value) is not None,
)
NAMES = Kind(
    "a list of two or more names, each once",
    lambda value: (
        isinstance(value, list) and all(type(name) is str for name in value) and len({*value}) == len(value) > 1
    ),
)

_DOMAIN = {"name": str, "samples": NATURAL, "digest": str}
_TRANSFORM = {"side": POSITIVE, "crop?": float, "interpolation?": str, "squash?": bool, "scale?": float}
_OUTCOME = {"confidence": float, "scores": {str: float}}

#: ``data.json`` of a run folder.
RUN_DATA = {
    "source": _DOMAIN,
    "target": _DOMAIN,
    "input_shape": SHAPE,
    "input_type": TORCH_TYPE,
    "classes": NAMES,
    "transform?": _TRANSFORM,
    "backbone?": {"name": str, "weights": str},
    "target_labels?": {str: str},
}
#: ``state.json`` of a checkpoint; the scaler is torch's, of a run in fp16.
STATE = {
    "step": NATURAL,
    "scaler": (
        EMPTY,
        {
            "scale": float,
            "growth_factor": float,
            "backoff_factor": float,
            "growth_interval": int,
            "_growth_tracker": int,
        },
    ),
}
#: ``choice.json`` of a run folder.
CHOICE = {"chosen": str, "evidence": {str: {str: float}}, "changes": dict}
#: ``summary.json`` of a run folder.
SUMMARY = {
    "samples": NATURAL,
    "classes": {str: {"predicted": float, "source": float}},
    "never_predicted": [str],
    "adapted": _OUTCOME,
    "source_only": (NONE, _OUTCOME),
    "agreement": (NONE, {"share": float, "kappa": float}),
    "words": str,
    "structure?": (NONE, {"neighbours": float, "shuffled": float, "p_value?": float}),
    "choice?": (NONE, CHOICE),
    "estimate?": (NONE, {"accuracy": float, "low": float, "high": float, "level": float, "method": str}),
    "observations?": dict,
    "diagnosis?": [{"title": str, "evidence": str, "advice": str, "severity": str}],
    "theory?": (NONE, {str: {"before": (NONE, float), "after": float, "what": str}}),
}
#: ``estimator.json`` of a saved SAFClassifier.
ESTIMATOR = {
    "classes": [(bool, float, str)],
    "dtype": NUMPY_TYPE,
    "feature_names": (NONE, [str]),
    "choice?": (NONE, CHOICE),
}
#: What stands beside the graph of an exported model.
EXPORTED = {
    "safda": {"format": POSITIVE, "version": str},
    "classes": NAMES,
    "input": {"shape": SHAPE, "type": Kind("uint8 or float32", lambda value: value in ("uint8", "float32"))},
    "transform?": {
        "side": POSITIVE,
        "crop": Kind("a number from 0.01 to 1", lambda value: type(value) in (int, float) and 0.01 <= value <= 1),
        "interpolation": Kind("bilinear or bicubic", lambda value: value in ("bilinear", "bicubic")),
        "squash": bool,
        "scale": float,
    },
    "temperature": Kind("a number above 0", lambda value: type(value) in (int, float) and 0 < value < 1e9),
}
#: ``lab.json`` of a benchmark in a lab.
LAB = {"benchmark": dict, "settings": dict, "domains": {str: {"path": str, "digest": str}}, "seeds": POSITIVE}
#: ``result.json`` of a lab's cell.
RESULT = {
    "accuracy": float,
    "mean_class_accuracy": float,
    "class_accuracy": {str: float},
    "calibration_error": float,
    "scores": {str: float},
}
#: A finished cell of a lab, a line of its ``cells.jsonl``.
CELL = {"key": str, "row": str, "task": str, "seed": _SEED, **RESULT}
_ROW = {
    "title?": str,
    "change?": dict,
    "tasks?": [str],
    "published?": [float],
    "spread?": [float],
    "average?": float,
}
#: A benchmark's TOML file.
BENCHMARK: dict[str, Any] = {
    "title?": str,
    "preset?": str,
    "change?": dict,
    "variant?": str,
    "variants?": {str: {"title?": str, "preset?": str, "change?": dict}},
    "domains?": {str: str},
    "tasks?": [str],
    "metric?": str,
    "per_class?": bool,
    "figure?": [str],
    "rows?": {str: _ROW},
}
#: Sections of a recipe before format 3, as far as they are looked at; knobs check their values themselves.
FORMER_RECIPE = {
    "adversary?": {"name?": str},
    "saf?": {
        "enabled?": bool,
        "sharpen?": Kind("a number above 0", lambda value: type(value) in (int, float) and value > 0),
    },
    "fine_tune?": dict,
}


def check(value: Any, form: Any, where: str, path: str = "") -> None:
    """Make sure that a value is of a form.

    Args:
        value: as it was read.
        form: what it must be.
        where: the file, to begin an error with.
        path: which part of it the value is.

    >>> check({"step": -1, "scaler": {}}, STATE, "state.json")
    Traceback (most recent call last):
    ...
    safda.errors.SafdaError: state.json: step must be a whole number from 0 on, not -1
    """
    if isinstance(form, tuple):
        if not any(_is_of(value, each) for each in form):
            check(value, form[-1], where, path)
    elif isinstance(form, dict) and isinstance(value, dict):
        for key, inner in form.items():
            for name in value if key is str else [key.removesuffix("?")]:
                if name in value:
                    check(value[name], inner, where, f"{path}.{name}" if path else name)
                elif not key.endswith("?"):
                    raise SafdaError(f"{where}: {path + ': ' if path else ''}{name!r} is missing")
    elif isinstance(form, list) and isinstance(value, list):
        for number, each in enumerate(value):
            check(each, form[0], where, f"{path}[{number}]")
    elif not (form.test(value) if isinstance(form, Kind) else type(value) in _types(form)):
        name = form.name if isinstance(form, Kind) else _NAMES[_types(form)[-1]]
        shown = " ".join(repr(value).split())
        shown = f"{shown[:_SHOWN]}…" if len(shown) > _SHOWN else shown
        raise SafdaError(f"{where}: {path or 'its content'} must be {name}, not {shown}")


def _types(form: Any) -> tuple[type, ...]:
    """Return the types that a form, not a :class:`Kind`, allows."""
    if form is float:
        return int, float
    return (form,) if isinstance(form, type) else (type(form),)


def _is_of(value: Any, form: Any) -> bool:
    try:
        check(value, form, "")
    except SafdaError:
        return False
    return True
