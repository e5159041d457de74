"""Rows of many clients: made when a client is first met, versioned by round, in a file when large.

A round that is run again starts from the rows before it (else a repeated message would step twice),
so the rows that the last round replaced are kept until the next one. A store that never sees a
round twice can do without (`keep`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .types import State, prefixed, under


class Store:
    """Rows by number: `read(rows, round)` before an update, `write(rows, round, state)` after."""

    def __init__(
        self,
        clients: int,
        fresh: Callable[[Tensor], State],
        limit: int = 2 << 30,
        scratch: Path | None = None,
        keep: bool = True,
    ):
        self.clients = clients
        self.fresh = fresh  # numbers of clients met for the first time -> their rows
        self.limit = limit  # bytes before rows move to a file
        self.scratch = scratch
        self.keep = keep
        self.rows: State = {}
        self.version = _unmet(clients)  # the round that wrote the row; -1: not yet met
        self.made = torch.zeros(clients, dtype=torch.bool)
        self.file_backed = False
        # (round, ids, rows) as they were before the last round
        self._before: list[tuple[int, Tensor, State]] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def read(self, ids: Tensor, round: int | None = None) -> State:
        """Rows of these clients; with a round, as they were before that round."""
        self._meet(ids)
        rows = {n: t if self._all(ids) else t[ids.to(t.device)] for n, t in self.rows.items()}
        if not self.keep or round is None:
            return rows
        again = self.version[ids] == round
        if not bool(again.any()):
            return rows
        rows = {n: t.clone() for n, t in rows.items()}
        for _, old_ids, old in self._before:
            mine = again & torch.isin(ids, old_ids)
            at = torch.searchsorted(old_ids, ids[mine])
            for n, t in rows.items():
                t[mine.to(t.device)] = old[n][at.to(t.device)]
        return rows

    def write(self, ids: Tensor, round: int, rows: State) -> None:
        """New rows after `round`; ids are increasing."""
        if not rows:
            return
        self._check(ids, rows)
        new = ids[self.version[ids] != round]
        if not self.keep and len(new) < len(ids):
            raise RuntimeError(
                f"round {round} is run again, and this store keeps no rows from before"
            )
        if self.keep and len(new):
            old = {n: t if self._all(new) else t[new.to(t.device)] for n, t in self.rows.items()}
            self._before = [b for b in self._before if b[0] == round]
            self._before.append((round, new, old))
        if self._all(ids):
            self.rows = {n: t.detach().contiguous() for n, t in rows.items()}
            if len({t.data_ptr() for t in self.rows.values()}) < len(self.rows):
                self.rows = {n: t.clone() for n, t in self.rows.items()}  # one tensor, two names
        else:
            for n, t in rows.items():
                self.rows[n][ids.to(t.device)] = t
        self.version[ids] = round

    def grow(self, clients: int) -> None:
        """Room for more clients, at the end."""
        more = clients - self.clients
        old = self.rows
        self.clients = clients
        self.version = torch.cat([self.version, _unmet(more)])
        self.made = torch.cat([self.made, torch.zeros(more, dtype=torch.bool)])
        if old:
            self._allocate({n: t[:1] for n, t in old.items()})
            for n, t in old.items():
                self.rows[n][: len(t)] = t

    def save(self) -> State:
        """Everything, for a checkpoint."""
        return {**prefixed(self.rows, "rows."), "version": self.version, "made": self.made}

    def load(self, tensors: State, device: torch.device | None = None) -> None:
        """As it was saved; rows on `device`."""
        self.version = tensors["version"].clone()
        self.made = tensors["made"].clone()
        self._before = []
        saved = {n: t.to(device) if device else t for n, t in under(tensors, "rows.").items()}
        if saved:
            self._allocate({n: t[:1] for n, t in saved.items()})
            for n, t in saved.items():
                self.rows[n].copy_(t)

    def adopt(self, rows: State) -> bool:
        """Start from rows of an earlier stage; only where names and shapes are those kept here."""
        mine = self.fresh(torch.arange(1))
        alike = mine.keys() == rows.keys() and all(
            t.shape[1:] == rows[n].shape[1:] for n, t in mine.items()
        )
        if not mine or not alike:
            return False
        everyone = torch.ones(self.clients, dtype=torch.bool)
        self.load({**prefixed(rows, "rows."), "version": self.version, "made": everyone})
        return True

    def _check(self, ids: Tensor, rows: State) -> None:
        for name, t in rows.items():
            had = self.rows[name]
            if t.shape[1:] != had.shape[1:] or t.dtype != had.dtype or len(t) != len(ids):
                raise ValueError(
                    f"private {name!r} became {t.dtype}{tuple(t.shape)}; "
                    f"rows were {had.dtype}{tuple(had.shape[1:])}"
                )

    def _all(self, ids: Tensor) -> bool:
        """Whether these are all rows in memory, in their order."""
        if self.file_backed or len(ids) != self.clients:
            return False
        return bool((ids[1:] > ids[:-1]).all())

    def _meet(self, ids: Tensor) -> None:
        new = ids[~self.made[ids]]
        if not len(new):
            return
        rows = self.fresh(new)
        if rows and not self.rows:
            self._allocate(rows)
        for n, t in rows.items():
            self.rows[n][new.to(t.device)] = t
        self.made[new] = True

    def _allocate(self, like: State) -> None:
        size = sum(t[0].numel() * t.element_size() for t in like.values()) * self.clients
        on_cpu = all(t.device.type == "cpu" for t in like.values())
        self.file_backed = size > self.limit and on_cpu
        if not self.file_backed:
            self.rows = {n: t.new_zeros(self.clients, *t.shape[1:]) for n, t in like.items()}
            return
        folder = tempfile.TemporaryDirectory(prefix="idiolect-rows-", dir=self.scratch)
        self.rows = {}
        for n, t in like.items():  # sparse files: a row takes space when it is first written
            path = str(Path(folder.name) / n)
            numbers = self.clients * t[0].numel()
            flat = torch.from_file(path, shared=True, size=numbers, dtype=t.dtype)
            self.rows[n] = flat.view(self.clients, *t.shape[1:])
        self._folder = folder


def _unmet(clients: int) -> Tensor:
    return torch.full((clients,), -1, dtype=torch.int64)
