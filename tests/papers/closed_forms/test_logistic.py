"""The logistic instance of Chen, Zheng, Long and Su: risks, minimisers, λ, and runs."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.data.sets.regression import LogisticRegression
from idiolect_papers.closed_forms import logistic

SETTINGS = {"batching": "full", "dtype": "float64", "eval_every": 0, "progress": False}


def small(**changes):
    given = {
        "clients": 6,
        "samples": 80,
        "features": 3,
        "bound": 2.0,
        "design": "signs",
        "norm": 0.5,
        "radius": 0.4,
        "places": "sphere",
        "valid": 0,
        "test": 0,
    }
    return LogisticRegression(**given | changes)


# -- the instance ----------------------------------------------------------------------------------
def test_on_the_sphere_every_client_is_at_distance_r_and_they_average_exactly():
    f, w = small(clients=10, features=5, radius=0.3).draw()
    away = (w - w.mean(0)).norm(dim=1)
    assert away.numpy() == pytest.approx(np.full(10, 0.3))
    assert float(w.mean(0).norm()) == pytest.approx(0.5)
    assert f.inputs.unique().tolist() == [-2, 2]
    with pytest.raises(SettingError, match=r"clients must be an even number .* 'sphere', got 5"):
        small(clients=5).draw()


@pytest.mark.parametrize("design", ["signs", "uniform"])
def test_excess_risks_are_those_of_large_fresh_samples(design):
    s = small(clients=2, samples=400_000, design=design)
    f, truth = s.draw()
    x = truth + torch.tensor([[0.3, -0.2, 0.1], [-0.1, 0.4, 0.0]], dtype=torch.float64)
    exact = logistic.ier(s, truth, x)
    for k in range(2):
        X, y = f.part(k, "train")
        sign = 2.0 * y.double() - 1

        def loss(w, X=X, sign=sign):
            return torch.nn.functional.softplus(-sign * (X.double() @ w))

        each = loss(x[k]) - loss(truth[k])
        error = float(each.std()) / len(each) ** 0.5
        assert float(each.mean()) == pytest.approx(float(exact[k]), abs=4 * error)
        assert error < 0.05 * float(exact[k])


def test_the_truth_has_no_excess_risk_and_everything_else_has_some():
    s = small()
    _, truth = s.draw()
    assert logistic.ier(s, truth, truth).abs().max() == 0
    assert logistic.ier(s, truth, truth + 0.01).min() > 0


def test_the_average_risk_goes_by_the_weights():
    each = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert float(logistic.aer(each)) == 2.5
    assert float(logistic.aer(each, torch.tensor([2.0, 1.0]))) == 2.0


def test_curvature_is_the_second_derivative_of_the_risk():
    s = small(clients=2)
    _, truth = s.draw()
    at = logistic.points(s)
    H = logistic.curvature(truth, at)[0]
    e = 1e-4 * torch.eye(3, dtype=torch.float64)
    by_slope = [
        [
            (
                logistic.risks(truth + a + b, truth, at)
                - logistic.risks(truth + a - b, truth, at)
                - logistic.risks(truth - a + b, truth, at)
                + logistic.risks(truth - a - b, truth, at)
            )[0]
            / 4e-8
            for b in e
        ]
        for a in e
    ]
    np.testing.assert_allclose(H.numpy(), np.array(by_slope), atol=1e-6)


# -- minimisers ------------------------------------------------------------------------------------
def by_scipy(f, lam=0.0, centre=0.0, ball=0.0, clients=None):
    """argmin of the mean risk of some clients + λ/2 ||x - centre||², by an independent solver."""
    parts = [f.part(k, "train") for k in (clients or range(f.clients))]
    X = torch.cat([x for x, _ in parts]).numpy()
    sign = 2.0 * torch.cat([y for _, y in parts]).numpy() - 1

    def value(w):
        return np.logaddexp(0, -sign * (X @ w)).mean() + lam / 2 * ((w - centre) ** 2).sum()

    inside = [{"type": "ineq", "fun": lambda w: ball**2 - w @ w}] if ball else []
    options = {"ftol": 1e-15, "maxiter": 500}
    return minimize(
        value, np.zeros(X.shape[1]), method="SLSQP", constraints=inside, options=options
    ).x


def test_newton_finds_what_an_independent_solver_finds():
    f, _ = small().draw()
    ball = 0.45
    for k in (0, 4):
        np.testing.assert_allclose(logistic.local(f)[k], by_scipy(f, clients=[k]), atol=1e-5)
        np.testing.assert_allclose(
            logistic.local(f, ball)[k], by_scipy(f, ball=ball, clients=[k]), atol=1e-5
        )
    np.testing.assert_allclose(logistic.fedavg(f), by_scipy(f), atol=1e-5)
    w, x = logistic.fedprox(f, 0.7)
    tied = by_scipy(f, 0.7, w.numpy(), clients=[3])
    np.testing.assert_allclose(x[3], tied, atol=1e-5)
    assert torch.allclose(w, x.mean(0), atol=1e-12)


def test_separable_data_have_a_minimiser_in_the_ball_only():
    f, _ = small(clients=2, samples=5, norm=3.0, radius=0.0, seed=1).draw()
    x = logistic.local(f, 2.0)
    assert x.norm(dim=1).numpy() == pytest.approx([2.0, 2.0])


def test_fedprox_lies_between_local_and_fedavg():
    f, _ = small().draw()
    none, much = (logistic.fedprox(f, lam)[1] for lam in (1e-9, 1e7))
    assert torch.allclose(none, logistic.local(f), atol=1e-6)
    assert torch.allclose(much, logistic.fedavg(f).expand(6, -1), atol=1e-5)


def test_methods_converge_to_the_exact_minimisers_for_general_weights():
    """Eq. (1.3), (4.5) and (4.8) on a ball that acts, as the methods solve them."""
    f, _ = small().draw()
    ball = 0.5
    p = torch.tensor([1.0, 5.0, 2.0, 2.0, 1.0, 3.0])
    task = logistic.task(small())
    beta = logistic.smoothness(f)
    lam = 0.5
    weights = {"client_weights": dict(zip(f.ids, p.tolist(), strict=True))}

    def rows(method, rounds, **settings):
        return il.run(method, task, f, rounds=rounds, **SETTINGS, **settings).session()

    local = rows(il.Local(lr=1 / beta, steps=300, ball=ball), 1).personal_rows()
    assert torch.allclose(local, logistic.local(f, ball), atol=1e-6)
    # one step per round: the mean of projected steps is FedAvg's only where no projection acts
    shared = rows(il.FedAvg(lr=1 / beta, steps=1), 120, **weights).personal_rows()
    assert torch.allclose(shared, logistic.fedavg(f, weights=p).expand(6, -1), atol=1e-6)
    soft = il.FedProxSoft(
        lam=lam,
        lr=1 / (beta + lam),
        steps=12,
        final_steps=100,
        server_rate=(lam + beta) / beta,
        ball=ball,
    )
    found = rows(soft, 40, **weights)
    w, x = logistic.fedprox(f, lam, ball, p)
    assert torch.allclose(found.server.state["w"], w, atol=1e-6)
    assert torch.allclose(found.personal_rows(), x, atol=1e-6)
    assert x.norm(dim=1).max() == pytest.approx(ball)


# -- what the theorems say -------------------------------------------------------------------------
def test_lam_of_theorem_4_4_is_continuous_in_r_for_any_weights():
    p = torch.tensor([1.0, 2.0, 3.0, 4.0])
    n = torch.tensor([50.0, 80.0, 60.0, 90.0])
    share = p / p.sum()
    a = float((share / n).sum())
    b = float((share**2 / n).sum())
    c = float(share.max()) * a / b

    def lam(R):
        return logistic.lam_for_aer(0.8, R, p, n)

    edge = b / a**0.5
    assert lam(edge * 0.999) == pytest.approx(lam(edge * 1.001), rel=2e-3)
    assert lam(0.0) == pytest.approx(0.8 * a / (16 * c * b))
    assert lam(2 * a**0.5) == pytest.approx(0.8 / 64)
    assert lam(a**0.5 * 0.999) == pytest.approx(0.8 / (16 * c), rel=2e-3)
    assert all(share.max() * lam(R) <= 0.8 / 16 + 1e-12 for R in (0.0, 1e-3, 0.05, 0.2, 1.0))


def test_lam_of_theorem_4_5_grows_as_r_falls_to_nothing():
    found = [logistic.lam_for_ier(0.8, R, 10, 1000) for R in (1.0, 0.05, 0.0)]
    assert found == pytest.approx([0.008, 0.8 * (10 / 3.5) ** 0.5, 0.8 * 10**0.5])


def test_fedavg_and_local_cross_where_first_order_says():
    n = 2000
    gaps = []
    s = small(clients=20, samples=n)
    R = logistic.crossing(s, s.draw()[1], n)
    for seed in range(6):
        s = small(clients=20, samples=n, radius=R, seed=seed)
        f, truth = s.draw()
        shared = logistic.fedavg(f).expand_as(truth)
        gaps.append(
            float(logistic.aer(logistic.ier(s, truth, shared)))
            / float(logistic.aer(logistic.ier(s, truth, logistic.local(f))))
        )
    assert np.mean(gaps) == pytest.approx(1.0, abs=0.15)
