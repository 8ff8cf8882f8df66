"""The report: what is collected of a run, what is said of it, and that nothing in it is read as markup."""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from sklearn.manifold import trustworthiness

import safda
from safda.data import Domain, load_domain
from safda.errors import SafdaError, SafdaWarning
from safda.evaluation.answers import read_answers
from safda.evaluation.oracle import calibration_error
from safda.report import charts, projection, sections, thumbnails
from safda.report.compare import accuracy_difference, compare, mean_difference
from safda.report.data import collect, joined_metrics
from safda.report.html import render
from safda.report.page import json_in_html
from safda.report.write import write_report
from safda.text import printable
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY, blobs, run_cli
from tests.test_pictures import folder

NASTY = "</script><script>hacked=1</script><img src=x onerror=hacked=1>\x1b[2J\u2028\u202e\"'&{{ 7*7 }}"


class Page(HTMLParser):
    """What a browser would make of a page: its tags in order, the text of each kind of element, and its JSON."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.json, self._open = [], [], None, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self._open = "json" if ("id", "data") in attributes else tag

    def handle_data(self, data):
        if self._open == "json":
            self.json, self._open = json.loads(data), None
        elif self._open not in ("script", "style") and data.strip():
            self.text.append(data.strip())

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same arrays in files, one class of which has a nasty name; and the labelled target."""
    home = tmp_path_factory.mktemp("report")
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 0.7)):
        features, labels = blobs(seed, shift)
        np.savez(home / f"{name}.npz", features=features, labels=labels, classes=np.array(["ant", NASTY, "cat"]))
    for seed in (0, 1):
        safda.fit(
            home / "source.npz", home / "target.npz", out=home / f"run{seed}", cpu=True, seed=seed, steps=30, **TINY
        )
    return home


@pytest.fixture(scope="module")
def collected(runs):
    labels = load_domain(runs / "target.npz")
    return [collect(RunFolder.open(runs / f"run{seed}"), labels=labels) for seed in (0, 1)]


# --------------------------------------------------------------------------------------------------- what is collected


def test_fit_leaves_a_report_that_begins_with_the_verdict_in_words(runs):
    page = Page((runs / "run0" / "report.html").read_text())
    summary = RunFolder.open(runs / "run0").summary
    assert sections._sentence(summary["words"]) in page.words
    assert page.words.index(summary["words"][1:]) < page.words.index("Both domains, before and after")
    assert len(page.json["maps"][0]["views"]) == 2
    assert "oracle" not in page.words.lower()  # nobody gave labels, though the target file has some


def test_what_is_said_of_each_sample_is_what_the_classifier_says(runs, collected):
    predictions = safda.Adapted.load(runs / "run0").predict(runs / "target.npz")
    samples = collected[0].samples
    assert samples.predicted.tolist() == predictions.logits.argmax(1).tolist()
    np.testing.assert_allclose(samples.confidence, predictions.confidence, rtol=1e-6)
    assert tuple(samples.ids) == predictions.ids
    shares = np.bincount(samples.source_only, minlength=3) / 60
    said = [each["source_only"] for each in collected[0].summary["classes"].values()]
    np.testing.assert_allclose(shares, said, atol=1e-4)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:200], lambda text: text.replace("ant", "bat"), lambda text: text.replace(",0.", ",7.")],
)
def test_a_damaged_table_of_predictions_is_told_and_left_out(runs, tmp_path, damage):
    path = runs / "run1" / "predictions.csv"
    good = path.read_text()
    try:
        path.write_text(damage(good))
        with pytest.raises(SafdaError, match=r"predictions.csv"):
            read_answers(RunFolder.open(runs / "run1"))
        page = Page(write_report([runs / "run1"], tmp_path / "r.html").read_text())
    finally:
        path.write_text(good)
    assert "What this report lacks" in page.words
    assert "Samples to look at" not in page.words
    assert page.json["maps"][0]["confidence"] == [None] * 120


