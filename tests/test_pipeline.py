"""From files to steps: the same crops whoever reads them, exact resume, caches that change nothing, any backbone."""

from __future__ import annotations

import io
import json
import time
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import safda
from safda.api import resume
from safda.cli import main
from safda.data import EpochSampler, load_domain
from safda.data.ahead import read_ahead
from safda.data.images import DecodedStore, Transform, decode, random_crop_params
from safda.data.loader import training_batches
from safda.errors import SafdaError
from safda.extraction import for_network, frozen_features, image_transform
from safda.nn.backbones import BACKBONES, ImageConfig, check_backbone, image_config, make_backbone
from safda.nn.vision import guard_torchvision
from safda.recipe import NetworkKnobs
from safda.training.checkpoint import RunFolder
from safda.training.loop import weights_of
from tests.conftest import TINY
from tests.test_pictures import COLOURS, content, folder, noise, write
from tests.test_training import Killed, killed_at

SMALL = {**TINY, "steps": 9, "checkpoint_every": 4}


@pytest.fixture
def both(tmp_path):
    return folder(tmp_path / "source"), folder(tmp_path / "target", seed=5000, size=(40, 64))


def fit(both, out=None, **changes):
    """Train a small network from scratch."""
    return safda.fit(*both, out=out, recipe="digits", cpu=True, **{**SMALL, **changes})


def weights(path):
    return (path / "model.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------------------ batches


def test_a_batch_is_the_same_whatever_the_threads_and_wherever_one_starts(both):
    domains = [for_network(load_domain(path), Transform(32)) for path in both]

    def batches(steps, threads, share=slice(None)):
        samplers = [EpochSampler(len(domain), 5, 3, i) for i, domain in enumerate(domains)]
        return list(training_batches(domains, samplers, steps, share, 3, threads))

    plain = batches(range(7), 0)
    for steps, threads in ((range(7), 1), (range(7), 4), (range(4, 7), 3)):
        for ours, wanted in zip(batches(steps, threads), plain[steps.start :], strict=True):
            for (rows, inputs), (wanted_rows, wanted_inputs) in zip(ours, wanted, strict=True):
                assert torch.equal(rows, wanted_rows)
                assert torch.equal(inputs, wanted_inputs)
    for part in (slice(0, 2), slice(2, 5)):  # two processes see the parts of one batch
        for ours, wanted in zip(batches(range(7), 0, part), plain, strict=True):
            assert torch.equal(ours[1][1], wanted[1][1][part])
    assert not torch.equal(plain[0][0][1], plain[1][0][1])


def test_reading_ahead_is_bounded_in_order_and_passes_errors_on():
    begun = []

    def read(number):
        begun.append(number)
        time.sleep(0.001 * (5 - number % 5))
        if number == 30:
            raise ValueError("thirty")
        return number

    reading, got = read_ahead(read, range(1000), 3), []
    for number in islice(reading, 30):
        got.append(number)
        assert max(begun) <= number + 5
    assert got == list(range(30))
    with pytest.raises(ValueError, match="thirty"):
        next(reading)


def test_crops_are_spread_as_torchvisions():
    guard_torchvision()
    from torchvision.transforms import RandomResizedCrop

    rng = np.random.default_rng(0)
    for height, width, scale in ((256, 256, 0.08), (256, 700, 0.08), (256, 300, 0.5)):
        ours = np.array([random_crop_params(height, width, rng.random(41), scale) for _ in range(3000)])
        theirs = np.array(
            [
                RandomResizedCrop.get_params(torch.empty(3, height, width), (scale, 1.0), (3 / 4, 4 / 3))
                for _ in range(3000)
            ]
        )
        assert (ours[:, 0] + ours[:, 2] <= height).all()
        assert (ours[:, 1] + ours[:, 3] <= width).all()
        np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.03 * width)
        np.testing.assert_allclose(ours.std(0), theirs.std(0), atol=0.03 * width)


