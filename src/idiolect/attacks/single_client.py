"""Attacks of malicious clients that know only their own message: noise, factors, free riding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Attack, change

_BLOCK = 1 << 20  # random numbers at once


@dataclass(frozen=True)
class SameValue(Attack):
    """The same number everywhere: c (1, ..., 1) with c ~ N(0, std^2), one c per client and round.

    Li et al. 2019 (RSA); Section 4.2 of the lp-proj paper, tau = 100.

    >>> malicious = torch.tensor([False, True])
    >>> keys = np.array([1, 2], dtype=np.uint64)
    >>> SameValue()(torch.zeros(2, 3), malicious, None, keys).unique(dim=1).shape
    torch.Size([2, 1])
    """

    std: float = knob(100.0, "standard deviation of the number sent", above=0)

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return scalars(keys, self.std, own).expand_as(own)


@dataclass(frozen=True)
class SignFlip(Attack):
    """The message reversed and stretched: -|c| message with c ~ N(0, std^2).

    One c per client and round; the whole message, a model where models are sent, not its change.
    Li et al. 2019 (RSA); Section 4.2 of the lp-proj paper, tau = 10.

    >>> malicious = torch.tensor([False, True])
    >>> keys = np.array([1, 2], dtype=np.uint64)
    >>> SignFlip()(torch.ones(2, 3), malicious, None, keys).sign().tolist()
    [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]]
    """

    std: float = knob(10.0, "standard deviation of the factor", above=0)

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return -scalars(keys, self.std, own).abs() * own


@dataclass(frozen=True)
class Gaussian(Attack):
    """Noise: every entry ~ N(0, std^2), drawn independently per client and round.

    Section 4.2 of the lp-proj paper, tau = 100; Blanchard et al. 2017.

    >>> malicious = torch.tensor([False, True])
    >>> keys = np.array([1, 2], dtype=np.uint64)
    >>> sent = Gaussian(std=2)(torch.zeros(2, 10_000), malicious, None, keys)
    >>> sent.std(1).round(decimals=1).tolist()
    [0.0, 2.0]
    """

    std: float = knob(100.0, "standard deviation of every entry", above=0)

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        out = torch.empty_like(own)
        step = max(1, _BLOCK // own.shape[1])
        for i in range(0, len(own), step):
            out[i : i + step] = torch.from_numpy(
                self.std * streams.normal(keys[i : i + step], own.shape[1])
            )
        return out


def scalars(keys: Keys, std: float, like: Tensor) -> Tensor:  # -> [F, 1]
    """One N(0, std^2) number per client."""
    return torch.from_numpy(np.multiply(std, streams.normal(keys, 1))).to(like)


@dataclass(frozen=True)
class Scaling(Attack):
    """Model replacement: the change times a factor, reference + factor (row - reference).

    With the mean of S messages, factor = S puts the model of a single malicious client in place of
    the shared one. Bagdasaryan et al. 2020.

    >>> rows = torch.tensor([[2.0], [3.0]])
    >>> malicious = torch.tensor([False, True])
    >>> w = torch.tensor([1.0])
    >>> Scaling(factor=4)(rows, malicious, w, np.zeros(2, dtype=np.uint64)).tolist()
    [[2.0], [9.0]]
    """

    factor: float = knob(10.0, "factor of the change; negative reverses it")

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        scaled = self.factor * change(own, reference)
        return scaled if reference is None else reference + scaled


@dataclass(frozen=True)
class Zero(Attack):
    """A free rider: sends back what came down, a change of zero, and profits from the others.

    Lin et al. 2019.

    >>> rows = torch.tensor([[2.0], [3.0]])
    >>> malicious = torch.tensor([False, True])
    >>> w = torch.tensor([1.0])
    >>> Zero()(rows, malicious, w, np.zeros(2, dtype=np.uint64)).tolist()
    [[2.0], [1.0]]
    """

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return torch.zeros_like(own) if reference is None else reference.expand_as(own)
