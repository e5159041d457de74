"""Mutated messages through every channel: nothing is raised, and nothing bad gets in.

IDIOLECT_FAULTS_MESSAGES says how many messages per channel (`make faults`: 100,000).
"""

import os
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from channels.common import CHANNELS as SINGLE
from channels.common import form, keys
from faults.mutator import HEAD, Mutator
from idiolect.channels import CHANNELS, parse_channel
from idiolect.channels.link import Link
from idiolect.wire import messages as wire
from idiolect.wire.admission import BODIES, FATES, REASONS, AdmittedMessages, Inbox
from idiolect.wire.ragged import Ragged

MESSAGES = int(os.environ.get("IDIOLECT_FAULTS_MESSAGES", "3000"))
BATCH = 2000
CLIENTS = 1200  # so that most of a batch is opened
CAP = 40.0
RUN = 99
VERSION = 1
N = 40

TEXTS = (
    *SINGLE,
    "lbgm(threshold=0.9)",
    "lbgm(threshold=0.9, layers=True)",
    "feedback + lbgm(threshold=0.9) + half",
    "lbgm(threshold=0.9) + topk(share=0.2) + qsgd(bucket=16, coding=elias)",
    "qsgd(levels=32768, bucket=9, coding=elias)",
    "topk(share=0.9) + sign",
    "sketch(columns=5, rows=3, k=4)",
    "clip + sketch(columns=5, rows=3, k=4) + half",
    "sketch(columns=5, rows=3, k=2, exact=True)",
)


@dataclass
class Setting:
    """A channel fitted to a message of two parts, and sound messages of every client."""

    link: Link
    schema: wire.Schema
    memory: dict[str, torch.Tensor]  # what the server remembers, by client
    sound: list[bytes]

    def inbox(self, owner: np.ndarray) -> Inbox:
        """Client i of this inbox is remembered as client owner[i]."""

        def decode(bodies: Ragged, wire_ids: np.ndarray):
            known = {n: t[torch.from_numpy(owner[wire_ids])] for n, t in self.memory.items()}
            return self.link.decode(bodies, {}, known, VERSION)

        expected = torch.arange(len(owner))
        least, most = self.link.lengths(VERSION)
        lengths = (wire.HEADER.itemsize + least, wire.HEADER.itemsize + most)
        return Inbox(self.schema, RUN, VERSION, expected, CAP, decode, lengths)


def setting(text: str, dtype: torch.dtype) -> Setting:
    parts = {"c": form(3, dtype=dtype), "w": form(N, dtype=dtype)}
    link = Link.of(parse_channel(text), parts, exact=("c",))
    g = torch.Generator().manual_seed(5)
    up = {n: torch.randn(CLIENTS, f.n, generator=g, dtype=dtype) for n, f in parts.items()}
    known = {
        n: torch.randn(CLIENTS, size, generator=g, dtype=dtype)
        for n, size in link.kept("memory").items()
    }
    state = link.blank("client", CLIENTS, up["w"]) | known  # both sides remember the same
    declared = tuple((n, (f.n,), dtype) for n, f in parts.items())
    schema = wire.Schema(declared, link.coding)
    heads = wire.heads(schema, RUN, VERSION, np.arange(CLIENTS), np.full(CLIENTS, 20.0))
    messages, _, _ = link.encode(heads, up, {}, state, lambda: keys(CLIENTS, VERSION), VERSION)
    sound = [messages.row(k) for k in range(CLIENTS)]
    return Setting(link, schema, known, sound)


def sender(message: bytes) -> int | None:
    """The client that a message claims to come from."""
    return int.from_bytes(message[16:20], "little") if len(message) >= HEAD else None


def each_alone(at: Setting, messages: list[bytes]) -> list[str]:
    """The fate of every message's client if this were the only message: each gets a client."""
    claimed = [sender(m) for m in messages]
    real = [k is not None and k < CLIENTS for k in claimed]
    box = at.inbox(
        np.array([k if is_real else 0 for k, is_real in zip(claimed, real, strict=True)])
    )
    box.receive(
        [
            m[:16] + i.to_bytes(4, "little") + m[20:]
            for i, (m, is_real) in enumerate(zip(messages, real, strict=True))
            if is_real
        ]
    )
    return [FATES[fate] for fate in box.admitted().fates]


