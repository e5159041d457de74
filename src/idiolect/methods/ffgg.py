"""FFGG: fine-tuning followed by a global gradient; Local FFGG; solvers for the private part.

Algorithms 1 and 2 of its paper, and Algorithm 4; with a robust rule Algorithm 5. Choose it when the
private part can fit each client's data and clients keep nothing between rounds (phones). Costs per
round: the shared part each way for each sampled client; `steps` + 1 gradients. Stateless: clients
solve for their private part in each round, and before use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import OtherThan, SettingError, knob
from ..core.types import State
from ..method import Combine, Traits
from ..solvers import turns
from ..task.batches import Batch
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .options import steps_knob
from .partial import Partial, step

SOLVERS = ("sgd", "gd", "adam", "cg", "newton", "exact")
OF_GRADIENTS = ("sgd", "gd", "adam")  # those that need no second derivatives
OF_EPOCHS = ("sgd", "adam")  # those that take a fresh mini-batch per step
STARTS = ("random", "common", "kept")


@dataclass(frozen=True)
class Ffgg(Partial):
    """Clients solve for their private part and send one gradient of the shared part. Stateless."""

    traits = replace(
        Partial.traits,
        data_through_gradients=True,
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
        choices=SOLVERS,
    )
    private_lr: float = knob(
        0.5,
        "γ_w, step size of the solver (sgd, gd, adam)",
        above=0,
        acts_with={"solver": ("sgd", "gd", "adam")},
    )
    steps: int = knob(
        20, "τ, steps of the solver", low=0, acts_with={"epochs": 0, "solver": OtherThan("newton")}
    )
    epochs: int = knob(
        0,
        "passes over the client's data that the solver (sgd, adam) makes, in place of steps; "
        "0 = use steps",
        low=0,
    )
    start: str = knob(
        "random",
        "where the private part starts each round: random (the paper), common, or kept",
        choices=STARTS,
    )

    def refine(self, traits: Traits) -> Traits:
        start = {"random": "a random start", "common": "its initial values", "kept": "its start"}
        words = f"the private part is not fine-tuned, and stays at {start[self.start]}"
        return replace(
            traits,
            reductions={"steps": words},
            data_through_gradients=traits.data_through_gradients and self.solver in OF_GRADIENTS,
        )

    def alone(self) -> str:
        if self.start == "kept":
            return "this is Local, with a round's steps once more before use"
        start = "a random start" if self.start == "random" else "the initial model"
        return f"every client trains alone, restarted from {start} each time: Local without rounds"

    def together(self) -> str:
        return "this is FedAvg with one step per round, and clients that weigh the same"

    def check(self, task: Task) -> None:
        super().check(task)
        if self.epochs and self.solver not in OF_EPOCHS:
            raise SettingError(
                f"epochs must be 0 with solver {self.solver!r}, got {self.epochs}: it works "
                f"on one mini-batch; 0, or one of the solvers {', '.join(OF_EPOCHS)}"
            )

    def solve(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        """Line 4: w ≈ argmin f(θ, w)."""
        split = self.split(task)
        w = start(task, split, private["w"], here, self.start)
        theta = down["theta"]
        how = (self.solver, self.private_lr, self.steps, self.epochs)
        return solve(task, split, theta, w, here, *how)

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
    private_lr: float = knob(0.5, "γ_w, step size of the solver and of the local steps", above=0)
    steps: int = knob(
        100, "τ, steps of the solver", low=0, acts_with={"epochs": 0, "solver": OtherThan("newton")}
    )
    local_steps: int = steps_knob(
        5, "K, alternations of private and shared step", epochs="local_epochs"
    )
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


# -- the private part: w ≈ argmin f(θ, w), all rows at once (line 4 of Algorithm 1) ----------------
def start(task: Task, split: Split, w: Tensor, here: Here, how: str) -> Tensor:  # -> w[K, d_w]
    """Where the private part starts each round.

    At a new random initialisation ("random"), at the initial one ("common"), or where it was
    ("kept").
    """
    if how == "kept":
        return w
    if how == "common":
        return split.parts(task.x0)[1].repeat(here.rows, 1)
    return split.parts(task.draw(here.keys("private start")))[1]


def solve(
    task: Task,
    split: Split,
    theta: Tensor,
    w: Tensor,
    here: Here,
    solver: str,
    lr: float,
    steps: int,
    epochs: int = 0,
) -> Tensor:
    """The private part w[K, d_w] after at most `steps` steps of a solver.

    sgd and adam take a fresh mini-batch per step, and with `epochs` > 0 as many steps as these
    passes over each client's own data have; gd, cg, newton and exact work on one (with
    batching "full", on all data). newton is one step with the whole Hessian of w, cg at most
    `steps` conjugate-gradient steps on the same system: both are exact for a quadratic loss. exact
    takes Newton steps until the gradient is at rounding level, at most `steps`.
    """
    if not w.shape[-1] or not (steps or epochs):
        return w
    if solver == "exact":
        return _newton_until_solved(task, split, theta, w, here.draw(), steps)
    if solver in ("cg", "newton"):
        batch = here.draw()
        x = split.join(theta, w)
        g = split.parts(task.grad(x, batch))[1]
        hessian = _Hessian(task, split, x, batch)
        return w - (_conjugate(hessian, g, steps) if solver == "cg" else hessian.newton(g))
    fixed = here.draw() if solver == "gd" else None
    m = torch.zeros_like(w)
    v = torch.zeros_like(w)
    for t, active in enumerate(turns(here, steps, epochs), 1):
        batch = fixed or here.draw()
        if active is not None:
            batch = batch.only(active.to(w.device))
        g = split.parts(task.grad(split.join(theta, w), batch))[1]
        if solver == "adam":  # Kingma and Ba 2015, defaults
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            g = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        if batch.active is not None:
            g = g * batch.active.unsqueeze(-1)
        w = torch.add(w, g, alpha=-lr)
    return w


def _newton_until_solved(
    task: Task, split: Split, theta: Tensor, w: Tensor, batch: Batch, steps: int
) -> Tensor:
    """Newton steps, every row its own: one that is solved to rounding stays where it is."""
    tiny = 1e3 * torch.finfo(w.dtype).eps
    first: Tensor | None = None
    for _ in range(steps):
        x = split.join(theta, w)
        g = split.parts(task.grad(x, batch))[1]
        size = g.norm(dim=-1)
        first = size if first is None else first
        going = ~(size <= tiny * first)  # a NaN is not solved: it must reach the message
        if batch.active is not None or not bool(going.all()):
            batch = batch.only(going)
        if batch.active is not None and not bool(batch.active.any()):
            break
        step = _Hessian(task, split, x, batch).newton(g)
        going = going if batch.active is None else batch.active
        w = torch.where(going.unsqueeze(-1), w - step, w)
    return w


class _Hessian:
    """v -> ∇²_ww f v, through the Hessian-vector product of the whole model."""

    def __init__(self, task: Task, split: Split, x: Tensor, batch: Batch):
        self.task = task
        self.split = split
        self.x = x
        self.batch = batch

    def __call__(self, v: Tensor, active: Tensor | None = None) -> Tensor:
        """The product for all rows; only the active ones count it."""
        batch = self.batch if active is None else self.batch.only(active)
        full = self.split.join(self.x.new_zeros(len(self.x), len(self.split.theta)), v)
        return self.split.parts(self.task.hvp(self.x, full, batch))[1]

    def newton(self, g: Tensor) -> Tensor:
        """H⁺ g with the whole Hessian: where many w fit, the one nearest to the start."""
        eye = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        columns = [self(e.expand(len(self.x), -1)) for e in eye]
        matrix = torch.stack(columns, dim=-1)  # [K, d_w, d_w]
        rtol = 1e3 * torch.finfo(g.dtype).eps
        inverse = torch.linalg.pinv(matrix, rtol=rtol, hermitian=True)
        return (inverse @ g.unsqueeze(-1)).squeeze(-1)


def _conjugate(product: _Hessian, b: Tensor, steps: int) -> Tensor:
    """At most `steps` conjugate-gradient steps on H z = b from z = 0, every row its own.

    A row stays where it is, and counts no more products, once its residual is at rounding level, or
    once its direction has no curvature beyond rounding.
    """
    tiny = 1e3 * torch.finfo(b.dtype).eps
    z = torch.zeros_like(b)
    r = b  # residual
    p = b  # direction
    rr = first = (r * r).sum(-1, keepdim=True)
    steepest = torch.zeros_like(rr)  # the largest curvature met so far
    solved = rr == 0
    for _ in range(steps):
        solved = solved | (rr <= tiny**2 * first)
        if bool(solved.all()):
            break
        hp = product(p, ~solved.squeeze(-1) if bool(solved.any()) else None)
        curvature = (p * hp).sum(-1, keepdim=True)
        pp = (p * p).sum(-1, keepdim=True)
        relative = curvature / torch.where(pp > 0, pp, 1)
        steepest = torch.maximum(steepest, torch.where(solved, 0, relative))
        solved = solved | (curvature <= tiny * steepest * pp)
        alpha = torch.where(solved, 0, rr / torch.where(solved, 1, curvature))
        z = z + alpha * p
        r = r - alpha * hp
        new = torch.where(solved, rr, (r * r).sum(-1, keepdim=True))
        p = torch.where(solved, p, r + new / torch.where(rr > 0, rr, 1) * p)
        rr = new
    return z
