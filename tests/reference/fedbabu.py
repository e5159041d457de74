"""FedBABU: Oh, Kim and Yun 2022. The head keeps its initialisation until it is fine-tuned."""

import numpy as np

from .fedavg import mean
from .finetune import finetune


def fedbabu(
    model,
    data,
    start,
    head,
    cohorts,
    batches,
    last_batches,
    lr,
    personal_lr,
    steps,
    personal_steps,
    weighting,
):
    """`head`: the coordinates that are not trained; `steps`: of each client."""
    body = np.setdiff1d(np.arange(len(start)), head)
    x = start.copy()
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x_i = x.copy()
            for _ in range(steps[i]):
                I = next(batch)
                x_i[body] -= lr * model.gradient(x_i, X[I], y[I])[body]  # body update
                spent[i] += 1
            received[i] = x_i[body]
        x[body] = mean(x[body], received, data, weighting)  # body aggregation
    everyone = [x] * len(data)
    return {
        "server theta": x[body],
        "personal": finetune(model, data, everyone, last_batches, personal_lr, personal_steps),
        "gradients": spent,
        "deployment": np.full(len(data), personal_steps),
    }
