"""Both domains as points in a plane, before and after adaptation: t-SNE, or principal components of very large sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safda.classifier import Adapted
from safda.data import AnyDomain
from safda.data.loader import evaluation_batches
from safda.data.sampler import evenly_spaced_rows

Points = NDArray[np.float64]  #: n×2

MOST_SHOWN = 600  #: samples of each domain: t-SNE of so many takes some seconds
VERY_LARGE = 50_000  #: samples in all: t-SNE is about neighbours, and most neighbours of those shown would be missing
_COMPONENTS = 50  # that t-SNE looks at, as its authors do
_ITERATIONS = 600
_FEW = 12  # samples: t-SNE has nothing to arrange
_MOST_PIXELS = 4096  # of an input that stands for itself where a network learned from pictures


@dataclass(frozen=True)
class Projection:
    """Some samples of both domains as points.

    Attributes:
        method: t-SNE or PCA.
        rows: which samples are shown, of the source and of the target.
        sizes: how many there are.
        ids: names of the samples shown, the source's first.
        labels: class numbers of the source's.
        views: what is seen → n×2 points between 0 and 1, the source's first.
    """

    method: str
    rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    sizes: tuple[int, int]
    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    views: dict[str, Points]


def project(
    adapted: Adapted,
    source: AnyDomain,
    target: AnyDomain,
    before: Adapted | None,
    tick: Callable[[], None] = lambda: None,
) -> Projection:
    """Lay both domains out: as they were before anything was adapted, and as the classifier sees them now.

    Args:
        adapted: the classifier.
        source: a labelled domain.
        target: the other one.
        before: the one whose backbone is that from before: itself, or what fine-tuning began with; None if it is gone.
        tick: called after each view.
    """
    sizes = len(source), len(target)
    rows = [evenly_spaced_rows(size, MOST_SHOWN) for size in sizes]
    some = source.take(rows[0]), target.take(rows[1])
    labels, _ = some[0].labelled("a picture of both domains")
    method = _method(sizes)
    views = {}
    for name, values in _seen(adapted, before, *some).items():
        views[name] = plane(values, method)
        tick()
    ids = [
        own for domain, own_rows in zip(some, rows, strict=True) for own in domain.ids or map(str, own_rows.tolist())
    ]
    return Projection(method, (rows[0].numpy(), rows[1].numpy()), sizes, tuple(ids), labels.numpy(), views)


def project_embedding(adapted: Adapted, source: AnyDomain, target: AnyDomain, most: int) -> tuple[Points, Points]:
    """Lay out what the classifier sees of both domains, B's embedding; of each, so many samples at most."""
    some = [domain.take(evenly_spaced_rows(len(domain), most)) for domain in (source, target)]
    seen = adapted.model.encode_domains(*map(adapted.ready, some))
    points = plane(_numbers(seen.embedding), _method((len(source), len(target))))
    return points[: len(some[0])], points[len(some[0]) :]


def _method(sizes: tuple[int, int]) -> str:
    return "t-SNE" if _FEW <= sum(sizes) <= VERY_LARGE else "PCA"


def _seen(
    adapted: Adapted, before: Adapted | None, source: AnyDomain, target: AnyDomain
) -> dict[str, NDArray[np.float32]]:
    """Return what is seen before, where that can be known, and after: n×d numbers, the source's rows first."""
    ready = adapted.ready(source), adapted.ready(target)
    seen = adapted.model.encode_domains(*ready)
    after = {"After: what the classifier sees (B)": _numbers(seen.embedding)}
    if before is None:
        return after
    if before is not adapted:
        seen = before.model.encode_domains(before.ready(source), before.ready(target))
    elif len(ready[0].inputs.shape) != 2:  # the backbone has learned: what it made of pictures before is gone
        if math.prod(ready[0].inputs.shape[1:]) > _MOST_PIXELS:
            return after
        pixels = [batch.flatten(1) for domain in ready for batch in evaluation_batches(domain)]
        return {"Before: pixels": _numbers(torch.cat(pixels)), **after}
    return {"Before: features, nothing adapted": _numbers(seen.features), **after}


def _numbers(values: Tensor) -> NDArray[np.float32]:
    numbers: NDArray[np.float32] = values.float().cpu().numpy()
    return numbers


def plane(values: NDArray[np.float32], method: str) -> Points:
    """Return n×2 points between 0 and 1, the same at every call.

    >>> points = plane(np.array([[0, 0, 1], [4, 0, 1], [2, 1, 1]], dtype=np.float32), "PCA")
    >>> sorted(points[:, 0].round(2).tolist())
    [0.0, 0.5, 1.0]
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if not np.ptp(values, axis=0).any():
        return np.full((len(values), 2), 0.5)
    values = np.pad(values, ((0, 0), (0, max(0, 2 - values.shape[1]))))
    most = 2 if method == "PCA" else _COMPONENTS
    points = PCA(min(most, *values.shape), random_state=0).fit_transform(values.astype(np.float64))
    if method != "PCA":
        perplexity = min(30, (len(points) - 1) / 3)  # it wants some three times as many samples
        points = TSNE(init="pca", perplexity=perplexity, max_iter=_ITERATIONS, random_state=0).fit_transform(points)
    points = np.pad(points, ((0, 0), (0, max(0, 2 - points.shape[1]))))[:, :2].astype(np.float64)
    middle, extent = (points.max(0) + points.min(0)) / 2, np.ptp(points, axis=0).max()
    placed: Points = (points - middle) / extent + 0.5
    return placed