def test_without_its_domains_a_report_says_what_it_lacks(runs, tmp_path):
    hidden = runs / "hidden.npz"
    (runs / "target.npz").rename(hidden)
    try:
        page = Page(write_report([runs / "run0"], tmp_path / "r.html").read_text())
    finally:
        hidden.rename(runs / "target.npz")
    assert "map and pictures: left out" in page.words
    assert "target.npz: no such file" in page.words
    assert "Both domains, before and after" not in page.words
    assert page.json["maps"] == [None]
    for heading in ("Nothing looks wrong", "How sure it is", "Shares of the classes", "Samples to look at", "Training"):
        assert heading in page.words


def test_arrays_in_memory_are_at_hand_when_fit_ends_and_gone_later(tmp_path):
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    safda.fit((X, y), X_target, out=tmp_path / "run", cpu=True, steps=5, **TINY)
    before = (tmp_path / "run" / "report.html").read_text()
    assert len(Page(before).json["maps"][0]["ids"]) == 120
    later = Page(write_report([tmp_path / "run"]).read_text())
    assert "its source was an array" in later.words
    assert later.json["maps"] == [None]


def test_curves_are_those_of_the_candidate_that_was_taken(runs, tmp_path):
    both = runs / "source.npz", runs / "target.npz"
    more = {"choice.candidates": 2}
    adapted = safda.fit(*both, out=tmp_path / "run", cpu=True, **{**TINY, **more, "steps": 6, "log_every": 2})
    run = RunFolder.open(tmp_path / "run")
    (run.path / "choice.json").write_text(json.dumps({**run.choice, "chosen": "saf"}))
    candidate = RunFolder.open(run.path / "candidates" / "saf")
    assert joined_metrics(run) == candidate.metrics()
    assert joined_metrics(run)
    table = sections.candidates(collect(run))
    assert {row[0].text for row in table.rows} == set(adapted.summary["choice"]["evidence"])


