"""How long each kernel takes for the same cohort gradient.

For the user to choose by, never for a run to choose by.
"""

from __future__ import annotations

import time
from typing import Any

from ..core import streams
from ..core.knobs import SettingError
from ..data.federation import Federation
from ..run.run import torch_threads
from ..run.settings import DTYPES, Settings
from ..task.context import Here
from ..task.kernels import KERNELS
from ..task.task import Task


def measure(
    task: Task, federation: Federation, s: Settings, tries: int = 5
) -> list[dict[str, Any]]:
    """The least milliseconds of a few gradients of one cohort, for each kernel that fits."""
    with torch_threads(s.threads):
        return _measure(task, federation, s, tries)


def _measure(task: Task, federation: Federation, s: Settings, tries: int) -> list[dict[str, Any]]:
    data = federation.to(s.device, DTYPES[s.dtype])
    eligible = (data.sizes("train") > 0).nonzero().flatten()
    clients = eligible[: s.sampled(len(eligible))]
    auto_kernel = task.under(s.numerics(s.seed), kernel="auto").kernel
    rows = []
    for kernel in KERNELS[1:]:
        row: dict[str, Any] = {
            "kernel": kernel,
            "chosen": kernel == auto_kernel,
            "clients": len(clients),
            "d": task.d,
            "milliseconds": None,
            "error": "",
        }
        rows.append(row)
        try:
            bound = task.under(s.numerics(s.seed), kernel=kernel)
        except SettingError as error:
            row["error"] = str(error).partition(": ")[2]
            continue
        here = Here(
            data,
            clients,
            clients=streams.name_keys(data.names)[clients.numpy()],
            seed=0,
            round=0,
            batch=s.batch,
            batching=s.batching,
            dtype=bound.dtype,
        )
        x = bound.x0.repeat(len(clients), 1)
        batch = here.draw()
        bound.grad(x, batch)  # compiles, warms caches
        best = float("inf")
        for _ in range(tries):
            began = time.perf_counter()
            bound.grad(x, batch)
            best = min(best, time.perf_counter() - began)
        row["milliseconds"] = 1000 * best
    return rows
