"""Reverse validation: what the target, as it was labelled, teaches of the source."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from safda.data.sampler import evenly_spaced_rows
from safda.evaluation.scores.outputs import Outputs, score

_MOST_SAMPLES = 4096  # of each domain


@score("reverse", paper="Zhong et al., ECML 2010; Ganin et al., JMLR 2016", cost="fit")
def reverse_validation(outputs: Outputs) -> float:
    """Return the mean class accuracy on the source of a classifier that learned the target's answers. Higher is better.

    It is a logistic one, on the embedding: simple, so that what it gets wrong is the answers' fault.

    >>> import torch
    >>> from safda.classifier import Predictions
    >>> rows = np.array([[9, 0], [0, 9], [0, 8]], dtype=np.float32)
    >>> target = source = Predictions((), (), rows, rows)
    >>> reverse_validation(Outputs(target, lambda: (source, torch.tensor([0, 1, 1]))))
    1.0
    """
    here = evenly_spaced_rows(len(outputs.target_answers), _MOST_SAMPLES)
    there = evenly_spaced_rows(len(outputs.source_labels), _MOST_SAMPLES)
    answers, labels = outputs.target_answers[here].numpy(), outputs.source_labels[there].numpy()
    if len(np.unique(answers)) == 1:
        predicted = np.full(len(there), answers[0])
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # near enough will do
            classifier = LogisticRegression().fit(outputs.target_embedding[here].numpy(), answers)
        predicted = classifier.predict(outputs.source_embedding[there].numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes that the source does not have
        return float(balanced_accuracy_score(labels, predicted))
