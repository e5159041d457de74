"""Runs of the past: what a run directory holds, as the objects that `run` and `compare` return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, build
from ..core.paths import resume_command
from ..core.registry import names_in
from ..data.federation import Federation
from ..methods import make_method
from ..report.goals import Goals
from ..task.task import Task
from .check import warn
from .compare import Comparison
from .directory import refuse_links
from .identity import check_same, identity_of, read_identity, run_number
from .manifest import COMPARE, PIPELINE, read_comparison
from .plan import Plan
from .restore import restore
from .result import Result, read_record
from .session import Session
from .settings import Settings


def load(
    directory: str | Path,
    *,
    task: Task | None = None,
    federation: Federation | None = None,
    trust: bool = False,
) -> Result | Comparison:
    """The result in a run directory, or the comparison in one of `compare`.

    Figures and tables need nothing else. Models are read from the run's checkpoint when they are
    first asked for; for a run of the command line data and model are made again by name, for any
    other give its `task` and `federation`. A directory may name code that is neither idiolect's nor
    an installed package's (`module:Name`); it is imported only if you `trust` the directory.
    """
    path = Path(directory)
    if (path / "compare.json").exists():
        return _comparison(path, task, federation, trust)
    if (path / PIPELINE).exists():
        stages = ", ".join(str(p) for p in sorted(path.glob("stage-*")))
        raise SettingError(
            f"directory: {path} is a pipeline; load the stages inside: {stages or 'none yet'}"
        )
    record = read_record(path)
    identity = read_identity(path)
    models = None
    if (task is not None and federation is not None) or record.origin:
        models = _Models(path, identity, task, federation, trust)
    return Result(record, models, identity)


def _comparison(
    path: Path, task: Task | None, federation: Federation | None, trust: bool
) -> Comparison:
    saved = read_comparison(path)
    if "labels" not in saved:
        raise SettingError(
            f"directory: the comparison in {path} is not finished; "
            f"continue it with: {resume_command(path)}"
        )
    folders = [path / name for name in saved["folders"]]
    results = [load(f, task=task, federation=federation, trust=trust) for f in folders]
    single = [r for r in results if isinstance(r, Result)]
    goals = Goals(**saved["goals"])
    if len(single) < len(results):
        raise SettingError(f"directory: cannot use {path / COMPARE}: a folder is a comparison")
    return Comparison(single, saved["labels"], goals, saved["majority"], saved["title"])


class _Models:
    """A seed's moving parts from its checkpoint; data and model are made when first needed."""

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        task: Task | None,
        federation: Federation | None,
        trust: bool,
    ):
        self.path = path
        self.identity = identity
        self.task = task
        self.federation = federation
        self.trust = trust

    def __call__(self, seed: int) -> Session:
        with names_in(self.path, self.trust):
            return self._session(seed)

    def _session(self, seed: int) -> Session:
        identity = self.identity
        if self.federation is None or self.task is None:
            plan = Plan.read(identity["origin"], f"directory: origin in {self.path}")
            self.federation = self.federation or plan.make_data()
            self.task = self.task or plan.make_task(self.federation)
        fields = {k: v for k, v in identity["method"].items() if k != "name"}
        method = make_method(identity["method"]["name"], **fields)
        settings = build(Settings, identity["run"], "run")
        now = identity_of(method, self.task, self.federation, settings)
        check_same({**identity, "start": {}}, now, self.path, warn)
        session = Session(
            method,
            self.task,
            self.federation,
            settings,
            seed,
            run_number(identity, seed),
            started=bool(identity.get("start")),
        )
        refuse_links(self.path)
        restore(session, self.path / "checkpoints" / f"seed-{seed}", identity, settings, warn)
        session.personalise_held_out(settings.held_out_rounds)
        return session
