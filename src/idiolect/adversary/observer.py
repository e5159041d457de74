"""What colluding clients know of a round: the honest messages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.streams import Keys
from ..core.types import State
from .base import Attack


class Observer:
    def __init__(self) -> None:
        self._round = -1
        self._seen: dict[str, list[tuple[Tensor, State]]] = {}

    def see(self, round: int, purpose: str, wire_ids: Tensor, up: State) -> None:
        if round != self._round:
            self._round, self._seen = round, {}
        self._seen.setdefault(purpose, []).append((wire_ids, up))

    def seen(self, round: int, purpose: str) -> tuple[Tensor, State]:
        found = self._seen.get(purpose, []) if round == self._round else []
        if not found:
            return torch.zeros(0, dtype=torch.int64), {}
        ids = torch.cat([i for i, _ in found])
        order = ids.argsort()
        return ids[order], {n: torch.cat([u[n] for _, u in found])[order] for n in found[0][1]}


def tamper(attack: Attack, malicious_ids: Tensor, malicious_up: State, honest_ids: Tensor, honest_up: State, reference: State, keys_of: Callable[[Tensor], Keys]) -> State:
    ids = torch.cat([malicious_ids, honest_ids])
    order = ids.argsort()
    bad = torch.isin(ids[order], malicious_ids)
    keys = keys_of(ids[order])
    out = {}
    for n, rows in malicious_up.items():
        whole = torch.cat([rows, honest_up[n]])[order]
        out[n] = attack(whole, bad.to(rows.device), reference.get(n), keys)[bad]
    return out
