"""The rules under test, as text, and rows to give them."""

import numpy as np
import torch

ROBUST = [
    "median",
    "trimmed-mean(f=2)",
    "meamed(f=2)",
    "krum(f=2)",
    "krum(f=2, variant='perfed')",
    "multi-krum(f=2)",
    "bulyan(f=2)",
    "mda(f=2)",
    "geometric-median",
    "centred-clipping(tau=0)",
    "centred-clipping(tau=2)",
]
FIXED_BOUND = "norm-bound(bound=2) + trimmed-mean(f=2)"
WRAPPED = [
    "nnm(f=2) + median",
    "nnm(f=2) + mean",
    "norm-bound + mean",
    FIXED_BOUND,
    "nnm + norm-bound + krum",
]
KEYED = [  # they draw random numbers
    "bucketing + median",
    "bucketing(size=3) + trimmed-mean(f=1)",
    "bucketing(size=2) + nnm(f=1) + mean",
    "bucketing(size=2) + centred-clipping",
]
ALL = ["mean", "mean(weighted=False)", *ROBUST, *WRAPPED, *KEYED]
FIXED_LENGTH = [  # a length is in their options
    "centred-clipping(tau=2)",
    FIXED_BOUND,
    "bucketing(size=2) + centred-clipping",
]


def draw(n, m, seed=0, ties=False, dtype=torch.float64):
    """Rows of n clients and their weights."""
    g = np.random.default_rng(seed)
    x = g.integers(-2, 3, (n, m)) if ties else g.normal(size=(n, m))
    weights = g.uniform(0.5, 2, n)
    return torch.tensor(x, dtype=dtype), torch.tensor(weights, dtype=torch.float64)


def with_malicious(honest, count, value):
    """The honest rows, then `count` malicious ones with one value everywhere."""
    malicious = torch.full((count, honest.shape[1]), value, dtype=honest.dtype)
    return torch.cat([honest, malicious])
