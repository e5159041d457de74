"""Runs of the past: what a run directory holds, as the objects that `run` and `compare` return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ..core.files import resume_command
from ..core.knobs import SettingError, build
from ..core.registry import names_in
from ..core.text import warn
from ..data.federation import Federation
from ..methods import make_method
from ..report.targets import Goals
from ..run.directory import checkpoint_folder, refuse_links
from ..run.identity import REINITIALISED, check_same, identity_of, read_identity, run_number
from ..run.plan import AnyModel, Plan
from ..run.predict import labels_of, preparation_of
from ..run.record import Record, read_record
from ..run.restore import WithoutData, absent, in_form, restore
from ..run.result import Result
from ..run.session import Session, starts_in_checkpoint
from ..run.settings import Settings
from ..task.losses import LOSSES
from ..task.task import Task
from .compare import Comparison
from .manifest import COMPARE, PIPELINE, read_comparison


def load(
    directory: str | Path,
    *,
    task: AnyModel | None = None,
    federation: Federation | None = None,
    trust: bool = False,
) -> Result | Comparison:
    """The result in a run directory, or the comparison in one of `compare`.

    Figures and tables need nothing else. Models are read from the run's checkpoint when they are
    first asked for; for a run of the command line data and model are made again by name, for any
    other give its `task`: the model, as it was given to `run`. Its `federation` is needed only by
    methods that train on a client's data before they predict, and to resume. A directory may name
    code that is neither idiolect's nor an installed package's (`module:Name`); it is imported only
    if you `trust` the directory.
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
    labels_of(record.data)
    preparation_of(record.data)
    identity = read_identity(path)
    models = None
    if task is not None or record.origin:
        model = None if task is None else _task(task, identity)
        models = _Models(path, identity, model, federation, trust, record)
    return Result(record, models, identity, federation)


def _task(model_or_task: AnyModel, identity: dict[str, Any]) -> Task:
    """A task from a task or a model; a bare model has the loss that the run had.

    A run that was given a module started from its weights, which its checkpoints keep: any module
    of the class will do, and so will what makes one.
    """
    model = model_or_task.model if isinstance(model_or_task, Task) else model_or_task
    loss = (
        model_or_task.criterion
        if isinstance(model_or_task, Task)
        else identity["model"].get("loss")
    )
    if not isinstance(model_or_task, Task) and loss not in LOSSES:
        raise SettingError(
            f"task: the run had the loss {str(loss)[:80]!r} of your own; "
            "give idiolect.Task(model, loss)"
        )
    per_seed = identity["model"].get("weights") == REINITIALISED
    if isinstance(model, nn.Module) and per_seed:
        raise SettingError(
            "task: the run made its model by a class or function, once per seed; "
            "give that, not a module"
        )
    if isinstance(model, nn.Module) or per_seed:
        return model_or_task if isinstance(model_or_task, Task) else Task(model, loss)
    return Task(model(), loss)


def _comparison(
    path: Path, task: AnyModel | None, federation: Federation | None, trust: bool
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
    more = (saved.get("skipped"), saved.get("note", ""))
    return Comparison(single, saved["labels"], goals, saved["majority"], saved["title"], *more)


class _Models:
    """A seed's moving parts from its checkpoint; data and model are made when first needed."""

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        task: Task | None,
        federation: Federation | None,
        trust: bool,
        record: Record,
    ):
        self.path = path
        self.identity = identity
        self.task = task
        self.federation = federation
        self.trust = trust
        self.record = record

    def __call__(self, seed: int, best: bool) -> Session:
        with names_in(self.path, self.trust):
            session = self._session(seed, best)
        if isinstance(session, WithoutData) and self.identity["origin"]:
            session.with_data = lambda: self._with_data(seed, best)
        return session

    def _plan(self) -> Plan:
        return Plan.read(self.identity["origin"], f"directory: origin in {self.path}")

    def _with_data(self, seed: int, best: bool) -> Session:
        """Of a run of the command line whose models train on data before they are used."""
        with names_in(self.path, self.trust):
            self.federation = self.federation or self._plan().make_data()
            return self._session(seed, best)

    def _session(self, seed: int, best: bool) -> Session:
        identity = self.identity
        without = self.federation is None
        data = self.federation or absent(self.record)
        if self.task is None:
            form = in_form(data, self.record.data) if without else data
            self.task = self._plan().make_task(form)
        fields = {k: v for k, v in identity["method"].items() if k != "name"}
        method = make_method(identity["method"]["name"], **fields)
        settings = build(Settings, identity["run"], "run")
        now = identity_of(method, self.task, data, settings)
        same = {**identity, "start": {}}
        if without:
            now["data"] = same["data"]
        if starts_in_checkpoint(self.task):  # the checkpoint has the weights that it started from
            now["model"]["weights"] = same["model"].get("weights")
        check_same(same, now, self.path, warn)
        session = (WithoutData if without else Session)(
            method,
            self.task,
            data,
            settings,
            seed,
            run_number(identity, seed),
            started=bool(identity.get("start")),
        )
        refuse_links(self.path)
        place = checkpoint_folder(self.path, seed, best)
        restore(session, place, identity, settings, warn)
        session.personalise_held_out(settings.held_out_rounds)
        return session
