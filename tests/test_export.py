"""Taking a run away: the file answers as torch does, holds all it needs, and is used where there is no torch."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import safda
from safda import classifier as classifiers
from safda import export as exporting
from safda import exported
from safda.cli import main
from safda.data import pixels
from safda.data.images import decode, resize
from safda.data.pixels import Transform
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.calibration import fit_temperature
from safda.nn.backbones import ImageConfig
from safda.nn.vision import guard_torchvision
from safda.recipe import Recipe
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY, blobs
from tests.test_fuzz_readers import damages, told_in_one_line
from tests.test_pictures import content, folder, noise, write

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxruntime")

ODD = ("ant", "bée 🐝", 'cat "\x1b[31m\n')
QUICK = {**TINY, "steps": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


def domains(where, classes=ODD):
    """A labelled source and a target, as .npz files."""
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(where / f"{name}.npz", features=features, labels=labels, classes=np.array(classes))
    return where / "source.npz", where / "target.npz"


@pytest.fixture(scope="module")
def arrays(place):
    """A run on arrays, exported on the command line: source, target, run folder, file."""
    (place / "arrays").mkdir()
    source, target = domains(place / "arrays")
    run, file = place / "arrays" / "run", place / "arrays" / "model.onnx"
    safda.fit(source, target, out=run, cpu=True, **QUICK)
    assert main(["export", str(run), "-o", str(file)]) == 0
    return source, target, run, file


@pytest.fixture(scope="module")
def pictures(place):
    """A run on pictures whose whole network learned in two stages, exported from Python."""
    source, target = folder(place / "p" / "source"), folder(place / "p" / "target", seed=5000, size=(57, 83))
    odd = noise((90, 120, 200), (80, 61), 7).convert("RGBA")
    odd.putalpha(100)
    write(target / "ant" / "clear.png", content(odd))
    write(target / "bee" / "strip.png", content(noise((9, 200, 9), (300, 12), 8)))  # cut to 4:1, and black around it
    rotated = Image.Exif()
    rotated[0x0112] = 6
    write(target / "cat" / "rotated.jpg", content(noise((200, 200, 9), (90, 40), 9), "JPEG", exif=rotated))
    knobs = {"network.frozen": True, "fine_tune.enabled": True, "fine_tune.steps": 3, "fine_tune.batch": 4}
    adapted = safda.fit(source, target, recipe="digits", cpu=True, **{**QUICK, **knobs})
    file = place / "p" / "model.onnx"
    return adapted, target, file, adapted.export(file)


def differ(classifier, adapted, data):
    """The largest difference of a probability, over all samples and classes."""
    ours, theirs = adapted.predict(data), classifier.predict(data)
    assert theirs.ids == ours.ids
    assert theirs.classes == ours.classes
    assert theirs.skipped == ours.skipped
    np.testing.assert_allclose(theirs.embedding, ours.embedding, atol=1e-4)
    return np.abs(ours.probabilities - theirs.probabilities).max()


# ------------------------------------------------------------------------------------------------ what the file answers


def test_an_exported_run_answers_as_the_run_does(arrays):
    _, target, run, file = arrays
    classifier, adapted = safda.OnnxClassifier(file), safda.Adapted.load(run)
    assert differ(classifier, adapted, target) < 1e-5
    features = np.load(target)["features"]
    assert differ(classifier, adapted, features[:1]) < 1e-5  # any number at once
    assert np.ptp(classifier.predict(target).probabilities, axis=0).max() > 0.1  # it says different things


def manually(adapted, rows):
    """MCD's answer by hand, in float64: both classifiers' logits of B's output, added up."""
    state = {name: value.double().numpy() for name, value in adapted.model.state_dict().items()}

    def linear(name, x):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    x = (rows - state["centring.mean"]) * state["centring.scale"]
    x, norm = linear("bottleneck.linear", x), "bottleneck.norm"
    x = (x - state[f"{norm}.running_mean"]) / np.sqrt(state[f"{norm}.running_var"] + 1e-5)
    x = np.maximum(x * state[f"{norm}.weight"] + state[f"{norm}.bias"], 0)
    heads = ("classifier", "methods.mcd.second")
    return sum(linear(f"{head}.3", np.maximum(linear(f"{head}.0", x), 0)) for head in heads)


