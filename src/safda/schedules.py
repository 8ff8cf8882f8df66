"""Every ramp and decay, as pure functions of the progress t/T: in [0, 1] where T is the run's own length."""

from __future__ import annotations

import math


def ramp(progress: float, peak: float, rate: float) -> float:
    """Rise from 0 towards ``peak``: the paper's λ(t) = peak · tanh(rate · t/T).

    >>> ramp(0.0, peak=0.1, rate=10), round(ramp(1.0, peak=0.1, rate=10), 6)
    (0.0, 0.1)
    """
    return peak * math.tanh(rate * progress)


def decay(progress: float, initial: float, rate: float, power: float) -> float:
    """Fall from ``initial``: lr(t) = initial · (1 + rate · t/T)^−power.

    >>> decay(0.0, initial=0.004, rate=20, power=0.75)
    0.004
    """
    return initial * float((1 + rate * progress) ** -power)
