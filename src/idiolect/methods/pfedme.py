"""pFedMe: personal models through Moreau envelopes (Dinh, Tran and Nguyen 2020, Algorithm 1).

Choose it for personal models near a shared one when d numbers per message are affordable; it is,
bit for bit, lp-proj with P = I and p = 2 from the same start (`projection="identity"`, `dim=0`,
`w_start="x0"`). Costs per round: d numbers down to everyone and up from each sampled
client; at most R * steps gradients. Keeps: the personal model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..solvers import INNER, Accuracy, minimise
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from .options import UNTIED, Averaging, init_knob, own_models, tie_step


@dataclass(frozen=True)
class PFedMe(Averaging):
    """Personal models as Moreau envelopes of a shared one (lam). For moderately unlike data."""

    traits = Traits(
        data_through_gradients=True,
        trains="everyone",
        discloses="w - ηλ (w - θ) is sent, and w is known: θ follows from it with alternations=1, "
        "and a mean of its iterates with more",
        row_messages=True,
        rates=("lr", "share", "personal_lr"),
        counters=INNER,
        fixed_step="its inner problem is solved to an accuracy on one mini-batch (`nu`, `steps`), "
        "and its outer step is the gradient of the envelope",
        presets={
            # the authors' code, MNIST, "using same parameters"; batches of 20 there
            "paper": {"lam": 15.0, "lr": 0.005, "personal_lr": 0.1, "alternations": 20, "steps": 5}
        },
        reductions={"lam": UNTIED, "steps": "the personal models stay as they start"},
    )

    lam: float = knob(0.1, "λ, pull to the shared model; 0 is Local", low=0)
    lr: float = knob(
        0.0, "η, step size of the local copy of the shared model; 0 = share / (λ R)", low=0
    )
    share: float = knob(
        1.0,
        "where lr is 0: the part of its gap to the personal model that the copy moves per round",
        above=0,
        acts_with={"lr": 0.0},
    )
    personal_lr: float = knob(0.1, "step size of the personal model θ", above=0)
    alternations: int = knob(1, "R, local rounds", low=1)
    steps: int = knob(20, "K, most gradient steps on the envelope", low=0)
    nu: float = knob(
        1e-10,
        "ν: the envelope is solved when its squared gradient norm is at most this",
        low=0,
        acts_with={"fresh": False},
    )
    nu_relative: float = knob(
        0.0,
        "ν as a part of an envelope's first squared gradient norm; the larger of both counts, and "
        "with many steps it decides, not their number",
        low=0,
        below=1,
        acts_with={"fresh": False},
    )
    fresh: bool = knob(
        False,
        "a new mini-batch every step (the lp-proj code); the paper keeps one for each envelope",
    )
    reset: bool = knob(
        False, "θ starts at the received model each round (the original code), not where it was"
    )
    server_rate: float = knob(1.0, "β: w <- (1 - β) w + β mean", above=0)
    weighting: str = knob("equal", "the server's mean", choices=("equal", "samples"))
    init: str = init_knob(reset=False)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)
        x = w if self.reset else private["x"]
        for _ in range(self.alternations):
            x = self._envelope(task, x, w, here)
            step = (w - x).mul_(tie_step(self.lr, self.lam, self.share, self.alternations))
            w = torch.sub(w, step, out=step)  # w_i <- w_i - η λ (w_i - θ_i(w_i))
        return {"w": w}, {"x": x.contiguous()}

    def _envelope(self, task: Task, x: Tensor, w: Tensor, here: Here) -> Tensor:
        """θ ≈ argmin f(θ; D) + λ/2 ||θ - w||², to accuracy ν or a cap on steps."""

        def gradient(x: Tensor, batch: Batch) -> Tensor:
            return task.grad(x, batch).add_((x - w).mul_(self.lam))

        accuracy = Accuracy(self.nu, self.nu_relative)
        return minimise(gradient, x, here, self.personal_lr, self.steps, accuracy, self.fresh)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        mean = self.average(server, up, rule)["w"]
        return {"w": (1 - self.server_rate) * server["w"] + self.server_rate * mean}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["x"]
