"""Who has how many samples, and of which form: all that is known of data that are elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..core.types import leaves, map_tree
from .federation import Federation
from .ids import ClientId
from .splits import SPLITS


@dataclass(frozen=True)
class Census(Federation):
    """A federation whose samples are blank, and take no memory.

    It says who takes part and what one sample is, so that a server, a model and a run can be made;
    a model that is trained on it learns nothing.

    >>> sizes = {"train": [3, 2], "valid": [0, 0], "test": [1, 1]}
    >>> census = Census.of_sizes(["north", "south"], sizes, classes=2, shape=(4,))
    >>> census.sizes("train").tolist(), census.shape, census.samples
    ([3, 2], (4,), 7)
    """

    @classmethod
    def of_sizes(
        cls,
        ids: Sequence[ClientId],
        sizes: Mapping[str, Sequence[int] | Tensor],  # split -> samples of each client
        classes: int,
        shape: tuple[int, ...] = (0,),  # of one sample
        dtype: torch.dtype = torch.float32,
        name: str = "census",
    ) -> Census:
        """Of these clients."""
        offsets, total = _ranges({s: torch.as_tensor(sizes[s], dtype=torch.int64) for s in SPLITS})
        inputs = torch.zeros((), dtype=dtype).expand(total, *shape)
        kind = torch.int64 if classes else torch.float32
        targets = torch.zeros((), dtype=kind).expand(total)
        return cls(inputs, targets, offsets, tuple(ids), classes, name)

    @classmethod
    def of_data(cls, data: Federation, **more: Any) -> Self:
        """Of the clients of these data, which are not kept; `more` are fields of a subclass."""
        return cls(
            map_tree(lambda t: blank(t, len(t)), data.inputs),
            map_tree(lambda t: blank(t, len(t)), data.targets),
            data.offsets,
            data.ids,
            data.classes,
            data.name,
            data.class_names,
            data.preparation,
            special=data.special,
            **more,
        )

    def of(self, positions: Sequence[int] | np.ndarray | Tensor) -> Self:
        """The census of the clients at some positions, in that order."""
        chosen = self._check_positions(positions)
        offsets, total = _ranges({split: self.sizes(split)[chosen] for split in SPLITS})
        return replace(
            self,
            inputs=map_tree(lambda t: blank(t, total), self.inputs),
            targets=map_tree(lambda t: blank(t, total), self.targets),
            offsets=offsets,
            ids=tuple(self.ids[k] for k in chosen.tolist()),
        )

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Self:
        def move(t: Tensor) -> Tensor:
            kind = dtype if t.is_floating_point() else t.dtype
            return torch.zeros((), dtype=kind, device=device).expand(t.shape)

        return replace(
            self, inputs=map_tree(move, self.inputs), targets=map_tree(move, self.targets)
        )

    def fingerprint(self) -> str:
        """SHA-256 over names, numbers of samples and the form of one."""
        forms = "".join(f"{t.dtype}{tuple(t.shape[1:])}" for t in leaves(self.inputs))
        digest = hashlib.sha256(f"{forms}{self.classes}".encode())
        for split in SPLITS:
            digest.update(self.offsets[split].numpy().tobytes())
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()


def _ranges(sizes: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Offsets of clients with so many samples, and the number of all samples."""
    offsets = {}
    start = 0
    for split in SPLITS:
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes[split].cumsum(0)])
        offsets[split] = start + ends
        start += int(ends[-1])
    return offsets, start


def blank(t: Tensor, samples: int) -> Tensor:
    """So many samples of the form of these, all of them zeros that take no memory."""
    return torch.zeros((), dtype=t.dtype, device=t.device).expand(samples, *t.shape[1:])
