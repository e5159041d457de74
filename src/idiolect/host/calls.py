"""Wire format of calls between an engine and a host: plain bytes, nothing to execute.

A call is a frame: a magic number, the length of its head, the head (its kind and plain facts, as
JSON) and tensors in the safetensors format. Messages between server and clients travel inside as
bytes, each with a header of its own (`idiolect.wire`).

>>> call = Call("update", {"version": 3}, {"train": torch.tensor([1, 4])})
>>> again = Call.open(call.pack())
>>> again.kind, again.facts, again.tensors["train"].tolist()
('update', {'version': 3}, [1, 4])
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core.documents import expect_fields
from ..core.files import parse_json
from ..core.tensors import Shapes, check_shapes, shapes_of
from ..core.types import State, prefixed, under
from ..data.splits import SPLITS
from ..server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from ..wire.messages import DownMessage
from ..wire.ragged import Ragged
from .metrics import Metric, MetricCounts
from .scores import Scores
from .subgroups import ColumnCounts, SubgroupScores

MAGIC = b"idc1"
MOST_FACTS = 1 << 20  # bytes of the head of a frame
MOST_FRAME = 1 << 31  # bytes of a frame
MOST_VERSION = 1 << 32  # of a round: as many bits as the header of a message has
MOST_COUNTED = 1 << 40  # gradients, or numbers sent, of a client in a round
FAILED = "failed"  # the kind of a reply that tells an error
REFUSED = "refused"  # the kind of a reply to what the owner's rules forbid


@dataclass(frozen=True)
class Call:
    """A request to a host, or its reply."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)  # plain data
    tensors: State = field(default_factory=dict)

    def pack(self) -> bytes:
        """The frame."""
        head = json.dumps({"kind": self.kind, "facts": self.facts}).encode()
        return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, save(_apart(self.tensors))))

    @classmethod
    def open(cls, frame: bytes, most: int = MOST_FRAME) -> Call:
        """The inverse, of unknown origin: ValueError for anything but a frame."""
        if not 8 <= len(frame) <= most:
            raise ValueError(f"a frame must have 8 to {most} bytes, got {len(frame)}")
        length = int.from_bytes(frame[4:8], "little")
        if frame[:4] != MAGIC or length > min(MOST_FACTS, len(frame) - 8):
            raise ValueError("the bytes must be a frame")
        head = expect_fields(parse_json(frame[8 : 8 + length]), {"kind": str, "facts": dict})
        try:
            tensors = load(frame[8 + length :])
        except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"the tensors of a frame cannot be read: {error}") from None
        return cls(head["kind"], head["facts"], tensors)

    def expect_kind(self, kind: str) -> None:
        """Refuse, by ValueError, another kind."""
        if self.kind != kind:
            raise ValueError(f"the call must be {kind!r}, got {self.kind[:40]!r}")

    def expect(self, kind: str, shapes: Shapes, facts: Mapping[str, Any] | None = None) -> None:
        """Refuse, by ValueError, another kind, other facts or other tensors.

        A length of -1 stands for any length.
        """
        self.expect_kind(kind)
        expect_fields(self.facts, facts or {})
        actual_shapes = shapes_of(self.tensors)
        wanted = {
            name: (
                _as_long_as(actual_shapes[name][0], shape) if name in actual_shapes else shape,
                dtype,
            )
            for name, (shape, dtype) in shapes.items()
        }
        check_shapes(actual_shapes, wanted)


def _apart(tensors: State) -> State:
    """Tensors each with memory of its own: safetensors takes no others."""
    own_tensors: State = {}
    places: set[int] = set()
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        place = t.untyped_storage().data_ptr()
        own_tensors[name] = t.clone() if place in places else t
        places.add(place)
    return own_tensors


