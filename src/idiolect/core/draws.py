"""Random numbers that a user's model or loss draws by itself, from torch, NumPy or Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def keyed_torch(seed: int) -> Iterator[None]:
    """Draws from torch come from a seed; then its generator on the CPU stands where it stood.

    As `torch.manual_seed`, which formats the stack for every kind of device that is not there: 0.1
    to 3 ms, where this takes microseconds.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for accelerator in (torch.cuda, torch.xpu):
            if accelerator.is_available():
                accelerator.manual_seed_all(seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed)
        yield


@contextmanager
def keyed_draws(seed: int, enabled: bool = True) -> Iterator[None]:
    """Draws from torch, NumPy and Python come from a seed; then all stand where they stood.

    >>> with keyed_draws(3):
    ...     first = torch.rand(1), np.random.rand(), random.random()
    >>> with keyed_draws(3):
    ...     assert first == (torch.rand(1), np.random.rand(), random.random())
    """
    if not enabled:
        yield
        return
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with keyed_torch(seed):
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def generator_positions() -> tuple[bytes, str, tuple]:
    """Where the generators of torch, NumPy and Python stand."""
    numpy_state = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), repr(numpy_state), random.getstate()
