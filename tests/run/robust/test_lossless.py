"""A channel that loses nothing is no channel; and a byte budget holds with every channel."""

import pytest
import torch

import idiolect as il
from idiolect import METHODS, testing
from run.robust.common import CHANNELS, everything, gap, run, server

LOSSLESS = {  # how far the server may be from the one without a channel, in float64
    "clip(norm=1e6)": 1e-12,
    "topk(share=1.0)": 1e-12,
    "randomk(share=1.0)": 1e-12,
    "feedback + topk(share=1.0)": 1e-12,
    "dgc(sparsity=0, momentum=0, warmup=0)": 1e-12,
    # masking forgets the momentum of what is sent: all of it
    "dgc(sparsity=0, momentum=0.9, warmup=0)": 1e-12,
    "lbgm(threshold=0)": 1e-12,
    "lbgm(threshold=0, layers=True)": 1e-12,
    "qsgd(levels=32768, norm=inf, bucket=8)": 1e-3,
    "half": 5e-3,
    "int8(bucket=4)": 3e-2,
}


@pytest.mark.parametrize("name", METHODS)
def test_no_channel_no_attack_and_the_mean_are_what_a_run_is_without_these_settings(name):
    plain = run(name, seed=3)
    said = run(name, seed=3, channel="none", attack="none", malicious=0, rule="mean")
    x, y = everything(plain), everything(said)
    assert x.keys() == y.keys() and all(torch.equal(t, y[n]) for n, t in x.items())
    assert server(said).ledger.save()[1] == server(plain).ledger.save()[1]


@pytest.mark.parametrize("channel", LOSSLESS)
def test_a_channel_that_loses_nothing_is_no_channel(channel):
    for name in ("fedavg", "scaffold", "lp-proj-2", "lg-fedavg"):
        given = {"dtype": "float64", "rounds": 3}
        assert gap(run(name, **given), run(name, channel=channel, **given)) < LOSSLESS[channel], (
            name
        )


def test_a_lossy_channel_is_not_no_channel():
    assert gap(run("fedavg", rounds=3), run("fedavg", rounds=3, channel="topk(share=0.2)")) > 1e-3


@pytest.mark.parametrize("channel", CHANNELS)
def test_chunks_change_nothing(channel):
    settings = {"rounds": 3, "channel": channel, "dtype": "float64"}
    whole = run("fedavg", **settings)
    for chunk in (1, 4):
        piecewise = run("fedavg", chunk=chunk, **settings)
        assert gap(whole, piecewise) < 1e-9
        one = server(whole).ledger
        other = server(piecewise).ledger
        assert one.save()[1] == other.save()[1]
        assert torch.equal(one.counts["bytes_up"], other.counts["bytes_up"])


@pytest.mark.parametrize("attack", ["alie", "min-max", "mimic", "ipm", "data-poison"])
def test_chunks_change_nothing_for_colluding_clients(attack):
    settings = {
        "rounds": 3,
        "attack": attack,
        "malicious": 2,
        "dtype": "float64",
        "channel": "feedback + topk(share=0.5)",
    }
    whole = run("fedavg", **settings)
    for chunk in (1, 4):
        assert gap(whole, run("fedavg", chunk=chunk, **settings)) < 1e-9


@pytest.mark.parametrize(
    ("name", "channel"),
    [
        *(("fedavg", c) for c in ("none", *CHANNELS)),
        ("scaffold", CHANNELS[-2]),
        ("lp-proj-1", "qsgd"),
        ("local", "half"),
    ],
)
def test_no_more_bytes_are_sent_than_the_budget(name, channel):
    spent = server(run(name, channel=channel, rounds=6)).ledger.bytes
    for budget in (max(1, spent // 2), 2 * spent + 10_000):
        result = run(name, channel=channel, rounds=6, bytes=budget)
        one = server(result)
        assert one.ledger.bytes <= budget
        if budget > spent or not spent:
            assert result.seeds[0].stopped == "rounds" and one.version == 6
        else:
            assert one.ledger.bytes + one.round_bytes() > budget


def test_every_check_of_the_conformance_suite_holds_through_a_channel_under_attack():
    testing.check_method(
        il.FedProxSoft(),
        channel="feedback + topk(share=0.5)",
        attack="scaling(factor=2)",
        malicious=1,
        rule="bucketing(size=2) + median",
        sample=5,
    )
