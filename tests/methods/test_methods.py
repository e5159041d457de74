"""The fast methods do what their papers say: each equals its plain NumPy reference.

And what every method must keep to.
"""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.host.host import Host
from idiolect.methods import METHODS, make_method
from idiolect.wire import messages as wire
from reference import setting
from reference.fedavg import fedavg
from reference.fedprox import fedprox, fedprox_soft
from reference.local import local
from reference.lpproj import lpproj
from reference.server import Adam, Momentum
from reference.setting import (
    BATCH,
    MODELS,
    ROUNDS,
    SAMPLE,
    SEED,
    SIZES,
    arrange,
    assert_same,
    outcome,
    run,
)
from reference.softmax import Restrained

N = len(SIZES)
every_model = pytest.mark.parametrize("model", MODELS)
every_batching = pytest.mark.parametrize("batching", ["replace", "epochs", "full"])
# the methods whose reference is compared here
proved = ("local", "fedavg", "fedprox", "fedprox-soft", "lp-proj-1", "lp-proj-2")
every_method = pytest.mark.parametrize("name", METHODS)
every_proved_method = pytest.mark.parametrize("name", proved)
every_method_and_batching = pytest.mark.parametrize(
    ("name", "batching"),
    [(name, "replace") for name in METHODS]
    + [(name, b) for name in proved for b in ("epochs", "full")],
)


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()


def assert_equals(result, reference, federation, model="logistic"):
    expected = reference | {
        "accuracy": setting.pooled_accuracy(MODELS[model][1], reference["personal"], federation)
    }
    assert_same(outcome(result), expected, 1e-10)


def method_of(name):
    """A method by name, with few steps and a subspace that fits the small model."""
    small = {"steps": 4, "dim": 5, "lam": 0.5}
    return make_method(
        name,
        **{
            field.name: small[field.name]
            for field in fields(METHODS[name][0])
            if field.name in small
        },
    )


# -- the references themselves ---------------------------------------------------------------------
@every_model
def test_the_gradient_written_by_hand_is_the_slope_of_the_loss(federation, model):
    by_hand = MODELS[model][1]
    X, y = setting.draws(federation).data[3]
    x = setting.start(model)
    slope = [
        (by_hand.loss(x + e, X, y) - by_hand.loss(x - e, X, y)) / 2e-6
        for e in 1e-6 * np.eye(len(x))
    ]
    np.testing.assert_allclose(by_hand.gradient(x, X, y), slope, atol=1e-8)


def test_a_pass_over_the_data_draws_every_sample_once(federation):
    draws = setting.draws(federation, "epochs")
    for i, n in enumerate(SIZES):
        batches = draws.batches(0, i)
        for _ in range(2):
            drawn = np.concatenate([next(batches) for _ in range(draws.passes(1)[i])])
            assert sorted(drawn) == list(range(n))


def test_mini_batches_with_replacement_are_full_and_reach_every_sample(federation):
    for i, n in enumerate(SIZES):
        batches = setting.draws(federation).batches(0, i)
        drawn = [next(batches) for _ in range(60)]
        assert {len(b) for b in drawn} == {BATCH} and set(np.concatenate(drawn)) == set(range(n))
        assert len({tuple(b) for b in drawn}) == 60


# -- Local -----------------------------------------------------------------------------------------
@every_model
@every_batching
def test_local_is_sgd_at_each_client_alone(federation, model, batching):
    draws = setting.draws(federation, batching)
    result = run(il.Local(lr=0.3, steps=3), federation, model, batching=batching)
    assert_equals(
        result,
        local(
            MODELS[model][1],
            draws.data,
            setting.start(model),
            draws.batches,
            [0.3] * ROUNDS,
            [3] * N,
        ),
        federation,
        model,
    )


def test_local_passes_over_each_clients_own_data(federation):
    draws = setting.draws(federation, "epochs")
    result = run(il.Local(lr=0.3, epochs=2), federation, batching="epochs")
    expected = local(
        MODELS["logistic"][1],
        draws.data,
        setting.start(),
        draws.batches,
        [0.3] * ROUNDS,
        draws.passes(2),
    )
    assert len(set(expected["gradients"])) > 2
    assert_equals(result, expected, federation)


