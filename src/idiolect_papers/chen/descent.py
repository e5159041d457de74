"""Algorithm 3 with the step sizes of Theorem 4.4: how fast its global model converges."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from idiolect.core.knobs import build
from idiolect.methods import FedProxSoft
from idiolect.run.session import Session
from idiolect.run.settings import Settings

from ..closed_forms import logistic
from .cells import BALL, code, instance

LAM = 1.0
RADIUS = 0.16
FEATURES = 4


@dataclass(frozen=True)
class Descent:
    """One seed: ||w_t - w~||² over rounds, with sampled clients and mini-batches.

    K_t = 20 + 4 t is the form of (B.4) with the constant β²/μ² left out.
    """

    seed: int
    clients: int = 48
    samples: int = 150
    sample: int = 12
    batch: int = 10
    rounds: int = 100

    def key(self) -> str:
        text = json.dumps([code(), "descent", asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

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
        given = {
            "rounds": self.rounds,
            "sample": self.sample,
            "batch": self.batch,
            "schedule": "steps=grow:0.2 + server_rate=inverse:1",
            "dtype": "float64",
        }
        settings = build(Settings, given, "run")
        session = Session(method, logistic.task(s), federation, settings, self.seed, 0)
        target, _ = logistic.fedprox(federation, LAM, BALL)
        gaps = []
        for t in range(self.rounds):
            session.engine.advance(settings.schedule.factors(t, self.rounds))
            w = session.server.state["w"].cpu()
            gaps.append(float(((w - target) ** 2).sum()))
        return {"gaps": gaps}


def slope(gaps: np.ndarray, first: int = 8) -> float:  # gaps[T] after rounds 1 ... T
    """d log gap / d log t from round `first` on.

    >>> round(slope(np.arange(1, 65) ** -1.0), 6)
    -1.0
    """
    t = np.arange(1, len(gaps) + 1)[first - 1 :]
    return float(np.polyfit(np.log(t), np.log(gaps[first - 1 :]), 1)[0])
