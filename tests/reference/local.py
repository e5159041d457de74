"""PureLocalTraining, eq. (1.3) of the paper of Chen, Zheng, Long and Su (2021).

Each client runs SGD on its own loss, alone.
"""

import numpy as np


def local(model, data, start, batches, rates, steps):
    x = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, lr in enumerate(rates):
        for i, (X, y) in enumerate(data):
            batch = batches(t, i)
            for _ in range(steps[i]):
                I = next(batch)
                x[i] = x[i] - lr * model.gradient(x[i], X[I], y[I])
                spent[i] += 1
    return {"private x": x, "personal": x, "gradients": spent}
