"""A server and hosts of six unlike clients, made by hand, and what is between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from idiolect.channels import parse_channel
from idiolect.core.knobs import build
from idiolect.host.host import Host, HostSettings
from idiolect.host.scores import Scores
from idiolect.methods import make_method
from idiolect.run.prepare import prepare, trained_task
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.server.protocol import Contract, HostUpdate
from idiolect.server.roster import Roster
from idiolect.server.rules import parse_rule
from idiolect.server.server import Server
from idiolect.server.step import ServerStep
from idiolect.testing import federation, task
from idiolect.wire import messages as wire
from idiolect.wire.ragged import Ragged

FEDERATION = federation()
CLIENTS = FEDERATION.clients
EVERYONE = torch.arange(CLIENTS)
TASK = task()
EXACT = "sketch(columns=5, rows=3, k=2, exact=True)"  # has a second exchange
RUN = 7


def contract(method: str = "fedprox-soft", channel: str = "none", **numerics) -> Contract:
    bound = TASK.under(**{"dtype": torch.float32, "kernel": "auto", "seed": 3} | numerics)
    chosen = make_method(method)
    return Contract(chosen, trained_task(chosen, bound, FEDERATION), parse_channel(channel), RUN)


def server(
    agreed: Contract,
    *,
    clients: Tensor = EVERYONE,
    sample: int = 4,
    quorum: int = 1,
    rule: str = "mean",
    step: ServerStep | None = None,
) -> Server:
    roster = Roster()
    sizes = FEDERATION.sizes("train")
    roster.enrol([FEDERATION.ids[k] for k in clients], sizes[clients].tolist())
    return Server(agreed, roster, rule=parse_rule(rule), step=step, sample=sample, quorum=quorum)


def host(agreed: Contract, wire_ids: Tensor, **settings) -> Host:
    """A host across a network: it may be asked for a round twice."""
    return Host(agreed, FEDERATION.of(wire_ids), wire_ids, HostSettings(batch=8, **settings))


def hosts(agreed: Contract, count: int = 2, clients: Tensor = EVERYONE) -> list[Host]:
    return [host(agreed, share) for share in clients.tensor_split(count)]


def session(method: str, **settings) -> Session:
    """As a run makes it, malicious clients among the others."""
    chosen = make_method(method)
    given = {"batch": 8, "sample": 0 if chosen.traits.hears_all else 5} | settings
    return Session(
        prepare(chosen, TASK, FEDERATION, build(Settings, given, "run")), seed=0, run=RUN
    )


# -- between server and hosts ----------------------------------------------------------------------
Tamper = Callable[[int, list[bytes]], list[bytes]]  # (version, messages) -> what arrives


class Network:
    """A host behind a network: its messages and answers arrive as `tamper` and `answers` say.

    An engine sees a host; everything else is the host's own.
    """

    def __init__(
        self,
        host: Host,
        tamper: Tamper = lambda version, messages: messages,
        answers: Callable[[int, np.ndarray], np.ndarray] = lambda version, answers: answers,
    ):
        self._host = host
        self._tamper = tamper
        self._answers = answers
        self.arrived: list[bytes] = []  # of all rounds, answers among them

    def update(self, order) -> HostUpdate:
        sent = self._host.update(order)
        messages = [sent.messages.row(k) for k in range(len(sent.messages))]
        arrived = self._tamper(order.version, messages)
        self.arrived += arrived
        if arrived == messages:
            return sent
        return replace(sent, messages=Ragged.of(arrived), values=np.zeros(len(arrived)))

    def updates(self, order) -> Iterator[HostUpdate]:
        yield self.update(order)

    def answer(self, query) -> np.ndarray:
        answers = self._answers(query.version, self._host.answer(query))
        self.arrived += [row.tobytes() for row in answers]
        return answers

    def __getattr__(self, name: str):
        return getattr(self._host, name)


def with_header(message: bytes, **fields) -> bytes:
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    for name, value in fields.items():
        head[name] = value
    return head.tobytes() + message[24:]


# -- what is compared ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Held:
    """Everything that a server and its hosts hold."""

    tensors: dict[str, Tensor]
    fates: dict  # of messages, as the ledger counts them

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Held)
        return not self.differences(other)

    def differences(self, other: Held) -> list[str]:
        names = sorted(self.tensors.keys() ^ other.tensors.keys())
        for n in self.tensors.keys() & other.tensors.keys():
            if not torch.equal(bits(self.tensors[n]), bits(other.tensors[n])):
                names.append(n)
        return names if self.fates == other.fates else [*names, "fates of messages"]


def bits(t: Tensor) -> Tensor:
    """As bytes, so that NaN equals NaN."""
    return t.detach().cpu().contiguous().view(-1).view(torch.uint8)


def of_server(server: Server) -> dict[str, Tensor]:
    """What a round may change at the server, but for the ledger."""
    memory = server.memory.read(torch.arange(len(server.roster)))
    parts = {
        "state": server.state,
        "channel": server.channel_state,
        "rule": server.rule_state,
        "memory": memory,
        "rows": server.rows.all(),
    }
    return {f"{part}.{n}": t.clone() for part, state in parts.items() for n, t in state.items()}


def of_hosts(hosts: Sequence[Host]) -> dict[str, Tensor]:
    """Private rows and rows of the channel, sorted by wire id."""
    order = torch.cat([h.wire_ids for h in hosts]).argsort()
    out = {}
    for part in ("store", "coder"):
        rows = [getattr(h, part).read(torch.arange(h.data.clients)) for h in hosts]
        out |= {f"{part}.{n}": torch.cat([r[n] for r in rows])[order] for n in rows[0]}
    return out


def of_scores(scores: dict[str, Scores], kind: str) -> dict[str, Tensor]:
    return {
        f"{kind}.{split}.{field}": getattr(s, field)
        for split, s in scores.items()
        for field in ("wire_ids", "hits", "loss", "samples", "gradients")
    }


def held(engine, scored: bool = False) -> Held:
    """All of it; with the scores of all models if `scored`."""
    ledger = engine.server.ledger
    tensors = of_server(engine.server) | of_hosts(engine.hosts)
    tensors |= {f"ledger.{n}": t.clone() for n, t in ledger.counts.items()}
    if scored:
        splits = ("train", "valid", "test")
        tensors |= of_scores(engine.evaluate(EVERYONE, splits), "personal")
        tensors |= of_scores(engine.evaluate_shared(splits), "shared")
    fates = ledger.save()[1]
    return Held(tensors, {**fates, "version": engine.server.version})


def balanced(engine) -> None:
    """selected = admitted + rejected + missing."""
    ledger = engine.server.ledger
    lost = sum(ledger.rejected.values()) + sum(ledger.missing.values())
    assert ledger.selected == ledger.admitted + lost, ledger