def test_inputs_are_what_torchvision_makes_of_the_file(tmp_path):
    guard_torchvision()
    from torchvision.transforms import v2

    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 12, 3), dtype=np.uint8)).resize((900, 640))
    usual = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])
    for name, kind, tolerance in (("a.png", "PNG", 0.5), ("b.jpg", "JPEG", 1.5)):  # a JPEG is decoded at half its size
        file = write(tmp_path / "d" / name, content(smooth, kind, **({"quality": 95} if kind == "JPEG" else {})))
        row = sorted(p.name for p in (tmp_path / "d").iterdir()).index(name)
        ours = for_network(load_domain(tmp_path / "d"), Transform(224)).batch(torch.tensor([row]))[0]
        difference = (ours.float() - usual(Image.open(file)).float()).abs()
        assert difference.mean() < tolerance


def test_a_strip_does_not_fill_the_memory(tmp_path):
    file = write(tmp_path / "d" / "strip.png", content(Image.new("RGB", (6000, 2), "red")))
    assert decode(file, Transform(224)).shape == (3, 1, 1024)
    domain = for_network(load_domain(tmp_path / "d"), Transform(32))
    assert domain.batch(torch.tensor([0]), np.full((1, 41), 0.3)).shape == (1, 3, 32, 32)


# ----------------------------------------------------------------------------------------------- runs and resume


