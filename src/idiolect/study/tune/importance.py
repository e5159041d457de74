"""How much each field of a grid matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def main_effects(settings: Sequence[Mapping[str, Any]], figures: Sequence[Any]) -> dict[str, float]:
    """The share of the variance of the figures that each field explains by itself.

    With y the figures, m their mean, and n_v and m_v the number and the mean of those with value v:
    sum_v n_v (m_v - m)^2 / sum (y - m)^2. In a full grid the shares add up to 1 at most; what is
    missing is due to fields together. Fields with one value are left out.

    >>> grid = [{"lr": lr, "lam": lam} for lr in (0.1, 1.0) for lam in (0, 1)]
    >>> main_effects(grid, [0.5, 0.5, 0.9, 0.9])
    {'lr': 1.0, 'lam': 0.0}
    """
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    mean = sum(figures) / len(figures) if figures else 0.0
    total = sum((y - mean) ** 2 for y in figures)
    found = {}
    for name in names:
        groups: dict[str, list[float]] = {}
        for setting, y in zip(settings, figures, strict=True):
            groups.setdefault(repr(setting.get(name)), []).append(y)
        if len(groups) < 2:
            continue
        between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
        found[name] = between / total if total else 0.0
    return dict(sorted(found.items(), key=lambda item: -item[1]))
