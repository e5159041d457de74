"""Floods of messages: what a round costs follows from whom it asked, not from what is sent.

Run as a script, this file floods a server and prints what each flood cost, as JSON; the tests read
it. Memory is bounded there, so that a server that gives way ends its own process alone.
"""

import json
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.channels import parse_channel
from idiolect.methods import make_method
from idiolect.server.protocol import Contract
from idiolect.server.roster import Roster
from idiolect.server.rules import parse_rule
from idiolect.server.server import Server
from idiolect.wire import messages as wire

MB = 1 << 20
CLIENTS = 10
ROW = 4 * 10**6  # bytes of a million numbers
MOST = 6 << 30  # bytes of address space


def server(channel: str, features: int) -> Server:
    """Ten clients, all of them heard; a model of features + 1 numbers."""
    task = il.Task(lambda: nn.Linear(features, 1), "mse").under(
        dtype=torch.float32, kernel="auto", seed=0
    )
    roster = Roster()
    roster.enrol(range(CLIENTS), [20] * CLIENTS)
    contract = Contract(make_method("fedavg"), task, parse_channel(channel), 7)
    return Server(contract, roster, rule=parse_rule("mean"), sample=CLIENTS)


def heads(at: Server, senders, weight: float = 20.0) -> list[bytes]:
    """Headers of this server's first round."""
    ids = np.asarray(senders)
    rows = wire.heads(at.contract.up, at.contract.run, 0, ids, np.full(len(ids), weight))
    return [row.tobytes() for row in rows]


def coded(at: Server, senders) -> list[bytes]:
    """Sound messages of these senders, alike but for the header."""
    link = at.contract.link
    x = torch.randn(1, at.contract.task.d, generator=torch.Generator().manual_seed(0))
    state = link.blank("client", 1, x)
    no_head = np.zeros((1, 0), np.uint8)
    body, _, _ = link.encode(no_head, {"w": x}, {}, state, lambda: np.zeros(1, np.uint64), 0)
    return [head + body.row(0) for head in heads(at, senders)]


def lbgm_strangers() -> tuple[Server, list[bytes]]:
    """10,000 headers and one message in full."""
    at = server("lbgm", 10**6)
    (whole,) = coded(at, [10_000])
    return at, [*heads(at, range(100, 10_100)), whole]


def topk_strangers() -> tuple[Server, list[bytes]]:
    """4.9 MB of strangers: 200,000 headers and one message in full."""
    at = server("topk", 10**6)
    (whole,) = coded(at, [200_000])
    return at, [*heads(at, range(100, 200_100)), whole]


def lbgm_copies() -> tuple[Server, list[bytes]]:
    """200 copies of the 29 bytes that stand for a million numbers."""
    at = server("lbgm", 10**6)
    return at, [heads(at, [3])[0] + b"\1" + np.float32(0.5).tobytes()] * 200


def topk_many_of_each() -> tuple[Server, list[bytes]]:
    """Every client sends 300 messages, the first two of them bad."""
    at = server("topk(share=0.001)", 10**6)
    sound = coded(at, range(CLIENTS))
    bad = [m[:-1] for m in sound]
    return at, [*bad, *bad, *sound * 298]


def randomk_seeds() -> tuple[Server, list[bytes]]:
    """Every client sends 300 seeds of eight bytes, from which all places are drawn."""
    at = server("randomk(share=0.001)", 10**6)
    return at, [head + bytes(8) for head in heads(at, range(CLIENTS))] * 300


def elias_counts() -> tuple[Server, list[bytes]]:
    """Every client sends 300 short messages that announce a million numbers."""
    at = server("qsgd(coding=elias, bucket=1000000)", 10**6)
    body = bytes(8) + np.uint32(10**6).tobytes() + bytes(40)
    return at, [head + body for head in heads(at, range(CLIENTS))] * 300


def plain_copies() -> tuple[Server, list[bytes]]:
    """Every client sends 20 times 4 MB, as the numbers are."""
    at = server("none", 10**6)
    body = bytes(ROW + 4)
    sound = [head + body for head in heads(at, range(CLIENTS))]
    return at, sound * 20


def oversize() -> tuple[Server, list[bytes]]:
    """256 MB for a message of 444 bytes."""
    at = server("none", 104)
    return at, [heads(at, [3])[0] + bytes(256 * MB - 24)]


def oversize_coded() -> tuple[Server, list[bytes]]:
    """256 MB for a coded message."""
    at = server("topk", 104)
    return at, [heads(at, [3])[0] + bytes(256 * MB - 24)]


# flood -> (megabytes on top, what becomes of the messages)
GROUP = 256  # of one group of bodies while it is opened, and pages of code it is the first to read
TWO_ROWS = CLIENTS * 2 * ROW / MB  # what arrived and what the channel remembers, of everyone
FLOODS: dict[Callable, tuple[float, dict[str, int]]] = {
    lbgm_strangers: (4, {"stranger": 10_001}),
    topk_strangers: (40, {"stranger": 200_001}),
    lbgm_copies: (2 * TWO_ROWS + GROUP, {"admitted": 1, "repeated": 199}),
    topk_many_of_each: (
        TWO_ROWS / 2 + GROUP,
        {"admitted": CLIENTS, "channel": 2 * CLIENTS, "repeated": 297 * CLIENTS},
    ),
    randomk_seeds: (GROUP, {"channel": 3 * CLIENTS, "too many": 297 * CLIENTS}),
    elias_counts: (GROUP, {"channel": 3 * CLIENTS, "too many": 297 * CLIENTS}),
    plain_copies: (TWO_ROWS / 2 + 48, {"admitted": CLIENTS, "repeated": 19 * CLIENTS}),
    oversize: (1, {"size": 1}),
    oversize_coded: (1, {"size": 1}),
}


def resident(what: str) -> float:
    """Megabytes: "VmRSS", or "VmHWM" for the most since it was last reset."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(what + ":")]
    return int(line.split()[1]) / 1024


def cost(flood: Callable) -> dict:
    """What a round costs into which this comes."""
    at, messages = flood()
    at.receive(at.open(), messages[:1])  # pages of code that are read on first use are no cost
    at, messages = flood()
    round = at.open()
    at.receive(round, [b""])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    began = time.perf_counter()
    try:
        at.receive(round, messages)
    except (MemoryError, RuntimeError) as e:  # NumPy's, torch's
        return {"error": str(e)}
    seconds = time.perf_counter() - began
    peak = resident("VmHWM") - before
    got = round.inbox.admitted()
    fates = {"admitted": len(got.wire_ids)} if len(got.wire_ids) else {}
    rejected = dict(got.rejected) | {"size": got.rejected["size"] - 1}
    fates |= {reason: count for reason, count in rejected.items() if count}
    return {"megabytes": peak, "seconds": seconds, "fates": fates}


@pytest.fixture(scope="module")
def costs() -> dict[str, dict]:
    out = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(out.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("flood", FLOODS, ids=lambda f: f.__name__)
def test_a_flood_costs_no_more_than_the_clients_that_were_asked(flood, costs):
    most, fates = FLOODS[flood]
    cost = costs[flood.__name__]
    assert cost.get("fates") == fates, cost
    assert cost["megabytes"] <= most, cost


if __name__ == "__main__":
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    wanted = [f for f in FLOODS if f.__name__ in sys.argv[1:]] or list(FLOODS)
    cost(oversize)  # what is loaded on first use
    # each in a process of its own: none has the memory that another has given back
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        found = pool.map(cost, wanted, chunksize=1)
    print(json.dumps(dict(zip([f.__name__ for f in wanted], found, strict=True)), indent=1))