def test_steps_of_fine_tuning_count_on(tmp_path):
    both = folder(tmp_path / "source"), folder(tmp_path / "target", seed=5000)
    small = {"network.backbone": "small-cnn", "network.pretrained": False, "network.image_size": 32}
    more = {"fine_tune.enabled": True, "fine_tune.steps": 2, "fine_tune.batch": 4, "log_every": 1, "steps": 3}
    safda.fit(*both, out=tmp_path / "run", cpu=True, **{**TINY, **small, **more})
    run = RunFolder.open(tmp_path / "run")
    assert [line["step"] for line in joined_metrics(run)] == [1, 2, 3, 4, 5]
    page = Page((run.path / "report.html").read_text())
    assert "Steps of fine-tuning count on" in page.words
    assert len(page.json["maps"][0]["views"]) == 2
    assert page.json["sheets"]
    domains = {role: run.domain(role) for role in ("source", "target")}
    adapted, first = (safda.Adapted.load(folder) for folder in (run.path, run.path / "frozen"))
    seen = projection._seen(adapted, first, **domains)["Before: features, nothing adapted"]
    expected = first.model.project(first.ready(domains["source"]).batch(torch.arange(12)))[0]
    np.testing.assert_allclose(seen[:12], expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    now = adapted.model.project(adapted.ready(domains["source"]).batch(torch.arange(12)))[0]
    assert not torch.allclose(now, expected, rtol=1e-3)  # the backbone has learned since
    (run.path / "frozen" / "model.safetensors").unlink()
    lacking = Page(write_report([run.path], tmp_path / "r.html").read_text())
    assert "both domains before adaptation: left out" in lacking.words
    assert len(lacking.json["maps"][0]["views"]) == 1


def test_a_network_that_was_trained_whole_is_shown_beside_pixels(tmp_path):
    both = folder(tmp_path / "source"), folder(tmp_path / "target", seed=5000)
    small = {"network.backbone": "small-cnn", "network.pretrained": False, "network.image_size": 32, "steps": 2}
    safda.fit(*both, out=tmp_path / "run", recipe="digits", cpu=True, **{**TINY, **small})
    page = Page((tmp_path / "run" / "report.html").read_text())
    assert "Before: pixels" in page.words
    assert "Same answer as source only" not in page.words  # there is none to compare with


def test_numbers_that_are_not_finite_are_no_part_of_a_curve(runs, tmp_path, monkeypatch):
    lines = [{"step": 1, "loss": math.nan, "x": "text"}, {"step": 2, "loss": 1.5, "y": math.inf}]
    monkeypatch.setattr(RunFolder, "metrics", lambda self: lines)
    assert joined_metrics(RunFolder.open(runs / "run0")) == [{"step": 1}, {"step": 2, "loss": 1.5}]


def test_a_report_that_fails_does_not_lose_the_run(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("safda.report.write.render", lambda runs: 1 / 0)
    with pytest.warns(SafdaWarning, match="report could not be written .ZeroDivisionError.*safda report"):
        safda.fit(runs / "source.npz", runs / "target.npz", out=tmp_path / "run", cpu=True, steps=2, **TINY)
    run = RunFolder.open(tmp_path / "run")
    assert run.finished
    assert run.summary["words"]
    assert not (run.path / "report.html").exists()
    assert not list(run.path.glob(".*.part"))


# ------------------------------------------------------------------------------------------------- the command line


def test_the_command_writes_page_and_figures(runs, tmp_path, capsys):
    out, pdf, png = (tmp_path / f"r.{kind}" for kind in ("html", "pdf", "png"))
    words = [
        "report",
        runs / "run0",
        runs / "run1",
        "-o",
        out,
        "--labels",
        runs / "target.npz",
        "--pdf",
        pdf,
        "--png",
        png,
    ]
    code, printed, err = run_cli(capsys, *words)
    assert (code, err) == (0, "")
    assert json.loads(printed) == {"report": str(out), "figures": [str(pdf), str(png)]}
    assert pdf.read_bytes().startswith(b"%PDF")
    assert Image.open(png).size[0] > 1500
    page = Page(out.read_text())
    assert "Oracle: against the labels you gave" in page.words
    assert "run1 against run0" in page.words


def test_fit_prints_where_its_report_is_unless_there_is_none(runs, tmp_path, capsys):
    small = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
    for extra, expected in (([], tmp_path / "with" / "report.html"), (["--no-report"], None)):
        out = tmp_path / ("without" if extra else "with")
        code, printed, _ = run_cli(
            capsys, "fit", runs / "source.npz", runs / "target.npz", "-o", out, "--steps", 2, *small, *extra
        )
        assert code == 0
        assert json.loads(printed).get("report") == (str(expected) if expected else None)
        assert (out / "report.html").exists() is bool(expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such file|not a run folder"),
        (["{run}", "-o", "{home}/x.pdf"], "ending must be"),
        (["{run}", "--png", "{home}/x.jpg"], "ending must be"),
        (["{run}", "--labels", "{home}/unlabelled.npz"], "has no labels"),
        (["{unfinished}"], "has no summary yet"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(runs, tmp_path, capsys, words, said):
    np.savez(tmp_path / "unlabelled.npz", features=blobs(1, 0.7)[0])
    safda.Adapted.load(runs / "run0").save(tmp_path / "saved")
    places = {"run": runs / "run0", "home": tmp_path, "unfinished": tmp_path / "saved"}
    code, _, err = run_cli(capsys, "report", *(word.format(**places) for word in words))
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert any(part in err for part in said.split("|"))


# ------------------------------------------------------------------------------------------------------ text is text


def shape(page):
    return [tag for tag in Page(page).tags if tag[0] != "option"]


@settings(max_examples=10)
@example(NASTY)
@given(st.text(min_size=1).filter(lambda text: text not in ("ant", "cat")))
def test_no_name_changes_what_a_browser_sees_but_text(collected, text):
    def named(name):
        run = replace(collected[0], notes=[name])
        data = {**run.data, "classes": ["ant", name, "cat"]}
        classes = dict(zip(data["classes"], run.summary["classes"].values(), strict=True))
        return replace(run, data=data, summary={**run.summary, "classes": classes, "words": name, "concerns": [name]})

    page = render([named(text)])
    page.encode()
    assert shape(page) == shape(render([named("bee")]))
    assert Page(page).json["maps"][0]["classes"] == ["ant", printable(text), "cat"]


def test_a_nasty_class_name_is_shown_as_it_is(runs):
    content = (runs / "run0" / "report.html").read_text()
    page = Page(content)
    assert printable(NASTY) in page.words
    assert "\x1b" not in content
    assert "\u2028" not in content
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "onerror" not in {name for _, names in page.tags for name in names}
    assert "49" not in [text for text in page.text if "hacked" in text]


def test_a_page_asks_for_nothing_from_elsewhere(runs):
    content = (runs / "run0" / "report.html").read_text()
    page = Page(content)
    assert not {"src", "srcset", "action", "background"} & {name for _, names in page.tags for name in names}
    assert "http://" not in content
    assert "https://" not in content
    assert "default-src 'none'" in content
    assert "@import" not in content


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text() | st.integers())))
def test_json_in_a_page_reads_as_it_was_and_holds_nothing_that_html_knows(value):
    text = str(json_in_html(value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()


# ---------------------------------------------------------------------------------------------------- what is drawn


def test_both_domains_are_laid_out_as_the_network_sees_them():
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 4.0)
    adapted = safda.fit((X, y), X_target, **{**TINY, "steps": 5, "network.norm": "per-domain"})
    source, target = load_domain((X, y)), load_domain(X_target)
    seen = adapted.model.encode_domains(source, target)
    weights = {name: value.double().numpy() for name, value in adapted.model.state_dict().items()}
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (X.astype(float), X_target.astype(float))]
    scaled = [(rows - weights["centring.mean"]) * weights["centring.scale"] for rows in unit]
    np.testing.assert_allclose(seen.features, np.concatenate(scaled), rtol=1e-4, atol=1e-4)
    linear = [rows @ weights["bottleneck.linear.weight"].T + weights["bottleneck.linear.bias"] for rows in scaled]
    own = linear[0].mean(0), linear[0].var(0)  # the source by its own statistics, the target by those that were kept
    kept = weights["bottleneck.norm.running_mean"], weights["bottleneck.norm.running_var"]
    normed = [(rows - mean) / np.sqrt(var + 1e-5) for rows, (mean, var) in zip(linear, (own, kept), strict=True)]
    scale, offset = weights["bottleneck.norm.weight"], weights["bottleneck.norm.bias"]
    expected = np.maximum(np.concatenate(normed) * scale + offset, 0)
    np.testing.assert_allclose(seen.embedding, expected, rtol=1e-3, atol=1e-3)


def test_principal_components_are_those_of_the_singular_vectors():
    values = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32) * [5, 3, 1, 1, 1]
    points = projection.plane(values.astype(np.float32), "PCA")
    centred = values - values.mean(0)
    expected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    for k in range(2):
        assert abs(np.corrcoef(points[:, k], expected[:, k])[0, 1]) > 0.9999
    assert points.min() >= 0
    assert points.max() <= 1


