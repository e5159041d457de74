"""The server by itself: messages in any order and number, rounds that end once, checkpoints."""

import json
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from engine.loopback import local_rounds
from engine.setting import (
    CLIENTS,
    EVERYONE,
    EXACT,
    FEDERATION,
    contract,
    held,
    hosts,
    of_server,
    server,
)
from idiolect.methods import make_method
from idiolect.server.step import ServerStep

CHANNELS = (
    "none",
    "lbgm(threshold=0.9)",
    "feedback + lbgm(threshold=0.9) + half",
    "sketch(columns=5, rows=3, k=4)",
    EXACT,
)


def state(server) -> dict[str, torch.Tensor]:
    counts = {f"ledger.{n}": t.clone() for n, t in server.ledger.counts.items()}
    return {**of_server(server), **counts}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())


# -- messages --------------------------------------------------------------------------------------
def rounds(channel: str, deliver, answer) -> dict[str, torch.Tensor]:
    """Three rounds in which `deliver` and `answer` bring messages to the server."""
    agreed = contract(channel=channel)
    at = server(agreed, sample=CLIENTS)
    (host,) = hosts(agreed, 1)
    for _ in range(3):
        round = at.open()
        sent = host.update(round.order)
        at.account(sent.trained, sent.gradients)
        deliver(at, round, [sent.messages.row(k) for k in range(CLIENTS)], sent.values)
        for query in at.ask(round):
            answer(at, round, query.part, [row.tobytes() for row in host.answer(query)])
        host.conclude(at.close(round))
    assert at.ledger.admitted == 3 * CLIENTS
    return state(at)


