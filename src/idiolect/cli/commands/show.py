"""`idiolect show`: what runs of the past came to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.files import given_path, resume_command
from ...core.knobs import SettingError
from ...report.clients import clients_view
from ...report.console import ERR, OUT, say
from ...report.plots import curve_picture, default_panels, delay_picture
from ...report.tables import read_also, results_table
from ...report.targets import Goals, curve
from ...run.result import Result
from ...study.comparison import Comparison
from ...study.load import load
from ...study.manifest import COMPARE
from ...study.results import SWEEP, read_sweep
from ...study.tune import FINAL, TUNING
from ..options import Parser
from ..output import add_against, add_also, add_clients_table, panels


def show(argv: list[str]) -> None:
    """The table of one or many runs again."""
    parser = Parser("show", "The table of finished runs again; several runs in one table.")
    parser.add_argument("runs", nargs="+", help="directories of runs, comparisons, sweeps, tuning")
    parser.add_argument("--picture", help="also draw their curves into this PNG file")
    parser.add_argument("--delays", help="also draw delays and staleness of a run into this PNG")
    add_against(parser)
    add_clients_table(parser)
    add_also(parser)
    parser.add_json()
    parsed = parser.parse(argv)
    against = panels(parsed.against)
    also = read_also(parsed.also)
    if against and not parsed.picture:
        raise SettingError("against: it is about a picture; name its file: --picture curves.png")
    places = [_place(given_path(path, "runs")) for path in parsed.runs]
    swept = [place for place in places if (place / SWEEP).exists()]
    runs = {place: load(place) for place in places if place not in swept}
    if swept and (parsed.picture or parsed.clients_table):
        raise SettingError(
            f"runs: {swept[0]} is a sweep, which stores neither curves nor clients: its table is "
            "all that can be shown; for more, give a run the settings of interest"
        )
    rows = [row for place in swept for row in read_sweep(place)]
    goals = Goals()
    title = ""
    for path, one in runs.items():
        if isinstance(one, Comparison):
            rows += one.summary()
            goals = one.goals
            title = one.title
            continue
        rows.append(_named(one.summary(), path, len(places) > 1))
        data = one.record.data
        title = f"{data['name']}: {data['clients']} clients, d = {one.record.parameters}"
    if parsed.picture:
        _draw(list(runs.values()), rows, goals, given_path(parsed.picture, "picture"), against)
    if parsed.delays:
        _draw_delays(parsed.runs, given_path(parsed.delays, "delays"))
    if parsed.clients_table:
        for one in runs.values():
            (ERR if parsed.json else OUT).print(clients_view(one))
    if parsed.json:
        print(json.dumps(rows[0] if len(rows) == 1 else rows))
        return
    several = len({_data(row) for row in rows if "settings" in row}) > 1
    heading = "several federations" if several else title
    OUT.print(results_table(rows, heading, OUT.width, goals, also))


def _draw(
    runs: Sequence[Result | Comparison],
    rows: list[dict[str, Any]],
    goals: Goals,
    path: Path,
    against: tuple[str, ...],
) -> None:
    """The curves of all runs in one picture."""
    if path.suffix != ".png":
        raise SettingError(f"picture: {str(path)!r} is not accepted; a .png file")
    labels = iter(row["label"] for row in rows if row["seeds"])
    results = [r for one in runs for r in (one.results if isinstance(one, Comparison) else [one])]
    lines = [curve(next(labels), r.record.timed_rounds()) for r in results]
    drawn = curve_picture(lines, goals, path, against or default_panels(lines, goals))
    if not drawn:
        raise SettingError(
            "picture: nothing to draw; it needs evaluated rounds (eval_every) and matplotlib: "
            "pip install 'idiolect[plot]'"
        )
    say(f"picture: {path}")


def _draw_delays(runs: Sequence[str], path: Path) -> None:
    """How long the messages of a run took, and how stale they were."""
    if path.suffix != ".png":
        raise SettingError(f"delays: {str(path)!r} is not accepted; a .png file")
    if len(runs) > 1:
        raise SettingError(f"delays: {len(runs)} runs are not accepted; one run, one picture")
    if not delay_picture(given_path(runs[0], "runs"), path):
        raise SettingError(
            f"delays: nothing to draw in {runs[0]}; it needs delays-seed-*.csv (engine "
            "asynchronous, or the setting delays) and matplotlib: pip install 'idiolect[plot]'"
        )
    say(f"delays: {path}")


def _data(row: dict[str, Any]) -> str:
    return str(row["settings"]["data"])


def _named(row: dict[str, Any], path: Path, several: bool) -> dict[str, Any]:
    """A row whose label tells the run, where there are several."""
    return row | {"label": f"{row['label']} ({path.name})"} if several else row


def _place(directory: Path) -> Path:
    """Of a tuning, its final runs."""
    if not (directory / TUNING).exists():
        return directory
    if not (directory / FINAL / COMPARE).exists():
        raise SettingError(
            f"runs: the search in {directory} is not finished; continue it with: "
            f"{resume_command(directory)}"
        )
    say(f"{directory}: settings were chosen on validation data; these are the final runs")
    return directory / FINAL
