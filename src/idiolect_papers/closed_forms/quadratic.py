"""The quadratic problems of the FFGG paper (Section 5.1 and Appendix E.1), solved exactly.

f_m(θ, w) = ½ ‖H_m θ - b_m‖² + ½ ‖A_m θ + B_m w - y_m‖², θ shared and w private to each client.

- `generators`: `Quadratic` draws the matrices as the paper says, client by client;
- `problem`: `Problem` holds what was drawn as a few rows per client, with w*_m(θ), F_m(θ), the
  constants of Example 1 and the minimisers in closed form;
- `task`: the same as a `Task` and a `Federation`, so that every method runs on it.

>>> problem = Quadratic(clients=4, samples=30, shared=5, private=3, zeta=1.0).draw()
>>> theta, w = problem.minimiser()
>>> round(problem.norm(theta), 12), tuple(w.shape)
(0.0, (4, 3))

FFGG with exact inner solutions arrives there too; `constants().F` is the true smoothness of F:

>>> import idiolect as il
>>> method = il.Ffgg(part="w.*", lr=1 / problem.constants().F, solver="exact")
>>> settings = {"batching": "full", "dtype": "float64", "sample": 4, "eval_every": 0}
>>> result = il.run(method, problem.task(), problem.federation(), rounds=200, **settings)
>>> found = result.session().server.state["theta"]
>>> bool((found - theta).norm() < 1e-6)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import Federation, Knobs, Task, knob, streams
from idiolect.task import Batch, Layer, Layout, Loss, Numerics, Stacked


# -- the task: linear in its parameters, with exact and fast derivatives --------------------------
class Sum(nn.Module):
    """x -> θ · (first d_theta inputs) + w · (the others)."""

    def __init__(self, shared: int, private: int):
        super().__init__()
        self.theta = nn.Linear(shared, 1, bias=False)
        self.w = nn.Linear(private, 1, bias=False)
        nn.init.zeros_(self.theta.weight)
        nn.init.zeros_(self.w.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.cat([self.theta.weight, self.w.weight], dim=1))


class QuadraticTask(Task):
    """`Sum` under half the squared error, as any task.

    θ and w side by side are one linear layer, so the kernel is "stacked", three times as fast as
    vmap; and the Hessian times v is a gradient at v with targets 0.
    """

    @classmethod
    def of(cls, shared: int, private: int) -> QuadraticTask:
        return cls(Sum(shared, private), "half_squared")

    def _prepare(self, model: Any, criterion: Loss, numerics: Numerics) -> None:
        stacked = numerics.kernel in ("auto", "stacked")
        super()._prepare(
            model, criterion, replace(numerics, kernel="auto") if stacked else numerics
        )
        self.numerics = numerics
        whole = Layout(("x",), (torch.Size([1, self.d]),), (0, self.d), self.device)
        self._linear = Stacked(nn.Identity(), [Layer("linear", "x")], whole)
        if stacked:
            self._kernel = self._linear

    def draw(self, keys: np.ndarray) -> Tensor:
        """A random start for each key (Algorithm 2, line 1): θ = 0 and w ~ N(0, I)."""
        shared = self.layout.span("w.weight")[0]
        x = self.x0.new_zeros(len(keys), self.d)
        x[:, shared:] = torch.from_numpy(streams.normal(keys, self.d - shared))
        return x

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hessian of each row's loss times v[K, d]; counts as two gradients, as in any task."""
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        still = replace(batch, targets=torch.zeros_like(batch.targets))
        h = self._linear.grad(v, still, self.criterion)
        decay = self.numerics.weight_decay
        return h + decay * v if decay else h


