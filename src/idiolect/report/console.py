"""The two consoles: tables on stdout, everything else on stderr.

What is printed may hold names that others chose. `literal` and `say` show them as text: never as
markup, an emoji's name or an escape sequence.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ..core.text import shown

ERR = Console(stderr=True)
WIDE = 140  # columns of a file or a pipe, unless COLUMNS says
OUT = Console() if sys.stdout.isatty() else Console(width=WIDE)

# our own signs where the terminal has ASCII only: of the same width, so that columns stay in line
PLAIN = str.maketrans("±–—…★†·×≥≤’ᵀ", "~--~*!.x><'T")


def literal(text: object, style: str = "") -> Text:
    """Text for a cell, a title or a line, as it is.

    >>> literal("[/oops] :smile:").plain
    '[/oops] :smile:'
    """
    return Text(shown(text), style=style)


def say(text: str) -> None:
    """A line on stderr; a long one is not broken, so that paths in it can be copied."""
    ERR.print(literal(text), soft_wrap=True)


def fit_pipe() -> None:
    """Give what is written to a file or a pipe as many columns as COLUMNS says."""
    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        OUT.width = int(columns) if columns.isdigit() and int(columns) else WIDE


def print_anything() -> None:
    """Let stdout and stderr take any text: what their encoding lacks is replaced, never an error.

    rich draws its boxes in ASCII where the encoding is not UTF.
    """
    codecs.register_error("idiolect-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="idiolect-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The error handler: our own signs by their likes, other characters by their escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end].translate(PLAIN)
    return lost.encode("ascii", "backslashreplace").decode("ascii"), error.end


def lines(text: Any) -> str:
    """Several lines, each shown as text."""
    return "\n".join(shown(line) for line in str(text).split("\n"))
