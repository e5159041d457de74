"""The default engine: server and one host in this process. Messages are really packed and unpacked; their length is what counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .. import admission, aggregation, streams, wire
from ..channels.link import only
from ..channels.ragged import Ragged
from ..channels.stage import Form, Stage
from ..ledger import Ledger
from ..method import Rule, State
from ..metrics import Scores
from ..server_step import ServerStep
from .host import Host, Sent
from .store import Store


def select(seed: int, round: int, keys: np.ndarray, eligible: Tensor, sample: int, purpose: str = "select") -> Tensor:
    """A uniform sample without replacement, sorted: the `sample` smallest of one random number a client.

    A client's number depends on nobody else, so a client that cannot take part changes nothing for the others.
    """
    draw = streams.bits(streams.keys(seed, purpose, round, keys[eligible.numpy()]), 0, 1)[:, 0]
    return eligible[torch.from_numpy(np.sort(np.argsort(draw, kind="stable")[:sample]))]


@dataclass
class InProcess:
    """A run's moving parts: the server's state here, everything private in the host."""

    host: Host
    rule: aggregation.Rule
    step: ServerStep
    eligible: Tensor  # int64: clients that may take part, sorted
    sample: int
    server: State = field(init=False)
    ledger: Ledger = field(init=False)
    coder: State = field(init=False)  # vectors that the channel keeps at the server
    memory: Store = field(init=False)  # rows that it keeps there for each client
    round: int = 0  # rounds done

    def __post_init__(self) -> None:
        host, like = self.host, self.host.task.x0
        self.server = host.method.server(host.task)
        self.coder = host.link.blank("server", None, like)
        self.memory = Store(
            host.data.clients, lambda ids: host.link.blank("memory", len(ids), like), host.settings.memory, host.settings.scratch
        )
        self.ledger = Ledger(self.host.data.clients)
        self.mean_size = float(self.host.sizes[self.eligible].double().mean()) if len(self.eligible) else 1.0

    def message(self, round: int) -> bytes:
        """The message down for this round, from the server as it is now."""
        state = self.step.without(self.server)
        return wire.one(self.host.method.broadcast(self.host.task, state), self.host.run, round)

    @property
    def round_bytes(self) -> int:
        """What the next round sends, both ways (at most, through a channel): known before it runs."""
        host = self.host
        up = wire.HEADER.itemsize + host.link.limit(self.round) if host.link else host.up.length
        return host.down.length * len(self._trained(0)[0]) + up * self.sample

    def advance(self, rate: float = 1.0) -> None:
        """One round."""
        host = self.host
        train, heard = self._trained(self.round)
        down = self.message(self.round)
        sent = host.update(self.round, down, train, heard, rate)
        self.ledger.sent_down(train, len(down), host.link.down_values(self.round) if host.link else host.down.values)
        if host.up.parts:
            self._receive(sent, heard, rate)
        self.ledger.counts["gradients"] = host.gradients.clone()
        self.round += 1

    def _receive(self, sent: Sent, heard: Tensor, rate: float) -> None:
        """Admit or reject, decode, aggregate, step. Nobody heard, or numbers that overflow: the server stays as it is."""
        host, task, method = self.host, self.host.task, self.host.method.scaled(rate)
        got = admission.admit(
            sent.messages,
            schema=host.up,
            run=host.run,
            round=self.round,
            expected=heard,
            cap=float(host.sizes.max()),
            decode=self._decode if host.link else None,
            limit=host.link.limit(self.round) if host.link else 0,
        )
        self.ledger.selected += len(heard)
        self.ledger.rejected.update(got.rejected)
        if not len(got.clients):
            return
        if got.memory:
            self.memory.write(got.clients, self.round, got.memory)
        up = {n: t.to(task.device) for n, t in got.up.items()}
        weights = (got.weights / self.mean_size).to(task.device)
        before = self.step.without(self.server)
        rule: Rule = partial(self.rule, key=int(streams.keys(task.seed, "rule", self.round)[0]))
        try:
            if host.link:
                up = self._joined(up, got.clients, weights, rule)
                up = host.link.restore(up, method.reference(task, method.broadcast(task, before)))
            server = self.step(self.server, method.aggregate(task, before, up, weights, rule))
        except aggregation.TooFew:
            self.ledger.rejected["too few"] += len(got.clients)
            return
        if not all(bool(torch.isfinite(t).all()) for t in server.values() if t.is_floating_point()):
            self.ledger.rejected["overflow"] += len(got.clients)
            return
        self.server = server
        self.ledger.admitted += len(got.clients)
        words = sent.values[np.searchsorted(sent.clients.numpy(), got.clients.numpy())]
        self.ledger.sent_up(got.clients, torch.from_numpy(got.bytes), torch.from_numpy(words))

    def save_channel(self) -> State:
        """What the channel keeps on both sides, for a checkpoint."""
        kept = {"client": self.host.coder.save(), "memory": self.memory.save(), "server": self.coder}
        return {f"{side}.{n}": t for side, state in kept.items() for n, t in state.items()}

    def load_channel(self, tensors: State) -> None:
        if tensors:
            self.host.coder.load(only(tensors, "client."))
            self.memory.load(only(tensors, "memory."))
            self.coder = {n: t.to(self.host.task.device) for n, t in only(tensors, "server.").items()}

    # -- channels --------------------------------------------------------------------------------------------------------------
    def _decode(self, bodies: Ragged, clients: np.ndarray) -> tuple[State, np.ndarray, State]:
        return self.host.link.decode(bodies, self.memory.read(torch.from_numpy(clients), self.round), self.round)

    def _joined(self, up: State, clients: Tensor, weights: Tensor, rule: Rule) -> State:
        """Sketches: aggregated first, then decoded; the change is handed on as if every client had sent it."""
        stage = self.host.link.joint
        if stage is None:
            return up
        if getattr(self.host.method, "weighting", "equal") == "equal":
            weights = torch.ones_like(weights)
        for part, prefix, form in self.host.link.joint_parts(self.round):
            table, state = rule(up[part], weights), only(self.coder, prefix)
            if stage.asks:
                change, state = self._exchange(stage, part, table, state, form, clients, weights, rule)
            else:
                change, state = stage.finish(table, state, form)
            self.coder |= {f"{prefix}{n}": t for n, t in state.items()}
            up = up | {part: change.expand(len(clients), -1)}
        return up

    def _exchange(
        self, stage: Stage, part: str, table: Tensor, state: State, form: Form, clients: Tensor, weights: Tensor, rule: Rule
    ) -> tuple[Tensor, State]:
        """The second exchange of a round: which coordinates, their exact values, which of them were taken."""
        host = self.host
        query = {"query": stage.query(table, state, form).int().cpu()}
        asked, schema = wire.one(query, host.run, self.round), wire.Schema.of(query)
        answers = host.answer(self.round, part, asked, clients, schema)
        form_up = wire.Schema((("values", (len(query["query"]),), host.task.dtype),))
        got = admission.admit(answers, schema=form_up, run=host.run, round=self.round, expected=clients, cap=float(host.sizes.max()))
        known = torch.isin(clients, got.clients)
        exact = (
            rule(got.up["values"].to(host.task.device), weights[known.to(weights.device)])
            if len(got.clients)
            else table.new_zeros(len(query["query"]))
        )
        change, chosen, state = stage.conclude(query["query"].long().to(host.task.device), exact, state, form)
        taken = {"chosen": chosen.int().cpu()}
        told = wire.one(taken, host.run, self.round)
        host.forget(self.round, part, told, clients, wire.Schema.of(taken))
        self.ledger.sent_down(clients, len(asked) + len(told), 0)
        self.ledger.sent_up(got.clients, torch.from_numpy(got.bytes), torch.zeros(len(got.clients), dtype=torch.float64))
        return change, state

    def _trained(self, round: int) -> tuple[Tensor, Tensor]:
        """(who trains, who of them is heard)."""
        heard = select(self.host.task.seed, round, self.host.keys, self.eligible, self.sample)
        return (self.eligible if self.host.method.trains == "everyone" else heard), heard

    def evaluate(self, clients: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self.host.evaluate(self.round, self.message(self.round), clients, splits)

    def evaluate_shared(self, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self.host.evaluate_shared(self.round, self.message(self.round), splits)

    def handover(self) -> Tensor | None:
        """The model a next stage starts from."""
        return self.host.method.handover(self.host.task, self.host.method.broadcast(self.host.task, self.step.without(self.server)))

    def personalise(self, clients: Tensor, rounds: int) -> None:
        """Clients that took no part train their private rows towards the finished server; nothing is sent up."""
        nobody = clients[:0]
        for round in range(self.round, self.round + rounds):
            self.host.update(round, self.message(round), clients, nobody)
