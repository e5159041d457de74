"""Scikit-learn's handwritten digits: small, real, and installed already."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.knobs import knob
from ..entries import register
from ..federation import Federation
from ..partition import Partitioned
from ..splits import Shares


@register("digits")
@dataclass(frozen=True)
class Digits(Partitioned, Shares):
    """1,797 handwritten digits of 8x8 pixels in [0, 1], no download; the quickest real data.

    >>> f = Digits(clients=10).load()
    >>> f.clients, f.classes, tuple(f.inputs.shape[1:])
    (10, 10, (1, 8, 8))
    """

    clients: int = knob(20, "number of clients", low=1)

    def load(self) -> Federation:
        from sklearn.datasets import load_digits  # here, because it takes seconds to import

        pixels, labels = load_digits(return_X_y=True)
        client, labels, pixels = self.deal(labels, pixels)
        x = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        return Federation.from_arrays(
            x,
            labels,
            client,
            classes=10,
            **self.shares(),
            name="digits",
        )
