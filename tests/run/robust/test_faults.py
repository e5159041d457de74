"""Bad messages through channels: all are counted, none raises; a rejected client is absent."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.engine.rounds import Rounds
from idiolect.host.host import Host
from idiolect.server.server import EXCHANGES, Server
from idiolect.wire import messages as wire
from idiolect.wire.admission import REASONS
from idiolect.wire.messages import ReceivedDown
from run.robust.common import (
    CHANNELS,
    CLIENTS,
    STATEFUL,
    accounted,
    by_wire_id,
    channel_of,
    everything,
    run,
    same_bits,
    server,
    sound,
    tampering,
    with_header,
)

EXACT = "sketch(columns=5, rows=3, k=2, exact=True)"
NAN = np.float32("nan").tobytes()


def nan(message: bytes) -> bytes:
    """The last number is not one, where a channel ends in plain numbers or begins with a norm."""
    return message[:-4] + NAN


FAULTS = {
    "truncated": ("channel", lambda m: m[:-1]),
    "only a header": ("channel", lambda m: m[:24]),
    "shorter than a header": ("size", lambda m: m[:23]),
    "empty": ("size", lambda m: b""),
    "too long": ("size", lambda m: m + bytes(5000)),
    "another run": ("run", lambda m: with_header(m, run=1)),
    "another schema": ("schema", lambda m: with_header(m, schema=1)),
    "a stranger": ("stranger", lambda m: with_header(m, client=77)),
    "no weight": ("weight", lambda m: with_header(m, weight=np.nan)),
}
KINDS = ("int8(bucket=7)", "qsgd(levels=4, bucket=10, coding=elias)", *STATEFUL[1:4], *STATEFUL[5:])


def absent(monkeypatch, channel: str, **settings) -> il.Result:
    """The last client of round 1 is not selected."""
    chosen = Server._sampled

    def one_less(server, version):
        selected = chosen(server, version)
        return selected[:-1] if version == 1 else selected

    with monkeypatch.context() as patch:
        patch.setattr(Server, "_sampled", one_less)
        return run("fedprox-soft", rounds=3, channel=channel, **settings)


def bad(monkeypatch, channel: str, fault, **settings) -> il.Result:
    with monkeypatch.context() as patch:
        tampering(patch, lambda round, ms: [*ms[:-1], fault(ms[-1])] if round == 1 else ms)
        return run("fedprox-soft", rounds=3, channel=channel, **settings)


@pytest.mark.parametrize("channel", KINDS)
def test_a_rejected_message_is_an_absent_client(channel, monkeypatch):
    gone = absent(monkeypatch, channel)
    assert not same_bits(gone, run("fedprox-soft", rounds=3, channel=channel))
    for name, (reason, fault) in FAULTS.items():
        result = bad(monkeypatch, channel, fault)
        assert same_bits(result, gone), name
        assert server(result).ledger.refused == {reason: 1}, name
        assert result.summary()["rejected_by_reason"] == {reason: 1}, name
        accounted(result)


@pytest.mark.parametrize(
    ("channel", "spoil"),
    [
        ("half", lambda m: m[:24] + b"\x00\x7e" + m[26:]),
        ("int8(bucket=7)", lambda m: m[:24] + NAN + m[28:]),
        ("qsgd(levels=8)", lambda m: m[:24] + NAN + m[28:]),
        ("clip + feedback + sign", lambda m: m[:24] + NAN + m[28:]),
        ("feedback + topk(share=0.2)", nan),
        ("randomk(share=0.3)", nan),
        ("sketch(columns=5, rows=3, k=4)", nan),
        (EXACT, nan),
        ("lbgm(threshold=0)", nan),
        ("lbgm(threshold=0, layers=True)", nan),
    ],
)
def test_numbers_that_are_not_finite_are_rejected_as_that(channel, spoil, monkeypatch):
    result = bad(monkeypatch, channel, spoil)
    assert same_bits(result, absent(monkeypatch, channel))
    assert server(result).ledger.rejected == {"not finite": 1}
    sound(result)


def test_a_multiple_that_is_not_finite_makes_no_sense(monkeypatch):
    """LBGM in round 1 sends one number: what the last message is multiplied with."""
    lengths = []

    def fault(message):
        lengths.append(len(message))
        return nan(message)

    with monkeypatch.context() as patch:  # all are heard in every round: they recycle in round 1
        tampering(patch, lambda round, ms: [*ms[:-1], fault(ms[-1])] if round == 1 else ms)
        result = run("fedavg", rounds=2, sample=CLIENTS, channel="lbgm(threshold=1)")
    assert lengths == [24 + 1 + 4] and server(result).ledger.rejected == {"channel": 1}


SPOIL = {"truncated": lambda m: m[:-1], "empty": lambda m: b"", "NaN": nan}
# these end in bytes that are no numbers: all mean something
BITS = ("int8(bucket=7)", "sign(layers=True)", "clip + feedback + sign")


@pytest.mark.parametrize(
    ("channel", "how"),
    [(c, how) for c in CHANNELS for how in SPOIL if (c in BITS) <= (how != "NaN")],
)
def test_a_run_in_which_nobody_is_heard_leaves_server_and_channel_as_they_are(
    channel, how, monkeypatch
):
    tampering(monkeypatch, lambda round, ms: [SPOIL[how](m) for m in ms])
    result = run("fedavg", channel=channel)
    one = server(result)
    assert not one.ledger.admitted and one.ledger.total("bytes_up") == 0
    start = one.contract.method.server(one.contract.task)
    assert all(torch.equal(t, start[n]) for n, t in one.state.items())
    assert not any(t.any() for t in channel_of(result.session()).values())
    accounted(result)


# -- mutations -------------------------------------------------------------------------------------
MUTATED = (
    "int8(bucket=7)",
    "qsgd(levels=5, bucket=10)",
    "qsgd(levels=4, bucket=10, coding=elias)",
    "feedback + topk(share=0.3) + qsgd(levels=16)",
    "dgc(sparsity=0.8) + half",
    "sign(layers=True)",
    "lbgm(threshold=0.5)",
    "lbgm(threshold=0.5, layers=True)",
    "sketch(columns=5, rows=3, k=4)",
    EXACT,
)


def mutated(message: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, mostly of the body; sometimes cut off or added to."""
    out = bytearray(message)
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(24, len(out)) if rng.random() < 0.9 else rng.integers(24)
        out[at] = rng.choice([0, 255, 127, 128, rng.integers(256)])
    kind = rng.integers(10)
    if kind == 0:
        return bytes(out[: rng.integers(len(out) + 1)])
    return bytes(out) + (rng.bytes(rng.integers(1, 50)) if kind == 1 else b"")


