"""What becomes of every client that was asked, round by round."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.setting import CLIENTS, EVERYONE, EXACT, contract, hosts, of_server, server
from idiolect.server.server import Server
from idiolect.server.step import ServerStep
from idiolect.wire.ledger import LedgerError

ADAM = ServerStep("adam", 0.01)


def huge(message: bytes, value: float = 1e25) -> bytes:
    """Finite numbers, whose squares are not."""
    return message[:24] + np.float32(value).tobytes() * ((len(message) - 24) // 4)


def advance(at: Server, host, tamper: Callable[[list[bytes]], list[bytes]] = list):
    """A round, with messages and answers as `tamper` leaves the messages."""
    round = at.open()
    messages = host.update(round.order).messages
    at.receive(round, tamper([messages.row(k) for k in range(len(messages))]))
    while queries := at.ask(round):
        for query in queries:
            at.receive_answer(round, query.part, host.answer(query))
    verdict = at.close(round)
    host.conclude(verdict)
    return verdict


def same(a: Server, b: Server) -> bool:
    ours, theirs = of_server(a), of_server(b)
    return ours.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in ours.items())


# -- overflow --------------------------------------------------------------------------------------
@pytest.mark.parametrize("channel", ["none", "topk(share=1.0)", "sketch(columns=5, rows=3, k=4)"])
@pytest.mark.parametrize("who", [0, 3, CLIENTS - 1])
def test_whose_numbers_overflow_is_rejected_alone(who, channel):
    """1e25 is a finite number, and Adam squares it."""
    agreed = contract("fedavg", channel=channel)
    (host, other) = (hosts(agreed, 1)[0] for _ in range(2))
    attacked = server(agreed, sample=CLIENTS, step=ADAM)
    expected = server(agreed, sample=CLIENTS, step=ADAM)

    def spoil(ms):
        return [huge(m) if k == who and channel == "none" else m for k, m in enumerate(ms)]

    if channel != "none":  # the numbers of a coded message are the channel's business
        leave = host.leaving
        host.leaving = lambda e, rows, up, r: leave(
            e, rows, {n: torch.where((rows == who)[:, None], 1e25, t) for n, t in up.items()}, r
        )
    for _ in range(3):
        advance(attacked, host, spoil)
        assert attacked.ledger.last.rejected == {"overflow": 1}
        assert attacked.ledger.last.admitted == CLIENTS - 1
        advance(expected, other, lambda ms: [m for k, m in enumerate(ms) if k != who])
        assert expected.ledger.last.missing == {"silent": 1}
    assert same(attacked, expected)


def test_several_whose_numbers_overflow_are_all_found():
    agreed = contract("fedavg")
    (host, other) = (hosts(agreed, 1)[0] for _ in range(2))
    attacked = server(agreed, sample=CLIENTS, step=ADAM)
    expected = server(agreed, sample=CLIENTS, step=ADAM)
    sizes = {1: 1e25, 2: 3e38, 4: 1e23}
    verdict = advance(attacked, host, lambda ms: [
        huge(m, sizes[k]) if k in sizes else m for k, m in enumerate(ms)
    ])  # fmt: skip
    advance(expected, other, lambda ms: [m for k, m in enumerate(ms) if k not in sizes])
    assert verdict.counted.tolist() == [0, 3, 5] and verdict.unheard.tolist() == [1, 2, 4]
    assert attacked.ledger.last.rejected == {"overflow": 3} and same(attacked, expected)


def test_an_answer_that_overflows_drops_its_sender_from_both_exchanges():
    agreed = contract("fedavg", channel=EXACT)
    (host, other) = (hosts(agreed, 1)[0] for _ in range(2))
    attacked = server(agreed, sample=CLIENTS, step=ADAM)
    expected = server(agreed, sample=CLIENTS, step=ADAM)
    answer = host.answer

    def answered(query):
        rows = answer(query)
        for k, wire_id in enumerate(query.asked.tolist()):
            if wire_id == 2:
                rows[k] = np.frombuffer(huge(rows[k].tobytes()), np.uint8)
        return rows

    host.answer = answered
    advance(attacked, host)
    advance(expected, other, lambda ms: [m for k, m in enumerate(ms) if k != 2])
    assert attacked.ledger.last.rejected == {"overflow": 1} and same(attacked, expected)


# -- missing ---------------------------------------------------------------------------------------
def test_an_engine_says_why_messages_are_missing():
    agreed = contract("fedavg")
    (host,) = hosts(agreed, 1)
    at = server(agreed, sample=CLIENTS)
    round = at.open()
    messages = host.update(round.order).messages
    at.receive(round, [messages.row(k) for k in (0, 1)])
    at.missing(round, torch.tensor([1, 2, 3]), "crashed")  # 1 had sent its message before
    at.missing(round, torch.tensor([3, 4]), "timed out")  # 3 is accounted for
    at.close(round)
    last = at.ledger.last
    assert (last.selected, last.admitted, last.rejected) == (CLIENTS, 2, {})
    assert last.missing == {"crashed": 2, "timed out": 1, "silent": 1}
    with pytest.raises(ValueError, match="reason must be one of silent, timed out"):
        at.missing(round, EVERYONE, "asleep")


def test_the_account_is_checked_at_the_end_of_every_round(monkeypatch):
    """A server that counts a client twice does not go on."""
    agreed = contract("fedavg")
    (host,) = hosts(agreed, 1)
    at = server(agreed, sample=CLIENTS)
    remember = Server._remember

    def twice(self, round, got):
        remember(self, round, got)
        remember(self, round, got)

    monkeypatch.setattr(Server, "_remember", twice)
    with pytest.raises(LedgerError, match="bytes are booked"):
        advance(at, host)


def test_a_client_that_lies_about_another_leaves_the_other_ones_fate_to_itself():
    """A forged message under another client's id is surplus; a first bad one does not exclude."""
    agreed = contract("fedavg")
    (host,) = hosts(agreed, 1)
    at = server(agreed, sample=CLIENTS)
    nan = np.float32("nan").tobytes()
    advance(at, host, lambda ms: [ms[0][:24] + nan + ms[0][28:], *ms, ms[1]])
    last = at.ledger.last
    assert last.admitted == CLIENTS and not last.rejected and not last.missing
    assert last.surplus == {"not finite": 1, "repeated": 1}


