"""Pictures of any origin: found, read right, cut the same way every time; and the zoo of what goes wrong."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import safda
from safda.data import Domain, ImageDomain, load_domain
from safda.data.images import Transform, decode
from safda.data.inspection import inspect
from safda.data.layouts import LAYOUTS, Layout, make_listing
from safda.data.preflight import preflight
from safda.errors import SafdaError
from safda.extraction import for_network
from tests.conftest import TINY

COLOURS = {"ant": (200, 30, 30), "bee": (30, 200, 30), "cat": (30, 30, 200)}


def noise(colour, size=(48, 40), seed=0):
    pixels = np.random.default_rng(seed).normal(colour, 25, (size[1], size[0], 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def content(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def folder(root, per_class=4, seed=0, size=(48, 40)):
    """A folder for each class, of coloured noise."""
    for k, (name, colour) in enumerate(COLOURS.items()):
        for i in range(per_class):
            write(root / name / f"{i}.jpg", content(noise(colour, size, seed + 100 * k + i), "JPEG", quality=90))
    return root


# ----------------------------------------------------------------------------------------------------- layouts


def test_a_folder_for_each_class(tmp_path):
    domain = load_domain(folder(tmp_path / "d"))
    assert domain.classes == ("ant", "bee", "cat")
    assert torch.bincount(domain.labels).tolist() == [4, 4, 4]
    assert domain.ids[:2] == ("ant/0.jpg", "ant/1.jpg")


def test_a_flat_folder_has_no_labels(tmp_path):
    for i in range(3):
        write(tmp_path / "flat" / f"{i}.png", content(noise((9, 9, 9), seed=i)))
    domain = load_domain(tmp_path / "flat")
    assert domain.labels is None
    assert domain.ids == ("0.png", "1.png", "2.png")


def test_office31_and_office_home_as_they_come_off_the_disk(tmp_path):
    for name in ("amazon", "webcam"):
        folder(tmp_path / "office31" / name / "images")
    assert load_domain(tmp_path / "office31" / "amazon").classes == ("ant", "bee", "cat")
    for name in ("Art", "Real World"):
        folder(tmp_path / "OfficeHome" / name)
    assert len(load_domain(tmp_path / "OfficeHome" / "Real World")) == 12
    for root, first in (("office31", "amazon"), ("OfficeHome", "Art")):
        with pytest.raises(SafdaError, match=rf"holds several domains \({first}, .*name one of them"):
            load_domain(tmp_path / root)


def test_visda_as_it_comes_off_the_disk(tmp_path):
    root = folder(tmp_path / "visda" / "train")
    lines = [f"{name}/{i}.jpg {k}" for k, name in enumerate(("cat", "ant", "bee")) for i in range(3)]
    (root / "image_list.txt").write_text("\n".join(lines))
    for path in (root, root / "image_list.txt"):
        domain = load_domain(path)
        assert domain.classes == ("cat", "ant", "bee")  # in the list's order, by the folders' names
        assert torch.bincount(domain.labels).tolist() == [3, 3, 3]


def test_a_list_may_lie_anywhere_below_its_root_and_hold_spaces(tmp_path):
    folder(tmp_path / "data" / "Real World")
    (tmp_path / "data" / "lists").mkdir()
    listed = tmp_path / "data" / "lists" / "rw.txt"
    listed.write_text("Real World/ant/0.jpg 7\nReal World/bee/1.jpg 10\n\nReal World/ant/2.jpg 7\n")
    domain = load_domain(listed)
    assert domain.classes == ("ant", "bee")
    assert domain.labels.tolist() == [0, 1, 0]
    listed.write_text("Real World/ant/0.jpg 7\nReal World/ant/1.jpg 10\n")  # a folder of two classes names neither
    assert load_domain(listed).classes == ("7", "10")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_manifests(tmp_path, suffix):
    root = folder(tmp_path / "d")
    rows = {"image": ["ant/0.jpg", "bee/0.jpg", "cat/1.jpg"], "label": ["x", "y", "x"]}
    path = root / f"m.{suffix}"
    if suffix == "csv":
        path.write_text("image,label\n" + "".join(f"{a},{b}\n" for a, b in zip(*rows.values(), strict=True)))
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(rows), path)
    domain = load_domain(path)
    assert (domain.classes, domain.labels.tolist()) == (("x", "y"), [0, 1, 0])


def test_a_layout_of_ones_own_is_one_entry(tmp_path, borrowed):
    root = folder(tmp_path / "d")
    (root / "m.jsonl").write_text("".join(f'{{"path": "{n}/1.jpg", "label": "{n[0]}"}}\n' for n in ("cat", "ant")))
    with pytest.raises(SafdaError, match=r"m\.jsonl: is not a domain"):
        load_domain(root / "m.jsonl")

    @borrowed(LAYOUTS).register("json-lines")
    class JSONLines(Layout):
        suffixes = (".jsonl",)

        def find(self, path):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            return make_listing(path, [row["path"] for row in rows], [row["label"] for row in rows])

    domain = load_domain(root / "m.jsonl")
    assert (domain.ids, domain.classes, domain.labels.tolist()) == (("cat/1.jpg", "ant/1.jpg"), ("a", "c"), [1, 0])
    write(root / "m.xls", b"nonsense")
    with pytest.raises(SafdaError, match=r"one of \.npz, \.npy, \.jsonl, \.txt, \.lst, \.list, \.csv, \.parquet, or"):
        load_domain(root / "m.xls")


def test_a_special_folder_goes_before_a_plain_one_and_two_special_ones_are_refused(tmp_path, borrowed):
    root = folder(tmp_path / "d")
    assert load_domain(root).classes == ("ant", "bee", "cat")

    @borrowed(LAYOUTS).register("ants")
    class Ants(Layout):
        def matches(self, path):
            return (path / "ant").is_dir()

        def find(self, path):
            return make_listing(path / "list", ["ant/3.jpg"], [None])

    domain = load_domain(root)
    assert (domain.ids, domain.labels) == (("ant/3.jpg",), None)
    write(root / "image_list.txt", b"ant/0.jpg 0\n")
    with pytest.raises(SafdaError, match=r"is of several layouts \(ants, visda\)"):
        load_domain(root)


def test_a_folder_is_one_whatever_it_is_called_and_a_list_may_come_through_a_pipe(tmp_path, monkeypatch):
    assert len(load_domain(folder(tmp_path / "photos.csv"))) == 12
    monkeypatch.chdir(tmp_path / "photos.csv")
    read, write_end = os.pipe()
    os.write(write_end, b"ant/0.jpg x\nbee/1.jpg y\n")
    os.close(write_end)
    assert load_domain(f"/dev/fd/{read}").ids == ("ant/0.jpg", "bee/1.jpg")
    os.close(read)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("l.txt", "ant/0.jpg 1\nant/1.jpg\n", "line 2 is not 'path label'"),
        ("l.txt", "nowhere/0.jpg 1\n", "'nowhere/0.jpg' is in neither"),
        ("l.txt", "", "has no pictures"),
        ("l.txt", b"\xff\xfe\x00", "UTF-8"),
        ("m.csv", "pathh,label\na,b\n", "no column 'path'.*did you mean 'pathh'"),
        ("m.csv", "path,label\nant/0.jpg\n", "line 2 has 1 columns"),
        ("m.csv", "path,label\nant/0.jpg,x\nant/1.jpg,\n", "row 2 has no label"),
        ("m.csv", "", "is empty"),
        ("m.parquet", "nonsense", "not a readable .parquet"),
        ("m.xls", "nonsense", "is not a domain"),
    ],
)
def test_what_is_wrong_with_a_list_is_told_in_one_line(tmp_path, name, text, words):
    root = folder(tmp_path / "d")
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SafdaError, match=words) as caught:
        load_domain(root / name)
    assert "\n" not in str(caught.value)


def test_npy_stays_on_disk_and_gives_what_npz_gives(tmp_path):
    features = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    labels = np.array(["a", "b"])[np.arange(50) % 2]
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "x.labels.npy", labels)
    np.savez(tmp_path / "x.npz", features=features, labels=labels)
    mapped, loaded = load_domain(tmp_path / "x.npy"), load_domain(tmp_path / "x.npz")
    assert not mapped.in_memory
    assert mapped.classes == loaded.classes
    rows = torch.tensor([3, 49, 3, 0])
    assert torch.equal(mapped.batch(rows), loaded.batch(rows))
    one, other = (safda.fit(d, d, cpu=True, **{**TINY, "steps": 5}) for d in (mapped, loaded))
    assert torch.equal(one.model.classifier[0].weight, other.model.classifier[0].weight)
    features[7, 2] = np.nan
    np.save(tmp_path / "x.npy", features)
    with pytest.raises(SafdaError, match="row 7 is NaN"):
        load_domain(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"nonsense")
    with pytest.raises(SafdaError, match=r"not a readable \.npy"):
        load_domain(tmp_path / "x.npy")


# ----------------------------------------------------------------------------------------------------- the zoo

GREY = Image.fromarray(np.tile(np.arange(0, 240, 6, dtype=np.uint8), (40, 1)))
RGB = GREY.convert("RGB")
PLAIN = np.asarray(RGB)


def transparent(mode):
    picture = RGB.convert("RGBA")
    picture.putalpha(Image.fromarray(np.where(np.arange(40) < 20, 0, 255).astype(np.uint8)[:, None].repeat(40, 1)))
    return picture.convert(mode)


def rotated(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    turned = RGB.resize((40, 20)).transpose(turn[orientation])
    return content(turned, "PNG", exif=exif)


def bomb():
    """A PNG that says it is 60,000 × 60,000."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def on_white():
    shown = PLAIN.copy()
    shown[:20] = 255
    return shown


