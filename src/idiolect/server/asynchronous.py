"""A server that uses messages as they arrive, not in rounds; and how much a late one counts.

Algorithm 3 of FFGG, for any method whose message is a change, or a model that started from the one
received: θ <- θ + s(τ) (what the message changes), where τ counts the steps of the server since the
model that its client started from. FedAsync (Xie, Koyejo and Gupta 2019) weighs by s, FedBuff
(Nguyen et al. 2022) collects `buffer` messages for each step. The forms of s are those of FedAsync,
section 5.1.

The version in a header counts arrivals (r of Algorithm 3), so that no client starts twice from the
same one. The model that a busy client started from is kept until its message is there.

>>> parse_staleness("polynomial(a=0.5)")(3)
0.5
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors, Knobs, knob
from ..core.registry import PartTable
from ..core.types import State
from ..wire.admission import FATES, AdmittedMessages, Inbox, Messages
from ..wire.ledger import RoundEntry
from ..wire.messages import DownMessage
from .protocol import RoundConclusion, RoundRequest
from .round import MISSING, Aggregation, Round, settle

if TYPE_CHECKING:
    from .server import Server


# -- staleness -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Staleness(Knobs):
    """The interface: s(τ), a factor on the change that a message brings."""

    def __call__(self, tau: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} does not define a weight")


@dataclass(frozen=True)
class Constant(Staleness):
    """s(τ) = 1: a late message counts as any other (Algorithm 3 of FFGG)."""

    def __call__(self, tau: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(τ) = (1 + τ)^-a. FedBuff has a = 0.5."""

    a: float = knob(0.5, "the exponent; 0 is constant", low=0)

    def __call__(self, tau: int) -> float:
        return float((1 + tau) ** -self.a)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(τ) = 1 up to τ = b, 1 / (a (τ - b) + 1) beyond."""

    a: float = knob(10.0, "how fast it falls beyond b", low=0)
    b: float = knob(4.0, "the staleness up to which a message counts in full", low=0)

    def __call__(self, tau: int) -> float:
        return 1.0 if tau <= self.b else 1 / (self.a * (tau - self.b) + 1)


STALENESS: PartTable[Staleness, Staleness] = PartTable(
    "staleness",
    "idiolect.staleness",
    {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge},
    Staleness,
)
parse_staleness = STALENESS.parse
staleness_text = STALENESS.text


# -- the server ------------------------------------------------------------------------------------
SINCE = ("start", "newest")  # what a model that arrives is compared with


@dataclass(frozen=True, eq=False)
class StartingModel:
    """What some busy clients started from."""

    version: int
    step: int  # steps that the server had made
    reference: State  # the model parts of the message down, as `Method.reference` names them


@dataclass(frozen=True)
class ArrivalOutcome:
    """What became of a message."""

    conclusion: RoundConclusion
    staleness: int  # steps of the server since its client started
    fate: str  # "admitted", or why it did not count


@dataclass
class AsyncServer:
    """The use of a server by single arrivals."""

    server: Server
    staleness: Staleness = field(default_factory=Constant)
    buffer: int = 1  # messages per step of the server
    since: str = "start"  # or "newest": FedAsync's mixing, w <- w + s (x_i - w)

    def __post_init__(self) -> None:
        self.steps = 0  # of the server so far
        self.turns = torch.zeros(len(self.server.roster), dtype=torch.int64)  # starts, by wire id
        self.busy: dict[int, StartingModel] = {}  # wire id -> what it started from
        self.held: list[
            AdmittedMessages
        ] = []  # messages that wait for the buffer to fill, one each
        self._entry: Counter[str] = Counter()  # fate -> clients, since the last `close`
        self._surplus: Counter[str] = Counter()
        self._bytes = 0

    def start(self, wire_ids: Tensor, factors: Factors | None = None) -> RoundRequest:
        """These clients, none of them busy, start from the newest model."""
        factors = factors or {}
        server = self.server
        contract = server.contract
        if busy_ids := self.busy.keys() & set(wire_ids.tolist()):
            raise RuntimeError(f"clients {sorted(busy_ids)} are busy")
        if new := len(server.roster) - len(self.turns):  # clients that have enrolled meanwhile
            self.turns = torch.cat([self.turns, self.turns.new_zeros(new)])
        version = server.version
        message = server.message(version)
        order = RoundRequest(version, message, wire_ids, wire_ids, factors, self.turns[wire_ids])
        server.ledger.sent_down(wire_ids, len(message), contract.down_values(version))
        base = StartingModel(version, self.steps, server.aggregation().reference(factors))
        self.busy |= dict.fromkeys(wire_ids.tolist(), base)
        self.turns[wire_ids] += 1
        return order

    def receive(
        self,
        wire_id: int,
        messages: Messages,
        values: np.ndarray | None = None,
        factors: Factors | None = None,
        reason: str = "silent",
    ) -> ArrivalOutcome:
        """What has come from a busy client, which is free again; none where its message is lost.

        `reason` says why, as far as the engine knows. The same checks apply as in rounds.
        """
        if reason not in MISSING:
            raise ValueError(f"reason must be one of {', '.join(MISSING)}, got {reason!r}")
        factors = factors or {}
        server = self.server
        base = self.busy.pop(wire_id)
        client = torch.tensor([wire_id])
        inbox = server.inbox(base.version, client, lambda _: base.reference)
        inbox.receive(messages, values)
        got = inbox.admitted()
        self._surplus.update(got.surplus)
        server.version += 1  # line 2 of Algorithm 3: r counts what was received
        tau = self.steps - base.step
        fate = FATES[got.fates[0]]
        if fate == "admitted":
            fate = self._take(got, base, tau, inbox, factors)
        counted = fate == "admitted"
        self._entry[reason if fate == "missing" else fate] += 1
        if counted:
            if got.memory:
                server.memory.write(client, base.version, got.memory)
                server.memory.settle(base.version)
            lengths = torch.from_numpy(got.bytes)
            server.ledger.sent_up(client, lengths, torch.from_numpy(got.values))
            self._bytes += int(got.bytes.sum())
        nobody = client[:0]
        verdict = RoundConclusion(
            base.version, client if counted else nobody, nobody if counted else client, {}
        )
        return ArrivalOutcome(verdict, tau, fate)

    def _take(
        self, got: AdmittedMessages, base: StartingModel, tau: int, inbox: Inbox, factors: Factors
    ) -> str:
        """Hold a sound message, and step once there are enough; what becomes of this one."""
        aggregation = self.server.aggregation()
        self.held.append(self._as_of_now(got, base, tau, aggregation, factors))
        if len(self.held) < self.buffer:
            return "admitted"
        server = self.server
        everyone = _together(self.held)
        self.held = []
        ids = everyone.wire_ids
        clients = int(server.roster.eligible.sum())
        order = RoundRequest(self.steps, DownMessage(b""), ids, ids, factors)
        step_round = Round(order, inbox, clients, server.roster.mean_samples())
        outcome, _ = settle(aggregation, step_round, everyone, quorum=1)
        if outcome is not None:
            server.state = outcome.state
            server.rule_state = outcome.rule
            self.steps += 1
        dropped = Counter({reason: len(ids) for reason, ids in step_round.dropped.items()})
        if self.buffer == 1:
            return next(iter(dropped), "admitted")
        self._surplus.update(dropped)  # admitted and acknowledged when they arrived
        return "admitted"

    def _as_of_now(
        self,
        got: AdmittedMessages,
        base: StartingModel,
        tau: int,
        aggregation: Aggregation,
        factors: Factors,
    ) -> AdmittedMessages:
        """The message as if its change had been made from the newest model, weighed by s(τ).

        A change Δ becomes s Δ; a model x_i becomes w + s (x_i - w_base), so that FedAvg's mean of
        one such model is the newest model after this change.
        """
        s = self.staleness(tau)
        if s == 1 and (tau == 0 or not base.reference):
            return got  # to the last bit what a round would be given
        now = aggregation.reference(factors)
        since = base.reference if self.since == "start" else now
        up = {}
        for name, rows in got.up.items():
            if name in now:
                newest = now[name].to(rows)
                up[name] = newest + s * (rows - since[name].to(rows))
            else:
                up[name] = s * rows  # line 4 of Algorithm 3 has s = 1: θ <- θ - γ_θ Δ, no 1/M
        return replace(got, up=up)

    def close(self, version: int) -> None:
        """The end of what counts as a round: its account in the ledger."""
        fates = self._entry
        missing = {reason: fates[reason] for reason in MISSING if fates[reason]}
        rejected = {f: n for f, n in fates.items() if f != "admitted" and f not in missing}
        entry = RoundEntry(
            version,
            sum(fates.values()),
            fates["admitted"],
            rejected,
            missing,
            dict(self._surplus),
            self._bytes,
        )
        self.server.ledger.enter(entry)
        self._entry, self._surplus, self._bytes = Counter(), Counter(), 0


def _together(messages: list[AdmittedMessages]) -> AdmittedMessages:
    """Messages of single clients as one cohort's: by wire id, then in the order they came."""
    if len(messages) == 1:
        return messages[0]
    order = np.argsort([int(one.wire_ids[0]) for one in messages], kind="stable")
    some = [messages[i] for i in order]
    first = some[0]
    return AdmittedMessages(
        {n: torch.cat([one.up[n] for one in some]) for n in first.up},
        torch.cat([one.wire_ids for one in some]),
        torch.cat([one.weights for one in some]),
        np.concatenate([one.bytes for one in some]),
        np.concatenate([one.values for one in some]),
        {},
        np.concatenate([one.fates for one in some]),
        {},
    )
