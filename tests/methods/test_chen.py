"""FedAvg and FedProx of the paper of Chen, Zheng, Long and Su: weights p_i, a ball, its steps."""

import numpy as np
import pytest

import idiolect as il
from idiolect.core.knobs import SettingError
from methods.common import Case, N, assert_equals, every_batching, every_model
from reference.chen import algorithm1, algorithm3
from reference.setting import ROUNDS, SIZES, assert_same, outcome, run

P = np.array([0.05, 0.3, 0.1, 0.2, 0.15, 0.05, 0.15])
WEIGHTS = {f"c{i}": 40 * p for i, p in enumerate(P)}  # only their ratios matter
BY_SAMPLES = np.array(SIZES) / sum(SIZES)
BALL = 0.9  # less than the models' length: it acts


def constant(rate):
    return lambda t, k: rate


def inverse(rate):
    return lambda t, k: rate / (k + 1)


# -- Algorithm 1 -----------------------------------------------------------------------------------
@every_model
@every_batching
def test_fedavg_is_algorithm_1_for_general_weights(federation, model, batching):
    case = Case(federation, model, batching)
    method = il.FedAvg(lr=0.3, steps=4, weighting="unbiased", step_rule="inverse", ball=BALL)
    expected = algorithm1(
        *case.first, P, K=[4] * ROUNDS, eta_local=inverse(0.3), eta=[0.7] * ROUNDS, ball=BALL
    )
    settings = {"batching": batching, "client_weights": WEIGHTS, "server_lr": 0.7}
    result = run(method, federation, model, **settings)
    assert_equals(result, expected, federation, model)
    assert max(np.linalg.norm(x) for x in expected["personal"]) < 2


def test_weights_of_the_numbers_of_samples_change_nothing(federation):
    method = il.FedAvg(lr=0.3, steps=4)
    by_samples = {f"c{i}": n for i, n in enumerate(SIZES)}
    given = run(method, federation, client_weights=by_samples)
    assert_same(outcome(given), outcome(run(method, federation)))


def test_weights_enter_the_mean_of_those_heard(federation):
    weighed = run(il.FedAvg(lr=0.3, steps=4), federation, client_weights=WEIGHTS, sample=0)
    case = Case(federation, sample=N)
    full = algorithm1(*case.first, P, K=[4] * ROUNDS, eta_local=constant(0.3), eta=[1.0] * ROUNDS)
    assert_equals(weighed, full, federation)  # all heard: the mean is the unbiased one


# -- Algorithm 3 -----------------------------------------------------------------------------------
@every_model
@every_batching
def test_fedprox_soft_is_algorithm_3_for_general_weights(federation, model, batching):
    case = Case(federation, model, batching)
    lam = 0.7
    mu = 0.8
    method = il.FedProxSoft(
        lr=1 / (mu + lam),
        steps=4,
        lam=lam,
        final_steps=3,
        server_rate=lam * 0.9,
        step_rule="inverse",
        ball=BALL,
    )
    expected = algorithm3(
        *case.first,
        last_batches=case.last_batches,
        p=P,
        K=[4] * ROUNDS,
        last_K=3,
        eta_local=inverse(1 / (mu + lam)),
        eta=[0.9] * ROUNDS,
        lam=lam,
        ball=BALL,
    )
    assert max(np.linalg.norm(x) for x in expected["personal"]) <= BALL + 1e-12
    result = run(method, federation, model, batching=batching, client_weights=WEIGHTS)
    assert_equals(result, expected | {"deployment": np.full(N, 3)}, federation, model)


