"""What a server keeps of clients at work, in a checkpoint: what is written, what is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core.tensors import Shapes, bytes_of, check_shapes, shapes_of
from ..core.types import State, prefixed, under
from ..task.task import Task
from ..wire.admission import Admitted
from .arrivals import Arrivals, Base


def save(arrivals: Arrivals, busy: bool = True) -> tuple[State, dict[str, Any]]:
    """Tensors and plain facts; between rounds, when the ledger is closed.

    Without `busy`, as if nobody were at work.
    """
    at_work = arrivals.busy if busy else {}
    bases = {base.version: base for base in at_work.values()}
    place = {version: k for k, version in enumerate(sorted(bases))}
    ordered = [bases[version] for version in place]
    held = arrivals.held
    tensors = {
        "turns": arrivals.turns.clone(),
        "busy": torch.tensor(
            [[k, place[base.version]] for k, base in sorted(at_work.items())],
            dtype=torch.int64,
        ).view(-1, 2),
        "bases": torch.tensor([[b.version, b.step] for b in ordered], dtype=torch.int64).view(
            -1, 2
        ),
        "held": torch.tensor([int(one.wire_ids[0]) for one in held], dtype=torch.int64),
        "weights": torch.tensor([float(one.weights[0]) for one in held], dtype=torch.float64),
    }
    for name, like in _reference(arrivals).items():
        rows = [base.reference[name] for base in ordered]
        tensors[f"reference.{name}"] = torch.stack(rows) if rows else like.new_zeros(0, *like.shape)
    for name, size in arrivals.server.contract.method.message(_task(arrivals)).items():
        rows = [one.up[name][0] for one in held]
        blank = torch.zeros(0, size, dtype=_task(arrivals).dtype)
        tensors[f"up.{name}"] = torch.stack(rows) if rows else blank
    return {n: t.cpu() for n, t in tensors.items()}, {"steps": arrivals.steps}


def check(arrivals: Arrivals, shapes: Shapes, facts: dict[str, Any], most: int) -> None:
    """Refuse, by ValueError, what cannot have been saved with `most` clients at work."""
    steps = facts.get("steps")
    if facts.keys() != {"steps"} or type(steps) is not int or steps < 0:
        raise ValueError("arrivals: 'steps' is a whole number")
    counts = {n: shapes[n][0][0] for n in ("busy", "bases", "held") if n in shapes and shapes[n][0]}
    busy, bases, held = (counts.get(n, 0) for n in ("busy", "bases", "held"))
    if busy > most or bases > busy or held >= arrivals.buffer:
        raise ValueError("arrivals: more clients at work than this run has")
    check_shapes(shapes, _shapes(arrivals, busy, bases, held))


def load(arrivals: Arrivals, tensors: State, facts: dict[str, Any]) -> None:
    """As it was saved; the server has been loaded before."""
    server = arrivals.server
    clients = len(server.roster)
    busy, bases, held = tensors["busy"], tensors["bases"], tensors["held"]
    real = [t for n, t in tensors.items() if n.startswith(("reference.", "up.", "weights"))]
    if not (
        all(bool(torch.isfinite(t).all()) for t in real)
        and bool(((busy[:, 0] >= 0) & (busy[:, 0] < clients)).all())
        and bool((busy[:, 0].diff() > 0).all())
        and bool(((busy[:, 1] >= 0) & (busy[:, 1] < len(bases))).all())
        and bool(((held >= 0) & (held < clients)).all())
        and bool((tensors["weights"] > 0).all())
        and bool((tensors["turns"] >= 0).all())
        and bool(((bases >= 0) & (bases[:, :1] <= server.version)).all())
        and bool((bases[:, 1] <= facts["steps"]).all())
        and facts["steps"] <= server.version
    ):
        raise ValueError("arrivals: numbers that no run has had")
    arrivals.steps = facts["steps"]
    arrivals.turns = tensors["turns"].clone()
    device = server.contract.task.device
    references = under(tensors, "reference.")
    found = [
        Base(int(version), int(step), {n: t[k].to(device) for n, t in references.items()})
        for k, (version, step) in enumerate(bases.tolist())
    ]
    arrivals.busy = {wire_id: found[at] for wire_id, at in busy.tolist()}
    up = under(tensors, "up.")
    arrivals.held = [
        Admitted(
            {n: t[k : k + 1] for n, t in up.items()},
            held[k : k + 1],
            tensors["weights"][k : k + 1],
            np.zeros(1, dtype=np.int64),
            np.zeros(1),
            {},
            np.zeros(1, dtype=np.int8),
            {},
        )
        for k in range(len(held))
    ]


def most_bytes(arrivals: Arrivals, most: int) -> int:
    """The most that the tensors of `save` take."""
    return bytes_of(_shapes(arrivals, most, most, arrivals.buffer))


def _shapes(arrivals: Arrivals, busy: int, bases: int, held: int) -> Shapes:
    task = _task(arrivals)
    message = arrivals.server.contract.method.message(task)
    up = {n: ((held, size), task.dtype) for n, size in message.items()}
    reference = {
        n: ((bases, *shape), dtype) for n, (shape, dtype) in shapes_of(_reference(arrivals)).items()
    }
    return {
        "turns": ((len(arrivals.server.roster),), torch.int64),
        "busy": ((busy, 2), torch.int64),
        "bases": ((bases, 2), torch.int64),
        "held": ((held,), torch.int64),
        "weights": ((held,), torch.float64),
        **prefixed(reference, "reference."),
        **prefixed(up, "up."),
    }


def _reference(arrivals: Arrivals) -> State:
    """The model parts of the message down, as they are now."""
    return arrivals.server.aggregation().reference({})


def _task(arrivals: Arrivals) -> Task:
    return arrivals.server.contract.task
