"""Where each parameter lies in the flat vector of R^d, and which coordinates are private."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..core.knobs import SettingError, brief
from ..core.parts import Parts, parts_of


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trained parameters, in the order in which the vector holds them.

    >>> shapes = (torch.Size([2, 3]), torch.Size([2]))
    >>> layout = Layout(("w", "b"), shapes, starts=(0, 6, 8), device=torch.device("cpu"))
    >>> {name: tuple(part.shape) for name, part in layout.unflatten(torch.zeros(5, 8)).items()}
    {'w': (5, 2, 3), 'b': (5, 2)}
    >>> layout.span("b")
    (6, 8)
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]  # one more than names: the last is d
    device: torch.device
    module: nn.Module | None = field(default=None, compare=False, repr=False)  # whose they are

    @cached_property
    def parts(self) -> Parts:
        """What words (input, head, block:2) stand for; searched for when a setting has one."""
        return Parts() if self.module is None else parts_of(self.module, self.names)

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views of x[..., d] by parameter name."""
        pieces = x.split([b - a for a, b in pairwise(self.starts)], dim=-1)
        return {
            n: p.view(x.shape[:-1] + s)
            for n, s, p in zip(self.names, self.shapes, pieces, strict=True)
        }

    def span(self, name: str) -> tuple[int, int]:
        """The first coordinate of a parameter, and the one after its last."""
        at = self.names.index(name)
        return self.starts[at], self.starts[at + 1]


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
    is_private = matching(private, layout.parts, "split")
    sizes = [b - a for a, b in pairwise(layout.starts)]
    mine = torch.cat([torch.full((n,), c) for n, c in zip(sizes, is_private, strict=True)])
    index = torch.arange(layout.starts[-1])
    return Split(index[~mine].to(layout.device), index[mine].to(layout.device))


def matching(text: str, parts: Parts, field: str) -> list[bool]:
    """Which parameters a text chooses, in the words and patterns of `Task.split`.

    Every one of its words and patterns must choose something, "none" apart.

    >>> parts = Parts(("features.weight", "head.weight", "head.bias"))
    >>> matching("features.*,*.bias", parts, "frozen")
    [True, False, True]
    """
    matches: set[str] = set()
    for pattern in (piece.strip() for piece in text.split(",")):
        names = parts.named(pattern)
        if not names and pattern != "none":
            raise SettingError(f"{field}: {brief(pattern)} matches no parameter; {parts.known()}")
        matches.update(names or ())
    return [name in matches for name in parts.names]
