"""Methods with distributions of models: pFedBayes."""

import numpy as np
import torch

import idiolect as il
from idiolect.core import streams
from idiolect.methods.pfedbayes import normal_rows
from methods.common import Case, N, assert_equals, every_batching, every_model, every_weighting
from reference import setting
from reference.pfedbayes import pfedbayes
from reference.setting import SEED, outcome, run


def reference(case, model, steps, **fields):
    task = setting.task(model)

    def noise(t, i, number):
        keys = streams.keys(SEED, "posterior", t, case.draws.keys[[i]])
        return normal_rows(keys, number, task)[0].numpy()

    fields = {"lr": 0.3, "shared_lr": 0.05, "zeta": 0.5, "rho": -1.5} | fields
    return pfedbayes(*case.first, noise, steps=steps, **fields)


def a_pfedbayes(**fields):
    return il.PFedBayes(
        **{"lr": 0.3, "shared_lr": 0.05, "zeta": 0.5, "rho": -1.5, "steps": 4} | fields
    )


@every_model
@every_batching
def test_pfedbayes_alternates_posterior_and_shared_distribution(federation, model, batching):
    expected = reference(Case(federation, model, batching), model, [4] * N)
    result = run(a_pfedbayes(), federation, model, batching=batching)
    assert_equals(result, expected, federation, model)


def test_pfedbayes_with_several_draws_per_step_takes_the_mean_of_their_losses(federation):
    expected = reference(Case(federation), "logistic", [4] * N, draws=3)
    assert_equals(run(a_pfedbayes(draws=3), federation), expected, federation)


@every_weighting
def test_pfedbayes_counted_in_passes_weighs_clients_as_fedavg_does(federation, weighting):
    case = Case(federation, "network", "epochs")
    expected = reference(case, "network", case.draws.passes(1), weighting=weighting)
    method = a_pfedbayes(epochs=1, weighting=weighting)
    result = run(method, federation, "network", batching="epochs")
    assert_equals(result, expected, federation, "network")


@every_model
def test_posteriors_without_width_and_without_a_tie_are_locals_models(federation, model):
    """Everyone is heard; at ρ = -80 a standard deviation is 2e-35."""
    method = a_pfedbayes(zeta=0, rho=-80)
    narrow = outcome(run(method, federation, model, sample=N))
    alone = outcome(run(il.Local(lr=0.3, steps=4), federation, model))
    np.testing.assert_allclose(narrow["personal"], alone["personal"], rtol=0, atol=1e-12)


def test_without_a_tie_the_shared_distribution_stays_and_others_make_no_difference(federation):
    among_all = outcome(run(a_pfedbayes(zeta=0), federation, sample=N))
    start = np.concatenate([setting.start(), np.full(len(setting.start()), -1.5)])
    np.testing.assert_allclose(among_all["server w"], start, rtol=0, atol=1e-12)
    pair = outcome(run(a_pfedbayes(zeta=0), setting.arrange(federation, [3, 5]), sample=2))
    np.testing.assert_allclose(among_all["personal"][[3, 5]], pair["personal"], atol=1e-12)


def test_a_small_variance_from_the_server_makes_the_message_the_private_mean(federation):
    """What Traits.discloses says: σ is such that η ζ / (n_i σ²) is 1."""
    method = a_pfedbayes(steps=1)
    task = setting.task().under(dtype=torch.float64, seed=SEED)
    sigma = np.sqrt(0.05 * 0.5 / setting.SIZES[3])
    down = {"w": torch.cat([task.x0, torch.full_like(task.x0, np.log(np.expm1(sigma)))])}
    private = {"q": torch.from_numpy(np.random.default_rng(0).normal(size=(1, 2 * task.d)))}
    here = il.Here(
        federation,
        torch.tensor([3]),
        clients=streams.name_keys(federation.names)[[3]],
        **{"seed": SEED, "round": 0, "batch": 8, "batching": "replace", "dtype": torch.float64},
    )
    up, after = method.update(task, down, private, here)
    torch.testing.assert_close(up["w"][:, : task.d], after["q"][:, : task.d])


def test_more_samples_make_narrower_posteriors():
    data = setting.make_federation(sizes=(10, 400))
    result = run(a_pfedbayes(zeta=0.5, lr=0.1), data, rounds=30, sample=2)
    rho = outcome(result)["private q"][:, len(setting.start()) :]
    assert rho[1].mean() < rho[0].mean()
