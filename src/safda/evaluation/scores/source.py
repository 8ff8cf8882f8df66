"""What the classifier still knows of the source."""

from __future__ import annotations

from safda.evaluation.scores.outputs import Outputs, score


@score("source_accuracy", paper="the usual baseline: Musgrave et al., 2022", cost="source")
def source_accuracy(outputs: Outputs) -> float:
    """Return the share of source samples that the classifier still gets right. Higher is better.

    It knows nothing of the target.

    >>> import numpy as np, torch
    >>> from safda.classifier import Predictions
    >>> source = Predictions((), (), np.eye(3), np.eye(3))
    >>> round(source_accuracy(Outputs(source, lambda: (source, torch.tensor([0, 1, 1])))), 3)
    0.667
    """
    return (outputs.source_logits.argmax(1) == outputs.source_labels).double().mean().item()
