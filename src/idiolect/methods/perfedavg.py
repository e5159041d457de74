"""Per-FedAvg: a shared model that is good after one gradient step at each client (Fallah, Mokhtari and Ozdaglar 2020; MAML).

Choose it when new clients must be served after very little training. Costs per round: d numbers each way for each sampled client; 2
gradients a step, 4 with second derivatives. Keeps nothing at the clients; they adapt before use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Rule
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task
from .fedavg import average


@dataclass(frozen=True)
class PerFedAvg(Method):
    """A shared start that one gradient step makes personal (MAML). For clients that come and go and have time for a step only."""

    rates: ClassVar[tuple[str, ...]] = ("lr", "personal_lr")

    lr: float = knob(0.1, "β, step size of the shared model", above=0)
    steps: int = knob(5, "meta-gradient steps a round", low=0)
    weighting: str = knob("equal", "the server's mean", choices=("samples", "equal", "unbiased"))
    personal_lr: float = knob(0.1, "α, the adaptation's step size", above=0)
    adapt_steps: int = knob(1, "adaptation steps before use", low=0)
    hessian: str = knob(
        "first-order",
        "second derivatives: left out, by finite differences, or exact",
        choices=("first-order", "finite", "exact"),
    )
    delta: float = knob(1e-3, "step of the finite difference", above=0)

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        w = down["w"].expand(batches.rows, -1)
        for _ in range(self.steps):
            w = w - self.lr * self._meta_gradient(task, w, batches)
        return {"w": w}, private

    def _meta_gradient(self, task: Task, w: Tensor, batches: Batches) -> Tensor:
        """(I - α ∇²f(w; D'')) ∇f(w - α ∇f(w; D); D')."""
        adapted = w - self.personal_lr * task.grad(w, batches.draw())
        g = task.grad(adapted, batches.draw())
        if self.hessian == "first-order":
            return g
        batch = batches.draw()
        if self.hessian == "exact":
            return g - self.personal_lr * task.hvp(w, g, batch)
        ahead, behind = task.grad(w + self.delta * g, batch), task.grad(w - self.delta * g, batch)
        return g - self.personal_lr * (ahead - behind) / (2 * self.delta)

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {"w": average(server["w"], up["w"], weights, rule, self.weighting)}

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        return sgd(
            task, down["w"].expand(batches.rows, -1), batches, self.personal_lr, self.adapt_steps
        )
