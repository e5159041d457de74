"""Folders of several runs: begun once, described by a file that is read warily, and filled."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..core.documents import expect_fields
from ..core.files import (
    disk_is_full,
    on_disk,
    private_folder,
    read_document,
    resume_command,
    write_document,
)
from ..core.knobs import SettingError, build
from ..data.federation import Federation
from ..report.progress import RoundReport
from ..report.targets import Goals
from ..run.callbacks import Callbacks
from ..run.plan import Plan
from ..run.result import Result
from ..run.run import run
from ..run.session import Start
from ..run.settings import Settings
from ..task.groups import AnyTask

COMPARE = "compare.json"
PIPELINE = "pipeline.json"
SWEEP = "sweep.json"
TUNING = "tune.json"
_TAKEN = dict.fromkeys((COMPARE, PIPELINE, "settings.json"), "a run")
_TAKEN |= {SWEEP: "a sweep", TUNING: "a tuning"}
Reporter = Callable[[str, int, int], RoundReport]  # name, first seed, rounds -> progress of a run
_Figures = dict[str, float | None]
_COMPARISON = {
    "baselines": bool,
    "count": str,
    "folders": list[str],
    "plans": list[dict[str, Any]],
    "rounds": list[int],
    "trees": bool | None,
    # when it is finished
    "skipped": dict[str, str],
    "note": str,
    "labels": list[str],
    "goals": dict[str, Any],
    "majority": dict[str, Any] | None,
    "tree_rows": list[dict[str, Any]],
    "title": str,
}
_MAY_MISS = {"baselines", "count", "plans", "rounds", "skipped", "note", "trees", "tree_rows"}
_GOALS = {
    "budget": int,
    "target": float | None,
    "count": str,
    "metric": str,
    "higher": bool,
}
_MAJORITY = {
    "method": str,
    "label": str,
    "rounds": int,
    "seeds": list[int],
    "accuracy": _Figures,
    "loss": _Figures,
    "bytes": dict[str, int],
    "values": dict[str, float],
    "gradients_per_client": float,
    "seconds": float,
    "rejected": int,
    "metrics": dict[str, _Figures],
}
_STAGE = {"method": str, "rounds": int}


def begin_folder(path: Path, name: str, description: dict[str, Any]) -> None:
    """A new folder of several runs, with the file that describes them."""
    refuse_taken(path)
    try:
        private_folder(path)
        write_document(path / name, description)
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"directory: cannot write to {path}: {reason}") from None


def refuse_taken(path: Path) -> None:
    """Refuse a directory that holds a run, or several of them."""
    for name, what in _TAKEN.items():
        if (path / name).exists():
            raise SettingError(
                f"directory: {path} already holds {what}; choose another, or: "
                f"{resume_command(path)}"
            )


@dataclass(frozen=True)
class RunSeries:
    """Runs on the same data one after the other, each in a folder of its own."""

    task: AnyTask
    federation: Federation
    path: Path | None  # of the folders
    resume: bool | str
    report: Reporter | None
    progress: bool | None
    callbacks: Callbacks

    def run(
        self,
        plan: Plan,
        folder: str,
        name: str,
        settings: dict[str, Any],
        start: dict[int, Start] | None = None,
    ) -> Result:
        """Run a plan, or continue it where it was begun; `name` is that of its progress.

        Where a full disk has no room for its folder it is run without one.
        """
        directory = None if self.path is None else self.path / folder
        begun = self.resume and directory is not None and (directory / "settings.json").exists()
        s = build(Settings, settings, "run")
        train = partial(
            run,
            plan.make_method(),
            self.task,
            self.federation,
            origin=plan.as_dict() if plan.is_named else None,
            resume=self.resume if begun else False,
            progress=self.report(name, s.seed, s.rounds) if self.report else self.progress,
            start=start,
            **vars(self.callbacks),
            **settings,
        )
        try:
            return train(directory=directory)
        except SettingError as error:
            is_there = directory is None or (directory / "settings.json").exists()
            if is_there or not disk_is_full(error):
                raise
            with on_disk(f"the run {folder}", directory):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            return train(directory=None)


def read_comparison(directory: Path) -> dict[str, Any]:
    """compare.json of a comparison, finished or not; SettingError names what is wrong in it."""
    path = directory / COMPARE
    saved = read_document(path, dict[str, Any])
    finished = "labels" in saved
    try:
        expect_fields(saved, _COMPARISON, set(_COMPARISON) - {"folders"})
        if finished:
            expect_fields(saved, _COMPARISON, _MAY_MISS)
            expect_fields(saved["goals"], _GOALS, {"metric", "higher"}, place="goals")
            if saved["majority"] is not None:
                expect_fields(saved["majority"], _MAJORITY, {"metrics"}, place="majority")
            for number, row in enumerate(saved.get("tree_rows", ())):
                expect_fields(row, _MAJORITY, {"metrics"}, place=f"tree_rows[{number}]")
            if len(saved["labels"]) != len(saved["folders"]):
                raise ValueError("labels and folders are not as many")
            Goals(**saved["goals"])
        for name in saved["folders"]:
            _check_inside(directory, name)
        for number, plan in enumerate(saved.get("plans", ())):
            Plan.read(plan, f"plans[{number}]")
    except ValueError as error:
        raise SettingError(f"directory: cannot use {path}: {error}") from None
    return saved


def read_pipeline(directory: Path) -> dict[str, Any]:
    """pipeline.json of a pipeline; SettingError names what is wrong in it."""
    path = directory / PIPELINE
    saved = read_document(path, dict[str, Any])
    try:
        hints = {"stages": list[dict[str, Any]], "plans": list[dict[str, Any]]}
        expect_fields(saved, hints, {"plans"})
        for number, stage in enumerate(saved["stages"]):
            expect_fields(stage, _STAGE, place=f"stages[{number}]")
        for number, plan in enumerate(saved.get("plans", ())):
            Plan.read(plan, f"plans[{number}]")
        if not saved["stages"] or len(saved.get("plans", saved["stages"])) != len(saved["stages"]):
            raise ValueError("stages and plans are not as many")
    except ValueError as error:
        raise SettingError(f"directory: cannot use {path}: {error}") from None
    return saved


def _check_inside(directory: Path, name: str) -> None:
    """Refuse a name that leaves the directory, by itself or through a link."""
    plain = name not in ("", ".", "..") and not set(name) & set("/\\:\0")
    if not plain:
        raise ValueError(f"folders: {name[:80]!r} does not lie in the directory")
    try:
        kind = (directory / name).lstat().st_mode
    except FileNotFoundError:
        return  # resume runs it again, load says what is missing
    except OSError as error:
        raise ValueError(f"folders: {name[:80]!r}: {error.strerror}") from None
    if not stat.S_ISDIR(kind):
        raise ValueError(f"folders: {name[:80]!r} is not a folder itself")
