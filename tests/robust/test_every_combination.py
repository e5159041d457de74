"""Every method runs through every channel, under every attack, with every rule; and the ledger is exact."""

from itertools import combinations, product

import pytest
import torch

from idiolect import METHODS
from idiolect.wire import messages as wire
from robust.common import ATTACKS, CHANNELS, RULES, Spy, engine, run, sound

MALICIOUS = 2
CHOICES = {"channel": ("none", *CHANNELS), "attack": ("none", *ATTACKS), "rule": RULES}


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_messages(name, channel, monkeypatch):
    spy = Spy(monkeypatch)
    result = run(name, channel=channel)
    sound(result)
    one = engine(result)
    assert not one.ledger.rejected
    for round, sent in spy.sent:
        assert (sent.messages.lengths <= wire.HEADER.itemsize + one.host.link.limit(round)).all()
    assert torch.equal(one.ledger.counts["bytes_up"], spy.bytes_up())
    trained = torch.zeros(len(one.eligible), dtype=torch.int64)
    for round in range(2):
        trained[one._trained(round)[0]] += 1
    assert torch.equal(
        one.ledger.counts["bytes_down"], trained * one.host.down.length + spy.bytes_told()
    )


def settings(channel: str, attack: str, rule: str) -> dict:
    return {
        "channel": channel,
        "attack": attack,
        "rule": rule,
        "malicious": 0 if attack == "none" else MALICIOUS,
    }


def pairwise() -> list[tuple[str, ...]]:
    """(method, channel, attack, rule): every pair of two of them is in the list, so every method with every attack and every rule."""
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
            assert len(result.seeds[0].liars) == (0 if attack == "none" else MALICIOUS)
            assert not engine(result).ledger.rejected, (channel, attack, rule)


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