@pytest.mark.parametrize("changes", [{}, {"network.frozen": True}], ids=["trained", "frozen"])
@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_run_on_pictures_resumes_exactly(both, tmp_path, step, changes):
    fit(both, tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        fit(both, tmp_path / "cut", callback=killed_at(step), **changes)
    resume(tmp_path / "cut", cpu=True)
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


def test_resume_refuses_pictures_that_have_changed(both, tmp_path):
    with pytest.raises(Killed):
        fit(both, tmp_path / "run", callback=killed_at(5))
    write(both[1] / "bee" / "1.jpg", content(noise((0, 0, 0)), "JPEG"))
    with pytest.raises(SafdaError, match="has changed since"):
        resume(tmp_path / "run", cpu=True)


def test_neither_readers_nor_the_cache_of_decoded_pictures_change_a_run(both, tmp_path, monkeypatch):
    fit(both, tmp_path / "plain")
    monkeypatch.setattr("safda.data.loader.num_workers", lambda: 3)
    fit(both, tmp_path / "threads")
    for name in ("filling", "filled"):
        fit(both, tmp_path / name, cache_decoded=True)
        monkeypatch.setattr("safda.data.images.decode", lambda *_: pytest.fail("decoded again"))
    for name in ("threads", "filling", "filled"):
        assert weights(tmp_path / name) == weights(tmp_path / "plain")


def test_a_decoded_picture_that_is_not_whole_is_not_used(tmp_path):
    store = DecodedStore(tmp_path, "x", [(4, 3), (2, 5)])
    picture = torch.arange(30, dtype=torch.uint8).view(5, 2, 3).permute(2, 0, 1)
    assert store.get(1) is None
    store.put(1, picture)
    assert torch.equal(DecodedStore(tmp_path, "x", [(4, 3), (2, 5)]).get(1), picture)
    assert store.get(0) is None
    with (tmp_path / "x.pixels").open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")
    assert store.get(1) is None


def test_some_of_the_pictures_are_not_kept_a_second_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFDA_CACHE", str(tmp_path / "cache"))
    domain = for_network(load_domain(folder(tmp_path / "d")), Transform(32), cache_decoded=True)
    rows = torch.tensor([3, 1])
    every = domain.batch(torch.arange(len(domain)))
    stores = set((tmp_path / "cache" / "decoded").iterdir())
    assert stores
    assert torch.equal(domain.take(rows).batch(torch.arange(2)), every[rows])
    assert set((tmp_path / "cache" / "decoded").iterdir()) == stores


def test_a_target_label_cannot_change_a_run_on_pictures(both, tmp_path):
    fit(both, tmp_path / "a")
    flat = tmp_path / "flat"
    for name in COLOURS:
        for file in (both[1] / name).iterdir():
            write(flat / f"{name}-{file.name}", file.read_bytes())  # in the same order
    fit((both[0], flat), tmp_path / "b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_pictures_can_be_learned_and_skipped_files_are_told(both, tmp_path, capsys):
    write(both[1] / "bee" / "broken.jpg", b"no picture")
    adapted = fit(both, tmp_path / "run", steps=60, **{"optimizer.lr": 0.02, "optimizer.backbone_factor": 1.0})
    assert adapted.evaluate(both[1]).accuracy == 1.0
    predictions = adapted.predict(both[1])
    assert dict(predictions.skipped) == {"bee/broken.jpg": "not a picture"}
    assert len(predictions.ids) == 12
    assert RunFolder.open(tmp_path / "run").data["target"]["skipped"] == [["bee/broken.jpg", "not a picture"]]
    again = safda.Adapted.load(tmp_path / "run").predict(both[1])
    np.testing.assert_array_equal(again.probabilities, predictions.probabilities)
    (both[1] / "bee").rename(both[1] / "Bee")
    with pytest.raises(SafdaError, match="'Bee' was not in the source; did you mean 'bee'"):
        adapted.evaluate(both[1])


# ------------------------------------------------------------------------------------------------- feature cache


def test_features_are_computed_once_and_only_where_something_changed(both, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SAFDA_CACHE", str(tmp_path / "cache"))
    backbone, _ = make_backbone(NetworkKnobs(), torch.zeros(3, 32, 32))
    file = tmp_path / "w.safetensors"
    save_file(weights_of(backbone), file)
    words = ["features", str(both[0]), "--backbone", "small-cnn", "--weights", str(file)]

    def computed(*more):
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)["computed"]

    assert computed() == 12
    assert computed() == 0
    write(both[0] / "bee" / "2.jpg", content(noise((1, 1, 1)), "JPEG"))
    write(both[0] / "bee" / "new.jpg", content(noise((2, 2, 2)), "JPEG"))
    (both[0] / "ant" / "0.jpg").rename(both[0] / "ant" / "renamed.jpg")
    assert computed() == 2
    assert computed("--network.image-size", "40") == 13
    frozen = {"network.frozen": True, "network.weights": str(file)}
    fit((both[0], both[0]), **frozen)
    assert computed() == 0  # a frozen run looks in the same place
    save_file({name: 2 * value for name, value in weights_of(backbone).items()}, file)
    assert computed() == 13


def test_features_as_a_file_are_read_again_as_they_are(both, tmp_path, capsys):
    write(both[0] / "bee" / "broken.jpg", b"no picture")
    words = ["--backbone", "small-cnn", "--network.pretrained", "false"]
    out = tmp_path / "features.npz"
    assert main(["features", str(both[0]), "-o", str(out), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["features"], told["pictures"], told["skipped"]) == (str(out), 12, 1)
    with np.load(out, allow_pickle=False) as archive:
        assert set(archive.files) == {"features", "labels", "classes", "paths"}
        assert (archive["features"].dtype, archive["features"].shape) == (np.float32, (12, told["width"]))
    pictures, features = load_domain(both[0]), load_domain(out)
    assert (features.ids, features.classes) == (pictures.ids, pictures.classes)
    assert torch.equal(features.labels, pictures.labels)
    labelled = safda.SAFClassifier(steps=2, knobs=TINY, batch=8).fit(features.inputs.numpy(), features.labels.numpy())
    assert labelled.n_features_in_ == told["width"]

    flat = tmp_path / "flat"
    write(flat / "one.jpg", (both[0] / "ant" / "0.jpg").read_bytes())
    assert main(["features", str(flat), "-o", str(out), *words]) == 0
    with np.load(out, allow_pickle=False) as archive:  # the old file is gone, and so are its labels
        assert set(archive.files) == {"features", "paths"}
    assert load_domain(out).ids == ("one.jpg",)


def test_a_file_of_features_equals_what_is_in_the_cache_however_it_is_read(tmp_path, monkeypatch):
    from safda.data import loader
    from safda.data.arrays import to_npz

    rows = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    monkeypatch.setattr(loader, "_MOST_ROWS", 16)  # written in several parts
    to_npz(tmp_path / "x.npz", load_domain(tmp_path / "x.npy"))
    np.testing.assert_array_equal(load_domain(tmp_path / "x.npz").inputs.numpy(), rows)


def test_a_file_of_features_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    from safda.data import arrays

    def breaks(domain):
        yield domain.inputs[:1]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "evaluation_batches", breaks)
    with pytest.raises(SafdaError, match=r"x\.npz: cannot be written: No space left"):
        arrays.to_npz(tmp_path / "x.npz", load_domain(np.eye(3)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "said"), [("x.csv", "its ending must be .npz"), ("no/x.npz", "there is no folder")])
def test_where_features_go_is_looked_at_before_the_work(both, tmp_path, capsys, name, said):
    assert main(["features", str(both[0]), "-o", str(tmp_path / name), "--backbone", "no-such-network"]) == 1
    assert said in capsys.readouterr().err


def test_an_interrupted_extraction_goes_on_where_it_was(tmp_path, monkeypatch):
    from safda.data import cache

    root = folder(tmp_path / "d", per_class=5)
    domain = for_network(load_domain(root), Transform(32))
    monkeypatch.setattr(cache, "_BATCH", 4)
    seen = []

    def extract(pictures, die_after=10**9):
        seen.append(len(pictures))
        if len(seen) > die_after:
            raise Killed
        return pictures.float().mean((2, 3))

    with pytest.raises(Killed):
        cache.cached_features(domain, lambda p: extract(p, 2), "test-interrupted", 3)
    (rows,) = (cache.cache_dir() / "features" / "test-interrupted-32-36-bilinear-3").glob("*.rows")
    with rows.open("ab") as file:
        file.write(b"half a row")  # as a kill between rows and digests leaves it
    seen.clear()
    features = cache.cached_features(domain, extract, "test-interrupted", 3)
    assert sum(seen) == 15 - 8
    everything = torch.arange(15)
    torch.testing.assert_close(features.batch(everything), domain.batch(everything).float().mean((2, 3)))
    assert features.labels is domain.labels


class Pooled(nn.Module):
    """One weight for each colour, and a way to make one number of all pixels, which is no weight."""

    image_config = ImageConfig(16, 0.875, "bilinear", False, (0.5,) * 3, (0.5,) * 3)

    def __init__(self, pool, layer=None):
        super().__init__()
        self.scale, self.pool, self.layer = nn.Parameter(torch.ones(3)), pool, layer or nn.Identity()

    def forward(self, pictures):
        return self.scale * self.layer(self.pool(pictures.flatten(2)))


def test_backbones_of_equal_weights_do_not_share_features(both, tmp_path, monkeypatch):
    monkeypatch.setenv("SAFDA_CACHE", str(tmp_path / "cache"))
    domain = for_network(load_domain(both[0]), image_transform(NetworkKnobs(), Pooled(torch.mean)))
    computed = []

    def features(pool, layer=None):
        network, width = make_backbone(NetworkKnobs(frozen=True), domain.blank(), Pooled(pool, layer))
        model = SimpleNamespace(backbone=network, backbone_dim=width)
        seen = frozen_features(model, domain, lambda done, of: computed.append(done)).batch(torch.arange(12))
        torch.testing.assert_close(seen, network(domain.batch(torch.arange(12))))

    def mean(pixels):
        return pixels.mean(2)

    features(mean)
    features(lambda pixels: pixels.amax(2))  # of which nothing but its code tells
    features(mean, nn.Tanh())
    assert computed == [12, 12, 12]
    features(mean, nn.Tanh())
    assert computed == [12, 12, 12]  # what is its own is found again


def test_rows_on_disk_do_not_pile_up_in_memory(tmp_path):
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(64_000, 256))  # 65 MB of zeros

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    domain = load_domain(tmp_path / "x.npy")
    for rows in torch.randperm(64_000).split(64):
        domain.batch(rows)
    domain.fingerprint()
    assert resident() - before < 30_000_000


def test_a_frozen_backbone_stays_as_it_was(both, tmp_path):
    fit(both, tmp_path / "run", **{"network.frozen": True})
    first, last = (
        load_file(tmp_path / "run" / "checkpoints" / step / "model.safetensors")
        for step in ("step-00000008", "step-00000009")
    )
    backbone = [name for name in first if name.startswith("backbone.")]
    assert backbone
    assert all(torch.equal(first[name], last[name]) for name in backbone)
    assert not torch.equal(first["bottleneck.linear.weight"], last["bottleneck.linear.weight"])


# ----------------------------------------------------------------------------------------------------- backbones


def test_pictures_in_memory_can_be_frozen_too():
    adapted = safda.fit("digits-rendered", "digits-handwritten", steps=2, cpu=True, **{"network.frozen": True})
    assert not any(parameter.requires_grad for parameter in adapted.model.backbone.parameters())
    assert int(adapted.model.backbone.network[1].num_batches_tracked) == 0


def test_a_timm_backbone_brings_its_own_size_mean_and_std():
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert image_config("resnet50.tv_in1k") == (224, 0.875, "bilinear", False, *imagenet)
    assert image_config("resnet50") == (224, 0.95, "bicubic", False, *imagenet)  # which timm takes for a1_in1k
    assert image_config("tf_efficientnet_lite0") == (224, 0.875, "bicubic", False, (0.5,) * 3, (0.5,) * 3)
    assert image_config("vit_small_patch14_dinov2").side == 518
    assert image_config("coat_lite_medium_384").squash


def test_a_whole_batch_is_normalised_as_torchvision_does_it():
    guard_torchvision()
    from torchvision.transforms.v2 import functional as transforms

    class Mean(nn.Module):
        def forward(self, pictures):
            return pictures.flatten(2).mean(2)

    backbone, width = make_backbone(NetworkKnobs(), torch.zeros(3, 8, 8, dtype=torch.uint8), given=Mean())
    pictures = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    usual = transforms.normalize(pictures.float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert width == 3
    torch.testing.assert_close(backbone(pictures), usual.flatten(2).mean(2))


def test_a_vision_transformer_takes_the_size_that_is_asked_for():
    sample = torch.zeros(3, 28, 28, dtype=torch.uint8)
    backbone, width = make_backbone(NetworkKnobs(backbone="vit_tiny_patch16_224"), sample.new_zeros(3, 32, 32))
    assert backbone(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, width)


def test_local_weights_are_loaded_whole_or_not_at_all(tmp_path):
    sample = torch.zeros(3, 32, 32, dtype=torch.uint8)
    torch.manual_seed(1)
    import timm

    whole = timm.create_model("resnet10t", num_classes=5)
    file = tmp_path / "w.safetensors"
    save_file(whole.state_dict(), file)  # with a classifier that the backbone has not
    backbone, _ = make_backbone(NetworkKnobs(backbone="resnet10t", pretrained=True, weights=str(file)), sample)
    assert torch.equal(backbone.network.layer1[0].conv1.weight, whole.layer1[0].conv1.weight)

    def refused(changed, words):
        save_file(changed, file)
        with pytest.raises(SafdaError, match=words) as caught:
            make_backbone(NetworkKnobs(backbone="resnet10t", weights=str(file)), sample)
        assert "\n" not in str(caught.value)

    good = whole.state_dict()
    part = {name: value for name, value in good.items() if not name.startswith("layer2.0.conv1")}
    refused(part, "it lacks layer2.0.conv1.weight")
    refused({**good, "strange.weight": torch.zeros(1)}, "it has beyond them strange.weight")
    refused({**good, "layer1.0.conv1.weight": torch.zeros(1)}, "of another shape are layer1.0.conv1.weight")
    refused({"a": torch.zeros(1)}, r"it lacks .*, … \(\d+ in all\)")
    file.write_bytes(b"nonsense")
    with pytest.raises(SafdaError, match="not a readable weights file"):
        make_backbone(NetworkKnobs(backbone="resnet10t", weights=str(file)), sample)
    with pytest.raises(SafdaError, match="no such file"):
        make_backbone(NetworkKnobs(backbone="resnet10t", weights=str(tmp_path / "none.safetensors")), sample)


def test_any_module_will_do(both, tmp_path):
    def make():
        torch.manual_seed(4)
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    given = {"network.image_size": 24}
    adapted = fit(both, tmp_path / "run", backbone=make(), **given)
    with pytest.raises(Killed):
        fit(both, tmp_path / "cut", backbone=make(), callback=killed_at(5), **given)
    resume(tmp_path / "cut", cpu=True, backbone=make())
    assert weights(tmp_path / "cut") == weights(tmp_path / "run")
    again = safda.Adapted.load(tmp_path / "run", backbone=make())
    np.testing.assert_array_equal(again.predict(both[1]).probabilities, adapted.predict(both[1]).probabilities)
    with pytest.raises(SafdaError, match="must give n×d features"):
        fit(both, backbone=nn.Conv2d(3, 4, 3), **given)


def test_a_backbone_of_ones_own_is_chosen_by_name_with_one_entry(both, tmp_path, borrowed):
    @borrowed(BACKBONES).register("mean-colour")
    class MeanColour(nn.Module):
        image_config = ImageConfig(20, 0.8, "bicubic", True, (0.1, 0.2, 0.3), (2.0, 2.0, 2.0))

        def __init__(self, channels):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(channels))

        def forward(self, pictures):
            return self.scale * pictures.flatten(2).mean(2)

    chosen = {"network.backbone": "mean-colour", "optimizer.lr": 0.1}
    adapted = fit(both, tmp_path / "run", steps=40, **{**chosen, "checkpoint_every": 40})
    assert isinstance(adapted.model.backbone.network, MeanColour)
    assert not torch.equal(adapted.model.backbone.network.scale, torch.ones(3))  # it was trained
    assert adapted.data["transform"]["side"] == 20
    assert adapted.data["transform"]["interpolation"] == "bicubic"
    assert adapted.data["backbone"]["name"] == "mean-colour"
    picture = torch.full((1, 3, 20, 20), 255, dtype=torch.uint8)
    seen = adapted.model.backbone(picture) / adapted.model.backbone.network.scale
    torch.testing.assert_close(seen, torch.tensor([[0.45, 0.40, 0.35]]))  # (1 − mean) / std
    again = safda.Adapted.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(both[1]).probabilities, adapted.predict(both[1]).probabilities)
    assert again.evaluate(both[1]).accuracy > 0.9  # the classes are colours
    with pytest.raises(SafdaError, match="'mean-colour' has no pretrained weights"):
        check_backbone(NetworkKnobs(backbone="mean-colour", pretrained=True))
    with pytest.raises(SafdaError, match=r"neither mean-colour, small-cnn nor .* did you mean 'mean-colour'"):
        check_backbone(NetworkKnobs(backbone="mean-color"))


