"""A server in a checkpoint: what is written, and what is accepted when it is read.

What is read may come from anybody. Names, shapes and dtypes of tensors and the types of facts are
those that this very server would write; anything else is refused before it is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.documents import expect, expect_fields
from ..core.store import Store
from ..core.tensors import Shapes, bytes_of, check_shapes, shapes_of
from ..core.types import State, prefixed, under
from ..task.task import Task
from ..wire.admission import AdmittedMessages
from ..wire.ledger import Ledger
from .asynchronous import AsyncServer, StartingModel
from .roster import Roster
from .streaming_mean import StreamingPlan

if TYPE_CHECKING:
    from .server import Server

MOST_COUNTED = 1 << 50  # bytes, numbers or gradients of a client
OPTIMIZER_STATE = "state.optimizer."  # what the server's optimiser keeps, in a checkpoint


def save(server: Server) -> tuple[State, dict[str, Any]]:
    """Everything, for a checkpoint: tensors and plain facts.

    What is kept for each client is not copied, for it can be large: write it before the next round.
    """
    if server.taking_part is not None:
        raise RuntimeError("a server is saved between rounds, not between exchanges of a round")
    roster, clients = server.roster.save()
    counts, fates = server.ledger.save()
    tensors = {
        **prefixed(server.state, "state."),
        **prefixed(server.channel_state, "channel."),
        **prefixed(server.rule_state, "rule."),
        **_saved_stores(server),
        **prefixed({n: t.clone() for n, t in roster.items()}, "roster."),
        **prefixed({n: t.clone() for n, t in counts.items()}, "ledger."),
    }
    facts = {
        "version": server.version,
        "clients": clients,
        "ledger": fates,
        "sums": server.plan.streams,
    }
    if server.privacy is not None:
        exposures, facts["privacy"] = server.privacy.save()
        tensors |= prefixed(exposures, "privacy.")
    return {n: t.cpu() for n, t in tensors.items()}, facts


def check(server: Server, shapes: Shapes, facts: dict[str, Any]) -> None:
    """Refuse, by ValueError, what a server of this contract cannot have saved.

    Before anything is read: names, shapes and dtypes of the tensors, types of the facts. The
    clients are those enrolled here, and any that enrolled later.
    """
    roster, clients = server.roster.save()
    counts, _ = server.ledger.save()
    pattern = {"version": 0, "clients": clients, "ledger": Ledger(0).save()[1], "sums": False}
    exposures: State = {}
    if server.privacy is not None:
        exposures, pattern["privacy"] = server.privacy.save()
    check_like(facts, pattern, "server")
    private = server.private_mean is not None
    possible = StreamingPlan.of(server.contract, server.rule, server.sample, 0, private)
    if facts["sums"] and not possible.streams:
        raise ValueError(f"server: messages cannot have been summed: {possible.reason}")
    ids = facts["clients"]["ids"]
    if ids[: len(server.roster)] != server.roster.ids or len({str(i) for i in ids}) < len(ids):
        raise ValueError("server: these are other clients")
    per_client = {**prefixed(roster, "roster."), **prefixed(counts, "ledger.")}
    per_client |= prefixed(exposures, "privacy.")
    expected = {
        **shapes_of(server.step.method_state(server.state), "state."),
        **shapes_of(server.channel_state, "channel."),
        **shapes_of(server.rule_state, "rule."),
        **{
            name: ((len(ids), *shape[1:]), dtype)
            for name, (shape, dtype) in shapes_of(per_client).items()
        },
    }
    if any(name.startswith(OPTIMIZER_STATE) for name in shapes):
        expected |= _optimizer_shapes(server)
    stores = _stores(server)
    per_store = {n: form for n, form in shapes.items() if n.startswith(tuple(stores))}
    check_shapes({n: form for n, form in shapes.items() if n not in per_store}, expected)
    for prefix, store in stores.items():
        store.check(under(per_store, prefix), len(ids))


def _stores(server: Server) -> dict[str, Store]:
    """What is kept for each client, by the prefix of its names in a checkpoint."""
    rows = {"rows.": server.rows} if server.contract.keeps_rows else {}
    return {"memory.": server.memory} | rows


def _saved_stores(server: Server) -> State:
    saved: State = {}
    for prefix, store in _stores(server).items():
        saved |= prefixed(store.save(), prefix)
    return saved


def _optimizer_shapes(server: Server) -> Shapes:
    """What the server's optimiser keeps: it shows after a step."""
    shared = server.contract.method.traits.shared_name
    before = {n: t for n, t in server.step.method_state(server.state).items() if n == shared}
    if not before:
        return {}
    after = server.step(before, before, shared)
    return {n: f for n, f in shapes_of(after, "state.").items() if n != f"state.{shared}"}


