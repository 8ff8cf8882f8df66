"""A search over a recipe's knobs, scored without target labels, with Optuna."""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from safda.api import completed
from safda.classifier import Adapted, Predictions
from safda.data import AnyDomain, mixed_seed
from safda.errors import SafdaError
from safda.evaluation.scores import SCORES, Missing, Outputs
from safda.io import disk_errors, write_text
from safda.lock import InUse, locked
from safda.recipe import Recipe, walk

if TYPE_CHECKING:
    import optuna

# What is kept with a trial: in whose folder its run is, why it failed, and whether it is one more than was asked for.
_FOLDER, _ERROR, _SURPLUS = "folder", "error", "surplus"


def tune(
    source: AnyDomain,
    target: AnyDomain,
    recipe: Recipe,
    folder: Path,
    *,
    trials: int,
    score: str = "information",
    storage: str | None = None,
    log: Callable[[str], None] = lambda line: None,
    cpu: bool = False,
) -> Recipe:
    """Search the knobs that declare a range; write the best recipe to ``best.toml`` and return it.

    A study is known by its data, its recipe and its score: another one in the same folder or database begins anew, and
    the same one goes on, in the middle of a trial too. With a database as storage, many machines share one: together
    they make as many trials as were asked for. A trial whose training failed (its loss was not finite) counts too.

    Args:
        source: a labelled domain.
        target: its labels, if any, are dropped before anything is looked at.
        recipe: where knobs that are not searched have their values.
        folder: for the trials' runs and the result.
        trials: how many the study is to have in all.
        score: one of :data:`safda.evaluation.scores.SCORES`.
        storage: an Optuna database URL; by default a file in the folder.
        log: called with a line after each trial.
        cpu: stay on the CPU even where there is a GPU.
    """
    try:
        import optuna
    except ImportError:
        raise SafdaError("safda tune needs Optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    SCORES[score]  # a wrong name is told before anything is written
    if trials < 1:
        raise SafdaError(f"--trials {trials}: at least one is needed")
    target = target.unlabelled()
    with disk_errors(folder):
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    content = json.dumps([recipe.to_dict(), source.fingerprint(), target.fingerprint(), score], sort_keys=True)
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    url = storage or f"sqlite:///{(folder / 'study.db').resolve()}"
    name = f"{Path(source.name).stem} to {Path(target.name).stem} {key}"
    with _storage_errors(url, ImportError, ValueError):
        study = optuna.create_study(study_name=name, storage=url, direction="maximize", load_if_exists=True)
    with _storage_errors(url):
        search = _Search(study, key, source, target, recipe, folder, score, log, cpu)
        search.make_trials(trials)
        best = recipe.override(search.best_params())
    with disk_errors(folder):
        write_text(folder / "best.toml", best.to_toml())
    return best


@dataclass
class _Search:
    """A study, and what its trials are made of: see :func:`tune`."""

    study: optuna.Study
    key: str
    source: AnyDomain
    target: AnyDomain
    recipe: Recipe
    folder: Path
    score: str
    log: Callable[[str], None]
    cpu: bool

    def make_trials(self, wanted: int) -> None:
        """Go on with this folder's trials that a process left when it died, then make those that are lacking."""
        import optuna

        running = [trial for trial in self._slots()[:wanted] if not trial.state.is_finished()]
        for left in running:
            if left.user_attrs.get(_FOLDER, self._folder_id) == self._folder_id:
                self._make(optuna.Trial(self.study, left._trial_id))
        while len(self._slots()) < wanted:
            trial = self.study.ask()
            if trial.number not in [slot.number for slot in self._slots()[:wanted]]:  # another process was faster
                trial.set_user_attr(_SURPLUS, True)
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
                break
            trial.set_user_attr(_FOLDER, self._folder_id)
            self._make(trial)
        elsewhere = sum(not trial.state.is_finished() for trial in self._slots()[:wanted])
        if elsewhere:
            self.log(
                f"{elsewhere} of {wanted} are being made elsewhere; once they have ended, the same command sees them"
            )

    def best_params(self) -> dict[str, float]:
        """Return the knobs of the best trial, or say why there is none."""
        import optuna

        ended = self._slots()
        if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in ended):
            return self.study.best_params
        failed = [trial for trial in ended if _ERROR in trial.user_attrs]
        why = f"; trial {failed[0].number} failed: {failed[0].user_attrs[_ERROR]}" if failed else ""
        raise SafdaError(f"{self.folder}: none of {len(ended)} trials has finished{why}")

    def _slots(self) -> list[optuna.trial.FrozenTrial]:
        """Return the trials that count, by number: begun, and in time for a place."""
        import optuna

        waiting, every = optuna.trial.TrialState.WAITING, self.study.get_trials(deepcopy=False)
        return [trial for trial in every if trial.state != waiting and _SURPLUS not in trial.user_attrs]

    @property
    def _folder_id(self) -> str:
        """What tells this folder from any other, wherever it is mounted: whose trials are here can be gone on with."""
        file = self.folder / "trials" / "id"
        with disk_errors(file):
            if not file.is_file():
                write_text(file, f"{uuid.uuid4().hex}\n")
            return file.read_text(encoding="utf-8").strip()

    def _make(self, trial: optuna.Trial) -> None:
        """Bring a trial to its end, unless another process of this folder is at it."""
        what = f"trial {trial.number} in {self.folder}"
        try:
            with locked(self.folder / "trials" / f".{self.key}-{trial.number:04d}.lock", what):
                if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                    self._complete(trial)
        except InUse as error:
            self.log(str(error))

    def _complete(self, trial: optuna.Trial) -> None:
        import optuna

        recipe = suggest(trial, self.recipe)
        knobs = ", ".join(f"{path} = {number:.3g}" for path, number in trial.params.items())
        try:
            value = self._value(trial.number, recipe)
        except SafdaError as error:
            if isinstance(error, (InUse, Missing)) or isinstance(error.__cause__, OSError):  # no fault of the knobs
                raise
            trial.set_user_attr(_ERROR, str(error))
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            self.log(f"trial {trial.number}: failed with {knobs}: {error}")
        else:
            self.study.tell(trial, value)
            self.log(f"trial {trial.number}: {self.score} {value:.4f} with {knobs}")

    def _value(self, number: int, recipe: Recipe) -> float:
        """Train as a trial suggests, in a folder that no other knobs and no other study can have, and score it."""
        adapted = self._trained(number, recipe)

        def by_another() -> list[Predictions]:
            another = replace(recipe, seed=(recipe.seed + 1) % 2**32)
            return [self._trained(number, another).predict(self.target)]

        outputs = Outputs.of(adapted, self.source, adapted.predict(self.target), self.target, by_another)
        value = SCORES[self.score](outputs)
        if not math.isfinite(value):
            raise SafdaError(f"the score {self.score} is {value}")
        return value

    def _trained(self, number: int, recipe: Recipe) -> Adapted:
        content = json.dumps([self.key, recipe.to_dict()], sort_keys=True)
        name = f"{number:04d}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
        return completed(self.folder / "trials" / name, self.source, self.target, recipe, cpu=self.cpu)


