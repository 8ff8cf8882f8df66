"""The one exception type: what is wrong, where, and what to do, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SafdaError(Exception):
    """Anything a user can mend. The message is one line; the command line shows it without a traceback."""


class SafdaWarning(UserWarning):
    """Something that a user should know and may have meant. The command line shows it as a note."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that ``word`` was probably meant to be, as a phrase to end an error with.

    >>> nearest("marign", ["margin", "width"])
    "; did you mean 'margin'?"
    >>> nearest("zzz", ["margin", "width"])
    '; known: margin, width'
    """
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
