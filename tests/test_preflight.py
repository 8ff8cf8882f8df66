"""What the doctor tells of arrays: on another scale, of other dimensions, idle columns, rows that are there twice."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from safda.cli import main
from safda.data import Domain, load_domain
from safda.data.preflight import preflight
from safda.data.statistics import row_statistics
from tests.conftest import blobs


def rows(seed=0, count=50, width=20):
    return np.random.default_rng(seed).normal(1, 2, (count, width)).astype(np.float32)


def look(source, target):
    return preflight(load_domain(source, "source"), load_domain(target, "target"), batch=32)


def test_one_pass_gives_what_numpy_gives_of_the_whole(tmp_path, monkeypatch):
    from safda.data import loader

    values = rows(count=70)
    values[:, 3], values[5], values[values < -2] = 4.1, 0, 0
    values[9, 7] = -0.0
    np.save(tmp_path / "x.npy", values)
    monkeypatch.setattr(loader, "_MOST_ROWS", 16)
    exact = values.astype(np.float64)
    for domain in (load_domain(values), load_domain(tmp_path / "x.npy")):
        found = row_statistics(domain)
        assert found.length == pytest.approx(np.linalg.norm(exact, axis=1).mean())
        assert found.std == pytest.approx(exact.std())
        assert found.zeros == (exact == 0).mean()
        assert found.empty.tolist() == [5]
        np.testing.assert_allclose(found.columns, exact.std(0), atol=1e-12)
        np.testing.assert_array_equal(found.constant, (exact == exact[0]).all(0))


def test_what_hardly_changes_keeps_its_digits():
    values = (1e4 + 1e-2 * np.random.default_rng(0).normal(size=(5000, 3))).astype(np.float32)
    np.testing.assert_allclose(row_statistics(load_domain(values)).columns, values.astype(np.float64).std(0), rtol=1e-9)


def test_healthy_arrays_are_passed_over_in_silence():
    (X, y), (X_target, _) = blobs(0, 0.0), blobs(1, 0.7)
    found = look((X, y), X_target)
    assert found.warnings == []
    assert found.same_shape
    assert found.scales.length == pytest.approx(
        np.linalg.norm(X_target, axis=1).mean() / np.linalg.norm(X, axis=1).mean()
    )
    assert look("digits-rendered", "digits-handwritten").warnings == []


def test_other_dimensions_are_told():
    found = look(rows(width=20), rows(1, width=7))
    (line,) = found.warnings
    assert line == "target: its samples are rows of 7 numbers, the source's rows of 20 numbers; no run can have both"
    assert (found.same_shape, found.scales) == (False, None)
    (line,) = look(rows(), "digits-handwritten").warnings
    assert "its samples are 1×16×16 numbers each, the source's rows of 20 numbers" in line


@pytest.mark.parametrize("factor", [100, 0.01])
def test_another_scale_is_told_in_one_line(factor):
    found = look(rows(), factor * rows(1))
    (line,) = found.warnings
    assert line.startswith("target: the mean length of a row is ")
    assert line.endswith("vary over 10 times as much in one domain (0, 1, 2, …); bring both domains to one scale")
    assert found.scales.std == pytest.approx(factor, rel=0.1)
    assert found.scales.column == pytest.approx(factor, rel=0.1)
    assert look(rows(), 2 * rows(1)).warnings == []


def test_columns_in_other_units_are_told_though_lengths_are_alike():
    source, target = rows(), rows(1)
    source[:, 0], target[:, 0] = 100 + rows(2)[:, 0], 100 + rows(3)[:, 0]  # drowns the others in a row's length
    target[:, 5:] /= 50
    (line,) = look(source, target).warnings
    assert line.startswith("target: 15 of 20 columns vary over 10 times as much")
    target = rows(1)
    target[:, 15:] *= 0.01  # a quarter of them: domains do differ
    found = look(rows(), target)
    assert (found.warnings, found.scales.apart) == ([], [15, 16, 17, 18, 19])


def test_idle_columns_are_told_where_one_domain_alone_has_them():
    source, target = rows(), rows(1)
    source[:, [2, 4, 6]], target[:, [4]] = 0.1, 3
    found = look(source, target)
    assert found.warnings == ["source: 2 of 20 columns never change, and in the other domain they do: 2, 6"]
    assert (found.source.features.constant, found.target.features.constant) == ([2, 4, 6], [4])
    assert found.scales.constant_in_both == [4]
    (line,) = look(target, source).warnings
    assert line.startswith("target: 2 of 20 columns never change")


def test_copies_leaks_and_rows_of_zeros():
    source, target = rows(), rows(1)
    source[7] = source[30] = source[3]
    target[[8, 9]] = source[[40, 3]]
    source[[11, 12]] = target[20] = 0
    found = look(source, target)
    assert found.source.duplicates == [["3", "7", "30"]]  # zeros are equal, and told as what they are
    assert found.leaked == [("3", "9"), ("40", "8")]
    assert found.warnings == [
        "source: 2 copies of other rows: 3 = 7 = 30",
        "source: 2 rows are zeros only: 11, 12",
        "target: 1 rows are zeros only: 20",
        "2 rows are in both domains: 3 = 9, 40 = 8",
    ]


def test_nothing_but_zeros_is_no_division():
    found = look(rows(), np.zeros((5, 20)))
    assert (found.scales.length, found.scales.column) == (None, None)
    assert json.loads(json.dumps(found.to_dict()))["scales"]["std"] is None


def test_the_doctor_of_arrays_on_the_command_line(files, tmp_path, capsys):
    assert main(["doctor", *map(str, files)]) == 0
    shown = capsys.readouterr().out
    assert "dimensions" in shown
    assert "nothing to complain of" in shown
    assert "put right in reading" not in shown  # that is for pictures
    features, labels = blobs(1, 0.7)
    np.savez(tmp_path / "other.npz", features=100 * features, labels=labels)
    assert main(["doctor", str(files[0]), str(tmp_path / "other.npz"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["scales"]["length"] > 50
    assert told["target"]["features"]["shape"] == [6]
    assert any("bring both domains to one scale" in line for line in told["warnings"])
    assert main(["doctor", str(files[0]), "digits-handwritten"]) == 0
    assert "no run can have both" in " ".join(capsys.readouterr().out.split())


def test_the_doctor_does_not_fill_the_memory(tmp_path):
    values = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(40_000, 512))  # 82 MB
    values[:] = np.arange(40_000)[:, None]
    del values
    domain = load_domain(tmp_path / "x.npy")
    row_statistics(load_domain(rows()))  # whatever is loaded on first use

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    most, before = 0, resident()
    plain = torch.Tensor.double

    def watched(values):
        nonlocal most
        most = max(most, resident())
        return plain(values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "double", watched)
        row_statistics(domain)
    assert most - before < 50_000_000


# ------------------------------------------------------------------------------------- what lengths of rows tell


def of_lengths(lengths, seed=0):
    """Rows in all directions, whose lengths these are."""
    rows = np.abs(np.random.default_rng(seed).normal(size=(len(lengths), 12)))
    return torch.from_numpy((rows / np.linalg.norm(rows, axis=1, keepdims=True) * lengths[:, None]).astype(np.float32))


def test_it_is_told_where_lengths_carry_the_classes_and_would_be_lost():
    labels = torch.arange(120) % 2
    source = Domain("s", of_lengths(np.where(labels, 3.0, 1.0)), labels, ("short", "long"))
    target = Domain("t", of_lengths(np.ones(40)))
    (line,) = [line for line in preflight(source, target, 8).warnings if "lengths" in line]
    assert "right of 100% of held-out samples" in line
    assert "--network.features standardised" in line
    assert not [line for line in preflight(source, target, 8, unit_rows=False).warnings if "lengths" in line]


def test_nothing_is_told_of_lengths_where_directions_carry_the_classes_as_well():
    labels = torch.arange(120) % 2
    lengths = np.where(labels, 3.0, 1.0)
    rows = of_lengths(lengths) + 9 * torch.eye(12)[labels] * torch.from_numpy(lengths[:, None]).float()
    source = Domain("s", rows, labels, ("short", "long"))
    assert not [line for line in preflight(source, Domain("t", rows), 8).warnings if "lengths" in line]


@pytest.mark.parametrize("samples", [2, 39])
def test_a_few_samples_are_not_probed(samples):
    labels = torch.arange(samples) % 2
    source = Domain("s", of_lengths(np.where(labels, 3.0, 1.0)), labels, ("short", "long"))
    assert not [line for line in preflight(source, source, 8).warnings if "lengths" in line]


def test_a_class_of_a_single_sample_is_no_error_wherever_it_is():
    rows = of_lengths(np.ones(40))
    for rare in range(0, 40, 4):  # some of these are held out, so that one class is left to learn from
        labels = torch.zeros(40, dtype=torch.int64)
        labels[rare] = 1
        source = Domain("s", rows, labels, ("often", "rare"))
        assert not [line for line in preflight(source, Domain("t", rows), 8).warnings if "lengths" in line]
