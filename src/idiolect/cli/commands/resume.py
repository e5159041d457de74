"""`idiolect resume`: continue a run, a comparison, a pipeline, a sweep or a search."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ...core.files import given_path
from ...core.knobs import SettingError
from ...core.registry import names_in
from ...run.identity import read_identity
from ...run.plan import Plan
from ...study.manifest import read_comparison, read_pipeline
from ..options import Parser
from ..output import Output, add_clients_table
from . import sweep, tune
from .train import BASELINES, compare_plans, pipeline_plans, run_plan


def resume(argv: list[str]) -> None:
    """Continue an interrupted run."""
    parser = Parser(
        "resume", "Continue an interrupted run to exactly the result it would have had."
    )
    parser.add_argument("run", help="the run's directory")
    add_clients_table(parser)
    parser.add_json()
    parser.add_argument("--quiet", action="store_true", help="no progress")
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
    if (path / sweep.SWEEP).exists():
        _refuse_changes(
            parsed,
            f"{path} is a sweep, whose runs stay as they are: another `idiolect sweep` with this "
            "--directory adds to it",
        )
        sweep.resume(path, Output.of(parsed))
        return
    if (path / tune.TUNING).exists():
        _refuse_changes(parsed, f"{path} is a tuning, whose runs stay as they are")
        tune.resume(path, Output.of(parsed))
        return
    if (path / "compare.json").exists():
        saved = read_comparison(path)
        if "plans" not in saved:
            raise _made_in_python(path, "compare")
        saved = {**BASELINES, **saved}
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        compare_plans(plans, saved, path, Output.of(parsed), how)
        return
    if (path / "pipeline.json").exists():
        saved = read_pipeline(path)
        if "plans" not in saved:
            raise _made_in_python(path, "pipeline")
        if parsed.rounds is not None:
            raise SettingError(
                f"rounds: {parsed.rounds} is not accepted; {path} is a pipeline, whose stages have "
                "rounds of their own (METHOD@ROUNDS)"
            )
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        pipeline_plans(plans, path, Output.of(parsed), how)
        return
    if not (path / "settings.json").exists():
        raise SettingError(f"directory: {path} holds no run (settings.json is missing)")
    origin = read_identity(path)["origin"]
    if not origin:
        raise _made_in_python(path, "run")
    plan = Plan.read(origin, f"directory: origin in {path / 'settings.json'}")
    if not plan.data:
        raise SettingError(
            f"resume: the data of {path} are with its sites; "
            "continue it with: idiolect deploy run FOLDER --resume"
        )
    run_plan(_changed(plan, parsed), path, Output.of(parsed), how)


def _refuse_changes(parsed: Any, reason: str) -> None:
    """Settings of a single run mean nothing for many of them."""
    for name in ("rounds", "threads", "memory", "force", "clients_table"):
        value = getattr(parsed, name)
        if value not in (None, False):
            raise SettingError(f"{name}: {value!r} is not accepted; {reason}")


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
