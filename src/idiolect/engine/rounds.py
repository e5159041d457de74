"""An engine is a timing over hosts, reached directly or by a carrier: here synchronous rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.tensors import Shapes
from ..core.types import State
from ..host.remote_host import HostLike
from ..host.scores import Scores
from ..host.subgroups import SubgroupScores
from ..privacy.sums.cost import protocol_bytes
from ..server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from ..server.round import Round
from ..server.selection import CandidateLosses
from ..server.server import Server
from ..wire.admission import Messages
from ..wire.messages import DownMessage
from .delays import Delays
from .retry import NoReply

DelayLine = dict[str, Any]  # of a message: client, when it started and arrived, staleness


class HostGroup(Protocol):
    """How an engine reaches its hosts: `LocalHosts` or `RemoteHosts`."""

    @property
    def hosts(self) -> Sequence[HostLike]: ...

    def update(
        self, request: RoundRequest, required: bool = False
    ) -> Iterator[tuple[int, HostUpdate | NoReply]]:
        """Updates by host, in any number of parts.

        `required`: no deadline, and RuntimeError for a host of this run that cannot be reached.
        """

    def answer(self, query: Query) -> Iterator[tuple[int, Messages | NoReply]]:
        """Answers by host, in a channel's second exchange."""

    def losses(self, version: int, down: DownMessage, wire_ids: Tensor) -> list[Scores]:
        """Losses of the shared model on these clients' training data, by host that answers."""

    def conclude(self, conclusion: RoundConclusion) -> None:
        """Tell all hosts of the round how it ended."""

    def evaluate(
        self,
        version: int,
        down: DownMessage,
        wire_ids: Tensor,
        splits: tuple[str, ...],
        shared: bool = False,
    ) -> list[dict[str, Scores]]:
        """Scores of personal models, or of the shared one, by host."""

    def evaluate_subgroups(
        self, version: int, down: DownMessage, wire_ids: Tensor, shared: bool = False
    ) -> list[SubgroupScores]:
        """Figures by subgroup on test data, of personal models or of the shared one, by host."""

    def repeat_if(self, allowed: Callable[[int, Tensor], bool]) -> None:
        """Ask for messages once more only where that is allowed, by version and wire ids."""

    def sender(self, n: int) -> Tensor | None:
        """The wire ids that host n may speak for; None: all."""

    def check_complete(self) -> None:
        """RuntimeError where some clients cannot be reached."""

    def close(self) -> None:
        """No more calls."""


class Engine:
    """Carries messages between one server and its hosts, and decides when."""

    timed = False  # whether rounds have a time

    def __init__(self, server: Server, group: HostGroup):
        self.server = server
        self.group = group
        group.repeat_if(server.may_ask_again)
        self.time = 0.0  # simulated, or seconds of training
        self.delays_of_round: list[DelayLine] = []

    @property
    def hosts(self) -> Sequence[HostLike]:
        return self.group.hosts

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return self.server.rounds

    def advance(self, factors: Factors | None = None) -> None:
        """One round, with the factors of a schedule."""
        raise NotImplementedError

    def round_bytes(self) -> int:
        """Upper bound on the bytes of the next round, up and down."""
        return self.server.round_bytes()

    def figures(self) -> dict[str, float]:
        """Time and mean staleness of a round, where there is a time."""
        if not self.timed:
            return {}
        staleness = [line["staleness"] for line in self.delays_of_round]
        return {"time": self.time, "staleness": sum(staleness) / max(len(staleness), 1)}

    # -- models ----------------------------------------------------------------------------------
    def settle(self) -> None:
        """Wait until hosts have no work under way."""

    def evaluate(
        self, wire_ids: Tensor, splits: tuple[str, ...], shared: bool = False
    ) -> dict[str, Scores]:
        """Scores of these clients' personal models, or of the shared one on their data."""
        self.settle()
        version = self.rounds
        parts = []
        for portion in self.server.portions(wire_ids):
            down = self.server.message(version, None if shared else portion)
            parts += self.group.evaluate(version, down, portion, splits, shared)
        return {split: Scores.merge([part[split] for part in parts]) for split in splits}

    def evaluate_shared(
        self, splits: tuple[str, ...], wire_ids: Tensor | None = None
    ) -> dict[str, Scores]:
        """Scores of the shared model on these clients, or all; {} if the method has none."""
        if not self.server.has_shared_model():
            return {}
        if wire_ids is None:
            wire_ids = torch.cat([host.wire_ids for host in self.hosts]).sort().values
        return self.evaluate(wire_ids, splits, shared=True)

    def evaluate_subgroups(self, wire_ids: Tensor, shared: bool = False) -> SubgroupScores:
        """The same by subgroup, on test data."""
        self.settle()
        version = self.rounds
        down = self.server.message(version, None if shared else wire_ids)
        parts = self.group.evaluate_subgroups(version, down, wire_ids, shared)
        return SubgroupScores.merge(parts)

    def check_complete(self) -> None:
        """RuntimeError where some clients cannot be reached."""
        self.group.check_complete()

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        """Clients that took no part train towards the finished server; nothing is sent up."""
        self.settle()
        nobody = wire_ids[:0]
        first = self.server.version
        contract = self.server.contract
        for version in range(first, first + rounds * len(contract.exchanges)):
            down = self.server.message(version, wire_ids, contract.of(version))
            request = RoundRequest(version, down, wire_ids, nobody)
            for _ in self.group.update(request, required=True):
                pass
            self.group.conclude(RoundConclusion(version, nobody, nobody, {}))

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        """Work under way, for a checkpoint: tensors and plain facts; ({}, {}) if there is none."""
        return {}, {"time": self.time} if self.timed else {}

    def check(self, shapes: Shapes, facts: dict[str, Any]) -> None:
        """ValueError, before anything is read, for what this engine cannot have saved."""
        if shapes or facts.keys() != ({"time"} if self.timed else set()):
            raise ValueError("engine: the checkpoint is of another kind of engine")
        check_time(facts)

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        """Restore what was saved after this many rounds."""
        self.time = float(facts.get("time", 0.0))

    def most_bytes(self) -> int:
        """Upper bound on the bytes of the tensors of `save`."""
        return 0

    def versions(self, rounds: int) -> int:
        """The version of the server after this many rounds."""
        return rounds * len(self.server.contract.exchanges)

    def close(self) -> None:
        """End of training: work under way is abandoned."""
        self.group.close()


