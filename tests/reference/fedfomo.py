"""FedFomo: Zhang et al. 2021, equations 3 and 4, with ε-greedy sampling from the matrix P."""

import numpy as np


def fedfomo(model, data, valid, start, cohorts, batches, luck, coins, lr, steps, M, explore, decay):
    """`luck(t, i)`: a number for each client, that decides between equals and what is explored.

    `coins(t, i)`: M of them; one below ε is a model at random. The server mixes nothing.
    """
    w = [start.copy() for _ in data]
    n = len(data)
    known = {}  # client -> the model that the server has of it
    P = np.zeros((n, n))
    spent = np.zeros(n, dtype=int)
    for t, cohort in enumerate(cohorts):
        epsilon = max(explore - decay * t, 0)
        sent = {i: [j for j in known if j != i] for i in cohort}
        for i, others in sent.items():
            r = luck(t, i)
            best = sorted(others, key=lambda j, i=i, r=r: (-P[i, j], r[j]))
            keep = best[: int(sum(coins(t, i) >= epsilon))]
            rest = sorted((j for j in others if j not in keep), key=lambda j, r=r: -r[j])
            sent[i] = (keep + rest)[:M]
        after = {}
        for i in cohort:
            X, y = valid[i]
            weight = {}
            for j in sent[i]:
                distance = np.linalg.norm(known[j] - w[i])
                gain = model.loss(w[i], X, y) - model.loss(known[j], X, y)  # eq. 3
                weight[j] = gain / distance if distance else 0.0
                P[i, j] += weight[j]
            total = sum(max(v, 0) for v in weight.values())
            x = w[i]
            if total:  # eq. 4
                x = x + sum(max(v, 0) / total * (known[j] - w[i]) for j, v in weight.items())
            X, y = data[i]
            batch = batches(t, i)
            for _ in range(steps):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
                spent[i] += 1
            after[i] = x
        for i, x in after.items():
            w[i] = known[i] = x
    return {
        "server round": [len(cohorts)],
        "rows models": w,
        "rows heard": [[float(i in known)] for i in range(n)],
        "rows P": P,
        "private w": w,
        "personal": w,
        "gradients": spent,
    }
