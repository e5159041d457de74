"""Where one method becomes another, or a known recursion.

Bit for bit where no rounding stands between them.
"""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.host.host import Host
from idiolect.server.protocol import HostUpdate
from idiolect.server.step import ServerStep
from idiolect.wire import messages as wire
from methods.common import LOGISTIC, N, every_model
from reference import setting
from reference.lpproj import pfedme
from reference.setting import MODELS, ROUNDS, SAMPLE, assert_same, outcome, run

CPU = torch.device("cpu")
every_p = pytest.mark.parametrize("p", [1, 1.5, 2, 3])


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


# -- to Local --------------------------------------------------------------------------------------
@every_p
@every_model
def test_lpproj_with_lambda_zero_has_the_personal_models_of_local(federation, p, model):
    alone = outcome(run(il.Local(lr=0.2, steps=6), federation, model))
    method = il.LpProj(p=p, dim=5, lam=0, personal_lr=0.2, steps=2, alternations=3, fresh=True)
    tied = outcome(run(method, federation, model))
    np.testing.assert_array_equal(tied["personal"], alone["personal"])
    assert not tied["server w"].any()


@every_model
def test_soft_fedprox_with_lambda_zero_has_the_personal_models_of_local(federation, model):
    alone = outcome(run(il.Local(lr=0.2, steps=4), federation, model, sample=N))
    soft = outcome(
        run(il.FedProxSoft(lam=0, lr=0.2, steps=4, final_steps=0), federation, model, sample=N)
    )
    np.testing.assert_array_equal(soft["personal"], alone["personal"])


def test_soft_fedprox_with_lambda_zero_leaves_clients_that_were_not_sampled_where_they_were(
    federation,
):
    alone = outcome(run(il.Local(lr=0.2, steps=4), federation, rounds=1))
    soft = outcome(run(il.FedProxSoft(lam=0, lr=0.2, steps=4, final_steps=0), federation, rounds=1))
    sampled = setting.draws(federation).cohorts(1, SAMPLE)[0]
    others = [k for k in range(N) if k not in sampled]
    np.testing.assert_array_equal(soft["personal"][sampled], alone["personal"][sampled])
    np.testing.assert_array_equal(
        soft["personal"][others], np.tile(setting.start(), (len(others), 1))
    )


# -- to FedAvg, to SGD, to gradient descent --------------------------------------------------------
@every_model
@pytest.mark.parametrize("amount", [{"steps": 4}, {"epochs": 2}])
def test_fedprox_with_mu_zero_is_fedavg(federation, model, amount):
    prox, average = (
        run(m, federation, model, batching="epochs")
        for m in (il.FedProx(mu=0, **amount), il.FedAvg(**amount))
    )
    assert_same(outcome(prox), outcome(average))


def test_soft_fedprox_with_a_very_large_lambda_is_one_shared_model(federation):
    """Steps of size 1 / lam: each one lands on w, up to a gradient over lam."""
    soft = outcome(run(il.FedProxSoft(lam=1e6, lr=1e-6), federation))
    np.testing.assert_allclose(soft["personal"], np.tile(soft["server w"], (N, 1)), atol=1e-5)


@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedavg_with_one_client_is_centralised_sgd(weighting):
    alone = setting.make_federation(sizes=(40,))
    result = outcome(run(il.FedAvg(lr=0.2, steps=5, weighting=weighting), alone, sample=1))
    draws = setting.draws(alone)
    w = setting.start()
    X, y = draws.data[0]
    for t in range(ROUNDS):
        batches = draws.batches(t, 0)
        for _ in range(5):
            I = next(batches)
            w = w - 0.2 * LOGISTIC.gradient(w, X[I], y[I])
    close(result["server w"], w)


def test_fedavg_with_one_full_step_of_everyone_is_gradient_descent_on_the_pooled_loss(federation):
    result = outcome(
        run(il.FedAvg(lr=0.4, steps=1, weighting="samples"), federation, batching="full", sample=N)
    )
    data = setting.draws(federation).data
    X, y = (np.concatenate(part) for part in zip(*data, strict=True))
    w = setting.start()
    for _ in range(ROUNDS):
        w = w - 0.4 * LOGISTIC.gradient(w, X, y)
    close(result["server w"], w)


def test_unbiased_fedavg_with_everyone_sampled_is_fedavg_weighted_by_samples(federation):
    samples, unbiased = (
        outcome(run(il.FedAvg(weighting=v), federation, sample=N)) for v in ("samples", "unbiased")
    )
    assert_same(unbiased, samples, 1e-12)


@pytest.mark.parametrize("kind", [il.FedAvg, il.FedProx, il.FedProxSoft])
def test_with_clients_of_equal_size_all_weightings_are_the_same(kind):
    federation = setting.make_federation(sizes=(9,) * N)
    samples, equal, unbiased = (
        outcome(run(kind(weighting=v), federation)) for v in ("samples", "equal", "unbiased")
    )
    assert_same(equal, samples, 1e-12)
    assert_same(unbiased, samples, 1e-12)


def test_lpproj_with_clients_of_equal_size_weighs_them_alike(federation):
    same_size = setting.make_federation(sizes=(9,) * N)
    for data, apart in ((same_size, False), (federation, True)):
        samples, equal = (
            outcome(run(il.LpProj(p=2, dim=5, weighting=v), data))["server w"]
            for v in ("samples", "equal")
        )
        assert (np.abs(samples - equal).max() > 1e-9) == apart


