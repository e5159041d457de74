"""FML: Shen et al. 2020, Algorithm 1."""

import numpy as np

from .fedavg import mean
from .softmax import softmax


def fml(
    model, data, start, cohorts, batches, lr, personal_lr, steps, alpha, beta, weighting="samples"
):
    meme = start
    v = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = meme.copy()
            for _ in range(steps[i]):
                I = next(batch)
                g = taught(model, x, v[i], X[I], y[I], beta)
                own = taught(model, v[i], x, X[I], y[I], alpha)
                x = x - lr * g
                v[i] = v[i] - personal_lr * own
                spent[i] += 2
            received[i] = x
        meme = mean(meme, received, data, weighting)
    return {"server w": meme, "private v": v, "personal": v, "gradients": spent}


def taught(model, x, teacher, X, y, share):
    """The gradient of share L_C + (1 - share) KL(p_teacher || p_model).

    That of the divergence is the cross-entropy's with the teacher's probabilities for labels: the
    gradients of all labels, weighted by them.
    """
    g = share * model.gradient(x, X, y)
    for a in X:
        p = softmax(model.outputs(teacher, a))
        labels = [model.gradient_of_one(x, a, c) for c in range(len(p))]
        g = g + (1 - share) * sum(q * d for q, d in zip(p, labels, strict=True)) / len(y)
    return g
