"""Pictures a second and core: safda's pipeline against the field's ordinary one, on the same files, in one run.

    python -m benchmarks.pictures DOMAIN [DOMAIN …] [--rounds 5] [--pictures 400]

The ordinary one is torchvision's ``ImageFolder`` and ``DataLoader`` with Resize(256), RandomResizedCrop(224), flip,
conversion and normalisation picture by picture. Both give normalised float32 batches of 32, on one thread. That
both show the same is measured on the fixed crop of evaluation: the mean difference in grey levels of 255.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safda.data import Domain, EpochSampler, ImageDomain, load_domain
from safda.data.images import TransformedImages
from safda.data.loader import training_batches
from safda.data.pixels import Transform
from safda.nn.backbones import Backbone
from safda.nn.vision import guard_torchvision

BATCH = 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("domains", nargs="+", type=Path, metavar="DOMAIN", help="a folder for each class")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=400, help="of each domain, in each round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    guard_torchvision()
    summary = {}
    for path in options.domains:
        with tempfile.TemporaryDirectory() as cache:
            summary[path.name] = compare(path, Path(cache), options.rounds, options.pictures)
        for name, values in summary[path.name].items():
            print(f"{path.name:<10} {name:<28} {values['median']:.2f}  ({values['least']:.2f} to {values['most']:.2f})")
    print(json.dumps({"rounds": options.rounds, "results": summary}))


def compare(path: Path, cache: Path, rounds: int, pictures: int) -> dict[str, dict[str, float]]:
    """Measure all pipelines in turns; ratios are to the ordinary one."""
    domain = load_domain(path)
    assert isinstance(domain, ImageDomain)
    plain, cached = (
        Domain(domain.name, TransformedImages(domain.inputs, Transform(224), place)) for place in (None, cache)
    )
    for _ in ours(cached, len(domain)):
        pass  # fills the cache
    pipelines: dict[str, Callable[[], Iterable[Tensor]]] = {
        "ordinary": lambda: ordinary(path, pictures),
        "ours": lambda: ours(plain, pictures),
        "ours, decoded cache": lambda: ours(cached, pictures),
    }
    times = [{name: seconds(make) for name, make in pipelines.items()} for _ in range(rounds)]
    found = {f"{name} over ordinary": [t["ordinary"] / t[name] for t in times] for name in list(pipelines)[1:]}
    found["difference in grey levels"] = differences(path, plain)
    return {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in found.items()
    }


def ours(domain: Domain, pictures: int) -> Iterable[Tensor]:
    """Our batches, read by one thread while nothing else happens, and normalised as the network does it."""
    normalise = Backbone(torch.nn.Identity(), MEAN, STD, frozen=True)
    sampler = EpochSampler(len(domain), BATCH, seed=0, domain=0)
    steps = range(pictures // BATCH)
    for ((_, inputs),) in training_batches([domain], [sampler], steps, slice(None), seed=0, threads=0):
        yield normalise(inputs)


def ordinary(path: Path, pictures: int) -> Iterable[Tensor]:
    """The field's batches."""
    from torchvision.transforms import v2

    steps = [v2.Resize(256), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]
    loader = torch.utils.data.DataLoader(folder(path, steps), BATCH, shuffle=True, drop_last=True)
    for number, (inputs, _) in enumerate(loader):
        if number == pictures // BATCH:
            return
        yield inputs


def folder(path: Path, steps: list[Any]) -> Any:
    """The field's dataset."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    root = path / "images" if (path / "images").is_dir() else path
    convert = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return ImageFolder(str(root), v2.Compose([*steps, *convert]))


def seconds(make: Callable[[], Iterable[Tensor]]) -> float:
    """Seconds of one core that all batches take; waiting for other programs does not count."""
    before = time.process_time()
    for _ in make():
        pass
    return time.process_time() - before


def differences(path: Path, domain: Domain, every: int = 16) -> list[float]:
    """How far apart both are on the fixed crop, picture by picture."""
    from torchvision.transforms import v2

    dataset = folder(path, [v2.Resize(256), v2.CenterCrop(224)])
    assert isinstance(domain.inputs, TransformedImages)
    assert [Path(file) for file, _ in dataset.samples] == list(domain.inputs.files.paths)
    std = torch.tensor(STD).view(3, 1, 1)
    normalise = Backbone(torch.nn.Identity(), MEAN, STD, frozen=True)
    return [
        float(((normalise(domain.batch(torch.tensor([row])))[0] - dataset[row][0]) * std).abs().mean() * 255)
        for row in range(0, len(domain), every)
    ]


if __name__ == "__main__":
    main()
