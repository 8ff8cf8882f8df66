from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix

import safda
from safda.data import EpochSampler, from_arrays, load_domain
from safda.data.sampler import evenly_spaced_rows
from safda.errors import SafdaError


def npz(folder, **arrays):
    np.savez(folder / "d.npz", **arrays)
    return folder / "d.npz"


GOOD = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"feats": GOOD}, "no array 'features'.*it has: feats"),
        ({"features": GOOD[0]}, r"n×d.*\(3,\)"),
        ({"features": np.empty((0, 3))}, r"n×d.*\(0, 3\)"),
        ({"features": GOOD.astype(str)}, "must be numbers"),
        ({"features": GOOD, "labels": np.zeros(3, int)}, r"\(4,\).*\(3,\)"),
        ({"features": GOOD, "labels": np.zeros((4, 1), int)}, r"\(4,\).*\(4, 1\)"),
        ({"features": GOOD, "labels": np.full(4, 0.5)}, "whole numbers or texts"),
        ({"features": GOOD, "labels": np.array([0, 1, 2, 0]), "classes": np.array(["a", "b"])}, "label 2 in row 2"),
        ({"features": GOOD, "labels": np.array([0, -1, 0, 0]), "classes": np.array(["a", "b"])}, "label -1 in row 1"),
        ({"features": GOOD, "labels": np.array(["a", "x", "a", "b"]), "classes": np.array(["a", "b"])}, "label 'x'"),
        ({"features": GOOD, "labels": np.zeros(4, int), "classes": np.array(["a", "a"])}, "'a' more than once"),
        ({"features": np.array([[1.0, 2], [3, np.nan], [np.nan, 0]])}, r"row 1 is NaN \(2 such rows\)"),
        ({"features": np.array([[1.0, 2], [3, 4], [np.inf, 0]])}, "row 2 is infinite"),
        ({"features": np.array([[1e300, 0.0]])}, "row 0 is infinite"),
        ({"features": np.array([{}, {}], dtype=object)}, "never loaded"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_wrong_with_an_archive_is_told_in_one_line(tmp_path, arrays, words):
    path = npz(tmp_path, **arrays)
    with pytest.raises(SafdaError, match=words) as caught:
        load_domain(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_arrays_that_are_read_only_are_shared_in_silence():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch tells it once a process otherwise, and some other test may have heard it
    try:
        shared = load_domain(rows, "x").inputs
    finally:
        torch.set_warn_always(before)
    assert shared.data_ptr() == rows.ctypes.data


@pytest.mark.parametrize("kind", [csr_matrix, csr_array])
def test_sparse_rows_are_called_that(kind):
    for given in (kind(GOOD), (kind(GOOD), [0, 1, 0, 1])):
        with pytest.raises(SafdaError, match=r"x: 'features' is a sparse matrix.*\.toarray\(\)"):
            load_domain(given, "x")


def test_a_file_that_is_no_archive(tmp_path):
    for content in (b"", b"nonsense", b"PK\x03\x04 cut short"):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(SafdaError, match="not a readable"):
            load_domain(tmp_path / "x.npz")
    with pytest.raises(SafdaError, match="no such file"):
        load_domain(tmp_path / "none.npz")


def test_loading_never_runs_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "x.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(SafdaError):
        load_domain(tmp_path / "x.npz")
    assert not (tmp_path / "sprung").exists()


def test_labels_without_class_names_are_the_classes():
    domain = from_arrays("x", GOOD, np.array([7, 3, 7, 5]))
    assert domain.classes == ("3", "5", "7")
    assert domain.labels.tolist() == [2, 0, 2, 1]
    assert from_arrays("x", GOOD, np.array(["b", "a", "b", "b"])).classes == ("a", "b")


def test_texts_may_come_as_python_objects_if_all_of_them_are_texts():
    labels = np.array(["b", "a", "b", "b"], dtype=object)  # what a pandas Series becomes
    domain = from_arrays("x", GOOD, labels)
    assert domain.classes == ("a", "b")
    assert domain.labels.tolist() == [1, 0, 1, 1]
    assert from_arrays("x", GOOD, labels, np.array(["b", "a"], dtype=object)).labels.tolist() == [0, 1, 0, 0]
    labels[2] = None
    with pytest.raises(SafdaError, match="whole numbers or texts, not object"):
        from_arrays("x", GOOD, labels)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_features_of_any_number_type_become_float32(dtype):
    domain = from_arrays("x", GOOD.astype(dtype))
    assert domain.inputs.dtype == torch.float32
    np.testing.assert_array_equal(domain.inputs.numpy(), GOOD)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(SafdaError, match="did you mean 'digits-rendered'"):
        load_domain("digit-rendered")


def test_a_target_loses_its_labels_at_the_door():
    domain = load_domain("digits-handwritten").unlabelled()
    assert domain.labels is None
    with pytest.raises(SafdaError, match="has no labels"):
        domain.labelled("this")


@pytest.mark.parametrize("name", ["digits-rendered", "digits-handwritten"])
def test_embedded_digits_are_pictures_of_all_ten_classes(name):
    domain = load_domain(name)
    assert domain.inputs.shape[1:] == (1, 16, 16)
    assert domain.inputs.min() >= 0
    assert domain.inputs.max() <= 1
    counts = torch.bincount(domain.labels)
    assert len(counts) == 10
    assert counts.min() > 100


def test_rendered_digits_can_be_told_apart_by_another_librarys_classifier():
    from sklearn.svm import SVC

    domain = load_domain("digits-rendered")
    flat, labels = domain.inputs.flatten(1).numpy(), domain.labels.numpy()
    half = len(flat) // 2
    assert SVC().fit(flat[:half], labels[:half]).score(flat[half:], labels[half:]) > 0.8


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (3, 10), (7, 7), (1, 4)])
def test_a_stream_goes_through_epoch_after_epoch_without_replacement(rows, batch):
    stream = EpochSampler(rows, batch, seed=5, domain=0)
    drawn = torch.cat([stream.rows(step) for step in range(2 * rows)]).tolist()
    for epoch in range(len(drawn) // rows):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_a_stream_depends_on_nothing_but_the_step():
    forwards = [EpochSampler(10, 3, 5, 0).rows(step).tolist() for step in range(12)]
    stream = EpochSampler(10, 3, 5, 0)
    assert [stream.rows(step).tolist() for step in reversed(range(12))][::-1] == forwards
    assert [EpochSampler(10, 3, 5, 1).rows(step).tolist() for step in range(12)] != forwards
    assert [EpochSampler(10, 3, 6, 0).rows(step).tolist() for step in range(12)] != forwards


@pytest.mark.parametrize("size", [2**24 + 4, 2**31 + 1])
def test_rows_spread_over_a_large_domain_are_rows_of_it(size):
    first, middle, last = evenly_spaced_rows(size, 3).tolist()
    assert (first, last) == (0, size - 1)
    assert abs(middle - (size - 1) / 2) < 1


def test_some_rows_of_a_domain_are_a_domain(tmp_path):
    labels = np.array(["b", "a", "b", "c"])
    np.save(tmp_path / "x.npy", GOOD)
    np.save(tmp_path / "x.labels.npy", labels)
    named = from_arrays("x", GOOD, labels, ids=["w", "x", "y", "z"])
    for domain, ids in ((named, ("z", "x", "x")), (load_domain(tmp_path / "x.npy"), None)):
        taken = domain.take(torch.tensor([3, 1, 1]))
        np.testing.assert_array_equal(taken.batch(torch.arange(3)), GOOD[[3, 1, 1]])
        assert (len(taken), taken.labels.tolist(), taken.classes) == (3, [2, 0, 0], ("a", "b", "c"))
        assert taken.ids == ids
        assert taken.in_memory == domain.in_memory
    assert named.unlabelled().take(torch.tensor([2])).labels is None


@pytest.mark.parametrize("alike", ["source", "target"])
def test_features_that_are_the_same_for_all_samples_are_refused(alike, tmp_path):
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(40, 3)) for name in ("source", "target")}
    rows[alike][:] = rows[alike][0]
    labels = np.arange(40) % 2
    with pytest.raises(SafdaError, match="all 40 samples have the very same features"):
        safda.fit((rows["source"], labels), rows["target"], out=tmp_path / "run", steps=1, cpu=True)
    assert not (tmp_path / "run").exists()
