"""How the matrices and vectors of the FFGG paper's quadratic problems are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from idiolect.core.knobs import Knobs, knob

from .problem import Problem, stacked_rows

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
