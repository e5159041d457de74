"""Text of others, shown as text; and lines for the user.

Names of clients, classes, files and folders come from anywhere. `shown` is how they are printed:
nothing in them moves the cursor, colours the terminal or turns the line around. `csv_cell` is how
they stand in a table that a spreadsheet may open, `label` how they stand in a picture.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def shown(text: object, most: int = 0) -> str:
    """Text in one line of characters that can be seen; all others as escapes.

    Escaped are control characters (escape sequences and line ends among them), marks that reverse
    the direction of writing, characters without width, halves of characters. With `most`, a longer
    text ends in "...".

    >>> shown("Zürich 東京"), shown("\\x1b[31mred\\r\\n"), shown("a" * 50, most=8)
    ('Zürich 東京', '\\\\x1b[31mred\\\\r\\\\n', 'aaaaa...')
    """
    line = str(text)
    if most and len(line) > most:
        line = line[: max(0, most - 3)] + "..."
    return line if line.isprintable() else "".join(map(_visible, line))


def _visible(c: str) -> str:
    if c.isprintable() or unicodedata.category(c) == "Zs":  # spaces of other widths
        return c
    return c.encode("unicode_escape").decode("ascii")


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would take for a formula gets an apostrophe.

    Numbers stay as they are.

    >>> csv_cell("=1+1"), csv_cell("site 3"), csv_cell(-3)
    ("'=1+1", 'site 3', -3)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def label(text: object, most: int = 0) -> str:
    """Text for matplotlib, which reads "$...$" as mathematics.

    >>> print(label("5 $ and 3 $"))
    5 \\$ and 3 \\$
    """
    return shown(text, most).replace("$", r"\$")


_notes: ContextVar[set[str] | None] = ContextVar("notes that are not repeated", default=None)


@contextmanager
def notes_once() -> Iterator[None]:
    """Within it, each note is said the first time only: data that are read again have the same."""
    token = _notes.set(set())
    try:
        yield
    finally:
        _notes.reset(token)


def note(text: str) -> None:
    """A line for the user; nothing on stdout, which belongs to results."""
    earlier = _notes.get()
    if earlier is not None:
        if text in earlier:
            return
        earlier.add(text)
    with suppress(OSError, ValueError):  # a terminal that is gone must not cost a run
        print(f"note: {shown(text)}", file=sys.stderr)


_in_command: ContextVar[bool] = ContextVar("the user typed a command", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Within it, the user typed a command: `option` writes flags."""
    token = _in_command.set(True)
    try:
        yield
    finally:
        _in_command.reset(token)


def option(name: str, value: object = "") -> str:
    """An option as the user writes it: an argument in Python, a flag on the command line.

    >>> option("max_categories", 9), option("drop", "age"), option("trials")
    ('max_categories=9', "drop='age'", 'trials=')
    >>> with command_line():
    ...     print(option("max_categories", 9), option("drop", "age"), option("trials"))
    --max-categories 9 --drop age --trials
    """
    if _in_command.get():
        return f"--{name.replace('_', '-')} {value}".rstrip()
    return f"{name}={value!r}" if value != "" else f"{name}="


PRINT_IT = "print() shows the table"  # how to see more of a result than its repr has


def plural(number: int, noun: str, nouns: str = "") -> str:
    """A count with its noun; `nouns` where more than one is not the noun with an s.

    >>> plural(1, "file"), plural(2000, "file"), plural(0, "entry", "entries")
    ('1 file', '2,000 files', '0 entries')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def listed(items: Iterable[object], most: int = 5) -> str:
    """The first items of a list, and how many there are beyond them.

    >>> listed(["a", 3]), listed(range(100), most=2)
    ("'a', 3", '0, 1 and 98 more')
    """
    texts = [repr(item) for item in items]
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


_warned: ContextVar[set[str] | None] = ContextVar("texts of earlier warnings", default=None)


@contextmanager
def warnings_once() -> Iterator[None]:
    """Say each warning once, where many runs of one kind follow each other."""
    token = _warned.set(set())
    try:
        yield
    finally:
        _warned.reset(token)


def warn(text: str) -> None:
    """A warning for the user."""
    earlier = _warned.get()
    if earlier is not None:
        if text in earlier:
            return
        earlier.add(text)
    with suppress(OSError):  # a terminal that is gone must not cost a run
        print(f"warning: {shown(text)}", file=sys.stderr)


def first_line(error: Exception) -> str:
    """What an error says, in one line: its type and arguments where it has no text.

    >>> first_line(ValueError("no such layer\\nTraceback ...")), first_line(KeyError())
    ('no such layer', 'KeyError()')
    """
    return (str(error) or repr(error)).splitlines()[0]
