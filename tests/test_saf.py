"""SAF against a literal transcription of the paper's algorithm, pair by pair, in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from safda.methods.eta import BetaEta, ConstantEta, EtaKnobs, LearnedEta, make_eta
from safda.methods.saf import SAF, cross_entropy_divergence
from safda.methods.saf_method import SAFMethod, relative_entropy


def transcription(saf: SAF, features, classify, first, second):
    """Algorithm "SAF-mixup" and L_M, one pair at a time, in nothing but scalar-weighted sums."""
    s, s_eta = saf.eta.bottlenecks, saf.eta.estimator
    losses, etas = [], []
    mixes, labels = [], []
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        phi_1, phi_2 = features[i], features[j]
        if len(s) == 1:
            hidden = torch.relu(s[0](phi_1)) + torch.relu(s[0](phi_2))
        else:
            hidden = sum(torch.relu(layer((phi_1, phi_2)[n % 2])) for n, layer in enumerate(s))
        score = s_eta(hidden)
        if saf.eta.rectified:
            score = torch.relu(score)
        eta = 1 / (1 + torch.exp(-score))
        y_1, y_2 = (torch.softmax(classify(features)[k], 0).detach() for k in (i, j))
        mixes.append(eta * phi_1 + (1 - eta) * phi_2)
        labels.append(saf.label_scale * (eta * y_1 + (1 - eta) * y_2))
        etas.append(eta)
    for logits, y in zip(classify(torch.stack(mixes)), labels, strict=True):
        p = torch.exp(logits) / torch.exp(logits).sum()
        losses.append(-(y * torch.log(p)).sum())
    return sum(losses) / len(losses), torch.cat(etas)


def gradients(loss, *parts):
    tensors = [p for part in parts for p in (part.parameters() if isinstance(part, nn.Module) else [part])]
    return torch.autograd.grad(loss, tensors, allow_unused=True)


@settings(max_examples=40)
@given(
    rows=st.integers(2, 9),
    dim=st.integers(1, 5),
    width=st.integers(1, 4),
    classes=st.integers(2, 5),
    bottlenecks=st.sampled_from([1, 2, 4]),
    pairing=st.sampled_from(["random", "reversed"]),
    rectified=st.booleans(),
    label_scale=st.sampled_from([1.0, 2.0]),
    seed=st.integers(0, 1000),
)
def test_equals_the_algorithm_pair_by_pair(
    rows, dim, width, classes, bottlenecks, pairing, rectified, label_scale, seed
):
    torch.manual_seed(seed)
    eta = LearnedEta(dim, width, bottlenecks, rectified)
    saf = SAF(dim, eta=eta, pairing=pairing, label_scale=label_scale).double()
    classify = nn.Sequential(nn.Linear(dim, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, classes)).double().eval()
    features = torch.randn(rows, dim, dtype=torch.float64, requires_grad=True)

    out = saf(features, classify)
    loss, eta = transcription(saf, features, classify, out.first, out.second)

    torch.testing.assert_close(out.loss, loss)
    torch.testing.assert_close(out.eta, eta)
    for ours, literal in zip(
        gradients(out.loss, features, saf, classify), gradients(loss, features, saf, classify), strict=True
    ):
        torch.testing.assert_close(ours, literal)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 32])
def test_random_pairs_draw_every_sample_at_most_once(rows):
    out = SAF(4)(torch.randn(rows, 4), nn.Linear(4, 3))
    drawn = torch.cat([out.first, out.second]).tolist()
    assert len(out.first) == len(out.second) == rows // 2
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(range(rows))


def test_random_pairs_differ_between_calls():
    saf, features = SAF(4), torch.randn(32, 4)
    calls = [saf(features, nn.Linear(4, 3)).first.tolist() for _ in range(2)]
    assert calls[0] != calls[1]


def test_a_single_sample_has_no_partner_and_gives_a_zero_loss_with_zero_gradients():
    saf = SAF(4)
    out = saf(torch.randn(1, 4), nn.Linear(4, 3))
    assert out.loss.item() == 0
    out.loss.backward()
    assert all((p.grad == 0).all() for p in saf.parameters())


def test_reversed_pairs_mix_a_single_sample_with_itself():
    features, classify = torch.randn(1, 4), nn.Linear(4, 3)
    out = SAF(4, pairing="reversed")(features, classify)
    torch.testing.assert_close(out.logits, classify(features))


def test_eta_from_beta_has_its_moments_and_no_gradient():
    saf = SAF(2, eta=BetaEta(), pairing="reversed")
    out = saf(torch.randn(20_000, 2), nn.Linear(2, 3))
    assert not out.eta.requires_grad
    assert out.eta.mean().item() == pytest.approx(0.5, abs=0.02)
    assert out.eta.var().item() == pytest.approx(0.25 / (2 * 0.2 + 1), abs=0.01)  # of Beta(a, a)
    assert not list(saf.parameters())


def test_constant_eta():
    assert SAF(4, eta=ConstantEta())(torch.randn(6, 4), nn.Linear(4, 3)).eta.tolist() == pytest.approx([0.6] * 3)


def test_released_eta_is_never_below_one_half():
    assert (SAF(4, eta=LearnedEta(4, rectified=True))(torch.randn(64, 4), nn.Linear(4, 3)).eta >= 0.5).all()


def test_one_bottleneck_makes_eta_symmetric_and_two_do_not():
    features, classify = torch.randn(8, 4), nn.Linear(4, 3)
    for count, symmetric in ((1, True), (2, False)):
        saf = SAF(4, eta=LearnedEta(4, bottlenecks=count), pairing="reversed")
        eta = saf(features, classify).eta
        assert torch.allclose(eta, eta.flip(0)) is symmetric


@pytest.mark.parametrize("keep", ["certain", "uncertain"])
def test_only_certain_or_uncertain_samples_are_mixed(keep):
    classify, features = nn.Linear(4, 5), torch.randn(64, 4) * 6
    candidates = SAFMethod(keep=keep, threshold=0.4).candidates(classify(features))
    out = SAF(4)(features, classify, candidates=candidates)
    p = classify(features).softmax(1)
    entropy = -(p * p.log()).sum(1)
    certain = entropy <= 0.4 * math.log(5)
    wanted = certain if keep == "certain" else ~certain
    drawn = torch.cat([out.first, out.second])
    assert wanted[drawn].all()
    assert len(drawn) == wanted.sum() // 2 * 2 > 0


@pytest.mark.parametrize(("pairing", "elsewhere", "here"), [("random", 1, 0), ("random", 2, 3), ("reversed", 1, 3)])
def test_where_a_process_has_no_pair_none_mixes(monkeypatch, pairing, elsewhere, here):
    """Each would wait for it in a batch norm over all of them."""

    def least(values, op):
        assert op == torch.distributed.ReduceOp.MIN
        values.clamp_(max=elsewhere)

    method = SAFMethod(keep="certain", pairing=pairing)
    sure_of_three = torch.eye(6)[[0, 0, 1]] * 50
    logits = torch.cat([sure_of_three, torch.zeros(4, 6)])
    assert method.candidates(logits).tolist() == [0, 1, 2]
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.all_reduce", least)
    assert len(method.candidates(logits)) == here


def test_given_pseudo_labels_are_mixed_as_they_are():
    features, classify, given_labels = torch.randn(6, 4), nn.Linear(4, 3), torch.rand(6, 3)
    out = SAF(4, eta=ConstantEta(0.25))(features, classify, pseudo_labels=given_labels)
    for label, i, j in zip(out.labels, out.first.tolist(), out.second.tolist(), strict=True):
        torch.testing.assert_close(label, 0.25 * given_labels[i] + 0.75 * given_labels[j])


def test_eta_is_made_of_the_evidence_where_there_is_some_and_features_are_mixed_as_ever():
    class ItsFirstColumn(nn.Module):
        def forward(self, evidence, first, second):
            return evidence[first, :1]

    features, evidence, classify = torch.randn(6, 4), torch.rand(6, 2), nn.Linear(4, 3)
    out = SAF(4, eta=ItsFirstColumn())(features, classify, evidence=evidence)
    eta = evidence[out.first, 0]
    torch.testing.assert_close(out.eta, eta)
    mixes = eta.unsqueeze(1) * features[out.first] + (1 - eta).unsqueeze(1) * features[out.second]
    torch.testing.assert_close(out.logits, classify(mixes))


def test_mixing_an_affine_image_is_mixing_the_features():
    saf, linear, rest = SAF(4).double(), nn.Linear(4, 6).double(), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)).double()
    features = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for projected in (None, (linear(features), rest)):
        torch.manual_seed(1)
        out = saf(features, nn.Sequential(linear, rest), projected=projected)
        results.append([out.loss, *gradients(out.loss, features, saf, linear, rest)])
    torch.testing.assert_close(*results)


@settings(max_examples=30)
@given(rows=st.integers(1, 6), classes=st.integers(2, 7), seed=st.integers(0, 999))
def test_cross_entropy_divergence_is_torchs_cross_entropy_with_probabilities(rows, classes, seed):
    torch.manual_seed(seed)
    logits, labels = torch.randn(rows, classes) * 5, torch.rand(rows, classes).softmax(1)
    torch.testing.assert_close(cross_entropy_divergence(logits, labels), F.cross_entropy(logits, labels))


def test_relative_entropy_lies_between_a_sure_and_a_flat_prediction():
    values = relative_entropy(torch.tensor([[50.0, 0, 0], [0, 0, 0]]))
    assert values.tolist() == pytest.approx([0, 1], abs=1e-6)


def test_ascending_turns_only_the_gradient_of_m():
    features, classify = torch.randn(8, 4, requires_grad=True), nn.Linear(4, 3)
    down = SAF(4)
    up = copy.deepcopy(down)
    up.eta.ascend = True
    results = []
    for saf in (down, up):
        torch.manual_seed(3)
        loss = saf(features, classify).loss
        own, others = list(saf.parameters()), [*classify.parameters(), features]
        both = torch.autograd.grad(loss, own + others)
        results.append((loss, both[: len(own)], both[len(own) :]))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], tuple(-g for g in results[1][1]))
    torch.testing.assert_close(results[0][2], results[1][2])


@pytest.mark.parametrize(
    ("source", "kind"), [("learned", LearnedEta), ("beta", BetaEta), ("constant", ConstantEta)], ids=str
)
def test_knobs_make_each_source_of_eta(source, kind):
    made = make_eta(
        5, EtaKnobs(source=source, width=7, bottlenecks=3, rectified=True, ascend=True, beta=0.3, constant=0.1)
    )
    assert isinstance(made, kind)
    if source == "learned":
        assert (len(made.bottlenecks), made.estimator.in_features, made.rectified, made.ascend) == (3, 7, True, True)
    assert getattr(made, source, 0.0) == {"learned": 0.0, "beta": 0.3, "constant": 0.1}[source]


def test_an_unknown_pairing_is_refused():
    with pytest.raises(ValueError, match="must be random or reversed"):
        SAF(4, pairing="x")
