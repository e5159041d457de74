"""Malicious clients in whole runs: who they are, what they send, what is said about them."""

import csv
import json
from itertools import pairwise

import pytest
import torch

import idiolect as il
from idiolect import METHODS
from idiolect.host.scores import summarise
from run.robust.common import CLIENTS, COLLUDING, FEDERATION, Spy, numbers, run, server


def malicious(result: il.Result, seed: int | None = None) -> set[int]:
    return set(result.session(seed).people.malicious.tolist())


def chosen(**settings) -> set[int]:
    return malicious(run("fedavg", rounds=0, attack="zero", **settings))


# -- who is malicious ------------------------------------------------------------------------------
def test_the_malicious_clients_are_fixed_by_the_seed_and_nested_over_shares():
    assert chosen(malicious=3) == chosen(malicious=3, rule="median", channel="half")
    assert chosen(malicious=3) == chosen(malicious=0.5)
    assert len({tuple(sorted(chosen(malicious=2, seed=s))) for s in range(12)}) > 3
    sets = [chosen(malicious=k) for k in range(1, CLIENTS)]
    assert [len(s) for s in sets] == [1, 2, 3, 4, 5] and all(a < b for a, b in pairwise(sets))


def test_clients_held_out_are_honest():
    for seed in range(6):
        result = run(
            "fedavg", rounds=0, attack="zero", malicious=3, held_out=2, seed=seed, sample=4
        )
        people = result.session().people
        bad = set(people.malicious.tolist())
        held_out = set(people.held_out.tolist())
        assert len(bad) == 3 and len(held_out) == 2 and not bad & held_out
        assert set(people.evaluated.tolist()) == set(range(CLIENTS)) - bad - held_out


def test_each_seed_of_a_run_has_malicious_clients_of_its_own():
    result = run("fedavg", rounds=1, attack="zero", malicious=2, seeds=4, seed=5)
    for seed in range(5, 9):
        assert malicious(result, seed) == chosen(malicious=2, seed=seed)


# -- what is said about them -----------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg", "lp-proj-1", "local"])
def test_figures_are_of_honest_clients_and_malicious_ones_have_their_own(name, tmp_path):
    given = {
        "attack": "data-poison",
        "malicious": 2,
        "rounds": 3,
        "eval_every": 1,
        "held_out": 1,
        "directory": tmp_path / "run",
    }
    result = run(name, sample=0, **given)
    said = result.summary()
    session = result.session()
    people = session.people
    both = session.engine.evaluate(torch.arange(CLIENTS), ("test",))["test"]
    honest = summarise(both.only(people.evaluated))
    theirs = summarise(both.only(people.malicious))
    assert said["accuracy"]["mean"] == honest["accuracy"]
    assert said["loss"]["mean"] == pytest.approx(honest["loss"])
    assert result.seeds[0].history[-1]["accuracy"] == honest["accuracy"]
    assert said["malicious"]["clients"] == 2
    assert said["malicious"]["accuracy"]["mean"] == theirs["accuracy"]
    rows = list(csv.DictReader((tmp_path / "run" / "clients.csv").open()))
    for column, those in (("malicious", people.malicious), ("held_out", people.held_out)):
        assert [r[column] for r in rows] == [str(k in those.tolist()) for k in range(CLIENTS)]
    accuracy, _ = both.of_clients()
    for k in [*people.evaluated.tolist(), *people.malicious.tolist()]:
        assert float(rows[k]["test_accuracy"]) == pytest.approx(float(accuracy[k]))
    spent = session.server.ledger.counts["gradients"] + both.gradients
    assert len(people.evaluated) == CLIENTS - 3
    mean = float(spent[people.evaluated].double().mean())
    assert said["gradients_per_client"] == pytest.approx(mean)


def test_without_malicious_clients_nothing_is_said_about_them():
    assert "malicious" not in run("fedavg").summary()


