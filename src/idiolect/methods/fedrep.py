"""FedRep: a shared representation, under a head that each client fits first.

Collins, Hassani, Mokhtari and Shakkottai 2021, Algorithm 1. Choose it when all clients can share
features but their labels differ, and little data per client suffice for a head. It is FedAlt with
the head as private part, many steps on it, and an equal mean. Costs per round: the shared part each
way for each sampled client; private_steps + steps gradients. Keeps: the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.knobs import knob
from .fedalt import FedAlt
from .options import WEIGHTINGS, steps_knob
from .partial import part_knob


@dataclass(frozen=True)
class FedRep(FedAlt):
    """Many steps on the private head, then some on the shared body. For shared features."""

    traits = FedAlt.traits

    lr: float = knob(0.1, "step size of the shared body", above=0)
    private_lr: float = knob(0.1, "step size of the private head", above=0)
    steps: int = steps_knob(20, "steps on the shared body per round")
    # ClientUpdate: for s = 1 ... τ: h_i <- GRD(f_i(h_i, φ), h_i, α); then φ_i <- GRD(f_i, φ, α)
    private_steps: int = knob(
        10,
        "τ, steps on the head per round",
        low=0,
        acts_with={"epochs": 0, "private_epochs": 0},
    )
    private_epochs: int = knob(
        0,
        "passes over the client's data for the head per round, in place of private_steps (10 in "
        "the paper's experiments, with epochs=1); 0 = as many as epochs",
        low=0,
    )
    part: str = part_knob("head", "the private part")
    # φ^{t+1} <- 1/(r n) Σ φ_i
    weighting: str = knob("equal", "the server's mean", choices=WEIGHTINGS)

    def private_passes(self) -> int:
        return self.private_epochs or self.epochs
