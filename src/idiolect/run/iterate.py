"""A simulated run, round by round, with all that its server and its clients hold.

For theory: whether iterates converge as a theorem says can be seen only from all of them. A run
whose figures are what matters is `idiolect.run`.
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
class Standing:
    """Where a run stands after some rounds."""

    round: int  # rounds done
    server: State  # the method's state at the server
    _session: Session

    def private(self) -> State:
        """The private rows of all clients, in the order of the federation; of now, not later."""
        hosts = self._session.hosts
        order = torch.cat([host.wire_ids for host in hosts]).argsort()
        rows = [host.store.read(torch.arange(host.data.clients)) for host in hosts]
        return {name: torch.cat([r[name] for r in rows])[order] for name in rows[0]}


def follow(
    method: AnyMethod, task: Task, federation: Federation, **settings: Unpack[RunSettings]
) -> Iterator[Standing]:
    """The rounds of the first seed, one by one, from the start (round 0) to the last.

    The same rounds as those of `idiolect.run`, without evaluation, checkpoints or early stops.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> task = il.Task(torch.nn.Linear(60, 10))
    >>> rounds = follow("fedavg", task, federation, rounds=2)
    >>> [(at.round, tuple(at.server["w"].shape)) for at in rounds]
    [(0, (610,)), (1, (610,)), (2, (610,))]
    """
    made = read_method(method)
    chosen = build(Settings, dict(settings), "run")
    check(made, task, federation, chosen)
    session = Session(made, task, federation, chosen, chosen.seed, 0)
    server = session.server
    yield Standing(0, server.state, session)
    while session.rounds < chosen.rounds:
        with numbers_fit(chosen.dtype):
            session.engine.advance(chosen.schedule.factors(session.rounds, chosen.rounds))
        yield Standing(session.rounds, server.state, session)
