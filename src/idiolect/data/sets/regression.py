"""Regressions in float64 whose true parameters are known: closed forms are checked against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import Knobs, SettingError, knob
from ..entries import register
from ..federation import Federation
from ..redraw import DATA
from ..splits import Shares


@register("linear")
@dataclass(frozen=True)
class LinearRegression(Knobs):
    """Federated linear regression with exactly orthogonal features (lp-proj paper, Section 4.2).

    y = xi^T w_k + z with w_k ~ N(mean, heterogeneity I), z ~ N(0, noise^2) and
    sum_i xi_i xi_i^T = b n I. The features are fixed: validation and test data have the same ones
    with new noise, as in the paper's test loss. The defaults are those of its Figure 1.

    >>> f, w = LinearRegression(clients=2, samples=6, features=3, b=2.0).draw()
    >>> x, y = f.part(0, "train")
    >>> torch.allclose(x.T @ x, 2.0 * 6 * torch.eye(3, dtype=x.dtype)), tuple(w.shape)
    (True, (2, 3))
    """

    clients: int = knob(100, "number of clients", low=1)
    samples: int = knob(200, "training samples per client (n), at least `features`", low=1)
    features: int = knob(100, "number of features (d)", low=1)
    b: float = knob(1.0, "scale of the features: their second moment is b I", above=0)
    mean: float = knob(0.0, "mean of every true coefficient")
    heterogeneity: float = knob(
        0.1, "variance of a true coefficient over clients (Sigma_w = this times I)", low=0
    )
    noise: float = knob(1.0, "standard deviation of the noise (sigma)", low=0)
    seed: int = knob(0, "seed of the data", low=0)

    seed_draws: ClassVar[str] = DATA

    def load(self) -> Federation:
        return self.draw()[0]

    def draw(self) -> tuple[Federation, Tensor]:
        """The federation and the true parameters w[N, d]."""
        N = self.clients
        n = self.samples
        d = self.features
        if n < d:
            raise SettingError(
                f"samples must be at least features, {d}, for orthogonal features, got {n}"
            )
        from threadpoolctl import threadpool_limits  # comes with scikit-learn

        rng = np.random.default_rng(self.seed)
        w = self.mean + self.heterogeneity**0.5 * rng.standard_normal((N, d))
        # many small matrices: threads only wait for each other, and could change the last bits
        with threadpool_limits(1):
            q, _ = np.linalg.qr(rng.standard_normal((N, n, d)))  # q^T q = I
        xi = (self.b * n) ** 0.5 * q
        clean = np.einsum("knd,kd->kn", xi, w)
        # z for training, z' for validation and test
        y = clean + self.noise * rng.standard_normal((3, N, n))
        federation = Federation.from_arrays(
            torch.from_numpy(np.broadcast_to(xi, (3, N, n, d)).reshape(-1, d)),
            torch.from_numpy(y.reshape(-1)),
            np.tile(np.repeat(np.arange(N), n), 3),
            split=np.repeat(["train", "valid", "test"], N * n),
            name="linear",
        )
        return federation, torch.from_numpy(w)


@register("logistic")
@dataclass(frozen=True)
class LogisticRegression(Shares):
    """Logistic regression with heterogeneity at most R (paper of Chen, Zheng, Long and Su).

    Section 4.1 of Chen et al., "A Theorem of the Alternative for Personalized Federated Learning".
    The coordinates of x are independent with mean zero and at most `bound` in size;
    P(y = 1) = 1 / (1 + exp(-x^T w_k)); ||w_k - w|| <= radius for all k, reached by one of them or
    by all (`places`), and the w_k average to w exactly. Labels are 0 and 1 (-1 and +1 in the
    paper). `idiolect_papers.closed_forms.logistic` has its risks and minimisers.

    >>> f, w = LogisticRegression(clients=5, radius=0.5).draw()
    >>> round(float((w - w.mean(0)).norm(dim=1).max()), 6), f.classes
    (0.5, 2)
    """

    clients: int = knob(100, "number of clients", low=1)
    samples: int = knob(100, "samples per client", low=1)
    features: int = knob(20, "number of features (d)", low=1)
    bound: float = knob(1.0, "largest absolute value of a feature (c_X)", above=0)
    design: str = knob(
        "uniform",
        "a feature is uniform on [-bound, bound], or -bound or bound with equal chances (signs)",
        choices=("uniform", "signs"),
    )
    norm: float = knob(2.0, "length of the average parameter vector", low=0)
    radius: float = knob(
        1.0, "heterogeneity R: greatest distance of a client's parameters from their average", low=0
    )
    places: str = knob(
        "inside",
        "where clients lie: Gaussian, the farthest at distance R, or all at distance R (sphere: "
        "R v / sqrt(d) with random signs v, as in Appendix A, in pairs v and -v)",
        choices=("inside", "sphere"),
    )
    seed: int = knob(0, "seed of the data and of the split", low=0)

    seed_draws: ClassVar[str] = DATA

    def load(self) -> Federation:
        return self.draw()[0]

    def draw(self) -> tuple[Federation, Tensor]:
        """The federation and the true parameters w[N, d]."""
        N = self.clients
        n = self.samples
        d = self.features
        rng = np.random.default_rng(self.seed)
        common = rng.standard_normal(d)
        away = self._away(rng)
        w = self.norm * common / np.linalg.norm(common) + (away if N > 1 else 0.0)
        w = np.broadcast_to(w, (N, d)).copy()
        x = rng.uniform(-self.bound, self.bound, (N, n, d))
        if self.design == "signs":
            x = np.where(x < 0, -self.bound, self.bound)
        chance = 1 / (1 + np.exp(-np.einsum("knd,kd->kn", x, w)))
        y = (rng.random((N, n)) < chance).astype(np.int64)
        federation = Federation.from_arrays(
            torch.from_numpy(x.reshape(-1, d)),
            y.reshape(-1),
            np.repeat(np.arange(N), n),
            classes=2,
            **self.shares(),
            name="logistic",
        )
        return federation, torch.from_numpy(w)

    def _away(self, rng: np.random.Generator) -> np.ndarray:  # -> [N, d], sums to 0
        """How the clients differ from their average."""
        N = self.clients
        d = self.features
        if self.places == "inside":
            away = rng.standard_normal((N, d))
            away -= away.mean(0)
            longest = np.linalg.norm(away, axis=1).max() or 1.0
            return self.radius / longest * away
        if N % 2:
            raise SettingError(
                f"clients must be an even number with places 'sphere', got {N}: they lie in pairs "
                "on both sides of their average"
            )
        signs = np.where(rng.random((N // 2, d)) < 0.5, -1.0, 1.0)
        return self.radius / d**0.5 * np.concatenate([signs, -signs])
