"""Learning-rate schedules over rounds, as a factor on the method's rates."""

from __future__ import annotations

import math

from ..core.knobs import SettingError

FORMS = "constant, cosine, linear, step:EVERY:FACTOR, inverse:RATE, exp:FACTOR"


def factor(schedule: str, round: int, rounds: int) -> float:
    """The factor in this round.

    >>> factor("step:100:0.5", 250, 300), factor("inverse:0.1", 10, 300)
    (0.25, 0.5)
    """
    kind, *numbers = schedule.split(":")
    try:
        values = [float(n) for n in numbers]
        if not all(map(math.isfinite, values)):
            raise ValueError
        match kind, values:
            case "constant", []:
                return 1.0
            case "cosine", []:
                return 0.5 * (1 + math.cos(math.pi * round / rounds))
            case "linear", []:
                return 1 - round / rounds
            case "step", [every, gamma] if every >= 1 and gamma > 0:
                return gamma ** (round // int(every))
            case "inverse", [rate] if rate >= 0:
                return 1 / (1 + rate * round)
            case "exp", [gamma] if gamma > 0:
                return gamma**round
    except ValueError:
        pass
    raise SettingError(f"schedule: {schedule!r} is not accepted; {FORMS}")