def test_tsne_keeps_neighbours_and_is_the_same_again():
    values, _ = blobs(0, 0.0, per_class=30, dim=20)
    points = projection.plane(values, "t-SNE")
    assert trustworthiness(values, points, n_neighbors=8) > 0.85
    np.testing.assert_array_equal(points, projection.plane(values, "t-SNE"))


@pytest.mark.parametrize("values", [np.ones((30, 4)), np.arange(30.0)[:, None], np.zeros((3, 1))])
def test_degenerate_samples_still_have_places(values):
    for method in ("t-SNE", "PCA"):
        points = projection.plane(values.astype(np.float32), method)
        assert points.shape == (len(values), 2)
        assert np.isfinite(points).all()


def test_of_many_samples_some_are_shown_evenly_and_it_is_said(monkeypatch):
    monkeypatch.setattr(projection, "MOST_SHOWN", 20)
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7, per_class=6)
    adapted = safda.fit((X, y), X_target, **{**TINY, "steps": 2})
    found = projection.project(adapted, load_domain((X, y)), load_domain(X_target), adapted)
    assert np.bincount(found.labels).tolist() == pytest.approx([20 / 3] * 3, abs=1)
    assert found.labels.tolist() == y[found.rows[0]].tolist()
    assert found.ids[:20] == tuple(map(str, found.rows[0]))
    assert "20 of 60 source samples, evenly chosen" in sections.map_text(found)
    assert "all 18 target samples" in sections.map_text(found)
    monkeypatch.setattr(projection, "VERY_LARGE", 50)
    assert projection.project(adapted, load_domain((X, y)), load_domain(X_target), adapted).method == "PCA"


