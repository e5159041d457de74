"""Flags of commands that show results: panels of a picture, the table of clients, columns."""

from __future__ import annotations

from ..core.knobs import nearest
from ..report.also import ALSO
from ..report.curve_picture import AXES
from .flags import Parser


def add_against(parser: Parser) -> None:
    """--against, of commands that draw curves."""
    parser.add_argument(
        "--against",
        metavar="WHAT",
        help=f"panels of curves.png: {', '.join(AXES)}; several with commas "
        "(default rounds,bytes,gradients,seconds; time in place of seconds where there is a clock)",
    )


def add_clients_table(parser: Parser) -> None:
    """--clients-table: is anyone left behind?"""
    parser.add_argument(
        "--clients-table",
        action="store_true",
        help="clients by name: best, median, worst, and who gains or loses against Local",
    )


def add_also(parser: Parser) -> None:
    """--also: columns that no table has of itself."""
    what = "; ".join(f"{name}: {text}" for name, text in ALSO.items())
    parser.add_argument(
        "--also", metavar="COLUMNS", help=f"further columns, several with commas: {what}"
    )


def panels(given: str | None) -> tuple[str, ...]:
    """The panels that were asked for; () = the default.

    >>> panels("rounds, bytes"), panels(None)
    (('rounds', 'bytes'), ())
    """
    names = tuple(name.strip() for name in (given or "").split(",") if name.strip())
    for name in names:
        if name not in AXES:
            raise nearest(name, AXES, "against")
    return names
