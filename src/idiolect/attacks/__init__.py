"""Attacks: what malicious clients send or train on, and who they are.

>>> parse_attack("same-value(std=50)"), parse_attack("none")
(SameValue(std=50.0), None)
>>> parse_attack("label-flip + scaling(factor=5)").poisons
'flip'
>>> sorted(ATTACKS)[:4]
['alie', 'data-poison', 'gaussian', 'ipm']
"""

from __future__ import annotations

from ..core.registry import PartTable
from .attack import Attack, AttackSequence, Collusion
from .collusion import Alie, Ipm, Mimic, MinMax, MinSum
from .malicious import Observer, chosen, how_many, tamper
from .poisoning import DataPoison, LabelFlip, poison
from .single_client import Gaussian, SameValue, Scaling, SignFlip, Zero

ATTACKS: PartTable[Attack, Attack | None] = PartTable(
    "attack",
    "idiolect.attacks",
    {
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
    },
    Attack,
    join=lambda parts: parts[0] if len(parts) == 1 else AttackSequence(tuple(parts)),
    split=lambda attack: attack.parts if isinstance(attack, AttackSequence) else (attack,),
    empty=lambda: None,
)

# parts joined by + act in order on the same malicious clients; None for "" or "none"
parse_attack = ATTACKS.parse
attack_text = ATTACKS.text

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackSequence",
    "Collusion",
    "Observer",
    "attack_text",
    "chosen",
    "how_many",
    "parse_attack",
    "poison",
    "tamper",
]
