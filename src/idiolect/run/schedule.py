"""Schedules over rounds: factors on a method's learning rates, or on single fields of it.

A text gives one curve to all learning rates, `warmup:5*cosine`, or to fields one by one,
`lr=inverse:0.1 + nu=inverse:0.1:2 + batch=grow:0.05`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..core.knobs import RATES, Factors, SettingError

FORMS = (
    "constant, cosine, linear, step:EVERY:FACTOR, inverse:RATE, inverse:RATE:POWER, "
    "grow:RATE, grow:RATE:POWER, exp:FACTOR, warmup:ROUNDS"
)
ACCEPTED = (
    f"{FORMS}, products of them (warmup:5*cosine), or one for each field "
    "(lr=inverse:0.1 + nu=inverse:0.1:2)"
)
OVER_ALL_ROUNDS = ("cosine", "linear")  # whose factor depends on how many rounds there are
_NUMBERS = {
    "constant": (0,),
    "cosine": (0,),
    "linear": (0,),
    "step": (2,),
    "inverse": (1, 2),
    "grow": (1, 2),
    "exp": (1,),
    "warmup": (1,),
}


@dataclass(frozen=True)
class Curve:
    """A curve by name and numbers, as text `step:100:0.5`."""

    kind: str
    numbers: tuple[float, ...] = ()

    def sound(self) -> bool:
        """Whether name and numbers are those of a curve."""
        count = len(self.numbers)
        if count not in _NUMBERS.get(self.kind, ()) or not all(map(math.isfinite, self.numbers)):
            return False
        match self.kind, self.numbers:
            case "step", (every, gamma):
                return every >= 1 and gamma > 0
            case "inverse" | "grow", (rate, *power):
                return rate >= 0 and all(p > 0 for p in power)
            case "exp", (gamma,):
                return gamma > 0
            case "warmup", (rounds,):
                return rounds >= 1
        return True

    def __call__(self, at: int, rounds: int) -> float:
        """The factor in round `at` of `rounds`."""
        match self.kind, self.numbers:
            case "cosine", ():
                return 0.5 * (1 + math.cos(math.pi * at / rounds))
            case "linear", ():
                return 1 - at / rounds
            case "step", (every, gamma):
                return gamma ** (at // int(every))
            case "inverse", (rate,):
                return 1 / (1 + rate * at)
            case "inverse", (rate, power):
                return (1 + rate * at) ** -power
            case "grow", (rate, *power):
                return (1 + rate * at) ** (power[0] if power else 1.0)
            case "exp", (gamma,):
                return gamma**at
            case "warmup", (length,):
                return min(1.0, (at + 1) / length)
        return 1.0

    def __str__(self) -> str:
        return ":".join([self.kind, *(repr(n).removesuffix(".0") for n in self.numbers)])


@dataclass(frozen=True)
class Schedule:
    """Curves over rounds: for all learning rates of the method ("rates"), or for single fields.

    A field with its own curve is not scaled with the rates.

    >>> Schedule.parse("step:100:0.5").factors(250, 300)
    {'rates': 0.25}
    >>> Schedule.parse("warmup:4*inverse:0.1 + nu=inverse:1:2").factors(1, 300)
    {'rates': 0.45454545454545453, 'nu': 0.25}
    """

    curves: tuple[tuple[str, tuple[Curve, ...]], ...] = ()  # field -> factors, multiplied

    @classmethod
    def parse(cls, value: str | Schedule) -> Schedule:
        """A schedule from its text."""
        if isinstance(value, Schedule):
            return value
        curves: dict[str, tuple[Curve, ...]] = {}
        # a sign before a digit belongs to a number
        for part in re.split(r"\s*[+,]\s*(?=[A-Za-z_])", str(value).strip()):
            name, equals, text = part.rpartition("=")
            name = name.strip() if equals else RATES
            factors = tuple(_curve(word.strip()) for word in text.split("*"))
            if not name or name in curves or not all(curve.sound() for curve in factors):
                raise SettingError(f"schedule must be {ACCEPTED}, got {value!r}")
            curves[name] = factors
        constant = (Curve("constant"),)
        return cls(tuple((n, factors) for n, factors in curves.items() if factors != constant))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that have their own curve."""
        return tuple(name for name, _ in self.curves if name != RATES)

    @property
    def over_all_rounds(self) -> bool:
        """Whether a factor depends on how many rounds there are."""
        return any(c.kind in OVER_ALL_ROUNDS for _, factors in self.curves for c in factors)

    def factors(self, at: int, rounds: int) -> Factors:
        """The factor of each field in round `at` of `rounds`; {} for a constant schedule."""
        return {n: math.prod(f(at, rounds) for f in factors) for n, factors in self.curves}

    def __str__(self) -> str:
        texts = [
            ("" if name == RATES else f"{name}=") + "*".join(map(str, factors))
            for name, factors in self.curves
        ]
        return " + ".join(texts) or "constant"


def _curve(word: str) -> Curve:
    kind, *rest = word.split(":")
    try:
        return Curve(kind, tuple(float(n) for n in rest))
    except ValueError:
        return Curve(kind, (math.nan,))