@pytest.mark.parametrize("channel", MUTATED)
def test_two_hundred_mutations_raise_nothing_and_are_all_accounted_for(channel, monkeypatch):
    rng, count = np.random.default_rng(len(channel)), Counter()

    def tamper(round, messages):
        count["messages"] += len(messages)
        return [mutated(m, rng) for m in messages]

    tampering(monkeypatch, tamper)
    result = run("fedavg", rounds=40, sample=5, channel=channel)
    assert count["messages"] == 200
    sound(result)
    ledger = server(result).ledger
    assert ledger.refused and set(ledger.refused) <= {*REASONS, "overflow"}


def test_shuffled_and_repeated_messages_change_nothing(monkeypatch):
    """In whatever order they arrive, a message is decoded with the memory of its sender."""
    given = {"rounds": 4, "sample": CLIENTS, "channel": "lbgm(threshold=0.9)"}
    honest = run("fedavg", **given)
    for tamper in (
        lambda ms: ms[::-1],
        lambda ms: [*ms, *ms],
        lambda ms: [ms[3], *ms[::-1], ms[1]],
    ):
        with monkeypatch.context() as patch:
            tampering(patch, lambda round, ms, tamper=tamper: tamper(ms))
            assert same_bits(run("fedavg", **given), honest)


# -- what both sides remember ----------------------------------------------------------------------
LBGM = (
    "lbgm(threshold=0.5)",
    "lbgm(threshold=0.5, layers=True)",
    "feedback + lbgm(threshold=0.9) + half",
)