# -- lp-proj and its relatives ---------------------------------------------------------------------
@every_model
@pytest.mark.parametrize("beta", [1.0, 0.7])
def test_lpproj_with_p_2_and_no_projection_is_the_moreau_envelope_recursion_of_pfedme(
    federation, model, beta
):
    method = il.LpProj(
        p=2,
        projection="identity",
        dim=0,
        lam=0.8,
        lr=0.3,
        personal_lr=0.2,
        alternations=3,
        steps=4,
        nu=0,
        server_rate=beta,
    )
    result = outcome(run(method, federation, model))
    draws = setting.draws(federation)
    start = setting.start(model)
    cohorts = draws.cohorts(ROUNDS, SAMPLE)
    expected = pfedme(
        MODELS[model][1],
        draws.data,
        start,
        np.zeros(len(start)),
        cohorts,
        draws.batches,
        0.3,
        0.2,
        lam=0.8,
        R=3,
        steps=4,
        beta=beta,
    )
    close(result["server w"], expected["server w"])
    close(result["private x"], expected["private x"])


def messages_and_w(method, federation, monkeypatch):
    """(message[client], w as the server sent it) of every round."""
    seen = []
    updates = Host.updates

    def noting(self, order):
        sent = HostUpdate.merge(list(updates(self, order)))
        contract = self.contract
        down = wire.open_down(contract.down, order.down.common, contract.run, order.version, CPU)
        up = wire.unpack(contract.up, sent.messages.matrix[:, wire.HEADER.itemsize :])
        seen.append((up["w"].numpy(), down["w"].numpy()))
        yield sent

    monkeypatch.setattr(Host, "updates", noting)
    run(method, federation)
    return seen


@pytest.mark.parametrize("R", [1, 3])
def test_a_message_of_lpproj_1_moves_by_at_most_lr_lambda_per_coordinate_and_alternation(
    federation, monkeypatch, R
):
    method = il.LpProj(p=1, dim=5, lam=0.5, lr=0.3, alternations=R)
    moves = np.array([np.abs(up - w) for up, w in messages_and_w(method, federation, monkeypatch)])
    assert moves.shape == (ROUNDS, SAMPLE, 5)
    assert moves.max() == pytest.approx(R * 0.3 * 0.5, abs=1e-12)  # the bound, and it is reached


@every_p
@pytest.mark.parametrize("w_step", ["paper", "code"])
def test_at_p_x_equal_to_w_nothing_pulls(federation, p, w_step):
    """x0 = 0 and w = 0, so that P x = w exactly.

    The personal step is the plain one, and w stays if x does.
    """

    def zero():
        layer = nn.Linear(setting.FEATURES, setting.CLASSES)
        nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
        return layer

    def after(method):
        result = il.run(
            method,
            il.Task(zero),
            federation,
            rounds=1,
            sample=SAMPLE,
            dtype="float64",
            eval_every=0,
        )
        assert result.summary()["rejected"] == 0  # nobody sent a NaN
        return outcome(result)

    tied = {"p": p, "w_step": w_step, "dim": 5, "lam": 3.0, "personal_lr": 0.2}
    plain = after(il.Local(lr=0.2, steps=1))["personal"]
    assert np.abs(plain).max() > 0.01
    np.testing.assert_array_equal(after(il.LpProj(**tied, steps=1, fresh=True))["personal"], plain)
    assert not after(il.LpProj(**tied, steps=0))["server w"].any()


def test_the_sign_of_zero_is_zero():
    gap = torch.tensor([[-2.0, 0.0, 3.0]])
    assert il.LpProj(p=1).pull(gap).tolist() == [[-1.0, 0.0, 1.0]]
    assert il.LpProj(p=1.5).pull(torch.zeros(1, 3)).tolist() == [[0.0, 0.0, 0.0]]


def test_at_p_1_the_public_codes_w_step_is_the_papers(federation):
    paper, code = (
        outcome(run(il.LpProj(p=1, dim=5, lam=0.5, alternations=2, w_step=s), federation))
        for s in ("paper", "code")
    )
    assert_same(code, paper)


def test_at_p_2_the_public_codes_w_step_has_length_lr_lambda(federation, monkeypatch):
    method = il.LpProj(p=2, dim=5, lam=0.5, lr=0.3, w_step="code")
    for up, w in messages_and_w(method, federation, monkeypatch):
        np.testing.assert_allclose(np.linalg.norm(up - w, axis=1), 0.3 * 0.5, atol=1e-12)


# -- the server's step -----------------------------------------------------------------------------
def test_server_sgd_with_rate_one_is_the_plain_step_bit_for_bit():
    w = torch.tensor([1e-9, 1.0, 3.0])
    target = torch.tensor([0.1, 1e-9, 0.7])
    assert not torch.equal(w - (w - target), target)  # a step along the difference would round
    assert torch.equal(ServerStep("sgd", 1.0)({"w": w}, {"w": target}, "w")["w"], target)


def test_server_sgd_with_rate_one_and_no_momentum_is_the_plain_step(federation):
    plain, stepped = (
        outcome(run(il.FedAvg(), federation, server_options=o)) for o in ("", "momentum=0.0")
    )
    assert_same(stepped, plain, 1e-12)


def test_server_sgd_with_rate_beta_is_the_server_rate_of_lpproj(federation):
    inside = outcome(run(il.LpProj(p=2, dim=5, server_rate=0.7), federation))
    outside = outcome(run(il.LpProj(p=2, dim=5), federation, server_lr=0.7))
    assert_same(outside, inside, 1e-12)
