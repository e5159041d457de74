"""Which models, data and methods are run, and for how long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idiolect import FedAvg, Federation, Here, LpProj, Method, PFedMe, Task, iterate, run, streams
from idiolect.report import size

from ..case import Case
from ..page import Row, write_page
from ..runs import Work, train_all
from ..texts import read_text
from .memory import Live, resident_peak

ROUNDS = 2
HEARD = 3  # clients per round
CHUNK = 2  # rows in flight
STEPS = 2  # gradients per client and round
DIM = 750  # what Table 2 of the lp-proj paper implies, see page.py
BLOCKS = 50
BATCH = 8
TIE: dict[str, Any] = {"lam": 0.1, "lr": 0.1}  # as in the lp-proj paper
_IMAGES = {"clients": 6, "share": 0.008}
_TEXT = {"clients": 10, "cap": 30_000, "vocabulary": 9_999, "valid": 0.05, "test": 0.05}
MODELS = {  # model -> case, step size
    "resnet18": (Case("cifar10", "resnet18", _IMAGES), 0.001),
    "resnet34": (Case("cifar10", "resnet34", _IMAGES), 0.001),
    "transformer": (Case("sotu", "transformer", _TEXT), 0.05),
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


MEMORY = 64.0  # GiB: rows stay in memory


def states(
    method: Method, task: Task, clients: int, rows: int, clients_per_round: int
) -> dict[str, int]:
    """The numbers a round must hold at once, by the tensors that the method itself names.

    `server` and `down` once each; `up` for every client that is heard; `private` for every client;
    and for each of the `rows` in flight its model, its gradient, the private rows it was given and
    the message it sends.
    """
    server = method.server(task)
    up = sum(method.message(task).values())
    private = method.private(task, streams.name_keys(["one client"]))
    per_client = sum(t[0].numel() for t in private.values())
    return {
        "server": sum(t.numel() for t in server.values()),
        "down": sum(t.numel() for t in method.broadcast(task, server).values()),
        "up": clients_per_round * up,
        "private": clients * per_client,
        "in flight": rows * (2 * task.d + per_client + up),
    }


def session(
    method: Method,
    task: Task,
    federation: Federation,
    clients_per_round: int,
    rows: int,
    batch: int,
) -> Any:
    """A run before its first round, with so many clients heard per round and rows in flight."""
    sizes: dict[str, Any] = {"sample": clients_per_round, "chunk": rows, "batch": batch}
    return next(iterate(method, task, federation, memory=MEMORY, **sizes)).session


def activations(host: Any) -> int:
    """Bytes that one gradient of the rows in flight takes beside its result."""
    task = host.contract.task
    rows = torch.arange(host.chunk)
    here = Here(
        host.data,
        rows,
        clients=host.keys[rows.numpy()],
        seed=task.seed,
        round=0,
        batch=host.settings.batch,
        batching=host.settings.batching,
        dtype=task.dtype,
    )
    x = task.x0.repeat(len(rows), 1)
    batch = here.draw()
    with Live() as live:
        g = task.grad(x, batch)
    return live.peak - g.numel() * g.element_size()


def measure(model: str, method: str) -> dict[str, Any]:
    """One run in this process: what `write` asks of a fresh one."""
    case, lr = MODELS[model]
    federation, plain_task = case.load()
    algorithm = METHODS[method](lr)
    rounds = session(algorithm, plain_task, federation, HEARD, CHUNK, BATCH)
    task = rounds.contract.task
    host = rounds.local_hosts[0]
    everyone = torch.arange(federation.clients)
    # the first model, by FedAvg: evaluating the clients' own would make their private rows
    start = run(
        FedAvg(), plain_task, federation, rounds=0, chunk=CHUNK, memory=MEMORY, progress=False
    )
    before = start.summary()
    samples = int(host.data.sizes("test").sum())
    resident = resident_peak(reset=True)
    began = time.perf_counter()
    with Live() as live:
        for _ in range(ROUNDS):
            rounds.engine.advance()
    seconds = time.perf_counter() - began
    resident = resident_peak() - resident
    after = rounds.engine.evaluate(everyone, ("test",))["test"]
    named = states(algorithm, task, federation.clients, CHUNK, HEARD)
    bound = task.dtype.itemsize * sum(named.values())
    extra = activations(host)
    return {
        "model": model,
        "method": method,
        "data": federation.name,
        "outputs": federation.classes,
        "d": task.d,
        "clients": federation.clients,
        "rows": CHUNK,
        "kernel": task.kernel,
        "loss": [before["loss"]["mean"], float(after.loss.sum()) / samples],
        "accuracy": [before["accuracy"]["mean"], float(after.hits.sum()) / samples],
        "seconds_per_round": seconds / ROUNDS,
        "bytes_up_per_message": rounds.contract.up.length,
        "bytes_down_per_message": rounds.contract.down.length,
        "projection_bytes": algorithm._projection(task).memory()
        if isinstance(algorithm, LpProj)
        else 0,
        "states": named,
        "named_bytes": bound,
        "activation_bytes": extra,
        "live_bytes": live.peak,
        "resident_bytes": resident,
        "ratio": (live.peak - extra) / bound,
        "resident_ratio": (resident - extra) / bound,
    }


def page(measurements: list[Row]) -> str:
    """The whole page."""
    live, resident = (
        sum(f[ratio] <= 1.5 for f in measurements) for ratio in ("ratio", "resident_ratio")
    )
    words = TEXTS["within"].format(live=live, resident=resident, runs=len(measurements))
    lines = [HEAD, "", words, TEXTS["beyond"]]
    for model in MODELS:
        mine = [f for f in measurements if f["model"] == model]
        lines += [
            "",
            TEXTS["heading"].format(batch=BATCH, **mine[0]),
            "",
            f"| {TEXTS['columns']} |",
            "|" + "---|" * (TEXTS["columns"].count("|") + 1),
            *(line(f) for f in mine),
        ]
    return "\n".join(lines) + "\n"


def line(f: Row) -> str:
    """A run as a row of its table."""
    cells = [
        f["method"],
        "{:.3f} → {:.3f}".format(*f["loss"]),
        "{:.3f} → {:.3f}".format(*f["accuracy"]),
        f"{f['seconds_per_round']:.1f}",
        f"{f['bytes_up_per_message']:,}",
        f"{f['bytes_down_per_message']:,}",
        f"{sum(f['states'].values()) / f['d']:.1f}",
        size(f["activation_bytes"]),
        size(f["live_bytes"]),
        f"{f['ratio']:.2f}",
        size(f["resident_bytes"]),
        f"{f['resident_ratio']:.2f}",
        size(f["projection_bytes"]),
    ]
    return "| " + " | ".join(cells) + " |"


TEXTS = read_text("large-models")
HEAD = TEXTS["head"].format(
    rounds=ROUNDS,
    heard=HEARD,
    chunk=CHUNK,
    steps=STEPS,
    dim=DIM,
    blocks=BLOCKS,
    per_block=DIM // BLOCKS,
)


_CHILD = """
import json, sys, torch
import idiolect
from idiolect_papers.own.large_models import measure
from idiolect.study import end_with_parent
end_with_parent(int(sys.argv[3]))
torch.set_num_threads(1)
idiolect.keep_memory()
print(json.dumps(measure(*sys.argv[1:3])))
"""


@dataclass(frozen=True)
class ModelJob(Work):
    """The figures of one run, in a process of its own that ends with this one."""

    model: str
    method: str

    def train(self) -> dict[str, Any]:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, self.model, self.method, str(os.getpid())],
            check=True,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for this process: the current run is finished
        )
        return json.loads(child.stdout.splitlines()[-1])

    def describe(self) -> str:
        return f"{self.model}, {self.method}"


def write(folder: Path) -> list[Path]:
    """Run everything (some minutes), and write large-models.md and large-models.json."""
    jobs = [ModelJob(model, method) for model in MODELS for method in METHODS]
    results = list(train_all(jobs, folder, "large", workers=1).values())
    return write_page(folder, "large-models", page(results), results)