# -- FedAvg ----------------------------------------------------------------------------------------
def fedavg_reference(federation, batching="replace", model="logistic", **changes):
    draws = setting.draws(federation, batching)
    fields = {
        "cohorts": draws.cohorts(ROUNDS, SAMPLE),
        "rates": [0.3] * ROUNDS,
        "steps": [4] * N,
        "weighting": "samples",
    } | changes
    by_hand = fields.pop("by_hand", MODELS[model][1])
    return fedavg(by_hand, draws.data, setting.start(model), batches=draws.batches, **fields)


@every_model
@every_batching
@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedavg_is_its_algorithm(federation, model, batching, weighting):
    result = run(
        il.FedAvg(lr=0.3, steps=4, weighting=weighting), federation, model, batching=batching
    )
    assert_equals(
        result,
        fedavg_reference(federation, batching, model, weighting=weighting),
        federation,
        model,
    )


@every_batching
@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedavg_counted_in_passes_takes_as_many_steps_as_each_client_has_batches(
    federation, batching, weighting
):
    steps = setting.draws(federation, batching).passes(2)
    result = run(il.FedAvg(lr=0.3, epochs=2, weighting=weighting), federation, batching=batching)
    assert_equals(
        result, fedavg_reference(federation, batching, steps=steps, weighting=weighting), federation
    )


def test_fedavg_with_weight_decay_or_clipped_gradients_is_its_algorithm(federation):
    by_hand = MODELS["logistic"][1]
    for settings, restrained in (
        ({"weight_decay": 0.2}, {"decay": 0.2}),
        ({"clip": 0.4}, {"clip": 0.4}),
    ):
        result = run(il.FedAvg(lr=0.3, steps=4), federation, **settings)
        assert_equals(
            result,
            fedavg_reference(federation, by_hand=Restrained(by_hand, **restrained)),
            federation,
        )


# -- FedProx ---------------------------------------------------------------------------------------
def fedprox_reference(federation, batching, model="logistic", steps=None, weighting="samples"):
    draws = setting.draws(federation, batching)
    cohorts = draws.cohorts(ROUNDS, SAMPLE)
    rates = [0.3] * ROUNDS
    by_hand = MODELS[model][1]
    start = setting.start(model)
    return fedprox(
        by_hand,
        draws.data,
        start,
        cohorts,
        draws.batches,
        rates,
        steps or [4] * N,
        weighting,
        mu=0.7,
    )


@every_model
@every_batching
def test_fedprox_is_its_algorithm(federation, model, batching):
    result = run(il.FedProx(lr=0.3, steps=4, mu=0.7), federation, model, batching=batching)
    assert_equals(result, fedprox_reference(federation, batching, model), federation, model)


@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedprox_counted_in_passes_is_its_algorithm(federation, weighting):
    result = run(
        il.FedProx(lr=0.3, epochs=2, mu=0.7, weighting=weighting), federation, batching="epochs"
    )
    steps = setting.draws(federation, "epochs").passes(2)
    assert_equals(
        result,
        fedprox_reference(federation, "epochs", steps=steps, weighting=weighting),
        federation,
    )


def soft_reference(federation, batching="replace", model="logistic", weighting="unbiased", eta=1.0):
    draws = setting.draws(federation, batching)
    last = {
        "last_batches": lambda i: draws.batches(ROUNDS, i, "personal"),
        "last_rate": 0.3,
        "last_steps": 3,
    }
    rest = {
        "cohorts": draws.cohorts(ROUNDS, SAMPLE),
        "batches": draws.batches,
        "rates": [0.3] * ROUNDS,
        "steps": 4,
    }
    return fedprox_soft(
        MODELS[model][1],
        draws.data,
        setting.start(model),
        weighting=weighting,
        lam=0.7,
        eta=eta,
        **rest,
        **last,
    )


@every_model
@every_batching
def test_soft_fedprox_is_algorithm_3_with_both_stages(federation, model, batching):
    result = run(
        il.FedProxSoft(lr=0.3, steps=4, lam=0.7, final_steps=3),
        federation,
        model,
        batching=batching,
    )
    assert_equals(result, soft_reference(federation, batching, model), federation, model)
    assert setting.deployment(result).tolist() == [3] * N


@pytest.mark.parametrize(
    ("weighting", "eta"), [("unbiased", 0.7), ("samples", 0.7), ("equal", 1.3)]
)
def test_soft_fedprox_takes_the_aggregation_step_it_is_told(federation, weighting, eta):
    method = il.FedProxSoft(
        lr=0.3, steps=4, lam=0.7, final_steps=3, server_rate=eta, weighting=weighting
    )
    assert_equals(
        run(method, federation),
        soft_reference(federation, weighting=weighting, eta=eta),
        federation,
    )


