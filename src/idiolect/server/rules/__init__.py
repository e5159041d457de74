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
f: 4 is not accepted for krum with 10 clients; at most 3 (n >= 2 f + 3)
"""

from __future__ import annotations

from ...core import text
from ...core.knobs import SettingError
from ...core.registry import Table, subclass_of
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


RULES: Table[type[RulePart]] = Table(
    "rule",
    "idiolect.rules",
    {part.title: part for part in _BUILT_IN},
    subclass_of(Rule, Wrapper),
)


def parse_rule(spec: str | Rule) -> Rule:
    """The rule of a line such as "median", "krum(f=2)" or "nnm + trimmed-mean"."""
    if isinstance(spec, Rule):
        return spec
    if not isinstance(spec, str):
        raise SettingError(f"rule: {spec!r} is not accepted; text or a Rule")
    *wrappers, rule = text.build_parts(spec, RULES, "rule")
    for wrapper in wrappers:
        if not isinstance(wrapper, Wrapper):
            raise SettingError(
                f"rule: {spec!r} is not accepted; {RULES.name_of(type(wrapper))} ends a rule, "
                f"only {_names(Wrapper)} may stand before another"
            )
    if not isinstance(rule, Rule):
        raise SettingError(
            f"rule: {spec!r} is not accepted; {RULES.name_of(type(rule))} must be followed by "
            f"a rule: {_names(Rule)}"
        )
    return WrappedRule(tuple(wrappers), rule) if wrappers else rule


def _names(kind: type[RulePart]) -> str:
    return ", ".join(name for name, part in RULES.built_in.items() if issubclass(part, kind))


def rule_text(rule: Rule) -> str:
    """The text that `parse_rule` makes this rule of.

    >>> rule_text(parse_rule("bucketing(size=3)+median"))
    'bucketing(size=3) + median'
    """
    parts = (*rule.wrappers, rule.rule) if isinstance(rule, WrappedRule) else (rule,)
    return " + ".join(RULES.text(part) for part in parts)
