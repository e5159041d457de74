"""The setting client_weights: where weights come from, and that the server goes by them alone."""

import json

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.run.client_weights import ClientWeights
from idiolect.server.roster import Roster
from idiolect.wire import messages as wire
from idiolect.wire.admission import Inbox


def federation():
    rng = np.random.default_rng(0)
    sites = ["a"] * 8 + ["b"] * 6 + ["c"] * 4
    return il.Federation.from_arrays(rng.normal(size=(18, 3)), rng.integers(0, 2, 18), sites)


def test_weights_are_read_from_mappings_json_and_files(tmp_path):
    want = (("a", 1.0), ("b", 2.5))
    (tmp_path / "w.csv").write_text("client,weight\na,1\n\nb,2.5\n")
    (tmp_path / "bare.txt").write_text("a,1\nb,2.5\n")
    (tmp_path / "w.json").write_text('{"a": 1, "b": 2.5}')
    for given in (
        {"a": 1, "b": 2.5},
        '{"a": 1, "b": 2.5}',
        tmp_path / "w.csv",
        str(tmp_path / "bare.txt"),
        str(tmp_path / "w.json"),
    ):
        found = ClientWeights.parse(given)
        assert found.pairs == want and ClientWeights.parse(str(found)) == found
    assert ClientWeights.parse("") == ClientWeights.parse(None) == ClientWeights()
    assert ClientWeights.parse({7: 1.0}).of(("7",)) == [1.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 0, "b": 1}, "client_weights must be numbers > 0, got 0 for 'a'"),
        ({"a": "much"}, "'much' for 'a'"),
        ({"a": float("nan")}, "nan for 'a'"),
        ({"a": True}, "True for 'a'"),
        ('{"a": 1, "a": 2}', "named twice"),
        ("{nothing}", "not JSON"),
        ("no such file.csv", "cannot be read"),
        (3.0, "got 3.0"),
    ],
)
def test_what_is_no_weight_is_refused_by_name(given, message):
    with pytest.raises(SettingError, match=message):
        ClientWeights.parse(given)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1, "b": 1}, "'c' has none"),
        ({"a": 1, "b": 1, "c": 1, "dd": 1}, "'dd' is unknown"),
    ],
)
def test_a_run_needs_a_weight_for_every_client_and_no_other(weights, message):
    with pytest.raises(SettingError, match=message):
        il.run("fedavg", torch.nn.Linear(3, 2), federation(), rounds=1, client_weights=weights)


def test_a_client_cannot_claim_more_than_it_was_enrolled_with():
    schema = wire.Schema.of({"w": torch.zeros(2)})
    enrolled = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    inbox = Inbox(schema, 7, 0, torch.tensor([0, 2]), cap=9.0, enrolled=enrolled)
    row = {"w": torch.zeros(2, 2)}
    inbox.receive(wire.pack(schema, 7, 0, np.array([2, 0]), np.array([1e6, 1.0]), row))
    assert inbox.admitted().weights.tolist() == [0.5, 1.0]


def test_a_roster_has_weights_for_all_or_none_and_saves_them():
    roster = Roster()
    roster.enrol(["a", "b"], [4, 6], weights=[1.0, 3.0])
    assert roster.mean_samples() == 2.0
    with pytest.raises(SettingError, match="give one each"):
        roster.enrol(["c"], [1])
    assert len(roster) == 2
    roster.enrol(["c"], [1], weights=[5.0])
    again = Roster.loaded(*roster.save())
    assert again.weights.tolist() == [1.0, 3.0, 5.0]
    plain = Roster()
    plain.enrol(["a"], [4])
    with pytest.raises(SettingError, match="leave them out"):
        plain.enrol(["b"], [4], weights=[1.0])


def test_a_resumed_run_goes_on_with_its_weights_and_refuses_others(tmp_path):
    weights = {"a": 1, "b": 5, "c": 2}
    settings = {"rounds": 4, "client_weights": weights, "checkpoint_every": 2}
    model = torch.nn.Linear(3, 2)
    whole = il.run("fedavg", model, federation(), **settings)
    half = settings | {"rounds": 2}
    il.run("fedavg", model, federation(), directory=tmp_path / "r", **half)
    again = il.run("fedavg", model, federation(), directory=tmp_path / "r", resume=True, **settings)
    for a, b in zip(
        whole.personal("a").parameters(), again.personal("a").parameters(), strict=True
    ):
        assert torch.equal(a, b)
    stored = json.loads((tmp_path / "r" / "settings.json").read_text())
    assert json.loads(stored["run"]["client_weights"]) == weights
    with pytest.raises(SettingError, match="client_weights"):
        il.run(
            "fedavg",
            model,
            federation(),
            directory=tmp_path / "r",
            resume=True,
            **settings | {"client_weights": weights | {"a": 2}},
        )


def test_messages_summed_as_they_arrive_are_weighed_alike():
    weights = {"a": 1, "b": 5, "c": 2}
    model = torch.nn.Linear(3, 2)
    held, summed = (
        il.run(
            il.FedAvg(weighting="unbiased"),
            model,
            federation(),
            rounds=3,
            client_weights=weights,
            memory=memory,
            dtype="float64",
        )
        for memory in (2.0, 1e-9)
    )
    for a, b in zip(
        held.personal("a").parameters(), summed.personal("a").parameters(), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-12)
