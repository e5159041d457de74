"""Methods with personal models beside a shared one: Ditto, pFedMe, RSA, L2GD."""

import numpy as np
import pytest

import idiolect as il
from methods.common import (
    Case,
    N,
    a_pfedme,
    assert_equals,
    coins,
    every_batching,
    every_model,
    every_weighting,
    pfedme_reference,
    trials,
)
from reference.ditto import ditto
from reference.l2gd import l2gd
from reference.rsa import rsa
from reference.setting import ROUNDS, SAMPLE, outcome, run, start


# -- Ditto -----------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("who", ["everyone", "sampled"])
def test_ditto_is_algorithm_1_whoever_trains(federation, model, batching, who):
    method = il.Ditto(lr=0.3, personal_lr=0.2, steps=3, personal_steps=4, lam=0.7, who=who)
    expected = ditto(*Case(federation, model, batching).first, 0.3, 0.2, 3, 4, lam=0.7, who=who)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_ditto_weighs_the_shared_models_as_it_is_told(federation, weighting):
    method = il.Ditto(
        lr=0.3, personal_lr=0.2, steps=3, personal_steps=4, lam=0.7, weighting=weighting
    )
    expected = ditto(
        *Case(federation).first, 0.3, 0.2, 3, 4, lam=0.7, who="everyone", weighting=weighting
    )
    assert_equals(run(method, federation), expected, federation)


@pytest.mark.parametrize("batching", ["epochs", "full"])
def test_with_epochs_both_models_of_ditto_are_trained_in_passes(federation, batching):
    case = Case(federation, "network", batching)
    passes = case.draws.passes(2)
    expected = ditto(
        *case.first, 0.3, 0.2, passes, passes, lam=0.7, who="everyone",
        later=lambda t, k: case.batches(t, k, "batch 1"),
    )  # fmt: skip
    method = il.Ditto(lr=0.3, personal_lr=0.2, epochs=2, lam=0.7)
    result = run(method, federation, "network", batching=batching)
    assert_equals(result, expected, federation, "network")


# -- pFedMe ----------------------------------------------------------------------------------------
@every_model
@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_pfedme_is_algorithm_1(federation, model, R, fresh, reset):
    result = run(
        a_pfedme(alternations=R, fresh=fresh, reset=reset, server_rate=0.7), federation, model
    )
    expected = pfedme_reference(Case(federation, model), R=R, fresh=fresh, reset=reset, beta=0.7)
    assert_equals(result, expected, federation, model)


@every_batching
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_pfedme_is_algorithm_1_for_every_batching_and_weighting(federation, batching, weighting):
    result = run(a_pfedme(alternations=2, weighting=weighting), federation, batching=batching)
    assert_equals(
        result,
        pfedme_reference(Case(federation, batching=batching), R=2, weighting=weighting),
        federation,
    )


@every_model
@pytest.mark.parametrize("reset", [False, True])
def test_pfedme_stops_each_envelope_where_its_squared_gradient_is_small(federation, model, reset):
    expected = pfedme_reference(Case(federation, model), R=3, nu=0.05, steps=9, reset=reset)
    assert (
        expected["gradients"].max() < ROUNDS * 3 * 9 and len(set(expected["gradients"])) > 3
    )  # all stop early, not all alike
    assert_equals(
        run(a_pfedme(alternations=3, nu=0.05, steps=9, reset=reset), federation, model),
        expected,
        federation,
        model,
    )


# -- RSA -------------------------------------------------------------------------------------------
def check_rsa(federation, factors=(1,) * ROUNDS, model="logistic", **fields):
    fields = {"p": 1, "lam": 0.05, "steps": 4, "decay": 0.0, "server_step": "sum"} | fields
    settings = {} if set(factors) == {1} else {"schedule": "exp:0.5"}
    rates = [0.3 * f for f in factors]
    personal_rates = [0.2 * f for f in factors]
    expected = rsa(*Case(federation, model).first, rates, personal_rates, **fields)
    assert_equals(
        run(il.Rsa(lr=0.3, personal_lr=0.2, **fields), federation, model, **settings),
        expected,
        federation,
        model,
    )


@pytest.mark.parametrize("p", [1, 1.5, 2])
@pytest.mark.parametrize("server_step", ["sum", "sum-new", "mean"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rsa_steps_along_the_gradient_of_the_norm_at_clients_and_server(
    federation, p, server_step, decay
):
    check_rsa(federation, p=p, server_step=server_step, decay=decay)


@pytest.mark.parametrize("p", [1, 1.5, 2])
def test_rsa_is_its_algorithm_for_a_network_and_for_a_single_step_per_round(federation, p):
    for server_step in ("sum", "sum-new"):
        check_rsa(federation, model="network", p=p, server_step=server_step)
        check_rsa(federation, p=p, steps=1, server_step=server_step)


def test_rsa_hears_the_models_that_clients_had_before_the_round_and_in_its_code_those_after_it(
    federation,
):
    """From a common start the paper's server does not move in the first round; its code's does."""
    moved = {
        server_step: run(
            il.Rsa(lam=0.05, server_step=server_step), federation, rounds=1, sample=SAMPLE
        )
        for server_step in ("sum", "sum-new")
    }
    assert np.array_equal(outcome(moved["sum"])["server w"], start())
    assert not np.array_equal(outcome(moved["sum-new"])["server w"], start())


@pytest.mark.parametrize("server_step", ["sum", "sum-new", "mean"])
def test_a_schedule_scales_the_rate_of_rsa_at_clients_and_server(federation, server_step):
    check_rsa(federation, factors=[0.5**t for t in range(ROUNDS)], server_step=server_step)


# -- L2GD ------------------------------------------------------------------------------------------
def check_l2gd(federation, p, model="logistic", sample=SAMPLE, literal=False, weighting="equal"):
    case = Case(federation, model, sample=sample)
    u = [coins("l2gd", t, 2) for t in range(ROUNDS)]
    gradient_steps = [trials(b, p) for _, b in u]
    mean_steps = [0] + [
        trials(a, 1 - p) for a, _ in u[1:]
    ]  # all models are equal at the start: a mean step would change nothing
    xi = [c for m, k in zip(mean_steps, gradient_steps, strict=True) for c in [1] * m + [0] * k]
    expected = l2gd(
        *case.about,
        xi,
        case.cohorts,
        case.run_of(gradient_steps),
        lr=0.05,
        lam=0.8,
        p=p,
        weighting=weighting,
        literal=literal,
    )
    result = run(
        il.L2gd(lr=0.05, lam=0.8, p=p, weighting=weighting), federation, model, sample=sample
    )
    assert_equals(result, expected, federation, model)
    return mean_steps, gradient_steps


@every_model
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_l2gd_is_algorithm_1_with_the_mean_of_those_heard(federation, model, weighting):
    check_l2gd(federation, 0.4, model, weighting=weighting)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_l2gd_with_everyone_heard_is_algorithm_1_to_the_letter(federation, p):
    mean_steps, gradient_steps = check_l2gd(federation, p, sample=N, literal=True)
    assert max(mean_steps) > 1 or max(gradient_steps) > 1
