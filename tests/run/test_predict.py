"""Save, load, predict; and models for clients that come after training."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, regression, rewrite


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


LABELS = ("cat", "dog", "owl")
DATA = classification(sizes=(20,) * 4)
NAMED = il.Federation(
    DATA.inputs,
    DATA.targets,
    DATA.offsets,
    ("hospital-1", "hospital-2", "hospital-3", "hospital-4"),
    3,
    class_names=LABELS,
)


@pytest.fixture(scope="module")
def result() -> il.Result:
    return il.run("ditto", Net, NAMED, rounds=3)


# -- predict ---------------------------------------------------------------------------------------
def test_labels_are_the_users_and_probabilities_are_the_models(result):
    rows = NAMED.inputs[:7]
    found = result.predict(rows, client="hospital-3")
    wanted = result.personal("hospital-3")(rows).softmax(-1).detach().numpy()
    assert np.array_equal(found.probabilities, wanted) and found.classes == LABELS
    assert found.labels.tolist() == [LABELS[i] for i in wanted.argmax(1)]
    assert found.values is None and len(found) == 7
    table = found.to_pandas()
    assert list(table) == ["label", "probability cat", "probability dog", "probability owl"]


@pytest.mark.parametrize(
    "form", [lambda x: x, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.double()]
)
def test_rows_may_be_tensors_arrays_or_lists(form, result):
    rows = NAMED.inputs[:5]
    wanted = result.predict(rows, client="hospital-1").probabilities
    got = result.predict(form(rows), client="hospital-1").probabilities
    assert np.array_equal(got, wanted)


def test_every_row_may_have_a_client_of_its_own(result):
    rows = NAMED.inputs[:6]
    owners = ["hospital-2", "hospital-1"] * 3
    found = result.predict(rows, client=owners)
    for i, owner in enumerate(owners):
        alone = result.predict(rows[i : i + 1], client=owner)
        assert np.allclose(found.probabilities[i], alone.probabilities[0], atol=1e-6)
        assert found.labels[i] == alone.labels[0]
    by_array = result.predict(rows, client=np.array(owners))
    assert np.array_equal(by_array.probabilities, found.probabilities)


def test_a_regression_has_values():
    data = regression(sizes=(20,) * 3)
    result = il.run("ditto", nn.Linear(6, 1), data, rounds=3)
    found = result.predict(data.inputs[:4], client=1)
    wanted = result.personal(1)(data.inputs[:4]).squeeze(-1).detach().numpy()
    assert np.array_equal(found.values, wanted)
    assert found.labels is None and found.probabilities is None
    assert list(found.to_pandas()) == ["value"]


def test_labels_keep_their_type():
    for labels in ((41401, 42731, 50000), (0.5, 1.0, 2.0), (True, False, "maybe")):
        data = il.Federation(
            DATA.inputs, DATA.targets, DATA.offsets, DATA.ids, 3, class_names=labels
        )
        found = il.run("fedavg", Net, data, rounds=1).predict(data.inputs, client=0)
        assert {type(label) for label in found.labels.tolist()} <= {type(one) for one in labels}
        assert set(found.labels.tolist()) <= set(labels)


def test_classes_without_labels_are_their_numbers():
    found = il.run("fedavg", Net, DATA, rounds=1).predict(DATA.inputs, client=0)
    assert found.classes == (0, 1, 2) and set(found.labels.tolist()) <= {0, 1, 2}


def test_the_logistic_loss_has_two_classes():
    data = classification(sizes=(20,) * 3, classes=2)
    result = il.run("fedavg", il.Task(nn.Linear(6, 1), "logistic"), data, rounds=1)
    found = result.predict(data.inputs, client=0)
    assert np.allclose(found.probabilities.sum(1), 1) and set(found.labels.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("rows", "client", "says"),
    [
        (np.zeros((2, 5), np.float32), "hospital-1", r"rows: the model does not accept \(5,\) per"),
        (np.zeros(6, np.float32), "hospital-1", "is that of one row; several are expected"),
        (np.zeros((0, 6), np.float32), "hospital-1", "rows: there are none"),
        (np.array([["a"] * 6]), "hospital-1", "rows must be numbers, .* got an array of <U1"),
        (np.zeros((2, 6), np.float32), "hospital-9", "did you mean 'hospital-"),
        (np.zeros((2, 6), np.float32), ["hospital-1"], "client: 1 ids for 2 rows"),
        (np.zeros((2, 6), np.float32), None, "client: give its id"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_a_word(rows, client, says, result):
    with pytest.raises(il.SettingError, match=says):
        result.predict(rows, client=client)


# -- save and load ---------------------------------------------------------------------------------
@pytest.mark.parametrize("model", ["class", "module"])
def test_a_saved_result_predicts_without_the_training_data(model, tmp_path):
    torch.manual_seed(1)
    result = il.run("ditto", Net if model == "class" else Net(), NAMED, rounds=3)
    result.save(tmp_path / "saved")
    again = il.load(tmp_path / "saved", task=Net)
    rows = NAMED.inputs[:9]
    for id in NAMED.ids:
        one, other = result.predict(rows, client=id), again.predict(rows, client=id)
        assert np.array_equal(one.probabilities, other.probabilities)
        assert one.labels.tolist() == other.labels.tolist()
    if model == "module":  # any module of the class will do: its weights are in the checkpoint
        other = il.load(tmp_path / "saved", task=Net())
        assert np.array_equal(
            other.predict(rows, client="hospital-2").probabilities,
            result.predict(rows, client="hospital-2").probabilities,
        )
    else:
        with pytest.raises(il.SettingError, match="once per seed; give that, not a module"):
            il.load(tmp_path / "saved", task=Net())


def test_a_run_in_a_directory_is_loaded_the_same(tmp_path):
    result = il.run("fedavg", Net, NAMED, rounds=2, directory=tmp_path / "run")
    again = il.load(tmp_path / "run", task=Net)
    rows = NAMED.inputs[:3]
    one, other = (r.predict(rows, client="hospital-1").probabilities for r in (result, again))
    assert np.array_equal(one, other)


def test_a_method_that_trains_before_it_predicts_says_that_it_needs_the_data(tmp_path):
    il.run("per-fedavg", Net, NAMED, rounds=2).save(tmp_path / "saved")
    with pytest.raises(il.SettingError, match="trains on a client's data before it predicts"):
        il.load(tmp_path / "saved", task=Net).personal("hospital-1")
    il.load(tmp_path / "saved", task=Net, federation=NAMED).personal("hospital-1")


def test_another_model_than_that_of_the_run_is_refused(tmp_path):
    il.run("ditto", Net, NAMED, rounds=1).save(tmp_path / "saved")
    with pytest.raises(il.SettingError, match="another model"):
        il.load(tmp_path / "saved", task=lambda: nn.Linear(6, 4)).personal("hospital-1")


def test_labels_in_a_record_are_checked_when_they_are_read(tmp_path, result):
    result.save(tmp_path / "saved")
    file = tmp_path / "saved" / "record.json"
    for labels in (["cat", "dog"], "cat", [["cat"], "dog", "owl"]):
        rewrite(file, lambda saved, labels=labels: saved["data"].update(class_names=labels))
        with pytest.raises(il.SettingError, match="class_names"):
            il.load(tmp_path / "saved", task=Net)


# -- new clients -----------------------------------------------------------------------------------
def newcomers(ids=("hospital-8", "hospital-9"), seed=5, **more) -> il.Federation:
    data = classification(sizes=(24,) * len(ids), seed=seed)
    return il.Federation(
        data.inputs, data.targets, data.offsets, tuple(ids), 3, class_names=LABELS, **more
    )


@pytest.mark.parametrize("method", ["fedavg", "ditto", "lp-proj:dim=5", "per-fedavg", "lg-fedavg"])
def test_new_clients_get_what_held_out_clients_get(method):
    """The same clients, held out of training, and new to a run without them: the same models."""
    everyone = classification(sizes=(20,) * 6)
    held = il.run(method, Net, everyone, rounds=3, held_out=2, held_out_rounds=4)
    out = [row["client"] for row in held.clients_table() if row["held_out"]]
    inside = [k for k in range(6) if k not in out]
    alone = il.run(method, Net, everyone.of(inside), rounds=3, sample=4)
    new = alone.personalise(everyone.of(out), rounds=4)
    rows = {row["client"]: row for row in held.clients_table()}
    assert [row["client"] for row in new.clients_table()] == out
    for row in new.clients_table():
        mine, theirs = new.personal(row["client"]), held.personal(row["client"])
        assert torch.equal(mine.layer.weight, theirs.layer.weight)
        assert row["test_accuracy"] == rows[row["client"]]["test_accuracy"]


def test_new_clients_have_figures_models_and_predictions(result, tmp_path):
    data = newcomers()
    before = {id: result.personal(id).layer.weight.clone() for id in NAMED.ids}
    new = result.personalise(data, rounds=5)
    assert isinstance(new, il.Result) and len(new.clients_table()) == 2
    assert new.summary()["bytes"]["up"] == 0 < new.summary()["bytes"]["down"]
    x, y = data.part(1, "test")
    right = float((new.personal("hospital-9")(x).argmax(1) == y).double().mean())
    assert new.clients_table()[1]["test_accuracy"] == right
    assert set(new.predict(x, client="hospital-9").labels.tolist()) <= set(LABELS)
    assert "2 clients after training: 5 rounds" in new.record.notes["personalised"]["text"]
    assert len(new.export(tmp_path / "new")) == 3 and "accuracy" in str(new)
    assert new.to_pandas("clients")["client"].tolist() == ["hospital-8", "hospital-9"]
    for id, weight in before.items():  # those who trained are as they were
        assert torch.equal(result.personal(id).layer.weight, weight)
    with pytest.raises(il.SettingError, match=r"written by result.export\(folder\)"):
        new.save(tmp_path / "saved")


def test_new_clients_of_a_regression_have_its_metrics_and_a_baseline_of_their_own():
    data = regression(sizes=(20,) * 5)
    result = il.run("ditto", nn.Linear(6, 1), data.of([0, 1, 2]), rounds=3)
    new = result.personalise(data.of([3, 4]), rounds=3)
    assert {"test_rmse", "test_r2"} <= new.clients_table()[0].keys()
    assert len(new.record.baseline) == 2 and "2 clients after training" in str(new)
    assert "heard" not in str(new)


def test_more_rounds_help_a_new_client(result):
    few, many = (result.personalise(newcomers(), rounds=n) for n in (0, 40))
    assert many.over_seeds("loss", "train")[0] < few.over_seeds("loss", "train")[0]


def test_a_loaded_result_personalises(tmp_path, result):
    result.save(tmp_path / "saved")
    again = il.load(tmp_path / "saved", task=Net)
    one, other = (r.personalise(newcomers(), rounds=3) for r in (result, again))
    assert one.clients_table() == other.clients_table()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: newcomers(("hospital-1", "new")), "'hospital-1' took part in the run"),
        (lambda: classification(sizes=(20,) * 2), "their classes are called by their numbers"),
        (lambda: regression(sizes=(20,) * 2), "these have real targets, and the run was trained"),
        (lambda: np.zeros(3), "federation must be a Federation, got an object of type ndarray"),
    ],
)
def test_new_clients_that_do_not_fit_are_refused(data, says, result):
    with pytest.raises(il.SettingError, match=says):
        result.personalise(data())


def test_rounds_are_a_whole_number(result):
    with pytest.raises(il.SettingError, match="rounds must be a whole number >= 0, got -1"):
        result.personalise(newcomers(), rounds=-1)


def test_a_returning_client_begins_anew_if_it_is_said(result):
    new = result.personalise(newcomers(("hospital-1", "new")), returning=True, rounds=2)
    assert [row["client"] for row in new.clients_table()] == ["hospital-1", "new"]


def test_a_model_with_batch_norm_predicts_the_same_after_loading(tmp_path):
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))

    result = il.run("fedavg", make(), NAMED, rounds=2)
    result.save(tmp_path / "saved")
    again = il.load(tmp_path / "saved", task=make())
    rows = NAMED.inputs[:5]
    one, other = (r.predict(rows, client="hospital-1").probabilities for r in (result, again))
    assert np.array_equal(one, other)


def test_a_model_with_frozen_parts_needs_the_same_module(tmp_path):
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        return model

    one = make()
    il.run("fedavg", one, NAMED, rounds=1).save(tmp_path / "saved")
    il.load(tmp_path / "saved", task=one).personal("hospital-1")
    with pytest.raises(il.SettingError, match="another model: weights"):
        il.load(tmp_path / "saved", task=make()).personal("hospital-1")


# -- tables ----------------------------------------------------------------------------------------
def visits(sites, n=30, seed=0):
    """A table as people have it: text, a category, numbers far apart, labels of one's own."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    rows = len(sites) * n
    age = rng.uniform(20, 90, rows)
    table = {
        "site": np.repeat(sites, n),
        "age": age,
        "income": rng.uniform(1e4, 9e4, rows),
        "ward": rng.choice(["icu", "er", "day"], rows),
        "ill": np.where(age + 5 * rng.standard_normal(rows) > 55, "yes", "no"),
    }
    return pandas.DataFrame(table)


