"""The expected calibration error."""

from __future__ import annotations

import torch
from torch import Tensor

from .metric import Form, Metric, Samples

BINS = 15


class CalibrationError(Metric):
    """How far confidence is from accuracy: the mean over 15 equal bins of the highest probability.

    Guo, Pleiss, Sun and Weinberger (2017); as torchmetrics' `multiclass_calibration_error`.
    """

    name = "calibration_error"
    higher = False

    def width(self, form: Form) -> int:
        return 3 * BINS  # samples, confidences and hits of every bin

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        confidence = samples.log_probabilities.exp().amax(1)
        bins = (confidence.nan_to_num(1.0) * BINS).long().clamp(0, BINS - 1)
        at = samples.owners * BINS + bins
        hits = (samples.predicted == samples.labels).double()
        terms = torch.stack([torch.ones_like(hits), confidence, hits], 1)
        rows.view(-1, 3).index_add_(0, at, terms)

    def each(self, rows: Tensor) -> Tensor:
        bins = rows.view(len(rows), BINS, 3)
        samples = bins[..., 0].sum(1)
        gap = (bins[..., 1] - bins[..., 2]).abs().sum(1)
        return gap / torch.where(samples > 0, samples, torch.nan)

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        return float(self.each(rows.sum(0, keepdim=True))[0])
