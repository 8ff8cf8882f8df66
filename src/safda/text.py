"""Text that others wrote (names of classes, files and folders), made harmless for whatever it is printed in.

A terminal obeys control characters, rich reads brackets, Markdown and LaTeX have marks of their own, and a spreadsheet
computes a cell that begins like a formula. Whoever prints such text sends it through one of these.
"""

from __future__ import annotations

import json
import re
from typing import Any

# What a terminal obeys, what turns the direction of a line, what ends one, what no encoding can hold, and tags.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|]")
_LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "\\textquotedbl{}",
    "→": "$\\to$",
    "η": "$\\eta$",
    "–": "--",
}
_FORMULA = re.compile(r"[=+\-@\t\r\n]")


def printable(text: object) -> str:
    """Return a text in one line that no terminal obeys: control characters and the like as JSON escapes them.

    >>> print(printable("red \\x1b[31m, two\\nlines"))
    red \\u001b[31m, two\\nlines
    """
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], str(text))


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that can be printed and written anywhere, and reads as it was."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "\n".join(map(printable, text.split("\n")))  # within a text, json has escaped them already


def markdown(text: object) -> str:
    """Return a text for a cell or a line of Markdown.

    >>> print(markdown("a|b <c>"))
    a\\|b \\<c\\>
    """
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def latex(text: object) -> str:
    """Return a text for LaTeX.

    >>> print(latex("50% of A→B"))
    50\\% of A$\\to$B
    """
    return "".join(_LATEX.get(each, each) for each in printable(text))


def csv_cell(value: Any) -> Any:
    """Return a value for a cell that no spreadsheet computes: a text that begins like a formula gets an apostrophe.

    >>> csv_cell("=1+1"), csv_cell("-1"), csv_cell(-1.5), csv_cell("a-b")
    ("'=1+1", '-1', -1.5, 'a-b')
    """
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if _FORMULA.match(value) and not _is_number(value) else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
