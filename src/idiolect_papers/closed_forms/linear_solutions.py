"""The models that each method ends with, as functions of the data, for any features and any P.

From Appendix B.1 of the lp-proj paper. Every shared model is a mean of what the clients would find
alone, weighted by matrices; every personal model solves one linear system. For lp-proj-2 the paper
says that general features allow no concise solution. They do: with H_k = Xi_k^T Xi_k / n and the
Woodbury identity the envelope is F_k(w) = λ/2 (w - P ŵ_k)^T A_k (w - P ŵ_k) + constant,
A_k = (I + λ P H_k^-1 P^T)^-1, and the rest follows.

Shapes: H[N, d, d], ŵ[..., N, d] (leading axes: draws of the noise), P[m, d], shared models
[..., m], personal models [..., N, d].

In the example the first coordinate is tied, (b ŵ_k + λ w) / (b + λ); the others are the client's.

>>> H = 2.0 * torch.eye(3).expand(2, 3, 3)
>>> local_models = torch.tensor([[0.0, 0.0, 0.0], [6.0, 6.0, 6.0]])
>>> w, x = lpproj(H, local_models, lam=1.0, P=torch.eye(3)[:1])
>>> w.tolist(), x.tolist()
([3.0], [[1.0, 0.0, 0.0], [5.0, 6.0, 6.0]])
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_mean(A: Tensor, rows: Tensor) -> Tensor:  # A[N, m, m], rows[..., N, m] -> [..., m]
    """The w with sum_k A_k (w - row_k) = 0."""
    return multiply(torch.linalg.inv(A.sum(-3)), multiply(A, rows).sum(-2))


def lpproj(H: Tensor, local_models: Tensor, lam: float, P: Tensor) -> tuple[Tensor, Tensor]:
    """(w, x): the minimiser of the bi-level objective (1) with p = 2, and personal models."""
    w = weighted_mean(envelope(H, lam, P), local_models @ P.T)
    return w, tied(H, local_models, lam, P, w.unsqueeze(-2))


def envelope(H: Tensor, lam: float, P: Tensor) -> Tensor:  # -> A[N, m, m]
    """A_k, with which grad F_k(w) = λ (w - P x_k(w)) = λ A_k (w - P ŵ_k).

    b / (b + λ) I for the paper's features and P.
    """
    return torch.linalg.inv(torch.eye(len(P), dtype=P.dtype) + lam * P @ torch.linalg.solve(H, P.T))


def tied(
    H: Tensor, local_models: Tensor, lam: float, P: Tensor, w: Tensor
) -> Tensor:  # w[..., N or 1, m] -> x[..., N, d]
    """x_k(w) = argmin f_k(x) + λ/2 ||w - P x||^2 = (H_k + λ P^T P)^-1 (H_k ŵ_k + λ P^T w)."""
    return multiply(torch.linalg.inv(H + lam * P.T @ P), multiply(H, local_models) + lam * w @ P)


def multiply(
    A: Tensor, rows: Tensor
) -> Tensor:  # A[..., m, m], rows[..., m]: a matrix for each row
    return (A @ rows.unsqueeze(-1)).squeeze(-1)