def test_steps_and_step_sizes_of_theorem_4_4_are_schedules(federation):
    """η_t,k = 1/((μ + λ)(k + 1)), η_t = 2(μ + λ)/(λ μ (t + 1)), and a growing K_t."""
    case = Case(federation)
    lam = 0.7
    mu = 0.8
    method = il.FedProxSoft(
        lr=1 / (mu + lam),
        steps=4,
        lam=lam,
        final_steps=6,
        server_rate=2 * (mu + lam) / mu,
        step_rule="inverse",
        ball=BALL,
    )
    expected = algorithm3(
        *case.first,
        last_batches=case.last_batches,
        p=BY_SAMPLES,
        K=[4 + 2 * t for t in range(ROUNDS)],
        last_K=6,
        eta_local=inverse(1 / (mu + lam)),
        eta=[2 * (mu + lam) / (lam * mu * (t + 1)) for t in range(ROUNDS)],
        lam=lam,
        ball=BALL,
    )
    result = run(method, federation, schedule="steps=grow:0.5 + server_rate=inverse:1")
    assert_equals(result, expected | {"deployment": np.full(N, 6)}, federation)


def test_the_aggregation_step_of_algorithm_1_falls_by_a_schedule_of_the_servers_rate(federation):
    case = Case(federation)
    rounds = range(ROUNDS)
    expected = algorithm1(
        *case.first,
        BY_SAMPLES,
        K=[2 + 2 * t for t in rounds],
        eta_local=constant(0.3),
        eta=[0.9 / (t + 1) for t in rounds],
    )
    method = il.FedAvg(lr=0.3, steps=2, weighting="unbiased")
    schedule = "server_lr=inverse:1 + steps=grow:1"
    result = run(method, federation, server_lr=0.9, schedule=schedule)
    assert_equals(result, expected, federation)


# -- limits ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method",
    [
        il.FedAvg(lr=0.3, steps=4),
        il.Local(lr=0.3, steps=4),
        il.FedProxSoft(lr=0.3, steps=4, lam=0.5),
        il.Ditto(lr=0.3, steps=2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_ball_that_holds_everything_is_no_ball(federation, method):
    wide = type(method)(**method.as_dict() | {"ball": 1e6})
    assert_same(outcome(run(wide, federation)), outcome(run(method, federation)))


def test_personal_models_of_every_heir_of_fedavg_end_in_the_ball(federation):
    for method in (
        il.Local(lr=0.3, ball=0.5),
        il.Ditto(lr=0.3, personal_lr=0.3, ball=0.5),
        il.Finetune(lr=0.3, personal_lr=0.3, ball=0.5),
        il.FedProx(lr=0.3, ball=0.5),
        il.Dichotomy(lr=0.3, personal_lr=0.3, level="client", ball=0.5),
    ):
        free = type(method)(**method.as_dict() | {"ball": 0.0})
        inside, outside = (
            np.linalg.norm(outcome(run(m, federation))["personal"], axis=1).max()
            for m in (method, free)
        )
        assert inside <= 0.5 + 1e-9 < outside, method


def test_one_step_per_round_is_the_same_by_both_rules(federation):
    a, b = (il.FedAvg(lr=0.3, steps=1, step_rule=rule) for rule in ("constant", "inverse"))
    assert_same(outcome(run(a, federation)), outcome(run(b, federation)))


def test_rows_that_have_taken_their_steps_stay_while_others_step_in_the_ball(federation):
    """Clients of different sizes take different numbers of steps in a pass."""
    alone = {}
    method = il.Local(lr=0.5, epochs=2, ball=0.6)
    together = outcome(run(method, federation, batching="epochs"))["personal"]
    for k in (0, 5):
        one = run(method, federation.of([k]), batching="epochs", sample=1)
        alone[k] = one.personal(f"c{k}")
        x = np.concatenate([p.detach().numpy().ravel() for p in alone[k].parameters()])
        np.testing.assert_allclose(x, together[k], atol=1e-12)


@pytest.mark.parametrize("fields", [{"ball": 1.0}, {"step_rule": "inverse"}])
@pytest.mark.parametrize("method", [il.FedAvg, il.Local])
def test_what_belongs_to_plain_sgd_is_refused_with_another_optimiser(federation, method, fields):
    (name,) = fields
    with pytest.raises(SettingError, match=f"{name} must be .* with an optimizer"):
        run(method(**fields), federation, optimizer="adam")
