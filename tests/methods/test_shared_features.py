"""Methods whose clients learn features together, under heads of their own: FedPAC, GPFL."""

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from idiolect.methods.similarity import cosines
from idiolect.methods.simplex import mixtures
from methods.common import (
    Case,
    N,
    assert_equals,
    assert_leaves,
    every_batching,
    every_model,
    every_weighting,
)
from reference import setting
from reference.fedpac import fedpac, programme
from reference.gpfl import Routed, gpfl
from reference.setting import CLASSES, FEATURES, HIDDEN, assert_same, outcome, run


# -- FedPAC ----------------------------------------------------------------------------------------
@every_model
@every_batching
def test_fedpac_aligns_features_and_mixes_heads_by_its_programme(federation, model, batching):
    method = il.FedPac(lr=0.3, head_lr=0.2, steps=4, head_steps=3, lam=2.0)
    case = Case(federation, model, batching)
    expected = fedpac(*case.first, 0.3, 0.2, [4] * N, [3] * N, lam=2.0)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_fedpac_counted_in_passes_weighs_bodies_as_fedavg_does(federation, weighting):
    case = Case(federation, "network", "epochs", sample=5)
    passes = (case.draws.passes(1), case.draws.passes(2))
    expected = fedpac(
        *(*case.first, 0.3, 0.2, *passes, 1.0),
        weighting=weighting,
        later=lambda t, i: case.draws.batches(t, i, "batch 1"),
    )
    method = il.FedPac(lr=0.3, head_lr=0.2, epochs=1, head_epochs=2, weighting=weighting)
    result = run(method, federation, "network", batching="epochs", sample=5)
    assert_equals(result, expected, federation, "network")


@every_model
def test_fedpac_that_mixes_no_heads_and_aligns_nothing_is_fedrep(federation, model):
    alone = il.FedPac(combine=False, lam=0, lr=0.3, head_lr=0.2, steps=4, head_steps=3)
    other = il.FedRep(
        lr=0.3, private_lr=0.2, steps=4, private_steps=3, weighting="samples", part="head"
    )
    mine, its = (outcome(run(m, federation, model)) for m in (alone, other))
    np.testing.assert_array_equal(mine["rows head"], its["private w"])
    for name in ("server theta", "personal", "gradients"):
        np.testing.assert_array_equal(mine[name], its[name])


def test_clients_that_say_the_same_of_their_features_get_the_mean_of_all_heads():
    h = torch.ones(4, 6, dtype=torch.float64)
    variances = torch.full((4,), 0.3, dtype=torch.float64)
    torch.testing.assert_close(mixtures(h, variances), torch.full((4, 4), 0.25).double())


def test_a_client_without_noise_keeps_its_own_head_and_others_take_it_for_what_it_is_like():
    h = torch.tensor([[0.0], [1.0]])
    alpha = mixtures(h, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(alpha[0], torch.tensor([1.0, 0.0]).double())
    # min α² V + (1 - α)² of the client with noise 1 at distance 1
    torch.testing.assert_close(alpha[1], torch.tensor([0.5, 0.5]).double())


@pytest.mark.parametrize("noise", [1e-3, 0.1, 10.0])
def test_weights_of_many_clients_solve_each_clients_programme(noise):
    """Eight clients in groups, against all 255 supports of each."""
    rng = np.random.default_rng(0)
    h = rng.normal(size=(2, 3, 4))[np.arange(8) % 2] + 0.1 * rng.normal(size=(8, 3, 4))
    said = {j: (noise * rng.random(), h[j]) for j in range(8)}
    expected = [programme(i, range(8), said) for i in range(8)]
    variances = torch.tensor([said[j][0] for j in range(8)], dtype=torch.float64)
    weights = mixtures(torch.from_numpy(h).flatten(1), variances)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-10)


