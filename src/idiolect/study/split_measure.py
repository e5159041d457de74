"""What a split is like, measured: fine-tune the private part w of all clients, θ as it is.

Section 4.3 of the FFGG paper: the quality of a split shows in F_m(θ) = ∇_θ f_m(θ, w_m(θ)), the
gradient that is left in the shared part once w_m is fine-tuned. All clients are rows of a matrix,
and all candidates have the same mini-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.types import leaves
from ..data.federation import Federation
from ..host.evaluation import Evaluator, ScoreSums
from ..host.settings import HostSettings
from ..run.settings import DTYPES, Settings
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task


@dataclass(frozen=True)
class Measured:
    """One candidate with one learning rate: float64[K], of each client."""

    lr: float
    loss: dict[str, Tensor]  # summed over samples
    hits: dict[str, Tensor]
    before: Tensor  # ||∇_θ f_m(θ, w)|| at the start
    left: Tensor  # ||F_m(θ)||, after fine-tuning
    mean_left: float  # ||mean F_m(θ)||


@dataclass(frozen=True)
class Measure:
    """Clients at work: their data, and how they step."""

    data: Federation
    clients: Tensor  # int64[K]: positions of those that count
    keys: np.ndarray  # uint64[K]
    settings: Settings
    seed: int
    steps: int
    random: bool = False  # whether the private part starts anew at random, as FFGG's does

    def __call__(self, task: Task, split: Split, start: Tensor, rates: list[float]) -> Measured:
        """The rate with the least validation loss; what the gradient is at its end."""
        validation = Evaluator(task, self.data, "valid")
        best = math.inf
        for rate in rates:
            models = self._finetune(task, split, start, rate)
            sums = self._scores(task, validation, models)
            loss = float(sums.loss.sum().nan_to_num(math.inf))
            if loss < best or rate == rates[0]:
                best, lr, x, valid = loss, rate, models, sums
        train = self._scores(task, Evaluator(task, self.data, "train"), x)
        before, left, total = self._gradients(task, split, start, x)
        chosen = self.clients
        return Measured(
            lr,
            {"train": train.loss[chosen], "valid": valid.loss[chosen]},
            {"train": train.hits[chosen], "valid": valid.hits[chosen]},
            before,
            left,
            float((total / len(chosen)).norm()),
        )

    def _finetune(self, task: Task, split: Split, start: Tensor, lr: float) -> Tensor:
        """The models of all clients, x[K, d + m]."""
        models = start.repeat(len(self.clients), 1)
        for at in torch.arange(len(self.clients)).split(self._at_once(task)):
            here = self._here(at)
            x = models[at]
            if self.random and len(split.w):
                x[:, split.w] = task.draw(here.keys("private start"))[:, split.w]
            models[at] = self._steps(task, split, x, here, lr)
        return models

    def _scores(self, task: Task, evaluator: Evaluator, models: Tensor) -> ScoreSums:
        sums = evaluator.blank()
        for at in torch.arange(len(self.clients)).split(self._at_once(task)):
            evaluator.personal(models[at], self.clients[at], sums)
        return sums

    def _steps(self, task: Task, split: Split, x: Tensor, here: Here, lr: float) -> Tensor:
        if x.shape[-1] > task.d:
            here.statistics = {"w": x[:, task.d :].clone()}
        x = x[:, : task.d].clone()
        for _ in range(self.steps if len(split.w) else 0):
            g = task.grad(x, here.draw())
            x[:, split.w] -= lr * g[:, split.w]
        return here.complete(x)

    def _gradients(
        self, task: Task, split: Split, start: Tensor, models: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """||∇_θ f_m|| before and after, on all training data; and the sum of the F_m."""
        task = task.under(clip=0.0) if task.numerics.clip else task
        before, left = [], []
        total = start.new_zeros(len(split.theta), dtype=torch.float64)
        longest = int(self.data.sizes("train")[self.clients].max())
        for at in torch.arange(len(self.clients)).split(self._at_once(task, longest)):
            there = start.expand(len(at), -1)
            before.append(self._shared(task, split, there, at).norm(dim=1).double())
            F = self._shared(task, split, models[at], at)
            left.append(F.norm(dim=1).double())
            total += F.double().sum(0)
        return torch.cat(before).cpu(), torch.cat(left).cpu(), total

    def _shared(self, task: Task, split: Split, x: Tensor, at: Tensor) -> Tensor:
        """∇_θ f_m(x_m) of these clients, on all their training data."""
        here = self._here(at, "full")
        if x.shape[-1] > task.d:
            here.statistics = {"w": x[:, task.d :].clone()}
        return task.grad(x[:, : task.d].contiguous(), here.draw())[:, split.theta]

    def _here(self, at: Tensor, batching: str = "") -> Here:
        s = self.settings
        return Here(
            self.data,
            self.clients[at],
            clients=self.keys[at.numpy()],
            seed=self.seed,
            round=s.rounds,
            batch=s.batch,
            batching=batching or s.batching,
            dtype=DTYPES[s.dtype],
            purpose="split",
        )

    def _at_once(self, task: Task, batch: int = 0) -> int:
        """Rows at once, as a host has them."""
        s = self.settings
        host = HostSettings(chunk=s.chunk, memory=int(s.memory * 2**30))
        size = task.dtype.itemsize
        values = sum(t[0].numel() for t in leaves(self.data.inputs) if len(t))
        return host.rows_at_once(task.d * size, values * size, batch or s.batch)