def memories(result: il.Result) -> tuple[torch.Tensor, torch.Tensor]:
    """g at the clients, g at the server."""
    session = result.session()
    (name,) = session.server.memory.rows
    return by_wire_id(session, "coder")[name], session.server.memory.rows[name]


@pytest.mark.parametrize("channel", LBGM)
def test_client_and_server_remember_the_same_message(channel):
    ours, theirs = memories(run("fedavg", rounds=5, channel=channel))
    assert ours.any() and torch.equal(ours, theirs)


@pytest.mark.parametrize("channel", LBGM)
@pytest.mark.parametrize("fault", ["truncated", "too long", "another run"])
def test_a_rejected_message_is_remembered_by_neither_side(channel, fault, monkeypatch):
    """Else the client would next send a multiple of what the server has never seen."""
    spoil = FAULTS[fault][1]
    tampering(
        monkeypatch,
        lambda round, ms: [spoil(m) if (k + round) % 2 else m for k, m in enumerate(ms)],
    )
    result = run("fedavg", rounds=6, channel=channel)
    ours, theirs = memories(result)
    assert ours.any() and torch.equal(ours, theirs)
    assert sum(server(result).ledger.refused.values()) == 15


@pytest.mark.parametrize(
    "channel", ["feedback + topk(share=0.2)", "dgc(sparsity=0.8)", "lbgm", EXACT]
)
def test_a_client_that_diverges_once_is_heard_again(channel, monkeypatch):
    """What it could not send does not stay in what it remembers."""
    update = il.FedAvg.update

    def diverge(self, task, down, private, here):
        up, rows = update(self, task, down, private, here)
        if here.round == 1:
            up["w"] = up["w"].clone()
            up["w"][2] = torch.inf
        return up, rows

    monkeypatch.setattr(il.FedAvg, "update", diverge)
    result = run("fedavg", rounds=4, sample=CLIENTS, channel=channel)
    assert server(result).ledger.rejected == {"not finite": 1}
    sound(result)


# -- rounds that come to nothing -------------------------------------------------------------------
@pytest.mark.parametrize(
    "channel",
    ["none", "feedback + topk(share=0.2)", "lbgm", "sketch(columns=5, rows=3, k=4)", EXACT],
)
def test_too_few_for_the_rule_leaves_server_and_channel_as_they_are(channel, monkeypatch):
    unchanged = []
    advance = Rounds.advance

    def watched(self, factors=None):
        before = {n: t.clone() for n, t in {**self.server.state, **channel_of(self)}.items()}
        advance(self, factors)
        after = {**self.server.state, **channel_of(self)}
        unchanged.append(all(torch.equal(t, after[n]) for n, t in before.items()))

    monkeypatch.setattr(Rounds, "advance", watched)
    tampering(
        monkeypatch,
        lambda round, ms: [m[:20] if round == 1 and k < 3 else m for k, m in enumerate(ms)],
    )
    result = run("fedavg", rounds=3, sample=CLIENTS, channel=channel, rule="krum(f=1)")
    ledger = server(result).ledger
    assert ledger.refused == {"size": 3, "too few": 3} and ledger.admitted == 2 * CLIENTS
    assert ledger.missing == {"silent": 3} and ledger.surplus == {"size": 3}
    assert unchanged == [False, True, False]
    accounted(result)


