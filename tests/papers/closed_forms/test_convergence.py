"""What the experiments on convergence theorems rest on: problems, iterates, schedules, bounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import private_of, state_of
from idiolect.core import streams
from idiolect.run.schedule import Schedule
from idiolect_papers.closed_forms.convergence import (
    Scheduled,
    Smooth,
    averaged,
    draw_rounds,
    geometric_weights,
    step_weights,
)
from idiolect_papers.closed_forms.problems import STEEPEST, GemanMcClure, Means, Robust
from idiolect_papers.feddeper.figure1 import QuadraticRun, SquaredHinge, digits
from idiolect_papers.feddeper.theorem2 import BallRun
from idiolect_papers.lp_proj.quadratic import QuadraticCase
from idiolect_papers.lp_proj.smooth import Nonconvex
from idiolect_papers.lp_proj.theorem14 import PRACTICAL
from idiolect_papers.runs import Work, train_all
from idiolect_papers.theory import Slope
from reference import iterates, lpproj_rates

SMALL = Means(clients=4, samples=5, d=6, low=0.5, high=2.0, noise=0.7, spread=0.8)
both = pytest.mark.parametrize("everyone", [False, True])


def one_batch(task, federation, batch=3):
    """A mini-batch of every client."""
    from idiolect.task.context import Here

    rows = torch.arange(federation.clients)
    keys = streams.name_keys(federation.names)
    options = {"clients": keys, "seed": 0, "round": 0, "batch": batch, "batching": "replace"}
    return Here(federation, rows, dtype=torch.float64, **options).draw()


# -- iterates --------------------------------------------------------------------------------------
def test_the_averaged_iterate_is_that_of_theorem_9():
    w = np.random.default_rng(0).standard_normal((30, 4))
    expected = iterates.geometric_average(w, 0.1)
    ours = averaged(torch.from_numpy(w), geometric_weights(30, 0.1))
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_weights_do_not_overflow_where_the_formula_does():
    weights = geometric_weights(5000, 0.5)
    assert torch.isfinite(weights).all()
    assert float(weights.sum()) == pytest.approx(1)


def test_a_random_round_is_drawn_with_the_chances_of_theorem_15():
    steps = 1 / torch.arange(1, 8).double().sqrt()
    chance = iterates.chances(steps.tolist())
    np.testing.assert_allclose(step_weights(steps), chance, rtol=1e-14)
    drawn = draw_rounds(step_weights(steps), 20_000, seed=3)
    uniform = streams.uniform(streams.keys(3, "t*"), 20_000)[0]
    assert drawn.tolist()[:500] == [iterates.drawn(chance, u) for u in uniform[:500]]
    shares = torch.bincount(drawn, minlength=7) / 20_000
    np.testing.assert_allclose(shares, chance, atol=0.015)


# -- following a run -------------------------------------------------------------------------------
def test_following_a_run_gives_the_rounds_of_the_run():
    method = il.LpProj(p=2.0, dim=3, lam=0.5, lr=0.4, steps=5)
    settings = {"rounds": 4, "sample": 2, "batch": 3, "dtype": "float64"}
    schedule = "lr=inverse:0.5 + nu=inverse:0.5 + batch=grow:0.5"
    federation, task = SMALL.federation(), SMALL.task()
    *_, last = il.iterate(method, task, federation, **settings, schedule=schedule)
    result = il.run(method, task, federation, **settings, schedule=schedule, eval_every=0)
    assert last.round == 4
    assert torch.equal(last.server["w"], state_of(result)["w"])
    assert torch.equal(last.private()["x"], private_of(result)["x"])


def test_another_repetition_draws_other_numbers_with_the_same_projection():
    method = il.LpProj(p=2.0, dim=3, lam=0.5, lr=0.4, steps=5)
    settings = {"rounds": 2, "sample": 2, "batch": 3, "dtype": "float64"}
    ends = [
        list(il.iterate(method, SMALL.task(), SMALL.federation(r), **settings)) for r in (0, 0, 1)
    ]
    first, again, other = (end[-1].server["w"] for end in ends)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


# -- quadratics ------------------------------------------------------------------------------------
def test_the_gradient_of_the_quadratics_is_that_of_the_task():
    federation = SMALL.federation()
    plain = il.Task(nn.Linear(1, SMALL.d, bias=False), "half_squared").under(dtype=torch.float64)
    fast = SMALL.task().under(dtype=torch.float64)
    batch = one_batch(plain, federation)
    x = torch.randn(SMALL.clients, SMALL.d, dtype=torch.float64)
    torch.testing.assert_close(fast.grad(x, batch), plain.grad(x, batch), rtol=1e-12, atol=1e-12)


def test_the_quadratics_have_the_constants_they_claim():
    federation = SMALL.federation()
    task = SMALL.task().under(dtype=torch.float64)
    for k in range(SMALL.clients):
        inputs, targets = federation.part(k, "train")
        scale = float(inputs[0])
        h = float(SMALL.curvatures[k])
        assert scale**2 / SMALL.d == pytest.approx(h)
        samples = targets / scale
        torch.testing.assert_close(samples.mean(0), SMALL.centres[k])
        noise = (h * (samples - SMALL.centres[k])).square().sum(1).mean()
        assert float(noise) == pytest.approx(float(SMALL.gradient_noise[k]))
    h = SMALL.curvatures[:, None]
    assert (h * (SMALL.minimiser - SMALL.centres)).sum(0).abs().max() < 1e-12
    assert task.x0.abs().max() == 0


def test_the_envelope_is_as_convex_and_smooth_as_proposition_3_says():
    case = QuadraticCase(problem=SMALL, dim=3)
    theory = case.theory()
    values = torch.linalg.eigvalsh(case.lam * case.solved().A)
    assert theory.mu_F <= float(values.min()) * (1 + 1e-9)
    assert float(values.max()) <= theory.L_F * (1 + 1e-9)
    assert case.solved().excess(case.solved().w) == 0


def test_lpproj_with_the_schedules_of_theorem_14_comes_to_the_known_solution():
    exact = replace(SMALL, noise=0.0)
    case = QuadraticCase(problem=exact, dim=3, clients_per_round=exact.clients)
    theory = case.theory()
    *_, last = case.rounds(theory.scheduled(1, PRACTICAL * theory.kappa_F), 150, 0)
    assert float((last.server["w"] - case.solved().w).square().sum()) < 1e-3 * theory.start
    away = (last.private()["x"] - case.solved().x).square().sum(1).mean()
    assert float(away) < 1e-3 * float(case.solved().x.square().sum(1).mean())


# -- schedules and bounds --------------------------------------------------------------------------
@both
def test_schedules_are_those_of_theorem_14(everyone):
    case = QuadraticCase(
        problem=SMALL, dim=3, clients_per_round=SMALL.clients if everyone else 2, beta=3.0
    )
    theory = case.theory()
    plan = theory.scheduled(2)
    first = lpproj_rates.theorem14(0, theory.mu_F, theory.zeta, 3.0, 2, 1.0, everyone)
    schedule = Schedule.parse(plan.schedule)
    for t in (0, 1, 7, 1000):
        factors = schedule.factors(t, 2000)
        D = first[2] / plan.batch  # so that D_0 = 2
        eta, nu, samples = lpproj_rates.theorem14(t, theory.mu_F, theory.zeta, 3.0, 2, D, everyone)
        assert plan.lr * factors["lr"] == pytest.approx(eta, rel=1e-12)
        assert plan.nu * factors["nu"] == pytest.approx(nu, rel=1e-12)
        assert plan.batch * factors["batch"] == pytest.approx(samples, rel=1e-12)


@both
def test_schedules_are_those_of_theorem_15(everyone):
    case = Nonconvex(clients_per_round=10 if everyone else 2, beta=3.0)
    theory = case.theory()
    plan = theory.scheduled(2)
    first = lpproj_rates.theorem15(0, case.lam, 3.0, 2, 1.0, everyone)
    schedule = Schedule.parse(plan.schedule)
    for t in (0, 1, 7, 1000):
        factors = schedule.factors(t, 2000)
        eta, nu, samples = lpproj_rates.theorem15(
            t, case.lam, 3.0, 2, first[2] / plan.batch, everyone
        )
        assert plan.lr * factors["lr"] == pytest.approx(eta, rel=1e-12)
        assert plan.nu * factors["nu"] == pytest.approx(nu, rel=1e-12)
        assert plan.batch * factors["batch"] == pytest.approx(samples, rel=1e-12)


@both
def test_bounds_are_those_of_the_proofs(everyone):
    quadratic = QuadraticCase(
        problem=SMALL, dim=3, clients_per_round=SMALL.clients if everyone else 2, beta=3.0
    )
    theory = quadratic.theory()
    plan = theory.scheduled(2)
    power = 2 if everyone else 1

    def later(t):
        growth = (1 + t / theory.zeta) ** power
        return plan.nu / growth, plan.batch * growth

    expected = lpproj_rates.bound14(
        50, theory.mu, theory.mu_F, theory.lam, theory.s, theory.zeta, 3.0, theory.clients,
        theory.clients_per_round, theory.noise, theory.diversity, theory.start, later,
    )  # fmt: skip
    assert float(theory.bound14(50, plan)[-1]) == pytest.approx(expected, rel=1e-12)
    case = Nonconvex(clients_per_round=10 if everyone else 2, beta=3.0)
    smooth = case.theory()
    found = smooth.scheduled(2)

    def now(t):
        eta, nu, _ = lpproj_rates.theorem15(t, case.lam, 3.0, 2, 1.0, everyone)
        return 3.0 * 2 * eta, nu, 2 * found.nu / nu

    expected = lpproj_rates.bound15(
        40, smooth.lam, 0.0, smooth.L, 3.0, 10, smooth.clients_per_round, smooth.noise,
        smooth.diversity, smooth.start, now,
    )  # fmt: skip
    assert float(smooth.bound15(40, found)[-1]) == pytest.approx(expected, rel=1e-12)


def test_the_step_of_theorem_9_is_at_most_its_largest_one():
    theory = QuadraticCase().theory()
    least = math.ceil(2 / (theory.most * theory.mu_F))
    for T in (least, 10 * least, 1000 * least):
        step = theory.step(T, batch=4, nu=1e-6)
        assert 2 / (theory.mu_F * T) <= step * (1 + 1e-12)
        assert step <= theory.most


# -- the smooth problem ----------------------------------------------------------------------------
def test_the_loss_of_geman_and_mcclure_has_its_derivative():
    outputs = torch.randn(2, 1, 7, dtype=torch.float64)
    targets = torch.randn(2, 7, dtype=torch.float64)
    weights = torch.rand(2, 7, dtype=torch.float64)
    loss = GemanMcClure()
    by_autograd = loss.delta_by_autograd(outputs, targets, weights, targets.shape)
    torch.testing.assert_close(loss.delta(outputs, targets, weights), by_autograd)


def test_the_gradient_of_the_envelope_is_that_of_its_value():
    problem = Robust(clients=3, samples=20, d=9)
    lam = Smooth.least_lam(problem.L)
    w = torch.randn(4, problem.dim, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(problem.value(w, lam).sum(), w)
    torch.testing.assert_close(problem.gradients(w.detach(), lam), expected, rtol=1e-9, atol=1e-12)


def test_gradients_of_the_smooth_problem_are_bounded_as_claimed():
    problem = Robust(clients=3, samples=20, d=9)
    torch.testing.assert_close(problem.P @ problem.P.T, torch.eye(problem.dim).double())
    task = problem.task().under(dtype=torch.float64)
    batch = one_batch(task, problem.federation(), batch=1)
    largest = max(
        float(task.grad(5 * torch.randn(3, 9, dtype=torch.float64), batch).square().sum(1).max())
        for _ in range(50)
    )
    assert largest <= problem.gradient_bound * (1 + 1e-9)
    r = torch.linspace(0, 3, 30_001, dtype=torch.float64)
    assert float((r / (1 + r**2) ** 2).max()) == pytest.approx(STEEPEST, abs=1e-8)


# -- FedDeper --------------------------------------------------------------------------------------
@pytest.mark.parametrize("tau", [1, 3, 12])
def test_fedavg_on_quadratics_ends_where_the_formula_says(tau):
    job = QuadraticRun(replace(SMALL, noise=0.0), tau, total=12)
    torch.testing.assert_close(torch.tensor(job.train()["x"]).double(), job.end())


def test_the_digits_are_dealt_out_without_loss_and_sorted_as_asked():
    sums = []
    for share in (0.0, 0.5, 1.0):
        federation, inputs, targets = digits(10, share)
        assert federation.sizes("train").tolist() == [179] * 10
        sums.append(float(inputs.sum()))
        kinds = [len(np.unique(inputs[k * 179 : (k + 1) * 179].numpy(), axis=0)) for k in range(10)]
        assert min(kinds) > 100
        odd = [float(targets[k * 179 : (k + 1) * 179].double().mean()) for k in range(10)]
        unlike = max(odd) - min(odd)
        assert (unlike < 0.25) if share == 0 else (unlike > (0.9 if share == 1 else 0.3))
    assert max(sums) == pytest.approx(min(sums))


def test_the_squared_hinge_has_its_derivative():
    outputs = torch.randn(2, 1, 7, dtype=torch.float64)
    targets = torch.randint(2, (2, 7))
    weights = torch.rand(2, 7, dtype=torch.float64)
    loss = SquaredHinge()
    by_autograd = loss.delta_by_autograd(outputs, targets, weights, targets.shape)
    torch.testing.assert_close(loss.delta(outputs, targets, weights), by_autograd)


def test_the_inner_points_of_feddeper_are_its_own_steps():
    """v after τ steps, by the formula, is what mixing (line 10) finds in the next round's v."""
    job = BallRun(rounds=1, rate=0.5, lam=0.0, heard=10)  # λ = 0: the next v_{i,0} is v_{i,τ}
    method = il.FedDeper(lr=job.theory().lr, steps=job.steps, rho=0.0, lam=0.0)
    problem = job.problem
    settings = {"rounds": 1, "sample": 10, "batching": "full", "dtype": "float64"}
    *_, last = il.iterate(method, problem.task(), problem.federation(), **settings)
    shrunk = (1 - job.theory().lr * problem.curvatures[:, None]) ** job.steps
    expected = problem.centres + shrunk * (0 - problem.centres)
    torch.testing.assert_close(last.private()["v"], expected)


