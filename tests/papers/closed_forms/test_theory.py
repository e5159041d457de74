"""Closed forms of federated linear regression agree with trained methods and with simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import idiolect as il
from helpers import run, state_of
from idiolect import projections
from idiolect.data.sets.regression import LinearRegression
from idiolect.methods import make_method
from idiolect_papers.closed_forms import linear_regression as linear
from idiolect_papers.closed_forms import linear_solutions as solutions
from reference import linear_regression as formulas
from reference import linear_solutions as by_data

N = 8
n = 30
d = 12
SETTING = LinearRegression(
    clients=N, samples=n, features=d, b=1.5, heterogeneity=0.3, noise=0.8, mean=0.2
)
LAM = 0.6
every_features = pytest.mark.parametrize("features", ["orthogonal", "unlike"])
every_projection = pytest.mark.parametrize("projection", ["identity", "gaussian"])
every_attack = pytest.mark.parametrize("attack", ["same_value", "sign_flip", "gaussian"])


def federation_of(features):
    """The paper's data; or correlated features, on a scale of each client's own."""
    federation, w = SETTING.draw()
    if features == "orthogonal":
        return federation
    generator = torch.manual_seed(1)
    xi = torch.stack([federation.part(k, "train")[0] for k in range(N)]) + 0.4 * torch.randn(
        N, n, d, generator=generator
    )
    xi = torch.linspace(0.6, 1.2, N).double()[:, None, None] * xi
    y = (xi @ w.unsqueeze(-1)).squeeze(-1) + torch.randn(N, n, generator=generator)
    return il.Federation.from_arrays(
        xi.reshape(-1, d), y.reshape(-1), torch.arange(N).repeat_interleave(n), valid=0, test=0
    )


def known(federation):
    """(H, ŵ) from the training data."""
    parts = [federation.part(k, "train") for k in range(N)]
    xi, y = torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])
    return by_data.curvature(xi), by_data.local(xi, y)


def trained(method, federation, rounds):
    """(shared model or None, personal models) after a run on all data with all clients heard."""
    task = il.Task(nn.Linear(d, 1, bias=False), "half_squared")
    result = run(method, federation, task, rounds=rounds, sample=N, batching="full")
    personal = torch.stack([result.personal(k).weight.detach()[0] for k in range(N)])
    return state_of(result).get("w"), personal


def projection_of(kind, dim):
    return (
        torch.eye(d).double()
        if kind == "identity"
        else projections.make_projection(
            projections.Spec(kind, dim), (0, d), 0, torch.float64, torch.device("cpu")
        ).rows
    )


def lpproj(kind, dim, **fields):
    exact = {"p": 2.0, "lam": LAM, "personal_lr": 0.2, "steps": 2000, "nu": 1e-14}
    return il.LpProj(projection=kind, dim=0 if kind == "identity" else dim, **(exact | fields))


def assert_near(got, expected, tolerance=1e-5):
    assert float((got - expected).norm() / expected.norm()) <= tolerance


# -- many rounds lead to the solutions of Appendix B.1 ---------------------------------------------
@every_features
def test_local_finds_the_least_squares_solution(features):
    federation = federation_of(features)
    _, found = known(federation)
    assert_near(trained(il.Local(lr=0.2, steps=30), federation, 10)[1], found)


@every_features
def test_fedavg_with_one_step_per_round_finds_the_minimiser_of_the_mean_loss(features):
    federation = federation_of(features)
    H, found = known(federation)
    w, _ = trained(il.FedAvg(lr=0.2, steps=1), federation, 150)
    assert_near(w, by_data.fedavg(H, found))


@every_features
def test_fedavg_with_many_steps_per_round_settles_where_the_theory_says(features):
    federation = federation_of(features)
    H, found = known(federation)
    w, _ = trained(il.FedAvg(lr=0.1, steps=8), federation, 60)
    assert_near(w, by_data.fedavg_after_many_rounds(H, found, 0.1, 8))
    beside = float((w - by_data.fedavg(H, found)).norm() / w.norm())
    assert beside < 1e-5 if features == "orthogonal" else beside > 1e-2


@every_features
def test_pfedme_finds_the_minimiser_of_its_objective(features):
    federation = federation_of(features)
    expected = by_data.pfedme(*known(federation), LAM)
    method = make_method("pfedme", lam=LAM, lr=1 / LAM, personal_lr=0.2, steps=2000, nu=1e-14)
    for got, true in zip(trained(method, federation, 60), expected, strict=True):
        assert_near(got, true)


@every_features
def test_ditto_finds_the_minimiser_of_its_objective(features):
    federation = federation_of(features)
    expected = by_data.ditto(*known(federation), LAM)
    method = make_method("ditto", lam=LAM, lr=0.2, steps=1, personal_lr=0.2, personal_steps=5)
    for got, true in zip(trained(method, federation, 150), expected, strict=True):
        assert_near(got, true)


@every_projection
@every_features
def test_lpproj_with_one_alternation_finds_the_minimiser_of_its_objective(features, projection):
    federation = federation_of(features)
    expected = solutions.lpproj(*known(federation), LAM, projection_of(projection, 5))
    for got, true in zip(
        trained(lpproj(projection, 5, lr=1 / LAM), federation, 60), expected, strict=True
    ):
        assert_near(got, true)


@every_projection
@every_features
def test_lpproj_with_many_alternations_settles_where_the_theory_says(features, projection):
    federation = federation_of(features)
    P = projection_of(projection, 5)
    lr = 0.8 / LAM
    R = 4
    H, found = known(federation)
    w, x = trained(lpproj(projection, 5, lr=lr, alternations=R), federation, 20)
    expected = by_data.lpproj_after_many_rounds(H, found, LAM, P, lr, R)
    assert_near(w, expected[0])
    assert_near(x, expected[1])
    minimiser, tied = solutions.lpproj(H, found, LAM, P)
    beside = float((w - minimiser).norm() / w.norm())
    assert beside < 1e-5 if features == "orthogonal" else beside > 1e-3
    assert (x - found).norm() < 0.8 * (
        tied - found
    ).norm()  # each alternation takes the personal model nearer to the local one


# -- the paper's one round of infinitely many steps ------------------------------------------------
@pytest.mark.parametrize("kind, dim", [("identity", d), ("gaussian", 5), ("gaussian", 1)])
def test_one_round_of_many_alternations_brings_the_server_the_mean_of_the_local_solutions(
    kind, dim
):
    federation = SETTING.load()
    P = projection_of(kind, dim)
    H, found = known(federation)
    w, x = trained(lpproj(kind, dim, lr=1 / LAM, alternations=60, nu=1e-24), federation, 1)
    assert_near(w, (found @ P.T).mean(0))
    assert_near(w, solutions.lpproj(H, found, LAM, P)[0])
    assert_near(
        x, found
    )  # and leaves the client with the local solution, until it is tied to the server's answer


@pytest.mark.parametrize(
    "kind, dim", [("identity", d), ("gaussian", 1)]
)  # one row of unit length is orthonormal
def test_the_step_size_that_makes_one_alternation_infinitely_many_gives_the_papers_round(kind, dim):
    federation = SETTING.load()
    b = SETTING.b
    expected = solutions.lpproj(*known(federation), LAM, projection_of(kind, dim))
    method = lpproj(kind, dim, lr=(b + LAM) / (b * LAM), nu=1e-24)  # η λ b / (b + λ) = 1
    for got, true in zip(
        trained(method, federation, 2), expected, strict=True
    ):  # up in round 1; down and tied in round 2
        assert_near(got, true)


def test_ditto_and_pfedme_end_the_papers_round_with_the_same_models():
    federation = SETTING.load()
    b = SETTING.b
    _, found = known(federation)
    rate = 1 / (b + LAM)
    ditto = il.Ditto(lam=LAM, lr=1 / b, steps=1, personal_lr=rate, personal_steps=1)
    pfedme = il.PFedMe(lam=LAM, lr=(b + LAM) / (b * LAM), personal_lr=rate)
    for got in (trained(method, federation, 2) for method in (ditto, pfedme)):
        assert_near(got[0], found.mean(0))
        assert_near(got[1], (b * found + LAM * found.mean(0)) / (b + LAM))


def test_scaled_orthogonal_features_give_the_weighted_means_printed_in_the_paper():
    b = torch.linspace(0.5, 2, N).double()
    H = b[:, None, None] * torch.eye(d).double()
    found = torch.randn(N, d, generator=torch.manual_seed(0)).double()
    P = orthonormal(4)
    weights = (b / (b + LAM))[:, None]
    assert_near(by_data.fedavg(H, found), (b[:, None] * found).sum(0) / b.sum())
    assert_near(by_data.pfedme(H, found, LAM)[0], (weights * found).sum(0) / weights.sum())
    w, x = solutions.lpproj(H, found, LAM, P)
    assert_near(w, (weights * found).sum(0) @ P.T / weights.sum())
    free = found - found @ P.T @ P
    assert_near(x, free + ((b[:, None] * found @ P.T + LAM * w) / (b[:, None] + LAM)) @ P)


# -- expected losses -------------------------------------------------------------------------------
def orthonormal(dim, size=d):
    return torch.linalg.qr(torch.randn(size, dim, generator=torch.manual_seed(3)).double())[0].T


def simulated(P, lam, attack=None, tau=0.0, draws=3000):
    """Losses [draws, N] of many federations with the same true parameters.

    Each draws its data, plays the paper's round with its attack, and draws test data.
    """
    generator = torch.manual_seed(7)
    federation, w = SETTING.draw()
    xi = torch.stack([federation.part(k, "train")[0] for k in range(N)])
    clean = (xi @ w.unsqueeze(-1)).squeeze(-1)
    y, test = clean + SETTING.noise * torch.randn(
        2, draws, N, n, generator=generator, dtype=torch.float64
    )
    found = by_data.local(xi, y)
    up = found @ P.T
    c = tau * torch.randn(draws, N, 1, generator=generator, dtype=torch.float64)
    forged = {"same_value": c.expand_as(up), "sign_flip": -c.abs() * up}
    forged["gaussian"] = tau * torch.randn(up.shape, generator=generator, dtype=torch.float64)
    shared = (torch.where(MALICIOUS[:, None], forged[attack], up) if attack else up).mean(
        -2, keepdim=True
    )
    H = by_data.curvature(xi)
    x = shared @ P if math.isinf(lam) else solutions.tied(H, found, lam, P, shared)
    return ((xi @ x.unsqueeze(-1)).squeeze(-1) - test).square().mean(-1) / 2, w


MALICIOUS = torch.arange(N) % 4 == 1  # two of eight


def assert_chance_agrees(values, expected, errors=4.0):
    assert abs(float(values.mean()) - expected) <= errors * float(values.std()) / len(values) ** 0.5


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.6, 5.0])
def test_simulated_losses_have_the_expected_means(lam):
    whole = torch.eye(d).double()
    P = orthonormal(4)
    loss, w = simulated(whole, lam)
    assert_chance_agrees(loss.mean(1), linear.pfedme_loss(SETTING, lam, formulas.spread_of(w)))
    loss, w = simulated(P, lam)
    assert_chance_agrees(
        loss.mean(1), linear.lpproj_loss(SETTING, lam, 4, formulas.spread_of(w, P))
    )
    if lam == 0:
        assert_chance_agrees(loss.mean(1), linear.local_loss(SETTING))


def test_simulated_losses_of_fedavg_have_the_expected_mean():
    loss, w = simulated(torch.eye(d).double(), math.inf)
    assert_chance_agrees(loss.mean(1), formulas.fedavg_loss(SETTING, formulas.spread_of(w)))


@pytest.mark.parametrize("tau", [0.0, 2.0, 20.0])
@every_attack
def test_simulated_losses_of_benign_clients_under_attack_have_the_expected_means(attack, tau):
    whole = torch.eye(d).double()
    P = orthonormal(4)
    changed = getattr(linear, f"{attack}_spread")
    loss, w = simulated(whole, LAM, attack, tau)
    assert_chance_agrees(
        loss[:, ~MALICIOUS].mean(1),
        linear.pfedme_loss(SETTING, LAM, changed(SETTING, w, MALICIOUS, tau)),
    )
    loss, w = simulated(P, LAM, attack, tau)
    assert_chance_agrees(
        loss[:, ~MALICIOUS].mean(1),
        linear.lpproj_loss(SETTING, LAM, 4, changed(SETTING, w, MALICIOUS, tau, P)),
    )
    loss, w = simulated(whole, math.inf, attack, tau)
    assert_chance_agrees(
        loss[:, ~MALICIOUS].mean(1),
        formulas.fedavg_loss(SETTING, changed(SETTING, w, MALICIOUS, tau)),
    )


@every_attack
def test_no_malicious_client_is_no_attack(attack):
    w = SETTING.draw()[1]
    nobody = torch.zeros(N, dtype=torch.bool)
    assert getattr(linear, f"{attack}_spread")(SETTING, w, nobody, 5.0) == pytest.approx(
        formulas.spread_of(w)
    )


@pytest.mark.parametrize("name", ["local", "fedavg", "pfedme", "ditto", "lp-proj"])
def test_trained_models_have_the_expected_test_loss(name):
    """Data drawn anew, a run, its evaluation; against the expectation for the true parameters."""
    b = SETTING.b
    eta = (b + LAM) / (b * LAM)
    tied = {"lam": LAM, "personal_lr": 1 / (b + LAM)}
    method = {
        "local": lambda: il.Local(lr=1 / b, steps=1),
        "fedavg": lambda: il.FedAvg(lr=1 / b, steps=1),
        "pfedme": lambda: make_method("pfedme", lr=eta, **tied),
        "ditto": lambda: make_method("ditto", lr=1 / b, steps=1, personal_steps=1, **tied),
        "lp-proj": lambda: lpproj("gaussian", 1, lr=eta),
    }[name]()
    P = projection_of("gaussian", 1)
    excess = []
    for seed in range(24):
        s = LinearRegression(**{**SETTING.as_dict(), "seed": seed})
        federation, w = s.draw()
        task = il.Task(nn.Linear(d, 1, bias=False), "half_squared")
        result = il.run(
            method,
            task,
            federation,
            rounds=2,
            sample=N,
            batching="full",
            dtype="float64",
            eval_every=0,
        )
        expected = {
            "local": lambda s, w: linear.local_loss(s),
            "fedavg": lambda s, w: formulas.fedavg_loss(s, formulas.spread_of(w)),
            "pfedme": lambda s, w: linear.pfedme_loss(s, LAM, formulas.spread_of(w)),
            "ditto": lambda s, w: linear.pfedme_loss(s, LAM, formulas.spread_of(w)),
            "lp-proj": lambda s, w: linear.lpproj_loss(s, LAM, 1, formulas.spread_of(w, P)),
        }[name](s, w)
        excess.append(result.summary()["loss"]["mean"] - expected)
    assert_chance_agrees(torch.tensor(excess), 0.0)


# -- the best λ and the thresholds -----------------------------------------------------------------
FIGURE1 = LinearRegression()
ATTACKED = linear.attacked_spread(FIGURE1, spread=0.1, malicious=20, power=100.0**2)
SPREADS = [0.001, 0.004, 0.02, 0.1, 1.0, ATTACKED]


@pytest.mark.parametrize("spread", SPREADS)
def test_the_best_lambda_minimises_the_losses(spread):
    best = linear.best_lam(FIGURE1, spread)
    for loss in (
        lambda lam: linear.pfedme_loss(FIGURE1, lam, spread),
        lambda lam: linear.lpproj_loss(FIGURE1, lam, 10, spread),
    ):
        assert minimize_scalar(
            lambda t, loss=loss: loss(best * 10**t), bounds=(-2, 2), method="bounded"
        ).x == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("spread", SPREADS)
def test_the_slope_is_that_of_the_loss(spread):
    for lam in (0.5, 1.0, 2.0):
        rise = linear.lpproj_loss(FIGURE1, lam + 1e-5, 10, spread) - linear.lpproj_loss(
            FIGURE1, lam - 1e-5, 10, spread
        )
        assert rise / 2e-5 == pytest.approx(
            formulas.lpproj_slope(FIGURE1, lam, 10, spread), rel=1e-4, abs=1e-9
        )


def test_where_malicious_clients_only_help_lambda_cannot_be_too_large():
    """True parameters and malicious messages are all zero: FedAvg is best."""
    helped = linear.attacked_spread(FIGURE1, spread=0.0, malicious=20, power=0.0)
    assert linear.best_lam(FIGURE1, helped) == math.inf
    assert formulas.fedavg_loss(FIGURE1, helped) < min(
        linear.pfedme_loss(FIGURE1, lam, helped) for lam in (0.1, 1.0, 10.0, 100.0)
    )


def test_figure_1_has_lambda_star_half_of_what_is_printed_and_the_threshold_there():
    assert linear.best_lam(FIGURE1, ATTACKED) == pytest.approx(2.4627e-4, rel=1e-4)
    assert linear.lpproj_wins_from(FIGURE1, ATTACKED) == pytest.approx(4.9266e-4, rel=1e-4)


@pytest.mark.parametrize("spread", SPREADS)
def test_lpproj_is_no_worse_than_pfedme_if_and_only_if_lambda_reaches_the_threshold(spread):
    threshold = linear.lpproj_wins_from(FIGURE1, spread)
    assert (threshold == math.inf) == (linear.best_lam(FIGURE1, spread) >= FIGURE1.b)
    grid = (
        np.geomspace(1e-6, 1e6, 200)
        if threshold == math.inf
        else threshold * np.geomspace(1e-3, 1e3, 200)
    )
    for lam in grid:
        order = [
            linear.local_loss(FIGURE1),
            linear.lpproj_loss(FIGURE1, lam, 10, spread),
            linear.pfedme_loss(FIGURE1, lam, spread),
        ]
        assert (order == sorted(order)) == (lam >= threshold)
        assert (order == sorted(order, reverse=True)) == (lam < threshold)


@pytest.mark.parametrize("spread", SPREADS)
def test_local_and_pfedme_beat_fedavg_if_and_only_if_the_thresholds_say_so(spread):
    everywhere = formulas.fedavg_loss(FIGURE1, spread)
    assert (linear.local_loss(FIGURE1) <= everywhere) == (
        linear.best_lam(FIGURE1, spread) <= FIGURE1.b
    )
    for lam in np.geomspace(1e-4, 1e4, 101):
        assert (linear.pfedme_loss(FIGURE1, lam, spread) <= everywhere) == (
            lam >= formulas.pfedme_beats_fedavg_from(FIGURE1, spread)
        )


@pytest.mark.parametrize("dim", [1, 10, 90])
@pytest.mark.parametrize("lam", [0.01, 0.5, 1.0, 3.0, 100.0])
def test_lpproj_meets_fedavg_at_the_spread_where_it_begins_to_beat_it(lam, dim):
    spread = formulas.lpproj_beats_fedavg_from(FIGURE1, lam, dim)
    assert linear.lpproj_loss(FIGURE1, lam, dim, spread) == pytest.approx(
        formulas.fedavg_loss(FIGURE1, spread), rel=1e-12
    )
    assert linear.lpproj_loss(FIGURE1, lam, dim, 1.01 * spread) < formulas.fedavg_loss(
        FIGURE1, 1.01 * spread
    )
    assert linear.lpproj_loss(FIGURE1, lam, dim, 0.99 * spread) > formulas.fedavg_loss(
        FIGURE1, 0.99 * spread
    )


@pytest.mark.parametrize("tau", [0.0, 0.3, 10.0])
def test_the_losses_under_attack_are_those_of_theorem_30(tau):
    """Eq. (39) as printed, where the noise of one client weighs as much as the rest."""
    s = LinearRegression(clients=5, samples=4, features=4, b=1.5, noise=2.0)
    malicious = 3
    dim = 3
    spread = 0.2
    b = s.b
    v = s.noise**2 / (s.b * s.samples)
    changed = linear.attacked_spread(s, spread, malicious, tau**2)
    for lam in (0.1, 1.0, 7.0):
        numerator = (
            (b**2 + 2 * b * lam / 5 + 2 * lam**2 / 25) * v
            + malicious * lam**2 / 25 * tau**2
            + lam**2 * spread
        )
        one = b / 2 * numerator / (b + lam) ** 2
        assert linear.pfedme_loss(s, lam, changed) == pytest.approx(s.noise**2 / 2 + 4 * one)
        assert linear.lpproj_loss(s, lam, dim, changed) == pytest.approx(
            s.noise**2 / 2 + dim * one + (4 - dim) * s.noise**2 / 8
        )
    everywhere = s.noise**2 / 2 + b * 4 / 50 * (2 * v + malicious * tau**2) + b * 4 * spread / 2
    assert formulas.fedavg_loss(s, changed) == pytest.approx(everywhere)


@pytest.mark.parametrize("spread", SPREADS)
def test_at_the_best_lambda_every_further_shared_dimension_helps_by_the_same_amount(spread):
    best = linear.best_lam(FIGURE1, spread)
    steps = -np.diff([linear.lpproj_loss(FIGURE1, best, dim, spread) for dim in range(0, 101, 10)])
    gain = (
        FIGURE1.noise**2
        * best
        / (2 * FIGURE1.samples * (FIGURE1.b + best))
        * (1 - 1 / FIGURE1.clients)
    )  # Remark 31
    np.testing.assert_allclose(steps, 10 * gain, rtol=1e-6)


# -- fairness --------------------------------------------------------------------------------------
def any_covariance(seed=0):
    root = torch.randn(d, d, generator=torch.manual_seed(seed)).double() / d**0.5
    return root @ root.T + 0.1 * torch.eye(d).double()


def federations(covariance, draws):
    root = torch.linalg.cholesky(covariance)
    return (
        0.7
        + torch.randn(draws, N, d, generator=torch.manual_seed(11), dtype=torch.float64) @ root.T
    )


@pytest.mark.parametrize("P", [None, orthonormal(4)], ids=["pfedme", "lp-proj"])
def test_the_simulated_variance_over_clients_has_the_expected_mean(P):
    S = any_covariance()
    drawn = torch.tensor([linear.variance(SETTING, LAM, w, P) for w in federations(S, 6000)])
    assert_chance_agrees(drawn, linear.expected_variance(SETTING, LAM, S, P))


@pytest.mark.parametrize("P", [None, orthonormal(4)], ids=["pfedme", "lp-proj"])
@pytest.mark.parametrize("lam", [0.0, 0.1, 0.6, 5.0])
def test_the_simulated_variance_of_realised_losses_has_the_expected_mean(P, lam):
    s = LinearRegression(**{**SETTING.as_dict(), "noise": 5.0})
    S = any_covariance()
    seen = torch.eye(d).double() if P is None else P
    w = federations(S, 6000)
    noise = torch.randn(w.shape, generator=torch.manual_seed(12), dtype=torch.float64)
    found = w + s.noise / (s.b * n) ** 0.5 * noise
    x = solutions.lpproj(s.b * torch.eye(d).double().expand(N, d, d), found, lam, seen)[1]
    drawn = (s.b / 2 * (x - w).square().sum(-1)).var(1, correction=0)
    assert_chance_agrees(drawn, linear.realised_variance(s, lam, S, P))


def test_the_variance_of_given_clients_is_that_of_their_simulated_expected_losses():
    P = orthonormal(4)
    loss, w = simulated(P, 5.0, draws=10000)
    assert float(loss.mean(0).var(correction=0)) == pytest.approx(
        linear.variance(SETTING, 5.0, w, P), rel=0.05
    )


@pytest.mark.parametrize("seed", range(5))
def test_lpproj_is_expected_to_be_no_less_fair_than_pfedme_and_that_no_less_than_fedavg(seed):
    S = any_covariance(seed)
    for lam in (0.01, 0.1, 1.0, 10.0):
        values = [linear.expected_variance(SETTING, lam, S, orthonormal(dim)) for dim in (1, 4, 8)]
        values += [
            linear.expected_variance(SETTING, lam, S),
            linear.expected_variance(SETTING, math.inf, S),
        ]
        assert values == sorted(values)


def test_a_larger_lambda_is_less_fair_in_expected_losses():
    values = [
        linear.expected_variance(SETTING, lam, any_covariance())
        for lam in (0.0, 0.1, 1.0, 10.0, math.inf)
    ]
    assert values == sorted(values) and values[0] == 0


def test_without_noise_realised_losses_are_expected_losses():
    s = LinearRegression(**{**SETTING.as_dict(), "noise": 0.0})
    S = any_covariance()
    P = orthonormal(4)
    assert linear.realised_variance(s, LAM, S, P) == pytest.approx(
        linear.expected_variance(s, LAM, S, P)
    )


@pytest.mark.parametrize("heterogeneity", [0.02, 0.1, 1.0])
def test_with_training_noise_and_many_clients_lpproj_is_fairer_exactly_where_it_is_better(
    heterogeneity,
):
    s = LinearRegression(clients=10**6, samples=n, features=d, heterogeneity=heterogeneity)
    S = heterogeneity * torch.eye(d).double()
    threshold = linear.lpproj_wins_from(s, heterogeneity)
    for lam in np.geomspace(1e-3, 1e3, 30):
        fairer = linear.realised_variance(s, lam, S, orthonormal(4)) < linear.realised_variance(
            s, lam, S
        )
        assert fairer == (lam > threshold)
