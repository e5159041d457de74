"""Whole runs under privacy: with all that a run may have, and what each client has spent."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, linear, with_public
from idiolect.core.knobs import SettingError
from idiolect.methods import METHODS, make_method
from idiolect.privacy.accountant import Accountant
from idiolect.testing import federation, state_of

DATA = classification(sizes=(20,) * 12)


def run(method="fedavg", model=None, data=None, **settings) -> il.Result:
    usual = {"rounds": 4, "sample": 4, "batch": 8, "noise_source": "seed", "eval_every": 2}
    usual["privacy"] = "central(noise=2)"
    return il.run(method, model or linear(), data or DATA, **{**usual, **settings})


def check_accounts(result: il.Result) -> None:
    """Each client's ε is that of its exposures, the record's worst is the largest of them."""
    for one in result.seeds:
        account = result.session(one.seed).server.privacy
        accountant = Accountant(account.plan.noise, account.plan.exposure.rate)
        rows = [row for row in result.clients_table() if row.get("seed", one.seed) == one.seed]
        for row, count in zip(rows, account.exposures.tolist(), strict=True):
            assert row["epsilon"] == accountant.epsilon(count, account.plan.delta)
        assert one.privacy["epsilon"]["worst"] == max(row["epsilon"] for row in rows)
        heard = 4 * one.rounds
        if not account.plan.exposure.amplified:
            assert int(account.exposures.sum()) == heard
        assert all(row["epsilon"] >= one.privacy["epsilon"]["worst"] for row in one.history[-1:])


@pytest.mark.parametrize("privacy", ["central(noise=2)", "local(noise=2)"])
def test_clients_that_were_heard_more_often_have_spent_more(privacy):
    result = run(privacy=privacy, rounds=9)
    check_accounts(result)
    counts = result.session().server.privacy.exposures.tolist()
    spent = [row["epsilon"] for row in result.clients_table()]
    assert len(set(counts)) > 2
    assert np.argsort(counts, kind="stable").tolist() == np.argsort(spent, kind="stable").tolist()


def test_with_poisson_sampling_all_have_spent_alike_whoever_was_heard():
    result = run(selection="poisson")
    check_accounts(result)
    assert len({row["epsilon"] for row in result.clients_table()}) == 1
    ledger = result.session().server.ledger
    assert len(set(ledger.counts["bytes_up"].tolist())) > 1  # they were not heard alike


def test_poisson_draws_have_the_right_rate_and_are_independent():
    result = run(selection="poisson", rounds=300, eval_every=0, sample=3, data=DATA)
    up = result.session().server.ledger.counts["bytes_up"].double()
    rate = up / up.max() * 0 + up / (4 * 21 + 24)  # messages heard of each client
    rate = rate / 300
    assert abs(float(rate.mean()) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 3600)
    assert float((rate - 0.25).abs().max()) < 5 * math.sqrt(0.25 * 0.75 / 300)


def heard(seed_of_noise: str) -> list:
    result = run(selection="poisson", rounds=6, noise_source=seed_of_noise)
    return result.session().server.ledger.counts["bytes_up"].tolist()


def test_poisson_draws_are_secret_unless_noise_comes_from_the_seed():
    assert heard("seed") == heard("seed")
    assert len({tuple(heard("secret")) for _ in range(4)}) > 1


@pytest.mark.parametrize("source", ["seed", "secret"])
def test_repeated_a_run_is_the_same_only_with_noise_from_the_seed(source):
    one, two = (run(noise_source=source) for _ in range(2))
    assert torch.equal(state_of(one)["w"], state_of(two)["w"]) == (source == "seed")


def test_a_budget_is_met_from_below_and_ends_the_run():
    result = run(privacy="central(noise=2)", epsilon=4.0, rounds=50, sample=12)
    (one,) = result.seeds
    assert one.stopped == "epsilon" and one.rounds == one.privacy["exposures"] == 3
    accountant = Accountant(2.0)
    assert accountant.epsilon(one.rounds, 1e-5) <= 4 < accountant.epsilon(one.rounds + 1, 1e-5)


def test_noise_for_the_planned_rounds_lets_all_of_them_run():
    for settings in ({"sample": 12}, {"selection": "poisson"}, {"sample": 4, "rounds": 20}):
        (one,) = run(privacy="central", epsilon=4.0, **settings).seeds
        assert one.stopped == "rounds"
        assert one.privacy["epsilon"]["worst"] <= 4.0


def test_rounds_one_by_one_end_at_the_budget_too():
    settings = {"privacy": "central(noise=2)", "epsilon": 4.0, "rounds": 50, "sample": 12}
    states = list(il.iterate("fedavg", linear(), DATA, **settings))
    assert states[-1].round == 3


# -- all that a run may have -----------------------------------------------------------------------
VARIANTS = {
    "several seeds": {"seeds": 2},
    "a schedule of the server's step": {"schedule": "server_lr=inverse:0.1 + lr=cosine"},
    "a server optimiser": {"server_optimizer": "adam", "server_lr": 0.01},
    "two hosts": {"hosts": 2},
    "error feedback": {"channel": "feedback + topk(share=0.5)"},
    "qsgd": {"channel": "qsgd(levels=4)"},
    "lbgm": {"channel": "lbgm"},
    "an attack": {"attack": "sign-flip", "malicious": 2},
    "local optimiser's state": {"optimizer": "adam", "optimizer_state": "private"},
    "rows on the disk": {"memory": 1e-6},
}


@pytest.mark.parametrize("privacy", ["central(noise=2)", "local(noise=2)"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_accounts_are_right_with(variant, privacy):
    result = run(privacy=privacy, **VARIANTS[variant])
    check_accounts(result)


def test_a_channel_codes_local_messages_after_their_noise():
    exact = run(privacy="local(noise=2)")
    coded = run(privacy="local(noise=2)", channel="feedback + topk(share=0.2)")
    assert exact.seeds[0].privacy == coded.seeds[0].privacy
    sent = [r.session().server.ledger.total("bytes_up") for r in (exact, coded)]
    assert sent[1] < sent[0]


@pytest.mark.parametrize("rule", ["median", "krum(f=1)", "trimmed-mean(f=1)", "geometric-median"])
def test_any_rule_can_combine_local_messages(rule):
    result = run(privacy="local(noise=2)", rule=rule, sample=6)
    assert int(result.session().server.privacy.exposures.sum()) == 6 * 4


def test_held_out_clients_spend_nothing():
    result = run(held_out=3, held_out_rounds=2, rounds=6)
    rows = result.clients_table()
    assert [row["epsilon"] for row in rows if row["held_out"]] == [0.0] * 3
    assert sum(row["epsilon"] > 0 for row in rows) > 3
    assert result.session().server.privacy.plan.clients == 9


@pytest.mark.parametrize("privacy", ["central(noise=2)", "local(noise=2)"])
@pytest.mark.parametrize("statistics", ["averaged", "private"])
def test_running_statistics_are_clipped_with_the_rest_and_stay_sound(privacy, statistics):
    model = il.Task(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    result = run(model=model, privacy=privacy, statistics=statistics)
    check_accounts(result)
    assert np.isfinite(result.summary()["loss"]["mean"])
    state = result.session().server.state
    assert all(bool(t.isfinite().all()) for t in state.values())


def test_repeats_over_the_data_have_an_account_each():
    data = il.data.load("digits", clients=6)
    model = il.Task(lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="8"))
    result = run(model=model, data=data, data_seeds=2, rounds=2)
    assert len(result.seeds) == 2
    assert all(one.privacy["rounds"] == 2 for one in result.seeds)


@pytest.mark.parametrize("privacy", ["central(noise=2)", "local(noise=2)"])
def test_hosts_in_other_processes_give_the_same_bits(privacy):
    settings = {
        "rounds": 2,
        "hosts": 2,
        "model": nn.Linear(5, 3),
        "data": federation(),
        "sample": 3,
    }
    here, there = (
        run(privacy=privacy, engine=engine, **settings) for engine in ("local", "processes")
    )
    assert torch.equal(state_of(here)["w"], state_of(there)["w"])
    assert here.seeds[0].privacy == there.seeds[0].privacy


def test_secret_noise_of_other_processes_differs_between_hosts():
    result = run(
        privacy="local(noise=50, clip=1e-3)",
        noise_source="secret",
        engine="processes",
        hosts=2,
        model=nn.Linear(5, 3),
        data=federation(),
        sample=6,
    )
    assert result.session().server.ledger.admitted == 4 * 6


# -- every method ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("privacy", ["central(noise=1)", "local(noise=1)"])
def test_every_method_runs_with_its_account_or_is_refused_with_the_reason(name, privacy):
    method = make_method(name, **({"dim": 6} if name == "lp-proj" else {}))
    settings = {"privacy": privacy, "rounds": 2, "batch": 8, "noise_source": "seed"}
    settings["sample"] = 0 if method.traits.hears_all else 4
    data = with_public(method, classification(sizes=(30,) * 6, valid=0.2))
    try:
        result = il.run(method, linear(), data, **settings)
    except SettingError as error:
        assert "privacy must be none for" in str(error) or "model must" in str(error)
        return
    account = result.session().server.privacy
    sends = any(method.message(result.session().task).values())
    assert (account is not None) == sends
    if account is not None:
        assert int(account.exposures.max()) == 2 or settings["sample"]
        assert result.seeds[0].privacy["rounds"] == 2


def test_a_copy_of_a_method_at_its_defaults_has_chosen_no_weighting():
    copied = dataclasses.replace(il.make_method("fedavg"), lr=0.2)
    federation = il.data.load("digits", clients=4)
    model = lambda: il.models.make("linear", (1, 8, 8), 10)  # noqa: E731
    il.run(copied, model, federation, rounds=1, privacy="central(noise=1)")
    with pytest.raises(il.SettingError, match="weighting must be 'equal'"):
        chosen = il.make_method("fedavg", weighting="samples")
        il.run(chosen, model, federation, rounds=1, privacy="central(noise=1)")
