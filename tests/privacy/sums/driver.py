"""Secure sums in one process: a server, its clients, and what is lost or changed on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from idiolect.privacy.sums.client import SumClient
from idiolect.privacy.sums.grid import Grid
from idiolect.privacy.sums.server import SumServer
from idiolect.privacy.sums.setting import SecureSums
from idiolect.privacy.sums.stages import KEYS, MASKED, OPENED, SHARES, Place, ProtocolError

RUN, VERSION = 7, 3
VECTORS = 0  # the messages themselves, where frames of a stage are lost or changed


def nothing(client: int, frame: bytes) -> bytes | None:
    return frame


@dataclass
class Party:
    """A round of n clients. `lost[stage]`: whose replies do not come; `changed[stage]`: replies."""

    n: int
    numbers: int = 5
    sums: SecureSums = field(default_factory=SecureSums)
    lost: Mapping[int, Collection[int]] = field(default_factory=dict)
    changed: Mapping[int, Callable[[int, bytes], bytes | None]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.ids = [10 + 3 * k for k in range(self.n)]
        self.grid: Grid = self.sums.grid(self.numbers)
        draw = random.Random(self.seed)
        self.server = SumServer(self.sums, self.grid, RUN, VERSION, self.ids, draw, session=0)
        self.clients = {
            k: SumClient(self.sums, self.grid, Place(RUN, VERSION, k)) for k in self.ids
        }
        generator = torch.Generator().manual_seed(self.seed)
        self.rows = torch.randn(self.n, self.numbers, generator=generator)
        self.residues = dict(
            zip(self.ids, self.grid.residues(self.grid.quantise(self.rows)), strict=True)
        )
        self.refusals: dict[int, str] = {}
        self.vectors: dict[int, np.ndarray] = {}

    def answers(self, stage: int, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """What the clients answer, and arrives."""
        replies = {}
        for k, request in requests.items():
            try:
                frame = self.clients[k].handle(stage, request)
            except ProtocolError as error:
                self.refusals[k] = str(error)
                continue
            reply = self.changed.get(stage, nothing)(k, frame)
            if k not in self.lost.get(stage, ()) and reply is not None:
                replies[k] = reply
        return replies

    def until_masked(self) -> None:
        """The first three stages, and the messages."""
        keys = self.answers(KEYS, self.server.keys())
        shares = self.answers(SHARES, self.server.shares(keys))
        received = self.answers(MASKED, self.server.masked(shares))
        self.vectors = {k: self.clients[k].mask(self.residues[k]) for k in received}

    @property
    def survivors(self) -> list[int]:
        return [k for k in self.vectors if k not in self.lost.get(VECTORS, ())]

    def total(self) -> np.ndarray:  # -> uint64[m]
        """The sum as the server learns it."""
        self.until_masked()
        opened = self.answers(OPENED, self.server.opened(self.survivors))
        masks = self.server.masks(opened)
        masked = np.sum([self.vectors[k] for k in self.survivors], axis=0, dtype=np.uint64)
        return (masked - masks) & np.uint64(self.grid.modulus - 1)

    def plain(self, clients: Collection[int]) -> np.ndarray:
        """The sum of the messages of these clients without any mask."""
        return self.grid.total(np.stack([self.residues[k] for k in clients]))