SIXTEEN = Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257)
FLOATING = Image.fromarray(np.asarray(GREY).astype(np.float32) / 255)
PALETTE = RGB.quantize(64)
JPEG = content(noise((120, 90, 60), (300, 200)), "JPEG")

#: What can be read: content → (pixels it must give, how far off each may be on average, traits).
READABLE = {
    "rgb.png": (content(RGB), PLAIN, 0, ()),
    "grey.png": (content(GREY), PLAIN, 0, ("greyscale",)),
    "grey.jpg": (content(GREY, "JPEG", quality=95), PLAIN, 2, ("greyscale",)),
    "one-bit.png": (content(GREY.convert("1")), np.asarray(GREY.convert("1").convert("RGB")), 0, ("black and white",)),
    "palette.png": (content(PALETTE), np.asarray(PALETTE.convert("RGB")), 0, ("palette",)),
    "palette.gif": (content(PALETTE, "GIF"), np.asarray(PALETTE.convert("RGB")), 0, ("palette",)),
    "alpha.png": (content(transparent("RGBA")), on_white(), 0, ("transparent",)),
    "grey-alpha.png": (content(transparent("LA")), on_white(), 0, ("greyscale", "transparent")),
    "16-bit.png": (content(SIXTEEN), PLAIN, 0, ("16 bits",)),
    "16-bit.tiff": (content(SIXTEEN, "TIFF"), PLAIN, 0, ("16 bits",)),
    "float.tiff": (content(FLOATING, "TIFF"), PLAIN, 0, ("floating point",)),
    "cmyk.jpg": (content(RGB.convert("CMYK"), "JPEG", quality=95), PLAIN, 3, ("CMYK",)),
    "cmyk.tiff": (content(RGB.convert("CMYK"), "TIFF"), PLAIN, 1, ("CMYK",)),
    "exif-180.png": (rotated(3), np.asarray(RGB.resize((40, 20))), 0, ("rotated by EXIF",)),
    "exif-90.png": (rotated(6), np.asarray(RGB.resize((40, 20))), 0, ("rotated by EXIF",)),
    "exif-270.png": (rotated(8), np.asarray(RGB.resize((40, 20))), 0, ("rotated by EXIF",)),
    "animated.gif": (
        content(PALETTE, "GIF", save_all=True, append_images=[PALETTE.rotate(90)]),
        np.asarray(PALETTE.convert("RGB")),
        0,
        ("palette", "animated"),
    ),
    "bmp.bmp": (content(RGB, "BMP"), PLAIN, 0, ()),
    "webp.webp": (content(RGB, "WEBP", lossless=True), PLAIN, 0, ()),
    "netpbm.ppm": (content(RGB, "PPM"), PLAIN, 0, ()),
    "png-called.jpg": (content(RGB), PLAIN, 0, ()),
    "no-suffix": (content(RGB), PLAIN, 0, ()),
    "progressive.jpg": (content(RGB, "JPEG", progressive=True, quality=95), PLAIN, 2, ()),
    "one-pixel.png": (content(RGB.crop((3, 0, 4, 1))), PLAIN[:1, 3:4], 0, ()),
    "ünï-çødé-漢字-🐜.png": (content(RGB), PLAIN, 0, ()),
}

