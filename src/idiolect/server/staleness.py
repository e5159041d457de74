"""How much a message counts that started from an older model, in asynchronous training.

Staleness τ is the number of steps that the server has made since the model that a client started
from. The forms are those of FedAsync (Xie, Koyejo and Gupta 2019, section 5.1).

>>> parse_staleness("polynomial(a=0.5)")(3)
0.5
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.knobs import Knobs, knob
from ..core.registry import PartTable


@dataclass(frozen=True)
class Staleness(Knobs):
    """The interface: a factor on the change that a message brings."""

    def __call__(self, tau: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} does not define a weight")


@dataclass(frozen=True)
class Constant(Staleness):
    """s(τ) = 1: a late message counts as any other (Algorithm 3 of FFGG)."""

    def __call__(self, tau: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(τ) = (1 + τ)^-a. FedBuff has a = 0.5."""

    a: float = knob(0.5, "the exponent; 0 is constant", low=0)

    def __call__(self, tau: int) -> float:
        return float((1 + tau) ** -self.a)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(τ) = 1 up to τ = b, 1 / (a (τ - b) + 1) beyond."""

    a: float = knob(10.0, "how fast it falls beyond b", low=0)
    b: float = knob(4.0, "the staleness up to which a message counts in full", low=0)

    def __call__(self, tau: int) -> float:
        return 1.0 if tau <= self.b else 1 / (self.a * (tau - self.b) + 1)


STALENESS: PartTable[Staleness, Staleness] = PartTable(
    "staleness",
    "idiolect.staleness",
    {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge},
    Staleness,
)
parse_staleness = STALENESS.parse
staleness_text = STALENESS.text
