"""`idiolect card`: what a run trained, on what, and for whom it works, as Markdown."""

from __future__ import annotations

from pathlib import Path

from ...core.files import given_path
from ...core.knobs import SettingError
from ...core.text import first_line
from ...report.console import say
from ...run.predict import labels_of, preparation_of
from ...run.record import read_record
from ...run.result import Result
from ...study.folders import COMPARE, read_comparison
from ..options import Parser
from ..output import emit

LOCAL = "local"


def card(argv: list[str]) -> None:
    """The card of one run, from its record; for a run of a comparison with its Local."""
    parser = Parser("card", output=("json",))
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("-o", "--out", help="the Markdown file to write (default: on stdout)")
    parser.add_argument(
        "--local",
        help="the directory of a run of Local on the same data (default: that of the comparison "
        "that RUN is part of)",
    )
    parsed = parser.parse(argv)
    path = given_path(parsed.run, "run")
    if (path / COMPARE).exists():
        inside = ", ".join(str(path / name) for name in read_comparison(path)["folders"])
        raise SettingError(f"run: {path} is a comparison; a card is of one run inside: {inside}")
    local = given_path(parsed.local, "local") if parsed.local else _local_beside(path)
    if local is not None and local.resolve() == path.resolve():
        local = None
    file = given_path(parsed.out, "out") if parsed.out else None
    alone = None if local is None else Result(read_record(local))
    record = read_record(path)
    labels_of(record.data)
    preparation_of(record.data)
    try:
        text = Result(record).card(file, alone)
    except (AttributeError, KeyError, TypeError) as error:  # a record may come from anyone
        raise SettingError(f"run: cannot use {path / 'record.json'}: {first_line(error)}") from None
    if file is not None:
        emit(parsed.output.json, {"card": str(file)})
        say(f"card: {file}")
    elif parsed.output.json:
        emit(True, {"card": text})
    else:
        print(text, end="")


def _local_beside(path: Path) -> Path | None:
    """The run of Local with the most gradients in the comparison that a run is part of."""
    comparison = path.resolve().parent
    if not (comparison / COMPARE).exists():
        return None
    folders = [comparison / name for name in read_comparison(comparison)["folders"]]
    costs = {}
    for folder in folders:
        if (folder / "record.json").exists():
            record = read_record(folder)
            if record.method == LOCAL:
                costs[folder] = record.seeds[0].gradients_per_client
    return max(costs, key=lambda folder: costs[folder], default=None)
