"""How much each client counts: the general weights p_i of the paper of Chen, Zheng, Long and Su.

A method whose server takes a mean over clients, for an objective that is one, takes that of these
weights instead: Σ p_i f_i for (1/m) Σ f_i or Σ n_i f_i / N. `check_weights` refuses them where they
could not act so, so that no row of a comparison goes without them unnoticed.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.files import regular_file
from ..core.knobs import SettingError, nearest
from ..core.types import State
from ..methods import name_of
from ..methods.exchanges import exchanges_of
from ..server.protocol import Contract
from ..server.round import RoundRule
from ..server.rules import RULES, Rule
from ..server.rules.coordinates import Mean

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


def check_weights(contract: Contract, rule: Rule, messages: int, clients: int) -> None:
    """Refuse weights of clients where a server step with this many messages would not go by them.

    Nothing is refused where nothing is sent: what each client minimises alone is the same whatever
    its weight.
    """
    method = contract.method
    if not contract.up.length:
        return
    weighting = getattr(method, "weighting", "")
    usual = {f.name: f.default for f in fields(method)}.get("weighting", weighting)
    unbiased = weighting == "unbiased"  # the messages are scaled, whatever the rule
    if not unbiased and weighting != usual:
        raise SettingError(
            f"weighting must be left out with client_weights, got {weighting!r}: they say how much "
            "each client counts ('unbiased' divides by the number of clients, not by the weights "
            "of those heard)"
        )
    if not unbiased and not rule.weighs:
        raise SettingError(
            f"client_weights: the rule {RULES.text(rule)!r} does not go by clients' weights; leave "
            "them out, or choose 'mean' or 'geometric-median', alone or after 'norm-bound' (a rule "
            "of your own that weighs says so: `weighs = True`)"
        )
    if not _goes_by_weights(contract, messages, clients):
        reason = (
            "a server step has one message here, which is its own mean; hear more clients "
            "(sample, or buffer with timing='arrivals')"
            if messages == 1
            else "its `aggregate` gives the same whatever the clients weigh"
        )
        raise SettingError(f"client_weights must be left out for {name_of(method)}: {reason}")


def _goes_by_weights(contract: Contract, messages: int, clients: int) -> bool:
    """Whether other weights make another server: tried with the mean."""
    rows = min(messages, 2)
    alike, unlike = torch.ones(rows), torch.linspace(0.5, 1.25, rows)
    one, other = (server_after(contract, Mean(), w, clients, True) for w in (alike, unlike))
    return any(not torch.equal(one[name], other[name]) for name in one)


def server_after(
    contract: Contract, rule: Rule, weights: Tensor, clients: int, own_weights: bool
) -> State:
    """The server after a step with messages of large random numbers and these weights[S]."""
    method, task = contract.method, contract.task
    rows = len(weights)
    noise = torch.Generator().manual_seed(0)
    weights = weights.double().to(task.device)
    weight = float(weights.sum())
    wire_ids = torch.arange(rows)
    kept_rows = method.server_rows(task, wire_ids.numpy().astype(np.uint64))
    combine = RoundRule(
        contract, rule, weights, rows, clients, 0, {}, weight, wire_ids, own_weights
    )
    server = method.server(task) | kept_rows
    after: State = {}
    for one in exchanges_of(method):
        up = {
            name: 1e3 * torch.randn(rows, size, generator=noise).to(task.x0)
            for name, size in one.message(task).items()
        }
        after |= one.aggregate(task, server | after, up, combine)
    return after


def _read(source: Any) -> Mapping[str, Any]:
    """What a text says: JSON, or the content of a file."""
    if not isinstance(source, (str, Path)):
        raise SettingError(f"client_weights must be {ACCEPTED}, got {source!r}")
    text = str(source)
    if not text.lstrip().startswith("{"):
        path = regular_file(text, "client_weights")
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
    except (ValueError, RecursionError) as error:
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
