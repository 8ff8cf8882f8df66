"""Everything that defines an experiment, as frozen dataclasses, to and from TOML; and the presets.

Each knob states its default, its range, where a search may look, and one line of help, here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import tomli_w

from safda.errors import SafdaError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Knob:
    """What is known of one knob: its help, its range, and (low, high, "linear" or "log") for a search."""

    help: str
    low: float | None = None  # with high, or neither
    high: float | None = None
    choices: tuple[str, ...] = ()
    search: tuple[float, float, str] | None = None


def knob(default: Any, help: str, **about: Any) -> Any:
    """Declare a dataclass field that carries a :class:`Knob`."""
    return field(default=default, metadata={"knob": Knob(help, **about)})


# ---------------------------------------------------------------------------------------------- the sections


@dataclass(frozen=True)
class Network:
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
        "what B gets: features as they come, or each of length one and then centred over both domains",
        choices=("as-is", "centred"),
    )
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
class Optimizer:
    """What moves the weights; its rate is lr · (1 + decay · t/T)^−power."""

    name: str = knob("sgd", "SGD with Nesterov momentum (the paper), or AdamW", choices=("sgd", "adamw"))
    lr: float = knob(0.004, "initial learning rate", low=0.0, high=10.0, search=(4e-4, 4e-2, "log"))
    momentum: float = knob(0.9, "SGD's Nesterov momentum; AdamW's first β", low=0.0, high=0.999)
    weight_decay: float = knob(5e-4, "weight decay", low=0.0, high=1.0, search=(1e-5, 1e-2, "log"))
    decay: float = knob(20.0, "learning rate decay over the run (0.0002 a step at T = 100,000)", low=0.0, high=1e4)
    power: float = knob(0.75, "exponent of the decay", low=0.0, high=4.0)
    backbone_factor: float = knob(0.1, "the backbone's share of the learning rate", low=0.0, high=1.0)


@dataclass(frozen=True)
class AdversaryKnobs:
    """Knobs that every method has: λ_D(t) = weight · tanh(ramp · t/T)."""

    name: ClassVar[str]
    weight: float = knob(
        0.1, "final weight λ_D of what reaches F and B", low=0.0, high=100.0, search=(0.01, 1.0, "log")
    )
    ramp: float = knob(10.0, "how fast λ_D rises: tanh(ramp · t/T)", low=0.0, high=1e6)

    def own(self) -> dict[str, Any]:
        """Give the knobs that the method itself takes, beyond the shared ones."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("weight", "ramp")}


@dataclass(frozen=True)
class MDD(AdversaryKnobs):
    """Margin disparity discrepancy."""

    name = "mdd"
    margin: float = knob(4.0, "γ, the weight of D's source term", low=0.0, high=100.0, search=(1.0, 8.0, "log"))


@dataclass(frozen=True)
class DANN(AdversaryKnobs):
    """Domain-adversarial network."""

    name = "dann"
    weight: float = knob(1.0, "final weight λ_D of what reaches F and B", low=0.0, high=100.0, search=(0.1, 2.0, "log"))
    width: int = knob(1024, "hidden size of the discriminator", low=1, high=65536)
    dropout: float = knob(0.5, "dropout in the discriminator", low=0.0, high=0.99)


@dataclass(frozen=True)
class CDAN(DANN):
    """Conditional domain-adversarial network."""

    name = "cdan"
    entropy: bool = knob(False, "weigh samples by 1 + e^−H")
    widest_product: int = knob(4096, "project outer products wider than this", low=1, high=10**9)
    projection: int = knob(1024, "size of the random projection", low=1, high=65536)


@dataclass(frozen=True)
class CDANE(CDAN):
    """CDAN with entropy weights."""

    name = "cdan+e"
    entropy: bool = knob(True, "weigh samples by 1 + e^−H")


@dataclass(frozen=True)
class NoAdversary(AdversaryKnobs):
    """Source only."""

    name = "none"


