"""Small whole runs with channels, attacks and rules, and a look at what is really sent."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

import idiolect as il
from idiolect.adversary import ATTACKS as NAMES
from idiolect.host.host import Host, Sent
from idiolect.methods import make_method
from idiolect.testing import federation, task
from idiolect.wire import admission
from idiolect.wire import messages as wire

FEDERATION = federation()
CLIENTS = FEDERATION.clients

CHANNELS = (  # one of each kind, and chains
    "clip(norm=1.0)",
    "half",
    "int8(bucket=7)",
    "qsgd(levels=8)",
    "qsgd(levels=4, bucket=10, coding=elias)",
    "sign(layers=True)",
    "topk(share=0.2)",
    "randomk(share=0.3)",
    "dgc(sparsity=0.8)",
    "feedback + topk(share=0.2)",
    "feedback + topk(share=0.3) + qsgd(levels=16)",
    "clip + feedback + sign",
    "lbgm(threshold=0.5)",
    "lbgm(threshold=0.5, layers=True)",
    "feedback + lbgm(threshold=0.9) + half",
    "sketch(columns=5, rows=3, k=4)",
    "sketch(columns=5, rows=3, k=2, exact=True)",
    "clip(norm=5.0) + sketch(columns=5, rows=3, k=4, clear=False) + half",
)
STATEFUL = (
    "feedback + topk(share=0.2)",
    "dgc(sparsity=0.8) + half",
    "sketch(columns=5, rows=3, k=4)",
    "sketch(columns=5, rows=3, k=2, exact=True)",
    "lbgm(threshold=0.5)",
    "lbgm(threshold=0.5, layers=True)",
    "feedback + lbgm(threshold=0.9) + half",
)
ATTACKS = (*NAMES, "label-flip + scaling(factor=5)")
COLLUDING = tuple(name for name, attack in NAMES.items() if attack.colludes)
RULES = (
    "mean",
    "median",
    "trimmed-mean(f=1)",
    "meamed",
    "krum",
    "multi-krum",
    "bulyan",
    "mda",
    "geometric-median",
    "centred-clipping",
    "bucketing(size=2) + median",
    "nnm + trimmed-mean",
    "norm-bound + mean",
)


class Prepared(il.Task):
    """The same task for all runs here: what is made of it for a dtype and a seed is made once."""

    made: ClassVar[dict] = {}

    def to(self, **changes):
        key = tuple(sorted((k, str(v)) for k, v in changes.items()))
        if key not in self.made:
            self.made[key] = super().to(**changes)
        return self.made[key]


TASK = Prepared(task().model)


def run(name: str | il.Method, **settings) -> il.Result:
    """Two rounds of a method on six unlike clients, five of them heard."""
    method = make_method(name) if isinstance(name, str) else name
    given = {
        "rounds": 2,
        "sample": 0 if method.hears_all else 5,
        "batch": 8,
        "eval_every": 0,
    } | settings
    directory = {k: given.pop(k) for k in ("directory", "resume", "progress") if k in given}
    return il.run(method, TASK, FEDERATION, **directory, **given)


def engine(result: il.Result):
    return result.seeds[0].engine


class Spy:
    """Everything that clients sent: (round, who, bytes), second answers among them, and what was sent down beyond the broadcast."""

    def __init__(self, monkeypatch):
        self.sent: list[tuple[int, Sent]] = []
        self.answers: list[tuple[torch.Tensor, np.ndarray]] = []
        self.told: list[tuple[torch.Tensor, int]] = []
        update, answer, forget = Host.update, Host.answer, Host.forget

        def spied(host, round, message, train, send, rate=1.0):
            sent = update(host, round, message, train, send, rate)
            self.sent.append((round, sent))
            return sent

        def answered(host, round, part, query, clients, schema):
            out = answer(host, round, part, query, clients, schema)
            self.told.append((clients, len(query)))
            self.answers.append((clients, out))
            return out

        def forgot(host, round, part, chosen, clients, schema):
            self.told.append((clients, len(chosen)))
            forget(host, round, part, chosen, clients, schema)

        monkeypatch.setattr(Host, "update", spied)
        monkeypatch.setattr(Host, "answer", answered)
        monkeypatch.setattr(Host, "forget", forgot)

    def bytes_up(self) -> torch.Tensor:
        out = torch.zeros(CLIENTS, dtype=torch.int64)
        for _, sent in self.sent:
            out[sent.clients] += torch.from_numpy(sent.messages.lengths)
        for clients, answers in self.answers:
            out[clients] += answers.shape[1]
        return out

    def bytes_told(self) -> torch.Tensor:
        out = torch.zeros(CLIENTS, dtype=torch.int64)
        for clients, length in self.told:
            out[clients] += length
        return out


def numbers(one, round: int, sent: Sent) -> dict[str, torch.Tensor]:
    """The rows that a server reads from these messages: models again, where models are sent."""
    host = one.host
    got = admission.admit(
        sent.messages,
        schema=host.up,
        run=host.run,
        version=round,
        expected=sent.clients,
        cap=math.inf,
        decode=(
            lambda bodies, clients: host.link.decode(
                bodies, host.link.blank("memory", len(clients), host.task.x0), round
            )
        )
        if host.link.codes
        else None,
        limit=host.link.limit(round) if host.link.codes else 0,
    )
    assert torch.equal(got.wire_ids, sent.clients)
    return got.up


def tampering(monkeypatch, tamper) -> None:
    """Every round's messages go through `tamper(round, list of messages)` on their way to the server."""
    honest = Host.update

    def update(host, round, message, train, send, rate=1.0):
        sent = honest(host, round, message, train, send, rate)
        messages = [sent.messages.row(k) for k in range(len(sent.messages))]
        return replace(sent, messages=tamper(round, messages)) if len(send) else sent

    monkeypatch.setattr(Host, "update", update)


def with_header(message: bytes, **fields) -> bytes:
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    for name, value in fields.items():
        head[name] = value
    return head.tobytes() + message[24:]


def everything(result: il.Result) -> dict[str, torch.Tensor]:
    """All that a run keeps: the server, private rows, both sides of the channel."""
    one = engine(result)
    parts = {"server": one.server, "private": one.host.store.rows, "channel": one.save_channel()}
    return {f"{part}.{n}": t.clone() for part, state in parts.items() for n, t in state.items()}


def same_bits(a: il.Result, b: il.Result) -> bool:
    x, y = everything(a), everything(b)
    return x.keys() == y.keys() and all(torch.equal(t, y[n]) for n, t in x.items())


def gap(a: il.Result, b: il.Result) -> float:
    """The largest difference of two servers, relative to their numbers."""
    x, y = engine(a).server, engine(b).server
    return max(float((t - y[n]).abs().max()) / (1 + float(t.abs().max())) for n, t in x.items())


def accounted(result: il.Result) -> None:
    """selected = admitted + rejected."""
    one = engine(result)
    asked = one.round * one.sample if one.host.up.parts else 0
    assert (
        one.ledger.selected == asked == one.ledger.admitted + sum(one.ledger.rejected.values())
    ), one.ledger


def sound(result: il.Result) -> None:
    assert all(torch.isfinite(t).all() for t in everything(result).values()), (
        "something is not finite"
    )
    accounted(result)
