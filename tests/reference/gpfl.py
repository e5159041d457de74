"""GPFL: Zhang et al. 2023 (ICCV), its losses written out; derivatives by complex steps."""

from itertools import pairwise

import numpy as np

from .complex_step import gradient, length, log_softmax, relu
from .fedavg import mean


class Routed:
    """One hidden layer, or none, and the two routes behind it; a model is a flat vector."""

    def __init__(self, inputs, hidden, classes):
        self.hidden = hidden
        F = hidden or inputs
        body = [("V", (F, inputs)), ("c", (F,))] if hidden else []
        valve = [(f"{n}{p}", s) for p in "γβ" for n, s in valve_shapes(F)]
        routes = [("C", (classes, F)), ("g", (F,)), ("p", (F,)), *valve]
        self.shapes = dict([*body, *routes, ("W", (classes, F)), ("b", (classes,))])
        ends = np.cumsum([0, *(int(np.prod(s)) for s in self.shapes.values())])
        self.places = {n: np.arange(*ab) for n, ab in zip(self.shapes, pairwise(ends), strict=True)}
        self.d = ends[-1]

    def where(self, *names):
        return np.concatenate([self.places[n] for n in names])

    def parts(self, x):  # x[..., d]
        lead = x.shape[:-1]
        return {n: x[..., at].reshape(*lead, *self.shapes[n]) for n, at in self.places.items()}

    def features(self, part, X):
        if not self.hidden:
            return X
        return relu(X @ part["V"].swapaxes(-1, -2) + part["c"][..., None, :])

    def valve(self, part, f, condition):
        """σ((γ + 1) f + β)."""
        made = []
        for p in "γβ":
            z = (part["A" + p] @ condition[..., None])[..., 0] + part["a" + p]
            z = relu(z)
            z = z - z.mean(-1, keepdims=True)
            z = z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-5)
            made.append(z * part["s" + p] + part["t" + p])
        γ, β = (m[..., None, :] for m in made)
        return relu((γ + 1) * f + β)

    def outputs(self, part, X):
        f = self.valve(part, self.features(part, X), part["p"])
        return f @ part["W"].swapaxes(-1, -2) + part["b"][..., None, :]

    def loss(self, x, X, y, received, lam, distance):
        """L^P + L^alg + λ L^mlg."""
        part = self.parts(x)
        n = np.arange(len(y))
        own = -log_softmax(self.outputs(part, X))[..., n, y].mean(-1)
        f = self.valve(part, self.features(part, X), part["g"])
        C = part["C"]
        unit_f = f / np.where(length(f).real > 0, length(f), 1)[..., None]
        unit_C = C / length(C)[..., None]
        angle = -log_softmax(unit_f @ unit_C.swapaxes(-1, -2))[..., n, y].mean(-1)
        gap = f - received[y]
        whole = gap.reshape(*gap.shape[:-2], -1)  # a mini-batch as one vector
        pull = length(gap).mean(-1) if distance == "samples" else length(whole)
        return own + angle + lam * pull

    def hits(self, x, X, y):
        return int((self.outputs(self.parts(x), X).argmax(-1) == y).sum())


def valve_shapes(F):
    return [("A", (F, F)), ("a", (F,)), ("s", (F,)), ("t", (F,))]


def gpfl(
    model,
    data,
    start,
    cohorts,
    batches,
    lr,
    steps,
    lam,
    mu,
    distance="samples",
    weighting="samples",
):
    head = model.where("W", "b")
    conditions = model.where("g", "p")
    shared = np.setdiff1d(np.arange(model.d), np.concatenate([head, conditions]))
    decayed = model.where("C", *(n + p for p in "γβ" for n, _ in valve_shapes(1)))
    w = start[shared]
    heads = [start[head] for _ in data]
    spent = np.zeros(len(data), dtype=int)

    def received_by(i):
        """The model, with the conditions of the client."""
        x = start.copy()
        x[shared] = w
        x[head] = heads[i]
        C = model.parts(x)["C"]
        y = data[i][1]
        x[model.places["g"]] = C.mean(0)
        x[model.places["p"]] = sum((y == u).mean() * C[u] for u in range(len(C)))
        return x

    for t, cohort in enumerate(cohorts):
        up = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = received_by(i)
            frozen = model.parts(x)["C"].copy()
            for _ in range(steps[i]):
                I = next(batch)
                g = gradient(model.loss, x, X[I], y[I], frozen, lam, distance)
                g[decayed] += mu * x[decayed]
                g[conditions] = 0
                x = x - lr * g
                spent[i] += 1
            up[i] = x[shared]
            heads[i] = x[head]
        w = mean(w, up, data, weighting)
    return {
        "server theta": w,
        "private head": heads,
        "personal": [received_by(i) for i in range(len(data))],
        "gradients": spent,
    }
