"""Wrappers in order, then a rule."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core.types import State
from .rule import Rule, TooFew, Wrapper


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
