"""Per-FedAvg: a shared model that is good after one gradient step at each client.

Fallah, Mokhtari and Ozdaglar 2020 (MAML). Choose it when new clients must be served after very
little training. Costs per round: d numbers each way for each sampled client; 2 gradients per step,
4 with second derivatives. Keeps nothing at the clients; they adapt before use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .options import WEIGHTINGS, Averaging


@dataclass(frozen=True)
class PerFedAvg(Averaging):
    """A shared start that one gradient step makes personal (MAML). For clients that come and go."""

    traits = Traits(
        data_through_gradients=True,
        rates=("lr", "personal_lr"),
        row_messages=True,
        fixed_step="its shared model is trained for one plain step α, and the meta-gradient is "
        "that of this step",
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "β, step size of the shared model", above=0)
    steps: int = knob(5, "meta-gradient steps per round", low=0)
    weighting: str = knob("equal", "the server's mean", choices=WEIGHTINGS)
    personal_lr: float = knob(0.1, "α, the adaptation's step size", above=0)
    adapt_steps: int = knob(1, "adaptation steps before use", low=0)
    hessian: str = knob(
        "first-order",
        "second derivatives: left out, by finite differences, or exact",
        choices=("first-order", "finite", "exact"),
    )
    difference: float = knob(
        1e-3, "δ, step of the finite difference", above=0, acts_with={"hessian": "finite"}
    )

    def refine(self, traits: Traits) -> Traits:
        if self.hessian != "exact":
            return traits
        return replace(traits, data_through_gradients=False)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)
        for _ in range(self.steps):
            w = w - self.lr * self._meta_gradient(task, w, here)
        return {"w": w}, private

    def _meta_gradient(self, task: Task, w: Tensor, here: Here) -> Tensor:
        """(I - α ∇²f(w; D'')) ∇f(w - α ∇f(w; D); D')."""
        adapted = w - self.personal_lr * task.grad(w, here.draw())
        g = task.grad(adapted, here.draw())
        if self.hessian == "first-order":
            return g
        batch = here.draw()
        if self.hessian == "exact":
            return g - self.personal_lr * task.hvp(w, g, batch)
        ahead = task.grad(w + self.difference * g, batch)
        behind = task.grad(w - self.difference * g, batch)
        return g - self.personal_lr * (ahead - behind) / (2 * self.difference)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        w = down["w"].expand(here.rows, -1)
        return sgd(task, w, here, self.personal_lr, self.adapt_steps)
