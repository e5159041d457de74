"""Rounds with hosts behind frames of bytes: the same as in one process."""

import pytest
import torch

from engine.engine_suite import EngineSuite
from engine.loopback import Loopback, remote, remote_rounds
from engine.setting import CLIENTS, EXACT, Network, balanced, contract, hosts, of_server, server
from idiolect.core.knobs import SettingError
from idiolect.data.federation import Census
from idiolect.host.calls import Call
from idiolect.host.metrics import form_of
from idiolect.host.remote_host import SiteProxy
from idiolect.host.service import Service


class TestRemote(EngineSuite):
    @pytest.fixture
    def build(self):
        return remote


class Odd(Loopback):
    """The second host's replies to calls of a kind are others."""

    def __init__(self, services, kind, reply):
        super().__init__(services)
        self.kind = kind
        self.reply = reply

    def receive(self, seconds):
        asked = {ticket: (host, frame) for ticket, host, frame in self.sent}
        found = []
        for ticket, said in super().receive(seconds):
            host, frame = asked[ticket]
            odd = host == 1 and Call.open(frame).kind == self.kind
            found.append((ticket, self.reply if odd else said))
        return found


REPLIES = {
    "malformed": b"rubbish",
    "failed": Call("failed", {"text": "it broke"}).pack(),
    "refused": Call("refused", {"reason": "the owner says no"}).pack(),
}


def odd(reply: bytes, kind: str = "update", strict: bool = False, channel: str = "none"):
    """An engine whose second host is odd, and the real hosts behind it."""
    agreed = contract(channel=channel)
    real = hosts(agreed, 2)
    carrier = Odd([Service(h) for h in real], kind, reply)
    form = form_of(real[0].data, agreed.task.criterion)
    seen = [SiteProxy(_census(h), h.wire_ids, h.settings, form) for h in real]
    told = []
    engine = remote_rounds(
        server(agreed, sample=CLIENTS),
        real if strict else seen,
        carrier,
        strict=strict,
        on_no_reply=lambda host, gone: told.append((host, gone.reason, gone.text)),
    )
    return engine, told


def _census(host) -> Census:
    data = host.data
    sizes = {split: data.sizes(split) for split in ("train", "valid", "test")}
    return Census.of_sizes(data.ids, sizes, data.classes, data.shape)


@pytest.mark.parametrize("reason", REPLIES)
def test_of_a_host_of_another_owner_only_its_own_messages_are_lost(reason):
    engine, told = odd(REPLIES[reason])
    for _ in range(2):
        engine.advance()
        balanced(engine)
    ledger = engine.server.ledger
    assert ledger.missing == {reason: 6} and ledger.admitted == 6
    assert {host for host, _, _ in told} == {1} and told[0][1] == reason
    one, other = hosts(contract(), 2)
    silent = Network(other, lambda version, messages: [])
    absent = remote(server(contract(), sample=CLIENTS), [one, silent])
    for _ in range(2):
        absent.advance()
    mine, its = of_server(engine.server), of_server(absent.server)
    assert all(torch.equal(t, its[n]) for n, t in mine.items())


@pytest.mark.parametrize("reason", REPLIES)
def test_a_host_of_ones_own_that_fails_ends_the_run(reason):
    engine, _ = odd(REPLIES[reason], strict=True)
    with pytest.raises((ValueError, RuntimeError, SettingError)):
        engine.advance()


@pytest.mark.parametrize("reason", REPLIES)
def test_a_host_that_does_not_answer_a_second_exchange_is_absent(reason):
    engine, _ = odd(REPLIES[reason], "answer", channel=EXACT)
    engine.advance()
    balanced(engine)
    ledger = engine.server.ledger
    assert ledger.admitted == 3 and ledger.rejected == {"answer": 3}


@pytest.mark.parametrize("reason", REPLIES)
def test_the_end_of_a_round_is_no_condition_of_it(reason):
    engine, told = odd(REPLIES[reason], "conclude")
    engine.advance()
    assert engine.server.version == 1 and engine.server.ledger.admitted == CLIENTS
    assert [(host, why) for host, why, _ in told] == [(1, reason)]


@pytest.mark.parametrize("reason", REPLIES)
def test_scores_that_nobody_tells_are_of_no_sample(reason):
    engine, _ = odd(REPLIES[reason], "evaluate")
    engine.advance()
    scores = engine.evaluate(torch.arange(CLIENTS), ("test",))["test"]
    assert scores.wire_ids.tolist() == list(range(CLIENTS))
    assert (scores.samples > 0).tolist() == [True] * 3 + [False] * 3
