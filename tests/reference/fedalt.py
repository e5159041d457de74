"""FedAlt and FedSim: Pillutla et al. 2022, Algorithms 1 to 3."""

import numpy as np

from .fedavg import mean


def pillutla(
    model,
    data,
    start,
    private,
    cohorts,
    batches,
    lr,
    private_lr,
    steps,
    private_steps,
    stateful,
    weighting,
    simultaneous,
    later=None,
):
    """`private`: the coordinates of v; the rest, u, is shared.

    `steps` and `private_steps` are numbers, or one for each client.
    `later(t, i)`: what is drawn after passes over the data for v, None for numbers of steps.
    `simultaneous`: FedSim, whose `steps` move both. Without state, training starts at the initial v
    in every round; what is used is the last v (their public code).
    """
    shared = np.setdiff1d(np.arange(len(start)), private)
    u = start[shared]
    v = [start[private] for _ in data]
    spent = np.zeros(len(data), dtype=int)
    steps, private_steps = (np.broadcast_to(k, len(data)) for k in (steps, private_steps))

    def join(u, v):
        x = np.empty(len(start))
        x[shared] = u
        x[private] = v
        return x

    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            u_i = u
            v_i = v[i] if stateful else start[private]

            def gradient(u, v, batch, X=X, y=y, i=i):
                I = next(batch)
                spent[i] += 1
                return model.gradient(join(u, v), X[I], y[I])

            if simultaneous:  # LocalSim
                for _ in range(steps[i]):
                    g = gradient(u_i, v_i, batch)
                    u_i = u_i - lr * g[shared]
                    v_i = v_i - private_lr * g[private]
            else:  # LocalAlt: v first, then u at the new v
                for _ in range(private_steps[i]):
                    v_i = v_i - private_lr * gradient(u_i, v_i, batch)[private]
                batch = later(t, i) if later else batch
                for _ in range(steps[i]):
                    u_i = u_i - lr * gradient(u_i, v_i, batch)[shared]
            received[i] = u_i
            v[i] = v_i
        u = mean(u, received, data, weighting)
    return {
        "server theta": u,
        "private w": v,
        "personal": [join(u, v_i) for v_i in v],
        "gradients": spent,
    }
