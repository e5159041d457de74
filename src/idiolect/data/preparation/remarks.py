"""What is said on stderr about a table that was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...core.text import listed, note
from ..ids import ClientId
from .kinds import CATEGORY
from .prepared import Preparation


def some(words: Iterable[str], most: int = 8) -> str:
    """The first of many words, and how many there are beyond them."""
    every = list(words)
    rest = len(every) - most
    return "; ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def say_preparation(made: Preparation) -> None:
    """What was done to the columns, and which option overrules it."""
    guessed = {name: why for name, why in made.dropped.items() if why != "as asked"}
    if guessed:
        words = some(f"{name!r} ({why})" for name, why in guessed.items())
        note(f"columns dropped: {words}. Columns named in --features are kept")
    coded = [column for column in made.columns if column.kind == CATEGORY]
    if coded:
        words = some(f"{column.name!r} ({len(column.categories)})" for column in coded)
        note(f"categories become a feature of 0 or 1 each: {words}")
    numbers = sum(column.kind != CATEGORY for column in made.columns)
    if not numbers:
        return
    scales = {
        "federated": "scaled by mean and variance of all clients' training rows "
        "(--scale client: of each client's own; --scale none: not at all)",
        "client": "scaled by mean and variance of each client's own training rows",
        "none": "not scaled",
    }
    plural = "columns of numbers are" if numbers > 1 else "column of numbers is"
    note(f"{numbers:,} {plural} {scales[made.scale]}")


def say_clients(ids: Sequence[ClientId], client: np.ndarray, column: str) -> None:
    """Federations that are hardly one; `client` is the position of each row's client."""
    sizes = np.bincount(client, minlength=len(ids))
    single = [ids[k] for k in np.flatnonzero(sizes == 1).tolist()]
    if len(ids) == 1:
        note(f"column {column!r} has one client only ({ids[0]!r}): there is nobody to learn with")
    elif len(single) == len(ids):
        note(
            f"every row is a client of its own in column {column!r}: no client can be tested; "
            "is it the column of clients?"
        )
    elif single:
        note(f"{len(single):,} clients have one sample only ({listed(single)}): it trains")