# --------------------------------------------------------------------------------------------------- command line


def test_from_two_folders_to_predictions_on_the_command_line(both, tmp_path, capsys):
    write(both[1] / "bee" / "broken.jpg", b"no picture")
    small = ["--recipe", "digits", *(w for k, v in SMALL.items() for w in (f"--{k.replace('_', '-')}", str(v)))]
    assert main(["doctor", *map(str, both), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["skipped"] == {"not a picture": ["bee/broken.jpg"]}
    assert main(["doctor", *map(str, both)]) == 0
    assert "skipped 1, not a picture: bee/broken.jpg" in capsys.readouterr().out
    assert main(["fit", *map(str, both), "-o", str(tmp_path / "run"), "--cpu", "--frozen", *small]) == 0
    assert "safda: note: " in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), str(both[1]), "-o", str(tmp_path / "p.csv")]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == {"bee/broken.jpg": "not a picture"}
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 13
    for file in (both[1] / "cat").iterdir():
        file.unlink()
    assert main(["evaluate", str(tmp_path / "run"), str(both[1])]) == 0
    assert "none there" in capsys.readouterr().out  # a class of the source that is missing here
    for command in (["doctor"], ["fit", "-o", str(tmp_path / "strict"), *small]):
        assert main([command[0], *map(str, both), "--strict", *command[1:]]) == 1
        assert "the first is cat/ (an empty folder)" in capsys.readouterr().err
    assert main(["features", "digits-rendered"]) == 1
    assert "is not a domain of pictures" in capsys.readouterr().err


