"""The methods: values against naive forms, and where each gradient goes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import safda
from safda.data import Domain
from safda.errors import SafdaError
from safda.methods import METHODS, register
from safda.methods.base import Batch, Method, Phase
from safda.methods.bsp import BSP
from safda.methods.cdan import CDAN, _certainty
from safda.methods.coral import CORAL
from safda.methods.dann import DANN
from safda.methods.ima import ClassAlignedSampler, ImA
from safda.methods.mcd import MCD
from safda.methods.mdd import MDD, log_one_minus
from safda.methods.self_training import SelfTraining
from safda.model import AdaptationModel
from safda.recipe import Recipe
from safda.training.loop import _optimizer, _optimizer_step, make_accelerator

WIDTH, CLASSES = 6, 4
AT_ONCE = {"ramp": 1e6}  # full weight at any progress but zero
ADVERSARIAL = ["mdd", "dann", "cdan", "cdan+e"]


def net(width=WIDTH, classes=CLASSES):
    return SimpleNamespace(
        embedding_dim=width, classes=classes, new_classifier=lambda: nn.Linear(width, classes).double()
    )


def built(method, **sizes):
    method.build(net(**sizes))
    return method.double()


def joint(sources=3, targets=5, classifier=None):
    embedding = torch.randn(sources + targets, WIDTH, dtype=torch.float64, requires_grad=True)
    classifier = classifier or nn.Linear(WIDTH, CLASSES).double()
    labels, rows = torch.randint(0, CLASSES, (sources,)), torch.arange(sources + targets)
    tensors = (embedding, embedding, embedding, embedding, classifier(embedding))
    return Batch(net(), {}, labels, rows, *tensors, progress=0.5)


def loss_of(method, batch, phase=None):
    return sum(method.losses(batch, phase or Phase()).values())


# ------------------------------------------------------------------------------------------------------ MDD


@settings(max_examples=50)
@given(rows=st.integers(1, 5), classes=st.integers(2, 6), scale=st.floats(0.1, 5), seed=st.integers(0, 999))
def test_log_one_minus_equals_the_naive_form_where_that_is_finite(rows, classes, scale, seed):
    torch.manual_seed(seed)
    logits = torch.randn(rows, classes, dtype=torch.float64) * scale
    labels = torch.randint(0, classes, (rows,))
    naive = torch.log(1 - logits.softmax(1)[torch.arange(rows), labels])
    torch.testing.assert_close(log_one_minus(logits, labels), naive, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_log_one_minus_stays_finite_with_huge_logits(size, dtype):
    logits = torch.tensor([[size, 0.0, -size]], dtype=dtype, requires_grad=True)
    for label in range(3):
        value = log_one_minus(logits, torch.tensor([label]))
        assert torch.isfinite(value).all()
        assert torch.isfinite(torch.autograd.grad(value.sum(), logits)[0]).all()


def test_mdd_equals_its_formula():
    mdd, batch = built(MDD(margin=3.0)), joint()
    source, target = (mdd.twin(part).softmax(1).detach() for part in batch.split(batch.embedding))
    pseudo_source, pseudo_target = (part.argmax(1) for part in batch.split(batch.logits))
    wanted = 0.0
    for p, y in zip(source, pseudo_source, strict=True):
        wanted -= 3.0 * math.log(p[y]) / len(source)
    for p, y in zip(target, pseudo_target, strict=True):
        wanted -= math.log(1 - p[y]) / len(target)
    assert mdd.losses(batch, Phase())["mdd"].item() == pytest.approx(wanted)
    assert set(batch.metrics) == {"mdd/agrees_on_source", "mdd/agrees_on_target"}


# ------------------------------------------------------------------------------------------ gradient routing


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_classifier_learns_nothing_from_the_adversarial_loss(name):
    classifier = nn.Linear(WIDTH, CLASSES).double()
    loss = loss_of(built(METHODS[name]()), joint(classifier=classifier))
    assert all(g is None for g in torch.autograd.grad(loss, list(classifier.parameters()), allow_unused=True))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_reversal_scales_what_reaches_the_embedding_and_nothing_else(name):
    method, batch = built(METHODS[name](**AT_ONCE)).eval(), joint()

    def gradients(weight):
        method.knobs = replace(method.knobs, weight=weight)
        return torch.autograd.grad(loss_of(method, batch), [batch.embedding, *method.parameters()], retain_graph=True)

    embedding_one, *own_one = gradients(1.0)
    embedding_third, *own_third = gradients(0.3)
    forward, *_ = gradients(-1.0)  # a reversal of −1 is no reversal
    torch.testing.assert_close(embedding_third, 0.3 * embedding_one)
    torch.testing.assert_close(own_third, own_one)  # D learns at full weight
    torch.testing.assert_close(embedding_one, -forward)


# ------------------------------------------------------------------------------------------- DANN and CDAN


def test_dann_is_binary_cross_entropy_with_both_domains_counting_alike():
    dann, batch = built(DANN(width=7)).eval(), joint(sources=2, targets=6)
    p = torch.sigmoid(dann.discriminator(batch.embedding)).squeeze(1)
    source, target = batch.split(p)
    wanted = (F.binary_cross_entropy(source, torch.ones_like(source)) + F.binary_cross_entropy(target, 0 * target)) / 2
    torch.testing.assert_close(dann.losses(batch, Phase())["dann"], wanted)


def test_cdan_reads_the_outer_product():
    cdan, batch = built(CDAN(width=7)).eval(), joint()
    p = batch.logits.softmax(1)
    outer = torch.stack([torch.outer(p[i], batch.embedding[i]).flatten() for i in range(len(p))])
    scores = cdan.discriminator(outer).squeeze(1)
    source, target = batch.split(scores)
    wanted = (F.softplus(-source).mean() + F.softplus(target).mean()) / 2
    torch.testing.assert_close(cdan.losses(batch, Phase())["cdan"], wanted)


def test_the_random_projection_keeps_inner_products_on_average():
    """⟨T(f,g), T(f',g')⟩ estimates ⟨f,f'⟩·⟨g,g'⟩, the inner product of the outer products."""
    torch.manual_seed(0)
    cdan = built(CDAN(widest_product=10, projection=20_000, width=4), width=16, classes=8)
    assert cdan.discriminator[0].in_features == 20_000
    f, g = torch.randn(2, 16).double(), torch.rand(2, 8).double()
    mapped = cdan._multilinear(f, g)
    assert (mapped[0] @ mapped[1]).item() == pytest.approx(((f[0] @ f[1]) * (g[0] @ g[1])).item(), abs=1.0)


def test_entropy_weights_have_mean_one_in_each_domain_and_favour_sure_samples():
    batch = joint(sources=4, targets=4)
    probability = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4] * 4, dtype=torch.float64)
    weights = _certainty(batch, probability)
    sure, flat = 1 + math.exp(0), 1 + math.exp(-math.log(4))
    mean = (sure + flat) / 2
    assert weights.tolist() == pytest.approx([sure / mean, flat / mean] * 4)


# ------------------------------------------------------------------------------------------- others, one by one


def test_self_training_is_cross_entropy_with_the_own_argmax():
    batch = joint()
    p = batch.target.logits.softmax(1).max(1).values
    wanted = -(0.1 + 0.4 * math.tanh(0.5)) * p.log().mean()
    torch.testing.assert_close(SelfTraining().losses(batch, Phase())["self_training"], wanted)


def test_coral_is_the_distance_of_covariances_entry_by_entry():
    batch, wanted = joint(sources=4, targets=6), 0.0
    covariances = []
    for side in (batch.source, batch.target):
        rows = side.logits.detach().numpy()
        centred = rows - rows.mean(0)
        covariances.append(centred.T @ centred / (len(rows) - 1))
    for i in range(CLASSES):
        for j in range(CLASSES):
            wanted += (covariances[0][i, j] - covariances[1][i, j]) ** 2 / (4 * CLASSES**2)
    assert CORAL(weight=2.0).losses(batch, Phase())["coral"].item() == pytest.approx(2 * wanted)


def test_coral_of_a_single_sample_has_no_covariance():
    batch = joint(sources=1, targets=6)
    rows = batch.target.logits.detach()
    centred = rows - rows.mean(0)
    wanted = (centred.T @ centred / 5).square().sum().item() / (4 * CLASSES**2)
    assert CORAL(weight=1.0).losses(batch, Phase())["coral"].item() == pytest.approx(wanted)


def test_bsp_is_the_largest_eigenvalues_of_each_domains_gram_matrix():
    batch = joint(sources=4, targets=6)
    wanted = 0.0
    for side in (batch.source, batch.target):
        gram = side.embedding.detach() @ side.embedding.detach().T
        wanted += torch.linalg.eigvalsh(gram)[-2:].sum().item() / len(gram)
    assert BSP(weight=0.5, k=2).losses(batch, Phase())["bsp"].item() == pytest.approx(0.5 * wanted, rel=1e-5)


def test_mcds_steps_have_the_papers_losses():
    mcd, batch = built(MCD(weight=3.0)), joint()
    second = mcd.second(batch.embedding)
    source, target = batch.split(second)
    p, q = batch.target.logits.softmax(1), target.softmax(1)
    apart = 3.0 * sum(abs(p[i, k] - q[i, k]) for i in range(5) for k in range(CLASSES)) / (5 * CLASSES)
    learn, part, meet = mcd.phases(0.0)
    own, other = (F.cross_entropy(logits, batch.labels) for logits in (batch.source.logits, source))
    torch.testing.assert_close(loss_of(mcd, batch, learn), other)  # C's own is there beside it
    torch.testing.assert_close(loss_of(mcd, batch, part), own + other - apart)
    torch.testing.assert_close(loss_of(mcd, batch, meet), apart)
    answer = mcd.predict(net(), SimpleNamespace(embedding=batch.embedding, logits=batch.logits))
    torch.testing.assert_close(answer, batch.logits + second)


def test_ima_masks_what_the_sources_batch_lacks_by_zero_and_reads_labels_before():
    ima, batch = built(ImA(margin=2.0, **AT_ONCE)), joint()
    batch.labels[:] = torch.tensor([0, 2, 2])
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    twin, labels = ima.twin(batch.embedding) * mask, batch.logits.argmax(1)
    wanted = 2 * F.cross_entropy(twin[:3], labels[:3]) - log_one_minus(twin[3:], labels[3:]).mean()
    torch.testing.assert_close(ima.losses(batch, Phase())["ima"], wanted)
    torch.testing.assert_close(ima.source_loss(batch), F.cross_entropy(batch.source.logits * mask, batch.labels))


@settings(max_examples=40)
@given(classes=st.integers(2, 7), batch=st.integers(1, 20), seed=st.integers(0, 99), step=st.integers(0, 50))
def test_class_aligned_batches_hold_the_same_classes_of_both_domains(classes, batch, seed, step):
    generator = torch.Generator().manual_seed(seed)
    both = [torch.cat([torch.arange(classes), torch.randint(classes, (30,), generator=generator)]) for _ in range(2)]
    samplers = [
        ClassAlignedSampler(lambda own=own: own, classes, batch, seed, domain) for domain, own in enumerate(both)
    ]
    shots = max(1, batch // classes)
    even = min(classes, batch // shots) * shots  # what is beyond fills up
    drawn = [labels[sampler.rows(step)[:even]] for labels, sampler in zip(both, samplers, strict=True)]
    assert len(samplers[0].rows(step)) == batch
    assert torch.equal(*drawn)
    assert set(drawn[0].bincount().tolist()) <= {0, shots}
    assert torch.equal(samplers[1].rows(step), samplers[1].rows(step))


def test_classes_without_samples_are_filled_up():
    rows = ClassAlignedSampler(lambda: torch.zeros(9, dtype=torch.int64), 4, 8, 0, 0).rows(3)
    assert len(rows) == 8
    assert len(set(rows[2:].tolist())) == 6  # random ones, each once


# ---------------------------------------------------------------------------------------------- the contract

TINY = {"network.bottleneck_width": 8, "network.classifier_width": 8, "network.dropout": 0.0}


def model_of(*methods, **changes):
    torch.manual_seed(0)
    recipe = Recipe().override({**TINY, "methods": list(methods), **changes})
    pictures = any(METHODS[name].pictures_only for name in methods)
    return AdaptationModel(recipe, torch.zeros(1, 16, 16) if pictures else torch.zeros(5), 3).double()


def step_of(model, progress=0.5, phase=None):
    torch.manual_seed(1)
    inputs, labels = torch.randn(8, *model.input_shape).double(), torch.randint(0, 3, (8,))
    return model(inputs, labels, inputs + 1, torch.arange(16), progress, phase or Phase())


def set_up(model):
    inputs, labels = torch.randn(16, *model.input_shape).double(), torch.arange(16) % 3
    model.setup(Domain("source", inputs, labels, ("a", "b", "c")), Domain("target", inputs + 1))
    return model


RUNNABLE = [name for name in METHODS if name not in ("saf", "pseudo_labels")]


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_method_trains_beside_saf_and_answers_for_the_target(name):
    riders = [] if "saf" in METHODS[name].excludes else ["saf"]
    model = set_up(model_of(name, *riders))
    for progress in (0.1, 0.9):
        for phase in model.phases(progress):
            output = step_of(model, progress, phase)
            output.total.backward()
            assert torch.isfinite(output.total)
            assert ("saf" in output.losses) == (phase.supervised and bool(riders))
        model.methods[name].refresh()
    for phase in model.phases(0.9):
        step_of(model, 0.9, phase).total.backward()
    assert all(p.grad is not None for p in model.methods[name].parameters() if p.requires_grad)
    assert model.eval().predict(torch.randn(6, *model.input_shape).double())[0].shape == (6, 3)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_method_tells_how_often_samples_go_through_the_network(name):
    model, counted = set_up(model_of(name)), []
    model.methods[name].refresh()
    model.bottleneck.linear.register_forward_hook(lambda *_: counted.append(1))
    for phase in model.phases(0.9):
        for _ in range(phase.times):
            step_of(model, 0.9, phase)
    assert len(counted) == METHODS[name].passes


def test_a_method_that_excludes_another_says_why():
    for name in RUNNABLE:
        for other, why in METHODS[name].excludes.items():
            with pytest.raises(SafdaError, match=f"methods: '{name}' and '{other}': {why}; leave one"):
                Recipe().override({"methods": [other, name]})
    assert "saf" in METHODS["adda"].excludes


def test_losses_of_several_methods_add_up():
    every = step_of(model_of("cdan", "bsp", "saf"))
    assert list(every.losses) == ["classification", "cdan", "bsp", "saf"]
    torch.testing.assert_close(every.total, sum(every.losses.values()))
    alone = step_of(model_of("cdan"))
    torch.testing.assert_close(every.losses["cdan"], alone.losses["cdan"])  # none knows of the others


def test_two_methods_cannot_both_lead(monkeypatch):
    monkeypatch.setattr(METHODS["dann"], "phases", lambda self, progress: (Phase("other"),))
    with pytest.raises(SafdaError, match="mcd and dann each want a say"):
        model_of("mcd", "dann")


def moved_by_phases(model):
    """Return by phase which parts its optimizer step moves."""
    optimizer, accelerator = _optimizer(model, model.recipe), make_accelerator(model.recipe, cpu=True)
    moved = {}
    for phase in model.phases(0.0):
        before = {name: value.clone() for name, value in model.named_parameters()}
        _optimizer_step(optimizer, model, step_of(model, phase=phase), phase, accelerator)
        after = dict(model.named_parameters())
        moved[phase.name] = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    return moved


def test_what_a_phase_does_not_train_stands_still():
    assert moved_by_phases(model_of("mcd")) == {
        "learn the source": {"bottleneck", "classifier", "methods"},
        "part": {"classifier", "methods"},  # momentum of the step before moves nothing else either
        "meet": {"bottleneck"},
    }


def parted(name):
    """A model in the last stage of its method."""
    model = set_up(model_of(name))
    model.methods[name].refresh()
    return model


@pytest.fixture
def entries(monkeypatch):
    """Leave the registry as it was."""
    len(METHODS)
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))


@pytest.mark.parametrize("name", ["mcd", "adda"])
def test_a_method_derived_from_one_with_phases_trains_its_own_parts(entries, name):
    register("mine")(type("Mine", (METHODS[name],), {}))
    moved = [moved_by_phases(model) for model in map(parted, ("mine", name))]
    assert moved[0] == moved[1]
    assert "methods" in moved[0][list(moved[0])[-2]]


def test_a_method_of_ones_own_is_handed_over_and_found_again_in_its_run(entries, tmp_path, files):
    @register("shift")
    class Shift(Method):
        """Match the means."""

        @dataclass(frozen=True)
        class Knobs:
            """One."""

            factor: float = safda.knobs.knob(1.0, "weight", low=0.0, high=9.0)

        def losses(self, batch, phase):
            distance = batch.source.embedding.mean(0) - batch.target.embedding.mean(0)
            return {"shift": self.knobs.factor * distance.square().sum()}

    with pytest.raises(SafdaError, match=r"shift: factor = 10\.0 is out of range"):
        Shift(factor=10.0)
    small = {**TINY, "steps": 6, "batch": 8, "cpu": True}
    adapted = safda.fit(*files, out=tmp_path / "run", methods=[Shift(factor=0.5), "saf"], **small)
    assert adapted.recipe.methods == ("shift", "saf")
    loaded = safda.Adapted.load(tmp_path / "run")
    assert loaded.recipe["shift"].factor == 0.5
    assert (loaded.predict(files[1]).logits == adapted.predict(files[1]).logits).all()
    del METHODS._entries["shift"]
    with pytest.raises(SafdaError, match="methods: 'shift' is unknown"):
        safda.Adapted.load(tmp_path / "run")


def test_a_name_is_taken_once(entries):
    with pytest.raises(SafdaError, match=r"there is a method 'mdd' already, safda\.methods\.mdd\.MDD"):
        register("mdd")(type("Other", (Method,), {}))


@pytest.fixture
def slow_registry(tmp_path, monkeypatch):
    """A registry whose home is slow to import, and cannot be while a file is missing; and that file."""
    home = tmp_path / "slow_home"
    home.mkdir()
    (home / "__init__.py").write_text(
        "from safda.registry import Registry\n\nPLANETS = Registry('planet', 'slow_home')\n"
    )
    (home / "planet.py").write_text(
        "import time\nfrom pathlib import Path\nfrom slow_home import PLANETS\n\ntime.sleep(0.2)\n"
        "Path(__file__).with_name('there').read_text()\nPLANETS.register('earth')(str)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("slow_home").PLANETS, home / "there"
    for name in [name for name in sys.modules if name.startswith("slow_home")]:
        del sys.modules[name]


def test_threads_that_look_up_first_wait_for_each_other(slow_registry):
    planets, there = slow_registry
    there.touch()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: "earth" in planets, range(4))) == [True] * 4


def test_an_import_that_failed_is_tried_again(slow_registry):
    planets, there = slow_registry
    with pytest.raises(FileNotFoundError):
        list(planets)
    there.touch()
    assert list(planets) == ["earth"]


def test_another_packages_method_comes_by_its_entry_point(tmp_path):
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "theirs.py").write_text(
        "from safda.methods import register\nfrom safda.methods.base import Method\n\n\n"
        '@register("theirs")\nclass Theirs(Method):\n    """Nothing."""\n'
    )
    information = tmp_path / "their_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    points = "[safda.methods]\ntheirs = their_package.theirs\nbroken = their_package.missing\n"
    (information / "entry_points.txt").write_text(points)
    code = "import safda.recipe as r; print(r.Recipe().override({'methods': ['theirs', 'saf']}).methods)"
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert ended.stdout == "('theirs', 'saf')\n"
    assert "the method 'broken' (their_package.missing): ModuleNotFoundError" in ended.stderr
