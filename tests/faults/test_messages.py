"""Bad messages in a whole run: the ledger accounts for each, the server stays finite, and a rejected client is an absent one."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.host.host import Host
from idiolect.methods import METHODS, make_method
from idiolect.wire import messages as wire

SIZES = (12, 40, 25, 18, 33, 9)


def federation() -> il.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=sum(SIZES))
    return il.Federation.from_arrays(
        rng.standard_normal((len(y), 8)) + y[:, None], y, np.repeat(np.arange(6), SIZES)
    )


FEDERATION = federation()


def run(method: il.Method, **settings) -> il.Result:
    given = {"rounds": 3, "sample": 0 if method.hears_all else 4, "batch": 8} | settings
    return il.run(method, il.Task(network), FEDERATION, **given)


def network() -> nn.Module:
    """Two layers, so that methods that share one of them have something to send."""
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))


def tampering(monkeypatch, tamper) -> None:
    """Every round's messages go through `tamper(round, list of messages)` on their way to the server."""
    honest = Host.update

    def update(self, round, message, train, send, rate=1.0):
        sent = honest(self, round, message, train, send, rate)
        messages = [sent.messages.row(k) for k in range(len(sent.messages))]
        return replace(sent, messages=tamper(round, messages)) if len(send) else sent

    monkeypatch.setattr(Host, "update", update)


def with_header(message: bytes, **fields) -> bytes:
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    for name, value in fields.items():
        head[name] = value
    return head.tobytes() + message[24:]


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
    one, two = a.seeds[0].engine, b.seeds[0].engine
    pairs = [(one.server, two.server), (one.host.store.save(), two.host.store.save())]
    return all(
        x.keys() == y.keys() and all(torch.equal(t, y[n]) for n, t in x.items()) for x, y in pairs
    )


def accounted(result: il.Result, rounds: int = 3) -> None:
    """selected = admitted + rejected; bytes up are those of the admitted."""
    engine = result.seeds[0].engine
    ledger = engine.ledger
    assert (
        ledger.selected == rounds * engine.sample == ledger.admitted + sum(ledger.rejected.values())
    )
    assert ledger.total("bytes_up") == ledger.admitted * engine.host.up.length
    assert ledger.total("values_up") == ledger.admitted * engine.host.up.values


@pytest.mark.parametrize("name", FAULTS)
def test_a_rejected_message_is_an_absent_client(name, monkeypatch):
    reason, fault = FAULTS[name]
    method = il.FedProxSoft()
    settings = {"server_options": "momentum=0.9"}
    bad = bad_in_round_1(monkeypatch, method, fault, **settings)
    assert same_state(bad, absent_in_round_1(monkeypatch, method, **settings))
    assert not same_state(bad, run(method, **settings))
    assert bad.seeds[0].engine.ledger.rejected == {reason: 1} and bad.summary()["rejected"] == 1
    assert bad.summary()["rejected_by_reason"] == {reason: 1}
    accounted(bad)


SENDING = [name for name, (cls, _) in METHODS.items() if make_method(name).message(il.Task(network))]


@pytest.mark.parametrize("name", SENDING)
def test_a_rejected_message_is_an_absent_client_for_every_method(name, monkeypatch):
    method = make_method(name)
    bad = bad_in_round_1(monkeypatch, method, FAULTS["NaN"][1])
    assert same_state(bad, absent_in_round_1(monkeypatch, method))
    accounted(bad)
    assert all(torch.isfinite(t).all() for t in bad.seeds[0].engine.server.values())


@pytest.mark.parametrize("name", SENDING)
def test_a_round_in_which_nobody_is_heard_leaves_the_server_as_it_is(name, monkeypatch):
    method = make_method(name)
    tampering(monkeypatch, lambda round, messages: [number(m, float("nan")) for m in messages])
    result = run(method)
    engine = result.seeds[0].engine
    start = method.server(engine.host.task)
    assert all(torch.equal(t, start[n]) for n, t in engine.server.items() if n in start)
    assert (
        engine.ledger.admitted == 0
        and engine.ledger.rejected["not finite"] == engine.ledger.selected
        and engine.ledger.total("bytes_up") == 0
    )


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
    assert replayed.seeds[0].engine.ledger.rejected == {"repeated": 12, "round": 8}


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
    server = run(il.FedAvg(weighting=weighting), rounds=4, **settings).seeds[0].engine.server
    assert torch.isfinite(server["w"]).all()


def test_a_client_that_diverges_is_rejected_and_harms_no_other():
    inputs = FEDERATION.inputs.clone()
    a, b = FEDERATION.offsets["train"][2:4].tolist()
    inputs[a:b] = 1e30
    wild = il.Federation(
        inputs, FEDERATION.targets, FEDERATION.offsets, FEDERATION.ids, FEDERATION.classes
    )
    one = (
        il.run(il.FedAvg(), il.Task(lambda: nn.Linear(8, 3)), wild, rounds=3, sample=6, batch=8)
        .seeds[0]
        .engine
    )
    assert (
        one.ledger.rejected == Counter({"not finite": 3}) and one.ledger.counts["bytes_up"][2] == 0
    )
    assert torch.isfinite(one.server["w"]).all()


def test_hosts_take_no_message_of_another_run_or_round():
    engine = run(il.FedProxSoft(), rounds=1).seeds[0].engine
    host, everyone = engine.host, torch.arange(6)
    before = {n: t.clone() for n, t in host.store.save().items()}
    down = host.method.broadcast(host.task, engine.server)
    for message in (
        wire.pack_down(down, host.run + 1, 1),
        wire.pack_down(down, host.run, 0),
        wire.pack_down(down, host.run, 1)[:-1],
        b"",
    ):
        with pytest.raises(ValueError, match="message down"):
            host.update(1, message, everyone, everyone)
    assert all(torch.equal(t, before[n]) for n, t in host.store.save().items())


def test_a_round_sent_twice_to_a_host_steps_once():
    engine = run(il.FedProxSoft(), rounds=2).seeds[0].engine
    host, everyone = engine.host, torch.arange(6)
    host.store.keep = True  # as for a host across a network
    first = host.update(2, engine.message(2), everyone, everyone)
    rows = {n: t.clone() for n, t in host.store.save().items()}
    second = host.update(2, engine.message(2), everyone, everyone)
    assert np.array_equal(first.messages.matrix, second.messages.matrix) and all(
        torch.equal(t, rows[n]) for n, t in host.store.save().items()
    )
