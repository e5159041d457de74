"""Synchronous rounds with hosts that mask their messages, where sums are secure.

Around each round are the stages of SecAgg+ (`idiolect.privacy.sums`): three before anybody trains,
one when the messages have come. A host that is lost in one of them costs its own messages only, as
long as enough others are left; otherwise the round leaves the server as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ..core.text import note
from ..privacy.sums.server import SumLost, SumServer
from ..privacy.sums.stages import KEYS, MASKED, OPENED, SHARES
from ..server.protocol import RoundConclusion, RoundRequest
from ..server.round import Round
from ..server.server import Server
from ..server.sum_link import SumLink
from .remote_hosts import RemoteHosts
from .rounds import Rounds


class SecureRounds(Rounds):
    """Rounds with hosts of other owners; without secure sums as any other."""

    def __init__(self, server: Server, group: RemoteHosts, tell: Callable[[str], None] = note):
        super().__init__(server, group)
        self.remote = group
        self.tell = tell
        self.sum: SumServer | None = None  # of the round under way

    def _begin_sum(self, current: Round) -> RoundRequest:
        """Keys, shares, and the shares of others: who has them is asked to train."""
        order = current.order
        contract = self.server.contract.of(current.version)
        self.sum = None
        if contract.sums is None or not len(order.heard):
            return order
        assert isinstance(contract.link, SumLink)
        version, heard_ids = current.version, order.heard
        self.remote.begin()
        grid, clients = contract.link.grid, heard_ids.tolist()
        self.sum = SumServer(contract.sums, grid, contract.run, version, clients)
        ask = partial(self.remote.sum_stage, version)
        try:
            keys = ask(KEYS, self.sum.keys())
            shares = ask(SHARES, self.sum.shares(keys))
            received = ask(MASKED, self.sum.masked(shares))
        except SumLost as error:
            received = {}
            self._lose_sum(current, error)
        ready = torch.tensor([k in received for k in clients], dtype=torch.bool)
        train = order.train[~torch.isin(order.train, heard_ids[~ready])]
        if not received:  # nobody trains for a round that cannot count
            train = train[:0]
        return replace(order, train=train, heard=heard_ids[ready])

    def _open_sum(self, current: Round) -> None:
        """Who has sent a message is asked for shares of the masks on them."""
        if self.sum is None or current.unopened:
            return
        arrived = current.inbox.admitted().wire_ids
        try:
            requests = self.sum.opened(arrived.tolist())
            current.masks = self.sum.masks(self.remote.sum_stage(current.version, OPENED, requests))
            current.summed = torch.tensor(sorted(requests))
        except SumLost as error:
            self._lose_sum(current, error)

    def _lose_sum(self, current: Round, error: SumLost) -> None:
        """The round counts nobody: it leaves the server as it is."""
        current.unopened = True
        number = self.server.contract.round_of(current.version) + 1
        self.tell(f"round {number} does not count: {error}")

    def _account_sum(self, current: Round, conclusion: RoundConclusion) -> None:
        """The bytes that went to and fro, and who broke the protocol."""
        if self.sum is None:
            return
        wire_ids = torch.tensor(list(self.sum.bytes_up))
        up = torch.tensor(list(self.sum.bytes_up.values()))
        down = torch.tensor(list(self.sum.bytes_down.values()))
        self.server.ledger.summed(wire_ids, up, down)
        for client, fault in self.sum.faults.items():
            self.tell(f"client {self.server.roster.ids[client]}: {fault}")
