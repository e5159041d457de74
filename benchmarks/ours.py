"""A workload in idiolect: what `idiolect run` does in a round, with every client evaluated."""

from __future__ import annotations

import torch

from idiolect import Settings, Task
from idiolect.run.prepare import prepare
from idiolect.run.session import Session

from .workloads import Workload


class Ours:
    def __init__(self, work: Workload):
        settings = Settings(sample=work.heard, batch=work.batch, batching="epochs")
        parts = prepare(work.method, Task(work.module()), work.federation(), settings)
        self.session = Session(parts, seed=0, run=1)
        self.everyone = torch.arange(work.clients)

    def round(self) -> tuple[float, float]:  # -> accuracy, loss over all test samples
        engine = self.session.engine
        engine.advance()
        scores = engine.evaluate(self.everyone, ("test",))["test"]
        samples = float(scores.samples.sum())
        return float(scores.hits.sum()) / samples, float(scores.loss.sum()) / samples

    @property
    def gradients(self) -> int:
        """Mini-batch gradients so far, over all clients."""
        return int(self.session.server.ledger.total("gradients"))