def test_a_method_that_answers_itself_answers_in_the_file_too(tmp_path):
    (features, labels), (shifted, _) = blobs(0, 0.0), blobs(1, 0.7)
    knobs = {"network.features": "standardised", **QUICK}
    adapted = safda.fit((features, labels), shifted, methods=["mcd"], cpu=True, **knobs)
    adapted.export(tmp_path / "m.onnx", shifted)
    logits = safda.OnnxClassifier(tmp_path / "m.onnx").predict(shifted).logits
    np.testing.assert_allclose(logits, manually(adapted, shifted.astype(np.float64)), atol=1e-4)


@pytest.mark.parametrize(
    "knobs",
    [
        {"methods": ["adda"], "network.features": "centred", "network.components": 3},
        {"methods": [], "network.features": "as-is"},
    ],
    ids=["adda, principal components", "source only, as is"],
)
def test_methods_and_ways_to_scale_features(tmp_path, knobs):
    (features, labels), (shifted, _) = blobs(0, 0.0), blobs(1, 0.7)
    adapted = safda.fit((features, labels), shifted, cpu=True, **{**QUICK, **knobs})
    made = adapted.export(tmp_path / "m.onnx")
    assert made.parity.of.startswith("random numbers: the run's target was an array")
    assert differ(safda.OnnxClassifier(tmp_path / "m.onnx"), adapted, shifted) < 1e-5


def test_pictures_are_read_and_answered_as_the_run_does(pictures, tmp_path):
    adapted, target, file, made = pictures
    assert made.parity.samples == 15
    assert made.parity.of == "target"
    assert made.parity.same_answers == 1
    assert made.parity.max_difference < 1e-5
    classifier = safda.OnnxClassifier(file)
    assert differ(classifier, adapted, target) < 1e-5
    some = [str(target / "cat" / "rotated.jpg"), str(target / "bee" / "strip.png")]
    assert differ(classifier, adapted, some) < 1e-5


def test_what_a_method_needs_for_training_alone_stays_behind(place, tmp_path):
    """ADDA keeps a second encoder, and every method may: no part of an answer, so no part of the file."""
    both = folder(place / "a" / "source"), folder(place / "a" / "target", seed=5000)
    adapted = safda.fit(*both, recipe="digits", methods=["adda"], cpu=True, **QUICK)
    answering = ("backbone.", "centring.", "bottleneck.", "classifier.")
    state = adapted.model.state_dict()
    needed = sum(value.nbytes for name, value in state.items() if name.startswith(answering))
    assert sum(value.nbytes for value in state.values()) > 1.5 * needed
    for name in ("m.onnx", "m.pt2"):
        made = adapted.export(tmp_path / name)
        assert needed < made.size < needed + 100_000
        assert made.parity.max_difference < 1e-5


def test_a_pt2_file_answers_with_torch_alone(pictures, tmp_path):
    adapted, target, _, _ = pictures
    made = adapted.export(tmp_path / "m.pt2")
    assert made.opset is None
    texts = dict.fromkeys(("classes", "transform", "temperature", "recipe", "preprocessing"), "")
    program = torch.export.load(tmp_path / "m.pt2", extra_files=texts)
    assert tuple(json.loads(texts["classes"])) == adapted.classes
    assert Recipe.from_toml(texts["recipe"]) == adapted.recipe
    inputs = adapted.inputs(target).batch(torch.arange(15))
    probabilities = program.module()(inputs)[0]
    np.testing.assert_allclose(probabilities.detach().numpy(), adapted.predict(target).probabilities, atol=1e-5)


# --------------------------------------------------------------------------------------------------- what it holds


def test_the_file_holds_what_whoever_has_it_must_know(arrays, pictures, tmp_path):
    model = onnx.load(arrays[3])
    onnx.checker.check_model(model, full_check=True)
    texts = {each.key: each.value for each in model.metadata_props}
    assert json.loads(texts["classes"]) == list(ODD)
    assert Recipe.from_toml(texts["recipe"]) == RunFolder.open(arrays[2]).recipe
    assert json.loads(texts["temperature"]) == 1
    assert texts["preprocessing"] == "none: numbers as they come, float32 of shape n×6"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    adapted, _, file, made = pictures
    about = safda.OnnxClassifier(file).about
    assert about.transform == Transform(**adapted.data["transform"])
    assert about.input_shape == (3, 32, 32)
    assert "resize its short side to 36 " in made.preprocessing
    assert "cut out the 32×32 in the middle; n×3×32×32, not normalised" in made.preprocessing


