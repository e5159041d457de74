"""Mean and deviation of real training targets, from sums of each client alone; and outliers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..federation import SPLITS, Federation
from .fit import bytes_of_statistics, spread_of

MAD = 1.4826  # the median absolute deviation of a normal distribution times this is its deviation
FAR = 10.0  # robust deviations from the median: an extreme outlier


def training_targets(federation: Federation, clients: Tensor) -> tuple[Tensor, Tensor]:
    """Targets of the clients at these positions as float64[n, m], and the client of each."""
    offsets = federation.offsets[SPLITS[0]]
    low, high = int(offsets[0]), int(offsets[-1])
    owner = torch.repeat_interleave(torch.arange(federation.clients), federation.sizes(SPLITS[0]))
    targets = federation.targets[low:high].cpu().double()
    here = torch.isin(owner, clients)
    return targets[here].reshape(int(here.sum()), -1), owner[here]


def target_moments(
    federation: Federation, clients: Tensor
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each target column over these clients' training samples.

    Clients send counts and sums, then squared deviations from the mean; no sample is needed. Where
    samples have weights, sums are by these, and the sum of the weights is the count.

    >>> federation = Federation.from_arrays(np.eye(4), [1.5, 2, 3, 3.5], list("aabb"), test=0)
    >>> mean, spread = target_moments(federation, torch.tensor([0, 1]))
    >>> mean, [round(s, 3) for s in spread]
    ((2.5,), [0.791])
    """
    targets, owner = training_targets(federation, clients)

    def over_clients(values: Tensor) -> Tensor:  # the sum of the clients' sums
        zeros = torch.zeros(federation.clients, values.shape[1], dtype=torch.float64)
        return zeros.index_add_(0, owner, values).sum(0)

    weights = _training_weights(federation, clients).unsqueeze(1)
    count = max(1, len(targets))
    mass = weights.sum() if len(targets) else 1.0
    mean = over_clients(weights * targets) / mass
    squares = over_clients(weights * (targets - mean) ** 2) * (count / mass)
    spread = spread_of(squares.numpy(), count, mean.numpy())
    return tuple(mean.tolist()), tuple(np.atleast_1d(spread).tolist())


def _training_weights(federation: Federation, clients: Tensor) -> Tensor:  # -> float64[n]
    """Of the samples in `training_targets`."""
    owner = torch.arange(federation.clients).repeat_interleave(federation.sizes("train"))
    return federation.weights_of("train")[torch.isin(owner, clients)]


def bytes_of_moments(columns: int) -> tuple[int, int]:
    """(up, down) per client, for agreeing on them.

    >>> bytes_of_moments(1)
    (24, 16)
    """
    return bytes_of_statistics(columns, "federated", "", flags=False)


def extreme_outliers(federation: Federation, clients: Tensor) -> int:
    """How many training samples have a target more than 10 robust deviations from the median.

    >>> targets = [1.0, 1.5, 2.0, 2.5, 3.0, 300.0]
    >>> federation = Federation.from_arrays(np.eye(6), targets, list("aabbcc"), test=0)
    >>> extreme_outliers(federation, torch.tensor([0, 1, 2]))
    1
    """
    targets, _ = training_targets(federation, clients)
    if not len(targets):
        return 0
    gaps = (targets - targets.median(0).values).abs()
    deviation = MAD * gaps.median(0).values
    return int(((gaps > FAR * deviation) & (deviation > 0)).any(1).sum())
