"""Nothing wrong in silence where something is read: what is damaged, odd or in the way is told, and never used."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import safda
from safda.cli import main
from safda.data import Domain, inspection, load_domain, settings
from safda.data.cache import cached_features
from safda.data.pixels import PixelBudget, Transform
from safda.data.preflight import preflight
from safda.errors import SafdaError, SafdaWarning
from safda.extraction import for_network
from tests.conftest import TINY
from tests.test_pictures import folder
from tests.test_training import Killed, killed_at


def fit(files, out=None, **changes):
    return safda.fit(*map(str, files), out=out, cpu=True, **{**TINY, "steps": 3, **changes})


# ------------------------------------------------------------------------------------------------- finite answers


def test_a_model_whose_weights_are_not_finite_is_not_loaded(files, tmp_path, capsys):
    fit(files).save(tmp_path / "run")
    file = tmp_path / "run" / "model.safetensors"
    weights = load_file(file)
    weights["bottleneck.linear.bias"][3] = torch.nan
    save_file(weights, file)
    assert main(["predict", str(tmp_path / "run"), str(files[1])]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}: its weights bottleneck.linear.bias are not finite" in captured.err


def test_an_answer_that_is_not_finite_names_the_cause(files):
    adapted = fit(files, **{"network.features": "as-is"})
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32))
    rows[2, 1] = torch.nan
    with pytest.raises(SafdaError, match=r"^d: the answer to 2 is not finite \(1 such samples\): the sample itself is"):
        adapted.answer(Domain("d", rows))
    rows[2] = 3e38
    with pytest.raises(SafdaError, match=r"numbers as large as 3e\+38 are too much"):
        adapted.answer(Domain("d", rows))
    with torch.no_grad():
        adapted.model.classifier[0].weight[0, 0] = torch.inf
    with pytest.raises(SafdaError, match=r"such samples\): the weights classifier.0.weight are not"):
        adapted.answer(Domain("d", rows))


# --------------------------------------------------------------------------------------------------------- caches


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def noise_at(file, start, count):
    content = bytearray(file.read_bytes())
    content[start : start + count] = np.random.default_rng(0).bytes(count)
    file.write_bytes(content)


DAMAGE = {  # of rows of three numbers, 12 bytes each: how many are then damaged
    "noise": (lambda rows, index: noise_at(rows, 40, 30), 3),
    "NaN": (lambda rows, index: rows.write_bytes(np.full(36, np.nan, np.float32).tobytes()), 12),
    "swapped": (lambda rows, index: rows.write_bytes(rows.read_bytes()[12:] + rows.read_bytes()[:12]), 12),
    "truncated": (lambda rows, index: rows.write_bytes(rows.read_bytes()[:70]), 7),
    "emptied": (lambda rows, index: rows.write_bytes(b""), 12),
    "deleted": (lambda rows, index: rows.unlink(), 12),
    "a checksum": (lambda rows, index: noise_at(index, 16, 4), 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_rows_of_the_feature_cache_are_computed_again_and_told(tmp_path, own_cache, kind):
    domain = for_network(load_domain(folder(tmp_path / "d")), Transform(32))
    seen = []

    def features():
        def extract(pictures):
            seen.extend(pictures)
            return pictures.float().mean((2, 3))

        seen.clear()
        return cached_features(domain, extract, "test", 3).batch(torch.arange(12))

    wanted = features()
    damage, count = DAMAGE[kind]
    damage(*(next(own_cache.rglob(f"*.{ending}")) for ending in ("rows", "index")))
    with pytest.warns(SafdaWarning, match=f": {count} rows of the feature cache are damaged; they are computed again"):
        again = features()
    assert len(seen) == count
    assert torch.equal(again, wanted)
    assert torch.equal(features(), wanted)  # and nothing is left to be said
    assert not seen


INSPECTED = {
    "noise": lambda file: noise_at(file, 200, 20),
    "a digest": lambda file: file.write_text(file.read_text().replace('"digest": "', '"digest": "0', 1)),
    "a list": lambda file: file.write_text("[]"),
    "too deep": lambda file: file.write_text("[" * 100_000),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:300]),
    "emptied": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("kind", INSPECTED)
def test_damaged_findings_are_told_and_pictures_opened_again(tmp_path, own_cache, kind):
    root = folder(tmp_path / "d")
    wanted = load_domain(root)
    (file,) = (own_cache / "inspected").iterdir()
    INSPECTED[kind](file)
    with pytest.warns(SafdaWarning, match=f"what was found in {root} before is damaged; its files are opened again"):
        assert load_domain(root).inputs == wanted.inputs
    assert load_domain(root).fingerprint() == wanted.fingerprint()  # and nothing is left to be said


def test_another_content_of_the_same_size_and_date_is_another_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "_TICK", 20_000_000)
    root = folder(tmp_path / "d", per_class=1)
    time.sleep(0.05)
    before, file = load_domain(root), root / "bee" / "0.jpg"
    state, content = file.stat(), bytearray(file.read_bytes())
    content[-10] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    time.sleep(0.05)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    changed = [a != b for a, b in zip(before.inputs.digests, load_domain(root).inputs.digests, strict=True)]
    assert changed == [False, True, False]


def test_a_picture_that_changes_after_it_was_opened_is_not_taken_for_what_it_was(tmp_path):
    root = folder(tmp_path / "d", per_class=1)
    domain = for_network(load_domain(root), Transform(32))
    (root / "bee" / "0.jpg").write_bytes((root / "ant" / "0.jpg").read_bytes())
    with pytest.raises(SafdaError, match=r"bee/0\.jpg: has changed since it was first opened; start again"):
        domain.batch(torch.arange(3))


# ------------------------------------------------------------------------------------------- links, labels and ids


def test_links_are_followed_within_a_class_folder_and_not_out_of_it(tmp_path):
    root = folder(tmp_path / "d", per_class=2)
    (root / "ant" / "deep").mkdir()
    (root / "ant" / "deep" / "er.jpg").write_bytes((root / "ant" / "0.jpg").read_bytes())
    links = {"ant/up": "..", "ant/other": "../bee", "ant/deep/away": tmp_path / "e", "ant/inner": "deep", "top": "."}
    folder(tmp_path / "e", per_class=1)
    for link, to in links.items():
        (root / link).symlink_to(to)
    (root / "elsewhere").symlink_to(tmp_path / "e" / "cat")  # a class may lie anywhere
    (root / "bee" / "file.jpg").symlink_to(tmp_path / "e" / "bee" / "0.jpg")  # and so may a picture
    domain = load_domain(root)
    assert {each.split("/")[0]: domain.classes[k] for each, k in zip(domain.ids, domain.labels, strict=True)} == {
        name: name for name in ("ant", "bee", "cat", "elsewhere")
    }
    assert {each for each in domain.ids if "0" not in each and "1" not in each} == {
        "ant/deep/er.jpg",
        "ant/inner/er.jpg",
        "bee/file.jpg",
    }
    out = "a link that leads out of its class folder"
    back = "a link that leads back to a folder above it"
    assert dict(domain.skipped) == {
        "ant/up/": out,
        "ant/other/": out,
        "ant/deep/away/": out,
        "ant/inner/away/": out,
        "top/": back,
    }


def test_equal_pictures_under_several_labels_are_named_as_such(tmp_path):
    root = folder(tmp_path / "d")
    (root / "cat" / "twin.jpg").write_bytes((root / "ant" / "1.jpg").read_bytes())
    (root / "bee" / "copy.jpg").write_bytes((root / "bee" / "2.jpg").read_bytes())
    found = preflight(load_domain(root), load_domain(folder(tmp_path / "e", seed=7000)), batch=8)
    assert found.source.conflicts == [[("ant/1.jpg", "ant"), ("cat/twin.jpg", "cat")]]
    assert found.warnings == [
        f"{root}: 1 pictures are there under several labels: ant/1.jpg (ant) = cat/twin.jpg (cat); keep one",
        f"{root}: 1 copies of other pictures: bee/2.jpg = bee/copy.jpg",
    ]
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    rows[4] = rows[9]
    found = preflight(load_domain((rows, np.arange(20) % 2)), load_domain(rows + 1), batch=8)
    assert found.source.conflicts == [[("4", "0"), ("9", "1")]]


def test_no_two_files_share_an_id(tmp_path):
    names = [
        b"a\nb",
        rb"a\nb",
        rb"a\\nb",
        b"\xff",
        rb"\xff",
        "\x85".encode(),
        b"\x85",
        rb"\x85",
        rb"\u0085",
        b"\x1b",
        rb"\x1b",
    ]
    data = (folder(tmp_path / "d", per_class=1) / "ant" / "0.jpg").read_bytes()
    for k, name in enumerate(names):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "flat" / os.fsdecode(name)).write_bytes(data + bytes([k]))
    domain = load_domain(tmp_path / "flat")
    assert len(set(domain.ids)) == len(set(domain.inputs.digests)) == len(names)
    assert all(each.isprintable() for each in domain.ids)


def test_what_is_listed_twice_has_two_ids(tmp_path):
    root = folder(tmp_path / "d", per_class=1)
    (tmp_path / "list.txt").write_text("d/ant/0.jpg\nd/bee/0.jpg\nd/ant/0.jpg\n")
    assert load_domain(tmp_path / "list.txt").ids == ("d/ant/0.jpg", "d/bee/0.jpg", "d/ant/0.jpg (2)")
    np.savez(tmp_path / "x.npz", features=np.eye(4), paths=np.array(["a", "a", "a (2)", "a"]))
    assert load_domain(tmp_path / "x.npz").ids == ("a", "a (3)", "a (2)", "a (4)")
    assert len(set(load_domain([root / "ant" / "0.jpg"] * 3).ids)) == 3


def test_folders_whose_names_are_not_utf8_can_be_trained_with(tmp_path):
    root = folder(tmp_path / os.fsdecode(b"d\xff"))
    (root / "ant").rename(root / os.fsdecode(b"ant\xff"))
    assert load_domain(root).classes == ("ant\\xff", "bee", "cat")
    with pytest.raises(Killed):
        fit((root, root), tmp_path / "run", recipe="digits", checkpoint_every=1, callback=killed_at(2))
    assert safda.resume(tmp_path / "run", cpu=True).classes == load_domain(root).classes
    predicted = (tmp_path / "run" / "predictions.csv").read_text(encoding="utf-8")
    assert predicted.splitlines()[1].startswith("ant\\xff/0.jpg,")


# ------------------------------------------------------------------------------------ what is read is not written


def test_what_a_command_reads_is_not_written_over(files, tmp_path, capsys):
    run = tmp_path / "run"
    fit(files, run)
    root = folder(tmp_path / "d", per_class=1)
    manifest = tmp_path / "m.csv"
    manifest.write_text("path,label\nd/ant/0.jpg,ant\n")
    (tmp_path / "link.csv").symlink_to(manifest)
    features = tmp_path / "f.npz"
    features.write_bytes(files[0].read_bytes())
    (tmp_path / "best.toml").write_text("steps = 3\n")
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for words in (
        ["predict", run, manifest, "-o", manifest],
        ["predict", run, manifest, "-o", tmp_path / "d" / ".." / "link.csv"],
        ["predict", run, files[1], "-o", run / "metrics.jsonl"],
        ["predict", run, files[1], "-o", run / "predictions.csv"],
        ["features", features, "-o", features],
        ["tune", *files, "-o", tmp_path, "--recipe", tmp_path / "best.toml"],
    ):
        assert main(list(map(str, words))) == 1
        assert "belongs to what this command reads, and would be written over" in capsys.readouterr().err
    assert main(["fit", str(root), str(root), "-o", str(root / "run"), "--recipe", "digits"]) == 1
    assert f"lies within {root}, and would be taken for a part of it" in capsys.readouterr().err
    assert kept == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert main(["predict", str(run), str(files[1]), "-o", str(tmp_path / f"{'x' * 300}.csv")]) == 1
    assert "cannot be written: File name too long" in capsys.readouterr().err
    assert main(["predict", str(run), str(files[1]), "-o", str(tmp_path / "p.csv")]) == 0
    assert main(["predict", str(run), str(files[1]), "-o", str(tmp_path / "p.csv")]) == 0  # its own, again


# --------------------------------------------------------------------------------------------------- huge pictures


def test_readers_share_a_budget_of_pixels_and_a_huge_picture_is_decoded_alone():
    budget, held, most = PixelBudget(100), [], []

    def decode(pixels):
        with budget.take(pixels):
            held.append(pixels)
            most.append(list(held))
            time.sleep(0.002)
            held.remove(pixels)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [30, 60, 1000, 5, 50, 99, 1, 30, 1000, 40] * 4))
    assert len(most) == 40
    assert all(sum(each) <= 100 or each == [1000] for each in most)
    assert max(map(len, most)) > 1


def test_huge_pictures_are_told_and_read_within_the_budget(tmp_path, monkeypatch):
    root = folder(tmp_path / "d", per_class=1)
    gradient = np.linspace(0, 255, 640 * 480 * 3).reshape(480, 640, 3).astype(np.uint8)
    Image.fromarray(gradient).save(root / "bee" / "huge.png")
    clear = Image.fromarray(np.dstack([gradient, np.full((480, 640), 100, np.uint8)]), "RGBA")
    clear.save(root / "bee" / "clear.png")
    plain = for_network(load_domain(root), Transform(32)).batch(torch.arange(5)).int()
    for module in ("pixels", "preflight"):
        monkeypatch.setattr(f"safda.data.{module}.HUGE", 10_000)
    monkeypatch.setattr("safda.data.pixels._STRIP", 5000)  # strips of seven lines
    decoded = for_network(load_domain(root), Transform(32)).batch(torch.arange(5)).int()
    assert (decoded - plain).abs().max() <= 2
    found = preflight(load_domain(root), load_domain(root), batch=8)
    assert found.source.huge == ["bee/clear.png", "bee/huge.png"]
    assert f"{root}: 2 pictures have more than 0 million pixels, which takes time and memory: bee" in found.warnings[0]


# ------------------------------------------------------------------------------------- what is not what it seems to be


def npz(header=None, flags=0, method=0, **arrays):
    """An archive; with one array's header replaced, or with other flags or method in the zip's own headers."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, values)
            data = member.getvalue()
            archive.writestr(f"{name}.npy", header + data[128:] if header else data)
    content = bytearray(buffer.getvalue())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(mark)
        while start >= 0:
            content[start + at] |= flags
            content[start + at + 2] |= method
            start = content.find(mark, start + 1)
    return bytes(content)


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.encode().ljust(117) + b"\n"


