"""Scores without target labels as scikit-learn's scorers: for cross-validations and grid searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import MetadataRequest
from torch import Tensor

from safda.classifier import Predictions
from safda.data import Domain
from safda.evaluation.scores import SCORES, Outputs, SourceMissing

_LEAST = 1e-30  # a probability of zero has no logarithm


def make_scorer(name: str, X_target: ArrayLike | None = None) -> Scorer:
    """Return a score without target labels as a scorer: what ``scoring=`` takes. Higher is better.

    In a cross-validation, what the score sees of the source are the samples that were held out.

    Args:
        name: one of :data:`safda.evaluation.scores.SCORES`.
        X_target: samples of the target. Without them, the scorer must be told which rows are the target's, by
            ``sample_domain``, as skada's are.

    Example:
        >>> from sklearn.model_selection import GridSearchCV
        >>> from safda import SAFClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 3, 120)
        >>> X, X_target = (3 * np.eye(3)[y] + rng.normal(size=(120, 3)) + shift for shift in (0, 1))
        >>> search = GridSearchCV(
        ...     SAFClassifier(batch=16), {"steps": [1, 40]}, scoring=make_scorer("information", X_target), cv=2
        ... )
        >>> search.fit(X, y, X_target=X_target).best_params_
        {'steps': 40}
    """
    return Scorer(name, X_target)


class Scorer:
    """A scorer: call it with a fitted classifier, samples and their labels."""

    def __init__(self, name: str, X_target: ArrayLike | None = None) -> None:
        SCORES[name]  # a wrong name is told here
        self.name, self.X_target = name, X_target

    def __repr__(self) -> str:
        return f"make_scorer({self.name!r}{', X_target=…' if self.X_target is not None else ''})"

    def __call__(
        self, estimator: Any, X: ArrayLike, y: ArrayLike | None = None, sample_domain: ArrayLike | None = None
    ) -> float:
        """Score a fitted classifier.

        Args:
            estimator: with ``predict_proba``, such as a pipeline; its embedding is what a ``transform`` gives, if any.
            X: source samples; with ``sample_domain``, those of both domains.
            y: their labels; a target sample's is never looked at.
            sample_domain: for each row of X its domain: positive for source, negative for target.
        """
        rows, labels = _as_rows(X), None if y is None else np.asarray(y)
        if self.X_target is not None:
            target = _as_rows(self.X_target)
        elif sample_domain is not None:
            there = np.asarray(sample_domain) < 0
            target, rows, labels = rows[there], rows[~there], None if labels is None else labels[~there]
        else:
            raise ValueError(
                f"{self!r} needs target samples: give it X_target, or hand sample_domain on "
                "(sklearn.set_config(enable_metadata_routing=True))"
            )
        if not target.shape[0]:  # a sparse matrix has no length
            raise ValueError(
                f"{self!r}: there is no target sample to score with (sample_domain has no negative number)"
            )
        return SCORES[self.name](_outputs(estimator, rows, labels, target))

    def get_metadata_routing(self) -> MetadataRequest:
        """Ask scikit-learn for ``sample_domain``, where rows of both domains are given."""
        request = MetadataRequest(owner=self)
        if self.X_target is None:
            request.score.add_request(param="sample_domain", alias=True)
        return request


def _as_rows(X: ArrayLike) -> Any:
    """Return a table as it is, since a classifier may want the names of its columns; anything else as an array.

    A sparse matrix stays one, of a kind whose rows can be taken.
    """
    if issparse(X):
        return X.tocsr()  # type: ignore[union-attr]
    return X if hasattr(X, "iloc") else np.asarray(X)


def _dense(X: Any) -> NDArray[Any]:
    return np.asarray(X.toarray() if issparse(X) else X)


def _outputs(estimator: Any, X: Any, y: NDArray[Any] | None, X_target: Any) -> Outputs:
    classes = _classes(estimator)
    if y is not None:  # a class that training had no sample of has no number; nobody could get it right
        known = np.isin(y, classes)
        X, y = X[known], y[known]

    def numbers() -> Tensor:
        if y is None or not len(y):
            raise SourceMissing("no labelled source samples were given, and a score asked for them")
        return torch.from_numpy(np.searchsorted(classes, y))

    def domains() -> tuple[Domain, Domain]:
        source, target = (torch.from_numpy(np.array(_dense(rows), dtype=np.float32)) for rows in (X, X_target))
        return Domain("X", source, numbers(), tuple(map(str, classes))), Domain("X_target", target)

    def mixed(rows: Tensor, partners: Tensor, share: float) -> Tensor:
        others = _take(X_target, partners)
        mixes = share * _take(X_target, rows) + (1 - share) * (others if issparse(others) else np.asarray(others))
        return torch.from_numpy(_predictions(estimator, mixes).logits)

    return Outputs(_predictions(estimator, X_target), lambda: (_predictions(estimator, X), numbers()), domains, mixed)


def _classes(estimator: Any) -> NDArray[Any]:
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    if hasattr(last, "get_estimator"):  # in skada's pipelines
        last = last.get_estimator()
    return np.asarray(last.classes_)


def _take(X: Any, rows: Tensor) -> Any:
    return X.iloc[rows.numpy()] if hasattr(X, "iloc") else X[rows.numpy()]


def _predictions(estimator: Any, X: Any) -> Predictions:
    """Ask any classifier for what a network would say: its probabilities' logarithms, and an embedding."""
    probabilities = np.asarray(estimator.predict_proba(X))
    embedding = _dense(estimator.transform(X) if hasattr(estimator, "transform") else X)
    names = tuple(map(str, _classes(estimator)))
    logits = np.log(probabilities.clip(_LEAST)).astype(np.float32)
    return Predictions(tuple(map(str, range(X.shape[0]))), names, logits, embedding.astype(np.float32))