#: Name → knobs. The methods stand under the same names in ``adversaries.ADVERSARIES``.
ADVERSARIES: dict[str, type[AdversaryKnobs]] = {k.name: k for k in (MDD, DANN, CDAN, CDANE, NoAdversary)}


@dataclass(frozen=True)
class SAF:
    """Shuffle Augmentation of Features; λ_M(t) = weight · tanh(ramp · t/T)."""

    enabled: bool = knob(True, "train with SAF")
    weight: float = knob(0.1, "final weight λ_M of the SAF loss", low=0.0, high=100.0, search=(0.01, 1.0, "log"))
    ramp: float = knob(5.0, "how fast λ_M rises: tanh(ramp · t/T)", low=0.0, high=1e6)
    width: int = knob(384, "output size of each SAF bottleneck", low=1, high=65536)
    bottlenecks: int = knob(2, "how many SAF bottlenecks", low=1, high=64)
    eta: str = knob("learned", "where η comes from", choices=("learned", "beta", "constant"))
    beta: float = knob(0.2, "η ~ Beta(beta, beta), with eta = beta", low=1e-3, high=1e3)
    constant: float = knob(0.6, "η, with eta = constant", low=0.0, high=1.0)
    rectified: bool = knob(False, "a ReLU before η's sigmoid (released code)")
    pairing: str = knob("random", "who meets whom", choices=("random", "reversed"))
    labels: str = knob("soft", "kind of pseudo-label", choices=("soft", "hard"))
    label_scale: float = knob(1.0, "factor on composite labels (released code: 2)", low=0.0, high=100.0)
    label_mode: str = knob(
        "training",
        "pseudo-labels from C∘B with dropout and batch statistics, or without",
        choices=("training", "evaluation"),
    )
    label_gradient: bool = knob(False, "let pseudo-labels pass a gradient back into C∘B")
    align: float = knob(
        0.0,
        "divide pseudo-labels by a running mean of the predictions to this power (not in the paper)",
        low=0.0,
        high=1.0,
    )
    neighbours: float = knob(
        0.0,
        "let pseudo-labels spread among nearest target samples, each with this share of n/K of them (not in the paper)",
        low=0.0,
        high=1.0,
    )
    neighbour_share: float = knob(0.9, "the neighbours' part in a label that spreads", low=0.0, high=1.0)
    neighbour_across: float = knob(
        0.05, "what a neighbour in the source counts, beside one in the target; 0: nothing", low=0.0, high=1.0
    )
    sharpen: float = knob(
        1.0, "raise pseudo-labels to this power, and normalise (not in the paper)", low=0.1, high=100.0
    )
    ascend: bool = knob(False, "η seeks the mix that teaches most (not in the paper)")
    keep: str = knob("all", "which samples are mixed, by entropy", choices=("all", "certain", "uncertain"))
    threshold: float = knob(0.5, "certain: entropy at most this fraction of ln K", low=0.0, high=1.0)
    feed_source: bool = knob(False, "mix source samples too")
    mix_at: str = knob("features", "mix φ, or B's output", choices=("features", "bottleneck"))
    self_training: float = knob(0.0, "initial weight of the extra self-training loss", low=0.0, high=100.0)
    self_training_rise: float = knob(0.0, "what its weight gains: rise · tanh(t/T)", low=0.0, high=100.0)

    def module(self) -> dict[str, Any]:
        """Give the knobs that :class:`safda.SAF` takes, beyond the feature size."""
        loop = {"enabled", "weight", "ramp", "label_mode", "self_training_rise"}  # what the loop takes
        loop |= {"neighbours", "neighbour_share", "neighbour_across"}
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in loop}
        return {**chosen, "self_training": self.self_training + self.self_training_rise > 0}