class Rounds(Engine):
    """Synchronous rounds; with `delays` they take simulated time."""

    def __init__(self, server: Server, group: HostGroup, delays: Delays | None = None):
        super().__init__(server, group)
        self.delays = delays
        self.timed = delays is not None

    def advance(self, factors: Factors | None = None) -> None:
        self.delays_of_round = []
        self._exchange(factors)
        while self.server.taking_part is not None:
            self._exchange(factors)

    def _exchange(self, factors: Factors | None) -> None:
        """One exchange of messages: a whole round for most methods."""
        server = self.server
        group = self.group
        current = server.open(factors=factors, answers=self._candidate_losses())
        heard_ids = current.order.heard
        for n, update in group.update(self._begin_sum(current)):
            if isinstance(update, NoReply):
                lost = heard_ids[torch.isin(heard_ids, self.hosts[n].wire_ids)]
                server.missing(current, lost, update.reason)
                continue
            server.account(update.trained, update.gradients, update.counted)
            server.receive(current, update.messages, update.values, group.sender(n))
        while queries := server.ask(current):
            for query in queries:
                for n, answers in group.answer(query):
                    if not isinstance(answers, NoReply):
                        server.receive_answer(current, query.part, answers, group.sender(n))
        self._open_sum(current)
        conclusion = server.close(current)
        self._account_sum(current, conclusion)
        group.conclude(conclusion)
        if self.delays is not None:
            self._add_time(self.delays, current.version, heard_ids, conclusion.counted)

    def _begin_sum(self, current: Round) -> RoundRequest:
        """Who is asked to train; where clients mask their messages, those that have agreed how."""
        return current.order

    def _open_sum(self, current: Round) -> None:
        """Where clients mask their messages: learn the sum of the masks. Simulated ones do not."""

    def _account_sum(self, current: Round, conclusion: RoundConclusion) -> None:
        """What a secure sum took beside the messages: here as between sites, by its sizes."""
        contract = self.server.contract
        heard_ids = current.order.heard
        if contract.sums is None or not len(heard_ids):
            return
        plan = contract.sums.plan(max(len(heard_ids), 2))
        opened = torch.isin(heard_ids, conclusion.counted)
        (most_up, most_down), (up, down) = protocol_bytes(plan), protocol_bytes(plan, opened=False)
        self.server.ledger.summed(
            heard_ids,
            torch.where(opened, most_up, up),
            torch.where(opened, most_down, down),
        )

    def _candidate_losses(self) -> CandidateLosses | None:
        """What the candidates of the next round answer; None where none are to be asked."""
        server = self.server
        candidates = server.candidates()
        if candidates is None:
            return None
        down = server.message(server.version)
        parts = self.group.losses(server.version, down, candidates)
        return CandidateLosses.merge(
            [CandidateLosses(s.wire_ids, s.loss / s.samples) for s in parts]
        )

    def _add_time(self, delays: Delays, version: int, heard_ids: Tensor, counted: Tensor) -> None:
        """A synchronous exchange takes as long as its slowest client."""
        roster = self.server.roster
        number = self.server.contract.round_of(version)
        turns = np.full(len(heard_ids), version)
        durations = delays.draw(
            self.server.contract.task.seed, roster.keys[heard_ids.numpy()], turns
        )
        start = self.time
        self.time += float(durations.max(initial=0.0))
        admitted = torch.isin(heard_ids, counted).tolist()
        self.delays_of_round += [
            {
                "round": number + 1,
                "client": roster.ids[wire_id],
                "started": number,
                "staleness": 0,
                "start": start,
                "time": start + delay,
                "delay": delay,
                "counted": int(fate),
            }
            for wire_id, delay, fate in zip(
                heard_ids.tolist(), durations.tolist(), admitted, strict=True
            )
        ]


def check_time(facts: dict[str, Any]) -> None:
    """ValueError for a time that no run can have."""
    seconds = facts.get("time", 0.0)
    if not isinstance(seconds, float) or not 0 <= seconds < 1e300:
        raise ValueError("engine: 'time' must be a number >= 0")
