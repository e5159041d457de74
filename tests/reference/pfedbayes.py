"""pFedBayes: Zhang et al. 2022; the divergence is differentiated by complex steps."""

import numpy as np

from .complex_step import gradient
from .fedavg import mean


def softplus(rho):
    return np.log(1 + np.exp(rho))


def divergence(q, w):
    """KL(N(μ_q, σ_q²) || N(μ_w, σ_w²)) of (μ, ρ) as one vector each, summed over its numbers."""
    (mu_q, rho_q), (mu_w, rho_w) = (np.split(v, 2, axis=-1) for v in (q, w))
    s_q, s_w = softplus(rho_q), softplus(rho_w)
    return (np.log(s_w / s_q) + (s_q**2 + (mu_q - mu_w) ** 2) / (2 * s_w**2) - 0.5).sum(-1)


def divergence_to(w, q):
    """The same as a function of w first."""
    return divergence(q, w)


def pfedbayes(
    model,
    data,
    start,
    cohorts,
    batches,
    noise,
    lr,
    shared_lr,
    steps,
    zeta,
    rho,
    draws=1,
    weighting="samples",
):
    """`noise(t, i, number)`: the standard normal numbers of a draw."""
    d = len(start)
    v = np.concatenate([start, np.full(d, rho)])
    posterior = [v.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            q, w = posterior[i], v.copy()
            for r in range(steps[i]):
                I = next(batch)
                g = np.zeros(2 * d)
                for k in range(draws):
                    eps = noise(t, i, r * draws + k)
                    theta = q[:d] + softplus(q[d:]) * eps
                    slope = model.gradient(theta, X[I], y[I])
                    g[:d] += slope / draws
                    g[d:] += slope * eps / (1 + np.exp(-q[d:])) / draws
                    spent[i] += 1
                q = q - lr * (g + zeta / len(y) * gradient(divergence, q, w))
                w = w - shared_lr * zeta / len(y) * gradient(divergence_to, w, q)
            posterior[i] = q
            received[i] = w
        v = mean(v, received, data, weighting)
    return {
        "server w": v,
        "private q": posterior,
        "personal": [q[:d] for q in posterior],
        "gradients": spent,
    }