def test_one_picture_or_several_are_predicted_and_printed(both, tmp_path, capsys, monkeypatch):
    fit(both, tmp_path / "run")
    files = [both[1] / "ant" / "0.jpg", both[1] / "bee" / "1.jpg"]
    broken = write(tmp_path / "broken.jpg", b"no picture")
    expected = safda.Adapted.load(tmp_path / "run").predict(both[1])

    def printed(*words):
        assert main(["predict", str(tmp_path / "run"), *map(str, words)]) == 0
        out, err = capsys.readouterr()
        return out, err

    def classes(shown):
        return [name for name in (line.split("│")[1].strip() for line in shown.splitlines()[2:]) if name]

    out, err = printed(*files, broken)
    assert err == f"safda: note: skipped {broken}: not a picture\n"
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == list(map(str, files))
    whole = {each: (c, p) for each, c, p in zip(*expected.table().values(), strict=True)}
    for row, name in zip(rows, ("ant/0.jpg", "bee/1.jpg"), strict=True):
        assert row["class"] == whole[name][0]
        assert row["confidence"] == pytest.approx(whole[name][1], abs=1e-5)
    (row,) = [json.loads(line) for line in printed(files[0], "--probabilities")[0].splitlines()]
    assert set(row) == {"id", "class", "confidence", "p(ant)", "p(bee)", "p(cat)"}

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    out, _ = printed(files[0])
    assert classes(out)[0] == row["class"]
    assert sorted(classes(out)) == ["ant", "bee", "cat"]  # the next two as well
    assert f"{row['confidence']:.1%}" in out
    assert classes(printed(*files)[0]) == [each["class"] for each in rows]
    monkeypatch.setattr("safda.cli._MOST_SHOWN", 5)
    assert "… and 7 more; -o FILE writes them all" in printed(both[1])[0]

    for words, said in (([broken], "is not a domain"), (both, "is a folder; only pictures")):
        assert main(["predict", str(tmp_path / "run"), *map(str, words)]) == 1
        assert said in capsys.readouterr().err


