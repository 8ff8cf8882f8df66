"""The whole network: the fast path through it equals the plain one, and gradients go where the paper sends them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from safda.model import AdaptationModel
from safda.nn.backbones import make_backbone
from safda.nn.heads import Bottleneck, Dropout, FeatureScaling
from safda.nn.norm import SynchronisedBatchNorm, synchronise_batch_norm
from safda.recipe import NetworkKnobs, Recipe
from safda.schedules import ramp

DIM, CLASSES = 7, 3
TINY = {"network.bottleneck_width": 8, "network.classifier_width": 9, "network.dropout": 0.0}


def make(**changes):
    torch.manual_seed(0)
    recipe = Recipe().override({**TINY, **changes})
    model = AdaptationModel(recipe, torch.zeros(DIM), CLASSES).double()
    source, target = torch.randn(6, DIM).double(), torch.randn(5, DIM).double() + 1
    return model, source, torch.randint(0, CLASSES, (6,)), target


def step(model, source, labels, target, progress):
    return model(source, labels, target, torch.arange(len(source) + len(target)), progress)


def test_a_step_equals_the_papers_three_losses_computed_plainly():
    model, source, labels, target = make()
    torch.manual_seed(1)
    output = step(model, source, labels, target, 0.3)

    plain, *_ = make()
    classify = nn.Sequential(plain.bottleneck, plain.classifier)
    embedding = plain.bottleneck(torch.cat([source, target]))  # one pass of both, one set of batch statistics
    logits = plain.classifier(embedding)
    twin = plain.methods["mdd"].twin(embedding)
    source_twin, target_twin = twin[:6], twin[6:].softmax(1)
    pseudo = logits.argmax(1)
    l_d = 4 * F.cross_entropy(source_twin, pseudo[:6]) - torch.log(1 - target_twin[torch.arange(5), pseudo[6:]]).mean()
    torch.manual_seed(1)
    mixed = plain.methods["saf"].saf(target, classify, pseudo_labels=logits[6:].softmax(1).detach())
    torch.testing.assert_close(output.losses["classification"], F.cross_entropy(logits[:6], labels))
    torch.testing.assert_close(output.losses["mdd"], l_d)
    torch.testing.assert_close(output.losses["saf"], ramp(0.3, 0.1, 5.0) * mixed.loss)
    torch.testing.assert_close(output.metrics["saf/eta_mean"], mixed.eta.mean())
    torch.testing.assert_close(output.total, sum(output.losses.values()))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())  # batch norm saw the same rows


def gradient_of(model, loss):
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    parts = [name.removeprefix("methods.").split(".")[0] for name in names]
    return {part for part, g in zip(parts, found, strict=True) if g is not None and g.abs().sum() > 0}


def test_each_loss_reaches_the_parts_that_the_paper_names():
    model, source, labels, target = make(**{"network.backbone": "small-cnn"})
    model.backbone = nn.Linear(DIM, DIM).double()  # an F with weights
    output = step(model, source, labels, target, 0.3)
    assert gradient_of(model, output.losses["classification"]) == {"backbone", "bottleneck", "classifier"}
    assert gradient_of(model, output.losses["mdd"]) == {"backbone", "bottleneck", "mdd"}
    assert gradient_of(model, output.losses["saf"]) == {"backbone", "bottleneck", "classifier", "saf"}


@pytest.mark.parametrize(
    "changes",
    [
        {"saf.mix_at": "bottleneck"},
        {"saf.eta.source": "beta"},
        {"saf.eta.source": "constant"},
        {"saf.eta.bottlenecks": 1},
        {"saf.eta.bottlenecks": 4},
        {"saf.feed_source": True},
        {"saf.feed_source": True, "saf.mix_at": "bottleneck"},
        {"saf.keep": "certain", "saf.threshold": 1.0},
        {"saf.keep": "uncertain", "saf.threshold": 0.0},
        {"saf.pairing": "reversed", "saf.eta.rectified": True, "pseudo_labels.kind": "hard", "saf.label_scale": 2.0},
    ],
)
@pytest.mark.parametrize("lead", [["mdd"], ["dann"], ["cdan"], ["cdan+e"], ["mcd"], []], ids=str)
def test_every_ablation_goes_with_every_method(changes, lead, monkeypatch):
    model, source, labels, target = make(**{"methods": [*lead, "saf"]}, **changes)
    pairs = []
    draw = model.methods["saf"].saf.draw_pairs
    monkeypatch.setattr(model.methods["saf"].saf, "draw_pairs", lambda rows: pairs.append(draw(rows)) or pairs[-1])
    output = step(model, source, labels, target, 0.5)
    output.total.backward()
    assert torch.isfinite(output.total)
    wanted = {"reversed": 5, "random": 11 // 2 if "saf.feed_source" in changes else 2}
    assert len(pairs[0][0]) == wanted[changes.get("saf.pairing", "random")]


@pytest.mark.parametrize("targets", [1, 2, 3])
def test_tiny_target_batches_are_defined(targets):
    model, source, labels, target = make()
    output = step(model, source, labels, target[:targets], 0.5)
    output.total.backward()
    assert torch.isfinite(output.total)
    assert ("saf/eta_mean" in output.metrics) == (targets > 1)


def test_per_domain_norm_is_two_batch_norms_that_share_scale_and_offset():
    bottleneck = Bottleneck(DIM, 8, dropout=0.0, per_domain=True).double()
    nn.init.normal_(bottleneck.norm.weight)
    nn.init.normal_(bottleneck.norm.bias)
    rows = torch.randn(11, 8).double()
    finished = bottleneck.finish(rows, sources=6)
    for part in (slice(0, 6), slice(6, 11)):
        plain = nn.BatchNorm1d(8).double()
        plain.weight, plain.bias = bottleneck.norm.weight, bottleneck.norm.bias
        torch.testing.assert_close(finished[part], plain(rows[part]).relu())
    torch.testing.assert_close(bottleneck.norm.running_mean, plain.running_mean)  # the target's, the last part
    torch.testing.assert_close(bottleneck.norm.running_var, plain.running_var)


@pytest.mark.parametrize(
    "changes",
    [{"methods": ["e-mixnet"]}, {"methods": ["dmrl"], "dmrl.target_mix": 0.0}, {"saf.feed_source": True}],
    ids=["e-mixnet", "dmrl", "saf"],
)
def test_mixes_of_both_domains_leave_the_targets_statistics_alone(changes):
    """What is kept are the target's own, and of DMRL also of its mixes within the target."""
    norms = []
    for factor in (1, 50):
        model, source, labels, target = make(**{"network.norm": "per-domain", **changes})
        step(model, factor * source, labels, target, 0.5)
        norms.append(model.bottleneck.norm)
    torch.testing.assert_close(norms[0].running_mean, norms[1].running_mean)
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var)


