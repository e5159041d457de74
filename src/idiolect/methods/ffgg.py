"""FFGG: fine-tuning followed by a global gradient, and Local FFGG.

Algorithms 1 and 2 of its paper, and Algorithm 4; with a robust rule Algorithm 5. Choose it when the
private part can fit each client's data and clients keep nothing between rounds (phones). Costs per
round: the shared part each way for each sampled client; `steps` + 1 gradients. Stateless: clients
solve for their private part in each round, and before use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Combine, Traits
from ..solvers import turns
from ..task.context import Here
from ..task.task import Task
from . import private_solvers as finetuners
from .partial import Partial, step


@dataclass(frozen=True)
class Ffgg(Partial):
    """Clients solve for their private part and send one gradient of the shared part. Stateless."""

    traits = replace(
        Partial.traits,
        rates=("lr", "private_lr"),
        changes=("theta",),
        fixed_step="its private part has its own `solver` (adam among them), and the server steps "
        "its shared part",
        presets={
            # Table 3 of the FFGG paper, EMNIST
            "paper": {"lr": 1.0, "private_lr": 0.01, "epochs": 1}
        },
    )

    lr: float = knob(1.0, "γ_θ, step size of the shared part (at the server)", above=0)
    solver: str = knob(
        "sgd",
        "how the private part is solved for; newton and cg are exact for quadratic losses, exact "
        "takes Newton steps until it is solved",
        choices=finetuners.SOLVERS,
    )
    private_lr: float = knob(0.5, "γ_w, step size of the solver (sgd, gd, adam)", above=0)
    steps: int = knob(20, "τ, steps of the solver", low=0)
    epochs: int = knob(
        0,
        "passes over the client's data that the solver (sgd, adam) makes, in place of steps; "
        "0 = use steps",
        low=0,
    )
    start: str = knob(
        "random",
        "where the private part starts each round: random (the paper), common, or kept",
        choices=finetuners.STARTS,
    )

    def refine(self, traits: Traits) -> Traits:
        start = {"random": "a random start", "common": "its initial values", "kept": "its start"}
        words = f"the private part is not fine-tuned, and stays at {start[self.start]}"
        return replace(traits, reductions={"steps": words})

    def alone(self) -> str:
        if self.start == "kept":
            return "this is Local, with a round's steps once more before use"
        start = "a random start" if self.start == "random" else "the initial model"
        return f"every client trains alone, restarted from {start} each time: Local without rounds"

    def together(self) -> str:
        return "this is FedAvg with one step per round, and clients that weigh the same"

    def check(self, task: Task) -> None:
        super().check(task)
        if self.epochs and self.solver not in finetuners.OF_EPOCHS:
            raise SettingError(
                f"epochs must be 0 with solver {self.solver!r}, got {self.epochs}: it works "
                f"on one mini-batch; 0, or one of the solvers {', '.join(finetuners.OF_EPOCHS)}"
            )

    def solve(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        """Line 4: w ≈ argmin f(θ, w)."""
        split = self.split(task)
        w = finetuners.start(task, split, private["w"], here, self.start)
        theta = down["theta"]
        how = (self.solver, self.private_lr, self.steps, self.epochs)
        return finetuners.solve(task, split, theta, w, here, *how)

    def private(self, task: Task, clients: np.ndarray) -> State:
        rows = super().private(task, clients)
        return rows if self.start == "kept" else {"w": rows["w"][:, :0]}

    def _keep(self, private: State, w: Tensor) -> State:
        return {"w": w} if self.start == "kept" else private

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = self.split(task)
        w = self.solve(task, down, private, here)
        x = split.join(down["theta"], w)
        g_theta, _ = split.parts(task.grad(x, here.draw()))  # line 5: Δ = ∇_θ f(θ, w)
        return {"theta": g_theta}, self._keep(private, w)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return {"theta": server["theta"] - self.lr * rule(up)["theta"]}  # line 7

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self.split(task).join(down["theta"], self.solve(task, down, private, here))


@dataclass(frozen=True)
class LocalFfgg(Ffgg):
    """FFGG with local steps on the shared part (Algorithm 4). Fewer rounds where drift is small."""

    traits = replace(
        Ffgg.traits,
        fixed_step="its private part has its own `solver` (adam among them), and lines 6 and 7 of "
        "its Algorithm 4 are plain steps",
        presets={"paper": {"lr": 0.01, "private_lr": 0.01, "epochs": 1, "local_epochs": 1}},
    )

    lr: float = knob(0.1, "γ_θ, step size of the shared part (at the clients)", above=0)
    steps: int = knob(100, "τ, steps of the solver", low=0)
    local_steps: int = knob(5, "K, alternations of private and shared step", low=0)
    local_epochs: int = knob(
        0,
        "passes over the client's data in place of local_steps: an alternation for each of their "
        "mini-batches; 0 = use local_steps",
        low=0,
    )

    def together(self) -> str:
        return "this is FedAvg, with clients that weigh the same"

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = self.split(task)
        theta = down["theta"].expand(here.rows, -1)
        w = self.solve(task, down, private, here)  # line 4
        for active in turns(here, self.local_steps, self.local_epochs):
            # lines 6 and 7
            _, w = step(task, split, theta, w, here, self.private_lr, "w", active=active)
            theta, _ = step(task, split, theta, w, here, self.lr, "theta", active=active)
        return {"theta": down["theta"] - theta}, self._keep(private, w)  # line 9: Δ = θ - θ^K

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return {"theta": server["theta"] - rule(up)["theta"]}  # line 11