HUGE_SHAPE = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 3)}")
NEGATIVE = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 3)}")
ROWS = np.arange(12.0, dtype=np.float32).reshape(4, 3)
NOT_UTF8 = np.array([b"\xff", b"a", b"a", b"a"])

#: Name of a file → what is in it, and what is said of it.
ODD = {
    "bytes.npz": (npz(features=ROWS, labels=NOT_UTF8), "'labels' holds bytes that are not UTF-8"),
    "names.npz": (npz(features=ROWS, labels=np.zeros(4, int), classes=NOT_UTF8), "'classes' holds bytes that are not"),
    "paths.npz": (npz(features=ROWS, paths=np.array(["a"])), r"'paths' must be of shape \(4,\)"),
    "lie.npz": (npz(HUGE_SHAPE, features=ROWS), "is not a readable .npz file"),
    "negative.npz": (npz(NEGATIVE, features=ROWS), "is not a readable .npz file"),
    "deep.npz": (npz(npy_header("(" * 117), features=ROWS), "is not a readable .npz file"),
    "encrypted.npz": (npz(flags=1, features=ROWS), "is not a readable .npz file: .*encrypted"),
    "method.npz": (npz(method=99, features=ROWS), "is not a readable .npz file: .*not supported"),
    "deflated.npz": (npz(method=8, features=ROWS), "is not a readable .npz file"),
    "lie.npy": (HUGE_SHAPE + bytes(48), "is not a readable .npy file"),
    "negative.npy": (NEGATIVE + bytes(48), "is not a readable .npy file"),
    "empty.npy": (b"", "is not a readable .npy file"),
    "huge.csv": (b"path,label\n" + b"x" * 200_000 + b",a\n", "is not a readable .csv file: field larger than"),
    "nothing.csv": (b"\n\n", "is empty"),
    "nowhere.csv": (b"path,label\n,a\n", "row 1 has no path"),
    "mac.txt": (b"nowhere.jpg a\rnowhere.jpg b\r", "'nowhere.jpg' is in neither"),
    "first-long.txt": (b"x" * 300 + b".jpg\n", "cannot be read: File name too long"),
    "cut.parquet": (b"PAR1\x00\x00PAR1", "is not a readable .parquet file"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_told_in_one_line(tmp_path, name):
    content, words = ODD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SafdaError, match=words) as caught:
        load_domain(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [b"a\x00b.jpg", b"x" * 300], ids=["NUL", "long"])
def test_of_a_list_what_no_file_can_be_called_is_skipped_and_told(tmp_path, path):
    root = folder(tmp_path / "d", per_class=1)
    (root / "list.txt").write_bytes(b"ant/0.jpg\n" + path + b"\n")
    domain = load_domain(root / "list.txt")
    assert domain.ids == ("ant/0.jpg",)
    assert len(domain.skipped) == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("/dev/zero", "/dev/zero: is neither a file nor a folder, but a device or a socket"),
        ("x" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read: embedded null byte"),
        ([[1.0, 2.0], [3.0]], "'features' cannot be an array"),
        ((np.eye(3), [b"\xff", b"a", b"b"]), "'labels' holds bytes that are not UTF-8"),
    ],
)
def test_what_is_no_domain_is_told_in_one_line(what, words):
    with pytest.raises(SafdaError, match=words) as caught:
        load_domain(what)
    assert "\n" not in str(caught.value)


