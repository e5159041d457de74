"""How a task is computed: what the settings of a run say about a task, in one place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Numerics:
    """Device, precision, kernel, clipping, weight decay and seed. A task has none of its own."""

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    kernel: str = "auto"
    clip: float = 0.0  # largest norm of a gradient; 0 = no clipping
    weight_decay: float = 0.0
    seed: int = 0  # of the initialisation and of projections