@pytest.mark.parametrize("sources", [1, 2])
def test_per_domain_norm_takes_a_single_row_of_a_domain(sources):
    bottleneck = Bottleneck(DIM, 8, dropout=0.0, per_domain=True)
    assert torch.isfinite(bottleneck.finish(torch.randn(3, 8), sources)).all()


def test_centred_features_are_centred_unit_rows_of_unit_variance():
    rows = torch.randn(50, DIM).double() * 7 + 3
    centred = FeatureScaling(DIM).double()
    centred.learn(rows.split(20), rows)
    unit = rows / rows.norm(dim=1, keepdim=True)
    torch.testing.assert_close(centred(rows), (unit - unit.mean(0)) / unit.var(0, correction=0).mean().sqrt())


def test_standardised_features_are_scikit_learns_and_a_constant_dimension_is_nothing():
    rows = torch.randn(50, DIM).double() * torch.logspace(-3, 4, DIM).double() + 5
    rows[:, 2] = 5
    standardised = FeatureScaling(DIM, "standardised").double()
    standardised.learn(rows.split(20), rows)
    expected = torch.from_numpy(StandardScaler().fit_transform(rows.numpy()))
    torch.testing.assert_close(standardised(rows), expected.where(torch.arange(DIM) != 2, 0.0), atol=1e-6, rtol=1e-6)


