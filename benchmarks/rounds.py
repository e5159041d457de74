"""A whole FedAvg round against the bare matrix products it contains.

100 clients of 434/109 samples, MLP 784-100-10, 10 clients a round, 6 steps of batch 64, every client evaluated every round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from idiolect import FedAvg, Federation, Task, aggregation, models
from idiolect.engine.host import Host, HostSettings
from idiolect.engine.inprocess import InProcess
from idiolect.server_step import ServerStep

from .timing import fastest

CLIENTS, TRAIN, TEST, SAMPLE, STEPS, BATCH = 100, 434, 109, 10, 6, 64


def federation() -> Federation:
    rng = np.random.default_rng(0)
    n = CLIENTS * (TRAIN + TEST)
    parts = np.tile(["train"] * TRAIN + ["test"] * TEST, CLIENTS)
    ids = np.repeat(np.arange(CLIENTS), TRAIN + TEST)
    return Federation.from_arrays(rng.random((n, 784), dtype=np.float32), rng.integers(0, 10, n), ids, split=parts)


def floor() -> None:
    """The products alone: forward and two backward of each layer in training (one for the first), forward in evaluation."""
    for _ in range(STEPS):
        h = torch.bmm(W1, X.transpose(1, 2))
        o = torch.bmm(W2, h)
        torch.bmm(o, h.transpose(1, 2))
        d = torch.bmm(W2.transpose(1, 2), o)
        torch.bmm(d, X)
    torch.mm(torch.mm(T, W1[0].T), W2[0].T)


X, T = torch.rand(SAMPLE, BATCH, 784), torch.rand(CLIENTS * TEST, 784)
W1, W2 = torch.rand(SAMPLE, 100, 784), torch.rand(SAMPLE, 10, 100)


def figures() -> Iterator[dict]:
    task = Task(lambda: models.make("mlp", (784,), 10))
    host = Host(FedAvg(steps=STEPS), task, federation(), 1, HostSettings(batch=BATCH))
    everyone = torch.arange(CLIENTS)
    engine = InProcess(host, aggregation.make("mean"), ServerStep(), everyone, SAMPLE)

    def whole() -> None:
        engine.advance()
        engine.evaluate(everyone, ("test",))

    bare, took = fastest(floor, whole)
    name = "FedAvg round with evaluation against its bare matrix products, 100 clients, MLP 784-100-10"
    yield {"name": name, "value": took / bare, "unit": "x", "goal": 2.0, "better": "lower"}
    yield {"name": "the same round, rounds a CPU second", "value": 1 / took, "unit": "1/s", "goal": None, "better": "higher"}
