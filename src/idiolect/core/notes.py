"""What was guessed or changed about the user's data, said in one line on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

from .text import shown


def note(text: str) -> None:
    """One line for the user; nothing on stdout, which belongs to results."""
    with suppress(OSError, ValueError):  # a terminal that is gone must not cost the data
        print(f"note: {shown(text)}", file=sys.stderr)
