"""Aggregation rules: rows[S, m], weights[S] -> [m], wrappers before them, and the table of both.

A rule is chosen by a line of text: a name, its options, wrappers in front joined by +.

>>> import torch
>>> parse_rule("bucketing(size=2) + trimmed-mean(f=1)").check(10)
>>> parse_rule("krum(f=2)")(torch.eye(7), torch.ones(7)).shape
torch.Size([7])
>>> try:
...     parse_rule("krum(f=4)").check(10)
... except TooFew as error:
...     print(error)
f must be at most 3 for krum with 10 clients (n >= 2 f + 3), got 4
"""

from __future__ import annotations

from typing import Any

from ...core.registry import Misjoined, PartTable
from .centres import CentredClipping, GeometricMedian
from .coordinates import Meamed, Mean, Median, TrimmedMean
from .distances import MDA, Bulyan, Krum, MultiKrum
from .rule import Rule, RulePart, TooFew, WrappedRule, Wrapper, combine_message
from .wrappers import NNM, Bucketing, NormBound

__all__ = [
    "RULES",
    "Rule",
    "RulePart",
    "TooFew",
    "WrappedRule",
    "Wrapper",
    "combine_message",
    "parse_rule",
    "rule_text",
]

_BUILT_IN: tuple[type[RulePart], ...] = (
    Mean,
    Median,
    TrimmedMean,
    Meamed,
    Krum,
    MultiKrum,
    Bulyan,
    MDA,
    GeometricMedian,
    CentredClipping,
    Bucketing,
    NNM,
    NormBound,
)


def _joined(parts: list[Any]) -> Rule:
    *wrappers, rule = parts
    if not isinstance(rule, Rule):
        raise Misjoined(f"wrappers and then a rule ({_names(Rule)})")
    if not all(isinstance(part, Wrapper) for part in wrappers):
        raise Misjoined(f"one rule, with no others than {_names(Wrapper)} before it")
    return WrappedRule(tuple(wrappers), rule) if wrappers else rule


def _names(kind: type[RulePart]) -> str:
    return ", ".join(name for name, part in RULES.built_in.items() if issubclass(part, kind))


RULES: PartTable[RulePart, Rule] = PartTable(
    "rule",
    "idiolect.rules",
    {part.title: part for part in _BUILT_IN},
    Rule,
    Wrapper,
    join=_joined,
    split=lambda rule: (*rule.wrappers, rule.rule) if isinstance(rule, WrappedRule) else (rule,),
)
parse_rule = RULES.parse
rule_text = RULES.text
