"""lp-proj: personal models that agree, in L^p, on a fixed random subspace.

Han, Li, Lin and Zhang, JMLR 2024, Algorithm 1. Choose it when messages must be tiny, when some
clients may be malicious (p = 1), or when the data are too unlike for one model. Costs per round:
`dim` numbers down to every client and up from each sampled one; at most R * steps gradients at
every client. Keeps: the client's model. P is made from the seed on every side and never sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import projections
from ..core.knobs import OtherThan, knob
from ..core.tensors import power
from ..core.types import State
from ..method import Combine, Traits
from ..projections import Projection
from ..projections.report import describe
from ..solvers import INNER, Accuracy, minimise
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from .options import UNTIED, Averaging, init_knob, own_models, tie_step

DIM = 21  # of the papers


@dataclass(frozen=True)
class LpProj(Averaging):
    """Personal models tied in L^p to a shared point of a random subspace. For tiny messages."""

    traits = Traits(
        data_through_gradients=True,
        sends="dim",
        trains="everyone",
        shares_statistics=False,
        row_messages=True,
        rates=("lr", "share", "personal_lr"),
        counters=INNER,
        fixed_step="eq. (3) is solved to accuracy ν by gradient descent (`nu`, `steps`), and "
        "eq. (4) is a plain step",
        presets={
            # of its Appendix C.2, where η is 0.05, 0.1 or 0.5 and λ 0.1, 1 or 10
            "paper": {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "alternations": 1, "steps": 20}
        },
        reductions={"lam": UNTIED, "steps": "the personal models stay as they start"},
    )

    p: float = knob(1.0, "the norm: (λ/p) ||w - P x||_p^p", low=1)
    dim: int = knob(
        DIM,
        "d_sub, dimension of the shared subspace; 0 = d, for projection 'identity'; "
        "the default is lowered to half of d for a model that has fewer parameters",
        low=0,
    )
    lam: float = knob(0.1, "λ, strength of the tie; 0 is Local", low=0)
    lr: float = knob(
        0.0,
        "η, step size of the shared point, eq. (4); 0 = share / (λ R) with p = 2, with another p "
        "that of the personal model",
        low=0,
    )
    share: float = knob(
        1.0,
        "where lr is 0 and p 2: the part of its gap w - P x that the shared point moves per round",
        above=0,
        acts_with={"lr": 0.0, "p": 2.0},
    )
    personal_lr: float = knob(0.1, "step size of the personal model, eq. (3)", above=0)
    alternations: int = knob(1, "R, alternations of (3) and (4) per round", low=1)
    steps: int = knob(20, "most gradient steps on (3) per alternation", low=0)
    nu: float = knob(
        1e-10,
        "ν: (3) is solved when its squared gradient norm is at most this",
        low=0,
        acts_with={"fresh": False},
    )
    nu_relative: float = knob(
        0.0,
        "ν as a part of the first squared gradient norm of (3); the larger of both counts, and "
        "with many steps it decides, not their number",
        low=0,
        below=1,
        acts_with={"fresh": False},
    )
    fresh: bool = knob(
        False,
        "a new mini-batch every step, as in the public code; the paper keeps one for each (3)",
    )
    server_rate: float = knob(1.0, "β: w <- (1 - β) w + β mean", above=0)
    w_step: str = knob(
        "paper",
        "eq. (4), or the public code's step along the norm's gradient",
        choices=("paper", "code"),
        acts_with={"p": OtherThan(1.0)},
    )
    weighting: str = knob(
        "equal",
        "mean over the sampled clients: equal (the paper) or by samples",
        choices=("equal", "samples"),
    )
    projection: str = knob(
        "gaussian",
        "the kind of P; dense kinds for small models only",
        choices=tuple(projections.PROJECTIONS),
    )
    blocks: int = knob(
        0,
        "projections block and layers: how many blocks (in each layer); 0 = one per dimension",
        low=0,
    )
    reuse: bool = knob(False, "projection block: one block serves for all")
    dims: str = knob(
        "", "projection layers: dimensions of each layer, 20,1,...; empty: shared out by size"
    )
    per_column: int = knob(1, "projection sparse: entries per column", low=1)
    init: str = init_knob()
    w_start: str = knob(
        "zero",
        "the shared point starts at 0 (the public code), or at P x0, so that P = I is pFedMe",
        choices=("zero", "x0"),
    )

    def refine(self, traits: Traits) -> Traits:
        if self.p == 1:  # signs alone
            return traits
        disclosed = (
            "w - ηλ ∂||w - P x|| is sent, and w and P are known: P x follows from it, and x where "
            "P has an inverse"
        )
        return replace(traits, discloses=disclosed)

    def check(self, task: Task) -> None:
        projections.check(self.spec(task), task.d)
        self._projection(task)

    def spec(self, task: Task) -> projections.Spec:
        """Which P; in a space smaller than the default dimension, one of half its size."""
        dim = self.dim
        if self._lowered(task):
            dim = max(1, task.d // 2)
        return projections.Spec(
            self.projection, dim, self.blocks, self.reuse, self.dims, self.per_column
        )

    def _lowered(self, task: Task) -> bool:
        """Whether the default dimension is too large for the model; one that was given is not."""
        return self.dim == DIM > task.d and self.projection != "identity" and not self.dims

    def _projection(self, task: Task) -> Projection:
        return projections.make_projection(
            self.spec(task), task.layout.starts, task.seed, task.dtype, task.device
        )

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d if self.projection == "identity" else self.spec(task).dim}

    def server(self, task: Task) -> State:
        """Line 1, w_0: the paper leaves it open."""
        if self.w_start == "x0":
            return {"w": self._projection(task).down(task.x0.unsqueeze(0))[0].clone()}
        return {"w": task.x0.new_zeros(self.message(task)["w"])}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def pull(self, gap: Tensor) -> Tensor:
        """The derivative of (1/p) ||gap||_p^p, with sign(0) = 0."""
        if self.p == 1:
            return gap.sign()
        return gap if self.p == 2 else gap.sign() * power(gap.abs(), self.p - 1)

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        """What P is like: singular values, memory, time, bytes."""
        if self.projection == "identity":
            return {}
        starts = task.layout.starts
        spec = self.spec(task)
        facts = describe(spec, starts, clients, heard, task.dtype, task.seed)
        if self._lowered(task):
            lowered = (
                f"dim: the model has {task.d} parameters, fewer than the {DIM} of the default; "
                f"{spec.dim} are used"
            )
            facts["warning"] = "; ".join(filter(None, (lowered, facts["warning"])))
        return {"projection": facts}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        P = self._projection(task)
        x = private["x"]
        w = down["w"].expand(here.rows, -1)
        step = self._step()
        for _ in range(self.alternations):
            x = self._minimise(task, P, x, w, here)
            w = w - step * self._pull_of_w(w - P.down(x))  # eq. (4)
        return {"w": w}, {"x": x}

    def _step(self) -> float:
        """ηλ of eq. (4)."""
        lr = self.lr if self.lr or self.p == 2 else self.personal_lr
        return tie_step(lr, self.lam, self.share, self.alternations)

    def _minimise(self, task: Task, P: Projection, x: Tensor, w: Tensor, here: Here) -> Tensor:
        """Line 7: h(x) = f(x; D) + (λ/p) ||w - P x||_p^p, eq. (3).

        By gradient descent to accuracy ν or a cap on steps.
        """

        def gradient(x: Tensor, batch: Batch) -> Tensor:
            g = task.grad(x, batch)
            return P.add_up(g, -self.lam * self.pull(w - P.down(x))) if self.lam else g

        accuracy = Accuracy(self.nu, self.nu_relative)
        return minimise(gradient, x, here, self.personal_lr, self.steps, accuracy, self.fresh)

    def _pull_of_w(self, gap: Tensor) -> Tensor:
        if self.w_step == "paper" or self.p == 1:
            return self.pull(gap)
        # the public code: the derivative of ||gap||_p
        size = torch.linalg.vector_norm(gap, self.p, dim=-1, keepdim=True)
        return self.pull(gap / torch.where(size > 0, size, 1))

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        mean = self.average(server, up, rule)["w"]
        return {"w": (1 - self.server_rate) * server["w"] + self.server_rate * mean}  # line 12

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["x"]
