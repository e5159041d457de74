"""Attacks: what malicious clients send or train on, and who they are.

>>> make("same-value(std=50)"), make("none")
(SameValue(std=50.0), None)
>>> sorted(ATTACKS)[:4]
['alie', 'data-poison', 'gaussian', 'ipm']
"""

from __future__ import annotations

from ..core import text as specs
from .alie import Alie
from .base import Attack, Chain, Collusion
from .data import poison
from .ipm import Ipm
from .labels import DataPoison, LabelFlip
from .liars import chosen, how_many
from .mimic import Mimic
from .minmax import MinMax, MinSum
from .noise import Gaussian, SameValue, SignFlip
from .scaling import Scaling, Zero

ATTACKS: dict[str, type[Attack]] = {
    "same-value": SameValue,
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "data-poison": DataPoison,
    "label-flip": LabelFlip,
    "scaling": Scaling,
    "zero": Zero,
    "alie": Alie,
    "ipm": Ipm,
    "min-max": MinMax,
    "min-sum": MinSum,
    "mimic": Mimic,
}

__all__ = ["ATTACKS", "Attack", "Chain", "Collusion", "chosen", "how_many", "make", "poison"]


def make(text: str) -> Attack | None:
    """The attack in a line of text, None for "" or "none"; parts joined by + act in order on the same malicious clients.

    >>> make("label-flip + scaling(factor=5)").poisons
    'flip'
    """
    if text.strip() in ("", "none"):
        return None
    parts = specs.make(text, ATTACKS, "attack")
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))