def test_rooted_features_are_signed_square_roots_of_length_one_centred():
    rows = torch.randn(50, DIM, dtype=torch.float64) ** 3
    rooted = FeatureScaling(DIM, "rooted").double()
    rooted.learn(rows.split(20), rows)
    roots = np.sign(rows.numpy()) * np.abs(rows.numpy()) ** 0.5
    unit = roots / np.sqrt(np.abs(rows.numpy()).sum(1, keepdims=True))
    expected = (unit - unit.mean(0)) / np.sqrt(unit.var(0).mean())
    np.testing.assert_allclose(rooted(rows).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["as-is", "centred", "standardised"])
def test_principal_components_keep_the_distances_that_most_of_the_variance_makes(kind):
    rows = torch.randn(60, 3) @ torch.randn(3, 9) + 2  # in four directions, the mean's among them
    whole, turned = FeatureScaling(9, kind), FeatureScaling(9, kind, components=4)
    for scaling in (whole, turned):
        scaling.learn(rows.split(20), rows)
    assert turned(rows).shape == (60, 4)
    torch.testing.assert_close(torch.pdist(turned(rows)), torch.pdist(whole(rows)), atol=1e-3, rtol=1e-3)


def test_with_fewer_rows_than_components_the_rest_is_nothing():
    rows = torch.randn(4, 9)
    turned = FeatureScaling(9, "standardised", components=6)
    turned.learn([rows], rows)
    assert not turned(rows)[:, 4:].any()


def test_without_saf_there_is_none():
    model, source, labels, target = make(**{"methods": ["mdd"]})
    output = step(model, source, labels, target, 0.5)
    assert list(model.methods) == ["mdd"]
    assert set(output.losses) == {"classification", "mdd"}


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    for p in (0.5, 0.2):
        rows = Dropout(p)(torch.ones(400, 1001))
        assert (rows == 0).float().mean().item() == pytest.approx(p, abs=0.005)
        assert rows.mean().item() == pytest.approx(1, abs=0.01)
        assert rows.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    untouched = torch.randn(3, 5)
    assert Dropout(0.5).eval()(untouched) is untouched


def test_dropout_leaves_entries_independent():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(4000, 8)) > 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlation.abs().max() < 0.07


def test_a_bottleneck_takes_a_single_row_in_training():
    bottleneck = Bottleneck(4, 6, 0.0)
    row = torch.randn(1, 4)
    trained, before = bottleneck(row), bottleneck.norm.running_mean.clone()
    torch.testing.assert_close(trained, bottleneck.eval()(row))
    torch.testing.assert_close(bottleneck.norm.running_mean, before)


def test_a_synchronised_norm_in_one_process_is_the_plain_one():
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    inputs = torch.randn(4, 1, 5, 5)
    wanted = plain(inputs)
    plain[1].reset_running_stats()
    synchronised = synchronise_batch_norm(plain, torch.device("cpu"))
    assert isinstance(synchronised[1], SynchronisedBatchNorm)
    torch.testing.assert_close(synchronised(inputs), wanted)


@pytest.mark.parametrize(("plain", "shape"), [(nn.BatchNorm1d, (64, 3)), (nn.BatchNorm2d, (16, 3, 2, 2))])
def test_a_synchronised_norm_keeps_its_digits_far_from_zero(monkeypatch, plain, shape):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda total: total.mul_(2))  # the other one has the same rows
    rows = 1000 + torch.randn(shape)
    weights = torch.randn(shape)
    norms = SynchronisedBatchNorm(3), plain(3).double()
    both = rows.clone().requires_grad_(), torch.cat([rows, rows]).double().requires_grad_()
    ours, wanted = norms[0](both[0]), norms[1](both[1])
    (ours * weights).sum().backward()
    (wanted * torch.cat([weights, weights]).double()).sum().backward()
    close = {"rtol": 1e-3, "atol": 1e-3, "check_dtype": False}
    torch.testing.assert_close(ours, wanted[: len(rows)], **close)
    torch.testing.assert_close(both[0].grad, both[1].grad[: len(rows)], **close)
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var, **close)


def test_a_timm_backbone_is_made_by_name_and_a_wrong_name_is_told():
    from safda.errors import SafdaError

    backbone, dim = make_backbone(NetworkKnobs(backbone="resnet10t"), torch.zeros(3, 32, 32))
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, dim)
    with pytest.raises(SafdaError, match="'resnet10x'"):
        make_backbone(NetworkKnobs(backbone="resnet10x"), torch.zeros(3, 32, 32))
