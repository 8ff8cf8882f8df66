"""What an exported model costs to use: onnxruntime against torch, and pixels without torchvision against with it.

    python -m benchmarks.export [--threads 1] [--rounds 7] [--batch 16] [--backbones tf_efficientnet_lite0,resnet26]

Everything is measured in one run, in turns; the figures that count are the ratios. The networks have random weights,
which take as long as any.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safda import OnnxClassifier
from safda.classifier import Adapted
from safda.data import pixels
from safda.data.images import resize
from safda.extraction import image_transform
from safda.model import AdaptationModel
from safda.recipe import Recipe, preset

CLASSES, FEATURES = 31, 2048
LARGE, SMALL = (480, 640), (256, 341)  # a picture as it comes, and as it is cut from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16, help="pictures at once; a single one is measured too")
    parser.add_argument("--backbones", default="tf_efficientnet_lite0,resnet26", metavar="A,B")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # what onnxruntime is then given too
    torch.set_num_threads(options.threads)
    measured = {"resize": (_resized_by_torchvision(), _resized_without())}
    networks = {f"heads on {FEATURES} features": _model(None)} | {
        name: _model(name) for name in options.backbones.split(",")
    }
    for name, adapted in networks.items():
        classifier = _exported(adapted)
        for count in (1, options.batch):
            measured[f"{name}, {count} at once"] = _both(adapted, classifier, count)
    ratios: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(options.rounds):
        for name, (ours, theirs) in measured.items():
            ratios[name].append(_seconds(ours) / _seconds(theirs))
    summary = {name: {"median": statistics.median(v), "least": min(v), "most": max(v)} for name, v in ratios.items()}
    print("torch's time over the exported model's")
    for name, values in summary.items():
        print(f"{name:<40} {values['median']:.2f}  ({values['least']:.2f} to {values['most']:.2f})")
    print(json.dumps({**vars(options), "ratios": summary}))


def _model(backbone: str | None) -> Adapted:
    """A network with random weights, of pictures or of features."""
    recipe = preset("default").override({"network.pretrained": False})
    classes = tuple(map(str, range(CLASSES)))
    about: dict[str, Any] = {role: {"name": role, "samples": 0, "digest": ""} for role in ("source", "target")}
    if backbone is None:
        sample = torch.zeros(FEATURES)
    else:
        recipe = recipe.override({"network.backbone": backbone})
        about["transform"] = asdict(image_transform(recipe.network))
        sample = torch.zeros(3, *2 * [about["transform"]["side"]], dtype=torch.uint8)
    kind = str(sample.dtype).removeprefix("torch.")
    return _adapted(recipe, sample, classes, {**about, "input_shape": list(sample.shape), "input_type": kind})


def _adapted(recipe: Recipe, sample: torch.Tensor, classes: tuple[str, ...], about: Mapping[str, Any]) -> Adapted:
    return Adapted(AdaptationModel(recipe, sample, len(classes)), classes, {**about, "classes": list(classes)})


def _exported(adapted: Adapted) -> OnnxClassifier:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        adapted.export(file)
        return OnnxClassifier(file)


def _both(adapted: Adapted, classifier: OnnxClassifier, count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    shape, rng = (count, *adapted.data["input_shape"]), np.random.default_rng(0)
    inputs: NDArray[Any] = rng.normal(size=shape).astype(np.float32)
    if adapted.data["input_type"] == "uint8":
        inputs = rng.integers(0, 256, shape, dtype=np.uint8)
    as_tensor = torch.from_numpy(inputs).contiguous(
        memory_format=torch.channels_last if inputs.ndim == 4 else torch.contiguous_format
    )

    @torch.inference_mode()
    def by_torch() -> Any:
        return adapted.model.predict(as_tensor)

    return by_torch, lambda: classifier.run(inputs)


def _picture() -> pixels.Pixels:
    return np.random.default_rng(0).integers(0, 256, (*LARGE, 3), dtype=np.uint8)


def _resized_by_torchvision() -> Callable[[], Any]:
    picture = torch.from_numpy(_picture()).permute(2, 0, 1)
    return lambda: resize(picture, *SMALL, "bicubic")


def _resized_without() -> Callable[[], Any]:
    picture = _picture()
    return lambda: pixels.resized(picture, *SMALL, "bicubic")


def _seconds(work: Callable[[], Any], least: float = 0.2) -> float:
    """Seconds of one call on the processor, over so many that it takes a moment; other programs do not count."""
    work()
    calls, started = 0, time.process_time()
    while time.process_time() - started < least:
        work()
        calls += 1
    return (time.process_time() - started) / calls


if __name__ == "__main__":
    main()
