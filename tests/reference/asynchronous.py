"""Asynchronous training, arrival by arrival: Algorithm 3 of FFGG, FedAsync and FedBuff.

All clients are always at work: whoever has arrived starts again from the newest model.
"""

import numpy as np


def arrivals(delay, clients, count):
    """(client, how often it had started before, arrivals before its start), in order.

    `delay(i, n)`: how long the n-th piece of work of client i takes.
    """
    done = [(delay(i, 0), i, 0, 0) for i in range(clients)]
    order = []
    for r in range(count):
        due, i, n, began = min(done)
        done.remove((due, i, n, began))
        order.append((i, n, began))
        done.append((due + delay(i, n + 1), i, n + 1, r + 1))
    return order


def ffgg(model, data, start, private, order, batches, starts, lr, private_lr, steps):
    """Algorithm 3 with Algorithm 2 for its line 6: θ after every arrival."""
    shared = np.setdiff1d(np.arange(len(start)), private)

    def gradient(i, theta, w, I):
        x = np.empty(len(start))
        x[shared], x[private] = theta, w
        X, y = data[i]
        return model.gradient(x, X[I], y[I])

    thetas = [start[shared]]
    for i, n, began in order:
        theta = thetas[began]  # what the client was sent
        batch = batches(n, i)
        w = starts(n, i)
        I = next(batch)
        for _ in range(steps):  # line 6
            w = w - private_lr * gradient(i, theta, w, I)[private]
        delta = gradient(i, theta, w, next(batch))[shared]  # line 7
        thetas.append(thetas[-1] - lr * delta)  # line 4: the whole step, no 1/M
    return thetas


def fedbuff(
    model, data, start, order, batches, lr, steps, s, buffer=1, rate=1.0, mixing=False, weigh=None
):
    """FedBuff with a buffer of `buffer`; FedAsync for 1: w after every arrival.

    s(τ): the weight by staleness in server steps; `mixing`: FedAsync's w <- (1 - α) w + α x_i, in
    place of the change x_i - w_base. `weigh(i)`: of a client within a buffer.
    """
    weigh = weigh or (lambda i: 1.0)
    models = [start]
    made = [0]  # steps of the server before every arrival
    held = []
    for i, n, began in order:
        w = models[began]
        x = w.copy()
        batch = batches(n, i)
        X, y = data[i]
        for _ in range(steps):
            I = next(batch)
            x = x - lr * model.gradient(x, X[I], y[I])
        tau = made[-1] - made[began]
        change = x - models[-1] if mixing else x - w
        held.append((weigh(i), s(tau) * change))
        newest = models[-1]
        if len(held) == buffer:
            total = sum(weight for weight, _ in held)
            newest = newest + rate * sum(weight * change for weight, change in held) / total
            held = []
        models.append(newest)
        made.append(made[-1] + (not held))
    return models
