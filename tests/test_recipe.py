from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from safda.errors import SafdaError
from safda.methods import METHODS
from safda.presets import CANDIDATES
from safda.recipe import PRESETS, Recipe, load_recipe, preset, walk


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_the_way_through_toml(name):
    assert Recipe.from_toml(preset(name).to_toml()) == preset(name)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_it(name):
    recipe = Recipe().override({"methods": [name]})
    assert recipe[name] == METHODS[name].Knobs()
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@given(st.data())
def test_any_value_in_range_is_taken_and_kept(data):
    path, knob, value = data.draw(st.sampled_from([k for k in walk(Recipe()) if k[1].low is not None]))
    kind = type(value)
    low, high = kind(knob.low), kind(knob.high)
    drawn = data.draw(st.integers(low, high) if kind is int else st.floats(low, high))
    recipe = Recipe().override({path: drawn})
    assert {p: v for p, _, v in walk(Recipe.from_toml(recipe.to_toml()))}[path] == drawn


@given(st.data())
def test_any_value_out_of_range_is_refused_with_the_nearest_right_one(data):
    path, knob, value = data.draw(st.sampled_from([k for k in walk(Recipe()) if k[1].low is not None]))
    kind = type(value)
    above, below = kind(knob.high * 2 + 1), kind(knob.low - 1)
    for drawn, bound in ((above, knob.high), (below, knob.low)):
        with pytest.raises(SafdaError, match="out of range") as caught:
            Recipe().override({path: drawn})
        assert str(caught.value).endswith(repr(kind(bound)))


KINDS = {
    int: [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64],
    float: [np.float16, np.float32, np.float64, np.int16, np.uint64],
}


@given(st.data())
def test_numpys_numbers_are_taken_as_pythons_own(data):
    path, knob, value = data.draw(st.sampled_from([k for k in walk(Recipe()) if k[1].low is not None]))
    kind = data.draw(st.sampled_from(KINDS[type(value)]))
    limits = np.iinfo(kind) if issubclass(kind, np.integer) else np.finfo(kind)
    low, high = max(knob.low, float(limits.min)), min(knob.high, float(limits.max))
    drawn = kind(data.draw(st.floats(low, high)))
    assume(knob.low <= drawn.item() <= knob.high)  # float16 may round it out of the range
    recipe = Recipe().override({path: drawn})
    kept = {p: v for p, _, v in walk(recipe)}[path]
    assert (type(kept), kept) == (type(value), drawn.item())
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize("value", [True, False])
def test_numpys_truth_and_texts_are_taken_as_pythons_own(value):
    recipe = Recipe().override({"network.frozen": np.bool_(value), "saf.eta.source": np.str_("beta")})
    assert recipe.network.frozen is value
    assert type(recipe["saf"].eta.source) is str
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps", np.float64(3.0)),
        ("steps", np.bool_(True)),
        ("steps", np.str_("3")),
        ("steps", np.array(3)),
        ("steps", np.arange(1, 99)),
        ("steps", np.array([3])),
        ("steps", 1.5),
        ("steps", "3"),
        ("optimizer.lr", np.bool_(True)),
        ("optimizer.lr", True),
        ("optimizer.lr", np.array([0.1])),
        ("optimizer.lr", np.datetime64(1, "s")),
        ("network.frozen", np.int64(1)),
        ("saf.eta.source", np.bytes_(b"beta")),
    ],
)
def test_what_is_not_such_a_number_is_still_refused(path, value):
    with pytest.raises(SafdaError, match=rf"{path} = .* must be ") as caught:
        Recipe().override({path: value})
    assert "\n" not in str(caught.value)


def test_recipes_without_methods_need_neither_torch_nor_numpy():
    code = "import sys, safda; safda.Recipe(methods=()); print({'torch', 'numpy'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stesp": 3}, ["unknown key 'stesp'", "did you mean 'steps'"]),
        ({"saf.wieght": 0.1}, ["unknown key 'saf.wieght'", "did you mean 'weight'"]),
        ({"methods": ["cdna"]}, ["methods: 'cdna' is unknown", "did you mean 'cdan'"]),
        ({"methods": ["dann", "saf", "dann"]}, ["'dann' is named twice"]),
        ({"methods": [["mdd"]]}, ["must be a list of names"]),
        ({"methods": 3}, ["methods = 3 must be a list of names"]),
        (
            {"methods": ["dann"], "mdd.margin": 2.0},
            ["'mdd.margin' is", "takes no part (methods are dann)"],
        ),
        ({"adversary.name": "dann"}, ["unknown key 'adversary.name'; it is now 'methods'"]),
        ({"saf.sharpen": 2.0}, ["it is now 'pseudo_labels.temperature'"]),
        ({"saf.eta": "beta"}, ["it is now 'saf.eta.source'"]),
        ({"saf": 3, "saf.weight": 1.0}, ["'saf' is a section"]),
        ({"saf.eta.source": "constnat"}, ["saf.eta.source", "did you mean 'constant'"]),
        ({"steps": 2.5}, ["steps", "a whole number"]),
        ({"steps": True}, ["steps", "a whole number"]),
        ({"network.frozen": 1}, ["network.frozen", "true or false"]),
        ({"optimizer.lr": float("nan")}, ["optimizer.lr", "out of range"]),
        ({"saf": 3}, ["'saf' is a section"]),
    ],
)
def test_what_is_wrong_is_told_in_one_line(changes, words):
    with pytest.raises(SafdaError) as caught:
        Recipe().override(changes)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_another_method_brings_its_own_defaults_and_the_same_one_keeps_what_was_set():
    recipe = Recipe().override({"mdd.margin": 2.0, "saf.weight": 0.7})
    assert recipe.override({"methods": ["mdd", "bsp", "saf"]})["mdd"] == recipe["mdd"]
    other = recipe.override({"methods": ["dann", "saf"]})
    assert (other["dann"].weight, other["saf"].weight) == (1.0, 0.7)
    assert recipe.override({"methods": "dann, saf", "dann.weight": 0.5})["dann"].weight == 0.5
    assert list(other.of_methods) == ["dann", "saf", "pseudo_labels"]  # SAF requires the last


