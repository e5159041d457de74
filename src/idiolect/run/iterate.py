"""Iterate over the rounds of a simulated run, with the states of its server and its clients.

For theory: whether iterates converge as a theorem says shows only in the iterates. Where the
figures matter, use `idiolect.run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import torch

from ..core.knobs import build
from ..core.types import State
from ..data.federation import Federation
from ..task.task import Task
from .plan import AnyMethod, read_method
from .session import Session
from .settings import Settings
from .typed_settings import RunSettings
from .validate import check, numbers_fit


@dataclass(frozen=True)
class RoundState:
    """The states of a run between two rounds."""

    round: int  # rounds completed
    server: State  # the method's state at the server
    session: Session  # server and hosts; not part of the public interface beyond its existence

    def private(self) -> State:
        """The private rows of all clients, in the order of the federation; of now, not later."""
        hosts = self.session.hosts
        order = torch.cat([host.wire_ids for host in hosts]).argsort()
        rows = [host.all_rows() for host in hosts]
        return {name: torch.cat([r[name] for r in rows])[order] for name in rows[0]}


def iterate(
    method: AnyMethod, task: Task, federation: Federation, **settings: Unpack[RunSettings]
) -> Iterator[RoundState]:
    """The rounds of the first seed, one by one, from the start (round 0) to the last.

    The same rounds as those of `idiolect.run`, without evaluation, checkpoints or early stops.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> task = il.Task(torch.nn.Linear(60, 10))
    >>> rounds = il.iterate("fedavg", task, federation, rounds=2)
    >>> [(state.round, tuple(state.server["w"].shape)) for state in rounds]
    [(0, (610,)), (1, (610,)), (2, (610,))]
    """
    method_object = read_method(method)
    run_settings = build(Settings, dict(settings), "run")
    check(method_object, task, federation, run_settings)
    session = Session(method_object, task, federation, run_settings, run_settings.seed, 0)
    server = session.server
    yield RoundState(0, server.state, session)
    while session.rounds < run_settings.rounds:
        with numbers_fit(run_settings.dtype):
            session.engine.advance(
                run_settings.schedule.factors(session.rounds, run_settings.rounds)
            )
        yield RoundState(session.rounds, server.state, session)
