"""Advice within a privacy budget: who is trained with noise, what is spent, what is not covered."""

import json
import math

import numpy as np
import pytest

import idiolect as il
from idiolect.run.settings import Settings
from idiolect.study.advise.budget import MANY, PrivacyBudget

SMALL = {"quick": True, "gradients": 60, "progress": False, "threads": 1, "trees": False}


def one_rule(clients, samples=12, seed=0):
    """Clients with one common rule in ten features, and few samples each."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((clients * samples, 10)).astype(np.float32)
    y = (x @ np.r_[np.ones(5), -np.ones(5)] > 0).astype(int)
    ids = np.repeat(np.arange(clients), samples)
    return il.Federation.from_arrays(x, y, ids, classes=2, valid=0, test=0)


def linear():
    return il.Task(lambda: il.models.make("linear", (10,), 2))


def budget_of(**settings):
    return PrivacyBudget.of(Settings(**settings), settings)


@pytest.fixture(scope="module")
def few():
    return il.advise(one_rule(5, samples=30), linear(), ["fedavg", "ditto"], epsilon=1.0, **SMALL)


@pytest.fixture(scope="module")
def many():
    federation = one_rule(2 * MANY)
    return il.advise(federation, linear(), ["fedavg"], epsilon=4.0, delta=1e-4, **SMALL)


# -- the verdict ----------------------------------------------------------------------------------
def test_five_clients_are_told_plainly_that_federating_is_not_worth_it_at_this_budget(few):
    assert few.choice in ("local", "undecided")
    assert few.words[0].startswith("Not at this budget")
    assert "ε = 1 at δ = 1e-05 for each client" in few.words[0]
    text = " ".join(few.words)
    assert "with so few clients it drowns what they say" in text


def test_many_clients_with_few_samples_still_federate(many):
    assert many.choice == "fedavg"
    assert many.words[0] == (
        "Federating is worth it even with a privacy budget of ε = 4 at δ = 0.0001 for each client."
    )


def test_the_words_have_the_settings_of_the_training_that_would_follow(many):
    private = next(row["privacy"] for row in many.table if row["label"] == "fedavg")
    sentence = next(w for w in many.words if "would spend" in w)
    assert f"ε = {private['epsilon']:.3g} of each client" in sentence
    assert f"--rounds {private['settings']['rounds']} " in sentence
    assert "--selection 'poisson'" in sentence and f"--sample {MANY}" in sentence


# -- table and caption ----------------------------------------------------------------------------
def test_each_line_says_what_its_training_spends_and_local_spends_nothing(many):
    by_label = {row["label"]: row for row in many.table}
    assert by_label["local"]["privacy"] is None
    assert 3.9 < by_label["fedavg"]["privacy"]["epsilon"] <= 4.0
    assert "ε spent" in str(many) and "ε = 4 at δ = 0.0001" in many.title
    assert json.loads(json.dumps(many.as_dict()))["candidates"][1]["privacy"]["epsilon"] <= 4.0


def test_the_settings_of_a_line_spend_what_it_says(many):
    row = next(r for r in many.table if r["label"] == "fedavg")
    settings = {**row["privacy"]["settings"], "noise_source": "seed", "eval_every": 0}
    federation = one_rule(2 * MANY)
    result = il.run(il.FedAvg(lr=row["fields"]["lr"]), linear(), federation, **settings)
    # advise trains on all clients too: each has samples in every fold
    assert result.summary()["privacy"]["epsilon"]["worst"] == pytest.approx(
        row["privacy"]["epsilon"], rel=1e-6
    )


def test_notes_say_that_the_advice_itself_is_not_covered(many):
    note = next(n for n in many.notes if n.startswith("not covered by that ε: this advice"))
    trainings = sum(row["trainings"] for row in many.table if row["privacy"])
    assert f"its own {trainings + 1:,} trainings" in note  # and the round that shows the price
    assert "held-out samples of every client without noise" in note


def test_without_a_budget_nothing_is_said_of_privacy():
    advice = il.advise(one_rule(6), linear(), ["fedavg"], **SMALL)
    assert "ε" not in str(advice)
    assert all(row["privacy"] is None for row in advice.table)


# -- trainings ------------------------------------------------------------------------------------
def test_local_is_trained_without_noise(few):
    plain = il.advise(one_rule(5, samples=30), linear(), ["fedavg", "ditto"], **SMALL)
    alone = [next(r for r in a.table if r["label"] == "local") for a in (few, plain)]
    assert alone[0]["figures"] == alone[1]["figures"]
    federated = [next(r for r in a.table if r["label"] == "fedavg") for a in (few, plain)]
    assert federated[0]["figures"] != federated[1]["figures"]
    assert few.heterogeneity.r2 == plain.heterogeneity.r2


def test_an_advice_can_be_repeated(few):
    again = il.advise(one_rule(5, samples=30), linear(), ["fedavg", "ditto"], epsilon=1.0, **SMALL)
    assert {**again.as_dict(), "seconds": 0} == {**few.as_dict(), "seconds": 0}


def test_half_of_many_clients_are_heard_in_twice_as_many_rounds(many):
    plain = il.advise(one_rule(2 * MANY), linear(), ["fedavg"], **SMALL)
    private, all_heard = (
        next(r for r in advice.table if r["label"] == "fedavg") for advice in (many, plain)
    )
    assert private["privacy"]["sampling"] == "poisson"
    assert private["rounds"] == 2 * all_heard["rounds"]
    assert private["bytes"]["up"] == all_heard["bytes"]["up"] / 2


def test_the_clipping_norm_follows_the_step_sizes():
    clips = [budget_of(epsilon=1.0).settings(f, 5)["privacy"] for f in (0.25, 4.0)]
    assert clips == ["central(clip=0.25, quantile=0.0)", "central(clip=4.0, quantile=0.0)"]


def test_a_protection_that_was_named_is_used_as_it_is():
    budget = budget_of(privacy="central(clip=0.5)", epsilon=2.0, noise_source="secret")
    settings = budget.settings(4.0, 300)
    assert settings["privacy"] == "central(clip=0.5)" and settings["noise_source"] == "secret"
    local = budget_of(privacy="local", epsilon=2.0).settings(1.0, 300)
    assert local["privacy"] == "local" and "selection" not in local and local["sample"] == 300


def test_a_method_that_is_not_covered_is_left_out_with_the_reason():
    advice = il.advise(one_rule(6), linear(), ["fedamp"], epsilon=5.0, **SMALL)
    note = next(n for n in advice.notes if n.startswith("fedamp is left out"))
    assert "privacy must be none for fedamp" in note


def test_weights_by_samples_that_were_asked_for_are_left_out():
    advice = il.advise(one_rule(6), linear(), ["ditto:weighting=samples"], epsilon=5.0, **SMALL)
    assert any("weighting must be 'equal' with privacy" in note for note in advice.notes)


def test_a_protection_of_single_samples_is_refused():
    with pytest.raises(il.SettingError, match=r"privacy must be 'central' or 'local' for advise"):
        il.advise(one_rule(6), linear(), privacy="samples", epsilon=3.0, **SMALL)


# -- who is heard, and how long the noise is ------------------------------------------------------
@pytest.mark.parametrize(
    "settings, training, heard, drawn",
    [
        ({}, MANY - 1, MANY - 1, False),
        ({}, MANY, MANY // 2, True),
        ({"sample": 7}, 20, 7, True),
        ({"sample": 30}, 20, 20, False),
        ({"selection": "uniform", "sample": 7}, 20, 7, False),
    ],
)
def test_sampling_amplifies_where_the_number_of_clients_allows(settings, training, heard, drawn):
    budget = budget_of(epsilon=3.0, **settings)
    run = budget.settings(1.0, training)
    assert run["sample"] == heard
    assert (run.get("selection") == "poisson") == drawn
    assert "selection" not in budget.settings(1.0, training, drawn=False)


def test_noise_by_each_client_falls_slower_with_their_number():
    central, local = budget_of(epsilon=1.0), budget_of(epsilon=1.0, privacy="local")
    assert central.noise_length(2.0, 100, 10) == pytest.approx(2.0)
    assert local.noise_length(2.0, 100, 10) == pytest.approx(2 * 2.0 * 10 / math.sqrt(10))
