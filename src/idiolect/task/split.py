"""Which coordinates of a model are shared and which are private."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import SettingError
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
    names = layout.names
    words = _words(names)
    patterns = [words.get(p.strip(), p.strip()) for p in private.split(",")]
    chosen = [any(fnmatch.fnmatchcase(n, p) for p in patterns) for n in names]
    if not any(chosen) and private != "none":
        raise _no_match("split", private, names)
    sizes = [b - a for a, b in zip(layout.starts, layout.starts[1:], strict=False)]
    mine = torch.cat([torch.full((n,), c) for n, c in zip(sizes, chosen, strict=True)])
    index = torch.arange(layout.starts[-1])
    return Split(index[~mine].to(layout.device), index[mine].to(layout.device))


def matching(text: str, names: Sequence[str], field: str) -> list[bool]:
    """Which parameters a text chooses, in the words and patterns of `Task.split`.

    Every one of its patterns must match a name.

    >>> matching("features.*,*.bias", ["features.weight", "head.weight", "head.bias"], "frozen")
    [True, False, True]
    """
    words = _words(names)
    chosen = [False] * len(names)
    for given in (p.strip() for p in text.split(",")):
        mine = [fnmatch.fnmatchcase(n, words.get(given, given)) for n in names]
        if not any(mine):
            raise _no_match(field, given, names)
        chosen = [a or b for a, b in zip(chosen, mine, strict=True)]
    return chosen


def _words(names: Sequence[str]) -> dict[str, str]:
    """What may stand for a pattern of names."""
    owners = list(dict.fromkeys(n.rpartition(".")[0] for n in names))
    # a parameter of the module itself belongs to no layer
    layers = [n for n in owners if n and not n.endswith("adapter")] or [""]
    return {
        "input": f"{layers[0]}.*" if layers[0] else "*",
        "output": f"{layers[-1]}.*" if layers[-1] else "*",
        "adapter": "*adapter.*",
        "all": "*",
        "none": "",
    }


def _no_match(field: str, text: str, names: Sequence[str]) -> SettingError:
    return SettingError(
        f"{field}: {text!r} matches no parameter; one of {', '.join(_words(names))}, "
        f"or names of: {', '.join(names)}"
    )
