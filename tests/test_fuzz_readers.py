"""Damaged and random files for every reader of data: each gives one line that says what is wrong, or a right answer.

``SAFDA_FUZZ=10000 python -m pytest tests/test_fuzz_readers.py`` tries harder.
"""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from safetensors.torch import save

from safda.data import ImageDomain, load_domain
from safda.data.cache import cached_features
from safda.data.pixels import Transform
from safda.errors import SafdaError
from safda.extraction import for_network
from safda.nn.weights import read_weights
from tests.test_pictures import folder

fuzz = settings(
    max_examples=int(os.environ.get("SAFDA_FUZZ", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def damages(draw):
    """A function from a good file's content to a damaged one: bytes changed, cut out, put in, or cut off."""
    edits = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["change", "cut", "insert", "end"]),
                st.floats(0, 1, exclude_max=True),
                st.binary(min_size=1, max_size=8),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def damage(content):
        for kind, where, data in edits:
            at = int(where * len(content))
            after = {"change": at + len(data), "cut": at + len(data), "insert": at, "end": len(content)}[kind]
            content = content[:at] + (b"" if kind in ("cut", "end") else data) + content[after:]
        return content

    return damage


def told_in_one_line(read):
    """Return what is read, or None if one line says what is wrong; anything else is a fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow and numpy too: what they say of damage
            return read()
    except SafdaError as error:
        said = str(error)
    assert len(said.splitlines()) == 1
    assert len(said) < 1000
    return None


def assert_whole(domain):
    """A domain that can be used: all of it finite, labelled within its classes, under unique names."""
    count = len(domain)
    assert count > 0
    if domain.labels is not None:
        assert domain.labels.shape == (count,)
        assert len(set(domain.classes)) == len(domain.classes)
        assert 0 <= int(domain.labels.min()) <= int(domain.labels.max()) < len(domain.classes)
    if domain.ids is not None:
        assert len(set(domain.ids)) == count
    if not isinstance(domain, ImageDomain):
        rows = domain.batch(torch.arange(count))
        assert rows.shape == (count, *domain.inputs.shape[1:])
        assert torch.isfinite(rows).all()


# ------------------------------------------------------------------------------------------------ files of a domain


def npz(save_as):
    buffer = io.BytesIO()
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    save_as(buffer, features=rows, labels=np.arange(5) % 2, classes=np.array(["a", "b"]), paths=np.array(list("vwxyz")))
    return buffer.getvalue()


def npy():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(20, dtype=np.float32).reshape(5, 4))
    return buffer.getvalue()


def parquet():
    buffer = io.BytesIO()
    pandas.DataFrame({"path": ["ant/0.jpg", "bee/0.jpg"], "label": ["x", "y"]}).to_parquet(buffer)
    return buffer.getvalue()


GOOD = {
    "x.npz": npz(np.savez),
    "deflated.npz": npz(np.savez_compressed),
    "x.npy": npy(),
    "m.csv": b'path,label\nant/0.jpg,x\n"bee/0.jpg","y"\n',
    "m.parquet": parquet(),
    "list.txt": b"ant/0.jpg 0\nbee/0.jpg 1\n",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("pictures"), per_class=1)


@pytest.mark.parametrize("name", GOOD)
def test_the_file_that_is_damaged_is_good(root, name):
    (root / name).write_bytes(GOOD[name])
    assert_whole(load_domain(root / name))


@pytest.mark.parametrize("name", GOOD)
@fuzz
@given(damage=damages())
def test_a_damaged_file_is_told_or_gives_a_whole_domain(root, name, damage):
    (root / name).write_bytes(damage(GOOD[name]))
    domain = told_in_one_line(lambda: load_domain(root / name))
    if domain is not None:
        assert_whole(domain)


@pytest.mark.parametrize("name", ["m.csv", "list.txt"])
@fuzz
@given(text=st.text(st.one_of(st.sampled_from(' ,"\n\r\tx01./'), st.characters(codec="utf-8")), max_size=60))
def test_any_text_is_told_or_gives_a_whole_domain(root, name, text):
    start = "path,label\nant/0.jpg," if name == "m.csv" else "ant/0.jpg "
    (root / name).write_bytes((start + text).encode())
    domain = told_in_one_line(lambda: load_domain(root / name))
    if domain is not None:
        assert_whole(domain)


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ANY_ARRAY = st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes()).flatmap(lambda kind: arrays.arrays(kind, SHAPES))
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(2)), elements=st.floats(-9, 9, width=32))


@pytest.mark.filterwarnings("ignore:Stored array in format")
@fuzz
@given(features=st.one_of(ROWS, ANY_ARRAY), labels=ANY_ARRAY, classes=ANY_ARRAY, paths=ANY_ARRAY)
def test_any_arrays_are_told_or_give_a_whole_domain(root, features, labels, classes, paths):
    np.savez(root / "any.npz", features=features, labels=labels, classes=classes, paths=paths)
    np.save(root / "any.npy", features)
    for name in ("any.npz", "any.npy"):
        domain = told_in_one_line(lambda name=name: load_domain(root / name))
        if domain is not None:
            assert_whole(domain)
            np.testing.assert_array_equal(domain.batch(torch.arange(len(domain))), features.astype(np.float32))


# -------------------------------------------------------------------------------------------------------- pictures


def picture(kind):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO"])
@fuzz
@given(damage=damages())
def test_a_damaged_picture_is_told_or_can_be_decoded(tmp_path, kind, damage):
    file = tmp_path / "x"
    file.write_bytes(damage(picture(kind)))
    inputs = told_in_one_line(lambda: for_network(load_domain(file), Transform(8)).batch(torch.tensor([0])))
    assert inputs is None or inputs.shape == (1, 3, 8, 8)


# ---------------------------------------------------------------------------------------------- weights and caches


@fuzz
@given(damage=damages())
def test_damaged_weights_are_told_or_finite(tmp_path, damage):
    file = tmp_path / "w.safetensors"
    file.write_bytes(damage(save({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)})))
    weights = told_in_one_line(lambda: read_weights(file))
    assert weights is None or all(torch.isfinite(value).all() for value in weights.values())


@fuzz
@given(damage=damages(), which=st.integers(0, 4))
def test_a_damaged_cache_changes_nothing(root, tmp_path, damage, which):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFDA_CACHE", str(tmp_path))

        def values():
            domain = for_network(load_domain(root), Transform(8), cache_decoded=True)
            pictures = domain.batch(torch.arange(3))
            features = cached_features(domain, lambda inputs: inputs.float().mean((2, 3)), "fuzz", 3)
            return pictures, features.batch(torch.arange(3))

        wanted = told_in_one_line(values)
        files = sorted(file for file in tmp_path.rglob("*") if file.is_file())
        damaged = files[which % len(files)]
        damaged.write_bytes(damage(damaged.read_bytes()))
        for ours, before in zip(told_in_one_line(values), wanted, strict=True):
            assert torch.equal(ours, before)