# -- lp-proj ---------------------------------------------------------------------------------------
def lpproj_reference(federation, batching="replace", model="logistic", **changes):
    draws = setting.draws(federation, batching)
    start = setting.start(model)
    fields = {
        "p": 1,
        "lam": 0.5,
        "R": 1,
        "steps": 6,
        "nu": 0.0,
        "beta": 1.0,
        "cohorts": draws.cohorts(ROUNDS, SAMPLE),
    }
    fields |= {"rates": [0.3] * ROUNDS, "personal_rates": [0.2] * ROUNDS} | changes
    return lpproj(
        MODELS[model][1],
        draws.data,
        start,
        draws.projection(5, len(start)),
        batches=draws.batches,
        **fields,
    )


def an_lpproj(**fields):
    return il.LpProj(
        **({"dim": 5, "lam": 0.5, "lr": 0.3, "personal_lr": 0.2, "steps": 6, "nu": 0.0} | fields)
    )


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("fresh", [False, True])
def test_lpproj_is_algorithm_1(federation, p, R, fresh):
    result = run(an_lpproj(p=p, alternations=R, fresh=fresh, server_rate=0.7), federation)
    assert_equals(result, lpproj_reference(federation, p=p, R=R, fresh=fresh, beta=0.7), federation)


@every_model
@every_batching
@pytest.mark.parametrize("p", [1, 2])
def test_lpproj_is_algorithm_1_for_every_model_and_batching(federation, model, batching, p):
    result = run(an_lpproj(p=p, alternations=2), federation, model, batching=batching)
    assert_equals(
        result, lpproj_reference(federation, batching, model, p=p, R=2), federation, model
    )


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@every_model
def test_lpproj_stops_each_client_where_its_squared_gradient_is_small(federation, p, model):
    expected = lpproj_reference(federation, model=model, p=p, R=3, nu=0.1, steps=8, lam=0.1)
    assert (
        expected["gradients"].max() < ROUNDS * 3 * 8 and len(set(expected["gradients"])) > 4
    )  # all stop early, not all alike
    result = run(an_lpproj(p=p, alternations=3, nu=0.1, steps=8, lam=0.1), federation, model)
    assert_equals(result, expected, federation, model)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_lpproj_with_the_public_codes_w_step_follows_the_norms_gradient(federation, p):
    result = run(an_lpproj(p=p, alternations=3, w_step="code", fresh=True), federation)
    assert_equals(
        result, lpproj_reference(federation, p=p, R=3, w_step="code", fresh=True), federation
    )


def test_lpproj_can_weigh_clients_by_their_samples(federation):
    result = run(an_lpproj(p=2, weighting="samples", server_rate=0.7), federation)
    assert_equals(
        result, lpproj_reference(federation, p=2, weighting="samples", beta=0.7), federation
    )


def test_lpproj_starts_each_personal_model_at_its_own_point_if_asked(federation):
    x = outcome(run(an_lpproj(init="own"), federation, rounds=0))["personal"]
    assert len(np.unique(x, axis=0)) == N
    np.testing.assert_array_equal(
        x, outcome(run(il.Local(init="own"), federation, rounds=0))["personal"]
    )


@pytest.mark.parametrize("kernel", ["stacked", "vmap", "rows"])
def test_every_kernel_gives_the_algorithm_where_clients_take_different_numbers_of_steps(
    federation, kernel
):
    steps = setting.draws(federation, "epochs").passes(2)
    result = run(
        il.FedAvg(lr=0.3, epochs=2), federation, "network", batching="epochs", kernel=kernel
    )
    assert_equals(
        result,
        fedavg_reference(federation, "epochs", "network", steps=steps),
        federation,
        "network",
    )
    result = run(an_lpproj(p=2, nu=0.1, lam=0.1), federation, "network", kernel=kernel)
    assert_equals(
        result,
        lpproj_reference(federation, model="network", p=2, nu=0.1, lam=0.1),
        federation,
        "network",
    )


