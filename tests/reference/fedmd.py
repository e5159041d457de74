"""FedMD: Li and Wang 2019, Algorithm 1, without its training on labels of the public data."""

import numpy as np


def fedmd(models, data, starts, cohorts, batches, lr, steps, public, alignment, digests, distance):
    """`models` and `starts` are those of each client, which may be unlike.

    alignment(t): the public inputs of a turn; digests(t, i): mini-batches of client i among them.
    """
    w = [start.copy() for start in starts]
    consensus = None
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        scores = {}
        for i in cohort:
            X, y = data[i]
            if consensus is not None:  # Digest
                before = public[alignment(t - 1)]
                for I in digests(t, i):
                    w[i] = w[i] - lr * gap(models[i], w[i], before[I], consensus[I], distance)
                    spent[i] += 1
            batch = batches(t, i)
            for _ in range(steps):  # Revisit
                I = next(batch)
                w[i] = w[i] - lr * models[i].gradient(w[i], X[I], y[I])
                spent[i] += 1
            chosen = public[alignment(t)]
            scores[i] = np.stack([models[i].outputs(w[i], a) for a in chosen])  # Communicate
        consensus = sum(scores.values()) / len(scores)  # Aggregate
    return {
        "server consensus": consensus.ravel(),
        "server turn": np.array([float(len(cohorts))]),
        "private w": w,
        "personal": w,
        "gradients": spent,
    }


def gap(model, x, inputs, consensus, distance):
    """The gradient of the mean over samples and classes of |f(a) - f̃(a)|, or of its square."""
    total = np.zeros(len(x))
    for a, wanted in zip(inputs, consensus, strict=True):
        difference = model.outputs(x, a) - wanted
        slope = np.sign(difference) if distance == "absolute" else 2 * difference
        total += model.gradient_by_outputs(x, a, slope / len(wanted)) / len(inputs)
    return total
