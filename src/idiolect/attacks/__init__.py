"""Attacks: what malicious clients send or train on, and who they are.

>>> parse_attack("same-value(std=50)"), parse_attack("none")
(SameValue(std=50.0), None)
>>> sorted(ATTACKS)[:4]
['alie', 'data-poison', 'gaussian', 'ipm']
"""

from __future__ import annotations

from ..core import text
from ..core.knobs import SettingError
from ..core.registry import Table, subclass_of
from .attack import Attack, AttackSequence, Collusion
from .collusion import Alie, Ipm, Mimic, MinMax, MinSum
from .malicious import Observer, chosen, how_many, tamper
from .poisoning import DataPoison, LabelFlip, poison
from .single_client import Gaussian, SameValue, Scaling, SignFlip, Zero

ATTACKS: Table[type[Attack]] = Table(
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
    subclass_of(Attack),
)

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


def parse_attack(spec: str | Attack | None) -> Attack | None:
    """The attack in a line of text, None for "" or "none".

    Parts joined by + act in order on the same malicious clients.

    >>> parse_attack("label-flip + scaling(factor=5)").poisons
    'flip'
    """
    if spec is None or isinstance(spec, Attack):
        return spec
    if not isinstance(spec, str):
        raise SettingError(f"attack: {spec!r} is not accepted; text or an Attack")
    if spec.strip() in ("", "none"):
        return None
    parts = text.build_parts(spec, ATTACKS, "attack")
    return parts[0] if len(parts) == 1 else AttackSequence(tuple(parts))


def attack_text(attack: Attack | None) -> str:
    """The text that `parse_attack` makes this attack of."""
    if attack is None:
        return "none"
    parts = attack.parts if isinstance(attack, AttackSequence) else (attack,)
    return " + ".join(ATTACKS.text(part) for part in parts)
