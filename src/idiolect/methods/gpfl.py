"""GPFL: every client learns features for all and for itself, by two routes through one valve.

Zhang, Hua, Wang, Song, Xue, Ma, Cao and Guan 2023 (ICCV). Choose it where clients have other shares
of the classes and their personal models should not lose what all have in common. Behind the body a
conditional valve makes two versions of the features: one, under the mean embedding of the classes,
is guided by embeddings of the classes that all clients share; the other, under the mean by the
client's own shares of the classes, goes to the client's own head. Costs per round: body, valve and
embeddings, d + 2 (F² + 3 F) + C F numbers without the head, each way for each sampled client (C
classes, F features); `steps` gradients. Keeps: the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, knob
from ..core.parts import parts_of
from ..core.types import State
from ..method import Traits
from ..solvers import moved, turns
from ..task.batches import Batch
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from ..task.term import Pass, Term
from .classifier import check_classes, in_classes, labels
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob

CONDITIONS = ("general", "own")  # what the valve is told: never trained, set by every client


class Valve(nn.Module):
    """CoV: σ((γ + 1) ⊙ f + β), with γ and β made of a condition."""

    def __init__(self, features: int):
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features))
            for _ in range(2)
        )

    def forward(self, f: Tensor, condition: Tensor) -> Tensor:
        return torch.relu((self.gamma(condition) + 1) * f + self.beta(condition))


class Routes(nn.Module):
    """In place of a model's last layer: that layer behind a valve, with embeddings of the classes.

    `guide` returns what the losses of the shared route take: the cosines of f^G to all embeddings,
    and f^G.
    """

    def __init__(self, head: nn.Linear):
        super().__init__()
        features = head.in_features
        self.valve = Valve(features)
        self.embeddings = nn.Parameter(torch.randn(max(head.out_features, 2), features))
        self.general, self.own = (nn.Parameter(torch.zeros(features)) for _ in CONDITIONS)
        self.guide = nn.Identity()
        self.head = head

    def forward(self, f: Tensor) -> Tensor:
        shared = self.valve(f, self.general)
        cosines = F.normalize(shared, dim=-1) @ F.normalize(self.embeddings, dim=-1).T
        self.guide(torch.cat([cosines, shared], dim=-1))
        return self.head(self.valve(f, self.own))


@dataclass(frozen=True)
class Gpfl(Averaging):
    """Shared and personal features by two routes of one model. For unlike shares of classes."""

    traits = Traits(
        sends="d + 2 F² + (C + 6) F, no head",
        shared_name="theta",
        row_messages=True,
        optimizers=("theta",),
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    lam: float = knob(0.01, "λ, pull of shared features to the received embeddings", low=0)
    mu: float = knob(0.1, "μ, weight decay of valve and embeddings", low=0)
    distance: str = knob(
        "samples",
        "the pull's length: the mean over samples (the paper), or that of a mini-batch as one "
        "vector (its code)",
        choices=("samples", "batch"),
    )
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def extend(self, module: nn.Module) -> nn.Module:
        names = parts_of(module, [name for name, _ in module.named_parameters()]).head
        path = names[0].rpartition(".")[0] if names else ""
        head = module.get_submodule(path)
        if not isinstance(head, nn.Linear):
            raise SettingError(
                f"model must have a linear last layer for this method, got {type(head).__name__}"
            )
        if not all(p.requires_grad for p in head.parameters()):
            raise SettingError(f"frozen must leave the last layer out, got {', '.join(names)}")
        if not path:
            return Routes(head)
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, Routes(head))
        return module

    def check(self, task: Task) -> None:
        check_classes(task)

    # -- the parts of a model --------------------------------------------------------------------
    def trained(self, task: Task) -> Split:
        """What is trained (theta), and the conditions, which clients set by themselves (w)."""
        return part(task, *CONDITIONS)

    def sent(self, task: Task) -> Tensor:
        """The places of what is sent: all but head and conditions."""
        return part(task, *CONDITIONS, "head.*").theta

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return {"theta": self.trained(task).theta}

    def message(self, task: Task) -> dict[str, int]:
        return {"theta": len(self.sent(task))}

    def server(self, task: Task) -> State:
        return {"theta": task.x0[self.sent(task)]}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"head": task.x0[part(task, "head.*").w].repeat(len(clients), 1)}

    # -- the clients -----------------------------------------------------------------------------
    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = self.personal(task, down, private, here)
        guide = Term(self.guide, routes_of(task)[0] + "guide", {"received": embeddings_of(task, x)})
        split = self.trained(task)
        theta, conditions = split.parts(x)
        decay = torch.zeros_like(task.x0)
        decay[part(task, "valve.*", "embeddings").w] = self.mu
        decay = split.parts(decay)[0]
        by = here.optimise.begin("theta", theta, self.lr) if here.optimise else None
        for active in turns(here, self.steps, self.epochs):
            batch = here.draw()
            batch = batch if active is None else batch.only(active.to(x.device))
            # L = L^P + L^alg + λ L^mlg, and μ / 2 (||V||² + ||C||²)
            g = task.grad(split.join(theta, conditions), batch, guide)
            theta = moved(theta, split.parts(g)[0] + decay * theta, self.lr, by, active)
        x = split.join(theta, conditions)
        return {"theta": x[:, self.sent(task)]}, {"head": x[:, part(task, "head.*").w]}

    def guide(self, run: Pass, rows: State) -> Tensor:
        """L^alg = -log softmax(cos(f^G, C))_y and λ L^mlg = λ ||f^G - Ĉ_y||: [K, B] or [K]."""
        assert run.features is not None
        received = rows["received"]  # [K, C, F]
        cosines, f = run.features.split(received.shape[1:], dim=-1)
        y = labels(run.targets).unsqueeze(-1)
        angle = -cosines.log_softmax(-1).gather(-1, y).squeeze(-1)
        gap = f - received.gather(1, y.expand(-1, -1, f.shape[-1]))
        if self.distance == "samples":
            return angle + self.lam * gap.norm(dim=-1)
        real = (run.weights > 0).unsqueeze(-1)
        return (angle * run.weights).sum(1) + self.lam * (gap * real).flatten(1).norm(dim=-1)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        x = task.x0.repeat(here.rows, 1)
        x[:, self.sent(task)] = down["theta"].expand(here.rows, -1)
        x[:, part(task, "head.*").w] = private["head"]
        received = embeddings_of(task, x)
        classes = received.shape[1]

        def shares_of(k: Tensor, samples: Batch) -> State:
            return {"shares": in_classes(samples.targets, samples.weights, classes).sum(1)}

        blank = {"shares": x.new_zeros(here.rows, classes)}  # of clients without samples
        shares = (blank | here.of_training_samples(shares_of))["shares"]
        # g = Σ_u Ĉ_u / U;  p_i = Σ_u α_i^u Ĉ_u, α_i^u the share of class u at the client
        x[:, part(task, "general").w] = received.mean(1)
        x[:, part(task, "own").w] = (shares.unsqueeze(-1) * received).sum(1)
        return x


def routes_of(task: Task) -> tuple[str, Routes]:
    """What `extend` has put in place of the last layer, behind the beginning of its names."""
    path, routes = next((n, m) for n, m in task.module.named_modules() if isinstance(m, Routes))
    return f"{path}." if path else "", routes


def part(task: Task, *names: str) -> Split:
    """The places of these parameters of it (w), and all others (theta)."""
    beginning = routes_of(task)[0]
    return task.split(",".join(beginning + name for name in names))


def embeddings_of(task: Task, x: Tensor) -> Tensor:  # x[K, d] -> [K, C, F]
    """The embeddings of the classes in models."""
    return x[:, part(task, "embeddings").w].unflatten(1, routes_of(task)[1].embeddings.shape)
