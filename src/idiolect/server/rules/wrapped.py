"""Wrappers in order, then a rule."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .rule import Rule, TooFew, Wrapper


@dataclass(frozen=True)
class WrappedRule(Rule):
    """What "bucketing(size=2) + median" makes: the wrappers as written, then the rule.

    >>> import torch
    >>> from idiolect.server.rules import parse_rule
    >>> parse_rule("nnm(f=1) + mean")(torch.tensor([[1.0], [1.0], [1.0], [901.0]]), torch.ones(4))
    tensor([76.])
    """

    title = "wrapped"
    wrappers: tuple[Wrapper, ...]
    rule: Rule

    def check(self, n: int) -> None:
        rows = n
        for wrapper in self.wrappers:
            wrapper.check(rows)
            rows = wrapper.after(rows)
        try:
            self.rule.check(rows)
        except TooFew as error:
            raise TooFew(
                f"{error}; these are the buckets of {n} clients" if rows != n else str(error)
            ) from None

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> Tensor:
        self.check(len(rows))
        for wrapper in self.wrappers:
            rows, weights = wrapper(rows, weights, key=key)
        return self.rule(rows, weights, key=key)
