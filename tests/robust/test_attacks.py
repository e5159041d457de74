"""Liars in whole runs: who they are, what they send, what is said about them."""

import csv
import json
from itertools import pairwise

import pytest
import torch

import idiolect as il
from idiolect import METHODS
from idiolect.host.scores import summarise
from robust.common import CLIENTS, COLLUDING, FEDERATION, Spy, engine, numbers, run


def liars(**settings) -> set[int]:
    return set(run("fedavg", rounds=0, attack="zero", **settings).seeds[0].liars.tolist())


# -- who lies ----------------------------------------------------------------------------------------------------------------
def test_the_malicious_clients_are_fixed_by_the_seed_and_nested_over_shares():
    assert (
        liars(malicious=3)
        == liars(malicious=3, rule="median", channel="half")
        == liars(malicious=0.5)
    )
    assert len({tuple(sorted(liars(malicious=2, seed=s))) for s in range(12)}) > 3
    sets = [liars(malicious=k) for k in range(1, CLIENTS)]
    assert [len(s) for s in sets] == [1, 2, 3, 4, 5] and all(a < b for a, b in pairwise(sets))


def test_clients_held_out_do_not_lie():
    for seed in range(6):
        one = run(
            "fedavg", rounds=0, attack="zero", malicious=3, held_out=2, seed=seed, sample=4
        ).seeds[0]
        assert len(one.liars) == 3 and not set(one.liars.tolist()) & set(one.held_out.tolist())
        assert set(one.clients.tolist()) == set(range(CLIENTS)) - set(one.liars.tolist()) - set(
            one.held_out.tolist()
        )


def test_each_seed_of_a_run_has_liars_of_its_own():
    result = run("fedavg", rounds=1, attack="zero", malicious=2, seeds=4, seed=5)
    assert [set(s.liars.tolist()) for s in result.seeds] == [
        liars(malicious=2, seed=s) for s in range(5, 9)
    ]


# -- what is said about them -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg", "lp-proj-1", "local"])
def test_figures_are_those_of_honest_clients_and_the_liars_have_their_own(name, tmp_path):
    given = {
        "attack": "data-poison",
        "malicious": 2,
        "rounds": 3,
        "eval_every": 1,
        "held_out": 1,
        "directory": tmp_path / "run",
    }
    result = run(name, sample=0, **given)
    one, said = result.seeds[0], result.summary()
    both = one.engine.evaluate(torch.arange(CLIENTS), ("test",))["test"]
    honest, lying = summarise(both, one.clients), summarise(both, one.liars)
    assert said["accuracy"]["mean"] == honest["accuracy"] and said["loss"]["mean"] == pytest.approx(
        honest["loss"]
    )
    assert one.history[-1]["accuracy"] == honest["accuracy"]
    assert (
        said["malicious"]["clients"] == 2
        and said["malicious"]["accuracy"]["mean"] == lying["accuracy"]
    )
    rows = list(csv.DictReader((tmp_path / "run" / "clients.csv").open()))
    assert [r["malicious"] for r in rows] == [str(k in one.liars.tolist()) for k in range(CLIENTS)]
    assert [r["held_out"] for r in rows] == [
        str(k in one.held_out.tolist()) for k in range(CLIENTS)
    ]
    accuracy, _ = both.of_clients()
    for k in [*one.clients.tolist(), *one.liars.tolist()]:
        assert float(rows[k]["test_accuracy"]) == pytest.approx(float(accuracy[k]))
    assert said["gradients_per_client"] == pytest.approx(float(one.gradients.mean())) and len(
        one.gradients
    ) == len(one.clients)


def test_without_liars_nothing_is_said_about_them():
    assert "malicious" not in run("fedavg").summary()


