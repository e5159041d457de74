"""Texts of which only known words are to be predicted."""

from __future__ import annotations

from dataclasses import replace

import torch

from idiolect import Federation

IGNORED = -100  # a target that does not count, as in torch


def known_words(federation: Federation) -> Federation:
    """Targets that are no words (unknown ones above all) count neither in losses nor in figures.

    >>> x = torch.tensor([[1, 0, 2], [2, 1, 0]])
    >>> f = Federation.from_arrays(x[:, :-1], x[:, 1:], [0, 0], classes=3, special=[0], test=0)
    >>> sorted(known_words(f).targets.flatten().tolist())
    [-100, -100, 1, 2]
    """
    targets = federation.targets
    special = torch.tensor(federation.special, device=targets.device)
    return replace(federation, targets=targets.masked_fill(torch.isin(targets, special), IGNORED))
