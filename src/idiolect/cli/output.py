"""What commands write: a run directory, progress, one JSON value or a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import given_folder, resume_command
from ..core.knobs import nearest
from ..report.clients import clients_view
from ..report.console import ERR, OUT
from ..report.plots import AXES
from ..report.progress import RoundCounter, Style, rounds_meter, style_of
from ..report.tables import ALSO, read_also
from ..run.interrupts import Interrupted
from ..run.result import Result
from ..study.comparison import Comparison
from .options import Parser


def emit(as_json: bool, value: Any, *views: Any) -> None:
    """Print the value as one line of JSON, or what people see instead."""
    if as_json:
        print(json.dumps(value))
        return
    for view in views:
        OUT.print(view, highlight=False)


@dataclass(frozen=True)
class Output:
    """What a command that trains shows, and how."""

    json: bool
    quiet: bool
    against: tuple[str, ...] = ()  # the panels of curves.png; () = all
    clients_table: bool = False
    also: tuple[str, ...] = ()  # further columns of the table

    @classmethod
    def of(cls, parsed: Any) -> Output:
        """As the flags say; refuses an unknown panel or column before anything is trained."""
        return cls(
            parsed.json,
            getattr(parsed, "quiet", False),
            panels(getattr(parsed, "against", None)),
            getattr(parsed, "clients_table", False),
            read_also(getattr(parsed, "also", None)),
        )

    @property
    def style(self) -> Style:
        """How progress is shown."""
        return "none" if self.quiet else style_of(lines=True)

    def meter(self, total: int) -> AbstractContextManager[RoundCounter]:
        """Progress over all rounds of all seeds: rounds per second and the current accuracy."""
        return rounds_meter(total, self.style)

    def show_clients(self, result: Result | Comparison) -> None:
        """The clients by name, if the user wants them; stdout is for JSON alone."""
        if self.clients_table:
            (ERR if self.json else OUT).print(clients_view(result))


def directory_for(path: str | None, name: str) -> Path:
    """The run directory: the user's, or a new one named by time and method."""
    if path:
        return given_folder(path, "directory")
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace(':', '.')}"
    directory = base
    number = 1
    while directory.exists():
        directory = base.with_name(f"{base.name}-{number}")
        number += 1
    return directory


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """An interrupted run says how to continue it."""
    try:
        yield
    except Interrupted as stop:
        text = f"{stop}; continue with: {resume_command(directory)}"
        raise Interrupted(text, stop.number) from None


# -- flags of commands that show results ---------------------------------------------------------
def add_against(parser: Parser) -> None:
    """--against, of commands that draw curves."""
    parser.add_argument(
        "--against",
        metavar="WHAT",
        help=f"panels of curves.png: {', '.join(AXES)}; several with commas "
        "(default rounds,bytes,gradients,seconds; time in place of seconds where there is a clock)",
    )


def panels(text: str | None) -> tuple[str, ...]:
    """The panels that the user names; () = the default.

    >>> panels("rounds, bytes"), panels(None)
    (('rounds', 'bytes'), ())
    """
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        if name not in AXES:
            raise nearest(name, AXES, "against")
    return names


def add_clients_table(parser: Parser) -> None:
    """--clients-table: is anyone left behind?"""
    parser.add_argument(
        "--clients-table",
        action="store_true",
        help="clients by name: best, median, worst, and who gains or loses against Local",
    )


def add_also(parser: Parser) -> None:
    """--also: optional columns of the table."""
    what = "; ".join(f"{name}: {text}" for name, text in ALSO.items())
    parser.add_argument(
        "--also", metavar="COLUMNS", help=f"further columns, several with commas: {what}"
    )
