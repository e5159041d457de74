"""The rule: of a method's candidates, the one whose worst regret over all federations is least.

The regret of a candidate on a federation is how far its validation accuracy is below that of the
method's best candidate there. Candidates within `TIE` of the least worst regret count as equal: of
them those with the fewest gradients are kept, of these those with the fewest bytes (within `SAME`
of the fewest), then the one with the smallest worst regret, then the first of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TIE = 0.01  # of accuracy: smaller differences are noise
SAME = 0.05  # costs that differ by less are the same


@dataclass(frozen=True)
class Cell:
    """What a candidate has reached on one federation, or one variant of the method on it."""

    accuracy: float  # on validation data, the mean over seeds
    gradients: float  # per client
    bytes: float


def regrets(rows: Sequence[Sequence[Cell]]) -> list[float]:
    """The worst regret of each candidate; rows[candidate][federation].

    >>> good, bad = Cell(0.9, 1, 1), Cell(0.5, 1, 1)
    >>> [round(r, 3) for r in regrets([[good, bad], [Cell(0.8, 1, 1), good]])]
    [0.4, 0.1]
    """
    best = [max(cell.accuracy for cell in column) for column in zip(*rows, strict=True)]
    return [max(b - cell.accuracy for b, cell in zip(best, row, strict=True)) for row in rows]


def chosen(rows: Sequence[Sequence[Cell]]) -> int:
    """The place of the candidate that the rule takes.

    >>> cheap, costly = Cell(0.895, 10, 1), Cell(0.9, 100, 1)
    >>> chosen([[costly], [cheap]]), chosen([[costly], [Cell(0.88, 10, 1)]])
    (1, 0)
    """
    worst = regrets(rows)
    least = min(worst)
    ties = [i for i, regret in enumerate(worst) if regret <= least + TIE + 1e-9]

    for cost in ("gradients", "bytes"):
        spent = {i: sum(getattr(cell, cost) for cell in rows[i]) for i in ties}
        ties = [i for i in ties if spent[i] <= (1 + SAME) * min(spent.values())]
    return min(ties, key=lambda i: (round(worst[i], 6), i))
