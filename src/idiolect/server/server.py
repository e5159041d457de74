"""The server: what it holds, whom it asks, what it accepts, and its step.

It knows the contract and the roster; it never sees a host, a data set or a private row. A round is
opened (who trains, who is heard, the message down), messages are received in any order and number,
and it is closed. Which version of the model a message started from stands in its header, so that
rounds are one way to use a server and single arrivals another.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.files import check_like
from ..core.store import Store
from ..core.tensors import Shapes, bytes_of, check_shapes, shapes_of
from ..core.types import State, prefixed, under
from ..wire.admission import Admitted, Decode, Inbox, Messages
from ..wire.ledger import Ledger
from ..wire.messages import HEADER, pack_down
from ..wire.ragged import Ragged
from .contract import Contract
from .exchange import Order, Query, Verdict
from .roster import Roster
from .round import Round, RoundRule
from .rules import Rule, TooFew
from .selection import select
from .step import ServerStep

OPTIMIZER_STATE = "state.optimizer."  # what the server's optimiser keeps, in a checkpoint


class Server:
    """State, selection, admission, aggregation, step and ledger of one run."""

    def __init__(
        self,
        contract: Contract,
        roster: Roster,
        *,
        rule: Rule,
        step: ServerStep | None = None,
        sample: int = 1,
        quorum: int = 1,
        memory: int = 2 << 30,
        scratch: Any = None,
    ):
        self.contract = contract
        self.roster = roster
        self.rule = rule
        self.step = step or ServerStep()
        self.sample = sample  # clients heard per round
        self.quorum = quorum  # fewer messages than this leave the server as it is
        self.version = 0  # rounds closed
        task = contract.task
        link = contract.link
        self.state = contract.method.server(task)  # the method's and the server optimiser's
        self.channel_state = link.blank("server", None, task.x0)
        self.rule_state = rule.blank(sum(link.rule_sizes().values()), task.x0)
        # what the channel keeps here for each client, by wire id
        self.memory = Store(
            len(roster), lambda ids: link.blank("memory", len(ids), task.x0), memory, scratch
        )
        self.ledger = Ledger(len(roster))

    # -- clients come and go ---------------------------------------------------------------------
    def enrol(self, ids: list, samples: list[int]) -> Tensor:
        """New clients, from the next round on; their wire ids."""
        wire_ids = self.roster.enrol(ids, samples)
        self.ledger.grow(len(self.roster))
        self.memory.grow(len(self.roster))
        return wire_ids

    # -- a round ---------------------------------------------------------------------------------
    def open(self, version: int | None = None, rate: float = 1.0) -> Round:
        """Start a round: who trains, who is heard, the message down."""
        version = self.version if version is None else version
        contract = self.contract
        heard = self._sampled(version)
        everyone = contract.method.trains == "everyone"
        train = self.roster.eligible_ids() if everyone else heard
        order = Order(version, self.message(version), train, heard, rate)
        link = contract.link
        values = link.down_values(version) if link.codes else contract.down.values
        self.ledger.sent_down(train, len(order.down), values)
        inbox = Inbox(
            contract.up,
            contract.run,
            version,
            heard,
            self.roster.most_samples(),
            self._decoder(version) if link.codes else None,
            link.limit(version) if link.codes else 0,
        )
        clients = int(self.roster.eligible.sum())
        return Round(order, inbox, clients, self.roster.mean_samples())

    def receive(self, round: Round, messages: Messages, values: np.ndarray | None = None) -> None:
        """Messages of a round: any number of them, at any time before it is closed, in any order.

        `values`: what each counts as in the lp-proj paper's 32-bit words.
        """
        if self.contract.up.parts:
            round.inbox.receive(messages, values)

    def account(self, wire_ids: Tensor, gradients: Tensor) -> None:
        """Gradient evaluations that clients report."""
        self.ledger.add_gradients(wire_ids, gradients)

    def ask(self, round: Round) -> list[Query]:
        """The questions of a channel's second exchange; none for most channels."""
        contract = self.contract
        stage = contract.link.aggregate_stage
        if stage is None or not stage.second_exchange:
            return []
        round.asked = True
        got = round.inbox.admitted()
        if len(got.wire_ids) < max(self.quorum, 1):
            return []
        combine = self._combine(round, round.samples(got), self.rule_state)
        try:
            tables = combine(self._sketches(round, self._on_device(got.up)))
        except TooFew:
            return []
        round.rule_state = combine.state
        queries = []
        for part, prefix, form in contract.link.aggregate_parts(round.version):
            wanted = stage.query(tables[part], under(self.channel_state, prefix), form)
            message = self._pack({"query": wanted.int().cpu()}, round.version)
            self.ledger.sent_down(got.wire_ids, len(message), 0)
            queries.append(Query(round.version, part, message, got.wire_ids))
            round.queries[part] = wanted
            round.answers[part] = Inbox(
                contract.answer(len(wanted)),
                contract.run,
                round.version,
                got.wire_ids,
                self.roster.most_samples(),
            )
        return queries

    def receive_answer(self, round: Round, part: str, messages: Messages) -> None:
        """Answers to a query, as `receive`."""
        round.answers[part].receive(messages)

    def close(self, round: Round) -> Verdict:
        """End a round: combine what arrived and step, or leave everything as it was.

        Whoever does not count is absent: for the server, and for what a channel remembers.
        """
        self._check_open(round)
        round.closed = True
        heard = round.order.heard
        self.version = max(self.version, round.version + 1)
        if not self.contract.up.parts:
            return Verdict(round.version, heard[:0], heard[:0], {})
        got = round.inbox.admitted()
        self.ledger.selected += len(heard)
        self.ledger.rejected.update(got.rejected)
        silent = len(heard) - len(got.wire_ids) - sum(got.rejected.values())
        if silent > 0:
            self.ledger.rejected["missing"] += silent
        counts = self._answered(round, got)
        taken: dict[str, bytes] = {}
        if bool(counts.any()):
            trouble, taken = self._step(round, got, counts)
            if trouble:
                self.ledger.rejected[trouble] += int(counts.sum())
                counts[:] = False
        counted = got.wire_ids[counts]
        if len(counted):
            self._remember(round, got, counts)
            for message in taken.values():
                self.ledger.sent_down(counted, len(message), 0)
        return Verdict(round.version, counted, heard[~torch.isin(heard, counted)], taken)

    def _check_open(self, round: Round) -> None:
        """An engine must close a round once, and ask before it does where the channel asks."""
        if round.closed:
            raise RuntimeError(f"the round of version {round.version} has been closed before")
        stage = self.contract.link.aggregate_stage
        if stage is not None and stage.second_exchange and not round.asked:
            raise RuntimeError("this channel has a second exchange: call ask() before close()")

    def _answered(self, round: Round, got: Admitted) -> Tensor:  # -> bool[S]
        """Which of the admitted took part in every exchange of the round."""
        answered = torch.ones(len(got.wire_ids), dtype=torch.bool)
        for inbox in round.answers.values():
            answered &= torch.isin(got.wire_ids, inbox.admitted().wire_ids)
        if not bool(answered.all()):
            self.ledger.rejected["answer"] += int((~answered).sum())
        return answered

    def _remember(self, round: Round, got: Admitted, counts: Tensor) -> None:
        """What a round that counted leaves behind, beside the server's state."""
        counted = got.wire_ids[counts]
        if got.memory:
            rows = {n: t[counts.to(t.device)] for n, t in got.memory.items()}
            self.memory.write(counted, round.version, rows)
        lengths = torch.from_numpy(got.bytes)[counts]
        for inbox in round.answers.values():
            answers = inbox.admitted()
            lengths += torch.from_numpy(answers.bytes)[torch.isin(answers.wire_ids, counted)]
        self.ledger.admitted += len(counted)
        self.ledger.sent_up(counted, lengths, torch.from_numpy(got.values)[counts])

    # -- aggregation and step --------------------------------------------------------------------
    def _step(self, round: Round, got: Admitted, counts: Tensor) -> tuple[str, dict[str, bytes]]:
        """Aggregate and step; or say why server and channel stay as they are."""
        if int(counts.sum()) < self.quorum:
            return "too few", {}
        if round.asked and not round.queries:  # the rule had too few sketches to combine
            return "too few", {}
        contract = self.contract
        task = contract.task
        method = contract.method.scaled(round.order.rate)
        before = self.step.method_state(self.state)
        try:
            taken: dict[str, bytes] = {}
            if contract.link.aggregate_stage is None:
                up = self._on_device(got.up)
                channel_state = self.channel_state
                combine = self._combine(round, round.samples(got), self.rule_state)
            else:
                up, channel_state, round.rule_state, taken = self._changes(round, got, counts)
                combine = self._combine(round, round.samples(got, counts), {})
            if contract.link.codes:
                reference = method.reference(task, method.broadcast(task, before))
                up = contract.link.restore(up, reference)
            after = method.aggregate(task, before, up, combine)
            state = self.step(self.state, after, method.shared_name)
        except TooFew:
            return "too few", {}
        first_pass = contract.link.aggregate_stage is None
        rule_state = combine.state if first_pass else round.rule_state
        vectors = (*state.values(), *channel_state.values(), *rule_state.values())
        if not all(bool(torch.isfinite(t).all()) for t in vectors if t.is_floating_point()):
            return "overflow", {}
        self.state = state
        self.channel_state = channel_state
        self.rule_state = rule_state
        return "", taken

    def _changes(
        self, round: Round, got: Admitted, counts: Tensor
    ) -> tuple[State, State, State, dict[str, bytes]]:
        """Sketches: aggregated first, then decoded.

        (messages as if every client had sent the change, the channel's vectors, the rule's, and the
        coordinates taken in a second exchange).
        """
        link = self.contract.link
        stage = link.aggregate_stage
        assert stage is not None
        up = self._on_device(got.up)
        channel_state = dict(self.channel_state)
        rule_state = round.rule_state
        taken: dict[str, bytes] = {}
        tables: State = {}
        if not stage.second_exchange:
            combine = self._combine(round, round.samples(got), self.rule_state)
            tables = combine(self._sketches(round, up))
            rule_state = combine.state
        kept = counts.to(self.contract.task.device)
        rows = {n: t[kept] for n, t in up.items()} if not bool(counts.all()) else up
        for part, prefix, form in link.aggregate_parts(round.version):
            state = under(channel_state, prefix)
            if stage.second_exchange:
                exact = self._exact(round, part, got, counts)
                query = round.queries[part].to(exact.device)
                change, chosen, state = stage.conclude(query, exact, state, form)
                taken[part] = self._pack({"chosen": chosen.int().cpu()}, round.version)
            else:
                change, state = stage.finish(tables[part], state, form)
            channel_state |= prefixed(state, prefix)
            rows = rows | {part: change.expand(int(counts.sum()), -1)}
        return rows, channel_state, rule_state, taken

    def _exact(self, round: Round, part: str, got: Admitted, counts: Tensor) -> Tensor:
        """The aggregate of the answers to a query."""
        answers = round.answers[part].admitted()
        kept = torch.isin(answers.wire_ids, got.wire_ids[counts])
        values = self._on_device({"values": answers.up["values"][kept]})
        combine = self._combine(round, round.samples(got, counts), {})
        return combine(values)["values"]

    def _sketches(self, round: Round, up: State) -> State:
        return {part: up[part] for part, _, _ in self.contract.link.aggregate_parts(round.version)}

    def _combine(self, round: Round, samples: Tensor, state: State) -> RoundRule:
        key = int(streams.keys(self.contract.task.seed, "rule", round.version)[0])
        on_device = samples.to(self.contract.task.device)
        return RoundRule(self.contract, self.rule, on_device, round.clients, key, state)

    def _on_device(self, rows: State) -> State:
        return {n: t.to(self.contract.task.device) for n, t in rows.items()}

    # -- messages --------------------------------------------------------------------------------
    def message(self, version: int) -> bytes:
        """The message down, from the server as it is now."""
        method = self.contract.method
        state = method.broadcast(self.contract.task, self.step.method_state(self.state))
        return self._pack(state, version)

    def _pack(self, state: State, version: int) -> bytes:
        return pack_down(state, self.contract.run, version, self.contract.checksum)

    def _decoder(self, version: int) -> Decode:
        """How bodies become rows, with what the channel remembers of their senders."""

        def decode(bodies: Ragged, wire_ids: np.ndarray) -> tuple[State, np.ndarray, State]:
            # messages come in any order, some of them twice
            ids, sender = np.unique(wire_ids, return_inverse=True)
            clients = torch.from_numpy(ids)
            known = self.memory.read(clients, version) if len(ids) else self.memory.fresh(clients)
            at = torch.from_numpy(sender)
            rows = {n: t[at.to(t.device)] for n, t in known.items()}
            return self.contract.link.decode(bodies, rows, version)

        return decode

    def round_bytes(self, version: int | None = None) -> int:
        """What the next round sends both ways, through a channel at most: known before it runs."""
        version = self.version if version is None else version
        contract = self.contract
        up = contract.up.length
        if contract.link.codes and contract.up.parts:
            up = HEADER.itemsize + contract.link.limit(version)
        everyone = contract.method.trains == "everyone"
        trained = int(self.roster.eligible.sum()) if everyone else self.sample
        return contract.down.length * trained + (up + self._second_exchange_bytes) * self.sample

    @cached_property
    def _second_exchange_bytes(self) -> int:
        """The most bytes per client of a second exchange: the query, the answer, what was taken."""
        link = self.contract.link
        stage = link.aggregate_stage
        if stage is None or not stage.second_exchange:
            return 0
        total = 0
        task = self.contract.task
        for _, prefix, form in link.aggregate_parts(0):
            table = task.x0.new_zeros(stage.numbers(form))
            asked = len(stage.query(table, under(self.channel_state, prefix), form))
            total += 3 * HEADER.itemsize + asked * (4 + 4 + task.dtype.itemsize)
        return total

    def _sampled(self, version: int) -> Tensor:
        seed = self.contract.task.seed
        return select(seed, version, self.roster.keys, self.roster.eligible_ids(), self.sample)

    def handover(self) -> Tensor | None:  # -> [d]
        """The model that a next stage starts from; None where there is none."""
        method = self.contract.method
        task = self.contract.task
        down = method.broadcast(task, self.step.method_state(self.state))
        return method.handover(task, down)

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        """Everything, for a checkpoint: tensors and plain facts.

        The memory of clients is not copied, for it can be large: write it before the next round.
        """
        roster, clients = self.roster.save()
        counts, fates = self.ledger.save()
        tensors = {
            **prefixed(self.state, "state."),
            **prefixed(self.channel_state, "channel."),
            **prefixed(self.rule_state, "rule."),
            **prefixed(self.memory.save(), "memory."),
            **prefixed({n: t.clone() for n, t in roster.items()}, "roster."),
            **prefixed({n: t.clone() for n, t in counts.items()}, "ledger."),
        }
        facts = {"version": self.version, "clients": clients, "ledger": fates}
        return {n: t.cpu() for n, t in tensors.items()}, facts

    def check(self, shapes: Shapes, facts: dict[str, Any]) -> None:
        """Refuse, by ValueError, what a server of this contract cannot have saved.

        Before anything is read: names, shapes and dtypes of the tensors, types of the facts. The
        clients are those enrolled here, and any that enrolled later.
        """
        roster, clients = self.roster.save()
        counts, fates = self.ledger.save()
        pattern = {"version": 0, "clients": clients, "ledger": {**fates, "rejected": {}}}
        check_like(facts, pattern, "server")
        ids = facts["clients"]["ids"]
        if ids[: len(self.roster)] != self.roster.ids or len({str(i) for i in ids}) < len(ids):
            raise ValueError("server: these are other clients")
        per_client = {**prefixed(roster, "roster."), **prefixed(counts, "ledger.")}
        expected = {
            **shapes_of(self.step.method_state(self.state), "state."),
            **shapes_of(self.channel_state, "channel."),
            **shapes_of(self.rule_state, "rule."),
            **{
                name: ((len(ids), *shape[1:]), dtype)
                for name, (shape, dtype) in shapes_of(per_client).items()
            },
        }
        if any(name.startswith(OPTIMIZER_STATE) for name in shapes):
            expected |= self._optimizer_shapes()
        memory = {n: form for n, form in shapes.items() if n.startswith("memory.")}
        check_shapes({n: form for n, form in shapes.items() if n not in memory}, expected)
        self.memory.check({n.removeprefix("memory."): f for n, f in memory.items()}, len(ids))

    def _optimizer_shapes(self) -> Shapes:
        """What the server's optimiser keeps: it shows after a step."""
        shared = self.contract.method.shared_name
        before = {n: t for n, t in self.step.method_state(self.state).items() if n == shared}
        if not before:
            return {}
        after = self.step(before, before, shared)
        return {n: f for n, f in shapes_of(after, "state.").items() if n != f"state.{shared}"}

    def load(self, tensors: State, facts: dict[str, Any]) -> None:
        """As it was saved; see `check` for what is refused."""
        self.check(shapes_of(tensors), facts)
        vectors = [t for n, t in tensors.items() if n.startswith(("state.", "channel.", "rule."))]
        if not all(bool(torch.isfinite(t).all()) for t in vectors if t.is_floating_point()):
            raise ValueError("server: a number of its state is not finite")
        roster = Roster.loaded(under(tensors, "roster."), facts["clients"])
        if not torch.equal(roster.samples[: len(self.roster)], self.roster.samples):
            raise ValueError("server: a client has another number of training samples")
        counts = {n: t.clone() for n, t in under(tensors, "ledger.").items()}
        if not all(bool((t >= 0).all()) for t in counts.values()):
            raise ValueError("ledger: a count is negative")
        memory = under(tensors, "memory.")
        device = self.contract.task.device
        self.memory.load(memory, device, len(roster), rounds=facts["version"])
        self.version = facts["version"]
        self.state = self._on_device(under(tensors, "state."))
        self.channel_state = self._on_device(under(tensors, "channel."))
        self.rule_state = self._on_device(under(tensors, "rule."))
        self.roster = roster
        self.ledger = Ledger.load(counts, facts["ledger"])

    def most_bytes(self) -> int:
        """The most that the tensors of `save` take, for the clients enrolled here."""
        tensors, _ = self.save()
        own = {n: t for n, t in tensors.items() if not n.startswith("memory.")}
        shapes = {**shapes_of(own), **self._optimizer_shapes()}
        return bytes_of(shapes) + bytes_of(self.memory.expected())