def test_small_pictures_are_those_of_their_samples():
    colours = torch.tensor([[250, 10, 10], [10, 250, 10], [10, 10, 250], [200, 200, 20], [0, 0, 0]], dtype=torch.uint8)
    domain = Domain("d", colours[:, :, None, None].expand(5, 3, 24, 32).contiguous())
    assert thumbnails.holds_pictures(domain)
    sheet = thumbnails.contact_sheet(domain, [4, 0, 2, 2], tile=16)
    assert sheet.places == {0: 0, 2: 1, 4: 2}
    head, content = sheet.uri.split(",")
    assert head == "data:image/jpeg;base64"
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))
    for row, place in sheet.places.items():
        line, column = divmod(place, sheet.columns)
        tile = pixels[16 * line : 16 * line + 16, 16 * column : 16 * column + 16].reshape(-1, 3)
        np.testing.assert_allclose(tile.mean(0), colours[row].numpy(), atol=6)


def test_numbers_that_are_no_bytes_are_shown_from_their_least_to_their_largest():
    ramp = torch.linspace(-3, 5, 64).view(1, 1, 8, 8)
    content = thumbnails.contact_sheet(Domain("d", ramp), [0], tile=8).uri.split(",")[1]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("L"))
    assert pixels[0, 0] < 12
    assert pixels[-1, -1] > 243


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_an_axis_holds_its_values_and_its_labels_tell_places(one, other):
    low, high = sorted((one, other))
    axis = charts.Axis.over(low, high, 0, 100)
    slack = 1e-6 * max(abs(low), abs(high), axis.step)
    assert axis.low <= low + slack
    assert axis.high >= high - slack
    places = [place for place, _ in axis.ticks]
    assert places[0] == 0
    assert places[-1] == 100
    assert 2 <= len(places) <= 9
    assert len({label for _, label in axis.ticks}) == len(places)


def test_reliability_and_calibration_error_tell_the_same():
    rng = np.random.default_rng(0)
    confidence, right = rng.uniform(0.2, 1, 500), rng.random(500) < 0.6
    rows = charts.reliability("", confidence, right).rows
    assert sum(count for _, count, _, _ in rows) == 500
    gaps = sum(count / 500 * abs(mean - share) for _, count, mean, share in rows)
    assert gaps == pytest.approx(calibration_error(confidence, right))


def test_a_line_goes_through_its_values():
    chart = charts.line_chart("x", {"a": ([0, 5, 10], [0.0, 1.0, 4.0])}, {})
    assert chart.lines[0].raw == "M46.0 174.0L198.0 133.0L350.0 10.0"  # 4 is the top, 0 the bottom, 10 the right
    assert chart.rows == [[0, 0.0], [5, 1.0], [10, 4.0]]


# ------------------------------------------------------------------------------------------------------ several runs


