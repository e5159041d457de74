"""What commands write: a run directory, progress, one JSON value or a table."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from ..core.files import given_folder, given_path, resume_command
from ..core.knobs import Knobs, SettingError, knob
from ..data.federation import Federation
from ..report.clients import clients_view, refuse_pooled_clients
from ..report.console import ERR, OUT
from ..report.plots import AXES
from ..report.progress import RoundMeter, Style, style_of
from ..report.tables import ALSO, read_also, read_names
from ..run.interrupts import Interrupted
from ..run.result import Result
from ..run.settings import Settings
from ..study.compare import Comparison


@dataclass(frozen=True)
class Output(Knobs):
    """The flags on output: what a command shows and where it writes."""

    directory: str = knob("", "where the run is written; '' = runs/<time>-<name>")
    json: bool = knob(False, "print one JSON value on stdout, everything else on stderr")
    quiet: bool = knob(False, "no progress")
    against: tuple[str, ...] = knob(
        (),
        f"panels of curves.png: {', '.join(AXES)}; several with commas; '' = rounds, bytes, "
        "gradients and seconds, or time where there is a clock",
        parse=lambda value: read_names(value, AXES, "against"),
        write=",".join,
    )
    clients_table: bool = knob(
        False, "clients by name: best, median, worst, and who gains or loses against Local"
    )
    also: tuple[str, ...] = knob(
        (),
        "further columns, several with commas: "
        + "; ".join(f"{name}: {text}" for name, text in ALSO.items()),
        parse=read_also,
        write=",".join,
    )

    @property
    def style(self) -> Style:
        """How progress is shown."""
        return "none" if self.quiet else style_of(lines=True)

    def meter(self, total: int) -> RoundMeter:
        """Progress over all rounds of all seeds: rounds per second and the current accuracy."""
        return RoundMeter(total, self.style)

    def check_clients(self, federation: Federation, settings: Settings) -> None:
        """Refuse a table of clients that the run could not fill, before it starts."""
        if self.clients_table and settings.data_seeds and federation.draw is not None:
            refuse_pooled_clients(federation.draw.draws, settings.seeds)

    def show_clients(self, result: Result | Comparison) -> None:
        """The clients by name, if the user wants them; stdout is for JSON alone."""
        if self.clients_table:
            (ERR if self.json else OUT).print(clients_view(result))

    def show_subgroups(self, result: Result | Comparison) -> None:
        """Figures by subgroup, where the data have subgroups; JSON has them already."""
        if not self.json:
            for table in result.subgroups.tables(self.clients_table):
                OUT.print(table)

    def new_directory(self, name: str) -> Path:
        """The run directory: the user's, or a new one named by time and method."""
        if self.directory:
            return given_folder(self.directory, "directory")
        base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace(':', '.')}"
        directory = base
        number = 1
        while directory.exists():
            directory = base.with_name(f"{base.name}-{number}")
            number += 1
        return directory


def emit(as_json: bool, value: Any, *views: Any) -> None:
    """Print the value as one line of JSON, or what people see instead."""
    if as_json:
        print(dumps(value))
        return
    for view in views:
        OUT.print(view, highlight=False)


def add_page(parser: ArgumentParser) -> None:
    """The flag --page."""
    parser.add_argument("--page", metavar="FILE.html", help="also write it as a page for a browser")


def page_path(text: str) -> Path:
    """The file that a page is written to."""
    path = given_path(text, "page")
    if path.suffix.lower() not in (".html", ".htm") or not path.parent.is_dir():
        raise SettingError(f"page must be a file FILE.html in a folder that exists, got {text!r}")
    return path


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """An interrupted run says how to continue it."""
    try:
        yield
    except Interrupted as stop:
        text = f"{stop}; continue with: {resume_command(directory)}"
        raise Interrupted(text, stop.number) from None
