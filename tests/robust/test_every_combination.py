"""Every method runs through every channel, under every attack, with every rule; and the ledger is exact."""

from itertools import combinations, product

import pytest
import torch
from robust.common import ATTACKS, CHANNELS, RULES, Spy, engine, run, sound

from idiolect import METHODS, wire

MALICIOUS = 2
CHOICES = {"channel": ("none", *CHANNELS), "attack": ("none", *ATTACKS), "rule": RULES}


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_messages(name, channel, monkeypatch):
    spy = Spy(monkeypatch)
    result = run(name, channel=channel, rounds=3)
    sound(result)
    one = engine(result)
    assert not one.ledger.rejected
    for round, sent in spy.sent:
        assert (sent.messages.lengths <= wire.HEADER.itemsize + one.host.link.limit(round)).all()
    assert torch.equal(one.ledger.counts["bytes_up"], spy.bytes_up())
    trained = torch.zeros(len(one.eligible), dtype=torch.int64)
    for round in range(3):
        trained[one._trained(round)[0]] += 1
    assert torch.equal(one.ledger.counts["bytes_down"], trained * one.host.down.length + spy.bytes_told())


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_under_every_attack(name, attack):
    result = run(name, attack=attack, malicious=MALICIOUS)
    sound(result)
    assert len(result.seeds[0].liars) == MALICIOUS and not engine(result).ledger.rejected


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_every_rule(name, rule):
    result = run(name, rule=rule)
    sound(result)
    assert not engine(result).ledger.rejected


def settings(channel: str, attack: str, rule: str) -> dict:
    return {"channel": channel, "attack": attack, "rule": rule, "malicious": 0 if attack == "none" else MALICIOUS}


def pairwise() -> list[tuple[str, ...]]:
    """(method, channel, attack, rule): every pair of two of them is in the list."""
    factors = [tuple(METHODS), *CHOICES.values()]
    open = {(i, a, j, b) for i, j in combinations(range(4), 2) for a, b in product(factors[i], factors[j])}
    out = []
    for name, channel in product(factors[0], factors[1]):  # the two longest lists set the length

        def gain(rest, fixed=(name, channel)):
            row = (*fixed, *rest)
            return sum((i, row[i], j, row[j]) in open for i, j in combinations(range(4), 2))

        row = (name, channel, *max(product(factors[2], factors[3]), key=gain))
        open -= {(i, row[i], j, row[j]) for i, j in combinations(range(4), 2)}
        out.append(row)
    assert not open
    return out


COVER = pairwise()


@pytest.mark.parametrize("name", METHODS)
def test_any_two_of_method_channel_attack_and_rule_go_together(name):
    for method, channel, attack, rule in COVER:
        if method == name:
            sound(run(name, **settings(channel, attack, rule)))


SOME = {
    "channel": ("qsgd(levels=8)", "feedback + topk(share=0.2)", "lbgm(threshold=0.5)", CHANNELS[-3], CHANNELS[-2]),
    "attack": ("same-value", "sign-flip", "data-poison", "alie", "mimic"),
    "rule": ("mean", "krum", "geometric-median", "bucketing(size=2) + median", "nnm + trimmed-mean"),
}


@pytest.mark.parametrize("channel", SOME["channel"])
@pytest.mark.parametrize("name", ["fedavg", "lp-proj-1", "scaffold"])
def test_all_of_channel_attack_and_rule_go_together(name, channel):
    for attack, rule in product(SOME["attack"], SOME["rule"]):
        sound(run(name, **settings(channel, attack, rule)))