# -- the server's step and schedules ---------------------------------------------------------------
SERVERS = {
    "sgd at half rate": ({"server_lr": 0.5}, lambda: Momentum(0.5, 0.0)),
    "momentum": ({"server_lr": 0.5, "server_options": "momentum=0.9"}, lambda: Momentum(0.5, 0.9)),
    "adam": (
        {
            "server_optimizer": "adam",
            "server_lr": 0.05,
            "server_options": "betas=(0.8, 0.95), eps=1e-3",
        },
        lambda: Adam(0.05, 0.8, 0.95, 1e-3),
    ),
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_optimiser_steps_along_the_change_that_clients_ask_for(federation, server):
    settings, by_hand = SERVERS[server]
    result = run(il.FedAvg(lr=0.3, steps=4), federation, **settings)
    assert_equals(result, fedavg_reference(federation, server=by_hand()), federation)
    result = run(an_lpproj(p=2, server_rate=0.7), federation, **settings)
    assert_equals(result, lpproj_reference(federation, p=2, beta=0.7, server=by_hand()), federation)


SCHEDULES = {
    "cosine": [0.5 * (1 + math.cos(math.pi * t / ROUNDS)) for t in range(ROUNDS)],
    "linear": [1, 2 / 3, 1 / 3],
    "step:2:0.1": [1, 1, 0.1],
    "inverse:0.5": [1, 1 / 1.5, 1 / 2],
    "exp:0.9": [1, 0.9, 0.81],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_scales_the_learning_rates_of_each_round(federation, schedule):
    factors = SCHEDULES[schedule]
    result = run(il.FedAvg(lr=0.3, steps=4), federation, schedule=schedule)
    assert_equals(
        result, fedavg_reference(federation, rates=[0.3 * f for f in factors]), federation
    )
    result = run(an_lpproj(), federation, schedule=schedule)
    rates = {"rates": [0.3 * f for f in factors], "personal_rates": [0.2 * f for f in factors]}
    assert_equals(result, lpproj_reference(federation, **rates), federation)


# -- what every method keeps to --------------------------------------------------------------------
@every_method_and_batching
def test_chunks_do_not_change_the_result(federation, name, batching):
    whole, ones, threes = (
        outcome(run(method_of(name), federation, "network", batching=batching, chunk=c))
        for c in (0, 1, 3)
    )
    assert_same(ones, whole, 1e-12)
    assert_same(threes, whole, 1e-12)


def only(outcome, clients):
    """An outcome with the rows of these clients, in this order."""
    rows = {
        part: value[clients]
        for part, value in outcome.items()
        if part in ("personal", "gradients") or part.startswith("private")
    }
    return outcome | rows


@every_method
def test_the_order_of_the_clients_does_not_change_the_result(federation, name):
    order = [4, 0, 6, 2, 5, 1, 3]
    given, other = (
        outcome(run(method_of(name), f, "network"))
        for f in (federation, arrange(federation, order))
    )
    assert_same(other, only(given, order), 1e-12)


@every_method_and_batching
def test_a_client_without_data_changes_nothing(federation, name, batching):
    order = [0, 1, 2, "nobody", 3, 4, 5, 6, "no one"]
    both = (federation, arrange(federation, order))
    before, after = (outcome(run(method_of(name), f, "network", batching=batching)) for f in both)
    assert_same(
        only(after, [k for k, client in enumerate(order) if isinstance(client, int)]), before
    )


@every_proved_method
def test_the_same_run_twice_gives_the_same_bits(federation, name):
    assert_same(
        outcome(run(method_of(name), federation, "network")),
        outcome(run(method_of(name), federation, "network")),
    )


@every_proved_method
def test_another_seed_gives_another_result(federation, name):
    a, b = (
        outcome(run(method_of(name), federation, "network", seed=seed))["personal"]
        for seed in (0, 1)
    )
    assert np.abs(a - b).min(axis=1).max() > 0


@every_method
def test_personal_models_that_are_evaluated_are_the_trained_ones(name):
    federation = il.data.load("synthetic", clients=20, samples=100)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    untrained = il.run(il.Local(), task, federation, rounds=0).summary()["accuracy"]["mean"]
    result = il.run(
        make_method(name),
        task,
        federation,
        rounds=10,
        sample=0 if make_method(name).hears_all else 5,
        eval_every=0,
    )
    trained = result.summary()["accuracy"]["mean"]
    assert trained > untrained + 0.1
    hits = sum(
        int((result.personal(k)(X).argmax(1) == y).sum())
        for k in range(20)
        for X, y in [federation.part(k, "test")]
    )
    assert trained == pytest.approx(hits / int(federation.sizes("test").sum()), abs=1e-12)


def test_clients_spend_the_gradients_that_their_method_names(federation):
    heard = np.bincount(
        np.concatenate(setting.draws(federation).cohorts(ROUNDS, SAMPLE)), minlength=N
    )
    everyone = np.full(N, ROUNDS)
    for method, spent in (
        (il.Local(steps=3), 3 * everyone),
        (il.FedAvg(steps=3), 3 * heard),
        (il.FedProx(steps=3), 3 * heard),
        (il.FedProxSoft(steps=3, final_steps=5), 3 * heard),
        (an_lpproj(steps=3, alternations=2), 6 * everyone),
    ):
        result = run(method, federation, seed=SEED)
        np.testing.assert_array_equal(outcome(result)["gradients"], spent)
        stage_two = 5 if isinstance(method, il.FedProxSoft) else 0
        assert result.summary()["gradients_per_client"] == pytest.approx(spent.mean() + stage_two)


# -- messages --------------------------------------------------------------------------------------
def test_lpproj_sends_21_numbers_to_every_client_and_21_from_each_sampled_one(monkeypatch):
    up, down = [], []
    update = Host.update

    def noting(self, order):
        sent = update(self, order)
        down.append(len(order.down))
        up.extend(len(sent.messages.row(k)) for k in range(len(order.heard)))
        return sent

    monkeypatch.setattr(Host, "update", noting)
    federation = il.data.load("synthetic", clients=100)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    method = il.LpProj(p=1, dim=21, steps=1)
    summary = il.run(method, task, federation, rounds=3, sample=10, eval_every=0).summary()
    assert summary["values"] == {"up": 3 * 21 * 10, "down": 3 * 21 * 100}
    assert summary["bytes"] == {"up": 3 * 10 * (4 * 21 + 24), "down": 3 * 100 * (4 * 21 + 24)}
    assert summary["bytes"] == {"up": sum(up), "down": 100 * sum(down)}
    assert len(up) == 3 * 10 and len(down) == 3


def test_fedavg_sends_the_model_both_ways_and_local_sends_nothing(federation):
    d = len(setting.start())
    summary = run(il.FedAvg(), federation).summary()
    assert summary["values"] == {"up": ROUNDS * SAMPLE * d, "down": ROUNDS * SAMPLE * d}
    assert summary["bytes"] == {
        "up": ROUNDS * SAMPLE * (8 * d + 24),
        "down": ROUNDS * SAMPLE * (8 * d + 24),
    }
    summary = run(il.Local(), federation).summary()
    assert summary["values"] == summary["bytes"] == {"up": 0, "down": 0}


def spoil(message, reason):
    """A message that the server must refuse for this reason."""
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    body = np.frombuffer(message[24:], dtype="<f8").copy()
    if reason == "size":
        return message[:-8]
    if reason == "not finite":
        body[-1] = np.nan
    elif reason == "weight":
        head["weight"] = -1
    elif reason == "stranger":
        head["client"] = 1000
    else:
        head["version" if reason == "round" else reason] += 1
    return head.tobytes() + body.tobytes()


@pytest.mark.parametrize(
    "reason", ["size", "magic", "schema", "run", "round", "stranger", "weight", "not finite"]
)
@pytest.mark.parametrize("kind", ["fedavg", "lp-proj"])
def test_a_rejected_message_is_an_absent_client(federation, monkeypatch, reason, kind):
    draws = setting.draws(federation)
    cohorts = draws.cohorts(ROUNDS, SAMPLE)
    faulty = cohorts[1][1]
    admitted = [[i for i in cohort if (t, i) != (1, faulty)] for t, cohort in enumerate(cohorts)]
    update = Host.update

    def spoiled(self, order):
        sent = update(self, order)
        messages = [
            spoil(sent.messages.row(k), reason)
            if (order.version, i) == (1, faulty)
            else sent.messages.row(k)
            for k, i in enumerate(order.heard.tolist())
        ]
        return replace(sent, messages=messages)

    monkeypatch.setattr(Host, "update", spoiled)
    if kind == "lp-proj":
        result = run(an_lpproj(p=2), federation)
        expected = lpproj_reference(federation, p=2, cohorts=admitted)
    else:  # the weighting that depends on how many are heard
        result = run(il.FedAvg(lr=0.3, steps=4, weighting="unbiased"), federation)
        expected = fedavg_reference(federation, weighting="unbiased", cohorts=admitted)
        expected["gradients"][faulty] += 4  # the client did its work; only its message was refused
    assert_equals(result, expected, federation)
    ledger = result.session().server.ledger
    assert dict(ledger.rejected) == {reason: 1}
    assert (ledger.selected, ledger.admitted) == (ROUNDS * SAMPLE, ROUNDS * SAMPLE - 1)
