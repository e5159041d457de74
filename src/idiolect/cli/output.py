"""What commands that train have in common: a progress bar, a directory, a word on how to resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..core.files import given_folder, resume_command
from ..core.knobs import nearest
from ..report.plots import AXES
from ..report.progress import RoundCounter, rounds_meter, style_of
from ..report.tables import ALSO
from ..run.interrupts import Interrupted
from .options import Parser


def directory_for(given: str | None, name: str) -> Path:
    """The run directory: as given, or a new one named by time and method."""
    if given:
        return given_folder(given, "directory")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{name.replace(':', '.')}"
    path = base
    number = 1
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """An interrupted run says how to continue it."""
    try:
        yield
    except Interrupted as stop:
        text = f"{stop}; continue with: {resume_command(directory)}"
        raise Interrupted(text, stop.number) from None


def meter(total: int, quiet: bool) -> AbstractContextManager[RoundCounter]:
    """Progress over all rounds of all seeds: rounds per second and the current accuracy."""
    return rounds_meter(total, "none" if quiet else style_of(lines=True))


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
