"""What a host is told about its work, and what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..task.optimise import Fitted
from ..wire.ragged import Ragged, stacked
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


@dataclass(frozen=True)
class Sent:
    """What a host sends in a round."""

    messages: Ragged
    values: np.ndarray  # float64[S]: 32-bit words of each as the lp-proj paper counts
    trained: Tensor  # int64: wire ids of the clients that trained
    gradients: Tensor  # int64: gradient evaluations of each of them
    counted: dict[str, Tensor] = field(default_factory=dict)  # int64 each: see Method.counted

    @classmethod
    def merge(cls, sent: Sequence[Sent]) -> Sent:
        """All of it as one."""
        if len(sent) == 1:
            return sent[0]
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            stacked([s.messages for s in sent]),
            np.concatenate([np.zeros(0), *(s.values for s in sent)]),
            torch.cat([none, *(s.trained for s in sent)]),
            torch.cat([none, *(s.gradients for s in sent)]),
            {n: torch.cat([s.counted[n] for s in sent]) for n in (sent[0].counted if sent else ())},
        )


@dataclass(frozen=True)
class Exchange:
    """Which messages of a round: those up, or answers about a part in a second exchange."""

    version: int
    part: str = ""  # the part of the message that is asked about; "" = the message itself
