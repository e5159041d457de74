"""FFGG, Algorithms 1 and 2, with other solvers for line 4; and Local FFGG, Algorithm 4."""

import numpy as np

from .fedavg import weighed


def ffgg(
    model,
    data,
    start,
    private,
    cohorts,
    batches,
    last_batches,
    starts,
    rates,
    private_lr,
    steps,
    solver,
    kept=False,
    local_steps=None,
    product=None,
    later=None,
    p=None,
):
    """`private`: the coordinates of w; the rest is theta.

    `steps` and `local_steps` are numbers, or one for each client.
    `starts(t, i)`: where w starts in round t, random or not; `kept`: it starts where it was.
    `local_steps`: K of Algorithm 4, None for Algorithm 1. `product(x, v, X, y)`: the Hessian times
    v, for cg, newton and exact. `later(t, i)`: what is drawn after the solver's passes over the
    data, None where it takes a number of steps.
    """
    shared = np.setdiff1d(np.arange(len(start)), private)
    rounds = len(cohorts)
    steps = np.broadcast_to(steps, len(data))
    alternations = np.broadcast_to(local_steps or 0, len(data))
    theta = start[shared]
    own = [start[private] for _ in data]
    spent = np.zeros(len(data), dtype=int)
    count = spent

    def gradient(i, theta, w, I):
        X, y = data[i]
        count[i] += 1
        return model.gradient(join(theta, w), X[I], y[I])

    def join(theta, w):
        x = np.empty(len(start))
        x[shared] = theta
        x[private] = w
        return x

    def hessian(i, theta, w, I):
        X, y = data[i]

        def times(v):
            count[i] += 2
            return product(join(theta, w), join(np.zeros(len(shared)), v), X[I], y[I])[private]

        return times

    def solve(t, i, batch):  # line 4: w ~ argmin f(theta, w)
        w = own[i] if kept else starts(t, i)
        if solver == "exact":
            I = next(batch)
            first = None
            for _ in range(steps[i]):  # Newton steps until the gradient is at rounding level
                g = gradient(i, theta, w, I)[private]
                first = np.linalg.norm(g) if first is None else first
                if np.linalg.norm(g) <= 1e3 * np.finfo(float).eps * first:
                    break
                w = w - np.linalg.pinv(matrix(hessian(i, theta, w, I), len(g)), rcond=1e-12) @ g
            return w
        if solver in ("cg", "newton"):
            I = next(batch)
            g = gradient(i, theta, w, I)[private]
            H = hessian(i, theta, w, I)
            if solver == "cg":
                return w - conjugate_gradients(H, g, steps[i])
            return w - np.linalg.solve(matrix(H, len(g)), g)
        optimise = {"sgd": plain, "gd": plain, "adam": adam}[solver](private_lr)
        I = None
        for _ in range(steps[i]):
            # Algorithm 2 works on one mini-batch; sgd and adam draw anew
            I = next(batch) if I is None or solver != "gd" else I
            w = optimise(w, gradient(i, theta, w, I)[private])
        return w

    for t, cohort in enumerate(cohorts):
        delta = {}
        for i in cohort:
            batch = batches(t, i)
            w = solve(t, i, batch)
            batch = later(t, i) if later else batch
            if local_steps is None:
                delta[i] = gradient(i, theta, w, next(batch))[shared]  # line 5
            else:
                mine = theta
                for _ in range(alternations[i]):
                    # Algorithm 4, lines 6 and 7
                    w = w - private_lr * gradient(i, mine, w, next(batch))[private]
                    mine = mine - rates[t] * gradient(i, mine, w, next(batch))[shared]
                delta[i] = theta - mine  # line 9
            if kept:
                own[i] = w
        step = rates[t] if local_steps is None else 1
        theta = theta - step * weighed(delta, p)  # line 7; Algorithm 4, line 11
    count = np.zeros(len(data), dtype=int)  # what is spent before use is not training
    personal = [join(theta, solve(rounds, i, last_batches(i))) for i in range(len(data))]
    rows = own if kept else np.empty((len(data), 0))
    return {
        "server theta": theta,
        "private w": rows,
        "personal": personal,
        "gradients": spent,
        "deployment": count,
    }


def plain(lr):
    return lambda w, g: w - lr * g


def adam(lr, b1=0.9, b2=0.999, eps=1e-8):
    """Kingma and Ba 2015, Algorithm 1."""
    m = v = 0.0
    t = 0

    def step(w, g):
        nonlocal m, v, t
        t += 1
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        return w - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)

    return step


def conjugate_gradients(H, b, steps):
    """Hestenes and Stiefel 1952 on H z = b, from z = 0."""
    z = np.zeros_like(b)
    r = p = b
    for _ in range(steps):
        Hp = H(p)
        alpha = r @ r / (p @ Hp)
        z = z + alpha * p
        new = r - alpha * Hp
        p = new + (new @ new) / (r @ r) * p
        r = new
    return z


def matrix(H, size):
    return np.stack([H(e) for e in np.eye(size)], axis=1)
