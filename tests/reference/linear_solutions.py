"""What methods on linear regression end with, from the data: what `closed_forms` has, and more.

From Appendix B.1 of the lp-proj paper; shapes as in `closed_forms.linear_solutions`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idiolect_papers.closed_forms.linear_solutions import (
    envelope,
    lpproj,
    multiply,
    tied,
    weighted_mean,
)


def curvature(xi: Tensor) -> Tensor:  # xi[N, n, d] -> H[N, d, d]
    """H_k = Xi_k^T Xi_k / n; b I for the features of the paper."""
    return xi.mT @ xi / xi.shape[-2]


def local(xi: Tensor, y: Tensor) -> Tensor:  # xi[N, n, d], y[..., N, n] -> ŵ[..., N, d]
    """Least squares at every client: ŵ_k = (Xi_k^T Xi_k)^-1 Xi_k^T y_k.

    >>> local(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[2.0, 4.0]])).tolist()
    [[2.0]]
    """
    return torch.linalg.solve(xi.mT @ xi, xi.mT @ y.unsqueeze(-1)).squeeze(-1)


def fedavg(H: Tensor, local_models: Tensor) -> Tensor:
    """w minimises the mean of the clients' losses; the mean of the ŵ_k if all H_k are equal."""
    return weighted_mean(H, local_models)


def pfedme(H: Tensor, local_models: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """(w, x): lp-proj-2 with P = I."""
    return lpproj(H, local_models, lam, torch.eye(H.shape[-1], dtype=H.dtype))


def ditto(H: Tensor, local_models: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """(w, x): FedAvg's model, and personal models tied to it."""
    w = fedavg(H, local_models)
    return w, tied(H, local_models, lam, torch.eye(H.shape[-1], dtype=H.dtype), w.unsqueeze(-2))


def fedavg_after_many_rounds(H: Tensor, local_models: Tensor, lr: float, steps: int) -> Tensor:
    """Where FedAvg with `steps` full-batch steps per round converges to.

    The minimiser for one step or equal H_k, else a point beside it.
    """
    return weighted_mean(_gone(lr * H, steps), local_models)


def lpproj_after_many_rounds(
    H: Tensor, local_models: Tensor, lam: float, P: Tensor, lr: float, alternations: int
) -> tuple[Tensor, Tensor]:
    """(w, x) that Algorithm 1 converges to, with R `alternations` of step size `lr` (η).

    With (3) solved exactly and all clients heard in every round. An alternation is
    w <- w - η λ A_k (w - P ŵ_k): R of them go the share I - (I - η λ A_k)^R of the way to P ŵ_k.
    For R = 1, and for equal A_k, w is that of `lpproj`. As R grows w tends to the plain mean of the
    P ŵ_k (the paper's one round of infinitely many steps). The personal model is tied to the
    client's own copy of w before its last step: to w for R = 1, and it tends to ŵ_k as R grows.
    """
    A = lr * lam * envelope(H, lam, P)
    target = local_models @ P.T
    w = weighted_mean(_gone(A, alternations), target)
    copy = w.unsqueeze(-2) + multiply(_gone(A, alternations - 1), target - w.unsqueeze(-2))
    return w, tied(H, local_models, lam, P, copy)


def _gone(A: Tensor, steps: int) -> Tensor:
    """I - (I - A_k)^steps."""
    one = torch.eye(A.shape[-1], dtype=A.dtype)
    return one - torch.linalg.matrix_power(one - A, steps)
