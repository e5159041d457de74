"""FedAlt and FedSim: Pillutla et al. 2022, Algorithms 1 to 3."""

import numpy as np

from .fedavg import mean


def pillutla(
    model, data, start, private, cohorts, batches, lr, private_lr, steps, private_steps, stateful, weighting, simultaneous
):  # fmt: skip
    """`private`: the coordinates of v; the rest, u, is shared. `simultaneous`: FedSim, whose `steps` move both. Without state, training
    starts at the initial v every round; what is used is the last v (their public code)."""
    shared = np.setdiff1d(np.arange(len(start)), private)
    u, v, spent = start[shared], [start[private] for _ in data], np.zeros(len(data), dtype=int)

    def join(u, v):
        x = np.empty(len(start))
        x[shared], x[private] = u, v
        return x

    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            (X, y), batch = data[i], batches(t, i)
            u_i, v_i = u, v[i] if stateful else start[private]

            def gradient(u, v, X=X, y=y, i=i, batch=batch):
                I = next(batch)
                spent[i] += 1
                return model.gradient(join(u, v), X[I], y[I])

            if simultaneous:  # LocalSim
                for _ in range(steps):
                    g = gradient(u_i, v_i)
                    u_i, v_i = u_i - lr * g[shared], v_i - private_lr * g[private]
            else:  # LocalAlt: v first, then u at the new v
                for _ in range(private_steps):
                    v_i = v_i - private_lr * gradient(u_i, v_i)[private]
                for _ in range(steps):
                    u_i = u_i - lr * gradient(u_i, v_i)[shared]
            received[i], v[i] = u_i, v_i
        u = mean(u, received, data, weighting)
    return {
        "server theta": u,
        "private w": v,
        "personal": [join(u, v_i) for v_i in v],
        "gradients": spent,
    }