# -- what they send --------------------------------------------------------------------------------
def first_round(
    monkeypatch, name: str, **settings
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """The rows that the server reads in round 0, whose they are, and which are malicious."""
    with monkeypatch.context() as patch:
        spy = Spy(patch)
        result = run(name, rounds=1, **settings)
    rows, wire_ids = numbers(result, 0, [sent for round, sent in spy.sent if round == 0])
    return rows, wire_ids, torch.isin(wire_ids, result.session().people.malicious)


@pytest.mark.parametrize("name", METHODS)
def test_an_attack_changes_the_rows_of_malicious_clients_and_no_others(name, monkeypatch):
    honest, _, nobody = first_round(monkeypatch, name)
    attacked, _, bad = first_round(monkeypatch, name, attack="gaussian", malicious=2)
    assert not nobody.any() and (name == "local" or 1 <= bad.sum() <= 2)
    for n, rows in attacked.items() if name != "local" else ():
        assert (
            torch.equal(rows[~bad], honest[n][~bad]) and (rows[bad] != honest[n][bad]).any(1).all()
        )


def test_same_value_acts_after_the_projection(monkeypatch):
    """An lp-proj client sends `dim` numbers; a malicious one's are all the same."""
    rows, _, bad = first_round(monkeypatch, il.LpProj(dim=7), attack="same-value", malicious=3)
    assert rows["w"].shape[1] == 7 and bad.any()
    assert (rows["w"][bad] == rows["w"][bad][:, :1]).all() and not (
        rows["w"][~bad] == rows["w"][~bad][:, :1]
    ).all(1).any()


def test_an_attack_acts_before_the_channel(monkeypatch):
    """Top-k of equal numbers is some of them: the channel codes what the attack made."""
    given = {"attack": "same-value", "malicious": 3}
    plain, _, bad = first_round(monkeypatch, il.LpProj(dim=10), **given)
    coded, _, _ = first_round(monkeypatch, il.LpProj(dim=10), channel="topk(share=0.3)", **given)
    for forged, arrived in zip(plain["w"][bad], coded["w"][bad], strict=True):
        assert arrived[:3].tolist() == forged[:3].tolist() and not arrived[3:].any()


def test_messages_of_malicious_clients_are_as_long_as_anyones(monkeypatch):
    spy = Spy(monkeypatch)
    run("fedavg", attack="gaussian", malicious=2, channel="qsgd(levels=8)")
    assert len({int(n) for _, sent in spy.sent for n in sent.messages.lengths}) == 1


@pytest.mark.parametrize("attack", COLLUDING)
def test_colluding_clients_send_one_message(attack, monkeypatch):
    rows, _, bad = first_round(monkeypatch, "fedavg", attack=attack, malicious=3, sample=CLIENTS)
    assert (
        bad.sum() == 3
        and torch.equal(rows["w"][bad][0], rows["w"][bad][1])
        and torch.equal(rows["w"][bad][0], rows["w"][bad][2])
    )


@pytest.mark.parametrize("attack", ["data-poison", "label-flip", "data-poison(labels=uniform)"])
def test_poison_is_in_the_training_labels_of_malicious_clients_and_nowhere_else(attack):
    session = run("fedavg", rounds=0, attack=attack, malicious=2).session()
    bad = session.people.malicious.tolist()
    for host in session.hosts:
        for row, wire_id in enumerate(host.wire_ids.tolist()):
            for split, offsets in FEDERATION.offsets.items():
                here = slice(*host.data.offsets[split][row : row + 2].tolist())
                there = slice(*offsets[wire_id : wire_id + 2].tolist())
                inputs = FEDERATION.inputs[there].to(host.data.inputs.dtype)
                assert torch.equal(host.data.inputs[here], inputs)
                honest = torch.equal(host.data.targets[here], FEDERATION.targets[there])
                assert honest == (split != "train" or wire_id not in bad)


def test_free_riders_of_everyone_but_one_leave_the_server_close_to_that_ones_message():
    """All but one send back what they got: the median does not move."""
    moved = server(
        run("fedavg", rounds=1, sample=CLIENTS, attack="zero", malicious=CLIENTS - 1, rule="median")
    )
    assert torch.equal(moved.state["w"], moved.contract.task.x0)


def test_what_malicious_clients_send_depends_on_round_and_seed():
    servers = [
        server(run("fedavg", rounds=r, seed=s, attack="gaussian", malicious=2)).state["w"]
        for r, s in ((1, 0), (2, 0), (1, 1))
    ]
    assert not torch.equal(servers[0], servers[1]) and not torch.equal(servers[0], servers[2])


# -- collapse --------------------------------------------------------------------------------------
def strict(text: str) -> dict:
    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_collapses_under_a_strong_sign_flip_and_says_in_which_round(dtype, tmp_path):
    given = {
        "attack": "sign-flip(std=100)",
        "malicious": 0.5,
        "sample": CLIENTS,
        "rounds": 30,
        "eval_every": 1,
        "dtype": dtype,
    }
    result = run("fedavg", directory=tmp_path / "run", **given)
    one, said = result.seeds[0], result.summary()
    collapsed = one.collapsed
    assert 1 <= collapsed <= 10 and said["collapsed"] == [collapsed]
    losses = [h["loss"] for h in one.history]
    assert all(loss <= 1e6 for loss in losses[: collapsed - 1]) and not any(
        loss <= 1e6 for loss in losses[collapsed - 1 :]
    )
    assert torch.isfinite(server(result).state["w"]).all()
    assert strict((tmp_path / "run" / "result.json").read_text()) == said
    for name in ("settings.json", "environment.json"):
        strict((tmp_path / "run" / name).read_text())
    assert len(list(csv.reader((tmp_path / "run" / "metrics.csv").open()))) == 31
    str(result)


def test_a_run_that_is_well_has_not_collapsed():
    assert run("fedavg", rounds=3, eval_every=1).summary()["collapsed"] == [None]


def test_a_run_evaluated_at_the_end_only_says_its_last_round():
    result = run("fedavg", attack="sign-flip(std=100)", malicious=3, sample=CLIENTS, rounds=20)
    assert result.summary()["collapsed"] == [20]
