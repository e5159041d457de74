"""The quadratic problems of the FFGG paper: closed forms, constants, methods that run on them."""

import numpy as np
import pytest
import torch

import idiolect as il
from helpers import run, state_of
from idiolect.task.context import Here
from idiolect_papers.closed_forms.quadratic import NORMS, TRUTHS, Quadratic

SMALL = Quadratic(clients=5, samples=40, shared=6, private=4, noise=0.1, seed=3)
SPREAD = Quadratic(clients=5, samples=40, shared=6, private=4, zeta=2.0, noise=0.1, seed=3)
FEW = Quadratic(clients=3, samples=3, shared=6, private=4, seed=1)  # fewer rows than unknowns
every_problem = pytest.mark.parametrize("drawn", [SMALL, SPREAD, FEW], ids=["5.1", "E.1", "few"])


def by_hand(raw, theta, w):
    """(f, ∇_θ f, ∇_w f) of one client, as the paper writes it."""
    first = raw.H @ theta - raw.b
    second = raw.A @ theta + raw.B @ w - raw.y
    value = 0.5 * first @ first + 0.5 * second @ second
    return value, raw.H.T @ first + raw.A.T @ second, raw.B.T @ second


def best_by_hand(raw, theta):
    return np.linalg.pinv(raw.B) @ (raw.y - raw.A @ theta)


def loss_and_gradients(problem, theta, w):
    """f_m(θ, w_m), ∇_θ f_m and ∇_w f_m of every client, from the few rows of a problem."""
    residual = problem.T @ theta + (problem.W @ w.unsqueeze(-1)).squeeze(-1) - problem.t
    gradients = [(rows.mT @ residual.unsqueeze(-1)).squeeze(-1) for rows in (problem.T, problem.W)]
    return 0.5 * residual.square().sum(-1), *gradients


def point(drawn, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=drawn.shared), rng.normal(size=(drawn.clients, drawn.private))


