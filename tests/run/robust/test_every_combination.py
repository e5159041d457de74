"""Every method runs through every channel, under every attack, with every rule; exact ledgers."""

from itertools import combinations, product

import pytest
import torch

from idiolect import METHODS, SettingError, Settings, make_method
from idiolect.core.knobs import build
from idiolect.methods import name_of
from idiolect.server.protocol import Contract
from run.robust.common import ATTACKS, CHANNELS, RULES, TASK, Spy, run, server, sound

MALICIOUS = 2
CHOICES = {"channel": ("none", *CHANNELS), "attack": ("none", *ATTACKS), "rule": RULES}


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


COVER = pairwise()
FEW = 2  # lines of each method in `make test`; all of them in `make test-all`


def lines() -> list:
    """Every line of the cover, by method; those beyond the first few are slow in sum."""
    out = []
    for number, name in enumerate(METHODS):
        of_method = [line for line in COVER if line[0] == name]
        step = len(of_method) // FEW
        few = {(number + k * step) % len(of_method) for k in range(FEW)}  # other channels for each
        for k, line in enumerate(of_method):
            marks = () if k in few else pytest.mark.slow
            out.append(pytest.param(*line, marks=marks, id=", ".join(line)))
    return out


def refusal(name: str, channel: str, rule: str) -> str:
    """What a combination that makes no sense is answered; "" for the others."""
    method = make_method(name)
    contract = Contract(
        method, method.extended(TASK), build(Settings, {"channel": channel}, "run").channel, 0
    )
    if method.traits.uncombined and rule != "mean":
        return f"rule must be 'mean' for {name_of(method)}"
    by_client = contract.keeps_rows or contract.addresses
    if by_client and contract.link.aggregate_stage is not None:
        return f"channel must decode each message by itself for {name_of(method)}"
    return ""


@pytest.mark.parametrize(("name", "channel", "attack", "rule"), lines())
def test_method_channel_attack_and_rule_go_together(name, channel, attack, rule, monkeypatch):
    """The run is sound, nothing is rejected, and bytes are those of the messages."""
    if reason := refusal(name, channel, rule):
        with pytest.raises(SettingError, match=reason):
            run(name, **settings(channel, attack, rule))
        return
    spy = Spy(monkeypatch)
    result = run(name, **settings(channel, attack, rule))
    sound(result)
    malicious = result.session().people.malicious
    assert len(malicious) == (0 if attack == "none" else MALICIOUS)
    contract = result.session().contract
    ledger = server(result).ledger
    assert not ledger.rejected
    for version, update in spy.sent:
        least, most = contract.of(version).up_lengths(version)
        assert (update.messages.lengths >= least).all() and (update.messages.lengths <= most).all()
    assert torch.equal(ledger.counts["bytes_up"], spy.bytes_up())
    lengths = [one.down.length + one.addressed.length for one in contract.exchanges]
    down = spy.trained() * sum(lengths) // len(lengths) + spy.bytes_told()
    assert torch.equal(ledger.counts["bytes_down"], down)


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
@pytest.mark.parametrize(
    "name",
    [
        "scaffold",  # two parts, both changes
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("lp-proj-1", marks=pytest.mark.slow),
    ],
)
def test_all_of_channel_attack_and_rule_go_together(name, channel):
    for attack, rule in product(SOME["attack"], SOME["rule"]):
        sound(run(name, **settings(channel, attack, rule)))