def test_a_run_on_features_says_what_to_do_with_a_picture(both, files, tmp_path):
    adapted = safda.fit(*files, steps=1, cpu=True, **TINY)
    with pytest.raises(SafdaError, match=r"0\.jpg: holds pictures, the source rows of 6 numbers; 'safda features'"):
        adapted.predict(both[0] / "ant" / "0.jpg")


def test_a_run_on_pictures_named_one_by_one_can_be_resumed(both, tmp_path):
    named = sorted(both[1].rglob("*.jpg"))
    fit((both[0], named), tmp_path / "whole")
    with pytest.raises(Killed):
        fit((both[0], named), tmp_path / "run", callback=killed_at(6))
    with pytest.raises(SafdaError, match="its target was an array, or pictures named one by one"):
        resume(tmp_path / "run", cpu=True)
    resume(tmp_path / "run", target=named, cpu=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_counting_is_shown_in_a_terminal_and_nowhere_else():
    from rich.console import Console

    from safda.view import ProgressView, TrainingView

    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with ProgressView("opening pictures", console) as count:
            count(3, 10)
        assert ("3/10" in console.file.getvalue()) == terminal
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with TrainingView("a → b", 10, console) as view:
        view.progress(32, 99, "neighbours")
    assert "32/99" in console.file.getvalue()
