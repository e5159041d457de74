"""The setting `secure_sums`: how messages become whole numbers, and how many must arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.knobs import Knobs, SettingError, knob
from ...core.registry import PartTable
from .graph import EVERYONE, SharePlan, share_plan
from .grid import WIDTHS, Grid

LEAST = 2  # clients in a sum: that of one is its message


@dataclass(frozen=True)
class SecureSums(Knobs):
    """The server learns the sum of a round's messages, and none of them by itself.

    >>> SecureSums(clip=0.5).least(10), SecureSums(survivors=0.6).least(2)
    (7, 2)
    """

    clip: float = knob(
        1.0, "C, the largest norm of a message, all its parts together, as a change", above=0
    )
    survivors: float = knob(
        0.7,
        "share of a round's clients whose messages must arrive for the sum to be opened",
        above=0.5,
        high=1,
    )
    clients: int = knob(1000, "clients heard per round at most: the sum has room for them", low=2)
    bits: int = knob(32, "bits of a number that travels", choices=WIDTHS)
    shares: int = knob(
        0,
        f"clients that keep shares of each one's secrets, itself among them; 0 = all up to "
        f"{EVERYONE}, of more as many as collusion of a tenth and the drop-out allowed take",
        low=0,
    )

    def least(self, clients: int) -> int:
        """The messages of so many clients that must arrive."""
        return max(LEAST, math.ceil(self.survivors * clients - 1e-9))

    def plan(self, clients: int) -> SharePlan:
        """Who keeps how many shares of secrets, among so many clients of a round."""
        return share_plan(clients, self.least(clients), self.shares)

    def grid(self, numbers: int, noise: float = 0.0, least: int = 1) -> Grid:
        """The grid of messages of this many numbers; see `Grid.fit`."""
        return Grid.fit(self.clip, self.clients, numbers, self.bits, noise, least)

    def check(self, heard: int) -> None:
        """SettingError where sums of so many clients are not possible."""
        if heard < LEAST:
            raise SettingError(
                f"sample must be at least {LEAST} with secure_sums, got {heard}: the sum of one "
                "message is that message"
            )
        if heard > self.clients:
            raise SettingError(
                f"secure_sums: clients must be at least the {heard:,} heard per round, got "
                f"{self.clients:,}"
            )


OFF = ("false", "no", "0")
ON = ("true", "yes", "1")
SECURE_SUMS: PartTable[SecureSums, SecureSums | None] = PartTable(
    "secure_sums",
    "idiolect.secure_sums",
    {"secagg": SecureSums},
    SecureSums,
    empty=lambda: None,
)
sums_text = SECURE_SUMS.text


def parse_sums(value: object) -> SecureSums | None:
    """The setting from text: true, false, or 'secagg(clip=0.5, survivors=0.8)'.

    >>> parse_sums("true") == SecureSums(), parse_sums(False), parse_sums("secagg(bits=24)").bits
    (True, None, 24)
    >>> sums_text(SecureSums(clip=0.5)), sums_text(None)
    ('secagg(clip=0.5)', 'none')
    """
    if isinstance(value, bool):
        value = ON[0] if value else OFF[0]
    if isinstance(value, str) and value.strip().lower() in (*ON, *OFF):
        return SecureSums() if value.strip().lower() in ON else None
    return SECURE_SUMS.parse(value)
