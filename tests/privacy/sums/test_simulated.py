"""Secure sums in simulation: the same arithmetic, and the bytes that sites would send."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.channels import Channel
from idiolect.core.knobs import SettingError
from idiolect.methods import FedAvg, Scaffold, make_method
from idiolect.privacy.sums.cost import protocol_bytes
from idiolect.privacy.sums.setting import SecureSums
from idiolect.server.protocol import Contract
from idiolect.server.sum_link import RESIDUES, SumLink
from idiolect.testing import federation, state_of, task
from idiolect.wire.messages import HEADER, heads
from idiolect.wire.ragged import Ragged

DATA = federation()
RUN = {"rounds": 4, "batch": 8}


def trained(method, **settings):
    return il.run(method, task(), DATA, **{**RUN, **settings})


def gap(one, other) -> float:
    ours, theirs = state_of(one), state_of(other)
    return max((ours[n] - theirs[n]).abs().max().item() for n in theirs)


@pytest.mark.parametrize("method", [FedAvg(weighting="equal"), Scaffold()])
def test_a_run_is_the_plain_one_to_the_rounding(method):
    sums = trained(method, secure_sums="secagg(clip=50.0)", dtype="float64")
    plain = trained(method, dtype="float64")
    # a step of 50 / 2^21 in each of 4 rounds, and what training makes of it
    assert 0 < gap(sums, plain) < 40 * 50 / 2**21


def test_messages_are_clipped_as_changes():
    method = FedAvg(weighting="equal")
    sums = trained(method, secure_sums="secagg(clip=0.1)", dtype="float64")
    clipped = trained(method, channel="clip(norm=0.1)", dtype="float64")
    assert gap(sums, clipped) < 1e-5 < gap(sums, trained(method, dtype="float64"))


def test_clients_count_alike_whatever_they_have():
    sums = trained(FedAvg(weighting="samples"), secure_sums=True)
    assert gap(sums, trained(FedAvg(weighting="equal"), secure_sums=True)) == 0


@pytest.mark.parametrize("bits", [24, 32])
def test_bytes_are_those_of_messages_and_stages(bits):
    result = trained(FedAvg(), secure_sums=f"secagg(bits={bits})", sample=5)
    up, down = protocol_bytes(SecureSums().plan(5))
    numbers = task().d
    counted = result.summary()["bytes"]
    assert counted["up"] == 4 * 5 * (HEADER.itemsize + numbers * bits // 8 + up)
    assert counted["down"] == 4 * 5 * (HEADER.itemsize + numbers * 4 + down)


def test_a_budget_of_bytes_knows_the_stages():
    free = trained(FedAvg(), secure_sums=True).summary()["bytes"]
    per_round = (free["up"] + free["down"]) // 4
    result = trained(FedAvg(), secure_sums=True, bytes=3 * per_round)
    assert sum(result.summary()["bytes"].values()) == 3 * per_round


def test_hosts_in_other_processes_change_nothing():
    settings = {**RUN, "secure_sums": True, "hosts": 2}
    module = torch.nn.Linear(5, 3)
    alone, spread = (
        il.run(FedAvg(), module, DATA, **settings, engine=engine)
        for engine in ("local", "processes")
    )
    assert gap(alone, spread) == 0 and alone.summary()["bytes"] == spread.summary()["bytes"]


def test_a_run_is_resumed_as_it_was(tmp_path):
    whole = trained(FedAvg(), secure_sums=True)
    saved = {"secure_sums": True, "directory": tmp_path / "run", "checkpoint_every": 1}
    trained(FedAvg(), rounds=2, **saved)
    again = trained(FedAvg(), resume=True, **saved)
    assert gap(whole, again) == 0 and whole.summary()["bytes"] == again.summary()["bytes"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "median"}, "rule: 'median' compares single messages"),
        ({"channel": "half"}, "channel: 'half' codes single messages"),
        ({"timing": "arrivals"}, "timing: 'arrivals' uses messages one by one"),
        ({"selection": "power-of-choice", "sample": 2}, "selection: 'power-of-choice' asks"),
        ({"attack": "sign-flip", "malicious": 1}, "attack: 'sign-flip' forges single messages"),
        ({"attack": "alie", "malicious": 1}, "attack: 'alie' forges single messages"),
        ({"client_weights": dict.fromkeys(DATA.ids, 1.0)}, "client_weights: all clients count"),
        ({"sample": 1}, "sample must be at least 2, got 1"),
        ({"secure_sums": "secagg(clients=4)"}, "clients must be at least the 6 heard per round"),
        ({"secure_sums": "secagg(bits=16)"}, "24 or more would do"),
        ({"secure_sums": "secagg(clip=0)"}, "clip must be a number > 0"),
        ({"secure_sums": "secagg(survivors=0.5)"}, "survivors must be a number > 0.5"),
        ({"secure_sums": "shamir"}, "secure_sums: 'shamir' is unknown"),
    ],
)
def test_what_cannot_be_had_together_is_refused_before_the_run(settings, words):
    with pytest.raises(SettingError) as error:
        trained(FedAvg(), **{"secure_sums": True, **settings})
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["fedamp", "ifca", "fednova", "feddane", "local"])
def test_methods_that_need_single_messages_are_refused(name):
    with pytest.raises(SettingError, match=rf"secure_sums: method: .*{name}"):
        trained(make_method(name), secure_sums=True)


def test_attacks_on_data_are_possible():
    trained(FedAvg(), secure_sums=True, attack="label-flip", malicious=1)


def test_a_result_says_what_the_server_learns():
    result = trained(FedAvg(), secure_sums=True)
    words = "the sum of at least 5 of 6 messages, clipped to norm 1"
    assert words in result.record.notes["sums"]["text"] and words in " ".join(str(result).split())


# -- a link by itself ------------------------------------------------------------------------------
@dataclass(frozen=True)
class SmallNoise:
    """One step in the first number of every client."""

    multiplier: float = 1.0
    least: int = 2

    def steps(self, rows, grid, keys):
        noise = torch.zeros(rows, grid.numbers, dtype=torch.int64)
        noise[:, 0] = 1
        return noise


def link_of(noise=None) -> tuple[SumLink, Contract]:
    contract = Contract(FedAvg(), task(), Channel(), 7, sums=SecureSums(), noise=noise)
    assert isinstance(contract.link, SumLink)
    return contract.link, contract


def round_of(contract: Contract, rows: torch.Tensor) -> Ragged:
    head = heads(contract.up, 7, 0, np.arange(len(rows)), np.ones(len(rows)))
    messages, _, _ = contract.link.encode(head, {"w": rows}, {}, {}, lambda: None, 0)
    return messages


def test_noise_of_clients_is_in_the_sum():
    link, contract = link_of(SmallNoise())
    messages = round_of(contract, torch.zeros(3, task().d))
    bodies = Ragged.even(messages.matrix[:, HEADER.itemsize :])
    up, _, _ = link.decode(bodies, {}, {}, 0)
    mean = link.mean(up, None, {})["w"][0]
    assert mean[0].item() == pytest.approx(link.grid.step) and not bool(mean[1:].any())
    assert link.grid.exponent < link_of()[0].grid.exponent


def test_a_client_whose_numbers_are_not_finite_sends_nothing():
    _, contract = link_of()
    rows = torch.zeros(3, task().d)
    rows[1, 2] = torch.nan
    messages = round_of(contract, rows)
    assert messages.matrix.view(np.uint8).shape[0] == 2
    assert [int(m[16]) for m in messages.matrix] == [0, 2]


def test_masked_messages_are_taken_whatever_they_hold():
    """No content can be told from any other: only sizes and headers are checked."""
    link, _ = link_of()
    raw = np.random.default_rng(0).integers(0, 256, (2, link.grid.row_bytes), dtype=np.uint8)
    up, sound, _ = link.decode(Ragged.even(raw), {}, {}, 0)
    assert sound.all() and up[RESIDUES].shape == (2, task().d)


def test_both_sides_must_have_the_same_sums():
    checksums = {
        Contract(FedAvg(), task(), Channel(), 7, sums=sums).checksum
        for sums in (None, SecureSums(), SecureSums(clip=2.0), SecureSums(survivors=0.9))
    }
    assert len(checksums) == 4
