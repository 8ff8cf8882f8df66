"""A search that never sees a target label."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from safda import tuning
from safda.classifier import Adapted
from safda.cli import main
from safda.data import load_domain
from safda.errors import SafdaError
from safda.evaluation.scores import SCORES, Outputs, information
from safda.io import disk_errors
from safda.recipe import Recipe, load_recipe, walk
from safda.tuning import tune
from tests.conftest import TINY, blobs
from tests.test_training import Killed, killed_at

pytest.importorskip("optuna")
RECIPE = Recipe().override({**TINY, "steps": 5})


def test_a_search_stays_in_the_declared_ranges_and_goes_on(files, tmp_path, capsys):
    domains = [load_domain(file) for file in files]
    lines = []
    tune(*domains, RECIPE, tmp_path, trials=2, log=lines.append, cpu=True)
    best = tune(*domains, RECIPE, tmp_path, trials=3, log=lines.append, cpu=True)
    assert [line.split(":")[0] for line in lines] == ["trial 0", "trial 1", "trial 2"]
    assert tune(*domains, RECIPE, tmp_path, trials=3, log=lines.append, cpu=True) == best
    assert len(lines) == 3
    assert load_recipe(tmp_path / "best.toml") == best
    searched = {path: (knob.search, value) for path, knob, value in walk(best) if knob.search}
    assert {"optimizer.lr", "mdd.margin", "saf.weight"} <= set(searched)
    for (low, high, _), value in searched.values():
        assert low <= value <= high
    assert best.steps == 5


def test_target_labels_make_no_difference(files, tmp_path):
    features, labels = blobs(1, 0.7)
    rng = np.random.default_rng(0)
    found = []
    for name, given in (("right", labels), ("wrong", rng.permutation(labels))):
        np.savez(tmp_path / f"{name}.npz", features=features, labels=given)
        target = load_domain(tmp_path / f"{name}.npz")
        found.append(tune(load_domain(files[0]), target, RECIPE, tmp_path / name, trials=2, cpu=True))
    assert found[0] == found[1]


def test_machines_share_a_study_through_a_database(files, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    words = [str(file) for file in files] + [
        word for k, v in TINY.items() for word in (f"--{k.replace('_', '-')}", str(v))
    ]
    for machine, trials in (("one", 1), ("two", 2)):
        options = ["-o", str(tmp_path / machine), "--storage", url, "--trials", str(trials), "--steps", "3", "--cpu"]
        assert main(["tune", *words, *options]) == 0
        out, err = capsys.readouterr()
        assert err.count("trial ") == 1
        assert json.loads(out) == {"recipe": str(tmp_path / machine / "best.toml")}


@pytest.fixture
def untrained(monkeypatch):
    """Trials that train nothing: their score is their learning rate. It returns the knobs that were tried."""
    tried = []

    def value(search, number, recipe):
        tried.append((number, recipe.optimizer.lr))
        return recipe.optimizer.lr

    monkeypatch.setattr(tuning._Search, "_value", value)
    return tried


def trials_in(folder):
    import optuna

    (name,) = optuna.get_all_study_names(url := f"sqlite:///{folder / 'study.db'}")
    return optuna.load_study(study_name=name, storage=url).trials


def test_a_study_is_of_its_data_its_recipe_and_its_score(files, tmp_path, untrained):
    source, target = (load_domain(file) for file in files)
    other = load_domain(blobs(5, 0.7)[0])
    for domains, recipe, score in (
        ((source, target), RECIPE, "information"),
        ((source, other), RECIPE, "information"),
        ((source, target), RECIPE.override({"batch": 4}), "information"),
        ((source, target), RECIPE, "entropy"),
        ((source, target), RECIPE, "information"),  # again: nothing is left to be made
    ):
        tune(*domains, recipe, tmp_path, trials=2, score=score)
    assert [number for number, _ in untrained] == [0, 1] * 4


def test_no_point_is_tried_twice_by_a_study_that_goes_on_nor_another_than_at_once(files, tmp_path, untrained):
    domains = [load_domain(file) for file in files]
    for trials in (1, 3, 4):
        tune(*domains, RECIPE, tmp_path / "often", trials=trials)
    often = untrained.copy()
    assert [number for number, _ in often] == [0, 1, 2, 3]
    assert len({lr for _, lr in often}) == 4
    untrained.clear()
    tune(*domains, RECIPE, tmp_path / "once", trials=4)
    assert untrained == often


def test_many_machines_make_as_many_trials_as_were_asked_for(files, tmp_path, untrained, monkeypatch):
    domains = [load_domain(file) for file in files]
    url, lines, plain = f"sqlite:///{tmp_path / 'shared.db'}", [], tuning._Search._value

    def meanwhile(search, number, recipe):  # while a first machine makes its first trial, a second comes and goes
        if number == 0:
            tune(*domains, RECIPE, tmp_path / "two", trials=4, storage=url, log=lines.append)
        return plain(search, number, recipe)

    monkeypatch.setattr(tuning._Search, "_value", meanwhile)
    tune(*domains, RECIPE, tmp_path / "one", trials=4, storage=url, log=lines.append)
    assert sorted(number for number, _ in untrained) == [0, 1, 2, 3]
    assert len({lr for _, lr in untrained}) == 4
    assert "1 of 4 are being made elsewhere" in lines[3]


def test_whoever_asks_for_the_last_trial_too_late_makes_none(files, tmp_path, untrained, monkeypatch):
    import optuna

    domains = [load_domain(file) for file in files]
    url, ask = f"sqlite:///{tmp_path / 'study.db'}", optuna.Study.ask

    def late(study):
        with monkeypatch.context() as patch:
            patch.setattr(optuna.Study, "ask", ask)
            tune(*domains, RECIPE, tmp_path / "two", trials=2, storage=url)  # between a look and a question
        return ask(study)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "ask", late)
        tune(*domains, RECIPE, tmp_path / "one", trials=2, storage=url)
    assert [number for number, _ in untrained] == [0, 1]
    tune(*domains, RECIPE, tmp_path / "one", trials=3, storage=url)
    assert [number for number, _ in untrained] == [0, 1, 3]  # the one that came too late does not count


def test_with_the_study_gone_no_score_is_credited_to_other_knobs(files, tmp_path):
    import optuna

    domains = [load_domain(file) for file in files]
    tune(*domains, RECIPE, tmp_path, trials=1, cpu=True)
    (name,) = optuna.get_all_study_names(url := f"sqlite:///{tmp_path / 'study.db'}")
    (tmp_path / "study.db").unlink()
    optuna.create_study(study_name=name, storage=url, direction="maximize").enqueue_trial({"optimizer.lr": 0.011})
    best = tune(*domains, RECIPE, tmp_path, trials=1, cpu=True)
    assert best.optimizer.lr == 0.011
    assert len(list((tmp_path / "trials").glob("0000-*"))) == 2
    (trial,) = trials_in(tmp_path)
    (run,) = (run for run in (tmp_path / "trials").glob("0000-*") if load_recipe(run / "recipe.toml") == best)
    adapted = Adapted.load(run)
    assert trial.value == information(Outputs.of(adapted, domains[0], adapted.predict(domains[1])))


def test_a_trial_that_was_killed_goes_on_where_it_was(files, tmp_path, monkeypatch):
    domains, lines = [load_domain(file) for file in files], []
    whole = tune(*domains, RECIPE, tmp_path / "whole", trials=2, log=lines.append, cpu=True)
    plain = tuning.completed
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "completed", lambda *given, **more: plain(*given, **more, callback=killed_at(3)))
        with pytest.raises(Killed):
            tune(*domains, RECIPE, tmp_path / "cut", trials=2, cpu=True)
    seen = []
    again = tune(*domains, RECIPE, tmp_path / "cut", trials=2, log=seen.append, cpu=True)
    assert seen == lines
    assert again == whole
    assert len(trials_in(tmp_path / "cut")) == 2


def test_why_trials_failed_is_told_then_and_later(files, tmp_path, monkeypatch):
    def diverges(search, number, recipe):
        raise SafdaError(f"the mdd loss is not finite at step {number}")

    domains, lines = [load_domain(file) for file in files], []
    monkeypatch.setattr(tuning._Search, "_value", diverges)
    for _ in range(2):
        with pytest.raises(SafdaError, match="none of 2 trials has finished; trial 0 failed: the mdd loss is not fin"):
            tune(*domains, RECIPE, tmp_path, trials=2, log=lines.append)
    assert len(lines) == 2
    assert lines[1].startswith("trial 1: failed with network.dropout = ")
    assert lines[1].endswith(": the mdd loss is not finite at step 1")


def test_a_disk_that_is_full_fails_no_trial(files, tmp_path, monkeypatch, untrained):
    def full(search, number, recipe):
        with disk_errors(tmp_path):
            raise OSError(28, "No space left on device")

    domains = [load_domain(file) for file in files]
    with monkeypatch.context() as patch:
        patch.setattr(tuning._Search, "_value", full)
        with pytest.raises(SafdaError, match="No space left"):
            tune(*domains, RECIPE, tmp_path, trials=2)
    tune(*domains, RECIPE, tmp_path, trials=2)
    assert [number for number, _ in untrained] == [0, 1]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nope", "--storage nope: no study can be kept there: Could not parse"),
        ("postgresql://u:SECRET@localhost/x", "--storage postgresql://…@localhost/x: no study can be kept there"),
        ("sqlite:////nonexist/dir/x.db", "unable to open database file"),
        ("redis://localhost", "RedisStorage is removed"),
        ("GARBAGE", "no study can be kept there"),
    ],
)
def test_a_database_that_cannot_be_used_is_told_in_one_line_without_its_password(files, tmp_path, url, said):
    domains = [load_domain(file) for file in files]
    (tmp_path / "bad.db").write_bytes(b"not a database" * 100)
    with pytest.raises(SafdaError) as caught:
        tune(*domains, RECIPE, tmp_path, trials=1, storage=url.replace("GARBAGE", f"sqlite:///{tmp_path}/bad.db"))
    assert said in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_what_is_wrong_is_told(files, tmp_path):
    domains = [load_domain(file) for file in files]
    with pytest.raises(SafdaError, match="did you mean 'entropy'"):
        tune(*domains, RECIPE, tmp_path, trials=1, score="entorpy")
    with pytest.raises(SafdaError, match="at least one"):
        tune(*domains, RECIPE, tmp_path, trials=0)


def test_a_score_of_ones_own_sees_both_domains_and_decides_a_search(files, tmp_path, borrowed):
    source, target = (load_domain(file) for file in files)
    seen = []

    @borrowed(SCORES).register("latest")
    def latest(outputs):
        assert outputs.target_logits.shape == outputs.source_logits.shape == (60, 3)
        assert outputs.target_embedding.shape == outputs.source_embedding.shape == (60, 16)
        assert torch.equal(outputs.source_labels, source.labels)
        seen.append(float(SCORES["source_accuracy"](outputs)))
        return len(seen)

    lines = []
    best = tune(source, target, RECIPE, tmp_path / "up", trials=2, score="latest", log=lines.append, cpu=True)
    assert [line.split(" with")[0] for line in lines] == ["trial 0: latest 1.0000", "trial 1: latest 2.0000"]
    (second,) = (tmp_path / "up" / "trials").glob("0001-*")
    assert best == load_recipe(second / "recipe.toml")
    assert seen[1] == Adapted.load(second).evaluate(source).accuracy


@pytest.mark.parametrize("name", ["mixval", "graph_agreement", "reverse", "dev"])
def test_scores_that_look_at_samples_decide_a_search_too(files, tmp_path, name):
    domains, lines = [load_domain(file) for file in files], []
    tune(*domains, RECIPE, tmp_path, trials=1, score=name, log=lines.append, cpu=True)
    (folder,) = (tmp_path / "trials").glob("0000-*")
    adapted = Adapted.load(folder)
    expected = SCORES[name](Outputs.of(adapted, domains[0], adapted.predict(domains[1]), domains[1].unlabelled()))
    assert lines[0].startswith(f"trial 0: {name} {expected:.4f} with")


def test_agreement_of_seeds_trains_each_trial_with_another_seed(files, tmp_path):
    domains, lines = [load_domain(file) for file in files], []
    tune(*domains, RECIPE, tmp_path, trials=1, score="seed_agreement", log=lines.append, cpu=True)
    models = [Adapted.load(folder) for folder in (tmp_path / "trials").glob("0000-*")]
    assert sorted(model.recipe.seed for model in models) == [0, 1]
    one, other = (model.predict(domains[1]).logits.argmax(1) for model in models)
    assert lines[0].startswith(f"trial 0: seed_agreement {(one == other).mean():.4f} with")


def test_a_score_that_cannot_be_had_ends_a_search_at_once(tmp_path):
    domains, lines = [load_domain(f"digits-{kind}") for kind in ("rendered", "handwritten")], []
    some = [domain.take(torch.arange(0, len(domain), 100)) for domain in domains]
    with pytest.raises(SafdaError, match="a score needs features"):
        tune(*some, RECIPE, tmp_path, trials=3, score="graph_agreement", log=lines.append, cpu=True)
    assert lines == []
