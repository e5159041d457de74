"""FFGG and Local FFGG are their algorithms, with every solver."""

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from idiolect.core import streams
from methods.common import LOGISTIC, PARTS, Case, N, assert_equals, every_batching, every_part
from reference import setting
from reference.ffgg import ffgg
from reference.perfedavg import hessian_product
from reference.regression import Linear, least_squares
from reference.setting import ROUNDS, SAMPLE, SEED, outcome, run


# -- FFGG ------------------------------------------------------------------------------------------
def starts_of(case, model, private, how):
    """starts(t, i): where the private part of client i starts in round t."""
    task = setting.task(model).under(seed=SEED, dtype=torch.float64)
    if how != "random":
        return lambda t, i: case.start[private]
    return lambda t, i: task.draw(streams.keys(SEED, "private start", t, case.draws.keys[[i]]))[
        0
    ].numpy()[private]


def check_ffgg(
    federation,
    model,
    part,
    solver="sgd",
    start="random",
    batching="replace",
    steps=4,
    local_steps=None,
    product=None,
):
    case = Case(federation, model, batching)
    private = PARTS[model, part]
    extra = {} if local_steps is None else {"local_steps": local_steps}
    expected = ffgg(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        case.last_batches,
        starts_of(case, model, private, start),
        rates=[0.3] * ROUNDS,
        private_lr=0.2,
        steps=steps,
        solver=solver,
        kept=start == "kept",
        product=product,
        **extra,
    )
    method = (il.Ffgg if local_steps is None else il.LocalFfgg)(
        part=part, lr=0.3, private_lr=0.2, steps=steps, solver=solver, start=start, **extra
    )
    result = run(method, federation, model, batching=batching)
    assert_equals(result, expected, federation, model)
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * (len(case.start) - len(private))


