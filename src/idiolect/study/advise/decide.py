"""What to deploy: the rule, and how sure it is.

Every candidate that federates is compared with Local. `tie` is the smallest gain worth
federating for.

1. One or more gain clearly, and at least `tie`: federate. Of those whose gain is within `tie` of
   the largest, the one that sends fewest bytes per round; of those that send the same, the one
   whose gain is surest, by the lower end of its interval. Clearly means that the interval lies
   above 0; the intervals of all candidates hold together (`Held.joint_level`), because the best
   of several is selected. One model for all gives way to a personal one that gains clearly, sends
   no more, and is not clearly worse: clients will train on the held-out samples too, which helps
   models of their own more than a shared one.
2. Clearly none gains as much as `tie`: learn alone. Clearly means that for each candidate by itself
   a gain of `tie` is refuted at 5 %, one-sided. All must be refuted, so their number does not help.
3. Otherwise the data do not decide: undecided.

It also reports the alternative of Chen, Zheng, Long and Su: FedAvg or Local, whichever is clearly
better at 5 %, or too close to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .estimate import LEVEL, Gain

LOCAL = "local"
UNDECIDED = "undecided"
TOO_CLOSE = "too close to call"


@dataclass(frozen=True)
class Compared:
    """A candidate that federates, against Local."""

    label: str
    gain: Gain  # over Local; its interval holds together with those of the others
    bytes: float  # per round, both directions
    personal: bool = True  # one model per client, or one for all


@dataclass(frozen=True)
class Decision:
    """The choice, and how sure it is."""

    choice: str  # a candidate's label, "local" or "undecided"
    p: float  # p-value of the deciding comparison
    hopes: tuple[str, ...] = ()  # where undecided: the candidates that may gain


def decide(
    compared: Sequence[Compared],
    tie: float,
    worse: Callable[[str, str], bool] = lambda one, other: False,
) -> Decision:
    """The rule above; `tie` in the units of the gains.

    `worse`: whether one candidate is clearly worse than another, by their labels.
    """
    able = [c for c in compared if c.gain.low > 0 and c.gain.mean >= tie]
    if able:
        most = max(c.gain.mean for c in able)
        choice = min(
            (c for c in able if c.gain.mean >= most - tie),
            key=lambda c: (c.bytes, -c.gain.low),
        )
        if not choice.personal:
            own = [c for c in able if c.personal and c.bytes <= choice.bytes]
            own = [c for c in own if not worse(c.label, choice.label)]
            choice = max(own, key=lambda c: c.gain.low, default=choice)
        together = LEVEL / choice.gain.level  # the equivalent number of independent comparisons
        return Decision(choice.label, min(1.0, 2 * together * choice.gain.above(0.0)))
    hopes = tuple(c.label for c in compared if not c.gain.below(tie) <= LEVEL)
    if hopes:
        return Decision(UNDECIDED, 1.0, hopes)
    return Decision(LOCAL, max((c.gain.below(tie) for c in compared), default=1.0))


def alternative(fedavg: Gain) -> str:
    """FedAvg or Local, or too close to call, from FedAvg's gain over Local."""
    if fedavg.low > 0:
        return "fedavg"
    return LOCAL if fedavg.high < 0 else TOO_CLOSE