@pytest.mark.parametrize(
    "channel", ["topk(share=1.0)", "lbgm(threshold=0.5)", "sketch(columns=5, rows=3, k=4)", EXACT]
)
def test_numbers_whose_sum_overflows_do_not_stay_in_the_channel(channel, monkeypatch):
    """Every client sends 3e38 in round 1: finite, but not what becomes of them."""

    def huge(host, exchange, rows, up, reference):
        return {n: t * 0 + 3e38 if exchange.version == 1 else t for n, t in up.items()}

    monkeypatch.setattr(Host, "leaving", huge)
    result = run(il.FedAvg(weighting="unbiased"), rounds=4, sample=CLIENTS, channel=channel)
    sound(result)
    ledger = server(result).ledger
    assert sum(ledger.rejected.values()) == CLIENTS and ledger.admitted == 3 * CLIENTS


# -- the second exchange ---------------------------------------------------------------------------
def answering(monkeypatch, change) -> None:
    """The answers of round 1 go through `change(byte matrix)`, while the last client is asked."""
    honest = Host.answer

    def answer(host, query):
        out = honest(host, query)
        asked = CLIENTS - 1 in query.asked.tolist()
        return change(out.copy()) if query.version == 1 and asked else out

    monkeypatch.setattr(Host, "answer", answer)


def spoil_last(at: slice, value: bytes):
    def change(answers):
        answers[-1, at] = np.frombuffer(value, np.uint8)
        return answers

    return change


ANSWERS = {
    "NaN": spoil_last(slice(-4, None), NAN),
    "infinity": spoil_last(slice(24, 28), np.float32("inf").tobytes()),
    "a stranger": spoil_last(slice(16, 20), b"\x63\0\0\0"),
    "another round": spoil_last(slice(4, 8), b"\0\0\0\0"),
    "no weight": spoil_last(slice(20, 24), NAN),
    "truncated": lambda a: [r.tobytes() for r in a[:-1]] + [a[-1].tobytes()[:-1]],
    "missing": lambda a: a[:-1],
}


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_of_the_second_exchange_is_an_absent_answer(name, method, monkeypatch):
    """A client counts only with an answer for every part of its message: SCAFFOLD's has two."""

    def result(change):
        with monkeypatch.context() as patch:
            answering(patch, change)
            return run(method, rounds=3, sample=CLIENTS, channel=EXACT)

    spoilt = result(ANSWERS[name])
    sound(spoilt)
    assert server(spoilt).ledger.rejected == {"answer": 1}
    assert same_bits(spoilt, result(ANSWERS["missing"]))
    assert not same_bits(spoilt, result(lambda a: a))


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_client_that_fails_in_the_second_exchange_has_no_part_in_the_first(method, monkeypatch):
    """As if it had not been selected: it shapes neither the sum nor what is asked for."""
    given = {"rounds": 3, "sample": CLIENTS, "channel": EXACT}
    with monkeypatch.context() as patch:
        answering(patch, ANSWERS["NaN"])
        failed = run(method, **given)
    with monkeypatch.context() as patch:
        not_selecting(patch, CLIENTS - 1, version=1)
        expected = run(method, **given)
    ours, theirs = server(failed), server(expected)
    for name in ("state", "channel_state", "rule_state"):
        states = getattr(ours, name), getattr(theirs, name)
        assert all(torch.equal(t, states[1][n]) for n, t in states[0].items()), name
    counts = ours.ledger.counts, theirs.ledger.counts
    assert torch.equal(counts[0]["values_up"], counts[1]["values_up"])


def not_selecting(monkeypatch, client: int, version: int) -> None:
    """This client is not selected in this round."""
    sampled = Server._sampled

    def without(self, at):
        chosen = sampled(self, at)
        return chosen[chosen != client] if at == version else chosen

    monkeypatch.setattr(Server, "_sampled", without)


