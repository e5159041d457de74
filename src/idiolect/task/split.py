"""Which coordinates of a model are shared and which are private."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.parts import Parts
from .layout import Layout


@dataclass(frozen=True)
class Split:
    """Coordinates of R^d in two parts: shared (theta) and private (w)."""

    theta: Tensor  # int64[d_theta]
    w: Tensor  # int64[d_w]

    def __repr__(self) -> str:
        return f"Split({len(self.theta):,} shared, {len(self.w):,} private)"

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x[..., d] -> theta[..., d_theta], w[..., d_w]."""
        return x[..., self.theta], x[..., self.w]

    def join(self, theta: Tensor, w: Tensor) -> Tensor:
        """The inverse of `parts`; leading axes broadcast."""
        lead = torch.broadcast_shapes(theta.shape[:-1], w.shape[:-1])
        x = theta.new_empty(*lead, len(self.theta) + len(self.w))
        x[..., self.theta] = theta
        x[..., self.w] = w
        return x


def split_by(private: str, layout: Layout) -> Split:
    """The split with this private part: a word, or patterns of names; see `Task.split`."""
    chosen = matching(private, layout.parts, "split")
    sizes = [b - a for a, b in pairwise(layout.starts)]
    mine = torch.cat([torch.full((n,), c) for n, c in zip(sizes, chosen, strict=True)])
    index = torch.arange(layout.starts[-1])
    return Split(index[~mine].to(layout.device), index[mine].to(layout.device))


def matching(text: str, parts: Parts, field: str) -> list[bool]:
    """Which parameters a text chooses, in the words and patterns of `Task.split`.

    Every one of its words and patterns must choose something, "none" apart.

    >>> parts = Parts(("features.weight", "head.weight", "head.bias"))
    >>> matching("features.*,*.bias", parts, "frozen")
    [True, False, True]
    """
    chosen: set[str] = set()
    for given in (piece.strip() for piece in text.split(",")):
        found = parts.named(given)
        if not found and given != "none":
            raise SettingError(f"{field}: {given!r} matches no parameter; {parts.known()}")
        chosen.update(found or ())
    return [name in chosen for name in parts.names]
