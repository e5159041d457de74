"""From the messages of a round to the server's next state: rule, method and server step.

Everything here is a trial: nothing changes until the server takes an `Outcome` over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import Factors
from ..core.types import State, prefixed, under
from ..wire.admission import Admitted
from ..wire.messages import pack_down
from .contract import Contract
from .round import Outcome, Round, RoundRule
from .rules import Rule
from .step import ServerStep
from .stream import Stream


class Overflow(ArithmeticError):
    """The messages would leave the server with numbers that are not finite."""


@dataclass(frozen=True)
class Aggregation:
    """How messages are combined, from the server's vectors before the round."""

    contract: Contract
    rule: Rule
    step: ServerStep
    before: Outcome
    streams: bool = False  # see server/stream.py

    def __call__(self, round: Round, got: Admitted) -> Outcome:
        """The server after these messages.

        Raises `TooFew` where they are too few for the rule, and `Overflow`.
        """
        contract = self.contract
        link = contract.link
        method = contract.method.scaled(round.order.factors)
        state = self.step.method_state(self.before.state)
        channel = self.before.channel
        taken: dict[str, bytes] = {}
        combine: RoundRule | Stream
        if round.stream is not None:
            up = self._on_device({n: t.new_zeros(1, t.shape[1]) for n, t in got.up.items()})
            combine = round.stream.end()
        elif link.aggregate_stage is None:
            up = self._on_device(got.up)
            combine = self._combine(round, got, self.before.rule)
        else:
            up, channel, rule_state, taken = self._changes(round, got)
            up = link.restore(up, self.reference(round.order.factors))
            combine = self._combine(round, got, {}, one_row=self.streams)
        after = method.aggregate(contract.task, state, up, combine)
        if link.aggregate_stage is None:
            rule_state = combine.state
        step = self.step.scaled(round.order.factors)
        stepped = step(self.before.state, after, method.shared_name)
        outcome = Outcome(stepped, channel, rule_state, taken)
        if not outcome.finite():
            raise Overflow
        return outcome

    def collect(self, round: Round, rows: State, samples: Tensor) -> None:
        """Add messages to the round's sums: float64[S], training samples of their clients."""
        assert round.stream is not None
        contract = self.contract
        method = contract.method.scaled(round.order.factors)
        up = self._on_device(rows)
        combine = round.stream.batch(samples.to(contract.task.device))
        method.aggregate(contract.task, self.step.method_state(self.before.state), up, combine)

    def reference(self, factors: Factors) -> State:
        """What the coded parts of a message are changes of."""
        contract = self.contract
        method = contract.method.scaled(factors)
        down = method.broadcast(contract.task, self.step.method_state(self.before.state))
        return method.reference(contract.task, down)

    def _changes(self, round: Round, got: Admitted) -> tuple[State, State, State, dict[str, bytes]]:
        """Sketches: aggregated first, then decoded.

        (messages as if every client had sent the change, the channel's vectors, the rule's, and the
        coordinates taken in a second exchange).
        """
        link = self.contract.link
        stage = link.aggregate_stage
        assert stage is not None
        channel = dict(self.before.channel)
        taken: dict[str, bytes] = {}
        second = round.second
        if second is None:
            tables, rule_state = self.sketches(round, got)
        else:
            rule_state = second.rule_state
        rows = self._on_device(got.up)
        for part, prefix, form in link.aggregate_parts(round.version):
            state = under(channel, prefix)
            if second is None:
                change, state = stage.finish(tables[part], state, form)
            else:
                exact = self._exact(round, part, got)
                query = second.queries[part].to(exact.device)
                change, chosen, state = stage.conclude(query, exact, state, form)
                taken[part] = self.pack({"chosen": chosen.int().cpu()}, round.version)
            channel |= prefixed(state, prefix)
            rows = rows | {part: change.expand(1 if self.streams else len(got.wire_ids), -1)}
        return rows, channel, rule_state, taken

    def sketches(self, round: Round, got: Admitted) -> tuple[State, State]:
        """The aggregate of the sketches, by part of the message, and the rule's vectors."""
        combine = self._combine(round, got, self.before.rule)
        parts = self.contract.link.aggregate_parts(round.version)
        tables = combine(self._on_device({part: got.up[part] for part, _, _ in parts}))
        return tables, combine.state

    def query(self, round: Round, tables: State) -> dict[str, Tensor]:  # -> int64 each
        """The coordinates whose exact values are asked for, by part of the message."""
        stage = self.contract.link.aggregate_stage
        assert stage is not None
        parts = self.contract.link.aggregate_parts(round.version)
        channel = self.before.channel
        return {n: stage.query(tables[n], under(channel, prefix), f) for n, prefix, f in parts}

    def _exact(self, round: Round, part: str, got: Admitted) -> Tensor:
        """The aggregate of the answers to a query."""
        assert round.second is not None
        answers = round.second.answers[part].admitted()
        kept = torch.isin(answers.wire_ids, got.wire_ids)
        values = self._on_device({"values": answers.up["values"][kept]})
        return self._combine(round, got, {})(values)["values"]

    def _combine(
        self, round: Round, got: Admitted, state: State, one_row: bool = False
    ) -> RoundRule:
        """The rule for these messages; with `one_row` for one that stands for them all."""
        task = self.contract.task
        key = int(streams.keys(task.seed, "rule", round.version)[0])
        samples = round.samples(got).to(task.device)
        heard = len(samples)
        if one_row:
            samples = samples.mean(dim=0, keepdim=True)
        return RoundRule(self.contract, self.rule, samples, heard, round.clients, key, state)

    def _on_device(self, rows: State) -> State:
        return {n: t.to(self.contract.task.device) for n, t in rows.items()}

    def pack(self, state: State, version: int) -> bytes:
        """A message down."""
        return pack_down(state, self.contract.run, version, self.contract.checksum)
