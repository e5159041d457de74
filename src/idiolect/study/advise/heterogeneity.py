"""How far the clients' own optima lie apart, against the m/N threshold.

Chen, Zheng, Long and Su (2021): with R^2 = sum_i p_i ||w_i - w_avg||^2 over the clients' optima
w_i, p_i = n_i / N, FedAvg's excess risk is of order 1/N + R^2 and that of learning alone of order
m/N; their Corollary 3.1 federates where R^2 is at most a constant times m/N. Both are estimated
here from Local's models on two halves of each client's samples, a_i and b_i, whose errors are
independent:

    R^2 = sum_i p_i <a_i - a_avg, b_i - b_avg>      the noise of the halves cancels on average
    V   = 1/4 sum_i p_i ||a_i - b_i||^2             the error of a model of all its samples: a
                                                    half's has twice the variance

Learning alone has error V, one model for all R^2 + V sum_i p_i^2, so that they are equal at
R^2 = V (1 - sum_i p_i^2), which is the threshold C m/N; C is a figure of the data. What counts for
the risk is not how far two models lie apart but what that does to the loss: besides the plain norm
there is ||u||_H^2 = <u, H_i u> with the Hessian H_i of the client's loss at the mean model; in it
the ratio of the two is reported. The interval of the ratio is a bootstrap over clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core import streams
from ...core.knobs import SettingError
from ...core.types import leaves
from ...data.federation import Federation
from ...task.context import Here
from ...task.task import Task

RESAMPLES = 1000
AT_ONCE = 20_000_000  # numbers in a product with Hessians, so that memory stays small
LEAST = 4  # training samples that a client needs: two in each half
BELOW = "below"
ABOVE = "above"
NEAR = "near"


@dataclass(frozen=True)
class Heterogeneity:
    """R^2 and the threshold of the plain norm, and their ratio in units of risk."""

    r2: float
    threshold: float  # C m/N
    constant: float  # C
    ratio: float  # R^2 over the threshold; in units of risk where a Hessian is to be had
    low: float  # of the ratio's 95 % interval
    high: float
    norm: str  # "risk" or "plain": of the ratio
    clients: int  # that it is estimated from

    @property
    def side(self) -> str:
        """On which side of the threshold these clients are, or near it."""
        if self.high < 1:
            return BELOW
        return ABOVE if self.low > 1 else NEAR

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "side": self.side}


def heterogeneity(
    trained: Sequence[tuple[Tensor, Federation]], task: Task, seed: int
) -> Heterogeneity | None:
    """The estimates, from the clients with enough samples; None for fewer than two of them.

    Of several splits into halves, each with its models x[2 m, d]: rows 2 k and 2 k + 1 are client
    k's. Products are averaged over the splits.
    """
    sizes = trained[0][1].sizes("train").view(-1, 2).sum(1)
    sound = [torch.isfinite(x).all(1).view(-1, 2).all(1) for x, _ in trained]
    clients = ((sizes >= LEAST) & torch.stack(sound).all(0)).nonzero().flatten()
    if len(clients) < 2:
        return None
    masses = trained[0][1].weight_totals("train").view(-1, 2).sum(1)[clients]
    p = (masses.float() / masses.sum().float()).double()
    splits = [_one_split(x, halves, clients, p, task, seed) for x, halves in trained]
    plain = torch.stack([one for one, _ in splits]).mean(0)
    by_risk = [risk for _, risk in splits if risk is not None]
    norm = "risk" if len(by_risk) == len(splits) else "plain"
    weighed = torch.stack(by_risk).mean(0) if norm == "risk" else plain
    alone = 1 - float((p**2).sum())
    r2, noise = (float((p * v).sum()) for v in plain)
    ratio, low, high = _ratio(weighed[0], alone * weighed[1], p, seed)
    constant = alone * noise * float(sizes[clients].sum()) / len(clients)
    return Heterogeneity(r2, alone * noise, constant, ratio, low, high, norm, len(clients))


def _one_split(
    x: Tensor, halves: Federation, clients: Tensor, p: Tensor, task: Task, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Each client's part of R^2 and V: [2, m], in the plain norm and, where there is one, H's."""
    pairs = x.double().view(-1, 2, x.shape[-1])[clients]
    mean = (p.view(-1, 1, 1) * pairs).sum(0)  # a_avg, b_avg
    away = pairs - mean
    apart = pairs[:, 0] - pairs[:, 1]
    plain = torch.stack([_products(away[:, 0], away[:, 1]), _products(apart, apart) / 4])
    return plain, _by_risk(task, halves, clients, mean.mean(0), away, apart, seed)


def _products(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1)


def _by_risk(
    task: Task,
    halves: Federation,
    clients: Tensor,
    at: Tensor,  # [d]: the mean of all models
    away: Tensor,  # [m, 2, d]
    apart: Tensor,  # [m, d]
    seed: int,
) -> Tensor | None:  # -> [2, m]
    """<a, H b> and <a - b, H (a - b)> / 4 of each client; None where there is no Hessian."""
    longest = int(halves.sizes("train").max())
    values = sum(t[0].numel() for t in leaves(halves.inputs))
    rows = max(1, AT_ONCE // (task.d + longest * values))
    parts = []
    try:
        for at_once in torch.arange(len(clients)).split(rows):
            both = [
                _hessians(
                    task,
                    halves,
                    2 * clients[at_once] + half,
                    at,
                    away[at_once],
                    apart[at_once],
                    seed,
                )
                for half in (0, 1)
            ]
            parts.append(torch.stack(both).mean(0))  # H_i is that of both halves
    except (SettingError, RuntimeError, NotImplementedError):
        return None  # dropout, running statistics, or a layer without second derivatives
    products = torch.cat(parts, dim=1)
    return products if bool(torch.isfinite(products).all()) else None


def _hessians(
    task: Task,
    halves: Federation,
    rows: Tensor,
    at: Tensor,
    away: Tensor,
    apart: Tensor,
    seed: int,
) -> Tensor:
    """The two products with the Hessian of the loss on these rows' samples: [2, rows]."""
    keys = streams.name_keys([str(r) for r in rows.tolist()])
    here = Here(
        halves,
        rows,
        clients=keys,
        seed=seed,
        round=0,
        batch=1,
        batching="full",
        dtype=task.dtype,
    )
    batch = here.draw()
    x = at.to(task.x0).expand(len(rows), -1)
    crossed = task.hvp(x, away[:, 1].to(task.x0), batch).double()
    own = task.hvp(x, apart.to(task.x0), batch).double()
    return torch.stack([_products(away[:, 0], crossed), _products(apart, own) / 4])


def _ratio(between: Tensor, noise: Tensor, p: Tensor, seed: int) -> tuple[float, float, float]:
    """The ratio of two sums over clients, and its bootstrap interval."""
    a, b = (p * between).numpy(), (p * noise).numpy()
    words = streams.bits(streams.keys(seed, "advise bootstrap"), 0, RESAMPLES * len(a))
    drawn = streams.below(words, np.array(len(a))).reshape(RESAMPLES, len(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = a[drawn].sum(1) / b[drawn].sum(1)
    ratios = ratios[np.isfinite(ratios)]
    if b.sum() <= 0 or len(ratios) < RESAMPLES / 2:
        return math.nan, -math.inf, math.inf
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(a.sum() / b.sum()), float(low), float(high)