def load(server: Server, tensors: State, facts: dict[str, Any]) -> None:
    """As it was saved; see `check` for what is refused."""
    check(server, shapes_of(tensors), facts)
    vectors = [
        t for n, t in tensors.items() if n.startswith(("state.", "channel.", "rule.", "rows."))
    ]
    if not all(bool(torch.isfinite(t).all()) for t in vectors if t.is_floating_point()):
        raise ValueError("server: a number of its state is not finite")
    steps = float(tensors.get(f"{OPTIMIZER_STATE}step", torch.zeros(())))
    if not 0 <= steps <= facts["version"]:
        raise ValueError("server: its optimiser has made more steps than there were rounds")
    own_weights = server.roster.own_weights
    roster = Roster.loaded(under(tensors, "roster."), facts["clients"], own_weights)
    if not torch.equal(roster.samples[: len(server.roster)], server.roster.samples):
        raise ValueError("server: a client has another number of training samples")
    weights = server.roster.weights
    if weights is not None and not torch.equal(tensors["roster.weights"][: len(weights)], weights):
        raise ValueError("server: a client has another weight")
    counts = {n: t.clone() for n, t in under(tensors, "ledger.").items()}
    if not all(bool(((t >= 0) & (t <= MOST_COUNTED)).all()) for t in counts.values()):
        raise ValueError(f"ledger: a count is not between 0 and {MOST_COUNTED}")
    device = server.contract.task.device
    for prefix, store in _stores(server).items():
        store.load(under(tensors, prefix), device, len(roster), rounds=facts["version"])
    # as the run was begun, whatever the memory is now
    server.plan = replace(server.plan, streams=facts["sums"])
    server.version = facts["version"]
    server.state = _on_device(server, under(tensors, "state."))
    server.channel_state = _on_device(server, under(tensors, "channel."))
    server.rule_state = _on_device(server, under(tensors, "rule."))
    server.roster = roster
    if server.privacy is not None:
        rounds = server.contract.round_of(facts["version"])
        server.privacy.load(under(tensors, "privacy."), facts["privacy"], rounds)
    server.ledger = Ledger.load(counts, facts["ledger"], server.ledger.more)


def most_bytes(server: Server) -> int:
    """The most that the tensors of `save` take, for the clients enrolled here."""
    tensors, _ = save(server)
    stores = _stores(server)
    own = {n: t for n, t in tensors.items() if not n.startswith(tuple(stores))}
    shapes = {**shapes_of(own), **_optimizer_shapes(server)}
    return bytes_of(shapes) + sum(bytes_of(store.expected()) for store in stores.values())


def _on_device(server: Server, vectors: State) -> State:
    return {n: t.to(server.contract.task.device) for n, t in vectors.items()}


def save_arrivals(arrivals: AsyncServer, busy: bool = True) -> tuple[State, dict[str, Any]]:
    """Tensors and plain facts; between rounds, when the ledger is closed.

    Without `busy`, as if nobody were at work.
    """
    at_work = arrivals.busy if busy else {}
    bases = {base.version: base for base in at_work.values()}
    place = {version: k for k, version in enumerate(sorted(bases))}
    ordered = [bases[version] for version in place]
    messages = arrivals.held
    tensors = {
        "turns": arrivals.turns.clone(),
        "busy": torch.tensor(
            [[k, place[base.version]] for k, base in sorted(at_work.items())],
            dtype=torch.int64,
        ).view(-1, 2),
        "bases": torch.tensor([[b.version, b.step] for b in ordered], dtype=torch.int64).view(
            -1, 2
        ),
        "held": torch.tensor([int(one.wire_ids[0]) for one in messages], dtype=torch.int64),
        "weights": torch.tensor([float(one.weights[0]) for one in messages], dtype=torch.float64),
    }
    for name, like in _reference(arrivals).items():
        rows = [base.reference[name] for base in ordered]
        tensors[f"reference.{name}"] = torch.stack(rows) if rows else like.new_zeros(0, *like.shape)
    for name, size in arrivals.server.contract.method.message(_task(arrivals)).items():
        rows = [one.up[name][0] for one in messages]
        blank = torch.zeros(0, size, dtype=_task(arrivals).dtype)
        tensors[f"up.{name}"] = torch.stack(rows) if rows else blank
    return {n: t.cpu() for n, t in tensors.items()}, {"steps": arrivals.steps}


def check_arrivals(arrivals: AsyncServer, shapes: Shapes, facts: dict[str, Any], most: int) -> None:
    """Refuse, by ValueError, what cannot have been saved with `most` clients at work."""
    steps = facts.get("steps")
    if facts.keys() != {"steps"} or type(steps) is not int or steps < 0:
        raise ValueError("arrivals: 'steps' is a whole number")
    counts = {n: shapes[n][0][0] for n in ("busy", "bases", "held") if n in shapes and shapes[n][0]}
    busy, bases, message_count = (counts.get(n, 0) for n in ("busy", "bases", "held"))
    if busy > most or bases > busy or message_count >= arrivals.buffer:
        raise ValueError("arrivals: more clients at work than this run has")
    check_shapes(shapes, _shapes(arrivals, busy, bases, message_count))