def test_no_folder_of_the_machine_is_in_the_file(pictures, place, tmp_path):
    adapted = pictures[0]
    adapted.model.recipe = adapted.recipe.override({"network.weights": str(place / "mine.safetensors")})
    adapted.export(tmp_path / "m.pt2")
    adapted.export(tmp_path / "m.onnx")
    adapted.model.recipe = adapted.recipe.override({"network.weights": ""})
    names = [str(place), str(Path(safda.__file__).parent), str(Path(torch.__file__).parent)]
    for each in (tmp_path / "m.onnx", tmp_path / "m.pt2"):
        assert [name for name in names if name.encode() in each.read_bytes()] == []
        assert b"mine.safetensors" in each.read_bytes()


def test_what_was_exported_is_printed(arrays, tmp_path, capsys):
    assert main(["export", str(arrays[2]), "-o", str(tmp_path / "m.onnx"), "--data", str(arrays[0])]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["size"] == (tmp_path / "m.onnx").stat().st_size
    assert told["opset"] == onnx.load(tmp_path / "m.onnx").opset_import[0].version
    assert told["parity"]["samples"] == 60
    assert told["parity"]["of"] == str(arrays[0])
    assert told["parity"]["max_difference"] < 1e-5


# ------------------------------------------------------------------------------------------------------ without torch

_WITHOUT_TORCH = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm", "accelerate"):
            raise ImportError(f"{name} is imported")
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Refused())
from safda.cli import main
for words in (sys.argv[1:4], sys.argv[4:7]):
    assert main(["predict", *words[:2], "-o", words[2]]) == 0
sys.meta_path.insert(0, Lacking())
for command in ("fit", "doctor", "evaluate"):
    assert main([command, *sys.argv[1:3], "-o", "x"][: 4 if command == "fit" else 3]) in (1, 2)
try:
    import torch
except ImportError:
    print("no torch")
