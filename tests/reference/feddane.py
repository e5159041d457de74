"""FedDANE: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith (Asilomar 2019), Algorithm 2.

With the same clients in both phases of a round, as their code draws them.
"""

import numpy as np

from .fedavg import mean


def feddane(
    model, data, start, cohorts, first, batches, lr, steps, weighting, mu, correction, anchors
):
    """`cohorts[t]`: whose gradients came, and whose models, in round t.

    `first(t, i)` and `batches(t, i)` are the mini-batches of client i in both phases.
    """
    w = start
    g = np.zeros_like(start)
    own = [np.zeros_like(start) for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, (gradients_of, models_of) in enumerate(cohorts):
        for i in gradients_of:
            X, y = data[i]
            batch = first(t, i)
            drawn = [next(batch) for _ in range(anchors)]
            own[i] = sum(model.gradient(w, X[I], y[I]) for I in drawn) / anchors
            spent[i] += anchors
        # g_t: the average of the gradients at w^{t-1}
        sent = {i: own[i] for i in gradients_of}
        g = mean(g, sent, data, "samples" if weighting == "unbiased" else weighting)
        solutions = {}
        for i in models_of:
            X, y = data[i]
            batch = batches(t, i)
            x = w.copy()
            # min F_k(x) + <g_t - grad F_k(w^{t-1}), x - w^{t-1}> + mu/2 ||x - w^{t-1}||^2
            for _ in range(steps):
                I = next(batch)
                slope = model.gradient(x, X[I], y[I]) + correction * (g - own[i]) + mu * (x - w)
                x = x - lr * slope
                spent[i] += 1
            solutions[i] = x
        w = mean(w, solutions, data, weighting)
    return {
        "server w": w,
        "server g": g,
        "private g": np.array(own),
        "personal": [w for _ in data],
        "gradients": spent,
    }
