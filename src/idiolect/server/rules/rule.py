"""What an aggregation rule is: one row per client goes in, one row comes out.

A rule is a pure function. What it keeps from round to round is declared (`server`), handed in and
handed back (`combine_with_state`), so that a checkpoint has it.

A rule of your own is a frozen dataclass with one function, and is chosen as `module:Name`:

>>> @dataclass(frozen=True)
... class Largest(Rule):
...     def combine(self, rows, weights):
...         return rows.amax(0)
>>> import torch
>>> Largest()(torch.tensor([[0.0, 5.0], [3.0, 1.0]]), torch.ones(2)).tolist()
[3.0, 5.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...core.knobs import Knobs, SettingError, knob
from ...core.types import State


class TooFew(SettingError):
    """Fewer clients than the rule needs.

    Refused when a run is set up; where it happens in a round, the server stays as it is.
    """


@dataclass(frozen=True)
class RulePart(Knobs):
    """A rule, or a wrapper that stands before one."""

    title: ClassVar[str] = ""  # the name it is chosen by, if it is built in
    by_coordinate: ClassVar[bool] = False  # number j of the result depends on column j alone
    # a row counts by its client's weight; else the setting client_weights is refused
    weighs: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What error messages call it."""
        return self.title or type(self).__name__

    def check(self, n: int) -> None:
        """Refuse n clients where they are too few."""
        if n < 1:
            raise TooFew(f"rule: {self.name} needs at least 1 client, not {n}")


@dataclass(frozen=True)
class Rule(RulePart):
    """rows[S, m], weights[S] -> [m].

    A stateless rule defines `combine`. One that draws random numbers or keeps state defines
    `combine_with_state` instead.
    """

    streams: ClassVar[bool] = False  # needs no more of the rows than their weighted sum

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> Tensor:
        """The aggregate without any history; `key` as in `combine_with_state`."""
        row, _ = self.combine_with_state(rows, weights, {}, key=key)
        return row

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The aggregate; the number of rows has been checked."""
        raise NotImplementedError

    def combine_with_state(
        self, rows: Tensor, weights: Tensor, state: State, *, key: int = 0
    ) -> tuple[Tensor, State]:
        """The aggregate, and the server's vectors after this round.

        `state` holds the vectors that `server` declares. An empty one means that there is no
        history and that none is to be kept: it is returned empty. `key` names the random numbers
        of this round.
        """
        self.check(len(rows))
        return self.combine(rows, weights), state

    def sum_weights(self, weights: Tensor) -> Tensor:
        """Where it `streams`: the weights under which it is a mean."""
        return weights

    def server(self, n: int) -> dict[str, int]:
        """Vectors kept at the server for messages of n numbers in all: name -> numbers."""
        return {}

    def blank(self, n: int, like: Tensor) -> State:
        """These vectors before the first round: zeros, of the dtype and on the device of `like`."""
        return {name: like.new_zeros(size) for name, size in self.server(n).items()}


@dataclass(frozen=True)
class Wrapper(RulePart):
    """rows[S, m], weights[S] -> fewer or milder rows and their weights, for the rule after it."""

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def after(self, n: int) -> int:
        """How many rows are left of n."""
        return n


@dataclass(frozen=True)
class Resilient(RulePart):
    """A rule or wrapper with an option f: the malicious clients that it withstands.

    It needs n >= slope f + offset clients.
    """

    slope: ClassVar[int] = 2
    offset: ClassVar[int] = 1

    f: int = knob(-1, "malicious clients withstood; -1 = as many as the rule can", low=-1)

    def check(self, n: int) -> None:
        most = self._most(n)
        condition = f"n >= {self.slope} f + {self.offset}"
        if most < 0:
            needed = self.slope * max(self.f, 0) + self.offset
            raise TooFew(
                f"rule: {self.name} needs at least {needed} clients ({condition}), not {n}"
            )
        if self.f > most:
            raise TooFew(
                f"f must be at most {most} for {self.name} with {n} clients ({condition}), "
                f"got {self.f}"
            )

    def malicious(self, n: int) -> int:
        """f for n clients."""
        return self._most(n) if self.f == -1 else self.f

    def _most(self, n: int) -> int:
        return (n - self.offset) // self.slope


@dataclass(frozen=True)
class WrappedRule(Rule):
    """What "bucketing(size=2) + median" makes: the wrappers as written, then the rule.

    Its state is the rule's: wrappers change the number of rows, never their length.

    >>> import torch
    >>> from idiolect.server.rules import parse_rule
    >>> parse_rule("nnm(f=1) + mean")(torch.tensor([[1.0], [1.0], [1.0], [901.0]]), torch.ones(4))
    tensor([76.])
    """

    wrappers: tuple[Wrapper, ...]
    rule: Rule

    @property
    def by_coordinate(self) -> bool:  # type: ignore[override]
        return all(part.by_coordinate for part in (*self.wrappers, self.rule))

    @property
    def weighs(self) -> bool:  # type: ignore[override]
        return all(part.weighs for part in (*self.wrappers, self.rule))

    def check(self, n: int) -> None:
        rows = n
        for wrapper in self.wrappers:
            wrapper.check(rows)
            rows = wrapper.after(rows)
        try:
            self.rule.check(rows)
        except TooFew as error:
            buckets = f"; these are the buckets of {n} clients" if rows != n else ""
            raise TooFew(f"{error}{buckets}") from None

    def combine_with_state(
        self, rows: Tensor, weights: Tensor, state: State, *, key: int = 0
    ) -> tuple[Tensor, State]:
        self.check(len(rows))
        for wrapper in self.wrappers:
            rows, weights = wrapper(rows, weights, key=key)
        return self.rule.combine_with_state(rows, weights, state, key=key)

    def server(self, n: int) -> dict[str, int]:
        return self.rule.server(n)


def combine_message(
    rule: Rule, up: State, weights: Tensor, *, key: int = 0, state: State | None = None
) -> tuple[State, State]:
    """One vector per part of the messages up[name][S, m], and the rule's state after the round.

    A rule that treats every coordinate by itself runs part by part. Any other gets all parts, in
    the order of their names, as one vector per client. `state` is what `rule.blank` made or the
    last round returned; None keeps no history.

    >>> from idiolect.server.rules import parse_rule
    >>> model = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.0]])
    >>> variate = torch.tensor([[7.0], [7.1], [7.2], [7.0], [7.0]])
    >>> combined, _ = combine_message(
    ...     parse_rule("krum(f=1)"), {"w": model, "c": variate}, torch.ones(5)
    ... )
    >>> {name: round(row.item(), 3) for name, row in combined.items()}  # both of client 1
    {'c': 7.1, 'w': 0.1}
    """
    history = state or {}
    names = sorted(up)
    if not names:
        return {}, history
    if len(names) == 1:
        row, history = rule.combine_with_state(up[names[0]], weights, history, key=key)
        return {names[0]: row}, history
    sizes = [up[name].shape[1] for name in names]
    if rule.by_coordinate and not rule.server(sum(sizes)):
        return {name: rule(up[name], weights, key=key) for name in names}, history
    rows = torch.cat([up[name] for name in names], dim=1)
    row, history = rule.combine_with_state(rows, weights, history, key=key)
    pieces = zip(names, row.split(sizes), strict=True)
    # Copies: tensors that share memory cannot be written to one checkpoint.
    return {name: piece.to(up[name].dtype, copy=True) for name, piece in pieces}, history