# -- what they send ----------------------------------------------------------------------------------------------------------
def first_round(
    monkeypatch, name: str, **settings
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """The rows that the server reads in round 0, whose they are, and which of them lie."""
    with monkeypatch.context() as patch:
        spy = Spy(patch)
        result = run(name, rounds=1, **settings)
    sent = spy.sent[0][1]
    return (
        numbers(engine(result), 0, sent),
        sent.clients,
        torch.isin(sent.clients, result.seeds[0].liars),
    )


@pytest.mark.parametrize("name", METHODS)
def test_an_attack_changes_the_liars_rows_and_no_others(name, monkeypatch):
    honest, _, nobody = first_round(monkeypatch, name)
    attacked, _, bad = first_round(monkeypatch, name, attack="gaussian", malicious=2)
    assert not nobody.any() and (name == "local" or 1 <= bad.sum() <= 2)
    for n, rows in attacked.items() if name != "local" else ():
        assert (
            torch.equal(rows[~bad], honest[n][~bad]) and (rows[bad] != honest[n][bad]).any(1).all()
        )


def test_same_value_acts_after_the_projection(monkeypatch):
    """What an lp-proj client sends has `dim` numbers, and a liar's are all the same."""
    rows, _, bad = first_round(monkeypatch, il.LpProj(dim=7), attack="same-value", malicious=3)
    assert rows["w"].shape[1] == 7 and bad.any()
    assert (rows["w"][bad] == rows["w"][bad][:, :1]).all() and not (
        rows["w"][~bad] == rows["w"][~bad][:, :1]
    ).all(1).any()


def test_an_attack_acts_before_the_channel(monkeypatch):
    """Top-k of a liar's equal numbers is some of them: the channel codes the lie, as it does the truth."""
    given = {"attack": "same-value", "malicious": 3}
    plain, _, bad = first_round(monkeypatch, il.LpProj(dim=10), **given)
    coded, _, _ = first_round(monkeypatch, il.LpProj(dim=10), channel="topk(share=0.3)", **given)
    for lie, arrived in zip(plain["w"][bad], coded["w"][bad], strict=True):
        assert arrived[:3].tolist() == lie[:3].tolist() and not arrived[3:].any()


def test_a_liars_messages_are_as_long_as_anyones(monkeypatch):
    spy = Spy(monkeypatch)
    run("fedavg", attack="gaussian", malicious=2, channel="qsgd(levels=8)")
    assert len({int(n) for _, sent in spy.sent for n in sent.messages.lengths}) == 1


@pytest.mark.parametrize("attack", COLLUDING)
def test_liars_who_collude_send_one_message(attack, monkeypatch):
    rows, _, bad = first_round(monkeypatch, "fedavg", attack=attack, malicious=3, sample=CLIENTS)
    assert (
        bad.sum() == 3
        and torch.equal(rows["w"][bad][0], rows["w"][bad][1])
        and torch.equal(rows["w"][bad][0], rows["w"][bad][2])
    )


@pytest.mark.parametrize("attack", ["data-poison", "label-flip", "data-poison(labels=uniform)"])
def test_poison_is_in_the_training_labels_of_liars_and_nowhere_else(attack):
    one = run("fedavg", rounds=0, attack=attack, malicious=2).seeds[0]
    data, bad = one.engine.host.data, one.liars.tolist()
    assert torch.equal(data.inputs, FEDERATION.inputs.to(data.inputs.dtype))
    for split, offsets in FEDERATION.offsets.items():
        for k in range(CLIENTS):
            part = slice(*offsets[k : k + 2].tolist())
            assert torch.equal(data.targets[part], FEDERATION.targets[part]) == (
                split != "train" or k not in bad
            )


def test_free_riders_of_everyone_but_one_leave_the_server_close_to_that_ones_message():
    """All but one send back what they got: the median does not move."""
    moved = engine(
        run("fedavg", rounds=1, sample=CLIENTS, attack="zero", malicious=CLIENTS - 1, rule="median")
    )
    assert torch.equal(moved.server["w"], moved.host.task.x0)


def test_what_liars_send_depends_on_round_and_seed():
    servers = [
        engine(run("fedavg", rounds=r, seed=s, attack="gaussian", malicious=2)).server["w"]
        for r, s in ((1, 0), (2, 0), (1, 1))
    ]
    assert not torch.equal(servers[0], servers[1]) and not torch.equal(servers[0], servers[2])


# -- collapse ----------------------------------------------------------------------------------------------------------------
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
    assert torch.isfinite(one.engine.server["w"]).all()
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
