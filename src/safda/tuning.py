"""A search over a recipe's knobs, scored without target labels, with Optuna."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from safda.api import completed
from safda.data import AnyDomain
from safda.errors import SafdaError
from safda.evaluation.scores import SCORES, Outputs
from safda.io import write_text
from safda.recipe import Recipe, walk

if TYPE_CHECKING:
    import optuna


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

    A study that was stopped goes on. With a database as storage, many machines share one: each makes trials until
    there are as many as were asked for. A trial that fails (its loss was not finite) counts too.

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
        raise SafdaError("safda tune needs Optuna: pip install 'safda[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    score_of = SCORES[score]
    if trials < 1:
        raise SafdaError(f"--trials {trials}: at least one is needed")
    target = target.unlabelled()
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=f"{Path(source.name).stem} to {Path(target.name).stem}",
        storage=storage or f"sqlite:///{(folder / 'study.db').resolve()}",
        sampler=optuna.samplers.TPESampler(seed=recipe.seed),
        direction="maximize",
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float:
        chosen = suggest(trial, recipe)
        adapted = completed(folder / "trials" / f"{trial.number:04d}", source, target, chosen, cpu=cpu)
        return score_of(Outputs.of(adapted, source, adapted.predict(target)))

    def after(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        value = "failed" if trial.value is None else f"{score} {trial.value:.4f}"
        knobs = ", ".join(f"{path} = {number:.3g}" for path, number in trial.params.items())
        log(f"trial {trial.number}: {value} with {knobs}")

    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL)
    if sum(trial.state in ended for trial in study.trials) < trials:
        enough = optuna.study.MaxTrialsCallback(trials, states=ended)
        study.optimize(objective, callbacks=[after, enough], catch=(SafdaError,))
    if not study.get_trials(states=(optuna.trial.TrialState.COMPLETE,)):
        raise SafdaError(f"{folder}: none of {trials} trials finished; try a smaller optimizer.lr to start from")
    best = recipe.override(study.best_params)
    write_text(folder / "best.toml", best.to_toml())
    return best


def suggest(trial: optuna.Trial, recipe: Recipe) -> Recipe:
    """Let a trial suggest every knob that declares a range."""
    drawn = {}
    for path, knob, _ in walk(recipe):
        if knob.search is not None:
            low, high, scale = knob.search
            drawn[path] = trial.suggest_float(path, low, high, log=scale == "log")
    return recipe.override(drawn)
