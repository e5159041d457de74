"""Who keeps shares of whose secrets, and how many of them it takes to open a sum.

SecAgg+ (Bell, Bonawitz, Gascón, Lepoint and Raykova, CCS 2020): clients stand on a circle in random
order, and each shares its secrets with those around it, in place of all. A few dozen do for
thousands of clients. Fewer colluding clients than the threshold around a client learn nothing of
it; that more of them are there by chance has a probability below 2^-40, for a tenth of all clients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

EVERYONE = 20  # clients: up to so many everyone shares with everyone
COLLUDING = 0.1  # share of the clients that may put together what they know
LEAK = 2.0**-40  # probability that they open somebody's message
LOSS = 2.0**-10  # probability that a sum cannot be opened with as much drop-out as is allowed


@dataclass(frozen=True)
class SharePlan:
    """The numbers of a round; both sides compute them from the number of clients."""

    clients: int
    shares: int  # clients that keep shares of each one's secrets, itself among them
    threshold: int  # of these shares open a secret
    least: int  # messages that must arrive

    @property
    def complete(self) -> bool:
        """Whether everyone shares with everyone."""
        return self.shares >= self.clients


@lru_cache(maxsize=64)
def share_plan(clients: int, least: int, shares: int = 0) -> SharePlan:
    """The plan for so many clients of which `least` must stay; `shares`: see `SecureSums.shares`.

    More than half of the shares are needed for a secret: so no two sets of honest clients can give
    a server two different secrets of one client.

    >>> share_plan(10, 7)
    SharePlan(clients=10, shares=10, threshold=7, least=7)
    >>> share_plan(1000, 700)
    SharePlan(clients=1000, shares=111, threshold=56, least=700)
    """
    everyone = SharePlan(clients, clients, max(least, clients // 2 + 1), least)
    if shares >= clients or (not shares and clients <= EVERYONE):
        return everyone
    fixed = shares - 1 + shares % 2 if shares else 0  # odd: as many on either side
    for count in range(3, clients, 2) if not shares else (max(fixed, 3),):
        threshold = _threshold(clients, count)
        if shares or _loss(clients, count, threshold, clients - least) <= LOSS:
            return SharePlan(clients, count, threshold, least)
    return everyone


def _threshold(clients: int, shares: int) -> int:
    """The least majority of the shares that colluding clients hold with too small a probability."""
    colluding = math.floor(COLLUDING * clients)
    for threshold in range(shares // 2 + 1, shares):
        if clients * tail(clients - 1, colluding, shares - 1, threshold) <= LEAK:
            return threshold
    return shares


def _loss(clients: int, shares: int, threshold: int, dropped: int) -> float:
    """The probability that some client has too few shares left, at most."""
    return clients * tail(clients - 1, dropped, shares - 1, shares - threshold + 1)


def tail(population: int, marked: int, drawn: int, least: int) -> float:
    """The probability that of so many drawn without replacement `least` or more are marked.

    >>> tail(4, 2, 2, 2) == 1 / 6
    True
    """
    ways = math.comb(population, drawn)
    most = min(marked, drawn)
    first = max(least, drawn - (population - marked), 0)
    marked_ways = sum(
        math.comb(marked, k) * math.comb(population - marked, drawn - k)
        for k in range(first, most + 1)
    )
    return marked_ways / ways


def neighbours(
    clients: Sequence[int], plan: SharePlan, draw: random.Random | None = None
) -> dict[int, list[int]]:
    """With whom each of these clients shares, in a random order of the circle, itself left out.

    >>> sorted(neighbours([3, 5, 8], SharePlan(3, 3, 2, 2))[3])
    [5, 8]
    """
    circle = list(clients)
    (draw or random.SystemRandom()).shuffle(circle)
    if plan.complete:
        return {k: [j for j in circle if j != k] for k in circle}
    half = plan.shares // 2
    n = len(circle)
    offsets = [*range(-half, 0), *range(1, half + 1)]
    return {k: [circle[(at + o) % n] for o in offsets] for at, k in enumerate(circle)}
