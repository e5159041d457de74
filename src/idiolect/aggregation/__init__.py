"""Aggregation rules: rows[S, m], weights[S] -> [m], and the table of them."""

from __future__ import annotations

from ..fields import nearest
from ..method import Rule
from .mean import mean

RULES: dict[str, Rule] = {"mean": mean}


def make(name: str) -> Rule:
    if name not in RULES:
        raise nearest(name, RULES, "rule")
    return RULES[name]
