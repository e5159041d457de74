"""One run: what it learns, what it sends, and how much memory its rounds take."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from idiolect import data, models
from idiolect.core import streams
from idiolect.data.federation import Federation
from idiolect.host.evaluation import Evaluator
from idiolect.host.host import Host
from idiolect.method import Method
from idiolect.methods import LpProj
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.task.context import Here
from idiolect.task.task import Task

from .cases import BATCH, CHUNK, HEARD, METHODS, MODELS, ROUNDS
from .memory import Live, resident_peak

MEMORY = 64.0  # GiB: rows stay in memory


def states(method: Method, task: Task, clients: int, rows: int, heard: int) -> dict[str, int]:
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
        "up": heard * up,
        "private": clients * per_client,
        "in flight": rows * (2 * task.d + per_client + up),
    }


def session(
    method: Method, task: Task, federation: Federation, heard: int, rows: int, batch: int
) -> Session:
    """A run before its first round, with so many clients heard per round and rows in flight."""
    method.check(task)
    settings = Settings(sample=heard, batch=batch, chunk=rows, memory=MEMORY)
    return Session(method, task, federation, settings, seed=0, run=0)


def activations(host: Host) -> int:
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
    name, options, lr = MODELS[model]
    federation = data.load(name, **options)
    shape = tuple(federation.inputs.shape[1:])
    given = Task(partial(models.make, model, shape, federation.classes))
    chosen = METHODS[method](lr)
    run = session(chosen, given, federation, HEARD, CHUNK, BATCH)
    task = run.contract.task
    host = run.hosts[0]
    everyone = torch.arange(federation.clients)
    # the first model directly: evaluating the clients' own would make their private rows
    before = Evaluator(task, host.data, "test").shared(task.x0)
    samples = int(host.data.sizes("test").sum())
    resident = resident_peak(reset=True)
    began = time.perf_counter()
    with Live() as live:
        for _ in range(ROUNDS):
            run.engine.advance()
    seconds = time.perf_counter() - began
    resident = resident_peak() - resident
    after = run.engine.evaluate(everyone, ("test",))["test"]
    named = states(chosen, task, federation.clients, CHUNK, HEARD)
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
        "loss": [float(sums.loss.sum()) / samples for sums in (before, after)],
        "accuracy": [float(sums.hits.sum()) / samples for sums in (before, after)],
        "seconds_per_round": seconds / ROUNDS,
        "bytes_up_per_message": run.contract.up.length,
        "bytes_down_per_message": run.contract.down.length,
        "projection_bytes": chosen._projection(task).memory() if isinstance(chosen, LpProj) else 0,
        "states": named,
        "named_bytes": bound,
        "activation_bytes": extra,
        "live_bytes": live.peak,
        "resident_bytes": resident,
        "ratio": (live.peak - extra) / bound,
        "resident_ratio": (resident - extra) / bound,
    }
