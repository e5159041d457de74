"""Secure sums at a host: a state machine for each of its clients in the round under way.

Where sums are secure, no message leaves a host of another owner without its masks. A round's sum is
opened once: two sums over other clients would show the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ..privacy.sums.client import SumClient
from ..privacy.sums.setting import LEAST
from ..privacy.sums.stages import KEYS, OPENED, Place, ProtocolError, session_of
from ..server.protocol import Contract
from ..server.sum_link import SumLink
from ..wire.messages import HEADER, header
from ..wire.ragged import Ragged


class HostSums:
    """The clients of one host, in the newest round of which keys were asked."""

    def __init__(self, contract: Contract, wire_ids: Tensor):
        assert contract.sums is not None and isinstance(contract.link, SumLink)
        self.sums = contract.sums
        self.grid = contract.link.grid
        self.run = contract.run
        self.fewest = contract.noise.least if contract.noise else LEAST
        self.wire_ids = set(wire_ids.tolist())
        self.version = -1
        self.opened = -1  # the last round of which shares were given out
        self.refusals: list[str] = []  # of the last call, for the owner
        self._clients: dict[int, SumClient] = {}

    def answer(self, version: int, stage: int, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """What these clients answer in a stage; those that refuse are left out.

        ProtocolError for a round whose sum was opened before, or that is not under way.
        """
        if stage == KEYS:
            if version <= self.opened:
                raise ProtocolError(
                    f"version must be above {self.opened}, got {version}: the sum of this round "
                    "was opened, and another one of it could show single messages"
                )
            if version != self.version:
                self.version, self._clients = version, {}
        elif version != self.version:
            raise ProtocolError(f"version must be that of the round under way, got {version}")
        self.refusals = []
        replies = {}
        for k, frame in frames.items():
            try:
                replies[k] = self._client(k, stage, frame).handle(stage, frame)
            except ProtocolError as error:
                self.refusals.append(str(error))
        if stage == OPENED and replies:
            self.opened = version
        return replies

    def _client(self, wire_id: int, stage: int, frame: bytes) -> SumClient:
        """The state machine of a client; a new session begins with keys."""
        if wire_id not in self.wire_ids:
            raise ProtocolError(f"client {wire_id} is not of this host")
        client = self._clients.get(wire_id)
        session = session_of(frame)
        if stage == KEYS and (client is None or client.place.session != session):
            place = Place(self.run, self.version, wire_id, session)
            client = self._clients[wire_id] = SumClient(self.sums, self.grid, place, self.fewest)
        if client is None:
            raise ProtocolError("keys come first")
        return client

    def masked(
        self, version: int, messages: Ragged, values: np.ndarray
    ) -> tuple[Ragged, np.ndarray]:
        """Messages as they leave, each with its masks; without masks there is none."""
        rows, indices = [], []
        for k, head in enumerate(header(messages.matrix) if len(messages) else ()):
            client = self._clients.get(int(head["client"])) if version == self.version else None
            if client is None:
                continue
            try:
                residues = self.grid.unpack(messages.matrix[k : k + 1, HEADER.itemsize :])[0]
                body = self.grid.pack(client.mask(residues)[None])[0]
            except ProtocolError:
                continue
            rows.append(np.concatenate([messages.matrix[k, : HEADER.itemsize], body]))
            indices.append(k)
        if not rows:
            return Ragged.empty(0), np.zeros(0)
        return Ragged.even(np.stack(rows)), values[indices]
