"""The global model in every evaluated round, for runs of a sweep.

The rounds of a result are about the models that clients predict with. Where these are personal, and
the question is how fast the global one converges, this looks at the server's `w`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...core.types import map_tree
from ...data.federation import Federation
from ...run.callbacks import Moment
from ...task.task import Task

MOST = 5000  # samples of a split: more would take longer than the training between two of these
AT_ONCE = 500  # samples of one forward pass


@dataclass
class GlobalRounds:
    """Hears of evaluated rounds, and keeps loss and accuracy of the global model in each."""

    task: Task
    federation: Federation
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, moment: Moment) -> None:
        w = moment.state().get("w")
        if w is None or len(w) != self.task.d:
            return
        row: dict[str, Any] = {"seed": moment.seed, "round": moment.round}
        for split in ("train", "test"):
            loss, accuracy = self._figures(w.to(self.task.x0), split)
            row |= {f"{split}_loss": loss, f"{split}_accuracy": accuracy}
        self.rows.append(row)

    def _figures(self, w: Tensor, split: str) -> tuple[float, float]:
        """Means over all samples of a split, or over `MOST` of them that are evenly spaced."""
        offsets = self.federation.offsets[split]
        low, high = int(offsets[0]), int(offsets[-1])
        places = list(range(low, high, max(1, -(-(high - low) // MOST))))
        loss = hits = 0.0
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            inputs = map_tree(lambda t, some=some: t[some], self.federation.inputs)
            targets = map_tree(lambda t, some=some: t[some], self.federation.targets)
            outputs = self.task.outputs_of_one(w, inputs)
            hit, lost = self.task.criterion.scores(outputs, targets)
            hits += float(hit.sum())
            loss += float(lost.sum())
        return loss / len(places), hits / len(places)