"""


def test_predictions_need_no_torch(arrays, pictures, tmp_path):
    _, target, run, file = arrays
    adapted, images, picture_file, _ = pictures
    words = [file, target, tmp_path / "arrays.csv", picture_file, images, tmp_path / "pictures.csv"]
    ended = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, *map(str, words)], capture_output=True, text=True)
    told = "torch is not installed here; without it, only 'safda predict FILE.onnx DATA' works"
    assert ended.stderr.splitlines() == [f"safda: error: {told}"] * 3
    assert ended.returncode == 0
    assert ended.stdout.endswith("no torch\n")
    for model, data, name in ((safda.Adapted.load(run), target, "arrays"), (adapted, images, "pictures")):
        model.predict(data).write(tmp_path / "torch.csv")
        ours, theirs = ((tmp_path / f"{each}.csv").read_text().splitlines() for each in ("torch", name))
        assert len(ours) == len(theirs)
        for line, other in zip(ours[1:], theirs[1:], strict=True):
            (*same, confidence), (*as_well, close) = line.rsplit(",", 1), other.rsplit(",", 1)
            assert same == as_well
            assert float(confidence) == pytest.approx(float(close), abs=1e-5)


_SIZES = st.integers(1, 90)


@given(_SIZES, _SIZES, _SIZES, _SIZES, st.sampled_from(["bilinear", "bicubic"]), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_pixels_are_resized_as_torchvision_does_to_the_last_bit(height, width, new_height, new_width, how, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = resize(torch.from_numpy(picture).permute(2, 0, 1), new_height, new_width, how).permute(1, 2, 0).int()
    found = torch.from_numpy(pixels.resized(picture, new_height, new_width, how)).int()
    native = how == "bicubic" or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    assert (found - wanted).abs().max() <= (0 if native else 1)  # torchvision rounds elsewhere on older processors


@given(_SIZES, _SIZES, _SIZES)
def test_the_middle_is_cut_out_as_torchvision_does(height, width, side):
    guard_torchvision()
    from torchvision.transforms.v2 import functional

    picture = np.random.default_rng(0).integers(1, 256, (height, width, 3), dtype=np.uint8)
    wanted = functional.center_crop(torch.from_numpy(picture).permute(2, 0, 1), [side, side]).permute(1, 2, 0)
    np.testing.assert_array_equal(pixels.center_crop(picture, side), wanted.numpy())


@pytest.mark.parametrize("transform", [Transform(32), Transform(24, 1.0, "bicubic", True)])
def test_a_picture_becomes_the_same_pixels_with_torch_and_without(transform):
    large = noise((120, 60, 30), (700, 500))
    grey, deep = large.convert("L"), Image.fromarray(np.asarray(large.convert("L"), dtype=np.uint16) * 257)
    for picture, kind in ((large, "JPEG"), (large.convert("P"), "PNG"), (grey, "PNG"), (deep, "PNG")):
        file = content(picture, kind)
        wanted = decode(io.BytesIO(file), transform).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(pixels.decode(io.BytesIO(file), transform), wanted)


# --------------------------------------------------------------------------------------- what must not become a file


class Noisy(nn.Module):
    """A backbone that answers otherwise each time."""

    image_config = ImageConfig(16, 1.0, "bilinear", False, (0.5,) * 3, (0.5,) * 3)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, images):
        features = self.linear(images.mean((2, 3)))
        return features + 100 * torch.randn_like(features)


class Branching(Noisy):
    """A backbone that looks at its inputs to decide what to do."""

    def forward(self, images):
        return self.linear(images.mean((2, 3))) * (2.0 if images.sum().item() > 0 else 1.0)


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (Noisy, "does not answer as torch does: on 12 samples (target) probabilities differ by up to"),
        (Branching, "the network cannot be exported: torch.export says: "),
    ],
)
def test_what_answers_otherwise_is_not_written(place, tmp_path, backbone, said):
    both = folder(place / "n" / "source"), folder(place / "n" / "target", seed=5000)
    adapted = safda.fit(*both, recipe="digits", backbone=backbone(), cpu=True, **QUICK)
    with pytest.raises(SafdaError) as raised:
        adapted.export(tmp_path / "m.onnx")
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_compared_by_what_it_says_and_not_by_what_was_meant(arrays, tmp_path, monkeypatch):
    written = exporting._Onnx.written

    def wrong(program, about):
        content, opset = written(program, about)
        model = onnx.load_from_string(content)
        weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        weight.raw_data = bytes(len(weight.raw_data))
        entries = [each for each in model.metadata_props if each.key != exported.DIGEST]
        del model.metadata_props[:]
        model.metadata_props.extend(entries)
        return model.SerializeToString(), opset

    monkeypatch.setattr(exporting._Onnx, "written", wrong)
    with pytest.raises(SafdaError, match="does not answer as torch does"):
        safda.Adapted.load(arrays[2]).export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("absent", ["onnx", "onnxscript", "onnxruntime"])
def test_an_absent_package_is_named_before_the_work(arrays, tmp_path, capsys, monkeypatch, absent):
    found = importlib.util.find_spec
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == absent else found(name))
    if absent == "onnxruntime":
        monkeypatch.setitem(sys.modules, absent, None)
        assert main(["predict", str(arrays[3]), str(arrays[1])]) == 1
        assert "pip install onnxruntime" in capsys.readouterr().err
    monkeypatch.setattr(classifiers.Adapted, "load", lambda *_: pytest.fail("loaded first"))
    assert main(["export", str(arrays[2]), "-o", str(tmp_path / "m.onnx")]) == 1
    said = capsys.readouterr().err
    assert absent in said
    assert f"pip install {absent}" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "RUN", "-o", "m.torchscript"], "its ending must be one of .onnx, .pt2"),
        (["export", "RUN", "-o", "no/m.onnx"], "there is no folder"),
        (["export", "no-run", "-o", "m.onnx"], "is not a run folder"),
        (["export", "RUN", "-o", "m.onnx", "--calibrate", "SOURCE"], "is what the classifier was trained on"),
        (["export", "RUN", "-o", "m.onnx", "--calibrate", "flat.npz"], "has no labels"),
        (["export", "RUN", "-o", "m.onnx", "--data", "flat.npz"], "its samples are of shape (2,)"),
        (["predict", "m.pt2", "TARGET"], "m.pt2: is for torch.export.load"),
        (["predict", "no.onnx", "TARGET"], "no.onnx: no such file"),
        (["predict", "FILE", "flat.npz"], "its samples are of shape (2,), and"),
        (["predict", "FILE", "PICTURE"], "holds pictures, and"),
        (["predict", "FILE", "digits-handwritten"], "its samples are of shape (1, 16, 16), and"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arrays, pictures, tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    np.savez("flat.npz", features=np.eye(2))
    source, target, run, file = map(str, arrays)
    names = {"RUN": run, "SOURCE": source, "TARGET": target, "FILE": file, "PICTURE": str(pictures[1] / "bee")}
    assert main([names.get(word, word) for word in words]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["flat.npz"]


# -------------------------------------------------------------------------------------------- damaged and foreign files


def foreign():
    """A graph that somebody else made."""
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 6]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def changed(file, **texts):
    """A file with other metadata, as another tool might leave it: without a digest."""
    model = onnx.load(file)
    kept = {each.key: each.value for each in model.metadata_props if each.key != exported.DIGEST} | texts
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, kept)
    return model.SerializeToString()


def test_a_foreign_graph_is_refused_and_a_changed_one_read(arrays, tmp_path):
    (tmp_path / "m.onnx").write_bytes(foreign().SerializeToString())
    with pytest.raises(SafdaError, match=r"m.onnx: is an ONNX model, but none that 'safda export' has written"):
        safda.OnnxClassifier(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(changed(arrays[3], author="me"))
    assert safda.OnnxClassifier(tmp_path / "m.onnx").classes == ODD


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"safda": '{"format": 2, "version": "9"}'}, "is of format 2, and this safda reads 1"),
        ({"safda": "[]"}, "safda must be a table"),
        ({"classes": '["ant", "bee"]'}, "its graph is not what its metadata say"),
        ({"classes": "ant"}, "is not a readable exported model"),
        ({"input": '{"shape": [7], "type": "float32"}'}, "its graph is not what its metadata say"),
        ({"input": '{"shape": [6], "type": "uint8"}'}, "its graph is not what its metadata say"),
        ({"temperature": "NaN"}, "temperature must be a number above 0"),
        (
            {"transform": '{"side": 6, "crop": 0, "interpolation": "bilinear", "squash": true, "scale": 1}'},
            "transform.crop must be a number from 0.01 to 1",
        ),
        (
            {"transform": '{"side": 6, "crop": 1, "interpolation": "bilinear", "squash": true, "scale": 1}'},
            "its graph is not what its metadata say",
        ),
    ],
)
def test_metadata_that_cannot_be_are_told(arrays, texts, said):
    with pytest.raises(SafdaError) as raised:
        safda.OnnxClassifier(changed(arrays[3], **texts))
    assert said in str(raised.value)


@given(damages())
@settings(max_examples=100)
def test_a_damaged_file_is_told_in_one_line_or_answers_right(arrays, damage):
    good = arrays[3].read_bytes()
    features = np.load(arrays[1])["features"]
    opened = told_in_one_line(lambda: safda.OnnxClassifier(damage(good)))
    if opened is not None:
        wanted = safda.OnnxClassifier(good).predict(features).logits
        np.testing.assert_array_equal(opened.predict(features).logits, wanted)


# --------------------------------------------------------------------------------------------------------- temperature


def test_the_temperature_is_that_of_the_least_cross_entropy():
    """Against torch's L-BFGS, in double precision."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    logits = 3 * (np.eye(5)[labels] + rng.normal(size=(400, 5)))
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(torch.from_numpy(logits) / log_t.exp(), torch.from_numpy(labels))
        value.backward()
        return value

    optimizer.step(loss)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(float(log_t.detach().exp()), rel=1e-4)
    assert fit_temperature(2 * logits, labels) == pytest.approx(2 * found, rel=1e-4)
    assert fit_temperature(logits, logits.argmax(1)) == pytest.approx(1 / 20, rel=1e-3)  # never wrong: no end of it