@every_part
@pytest.mark.parametrize("solver", ["sgd", "gd", "adam"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_ffgg_is_algorithm_1_with_every_iterative_solver_and_start(
    federation, model, part, solver, start
):
    check_ffgg(federation, model, part, solver, start)


@every_batching
def test_ffgg_is_algorithms_1_and_2_for_every_batching(federation, batching):
    check_ffgg(federation, "network", "output", "gd", batching=batching)


@pytest.mark.parametrize("start", ["random", "common", "kept"])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_ffgg_with_conjugate_gradients_on_a_logistic_loss_takes_newtons_direction_in_part(
    federation, part, start
):
    def product(x, v, X, y):
        return hessian_product(LOGISTIC, x, v, X, y)

    check_ffgg(federation, "logistic", part, "cg", start, "full", steps=2, product=product)


def test_a_schedule_scales_the_rate_of_ffggs_step_at_the_server(federation):
    case = Case(federation, "network")
    private = PARTS["network", "output"]
    starts = starts_of(case, "network", private, "common")
    rates = [0.3 * 0.5**t for t in range(ROUNDS)]
    expected = ffgg(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        case.last_batches,
        starts,
        rates,
        0.2,
        0,
        "sgd",
    )
    result = run(
        il.Ffgg(lr=0.3, steps=0, start="common"), federation, "network", schedule="exp:0.5"
    )
    assert_equals(result, expected, federation, "network")


@every_part
@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_local_ffgg_is_algorithm_4(federation, model, part, solver, start):
    check_ffgg(federation, model, part, solver, start, local_steps=3)


@every_batching
def test_local_ffgg_is_algorithm_4_for_every_batching(federation, batching):
    check_ffgg(federation, "network", "input", "gd", batching=batching, local_steps=3)


# -- FFGG with exact solvers -----------------------------------------------------------------------
OWN = np.arange(3, 7)  # own.weight and own.bias; shared.weight comes first


class Regressor(nn.Module):
    """y = shared(a) + own(b): three features for everyone; three and the constant per client."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(3, 1, bias=False)
        self.own = nn.Linear(3, 1)

    def forward(self, x):
        return self.shared(x[..., :3]) + self.own(x[..., 3:])


def regression(sizes):
    """Clients with linear rules of their own, and noise."""
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(owner), 6))
    y = (X * rng.normal(size=(len(sizes), 6))[owner]).sum(1) + 0.3 * rng.normal(size=len(owner))
    ids = [f"c{k}" for k in owner]
    return il.Federation.from_arrays(
        torch.from_numpy(X), torch.from_numpy(y), ids, split=["train"] * len(ids)
    )


def regressor():
    return il.Task(Regressor, "half_squared")


def run_regression(federation, **fields):
    """(theta, personal models) of FFGG with half the squared error, all data in every batch."""
    method = il.Ffgg(**({"part": "own.*", "lr": 0.3} | fields))
    settings = {"rounds": ROUNDS, "sample": 3, "seed": SEED, "batching": "full"}
    session = helpers.run(method, federation, regressor(), **settings).session()
    personal = [session.personal(id).numpy() for id in federation.ids]
    return session.server.state["theta"].numpy(), np.stack(personal)


def regression_start():
    return regressor().under(seed=SEED, dtype=torch.float64).x0.numpy()


@pytest.mark.parametrize("solver", ["cg", "newton"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_ffgg_with_an_exact_solver_fits_the_private_part_by_least_squares(solver, start):
    federation = regression((12, 25, 9, 40, 17))
    draws = setting.draws(federation, "full")
    x = regression_start()
    for cohort in draws.cohorts(
        ROUNDS, 3
    ):  # theta <- theta - lr mean of grad_theta f_i(theta, w_i*(theta))
        best = {i: least_squares(x, OWN, *draws.data[i]) for i in cohort}
        x[:3] -= (
            0.3 * sum(Linear().gradient(best[i], *draws.data[i])[:3] for i in cohort) / len(cohort)
        )
    theta, personal = run_regression(federation, solver=solver, start=start, steps=8)
    np.testing.assert_allclose(theta, x[:3], atol=1e-8)
    np.testing.assert_allclose(
        personal, [least_squares(x, OWN, *part) for part in draws.data], atol=1e-8
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_ffgg_with_few_conjugate_gradient_steps_takes_just_those(steps):
    federation = regression((12, 25, 9, 40, 17))
    draws = setting.draws(federation, "full")
    model = Linear()
    x = regression_start()
    cohorts = draws.cohorts(ROUNDS, 3)
    batches = draws.batches
    expected = ffgg(
        model,
        draws.data,
        x,
        OWN,
        cohorts,
        batches,
        last_batches=lambda i: batches(ROUNDS, i, "personal"),
        starts=lambda t, i: x[OWN],
        rates=[0.3] * ROUNDS,
        private_lr=0,
        steps=steps,
        solver="cg",
        product=model.hessian_product,
    )
    theta, personal = run_regression(federation, solver="cg", start="common", steps=steps)
    np.testing.assert_allclose(theta, expected["server theta"], atol=1e-10)
    np.testing.assert_allclose(personal, expected["personal"], atol=1e-10)


@pytest.mark.parametrize("solver", ["cg", "newton"])
def test_where_many_private_parts_fit_ffggs_exact_solvers_take_the_nearest_to_the_start(solver):
    """Two samples, four private coordinates: the Hessian has rank two.

    Whatever lies in its kernel must stay as it is.
    """
    federation = regression((2, 25, 2, 40, 2))
    draws = setting.draws(federation, "full")
    start = regression_start()
    theta, personal = run_regression(federation, solver=solver, start="common", steps=12)
    x = np.concatenate([theta, start[OWN]])
    for i, (X, y) in enumerate(draws.data):
        B = np.column_stack([X, np.ones(len(X))])[:, OWN]
        change = np.linalg.lstsq(B, y - Linear().outputs(x, X), rcond=None)[
            0
        ]  # of all solutions the one of least norm
        np.testing.assert_allclose(personal[i], np.concatenate([theta, x[OWN] + change]), atol=1e-8)


def test_ffggs_newton_step_is_defined_for_a_softmax_whose_hessian_is_singular(federation):
    """A constant added to all biases changes nothing, so the Hessian has a kernel.

    The probabilities after the step are defined all the same.
    """
    personal = outcome(
        run(
            il.Ffgg(part="bias", solver="newton", start="common"),
            federation,
            batching="full",
            rounds=0,
        )
    )["personal"]
    x = setting.start()
    private = PARTS["logistic", "bias"]
    for i, (X, y) in enumerate(setting.draws(federation).data):
        columns = [hessian_product(LOGISTIC, x, np.eye(len(x))[j], X, y)[private] for j in private]
        step = (
            np.linalg.pinv(np.stack(columns, axis=1), rcond=1e-10)
            @ LOGISTIC.gradient(x, X, y)[private]
        )
        change = personal[i][private] - (x[private] - step)
        np.testing.assert_allclose(change, change.mean(), atol=1e-8)


@pytest.mark.parametrize("part", ["input", "output"])
def test_ffggs_conjugate_gradients_stay_where_they_have_arrived(federation, part):
    """At most 15 coordinates: 25 steps are enough.

    60 must not wander off along directions without curvature.
    """

    def losses(steps):
        method = il.Ffgg(part=part, solver="cg", start="common", steps=steps)
        session = run(method, federation, "network", batching="full", rounds=0).session()
        return session.engine.evaluate(torch.arange(N), ("train",))["train"].loss

    np.testing.assert_allclose(losses(60), losses(25), atol=1e-6)
