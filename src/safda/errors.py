"""The one type of error: what is wrong, where, and what to do, in one line; what becomes one; and what is no error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import Signals

from safda.text import printable

_LONGEST = 200  # characters of a foreign message


class SafdaError(Exception):
    """Anything a user can mend. The message is one line; the command line shows it without a traceback."""

    def __str__(self) -> str:
        return printable(super().__str__())  # it names files and classes, and those may hold anything


class Interrupted(KeyboardInterrupt):
    """A signal has ended a run, with all of it saved where it has a folder.

    It is no ``Exception``: whoever goes on after an error, a grid search say, must not go on after this.

    Attributes:
        step: how many steps were made.
        signal: what ended it.
        run: the run folder, if there is one.
    """

    def __init__(self, step: int, signal: Signals, run: Path | None = None) -> None:
        goes_on = f"; safda.resume({str(run)!r}) goes on with it" if run else ""
        super().__init__(f"stopped by {signal.name} after step {step}{goes_on}")
        self.step, self.signal, self.run = step, signal, run


class SafdaWarning(UserWarning):
    """Something that a user should know and may have meant. The command line shows it as a note."""

    def __str__(self) -> str:
        return printable(super().__str__())


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a damaged, lying or foreign file makes its reader stumble over into one line.

    Args:
        path: the file.
        kind: what it should be, such as ``.csv file``.
    """
    try:
        yield
    except SafdaError:
        raise
    except Exception as error:  # libraries promise no type
        raise SafdaError(f"{path}: is not a readable {kind}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return an error's message, or as much of it as a line can hold.

    >>> first_line(ValueError("no such thing\\nat line 3")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    line = next(iter(str(getattr(error, "strerror", None) or error).splitlines()), "") or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def first_few(names: Sequence[str], most: int = 3, *, count: bool = False) -> str:
    """Return the first names of a list, and whether there are more; with ``count``, how many there are in all.

    >>> first_few(["ant", "bee"]), first_few(["ant", "bee", "cat", "dog"])
    ('ant, bee', 'ant, bee, cat, …')
    >>> first_few(["ant", "bee", "cat", "dog"], count=True)
    'ant, bee, cat, … (4 in all)'
    """
    more = (f", … ({len(names)} in all)" if count else ", …") if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