def winners(messages: list[bytes], alone: list[str]) -> dict[int, bytes]:
    """The first sound message of every client, among the few of its bodies that are opened."""
    opened: Counter[int] = Counter()
    won: dict[int, bytes] = {}
    for m, fate in zip(messages, alone, strict=True):
        k = sender(m)
        if fate not in ("admitted", "channel", "not finite") or k is None or k in won:
            continue
        opened[k] += 1
        if fate == "admitted" and opened[k] <= BODIES:
            won[k] = m
    return won


def same(a: AdmittedMessages, b: AdmittedMessages) -> bool:
    states = ((a.up, b.up), (a.memory, b.memory))
    return (
        torch.equal(a.wire_ids, b.wire_ids)
        and torch.equal(a.weights, b.weights)
        and np.array_equal(a.bytes, b.bytes)
        and all(x.keys() == y.keys() for x, y in states)
        and all(torch.equal(t, y[n]) for x, y in states for n, t in x.items())
    )


def check(at: Setting, messages: list[bytes], cuts: list[int]) -> AdmittedMessages:
    """All that must hold for one batch, which comes in parts."""
    everyone = np.arange(CLIENTS)
    box = at.inbox(everyone)
    for part in np.split(np.arange(len(messages)), cuts):
        box.receive([messages[i] for i in part])
    got = box.admitted()
    assert all(t.isfinite().all() for t in (*got.up.values(), *got.memory.values()))
    assert ((got.weights > 0) & (got.weights <= CAP)).all()
    # the fates add up
    fates = Counter(FATES[f] for f in got.fates)
    turned_away = Counter({r: fates[r] for r in REASONS if fates[r]})
    assert fates["admitted"] == len(got.wire_ids) and sum(fates.values()) == CLIENTS
    assert len(got.wire_ids) + sum(got.rejected.values()) == len(messages)
    assert Counter(got.rejected) == Counter(got.surplus) + turned_away
    # an inadmissible message is an absent one
    alone = each_alone(at, messages)
    won = winners(messages, alone)
    clean = at.inbox(everyone)
    clean.receive([won[k] for k in sorted(won, reverse=True)])
    assert not clean.admitted().rejected and same(got, clean.admitted())
    # the first message with a right header decides, unless one is admitted
    decided = {
        sender(m): fate
        for m, fate in reversed(list(zip(messages, alone, strict=True)))
        if fate != "missing"
    }
    assert {k: FATES[f] for k, f in enumerate(got.fates) if FATES[f] != "missing"} == {
        k: "admitted" if k in won else fate for k, fate in decided.items()
    }
    return got


@pytest.mark.parametrize("text", TEXTS)
def test_mutated_messages_raise_nothing_and_leave_what_their_absence_leaves(text):
    rng = np.random.default_rng(1)
    settings = [setting(text, dtype) for dtype in (torch.float32, torch.float64)]
    mutators = [Mutator(at.sound, seed) for seed, at in enumerate(settings)]
    rejected: Counter[str] = Counter()
    for i, a in enumerate(range(0, MESSAGES, BATCH)):
        messages = [next(mutators[i % 2]) for _ in range(min(BATCH, MESSAGES - a))]
        cuts = sorted(rng.integers(len(messages) + 1, size=i % 3).tolist())
        rejected.update(check(settings[i % 2], messages, cuts).rejected)
    assert rejected.keys() >= {"size", "magic", "schema", "run", "round", "stranger", "weight"}


def test_every_channel_is_tried():
    tried = {type(stage) for text in TEXTS for stage in parse_channel(text).stages}
    assert tried == {CHANNELS[name] for name in CHANNELS}


@pytest.mark.parametrize("text", TEXTS)
def test_sound_messages_of_every_client_are_all_admitted(text):
    at = setting(text, torch.float32)
    got = check(at, at.sound, [])
    assert len(got.wire_ids) == CLIENTS and got.rejected == {}
