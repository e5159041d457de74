"""Learning-rate schedules over rounds, as a factor on the method's rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.knobs import SettingError

FORMS = "constant, cosine, linear, step:EVERY:FACTOR, inverse:RATE, exp:FACTOR"
OVER_ALL_ROUNDS = ("cosine", "linear")  # whose factor depends on how many rounds there are
_NUMBERS = {"constant": 0, "cosine": 0, "linear": 0, "step": 2, "inverse": 1, "exp": 1}


@dataclass(frozen=True)
class Schedule:
    """A schedule by name and numbers, as text `step:100:0.5`.

    >>> Schedule.parse("step:100:0.5")(250, 300), Schedule.parse("inverse:0.1")(10, 300)
    (0.25, 0.5)
    """

    kind: str = "constant"
    numbers: tuple[float, ...] = ()

    @classmethod
    def parse(cls, given: str | Schedule) -> Schedule:
        """A schedule from its text."""
        if isinstance(given, Schedule):
            return given
        kind, *rest = str(given).split(":")
        try:
            numbers = tuple(float(n) for n in rest)
        except ValueError:
            numbers = (math.nan,)
        schedule = cls(kind, numbers)
        if len(numbers) != _NUMBERS.get(kind) or not schedule._sound():
            raise SettingError(f"schedule: {given!r} is not accepted; {FORMS}")
        return schedule

    def _sound(self) -> bool:
        if not all(map(math.isfinite, self.numbers)):
            return False
        match self.kind, self.numbers:
            case "step", (every, gamma):
                return every >= 1 and gamma > 0
            case "inverse", (rate,):
                return rate >= 0
            case "exp", (gamma,):
                return gamma > 0
        return True

    def __call__(self, round: int, rounds: int) -> float:
        """The factor in this round of `rounds`."""
        match self.kind, self.numbers:
            case "cosine", ():
                return 0.5 * (1 + math.cos(math.pi * round / rounds))
            case "linear", ():
                return 1 - round / rounds
            case "step", (every, gamma):
                return gamma ** (round // int(every))
            case "inverse", (rate,):
                return 1 / (1 + rate * round)
            case "exp", (gamma,):
                return gamma**round
        return 1.0

    def __str__(self) -> str:
        return ":".join([self.kind, *(f"{n:g}" for n in self.numbers)])
