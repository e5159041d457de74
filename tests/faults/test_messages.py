"""Bad messages in a whole run.

The ledger accounts for each, the server stays finite, and a rejected client is an absent one.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import ONE_EXCHANGE, classification, with_public
from idiolect.methods import make_method
from idiolect.wire import messages as wire
from run.robust.common import tampering, with_header

SIZES = (12, 40, 25, 18, 33, 9)


FEDERATION = classification(SIZES, features=8)


def run(method: il.Method, **settings) -> il.Result:
    given = {"rounds": 3, "sample": 0 if method.traits.hears_all else 4, "batch": 8} | settings
    return il.run(method, il.Task(network), with_public(method, FEDERATION), **given)


def network() -> nn.Module:
    """Two layers, so that methods that share one of them have something to send."""
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))


def number(message: bytes, value: float) -> bytes:
    return message[:24] + np.float32(value).tobytes() + message[28:]


FAULTS = {
    "NaN": ("not finite", lambda m, others: number(m, float("nan"))),
    "infinity": ("not finite", lambda m, others: number(m, float("inf"))),
    "truncated": ("size", lambda m, others: m[:-4]),
    "trailing": ("size", lambda m, others: m + b"\0"),
    "empty": ("size", lambda m, others: b""),
    "magic": ("magic", lambda m, others: b"IDL1" + m[4:]),
    "schema": ("schema", lambda m, others: with_header(m, schema=1)),
    "run": ("run", lambda m, others: with_header(m, run=1)),
    "stale": ("round", lambda m, others: with_header(m, version=0)),
    "stranger": ("stranger", lambda m, others: with_header(m, client=77)),
    "another's id": (
        "repeated",
        lambda m, others: with_header(
            m, client=int(wire.header(np.frombuffer(others[0], np.uint8)[None])["client"][0])
        ),
    ),
    "a copy": ("repeated", lambda m, others: others[0]),
    "weight 0": ("weight", lambda m, others: with_header(m, weight=0)),
    "weight -1": ("weight", lambda m, others: with_header(m, weight=-1)),
    "weight NaN": ("weight", lambda m, others: with_header(m, weight=np.nan)),
    "weight Inf": ("weight", lambda m, others: with_header(m, weight=np.inf)),
    "random bytes": ("magic", lambda m, others: np.random.default_rng(0).bytes(len(m))),
}


def absent_in_round_1(monkeypatch, method: il.Method, **settings) -> il.Result:
    with monkeypatch.context() as patch:
        tampering(patch, lambda round, messages: messages[:-1] if round == 1 else messages)
        return run(method, **settings)


def bad_in_round_1(monkeypatch, method: il.Method, fault, **settings) -> il.Result:
    with monkeypatch.context() as patch:
        tampering(patch, lambda round, ms: [*ms[:-1], fault(ms[-1], ms[:-1])] if round == 1 else ms)
        return run(method, **settings)


def same_state(a: il.Result, b: il.Result) -> bool:
    one = a.session()
    two = b.session()
    pairs = [
        (one.server.state, two.server.state),
        (one.hosts[0].store.save(), two.hosts[0].store.save()),
    ]
    assert len(one.hosts) == len(two.hosts) == 1
    return all(
        x.keys() == y.keys() and all(torch.equal(t, y[n]) for n, t in x.items()) for x, y in pairs
    )


def accounted(result: il.Result, rounds: int = 3) -> None:
    """selected = admitted + rejected + missing; bytes up are those of the admitted."""
    server = result.session().server
    ledger = server.ledger
    assert ledger.selected == rounds * server.sample
    lost = sum(ledger.rejected.values()) + sum(ledger.missing.values())
    assert ledger.selected == ledger.admitted + lost
    assert ledger.total("bytes_up") == ledger.admitted * server.contract.up.length
    assert ledger.total("values_up") == ledger.admitted * server.contract.up.values


@pytest.mark.parametrize("name", FAULTS)
def test_a_rejected_message_is_an_absent_client(name, monkeypatch):
    reason, fault = FAULTS[name]
    method = il.FedProxSoft()
    settings = {"server_options": "momentum=0.9"}
    bad = bad_in_round_1(monkeypatch, method, fault, **settings)
    assert same_state(bad, absent_in_round_1(monkeypatch, method, **settings))
    assert not same_state(bad, run(method, **settings))
    assert bad.session().server.ledger.refused == {reason: 1} and bad.summary()["rejected"] == 1
    assert bad.summary()["rejected_by_reason"] == {reason: 1}
    accounted(bad)


def sends(name) -> bool:
    method = make_method(name)
    return bool(method.message(method.extended(il.Task(network))))


SENDING = [name for name in ONE_EXCHANGE if sends(name)]


@pytest.mark.parametrize("name", SENDING)
def test_a_rejected_message_is_an_absent_client_for_every_method(name, monkeypatch):
    method = make_method(name)
    bad = bad_in_round_1(monkeypatch, method, FAULTS["NaN"][1])
    assert same_state(bad, absent_in_round_1(monkeypatch, method))
    accounted(bad)
    assert all(torch.isfinite(t).all() for t in bad.session().server.state.values())


@pytest.mark.parametrize("name", SENDING)
def test_a_round_in_which_nobody_is_heard_leaves_the_server_as_it_is(name, monkeypatch):
    method = make_method(name)
    tampering(monkeypatch, lambda round, messages: [number(m, float("nan")) for m in messages])
    result = run(method)
    server = result.session().server
    start = method.server(server.contract.task)
    assert all(torch.equal(t, start[n]) for n, t in server.state.items() if n in start)
    ledger = server.ledger
    assert ledger.admitted == 0 and ledger.rejected["not finite"] == ledger.selected
    assert ledger.total("bytes_up") == 0


def test_a_replayed_round_changes_nothing(monkeypatch):
    """Every message of the round before is sent again beside the new ones."""
    kept: list[list[bytes]] = []

    def tamper(round, messages):
        kept.append(messages)
        return [*(kept[-2] if len(kept) > 1 else []), *messages, *messages]

    honest = run(il.FedAvg())
    with monkeypatch.context() as patch:
        tampering(patch, tamper)
        replayed = run(il.FedAvg())
    assert same_state(honest, replayed)
    assert replayed.session().server.ledger.surplus == {"repeated": 12, "round": 8}


def test_a_claimed_weight_counts_no_more_than_the_largest_client(monkeypatch):
    def claim(weight):
        with monkeypatch.context() as patch:
            tampering(patch, lambda round, ms: [*ms[:-1], with_header(ms[-1], weight=weight)])
            return run(il.FedAvg())

    cap = float(FEDERATION.sizes("train").max())
    assert same_state(claim(1e30), claim(cap)) and not same_state(claim(cap), claim(cap / 2))


BIG = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("value", [BIG, 1e38], ids=["largest", "1e38"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"server_options": "momentum=0.9"}, {"server_lr": 2.0}],
    ids=["plain", "momentum", "server_lr 2"],
)
@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_the_server_stays_finite_whatever_finite_numbers_are_sent(
    weighting, settings, value, monkeypatch
):
    tampering(
        monkeypatch, lambda round, ms: [number(m, value if round % 2 == 0 else -value) for m in ms]
    )
    result = run(il.FedAvg(weighting=weighting), rounds=4, **settings)
    assert torch.isfinite(result.session().server.state["w"]).all()


def test_a_client_that_diverges_is_rejected_and_harms_no_other():
    inputs = FEDERATION.inputs.clone()
    a, b = FEDERATION.offsets["train"][2:4].tolist()
    inputs[a:b] = 1e30
    wild = il.Federation(
        inputs, FEDERATION.targets, FEDERATION.offsets, FEDERATION.ids, FEDERATION.classes
    )
    task = il.Task(lambda: nn.Linear(8, 3))
    result = il.run(il.FedAvg(), task, wild, rounds=3, sample=6, batch=8)
    server = result.session().server
    assert server.ledger.rejected == Counter({"not finite": 3})
    assert server.ledger.counts["bytes_up"][2] == 0
    assert torch.isfinite(server.state["w"]).all()


def test_hosts_take_no_message_of_another_run_round_or_contract():
    session = run(il.FedProxSoft(), rounds=1).session()
    (host,) = session.hosts
    contract = host.contract
    before = {n: t.clone() for n, t in host.store.save().items()}
    order = session.server.open().order
    down = contract.method.broadcast(contract.task, session.server.state)
    assert wire.pack_down(down, contract.run, 1, contract.checksum) == order.down.common
    for message in (
        wire.pack_down(down, contract.run + 1, 1, contract.checksum),
        wire.pack_down(down, contract.run, 0, contract.checksum),
        wire.pack_down(down, contract.run, 1, contract.checksum + 1),
        order.down.common[:-1],
        b"",
    ):
        with pytest.raises(ValueError, match="message down"):
            host.update(replace(order, down=wire.DownMessage(message)))
    assert all(torch.equal(t, before[n]) for n, t in host.store.save().items())


def test_a_round_sent_twice_to_a_host_steps_once():
    session = run(il.FedProxSoft(), rounds=2).session()
    (host,) = session.hosts
    host.store.keep = True  # as for a host across a network
    order = session.server.open().order
    first = host.update(order)
    rows = {n: t.clone() for n, t in host.store.save().items()}
    second = host.update(order)
    assert np.array_equal(first.messages.matrix, second.messages.matrix)
    assert all(torch.equal(t, rows[n]) for n, t in host.store.save().items())
