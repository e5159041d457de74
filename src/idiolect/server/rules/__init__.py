"""Aggregation rules: rows[S, m], weights[S] -> [m], wrappers before them, and the tables of both.

A rule is chosen by a line of text: a name, its options, wrappers in front joined by +.

>>> import torch
>>> make("bucketing(size=2) + trimmed-mean(f=1)").check(10)
>>> make("krum(f=2)")(torch.eye(7), torch.ones(7)).shape
torch.Size([7])
>>> make("krum(f=4)").check(10)
Traceback (most recent call last):
    ...
idiolect.server.rules.rule.TooFew: f: 4 is not accepted for krum with 10 clients; at most 3 (n >= 2 f + 3)
"""

from __future__ import annotations

from ...core import text as specs
from ...core.knobs import SettingError
from .bucketing import Bucketing
from .bulyan import Bulyan
from .centred_clipping import CentredClipping
from .chain import Chain
from .geometric_median import GeometricMedian
from .krum import Krum, MultiKrum
from .mda import MDA
from .meamed import Meamed
from .mean import Mean
from .median import Median
from .nnm import NNM
from .norm_bound import NormBound
from .rule import Rule, TooFew, Wrapper
from .trimmed_mean import TrimmedMean

_RULES: tuple[type[Rule], ...] = (
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
)
_WRAPPERS: tuple[type[Wrapper], ...] = (Bucketing, NNM, NormBound)

RULES: dict[str, type[Rule]] = {r.title: r for r in _RULES}
WRAPPERS: dict[str, type[Wrapper]] = {w.title: w for w in _WRAPPERS}


def make(text: str) -> Rule:
    """The rule of a line such as "median", "krum(f=2)" or "nnm + trimmed-mean"."""
    *wrappers, rule = specs.make(text, {**RULES, **WRAPPERS}, "rule")
    for wrapper in wrappers:
        if not isinstance(wrapper, Wrapper):
            raise SettingError(
                f"rule: {text!r} is not accepted; {wrapper.title} ends a rule, only {', '.join(WRAPPERS)} may stand before another"
            )
    if not isinstance(rule, Rule):
        raise SettingError(f"rule: {text!r} is not accepted; {rule.title} must be followed by a rule: {', '.join(RULES)}")
    return Chain(tuple(wrappers), rule) if wrappers else rule


__all__ = ["RULES", "WRAPPERS", "Rule", "TooFew", "Wrapper", "make"]
