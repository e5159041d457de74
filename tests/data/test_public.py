"""Inputs that the server and all clients have."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import idiolect as il
from helpers import classification
from idiolect.data.federation import Census
from idiolect.data.shared import shared

DATA = classification((30, 7, 24, 12))


def rows(t):
    return {tuple(row) for row in t.flatten(1).tolist()}


def test_published_samples_leave_the_training_data_and_nothing_else():
    got = DATA.publish(20, seed=3)
    own, left, public = (rows(t) for t in (DATA.inputs, got.inputs, got.public))
    assert got.public_samples == 20 and not left & public and left | public == own
    for split in ("valid", "test"):
        assert torch.equal(got.sizes(split), DATA.sizes(split))
    assert int(DATA.sizes("train").sum() - got.sizes("train").sum()) == 20
    assert bool((got.sizes("train") > 0).all())
    for k in range(DATA.clients):
        X, y = got.part(k, "train")
        before = {(tuple(a.tolist()), int(c)) for a, c in zip(*DATA.part(k, "train"), strict=True)}
        assert {(tuple(a.tolist()), int(c)) for a, c in zip(X, y, strict=True)} <= before


def test_every_client_keeps_a_sample():
    most = int((DATA.sizes("train") - 1).sum())
    assert DATA.publish(most).sizes("train").tolist() == [1] * DATA.clients
    for count in (0, most + 1, 2.5, True):
        with pytest.raises(
            il.SettingError, match=f"public must be a whole number from 1 to {most}"
        ):
            DATA.publish(count)
    with pytest.raises(il.SettingError, match="public inputs already"):
        DATA.publish(2).publish(2)


def test_another_seed_publishes_others():
    assert rows(DATA.publish(9, 0).public) != rows(DATA.publish(9, 1).public)
    assert DATA.publish(9, 0).fingerprint() == DATA.publish(9, 0).fingerprint()


def test_inputs_of_your_own_have_the_form_of_the_clients():
    shape = DATA.inputs.shape[1:]
    got = DATA.with_public(np.ones((3, *shape)))
    assert got.public_samples == 3 and got.public.dtype == DATA.inputs.dtype
    assert got.fingerprint() != DATA.fingerprint() and not got.published
    for wrong in (np.ones((3, 99)), np.ones((0, *shape)), np.ones((3, *shape), dtype=int)):
        with pytest.raises(il.SettingError, match="public must be one or more inputs in the form"):
            DATA.with_public(wrong)
    with pytest.raises(il.SettingError, match="public must be finite"):
        DATA.with_public(np.full((3, *shape), np.nan))


def test_whatever_is_made_of_a_federation_has_the_same_public_inputs():
    data = DATA.publish(5)
    for other in (data.of([1, 2]), data.without("test"), data.to("cpu", torch.float64)):
        assert torch.equal(other.public.double(), data.public.double())
    assert torch.equal(Census.of_data(data).public, data.public)
    with shared({"a": data}) as files:
        assert files["a"].open().fingerprint() == data.fingerprint()
    assert "public    5 inputs, taken from the training data" in str(data)


def test_data_by_name_publish_under_their_own_seed():
    one, other = (il.data.load("synthetic", clients=3, public=10, seed=s) for s in (0, 1))
    assert one.public_samples == 10 and rows(one.public) != rows(other.public)
    assert one.redrawn(1).fingerprint() == other.fingerprint()
    plain = il.data.load("synthetic", clients=3, seed=0)
    assert plain.publish(10, seed=0).fingerprint() == one.fingerprint()
    assert il.data.load("synthetic", clients=3, public="0").public is None
    with pytest.raises(il.SettingError, match=r"public must be a whole number >= 0, got -1"):
        il.data.load("synthetic", public=-1)


def test_a_data_set_with_an_option_public_of_its_own_keeps_it():
    def mine(public: int = 3, clients: int = 2) -> il.Federation:
        assert public == 7
        return DATA

    assert il.data.load(mine, public=7) is DATA


def test_a_comparison_says_what_is_public_and_who_makes_no_use_of_it():
    data = DATA.publish(8)
    model = torch.nn.Linear(data.inputs.shape[1], 3)
    text = str(il.compare(["fedmd", "fedavg"], model, data, rounds=1, progress=False))
    text = " ".join(text.split())
    assert "public: 8 inputs, without targets, are known to the server and all clients" in text
    assert "they come from the clients' training data" in text
    assert "public inputs are not used by fedavg, local" in text


def test_public_inputs_are_part_of_what_both_sides_agree_on():
    model = torch.nn.Linear(DATA.inputs.shape[1], 3)
    contracts = [
        il.run("fedmd", model, data, rounds=0).session().contract
        for data in (DATA.publish(8, 0), DATA.publish(8, 0), DATA.publish(8, 1))
    ]
    sums = [replace(contract, run=0).checksum for contract in contracts]
    assert sums[0] == sums[1] != sums[2]
