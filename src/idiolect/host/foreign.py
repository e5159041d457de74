"""A host of another owner, as a server sees it: who is there, and nothing of what they hold.

Rows, models and data stay with their owner, who keeps them on disk and exports them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..data.federation import Census
from .calls import MOST_COUNTED
from .host import Host
from .metrics import Form, Tally
from .scores import Scores
from .terms import HostSettings


class Foreign(Host):
    """A host of the clients of a census; what it is asked to do is done elsewhere."""

    def __init__(self, census: Census, wire_ids: Tensor, settings: HostSettings, form: Form):
        if len(wire_ids) != census.clients or bool((wire_ids.diff() <= 0).any()):
            raise ValueError("wire ids: one per client of the census is needed, increasing")
        self.data = census
        self.wire_ids = wire_ids
        self.settings = settings
        self.form = form  # of outputs and targets, for metrics

    def evaluate(
        self, version: int, message: bytes, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores that nobody has told: of these clients, on no sample."""
        return dict.fromkeys(splits, self._untold(wire_ids))

    def evaluate_shared(
        self,
        version: int,
        message: bytes,
        splits: tuple[str, ...],
        wire_ids: Tensor | None = None,
    ) -> dict[str, Scores]:
        """The same for the shared model."""
        return dict.fromkeys(splits, self._untold(self.wire_ids if wire_ids is None else wire_ids))

    def _untold(self, wire_ids: Tensor) -> Scores:
        mine = self.wire_ids[self.rows(wire_ids)]
        none = torch.zeros(len(mine), dtype=torch.int64)
        metrics = self.settings.metrics
        tally = Tally(metrics, self.form, len(mine), none.nonzero().flatten()) if metrics else None
        measured = tally.measured(torch.arange(len(mine))) if tally else {}
        hits = none.double() if self.data.classes else torch.full((len(mine),), torch.nan).double()
        return Scores(mine, hits, none.double(), none, none, measured)

    def check_scores(
        self, found: Mapping[str, Scores], wire_ids: Tensor, splits: tuple[str, ...]
    ) -> None:
        """Refuse, by ValueError, scores that clients with as many samples as enrolled cannot have.

        Whether they are true is known to their owner alone.
        """
        if set(found) != set(splits):
            raise ValueError("scores: of other splits than were asked for")
        rows = self.rows(wire_ids)
        for split, scores in found.items():
            if not torch.equal(scores.wire_ids, wire_ids):
                raise ValueError("scores: of every client that was asked, in their order")
            # none where the owner does not tell figures of so few
            told = (scores.samples == self.data.sizes(split)[rows]) | (scores.samples == 0)
            if not bool(told.all()):
                raise ValueError("scores: of other numbers of samples than were enrolled")
            outside = (scores.hits < 0) | (scores.hits > scores.samples)
            spent = (scores.gradients < 0) | (scores.gradients > MOST_COUNTED)
            if bool(outside.any()) or bool(spent.any()):
                raise ValueError("scores: hits from none to all samples, gradients >= 0")
            for measured in scores.metrics.values():
                width = (len(rows), measured.metric.width(self.form))
                shape = tuple(measured.metric.shape(self.form))
                if tuple(measured.rows.shape) != width or tuple(measured.counts.shape) != shape:
                    raise ValueError(f"scores: the metric {measured.metric.name} has another form")

    def personal_rows(self, version: int, message: bytes, wire_ids: Tensor) -> Tensor:  # -> x[K, d]
        raise SettingError(
            "models: they are with the owners of the data; each exports its own there: "
            "idiolect host export"
        )

    def digest(self) -> str:
        raise SettingError("models: private rows are with the owners of the data")

    def save(self, folder: Path) -> None:
        """Its owner keeps its rows: nothing of them is in a checkpoint of the server."""

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """Its owner has them."""

    def most_bytes(self) -> int:
        return 0

    def release(self) -> None:
        """Nothing is held here."""
