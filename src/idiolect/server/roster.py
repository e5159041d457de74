"""Who takes part: the user's own ids, and the numbers that stand for them on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, nearest
from ..core.streams import Keys
from ..core.types import Id, State


class Roster:
    """The clients a server knows.

    A client has an id of its owner's choosing (a number or a text) and a *wire id*: the number in
    the headers of its messages, given when it is enrolled and never given again. What the server
    keeps about clients is indexed by wire id. A client that leaves keeps its wire id.

    >>> roster = Roster()
    >>> roster.enrol(["north", "south"], [120, 80]).tolist()
    [0, 1]
    >>> roster.leave(["north"])
    >>> roster.eligible_ids().tolist(), roster.wire_id("south")
    ([1], 1)
    """

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.samples = torch.zeros(0, dtype=torch.int64)  # training samples as enrolled, by wire id
        # how much each counts, by wire id; None = by the samples that it claims, capped
        self.weights: Tensor | None = None  # float64
        # whether these are the user's weights of clients, which count whatever the method; else
        # they are what the training samples weigh, in place of their number
        self.own_weights = False
        self.eligible = torch.zeros(0, dtype=torch.bool)  # may take part, by wire id
        self.keys: Keys = np.zeros(0, dtype=np.uint64)  # stream keys, by wire id
        self._wire_ids: dict[Id, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def enrol(
        self,
        ids: Iterable[Id],
        samples: Iterable[int],
        eligible: Iterable[bool] | None = None,
        weights: Iterable[float] | None = None,
        own_weights: bool = True,
    ) -> Tensor:
        """Add clients; their wire ids. One without training samples cannot take part.

        With `weights`, clients count by these whatever they claim: either all have one, or none.
        `own_weights` says whether they are the user's, or what their training samples weigh.
        """
        new = list(ids)
        counts = torch.as_tensor(list(samples), dtype=torch.int64)
        may = torch.ones(len(new), dtype=torch.bool)
        if eligible is not None:
            may = torch.as_tensor(list(eligible), dtype=torch.bool)
        if not len(new) == len(counts) == len(may):
            raise SettingError(
                f"clients: {len(new)} ids, {len(counts)} numbers of samples and {len(may)} marks "
                "of who may take part; one of each per client is needed"
            )
        self._check_new(new)
        all_weights = self._check_weights(len(new), weights)
        for client_id in new:
            self._wire_ids[client_id] = len(self.ids)
            self.ids.append(client_id)
        self.samples = torch.cat([self.samples, counts])
        self.weights = all_weights
        self.own_weights = own_weights and all_weights is not None
        self.eligible = torch.cat([self.eligible, may & (counts > 0)])
        self.keys = np.concatenate(
            [self.keys, streams.name_keys([str(client_id) for client_id in new])]
        )
        return torch.arange(len(self.ids) - len(new), len(self.ids))

    def _check_new(self, ids: list[Id]) -> None:
        """Refuse all of them if one has the id of another client, compared as text too.

        Random numbers are keyed by the text of an id: 7 and "7" would draw the same.
        """
        texts = {str(client_id) for client_id in self.ids}
        for client_id in ids:
            if str(client_id) in texts:
                raise SettingError(
                    f"clients: {client_id!r} is enrolled already; ids are unique, also as texts"
                )
            texts.add(str(client_id))

    def _check_weights(self, new: int, weights: Iterable[float] | None) -> Tensor | None:
        """The weights of all clients, these included."""
        if weights is None:
            if self.weights is not None and new:
                raise SettingError("weights: the clients enrolled before have some; give one each")
            return self.weights
        if self.weights is None and self.ids:
            raise SettingError("weights: the clients enrolled before have none; leave them out")
        new_weights = torch.as_tensor(list(weights), dtype=torch.float64)
        if len(new_weights) != new or not bool(
            (torch.isfinite(new_weights) & (new_weights > 0)).all()
        ):
            raise SettingError(f"weights must be {new} numbers > 0, one per client")
        return new_weights if self.weights is None else torch.cat([self.weights, new_weights])

    def leave(self, ids: Iterable[Id]) -> None:
        """These clients take no part from the next round on."""
        wire_ids = torch.tensor([self.wire_id(client_id) for client_id in ids], dtype=torch.int64)
        self.eligible[wire_ids] = False

    def rejoin(self, ids: Iterable[Id]) -> None:
        """These clients, enrolled before, take part again from the next round on."""
        wire_ids = torch.tensor([self.wire_id(client_id) for client_id in ids], dtype=torch.int64)
        self.eligible[wire_ids] = self.samples[wire_ids] > 0

    def wire_id(self, client_id: Id) -> int:
        """The wire id of a client."""
        if client_id in self._wire_ids:
            return self._wire_ids[client_id]
        if (
            isinstance(client_id, str)
            and client_id.lstrip("-").isdigit()
            and int(client_id) in self._wire_ids
        ):
            return self._wire_ids[int(client_id)]  # a number as text, from a command line
        if not isinstance(client_id, str):
            examples = ", ".join(repr(i) for i in self.ids[:3])
            raise SettingError(
                f"client: {client_id!r} is unknown; clients are called {examples}, ..."
            )
        raise nearest(client_id, [str(i) for i in self.ids], "client")

    def eligible_ids(self) -> Tensor:  # -> int64, increasing
        """The wire ids of the clients that may take part."""
        return self.eligible.nonzero().flatten()

    def mean_samples(self) -> float:
        """Training samples (or the weight, where given) of the mean client that may take part."""
        sizes = self.samples if self.weights is None else self.weights
        taking_part = sizes[self.eligible].double()
        if not len(taking_part):
            return 1.0
        alike = bool((taking_part == taking_part[0]).all())  # a sum may round: 3 * 0.1 / 3
        return float(taking_part[0] if alike else taking_part.mean())

    def most_samples(self) -> float:
        """Training samples of the largest client: no client may claim more."""
        return float(self.samples.max()) if len(self.samples) else 0.0

    def save(self) -> tuple[State, dict[str, Any]]:
        """Everything, for a checkpoint."""
        tensors = {"samples": self.samples, "eligible": self.eligible}
        if self.weights is not None:
            tensors["weights"] = self.weights
        return tensors, {"ids": list(self.ids)}

    @classmethod
    def loaded(cls, tensors: State, facts: dict[str, Any], own_weights: bool = True) -> Roster:
        """A roster as it was saved; whose weights they are, the settings of the run tell."""
        roster = cls()
        weights = tensors["weights"].tolist() if "weights" in tensors else None
        samples = tensors["samples"].tolist()
        roster.enrol(facts["ids"], samples, weights=weights, own_weights=own_weights)
        roster.eligible = tensors["eligible"] & (roster.samples > 0)
        return roster
