"""Table 2 of the FFGG paper, transcribed; and the settings of its Table 3.

The text of the paper is legible in both. What stands after ± is not explained; three seeds are
averaged.
"""

from __future__ import annotations

from typing import Any

from ..marks import Figure

SETS = {"FEMNIST": "femnist", "GLDv2": "gldv2", "StackOverflow": "stackoverflow"}


def _row(*figures: tuple[float, float | None]) -> dict[str, Figure]:
    return {name: Figure(mean, half, 2) for name, (mean, half) in zip(SETS, figures, strict=True)}


TABLE2 = {
    "FedAvg": _row((93.18, None), (51.43, None), (23.82, None)),
    "Local Training": _row((67.29, 0.15), (18.73, 0.28), (10.19, 1.12)),
    "FFGG (Input Layer)": _row((93.60, 0.02), (51.25, 0.03), (24.11, 0.02)),
    "FFGG (Output Layer)": _row((93.58, 0.04), (55.20, 0.04), (24.92, 0.01)),
    "FFGG (Adapter)": _row((94.26, 0.03), (64.93, 0.04), (24.80, 0.01)),
    "FedAlt (Stateless, Best)": _row((93.97, 0.03), (64.10, 0.14), (24.94, 0.01)),
    "FedSim (Stateless, Best)": _row((93.89, 0.02), (63.19, 0.04), (24.94, 0.01)),
}
# Table 3; rounds and step sizes of steps 1 (all parameters) and 2 (personalised)
TABLE3: dict[str, dict[str, Any]] = {
    "StackOverflow": {
        "batch": 64,
        "sample": 50,
        "server_optimizer": "Adam",
        "schedule": "linear",
        "warmup": 0.1,
        "clip": 0.1,
        "rounds": (1000, 500),
        "server_lr": (5e-4, 5e-5),
        "lr": (1.0, 0.1),
    },
    "GLDv2": {
        "batch": 64,
        "sample": 50,
        "server_optimizer": "Adam",
        "schedule": "linear",
        "warmup": 0.1,
        "clip": 0.0,
        "rounds": (2500, 600),
        "server_lr": (2e-4, 2e-5),
        "lr": (0.01, 0.001),
    },
    "EMNIST": {
        "batch": 32,
        "sample": 10,
        "server_optimizer": "SGD",
        "schedule": "constant",
        "warmup": 0.0,
        "clip": 0.0,
        "rounds": (2000, 500),
        "server_lr": (1.0, 1.0),
        "lr": (0.5, 0.01),
    },
}
EPOCHS = 5  # of step 3
