"""Byz-VR-MARINA: estimates of the gradient whose noise vanishes, for robust rules to combine.

Gorbunov, Horváth, Richtárik and Gidel 2023, Algorithm 1. Choose it with a robust rule (`--rule
'bucketing(size=2) + median'`) when clients may be malicious: lies hide in the noise of
mini-batches, and here it fades as training goes on. Costs per round: 3 d numbers down and d up for
everyone; 2 gradients, or `anchor_batches` with probability p. Keeps nothing at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Method, Traits
from ..task.context import Here
from ..task.task import Task


@dataclass(frozen=True)
class ByzVrMarina(Method):
    """Variance-reduced gradients for robust rules. One shared model, against malicious clients."""

    traits = Traits(
        data_through_gradients=True,
        sends="d up, 3 d down",
        trains="everyone",
        hears_all=True,  # an estimate goes on from that of the round before
        changes=("g",),
        row_messages=True,
        fixed_step="clients send gradients: the step is the server's",
    )

    lr: float = knob(1.0, "γ, step size", above=0)
    p: float = knob(0.2, "chance of a round with gradients in place of differences", low=0, high=1)
    anchor_batches: int = knob(
        4, "mini-batches of such a gradient; it is the full one with batching=full", low=1
    )

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def message(self, task: Task) -> dict[str, int]:
        return {"g": task.d}

    def server(self, task: Task) -> State:
        x0 = task.x0
        return {"w": x0.clone(), "previous": x0.clone(), "g": torch.zeros_like(x0)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)  # x^{k+1}
        if here.round == 0 or here.coins("marina", 1)[0] < self.p:  # c_k = 1: g_i = ∇f_i(x^{k+1})
            g = torch.zeros_like(w)
            for _ in range(self.anchor_batches):
                g = g + task.grad(w, here.draw()) / self.anchor_batches
            return {"g": g - down["g"]}, private
        # c_k = 0: g_i = g^k + Q(∇f_i(x^{k+1}; ξ) - ∇f_i(x^k; ξ)), Q the run's channel
        batch = here.draw()
        before = task.grad(down["previous"].expand(here.rows, -1), batch)
        return {"g": task.grad(w, batch) - before}, private

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        w = server["w"]
        g = server["g"] + rule(up)["g"]  # g^{k+1} = ARAgg(g_1, ..., g_n)
        return {"w": w - self.lr * g, "previous": w, "g": g}  # x <- x - γ g
