"""Adapt a classifier: :func:`fit` and :func:`resume`, and the stages that a run goes through in both."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from safda.classifier import Adapted, Predictions, check_shape, transform_of
from safda.data import EMBEDDED, AnyDomain, Domain, ImageDomain, is_image_data, load_domain
from safda.data.labels import known_labels, read_labels, with_known_labels
from safda.data.loader import ProgressCallback, evaluation_batches, feature_batches
from safda.data.preflight import scale_warnings
from safda.data.sampler import evenly_spaced_rows
from safda.data.statistics import require_variety
from safda.errors import Interrupted, SafdaError, SafdaWarning, first_line
from safda.evaluation import theory
from safda.evaluation.choice import SOURCE_ONLY, choose
from safda.evaluation.diagnosis import diagnose, observe
from safda.evaluation.estimate import estimate_accuracy
from safda.evaluation.scores import Outputs
from safda.evaluation.verdict import neighbour_structure, summarise
from safda.extraction import for_network, frozen_features, image_transform
from safda.io import refuse_within
from safda.methods.base import Method
from safda.methods.propagation import FEATURES, LabelPropagation, best_features, both_graphs
from safda.methods.selective import selective_votes
from safda.model import AdaptationModel, require_memory
from safda.nn.backbones import Backbone, check_backbone, full_name
from safda.nn.heads import FeatureScaling, moments
from safda.nn.weights import digest_of
from safda.presets import DISCRIMINANTS
from safda.recipe import SOURCE_ONLY_CHANGES, Recipe, load_recipe, preset
from safda.report.write import write_run_report
from safda.training.checkpoint import CANDIDATES, FIRST_STAGE, Checkpoint, RunFolder, never_began
from safda.training.loop import StepCallback, load_weights, make_accelerator, size_of, train, weights_of
from safda.turns import borrowed_generator, in_turn

#: Called with (done, total, what is done) while a run is made ready, and while it is compared with source only.
StageProgress = Callable[[int, int, str], None]

_MOST_TURNED = 4096  # features of each domain tell its principal components
_OF_THE_BACKBONE = tuple(f"network.{name}" for name in ("backbone", "pretrained", "weights", "frozen", "image_size"))
_COPIES = 3  # of the weights, in training: their gradients, and what the optimizer remembers
_COMPONENTS = 512  # principal ones tell a discriminant what there is to learn
_SOURCE_ONLY_STEPS = 500  # on features a classifier learns the source in as many
_NOT_ADAPTED = (
    "nothing spoke clearly for adapting: the answers are those of a classifier that only learned the source "
    "('choice' has the evidence)"
)


def fit(
    source: Any,
    target: Any,
    *,
    out: str | Path | None = None,
    recipe: Recipe | str | Path | None = None,
    methods: Sequence[str | Method] | str | None = None,
    callback: StepCallback | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    backbone: nn.Module | None = None,
    cache_decoded: bool = False,
    strict: bool = False,
    report: bool = True,
    target_labels: Mapping[Any, Any] | str | Path | None = None,
    **overrides: Any,
) -> Adapted:
    """Adapt a classifier from a labelled source to an unlabelled target.

    Args:
        source: a domain with labels: a name, the path of a folder or a file, or a pair (features, labels).
        target: a domain; labels it may have are dropped at the door.
        out: a new run folder, in which predictions, a verdict on them and a report are written too; None keeps
            everything in memory, and gives no verdict.
        recipe: a recipe, a preset's name or a TOML file; by default ``default``, or ``digits`` for embedded digits.
        methods: whose losses add up, in place of the recipe's: names (``"mdd,saf"``, or a list), and methods of your
            own (a class that :func:`safda.methods.register` knows), such as ``[MyMethod(weight=0.5), "saf"]``.
        callback: called after every step.
        cpu: stay on the CPU even where there is a GPU.
        trackers: experiment trackers that accelerate knows, such as ``"tensorboard"``.
        backbone: a network of your own for F: from n×3×h×w to n×d. Unless frozen, it is trained in place.
        cache_decoded: keep decoded pictures on disk, which takes some 200 kB for each at 224 pixels.
        strict: make an error of pictures that cannot be read, instead of skipping them.
        report: write ``report.html`` into the run folder, for a person to look at.
        target_labels: labels of a few target samples to learn from, where there are some: sample → class, by the names
            in ``predictions.csv`` (row numbers, for arrays), or a ``labels.csv`` as ``safda label`` writes it.
        overrides: knobs by their path, as in ``steps=500`` or ``**{"optimizer.lr": 0.01}``.

    Raises:
        SafdaError: if anything is wrong that a user can mend.
        Interrupted: if a signal (Ctrl-C, SIGTERM) ends it; a run in a folder can be resumed.

    Example:
        >>> y = torch.arange(60) % 3
        >>> X, X_target = (4 * torch.eye(3)[y] + shift + torch.randn(60, 3) / 2 for shift in (0, 1))
        >>> adapted = fit((X, y), X_target, steps=40, batch=12, **{"network.bottleneck_width": 32})
        >>> adapted.predict(X_target).classes, adapted.evaluate((X_target, y)).accuracy > 0.9
        (('0', '1', '2'), True)
    """
    if not isinstance(recipe, Recipe):
        recipe = default_recipe(source) if recipe is None else load_recipe(recipe)
    methods = [each.strip() for each in methods.split(",") if each.strip()] if isinstance(methods, str) else methods
    given = {each.name: each for each in methods or () if isinstance(each, Method)}
    if methods is not None:
        recipe = recipe.override({"methods": [each if isinstance(each, str) else each.name for each in methods]})
        recipe = replace(recipe, of_methods={**recipe.of_methods, **{name: each.knobs for name, each in given.items()}})
    recipe = recipe.override(overrides)
    if backbone is None and is_image_data(source):
        check_backbone(recipe.network)  # before any picture is opened
    source, target = load_domain(source, "source", strict=strict), load_domain(target, "target", strict=strict)
    check_knobs(source, {**overrides, **({} if backbone is None else {"network.backbone": backbone})})
    warn_of_scales(source, target)
    adapted = start(
        source,
        target,
        recipe,
        out,
        callback,
        cpu,
        trackers,
        backbone=backbone,
        methods=given,
        cache_decoded=cache_decoded,
        target_labels=target_labels,
        verdict=out is not None,
        report=report and out is not None,
    )
    if out is None:  # where there is a verdict, that says it
        warn_if_not_adapted(adapted)
    return adapted


def default_recipe(source: Any) -> Recipe:
    """Return the recipe for a source that comes without one: the same for arrays and for pictures."""
    name = source.name if isinstance(source, AnyDomain) else source
    return preset("digits" if isinstance(name, str) and name in EMBEDDED else "default")


def check_knobs(source: AnyDomain, given: Mapping[str, Any]) -> None:
    """Refuse knobs of the backbone that a user turned for a source that has none: ignored, they would mislead.

    A preset or a recipe file may hold them: it serves pictures too.

    Args:
        source: the labelled domain.
        given: the knobs that were named one by one, by path.
    """
    sections = [f"{path}.{key}" for path, value in given.items() if isinstance(value, Mapping) for key in value]
    idle = [path for path in (*given, *sections) if path in _OF_THE_BACKBONE]
    if idle and isinstance(source, Domain) and len(source.inputs.shape) == 2:
        have, them = ("has", "it") if len(idle) == 1 else ("have", "them")
        raise SafdaError(
            f"{source.name}: holds features already, so {' and '.join(idle)} {have} no meaning; "
            f"leave {them} out, or name the pictures"
        )


def warn_of_scales(source: AnyDomain, target: AnyDomain) -> None:
    """Warn of features that look as if one domain alone had gone through a scaler."""
    if isinstance(source, Domain) and isinstance(target, Domain):
        for line in scale_warnings(source, target):
            warnings.warn(line, SafdaWarning, stacklevel=3)


def warn_if_not_adapted(adapted: Adapted) -> None:
    """Warn where source only was taken of several recipes: nobody would notice by the answers."""
    if adapted.choice and adapted.choice["chosen"] == SOURCE_ONLY:
        warnings.warn(_NOT_ADAPTED, SafdaWarning, stacklevel=3)


@in_turn
def start(
    source: AnyDomain,
    target: AnyDomain,
    recipe: Recipe,
    out: str | Path | None = None,
    callback: StepCallback | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    *,
    backbone: nn.Module | None = None,
    methods: Mapping[str, Method] | None = None,
    cache_decoded: bool = False,
    target_labels: Mapping[Any, Any] | str | Path | None = None,
    progress: StageProgress | None = None,
    verdict: bool = False,
    report: bool = False,
) -> Adapted:
    """Begin a run: check the domains, make the folder and the model, train.

    Args:
        source, target, recipe, out, callback, cpu, trackers, backbone, cache_decoded, target_labels: as in
            :func:`fit`.
        methods: those that were made already, by name.
        progress: called with (done, total, what) while something is made ready.
        verdict: at the end, compare with a source-only classifier, and write predictions and summary.
        report: after a verdict, write the report on it.
    """
    _, classes = source.labelled("a training source")
    if len(classes) < 2:
        raise SafdaError(f"{source.name}: has one class only ({classes[0]!r}); a classifier needs two or more")
    if out is not None:
        refuse_within(Path(out), [domain.name for domain in (source, target) if isinstance(domain, ImageDomain)])
    target = target.unlabelled()
    if target_labels is not None:
        target = with_known_labels(target, *_given_labels(target_labels, classes))
    data = _describe(source, target, recipe, backbone)
    source, target = (for_network(domain, transform_of(data), cache_decoded) for domain in (source, target))
    check_shape(target, tuple(data["input_shape"]))
    for domain in (source, target):
        require_variety(domain)
    require_memory(recipe.network, data["input_shape"], len(classes), _COPIES)
    with borrowed_generator(recipe.seed):
        model = AdaptationModel(recipe, source.blank(), len(classes), backbone, methods)
    if "backbone" in data:
        data["backbone"]["digest"] = digest_of(model.backbone)
    accelerator = make_accelerator(recipe, cpu=cpu, trackers=trackers, folder=Path(out) if out else None)
    work = _Work(recipe, Adapted(model, classes, data), source, target, accelerator, callback, progress, report)
    work.learn_scaling(model)
    run = work.folder(out, recipe) if out is not None else None
    with work.locked(run):
        work.complete(run, resume=False, verdict=verdict)
    return work.adapted


@in_turn
def resume(
    path: str | Path,
    *,
    source: Any = None,
    target: Any = None,
    callback: StepCallback | None = None,
    cpu: bool = False,
    trackers: tuple[str, ...] = (),
    backbone: nn.Module | None = None,
    cache_decoded: bool = False,
    progress: StageProgress | None = None,
    verdict: bool = True,
    report: bool = True,
) -> Adapted:
    """Go on with a run that was stopped, from its last checkpoint, on the same data.

    Args:
        path: the run folder.
        source: the same source again, if it was an array; one that has a name is found by it.
        target: the same target again, if it was an array.
        callback: called after every step.
        cpu: stay on the CPU even where there is a GPU.
        trackers: experiment trackers that accelerate knows.
        backbone: the same network again, if one was handed over.
        cache_decoded: keep decoded pictures on disk.
        progress: called with (done, total, what) while something is made ready.
        verdict: at the end, compare with a source-only classifier, and write predictions and summary.
        report: after a verdict, write the report on it.
    """
    run = RunFolder.open(path)
    run.mend()
    if run.finished and (run.summary or not verdict):
        return Adapted.load(path, backbone)
    if not run.can_go_on:
        raise never_began(run.path)
    accelerator = make_accelerator(run.recipe, cpu=cpu, trackers=trackers, folder=run.path)
    with run.locked() if accelerator.is_main_process else nullcontext():
        domains = [run.domain(role, given) for role, given in (("source", source), ("target", target))]
        adapted = Adapted.empty(run, backbone)
        if run.recipe.network.frozen:  # the backbone that made the features is in the weights of the first stage
            first = RunFolder.open(run.path / FIRST_STAGE) if run.recipe.fine_tune.enabled else run
            load_weights(adapted.model, first.newest_weights(), str(path))
        source, target = (for_network(domain, transform_of(run.data), cache_decoded) for domain in domains)
        work = _Work(run.given_recipe, adapted, source, target, accelerator, callback, progress, report)
        work.complete(run, resume=True, verdict=verdict)
        adapted.choice = run.choice
    return adapted


def completed(
    path: Path,
    source: AnyDomain,
    target: AnyDomain,
    recipe: Recipe,
    callback: StepCallback | None = None,
    cpu: bool = False,
) -> Adapted:
    """Bring a run to its end: begin it, go on with it, or find it finished."""
    verdict = recipe.choice.candidates > 0  # with a choice, what a verdict compares with is there already
    if RunFolder(path).can_go_on:
        return resume(path, source=source, target=target, callback=callback, cpu=cpu, verdict=verdict)
    return start(source, target, recipe, path, callback, cpu, (), verdict=verdict)


# --------------------------------------------------------------------------------------------------- the stages


@dataclass
class _Work:
    """What the stages of one run share.

    Attributes:
        given: the recipe as it was given: before a choice, with all stages.
        adapted: the classifier in the making.
        source, target: both domains, in the network's input size.
        accelerator: device, precision, processes and trackers.
        callback: called after every step.
        progress: called with (done, total, what) while something is made ready.
        report: whether a report is written at the end.
    """

    given: Recipe
    adapted: Adapted
    source: Domain
    target: Domain
    accelerator: Accelerator
    callback: StepCallback | None
    progress: StageProgress | None
    report: bool

    def __post_init__(self) -> None:
        """Compute both domains' features where the backbone is frozen, once, and on one process first."""
        self._steps_before = 0  # of the stages that have ended
        self._scalings: dict[tuple[str, int], FeatureScaling] = {}
        self._judged_in: list[LabelPropagation] = []
        self.source_only: Adapted | None = None
        self.choice: dict[str, Any] | None = None
        model = self.adapted.model.to(self.accelerator.device)

        def seen(domain: Domain) -> Domain:
            return frozen_features(model, domain, self._counter(f"features of {Path(domain.name).name}"))

        with self.accelerator.main_process_first():
            self.features = seen(self.source), seen(self.target)

    def folder(self, path: str | Path, recipe: Recipe, data: Mapping[str, Any] | None = None) -> RunFolder:
        """Make a new run folder, by the first process, which locks it, for all."""
        made = None
        if self.accelerator.is_main_process:
            made = RunFolder.create(path, recipe, data or self.adapted.data, size_of(self.adapted.model))
        self.accelerator.wait_for_everyone()
        return made or RunFolder.open(path)

    def locked(self, run: RunFolder | None) -> AbstractContextManager[object]:
        """Keep other processes than this run's own off a folder, for use in ``with``."""
        return run.locked() if run and self.accelerator.is_main_process else nullcontext()

    def complete(self, run: RunFolder | None, resume: bool, verdict: bool) -> None:
        """Go through all stages that are left, and say what came of them."""
        recipe = self.adapted.recipe
        try:
            if run and run.finished:
                load_weights(self.adapted.model, run.load_model(), str(run.path))
            elif recipe.fine_tune.enabled:
                self._fine_tune(run)
            else:
                self._adapt(run, resume)
            if verdict:
                self._steps_before = self.given.all_steps
                self._conclude(run)
        except Interrupted as stopped:
            if self.choice is None:
                self.adapted.model.use(recipe)
            steps = min(self._steps_before + stopped.step, self.given.all_steps)
            raise Interrupted(steps, stopped.signal, run.path if run else None) from None

    def _adapt(self, run: RunFolder | None, resume: bool) -> None:
        """Train as the model's recipe says, on features where the backbone is frozen; or choose among recipes."""
        if self.adapted.recipe.choice.candidates and self._has_features:
            return self._choose(run)
        self.adapted.model.setup(*self.features, self._counter("neighbours"))
        train(
            self.adapted.model,
            *self.features,
            accelerator=self.accelerator,
            run=run,
            callback=self.callback,
            resume=resume,
        )

    @property
    def _has_features(self) -> bool:
        return len(self.features[1].inputs.shape) == 2

    @cached_property
    def _for_features(self) -> dict[str, Any]:
        """What these features ask of every recipe tried on them: to be scaled so that near ones are of one class."""
        if not self.given.choice.candidates or self.given.network.features != "centred":
            return {}
        best, _ = self._best_features
        return {} if best == "centred" else {"network.features": best}

    @cached_property
    def _best_features(self) -> tuple[str, float]:
        return best_features(self.features[0])

    def _choose(self, run: RunFolder | None) -> None:
        """Train each candidate on the same features, and take one by evidence that needs no target label."""
        recipe, target = self.adapted.recipe.override(self._for_features), self.features[1]
        if run and not run.has_checkpoint and self.accelerator.is_main_process:
            run.save_checkpoint(Checkpoint(0, weights_of(self.adapted.model), {}, {}, {}))  # holds the backbone
        source_only = self._source_only(run, learn_labels=True)
        self.source_only = source_only if target.known_labels is None else None  # else what is compared with is another
        predictions = {SOURCE_ONLY: source_only.answer(target)}
        models = {SOURCE_ONLY: source_only.model}
        candidates = recipe.candidates(self._best_features[1])
        for number, (name, candidate) in enumerate(candidates.items(), 1):
            own = recipe.candidate({**candidate.changes, **self._for_features})
            begin_with = partial(self._answers_of, candidate.begins_with, predictions)
            counter = self._counter(f"candidate {number} of {len(candidates)}: {name}")
            callback = _counted(_later(self.callback, self._steps_before), counter, own.steps)
            models[name] = self._candidate(name, own.first_stage(), run, callback, begin_with)
            predictions[name] = Adapted(models[name], self.adapted.classes, self.adapted.data).answer(target)
            self._steps_before += own.steps
        begun_with = {name: candidate.begins_with for name, candidate in candidates.items()}
        self._judged_in = self._graphs(recipe)  # held: what is said at the end needs them too
        members = {name for name, candidate in candidates.items() if candidate.is_member}
        to_take = {name: each for name, each in predictions.items() if name not in members}
        choice = choose(to_take, self._judged_in, begun_with)
        own_changes = candidates[choice.name].changes if choice.name in candidates else SOURCE_ONLY_CHANGES
        changes = {**own_changes, **self._for_features}
        self.choice = self.adapted.choice = {**choice.to_dict(), "changes": changes}
        if choice.name == SOURCE_ONLY:  # a copy: what is compared with must not learn when what is taken is fine-tuned
            models[SOURCE_ONLY] = self._heads(source_only.recipe)
            models[SOURCE_ONLY].load_state_dict(source_only.model.state_dict())
        self.adapted.model.adopt(models[choice.name])
        self.adapted.model.eval()
        self.adapted.model.use(recipe.candidate(changes))
        if run and self.accelerator.is_main_process:
            run.save_model(weights_of(self.adapted.model))
            run.save_choice(self.choice)

    def _answers_of(self, names: Sequence[str], predictions: Mapping[str, Predictions]) -> Tensor:
        """Return the average of what these say of the target, as far as they were asked; or what source only does."""
        answers = [torch.from_numpy(predictions[name].probabilities) for name in names if name in predictions]
        answers += [self._votes(name) for name in names if name in DISCRIMINANTS]
        return torch.stack(answers or [torch.from_numpy(predictions[SOURCE_ONLY].probabilities)]).mean(0)

    def _votes(self, name: str) -> Tensor:
        """Let selective pseudo-labelling vote, once in each scaling of the features."""
        columns = self.features[0].inputs.shape[1]
        scales = [self._learned(FeatureScaling(columns, kind, _COMPONENTS)) for kind in FEATURES]
        return selective_votes(*self.features, scales, DISCRIMINANTS[name], self._counter(f"{name} pseudo-labels"))

    def _graphs(self, recipe: Recipe) -> list[LabelPropagation]:
        """Return the graphs in which candidates are judged; none where a recipe's pseudo-labels do not propagate."""
        labels = recipe.of_methods.get("pseudo_labels")
        if labels is None or not labels.propagation.neighbours:
            return []
        return both_graphs(*self.features, labels.propagation, self._counter("neighbours"))

    def _candidate(
        self,
        name: str,
        recipe: Recipe,
        run: RunFolder | None,
        callback: StepCallback | None,
        begin_with: Callable[[], Tensor] | None = None,
        learn_labels: bool = True,
    ) -> AdaptationModel:
        """Bring one candidate to its end, in a folder of its own within the run's; with a user's labels, or without."""
        model = self._heads(recipe)
        own = self._folder_within(run, f"{CANDIDATES}/{name}", model)
        if own and own.finished:
            load_weights(model, own.load_model(), str(own.path))
            return model
        source, target = self.features
        if not learn_labels:
            target = target.unlabelled()
        model.setup(source, target, self._counter("neighbours"))
        if begin_with is not None:
            answers = begin_with()
            for method in model.methods_by_name.values():
                method.warm_start(answers)
        with self.locked(own):
            train(
                model,
                source,
                target,
                accelerator=self._accelerator_for(recipe, own),
                run=own,
                callback=callback,
                resume=bool(own and own.has_checkpoint),
            )
        if own and self.accelerator.is_main_process:
            shutil.rmtree(own.path / "checkpoints", ignore_errors=True)
        return model

    def _accelerator_for(self, recipe: Recipe, own: RunFolder | None) -> Accelerator:
        """Make one for a candidate; in a choice it has the run's trackers, if there is a folder of its own for them."""
        names = [str(getattr(each, "value", each)) for each in self.accelerator.log_with]
        return make_accelerator(
            recipe,
            cpu=self.accelerator.device.type == "cpu",
            trackers=tuple(names) if own and self.given.choice.candidates else (),
            folder=own.path if own else None,
        )

    def _heads(self, recipe: Recipe) -> AdaptationModel:
        """Make what stands on the backbone, for features."""
        with borrowed_generator(recipe.seed):
            model = AdaptationModel(recipe, self.features[0].blank(), len(self.adapted.classes))
        self.learn_scaling(model)
        return model

    def learn_scaling(self, model: AdaptationModel) -> None:
        """Let a model learn from all features how to scale them, where it does."""
        if isinstance(model.centring, FeatureScaling):
            self._learned(model.centring)

    def _learned(self, scaling: FeatureScaling) -> FeatureScaling:
        """Give a scaling what it learns of these features, or what one of its kind has learned before."""
        key = scaling.kind, scaling.components
        if key not in self._scalings:
            knob = f"network.features = {scaling.kind!r}"
            some = [domain.batch(evenly_spaced_rows(len(domain), _MOST_TURNED)) for domain in self.features]
            every = chain.from_iterable(feature_batches(domain, knob) for domain in self.features)
            scaling.learn(every, torch.cat(some))
            self._scalings[key] = scaling
        scaling.load_state_dict(self._scalings[key].state_dict())
        return scaling

    def _folder_within(self, run: RunFolder | None, name: str, model: AdaptationModel) -> RunFolder | None:
        """Open a run folder within the run's, or make it: of a stage, or of a candidate."""
        if run is None:
            return None
        path = run.path / name
        is_there = (path / "recipe.toml").exists()
        self.accelerator.wait_for_everyone()  # all have looked before the first one makes it
        if is_there:
            return RunFolder.open(path)
        features = {"input_shape": list(self.features[0].inputs.shape[1:]), "input_type": "float32"}
        data = {**self.adapted.data, **(features if model is not self.adapted.model else {})}
        return self.folder(path, model.recipe, data)

    def _fine_tune(self, run: RunFolder | None) -> None:
        """Adapt the heads on features, then train all of the network on pictures from there."""
        model, recipe = self.adapted.model, self.adapted.recipe
        model.use(recipe.first_stage())
        begun = run is not None and run.has_checkpoint
        if not begun:
            self._first_stage_of(run)
            recipe = replace(model.recipe, fine_tune=recipe.fine_tune)  # where there was a choice, of what was taken
        if not model.is_set_up:
            model.setup(*self.features, self._counter("neighbours"))
        model.use(recipe.second_stage())
        self._steps_before = self.given.all_steps - recipe.fine_tune.steps
        probabilities = torch.from_numpy(self.adapted.answer(self.features[1]).probabilities)
        for method in model.methods_by_name.values():
            method.warm_start(probabilities)
        backbone = model.backbone
        assert isinstance(backbone, Backbone)
        backbone.freeze(False)
        train(
            model,
            self.source,
            self.target,
            accelerator=self.accelerator,
            run=run,
            callback=_later(self.callback, self._steps_before),
            resume=begun,
            finish=partial(self._settle, backbone),
        )
        model.use(recipe)

    @torch.no_grad()
    def _settle(self, backbone: Backbone) -> None:
        """Give B's norm the statistics of pictures as prediction sees them, whole: it has learned from random crops."""
        backbone.freeze()
        model, device = self.adapted.model, self.adapted.device
        means, squares = [], []
        for domain in (self.target,) if model.recipe.network.norm == "per-domain" else (self.source, self.target):
            batches = evaluation_batches(frozen_features(model, domain, self._counter("statistics")))
            mean, variance = moments(model.project(batch.to(device))[1] for batch in batches)
            means.append(mean)
            squares.append(variance + mean.square())
        mean = torch.stack(means).mean(0)
        model.bottleneck.set_statistics(mean, torch.stack(squares).mean(0) - mean.square())

    def _first_stage_of(self, run: RunFolder | None) -> None:
        """Bring the first stage to its end: a run of its own, within the folder of the whole."""
        first = self._folder_within(run, FIRST_STAGE, self.adapted.model)
        if first and first.finished:
            return load_weights(self.adapted.model, first.load_model(), str(first.path))
        with self.locked(first):
            return self._adapt(first, resume=bool(first and first.has_checkpoint))

    def _conclude(self, run: RunFolder | None) -> None:
        """Predict the target, and say without labels what is to be thought of it."""
        predictions = self.adapted.answer(
            frozen_features(self.adapted.model, self.target, self._counter("predictions"))
        )
        outputs, before, structure, estimate = Outputs(predictions), None, None, None
        source_only = (self.source_only or self._source_only()) if self._has_features else None
        source, target = self.features
        if source_only:  # otherwise it would cost as much as the run itself
            before = Outputs.of(source_only, source, source_only.answer(target), target)
        if run and self.accelerator.is_main_process:  # first of all: they are what the run was for
            more = {} if before is None else {"source_only": before.target.labels}
            predictions.write(run.path / "predictions.csv", more=more)
        if source_only:
            scaling = self._for_features.get("network.features", "centred")  # what was found best for neighbours
            structure = neighbour_structure(source_only, target, scaling)
            estimate = estimate_accuracy(predictions, source, target)
            if not self.given.fine_tune.enabled:  # whose features are others by now
                outputs = Outputs.of(self.adapted, source, predictions, target)
        labels, _ = self.source.labelled("a summary")
        choice = run.choice if run else self.choice
        summary = summarise(outputs, before, labels, structure, choice, estimate)
        self.adapted.summary = {**summary, **self._explain(summary, predictions, source_only, run)}
        if run and self.accelerator.is_main_process:
            run.save_summary(self.adapted.summary)
            if self.report:
                self._write_report(run)

    def _write_report(self, run: RunFolder) -> None:
        """Write what a person looks at; whatever is wrong with it, the run is whole without it."""
        try:
            write_run_report(run, self.adapted, self.source, self.target, self._counter("report"))
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            told = f"{run.path}: the report could not be written ({why}); 'safda report {run.path}' tries again"
            warnings.warn(told, SafdaWarning, stacklevel=2)

    def _explain(
        self, summary: dict[str, Any], predictions: Predictions, source_only: Adapted | None, run: RunFolder | None
    ) -> dict[str, Any]:
        """Say what is the matter; whatever is wrong with that, predictions and verdict stand without it."""
        try:
            return self._analysis(summary, predictions, source_only, run)
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            told = f"{self.target.name}: what is the matter could not be found out ({why}); all else is there"
            warnings.warn(told, SafdaWarning, stacklevel=2)
            return {}

    def _analysis(
        self, summary: dict[str, Any], predictions: Predictions, source_only: Adapted | None, run: RunFolder | None
    ) -> dict[str, Any]:
        """Measure the terms of the paper's error bound on some samples of both domains, and say what is the matter."""
        model, features = self.adapted.model, self.features if self._has_features else None
        counter = self._counter("both domains, to compare them") or (lambda done, of: None)
        some = map(theory.some_samples, self.features)
        before = theory.encode(source_only.model, *some) if source_only else None
        both = [frozen_features(model, theory.some_samples(each), counter) for each in (self.source, self.target)]
        after = theory.encode(model, *both)
        counter(0, 2)
        measured = theory.measure(before, after, seed=self.given.seed)
        counter(1, 2)
        seen = observe(predictions, features, self._metrics(run), self.adapted.recipe, after.source_confidence)
        counter(2, 2)
        more = {"theory": measured, "observations": seen}
        return {**more, "diagnosis": diagnose({**summary, **more})}

    def _metrics(self, run: RunFolder | None) -> list[dict[str, Any]]:
        """Return the metrics of the training that gave the result: of the last stage, or of what a choice has taken."""
        if run is None:
            return []
        taken = run.path / CANDIDATES / str((run.choice or {}).get("chosen"))
        return run.metrics() or (RunFolder(taken).metrics() if taken.is_dir() else [])

    def _source_only(self, run: RunFolder | None = None, learn_labels: bool = False) -> Adapted:
        """Train a classifier on the source's features, without any method.

        As one of several candidates it is kept, and learns what a user has said of the target, as all others do. What
        a run is compared with does not: that is what one would have had without it.
        """
        recipe = self.given.override(self._for_features).source_only()
        recipe = replace(recipe, steps=min(recipe.steps, _SOURCE_ONLY_STEPS))
        counter = self._counter("source only, to compare with")
        callback = _counted(None, counter, recipe.steps)
        model = self._candidate(SOURCE_ONLY, recipe, run, callback, learn_labels=learn_labels)
        return Adapted(model, self.adapted.classes, self.adapted.data)

    def _counter(self, what: str) -> ProgressCallback | None:
        return partial(_report_stage, self.progress, what) if self.progress else None


