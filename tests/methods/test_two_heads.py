"""Methods with two losses per client: FedROD, FML."""

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from methods.common import Case, N, assert_equals, every_batching, every_model, every_weighting
from reference.fedrod import fedrod
from reference.fml import fml
from reference.setting import MODELS, outcome, run


# -- FedROD ----------------------------------------------------------------------------------------
@every_model
@every_batching
def test_fedrod_trains_a_balanced_model_and_personal_heads_on_its_features(
    federation, model, batching
):
    method = il.FedRod(lr=0.3, personal_lr=0.2, steps=4)
    expected = fedrod(*Case(federation, model, batching).first, 0.3, 0.2, [4] * N)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_fedrod_counted_in_passes_weighs_clients_as_fedavg_does(federation, weighting):
    case = Case(federation, "network", "epochs")
    passes = case.draws.passes(1)
    expected = fedrod(*case.first, 0.3, 0.2, passes, weighting=weighting)
    method = il.FedRod(lr=0.3, personal_lr=0.2, epochs=1, weighting=weighting)
    result = run(method, federation, "network", batching="epochs")
    assert_equals(result, expected, federation, "network")


def alike(classes=3, each=4, clients=6):
    """Clients with as many samples of every class as of every other, all for training."""
    y = np.tile(np.repeat(np.arange(classes), each), clients)
    x = np.random.default_rng(0).standard_normal((len(y), 4)) + y[:, None]
    ids = np.repeat(np.arange(clients), classes * each)
    return il.Federation.from_arrays(x, y, ids, valid=0.0, test=0.0)


@every_model
def test_the_shared_model_of_fedrod_is_fedavgs_where_clients_have_all_classes_alike(model):
    task = il.Task(MODELS[model][0])
    balanced, average = (
        helpers.state_of(helpers.run(m, alike(), task))["w"]
        for m in (il.FedRod(lr=0.3, steps=4), il.FedAvg(lr=0.3, steps=4))
    )
    torch.testing.assert_close(balanced, average, rtol=0, atol=1e-12)


@every_model
def test_fedrod_without_a_personal_step_predicts_with_the_shared_model(federation, model):
    result = outcome(run(il.FedRod(personal_lr=0, lr=0.3, steps=4), federation, model))
    np.testing.assert_array_equal(result["personal"], np.tile(result["server w"], (N, 1)))


def test_fedrod_with_one_output_for_two_classes_is_fedrod_with_two():
    """A single output is the difference of two."""
    data = helpers.classification(classes=2)
    one = nn.Linear(6, 1)
    two = nn.Linear(6, 2)
    with torch.no_grad():
        two.weight.copy_(torch.cat([-one.weight, one.weight]) / 2)
        two.bias.copy_(torch.cat([-one.bias, one.bias]) / 2)
    single = helpers.run(il.FedRod(lr=0.4, personal_lr=0.4), data, il.Task(one, "logistic"))
    double = helpers.run(il.FedRod(lr=0.2, personal_lr=0.2), data, il.Task(two))
    w = single.personal(0)(data.inputs[:9].double())[:, 0]
    v = double.personal(0)(data.inputs[:9].double())
    torch.testing.assert_close(w, v[:, 1] - v[:, 0], rtol=0, atol=1e-10)


def test_fedrod_needs_a_last_layer_whose_outputs_add_up():
    norm = il.Task(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3), nn.LayerNorm(3)))
    with pytest.raises(il.SettingError, match="nothing but a linear layer at its end"):
        helpers.run(il.FedRod(), task=norm)


@pytest.mark.parametrize("method", [il.FedRod(), il.Fml()], ids=["fedrod", "fml"])
def test_both_models_may_have_running_statistics(method):
    norm = il.Task(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))
    result = helpers.run(method, task=norm, rounds=10)
    assert result.summary()["accuracy"]["mean"] > 0.5


# -- FML -------------------------------------------------------------------------------------------
@every_model
@every_batching
def test_fml_is_algorithm_1(federation, model, batching):
    method = il.Fml(lr=0.3, personal_lr=0.2, steps=4, alpha=0.7, beta=0.4)
    case = Case(federation, model, batching)
    expected = fml(*case.first, 0.3, 0.2, [4] * N, alpha=0.7, beta=0.4)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_fml_counted_in_passes_weighs_clients_as_fedavg_does(federation, weighting):
    case = Case(federation, "network", "epochs")
    passes = case.draws.passes(1)
    expected = fml(*case.first, 0.3, 0.2, passes, alpha=0.5, beta=0.5, weighting=weighting)
    method = il.Fml(lr=0.3, personal_lr=0.2, epochs=1, weighting=weighting)
    result = run(method, federation, "network", batching="epochs")
    assert_equals(result, expected, federation, "network")


@every_model
def test_fml_of_labels_alone_is_local_beside_fedavg(federation, model):
    """Everyone is heard."""
    taught, alone, average = (
        outcome(run(m, federation, model, sample=N))
        for m in (
            il.Fml(alpha=1, beta=1, lr=0.3, personal_lr=0.2, steps=4),
            il.Local(lr=0.2, steps=4),
            il.FedAvg(lr=0.3, steps=4),
        )
    )
    np.testing.assert_allclose(taught["personal"], alone["personal"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(taught["server w"], average["server w"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [il.FedRod(), il.Fml()], ids=["fedrod", "fml"])
def test_losses_without_logits_are_refused_before_any_work(method):
    with pytest.raises(il.SettingError, match=r"loss must be one of classes .* got 'mse'"):
        helpers.run(method, helpers.regression(), helpers.linear(outputs=1, loss="mse"))
    module = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
    shares = il.Task(module, nn.BCELoss(reduction="none"))
    with pytest.raises(il.SettingError, match="loss must be one of logits"):
        helpers.run(method, helpers.classification(classes=2), shares)
