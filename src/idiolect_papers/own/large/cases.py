"""Which models, data and methods are run, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idiolect.method import Method
from idiolect.methods import FedAvg, LpProj, PFedMe

ROUNDS = 2
HEARD = 3  # clients per round
CHUNK = 2  # rows in flight
STEPS = 2  # gradients per client and round
DIM = 750  # what Table 2 of the lp-proj paper implies, see page.py
BLOCKS = 50
BATCH = 8
TIE: dict[str, Any] = {"lam": 0.1, "lr": 0.1}  # as in the lp-proj paper
MODELS: dict[str, tuple[str, dict[str, Any], float]] = {  # model -> data, options, step size
    "resnet18": ("cifar10", {"clients": 6, "share": 0.008}, 0.001),
    "resnet34": ("cifar10", {"clients": 6, "share": 0.008}, 0.001),
    "transformer": (
        "sotu",
        {"clients": 10, "cap": 30_000, "vocabulary": 9_999, "valid": 0.05, "test": 0.05},
        0.05,
    ),
}
METHODS: dict[str, Callable[[float], Method]] = {  # of the step size
    "fedavg": lambda lr: FedAvg(steps=STEPS, lr=lr),
    "pfedme": lambda lr: PFedMe(**TIE, steps=STEPS, personal_lr=lr),
    "lp-proj-2, 50 blocks": lambda lr: LpProj(
        **TIE,
        p=2.0,
        projection="block",
        dim=DIM,
        blocks=BLOCKS,
        reuse=True,
        steps=STEPS,
        personal_lr=lr,
    ),
    "lp-proj-2, contiguous": lambda lr: LpProj(
        **TIE, p=2.0, projection="contiguous", dim=DIM, steps=STEPS, personal_lr=lr
    ),
}
