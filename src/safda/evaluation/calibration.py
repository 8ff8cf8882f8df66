"""Temperature: one number by which logits are divided so that confidence and accuracy agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

_MOST = 20.0  # times: further away, labels and confidence have nothing to do with each other


def fit_temperature(logits: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]]) -> float:
    """Return the T between 1/20 and 20 at which softmax(logits/T) has the least cross-entropy with labels.

    Guo, Pleiss, Sun, Weinberger: On calibration of modern neural networks. ICML 2017. It changes no answer.

    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])    # sure of itself, and wrong once in four
    >>> round(fit_temperature(logits, np.array([0, 0, 1, 1])), 2)    # 4/T = ln 3
    3.64
    """
    values = logits.astype(np.float64)
    own = values[np.arange(len(labels)), labels]

    def cross_entropy(log_t: float) -> float:
        scale = math.exp(-log_t)
        return float(np.mean(logsumexp(values * scale, axis=1) - own * scale))

    limit = math.log(_MOST)
    found = minimize_scalar(cross_entropy, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6})
    return float(math.exp(found.x))
