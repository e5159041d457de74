"""Lines on stderr that say what was assumed about the user's data, and how to overrule it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress

from .text import shown


def note(text: str) -> None:
    """A line for the user; nothing on stdout, which belongs to results."""
    with suppress(OSError, ValueError):  # a terminal that is gone must not cost a run
        print(f"note: {shown(text)}", file=sys.stderr)


def listed(items: Iterable[object], most: int = 5) -> str:
    """The first items of a list, and how many there are beyond them.

    >>> listed(["a", 3]), listed(range(100), most=2)
    ("'a', 3", '0, 1 and 98 more')
    """
    texts = [repr(item) for item in items]
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")
