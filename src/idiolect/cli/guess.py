"""Which column of a user's table is the client, and which the target: by their names, or asked.

A wrong guess would train without a word on the wrong question. So only a name that is usual for the
role counts, one column must fit and no other, and the reason is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.knobs import SettingError
from ..core.text import listed

if TYPE_CHECKING:
    import pandas as pd

# from the surest to the least sure; the first group with a fitting column decides
CLIENTS = (
    ("client", "client id", "clients", "federated client"),
    ("site", "hospital", "clinic", "centre", "center", "institution", "bank", "branch", "school"),
    ("site id", "hospital id", "clinic id", "centre id", "center id", "bank id", "institution id"),
    ("user", "user id", "device", "device id", "machine", "machine id", "node", "silo", "party"),
    ("plant", "store", "shop", "farm", "station", "sensor", "region", "country", "state", "city"),
)
TARGETS = (
    ("target", "label", "y"),
    ("outcome", "class", "response", "diagnosis", "labels"),
    ("disease", "ill", "sick", "died", "death", "survived", "mortality", "readmitted", "relapse"),
    ("default", "churn", "fraud", "failure", "price", "sales", "demand"),
)
SHOWN = 8  # candidates that a question lists


@dataclass(frozen=True)
class Guess:
    """A column, and why it was taken."""

    column: str
    reason: str


def guess_client(frame: pd.DataFrame, without: str = "") -> Guess:
    """The column that says whose row it is; SettingError asks where that is not plain.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"Hospital": ["a", "a", "b", "b"], "age": [1, 2, 3, 4]})
    >>> guess_client(frame)
    Guess(column='Hospital', reason='its name, and 2 different values in 4 rows')
    """
    fitting = {c: n for c, n in _distinct(frame, without).items() if 2 <= n <= len(frame) / 2}
    found = _by_name(fitting, CLIENTS)
    if len(found) == 1:
        name = found[0]
        return Guess(
            name, f"its name, and {fitting[name]:,} different values in {len(frame):,} rows"
        )
    few = sorted((n, c) for c, n in fitting.items() if n <= max(2, len(frame) / 5))
    raise _question(
        "client", "says whose row it is", found or [c for _, c in few], _distinct(frame, "")
    )


def guess_target(frame: pd.DataFrame, without: str = "") -> Guess:
    """The column to predict; SettingError asks where that is not plain."""
    fitting = {c: n for c, n in _distinct(frame, without).items() if n >= 2}
    found = _by_name(fitting, TARGETS)
    if len(found) == 1:
        return Guess(found[0], f"its name, and {fitting[found[0]]:,} different values")
    last = [c for c in [*reversed(list(frame.columns))] if c in fitting]
    raise _question("target", "is to be predicted", found or last, fitting)


def _distinct(frame: pd.DataFrame, without: str) -> dict[str, int]:
    return {str(c): int(frame[c].nunique()) for c in frame.columns if c != without}


def _by_name(fitting: dict[str, int], groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """The columns with a usual name: those of the surest group that has one."""
    words = {name: _words(name) for name in fitting}
    for group in groups:
        if found := [name for name, text in words.items() if text in group]:
            return found
    return []


def _words(name: str) -> str:
    """A column's name as words: "Hospital_ID", "hospitalId" and "hospital id" are one.

    >>> _words("Hospital_ID"), _words("hospitalId"), _words("Y")
    ('hospital id', 'hospital id', 'y')
    """
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", str(name))
    return " ".join(re.split(r"[\s_.-]+", apart.strip())).lower()


def _question(role: str, what: str, names: list[str], counts: dict[str, int]) -> SettingError:
    if len(names) == 1:
        text = f"it may be {names[0]!r} ({counts[names[0]]:,} different values)"
    elif names:
        shown = [f"{n!r} ({counts[n]:,} different values)" for n in names[:SHOWN]]
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        text = f"it may be {', '.join(shown)}{more}"
    else:
        text = f"none looks like it; the columns: {listed(counts, 30)}"
    return SettingError(f"{role}: which column {what}? {text}. Say it: --{role} COLUMN")
