"""Where a domain's pictures are and what they are labelled: folders, list files, manifests.

| what there is | what it is taken for |
|---|---|
| ``domain/<class>/…`` | a folder for each class, at any depth below it |
| ``domain/images/<class>/…`` | the same, as Office-31 has it |
| ``domain/*`` | a flat folder: no labels |
| ``domain/image_list.txt`` | the list says what belongs to the domain, as VisDA-2017 has it |
| ``list.txt`` | ``path label`` on each line, or ``path`` |
| ``manifest.csv``, ``.parquet`` | columns ``path`` and, for labels, ``label`` |
| one picture, or several | themselves: no labels |

All but the last are layouts, registered by name; another package adds its own by an entry point of the group
``safda.layouts``::

    @LAYOUTS.register("json-lines")
    class JSONLines(Layout):
        suffixes = (".jsonl",)

        def find(self, path: Path) -> Listing:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            return make_listing(path, [row["path"] for row in rows], [row["label"] for row in rows])
"""

from __future__ import annotations

import io
import os
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from safda.data.array_files import ARRAYS, unique_ids
from safda.errors import SafdaError, first_line, nearest, reading
from safda.io import read_csv
from safda.registry import Registry

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image")
_LABEL_COLUMNS = ("label", "class", "category", "target")
_COLUMNS = "a manifest has columns 'path' and 'label'"
_VISDA_LIST = "image_list.txt"


@dataclass(frozen=True)
class Listing:
    """The files of a domain, before any is opened.

    Attributes:
        name: what the user calls the domain.
        files: where they are.
        ids: their names within the domain.
        labels: the name of each one's class, or None for an unlabelled domain.
        classes: all class names, in order.
        skipped: what is no file of the domain: (id, why).
    """

    name: str
    files: tuple[Path, ...]
    ids: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()