@pytest.fixture(scope="module", params=["federated", "client"])
def table_run(request, tmp_path_factory):
    frame = visits(["north", "south", "west"])
    data = il.Federation.from_frame(frame, client="site", target="ill", scale=request.param)
    features = data.inputs.shape[1]
    folder = tmp_path_factory.mktemp("table") / "run"
    result = il.run("ditto", lambda: nn.Linear(features, 2), data, rounds=5, directory=folder)
    return frame, data, result, folder, features


def test_raw_rows_are_prepared_as_the_training_data_were(table_run):
    frame, data, result, folder, features = table_run
    raw = frame[frame["site"] == "south"][["ward", "income", "age"]]  # in another order
    found = result.predict(raw, client="south")
    inputs = data.preparation.apply(raw, clients="south")
    wanted = result.predict(inputs, client="south")
    assert np.array_equal(found.probabilities, wanted.probabilities)
    assert set(found.labels.tolist()) <= {"no", "yes"} and found.classes == ("no", "yes")
    right = (found.labels == frame[frame["site"] == "south"]["ill"]).mean()
    assert right > 0.7
    by_site = result.predict(frame, client=frame["site"])
    south = (frame["site"] == "south").to_numpy()
    assert np.allclose(by_site.probabilities[south], found.probabilities, atol=1e-6)
    again = il.load(folder, task=lambda: nn.Linear(features, 2)).predict(raw, client="south")
    assert np.array_equal(again.probabilities, found.probabilities)
    assert again.labels.tolist() == found.labels.tolist()


