"""FedEM: Marfoq et al. 2021, Algorithm 1."""

import numpy as np

from .fedavg import mean
from .softmax import softmax


def fedem(model, data, starts, cohorts, batches, lr, steps, weighting="samples"):
    """`starts`: a model for each component."""
    theta = [x.copy() for x in starts]
    M = len(theta)
    pi = [np.full(M, 1 / M) for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = [{} for _ in theta]
        for i in cohort:
            X, y = data[i]
            q = responsibilities(model, theta, pi[i], X, y)  # E-step, of all samples
            batch = batches(t, i)
            local = [x.copy() for x in theta]
            for _ in range(steps[i]):  # LocalSolver
                I = next(batch)
                for m in range(M):
                    g = sum(q[s, m] * model.gradient_of_one(local[m], X[s], y[s]) for s in I)
                    local[m] = local[m] - lr * g / len(I)
                    spent[i] += 1
            pi[i] = q.mean(0)  # M-step
            for m in range(M):
                received[m][i] = local[m]
        theta = [mean(x, heard, data, weighting) for x, heard in zip(theta, received, strict=True)]
    return {
        "server w": np.concatenate(theta),
        "private pi": pi,
        "gradients": spent,
    }


def responsibilities(model, theta, pi, X, y):
    """q(z_i = m) ∝ π_m exp(-l(h_θm(x_i), y_i))."""
    likelihood = np.array(
        [[softmax(model.outputs(x, a))[c] for x in theta] for a, c in zip(X, y, strict=True)]
    )
    q = pi * likelihood
    return q / q.sum(1, keepdims=True)


def mixture(model, theta, pi, X):
    """Σ_m π_m h_θm(x), of probabilities."""
    return np.array(
        [sum(p * softmax(model.outputs(x, a)) for p, x in zip(pi, theta, strict=True)) for a in X]
    )