class Layout(ABC):
    """A way for a domain's pictures to be on disk: which paths are of it, and what files they name.

    Attributes:
        suffixes: endings of the files that are of this layout; none, if folders are.
        fallback: whether it stands back where another one matches too.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[bool] = False

    def matches(self, path: Path) -> bool:
        """Return whether a path is of this layout, at a glance."""
        return path.suffix in self.suffixes and not path.is_dir()

    @abstractmethod
    def find(self, path: Path) -> Listing:
        """List the files that a path of this layout names."""


#: Name → layout. Of all but the fallbacks, one at most may match a path, so that their order does not matter.
LAYOUTS: Registry[type[Layout]] = Registry("layout", "safda.data.layouts")


def find_images(path: Path) -> Listing | None:
    """List the files of a domain by its layout; None if it has none: then it is one picture, or nothing of ours."""
    try:
        layout = _layout_of(path)
        found = layout.find(path) if layout else None
    except OSError as error:
        raise SafdaError(f"{error.filename or path}: cannot be read: {first_line(error)}") from None
    except RecursionError:
        raise SafdaError(f"{path}: its folders are nested too deeply") from None
    if found is not None and not found.files:
        raise SafdaError(f"{path}: has no pictures in it")
    return found


def _layout_of(path: Path) -> Layout | None:
    matching = {name: layout() for name, layout in LAYOUTS.items() if layout().matches(path)}
    chosen = {name: layout for name, layout in matching.items() if not layout.fallback} or matching
    if len(chosen) > 1:
        raise SafdaError(f"{path}: is of several layouts ({', '.join(chosen)}); name the file that lists its pictures")
    return next(iter(chosen.values()), None)


def listed_images(name: str, files: Sequence[Path]) -> Listing:
    """List pictures that were named one by one; what cannot be one is refused before any is opened."""
    for file in files:
        if not os.path.isfile(file) or file.suffix in ARRAYS:
            what = "is a folder" if os.path.isdir(file) else "is an array" if os.path.isfile(file) else "no such file"
            raise SafdaError(f"{file}: {what}; only pictures can be named one beside the other")
    return Listing(name, tuple(files), unique_ids([sample_id(str(file)) for file in files]))


# --------------------------------------------------------------------------------------------------- folders


@LAYOUTS.register("folder")
class Folder(Layout):
    """A folder for each class, or a flat folder."""

    fallback = True

    def matches(self, path: Path) -> bool:
        """Return whether it is a folder."""
        return path.is_dir()

    def find(self, path: Path) -> Listing:
        """List the files of all class folders, or of a flat one."""
        direct, folders = _children(path)
        if not direct and any(folder.name == "images" for folder in folders) and _children(path / "images")[1]:
            direct, folders = _children(path / "images")
        if not folders:
            return Listing(str(path), tuple(direct), tuple(sample_id(file.name) for file in direct))
        _refuse_several_domains(path, folders)
        return _folder_per_class(str(path), direct, folders)


def _folder_per_class(name: str, direct: list[Path], folders: list[Path]) -> Listing:
    files: list[Path] = []
    labels: list[str] = []
    skipped = [(sample_id(file.name), "lies beside the class folders, in none of them") for file in direct]
    for folder in folders:
        if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
            skipped.append((sample_id(f"{folder.name}/"), "a link that leads back to a folder above it"))
            continue
        before = len(files)
        for file in _walk(folder, folder, skipped):
            files.append(file)
            labels.append(_class_name(folder.name))
        if len(files) == before:
            skipped.append((sample_id(f"{folder.name}/"), "an empty folder"))
    base = folders[0].parent
    ids = tuple(sample_id(file.relative_to(base).as_posix()) for file in files)
    return Listing(name, tuple(files), ids, tuple(labels), tuple(sorted(set(labels))), tuple(skipped))


def _children(path: Path) -> tuple[list[Path], list[Path]]:
    """Files and folders directly in a folder, sorted; hidden ones are no part of a domain."""
    seen = sorted(child for child in path.iterdir() if not _hidden(child.name))
    return [child for child in seen if not child.is_dir()], [child for child in seen if child.is_dir()]


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX")) or name.lower() in ("thumbs.db", "desktop.ini")


def _walk(
    folder: Path, top: Path, skipped: list[tuple[str, str]], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Path]:
    """Go through all files below a folder, in order.

    A link to a folder is followed unless it leads in a circle, or out of the class folder (``top``): what is there
    would get a label that is not its own.
    """
    state = folder.stat()
    here = (state.st_dev, state.st_ino)
    leaves = folder.is_symlink() and folder != top and not folder.resolve().is_relative_to(top.resolve())
    if here in above or leaves:
        name = sample_id(folder.relative_to(top.parent).as_posix())
        where = "out of its class folder" if leaves else "back to a folder above it"
        skipped.append((f"{name}/", f"a link that leads {where}"))
        return
    files, folders = _children(folder)
    yield from files
    for child in folders:
        yield from _walk(child, top, skipped, above | {here})


def _refuse_several_domains(path: Path, folders: list[Path]) -> None:
    """A folder whose folders all hold the same folders is a dataset of several domains."""
    inner = [{child.name for child in _children(folder)[1]} for folder in folders]
    classes = [
        {child.name for child in _children(folder / "images")[1]} if names == {"images"} else names
        for folder, names in zip(folders, inner, strict=True)
    ]
    if len(folders) > 1 and len(classes[0]) > 1 and all(names == classes[0] for names in classes):
        names = ", ".join(folder.name for folder in folders)
        raise SafdaError(f"{path}: holds several domains ({names}); name one of them, such as {folders[0]}")


def sample_id(name: str) -> str:
    """Write a file's name so that any terminal and any file can hold it: odd characters, and ``\\``, as escapes.

    Different names stay different.

    >>> print(sample_id("a\\nb"), sample_id("a\\\\nb"))
    a\\nb a\\\\nb
    """
    text = os.fsencode(name).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    """Return an escape; ``\\x80`` and above are taken, by bytes that are not UTF-8."""
    code = ord(character)
    return character.encode("unicode_escape").decode() if not 0x80 <= code <= 0xFF else f"\\u{code:04x}"


def _class_name(folder: str) -> str:
    """Return the class that a folder's name stands for; a name that is not UTF-8 could be written nowhere."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        folder = sample_id(folder)
    return _normalize(folder)


def _normalize(name: str) -> str:
    """One spelling for names that look the same: some systems write é as e and an accent."""
    return unicodedata.normalize("NFC", name)


# ------------------------------------------------------------------------------------------ lists and manifests


@LAYOUTS.register("list")
class ListFile(Layout):
    """``path label`` on each line, or ``path``."""

    suffixes = (".txt", ".lst", ".list")

    def matches(self, path: Path) -> bool:
        """Return whether its ending is a list's, or it is a pipe, which has none."""
        return super().matches(path) or path.is_fifo()

    def find(self, path: Path) -> Listing:
        """List the files of all lines."""
        return make_listing(path, *_read_list(path))