def test_clients_that_fail_one_after_the_other_cannot_keep_a_round_open(monkeypatch):
    """Whoever is asked last fails, again and again: after five times the round is given up."""
    honest = Host.answer
    asked = []

    def answer(host, query):
        asked.append(len(query.asked))
        return honest(host, query)[:-1]

    monkeypatch.setattr(Host, "answer", answer)
    result = run("fedavg", rounds=1, sample=CLIENTS, channel=EXACT)
    fates = server(result).ledger.last
    assert fates.admitted == 0 and len(asked) <= EXCHANGES and asked == sorted(asked)[::-1]
    assert sum(fates.rejected.values()) == CLIENTS and fates.rejected["answer"] >= 2
    sound(result)


def test_a_client_whose_answer_is_rejected_remembers_what_it_did_before(monkeypatch):
    answering(monkeypatch, ANSWERS["NaN"])
    given = {"sample": CLIENTS, "channel": EXACT}
    before, after = (
        by_wire_id(run("fedavg", rounds=rounds, **given).session(), "coder")["w.0.v"]
        for rounds in (1, 2)
    )
    assert torch.equal(before[-1], after[-1])
    assert not any(torch.equal(before[k], after[k]) for k in range(CLIENTS - 1))


def test_no_answer_at_all_leaves_the_server_as_it_is(monkeypatch):
    answering(monkeypatch, lambda a: a[:0])
    servers = []
    tampering(monkeypatch, lambda round, ms: ms)
    advance = Rounds.advance

    def watched(self, factors=None):
        advance(self, factors)
        servers.append(self.server.state["w"].clone())

    monkeypatch.setattr(Rounds, "advance", watched)
    result = run("fedavg", rounds=3, channel=EXACT, server_options="momentum=0.9")
    assert torch.equal(servers[0], servers[1]) and not torch.equal(servers[1], servers[2])
    assert server(result).ledger.rejected == {"answer": 5}
    sound(result)


# -- a message is its sender's alone ---------------------------------------------------------------
@pytest.mark.parametrize("channel", CHANNELS)
def test_a_coded_message_does_not_depend_on_who_else_is_in_the_cohort(channel):
    """Three rounds of the same numbers, sent among all and among two."""
    numbers = torch.randn(3, CLIENTS, 39, generator=torch.Generator().manual_seed(0))
    everyone, two = torch.arange(CLIENTS), torch.tensor([2, 4])

    def messages(cohort):
        (host,) = run("fedavg", rounds=0, channel=channel).session().hosts
        down = ReceivedDown({"w": host.contract.task.x0}, two[:0], {})
        return [
            host._send(round, down, [(cohort, {"w": numbers[round, cohort]})]) for round in range(3)
        ]

    for among, alone in zip(messages(everyone), messages(two), strict=True):
        for k, client in enumerate(two.tolist()):
            assert alone[0].row(k)[24:] == among[0].row(client)[24:]  # bytes after the header
            assert alone[1][k] == among[1][client]  # what they count as


def test_a_round_that_a_host_is_sent_twice_is_coded_from_the_same_memory():
    for channel in STATEFUL:
        session = run("fedavg", rounds=2, sample=CLIENTS, channel=channel).session()
        (host,) = session.hosts
        order = session.server.open().order
        first = host.update(order).messages
        rows = {n: t.clone() for n, t in host.coder.rows.items()}
        second = host.update(order).messages
        assert [first.row(k) for k in range(CLIENTS)] == [second.row(k) for k in range(CLIENTS)]
        assert all(torch.equal(t, rows[n]) for n, t in host.coder.rows.items())


def test_a_message_coded_otherwise_is_not_decoded(monkeypatch):
    """The schema names the channel: nothing is decoded by chance."""
    plain = run("fedavg", rounds=0).session().contract.up
    other = replace(plain, channel="half")
    assert other.checksum != plain.checksum
    tampering(monkeypatch, lambda round, ms: [with_header(ms[0], schema=other.checksum), *ms[1:]])
    result = run("fedavg", channel="half")
    assert server(result).ledger.surplus == {"schema": 2} and wire.HEADER.itemsize == 24
    assert everything(result)