# -- the problem in closed form -------------------------------------------------------------------
def stacked_rows(
    H: np.ndarray, b: np.ndarray, A: np.ndarray, B: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """([T W t], Hᵀ H) of one client: at most d_θ + d_w + 1 rows with the same function."""
    above = _factor(np.column_stack([H, b]))  # each half by itself: less work
    below = _factor(np.column_stack([A, B, y]))
    middle = np.zeros((len(above), B.shape[1]))
    stacked = np.block([[above[:, :-1], middle, above[:, -1:]], [below]])
    return _factor(stacked), H.T @ H


def _factor(matrix: np.ndarray) -> np.ndarray:
    """R of a QR factorisation: Rᵀ R is the matrix's own."""
    return np.asarray(np.linalg.qr(matrix, mode="r"))


@dataclass(frozen=True)
class QuadraticConstants:
    """Smoothness and strong convexity, the largest (of mu: the least) over all clients."""

    example1: float  # L = 2 max(‖HᵀH‖, ‖Aᵀ(I - BB⁺)A‖), for which Example 1 proves cocoercivity
    F: float  # of every F_m: the largest ‖∇F_m‖, at most `example1`
    mean_F: float  # of F, the mean of them: ‖∇F‖
    mu_F: float  # F is strongly monotone with this constant
    f: float  # L_f: of f_m in (θ, w) together
    w: float  # L_w: of f_m in w
    mu_w: float  # f_m is strongly convex in w with this constant


@dataclass(frozen=True)
class Problem:
    """M clients' f_m(θ, w) = ½ ‖T_m θ + W_m w - t_m‖²."""

    T: Tensor  # [M, r, d_theta]
    W: Tensor  # [M, r, d_w]
    t: Tensor  # [M, r]
    phi: Tensor  # [M, d_theta, d_theta]: H_mᵀ H_m, the curvature of f_m's first term

    @classmethod
    def of(cls, clients: Sequence[tuple[np.ndarray, np.ndarray]]) -> Problem:
        """From what `stacked_rows` gives for each client."""
        rows = torch.from_numpy(np.stack([rows for rows, _ in clients]))
        phi = torch.from_numpy(np.stack([phi for _, phi in clients]))
        d = phi.shape[-1]
        return cls(rows[..., :d], rows[..., d:-1], rows[..., -1], phi)

    def at(self, positions: Sequence[int] | Tensor) -> Problem:
        """The problem of some of the clients alone, such as the honest ones."""
        client_index = torch.as_tensor(positions)
        return Problem(
            self.T[client_index], self.W[client_index], self.t[client_index], self.phi[client_index]
        )

    # -- as a method sees it ---------------------------------------------------------------------
    def task(self) -> QuadraticTask:
        """The model θ, w with names "theta.weight" and "w.weight"; x0 is 0.

        FFGG's random starts are w ~ N(0, I).
        """
        return QuadraticTask.of(self.T.shape[-1], self.W.shape[-1])

    def federation(self) -> Federation:
        """A client's training samples are its rows [T W], times √r so that their mean loss is f_m.

        With `batching="full"` the loss of a client is f_m, in every digit. Its validation and test
        data are the same rows: the loss that a result shows is the mean of the f_m at the personal
        models.
        """
        M, r = self.t.shape
        bounds = r * torch.arange(M + 1)
        return Federation(
            inputs=r**0.5 * torch.cat([self.T, self.W], dim=-1).flatten(0, 1),
            targets=r**0.5 * self.t.flatten(),
            offsets=dict.fromkeys(("train", "valid", "test"), bounds),
            ids=tuple(range(M)),
            classes=0,
            name="quadratic",
        )

    # -- functions of θ --------------------------------------------------------------------------
    def best_w(self, theta: Tensor) -> Tensor:  # -> w[M, d_w]
        """w*_m(θ) = B⁺ (y - A θ); of several the one nearest to 0."""
        return (self._inverse @ (self.t - self.T @ theta).unsqueeze(-1)).squeeze(-1)

    def operators(self, theta: Tensor) -> Tensor:  # -> [M, d_theta]
        """F_m(θ) = ∇_θ f_m(θ, w*_m(θ))."""
        return self.slopes @ theta - self._at_zero

    def operator(self, theta: Tensor) -> Tensor:  # theta[..., d_theta] -> [..., d_theta]
        """F(θ), the mean of the F_m."""
        return theta @ self._mean_slope - self._mean_at_zero  # the slope is symmetric

    def norm(self, theta: Tensor) -> float:
        """‖F(θ)‖, the paper's measure of convergence."""
        return float(self.operator(theta).norm())

    # -- closed forms ----------------------------------------------------------------------------
    @cached_property
    def _inverse(self) -> Tensor:  # [M, d_w, r]
        return torch.linalg.pinv(self.W)

    @cached_property
    def _projected(self) -> Tensor:  # [M, r, d_theta]
        """(I - W W⁺) T: what of θ's effect no w can undo."""
        return self.T - self.W @ (self._inverse @ self.T)

    @cached_property
    def slopes(self) -> Tensor:  # [M, d_theta, d_theta]
        """∇F_m = H_mᵀ H_m + A_mᵀ (I - B_m B_m⁺) A_m."""
        return self._projected.mT @ self._projected

    @cached_property
    def _at_zero(self) -> Tensor:  # [M, d_theta]
        return (self._projected.mT @ self.t.unsqueeze(-1)).squeeze(-1)

    @cached_property
    def _mean_slope(self) -> Tensor:
        return self.slopes.mean(0)

    @cached_property
    def _mean_at_zero(self) -> Tensor:
        return self._at_zero.mean(0)

    def minimiser(self) -> tuple[Tensor, Tensor]:
        """(θ*, w*[M, d_w]) of the personalised objective, the mean of min_w f_m(θ, w)."""
        theta = torch.linalg.lstsq(self._mean_slope, self._mean_at_zero).solution
        return theta, self.best_w(theta)

    def joint_minimiser(self) -> tuple[Tensor, Tensor]:
        """(θ, w[d_w]) with one w for all: where FedAvg and SCAFFOLD go."""
        rows = torch.cat([self.T, self.W], dim=-1)
        hessian = (rows.mT @ rows).mean(0)
        slope = (rows.mT @ self.t.unsqueeze(-1)).squeeze(-1).mean(0)
        x = torch.linalg.lstsq(hessian, slope).solution
        return x[: self.T.shape[-1]], x[self.T.shape[-1] :]

    def constants(self) -> QuadraticConstants:
        """What step sizes are chosen by."""
        rows = torch.cat([self.T, self.W], dim=-1)
        coupled = self.slopes - self.phi  # Aᵀ (I - BB⁺) A
        first, second = torch.linalg.eigvalsh(self.phi), torch.linalg.eigvalsh(coupled)
        mean = torch.linalg.eigvalsh(self._mean_slope)
        w = torch.linalg.svdvals(self.W).square()
        return QuadraticConstants(
            example1=2 * float(torch.maximum(first[:, -1], second[:, -1]).max()),
            F=float(torch.linalg.eigvalsh(self.slopes)[:, -1].max()),
            mean_F=float(mean[-1]),
            mu_F=float(mean[0]),
            f=float(torch.linalg.svdvals(rows)[:, 0].square().max()),
            w=float(w[:, 0].max()),
            mu_w=float(w[:, -1].min()) if w.shape[-1] == self.W.shape[-1] else 0.0,
        )


# -- how the matrices and vectors are drawn -------------------------------------------------------
TRUTHS = ("own", "shared", "common")
NORMS = ("spectral", "frobenius")


@dataclass(frozen=True)
class Raw:
    """One client's f(θ, w) = ½ ‖H θ - b‖² + ½ ‖A θ + B w - y‖² as it was drawn."""

    H: np.ndarray  # [n, d_theta]
    b: np.ndarray  # [n]
    A: np.ndarray  # [n, d_theta]
    B: np.ndarray  # [n, d_w]
    y: np.ndarray  # [n]


@dataclass(frozen=True)
class Quadratic(Knobs):
    """Quadratic problems of the FFGG paper: Section 5.1 (zeta 0), or Appendix E.1 (zeta > 0).

    Section 5.1: every client's own H, A, B uniform on [0, 1], over their second dimension.
    Appendix E.1: common ones, plus ζ times a normal matrix of norm 1 for each client. In both
    b_m = H_m b_1 + ι b_2 and y_m = A_m y_1 + B_m y_2 + ι y_3 (E.1; Section 5.1 does not say).

    The paper leaves open whether b_1, y_1 and y_2 are drawn for each client. `truth` is "own" (they
    are), "shared" (once for all clients), or "common": b_1 = y_1 is one θ* for all clients, and y_2
    each client's own, so that without noise θ* is optimal for everyone (Assumption 2). The numbers
    are drawn in the order of the paper's notebooks: seed 42 with truth "common" and noise 0 is the
    problem of its notebook on Byzantine clients.
    """

    clients: int = knob(32, "M, number of clients", low=1)
    samples: int = knob(10000, "n, rows of each of the matrices", low=1)
    shared: int = knob(100, "d_θ, length of the shared vector θ", low=1)
    private: int = knob(50, "d_w, length of a private vector w", low=1)
    zeta: float = knob(
        0.0, "ζ, heterogeneity of E.1; 0 = matrices of each client's own (Section 5.1)", low=0
    )
    norm: str = knob(
        "spectral",
        "the norm of E.1's normal matrices that is made 1: spectral (as printed) or frobenius "
        "(numpy.linalg.norm of a matrix)",
        choices=NORMS,
    )
    truth: str = knob(
        "own",
        "b_1, y_1 and y_2: each client's own, shared by all, or one common b_1 = y_1",
        choices=TRUTHS,
    )
    noise: float = knob(1e-3, "ι, scale of the noise in b and y", low=0)
    seed: int = knob(0, "seed of the problem", low=0)

    def draw(self) -> Problem:
        """The problem: every client's matrices as a few rows."""
        from threadpoolctl import threadpool_limits  # comes with scikit-learn

        with threadpool_limits(1):  # the same bits on any machine; threads would only wait
            return Problem.of([stacked_rows(c.H, c.b, c.A, c.B, c.y) for c in self.raw()])

    def raw(self) -> Iterator[Raw]:
        """The clients as drawn, one after the other: 20 MB each at the sizes of Figure 1."""
        rng = np.random.default_rng(self.seed)
        common = rng.normal(size=self.shared) if self.truth == "common" else None
        base = [self._uniform(rng, d) for d in self._widths] if self.zeta else [None] * 3
        once: dict[str, np.ndarray] = {}
        for _ in range(self.clients):
            H = self._matrix(rng, base[0], self.shared)
            b_1 = common if common is not None else self._vector(rng, "b_1", self.shared, once)
            b = H @ b_1 + self._noise(rng)
            A = self._matrix(rng, base[1], self.shared)
            B = self._matrix(rng, base[2], self.private)
            y_1 = self._vector(rng, "y_1", self.shared, once)
            y_2 = self._vector(rng, "y_2", self.private, once)
            y = A @ (y_1 if common is None else common) + B @ y_2 + self._noise(rng)
            yield Raw(H, b, A, B, y)

    @property
    def _widths(self) -> tuple[int, int, int]:
        return self.shared, self.shared, self.private

    def _uniform(self, rng: np.random.Generator, d: int) -> np.ndarray:
        return rng.uniform(size=(self.samples, d)) / d

    def _matrix(self, rng: np.random.Generator, base: np.ndarray | None, d: int) -> np.ndarray:
        if base is None:
            return self._uniform(rng, d)
        away = rng.normal(size=(self.samples, d))
        # E.1: H_m = H + ζ H'_m / ‖H'_m‖
        return base + self.zeta * away / np.linalg.norm(
            away, 2 if self.norm == "spectral" else None
        )

    def _vector(
        self, rng: np.random.Generator, name: str, d: int, once: dict[str, np.ndarray]
    ) -> np.ndarray:
        if self.truth != "shared":
            return rng.normal(size=d)
        if name not in once:
            once[name] = rng.normal(size=d)
        return once[name]

    def _noise(self, rng: np.random.Generator) -> np.ndarray | float:
        return self.noise * rng.normal(size=self.samples) if self.noise else 0.0
