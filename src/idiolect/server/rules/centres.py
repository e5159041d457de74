"""Rules by distances from a centre that they look for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from ...core.types import State
from . import geometry
from .rule import Rule


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the least weighted sum of distances to the rows; withstands fewer than half of
    the weight, whatever the dimension.

    argmin_z sum_k weights_k |z - x_k|, by z <- sum_k b_k x_k / sum_k b_k with
    b_k = weights_k / max(nu, |z - x_k|). Clients are weighted as in the paper, whose guarantee
    counts malicious clients by weight: one of them may claim as much as the largest client has;
    `weighted=False` gives all the same weight. Starts from the coordinate median, so that few steps
    suffice however far away malicious rows are. Cost n m per step.

    >>> rows = torch.tensor([[0.0], [1.0], [1.5], [900.0]])
    >>> GeometricMedian()(rows, torch.tensor([1.0, 3.0, 1.0, 1.0])).round(decimals=3).tolist()
    [1.0]

    Pillutla, Kakade and Harchaoui, Robust aggregation for federated learning, IEEE Transactions on
    Signal Processing 70, 2022.
    """

    title = "geometric-median"
    steps: int = knob(8, "Weiszfeld steps", low=1)
    nu: float = knob(1e-6, "smoothing: distances below it count as it", above=0)
    weighted: bool = knob(True, "by the clients' weights; false = every client counts the same")

    @property
    def weighs(self) -> bool:  # type: ignore[override]
        return self.weighted

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        start = geometry.median(rows)
        x = geometry.wide(rows) - start  # relative to the start: equal rows give exactly that row
        z = torch.zeros_like(start)
        share = weights.to(x) if self.weighted else torch.ones_like(weights).to(x)
        for _ in range(self.steps):
            b = share / torch.linalg.vector_norm(x - z, dim=1).clamp(min=self.nu)
            z = (b / b.sum()) @ x
        return (start + z).to(rows.dtype)


@dataclass(frozen=True)
class CentredClipping(Rule):
    """The mean of rows that are pulled to within tau of a centre; for clients that differ, when
    their spread is roughly known.

    v <- v + mean_k (x_k - v) min(1, tau / |x_k - v|), `steps` times. As in the paper, v starts from
    the aggregate of the round before. In the first round, and wherever no state is passed, it
    starts from the coordinate median instead; `start="median"` does so in every round.

    Per step, f malicious clients move v by at most f tau / n: tau should be of the size of honest
    distances from the centre; far above them the rule is the mean. tau = 0 takes the median
    distance from the start, which is ours and not the paper's. Weights are ignored: a malicious
    client could claim a large one. Cost n m per step. State: the last aggregate ("centre"), and
    whether there is one ("begun", 0 before the first round).

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [1.0], [900.0]], dtype=torch.float64)
    >>> rule = CentredClipping(tau=1.0, steps=1)
    >>> first, state = rule.combine_with_state(rows, torch.ones(5), rule.blank(1, rows))
    >>> second, state = rule.combine_with_state(rows, torch.ones(5), state)
    >>> [round(row.item(), 3) for row in (first, second)]  # from 1, the median; then from 1.2
    [1.2, 1.28]

    Karimireddy, He and Jaggi, Learning from history for Byzantine robust optimization, ICML 2021.
    """

    title = "centred-clipping"
    tau: float = knob(
        1.0, "largest distance from the centre that counts in full; 0 = the median distance", low=0
    )
    steps: int = knob(3, "clipping steps", low=1)
    start: str = knob(
        "last",
        "where a round starts: the last round's aggregate (last), or the coordinate median",
        choices=("last", "median"),
    )

    def server(self, n: int) -> dict[str, int]:
        return {"centre": n, "begun": 1} if self.start == "last" else {}

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        return self._clip_around(geometry.median(rows), rows)

    def combine_with_state(
        self, rows: Tensor, weights: Tensor, state: State, *, key: int = 0
    ) -> tuple[Tensor, State]:
        self.check(len(rows))
        if not state:
            return self.combine(rows, weights), state
        if bool(state["begun"]):
            row = self._clip_around(geometry.wide(state["centre"].to(rows.device)), rows)
        else:
            row = self.combine(rows, weights)
        centre = row.to(state["centre"], copy=True)
        return row, {"centre": centre, "begun": torch.ones_like(state["begun"])}

    def _clip_around(self, start: Tensor, rows: Tensor) -> Tensor:
        x = geometry.wide(rows) - start
        v = torch.zeros_like(start)  # v and x relative to the start
        tau = self.tau or geometry.median(torch.linalg.vector_norm(x, dim=1))
        for _ in range(self.steps):
            v = v + geometry.clipped(x - v, tau).mean(0)
        return (start + v).to(rows.dtype)