def load_arrivals(arrivals: AsyncServer, tensors: State, facts: dict[str, Any]) -> None:
    """As it was saved; the server has been loaded before."""
    server = arrivals.server
    clients = len(server.roster)
    busy, bases, held_ids = tensors["busy"], tensors["bases"], tensors["held"]
    real = [t for n, t in tensors.items() if n.startswith(("reference.", "up.", "weights"))]
    if not (
        all(bool(torch.isfinite(t).all()) for t in real)
        and bool(((busy[:, 0] >= 0) & (busy[:, 0] < clients)).all())
        and bool((busy[:, 0].diff() > 0).all())
        and bool(((busy[:, 1] >= 0) & (busy[:, 1] < len(bases))).all())
        and bool(((held_ids >= 0) & (held_ids < clients)).all())
        and bool((tensors["weights"] > 0).all())
        and bool((tensors["turns"] >= 0).all())
        and bool(((bases >= 0) & (bases[:, :1] <= server.version)).all())
        and bool((bases[:, 1] <= facts["steps"]).all())
        and facts["steps"] <= server.version
    ):
        raise ValueError("arrivals: corrupt checkpoint: value out of range")
    arrivals.steps = facts["steps"]
    arrivals.turns = tensors["turns"].clone()
    device = server.contract.task.device
    references = under(tensors, "reference.")
    models = [
        StartingModel(int(version), int(step), {n: t[k].to(device) for n, t in references.items()})
        for k, (version, step) in enumerate(bases.tolist())
    ]
    arrivals.busy = {wire_id: models[at] for wire_id, at in busy.tolist()}
    up = under(tensors, "up.")
    arrivals.held = [
        AdmittedMessages(
            {n: t[k : k + 1] for n, t in up.items()},
            held_ids[k : k + 1],
            tensors["weights"][k : k + 1],
            np.zeros(1, dtype=np.int64),
            np.zeros(1),
            {},
            np.zeros(1, dtype=np.int8),
            {},
        )
        for k in range(len(held_ids))
    ]


def most_arrivals_bytes(arrivals: AsyncServer, most: int) -> int:
    """The most that the tensors of `save_arrivals` take."""
    return bytes_of(_shapes(arrivals, most, most, arrivals.buffer))


def _shapes(arrivals: AsyncServer, busy: int, bases: int, message_count: int) -> Shapes:
    task = _task(arrivals)
    message = arrivals.server.contract.method.message(task)
    up = {n: ((message_count, size), task.dtype) for n, size in message.items()}
    reference = {
        n: ((bases, *shape), dtype) for n, (shape, dtype) in shapes_of(_reference(arrivals)).items()
    }
    return {
        "turns": ((len(arrivals.server.roster),), torch.int64),
        "busy": ((busy, 2), torch.int64),
        "bases": ((bases, 2), torch.int64),
        "held": ((message_count,), torch.int64),
        "weights": ((message_count,), torch.float64),
        **prefixed(reference, "reference."),
        **prefixed(up, "up."),
    }


def _reference(arrivals: AsyncServer) -> State:
    """The model parts of the message down, as they are now."""
    return arrivals.server.aggregation().reference({})


def _task(arrivals: AsyncServer) -> Task:
    return arrivals.server.contract.task


def check_like(value: Any, pattern: Any, name: str = "it") -> None:
    """Refuse, by ValueError, plain data that are not built as the pattern is.

    An object with entries has these keys; an empty one is a table, name -> whole number; a list has
    whole numbers or texts; whole numbers are not negative.

    >>> check_like({"version": 3, "rejected": {"size": 1}}, {"version": 0, "rejected": {}})
    >>> check_like({"version": "3", "rejected": {}}, {"version": 0, "rejected": {}}, "server")
    Traceback (most recent call last):
        ...
    ValueError: server.version must be a whole number, got a text
    """
    expect(value, type(pattern), name)
    if isinstance(pattern, dict) and pattern:
        expect_fields(value, {n: type(p) for n, p in pattern.items()}, place=name)
    if isinstance(pattern, dict):
        for key, item in value.items():
            check_like(item, pattern.get(key, 0), f"{name}.{key[:80]}")
    elif isinstance(pattern, list) and not all(type(item) in (int, str) for item in value):
        raise ValueError(f"{name} must be a list of whole numbers or texts")
    elif type(value) is int and value < 0:
        raise ValueError(f"{name} must be a whole number >= 0, got {value}")