def test_assumption_3_of_feddeper_holds_with_equality_for_equal_curvatures():
    job = BallRun(rounds=1, rate=0.2)
    theory, problem = job.theory(), job.problem
    x = torch.randn(problem.d, dtype=torch.float64)
    slopes = problem.curvatures[:, None] * (x - problem.centres)
    mean = slopes.mean(0).square().sum()
    assert float(slopes.square().sum(1).mean()) == pytest.approx(float(mean) + theory.G2)


# -- jobs ------------------------------------------------------------------------------------------
def test_a_slope_is_that_of_a_power():
    x = [1.0, 2.0, 4.0, 8.0]
    slope = Slope.of(x, np.array([[t**-1.5 for t in x], [3 * t**-1.5 for t in x]]), low=2)
    assert slope.near(-1.5, 1e-9)
    assert not slope.near(-1.4, 0.05)


def test_what_is_stored_of_an_experiment_goes_when_it_is_done(tmp_path):
    jobs = [QuadraticRun(replace(SMALL, noise=0.0), tau, total=4) for tau in (1, 2)]
    results = train_all(jobs, tmp_path, "example", workers=1)
    assert list(results) == jobs
    assert not list(tmp_path.iterdir())
    assert isinstance(jobs[0], Work)


def test_a_plan_of_constant_settings_is_no_schedule():
    assert Scheduled(0.1, 1e-3, 4).run == {"batch": 4, "schedule": "constant"}