def _report_stage(progress: StageProgress, what: str, done: int, of: int) -> None:
    progress(done, of, what)


def _counted(callback: StepCallback | None, counter: ProgressCallback | None, steps: int) -> StepCallback | None:
    """Return a callback that also counts the steps of one stage."""
    if counter is None:
        return callback

    def both(step: int, metrics: Mapping[str, float] | None) -> None:
        if callback:
            callback(step, metrics)
        counter(step, steps)

    return both


def _later(callback: StepCallback | None, steps: int) -> StepCallback | None:
    """Return a callback that counts a later stage's steps on from those before it."""
    if callback is None:
        return None

    def shifted(step: int, metrics: Mapping[str, float] | None) -> None:
        callback(steps + step, metrics)

    return shifted


# ----------------------------------------------------------------------------------------- what a run remembers


def _describe(source: AnyDomain, target: AnyDomain, recipe: Recipe, backbone: nn.Module | None) -> dict[str, Any]:
    """Return what a run folder remembers of its data, and of what makes inputs of them."""
    network = recipe.network
    if recipe.fine_tune.enabled and isinstance(source, Domain):
        raise SafdaError(f"{source.name}: there is no backbone to fine-tune; fine_tune.enabled is for picture files")
    if recipe.fine_tune.enabled and not network.frozen:
        raise SafdaError("fine_tune.enabled begins with a frozen backbone; set network.frozen = true, or leave it out")
    about: dict[str, Any] = {}
    if isinstance(source, ImageDomain):
        if backbone is None:
            check_backbone(network)
        transform = image_transform(network, backbone)
        source = for_network(source, transform)
        about["transform"] = asdict(transform)
        name = full_name(network) if backbone is None else type(backbone).__name__
        about["backbone"] = {"name": name, "weights": network.weights or ("timm" if network.pretrained else "")}
    _, classes = source.labelled("a training source")
    return {
        "source": _origin(source),
        "target": _origin(target),
        "input_shape": list(source.inputs.shape[1:]),
        "input_type": str(source.inputs.dtype).removeprefix("torch."),
        "classes": list(classes),
        **about,
        **({"target_labels": known} if (known := known_labels(target, classes)) else {}),
    }


def _given_labels(
    labels: Mapping[Any, Any] | str | Path, classes: tuple[str, ...]
) -> tuple[dict[str, str], tuple[str, ...], str]:
    """Return labels of the target by the names of samples and classes, all classes, and where they are from."""
    if isinstance(labels, Mapping):
        return {str(each): str(label) for each, label in labels.items()}, classes, "target_labels"
    return read_labels(labels).given, classes, str(labels)


def _origin(domain: AnyDomain) -> dict[str, Any]:
    path = Path(domain.name)
    # Arrays have no path, nor have pictures that were named one by one.
    on_disk = path.exists() and (not domain.in_memory or path.suffix == ".npz")
    name = str(path.resolve()) if on_disk else domain.name
    skipped = [list(each) for each in domain.skipped]
    return {"name": name, "samples": len(domain), "digest": domain.fingerprint(), "skipped": skipped}


__all__ = [
    "check_knobs",
    "completed",
    "default_recipe",
    "fit",
    "resume",
    "start",
    "warn_if_not_adapted",
    "warn_of_scales",
]