@pytest.mark.parametrize("channel", CHANNELS)
def test_messages_in_any_order_and_any_number_of_calls_give_the_same_server(channel):
    def together(at, round, messages, values):
        at.receive(round, messages, values)

    def answer(at, round, part, answers):
        at.receive_answer(round, part, answers)

    expected = rounds(channel, together, answer)
    orders = list(permutations(range(CLIENTS)))[:: 719 // 5]
    for order in orders:
        for cuts in ((1, 2, 3, 4, 5), (2,), (3, 3), (0, 5)):
            parts = [p.tolist() for p in torch.tensor(order).tensor_split(cuts)]

            def apart(at, round, messages, values, parts=parts):
                for part in parts:
                    at.receive(round, [messages[k] for k in part], values[part])

            def answer_apart(at, round, part, answers, parts=parts):
                for some in reversed(parts):
                    at.receive_answer(round, part, [answers[k] for k in some])

            assert same(rounds(channel, apart, answer_apart), expected), (order, cuts)


def test_who_answers_without_having_been_asked_does_not_count():
    """A message that comes after the queries were made is too late to be asked about."""
    agreed = contract(channel=EXACT)
    at = server(agreed, sample=CLIENTS)
    (host,) = hosts(agreed, 1)
    round = at.open()
    messages = host.update(round.order).messages
    rows = [messages.row(k) for k in range(CLIENTS)]
    at.receive(round, rows[:-1])
    for query in at.ask(round):
        assert query.asked.tolist() == EVERYONE[:-1].tolist()
        at.receive_answer(round, query.part, host.answer(query))
    at.receive(round, rows[-1:])
    verdict = at.close(round)
    assert verdict.counted.tolist() == EVERYONE[:-1].tolist()
    assert verdict.unheard.tolist() == [CLIENTS - 1]
    assert at.ledger.rejected == {"late": 1} and at.ledger.admitted == CLIENTS - 1


# -- rounds ----------------------------------------------------------------------------------------
def test_a_round_ends_once():
    agreed = contract()
    at = server(agreed)
    round = at.open()
    at.close(round)
    before = state(at)
    with pytest.raises(RuntimeError, match="closed before"):
        at.close(round)
    assert same(state(at), before) and at.version == 1


def test_a_channel_that_asks_is_not_closed_unasked():
    at = server(contract(channel=EXACT))
    round = at.open()
    with pytest.raises(RuntimeError, match="call ask"):
        at.close(round)
    assert at.version == 0 and at.ask(round) == []
    at.close(round)
    assert at.version == 1


def test_joining_and_leaving_count_from_the_next_round_on():
    """The weights of a round under way are those of the clients that could take part in it."""
    results = []
    for changes in (False, True):
        unbiased = make_method("fedavg", weighting="unbiased")
        agreed = replace(contract(), method=unbiased)
        at = server(agreed, sample=CLIENTS)
        (host,) = hosts(agreed, 1)
        round = at.open()
        sent = host.update(round.order)
        if changes:
            at.roster.leave([FEDERATION.ids[4]])
            at.enrol(["newcomer"], [1000])
        at.receive(round, sent.messages, sent.values)
        at.close(round)
        results.append(at.state["w"])
        assert len(at.open().order.heard) == CLIENTS
        assert (4 in at.open().order.heard.tolist()) != changes
    assert torch.equal(*results)


def test_a_method_that_sends_nothing_selects_nobody_for_nothing():
    agreed = contract("local")
    engine = local_rounds(server(agreed), hosts(agreed, 2))
    engine.advance()
    ledger = engine.server.ledger
    assert ledger.selected == ledger.admitted == ledger.bytes == 0 and not ledger.rejected
    assert engine.server.version == 1


# -- checkpoints -----------------------------------------------------------------------------------
STATES = {
    "plain": {},
    "server optimiser": {"step": ServerStep("adam", lr=0.1)},
    "rule with a history": {"rule": "centred-clipping"},
    "rule that draws": {"rule": "bucketing(size=2) + median", "step": ServerStep(lr=0.5)},
}


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("kind", STATES)
def test_a_server_and_hosts_that_were_saved_continue_to_the_same_bits(kind, channel, tmp_path):
    agreed = contract("scaffold", channel)
    engine = local_rounds(server(agreed, **STATES[kind]), hosts(agreed, 2))
    for _ in range(2):
        engine.advance()
    tensors, facts = engine.server.save()
    tensors = {n: t.clone() for n, t in tensors.items()}  # as a file would
    for k, host in enumerate(engine.hosts):
        host.save(tmp_path / str(k))
    again = local_rounds(server(agreed, **STATES[kind]), hosts(agreed, 2))
    again.server.load(tensors, json.loads(json.dumps(facts)))
    for k, host in enumerate(again.hosts):
        host.load(tmp_path / str(k))
    assert not held(engine).differences(held(again))
    for _ in range(2):
        engine.advance()
        again.advance()
        assert not held(engine, scored=True).differences(held(again, scored=True))
    assert engine.server.version == again.server.version == 4


def test_what_was_saved_does_not_change_with_the_server_that_saved_it():
    agreed = contract()
    engine = local_rounds(server(agreed), hosts(agreed, 1))
    engine.advance()
    tensors, facts = engine.server.save()
    other = server(agreed)
    other.load(tensors, facts)
    before = state(other)
    saved = {n: t.clone() for n, t in tensors.items()}
    engine.advance()
    engine.server.roster.leave([FEDERATION.ids[0]])
    assert same(state(other), before) and same(tensors, saved)
    assert other.version == 1 and other.ledger.selected == 4 and other.roster.eligible.all()


@pytest.mark.parametrize("channel", ["none", "lbgm(threshold=0.9)"])
def test_a_server_that_has_grown_is_loaded_into_one_that_has_not(channel):
    first = EVERYONE[:4]
    agreed = contract(channel=channel)
    grown = local_rounds(server(agreed, clients=first, sample=3), hosts(agreed, 1, first))
    grown.advance()
    grown.server.enrol([FEDERATION.ids[k] for k in (4, 5)], [14, 11])
    grown = local_rounds(grown.server, [*grown.hosts, *hosts(agreed, 1, EVERYONE[4:])])
    grown.advance()
    tensors, facts = grown.server.save()
    tensors = {n: t.clone() for n, t in tensors.items()}
    again = server(agreed, clients=first, sample=3)
    again.load(tensors, facts)
    assert same(state(again), state(grown.server)) and len(again.roster) == CLIENTS
    ours = local_rounds(again, grown.hosts)
    ours.advance()
    assert again.ledger.selected == again.ledger.admitted == 9
