"""Clients of a host that are at work while others start and arrive: asynchronous training.

What a client will keep is computed with its message and stays apart until the server has counted
it; then it is the client's own. A message that does not count leaves its client as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import whole
from ..core.store import Store
from ..core.types import State
from ..server.protocol import ExchangeId, HostUpdate, RoundConclusion, RoundRequest
from ..wire.ragged import Ragged

if TYPE_CHECKING:
    from .host import Host


class AsyncWork:
    """The work under way at a host."""

    def __init__(self, host: Host):
        self.host = host
        self.private = _like(host.store)  # rows as they will be
        self.coder = _like(host.coder)  # what the channel will keep

    def stores(self) -> dict[str, Store]:
        """What is saved of it, by the names of the files."""
        return {"atwork.safetensors": self.private, "atworkchannel.safetensors": self.coder}

    def begin(self, orders: Sequence[RoundRequest]) -> HostUpdate:
        """Train the clients that these orders name; their messages, and what they spent.

        Clients that were sent different models are trained together where the method allows it.
        """
        host = self.host
        together = (
            host.stacks
            and host.contract.method.traits.row_messages
            and host.contract.link.mixes_versions
        )
        groups = [orders] if together else [[order] for order in orders]
        updates = [part for group in groups for part in self._updates(group)]
        return HostUpdate.merge(updates)

    def _updates(self, orders: Sequence[RoundRequest]) -> Iterator[HostUpdate]:
        """Messages of the clients of some orders, which have the same learning rates, by chunk."""
        host = self.host
        method = host.contract.method.scaled(orders[0].factors)
        if any(order.factors != orders[0].factors for order in orders):
            raise ValueError("orders must be of one round, with the same learning rates")
        downs = [host.open_down(order).common for order in orders]
        rows_by_order = [host.rows(order.train) for order in orders]
        rows, place = torch.cat(rows_by_order).sort()
        at = torch.cat([torch.full((len(some),), k) for k, some in enumerate(rows_by_order)])[place]
        versions = torch.tensor([order.version for order in orders])[at]
        turns = torch.cat([self._turns(order) for order in orders])[place]
        batch = whole(host.settings.batch, orders[0].factors.get("batch", 1.0))
        chunk = host.chunk_of(batch)
        for some in torch.arange(len(rows)).split(chunk) if len(rows) else ():
            mine = rows[some]
            version = int(versions[some].max())
            here = host.here(mine, version, batch=batch, turns=turns[some].numpy())
            down = downs[0] if len(orders) == 1 else _stacked(downs, at[some])
            private = host.store.read(mine)
            up, after = host.contract.checked(
                method.update(host.contract.task, down, private, here), private, len(mine)
            )
            self._keep(self.private, mine, version, after)
            messages, values = self._send(mine, versions[some].numpy(), turns[some], down, up)
            none = torch.zeros_like(here.tally)
            counted = {name: here.counts.get(name, none) for name in method.traits.counters}
            yield HostUpdate(messages, values, host.wire_ids[mine], here.tally, counted)

    def _turns(self, order: RoundRequest) -> Tensor:
        """How often each of this host's clients in an order has started before."""
        if order.turns is None:
            raise ValueError("order: it does not say how often its clients have started before")
        return order.turns[torch.isin(order.train, self.host.wire_ids)]

    def _send(
        self, rows: Tensor, versions: np.ndarray, turns: Tensor, down: State, up: State
    ) -> tuple[Ragged, np.ndarray]:
        """Messages with their headers, through the channel; and what they count as in words."""
        host = self.host
        contract = host.contract
        reference = contract.method.reference(contract.task, down)
        version = int(versions[0])  # all are of this one where an attack or a channel asks
        up = host.leaving(ExchangeId(version), rows, up, reference)
        messages, after, words = host.encode(
            rows, versions, up, reference, turns.numpy(), host.coder.read(rows)
        )
        self._keep(self.coder, rows, version, after)
        return messages, words

    def _keep(self, store: Store, rows: Tensor, version: int, after: State) -> None:
        if after:
            store.read(rows)  # rows of clients never met are made now
            store.write(rows, version, {n: t.clone() for n, t in after.items()})

    def arrived(self, verdict: RoundConclusion) -> None:
        """What clients whose messages counted will keep is theirs now; others stay as before."""
        host = self.host
        rows = host.rows(verdict.counted)
        if not len(rows):
            return
        for own, pending in ((host.store, self.private), (host.coder, self.coder)):
            pending_rows = {n: t.clone() for n, t in pending.read(rows).items()}
            if pending_rows:
                own.read(rows)
                own.write(rows, verdict.version, pending_rows)


def _like(store: Store) -> Store:
    """A store for the same rows."""
    return Store(store.clients, store.fresh, store.limit, store.scratch, keep=False)


def _stacked(downs: Sequence[State], at: Tensor) -> State:
    """Messages down as rows: that of order at[k] for client k."""
    return {
        n: torch.stack([down[n] for down in downs])[at.to(t.device)] for n, t in downs[0].items()
    }
