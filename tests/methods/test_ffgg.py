"""FFGG and Local FFGG are their algorithms, with every solver."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import cg as scipy_cg
from torch import nn

import helpers
import idiolect as il
from idiolect.core import streams
from idiolect.methods.ffgg import solve
from idiolect.task.context import Here
from idiolect_papers.closed_forms.quadratic import Quadratic
from methods.common import LOGISTIC, PARTS, Case, N, assert_equals, every_batching, every_part
from reference import setting
from reference.ffgg import ffgg
from reference.ffgg_byzantine import byzantine_ffgg
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
    epochs=0,
    local_epochs=0,
):
    case = Case(federation, model, batching)
    private = PARTS[model, part]
    extra = {} if local_steps is None else {"local_steps": local_steps}
    passes = case.draws.passes
    by_hand = {"local_steps": passes(local_epochs)} if local_epochs else extra
    expected = ffgg(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        case.last_batches,
        starts_of(case, model, private, start),
        rates=[0.3] * ROUNDS,
        private_lr=0.2,
        steps=passes(epochs) if epochs else steps,
        solver=solver,
        kept=start == "kept",
        product=product,
        later=(lambda t, i: case.batches(t, i, "batch 1")) if epochs else None,
        **by_hand,
    )
    fields = {"part": part, "lr": 0.3, "private_lr": 0.2, "steps": steps, "epochs": epochs}
    fields |= {"solver": solver, "start": start} | extra
    if local_epochs:
        fields["local_epochs"] = local_epochs
    method = (il.Ffgg if local_steps is None else il.LocalFfgg)(**fields)
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


@every_batching
@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_ffgg_and_local_ffgg_counted_in_passes_are_their_algorithms(federation, batching, solver):
    """One local epoch for the private part; clients with fewer mini-batches take fewer steps."""
    for local_steps in (None, 3):
        check_ffgg(
            federation, "network", "output", solver, batching=batching, local_steps=local_steps,
            epochs=1,
        )  # fmt: skip
    for epochs in (0, 2):
        check_ffgg(
            federation, "network", "input", solver, batching=batching, local_steps=3,
            epochs=epochs, local_epochs=1,
        )  # fmt: skip


@pytest.mark.parametrize("solver", ["gd", "cg", "newton", "exact"])
def test_passes_over_the_data_need_a_solver_that_draws_mini_batches(solver):
    with pytest.raises(il.SettingError, match=f"epochs must be 0 with solver '{solver}'"):
        run(il.Ffgg(part="bias", solver=solver, epochs=1), setting.make_federation())


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


@pytest.mark.parametrize("solver", ["cg", "newton", "exact"])
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


@pytest.mark.parametrize("solver", ["cg", "newton", "exact"])
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


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_conjugate_gradients_over_rows_are_scipys_iterate_by_iterate(steps):
    drawn = Quadratic(clients=4, samples=300, shared=5, private=12, zeta=9.0, noise=0.5)
    problem = drawn.draw()
    task = problem.task().under(dtype=torch.float64)
    rng = np.random.default_rng(0)
    theta, start = rng.normal(size=5), rng.normal(size=(4, 12))
    keys = np.arange(4, dtype=np.uint64)
    here = Here(
        problem.federation(), torch.arange(4), clients=keys, seed=0, round=0, batch=8,
        batching="full", dtype=torch.float64,
    )  # fmt: skip
    found = solve(
        task, task.split("w.*"), torch.from_numpy(theta), torch.from_numpy(start), here, "cg", 0.0,
        steps,
    )  # fmt: skip
    for raw, w, mine in zip(drawn.raw(), start, found, strict=True):
        right = raw.B.T @ (raw.y - raw.A @ theta)
        theirs, _ = scipy_cg(raw.B.T @ raw.B, right, x0=w, maxiter=steps, rtol=0, atol=0)
        np.testing.assert_allclose(mine, theirs, atol=1e-10)
    assert here.tally.tolist() == [1 + 2 * steps] * 4


def test_a_row_of_conjugate_gradients_that_has_arrived_counts_no_more_products():
    """Client 0 starts at its solution; the others need two steps for two coordinates."""
    drawn = Quadratic(clients=3, samples=30, shared=5, private=2)
    problem = drawn.draw()
    task = problem.task().under(dtype=torch.float64)
    theta = torch.ones(5, dtype=torch.float64)
    start = torch.zeros(3, 2, dtype=torch.float64)
    start[0] = problem.best_w(theta)[0]

    def tally(solver, rows):
        here = Here(
            problem.federation(), torch.tensor(rows), clients=np.arange(3, dtype=np.uint64)[rows],
            seed=0, round=0, batch=8, batching="full", dtype=torch.float64,
        )  # fmt: skip
        split = task.split("w.*")
        w = solve(task, split, theta, start[rows], here, solver, 0.0, 30)
        np.testing.assert_allclose(w, problem.best_w(theta)[rows], atol=1e-10)
        return here.tally.tolist()

    together = tally("cg", [0, 1, 2])
    assert together == [n for i in range(3) for n in tally("cg", [i])]
    assert max(together[1:]) <= 1 + 2 * 4 < 1 + 2 * 30
    # one Newton step (2 products) between two gradients, or none at all
    assert tally("exact", [1, 2]) == [1 + 2 * 2 + 1] * 2


def test_ffggs_exact_solver_solves_a_loss_that_is_not_quadratic(federation):
    """With weight decay the best bias is unique; there its gradient is zero."""
    fields = {"part": "bias", "start": "common", "steps": 30}
    method = il.Ffgg(solver="exact", **fields)
    options = {"batching": "full", "rounds": 0, "weight_decay": 0.1}
    personal = outcome(run(method, federation, **options))["personal"]
    private = PARTS["logistic", "bias"]
    for x, (X, y) in zip(personal, setting.draws(federation).data, strict=True):
        g = (LOGISTIC.gradient(x, X, y) + 0.1 * x)[private]
        np.testing.assert_allclose(g, 0, atol=1e-10)
    one_step = outcome(run(il.Ffgg(solver="newton", **fields), federation, **options))["personal"]
    assert np.abs(one_step - personal).max() > 1e-6


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


# -- FFGG with malicious clients -------------------------------------------------------------------
BYZANTINE = {
    "rule": "bucketing(size=2) + median",
    "attack": "scaling(factor=-1)",
    "malicious": 3,
    "batching": "full",
    "sample": 11,
}


@pytest.mark.parametrize("solver", ["exact", "newton", "cg"])
def test_byzantine_robust_ffgg_is_algorithm_5(solver):
    drawn = Quadratic(clients=11, samples=60, shared=5, private=3, zeta=3.0, noise=0.1)
    problem = drawn.draw()
    lr = 1 / problem.constants().F
    method = il.Ffgg(part="w.*", lr=lr, solver=solver)
    result = helpers.run(
        method, problem.federation(), problem.task(), rounds=4, seed=SEED, **BYZANTINE
    )
    session = result.session()
    orders = [
        streams.bits(streams.keys(int(streams.keys(SEED, "rule", r)[0]), "bucketing"), 0, 11)[
            0
        ].argsort(kind="stable")
        for r in range(4)
    ]
    malicious = set(session.people.malicious.tolist())
    assert len(malicious) == 3
    start = np.zeros(5)
    expected = byzantine_ffgg(list(drawn.raw()), start, lr, 4, malicious, orders)
    np.testing.assert_allclose(session.server.state["theta"], expected, atol=1e-10)
    assert not np.allclose(
        expected, byzantine_ffgg(list(drawn.raw()), start, lr, 4, set(), orders), atol=1e-3
    )


def test_byzantine_robust_ffgg_finds_what_is_optimal_for_everyone():
    """Assumption 2 holds: all honest gradients vanish at one theta, and so does their median."""
    drawn = Quadratic(
        clients=11, samples=60, shared=5, private=3, zeta=3.0, truth="common", noise=0
    )
    problem = drawn.draw()
    method = il.Ffgg(part="w.*", lr=1 / problem.constants().F, solver="exact")

    def distance(**options):
        result = helpers.run(
            method, problem.federation(), problem.task(), rounds=150, **BYZANTINE | options
        )
        return float((result.session().server.state["theta"] - problem.minimiser()[0]).norm())

    assert distance() < 1e-8
    assert distance(rule="mean", attack="scaling(factor=-4)") > 1
