"""What may leave a site: its owner's rules, checked on every reply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...core.knobs import Knobs, SettingError, knob

MIB = 1 << 20
ALWAYS = ("accuracy", "loss")  # what every evaluation counts


def read_words(given: Any) -> tuple[str, ...]:
    """Words with commas between them.

    >>> read_words("accuracy, loss")
    ('accuracy', 'loss')
    """
    if isinstance(given, str):
        given = [piece.strip() for piece in given.split(",") if piece.strip()]
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise SettingError(f"{given!r} is not accepted; words with commas between them")
    return tuple(dict.fromkeys(given))


def read_code(given: Any) -> tuple[str, ...]:
    """Names of code, `package:Name` each, or of things that installed packages offer."""
    names = read_words(given)
    for name in names:
        if not re.fullmatch(r"[\w.:-]+", name):
            raise SettingError(f"allow_code: {name!r} is not accepted; package:Name")
    return names


def write_words(words: tuple[str, ...]) -> str:
    """The inverse."""
    return ",".join(words)


@dataclass(frozen=True)
class Rules(Knobs):
    """What the owner of a site lets out, and how much of it."""

    metrics: tuple[str, ...] = knob(
        ALWAYS,
        "figures of evaluations that may leave, with commas; empty: none",
        parse=read_words,
        write=write_words,
    )
    min_samples: int = knob(
        10,
        "samples that a client needs to take part, and that a figure is counted over before it "
        "may leave",
        low=1,
    )
    max_rounds: int = knob(0, "rounds that this site takes part in, ever; 0 = no limit", low=0)
    max_numbers: int = knob(0, "numbers that may leave, ever; 0 = no limit", low=0)
    max_message: float = knob(256.0, "MiB of the largest message, in or out", above=0)
    sums: bool = knob(
        True,
        "counts, sums and names of categories of columns may leave, so that all sites scale alike",
    )
    client_names: str = knob(
        "numbered",
        "what the server calls the clients of this site: its name with numbers, or their own ids",
        choices=("numbered", "own"),
    )
    allow_code: tuple[str, ...] = knob(
        (),
        "code beside the built-in methods, models and so on that a federation may name, with "
        "commas: package:Name",
        parse=read_code,
        write=write_words,
    )

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest message."""
        return int(self.max_message * MIB)
