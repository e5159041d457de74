"""Synthetic(alpha, beta): logistic clients whose models (alpha) and inputs (beta) differ.

From FedProx (Li et al. 2020), Section 5.1; used by the lp-proj paper (Appendix C). For client k:

    W_k, b_k ~ N(mu_k, 1),  mu_k ~ N(0, alpha)
    v_k ~ N(B_k, 1),  B_k ~ N(0, beta)
    x ~ N(v_k, diag(j^-1.2)),  y = argmax(W_k x + b_k)

The papers write N(0, alpha); the public code of both takes alpha as a standard deviation, not a
variance (`spread`). For 0 and 1, the values in all published tables but Synthetic(0.5, 0.5), the
two are the same. FedProx's own setting is
`clients=30, sizes="power", minimum=50, valid=0, test=0.1`; that of the lp-proj code is
`clients=100, sizes="power", minimum=100`, of which Table 3 has the balanced form: 315 samples, 202
to train, 50 to validate, 63 to test.

alpha changes nothing: mu_k is one number for all entries of W_k and b_k, so it adds the same to the
score of every class, and the argmax stays. Synthetic(alpha, beta) has the same labels for every
alpha, here as in the public code.

Beware of the name: Synthetic(0, 0) is not homogeneous (W_k and v_k are drawn per client), and a
client's commonest class makes up about 80 % of its data, so a method is only as good as what it
adds to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core.knobs import knob
from ..entries import register
from ..federation import Federation
from ..redraw import DATA
from ..splits import Shares


@register("synthetic")
@dataclass(frozen=True)
class Synthetic(Shares):
    """Synthetic(alpha, beta) of FedProx and lp-proj: 60 features, 10 classes, a model per client.

    >>> f = Synthetic(clients=3).load()
    >>> f.sizes("train").tolist(), f.sizes("valid").tolist(), f.sizes("test").tolist()
    ([202, 202, 202], [50, 50, 50], [63, 63, 63])
    """

    alpha: float = knob(0.0, "how much the clients' models differ", low=0)
    beta: float = knob(0.0, "how much the clients' inputs differ", low=0)
    spread: str = knob(
        "std",
        "what alpha and beta are: standard deviations as in the public code, or variances",
        choices=("std", "variance"),
    )
    clients: int = knob(100, "number of clients", low=1)
    sizes: str = knob(
        "equal",
        "samples per client: all `samples`, or `minimum` + log-normal(4, 2)",
        choices=("equal", "power"),
    )
    samples: int = knob(315, "samples per client (sizes equal)", low=1)
    minimum: int = knob(50, "least samples of a client (sizes power)", low=1)
    features: int = knob(60, "number of features", low=1)
    classes: int = knob(10, "number of classes", low=2)
    seed: int = knob(0, "seed of the data and of the split", low=0)

    seed_draws: ClassVar[str] = DATA

    def load(self) -> Federation:
        x, y = zip(*(self.client(k) for k in range(self.clients)), strict=True)
        ids = np.repeat(np.arange(self.clients), [len(part) for part in y])
        name = f"synthetic({self.alpha:g}, {self.beta:g})"
        return Federation.from_arrays(
            np.concatenate(x),
            np.concatenate(y),
            ids,
            classes=self.classes,
            **self.shares(),
            name=name,
        )

    def client(self, k: int) -> tuple[np.ndarray, np.ndarray]:  # -> x[n, features], y[n]
        """The samples of client k; they depend on k and the seed, not on the number of clients."""
        rng = np.random.default_rng([self.seed, k])
        alpha = self.alpha if self.spread == "std" else self.alpha**0.5
        beta = self.beta if self.spread == "std" else self.beta**0.5
        mu = alpha * rng.standard_normal()
        B = beta * rng.standard_normal()
        W = mu + rng.standard_normal((self.classes, self.features))
        b = mu + rng.standard_normal(self.classes)
        v = B + rng.standard_normal(self.features)
        n = self.samples if self.sizes == "equal" else self.minimum + int(rng.lognormal(4.0, 2.0))
        deviation = np.arange(1, self.features + 1) ** -0.6  # covariance diag(j^-1.2)
        x = v + deviation * rng.standard_normal((n, self.features))
        return x.astype(np.float32), (x @ W.T + b).argmax(1)
