"""Everything that defines an experiment, as frozen dataclasses, to and from TOML.

The knobs of the network, the optimizer and the loop are here; those of a method are where the method is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from safda import knobs
from safda.errors import SafdaError, nearest
from safda.formats import FORMAT, check_format, is_former, renamed, upgraded_recipe
from safda.io import parse_toml, read_text
from safda.knobs import Knob, filled, knob, to_plain
from safda.methods import METHODS
from safda.presets import CANDIDATES, PRESETS, VARIED, Candidate


@dataclass(frozen=True)
class NetworkKnobs:
    """F, B and C. With arrays as domains, F is the identity and ``backbone`` is not used."""

    backbone: str = knob("small-cnn", "small-cnn, or any timm model, with the tag of its weights: resnet50.tv_in1k")
    pretrained: bool = knob(False, "start the backbone from timm's pretrained weights (downloads them)")
    weights: str = knob("", "start the backbone from this safetensors file instead")
    frozen: bool = knob(False, "leave the backbone as it is, and compute each picture's features once")
    backbone_norm: str = knob(
        "batch",
        "statistics of a backbone's batch norm while it is trained: each batch's (the paper), or fixed as they came",
        choices=("batch", "fixed"),
    )
    image_size: int = knob(0, "side of a picture in pixels; 0: what the backbone was made for", low=0, high=8192)
    crop_scale: float = knob(
        0.08,
        "least share of a picture's area in a training crop, as torchvision's RandomResizedCrop",
        low=0.01,
        high=1.0,
    )
    features: str = knob(
        "as-is",
        "what B gets: features as they come, each of length one and then centred over both domains, the same of their "
        "signed square roots, or standardised",
        choices=("as-is", "centred", "rooted", "standardised"),
    )
    components: int = knob(0, "keep so many principal components of features; 0: all, unturned", low=0, high=65536)
    bottleneck_width: int = knob(1024, "output size of the bottleneck B", low=1, high=65536)
    classifier_width: int = knob(1024, "hidden size of the classifier C", low=1, high=65536)
    norm: str = knob(
        "joint",
        "B's batch norm sees both domains together, or each by its own statistics (then C∘B is for the target)",
        choices=("joint", "per-domain"),
    )
    dropout: float = knob(0.5, "dropout in B and C", low=0.0, high=0.99, search=(0.0, 0.7, "linear"))
    classifier_init: str = knob("xavier", "initial weights of C", choices=("xavier", "normal"))


@dataclass(frozen=True)
class OptimizerKnobs:
    """What moves the weights; its rate is lr · (1 + decay · t/T)^−power, where T is decay_steps."""

    name: str = knob("sgd", "SGD with Nesterov momentum (the paper), or AdamW", choices=("sgd", "adamw"))
    lr: float = knob(0.004, "initial learning rate", low=0.0, high=10.0, search=(4e-4, 4e-2, "log"))
    momentum: float = knob(0.9, "SGD's Nesterov momentum; AdamW's first β", low=0.0, high=0.999)
    weight_decay: float = knob(5e-4, "weight decay", low=0.0, high=1.0, search=(1e-5, 1e-2, "log"))
    decay: float = knob(20.0, "learning rate decay over T steps (0.0002 a step at T = 100,000)", low=0.0, high=1e4)
    decay_steps: int = knob(0, "T of the decay; 0: the run's own steps", low=0, high=10**9)
    power: float = knob(0.75, "exponent of the decay", low=0.0, high=4.0)
    backbone_factor: float = knob(0.1, "the backbone's share of the learning rate", low=0.0, high=1.0)


@dataclass(frozen=True)
class ChoiceKnobs:
    """Several recipes on the same features, of which one is taken by evidence that needs no target label."""

    candidates: int = knob(
        0,
        "among how many recipes one is chosen, beside source only; 0: this one, and no choice",
        low=0,
        high=len(CANDIDATES),
    )


@dataclass(frozen=True)
class FineTuneKnobs:
    """A second stage for pictures: the whole network, from where a frozen backbone and its adapted heads left off."""

    enabled: bool = knob(False, "after adapting with a frozen backbone, train all of the network")
    steps: int = knob(500, "steps of the second stage", low=1, high=10**9)
    batch: int = knob(16, "samples of each domain in one of its steps, over all processes", low=1, high=10**6)
    lr: float = knob(0.004, "its initial learning rate", low=0.0, high=10.0, search=(4e-4, 4e-2, "log"))
    alpha: float = knob(
        0.5,
        "the neighbours' part in a propagated label: less than before, since features get better",
        low=0.0,
        high=1.0,
    )


@dataclass(frozen=True)
class Recipe:
    """One experiment, whole. The knobs of a method, or of what it requires, stand under its name.

    >>> recipe = Recipe().override({"steps": 500, "methods": ["cdan", "saf"], "saf.eta.source": "beta"})
    >>> recipe["cdan"].weight, recipe["saf"].eta.source, list(recipe.of_methods)
    (1.0, 'beta', ['cdan', 'saf', 'pseudo_labels'])
    """

    methods: tuple[str, ...] = ("mdd", "saf")
    steps: int = knob(5000, "training steps T", low=1, high=10**9)
    ramp_steps: int = knob(0, "T of the methods' ramps and shares of T; 0: the run's own steps", low=0, high=10**9)
    batch: int = knob(32, "samples of each domain in a step, over all processes", low=1, high=10**6)
    seed: int = knob(0, "decides every random draw of the run", low=0, high=2**32 - 1)
    precision: str = knob("no", "mixed precision", choices=("no", "bf16", "fp16"))
    log_every: int = knob(10, "steps between two lines of metrics", low=1, high=10**9)
    checkpoint_every: int = knob(500, "steps between two checkpoints", low=1, high=10**9)
    network: NetworkKnobs = field(default_factory=NetworkKnobs)
    optimizer: OptimizerKnobs = field(default_factory=OptimizerKnobs)
    choice: ChoiceKnobs = field(default_factory=ChoiceKnobs)
    fine_tune: FineTuneKnobs = field(default_factory=FineTuneKnobs)
    of_methods: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fixed: tuple[str, ...] = ()  # knobs that somebody turned to what they were: candidates must not vary them

    def __post_init__(self) -> None:
        """Complete the sections: one for each method and for what it requires, and no other."""
        sections = {name: self.of_methods.get(name) or METHODS[name].Knobs() for name in _with_required(self.methods)}
        object.__setattr__(self, "of_methods", sections)

    def __getitem__(self, method: str) -> Any:
        """Return the knobs of a method that takes part."""
        return self.of_methods[method]

    @property
    def all_steps(self) -> int:
        """Steps of all stages; where data tell which candidates are tried, of those that take longer."""
        heads = max(sum(each.steps for each in tried) for tried in self._tried) or self.steps
        return heads + self.fine_tune.steps if self.fine_tune.enabled else heads

    @property
    def least_batch(self) -> int:
        """The smallest batch that anything is trained with on features."""
        return min([each.batch for tried in self._tried for each in tried] or [self.batch])

    @property
    def _tried(self) -> list[list[Recipe]]:
        """What a choice would be made of, where neighbours cannot be trusted, and where they can."""
        return [[self.candidate(each.changes) for each in self.candidates(purity).values()] for purity in (0.0, 1.0)]

    def candidates(self, purity: float) -> dict[str, Candidate]:
        """Return the recipes that a choice is made of, by name; none where none is made.

        A knob that is not as the default has it holds for all of them, since somebody has turned it; and so does one
        that was named and given the value it had.

        Args:
            purity: how many nearest neighbours in the source are of one class, from
                :func:`~safda.methods.propagation.best_features`.

        >>> recipe = preset("default").override({"network.norm": "joint", "choice.candidates": 3})
        >>> list(recipe.candidates(purity=0.95)), list(recipe.candidates(purity=0.5))
        (['mdd', 'saf', 'mdd-joint'], ['mdd', 'mdd-joint', 'saf-joint'])
        >>> "network.norm" in recipe.candidates(0.95)["mdd-joint"].changes
        False
        >>> named = preset("default").override({"steps": 2000})
        >>> preset("default").steps, "steps" in named.candidates(1.0)["mdd"].changes
        (2000, False)
        """
        if not self.choice.candidates:
            return {}
        usual = {path: value for path, _, value in walk(preset("default"))}
        turned = {path for path, _, value in walk(self) if usual.get(path, value) != value} | set(self.fixed)
        found: dict[str, Candidate] = {}
        same_as: dict[str, str] = {}  # with knobs turned, one may be another that is there already
        suited = [(name, each) for name, each in CANDIDATES.items() if each.suits(purity)]
        for name, each in suited[: self.choice.candidates]:
            changes = {path: value for path, value in each.changes.items() if path not in turned}
            if each.seed_offset:
                changes["seed"] = self.seed + each.seed_offset
            begins_with = tuple(dict.fromkeys(same_as.get(one, one) for one in each.begins_with))
            alike = (other for other, it in found.items() if (it.changes, it.begins_with) == (changes, begins_with))
            same_as[name] = next(alike, name)
            if same_as[name] == name:
                found[name] = each._replace(changes=changes, begins_with=begins_with)
        asked: set[str] = set()
        for name in reversed(list(found)):  # nobody begins with one that comes later
            if found[name].is_member and name not in asked:
                del found[name]
            else:
                asked.update(found[name].begins_with)
        return found

    def single(self) -> Recipe:
        """Return this very recipe, with no choice among others."""
        return replace(self, choice=ChoiceKnobs(), fixed=())

    def candidate(self, changes: Mapping[str, Any]) -> Recipe:
        """Return one of the recipes that a choice is made of, by what it changes in this one."""
        return self.override({**changes, "choice.candidates": 0})

    def first_stage(self) -> Recipe:
        """Return the experiment without its second stage."""
        return replace(self, fine_tune=replace(self.fine_tune, enabled=False))

    def second_stage(self) -> Recipe:
        """Return the recipe of fine-tuning: its own length and rate, nothing frozen, and no ramp but its first step."""
        changes: dict[str, Any] = {
            "steps": self.fine_tune.steps,
            "batch": self.fine_tune.batch,
            "checkpoint_every": min(self.checkpoint_every, _LONG_STEPS),
            "network.frozen": False,
            "optimizer.lr": self.fine_tune.lr,
        }
        for path, _, _ in walk(self):
            if path.rpartition(".")[0] in self.of_methods and path.endswith(".ramp"):
                changes[path] = _AT_ONCE
            if path.endswith(".propagation.alpha"):
                changes[path] = self.fine_tune.alpha
            if path == "pseudo_labels.hold" and not self.rides_alone:
                changes[path] = 0.0  # the network that labels began with is the one that learns
        return self.first_stage().override(changes)

    @property
    def rides_alone(self) -> bool:
        """Whether SAF, or another method that rides, has no companion that keeps its labels from drifting."""
        return bool(self.methods) and all(METHODS[name].rides for name in self.methods)

    def source_only(self) -> Recipe:
        """Return the experiment without adaptation, as the row "source" of benchmarks has it."""
        return self.override(SOURCE_ONLY_CHANGES).first_stage()

    def with_adversary(self, name: str | None, saf: bool | None = None) -> Recipe:
        """Return the experiment with another method to lead, and with or without SAF.

        Args:
            name: the method; ``"none"`` for none, and None to keep what there is.
            saf: whether SAF takes part; None to keep it as it is.
        """
        leads = [each for each in self.methods if not METHODS[each].rides] if name is None else [name]
        riders = [each for each in self.methods if METHODS[each].rides and (each != "saf" or saf is not False)]
        if saf and "saf" not in riders:
            riders.insert(0, "saf")
        return self.override({"methods": [each for each in leads if each != "none"] + riders})

    def override(self, changes: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Return a copy with some knobs turned, each named by its path, ``"saf.eta.source"`` or ``"steps"``.

        Other ``methods`` bring their own defaults; those that stay keep their knobs.
        """
        nested: dict[str, Any] = {}
        for path, value in changes.items():
            *sections, key = path.split(".")
            inner = nested
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise SafdaError(f"{where}: {section!r} is a section, not a value; set one of its knobs")
            inner[key] = value
        return self._filled(nested, where)

    def _filled(self, values: Mapping[str, Any], where: str) -> Recipe:
        """Return a copy with new values, nested by section, every one of them checked."""
        _refuse_former(values, where)
        methods = _method_names(values["methods"], where) if "methods" in values else self.methods
        recipe = replace(self, methods=methods)
        if "methods" in values:  # whoever names methods wants these, and no choice
            recipe = recipe.single()
        own = {f.name for f in fields(self)} - set(_NOT_KNOBS)
        sections = dict(recipe.of_methods)
        for key, value in values.items():
            if key in sections and isinstance(value, Mapping):
                sections[key] = filled(sections[key], value, where, f"{key}.")
            elif key in sections:
                raise SafdaError(f"{where}: {key!r} is a section, not a value; set one of its knobs")
            elif key not in own and key not in ("methods", "fixed"):
                raise SafdaError(f"{where}: {_unknown(key, value, [*own, *sections], recipe.methods)}")
        plain = {key: value for key, value in values.items() if key in own}
        done = replace(filled(recipe, plain, where), of_methods=sections)
        return replace(done, fixed=self._fixed_with(values, where)) if done.choice.candidates else done.single()

    def _fixed_with(self, values: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Return which knobs are fixed once these values, nested by section, were given to a choice."""
        named = _names(values.get("fixed", []), "fixed", where)
        known = {path: value for path, _, value in walk(self)}
        for path in named:
            if path not in known:
                raise SafdaError(f"{where}: fixed: {path!r} is no knob{nearest(path, known)}")
        given = dict(_flat(values)) if self.choice.candidates else {}
        as_it_was = [path for path, value in given.items() if path in VARIED and known.get(path) == value]
        return tuple(dict.fromkeys([*self.fixed, *named, *as_it_was]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested dictionaries, as TOML has them."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_KNOBS}
        own = {name: value if isinstance(value, (int, str)) else to_plain(value) for name, value in own.items()}
        fixed = {"fixed": list(self.fixed)} if self.fixed else {}
        return {"methods": list(self.methods), **fixed, **own, **{k: to_plain(v) for k, v in self.of_methods.items()}}

    def to_toml(self) -> str:
        """Return the TOML text of the whole recipe, each knob with its help."""
        methods = f"methods = {json.dumps(self.methods)}"
        lines: list[str] = [f"format = {FORMAT}", f"{methods:<32}# {_METHODS_HELP}"]
        if self.fixed:
            lines.append(f"{f'fixed = {json.dumps(self.fixed)}':<32}# {_FIXED_HELP}")
        for path, knob_, value in walk(self):
            section, _, key = path.rpartition(".")
            header = f"[{'.'.join(map(_toml_key, section.split('.')))}]"
            if section and header not in lines:
                lines += ["", header]
            lines.append(f"{tomli_w.dumps({key: value}).strip():<32}# {knob_.help}{knob_.range_text}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_dict(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Build a recipe from nested dictionaries; ``preset`` may name one to start from.

        Recipes of an earlier format are read too.
        """
        values = dict(values)
        number = values.pop("format", None)
        if number is not None:
            check_format(number, where)
        if is_former(values) if number is None else number < FORMAT:
            values = {"choice": {"candidates": 0}, **upgraded_recipe(values, where)}  # there was none then
        start = values.pop("preset", None)
        return (Recipe() if start is None else preset(str(start)))._filled(values, where)

    @staticmethod
    def from_toml(text: str, where: str = "recipe") -> Recipe:
        """Build a recipe from TOML text."""
        return Recipe.from_dict(parse_toml(text, where), where)


_METHODS_HELP = "methods whose losses add up; none: the source alone"
_FIXED_HELP = "knobs that candidates of a choice must not vary, though they are as the preset has them"
_NOT_KNOBS = ("methods", "of_methods", "fixed")
_AT_ONCE = 1e6  # of a ramp: full weight after one step
_LONG_STEPS = 50  # between checkpoints of fine-tuning, whose steps take as long as many of the first stage's

#: What makes source-only training of a recipe, and the best of it: adaptation may want another norm and a stronger
#: decay, and both only weaken a classifier that does not adapt.
SOURCE_ONLY_CHANGES: dict[str, Any] = {"methods": [], "network.norm": "joint", "optimizer.weight_decay": 5e-4}


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Return the preset of that name, or the recipe in that TOML file."""
    if str(name_or_path) in PRESETS:
        return preset(str(name_or_path))
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.exists():
        return preset(str(name_or_path))
    return Recipe.from_toml(read_text(path), f"recipe {path}")


@cache
def preset(name: str) -> Recipe:
    """Return the preset of that name."""
    if name not in PRESETS:
        raise SafdaError(f"no preset or recipe file {name!r}{nearest(name, PRESETS)}")
    return Recipe().override(PRESETS[name], f"preset {name}")


def walk(recipe: Recipe) -> Iterator[tuple[str, Knob, Any]]:
    """Go through every knob of a recipe: its path, what is known of it, and its value."""
    for f in fields(recipe):
        if "knob" in f.metadata:
            yield f.name, f.metadata["knob"], getattr(recipe, f.name)
    own = {name: getattr(recipe, name) for name in ("network", "optimizer", "choice", "fine_tune")}
    for name, section in {**own, **recipe.of_methods}.items():
        yield from knobs.walk(section, f"{name}.")


# ---------------------------------------------------------------------------------------------- names of methods


def _with_required(methods: tuple[str, ...]) -> list[str]:
    """Return the names of methods, each followed by those that it requires."""
    names: list[str] = []
    for name in methods:
        for each in (name, *METHODS[name].requires):
            if each not in names:
                names.append(each)
    return names


def _names(value: Any, what: str, where: str) -> list[str]:
    """Check that something is a list of names, or a text of them with commas."""
    names = [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise SafdaError(f"{where}: {what} = {' '.join(repr(value).split())} must be a list of names")
    return list(names)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Go through nested values by their paths."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _method_names(value: Any, where: str) -> tuple[str, ...]:
    """Check the names of methods: a list of them, or a text with commas."""
    names = _names(value, "methods", where)
    for name in names:
        if name not in METHODS:
            own = "; one of your own must be imported first, or be an entry point (see CONTRIBUTING)"
            raise SafdaError(f"{where}: methods: {name!r} is unknown{nearest(name, METHODS)}{own}")
        if names.count(name) > 1:
            raise SafdaError(f"{where}: methods: {name!r} is named twice")
        for other, why in METHODS[name].excludes.items():
            if other in names:
                raise SafdaError(f"{where}: methods: {name!r} and {other!r}: {why}; leave one of them out")
    return tuple(names)


def _refuse_former(values: Mapping[str, Any], where: str) -> None:
    """Tell whoever turns a knob by its former name what it is called now."""
    for section, inner in values.items():
        for key in inner if isinstance(inner, Mapping) else ():
            now = renamed(f"{section}.{key}", inner[key])
            if now:
                raise SafdaError(f"{where}: unknown key {f'{section}.{key}'!r}; it is now {now!r}")


def _unknown(key: str, value: Any, known: list[str], methods: tuple[str, ...]) -> str:
    """Say what is wrong with a key that is none, and what may have been meant."""
    path = next((f"{key}.{inner}" for inner in value), key) if isinstance(value, Mapping) else key
    if key in METHODS:
        return f"{path!r} is a knob of a method that takes no part (methods are {', '.join(methods) or 'none'})"
    return f"unknown key {path!r}{nearest(key, known)}"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


__all__ = [
    "FORMAT",
    "PRESETS",
    "ChoiceKnobs",
    "FineTuneKnobs",
    "Knob",
    "NetworkKnobs",
    "OptimizerKnobs",
    "Recipe",
    "check_format",
    "load_recipe",
    "preset",
    "walk",
]
