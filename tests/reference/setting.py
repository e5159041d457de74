"""The small federation on which methods are compared, and the outcome of a run as arrays."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import helpers
import idiolect as il
from helpers import gradients_of, private_of
from idiolect.methods.predictor import Predictor

from .draws import Draws
from .softmax import Logistic, Network

FEATURES = 4
HIDDEN = 3
CLASSES = 3
SIZES = (5, 13, 8, 21, 3, 30, 11)  # training samples: unequal, two clients below the batch size
ROUNDS = 3
SAMPLE = 3
BATCH = 8
SEED = 5
MODELS = {
    "logistic": (lambda: nn.Linear(FEATURES, CLASSES), Logistic(FEATURES, CLASSES)),
    "network": (
        lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)),
        Network(FEATURES, HIDDEN, CLASSES),
    ),
}


def make_federation(sizes=SIZES):
    """Clients with labelling rules of their own.

    Client k is called "ck" and has 4 + k test and 3 validation samples.
    """
    rng = np.random.default_rng(1)
    more = np.random.default_rng(2)
    inputs, targets, clients, split = [], [], [], []
    for k, n in enumerate(sizes):
        total = n + 4 + k
        W = rng.normal(size=(CLASSES, FEATURES))
        X = rng.normal(size=(total, FEATURES)) + rng.normal(size=FEATURES)
        extra = more.normal(size=(3, FEATURES))
        inputs += [X, extra]
        noise = rng.normal(size=(total, CLASSES))
        targets += [(X @ W.T + noise).argmax(1), (extra @ W.T).argmax(1)]
        clients += [f"c{k}"] * (total + 3)
        split += ["train"] * n + ["test"] * (4 + k) + ["valid"] * 3
    X = torch.from_numpy(np.concatenate(inputs))
    return il.Federation.from_arrays(
        X, np.concatenate(targets), clients, split=split, classes=CLASSES
    )


def arrange(federation, order):
    """The same clients in another order; a name in place of a number is a client without data."""
    index, offsets = [], {}
    for split in ("train", "valid", "test"):
        bounds = federation.offsets[split].tolist()
        ends = [sum(map(len, index))]
        for k in order:
            samples = range(0) if isinstance(k, str) else range(bounds[k], bounds[k + 1])
            index.append(samples)
            ends.append(ends[-1] + len(samples))
        offsets[split] = torch.tensor(ends)
    flat = torch.tensor([i for part in index for i in part])
    ids = tuple(k if isinstance(k, str) else federation.ids[k] for k in order)
    return il.Federation(
        federation.inputs[flat], federation.targets[flat], offsets, ids, federation.classes
    )


def task(model="logistic"):
    return il.Task(MODELS[model][0])


def run(method, federation, model="logistic", **settings):
    sample = 0 if method.traits.hears_all else SAMPLE
    given = {"rounds": ROUNDS, "sample": sample, "batch": BATCH, "seed": SEED} | settings
    return helpers.run(method, federation, task(model), **given)


def start(model="logistic"):
    """The common x0 of a run with SEED."""
    return task(model).under(seed=SEED, dtype=torch.float64).x0.numpy()


def draws(federation, batching="replace"):
    return Draws(federation, SEED, BATCH, batching)


def outcome(result):
    """Everything that a run leaves behind, as arrays; rows by client."""
    session = result.session()
    server = session.server
    personal = [predictor_of(result, i) for i in server.roster.ids]
    method_state = server.step.method_state(server.state)
    return {
        **{f"server {name}": t.numpy() for name, t in method_state.items()},
        **{f"rows {name}": t.numpy() for name, t in server.rows.all().items()},
        **{f"private {name}": t.numpy() for name, t in private_of(result).items()},
        "personal": torch.stack(personal).numpy(),
        "gradients": gradients_of(result).numpy(),
        "accuracy": result.seeds[0].final["test"]["accuracy"],
    }


def predictor_of(result, client):
    """A client's model as a vector; where it has no single one, its answers to some inputs."""
    module = result.personal(client)
    if isinstance(module, Predictor):
        features = module.task.layout.shapes[0][-1]
        return module(torch.eye(features, dtype=torch.float64)).flatten()
    return parameters_to_vector(module.parameters()).detach()


def deployment(result):  # -> int64[N]
    """Gradient evaluations that personalisation takes before use, by client."""
    session = result.session()
    everyone = torch.arange(len(session.server.roster))
    return session.engine.evaluate(everyone, ("test",))["test"].gradients.numpy()


def pooled_accuracy(model, personal, federation):
    parts = [federation.part(k, "test") for k in range(federation.clients)]
    hits = sum(
        model.hits(x, X.double().numpy(), y.numpy())
        for x, (X, y) in zip(personal, parts, strict=True)
    )
    return hits / sum(len(y) for _, y in parts)


def assert_same(a, b, tolerance=0.0):
    """Two outcomes hold the same things; bit for bit unless a tolerance is given.

    The largest difference of two numbers.
    """
    assert a.keys() == b.keys()
    largest = 0.0
    for name in a:
        got = np.asarray(a[name])
        want = np.asarray(b[name])
        assert got.shape == want.shape, name
        assert np.isfinite(got).all(), name
        error = np.abs(got - want).max(initial=0)
        assert error <= tolerance, f"{name} is {error:.1e} away"
        largest = max(largest, float(error))
    return largest
