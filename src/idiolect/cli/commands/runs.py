"""`idiolect show` and `idiolect resume`: runs of the past, finished or interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.files import given_path, resume_command
from ...core.knobs import Knobs, SettingError, knob
from ...core.plotting import NO_MATPLOTLIB, can_plot
from ...core.registry import names_in
from ...core.text import plural
from ...report.console import say
from ...report.plots import curve_picture, default_panels, delay_picture
from ...report.tables import results_table, settings_table
from ...report.targets import Goals, curve
from ...run.identity import RunIdentity
from ...run.plan import Plan
from ...run.result import Result
from ...run.settings import Settings
from ...study.compare import Comparison
from ...study.folders import COMPARE, SWEEP, TUNING, read_comparison, read_pipeline
from ...study.load import load
from ...study.many import read_sweep
from ...study.tune import FINAL
from ..options import Parser
from ..output import Output, emit
from .study import resume_sweep, resume_tune
from .train import BASELINES, compare_plans, pipeline_plans, run_plan


@dataclass(frozen=True)
class ShowOptions(Knobs):
    """What is shown of sweeps."""

    show_test: bool = knob(
        False, "of sweeps: figures on test data, by which no setting should be chosen"
    )


def show(argv: list[str]) -> None:
    """The table of one or many runs again."""
    output_flags = ("json", "against", "clients_table", "also")
    parser = Parser("show", options=ShowOptions, output=output_flags)
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
    show_test = parsed.options.show_test
    if swept and output.also and not show_test:
        raise SettingError(
            f"also: {output.also[0]} is about test data, and {swept[0]} is a sweep, which is shown "
            "on validation data; --show-test shows it on test data"
        )
    if swept and runs and not show_test:
        raise SettingError(
            f"runs: {swept[0]} is a sweep, which is shown on validation data, and "
            f"{next(iter(runs))} a run, which is shown on test data: show them apart, or all of "
            "them on test data by --show-test"
        )
    if show_test and not swept:
        raise SettingError("show_test: it is about sweeps; runs are shown on test data as they are")
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
        sizes = ", ".join(map(str, one.record.model_sizes))
        title = f"{data['name']}: {plural(data['clients'], 'client')}, d = {sizes}"
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
    if swept:
        table = settings_table(rows, heading, 0, show_test, goals, output.also)
    else:
        table = results_table(rows, heading, goals=goals, also=output.also)
    emit(output.json, rows[0] if len(rows) == 1 else rows, table)
    for one in runs.values():
        output.show_subgroups(one)


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
        nothing = "picture: nothing to draw; it needs evaluated rounds (eval_every)"
        raise SettingError(nothing if can_plot() else NO_MATPLOTLIB)
    say(f"picture: {path}")


def _draw_delays(runs: Sequence[str], path: Path) -> None:
    """How long the messages of a run took, and how stale they were."""
    if path.suffix != ".png":
        raise SettingError(f"delays must be a .png file, got {str(path)!r}")
    if len(runs) > 1:
        raise SettingError(f"delays must be of one run, got {len(runs)} runs")
    if not delay_picture(given_path(runs[0], "runs"), path):
        nothing = (
            f"delays: nothing to draw in {runs[0]}; it needs delays-seed-*.csv (engine "
            "asynchronous, or the setting delays)"
        )
        raise SettingError(nothing if can_plot() else NO_MATPLOTLIB)
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


@dataclass(frozen=True)
class ResumeOptions(Knobs):
    """How a run is continued."""

    force: bool = knob(
        False, "also with changed code: the result may differ from that of an uninterrupted run"
    )
    trust: bool = knob(False, "run the user's own code (module:Name) that the directory names")


def resume(argv: list[str]) -> None:
    """Continue an interrupted run."""
    output = ("json", "quiet", "clients_table")
    parser = Parser("resume", options=ResumeOptions, output=output)
    parser.add_argument("run", help="the run's directory")
    fixed = {f.name for f in dataclasses.fields(Settings) if f.metadata["on_resume"] == "same"}
    parser.add_fields("run", Settings, "settings that may change (default: as before)", fixed)
    parsed = parser.parse(argv)
    path = given_path(parsed.run, "run")
    with names_in(path, parsed.options.trust):
        _resume(path, parser.values(parsed, "run"), parsed.options.force, parsed.output)


def _resume(path: Path, changes: dict[str, Any], force: bool, output: Output) -> None:
    """Continue whatever the directory has."""
    of_single_runs = [*changes, *["force"] * force, *["clients_table"] * output.clients_table]
    for file, kind, resume_many in (
        (SWEEP, "sweep", resume_sweep),
        (TUNING, "tuning", resume_tune),
    ):
        if (path / file).exists():
            if of_single_runs:
                raise SettingError(
                    f"{of_single_runs[0]}: {path} is a {kind}, whose runs stay as they are; "
                    f"`idiolect {file.removesuffix('.json')}` with this --directory may add to it"
                )
            resume_many(path, output)
            return

    def changed(plan: Plan) -> Plan:
        return dataclasses.replace(plan, settings={**plan.settings, **changes})

    how: bool | str = "force" if force else True
    if (path / COMPARE).exists():
        saved = read_comparison(path)
        if "plans" not in saved:
            raise _made_in_python(path, "compare")
        saved = {**BASELINES, **saved}
        plans = [changed(Plan(**p)) for p in saved["plans"]]
        compare_plans(plans, saved, path, output, how)
        return
    if (path / "pipeline.json").exists():
        saved = read_pipeline(path)
        if "plans" not in saved:
            raise _made_in_python(path, "pipeline")
        if "rounds" in changes:
            raise SettingError(
                "rounds must be those of the stages (METHOD@ROUNDS), got "
                f"{changes['rounds']}: {path} is a pipeline"
            )
        plans = [changed(Plan(**p)) for p in saved["plans"]]
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
    run_plan(changed(plan), path, output, how)


def _made_in_python(path: Path, function: str) -> SettingError:
    return SettingError(
        f"resume: {path} was started from Python with the user's own data; "
        f"continue it there: idiolect.{function}(..., resume=True)"
    )
