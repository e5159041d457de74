"""Messages of secure sums: changes as whole numbers of a grid, which the server only adds up.

In a simulation they travel as they are, and the server adds them up as it would between sites;
between sites each has masks on it, which cancel in the sum (`idiolect.privacy.sums`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..channels import Channel
from ..channels.link import Link
from ..core.streams import Keys
from ..core.types import State
from ..method import Method
from ..privacy.sums.distributed import GridNoise
from ..privacy.sums.grid import Grid
from ..privacy.sums.setting import SecureSums
from ..task.task import Task
from ..wire.messages import check_part
from ..wire.ragged import Ragged

RESIDUES = "residues"  # the one part of a message as it arrives: int64[S, m], below 2^b


@dataclass(frozen=True)
class SumLink(Link):
    """All parts of a message as one vector on one grid."""

    mixes_versions: ClassVar[bool] = False

    grid: Grid = field(default=Grid(1.0, 0, 16, 0, 1), kw_only=True)
    noise: GridNoise | None = field(default=None, kw_only=True)

    @classmethod
    def of_sums(
        cls, sums: SecureSums, method: Method, task: Task, noise: GridNoise | None = None
    ) -> SumLink:
        """The link for the messages up of a method."""
        plain = Link.fit(Channel(), method, task)
        numbers = sum(form.n for form in plain.parts.values())
        multiplier, least = (noise.multiplier, noise.least) if noise else (0.0, 1)
        grid = sums.grid(numbers, multiplier, least)
        return cls(plain.channel, plain.parts, grid=grid, noise=noise)

    @property
    def coding(self) -> str:
        return repr(self.grid)

    def lengths(self, version: int = 0) -> tuple[int, int]:
        return self.grid.row_bytes, self.grid.row_bytes

    def down_values(self, numbers: int, version: int = 0) -> float:
        return numbers

    # -- the client's side -------------------------------------------------------------------------
    def encode(
        self,
        heads: np.ndarray,
        up: State,
        reference: State,
        state: State,
        keys: Callable[[], Keys],
        version: int,
    ) -> tuple[Ragged, State, np.ndarray]:
        """Messages of the clients whose numbers are finite; of the others there are none."""
        changes = []
        for name, form in self.parts.items():
            check_part(name, up[name], (form.n,), form.dtype)
            known = reference.get(name)
            changes.append(up[name] if known is None else up[name] - known)
        rows = torch.cat(changes, dim=1).cpu()
        finite = rows.isfinite().all(1)
        noise = self.noise.steps(len(rows), self.grid, keys) if self.noise else None
        whole = self.grid.quantise(rows[finite])
        residues = self.grid.residues(whole, None if noise is None else noise[finite])
        bodies = np.concatenate([heads[finite.numpy()], self.grid.pack(residues)], axis=1)
        return Ragged.even(bodies), state, np.full(len(bodies), float(self.grid.numbers))

    # -- the server's side -------------------------------------------------------------------------
    def decode(
        self, bodies: Ragged, reference: State, memory: State, version: int
    ) -> tuple[State, np.ndarray, State]:
        """Numbers that may be masked: nothing can be said of them one by one."""
        rows = bodies.matrix if len(bodies) else np.zeros((0, self.grid.row_bytes), np.uint8)
        residues = self.grid.unpack(rows).astype(np.int64)
        return {RESIDUES: torch.from_numpy(residues)}, np.ones(len(bodies), dtype=bool), memory

    def mean(
        self, up: State, masks: np.ndarray | None, reference: State
    ) -> State:  # -> rows[1, m] of each part
        """The mean message, from those that arrived and the sum of their masks."""
        residues = up[RESIDUES].numpy().astype(np.uint64)
        total = self.grid.total(residues)
        if masks is not None:
            total = (total - masks) & np.uint64(self.grid.modulus - 1)
        dtype = next(iter(self.parts.values())).dtype
        row = self.grid.mean(total, len(residues), dtype)
        sizes = [form.n for form in self.parts.values()]
        pieces = zip(self.parts, row.split(sizes), strict=True)
        return {n: self._restored(n, piece, reference)[None] for n, piece in pieces}

    def _restored(self, name: str, change: Tensor, reference: State) -> Tensor:
        known = reference.get(name)
        return change.clone() if known is None else known + change.to(known.device)