@every_problem
def test_the_few_rows_of_a_problem_have_the_papers_loss_and_gradients(drawn):
    problem = drawn.draw()
    theta, w = point(drawn)
    expected = [by_hand(raw, theta, w_m) for raw, w_m in zip(drawn.raw(), w, strict=True)]
    given = torch.from_numpy(theta), torch.from_numpy(w)
    found = loss_and_gradients(problem, *given)
    for mine, theirs in zip(found, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(mine, np.stack(theirs), atol=1e-10)


@every_problem
@pytest.mark.parametrize("kernel", ["auto", "stacked", "vmap", "rows"])
def test_a_problem_is_a_task_whose_loss_and_gradient_are_the_papers(drawn, kernel):
    problem = drawn.draw()
    federation = problem.federation()
    task = problem.task().under(dtype=torch.float64, kernel=kernel)
    everyone = torch.arange(drawn.clients)
    keys = np.arange(drawn.clients, dtype=np.uint64)
    here = Here(
        federation, everyone, clients=keys, seed=0, round=0, batch=8, batching="full",
        dtype=torch.float64,
    )  # fmt: skip
    batch = here.draw()
    theta, w = point(drawn)
    x = task.split("w.*").join(torch.from_numpy(theta), torch.from_numpy(w))
    expected = [by_hand(raw, theta, w_m) for raw, w_m in zip(drawn.raw(), w, strict=True)]
    np.testing.assert_allclose(task.loss(x, batch), [f for f, _, _ in expected], atol=1e-10)
    gradients = [np.concatenate([a, b]) for _, a, b in expected]
    np.testing.assert_allclose(task.grad(x, batch), gradients, atol=1e-10)
    assert here.tally.tolist() == [1] * drawn.clients
    v = torch.from_numpy(np.random.default_rng(1).normal(size=x.shape))
    slope = task.grad(x + v, batch) - task.grad(x, batch)
    np.testing.assert_allclose(task.hvp(x, v, batch), slope, atol=1e-9)
    assert here.tally.tolist() == [5] * drawn.clients


@every_problem
def test_the_best_private_parts_and_the_operators_are_the_papers(drawn):
    problem = drawn.draw()
    theta, _ = point(drawn)
    w = [best_by_hand(raw, theta) for raw in drawn.raw()]
    F = [by_hand(raw, theta, w_m)[1] for raw, w_m in zip(drawn.raw(), w, strict=True)]
    given = torch.from_numpy(theta)
    np.testing.assert_allclose(problem.best_w(given), w, atol=1e-8)
    np.testing.assert_allclose(problem.operators(given), F, atol=1e-10)
    np.testing.assert_allclose(problem.operator(given), np.mean(F, axis=0), atol=1e-10)
    assert problem.norm(given) == pytest.approx(np.linalg.norm(np.mean(F, axis=0)))
    two = problem.at([0, 2])
    np.testing.assert_allclose(two.operator(given), (F[0] + F[2]) / 2, atol=1e-10)


@every_problem
def test_constants_are_those_of_example_1_and_the_true_ones(drawn):
    found = drawn.draw().constants()
    largest = {"phi": 0.0, "coupled": 0.0, "F": 0.0, "f": 0.0, "w": 0.0}
    slopes = []
    for raw in drawn.raw():
        coupled = raw.A.T @ (np.eye(drawn.samples) - raw.B @ np.linalg.pinv(raw.B)) @ raw.A
        slopes.append(raw.H.T @ raw.H + coupled)
        stacked = np.block([[raw.H, np.zeros((drawn.samples, drawn.private))], [raw.A, raw.B]])
        matrices = {"phi": raw.H.T @ raw.H, "coupled": coupled, "F": slopes[-1],
                    "f": stacked.T @ stacked, "w": raw.B.T @ raw.B}  # fmt: skip
        largest = {n: max(largest[n], np.linalg.norm(m, 2)) for n, m in matrices.items()}
    assert found.example1 == pytest.approx(2 * max(largest["phi"], largest["coupled"]))
    assert (found.F, found.f, found.w) == pytest.approx([largest[n] for n in ("F", "f", "w")])
    eigenvalues = np.linalg.eigvalsh(np.mean(slopes, axis=0))
    assert (found.mu_F, found.mean_F) == pytest.approx(eigenvalues[[0, -1]].tolist(), abs=1e-10)
    least = min(np.linalg.eigvalsh(raw.B.T @ raw.B)[0] for raw in drawn.raw())
    assert found.mu_w == pytest.approx(least, abs=1e-10)
    assert found.mean_F <= found.F <= found.example1  # Example 1's is a bound


@pytest.mark.parametrize("drawn", [SMALL, SPREAD], ids=["5.1", "E.1"])
def test_at_the_minimisers_the_gradients_vanish(drawn):
    problem = drawn.draw()
    theta, w = problem.minimiser()
    assert problem.norm(theta) < 1e-10
    _, *gradients = loss_and_gradients(problem, theta, w)
    for part in gradients:
        assert part.mean(0).norm() < 1e-10
    theta, one = problem.joint_minimiser()
    _, *gradients = loss_and_gradients(problem, theta, one)
    for part in gradients:
        assert part.mean(0).norm() < 1e-10


def test_only_a_common_theta_without_noise_is_optimal_for_every_client():
    """Assumption 2."""

    def largest(truth):
        drawn = Quadratic(clients=4, samples=40, shared=6, private=4, truth=truth, noise=0.0)
        problem = drawn.draw()
        return float(problem.operators(problem.minimiser()[0]).norm(dim=-1).max())

    assert [largest(truth) < 1e-10 for truth in TRUTHS] == [False, False, True]


@pytest.mark.parametrize("norm", NORMS)
def test_zeta_is_how_far_clients_matrices_are_from_the_common_ones(norm):
    drawn = Quadratic(clients=3, samples=30, shared=5, private=4, zeta=2.0, norm=norm)
    order = 2 if norm == "spectral" else None
    clients = list(drawn.raw())
    assert not np.allclose(clients[0].H, clients[1].H)
    nearly = list(Quadratic(clients=3, samples=30, shared=5, private=4, zeta=1e-9).raw())
    for raw in clients:
        for name in "HAB":
            away = getattr(raw, name) - getattr(nearly[0], name)
            assert np.linalg.norm(away, order) == pytest.approx(2.0, abs=1e-6)
    assert nearly[0].H.min() >= -1e-8 and nearly[0].H.max() <= 1 / 5 + 1e-8


def test_the_problem_of_the_notebook_on_byzantine_clients_is_drawn_with_its_seed():
    """Figures of an independent implementation of that notebook: norm at 0, largest slope."""
    problem = Quadratic(truth="common", noise=0.0, seed=42, clients=32).draw()
    assert problem.norm(torch.zeros(100, dtype=torch.float64)) == pytest.approx(12.80, abs=0.005)
    constants = problem.constants()
    assert constants.mean_F == pytest.approx(25.33, abs=0.005)
    assert (constants.w, constants.mu_w, constants.f) == pytest.approx((50.3, 0.29, 85.6), rel=0.02)


@pytest.mark.parametrize("name", il.METHODS)
def test_every_method_runs_on_a_problem_or_says_what_it_lacks(name):
    from idiolect.methods import make_method

    problem = SMALL.draw()
    how = {"batching": "full", "sample": 0}
    try:
        result = run(make_method(name), problem.federation(), problem.task(), **how)
    except il.SettingError as error:
        assert str(error).split()[0] in ("loss", "model", "public")
    else:
        assert np.isfinite(result.summary()["loss"]["mean"])


def test_ffgg_with_exact_solutions_descends_along_the_operator():
    problem = SPREAD.draw()
    lr = 1 / problem.constants().F
    method = il.Ffgg(part="w.*", lr=lr, solver="exact")
    result = run(method, problem.federation(), problem.task(), batching="full", sample=5, rounds=4)
    theta = torch.zeros(6, dtype=torch.float64)
    for _ in range(4):
        theta = theta - lr * problem.operator(theta)
    np.testing.assert_allclose(state_of(result)["theta"], theta, atol=1e-12)
