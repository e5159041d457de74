"""A run: settings in, result out; with checkpoints, exact resume, stops on bytes or accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from ..core.knobs import SettingError, build
from ..core.text import warn
from ..core.types import State
from ..data.federation import Federation
from ..host.lazy_federation import whole as with_samples
from ..methods import name_of
from ..privacy.protection import PROTECTIONS
from ..report.progress import RoundReport, run_progress
from ..task.groups import AnyTask, TaskGroups
from .callbacks import Callback, Callbacks
from .directory import RunDirectory
from .identity import RunIdentity
from .interrupts import Interrupted
from .loop import Runner
from .plan import AnyMethod, AnyModel, read_run, read_tasks, refuse_without_sites
from .prepare import check_stops, prepare
from .repeats import federations, prepare_repeats, with_data_of_repeats
from .result import Result
from .session import Session, Start
from .settings import Settings
from .typed_settings import RunSettings

__all__ = ["Interrupted", "RoundState", "iterate", "run"]


def run(
    method: AnyMethod,
    task: AnyModel,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    progress: bool | RoundReport | None = None,
    origin: dict[str, Any] | None = None,
    resume: bool | str = False,
    start: dict[int, Start] | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    on_end: Callback | None = None,
    **settings: Unpack[RunSettings],
) -> Result:
    """Train `method` on `federation` and evaluate every client's own model on its own data.

    The method is an object, a class or a text ("ditto", "lp-proj:p=1,lam=0.1"). The model is a
    torch module, a class or function that makes one, or a `Task`, which has a loss of your
    choosing; a bare model gets it from the data: cross_entropy for classes, mse for real targets.
    Groups of clients may have unlike models: `TaskGroups`, or a list of models that are dealt to
    the clients in turn.

    Settings are the fields of `Settings`: rounds, sample, seeds, batch, ... With `data_seeds` each
    repeat has a partition of its own, of a federation that `idiolect.data.load` made.

    With a `directory`, settings, metrics and checkpoints are written there and `resume=True`
    continues a run that was interrupted, to exactly the result it would have had: on as many
    threads as before unless set otherwise, and not with changed code unless by `resume="force"`. A
    resumed run may have more `rounds` than before: it then continues to the result of the longer
    run. `origin` describes data and model by name, so that `idiolect resume` can rebuild them.
    `start` gives, for each seed, the model and private rows to start from (see
    `idiolect.pipeline`).

    `progress` draws a bar (by default in a terminal or notebook, after two seconds of work), or is
    a function of (seed, rounds done, accuracy). `on_round`, `on_evaluate`, `on_checkpoint` and
    `on_end` (of a seed) are functions that are given a `Moment`: where the run stands, and
    `stop()`. An exception in one of them ends the run after a checkpoint was written.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> result = il.run("fedavg", torch.nn.Linear(60, 10), federation, rounds=2, sample=2)
    >>> result.summary()["values"]
    {'up': 2440, 'down': 2440}
    """
    method_object, all_settings = read_run(method, dict(settings))
    whole, note = read_tasks(task, federation)
    if start and isinstance(whole, TaskGroups):
        raise SettingError(
            "start must be left out where groups of clients have unlike models: there is no one "
            "model to start from"
        )
    run_settings = build(Settings, all_settings, "run")
    if start and run_settings.privacy is not None:
        raise SettingError(
            f"privacy must be none with a start, got {PROTECTIONS.text(run_settings.privacy)!r}: "
            "what the run before it has spent on the same data is not counted"
        )
    refuse_without_sites(method_object, run_settings)
    if not run_settings.carrier.loads_data:
        federation = with_samples(federation)
    with torch_threads(run_settings.threads):
        repeats = prepare_repeats(method_object, whole, federation, run_settings)
    parts = repeats[run_settings.seed]
    federation, run_settings = parts.federation, parts.settings
    check_stops(run_settings, federation)
    callbacks = Callbacks(on_round, on_evaluate, on_checkpoint, on_end)
    if resume not in (True, False, "force"):
        raise SettingError(f"resume must be True, False or 'force', got {resume!r}")
    identity = RunIdentity.of(
        parts.method, whole, federation, run_settings, origin, start, parts.target_scale
    )
    identity = with_data_of_repeats(identity, repeats)
    runner = Runner(repeats, identity, start or {}, callbacks, note)
    with run_progress(
        progress, name_of(method_object), run_settings.seed, run_settings.seeds, run_settings.rounds
    ) as report:
        runner.progress = report
        if directory is None:
            with torch_threads(run_settings.threads):
                return runner.run(None, resume=False)
        with RunDirectory(directory, fresh=not resume) as folder:
            threads = run_settings.threads
            folder.clear()
            if resume:
                identity = runner.continued(folder, warn if resume == "force" else None)
                threads = threads or runner.starts[-1]["threads"]
            with torch_threads(threads):
                runner.begin(folder, identity)
                return runner.run(folder, bool(resume))


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """torch on this many threads, as before afterwards; 0 leaves it alone."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads:
            torch.set_num_threads(before)


@dataclass(frozen=True)
class RoundState:
    """The states of a run between two rounds."""

    round: int  # rounds completed
    server: State  # the method's state at the server
    session: Session  # server and hosts; not part of the public interface beyond its existence

    def private(self) -> State:
        """The private rows of all clients, in the order of the federation; of now, not later."""
        if self.session.groups is not None:
            raise SettingError(
                "private: clients have unlike models, whose rows are of unlike lengths"
            )
        hosts = self.session.hosts
        order = torch.cat([host.wire_ids for host in hosts]).argsort()
        rows = [host.all_rows() for host in hosts]
        return {name: torch.cat([r[name] for r in rows])[order] for name in rows[0]}


def iterate(
    method: AnyMethod, task: AnyTask, federation: Federation, **settings: Unpack[RunSettings]
) -> Iterator[RoundState]:
    """The rounds of the first seed, one by one, from the start (round 0) to the last.

    The same rounds as those of `idiolect.run`, without evaluation, checkpoints or early stops but
    that of a privacy budget. For
    theory: whether iterates converge as a theorem says shows only in the iterates.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> task = il.Task(torch.nn.Linear(60, 10))
    >>> rounds = il.iterate("fedavg", task, federation, rounds=2)
    >>> [(state.round, tuple(state.server["w"].shape)) for state in rounds]
    [(0, (610,)), (1, (610,)), (2, (610,))]
    """
    method_object, all_settings = read_run(method, dict(settings))
    run_settings = build(Settings, all_settings, "run")
    first = federations(federation, run_settings)[run_settings.seed]
    parts = prepare(method_object, task, first, run_settings)
    session = Session(parts, run_settings.seed, 0)
    server = session.server
    yield RoundState(0, server.state, session)
    while session.rounds < run_settings.rounds and server.affords_round():
        session.advance()
        yield RoundState(session.rounds, server.state, session)
