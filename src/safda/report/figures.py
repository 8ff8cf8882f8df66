"""Figures: both domains before and after, and how η is spread."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safda.classifier import Adapted
from safda.data import AnyDomain
from safda.data.loader import evaluation_batches
from safda.io import write_bytes
from safda.methods.saf_method import SAFMethod
from safda.text import printable
from safda.turns import borrowed_generator

_MAX_POINTS = 400  # samples of each domain in a t-SNE


def adaptation_figure(before: Adapted, after: Adapted, source: AnyDomain, target: AnyDomain, path: Path) -> None:
    """Draw t-SNE of B's output for both domains before and after adaptation, and η's histogram.

    Crosses are source samples, coloured by their labels; dots are target samples, coloured by what the
    classifier says of them: no target label is looked at.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 5), width_ratios=(2, 2, 1.3), layout="constrained")
    for axis, model, title in ((axes[0], before, "before: source only"), (axes[1], after, "after: adapted")):
        _scatter(axis, model, source, target)
        axis.set_title(title)
    axes[2].hist(mixing_weights(after, target), bins=np.linspace(0, 1, 41), color="0.35")
    axes[2].set(title="mixing weight η of target pairs", xlim=(0, 1), yticks=[])
    title = f"{source.name} (×) and {target.name} (•, coloured by prediction)"
    figure.suptitle(printable(title), parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    pyplot.close(figure)
    write_bytes(path, content.getvalue())


def _scatter(axis: Any, model: Adapted, source: AnyDomain, target: AnyDomain) -> None:
    from sklearn.manifold import TSNE

    source, target = (domain.take(_subsample(len(domain))) for domain in (source, target))
    labels, _ = source.labelled("a picture")
    of_source, of_target = model.predict(source), model.predict(target)
    embeddings = np.concatenate([of_source.embedding, of_target.embedding])
    perplexity = min(30, (len(embeddings) - 1) / 3)  # t-SNE wants some three times as many samples
    points = np.split(TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(embeddings), [len(labels)])
    colours = (labels.numpy(), of_target.logits.argmax(1))
    for part, colour, marker in zip(points, colours, "x.", strict=True):
        axis.scatter(*part.T, c=colour, cmap="tab10", vmin=0, vmax=9, marker=marker, s=18, linewidths=0.7, alpha=0.8)
    axis.set(xticks=[], yticks=[])


def _subsample(count: int) -> torch.Tensor:
    """Return row numbers to show, always the same ones."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_MAX_POINTS]


@torch.inference_mode()
def mixing_weights(adapted: Adapted, domain: AnyDomain) -> NDArray[np.float32]:
    """Return η of one random pairing of a domain's samples; empty for a model without SAF."""
    model = adapted.model
    saf = model.methods_by_name.get("saf")
    if not isinstance(saf, SAFMethod):
        return np.empty(0, dtype=np.float32)
    parts = [model.encode(inputs.to(adapted.device)) for inputs in evaluation_batches(adapted.ready(domain))]
    features, _, embedding, logits = (torch.cat(part) for part in zip(*parts, strict=True))
    with borrowed_generator(0):
        first, second = saf.saf.draw_pairs(saf.candidates(logits))
        eta = saf.saf.eta(embedding if saf.knobs.mix_at == "bottleneck" else features, first, second).squeeze(1)
    weights: NDArray[np.float32] = eta.float().cpu().numpy()
    return weights