def test_predictions_keep_the_index_of_their_rows(table_run):
    frame, _, result, *_ = table_run
    named = frame.set_axis([f"patient {n}" for n in range(len(frame))]).iloc[[7, 2, 5]]
    answers = result.predict(named, client="south").to_pandas()
    assert answers.index.tolist() == ["patient 7", "patient 2", "patient 5"]
    in_order = result.predict(frame, client="south").to_pandas()
    assert (answers.to_numpy() == in_order.iloc[[7, 2, 5]].to_numpy()).all()
    inputs = result.preparation.apply(named, clients="south")
    assert result.predict(inputs, client="south").index is None


def test_a_missing_column_is_named(table_run):
    frame, _, result, _, _ = table_run
    with pytest.raises(il.SettingError, match="column 'age' is not in the table"):
        result.predict(frame.drop(columns="age"), client="south")


def test_new_hospitals_of_a_table_are_prepared_as_those_of_training(table_run):
    _, _, result, _, _ = table_run
    frame = visits(["east"], seed=9)
    data = il.Federation.from_frame(
        frame,
        client="site",
        target="ill",
        preparation=result.preparation,
        class_names=result.class_names,
    )
    new = result.personalise(data, rounds=20)
    assert new.over_seeds("accuracy")[0] > 0.7
    assert len(new.predict(frame, client="east")) == 30
    own = il.Federation.from_frame(frame, client="site", target="ill", scale="none")
    with pytest.raises(il.SettingError, match=r"in another way; .*preparation=result.prep"):
        result.personalise(own)
    arrays = il.Federation.from_arrays(data.inputs, data.targets, ["x"] * 30)
    with pytest.raises(il.SettingError, match="data: "):
        result.personalise(arrays)


def test_a_preparation_in_a_record_is_checked_when_it_is_read(table_run, tmp_path):
    _, _, _, folder, _ = table_run
    shutil.copytree(folder, tmp_path / "copy")
    file = tmp_path / "copy" / "record.json"
    rewrite(file, lambda saved: saved["data"]["preparation"].update(scale="magic"))
    with pytest.raises(il.SettingError, match="preparation: it cannot be used"):
        il.load(tmp_path / "copy")


def test_pictures_are_read_as_the_training_data_were(capsys):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    labels = ["dark" if p.mean() < 127 else "light" for p in pixels]
    federation = il.Federation.from_arrays(pixels, labels, [i % 3 for i in range(60)])
    assert tuple(federation.inputs.shape[1:]) == (3, 8, 8)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    result = il.run("fedavg", net, federation, rounds=2)
    capsys.readouterr()
    raw = result.predict(pixels, client=1)
    said = capsys.readouterr().err
    assert "bytes are scaled" in said and "channels are moved" in said
    ready = torch.from_numpy(pixels).movedim(-1, 1).float() / 255
    assert np.allclose(raw.probabilities, result.predict(ready, client=1).probabilities, atol=1e-6)
    assert not capsys.readouterr().err
