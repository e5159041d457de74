"""pFedHN: Shamsian et al. 2021, Algorithm 1 with several clients per round, derivatives by hand."""

from itertools import pairwise

import numpy as np


class Hypernetwork:
    """h(v): linear, then any number of times ReLU and linear, then linear; φ is [W, b, W, b, ...].

    The numbers of a weight matrix come row by row, a row for each output.
    """

    def __init__(self, phi, sizes):
        self.layers = []
        at = 0
        for n, m in pairwise(sizes):
            W = phi[at : at + m * n].reshape(m, n)
            b = phi[at + m * n : at + m * n + m]
            self.layers.append((W, b))
            at += m * n + m
        assert at == len(phi)

    def inputs(self, v):
        """What each layer is given; the last of them is the output of all."""
        seen = [v]
        for j, (W, b) in enumerate(self.layers):
            z = W @ seen[-1] + b
            rectified = 0 < j + 1 < len(self.layers) - 1
            seen.append(np.maximum(z, 0) if rectified else z)
        return seen

    def __call__(self, v):
        return self.inputs(v)[-1]

    def transposed_jacobian(self, v, delta):
        """(∇_φ h(v)ᵀ Δ, ∇_v h(v)ᵀ Δ)."""
        seen = self.inputs(v)
        back = delta
        by_phi = []
        for j in reversed(range(len(self.layers))):
            W, _ = self.layers[j]
            by_phi = [np.outer(back, seen[j]).ravel(), back, *by_phi]
            back = W.T @ back
            if 0 < j < len(self.layers) - 1:
                back = back * (seen[j] > 0)
        return np.concatenate(by_phi), back


def pfedhn(model, data, phi, v, sizes, cohorts, batches, lr, steps, hyper_lr):
    """`phi`, `v[i]`: where the hypernetwork and the embeddings start; `sizes`: of its layers."""
    v = list(v)
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        h = Hypernetwork(phi, sizes)
        by_phi = np.zeros_like(phi)
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            theta = h(v[i])
            x = theta.copy()
            for _ in range(steps):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
                spent[i] += 1
            gradient, by_v = h.transposed_jacobian(v[i], x - theta)
            by_phi += gradient
            v[i] = v[i] + hyper_lr * by_v
        phi = phi + hyper_lr * by_phi / len(cohort)
    h = Hypernetwork(phi, sizes)
    return {
        "server phi": phi,
        "rows v": v,
        "personal": [h(e) for e in v],
        "gradients": spent,
    }
