"""Weights of clients for each client: x >= 0 with Σ x = 1, for servers that mix their models."""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 2000  # steps of projected gradients, each of which is one for all clients


def onto_simplex(y: Tensor) -> Tensor:  # [K, H] -> [K, H]
    """The nearest rows with x >= 0 and Σ x = 1.

    >>> onto_simplex(torch.tensor([[0.5, 0.7, -2.0]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """
    # x = max(y - t, 0), t such that they sum to 1: the least of the excesses of the k largest
    largest = y.sort(dim=1, descending=True).values
    counts = torch.arange(1, y.shape[1] + 1, device=y.device)
    excess = (largest.cumsum(1) - 1) / counts
    return (y - excess.amax(1, keepdim=True)).clamp(min=0)


def mixtures(h: Tensor, variances: Tensor) -> Tensor:  # [S, m], [S] -> α[S, S]
    """min_α Σ_j V_j α_ij² + ||h_i - Σ_j α_ij h_j||² on the simplex, for every client i.

    By accelerated projected gradients for all of them at once, restarted where they turn back.
    """
    h = h.double()
    products = h @ h.T
    # half the objective: α Q α' / 2 - α·<h_i, h_j>, with one Q for all clients
    q = products + torch.diag(variances.double().clamp(min=0))
    largest = float(torch.linalg.eigvalsh(q)[-1])
    if not largest > 0:  # there is nothing to tell clients apart by
        return torch.eye(len(q), dtype=q.dtype, device=q.device)
    alpha = ahead = torch.eye(len(q), dtype=q.dtype, device=q.device)
    since = 0  # the last restart
    for _ in range(MOST):
        new = onto_simplex(ahead - (ahead @ q - products) / largest)
        step = new - alpha
        since = 0 if float(((ahead - new) * step).sum()) > 0 else since + 1
        ahead = new + since / (since + 3) * step
        alpha = new
        if float(step.abs().max()) < 1e-13:
            break
    return alpha