#: What cannot: content → why.
UNREADABLE = {
    "zero-bytes.jpg": (b"", "empty: zero bytes"),
    "text.jpg": (b"this is no picture, whatever it is called", "not a picture"),
    "page.html": (b"<html><body>404</body></html>", "not a picture"),
    "program.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not a picture"),
    "vector.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
    "truncated.jpg": (JPEG[: len(JPEG) // 2], "broken: "),
    "header-only.jpg": (JPEG[:20], "not a picture"),
    "truncated.png": (content(noise((9, 99, 9), (200, 200)))[:2000], "broken: "),
    "truncated.gif": (content(noise((9, 99, 9), (200, 200)).quantize(64), "GIF")[:900], "broken: "),
    "bad-checksum.png": (content(RGB).replace(b"IDAT", b"IDAT\x00", 1), "broken: "),
    "bomb.png": (bomb(), "too large to be decoded safely"),
}


@pytest.mark.parametrize("name", READABLE)
def test_the_zoo_what_can_be_read_is_read_right(tmp_path, name):
    data, wanted, tolerance, traits = READABLE[name]
    file = write(tmp_path / name, data)
    found = inspect(file)
    assert found.problem == ""
    assert found.traits == traits
    assert found.size == (wanted.shape[1], wanted.shape[0])
    pixels = decode(file, Transform(min(found.size), crop=1)).permute(1, 2, 0).numpy().astype(int)
    assert pixels.shape == wanted.shape
    assert np.abs(pixels - wanted).mean() <= tolerance


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_zoo_what_cannot_be_read_says_why(tmp_path, name):
    data, why = UNREADABLE[name]
    found = inspect(write(tmp_path / name, data))
    assert found.problem.startswith(why)
    assert "\n" not in found.problem


@pytest.fixture
def zoo(tmp_path):
    """A source with every animal of the zoo, links that loop or lead nowhere, odd names and empty folders."""
    root = folder(tmp_path / "zoo")
    for name, (data, *_) in {**READABLE, **UNREADABLE}.items():
        write(root / "ant" / name, data)
    write(root / "bee" / "line\nbreak.png", content(noise((1, 2, 3), seed=7)))
    write(root / "cafe\u0301" / "one.png", content(noise((5, 6, 7), seed=8)))
    (root / "bee" / os.fsdecode(b"not-utf8-\xff.png")).write_bytes(content(noise((1, 2, 3), seed=9)))
    (root / "cat" / "back").symlink_to(root / "cat")
    (root / "cat" / "gone.jpg").symlink_to(root / "nowhere.jpg")
    (root / "cat" / "itself.jpg").symlink_to(root / "cat" / "itself.jpg")
    (root / "cat" / "linked.jpg").symlink_to(root / "cat" / "0.jpg")
    (root / "cat" / "deeper" / "still").mkdir(parents=True)
    (root / "empty").mkdir()
    write(root / ".hidden" / "x.png", content(RGB))
    write(root / "cat" / "Thumbs.db", b"whatever")
    write(root / "stray.png", content(noise((9, 9, 9), seed=10)))
    return root


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [(48, 40), (32, 32)])  # the second is right as it is, and nobody resizes it
def test_a_decoded_picture_may_be_written_to_and_torch_says_nothing(size):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        image = decode(io.BytesIO(content(noise(COLOURS["ant"], size))), Transform(32, crop=1.0))
    finally:
        torch.set_warn_always(before)
    image.zero_()
    assert image.shape[1:] == torch.Size([32, 32 * size[0] // size[1]])


def test_of_pillows_warnings_those_of_files_are_silenced_and_no_others():
    code = """
import warnings
import safda.data.pixels
from PIL import Image
with warnings.catch_warnings(record=True) as heard:
    for category in (UserWarning, Image.DecompressionBombWarning, DeprecationWarning, RuntimeWarning):
        for module in ("PIL.TiffImagePlugin", "mine"):
            warnings.warn_explicit("x", category, "x.py", 1, module)
print(*(each.category.__name__ for each in heard))
"""
    told = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, check=True)
    of_mine = ["UserWarning", "DecompressionBombWarning", "DeprecationWarning", "RuntimeWarning"]
    assert sorted(told.stdout.split()) == sorted([*of_mine, "DeprecationWarning", "RuntimeWarning"])


def test_the_zoo_as_a_domain(zoo):
    domain = load_domain(zoo)
    skipped = dict(domain.skipped)
    assert {f"ant/{name}" for name in UNREADABLE} <= set(skipped)
    assert {f"ant/{name}" for name in READABLE} <= set(domain.ids)
    assert skipped["cat/back/"] == "a link that leads back to a folder above it"
    assert skipped["cat/gone.jpg"] == skipped["cat/itself.jpg"] == "a link to nothing"
    assert skipped["empty/"] == "an empty folder"
    assert "in none of them" in skipped["stray.png"]
    assert not [name for name in (*domain.ids, *skipped) if "hidden" in name or "Thumbs" in name]
    assert {r"bee/line\nbreak.png", r"bee/not-utf8-\xff.png"} <= set(domain.ids)
    assert domain.classes == ("ant", "bee", "caf\u00e9", "cat")  # one spelling, whatever the disk's
    everything = for_network(domain, Transform(32)).batch(torch.arange(len(domain)))
    assert everything.shape == (len(domain), 3, 32, 32)


def test_the_doctor_tells(zoo, tmp_path):
    target = folder(tmp_path / "target", seed=1000)
    write(target / "bee" / "leak.jpg", (zoo / "ant" / "0.jpg").read_bytes())
    (target / "cat").rename(target / "Cat")
    found = preflight(load_domain(zoo), load_domain(target), batch=3)
    assert found.source.classes["caf\u00e9"] == 1
    assert found.source.traits["CMYK"] == 2
    assert found.leaked == [("ant/0.jpg", "bee/leak.jpg")]
    assert ["cat/0.jpg", "cat/linked.jpg"] in found.source.duplicates
    said = "\n".join(found.warnings)
    for words in (
        "skipped 1, empty: zero bytes: ant/zero-bytes.jpg",
        "copies of other pictures",
        "1 classes have one sample only: caf\u00e9",
        "1 pictures are in both domains: ant/0.jpg = bee/leak.jpg",
        "4 classes, and a batch of 3 cannot hold them all",
        "1 classes are not in the source: Cat; did you mean 'cat'?",
        "2 classes of the source are not in it: caf\u00e9, cat",
    ):
        assert words in said
    json.dumps(found.to_dict())


def test_strict_makes_an_error_of_it(zoo, tmp_path):
    with pytest.raises(SafdaError, match="cannot be used, the first is ") as caught:
        load_domain(zoo, strict=True)
    assert "\n" not in str(caught.value)
    assert len(load_domain(folder(tmp_path / "good"), strict=True)) == 12


def test_a_folder_of_nothing(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(SafdaError, match="has no pictures"):
        load_domain(tmp_path / "d")
    write(tmp_path / "d" / "notes.txt", b"hello")
    with pytest.raises(SafdaError, match="none of its 1 files"):
        load_domain(tmp_path / "d")
    with pytest.raises(SafdaError, match="no such file, folder or embedded domain"):
        load_domain(tmp_path / "e")


def test_files_are_opened_again_only_when_they_have_changed(tmp_path, monkeypatch):
    from safda.data import inspection

    root = folder(tmp_path / "d")
    monkeypatch.setattr(inspection, "_TICK", 20_000_000)
    time.sleep(0.05)  # what has changed a moment ago is not remembered
    first = load_domain(root).fingerprint()
    opened = []
    plain = inspection.inspect
    monkeypatch.setattr(inspection, "inspect", lambda file: opened.append(file.name) or plain(file))
    assert load_domain(root).fingerprint() == first
    assert opened == []
    write(root / "bee" / "2.jpg", content(noise((1, 1, 1)), "JPEG"))
    assert load_domain(root).fingerprint() != first
    assert opened == ["2.jpg"]


def test_some_pictures_are_taken_without_being_read(tmp_path):
    domain = load_domain(folder(tmp_path / "d"))
    rows = torch.tensor([9, 2])
    whole = for_network(domain, Transform(32)).batch(rows)
    (tmp_path / "d" / "ant" / "0.jpg").unlink()  # whoever reads what was not asked for stumbles here
    taken = domain.take(rows)
    assert (taken.ids, taken.labels.tolist()) == (("cat/1.jpg", "ant/2.jpg"), [2, 0])
    assert torch.equal(for_network(taken, Transform(32)).batch(torch.arange(2)), whole)


def test_pictures_give_batches_once_a_network_has_said_their_size_and_not_before(tmp_path):
    domain = load_domain(folder(tmp_path / "d"))
    assert isinstance(domain, ImageDomain)
    assert not isinstance(domain, Domain)
    assert not any(hasattr(domain, name) for name in ("batch", "blank"))
    assert not any(hasattr(domain.inputs, name) for name in ("shape", "dtype", "__getitem__"))
    seen = for_network(domain, Transform(32))
    assert isinstance(seen, Domain)
    assert (tuple(seen.inputs.shape), seen.blank().shape) == ((12, 3, 32, 32), (3, 32, 32))
    assert seen.fingerprint() == domain.fingerprint()
    assert (seen.ids, seen.classes, seen.skipped) == (domain.ids, domain.classes, domain.skipped)
    assert len(for_network(seen.take(torch.arange(5)), Transform(64))) == 5  # what gives batches stays as it is


# --------------------------------------------------------------------------------------------- one picture, or several


def test_one_picture_is_a_domain_whatever_it_is_called(tmp_path):
    for name in ("a.jpg", "A.PNG", "photo.dat", "photo"):
        domain = load_domain(write(tmp_path / name, content(RGB)))
        assert (len(domain), domain.ids, domain.labels) == (1, (str(tmp_path / name),), None)
        assert for_network(domain, Transform(32)).batch(torch.arange(1)).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_pictures_are_a_domain_in_their_order(tmp_path, kind, count):
    files = [write(tmp_path / f"{9 - i}.png", content(noise((1, 2, 3), seed=i))) for i in range(count)]
    domain = load_domain(kind([str(files[0]), *files[1:]]))
    assert domain.ids == tuple(map(str, files))
    alone = torch.cat([for_network(load_domain(file), Transform(32)).batch(torch.arange(1)) for file in files])
    assert torch.equal(for_network(domain, Transform(32)).batch(torch.arange(count)), alone)


def test_pairs_of_arrays_and_lists_of_numbers_are_what_they_were():
    rows, labels = np.eye(2), np.array([0, 1])
    assert load_domain((rows, labels)).classes == ("0", "1")
    assert load_domain((rows.tolist(), ["ant", "bee"])).classes == ("ant", "bee")
    assert len(load_domain([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])) == 3


def test_of_several_pictures_a_broken_one_is_skipped_and_told(tmp_path):
    good, broken = write(tmp_path / "a.png", content(RGB)), write(tmp_path / "b.jpg", b"no picture")
    domain = load_domain([broken, good])
    assert (domain.ids, dict(domain.skipped)) == ((str(good),), {str(broken): "not a picture"})
    with pytest.raises(SafdaError, match=r"the first is .*b\.jpg"):
        load_domain([broken, good], strict=True)
    with pytest.raises(SafdaError, match=r"none of its 2 files .* can be read, the first is .*b\.jpg"):
        load_domain([broken, broken])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cut.jpg", "cut.jpg: cannot be used: broken"),
        ("empty.jpg", "empty.jpg: cannot be used: empty: zero bytes"),
        ("words.jpg", "words.jpg: is not a domain; a domain is a folder, a picture, one of"),
        (["words.jpg"], "words.jpg: cannot be used: not a picture"),
        (["good.jpg", "none.jpg"], "none.jpg: no such file"),
        (["good.jpg", "folder"], "folder: is a folder; only pictures"),
        (["good.jpg", "x.npz"], "x.npz: is an array; only pictures"),
    ],
)
def test_what_is_no_picture_is_told_in_one_line(tmp_path, monkeypatch, what, words):
    good = content(noise((3, 2, 1)), "JPEG")
    for name, data in {"good.jpg": good, "cut.jpg": good[:700], "empty.jpg": b"", "words.jpg": b"hello"}.items():
        write(tmp_path / name, data)
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "x.npz", features=np.eye(2))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SafdaError, match=words) as caught:
        load_domain(what)
    assert "\n" not in str(caught.value)
