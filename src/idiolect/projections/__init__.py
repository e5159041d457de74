"""Projections P of R^d onto R^dim: made from a seed on every side, never sent; and their table.

`make_projection` gives an object with `dim`, `down(x) = P x` and `up(u) = Pᵀ u` on rows. The
numbers come from the counter-based generator of `idiolect.core.streams`, so the same seed gives the
same P on every machine and with every version of torch.

On one CPU thread the result for a row has the same bits whatever other rows are in the cohort: a
client that trains alone finds what it finds in a simulation of many. With more threads BLAS may
divide a product with a dense P in another way for another number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from ..core.knobs import SettingError, nearest
from .dense import DenseProjection, block, layers
from .sparse import Contiguous, Identity, Sparse
from .spec import Spec


class Projection(Protocol):
    dim: int

    def down(self, x: Tensor) -> Tensor: ...  # P x: x[K, d] -> [K, dim]

    def up(self, u: Tensor) -> Tensor: ...  # P^T u: u[K, dim] -> [K, d]

    def add_up(self, g: Tensor, u: Tensor) -> Tensor: ...  # g + P^T u, in place

    def memory(self) -> int: ...  # bytes kept


PROJECTIONS: dict[str, Callable[..., Projection]] = {
    "gaussian": DenseProjection,
    "orthogonal": DenseProjection,
    "block": block,
    "layers": layers,
    "sparse": Sparse,
    "contiguous": Contiguous,
    "identity": Identity,
}


def check(spec: Spec, d: int) -> None:
    """Refuse what makes no sense for a model of d parameters, and options of another kind."""
    if spec.kind == "identity":
        if spec.dim not in (0, d):
            raise SettingError(
                f"dim must be 0 or the model's {d} parameters with projection 'identity', "
                f"got {spec.dim}"
            )
    elif not 1 <= spec.dim <= d:
        raise SettingError(
            f"dim must be a whole number from 1 to the model's {d} parameters, got {spec.dim}"
        )
    belongs = {
        "blocks": ("block", "layers"),
        "reuse": ("block",),
        "dims": ("layers",),
        "per_column": ("sparse",),
    }
    for name, kinds in belongs.items():
        if spec.kind not in kinds and getattr(spec, name) != getattr(Spec("", 0), name):
            owner = " and ".join(map(repr, kinds))
            raise SettingError(
                f"{name} must be left out with projection {spec.kind!r}, "
                f"got {getattr(spec, name)!r}: it belongs to {owner}"
            )
    if spec.blocks > spec.dim:
        raise SettingError(f"blocks must be at most dim, {spec.dim}, got {spec.blocks}")
    if spec.kind == "sparse" and spec.per_column > spec.dim:
        raise SettingError(f"per_column must be at most dim, {spec.dim}, got {spec.per_column}")


@lru_cache(maxsize=8)
def make_projection(
    spec: Spec, starts: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device
) -> Projection:
    """The projection of this spec; `starts`: where each parameter tensor starts, then d."""
    if spec.kind not in PROJECTIONS:
        raise nearest(spec.kind, PROJECTIONS, "projection")
    return PROJECTIONS[spec.kind](spec, starts, seed, dtype, device)


__all__ = ["PROJECTIONS", "Projection", "Spec", "check", "make_projection"]
