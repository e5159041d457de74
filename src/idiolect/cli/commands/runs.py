"""`idiolect show` and `idiolect resume`: runs of the past, finished or interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.files import given_path, resume_command
from ...core.knobs import SettingError
from ...core.registry import names_in
from ...report.console import say
from ...report.plots import curve_picture, default_panels, delay_picture
from ...report.tables import results_table
from ...report.targets import Goals, curve
from ...run.identity import RunIdentity
from ...run.plan import Plan
from ...run.result import Result
from ...study.compare import Comparison
from ...study.folders import COMPARE, SWEEP, TUNING, read_comparison, read_pipeline
from ...study.load import load
from ...study.many import read_sweep
from ...study.tune import FINAL
from ..options import Parser
from ..output import Output, emit
from .study import resume_sweep, resume_tune
from .train import BASELINES, compare_plans, pipeline_plans, run_plan


def show(argv: list[str]) -> None:
    """The table of one or many runs again."""
    parser = Parser("show", output=("json", "against", "clients_table", "also"))
    parser.add_argument("runs", nargs="+", help="directories of runs, comparisons, sweeps, tuning")
    parser.add_argument("--picture", help="also draw their curves into this PNG file")
    parser.add_argument("--delays", help="also draw delays and staleness of a run into this PNG")
    parsed = parser.parse(argv)
    output = parsed.output
    if output.against and not parsed.picture:
        raise SettingError("against: it is about a picture; name its file: --picture curves.png")
    places = [_place(given_path(path, "runs")) for path in parsed.runs]
    swept = [place for place in places if (place / SWEEP).exists()]
    runs = {place: load(place) for place in places if place not in swept}
    if swept and (parsed.picture or output.clients_table):
        raise SettingError(
            f"runs: {swept[0]} is a sweep, which stores neither curves nor clients: its table is "
            "all that can be shown; for more, give a run the settings of interest"
        )
    rows = [row for place in swept for row in read_sweep(place)]
    goals = Goals()
    title = ""
    for place, one in runs.items():
        if isinstance(one, Comparison):
            rows += one.summary()
            goals = one.goals
            title = one.title
            continue
        row = one.summary()
        rows.append(row | {"label": f"{row['label']} ({place.name})"} if places[1:] else row)
        data = one.record.data
        title = f"{data['name']}: {data['clients']} clients, d = {one.record.parameters}"
    if parsed.picture:
        _draw(
            list(runs.values()), rows, goals, given_path(parsed.picture, "picture"), output.against
        )
    if parsed.delays:
        _draw_delays(parsed.runs, given_path(parsed.delays, "delays"))
    for one in runs.values():
        output.show_clients(one)
    several = len({str(row["settings"]["data"]) for row in rows if "settings" in row}) > 1
    heading = "several federations" if several else title
    table = results_table(rows, heading, goals=goals, also=output.also)
    emit(output.json, rows[0] if len(rows) == 1 else rows, table)


def _draw(
    runs: Sequence[Result | Comparison],
    rows: list[dict[str, Any]],
    goals: Goals,
    path: Path,
    against: tuple[str, ...],
) -> None:
    """The curves of all runs in one picture."""
    if path.suffix != ".png":
        raise SettingError(f"picture must be a .png file, got {str(path)!r}")
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
        raise SettingError(f"delays must be a .png file, got {str(path)!r}")
    if len(runs) > 1:
        raise SettingError(f"delays must be of one run, got {len(runs)} runs")
    if not delay_picture(given_path(runs[0], "runs"), path):
        raise SettingError(
            f"delays: nothing to draw in {runs[0]}; it needs delays-seed-*.csv (engine "
            "asynchronous, or the setting delays) and matplotlib: pip install 'idiolect[plot]'"
        )
    say(f"delays: {path}")


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


def resume(argv: list[str]) -> None:
    """Continue an interrupted run."""
    parser = Parser("resume", output=("json", "quiet", "clients_table"))
    parser.add_argument("run", help="the run's directory")
    parser.add_argument(
        "--force",
        action="store_true",
        help="also with changed code: the result may differ from that of an uninterrupted run",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the user's own code (module:Name) that the directory names",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="train up to this many rounds, more than before (default: as before)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: as before)")
    parser.add_argument("--memory", type=float, help="GiB, as in: idiolect run")
    parsed = parser.parse(argv)
    path = given_path(parsed.run, "run")
    with names_in(path, parsed.trust):
        _resume(path, parsed)


def _resume(path: Path, parsed: Any) -> None:
    """Continue whatever the directory has."""
    how: bool | str = "force" if parsed.force else True
    output: Output = parsed.output
    if (path / SWEEP).exists():
        _refuse_changes(
            parsed,
            f"{path} is a sweep, whose runs stay as they are: another `idiolect sweep` with this "
            "--directory adds to it",
        )
        resume_sweep(path, output)
        return
    if (path / TUNING).exists():
        _refuse_changes(parsed, f"{path} is a tuning, whose runs stay as they are")
        resume_tune(path, output)
        return
    if (path / COMPARE).exists():
        saved = read_comparison(path)
        if "plans" not in saved:
            raise _made_in_python(path, "compare")
        saved = {**BASELINES, **saved}
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        compare_plans(plans, saved, path, output, how)
        return
    if (path / "pipeline.json").exists():
        saved = read_pipeline(path)
        if "plans" not in saved:
            raise _made_in_python(path, "pipeline")
        if parsed.rounds is not None:
            raise SettingError(
                f"rounds must be those of the stages (METHOD@ROUNDS), got {parsed.rounds}: {path} "
                "is a pipeline"
            )
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        pipeline_plans(plans, path, output, how)
        return
    if not (path / "settings.json").exists():
        raise SettingError(f"directory: {path} holds no run (settings.json is missing)")
    origin = RunIdentity.read(path).origin
    if not origin:
        raise _made_in_python(path, "run")
    plan = Plan.read(origin, f"directory: origin in {path / 'settings.json'}")
    if not plan.data:
        raise SettingError(
            f"resume: the data of {path} are with its sites; "
            "continue it with: idiolect deploy run FOLDER --resume"
        )
    run_plan(_changed(plan, parsed), path, output, how)


def _refuse_changes(parsed: Any, reason: str) -> None:
    """Settings of a single run mean nothing for many of them."""
    for name in ("rounds", "threads", "memory", "force"):
        if getattr(parsed, name) not in (None, False):
            raise SettingError(f"{name}: it is of single runs; {reason}")
    if parsed.output.clients_table:
        raise SettingError(f"clients_table: it is of single runs; {reason}")


def _changed(plan: Plan, parsed: Any) -> Plan:
    """The plan with the settings that the user changes."""
    flags = {"rounds": parsed.rounds, "threads": parsed.threads, "memory": parsed.memory}
    new = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(plan, settings={**plan.settings, **new})


def _made_in_python(path: Path, function: str) -> SettingError:
    return SettingError(
        f"resume: {path} was started from Python with the user's own data; "
        f"continue it there: idiolect.{function}(..., resume=True)"
    )
