"""Small whole runs with channels, attacks and rules, and a look at what is really sent."""

import math
from dataclasses import replace

import numpy as np
import torch

import idiolect as il
from idiolect.attacks import ATTACKS as NAMES
from idiolect.host.host import Host
from idiolect.methods import make_method
from idiolect.run.session import Session
from idiolect.server.protocol import HostUpdate
from idiolect.testing import federation, task
from idiolect.wire import admission
from idiolect.wire import messages as wire
from idiolect.wire.ragged import Ragged, stacked

FEDERATION = federation()
CLIENTS = FEDERATION.clients
TASK = task()

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


def run(name: str | il.Method, **settings) -> il.Result:
    """Two rounds of a method on six unlike clients, five of them heard."""
    method = make_method(name) if isinstance(name, str) else name
    given = {
        "rounds": 2,
        "sample": 0 if method.traits.hears_all else 5,
        "batch": 8,
        "eval_every": 0,
    } | settings
    directory = {k: given.pop(k) for k in ("directory", "resume", "progress") if k in given}
    return il.run(method, TASK, FEDERATION, **directory, **given)


# -- what is sent ----------------------------------------------------------------------------------
class Spy:
    """Everything that clients sent, and what they were sent beside the broadcast."""

    def __init__(self, monkeypatch):
        self.sent: list[tuple[int, HostUpdate]] = []  # (round, messages), one per host and round
        self.answers: list[tuple[torch.Tensor, np.ndarray]] = []
        self.told: list[tuple[torch.Tensor, int]] = []  # (wire ids, bytes to each of them)
        updates, answer, conclude = Host.updates, Host.answer, Host.conclude

        def spied(host, order):
            sent = HostUpdate.merge(list(updates(host, order)))
            self.sent.append((order.version, sent))
            yield sent

        def answered(host, query):
            out = answer(host, query)
            asked = host.wire_ids[host.rows(query.asked)]
            self.told.append((asked, len(query.message)))
            self.answers.append((asked, out))
            return out

        def concluded(host, verdict):
            counted = host.wire_ids[host.rows(verdict.counted)]
            self.told += [(counted, len(message)) for message in verdict.taken.values()]
            conclude(host, verdict)

        monkeypatch.setattr(Host, "updates", spied)
        monkeypatch.setattr(Host, "answer", answered)
        monkeypatch.setattr(Host, "conclude", concluded)

    def bytes_up(self) -> torch.Tensor:
        out = torch.zeros(CLIENTS, dtype=torch.int64)
        for _, sent in self.sent:
            out[senders(sent.messages)] += torch.from_numpy(sent.messages.lengths)
        for asked, answers in self.answers:
            out[asked] += answers.shape[1]
        return out

    def bytes_told(self) -> torch.Tensor:
        out = torch.zeros(CLIENTS, dtype=torch.int64)
        for wire_ids, length in self.told:
            out[wire_ids] += length
        return out

    def trained(self) -> torch.Tensor:
        """In how many rounds each client trained."""
        out = torch.zeros(CLIENTS, dtype=torch.int64)
        for _, sent in self.sent:
            out[sent.trained] += 1
        return out


def senders(messages: Ragged) -> torch.Tensor:
    """Wire ids of the senders of messages, as their headers say."""
    if not len(messages):
        return torch.zeros(0, dtype=torch.int64)
    return torch.from_numpy(wire.header(messages.matrix)["client"].astype(np.int64))


def numbers(
    result: il.Result, round: int, sent: list[HostUpdate]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The rows that a server reads from these messages, and whose they are.

    Models again, where models are sent.
    """
    contract = result.session().contract.of(round)
    messages = stacked([s.messages for s in sent if len(s.messages)])
    who = senders(messages).sort().values
    link = contract.link

    def decode(bodies, wire_ids):
        memory = link.blank("memory", len(wire_ids), contract.task.x0)
        return link.decode(bodies, {}, memory, round)

    got = admission.admit(
        messages,
        schema=contract.up,
        run=contract.run,
        version=round,
        expected=who,
        cap=math.inf,
        decode=decode,
        lengths=contract.up_lengths(round),
    )
    assert torch.equal(got.wire_ids, who)
    return got.up, who


def tampering(monkeypatch, tamper) -> None:
    """Every round's messages go through `tamper(round, messages)` on their way to the server."""
    honest = Host.updates

    def updates(host, order):
        sent = HostUpdate.merge(list(honest(host, order)))
        if len(order.heard):
            messages = [sent.messages.row(k) for k in range(len(sent.messages))]
            sent = replace(sent, messages=tamper(order.version, messages), values=None)
        yield sent

    monkeypatch.setattr(Host, "updates", updates)


def with_header(message: bytes, **fields) -> bytes:
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    for name, value in fields.items():
        head[name] = value
    return head.tobytes() + message[24:]


# -- what a run leaves -----------------------------------------------------------------------------
def server(result: il.Result):
    return result.session().server


def by_wire_id(session: Session, store: str) -> dict[str, torch.Tensor]:
    """The rows of a store of the hosts ("store" or "coder"), sorted by wire id."""
    everyone = [
        getattr(host, store).read(torch.arange(host.data.clients)) for host in session.hosts
    ]
    order = torch.cat([host.wire_ids for host in session.hosts]).argsort()
    return {n: torch.cat([rows[n] for rows in everyone])[order] for n in everyone[0]}


def channel_of(session: Session) -> dict[str, torch.Tensor]:
    """What both sides of the channel remember."""
    parts = {
        "server": session.server.channel_state,
        "memory": session.server.memory.read(torch.arange(CLIENTS)),
        "client": by_wire_id(session, "coder"),
    }
    return {f"{part}.{n}": t for part, state in parts.items() for n, t in state.items()}


def everything(result: il.Result) -> dict[str, torch.Tensor]:
    """All that a run keeps: the server, private rows, both sides of the channel, the rule."""
    session = result.session()
    parts = {
        "server": session.server.state,
        "rule": session.server.rule_state,
        "private": by_wire_id(session, "store"),
        "channel": channel_of(session),
    }
    return {f"{part}.{n}": t.clone() for part, state in parts.items() for n, t in state.items()}


def same_bits(a: il.Result, b: il.Result) -> bool:
    x = everything(a)
    y = everything(b)
    return x.keys() == y.keys() and all(torch.equal(t, y[n]) for n, t in x.items())


def gap(a: il.Result, b: il.Result) -> float:
    """The largest difference of two servers, relative to their numbers."""
    x = server(a).state
    y = server(b).state
    return max(float((t - y[n]).abs().max()) / (1 + float(t.abs().max())) for n, t in x.items())


def accounted(result: il.Result) -> None:
    """selected = admitted + rejected + missing."""
    one = server(result)
    asked = one.version * one.sample if one.contract.up.parts else 0
    ledger = one.ledger
    lost = sum(ledger.rejected.values()) + sum(ledger.missing.values())
    assert ledger.selected == asked == ledger.admitted + lost, ledger


def sound(result: il.Result) -> None:
    kept = everything(result)
    assert all(torch.isfinite(t).all() for t in kept.values()), "something is not finite"
    accounted(result)
