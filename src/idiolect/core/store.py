"""Private rows of a host's clients: made when a client is first met, versioned by round, in a file when they are many.

A round that is run again starts from the rows before it (else a repeated message would step twice), so the rows that the last
round replaced are kept until the next one; a store that never sees a round twice can do without (`keep`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..core.types import State


class Store:
    """Rows by client: `read(ids, round)` before an update, `write(ids, round, rows)` after it."""

    def __init__(
        self,
        clients: int,
        fresh: Callable[[Tensor], State],
        limit: int = 2 << 30,
        scratch: Path | None = None,
        keep: bool = True,
    ):
        self.clients, self.fresh, self.limit, self.scratch, self.keep = (
            clients,
            fresh,
            limit,
            scratch,
            keep,
        )
        self.rows: State = {}
        self.version = torch.full(
            (clients,), -1, dtype=torch.int64
        )  # the round that wrote the row; -1: not yet met
        self.made = torch.zeros(clients, dtype=torch.bool)
        self.file_backed = False
        self._before: list[
            tuple[int, Tensor, State]
        ] = []  # (round, ids, rows) as they were before the last round
        self._folder: tempfile.TemporaryDirectory | None = None

    def read(self, ids: Tensor, round: int | None = None) -> State:
        """Rows of these clients; with a round, as they were before that round."""
        self._meet(ids)
        rows = {n: t if self._all(ids) else t[ids.to(t.device)] for n, t in self.rows.items()}
        if self.keep and round is not None and bool((again := self.version[ids] == round).any()):
            rows = {n: t.clone() for n, t in rows.items()}
            for _, old_ids, old in self._before:
                mine = again & torch.isin(ids, old_ids)
                at = torch.searchsorted(old_ids, ids[mine])
                for n, t in rows.items():
                    t[mine.to(t.device)] = old[n][at.to(t.device)]
        return rows

    def write(self, ids: Tensor, round: int, rows: State) -> None:
        """New rows after `round`; ids are sorted."""
        if not rows:
            return
        for name, t in rows.items():
            had = self.rows[name]
            if t.shape[1:] != had.shape[1:] or t.dtype != had.dtype or len(t) != len(ids):
                raise ValueError(
                    f"private {name!r} became {t.dtype}{tuple(t.shape)}; rows were {had.dtype}{tuple(had.shape[1:])}"
                )
        new = ids[self.version[ids] != round]
        if not self.keep and len(new) < len(ids):
            raise RuntimeError(
                f"round {round} is run again, and this store keeps no rows from before it"
            )
        if self.keep and len(new):
            self._before = [b for b in self._before if b[0] == round]
            self._before.append(
                (
                    round,
                    new,
                    {n: t if self._all(new) else t[new.to(t.device)] for n, t in self.rows.items()},
                )
            )
        if self._all(ids):
            self.rows = {n: t.detach().contiguous() for n, t in rows.items()}
            if len({t.data_ptr() for t in self.rows.values()}) < len(
                self.rows
            ):  # one tensor under two names
                self.rows = {n: t.clone() for n, t in self.rows.items()}
        else:
            for n, t in rows.items():
                self.rows[n][ids.to(t.device)] = t
        self.version[ids] = round

    def save(self) -> State:
        """Everything, for a checkpoint."""
        return {
            **{f"rows.{n}": t for n, t in self.rows.items()},
            "version": self.version,
            "made": self.made,
        }

    def load(self, tensors: State) -> None:
        self.version, self.made, self._before = (
            tensors["version"].clone(),
            tensors["made"].clone(),
            [],
        )
        saved = {n.removeprefix("rows."): t for n, t in tensors.items() if n.startswith("rows.")}
        if saved:
            self._allocate({n: t[:1] for n, t in saved.items()})
            for n, t in saved.items():
                self.rows[n].copy_(t)

    def adopt(self, rows: State) -> None:
        """Start from rows of an earlier stage, where name and form are those that the method keeps."""
        mine = self.fresh(torch.arange(1))
        if (
            mine
            and mine.keys() == rows.keys()
            and all(t.shape[1:] == rows[n].shape[1:] for n, t in mine.items())
        ):
            self.load(
                {
                    **{f"rows.{n}": t for n, t in rows.items()},
                    "version": self.version,
                    "made": torch.ones(self.clients, dtype=torch.bool),
                }
            )

    def _all(self, ids: Tensor) -> bool:
        return len(ids) == self.clients and not self.file_backed

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
        self.file_backed = size > self.limit and all(t.device.type == "cpu" for t in like.values())
        if not self.file_backed:
            self.rows = {n: t.new_zeros(self.clients, *t.shape[1:]) for n, t in like.items()}
            return
        self._folder = tempfile.TemporaryDirectory(prefix="idiolect-rows-", dir=self.scratch)
        self.rows = {}
        for (
            n,
            t,
        ) in like.items():  # sparse files: a row takes space on the disk when it is first written
            path = str(Path(self._folder.name) / n)
            flat = torch.from_file(
                path, shared=True, size=self.clients * t[0].numel(), dtype=t.dtype
            )
            self.rows[n] = flat.view(self.clients, *t.shape[1:])
