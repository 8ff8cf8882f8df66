"""The methods: values against naive forms, and where each gradient goes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from safda import recipe
from safda.adversaries import ADVERSARIES, CDAN, DANN, MDD, Adversary, AdversaryOutput, JointBatch, Site, reverse
from safda.adversaries.mdd import log_one_minus

WIDTH, CLASSES = 6, 4


def site() -> Site:
    return Site(WIDTH, CLASSES, lambda: nn.Linear(WIDTH, CLASSES).double(), lambda: nn.Linear(5, WIDTH).double())


def joint(sources=3, targets=5, classifier=None):
    embedding = torch.randn(sources + targets, WIDTH, dtype=torch.float64, requires_grad=True)
    classifier = classifier or nn.Linear(WIDTH, CLASSES).double()
    return JointBatch(embedding, embedding, classifier(embedding), torch.randint(0, CLASSES, (sources,)))


# ------------------------------------------------------------------------------------------------------ MDD


@settings(max_examples=50, deadline=None)
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
    mdd, batch = MDD(site(), margin=3.0), joint()
    source, target = (mdd.twin(part).softmax(1).detach() for part in batch.split(batch.embedding))
    pseudo_source, pseudo_target = (part.argmax(1) for part in batch.split(batch.logits))
    wanted = 0.0
    for p, y in zip(source, pseudo_source, strict=True):
        wanted -= 3.0 * math.log(p[y]) / len(source)
    for p, y in zip(target, pseudo_target, strict=True):
        wanted -= math.log(1 - p[y]) / len(target)
    assert mdd(batch, 0.1, 0.5).losses["adversary"].item() == pytest.approx(wanted)


# ------------------------------------------------------------------------------------------ gradient routing


@pytest.mark.parametrize("name", [n for n in ADVERSARIES if n != "none"])
def test_the_classifier_learns_nothing_from_the_adversarial_loss(name):
    classifier = nn.Linear(WIDTH, CLASSES).double()
    adversary = ADVERSARIES[name](site(), **recipe.ADVERSARIES[name]().own()).double()
    loss = sum(adversary(joint(classifier=classifier), 0.1, 0.5).losses.values())
    assert all(g is None for g in torch.autograd.grad(loss, list(classifier.parameters()), allow_unused=True))


@pytest.mark.parametrize("name", [n for n in ADVERSARIES if n != "none"])
def test_the_reversal_scales_what_reaches_the_embedding_and_nothing_else(name):
    adversary = ADVERSARIES[name](site(), **recipe.ADVERSARIES[name]().own()).double().eval()
    batch = joint()

    def gradients(weight):
        loss = sum(adversary(batch, weight, 0.5).losses.values())
        return torch.autograd.grad(loss, [batch.embedding, *adversary.parameters()], retain_graph=True)

    embedding_one, *own_one = gradients(1.0)
    embedding_third, *own_third = gradients(0.3)
    forward, *_ = gradients(-1.0)  # a reversal of −1 is no reversal
    torch.testing.assert_close(embedding_third, 0.3 * embedding_one)
    torch.testing.assert_close(own_third, own_one)  # D learns at full weight
    torch.testing.assert_close(embedding_one, -forward)


# ------------------------------------------------------------------------------------------- DANN and CDAN


def test_dann_is_binary_cross_entropy_with_both_domains_counting_alike():
    dann, batch = DANN(site(), width=7).double().eval(), joint(sources=2, targets=6)
    p = torch.sigmoid(dann.discriminator(batch.embedding)).squeeze(1)
    source, target = batch.split(p)
    wanted = (F.binary_cross_entropy(source, torch.ones_like(source)) + F.binary_cross_entropy(target, 0 * target)) / 2
    torch.testing.assert_close(dann(batch, 1.0, 0.5).losses["adversary"], wanted)


def test_cdan_reads_the_outer_product():
    cdan, batch = CDAN(site(), width=7).double().eval(), joint()
    p = batch.logits.softmax(1)
    outer = torch.stack([torch.outer(p[i], batch.embedding[i]).flatten() for i in range(len(p))])
    scores = cdan.discriminator(outer).squeeze(1)
    source, target = batch.split(scores)
    wanted = (F.softplus(-source).mean() + F.softplus(target).mean()) / 2
    torch.testing.assert_close(cdan(batch, 1.0, 0.5).losses["adversary"], wanted)


def test_the_random_projection_keeps_inner_products_on_average():
    """⟨T(f,g), T(f',g')⟩ estimates ⟨f,f'⟩·⟨g,g'⟩, the inner product of the outer products."""
    torch.manual_seed(0)
    wide = Site(16, 8, lambda: nn.Linear(16, 8), lambda: nn.Linear(5, 16))
    cdan = CDAN(wide, widest_product=10, projection=20_000, width=4)
    assert cdan.discriminator[0].in_features == 20_000
    f, g = torch.randn(2, 16), torch.rand(2, 8)
    mapped = cdan._multilinear(f, g)
    assert (mapped[0] @ mapped[1]).item() == pytest.approx(((f[0] @ f[1]) * (g[0] @ g[1])).item(), abs=1.0)


def test_entropy_weights_have_mean_one_in_each_domain_and_favour_sure_samples():
    batch = joint(sources=4, targets=4)
    probability = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4] * 4, dtype=torch.float64)
    weights = CDAN._certainty(batch, probability)
    sure, flat = 1 + math.exp(0), 1 + math.exp(-math.log(4))
    mean = (sure + flat) / 2
    assert weights.tolist() == pytest.approx([sure / mean, flat / mean] * 4)


# ---------------------------------------------------------------------------------------------- the contract


def test_registry_and_recipe_name_the_same_methods():
    assert set(ADVERSARIES) == set(recipe.ADVERSARIES)


class MCD(Adversary):
    """Two further classifiers that B brings together and they themselves drive apart."""

    def __init__(self, site):
        super().__init__()
        self.pair = nn.ModuleList(site.make_classifier() for _ in range(2))

    def forward(self, batch, weight, progress):
        source, target = batch.split(batch.embedding)
        own = sum(F.cross_entropy(c(source), batch.labels) for c in self.pair)
        apart = (
            self.pair[0](reverse(target, weight)).softmax(1) - self.pair[1](reverse(target, weight)).softmax(1)
        ).abs()
        return AdversaryOutput({"classifiers": own, "discrepancy": -apart.mean()})

    def predict(self, features, embedding, logits):
        return self.pair[0](embedding) + self.pair[1](embedding)


class MADA(Adversary):
    """One discriminator a class, weighted by the prediction."""

    def __init__(self, site):
        super().__init__()
        self.discriminators = nn.ModuleList(nn.Linear(site.embedding_dim, 1).double() for _ in range(site.classes))

    def forward(self, batch, weight, progress):
        rows = reverse(batch.embedding, weight)
        p = batch.logits.detach().softmax(1)
        domain = torch.cat([torch.ones(len(part), 1) * i for i, part in enumerate(batch.split(p))]).to(p)
        losses = [
            F.binary_cross_entropy_with_logits(d(p[:, [k]] * rows), domain) for k, d in enumerate(self.discriminators)
        ]
        return AdversaryOutput({"adversary": sum(losses) / len(losses)})


class DANWithBSP(Adversary):
    """A kernel distance without any adversary, and a spectral penalty."""

    def __init__(self, site):
        super().__init__()

    def forward(self, batch, weight, progress):
        source, target = batch.split(batch.embedding)
        kernel = lambda a, b: torch.exp(-torch.cdist(a, b).square()).mean()  # noqa: E731
        distance = kernel(source, source) + kernel(target, target) - 2 * kernel(source, target)
        spectral = sum(torch.linalg.svdvals(part)[0].square() for part in (source, target))
        return AdversaryOutput({"mmd": weight * distance, "spectral": 1e-4 * spectral})


class ADDA(Adversary):
    """Two stages: first nothing, then a target bottleneck of its own that learns to look like the source's."""

    def __init__(self, site):
        super().__init__()
        self.bottleneck = site.make_bottleneck()
        self.discriminator = nn.Linear(site.embedding_dim, 1).double()

    def forward(self, batch, weight, progress):
        if progress < 0.5:
            return AdversaryOutput({})
        source = batch.split(batch.embedding)[0].detach()
        target = self.bottleneck(batch.split(batch.features)[1])
        scores = self.discriminator(torch.cat([source, reverse(target, weight)]))
        domain = torch.cat([torch.ones(len(source), 1), torch.zeros(len(target), 1)]).to(scores)
        return AdversaryOutput({"adversary": F.binary_cross_entropy_with_logits(scores, domain)})

    def predict(self, features, embedding, logits):
        return logits * 0 + self.bottleneck(features).sum(1, keepdim=True)


@pytest.mark.parametrize("method", [MCD, MADA, DANWithBSP, ADDA])
def test_the_contract_has_room_for_methods_to_come(method, monkeypatch):
    """Each registers with one line, trains inside the model beside SAF, and answers for the target."""
    from safda.model import AdaptationModel

    monkeypatch.setitem(ADVERSARIES, "none", method)
    tiny = {"network.bottleneck_width": 8, "network.classifier_width": 8, "saf.width": 4, "adversary.name": "none"}
    model = AdaptationModel(recipe.Recipe().override(tiny), torch.zeros(5, dtype=torch.float64), 3).double()
    inputs, labels = torch.randn(6, 5).double(), torch.randint(0, 3, (6,))
    for progress in (0.1, 0.9):
        output = model(inputs, labels, inputs + 1, progress)
        output.total.backward()
        assert torch.isfinite(output.total)
        assert "saf" in output.losses
    assert len(output.losses) > 2  # by the end, the method's own loss is there
    assert all(p.grad is not None for p in model.adversary.parameters())
    assert model.eval().predict(inputs)[0].shape == (6, 3)