def test_samples_that_are_all_answered_right_set_no_temperature(arrays, tmp_path):
    _, target, run, _ = arrays
    adapted = safda.Adapted.load(run)
    right = [adapted.classes.index(label) for label in adapted.predict(target).labels]
    np.savez(tmp_path / "right.npz", features=np.load(target)["features"], labels=right, classes=np.array(ODD))
    with pytest.warns(SafdaWarning, match="all of its 60 samples are answered right, which sets no temperature"):
        made = adapted.export(tmp_path / "m.pt2", calibrate=tmp_path / "right.npz")
    assert made.temperature == 1


def test_labels_that_training_has_not_seen_set_the_temperature(arrays, tmp_path):
    _, target, run, _ = arrays
    adapted = safda.Adapted.load(run)
    made = adapted.export(tmp_path / "m.onnx", calibrate=target)
    ours = adapted.predict(target)
    assert made.temperature == pytest.approx(fit_temperature(ours.logits, np.load(target)["labels"]))
    assert abs(made.temperature - 1) > 0.05
    theirs = safda.OnnxClassifier(tmp_path / "m.onnx").predict(target)
    scaled = replace(ours, logits=ours.logits / made.temperature)
    np.testing.assert_allclose(theirs.probabilities, scaled.probabilities, atol=1e-5)
    assert theirs.labels == ours.labels