@pytest.mark.parametrize(
    ("adversary", "saf", "methods"),
    [
        ("dann", None, ("dann", "saf", "self_training")),
        ("none", None, ("saf", "self_training")),
        (None, False, ("mdd", "self_training")),
        ("cdan", False, ("cdan", "self_training")),
        (None, True, ("mdd", "saf", "self_training")),
    ],
)
def test_another_adversary_leads_what_rides(adversary, saf, methods):
    assert preset("released").with_adversary(adversary, saf).methods == methods
    assert Recipe(methods=("mdd",)).with_adversary(None, True).methods == ("mdd", "saf")


def test_a_file_may_start_from_a_preset(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('preset = "released"\nsteps = 7\n[pseudo_labels]\nkind = "soft"\n')
    recipe = load_recipe(file)
    assert recipe.steps == 7
    assert recipe == preset("released").override({"steps": 7, "pseudo_labels.kind": "soft"})


@pytest.mark.parametrize(
    ("content", "words"), [("steps = ", "not valid TOML"), (b"\xff\xfe", "UTF-8"), (None, "cannot be read")]
)
def test_a_bad_file_is_named(tmp_path, content, words):
    file = tmp_path / "bad.toml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SafdaError, match=words) as caught:
        load_recipe(file)
    assert "bad.toml" in str(caught.value)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(SafdaError, match="did you mean 'paper-office31'"):
        load_recipe("paper-office-31")


def test_recipes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().steps = 3


def test_paper_presets_say_what_the_paper_says():
    recipe = preset("paper-office31")
    assert (recipe.steps, recipe.batch, recipe.optimizer.lr, recipe.optimizer.momentum) == (100_000, 32, 0.004, 0.9)
    assert recipe.methods == ("mdd", "saf")
    assert (recipe["mdd"].weight, recipe["mdd"].ramp, recipe["mdd"].margin) == (0.1, 10.0, 4.0)
    saf, labels = recipe["saf"], recipe["pseudo_labels"]
    assert (saf.weight, saf.ramp, saf.eta.source, saf.eta.width, saf.eta.bottlenecks) == (0.1, 5.0, "learned", 384, 2)
    assert (saf.eta.ascend, labels.distribution_alignment, labels.propagation.neighbours) == (False, 0.0, 0.0)
    assert preset("paper-office-home")["mdd"].margin == preset("paper-visda")["mdd"].margin == 2.0


FORMER = """
preset = "default"
[optimiser]
lr = 0.1
[adversary]
name = "dann"
weight = 0.5
[saf]
eta = "learned"
width = 7
labels = "hard"
sharpen = 4.0
neighbour_share = 0.3
self_training = 0.2
[fine_tune]
neighbour_share = 0.4
"""


def test_a_recipe_of_an_earlier_format_is_read():
    changes = {
        "methods": ["dann", "saf", "self_training"],
        "optimizer.lr": 0.1,
        "dann.weight": 0.5,
        "saf.eta.source": "learned",
        "saf.eta.width": 7,
        "pseudo_labels.kind": "hard",
        "pseudo_labels.temperature": 0.25,
        "pseudo_labels.propagation.alpha": 0.3,
        "self_training.weight": 0.2,
        "self_training.rise": 0.0,
        "fine_tune.alpha": 0.4,
    }
    assert Recipe.from_toml(FORMER) == preset("default").override(changes)
    assert Recipe.from_toml(f"format = 2\n{FORMER}") == preset("default").override(changes)


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("[saf]\nenabled = false\nweight = 0.2", ("mdd",)),
        ('[adversary]\nname = "none"\nweight = 1.0', ("saf",)),
        ('[adversary]\nname = "none"\n[saf]\nenabled = false', ()),
    ],
)
def test_what_an_earlier_format_switched_off_takes_no_part(text, methods):
    assert Recipe.from_toml(text).methods == methods


def test_fine_tuning_keeps_pseudo_labels_only_where_saf_has_no_companion():
    """Beside MDD they are let go, since the network improves; SAF alone would drift with them."""
    beside = preset("fine-tune").override({"choice.candidates": 0, "pseudo_labels.hold": 1.0})
    assert beside.second_stage()["pseudo_labels"].hold == 0.0
    ensemble = preset("fine-tune").candidate(CANDIDATES["saf-ensemble"].changes)
    assert ensemble.methods == ("saf",)
    assert ensemble.second_stage()["pseudo_labels"].hold == 1.0