def test_a_device_is_no_domain_by_any_name(tmp_path):
    for name in ("zero.csv", "zero.npz", "zero.txt", "zero.jpg"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(SafdaError, match="a device or a socket"):
            load_domain(tmp_path / name)


def test_names_in_bytes_are_the_texts_they_spell(tmp_path):
    content = npz(features=ROWS, labels=np.array([0, 1, 1, 0]), classes=np.array([b"ant", "bée".encode()]))
    (tmp_path / "x.npz").write_bytes(content)
    assert load_domain(tmp_path / "x.npz").classes == ("ant", "bée")


def test_cells_of_a_parquet_manifest_may_be_bytes_and_nan_is_an_empty_one(tmp_path):
    root = folder(tmp_path / "d", per_class=1)
    table = {"path": [b"ant/0.jpg", b"bee/0.jpg"], "label": [b"x", b"y"]}
    pandas.DataFrame(table).to_parquet(root / "m.parquet")
    domain = load_domain(root / "m.parquet")
    assert (domain.ids, domain.classes) == (("ant/0.jpg", "bee/0.jpg"), ("x", "y"))
    table["label"] = [1.0, float("nan")]
    pandas.DataFrame(table).to_parquet(root / "m.parquet")
    with pytest.raises(SafdaError, match="row 2 has no label, though others have"):
        load_domain(root / "m.parquet")


def test_a_manifest_may_have_line_breaks_in_its_cells(tmp_path):
    root = folder(tmp_path / "d", per_class=1)
    (root / "ant" / "0.jpg").rename(root / "ant" / "a\nb\u2028c.jpg")
    (tmp_path / "m.csv").write_text('path,label\n"d/ant/a\nb\u2028c.jpg",x\nd/bee/0.jpg,y\n', encoding="utf-8")
    domain = load_domain(tmp_path / "m.csv")
    assert domain.ids == (r"d/ant/a\nb\u2028c.jpg", "d/bee/0.jpg")


def test_pictures_too_small_for_a_backbone_are_told(tmp_path, capsys):
    root = folder(tmp_path / "d", per_class=1)
    words = ["fit", root, root, "-o", tmp_path / "run", "--recipe", "digits", "--network.image-size", 1]
    assert main(list(map(str, words))) == 1
    assert "the backbone takes no pictures of 3×1×1" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ what is not there


@pytest.mark.parametrize("how", ["a file in the way", "no home"])
def test_without_a_cache_work_goes_on_and_it_is_said(tmp_path, monkeypatch, how):
    settings._temporary_dir.cache_clear()
    if how == "no home":
        for name in ("SAFDA_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home")))
        words = "there is no home folder for caches; what is computed now is not kept"
    else:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("SAFDA_CACHE", str(tmp_path / "file" / "cache"))
        words = r"cannot be written \(Not a directory\); what is computed now is not kept"
    root, seen = folder(tmp_path / "d", per_class=1), []

    def extract(pictures):
        seen.extend(pictures)
        return pictures.float().mean((2, 3))

    def features():
        domain = for_network(load_domain(root), Transform(32), cache_decoded=True)
        return cached_features(domain, extract, "test", 3).batch(torch.arange(3))

    with pytest.warns(SafdaWarning, match=words):
        once = features()
    with pytest.warns(SafdaWarning, match=words):
        assert torch.equal(features(), once)
    assert len(seen) == 3  # kept as long as the process lives
    settings._temporary_dir.cache_clear()


