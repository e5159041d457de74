"""pFedBayes: every client has a distribution of models, tied to one that all share.

Zhang, Li, Li, Guo and Shao 2022 (ICML). Choose it where clients have few samples: every weight has
a mean and a standard deviation, the loss is that of models drawn from them, and the divergence of
Kullback and Leibler from the shared distribution holds them where the client's data say little. A
step moves the client's own posterior q, then its copy w of the shared distribution towards q; the
copy is sent. Costs per round: 2 d numbers each way for each sampled client; draws * steps
gradients. Keeps: the posterior, 2 d numbers. It predicts with the posterior's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.streams import Keys
from ..core.types import State
from ..method import Traits
from ..solvers import moved, turns
from ..task.context import Here
from ..task.task import Task
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob


@dataclass(frozen=True)
class PFedBayes(Averaging):
    """Gaussian posteriors tied to a shared distribution by their divergence. For few samples."""

    traits = Traits(
        data_through_gradients=True,
        sends="2 d",
        rates=("lr", "shared_lr"),
        row_messages=True,
        optimizers=("mu", "rho", "shared_mu", "shared_rho"),
        shares_statistics=False,
        discloses="its mean draws the one that is sent to itself, by a part that the server sets",
        reductions={
            "zeta": "nothing ties the posteriors: each client trains its own, of those heard",
            "steps": "no model is trained",
        },
    )

    lr: float = knob(0.1, "step size of the posterior", above=0)
    shared_lr: float = knob(0.1, "step size of the client's copy of the shared distribution", low=0)
    steps: int = steps_knob(20, "R, steps of both per round")
    epochs: int = epochs_knob()
    zeta: float = knob(1.0, "ζ, weight of the divergence, against n_i samples of the loss", low=0)
    draws: int = knob(1, "K, models drawn from the posterior per step", low=1)
    rho: float = knob(-2.5, "ρ at the start: standard deviations are log(1 + exp(ρ))")
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def message(self, task: Task) -> dict[str, int]:
        return {"w": 2 * task.d}

    def start(self, task: Task) -> Tensor:  # -> [2 d]
        """(μ, ρ) of the shared distribution before round 0, and of every posterior."""
        return torch.cat([task.x0, torch.full_like(task.x0, self.rho)])

    def server(self, task: Task) -> State:
        return {"w": self.start(task)}

    def shared(self, task: Task, down: State) -> Tensor | None:
        return down["w"][: task.d]

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"q": self.start(task).repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        q = GaussianModels(*private["q"].chunk(2, dim=1))
        w = GaussianModels(*down["w"].expand(here.rows, -1).chunk(2, dim=1))
        zeta = self.zeta / sample_counts(here).to(q.mu)
        noise = here.keys("posterior")
        begin = here.optimise.begin if here.optimise else None
        by_mu, by_rho = (begin(n, v, self.lr) if begin else None for n, v in q._asdict().items())
        shared = {f"shared_{n}": v for n, v in w._asdict().items()}
        by_w = [begin(n, v, self.shared_lr) if begin else None for n, v in shared.items()]
        for j, active in enumerate(turns(here, self.steps, self.epochs)):
            batch = here.draw()
            batch = batch if active is None else batch.only(active.to(q.mu.device))
            slope = GaussianModels(torch.zeros_like(q.mu), torch.zeros_like(q.rho))
            for k in range(self.draws):
                g = normal_rows(noise, j * self.draws + k, task).to(q.mu)
                # θ = h(v, g) = μ + log(1 + exp(ρ)) g
                by_theta = task.grad(q.mu + q.sigma * g, batch) / self.draws
                slope = GaussianModels(slope.mu + by_theta, slope.rho + by_theta * g * q.slope)
            # q <- q - η ∇_q (-E_q log p(D_i | θ) + ζ KL(q || w)) / n_i
            tie = divergence_slopes(q, w)[0]
            mu = moved(q.mu, slope.mu + zeta * tie.mu, self.lr, by_mu, active)
            rho = moved(q.rho, slope.rho + zeta * tie.rho, self.lr, by_rho, active)
            q = GaussianModels(mu, rho)
            # w <- w - η ∇_w ζ KL(q || w) / n_i
            tie = divergence_slopes(q, w)[1]
            mu = moved(w.mu, zeta * tie.mu, self.shared_lr, by_w[0], active)
            rho = moved(w.rho, zeta * tie.rho, self.shared_lr, by_w[1], active)
            w = GaussianModels(mu, rho)
        return {"w": torch.cat(w, dim=1)}, {"q": torch.cat(q, dim=1)}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["q"][:, : task.d]


class GaussianModels(NamedTuple):
    """Distributions of models, each number by itself: N(μ, σ²), σ = log(1 + exp(ρ)).

    torch's softplus and sigmoid give a row other last bits beside other rows; exp and log1p do not.
    """

    mu: Tensor  # [K, d]
    rho: Tensor  # [K, d]

    @property
    def sigma(self) -> Tensor:
        return self.rho.clamp(min=0) + (-self.rho.abs()).exp().log1p()

    @property
    def slope(self) -> Tensor:
        """dσ/dρ, the sigmoid of ρ."""
        return 1 / (1 + (-self.rho).exp())


def divergence_slopes(
    q: GaussianModels, w: GaussianModels
) -> tuple[GaussianModels, GaussianModels]:
    """The gradients of KL(q || w) in q and in w.

    KL = Σ log(σ_w / σ_q) + (σ_q² + (μ_q - μ_w)²) / (2 σ_w²) - 1/2.
    """
    precision = 1 / w.sigma.square()
    gap = q.mu - w.mu
    by_q = (q.sigma * precision - 1 / q.sigma) * q.slope
    square = q.sigma.square() + gap.square()
    by_w = (1 - square * precision) / w.sigma * w.slope
    return GaussianModels(gap * precision, by_q), GaussianModels(-gap * precision, by_w)


def normal_rows(keys: Keys, number: int, task: Task) -> Tensor:  # -> [K, d]
    """The standard normal numbers of the draw with that number, from each client's own stream."""
    width = task.d + task.d % 2  # numbers of a stream are drawn in pairs
    return torch.from_numpy(streams.normal(keys, task.d, number * width))


def sample_counts(here: Here) -> Tensor:  # -> [K, 1]
    """n_i: how many training samples each client has; 1 where it has none."""
    return here.samples.clamp(min=1).unsqueeze(1)
