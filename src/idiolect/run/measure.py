"""How long each kernel takes for the same cohort gradient: for the user to choose by, never for a run to choose by."""

from __future__ import annotations

import time
from typing import Any

import torch

from ..core import streams
from ..core.knobs import SettingError
from ..data.federation import Federation
from ..task.batches import Batches
from ..task.kernels import KERNELS
from ..task.task import Task
from .settings import DTYPES, Settings


def measure(
    task: Task, federation: Federation, s: Settings, tries: int = 5
) -> list[dict[str, Any]]:
    """The least milliseconds of a few gradients of one cohort of `sample` clients, for each kernel that fits the model."""
    if s.threads:
        torch.set_num_threads(s.threads)
    data = federation.to(s.device, DTYPES[s.dtype])
    eligible = (data.sizes("train") > 0).nonzero().flatten()
    clients = eligible[: s.sampled(len(eligible))]
    chosen = task.to(device=s.device, dtype=DTYPES[s.dtype]).kernel
    rows = []
    for kernel in KERNELS[1:]:
        row: dict[str, Any] = {
            "kernel": kernel,
            "chosen": kernel == chosen,
            "clients": len(clients),
            "d": task.d,
            "milliseconds": None,
            "error": "",
        }
        rows.append(row)
        try:
            this = task.to(device=s.device, dtype=DTYPES[s.dtype], kernel=kernel)
        except SettingError as error:
            row["error"] = str(error).partition(": ")[2]
            continue
        names = streams.name_keys(data.names)
        batches = Batches(
            data,
            clients,
            seed=0,
            round=0,
            names=names,
            batch=s.batch,
            batching=s.batching,
            dtype=this.dtype,
        )
        x, batch, best = this.x0.repeat(len(clients), 1), batches.draw(), float("inf")
        this.grad(x, batch)  # compiles, warms caches
        for _ in range(tries):
            began = time.perf_counter()
            this.grad(x, batch)
            best = min(best, time.perf_counter() - began)
        row["milliseconds"] = 1000 * best
    return rows
