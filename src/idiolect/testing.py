"""What every method must do: one suite for those of the table and for users' own.

    from idiolect.testing import check_method
    check_method(MyMethod(lr=0.1))

Each check runs the method on a small federation with unequal clients and raises an AssertionError that says what does not hold.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .core import streams
from .core.types import State
from .data.federation import Federation
from .method import Method
from .run.result import Result, SeedResult
from .run.run import run
from .task.batches import Batches
from .task.task import Task

SIZES = (30, 7, 24, 12, 40, 18)


def federation(empty: bool = False, seed: int = 0) -> Federation:
    """Six unlike clients of 7 to 40 samples, three classes that can be told apart; one more without data if `empty`."""
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"client {k}" for k in range(len(SIZES))], SIZES)
    y = np.concatenate(
        [rng.choice(3, n, p=np.roll([0.6, 0.3, 0.1], k)) for k, n in enumerate(SIZES)]
    )
    x = 2 * np.eye(3, 5)[y] + 0.5 * rng.standard_normal((len(y), 5))
    split = np.where(
        np.arange(len(y)) % 5 == 0, "test", np.where(np.arange(len(y)) % 5 == 1, "valid", "train")
    )
    if empty:  # a name in the middle of the others, no training data
        ids = np.append(ids, ["client 2 without data"] * 2)
        x, y, split = (
            np.concatenate([x, np.ones((2, 5))]),
            np.append(y, [0, 1]),
            np.append(split, ["test", "valid"]),
        )
    return Federation.from_arrays(
        torch.from_numpy(x), y, ids, split=split, classes=3, name="conformance"
    )


def task() -> Task:
    """A small network with an input and an output layer."""
    return Task(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))


def check_method(method: Method, **settings: Any) -> None:
    """Run every check below; `settings` are those of a run (rounds, sample, batch, ...)."""
    base = {
        "rounds": 3,
        "sample": 0 if method.hears_all else 3,
        "batch": 8,
        "dtype": "float64",
        "eval_every": 1,
    }
    for check in CHECKS:
        try:
            check(method, {**base, **settings})
        except AssertionError as error:
            raise AssertionError(
                f"{type(method).__name__}: {(check.__doc__ or '').strip()} — {error}"
            ) from error


def deterministic(method: Method, settings: dict[str, Any]) -> None:
    """The same settings give the same bits."""
    _same(_one(method, settings), _one(method, settings), 0.0)


def chunks(method: Method, settings: dict[str, Any]) -> None:
    """Clients one at a time or all together give the same result."""
    together = _one(method, settings)
    for chunk in (1, 4):
        _same(together, _one(method, {**settings, "chunk": chunk}), 1e-9)


def kernels(method: Method, settings: dict[str, Any]) -> None:
    """Every kernel gives the same result."""
    stacked = _one(method, {**settings, "kernel": "stacked"})
    for kernel in ("vmap", "rows"):
        _same(stacked, _one(method, {**settings, "kernel": kernel}), 1e-9)


def no_data(method: Method, settings: dict[str, Any]) -> None:
    """A client without training data changes nothing for the others."""
    without, among = _one(method, settings), _one(method, settings, federation(empty=True))
    others = torch.tensor(
        [name != "client 2 without data" for name in among.engine.host.data.names]
    )
    for name, t in without.engine.server.items():
        assert torch.equal(t, among.engine.server[name]), f"server {name!r} differs"
    rows = among.engine.host.store.rows
    for name, t in without.engine.host.store.rows.items():
        assert torch.equal(t, rows[name][others]), f"private {name!r} differs"


def purity(method: Method, settings: dict[str, Any]) -> None:
    """Functions change none of their arguments; rows and messages keep names, shapes and dtypes."""
    t, data = task().to(dtype=torch.float64, clients=len(SIZES)), federation()
    ids, names = torch.arange(len(SIZES)), streams.name_keys(data.names)
    server = method.server(t)
    down, private = method.broadcast(t, server), method.private(t, names)
    before = {"down": _copy(down), "private": _copy(private)}
    batches = Batches(
        data,
        ids,
        seed=0,
        round=1,
        names=names,
        batch=8,
        batching="replace",
        dtype=t.dtype,
        validate=lambda x: torch.zeros(len(x)),
    )
    up, rows = method.update(t, down, private, batches)
    x = method.personal(t, down, rows, batches)
    for name, state in (("down", down), ("private", private)):
        assert all(torch.equal(state[n], v) for n, v in before[name].items()), (
            f"update changed {name} in place"
        )
    assert {n: v.shape[1] for n, v in up.items()} == method.message(t), (
        "the message is not what `message` declares"
    )
    assert all(len(v) == len(ids) and v.dtype == t.dtype for v in up.values()), (
        "a message needs a row a client, in the task's dtype"
    )
    assert {n: (v.shape, v.dtype) for n, v in rows.items()} == {
        n: (v.shape, v.dtype) for n, v in private.items()
    }, "private rows changed form"
    assert x.shape == (len(ids), t.d), (
        f"personal models are {tuple(x.shape)}, expected {(len(ids), t.d)}"
    )
    weights = torch.ones(len(ids), dtype=torch.float64)
    kept = _copy(server)
    if up:
        after = method.aggregate(t, server, up, weights, lambda r, w: (w / w.sum()).to(r.dtype) @ r)
        assert {n: (v.shape, v.dtype) for n, v in after.items()} == {
            n: (v.shape, v.dtype) for n, v in server.items()
        }, "server state changed form"
    assert all(torch.equal(server[n], v) for n, v in kept.items()), (
        "aggregate changed the server's state in place"
    )


def resume(method: Method, settings: dict[str, Any]) -> None:
    """An interrupted run continues to exactly the result of an uninterrupted one."""
    whole = _one(method, settings)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        run(method, task(), federation(), directory=folder, **settings, checkpoint_every=1)
        newest = max((folder / "checkpoints" / "seed-0").iterdir())
        shutil.rmtree(newest)  # as if it had been stopped a round earlier
        again = run(
            method,
            task(),
            federation(),
            directory=folder,
            resume=True,
            **settings,
            checkpoint_every=1,
        ).seeds[0]
    _same(whole, again, 0.0)
    assert whole.history == again.history, "the history differs"


def learns(method: Method, settings: dict[str, Any]) -> None:
    """The model that is evaluated is the one that was trained: it gets better."""
    long = {**settings, "rounds": max(40, settings["rounds"]), "eval_every": 0, "batch": 16}
    first = _one(method, {**long, "rounds": 0}).final("train")
    last = _one(method, long).final("train")
    assert last["loss"] < first["loss"], (
        f"training loss {first['loss']:.3f} before, {last['loss']:.3f} after"
    )
    assert last["accuracy"] > first["accuracy"], (
        f"training accuracy {first['accuracy']:.3f} before, {last['accuracy']:.3f} after"
    )


CHECKS: tuple[Callable[[Method, dict[str, Any]], None], ...] = (
    purity,
    deterministic,
    chunks,
    kernels,
    no_data,
    resume,
    learns,
)


def _one(method: Method, settings: dict[str, Any], data: Federation | None = None) -> SeedResult:
    result: Result = run(method, task(), data or federation(), **settings)
    return result.seeds[0]


def _same(a: SeedResult, b: SeedResult, tolerance: float) -> None:
    states = (
        ("server", a.engine.server, b.engine.server),
        ("private", a.engine.host.store.rows, b.engine.host.store.rows),
    )
    for what, first, second in states:
        assert first.keys() == second.keys(), f"{what} has other entries"
        for name, t in first.items():
            _close(t, second[name], tolerance, f"{what} {name!r}")
    _close(
        a.engine.ledger.counts["gradients"],
        b.engine.ledger.counts["gradients"],
        0.0,
        "gradient counts",
    )


def _close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    if not tolerance:
        assert torch.equal(a, b), f"{what} differs"
    elif a.numel():
        gap, scale = float((a - b).abs().max()), 1 + float(a.abs().max())
        assert gap <= tolerance * scale, f"{what} differs by {gap:.2e}"


def _copy(state: State) -> State:
    return {n: t.clone() for n, t in state.items()}
