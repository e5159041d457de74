"""Settings of a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..task.client_optimizer import Fitted
from .metrics import Metric

_CACHE = 32 << 20  # bytes that rows at work may touch in a step


@dataclass(frozen=True)
class HostSettings:
    """How a host works: the run's settings that concern it."""

    batch: int = 64
    batching: str = "replace"
    chunk: int = 0  # rows at once; 0 = as many as fit in `memory`
    memory: int = 2 << 30  # bytes for a chunk at work, and for rows before they move to a file
    scratch: Path | None = None
    finetune_steps: int = 0  # SGD steps on every personal model before use
    finetune_lr: float = 0.1
    optimizer: Fitted | None = None  # how clients step; None = plainly
    repeats: bool = True  # a round may be asked for after it was concluded, until the next one
    validation: bool = True  # whether any client of the run, at whichever host, has validation data
    metrics: tuple[Metric, ...] = ()  # counted beside accuracy and loss
    # clients start and arrive one by one: what they keep is theirs when their message has counted
    asynchronous: bool = False

    def rows_at_once(self, model: int, sample: int, samples: int) -> int:
        """Rows at once: as set, or as many as stay in the cache through their steps.

        A row at work takes a model, its gradient and a batch, of `samples` of these bytes. There is
        at least one row per thread, and no more than fit in memory (about eight vectors of R^d and
        a batch with its activations per row).
        """
        if self.chunk:
            return self.chunk
        batch = samples * sample
        fit = self.memory // (8 * model + 4 * batch)
        return max(1, min(fit, max(_CACHE // (2 * model + batch), torch.get_num_threads())))
