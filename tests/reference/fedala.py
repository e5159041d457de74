"""FedALA: Zhang et al. 2023, Algorithm 1, with numbers of steps on W in place of epochs."""

import numpy as np

from .fedavg import mean


def fedala(
    model,
    data,
    start,
    top,
    cohorts,
    batches,
    last_batches,
    lr,
    steps,
    weight_lr,
    weight_steps,
    first_steps,
    weighting="samples",
    later=None,
):
    """`top`: the coordinates of the top layers; `later(t, i)`: what is drawn after steps on W."""
    w = start
    own = [start.copy() for _ in data]  # Θ_i
    weights = [np.ones(len(top)) for _ in data]  # W_i
    trainings = np.zeros(len(data), dtype=int)
    spent = np.zeros(len(data), dtype=int)

    def steps_on_weights(i):
        return {0: 0, 1: first_steps}.get(trainings[i], weight_steps)

    def adapted(i, batch):
        """Θ̂_i, and W_i after its steps."""
        X, y = data[i]
        W = weights[i]
        gap = w[top] - own[i][top]

        def mixed():
            x = w.copy()
            x[top] = own[i][top] + gap * W
            return x

        for _ in range(steps_on_weights(i)):
            I = next(batch)
            W = np.clip(W - weight_lr * model.gradient(mixed(), X[I], y[I])[top] * gap, 0, 1)
        return mixed(), W

    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            spent[i] += steps_on_weights(i) + steps
            x, weights[i] = adapted(i, batches(t, i))
            batch = later(t, i)
            for _ in range(steps):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
            own[i] = x
            trainings[i] += 1
            received[i] = x
        w = mean(w, received, data, weighting)
    return {
        "server w": w,
        "private top": [x[top] for x in own],
        "private weights": weights,
        "private trainings": trainings[:, None],
        "personal": [adapted(i, last_batches(i))[0] for i in range(len(data))],
        "gradients": spent,
        "deployment": np.array([steps_on_weights(i) for i in range(len(data))]),
    }
