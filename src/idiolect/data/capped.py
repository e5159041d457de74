"""A federation as it would be if every client had fewer samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.knobs import SettingError
from .federation import Federation
from .splits import SPLITS


def capped(federation: Federation, most: Mapping[str, int], seed: int = 0) -> Federation:
    """At most so many samples of a client in each split that is named, drawn at random.

    Samples stay in their split and in their order; another seed draws others. A client that has
    fewer keeps what it has.

    >>> from . import load
    >>> few = capped(load("synthetic", clients=3), {"train": 10, "valid": 2})
    >>> few.sizes("train").tolist(), few.sizes("valid").tolist()
    ([10, 10, 10], [2, 2, 2])
    """
    for split, many in most.items():
        if split not in SPLITS or many < 1:
            raise SettingError(
                f"most: {split!r}: {many} is not accepted; at least 1 sample of {', '.join(SPLITS)}"
            )
    generator = torch.Generator().manual_seed(seed)
    drawn = {s: _drawn(federation.offsets[s], most.get(s), generator) for s in SPLITS}
    rows, sizes = ({split: pair[k] for split, pair in drawn.items()} for k in (0, 1))
    return federation.taking(rows, sizes)


def _drawn(
    offsets: Tensor, most: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:  # int64[N + 1] -> rows, sizes[N]
    """The rows that are kept of a split, in order, and how many each client has of them."""
    low, high = int(offsets[0]), int(offsets[-1])
    sizes = offsets.diff()
    if most is None:
        return torch.arange(low, high), sizes
    client = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    # by client, and within a client at random: the first `most` of each are kept
    order = torch.randperm(high - low, generator=generator)
    order = order[client[order].argsort(stable=True)]
    within = torch.arange(high - low) - (offsets[:-1] - low)[client]
    return low + order[within < most].sort().values, sizes.clamp(max=most)
