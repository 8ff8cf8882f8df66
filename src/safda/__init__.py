"""safda: unsupervised domain adaptation with Shuffle Augmentation of Features.

>>> import safda
>>> safda.__all__
['SAF', 'Adapted', 'OnnxClassifier', 'Recipe', 'SAFClassifier', 'SafdaError', 'fit', 'make_scorer', 'preset', 'resume']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safda.api import fit, resume
    from safda.classifier import Adapted
    from safda.errors import SafdaError
    from safda.estimator import SAFClassifier
    from safda.evaluation.scorer import make_scorer
    from safda.exported import OnnxClassifier
    from safda.methods.saf import SAF
    from safda.recipe import Recipe, preset

__all__ = [
    "SAF",
    "Adapted",
    "OnnxClassifier",
    "Recipe",
    "SAFClassifier",
    "SafdaError",
    "fit",
    "make_scorer",
    "preset",
    "resume",
]
__version__ = "0.1.0"

_HOME = {
    "SAF": "safda.methods.saf",
    "Adapted": "safda.classifier",
    "OnnxClassifier": "safda.exported",
    "Recipe": "safda.recipe",
    "SAFClassifier": "safda.estimator",
    "SafdaError": "safda.errors",
    "fit": "safda.api",
    "make_scorer": "safda.evaluation.scorer",
    "preset": "safda.recipe",
    "resume": "safda.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch is slow to load, and ``safda --help`` should not be."""
    if name not in _HOME:
        raise AttributeError(f"module 'safda' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the names that can be imported, whether they have been or not."""
    return sorted({*globals(), *__all__})
