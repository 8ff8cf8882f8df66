"""MixVal: is a mix of two target samples what the larger part of it is?"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.utils import check_random_state

from safda.evaluation.scores.outputs import Outputs, score

_SHARE = 0.55  # the authors'; just enough that the label of a mix is beyond doubt


@score("mixval", paper="Hu et al., NeurIPS 2023", cost="pass")
def mixval(outputs: Outputs) -> float:
    """Return how often a mix of two target samples is taken for the one that makes up 55% of it. Higher is better.

    The mean over pairs that the classifier calls alike (clusters should hold together) and over pairs that it calls
    different (a border should run half-way between them). Samples are mixed as the network takes them: features where
    it is given features, pixels where it is given pictures.
    """
    answers = outputs.target_answers
    partners = torch.from_numpy(check_random_state(0).permutation(len(answers)))
    mixed = outputs.mixed_logits(torch.arange(len(answers)), partners, _SHARE).argmax(1)
    right, alike = (mixed == answers).numpy(), (answers == answers[partners]).numpy()
    return float(np.mean([right[pairs].mean() for pairs in (alike, ~alike) if pairs.any()]))