def test_paired_means_have_students_interval():
    rng = np.random.default_rng(0)
    one, other = rng.random(40), rng.random(40)
    found, expected = mean_difference(other - one), stats.ttest_rel(other, one).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(other.mean() - one.mean())


def test_the_interval_of_a_paired_accuracy_difference_holds_what_it_promises():
    """Of 1,000 draws whose true difference is known, 95% of the intervals contain it, to a point and a half."""
    rng = np.random.default_rng(0)
    truth, held = 0.15 - 0.05, 0
    for _ in range(1000):
        kind = rng.choice(4, size=40, p=[0.15, 0.05, 0.6, 0.2])  # gained, lost, both right, both wrong
        found = accuracy_difference(np.isin(kind, (1, 2)), np.isin(kind, (0, 2)))
        held += found.low <= truth <= found.high
    assert 0.935 <= held / 1000 <= 0.975


def test_runs_are_compared_sample_by_sample(runs, collected):
    (pair,) = compare(collected)
    said = [safda.Adapted.load(runs / f"run{seed}").predict(runs / "target.npz") for seed in (0, 1)]
    assert pair.agreement == pytest.approx(np.mean(np.array(said[0].labels) == said[1].labels))
    assert pair.confidence.value == pytest.approx(float((said[1].confidence - said[0].confidence).mean()), abs=1e-6)
    accuracies = [safda.Adapted.load(runs / f"run{seed}").evaluate(runs / "target.npz").accuracy for seed in (0, 1)]
    assert pair.accuracy.value == pytest.approx(accuracies[1] - accuracies[0])
    assert pair.accuracy.low < pair.accuracy.value < pair.accuracy.high


def test_runs_on_other_targets_are_not_paired(collected):
    other = replace(collected[1], oracle=None)
    other.data["target"] = {**other.data["target"], "digest": "another"}
    (pair,) = compare([collected[0], other])
    assert (pair.same_target, pair.agreement, pair.confidence, pair.accuracy) == (False, None, None, None)
    assert "Runs on different targets" in Page(render([collected[0], other])).words


def test_what_differs_between_recipes_is_told(collected):
    table = sections.differences({"a": collected[0], "b": collected[1]})
    assert [[cell.text for cell in row] for row in table.rows] == [["seed", "0", "1"]]


# --------------------------------------------------------------------------------- what others put into the summary


def told(run, **more):
    return Page(render([replace(run, summary={**run.summary, **more})])).words


def test_an_estimate_is_shown_where_there_is_one(collected):
    words = told(collected[0], estimate={"accuracy": 0.8712, "low": 0.81, "high": 0.92, "method": "by agreement"})
    assert "Estimated accuracy 87.1% 81% to 92% · by agreement" in words
    assert "Estimated" not in told(collected[0], estimate=None)


def test_a_diagnosis_is_shown_with_evidence_and_advice(collected):
    finding = {
        "title": "η is stuck",
        "evidence": "mean 0.9991",
        "advice": "turn saf.eta.ascend",
        "severity": "serious",
    }
    words = told(collected[0], diagnosis=[finding])
    assert "η is stuck serious mean 0.9991 What to do: turn saf.eta.ascend" in words
    assert "Diagnosis" not in told(collected[0], diagnosis=[])


def test_the_theory_is_a_table_of_terms_before_and_after(collected):
    measured, made = collected[0].summary["theory"], sections.theory(collected[0])  # as a run has written it
    assert [column.name for column in made.columns] == ["term", "before", "after", "what"]
    assert [row[0].text for row in made.rows] == [name.replace("_", " ") for name in measured]
    for column, moment in ((1, "before"), (2, "after")):
        assert [row[column].value for row in made.rows] == [each[moment] for each in measured.values()]
    assert [row[3].text for row in made.rows] == [each["what"] for each in measured.values()]
    assert "theory, measured" in told(collected[0])
    assert "theory, measured" not in told(collected[0], theory=None)
