"""Which clients are heard in a round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.streams import Keys


def select(
    seed: int, round: int, keys: Keys, eligible: Tensor, sample: int, purpose: str = "select"
) -> Tensor:
    """A uniform sample of `eligible` without replacement, increasing.

    keys: stream keys of all clients, uint64[N]; eligible: positions in them. A client that cannot
    take part changes nothing for the others.
    """
    places = streams.choose(streams.keys(seed, purpose, round, keys[eligible.numpy()]), sample)
    return eligible[torch.from_numpy(np.asarray(places))]
