"""Runs of the past: what a run directory holds, as the objects that `run` and `compare` return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.documents import expect, expect_fields
from ..core.files import resume_command
from ..core.knobs import SettingError, build
from ..core.registry import names_in
from ..core.text import warn
from ..core.types import Id, Personal, leaves
from ..data.federation import SPLITS, Census, Federation
from ..methods import make_method
from ..privacy.plan import Mechanism
from ..report.targets import Goals
from ..run.directory import checkpoint_folder, refuse_links
from ..run.identity import GROUPS, REINITIALISED, RunIdentity, check_same, run_number
from ..run.plan import AnyModel, OneModel, Plan
from ..run.predict import labels_of, preparation_of
from ..run.prepare import RunParts, run_parts
from ..run.privacy_log import PrivacyLog
from ..run.record import Record, read_record
from ..run.repeats import data_seed_of, facts_of_repeat
from ..run.result import Result
from ..run.session import Session, starts_in_checkpoint
from ..run.settings import Settings
from ..run.target_units import recorded_scale
from ..task.groups import AnyTask, TaskGroups
from ..task.losses import is_named
from ..task.task import Task
from .compare import Comparison
from .folders import COMPARE, PIPELINE, read_comparison


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
    identity = RunIdentity.read(path)
    models = None
    if task is not None or record.origin:
        model = None if task is None else _tasks(task, identity)
        models = _Models(path, identity, model, federation, trust, record)
    return Result(record, models, identity, federation)


def _tasks(source: AnyModel, identity: RunIdentity) -> AnyTask:
    """A task, or one for each group of a run whose clients had unlike models."""
    groups = identity.model.get(GROUPS, {})
    if isinstance(source, Sequence):
        source = TaskGroups(source)
    if isinstance(source, TaskGroups) != bool(groups):
        had = f"groups of clients with unlike models ({', '.join(groups)})" if groups else "one"
        raise SettingError(f"task: the run had {had}; give that")
    if not isinstance(source, TaskGroups):
        return _task(source, identity.model)
    if set(source.names) != set(groups):
        raise SettingError(
            f"task: groups must be those of the run, {', '.join(groups)}, "
            f"got {', '.join(source.names)}"
        )
    tasks = {name: _task(model, groups[name]) for name, model in source.models.items()}
    return TaskGroups({name: tasks[name] for name in source.names}, source.clients)


def _task(model_or_task: OneModel, facts: dict[str, Any]) -> Task:
    """A task from a task or a model; a bare model has the loss that the run had.

    A run that was given a module started from its weights, which its checkpoints keep: any module
    of the class will do, and so will what makes one.
    """
    model = model_or_task.model if isinstance(model_or_task, Task) else model_or_task
    loss = model_or_task.criterion if isinstance(model_or_task, Task) else facts.get("loss", "")
    if not isinstance(model_or_task, Task) and not is_named(loss):
        raise SettingError(
            f"task: the run had the loss {str(loss)[:80]!r} of your own; "
            "give idiolect.Task(model, loss)"
        )
    per_seed = facts.get("weights") == REINITIALISED
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
    more = (saved.get("skipped"), saved.get("note", ""), saved.get("tree_rows"))
    return Comparison(single, saved["labels"], goals, saved["majority"], saved["title"], *more)


class _Models:
    """A seed's moving parts from its checkpoint; data and model are made when first needed."""

    def __init__(
        self,
        path: Path,
        identity: RunIdentity,
        task: AnyTask | None,
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
        if isinstance(session, WithoutData) and self.identity.origin:
            session.with_data = lambda: self._with_data(seed, best)
        return session

    def _plan(self) -> Plan:
        return Plan.read(self.identity.origin, f"directory: origin in {self.path}")

    def _data(self, seed: int) -> Federation:
        """The data of a seed, or a federation of the same clients without samples."""
        if self.federation is None:
            return absent(self.record, seed)
        data_seed = data_seed_of(self.identity.data, seed)
        return self.federation if data_seed is None else self.federation.redrawn(data_seed)

    def _with_data(self, seed: int, best: bool) -> Session:
        """Of a run of the command line whose models train on data before they are used."""
        with names_in(self.path, self.trust):
            self.federation = self.federation or self._plan().make_data()
            return self._session(seed, best)

    def _session(self, seed: int, best: bool) -> Session:
        identity = self.identity
        fields = {k: v for k, v in identity.method.items() if k != "name"}
        method = make_method(identity.method["name"], **fields)
        if self.federation is None and method.traits.uses_public:
            self.federation = self._public_data()
        without = self.federation is None
        data = self._data(seed)
        facts = facts_of_repeat(identity.data, seed)
        if self.task is None:
            form = in_form(data, facts) if without else data
            self.task = self._plan().make_tasks(form)
        settings = build(Settings, identity.run, "run")
        scale = recorded_scale(facts)
        now = RunIdentity.of(method, self.task, data, settings, target_scale=scale)
        same = replace(identity, data=facts, start={})
        if without:
            now = replace(now, data=same.data)
        _forget_weights(self.task, now.model, same.model)
        check_same(same, now, self.path, warn)
        parts = run_parts(method, self.task, data, settings, scale)
        session = (WithoutData if without else Session)(
            parts,
            seed,
            run_number(identity.id, seed),
            started=bool(identity.start),
            mechanism=self._mechanism(parts, seed),
        )
        refuse_links(self.path)
        place = checkpoint_folder(self.path, seed, best)
        session.restore(place, identity, settings, warn)
        session.personalise_held_out(settings.held_out_rounds)
        return session

    def _mechanism(self, parts: RunParts, seed: int) -> Mechanism | None:
        """The noise of the run, where it had any."""
        if not parts.protected:
            return None
        try:
            return PrivacyLog.of(self.path, seed).mechanism()
        except ValueError as error:
            raise SettingError(f"directory: {error}") from None

    def _public_data(self) -> Federation:
        """The data of a run with public inputs, by which its messages are known."""
        if not self.identity.origin:
            raise SettingError(
                "models: the run had public inputs; give idiolect.load(directory, task=..., "
                "federation=...) the data of the run too"
            )
        return self._plan().make_data()


def _forget_weights(task: AnyTask, now: dict[str, Any], saved: dict[str, Any]) -> None:
    """The checkpoint has the weights that modules of the user's started from."""
    if isinstance(task, TaskGroups):
        for name, one in zip(task.names, task.tasks, strict=True):
            _forget_weights(one, now[GROUPS][name], saved.get(GROUPS, {}).get(name, {}))
        task = task.first
    if starts_in_checkpoint(task):
        now["weights"] = saved.get("weights")


# -- without the data of the run -------------------------------------------------------------------
_COLUMNS: dict[str, Any] = {"client": int | str, **{f"{s}_samples": int for s in SPLITS}}


def absent(record: Record, seed: int) -> Federation:
    """A federation of the clients of a seed with as many samples, each of them empty."""
    rows = record.of_seed(seed).clients
    try:
        for row in rows:
            expect_fields({name: row[name] for name in _COLUMNS}, _COLUMNS, place="clients")
            if min(row[f"{s}_samples"] for s in SPLITS) < 0:
                raise ValueError("clients: samples are whole numbers >= 0")
        sizes = {s: torch.tensor([row[f"{s}_samples"] for row in rows]) for s in SPLITS}
    except (KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise SettingError(f"record: it has no usable client table: {error}") from None
    ids = [row["client"] for row in rows]
    classes = int(record.data.get("classes", 0))
    census = Census.of_sizes(ids, sizes, classes, name=str(record.data["name"]))
    return _with_totals(census, record, rows) if "weight" in record.data else census


def _with_totals(census: Census, record: Record, rows: list[dict[str, Any]]) -> Census:
    """The same with what each client's samples weigh together: the server goes by the sums.

    All of it on the client's first sample, so that the sum is exact.
    """
    weights = torch.zeros(census.samples, dtype=torch.float64)
    for split in SPLITS:
        try:
            totals = torch.tensor([row[f"{split}_weight"] for row in rows], dtype=torch.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise SettingError(f"record: it has no usable weights of clients: {error}") from None
        present = census.sizes(split) > 0
        weights[census.offsets[split][:-1][present]] = totals[present]
    return replace(census, weights=weights, weight_name=str(record.data["weight"]))


def in_form(empty: Federation, data: dict[str, Any]) -> Federation:
    """The same with inputs of the recorded shape, to build a model by name."""
    kinds = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}
    try:
        ((kind, shape),) = data["inputs"]
        expect(shape, list[int], "inputs")
        blank = torch.zeros((), dtype=kinds[kind]).expand(empty.samples, *shape)
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise SettingError("record: it does not describe the inputs of the run") from None
    return replace(empty, inputs=blank)


class WithoutData(Session):
    """A session of a finished seed whose data are not here.

    Samples are empty placeholders; training on them raises.
    """

    with_data: Callable[[], Session] | None = None  # for a run whose data can be made again

    def personal(self, client: Id) -> Personal:  # -> x[d], or a State
        self.server.roster.wire_id(client)  # refuses a client that took no part
        if len(self.people.held_out) and not self.held_out_personalised:
            return self._again().personal(client)
        try:
            x = super().personal(client)
        except SettingError:
            raise
        except Exception:  # whatever a model does with samples that are empty
            return self._again().personal(client)
        if not all(bool(t.isfinite().all()) for t in leaves(x)):
            raise SettingError("model: its weights are not finite, or need the client's data")
        return x

    def personalise_held_out(self, rounds: int) -> None:
        """Not without their data: see `personal`."""

    def _again(self) -> Session:
        """The same with its data."""
        if self.with_data is None:
            raise _needs_data() from None
        return self.with_data()


def _needs_data() -> SettingError:
    return SettingError(
        "models: this run trains on a client's data before it predicts; "
        "give idiolect.load(directory, task=..., federation=...) the data of the run too"
    )
