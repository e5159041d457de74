"""How much each client counts: the general weights p_i of the paper of Chen, Zheng, Long and Su."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import given_path
from ..core.knobs import SettingError, nearest

ACCEPTED = "a file of client,weight lines, or {client: weight}, with weights > 0"


@dataclass(frozen=True)
class ClientWeights:
    """Weights by client id, as text; only their ratios matter. None given: numbers of samples.

    >>> weights = ClientWeights.parse({"north": 2, "south": 1})
    >>> str(weights), weights.of(("south", "north"))
    ('{"north": 2.0, "south": 1.0}', [1.0, 2.0])
    """

    pairs: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, source: Any) -> ClientWeights:
        """From a mapping, its JSON text, or the name of a file: CSV, or JSON by its suffix."""
        if isinstance(source, ClientWeights):
            return source
        if source is None or source == "":
            return cls()
        by_client = source if isinstance(source, Mapping) else _read(source)
        pairs = tuple((str(client), _weight(client, value)) for client, value in by_client.items())
        if len(dict(pairs)) < len(pairs):
            raise SettingError("client_weights: a client is named twice; each may be named once")
        return cls(pairs)

    def of(self, names: Sequence[str]) -> list[float] | None:
        """The weights of these clients, in their order; None where none are given."""
        if not self.pairs:
            return None
        weight_of = dict(self.pairs)
        for name in weight_of.keys() - set(names):
            raise nearest(name, names, "client_weights: client")
        missing = [name for name in names if name not in weight_of]
        if missing:
            raise SettingError(
                f"client_weights: {missing[0]!r} has none ({len(missing)} of {len(names)} clients "
                "have none); every client needs one"
            )
        return [weight_of[name] for name in names]

    def __str__(self) -> str:
        return json.dumps(dict(self.pairs)) if self.pairs else ""


def _read(source: Any) -> Mapping[str, Any]:
    """What a text says: JSON, or the content of a file."""
    if not isinstance(source, (str, Path)):
        raise SettingError(f"client_weights must be {ACCEPTED}, got {source!r}")
    text = str(source)
    if not text.lstrip().startswith("{"):
        path = given_path(text, "client_weights")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(
                f"client_weights: {source!r} cannot be read ({error}); {ACCEPTED}"
            ) from None
        if path.suffix != ".json":
            return _lines(text, str(source))
    try:
        by_client = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise SettingError(f"client_weights: this is not JSON ({error}); {ACCEPTED}") from None
    if not isinstance(by_client, dict):
        raise SettingError(f"client_weights must be {ACCEPTED}, got {text[:40]!r}")
    return by_client


def _lines(text: str, name: str) -> dict[str, Any]:
    """The lines of a CSV file; a first line of names is passed over."""
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if rows and len(rows[0]) == 2 and not _is_number(rows[0][1]):
        rows = rows[1:]
    bad = [row for row in rows if len(row) != 2]
    if bad or not rows:
        line = ",".join(bad[0]) if bad else ""
        raise SettingError(f"client_weights must be {ACCEPTED}, got {line!r} in {name}")
    return _once([(row[0].strip(), row[1]) for row in rows])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise SettingError("client_weights: a client is named twice; each may be named once")
    return mapping


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _weight(client: Any, value: Any) -> float:
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or number <= 0:
            raise ValueError
    except (TypeError, ValueError):
        raise SettingError(
            f"client_weights must be numbers > 0, got {value!r} for {client!r}"
        ) from None
    return number