@LAYOUTS.register("visda")
class VisDAFolder(Layout):
    """A folder whose list says what belongs to it, as VisDA-2017 has it."""

    def matches(self, path: Path) -> bool:
        """Return whether there is such a list in it."""
        return (path / _VISDA_LIST).is_file()

    def find(self, path: Path) -> Listing:
        """List what the list names."""
        file = path / _VISDA_LIST
        return replace(make_listing(file, *_read_list(file)), name=str(path))


@LAYOUTS.register("manifest")
class Manifest(Layout):
    """A table with a column ``path`` and, for labels, ``label``."""

    suffixes = (".csv", ".parquet")

    def find(self, path: Path) -> Listing:
        """List the files of all rows."""
        columns = _parquet_columns(path) if path.suffix == ".parquet" else read_csv(path, _COLUMNS)
        of_paths = next((name for name in PATH_COLUMNS if name in columns), None)
        if of_paths is None:
            raise SafdaError(
                f"{path}: has no column 'path'{nearest('path', columns)}: a {path.suffix} file is a list of pictures; "
                "numbers go into an .npz file, as 'features' and 'labels'"
            )
        of_labels = next((name for name in _LABEL_COLUMNS if name in columns), None)
        paths = [_text(path, value) for value in columns[of_paths]]
        labels = [_text(path, value) for value in columns[of_labels]] if of_labels else [None] * len(paths)
        if None in paths:
            raise SafdaError(f"{path}: row {paths.index(None) + 1} has no path")
        if any(labels) and None in labels:
            raise SafdaError(f"{path}: row {labels.index(None) + 1} has no label, though others have")
        return make_listing(path, [str(each) for each in paths], labels)


def _text(path: Path, value: Any) -> str | None:
    """Return a cell's text; None for one that is empty."""
    if value is None or value == "" or value != value:  # NaN, which differs from itself
        return None
    with reading(path, "manifest"):
        return value.decode() if isinstance(value, bytes) else str(value)


def _read_list(path: Path) -> tuple[list[str], list[str | None]]:
    paths: list[str] = []
    labels: list[str | None] = []
    for number, line in enumerate(io.StringIO(_read_text(path), newline=None), 1):
        words = line.strip().rsplit(maxsplit=1)
        if not words:
            continue
        paths.append(words[0])
        labels.append(words[1] if len(words) == 2 else None)
        if (labels[-1] is None) != (labels[0] is None):
            raise SafdaError(f"{path}: line {number} is not 'path label', though others are")
    return paths, labels


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SafdaError(f"{path}: is not a text file in UTF-8; a list has 'path label' on each line") from None


def _parquet_columns(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise SafdaError("reading .parquet needs pyarrow: pip install pyarrow") from None
    with reading(path, ".parquet file"):
        columns: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    return columns


def make_listing(path: Path, paths: Sequence[str], labels: Sequence[str | None]) -> Listing:
    """Make a listing of the paths that a file names.

    Args:
        path: the file; what it names is relative to its folder, to one above it, or to the working folder.
        paths: the pictures.
        labels: the class of each; None for all of them makes the domain an unlabelled one.
    """
    root = _find_root(path, paths[0]) if paths else path.parent
    files, ids = tuple(root / each for each in paths), unique_ids(list(map(sample_id, paths)))
    if not paths or labels[0] is None:
        return Listing(str(path), files, ids)
    names = _class_names(files, [str(label) for label in labels])
    classes = dict.fromkeys(name for _, name in sorted(zip(map(_sort_key, map(str, labels)), names, strict=True)))
    return Listing(str(path), files, ids, tuple(names), tuple(classes))


def _find_root(path: Path, first: str) -> Path:
    """Find what a list's paths are relative to: its own folder, one above it, or the working folder."""
    for folder in (*path.absolute().parents, Path.cwd()):
        if (folder / first).is_file():
            return folder
    raise SafdaError(f"{path}: {first!r} is in neither the list's folder, nor one above it, nor the working folder")


def _class_names(files: Sequence[Path], labels: list[str]) -> list[str]:
    """Name numbered classes by the folders of their pictures, where each number has a folder of its own."""
    folders = [_class_name(file.parent.name) for file in files]
    pairs = set(zip(labels, folders, strict=True))
    if all(label.isdecimal() for label in labels) and len(pairs) == len(set(labels)) == len(set(folders)):
        return folders
    return [_normalize(label) for label in labels]


def _sort_key(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() else (-1, label)
