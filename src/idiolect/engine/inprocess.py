"""The default engine: server and one host in this process. Messages are really packed and unpacked; their length is what counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from ..channels.stage import Form, Stage
from ..core import streams
from ..core.store import Store
from ..core.types import State, under
from ..host.host import Host, Sent
from ..host.scores import Scores
from ..method import Rule
from ..server import rules as aggregation
from ..server.step import ServerStep
from ..wire import admission
from ..wire import messages as wire
from ..wire.ledger import Ledger
from ..wire.ragged import Ragged


def select(
    seed: int, round: int, keys: np.ndarray, eligible: Tensor, sample: int, purpose: str = "select"
) -> Tensor:
    """A uniform sample without replacement, sorted: the `sample` smallest of one random number a client.

    A client's number depends on nobody else, so a client that cannot take part changes nothing for the others.
    """
    draw = streams.bits(streams.keys(seed, purpose, round, keys[eligible.numpy()]), 0, 1)[:, 0]
    return eligible[torch.from_numpy(np.sort(np.argsort(draw, kind="stable")[:sample]))]


@dataclass
class Second:
    """The second exchange of a round, of the clients whose messages were admitted."""

    fine: Tensor  # bool[S]: all answers were admitted too (or none was asked for)
    bytes: Tensor  # int64[S]: the length of the answers


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
            host.data.clients,
            lambda ids: host.link.blank("memory", len(ids), like),
            host.settings.memory,
            host.settings.scratch,
        )
        self.ledger = Ledger(self.host.data.clients)
        self.mean_size = (
            float(self.host.sizes[self.eligible].double().mean()) if len(self.eligible) else 1.0
        )

    def message(self, round: int) -> bytes:
        """The message down for this round, from the server as it is now."""
        state = self.step.without(self.server)
        return wire.pack_down(
            self.host.method.broadcast(self.host.task, state), self.host.run, round
        )

    @property
    def round_bytes(self) -> int:
        """What the next round sends, both ways (at most, through a channel): known before it runs."""
        host = self.host
        up = (
            wire.HEADER.itemsize + host.link.limit(self.round)
            if host.link.codes and host.up.parts
            else host.up.length
        )
        return host.down.length * len(self._trained(0)[0]) + (up + self._second) * self.sample

    @cached_property
    def _second(self) -> int:
        """The most bytes that the second exchange takes a client, both ways: the query, the answer, what was taken."""
        stage, parts = self.host.link.aggregate_stage, self.host.link.aggregate_parts(0)
        if stage is None or not stage.second_exchange:
            return 0
        tables = (
            (f, self.host.task.x0.new_zeros(stage.numbers(f)), under(self.coder, prefix))
            for _, prefix, f in parts
        )
        asked = [len(stage.query(table, state, f)) for f, table, state in tables]
        return sum(
            3 * wire.HEADER.itemsize + q * (4 + 4 + self.host.task.dtype.itemsize) for q in asked
        )

    def advance(self, rate: float = 1.0) -> None:
        """One round."""
        host = self.host
        train, heard = self._trained(self.round)
        down = self.message(self.round)
        sent = host.update(self.round, down, train, heard, rate)
        self.ledger.sent_down(
            train,
            len(down),
            host.link.down_values(self.round) if host.link.codes else host.down.values,
        )
        if host.up.parts:
            self._receive(sent, heard, rate)
        self.ledger.counts["gradients"] = host.gradients.clone()
        self.round += 1

    def _receive(self, sent: Sent, heard: Tensor, rate: float) -> None:
        """Admit or reject, decode, aggregate, step. Who does not count is absent: for the server, and for what a channel remembers."""
        host = self.host
        got = admission.admit(
            sent.messages,
            schema=host.up,
            run=host.run,
            version=self.round,
            expected=heard,
            cap=float(host.sizes.max()),
            decode=self._decode if host.link.codes else None,
            limit=host.link.limit(self.round) if host.link.codes else 0,
        )
        self.ledger.selected += len(heard)
        self.ledger.rejected.update(got.rejected)
        second = Second(
            torch.ones(len(got.wire_ids), dtype=torch.bool),
            torch.zeros(len(got.wire_ids), dtype=torch.int64),
        )
        if len(got.wire_ids) and (trouble := self._step(got, second, rate)):
            self._reject(trouble, int(second.fine.sum()))
            second.fine[:] = False
        fine, who = second.fine, got.wire_ids[second.fine]
        host.unheard(self.round, heard[~torch.isin(heard, who)])
        if len(who):
            if got.memory:
                self.memory.write(who, self.round, {n: t[fine] for n, t in got.memory.items()})
            words = sent.values[np.searchsorted(sent.clients.numpy(), who.numpy())]
            self.ledger.admitted += len(who)
            self.ledger.sent_up(
                who, (torch.from_numpy(got.bytes) + second.bytes)[fine], torch.from_numpy(words)
            )

    def _step(self, got: admission.Admitted, second: Second, rate: float) -> str:
        """Aggregate and step; "", or why server and channel stay as they are: too few for the rule, or numbers that overflow."""
        host, task, method = self.host, self.host.task, self.host.method.scaled(rate)
        up = {n: t.to(task.device) for n, t in got.up.items()}
        weights = (got.weights / self.mean_size).to(task.device)
        before, coder = self.step.without(self.server), self.coder
        rule: Rule = partial(self.rule, key=int(streams.keys(task.seed, "rule", self.round)[0]))
        try:
            if host.link.codes:
                up, weights, coder = self._joined(up, got.wire_ids, weights, rule, second)
                up = host.link.restore(up, method.reference(task, method.broadcast(task, before)))
            server = self.step(self.server, method.aggregate(task, before, up, weights, rule))
        except aggregation.TooFew:
            return "too few"
        if not all(
            bool(torch.isfinite(t).all())
            for t in (*server.values(), *coder.values())
            if t.is_floating_point()
        ):
            return "overflow"
        self.server, self.coder = server, coder
        return ""

    def _reject(self, reason: str, messages: int) -> None:
        if messages:
            self.ledger.rejected[reason] += messages

    def save_channel(self) -> State:
        """What the channel keeps on both sides, for a checkpoint."""
        kept = {
            "client": self.host.coder.save(),
            "memory": self.memory.save(),
            "server": self.coder,
        }
        return {f"{side}.{n}": t for side, state in kept.items() for n, t in state.items()}

    def load_channel(self, tensors: State) -> None:
        if tensors:
            self.host.coder.load(under(tensors, "client."))
            self.memory.load(under(tensors, "memory."))
            self.coder = {
                n: t.to(self.host.task.device) for n, t in under(tensors, "server.").items()
            }

    # -- channels --------------------------------------------------------------------------------------------------------------
    def _decode(self, bodies: Ragged, clients: np.ndarray) -> tuple[State, np.ndarray, State]:
        ids, sender = np.unique(
            clients, return_inverse=True
        )  # messages come in any order, some of them twice
        known = (
            self.memory.read(torch.from_numpy(ids), self.round)
            if len(ids)
            else self.memory.fresh(torch.from_numpy(ids))
        )
        return self.host.link.decode(
            bodies,
            {n: t[torch.from_numpy(sender).to(t.device)] for n, t in known.items()},
            self.round,
        )

    def _joined(
        self, up: State, clients: Tensor, weights: Tensor, rule: Rule, second: Second
    ) -> tuple[State, Tensor, State]:
        """Sketches: aggregated first, then decoded; the change is handed on as if every client had sent it. And the server's vectors."""
        stage, coder = self.host.link.aggregate_stage, self.coder
        if stage is None:
            return up, weights, coder
        equal = getattr(self.host.method, "weighting", "equal") == "equal"
        for part, prefix, form in self.host.link.aggregate_parts(self.round):
            table, state = (
                rule(up[part], torch.ones_like(weights) if equal else weights),
                under(coder, prefix),
            )
            if stage.second_exchange:
                change, state = self._exchange(
                    stage, part, table, state, form, clients, weights, equal, rule, second
                )
            else:
                change, state = stage.finish(table, state, form)
            coder = coder | {f"{prefix}{n}": t for n, t in state.items()}
            up = up | {part: change.expand(len(clients), -1)}
        fine = second.fine.to(weights.device)
        return (
            (up, weights, coder)
            if bool(fine.all())
            else ({n: t[fine] for n, t in up.items()}, weights[fine], coder)
        )

    def _exchange(
        self,
        stage: Stage,
        part: str,
        table: Tensor,
        state: State,
        form: Form,
        clients: Tensor,
        weights: Tensor,
        equal: bool,
        rule: Rule,
        second: Second,
    ) -> tuple[Tensor, State]:
        """The second exchange of a round: which coordinates, their exact values, which of them were taken."""
        host, asked_of = self.host, clients[second.fine]
        query = {"query": stage.query(table, state, form).int().cpu()}
        asked, schema = wire.pack_down(query, host.run, self.round), wire.Schema.of(query)
        answers = host.answer(self.round, part, asked, asked_of, schema)
        self.ledger.sent_down(asked_of, len(asked), 0)
        form_up = wire.Schema((("values", (len(query["query"]),), host.task.dtype),))
        got = admission.admit(
            answers,
            schema=form_up,
            run=host.run,
            version=self.round,
            expected=asked_of,
            cap=float(host.sizes.max()),
        )
        second.fine &= torch.isin(clients, got.wire_ids)
        second.bytes[second.fine] += torch.from_numpy(got.bytes)
        self._reject("answer", len(asked_of) - len(got.wire_ids))
        shares = weights[second.fine.to(weights.device)]
        exact = rule(
            got.up["values"].to(host.task.device), torch.ones_like(shares) if equal else shares
        )
        change, chosen, state = stage.conclude(
            query["query"].long().to(host.task.device), exact, state, form
        )
        taken = {"chosen": chosen.int().cpu()}
        told = wire.pack_down(taken, host.run, self.round)
        host.forget(self.round, part, told, got.wire_ids, wire.Schema.of(taken))
        self.ledger.sent_down(got.wire_ids, len(told), 0)
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
        return self.host.method.handover(
            self.host.task,
            self.host.method.broadcast(self.host.task, self.step.without(self.server)),
        )

    def personalise(self, clients: Tensor, rounds: int) -> None:
        """Clients that took no part train their private rows towards the finished server; nothing is sent up."""
        nobody = clients[:0]
        for round in range(self.round, self.round + rounds):
            self.host.update(round, self.message(round), clients, nobody)
