"""The scikit-learn face: arrays in, an adapted classifier out."""

from __future__ import annotations

import warnings
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from safda.api import check_knobs, start, warn_if_not_adapted, warn_of_scales
from safda.classifier import Adapted, Predictions
from safda.data import Domain
from safda.data.array_files import first_fault, plain_texts
from safda.data.arrays import shared_tensor
from safda.errors import SafdaError, SafdaWarning
from safda.io import read_json, write_json
from safda.recipe import Recipe, load_recipe
from safda.schema import ESTIMATOR
from safda.view import TrainingView

_DOMAINS = {"sample_domain": True, "allow_source": True}


class SAFClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns from labelled samples and adapts to unlabelled ones from elsewhere.

    Args:
        recipe: a preset's name, a TOML file or a :class:`Recipe`.
        adversary: the method beside SAF: any that can lead (``safda methods`` lists them), such as mdd or cdan, or
            none; None keeps the recipe's.
        saf: whether SAF takes part; None keeps the recipe's.
        steps: training steps; None keeps the recipe's.
        batch: samples of each domain in a step; None keeps the recipe's.
        knobs: any other knobs of the recipe, by path: ``{"optimizer.lr": 0.01}``.
        random_state: decides every random draw. An int is the seed, the same as ``safda fit --seed``; a ``RandomState``
            draws one; None keeps the recipe's. A ``"seed"`` among the knobs goes before it.
        verbose: show progress.

    Attributes:
        classes_: the labels, in the order of the columns of probabilities.
        n_features_in_: number of features.
        feature_names_in_: their names, where ``X`` had any.
        adapted_: the trained network behind it all.
        choice_: where several recipes were tried, which was taken (``"chosen"``) and the evidence for each; else None.

    ``sample_domain`` and ``allow_source``, which skada hands to what predicts and scores, change nothing there: every
    sample gets its answer, whichever domain it is from.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 3, 120)
        >>> X, X_target = (3 * np.eye(3)[y] + rng.normal(size=(120, 3)) + shift for shift in (0, 1))
        >>> classifier = SAFClassifier(steps=60, random_state=0).fit(X, y, X_target=X_target)
        >>> bool(classifier.score(X_target, y) > 0.8)
        True
    """

    # Asked for by default: where scikit-learn's routing was not told to hand sample_domain on, skada's pipelines drop
    # it in a cross-validation without a word, and the mask of the target's labels, -1, would be learned as a class.
    __metadata_request__fit: ClassVar = {"sample_domain": True}
    __metadata_request__predict: ClassVar = _DOMAINS
    __metadata_request__predict_proba: ClassVar = _DOMAINS
    __metadata_request__decision_function: ClassVar = _DOMAINS
    __metadata_request__score: ClassVar = _DOMAINS

    def __init__(
        self,
        *,
        recipe: str | Path | Recipe = "default",
        adversary: str | None = None,
        saf: bool | None = None,
        steps: int | None = None,
        batch: int | None = None,
        knobs: dict[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.adversary = adversary
        self.saf = saf
        self.steps = steps
        self.batch = batch
        self.knobs = knobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        X_target: ArrayLike | None = None,
        sample_domain: ArrayLike | None = None,
        y_target: ArrayLike | None = None,
    ) -> SAFClassifier:
        """Learn from (X, y) and adapt to the target.

        Args:
            X: n×d samples; with ``sample_domain``, those of both domains.
            y: their labels; a target sample's is never looked at.
            X_target: m×d samples of the target, unlabelled.
            sample_domain: for each row of X its domain: positive for source, negative for target.
            y_target: labels of those target samples that are to be learned too, in the order of the target's rows;
                unknown ones are -1, as in scikit-learn's semi-supervised estimators, or None or NaN. Where -1 is a
                class of y, only None and NaN are unknown.

        With neither ``X_target`` nor a target in ``sample_domain`` there is nothing to adapt to, and X stands for both.

        Fits in several threads of a process take turns, since torch has one generator for all of them; a grid search
        is quicker with processes (``n_jobs``, joblib's default backend).
        """
        rows, labels = validate_data(self, X, y, dtype=np.float32, ensure_all_finite=False)
        _require_finite(rows, "X")
        target = rows
        if sample_domain is not None:
            if X_target is not None:
                raise ValueError("give X_target or sample_domain, not both")
            rows, labels, target = _parted(rows, labels, np.asarray(sample_domain))
        elif X_target is not None:
            target = self._valid_target(X_target)
        if target is rows:
            where = "no X_target, nor a sample_domain" if sample_domain is None else "no sample_domain is negative"
            warnings.warn(f"{where}: there is no target, and nothing to adapt to", SafdaWarning, 2)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(f"a classifier needs two or more classes, and y has one class: {only!r}")
        names = tuple(str(label) for label in self.classes_)
        source = Domain("source", shared_tensor(rows), torch.from_numpy(numbers.astype(np.int64)), names)
        check_knobs(source, self.knobs or {})
        recipe = self._recipe()
        known = None if y_target is None else _known_labels(y_target, self.classes_, len(target))
        with TrainingView("adapting", recipe.all_steps, Console(stderr=True, quiet=not self.verbose)) as view:
            target_domain = Domain("target", shared_tensor(target))
            warn_of_scales(source, target_domain)
            self.adapted_ = start(source, target_domain, recipe, callback=view, target_labels=known)
        self.choice_ = self.adapted_.choice
        if target is not rows:
            warn_if_not_adapted(self.adapted_)
        return self

    def predict(self, X: ArrayLike, sample_domain: ArrayLike | None = None, allow_source: bool = True) -> NDArray[Any]:
        """Return the most probable label of each sample."""
        outputs = self._outputs(X)
        labels: NDArray[Any] = self.classes_[outputs.logits.argmax(1)]
        return labels

    def predict_proba(
        self, X: ArrayLike, sample_domain: ArrayLike | None = None, allow_source: bool = True
    ) -> NDArray[np.float32]:
        """Return the probability of each class, n×K."""
        return self._outputs(X).probabilities

    def decision_function(
        self, X: ArrayLike, sample_domain: ArrayLike | None = None, allow_source: bool = True
    ) -> NDArray[np.float32]:
        """Return the logits, n×K; of two classes their difference, n."""
        logits = self._outputs(X).logits
        difference: NDArray[np.float32] = logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits
        return difference

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        sample_domain: ArrayLike | None = None,
        allow_source: bool = True,
    ) -> float:
        """Return the accuracy. On a target, this is an oracle's number."""
        return float(super().score(X, y, sample_weight=sample_weight))

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the bottleneck's features, n×width."""
        return self._outputs(X).embedding

    def save(self, path: str | Path) -> None:
        """Write a folder that :meth:`load` reads, and every command that takes a run. Nothing is pickled."""
        check_is_fitted(self)
        classes = plain_texts(self.classes_)
        if classes.dtype.kind not in "biufU":
            raise SafdaError(f"labels of type {classes.dtype} cannot be saved; use numbers or texts")
        self.adapted_.save(path)
        names = getattr(self, "feature_names_in_", None)
        content = {
            "classes": classes.tolist(),
            "dtype": classes.dtype.str,
            "feature_names": None if names is None else names.tolist(),
            "choice": self.choice_,
        }
        write_json(Path(path) / "estimator.json", content)

    @classmethod
    def load(cls, path: str | Path) -> SAFClassifier:
        """Read what :meth:`save` wrote; no code is run from it."""
        adapted = Adapted.load(path)
        if not (Path(path) / "estimator.json").is_file():
            raise SafdaError(f"{path}: is no saved SAFClassifier; safda.Adapted.load reads the folder of a run")
        content = read_json(Path(path) / "estimator.json", ESTIMATOR)
        classifier = cls(recipe=adapted.recipe)
        adapted.choice = content.get("choice")
        classifier.adapted_, classifier.choice_ = adapted, adapted.choice
        try:
            classifier.classes_ = np.array(content["classes"], dtype=content["dtype"])
        except (ValueError, OverflowError) as error:
            raise SafdaError(f"{path}: estimator.json: its classes are not of their type: {error}") from None
        if len(classifier.classes_) != len(adapted.classes):
            raise SafdaError(
                f"{path}: estimator.json: has {len(classifier.classes_)} classes, data.json another number"
            )
        classifier.n_features_in_ = adapted.model.backbone_dim
        if content["feature_names"] is not None:
            classifier.feature_names_in_ = np.array(content["feature_names"], dtype=object)
        return classifier

    def _valid_target(self, X_target: ArrayLike) -> NDArray[np.float32]:
        """Return a target as scikit-learn checks an X, and call it by its own name in errors."""
        try:
            target: NDArray[np.float32] = validate_data(
                self, X_target, dtype=np.float32, ensure_all_finite=False, reset=False
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"X_target: {error}") from None
        _require_finite(target, "X_target")
        return target

    def _recipe(self) -> Recipe:
        recipe = self.recipe if isinstance(self.recipe, Recipe) else load_recipe(self.recipe)
        if self.adversary is not None or self.saf is not None:
            recipe = recipe.with_adversary(self.adversary, self.saf)
        chosen = {"steps": self.steps, "batch": self.batch}
        changes = {path: value for path, value in chosen.items() if value is not None}
        if self.random_state is not None:
            changes["seed"] = _seed(self.random_state)
        return recipe.override({**changes, **(self.knobs or {})}, type(self).__name__)

    def _outputs(self, X: ArrayLike) -> Predictions:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float32, ensure_all_finite=False, reset=False)
        _require_finite(rows, "X")
        return self.adapted_.predict(Domain("X", shared_tensor(rows)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # what the network computes in
        return tags


def _seed(random_state: Any) -> int:
    """Return the seed that an int is, or that a generator draws."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _known_labels(y_target: ArrayLike, classes: NDArray[Any], rows: int) -> dict[int, str] | None:
    """Return the target's rows whose labels are known, with the names of their classes; None if there are none."""
    labels = np.asarray(y_target, dtype=object)
    if labels.shape != (rows,):
        raise ValueError(f"y_target must be of shape ({rows},), a label for each target sample, not {labels.shape}")
    names = {label: str(name) for label, name in zip(classes.tolist(), classes, strict=True)}
    known: dict[int, str] = {}
    for row, label in enumerate(labels.tolist()):
        if label in names:  # 1.0 is 1
            known[row] = names[label]
        elif not (label is None or label != label or label == -1):
            raise ValueError(f"y_target has the label {label!r} in row {row}, which is not in y")
    return known or None


def _require_finite(X: NDArray[np.float32], name: str) -> None:
    """Refuse NaN and infinity, and name the first row that has one."""
    fault = first_fault(X)
    if fault is not None:
        row, is_nan, count = fault
        kind = "NaN" if is_nan else "infinity (inf)"
        raise ValueError(f"{name} contains {kind} in row {row} ({count} such rows); remove or mend them")


def _parted(
    X: NDArray[np.float32], y: NDArray[Any], domain: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.float32]]:
    """Split rows into source and target by skada's convention; without any target, the source stands for it."""
    if domain.shape != (len(X),):
        raise ValueError(f"sample_domain must be of shape ({len(X)},), not {domain.shape}")
    if (domain == 0).any():
        raise ValueError("sample_domain has zeros; a source's number is positive, and a target's is negative")
    target = domain < 0
    if target.all():
        raise ValueError("sample_domain marks every sample as target (negative); a source is needed")
    return (X[~target], y[~target], X[target]) if target.any() else (X, y, X)
