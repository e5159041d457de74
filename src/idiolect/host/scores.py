"""How well clients are served: pooled over samples, and how it is spread over clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from ..data.federation import Federation


@dataclass(frozen=True)
class Scores:
    """What was counted on one split: for each client its hits, its loss summed over samples, and its samples."""

    hits: Tensor  # float64[N]; NaN for regression
    loss: Tensor  # float64[N]
    samples: Tensor  # int64[N]

    def of_clients(self) -> tuple[Tensor, Tensor]:
        """(accuracy, loss) of each client; NaN for a client without samples."""
        n = torch.where(self.samples > 0, self.samples, torch.nan)
        return self.hits / n, self.loss / n


def summarise(scores: Scores, clients: Tensor | None = None) -> dict[str, float]:
    """The papers' figures: accuracy and loss pooled over samples, their population variance over clients; and more.

    >>> s = Scores(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.0]), torch.tensor([2, 3]))
    >>> {k: round(v, 3) for k, v in summarise(s).items() if k.startswith("accuracy")}
    {'accuracy': 0.8, 'accuracy_variance': 0.062, 'accuracy_clients': 0.75, 'accuracy_worst10': 0.5}
    """
    keep = scores.samples > 0
    if clients is not None:
        keep &= torch.isin(torch.arange(len(keep)), clients)
    out: dict[str, float] = {}
    samples = float(scores.samples[keep].sum())
    for name, sums, worst_is in (("accuracy", scores.hits, "low"), ("loss", scores.loss, "high")):
        each = (sums / scores.samples)[keep].double()
        if not len(each):
            out |= {
                name: math.nan,
                f"{name}_variance": math.nan,
                f"{name}_clients": math.nan,
                f"{name}_worst10": math.nan,
            }
            continue
        worst = each.sort(descending=worst_is == "high").values[: math.ceil(0.1 * len(each))]
        out[name] = float(sums[keep].sum()) / samples
        out[f"{name}_variance"] = float(each.var(correction=0))
        out[f"{name}_clients"] = float(each.mean())
        out[f"{name}_worst10"] = float(worst.mean())
    return out


def majority(federation: Federation, split: str = "test") -> Scores:
    """Each client predicts its own most frequent training class: the least that a method has to beat.

    The loss is that of the constant distribution of the client's training classes (add-one smoothed).
    """
    train = federation.class_counts("train").double()
    held = federation.class_counts(split).double()
    share = (train + 1) / (train + 1).sum(1, keepdim=True)
    return Scores(
        federation.majority_hits(split).double(), -(held * share.log()).sum(1), held.sum(1).long()
    )


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean over seeds (Student's t); None for a single seed.

    >>> round(interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    n = len(values)
    if n < 2 or any(math.isnan(v) for v in values):
        return None
    mean = sum(values) / n
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