def test_fedpac_mixes_heads_within_groups_that_label_the_other_way():
    """Of two groups with opposite labels, heads of the other group get no weight."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8, 60, 5))
    y = (X[..., 0] > 0).astype(int)
    y[4:] = 1 - y[4:]
    data = il.Federation.from_arrays(X.reshape(-1, 5), y.ravel(), np.repeat(np.arange(8), 60))
    result = il.run(il.FedPac(), lambda: nn.Linear(5, 2), data, rounds=20, eval_every=0)
    assert result.summary()["accuracy"]["mean"] > 0.9
    heads = result.session().server.rows.all()["head"]
    like = cosines(heads, heads)
    assert like[:4, :4].min() > 0.5 and like[:4, 4:].max() < 0


def test_a_client_that_was_never_heard_has_the_shared_body_under_the_first_head(federation):
    result = run(il.FedPac(), federation, "network", rounds=1)
    left = outcome(result)
    untrained = left["gradients"] == 0
    start = setting.start("network")
    assert untrained.sum() == N - setting.SAMPLE
    head = setting.MODELS["network"][1].head()
    np.testing.assert_array_equal(
        left["personal"][untrained][:, head], np.tile(start[head], (untrained.sum(), 1))
    )


# -- GPFL ------------------------------------------------------------------------------------------
ROUTED = {
    "logistic": Routed(FEATURES, 0, CLASSES),
    "network": Routed(FEATURES, HIDDEN, CLASSES),
}


def check_gpfl(federation, model, batching="replace", steps=None, passes=0, **fields):
    case = Case(federation, model, batching)
    method = il.Gpfl(lr=0.2, steps=4, epochs=passes, **fields)
    task = method.extended(setting.task(model)).under(seed=setting.SEED, dtype=torch.float64)
    by_hand = ROUTED[model]
    expected = gpfl(
        *(by_hand, case.data, task.x0.numpy(), case.cohorts, case.batches),
        **{"lr": 0.2, "steps": steps or [4] * N, "lam": 0.01, "mu": 0.1} | fields,
    )
    expected["accuracy"] = setting.pooled_accuracy(by_hand, expected["personal"], federation)
    assert_leaves(run(method, federation, model, batching=batching), expected)


@every_model
@pytest.mark.parametrize("distance", ["samples", "batch"])
def test_gpfl_has_the_losses_of_both_routes(federation, model, distance):
    check_gpfl(federation, model, lam=0.7, mu=0.3, distance=distance)


@pytest.mark.parametrize("batching", ["epochs", "full"])
def test_gpfl_with_every_batching(federation, batching):
    check_gpfl(federation, "network", batching)


@every_weighting
def test_gpfl_counted_in_passes_weighs_clients_as_fedavg_does(federation, weighting):
    passes = setting.draws(federation, "epochs").passes(1)
    check_gpfl(federation, "network", "epochs", passes, 1, weighting=weighting)


@every_model
def test_clients_that_have_all_classes_alike_have_one_route(model):
    """p_i is then g: personal features are the shared ones."""
    classes = np.tile(np.arange(3), 4)
    x = np.random.default_rng(0).standard_normal((24, FEATURES)) + np.tile(classes, 2)[:, None]
    data = il.Federation.from_arrays(
        x, np.tile(classes, 2), np.repeat([0, 1], 12), valid=0.0, test=0.0
    )
    result = helpers.run(il.Gpfl(), data, setting.task(model), rounds=2, sample=2)
    for k in range(2):
        module = result.personal(k)
        own, general = (
            t for n, t in module.named_parameters() if n.rpartition(".")[2] in ("own", "general")
        )
        torch.testing.assert_close(own, general, rtol=0, atol=1e-12)


def test_gpfl_sends_all_but_heads_and_conditions(federation):
    result = run(il.Gpfl(steps=1), federation, "network")
    F = HIDDEN
    body = (FEATURES + 1) * F
    sent = body + 2 * (F * F + 3 * F) + CLASSES * F
    assert result.summary()["values"]["up"] == setting.ROUNDS * setting.SAMPLE * sent


def test_gpfl_needs_classes_and_a_linear_last_layer():
    convolutions = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, (2, 3)), nn.Flatten())
    with pytest.raises(il.SettingError, match=r"must have a linear last layer .*, got Conv2d"):
        helpers.run(il.Gpfl(), task=il.Task(convolutions))
    with pytest.raises(il.SettingError, match=r"loss must be one of classes .* got 'mse'"):
        helpers.run(il.Gpfl(), helpers.regression(), helpers.linear(outputs=1, loss="mse"))
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(il.SettingError, match=r"frozen must leave the last layer out, got 2\.w"):
        helpers.run(il.Gpfl(), task=il.Task(network, frozen="2.*"))


def test_gpfl_with_one_output_has_two_classes():
    data = helpers.classification(classes=2)
    task = il.Task(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)), "logistic")
    result = helpers.run(il.Gpfl(steps=5), data, task)
    assert result.personal(0)[2].embeddings.shape == (2, 5)
    assert result.personal(0)(data.inputs[:4].double()).shape == (4, 1)


@pytest.mark.parametrize("kernel", ["rows", "vmap"])
def test_gpfl_is_the_same_in_every_kernel(federation, kernel):
    chosen, other = (
        outcome(run(il.Gpfl(steps=3), federation, "network", kernel=k)) for k in ("auto", kernel)
    )
    assert_same(chosen, other, 1e-12)


@pytest.mark.parametrize("method", [il.FedPac(), il.Gpfl()], ids=["fedpac", "gpfl"])
def test_both_take_models_with_running_statistics(method):
    norm = il.Task(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))
    result = helpers.run(method, task=norm, rounds=5)
    assert result.summary()["accuracy"]["mean"] > 0.5
