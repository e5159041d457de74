"""IFCA: Ghosh, Chung, Yin and Ramchandran 2020, Algorithm 1, option II (model averaging)."""

import numpy as np


def ifca(
    model,
    data,
    starts,
    cohorts,
    batches,
    last_batches,
    lr,
    steps,
    choice_batches=1,
    weighting="samples",
):
    """`starts`: the models θ_j before round 0; a client compares them on mini-batches."""
    models = [x.copy() for x in starts]
    n = [len(y) if weighting == "samples" else 1 for _, y in data]
    spent = np.zeros(len(data), dtype=int)

    def choice(i, batch):
        X, y = data[i]
        drawn = [next(batch) for _ in range(choice_batches if len(models) > 1 else 0)]
        return np.argmin([sum(model.loss(x, X[I], y[I]) for I in drawn) for x in models])

    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            j = choice(i, batch)  # ĵ = argmin_j F_i(θ_j)
            x = models[j]
            for _ in range(steps):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
                spent[i] += 1
            received[i] = (j, x)
        for j in range(len(models)):
            group = {i: x for i, (chosen, x) in received.items() if chosen == j}
            if group:  # θ_j <- the mean of the models of those that chose it
                models[j] = sum(n[i] * x for i, x in group.items()) / sum(n[i] for i in group)
    return {
        "server models": np.concatenate(models),
        "personal": [models[choice(i, last_batches(i))] for i in range(len(data))],
        "gradients": spent,
    }