def test_an_encoding_without_greek_gets_escapes_that_json_reads(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    print(json.dumps("λ é 🐜 \udcff", ensure_ascii=False))
    sys.stdout.flush()
    said = sys.stdout.buffer.getvalue().decode("ascii")
    assert r"\u03bb" in said
    assert json.loads(said.splitlines()[-1]) == "λ é 🐜 \udcff"


def test_a_saved_model_is_resumed_to_its_end(files, tmp_path, capsys):
    fit(files).save(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run"), "--cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == str(tmp_path / "run")
    assert told["summary"]["words"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), r"cannot be read \(No such file or directory\); begun anew"),
        (
            lambda file: file.write_bytes(b"\xff\xfe\n[1]\n" + b"[" * 99_999 + b"\n" + file.read_bytes()),
            "3 damaged lines",
        ),
    ],
    ids=["lost", "garbled"],
)
def test_metrics_that_are_lost_or_garbled_do_not_stop_a_run(files, tmp_path, damage, words):
    fit(files, tmp_path / "whole", steps=6)
    with pytest.raises(Killed):
        fit(files, tmp_path / "cut", steps=6, checkpoint_every=2, callback=killed_at(5))
    damage(tmp_path / "cut" / "metrics.jsonl")
    with pytest.warns(SafdaWarning, match=words):
        safda.resume(tmp_path / "cut", cpu=True)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]
    steps = [json.loads(line)["step"] for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    assert steps == ([5, 6] if "anew" in words else [1, 2, 3, 4, 5, 6])