def _as_long_as(actual_shape: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(actual_shape) != len(shape):
        return shape
    return tuple(f if s == -1 else s for f, s in zip(actual_shape, shape, strict=True))


IDS = ((-1,), torch.int64)
BYTES = ((-1,), torch.uint8)


def as_tensor(message: bytes) -> Tensor:  # -> uint8[length]
    """Bytes as a tensor."""
    return torch.from_numpy(np.frombuffer(message, dtype=np.uint8).copy())


def as_bytes(t: Tensor) -> bytes:
    """The inverse."""
    return t.numpy().tobytes()


# -- the message down ------------------------------------------------------------------------------
def down_tensors(message: DownMessage) -> State:
    """A message down in a call that names its clients: messages of their own in increasing order.

    Without any, they are left out.
    """
    own = {"own": torch.from_numpy(message.own)} if message.own.size else {}
    return {"down": as_tensor(message.common), **own}


def down_shapes(call: Call) -> dict[str, Any]:
    """The tensors of a message down that a call may have."""
    own = {"own": ((-1, -1), torch.uint8)} if "own" in call.tensors else {}
    return {"down": BYTES, **own}


def read_down(call: Call, wire_ids: Tensor) -> DownMessage:
    """The inverse, for these clients."""
    common = as_bytes(call.tensors["down"])
    if "own" not in call.tensors:
        return DownMessage(common)
    own = call.tensors["own"].numpy()
    if len(own) != len(wire_ids) or len(wire_ids.unique()) < len(wire_ids):
        raise ValueError("own must be a message for each client, and each client be named once")
    return DownMessage(common, wire_ids.sort().values, own)


# -- a round ---------------------------------------------------------------------------------------
def order_call(order: RoundRequest, kind: str = "update") -> Call:
    """An order of the server."""
    tensors = {**down_tensors(order.down), "train": order.train, "heard": order.heard}
    if order.turns is not None:
        tensors["turns"] = order.turns
    return Call(kind, {"version": order.version, "factors": dict(order.factors)}, tensors)


def read_order(call: Call) -> RoundRequest:
    """The inverse."""
    shapes: dict[str, Any] = {**down_shapes(call), "train": IDS, "heard": IDS}
    if "turns" in call.tensors:
        shapes["turns"] = IDS
    call.expect(call.kind, shapes, {"version": int, "factors": dict[str, float]})
    train, heard_ids = call.tensors["train"], call.tensors["heard"]
    turns = call.tensors.get("turns")
    if turns is not None and len(turns) != len(train):
        raise ValueError("turns must be one per client that trains")
    for ids in (train, heard_ids):
        if len(ids.unique()) < len(ids):
            raise ValueError("train and heard must name each client once")
    factors = call.facts["factors"]
    if not all(0 <= f < math.inf for f in factors.values()):
        raise ValueError("factors must be numbers >= 0")
    version = _version(call)
    return RoundRequest(version, read_down(call, train), train, heard_ids, factors, turns)


def sent_reply(update: HostUpdate) -> Call:
    """What a host sends in a round."""
    tensors = {
        **_messages(update.messages),
        "values": torch.from_numpy(update.values),
        "trained": update.trained,
        "gradients": update.gradients,
        **prefixed(update.counted, "counted."),
    }
    return Call("sent", {}, tensors)


def read_sent(call: Call, wire_ids: Tensor, counted: Sequence[str]) -> HostUpdate:
    """The inverse, of a host that has these clients.

    What single messages hold is the business of the server's admission; who trained and what was
    spent is checked here.
    """
    shapes: dict[str, Any] = {"values": ((-1,), torch.float64), "trained": IDS, "gradients": IDS}
    shapes |= {"matrix": ((-1, -1), torch.uint8), "lengths": IDS}
    shapes |= {f"counted.{name}": IDS for name in counted}
    call.expect("sent", shapes)
    messages = _read_messages(call.tensors)
    trained = call.tensors["trained"]
    columns = [call.tensors["gradients"], *under(call.tensors, "counted.").values()]
    values = call.tensors["values"]
    if len(values) != len(messages) or any(len(c) != len(trained) for c in columns):
        raise ValueError("sent: columns differ in length")
    valid_ids = torch.isin(trained, wire_ids).all() and len(trained.unique()) == len(trained)
    if not bool(valid_ids):
        raise ValueError("trained must be clients of this host, each once")
    if any(bool(((c < 0) | (c > MOST_COUNTED)).any()) for c in columns):
        raise ValueError(f"gradients must be whole numbers from 0 to {MOST_COUNTED}")
    if not bool(((values >= 0) & (values <= MOST_COUNTED)).all()):
        raise ValueError(f"values must be numbers from 0 to {MOST_COUNTED}")
    return HostUpdate(
        messages, values.numpy(), trained, columns[0], under(call.tensors, "counted.")
    )


def query_call(query: Query) -> Call:
    """A question of a channel's second exchange."""
    tensors = {"message": as_tensor(query.message), "asked": query.asked}
    return Call("answer", {"version": query.version, "part": query.part}, tensors)


def read_query(call: Call) -> Query:
    """The inverse."""
    call.expect("answer", {"message": BYTES, "asked": IDS}, {"version": int, "part": str})
    message = as_bytes(call.tensors["message"])
    return Query(_version(call), call.facts["part"], message, call.tensors["asked"])


def answer_reply(answers: np.ndarray) -> Call:
    """Answers to a question: a byte matrix."""
    return Call("answered", {}, _messages(Ragged.even(answers)))


def read_answer(call: Call) -> Ragged:
    """The inverse."""
    call.expect("answered", {"matrix": ((-1, -1), torch.uint8), "lengths": IDS})
    return _read_messages(call.tensors)


def sum_call(version: int, stage: int, frames: Mapping[int, bytes]) -> Call:
    """A stage of a secure sum, for these clients of a host."""
    return Call("sum", {"version": version, "stage": stage}, _frames(frames))


def read_sum(call: Call) -> tuple[int, int, dict[int, bytes]]:
    """The inverse: version, stage, frames by client."""
    shapes = {"wire_ids": IDS, "matrix": ((-1, -1), torch.uint8), "lengths": IDS}
    call.expect("sum", shapes, {"version": int, "stage": int})
    return _version(call), call.facts["stage"], _by_client(call)


def summed_reply(frames: Mapping[int, bytes]) -> Call:
    """What clients answer; those that answer nothing are left out."""
    return Call("summed", {}, _frames(frames))


def read_summed(call: Call, wire_ids: Tensor) -> dict[int, bytes]:
    """The inverse, of a host that was asked about these clients."""
    shapes = {"wire_ids": IDS, "matrix": ((-1, -1), torch.uint8), "lengths": IDS}
    call.expect("summed", shapes)
    if not bool(torch.isin(call.tensors["wire_ids"], wire_ids).all()):
        raise ValueError("summed must be of clients that were asked about")
    return _by_client(call)


def _frames(frames: Mapping[int, bytes]) -> State:
    strings = Ragged.of([*frames.values()])
    return {"wire_ids": torch.tensor(list(frames)).long(), **_messages(strings)}


def _by_client(call: Call) -> dict[int, bytes]:
    """Byte strings by client, each named once."""
    wire_ids = call.tensors["wire_ids"].tolist()
    strings = _read_messages(call.tensors)
    if len(strings) != len(wire_ids) or len(set(wire_ids)) < len(wire_ids):
        raise ValueError(f"{call.kind} must have one string for each client, each named once")
    return {wire_id: strings.row(k) for k, wire_id in enumerate(wire_ids)}


def verdict_call(verdict: RoundConclusion, kind: str = "conclude") -> Call:
    """The end of a round."""
    tensors = {"counted": verdict.counted, "unheard": verdict.unheard}
    tensors |= {f"taken.{part}": as_tensor(m) for part, m in verdict.taken.items()}
    return Call(kind, {"version": verdict.version}, tensors)


def read_verdict(call: Call) -> RoundConclusion:
    """The inverse."""
    taken_tensors = {n: t for n, t in call.tensors.items() if n.startswith("taken.")}
    shapes = {"counted": IDS, "unheard": IDS, **dict.fromkeys(taken_tensors, BYTES)}
    call.expect(call.kind, shapes, {"version": int})
    coordinates = {n: as_bytes(t) for n, t in under(taken_tensors, "taken.").items()}
    return RoundConclusion(
        _version(call), call.tensors["counted"], call.tensors["unheard"], coordinates
    )


# -- evaluation ------------------------------------------------------------------------------------
def evaluate_call(
    kind: str, version: int, down: DownMessage, wire_ids: Tensor, splits: Sequence[str]
) -> Call:
    """Personal models ("evaluate"), or the shared one ("evaluate_shared"), of these clients."""
    tensors = {**down_tensors(down.only(wire_ids)), "wire_ids": wire_ids}
    return Call(kind, {"version": version, "splits": list(splits)}, tensors)


def read_evaluate(call: Call) -> tuple[int, DownMessage, Tensor, tuple[str, ...]]:
    """The inverse: version, message down, clients, splits."""
    facts = {"version": int, "splits": list[str]}
    call.expect(call.kind, {**down_shapes(call), "wire_ids": IDS}, facts)
    wire_ids = call.tensors["wire_ids"]
    return _version(call), read_down(call, wire_ids), wire_ids, _splits(call)


_COLUMNS = {
    "wire_ids": torch.int64,
    "hits": torch.float64,
    "loss": torch.float64,
    "samples": torch.int64,
    "gradients": torch.int64,
}


def scores_reply(scores_by_split: Mapping[str, Scores]) -> Call:
    """Scores by split."""
    tensors: State = {}
    for split, scores in scores_by_split.items():
        tensors |= {f"{split}.{n}": getattr(scores, n).to(kind) for n, kind in _COLUMNS.items()}
        if scores.weights is not None:
            tensors[f"{split}.weights"] = scores.weights
        for name, measured in scores.metrics.items():
            tensors[f"{split}.rows.{name}"] = measured.rows
            tensors[f"{split}.counts.{name}"] = measured.counts
    return Call("scores", {"splits": list(scores_by_split)}, tensors)


def read_scores(call: Call, wire_ids: Tensor, metrics: Sequence[Metric]) -> dict[str, Scores]:
    """The inverse, of a host that has these clients."""
    call.expect_kind("scores")
    expect_fields(call.facts, {"splits": list[str]})
    scores_by_split = {}
    expected = 0
    for split in _splits(call):
        part = under(call.tensors, f"{split}.")
        expected += len(part)
        ids = part.get("wire_ids", torch.zeros(0))
        length = ids.numel()
        for name, kind in _COLUMNS.items():
            column = part.get(name)
            if column is None or column.shape != (length,) or column.dtype != kind:
                raise ValueError(f"scores: the column {name} is missing or of another kind")
        if not bool(torch.isin(ids, wire_ids).all()) or bool((ids.diff() <= 0).any()):
            raise ValueError("scores must be of clients of this host, in order")
        if any(bool((part[name] < 0).any()) for name in ("samples", "gradients")):
            raise ValueError("scores: samples and gradients must be >= 0")
        weights = part.get("weights")
        if weights is not None and not _are_weights(weights, length):
            raise ValueError("scores: weights must be finite numbers >= 0, one per client")
        measured = {}
        for metric in metrics:
            rows, counts = part.get(f"rows.{metric.name}"), part.get(f"counts.{metric.name}")
            if rows is None or counts is None or rows.dim() != 2 or len(rows) != length:
                raise ValueError(f"scores: the metric {metric.name} is missing")
            kind = torch.int64 if weights is None else torch.float64
            if rows.dtype != torch.float64 or counts.dtype != kind:
                raise ValueError(f"scores: the metric {metric.name} is of another kind")
            # their sums over hosts and cells stay within 64 bits
            most = MOST_COUNTED if weights is None else torch.finfo(kind).max
            if not bool(((counts >= 0) & (counts <= most)).all()):
                raise ValueError(f"scores: the metric {metric.name} counts below 0 or beyond all")
            measured[metric.name] = MetricCounts(metric, rows, counts)
        columns = (part["hits"], part["loss"], part["samples"], part["gradients"])
        scores_by_split[split] = Scores(ids, *columns, measured, weights)
    if expected != len(call.tensors):
        raise ValueError("scores: more came than was asked for")
    return scores_by_split


def subgroups_call(version: int, down: DownMessage, wire_ids: Tensor, shared: bool) -> Call:
    """Figures by subgroup of these clients' test data, of personal models or of the shared one."""
    tensors = {**down_tensors(down.only(wire_ids)), "wire_ids": wire_ids}
    return Call("evaluate_subgroups", {"version": version, "shared": shared}, tensors)


def read_subgroups(call: Call) -> tuple[int, DownMessage, Tensor, bool]:
    """The inverse: version, message down, clients, whether the shared model is meant."""
    facts = {"version": int, "shared": bool}
    call.expect(call.kind, {**down_shapes(call), "wire_ids": IDS}, facts)
    wire_ids = call.tensors["wire_ids"]
    return _version(call), read_down(call, wire_ids), wire_ids, call.facts["shared"]


def subgroups_reply(scores: SubgroupScores) -> Call:
    """What was counted, column by column."""
    tensors = {"wire_ids": scores.wire_ids}
    for at, counted in enumerate(scores.columns.values()):
        tensors |= prefixed(counted.tensors(), f"{at}.")
    return Call("subgroups", {"columns": list(scores.columns)}, tensors)


def read_subgroups_reply(call: Call, wire_ids: Tensor, metrics: Sequence[Metric]) -> SubgroupScores:
    """The inverse, of a host that has these clients."""
    call.expect_kind("subgroups")
    expect_fields(call.facts, {"columns": list[str]})
    if not torch.equal(call.tensors.get("wire_ids", torch.zeros(0)), wire_ids):
        raise ValueError("subgroups must be of every client that was asked, in their order")
    columns = {}
    for at, name in enumerate(call.facts["columns"]):
        columns[name] = ColumnCounts.of_tensors(under(call.tensors, f"{at}."), metrics)
    return SubgroupScores(wire_ids, columns)


# -- inside ----------------------------------------------------------------------------------------
def _are_weights(weights: Tensor, length: int) -> bool:
    if weights.shape != (length,) or weights.dtype != torch.float64:
        return False
    return bool((torch.isfinite(weights) & (weights >= 0)).all())


def _version(call: Call) -> int:
    version: int = call.facts["version"]
    if not 0 <= version < MOST_VERSION:
        raise ValueError(f"version must be a whole number of 32 bits, got {version}")
    return version


def _splits(call: Call) -> tuple[str, ...]:
    splits = tuple(call.facts["splits"])
    if not set(splits) <= set(SPLITS) or len(set(splits)) < len(splits):
        raise ValueError(f"splits must be some of {', '.join(SPLITS)}, each once")
    return splits


def _messages(messages: Ragged) -> State:
    return {
        "matrix": torch.from_numpy(np.ascontiguousarray(messages.matrix)),
        "lengths": torch.from_numpy(messages.lengths),
    }


def _read_messages(tensors: State) -> Ragged:
    matrix, lengths = tensors["matrix"].numpy(), tensors["lengths"].numpy()
    if len(matrix) != len(lengths) or (lengths < 0).any() or (lengths > matrix.shape[1]).any():
        raise ValueError("messages must each have a length within their row")
    return Ragged(matrix, lengths)
