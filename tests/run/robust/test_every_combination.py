"""Every method runs through every channel, under every attack, with every rule; exact ledgers."""

from itertools import combinations, product

import pytest
import torch

from idiolect import METHODS
from idiolect.wire import messages as wire
from run.robust.common import ATTACKS, CHANNELS, RULES, Spy, run, server, sound

MALICIOUS = 2
CHOICES = {"channel": ("none", *CHANNELS), "attack": ("none", *ATTACKS), "rule": RULES}


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_messages(name, channel, monkeypatch):
    spy = Spy(monkeypatch)
    result = run(name, channel=channel)
    sound(result)
    contract = result.session().contract
    ledger = server(result).ledger
    assert not ledger.rejected
    for round, sent in spy.sent:
        limit = wire.HEADER.itemsize + contract.link.limit(round)
        assert (sent.messages.lengths <= limit).all()
    assert torch.equal(ledger.counts["bytes_up"], spy.bytes_up())
    down = spy.trained() * contract.down.length + spy.bytes_told()
    assert torch.equal(ledger.counts["bytes_down"], down)


def settings(channel: str, attack: str, rule: str) -> dict:
    return {
        "channel": channel,
        "attack": attack,
        "rule": rule,
        "malicious": 0 if attack == "none" else MALICIOUS,
    }


def pairwise() -> list[tuple[str, ...]]:
    """Lines of (method, channel, attack, rule) in which every pair of two of them occurs.

    So every method meets every attack and every rule.
    """
    factors = [tuple(METHODS), *CHOICES.values()]
    places = tuple(combinations(range(4), 2))
    missing = {(i, a, j, b) for i, j in places for a, b in product(factors[i], factors[j])}

    def pairs(row: tuple[str, ...]) -> set:
        return {(i, row[i], j, row[j]) for i, j in places}

    out = []
    for name, channel in product(factors[0], factors[1]):  # the two longest lists set the length
        rows = [(name, channel, *rest) for rest in product(factors[2], factors[3])]
        out.append(max(rows, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(out[-1])
    assert not missing
    return out


@pytest.fixture(scope="module")
def cover() -> list[tuple[str, ...]]:
    return pairwise()


@pytest.mark.parametrize("name", METHODS)
def test_any_two_of_method_channel_attack_and_rule_go_together(name, cover):
    for method, channel, attack, rule in cover:
        if method == name:
            result = run(name, **settings(channel, attack, rule))
            sound(result)
            malicious = result.session().people.malicious
            assert len(malicious) == (0 if attack == "none" else MALICIOUS)
            assert not server(result).ledger.rejected, (channel, attack, rule)


SOME = {
    "channel": (
        "qsgd(levels=8)",
        "feedback + topk(share=0.2)",
        "lbgm(threshold=0.5)",
        CHANNELS[-3],
        CHANNELS[-2],
    ),
    "attack": ("same-value", "sign-flip", "data-poison", "alie"),
    "rule": ("mean", "krum", "bucketing(size=2) + median", "nnm + trimmed-mean"),
}


@pytest.mark.parametrize("channel", SOME["channel"])
@pytest.mark.parametrize("name", ["fedavg", "lp-proj-1", "scaffold"])
def test_all_of_channel_attack_and_rule_go_together(name, channel):
    for attack, rule in product(SOME["attack"], SOME["rule"]):
        sound(run(name, **settings(channel, attack, rule)))
