"""One federation of the logistic instance, and every method's excess risks on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import FedAvg, Federation, FedProxSoft, Local, LpProj, Method, iterate, run
from idiolect.data.sets.regression import LogisticRegression

from ..closed_forms import logistic
from ..runs import Work

BALL = 2.0  # W = {||w|| <= 2}: all w*_i lie in it
ROUNDS = 25  # of full gradients; seed 0 also says how far that is from the exact minimiser
LOCAL_STEPS = 100
Place = tuple[int, int, float]  # m, n, R
INNER_STEPS = 8  # per round of FedProx and lp-proj, from where the last round ended


@dataclass(frozen=True)
class AlternativeSize:
    """The grid. `tuned` are the (m, n) at which FedProx and lp-proj run too."""

    clients: tuple[int, ...] = (16, 48, 144)  # m
    samples: tuple[int, ...] = (50, 150, 450, 1350)  # n = N/m
    radii: tuple[float, ...] = tuple(0.02 * 2**k for k in range(7))  # R
    seeds: int = 6
    tuned: tuple[tuple[int, int], ...] = ((48, 50), (48, 150), (48, 450))
    tuned_seeds: int = 3
    lams: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # λ to choose from
    features: int = 4  # d
    dim: int = 2  # d_sub of lp-proj

    def cells(self) -> Iterator[LogisticCell]:
        for m in self.clients:
            for n in self.samples:
                for radius in self.radii:
                    for seed in range(self.seeds):
                        tuned = (m, n) in self.tuned and seed < self.tuned_seeds
                        lams = self.lams if tuned else ()
                        yield LogisticCell(m, n, radius, seed, self.features, self.dim, lams)


def instance(
    clients: int, samples: int, radius: float, seed: int, features: int
) -> LogisticRegression:
    """`samples` to train on, a quarter as many more to choose λ on."""
    valid = samples // 4
    return LogisticRegression(
        clients=clients,
        samples=samples + valid,
        features=features,
        bound=2.0,
        design="signs",
        norm=0.5,
        radius=radius,
        places="sphere",
        valid=valid / (samples + valid),
        test=0.0,
        seed=seed,
    )


@dataclass(frozen=True)
class LogisticCell(Work):
    """All methods on one federation; FedProx and lp-proj where there are λ to choose from."""

    clients: int
    samples: int
    radius: float
    seed: int
    features: int
    dim: int
    lams: tuple[float, ...]

    @property
    def place(self) -> Place:
        return self.clients, self.samples, self.radius

    def cost(self) -> float:
        return (1 + 5 * len(self.lams)) * (20_000 + self.clients * self.samples)

    def describe(self) -> str:
        return f"m = {self.clients}, n = {self.samples}, R = {self.radius:g}, seed {self.seed}"

    @cached_property
    def drawn(self) -> tuple[LogisticRegression, Federation, Tensor]:
        """The instance, a federation of it and its truth."""
        s = instance(self.clients, self.samples, self.radius, self.seed, self.features)
        return s, *s.draw()

    def train(self) -> dict[str, Any]:
        """{method: {aer, ier90, ...}}."""
        s, federation, truth = self.drawn
        exact = self.seed == 0
        beta = logistic.smoothness(federation)
        out: dict[str, Any] = {
            "fedavg": self.score(FedAvg(lr=1 / beta, steps=1, ball=BALL), ROUNDS)[0],
            "local": self.score(Local(lr=1 / beta, steps=LOCAL_STEPS, ball=BALL), 1)[0],
        }
        if exact:
            w = logistic.fedavg(federation, BALL).expand_as(truth)
            out["fedavg"]["exact"] = self.risks(w)["aer"]
            out["local"]["exact"] = self.risks(logistic.local(federation, BALL))["aer"]
        if not self.lams:
            return out
        m, n = self.clients, int(federation.sizes("train")[0])
        mu = logistic.constants(s, truth).mu
        one = torch.ones(m)
        for name, lam in (
            ("fedprox 4.4", logistic.lam_for_aer(mu, s.radius, one, n * one)),
            ("fedprox 4.5", logistic.lam_for_ier(mu, s.radius, m, m * n)),
        ):
            out[name] = self.score(soft(lam, beta), ROUNDS)[0] | {"lam": lam}
            if exact:
                _, x = logistic.fedprox(federation, lam, BALL)
                out[name]["exact"] = self.risks(x)["aer"]
        out["fedprox"] = self.validated({lam: soft(lam, beta) for lam in self.lams})
        out["lp-proj"] = self.validated({lam: tied(lam, beta, self.dim) for lam in self.lams})
        return out

    def validated(self, methods: dict[float, Method]) -> dict[str, Any]:
        """The method whose λ has the least loss on validation data."""
        scores = {lam: self.score(method, ROUNDS) for lam, method in methods.items()}
        best = min(scores, key=lambda lam: scores[lam][1])
        return scores[best][0] | {"lam": best}

    def score(self, method: Method, rounds: int) -> tuple[dict[str, Any], float]:
        """Excess risks after a run with full gradients, and its loss on validation data."""
        s, federation, _ = self.drawn
        result = run(
            method,
            logistic.task(s),
            federation,
            rounds=rounds,
            sample=self.clients,
            batching="full",
            dtype="float64",
            seed=self.seed,
            eval_every=0,
            threads=1,
            progress=False,
        )
        x = result.session().personal_rows()
        return self.risks(x), float(result.seeds[0].final["valid"]["loss"])

    def risks(self, x: Tensor) -> dict[str, Any]:
        s, _, truth = self.drawn
        each = logistic.ier(s, truth, x)
        return {"aer": float(logistic.aer(each)), "ier90": float(each.quantile(0.9))}


def soft(lam: float, beta: float) -> FedProxSoft:
    """FedProx, solved: η_t = (λ + β) / (λ β), one over the smoothness of its outer problem."""
    return FedProxSoft(
        lam=lam,
        lr=1 / (beta + lam),
        steps=INNER_STEPS,
        final_steps=50,
        server_rate=(lam + beta) / beta,
        ball=BALL,
    )


def tied(lam: float, beta: float, dim: int) -> LpProj:
    """lp-proj-2, solved in the same way: with η λ = 1 a client sends P x."""
    return LpProj(
        p=2,
        dim=dim,
        projection="contiguous",  # P P^T = I, which no random P of so few dimensions is near
        lam=lam,
        lr=1 / lam,
        personal_lr=1 / (beta + lam),
        steps=INNER_STEPS,
        server_rate=(lam + beta) / beta,
    )


# -- Algorithm 3 with the step sizes of Theorem 4.4 -----------------------------------------------

LAM = 1.0
RADIUS = 0.16
FEATURES = 4


@dataclass(frozen=True)
class Descent(Work):
    """One seed: ||w_t - w~||² over rounds, with sampled clients and mini-batches.

    K_t = 20 + 4 t is the form of (B.4) with the constant β²/μ² left out.
    """

    seed: int
    clients: int = 48
    samples: int = 150
    sample: int = 12
    batch: int = 10
    rounds: int = 100

    def cost(self) -> float:
        return 300 * self.rounds**2

    def describe(self) -> str:
        return f"Theorem 4.4's steps, seed {self.seed}"

    def train(self) -> dict[str, Any]:
        s = instance(self.clients, self.samples, RADIUS, self.seed, FEATURES)
        federation, truth = s.draw()
        mu = logistic.constants(s, truth).mu
        method = FedProxSoft(
            lam=LAM,
            lr=1 / (mu + LAM),  # η_t,k = 1 / ((μ + λ)(k + 1))
            step_rule="inverse",
            server_rate=2 * (mu + LAM) / mu,  # λ η_t = 2 (μ + λ) / (μ (t + 1))
            steps=20,
            ball=BALL,
        )
        target, _ = logistic.fedprox(federation, LAM, BALL)
        states = iterate(
            method,
            logistic.task(s),
            federation,
            rounds=self.rounds,
            sample=self.sample,
            batch=self.batch,
            schedule="steps=grow:0.2 + server_rate=inverse:1",
            dtype="float64",
            seed=self.seed,
        )
        gaps = [float(((state.server["w"].cpu() - target) ** 2).sum()) for state in states][1:]
        return {"gaps": gaps}


def slope(gaps: np.ndarray, first: int = 8) -> float:  # gaps[T] after rounds 1 ... T
    """d log gap / d log t from round `first` on.

    >>> round(slope(np.arange(1, 65) ** -1.0), 6)
    -1.0
    """
    t = np.arange(1, len(gaps) + 1)[first - 1 :]
    return float(np.polyfit(np.log(t), np.log(gaps[first - 1 :]), 1)[0])