@dataclass(frozen=True)
class FineTune:
    """A second stage for pictures: the whole network, from where a frozen backbone and its adapted heads left off."""

    enabled: bool = knob(False, "after adapting with a frozen backbone, train all of the network")
    steps: int = knob(500, "steps of the second stage", low=1, high=10**9)
    batch: int = knob(16, "samples of each domain in one of its steps, over all processes", low=1, high=10**6)
    lr: float = knob(0.004, "its initial learning rate", low=0.0, high=10.0, search=(4e-4, 4e-2, "log"))
    neighbour_share: float = knob(
        0.5,
        "the neighbours' part in a label that spreads: less than before, since the features get better",
        low=0.0,
        high=1.0,
    )


@dataclass(frozen=True)
class Recipe:
    """One experiment, whole.

    >>> Recipe().override({"steps": 500, "adversary.name": "cdan"}).adversary.weight
    1.0
    """

    steps: int = knob(5000, "training steps T", low=1, high=10**9)
    batch: int = knob(32, "samples of each domain in a step, over all processes", low=1, high=10**6)
    seed: int = knob(0, "decides every random draw of the run", low=0, high=2**32 - 1)
    precision: str = knob("no", "mixed precision", choices=("no", "bf16", "fp16"))
    log_every: int = knob(10, "steps between two lines of metrics", low=1, high=10**9)
    checkpoint_every: int = knob(500, "steps between two checkpoints", low=1, high=10**9)
    network: Network = field(default_factory=Network)
    optimizer: Optimizer = field(default_factory=Optimizer)
    adversary: AdversaryKnobs = field(default_factory=MDD)
    saf: SAF = field(default_factory=SAF)
    fine_tune: FineTune = field(default_factory=FineTune)

    @property
    def all_steps(self) -> int:
        """Steps of all stages."""
        return self.steps + self.fine_tune.steps if self.fine_tune.enabled else self.steps

    def first_stage(self) -> Recipe:
        """Give the experiment without its second stage."""
        return replace(self, fine_tune=replace(self.fine_tune, enabled=False))

    def second_stage(self) -> Recipe:
        """Give the recipe of fine-tuning: its own length and rate, nothing frozen, and no ramp but its first step."""
        return replace(
            self.first_stage(),
            steps=self.fine_tune.steps,
            batch=self.fine_tune.batch,
            checkpoint_every=min(self.checkpoint_every, _LONG_STEPS),
            network=replace(self.network, frozen=False),
            optimizer=replace(self.optimizer, lr=self.fine_tune.lr),
            adversary=replace(self.adversary, ramp=_AT_ONCE),
            saf=replace(self.saf, ramp=_AT_ONCE, neighbour_share=self.fine_tune.neighbour_share),
        )

    def source_only(self) -> Recipe:
        """Give the experiment without adaptation, as the row "source" of benchmarks has it."""
        return self.override(SOURCE_ONLY)

    def override(self, changes: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Give a copy with some knobs turned, each named by its path, ``"saf.eta"`` or ``"steps"``.

        Another ``adversary.name`` first puts that method's own defaults in place of the whole section.
        """
        nested: dict[str, Any] = {}
        for path, value in changes.items():
            section, _, key = path.rpartition(".")
            (nested.setdefault(section, {}) if section else nested)[key] = value
        filled: Recipe = _filled(self, nested, where)
        return filled

    def to_dict(self) -> dict[str, Any]:
        """Give plain nested dictionaries, as TOML has them."""
        return _plain(self)

    def to_toml(self) -> str:
        """Give the TOML text of the whole recipe, each knob with its help."""
        lines: list[str] = [f"format = {FORMAT}"]
        for path, knob_, value in walk(self):
            section, _, key = path.rpartition(".")
            if section and f"[{section}]" not in lines:
                lines += ["", f"[{section}]"]
                if section == "adversary":
                    lines.append(f'name = "{self.adversary.name}"')
            lines.append(f"{tomli_w.dumps({key: value}).strip():<32}# {knob_.help}{_range_text(knob_)}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_dict(values: Mapping[str, Any], where: str = "recipe") -> Recipe:
        """Build a recipe from nested dictionaries; ``preset`` may name one to start from.

        Recipes of an earlier format are read too.
        """
        values = dict(values)
        check_format(values.pop("format", FORMAT), where)
        if "optimiser" in values:  # format 1
            values["optimizer"] = values.pop("optimiser")
        start = values.pop("preset", None)
        filled: Recipe = _filled(Recipe() if start is None else preset(str(start)), values, where)
        return filled

    @staticmethod
    def from_toml(text: str, where: str = "recipe") -> Recipe:
        """Build a recipe from TOML text."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SafdaError(f"{where}: not valid TOML: {error}") from None
        return Recipe.from_dict(values, where)


_AT_ONCE = 1e6  # of a ramp: full weight after one step
_LONG_STEPS = 50  # between checkpoints of fine-tuning, whose steps take as long as many of the first stage's

#: What makes source-only training of a recipe, and the best of it: adaptation may want another norm and a stronger
#: decay, and both only weaken a classifier that does not adapt.
SOURCE_ONLY: dict[str, Any] = {
    "adversary.name": "none",
    "saf.enabled": False,
    "network.norm": "joint",
    "optimizer.weight_decay": 5e-4,
}


#: Of recipes and run folders; a higher one is of a later safda. 1 spelled "optimiser", and had no number.
FORMAT = 2


def check_format(number: Any, where: str) -> None:
    """Refuse what a later safda has written."""
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise SafdaError(
            f"{where}: is of format {number!r}, and this safda reads 1 to {FORMAT}; a newer one may read it"
        )


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Give the preset of that name, or the recipe in that TOML file."""
    if str(name_or_path) in PRESETS:
        return PRESETS[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.exists():
        return preset(str(name_or_path))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SafdaError(f"recipe {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SafdaError(f"recipe {path}: is not a text file in UTF-8") from None
    return Recipe.from_toml(text, f"recipe {path}")


def preset(name: str) -> Recipe:
    """Give the preset of that name."""
    if name not in PRESETS:
        raise SafdaError(f"no preset or recipe file {name!r}{nearest(name, PRESETS)}")
    return PRESETS[name]


def walk(section: Any, prefix: str = "") -> Iterator[tuple[str, Knob, Any]]:
    """Go through every knob of a recipe: its path, what is known of it, and its value."""
    for f in fields(section):
        value = getattr(section, f.name)
        if "knob" in f.metadata:
            yield prefix + f.name, f.metadata["knob"], value
        else:
            yield from walk(value, f"{prefix}{f.name}.")


# ------------------------------------------------------------------------------------------------ validation


def _plain(section: Any) -> dict[str, Any]:
    named = {"name": section.name} if isinstance(section, AdversaryKnobs) else {}
    values = {f.name: getattr(section, f.name) for f in fields(section)}
    return {**named, **{k: v if isinstance(v, (bool, int, float, str)) else _plain(v) for k, v in values.items()}}


def _filled(section: Any, values: Mapping[str, Any], where: str, prefix: str = "") -> Any:
    """Copy a section with new values, every one of them checked."""
    if isinstance(section, AdversaryKnobs) and "name" in values:
        values = dict(values)
        section = _adversary(section, values.pop("name"), where)
    known = {f.name: f for f in fields(section)}
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            whose = f" (adversary is {section.name!r})" if isinstance(section, AdversaryKnobs) else ""
            raise SafdaError(f"{where}: unknown key {prefix + key!r}{whose}{nearest(key, known)}")
        if "knob" in known[key].metadata:
            changes[key] = _checked(known[key], value, f"{where}: {prefix}{key}")
        elif isinstance(value, Mapping):
            changes[key] = _filled(getattr(section, key), value, where, f"{prefix}{key}.")
        else:
            raise SafdaError(f"{where}: {prefix + key!r} is a section, not a value; set one of its knobs")
    return replace(section, **changes)


def _adversary(current: AdversaryKnobs, name: Any, where: str) -> AdversaryKnobs:
    if name not in ADVERSARIES:
        raise SafdaError(f"{where}: adversary.name = {name!r} is unknown{nearest(str(name), ADVERSARIES)}")
    return current if name == current.name else ADVERSARIES[name]()


def _checked(f: Field[Any], value: Any, where: str) -> Any:
    """Give the value in the knob's own type, or say what is wrong and what would be right."""
    about: Knob = f.metadata["knob"]
    kind: Any = type(f.default)
    value = _pythons_own(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise SafdaError(f"{where} = {' '.join(repr(value).split())} must be {_KIND[kind]}")
    if about.choices and value not in about.choices:
        raise SafdaError(f"{where} = {value!r} is unknown{nearest(value, about.choices)}")
    if about.low is not None and about.high is not None and not about.low <= value <= about.high:
        bound = kind(about.high if value > about.high else about.low)
        raise SafdaError(f"{where} = {value!r} is out of range{_range_text(about)}; the nearest right one is {bound!r}")
    return value


def _pythons_own(value: Any) -> Any:
    """Give a number of numpy's, such as a search over ``np.arange`` tries, as Python's own."""
    numpy = sys.modules.get("numpy")  # who has not imported it cannot have made one: recipes are quick to load
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


_KIND = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _range_text(about: Knob) -> str:
    if about.choices:
        return f" ({' | '.join(about.choices)})"
    return f" ({about.low:,} to {about.high:,})" if about.low is not None else ""


# --------------------------------------------------------------------------------------------------- presets

_RESNET50 = "resnet50.tv_in1k"  # the weights of every published table; timm's plain "resnet50" means others
_PAPER = Recipe(steps=100_000, network=Network(backbone=_RESNET50, pretrained=True), checkpoint_every=1000)
_DEFAULT = Recipe(
    steps=2000,
    checkpoint_every=500,
    network=Network(
        backbone=_RESNET50,
        pretrained=True,
        frozen=True,
        backbone_norm="fixed",
        crop_scale=0.5,
        features="centred",
        bottleneck_width=512,
        classifier_width=512,
        norm="per-domain",
    ),
    optimizer=Optimizer(lr=0.005, decay=2.0, weight_decay=0.02),
    saf=SAF(
        weight=0.3,
        eta="beta",
        label_mode="evaluation",
        neighbours=0.2,
        sharpen=2.0,
        align=1.0,
    ),
)

#: Presets are named for what they are: ``default`` what is used where nothing is said, for arrays as for pictures,
#: ``fine-tune`` the same and then the whole network, ``paper-…`` to the letter of the equations, ``released`` what the
#: authors' code did, ``digits`` the embedded demonstration, and what trains a small network from scratch.
PRESETS: dict[str, Recipe] = {
    "default": _DEFAULT,
    "fine-tune": replace(_DEFAULT, fine_tune=FineTune(enabled=True)),
    "paper-office31": _PAPER,
    "paper-office-home": replace(_PAPER, adversary=MDD(margin=2.0)),
    "paper-visda": replace(_PAPER, adversary=MDD(margin=2.0)),
    "released": replace(
        _PAPER,
        adversary=MDD(ramp=100.0),
        saf=SAF(
            ramp=50.0,
            pairing="reversed",
            rectified=True,
            labels="hard",
            label_scale=2.0,
            self_training=0.1,
            self_training_rise=0.4,
        ),
    ),
    "digits": Recipe(
        steps=1000,
        batch=32,
        checkpoint_every=250,
        network=Network(bottleneck_width=256, classifier_width=256),
        optimizer=Optimizer(lr=0.02, decay=10.0, backbone_factor=1.0),
        saf=SAF(width=96, align=1.0, ascend=True),
    ),
}