# -- the second exchange ---------------------------------------------------------------------------
class Asked:
    """A round of a channel that asks, with answers as `answers(number of the query, rows)` says."""

    def __init__(self, answers, close_after: int = 9, quorum: int = 1):
        agreed = contract("fedavg", channel=EXACT)
        (self.host,) = hosts(agreed, 1)
        self.at = server(agreed, sample=CLIENTS, quorum=quorum)
        self.before = of_server(self.at)
        round = self.at.open()
        messages = self.host.update(round.order).messages
        self.at.receive(round, [messages.row(k) for k in range(CLIENTS)])
        self.arrived = torch.from_numpy(messages.lengths.copy())
        number = 0
        while number < close_after and (queries := self.at.ask(round)):
            for query in queries:
                found = answers(number, query.asked.tolist(), self.host.answer(query))
                for k, wire_id in enumerate(query.asked.tolist()):
                    if k < len(found):
                        self.arrived[wire_id] += len(found[k])
                self.at.receive_answer(round, query.part, found)
            number += 1
        self.verdict = self.at.close(round)
        self.last = self.at.ledger.last
        self.unchanged = all(torch.equal(t, self.before[n]) for n, t in of_server(self.at).items())


def without(*clients: int):
    """The answers of these clients do not arrive."""

    def answers(number, asked, rows):
        return [
            row.tobytes() if k not in clients else b"" for k, row in zip(asked, rows, strict=True)
        ]

    return answers


def test_a_client_that_does_not_answer_is_dropped_and_the_others_count():
    asked = Asked(without(2))
    assert asked.last.rejected == {"answer": 1} and asked.last.admitted == CLIENTS - 1
    assert asked.verdict.unheard.tolist() == [2] and not asked.unchanged
    up = asked.at.ledger.counts["bytes_up"]
    heard = EVERYONE != 2
    assert torch.equal(up[heard], asked.arrived[heard]) and up[2] == 0  # every answer is counted
    down = asked.at.contract.link.down_values(0)  # the paper counts the model down, and no query
    assert asked.at.ledger.counts["values_down"].tolist() == [down] * CLIENTS


def test_clients_that_fail_one_after_the_other_have_one_fate_each():
    asked_twice = 0
    for first in range(CLIENTS):
        second = (first + 1) % CLIENTS

        def answers(number, asked, rows, first=first, second=second):
            return without(second if number else first)(number, asked, rows)

        asked = Asked(answers)
        again = second in asked.verdict.unheard.tolist()  # the question was another without `first`
        assert asked.last.rejected == {"answer": 1 + again}
        assert asked.last.admitted == CLIENTS - 1 - again
        asked_twice += again
    assert asked_twice


def test_a_round_that_is_closed_before_all_is_settled_does_not_count():
    asked = Asked(without(2), close_after=1)
    assert asked.last.rejected == {"answer": 1, "unsettled": CLIENTS - 1} and asked.unchanged


@pytest.mark.parametrize(("quorum", "counts"), [(CLIENTS - 1, True), (CLIENTS, False)])
def test_a_quorum_is_of_those_who_answered(quorum, counts):
    asked = Asked(without(2), quorum=quorum)
    assert asked.unchanged != counts
    expected = {"answer": 1} if counts else {"answer": 1, "too few": CLIENTS - 1}
    assert asked.last.rejected == expected


@pytest.mark.parametrize(("quorum", "counts"), [(CLIENTS - 1, True), (CLIENTS, False)])
def test_a_quorum_is_of_those_who_are_admitted(quorum, counts):
    agreed = contract("fedavg")
    (host,) = hosts(agreed, 1)
    at = server(agreed, sample=CLIENTS, quorum=quorum)
    verdict = advance(at, host, lambda ms: ms[:-1])
    assert len(verdict.counted) == (CLIENTS - 1 if counts else 0)
    assert at.ledger.last.rejected == ({} if counts else {"too few": CLIENTS - 1})


def test_answers_of_strangers_are_surplus():
    def answers(number, asked, rows):
        forged = bytearray(rows[0].tobytes())
        forged[16:20] = (77).to_bytes(4, "little")
        return [*(row.tobytes() for row in rows), bytes(forged)]

    asked = Asked(answers)
    assert asked.last.admitted == CLIENTS and asked.last.surplus == {"stranger": 1}
