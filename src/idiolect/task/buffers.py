"""Buffers that a module changes in training: the running statistics of BatchNorm and the like.

They are rows as parameters are, s[K, m], but no gradient moves them: every training gradient writes
the statistics of the client it was computed for. A model with its statistics is a row of R^(d + m).
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from ..core.knobs import SettingError
from .layout import Layout

# the hook behind the function torch.nn.utils.spectral_norm, which hides its module
_OLD_SPECTRAL = import_module("torch.nn.utils.spectral_norm").SpectralNorm


@dataclass(frozen=True)
class Statistics:
    """Which buffers they are, where each lies in a row, and where every client starts."""

    layout: Layout
    start: Tensor  # [m]
    whole: frozenset[str]  # those that count: whole numbers, in a row of real ones
    variances: Tensor  # int64: the coordinates that cannot be negative

    @property
    def m(self) -> int:
        """How many numbers they are."""
        return len(self.start)

    def sound(self, rows: Tensor) -> Tensor:
        """Averages of noisy or malicious messages as statistics: no variance is below 0."""
        rows[..., self.variances] = rows[..., self.variances].clamp(min=0)
        return rows

    @classmethod
    def of(cls, module: nn.Module, more: str, like: Tensor) -> Statistics | None:
        """Those of a module: of layers that are known, and the buffers that `more` names."""
        buffers = dict(module.named_buffers())
        names = [n for n in _known(module) if n in buffers]
        for pattern in (p.strip() for p in more.split(",") if p.strip()):
            matches = [n for n in buffers if fnmatch.fnmatchcase(n, pattern)]
            if not matches:
                names_text = ", ".join(buffers) or "it has none"
                raise SettingError(
                    f"buffers: {pattern!r} matches no buffer of the model: {names_text}"
                )
            names += [n for n in matches if n not in names]
        if not names:
            return None
        parts = [buffers[n] for n in names]
        starts = tuple(accumulate((b.numel() for b in parts), initial=0))
        layout = Layout(tuple(names), tuple(b.shape for b in parts), starts, like.device)
        variances = [
            torch.arange(*layout.span(n)) for n in names if n.rpartition(".")[2] == "running_var"
        ]
        return cls(
            layout,
            torch.cat([b.detach().flatten().to(like) for b in parts]),
            frozenset(n for n, b in zip(names, parts, strict=True) if not b.is_floating_point()),
            torch.cat([torch.zeros(0, dtype=torch.int64), *variances]),
        )


def _known(module: nn.Module) -> list[str]:
    """Names of the buffers that torch's own layers change in training."""
    names = []
    for path, layer in module.named_modules():
        own: tuple[str, ...] = ()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
            own = ("running_mean", "running_var", "num_batches_tracked")
        elif isinstance(layer, parametrizations._SpectralNorm):
            own = ("_u", "_v")
        hooks: list[Any] = list(layer._forward_pre_hooks.values())
        old: list[Any] = [h for h in hooks if isinstance(h, _OLD_SPECTRAL)]
        own += tuple(f"{h.name}_{end}" for h in old for end in "uv")
        names += [f"{path}.{n}" if path else n for n in own]
    return names


def mixes_samples(module: nn.Module) -> bool:
    """Whether a sample's output in training depends on the other samples of the batch."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
