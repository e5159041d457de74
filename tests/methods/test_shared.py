"""Methods for a shared model: SCAFFOLD, Scaffnew, FedDeper, Per-FedAvg."""

from dataclasses import fields

import numpy as np
import pytest

import idiolect as il
from idiolect.methods import METHODS
from methods.common import (
    LOGISTIC,
    Case,
    N,
    assert_equals,
    coins,
    every_batching,
    every_model,
    every_weighting,
    trials,
)
from reference import setting
from reference.feddeper import feddeper
from reference.perfedavg import perfedavg
from reference.scaffnew import scaffnew
from reference.scaffold import scaffold
from reference.setting import ROUNDS, SIZES, assert_same, outcome, run


# -- SCAFFOLD --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_is_algorithm_1_with_either_control_variate(federation, model, batching, option):
    expected = scaffold(*Case(federation, model, batching).first, 0.3, 4, 1.0, option)
    assert_equals(
        run(il.Scaffold(lr=0.3, steps=4, option=option), federation, model, batching=batching),
        expected,
        federation,
        model,
    )


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("sample", [1, N])
def test_scaffold_takes_the_global_step_it_is_told_whoever_is_heard(federation, option, sample):
    expected = scaffold(*Case(federation, sample=sample).first, 0.3, 4, 0.6, option)
    result = run(
        il.Scaffold(lr=0.3, steps=4, option=option, server_rate=0.6), federation, sample=sample
    )
    assert_equals(result, expected, federation)


# -- Scaffnew --------------------------------------------------------------------------------------
def check_scaffnew(federation, p, model="logistic", batching="replace", factor=1.0):
    case = Case(federation, model, batching)
    steps = [trials(coins("scaffnew", t, 1)[0], p) for t in range(ROUNDS)]
    theta = [c for k in steps for c in [0] * (k - 1) + [1]]
    rates = [0.2 * factor**t for t, k in enumerate(steps) for _ in range(k)]
    settings = {} if factor == 1 else {"schedule": f"exp:{factor}"}
    result = run(
        il.Scaffnew(lr=0.2, p=p), federation, model, batching=batching, sample=0, **settings
    )
    expected = scaffnew(*case.about, theta, case.run_of(steps), rates, p)
    rate = {"private rate": np.full((N, 1), rates[-1])}
    assert_equals(result, expected | rate, federation, model)
    np.testing.assert_allclose(np.sum(expected["private h"], axis=0), 0, atol=1e-12)


@every_model
@every_batching
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_scaffnew_is_algorithm_2_with_everyone_heard(federation, model, batching, p):
    check_scaffnew(federation, p, model, batching)


def test_scaffnew_takes_each_control_variate_with_the_rate_of_the_steps_it_corrects(federation):
    check_scaffnew(federation, 0.5, factor=0.5)


# -- FedDeper --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("same_batch", [True, False])
def test_feddeper_is_algorithm_1(federation, model, batching, same_batch):
    expected = feddeper(
        *Case(federation, model, batching).first,
        lr=0.2,
        rho=0.05,
        lam=0.6,
        steps=4,
        same_batch=same_batch,
    )
    method = il.FedDeper(lr=0.2, rho=0.05, lam=0.6, steps=4, same_batch=same_batch)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


# -- Per-FedAvg ------------------------------------------------------------------------------------
def check_perfedavg(federation, model, hessian, batching="replace", weighting="samples"):
    case = Case(federation, model, batching)
    method = il.PerFedAvg(
        lr=0.3, personal_lr=0.2, steps=3, adapt_steps=2, hessian=hessian, weighting=weighting
    )
    expected = perfedavg(*case.first, case.last_batches, 0.3, 0.2, 3, 2, weighting, hessian)
    assert_equals(
        run(method, federation, model, batching=batching),
        expected | {"deployment": np.full(N, 2)},
        federation,
        model,
    )


@every_model
@every_batching
@pytest.mark.parametrize("hessian", ["first-order", "finite"])
def test_per_fedavg_is_algorithm_1_without_second_derivatives(federation, model, batching, hessian):
    check_perfedavg(federation, model, hessian, batching)


@every_weighting
def test_per_fedavg_is_algorithm_1_with_the_exact_hessian(federation, weighting):
    check_perfedavg(federation, "logistic", "exact", weighting=weighting)


def test_per_fedavgs_exact_meta_gradient_is_the_slope_of_the_loss_after_a_step(federation):
    """With full batches and one client: the derivative of F(w) = f(w - alpha grad f(w)).

    By differences of F itself.
    """
    alone = setting.make_federation(sizes=(15,))
    result = outcome(
        run(
            il.PerFedAvg(lr=1.0, personal_lr=0.2, steps=1, hessian="exact"),
            alone,
            batching="full",
            sample=1,
            rounds=1,
        )
    )
    X, y = setting.draws(alone).data[0]
    w = setting.start()

    def after(w):
        return LOGISTIC.loss(w - 0.2 * LOGISTIC.gradient(w, X, y), X, y)

    slope = [(after(w + e) - after(w - e)) / 2e-5 for e in 1e-5 * np.eye(len(w))]
    np.testing.assert_allclose(w - result["server w"], slope, atol=1e-8)


@pytest.mark.parametrize(
    "name", [name for name, (cls, _) in METHODS.items() if "epochs" in cls.__dataclass_fields__]
)
def test_a_method_with_a_field_for_passes_over_the_data_takes_them_or_refuses_them(
    federation, name
):
    try:
        spent = outcome(
            run(METHODS[name][0](steps=1, epochs=2), federation, batching="epochs", sample=N)
        )["gradients"]
    except il.SettingError as refused:
        assert "epochs" in str(refused)
    else:
        assert spent[np.argmax(SIZES)] > spent[np.argmin(SIZES)]  # 4 batches per pass, and 1


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, f.name)
        for name, (cls, _) in METHODS.items()
        if "epochs" in cls.__dataclass_fields__
        for f in fields(cls)
        if f.name.endswith("steps") and "per round" in f.metadata["help"]
    ],
)
def test_epochs_stand_in_place_of_every_number_of_steps_per_round(federation, name, field):
    """Whatever a method trains in a round; steps before use are not of a round."""
    few, many = (
        outcome(run(METHODS[name][0](**{"epochs": 1, field: n}), federation, batching="epochs"))
        for n in (1, 7)
    )
    assert_same(few, many, 0)