def suggest(trial: optuna.Trial, recipe: Recipe) -> Recipe:
    """Let a trial suggest every knob that declares a range.

    Each draw has a seed of its own, made of the recipe's, the trial's number and the knob's: so no two processes draw
    the same, and one that goes on with a trial draws what was still to be drawn.
    """
    import optuna

    drawn = {}
    for place, (path, knob, _) in enumerate(walk(recipe)):
        idle = path.startswith("fine_tune.") and not recipe.fine_tune.enabled
        if knob.search is not None and not idle:
            low, high, scale = knob.search
            seed = mixed_seed(recipe.seed, trial.number, place) % 2**32
            trial.study.sampler = optuna.samplers.TPESampler(seed=seed)
            drawn[path] = trial.suggest_float(path, low, high, log=scale == "log")
    return recipe.override(drawn)


@contextmanager
def _storage_errors(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a database says, and more errors, into one line, without the password that its URL may hold."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    kinds: tuple[type[Exception], ...] = (SQLAlchemyError, optuna.exceptions.StorageInternalError, *more)
    try:
        yield
    except kinds as error:
        why = " ".join((str(error).splitlines() or [type(error).__name__])[0].split())
        hidden = [re.sub(r"//[^@/]*@", "//…@", text) for text in (url, why)]
        raise SafdaError(f"--storage {hidden[0]}: no study can be kept there: {hidden[1]}") from None
