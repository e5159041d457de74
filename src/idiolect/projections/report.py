"""What a projection is like: singular values, memory, time and bytes, without forming P."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..core.knobs import SettingError
from ..wire.messages import HEADER
from . import PROJECTIONS, Projection, Spec, check, make_projection
from .dense import Blocks
from .sparse import Slices, Sparse


def singular_values(
    P: Projection, dtype: torch.dtype, device: torch.device, at_once: int = 16
) -> tuple[float, float]:
    """(least, largest) singular value, without forming P.

    1 where rows are disjoint; block by block where there are blocks; else from the dim x dim matrix
    P Pᵀ, which takes dim passes.

    >>> P = make_projection(Spec("sparse", 5), (0, 100), 0, torch.float64, torch.device("cpu"))
    >>> [round(s, 9) for s in singular_values(P, torch.float64, torch.device("cpu"))]
    [1.0, 1.0]
    """
    if isinstance(P, Slices) or (isinstance(P, Sparse) and len(P.maps) == 1):
        return 1.0, 1.0  # unit rows that share no column
    if isinstance(P, Blocks):
        grams = P.grams()
    else:
        eye = torch.eye(P.dim, dtype=dtype, device=device)
        grams = [torch.cat([P.down(P.up(rows)) for rows in eye.split(at_once)])]
    values = (
        torch.cat([torch.linalg.eigvalsh(gram.double()) for gram in grams if len(gram)])
        .clamp_min(0)
        .sqrt()
    )
    return float(values.min()), float(values.max())


def describe(
    spec: Spec,
    starts: tuple[int, ...],
    clients: int,
    sample: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Any]:
    """The figures of one projection for a model whose parameters start at `starts`."""
    device = torch.device("cpu")
    d = starts[-1]
    check(spec, d)
    began = time.perf_counter()
    P = make_projection(spec, starts, seed, dtype, device)
    built = time.perf_counter() - began
    low, high = singular_values(P, dtype, device)
    x = torch.ones(1, d, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        P.up(P.down(x))
        best = min(best, time.perf_counter() - began)
    length = HEADER.itemsize + P.dim * dtype.itemsize
    return {
        "projection": spec.kind,
        "dim": P.dim,
        "d": d,
        "s_min": low,
        "s_max": high,
        "memory": P.memory(),
        "build_ms": 1000 * built,
        "pass_ms": 1000 * best,
        "bytes_per_round": length * (clients + sample),
        "warning": warning(low, high, P.dim, d),
    }


def warning(low: float, high: float, dim: int, d: int) -> str:
    """Where Assumption 3 of the lp-proj paper is in doubt, else "".

    It says that singular values are between 1 - C sqrt(dim/d) and 1 + C sqrt(dim/d).
    """
    if low < 1e-3:
        return "P loses rank: some directions of the subspace are not seen"
    if max(1 - low, high - 1) > 0.5:
        return (
            f"singular values are far from 1: dim/d = {dim / d:.3g} is large for the theory, "
            "which wants dim much smaller than d"
        )
    return ""


def all_kinds(dim: int, starts: tuple[int, ...], clients: int, sample: int) -> list[dict[str, Any]]:
    """Every kind at this dimension; one that is refused says why."""
    rows: list[dict[str, Any]] = []
    for kind in (k for k in PROJECTIONS if k != "identity"):
        try:
            rows.append(describe(Spec(kind, dim), starts, clients, sample))
        except SettingError as refused:
            rows.append({"projection": kind, "refused": str(refused)})
    return rows
