"""A workload through idiolect's engine: what `idiolect run` does in a round, with every client evaluated."""

from __future__ import annotations

import torch

from idiolect import Task
from idiolect.engine.inprocess import InProcess
from idiolect.host.host import Host, HostSettings
from idiolect.server import rules as aggregation
from idiolect.server.step import ServerStep

from .workloads import Workload


class Ours:
    def __init__(self, work: Workload):
        task = Task(work.module(), clients=work.clients)
        host = Host(work.method, task, work.federation(), 1, HostSettings(work.batch, "epochs"))
        self.everyone = torch.arange(work.clients)
        self.engine = InProcess(
            host, aggregation.parse_rule("mean"), ServerStep(), self.everyone, work.heard
        )

    def round(self) -> tuple[float, float]:  # -> accuracy, loss over all test samples
        self.engine.advance()
        scores = self.engine.evaluate(self.everyone, ("test",))["test"]
        samples = float(scores.samples.sum())
        return float(scores.hits.sum()) / samples, float(scores.loss.sum()) / samples

    @property
    def gradients(self) -> int:
        """Mini-batch gradients so far, over all clients."""
        return int(self.engine.host.gradients.sum())
