"""Clients that do not predict with one model: figures, results, checkpoints and what is refused."""

import shutil
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, private_of, run, state_of

DATA = classification(sizes=(9, 20, 14, 30, 11))
METHODS = {"knn-per": il.KnnPer(steps=3), "fedem": il.FedEm(steps=3)}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def task():
    return il.Task(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))


@dataclass(frozen=True)
class Bag(il.FedAvg):
    """FedAvg whose clients add their class shares to the model's answers."""

    def personal(self, task, down, private, here):
        samples = here.training_samples()
        shares = nn.functional.one_hot(samples.targets, 3) * samples.weights.unsqueeze(-1)
        return {"x": down["w"].expand(here.rows, -1), "shares": shares.sum(1)}

    def predict(self, task, personal, inputs):
        return task.outputs(personal["x"], inputs) + personal["shares"].unsqueeze(1).log1p()


def hits(result, answer):
    """The accuracy over all test samples of what `answer(client, inputs)` gives."""
    parts = {k: DATA.part(k, "test") for k in range(DATA.clients)}
    right = sum(int((answer(k, X.double()) == y).sum()) for k, (X, y) in parts.items())
    return right / int(DATA.sizes("test").sum())


@every_method
@pytest.mark.parametrize("hosts", [1, 3])
def test_the_accuracy_is_that_of_the_modules_and_of_predict(method, hosts):
    result = run(method, DATA, task(), hosts=hosts)
    by_module = hits(result, lambda k, X: result.personal(k)(X).argmax(1))
    by_predict = hits(
        result, lambda k, X: torch.from_numpy(result.predict(X.numpy(), client=k).labels)
    )
    accuracy = result.seeds[0].final["test"]["accuracy"]
    assert accuracy == pytest.approx(by_module, abs=1e-12) == pytest.approx(by_predict, abs=1e-12)


def test_a_users_method_predicts_as_it_says():
    """Its figures are those of a loop by hand."""
    result = run(Bag(steps=3), DATA, task())
    w = state_of(result)["w"]
    model = task().under(dtype=torch.float64).module_of(w)

    def by_hand(k, X):
        _, y = DATA.part(k, "train")
        shares = torch.bincount(y, minlength=3) / len(y)
        return (model(X) + shares.log1p()).argmax(1)

    accuracy = result.seeds[0].final["test"]["accuracy"]
    assert accuracy == pytest.approx(hits(result, by_hand), abs=1e-12)


@every_method
def test_clients_of_unlike_sizes_predict_as_they_do_alone(method):
    """A client's answers do not depend on who else is at its host, or in its chunk."""
    together = run(method, DATA, task())
    alone = run(method, DATA, task(), chunk=1)
    for k in range(DATA.clients):
        X = DATA.part(k, "test")[0].double()
        torch.testing.assert_close(
            together.personal(k)(X), alone.personal(k)(X), rtol=0, atol=1e-10
        )


@every_method
def test_a_run_that_was_stopped_resumes_to_the_same_figures(method, tmp_path):
    folder = tmp_path / "run"
    saving = {"rounds": 4, "directory": folder, "checkpoint_every": 1, "eval_every": 1}
    whole = run(method, DATA, task(), **saving)
    shutil.rmtree(max((folder / "checkpoints" / "seed-0").iterdir()))  # as if stopped before it
    again = run(method, DATA, task(), resume=True, **saving)
    assert again.seeds[0].history == whole.seeds[0].history
    for states in (state_of, private_of):
        before, after = states(whole), states(again)
        assert all(torch.equal(t, after[name]) for name, t in before.items())


@every_method
def test_a_run_directory_gives_clients_that_predict_as_before(method, tmp_path):
    result = run(method, DATA, task(), directory=tmp_path / "run")
    loaded = il.load(tmp_path / "run", task=task(), federation=DATA)
    X = DATA.part(2, "test")[0].double()
    torch.testing.assert_close(loaded.personal(2)(X), result.personal(2)(X), rtol=0, atol=0)


@every_method
def test_export_says_that_there_is_no_single_model(method, tmp_path):
    result = run(method, DATA, task())
    with pytest.raises(il.SettingError, match=r"export: .* do not predict with one model"):
        result.export(tmp_path / "models")
    assert not (tmp_path / "models").exists()


@every_method
def test_steps_before_use_are_refused(method):
    with pytest.raises(il.SettingError, match=r"finetune_steps must be 0 .* got 2"):
        run(method, DATA, task(), finetune_steps=2)


@every_method
def test_clients_that_come_after_training_predict_too(method):
    result = run(method, DATA, task(), held_out=2, held_out_rounds=2)
    assert result.record.seeds[0].held_out["accuracy"] > 0
