"""Who has how many samples, and of which form: all that is known of data that are elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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
        offsets = {}
        start = 0
        for split in SPLITS:
            counts = torch.as_tensor(sizes[split], dtype=torch.int64)
            ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
            offsets[split] = start + ends
            start += int(ends[-1])
        inputs = torch.zeros((), dtype=dtype).expand(start, *shape)
        kind = torch.int64 if classes else torch.float32
        targets = torch.zeros((), dtype=kind).expand(start)
        return cls(inputs, targets, offsets, tuple(ids), classes, name)

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Census:
        def move(t: Tensor) -> Tensor:
            kind = dtype if t.is_floating_point() else t.dtype
            return torch.zeros((), dtype=kind, device=device).expand(t.shape)

        return replace(self, inputs=move(self.inputs), targets=move(self.targets))

    def fingerprint(self) -> str:
        """SHA-256 over names, numbers of samples and the form of one."""
        digest = hashlib.sha256(f"{self.inputs.dtype}{self.shape}{self.classes}".encode())
        for split in SPLITS:
            digest.update(self.offsets[split].numpy().tobytes())
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()
