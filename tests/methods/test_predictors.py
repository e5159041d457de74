"""Methods whose clients do not predict with one model: kNN-Per, FedEM."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import helpers
import idiolect as il
from idiolect.testing import check_method
from methods.common import (
    Case,
    N,
    assert_leaves,
    every_batching,
    every_model,
    fedavg_reference,
    note_distance,
)
from reference import setting
from reference.fedem import fedem, mixture
from reference.knnper import best_lambda, knn_per
from reference.setting import MODELS, SEED, assert_same, run


def probabilities(result, client, X):
    """What a client of a run answers to samples, by softmax of its outputs."""
    return result.personal(client)(torch.from_numpy(X)).softmax(-1).detach().numpy()


def samples_of(federation, k, split="test"):
    X, y = federation.part(k, split)
    return X.double().numpy(), y.numpy()


# -- kNN-Per ---------------------------------------------------------------------------------------
def check_knn_per(federation, model, lam_of=None, **fields):
    """Every client's answers to its test data are the reference's, and so is the accuracy."""
    result = run(il.KnnPer(lr=0.3, steps=4, **fields), federation, model)
    expected = fedavg_reference(federation, model=model)
    by_hand = MODELS[model][1]
    w = expected["server w"]
    options = {"lam": 0.5, "neighbours": 10, "scale": 1.0, "distance": "euclidean"} | fields
    names = {"k": options["neighbours"], "sigma": options["scale"]}
    names["squared"] = options["distance"] == "squared"
    hits = 0
    for k in range(N):
        memory = samples_of(federation, k, "train")
        X, y = samples_of(federation, k)
        lam = lam_of(w, k, names) if lam_of else options["lam"]
        answers = knn_per(by_hand, w, memory, X, lam, **names)
        given = probabilities(result, f"c{k}", X)
        np.testing.assert_allclose(given, answers, atol=1e-10)
        note_distance(result, float(np.abs(given - answers).max(initial=0)))
        hits += (answers.argmax(1) == y).sum()
    accuracy = hits / int(federation.sizes("test").sum())
    assert result.seeds[0].final["test"]["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    return result


@every_model
@pytest.mark.parametrize("distance", ["euclidean", "squared"])
@pytest.mark.parametrize("neighbours", [1, 4])
def test_knn_per_is_the_mixture_of_the_paper(federation, model, distance, neighbours):
    check_knn_per(federation, model, lam=0.7, neighbours=neighbours, distance=distance, scale=0.6)


def test_a_client_with_fewer_samples_than_neighbours_looks_at_all_of_them(federation):
    """Clients have 3 to 30 samples."""
    check_knn_per(federation, "logistic", lam=1.0, neighbours=100)


@pytest.mark.parametrize("chunk", [0, 1])
def test_a_client_without_samples_of_its_own_has_the_shared_model(federation, chunk):
    """Alone in its chunk, or beside others with more and fewer samples."""
    data = setting.arrange(federation, [0, "nobody", 5])
    result = run(il.KnnPer(lam=0.9, steps=4), data, chunk=chunk, sample=2)
    X = torch.eye(setting.FEATURES, dtype=torch.float64)
    w = setting.task().under(dtype=torch.float64).module_of(helpers.state_of(result)["w"])
    torch.testing.assert_close(result.personal("nobody")(X).softmax(-1), w(X).softmax(-1))


@every_model
def test_each_client_may_choose_lambda_by_its_validation_data(federation, model):
    choices = [0.3, 0.0, 0.25, 0.5, 0.75, 1.0]
    chosen = set()

    def lam_of(w, k, names):
        memory, valid = (samples_of(federation, k, split) for split in ("train", "valid"))
        lam = best_lambda(MODELS[model][1], w, memory, valid, choices, **names)
        chosen.add(lam)
        return lam

    check_knn_per(federation, model, lam_of, lam=0.3, grid=4)
    assert len(chosen) > 1


@every_model
def test_knn_per_with_lambda_zero_predicts_as_fedavg(federation, model):
    memory, average = (
        run(m, federation, model)
        for m in (il.KnnPer(lam=0, lr=0.3, steps=4), il.FedAvg(lr=0.3, steps=4))
    )
    assert_same(helpers.state_of(memory), helpers.state_of(average))
    for k in range(N):
        X, _ = samples_of(federation, k)
        a, b = (probabilities(result, f"c{k}", X) for result in (memory, average))
        np.testing.assert_allclose(a, b, atol=1e-14)


def test_knn_per_that_chooses_lambda_passes_the_suite():
    check_method(il.KnnPer(grid=4))


def test_knn_per_answers_as_a_model_with_one_output_does():
    federation = helpers.classification(classes=2)
    for module, loss in (
        (nn.Linear(6, 1), "logistic"),
        (nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), nn.BCELoss(reduction="none")),
    ):
        result = helpers.run(il.KnnPer(), federation, il.Task(module, loss))
        outputs = result.personal(0)(federation.inputs[:5].double())
        assert outputs.shape == (5, 1) and result.summary()["accuracy"]["mean"] > 0.6


def test_knn_per_refuses_real_targets_before_any_work():
    with pytest.raises(il.SettingError, match=r"loss must be one of classes .* got 'mse'"):
        helpers.run(il.KnnPer(), helpers.regression(), helpers.linear(outputs=1, loss="mse"))


# -- FedEM -----------------------------------------------------------------------------------------
def components(model, count):
    """The models that the components of a run start at."""
    task = setting.task(model).under(seed=SEED, dtype=torch.float64)
    return list(il.FedEm(components=count).server(task)["w"].view(count, -1).numpy())


@every_model
@every_batching
def test_fedem_is_algorithm_1(federation, model, batching):
    result = run(il.FedEm(lr=0.3, steps=4), federation, model, batching=batching)
    case = Case(federation, model, batching)
    expected = fedem(
        case.model, case.data, components(model, 3), case.cohorts, case.batches, 0.3, [4] * N
    )
    assert_leaves(result, expected)
    theta = expected["server w"].reshape(3, -1)
    for k, pi in enumerate(expected["private pi"]):
        X, _ = samples_of(federation, k)
        answers = mixture(MODELS[model][1], theta, pi, X)
        np.testing.assert_allclose(probabilities(result, f"c{k}", X), answers, atol=1e-10)


def test_fedem_counted_in_passes_weighs_clients_alike_where_it_is_told(federation):
    method = il.FedEm(components=2, lr=0.3, epochs=1, weighting="equal")
    result = run(method, federation, "network", batching="epochs")
    case = Case(federation, "network", "epochs")
    steps = case.draws.passes(1)
    starts = components("network", 2)
    expected = fedem(case.model, case.data, starts, case.cohorts, case.batches, 0.3, steps, "equal")
    assert_leaves(result, expected)


@every_model
def test_fedem_with_one_component_is_fedavg(federation, model):
    mixed, average = (
        run(m, federation, model)
        for m in (il.FedEm(components=1, lr=0.3, steps=4), il.FedAvg(lr=0.3, steps=4))
    )
    a, b = (helpers.state_of(result)["w"] for result in (mixed, average))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    for k in range(N):
        X, _ = samples_of(federation, k)
        a, b = (probabilities(result, f"c{k}", X) for result in (mixed, average))
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_fedem_mixes_the_outputs_of_a_regression():
    data = helpers.regression()
    result = helpers.run(il.FedEm(lr=0.05), data, helpers.linear(outputs=1, loss="mse"))
    w = helpers.state_of(result)["w"].view(3, 7)
    pi = helpers.private_of(result)["pi"][0]
    x = data.inputs[:5].double()
    by_hand = sum(p * (x @ v[:6] + v[6]) for p, v in zip(pi, w, strict=True))
    torch.testing.assert_close(result.personal(0)(x)[:, 0], by_hand)


def test_fedem_refuses_running_statistics_and_weights_that_all_components_would_have(tmp_path):
    norm = il.Task(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with pytest.raises(il.SettingError, match="must be without running statistics"):
        helpers.run(il.FedEm(), task=norm)
    save_file(nn.Linear(6, 3).state_dict(), tmp_path / "w.safetensors")
    task = il.Task(nn.Linear(6, 3), weights=tmp_path / "w.safetensors")
    with pytest.raises(il.SettingError, match="weights must be empty for this method"):
        helpers.run(il.FedEm(), task=task)
