"""Any metric: by name or as a function, per client and pooled, equal to scikit-learn's."""

import csv
import json
import math
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as skm
import torch
import torchmetrics
from torch import nn

import idiolect as il
from helpers import classification, regression
from host.leaks import check_scores
from idiolect.cli.main import main
from idiolect.host.metrics import (
    METRICS,
    EvaluatedSamples,
    Tally,
    TargetForm,
    direction,
    parse_metrics,
)
from idiolect.host.metrics.ranking import roc_areas
from idiolect.host.scores import Scores
from idiolect.run.settings import Settings

SIZES = (40, 3, 17, 9, 25, 60, 8)
PARTS = {"test": 0.5, "valid": 0.2}
NAMED = "balanced_accuracy,auc,f1,log_loss,brier,calibration_error,top_2,perplexity"


def classes(count=3, **options) -> il.Federation:
    return classification(SIZES, features=4, classes=count, **PARTS, **options)


def values(**options) -> il.Federation:
    return regression(SIZES, features=4, **PARTS, **options)


def linear(outputs=3, loss="cross_entropy") -> il.Task:
    return il.Task(lambda: nn.Linear(4, outputs), loss)


def own_share(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def expected(name, y, p, count):
    """The value by scikit-learn or torchmetrics; None where they have none."""
    label = p.argmax(1)
    if name == "auc":
        there = [c for c in range(count) if 0 < (y == c).sum() < len(y)]
        if not there:
            return None
        if count == 2:
            return skm.roc_auc_score(y, p[:, 1])
        return skm.roc_auc_score(np.eye(count)[y][:, there], p[:, there], average="macro")
    if name == "f1" and count == 2:
        return skm.f1_score(y, label) if (y.any() or label.any()) else None
    if name == "calibration_error":
        found = torchmetrics.functional.calibration_error(
            torch.from_numpy(p), torch.from_numpy(y), "multiclass", num_classes=count, n_bins=15
        )
        return float(found)
    brier = (p[:, 1] - y) ** 2 if count == 2 else ((p - np.eye(count)[y]) ** 2).sum(1)
    log_loss = skm.log_loss(y, p, labels=range(count))
    return {
        "balanced_accuracy": lambda: skm.balanced_accuracy_score(y, label),
        "f1": lambda: skm.f1_score(y, label, average="macro", zero_division=0.0),
        "log_loss": lambda: log_loss,
        "perplexity": lambda: math.exp(log_loss),
        "brier": lambda: brier.mean(),
        "top_2": lambda: np.mean([t in np.argsort(r)[-2:] for t, r in zip(y, p, strict=True)]),
    }[name]()


def outputs_of(result, data, split="test"):
    """(probabilities, targets) of every client, by its own module."""
    found = []
    for id in data.ids:
        x, y = data.part(data.position(id), split)
        with torch.no_grad():
            z = result.personal(id)(x).double()
        p = torch.cat([torch.sigmoid(-z), torch.sigmoid(z)], 1) if z.shape[1] == 1 else z.softmax(1)
        found.append((p.numpy(), y.numpy()))
    return found


# -- values ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [il.FedAvg(), il.Ditto()], ids=["one model", "personal models"])
@pytest.mark.parametrize(("count", "outputs"), [(3, 3), (2, 2), (2, 1)])
def test_every_metric_of_classes_is_that_of_scikit_learn(method, count, outputs):
    data = classes(count)
    task = linear(outputs, "logistic" if outputs == 1 else "cross_entropy")
    names = NAMED.replace("top_2,", "") if count == 2 else NAMED
    result = il.run(method, task, data, rounds=2, sample=7, batch=8, metrics=names)
    parts = outputs_of(result, data)
    p, y = (np.concatenate(both) for both in zip(*parts, strict=True))
    final = result.seeds[0].final["test"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names.split(","):
            each = [expected(name, y, p, count) if len(y) else None for p, y in parts]
            rows = [row[f"test_{name}"] for row in result.clients_table()]
            want = [math.nan if v is None else v for v in each]
            assert rows == pytest.approx(want, rel=1e-5, abs=1e-6, nan_ok=True), name
            near = {"abs": 0.003} if name == "auc" else {"rel": 1e-5, "abs": 1e-6}
            assert final[name] == pytest.approx(expected(name, y, p, count), **near), name
            known = [v for v, (_, t) in zip(each, parts, strict=True) if v is not None and len(t)]
            assert final[f"{name}_clients"] == pytest.approx(np.mean(known), rel=1e-5, abs=1e-6)
            worst = min(known) if direction(name) else max(known)
            if name != "top_2":
                assert final[f"{name}_worst10"] == pytest.approx(worst, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("targets", [1, 2])
def test_every_metric_of_a_regression_is_that_of_scikit_learn(targets):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((sum(SIZES), 4)).astype(np.float32)
    y = (1000 + x @ rng.standard_normal((4, targets))).astype(np.float32)
    y = y[:, 0] if targets == 1 else y
    data = il.Federation.from_arrays(x, y, np.repeat(range(7), SIZES), **PARTS)
    model = nn.Linear(4, targets)
    model.bias.data += 1000
    result = il.run(
        il.Ditto(lr=0.01), il.Task(model, "mse"), data, rounds=1, sample=7, metrics="rmse,mae,r2"
    )
    parts = []
    for id in data.ids:
        inputs, true = data.part(data.position(id), "test")
        with torch.no_grad():
            parts.append((true.double(), result.personal(id)(inputs).double().reshape(true.shape)))
    whole = tuple(torch.cat(both) for both in zip(*parts, strict=True))
    final = result.seeds[0].final["test"]
    for name, score in (
        ("rmse", skm.root_mean_squared_error),
        ("mae", skm.mean_absolute_error),
        ("r2", skm.r2_score),
    ):
        each = [score(t, p) if len(t) > 1 else math.nan for t, p in parts if len(t)]
        rows = [row[f"test_{name}"] for row in result.clients_table() if row["test_samples"]]
        keep = [i for i, v in enumerate(each) if not math.isnan(v)]
        assert [rows[i] for i in keep] == pytest.approx([each[i] for i in keep], rel=1e-4)
        assert final[name] == pytest.approx(score(*whole), rel=1e-4)


def test_the_areas_of_many_clients_are_exact_with_ties():
    rng = np.random.default_rng(1)
    owner = np.sort(rng.integers(50, size=900))
    score = rng.integers(6, size=900) / 5.0
    positive = rng.integers(2, size=900)
    found = roc_areas(owner, score, positive, 50)
    for k in range(50):
        mine = owner == k
        if 0 < positive[mine].sum() < mine.sum():
            assert found[k] == pytest.approx(skm.roc_auc_score(positive[mine], score[mine]))
        else:
            assert math.isnan(found[k])


def test_scores_of_equal_certainty_are_ties_also_where_they_are_infinite():
    score = np.array([np.inf, np.inf, -np.inf, np.inf])
    area = roc_areas(np.zeros(4, dtype=int), score, np.array([1, 0, 0, 1]), 1)
    assert area[0] == skm.roc_auc_score([1, 0, 0, 1], np.sign(score))


def test_hosts_do_not_change_a_bit_of_any_metric():
    data = classes()
    asked = {"rounds": 2, "sample": 4, "metrics": [*NAMED.split(","), own_share]}
    one, three = (il.run(il.Ditto(), linear(), data, hosts=h, **asked) for h in (1, 3))
    assert one.rounds_table() == three.rounds_table()
    assert json.dumps(one.clients_table()) == json.dumps(three.clients_table())
    shared = [
        il.run(il.FedAvg(), linear(), data, hosts=h, **asked).seeds[0].shared_model for h in (1, 3)
    ]
    assert shared[0] == shared[1] and "auc" in shared[0]


def test_pieces_of_one_model_and_rows_of_many_count_alike():
    rng = np.random.default_rng(2)
    owner = torch.arange(6).repeat_interleave(torch.tensor([5, 1, 30, 0, 12, 2]))
    outputs = torch.from_numpy(rng.standard_normal((50, 3)))
    targets = torch.from_numpy(rng.integers(3, size=50))
    metrics = parse_metrics([*NAMED.split(","), own_share])
    whole, pieces = (Tally(metrics, TargetForm(3), 6, torch.arange(6)) for _ in range(2))
    whole.add(owner, outputs, targets)
    for a in range(0, 50, 7):
        pieces.add(owner[a : a + 7], outputs[a : a + 7], targets[a : a + 7])
    for name, one in whole.measured(torch.arange(6)).items():
        other = pieces.measured(torch.arange(6))[name]
        torch.testing.assert_close(one.rows, other.rows, equal_nan=True)
        assert torch.equal(one.counts, other.counts), name


def test_ignored_targets_and_several_targets_per_sample_are_counted_right():
    outputs = torch.randn(4, 5, 3, dtype=torch.float64)
    targets = torch.randint(3, (4, 5))
    targets[0, 1] = targets[2, 4] = -100
    owner = torch.tensor([0, 0, 1, 1])
    for given in (outputs, outputs.movedim(-1, 1)):  # classes last, or second as torch has them
        tally = Tally(parse_metrics("log_loss,perplexity,f1"), TargetForm(3), 2, torch.arange(2))
        tally.add(owner, given, targets)
        found = tally.measured(torch.arange(2))["log_loss"].each()
        for k, rows in enumerate((slice(0, 2), slice(2, 4))):
            want = nn.functional.cross_entropy(
                outputs[rows].reshape(-1, 3), targets[rows].flatten()
            )
            assert float(found[k]) == pytest.approx(float(want))


def test_outputs_in_a_dict_are_read_by_the_name_logits():
    z, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    named = EvaluatedSamples(
        torch.zeros(4, dtype=torch.int64), {"logits": z, "hidden": z[:, :1]}, y, TargetForm(3)
    )
    torch.testing.assert_close(named.log_probabilities, z.double().log_softmax(1))
    with pytest.raises(il.SettingError, match="none of them is called 'logits'"):
        _ = EvaluatedSamples(named.owner, {"a": z, "b": z}, y, TargetForm(3)).labels


# -- a user's own --------------------------------------------------------------------------------
def test_functions_of_ones_own_of_torchmetrics_and_of_scikit_learn_are_called_per_client():
    data = classes()
    kappa = torchmetrics.CohenKappa(task="multiclass", num_classes=3)
    f1 = partial(skm.f1_score, average="macro", zero_division=0.0)
    asked = [own_share, kappa, ("by_name", f1), "accuracy"]
    result = il.run(il.Ditto(), linear(), data, rounds=1, sample=4, metrics=asked)
    rows = [row for row in result.clients_table() if row["test_samples"]]
    for row, (p, y) in zip(rows, [o for o in outputs_of(result, data) if len(o[1])], strict=True):
        assert row["test_own_share"] == pytest.approx(row["test_accuracy"])
        kappa_of = skm.cohen_kappa_score(y, p.argmax(1))
        assert row["test_MulticlassCohenKappa"] == pytest.approx(
            kappa_of, rel=1e-4, abs=1e-4, nan_ok=True
        )
        want = skm.f1_score(y, p.argmax(1), average="macro", zero_division=0.0)
        assert row["test_by_name"] == pytest.approx(want)
    summary = result.summary()["metrics"]["own_share"]
    n = np.array([row["test_samples"] for row in rows])
    each = np.array([row["test_own_share"] for row in rows])
    assert summary["mean"] == pytest.approx((n * each).sum() / n.sum())
    assert summary["pooled_over"] == "clients"
    assert "own_share: mean over clients, weighted by samples" in str(result)


def test_a_function_that_has_no_value_for_a_client_is_counted_and_said():
    def needs_ten(outputs, targets):
        if len(targets) < 10:
            raise ValueError("too few")
        return float(len(targets))

    result = il.run(il.FedAvg(), linear(), classes(), rounds=1, sample=4, metrics=[needs_ten])
    few = sum(0 < row["test_samples"] < 10 for row in result.clients_table())
    assert few and result.summary()["metrics"]["needs_ten"]["clients_undefined"] == few
    assert f"needs_ten: no value for {few} clients" in str(result)


def broken(outputs, targets):
    return outputs.no_such_thing


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ("acu", "'acu' is unknown; did you mean 'auc'"),
        ("top_k", "must say how many, such as 'top_5', got 'top_k'"),
        ("top_5", "of 3 classes the 5 most probable are all"),
        ("r2", "metrics must fit these data, got 'r2': it is about real targets"),
        ("auc,auc", "'auc' is named twice"),
        ([lambda o, t: 1.0], "'<lambda>' cannot be the name of a column"),
        ([("round", own_share)], "'round' cannot be the name of a column"),
        ([broken], "'broken' fails on the first clients: 'Tensor' object has no attribute"),
        ([lambda: 1], "cannot be the name"),
        ([torchmetrics.MeanSquaredError], "make an object of it first"),
        ([3], "metrics must be names (accuracy, balanced_accuracy"),
        (7, "a function, got '7'"),
        ("own:mine", "'mine': it is a function of the program that made the run"),
        ("no_such_module:metric", "cannot be imported"),
    ],
)
def test_a_metric_that_makes_no_sense_is_refused_by_name_before_the_run(metrics, says):
    with pytest.raises(il.SettingError, match=r"^metrics") as error:
        il.run(il.FedAvg(), linear(), classes(), rounds=1, metrics=metrics)
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["auc", "accuracy", "f1", "perplexity"])
def test_metrics_of_classes_are_refused_for_a_regression(name):
    with pytest.raises(
        il.SettingError, match=f"must fit these data, got '{name}': it is about classes"
    ):
        il.run(il.FedAvg(), linear(1, "mse"), values(), rounds=1, metrics=name)


def test_a_client_with_one_class_has_no_auc_and_is_counted():
    x = np.random.default_rng(0).standard_normal((60, 4))
    y = np.r_[np.zeros(20), np.arange(40) % 2].astype(int)
    data = il.Federation.from_arrays(x, y, np.repeat(["one", "two", "six"], 20), test=0.5)
    result = il.run(il.FedAvg(), linear(2), data, rounds=1, sample=3, metrics="auc")
    auc = {row["client"]: row["test_auc"] for row in result.clients_table()}
    assert math.isnan(auc["one"]) and not math.isnan(auc["two"])
    assert result.summary()["metrics"]["auc"]["clients_undefined"] == 1
    assert "auc: no value for 1 client (all test samples of one class)" in str(result)


def test_every_built_in_metric_stands_in_the_help_and_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    help_text = Settings.__dataclass_fields__["metrics"].metadata["help"]
    for name in METRICS.built_in:
        assert f"`{name}`" in page and name in help_text


# -- what a run does with them --------------------------------------------------------------------
def test_without_metrics_nothing_is_added_and_with_them_nothing_else_changes(tmp_path):
    data = classes()
    asked = {"rounds": 3, "sample": 4, "held_out": 1, "threads": 1}
    bare = il.run(il.Ditto(), linear(), data, directory=tmp_path / "bare", **asked)
    full = il.run(
        il.Ditto(), linear(), data, directory=tmp_path / "full", metrics="auc,f1", **asked
    )
    with open(tmp_path / "bare" / "metrics.csv") as file:
        assert next(csv.reader(file)) == [
            "seed", "round",
            "accuracy", "accuracy_variance", "accuracy_clients", "accuracy_worst10",
            "loss", "loss_variance", "loss_clients", "loss_worst10",
            "bytes_up", "bytes_down", "values_up", "values_down", "gradients_per_client",
        ]  # fmt: skip
    assert "metrics" not in bare.summary()
    for without, more in (
        (bare.rounds_table(), full.rounds_table()),
        (bare.clients_table(), full.clients_table()),
    ):
        kept = [{k: row[k] for k in without[0]} for row in more]
        assert json.dumps(kept) == json.dumps(without)
        assert [k for k in more[0] if "auc" in k]


def test_the_files_of_a_run_carry_the_metrics_and_load_gives_them_back(tmp_path):
    asked = {"rounds": 2, "sample": 4, "metrics": ["auc", own_share], "metric": "auc"}
    result = il.run(il.Ditto(), linear(), classes(), directory=tmp_path / "run", **asked)
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"auc", "auc_clients", "auc_worst10", "auc_variance", "own_share"} <= set(header)
    assert "test_auc" in (tmp_path / "run" / "clients.csv").read_text().splitlines()[0]
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["metrics"]["auc"]["mean"] == result.seeds[0].final["test"]["auc"]
    assert stored["valid"]["auc"]["mean"] == result.seeds[0].final["valid"]["auc"]
    loaded = il.load(tmp_path / "run", task=linear(), federation=classes())
    assert loaded.summary() == result.summary() and loaded.record.figure == "auc"


def test_a_resumed_run_has_the_same_metrics_and_refuses_others(tmp_path):
    data = classes()
    asked = {"sample": 4, "rounds": 4, "checkpoint_every": 1, "threads": 1}

    def stop(seed, round, figure):
        assert figure.name == "f1"
        if round == 2:
            raise KeyboardInterrupt

    first = {**asked, "metrics": ["auc", "f1"], "metric": "f1"}
    whole = il.run(il.Ditto(), linear(), data, **first)
    with pytest.raises(KeyboardInterrupt):
        il.run(il.Ditto(), linear(), data, directory=tmp_path, progress=stop, **first)
    with pytest.raises(il.SettingError, match="metrics was 'auc,f1', is 'auc'"):
        il.run(il.Ditto(), linear(), data, directory=tmp_path, resume=True, **asked, metrics="auc",
               metric="f1")  # fmt: skip
    again = il.run(il.Ditto(), linear(), data, directory=tmp_path, resume=True, **first)
    assert again.rounds_table() == whole.rounds_table()


@pytest.mark.parametrize(
    ("metric", "target", "stops"),
    [("auc", 0.01, True), ("log_loss", 100.0, True), ("auc", 1.1, False), ("log_loss", 0, False)],
)
def test_the_chosen_metric_stops_the_run_in_its_own_direction(metric, target, stops):
    result = il.run(il.FedAvg(), linear(), classes(), rounds=3, metric=metric, target_value=target)
    assert result.seeds[0].stopped == ("target" if stops else "rounds")
    assert result.seeds[0].rounds == (1 if stops else 3)
    assert metric in result.summary()["metrics"], "the chosen metric need not be named twice"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"metric": "acu"}, "metric: 'acu' is unknown; did you mean 'auc'"),
        ({"metric": "rmse"}, "metrics must fit these data, got 'rmse'"),
        (
            {"target_value": "soon"},
            "target_value must be a number, or '' for no target",
        ),
        (
            {"target_value": 0.5, "eval_every": 0},
            "eval_every must be a whole number >= 1 with a target_value, got 0",
        ),
    ],
)
def test_a_bad_choice_is_refused_by_name(settings, says):
    with pytest.raises(il.SettingError) as error:
        il.run(il.FedAvg(), linear(), classes(), rounds=1, **settings)
    assert says in str(error.value)


def test_a_comparison_asks_for_the_cost_of_a_target_of_any_metric():
    asked = {"rounds": 4, "sample": 4, "metric": "log_loss", "target_value": 0.9, "bytes": 4000}
    found = il.compare(["fedavg", "ditto"], linear(), classes(), **asked)
    for row, result in zip(found.rows(), found.results, strict=True):
        first = next((h for h in result.seeds[0].history if h["log_loss"] <= 0.9), None)
        want = first and first["bytes_up"] + first["bytes_down"]
        assert row["to_target"]["by_seed"] == [want]
    assert "bytes to log_loss 0.9" in str(found) and "log_loss at 4 kB" in str(found)


def test_candidates_are_chosen_by_the_chosen_metric_on_validation_data():
    grid = {"lr": [1e-6, 0.1]}
    tuned = il.tune("fedavg", linear(), classes(), grid=grid, rounds=4, metric="brier", jobs=1)
    best, other = tuned.rows()
    assert best["lr"] == tuned.best[0].lr == 0.1
    assert best["valid"] < other["valid"]


def test_metrics_are_flags_and_keys_of_a_settings_file(tmp_path, capsys):
    small = ["--data", "synthetic", "--clients", "5", "--samples", "60", "--rounds", "2", "--json"]
    folder = str(tmp_path / "flags")
    assert main(["run", "fedavg", *small, "--metrics", "auc,top_3", "--directory", folder]) == 0
    assert set(json.loads(capsys.readouterr().out)["metrics"]) == {"auc", "top_3"}
    file = tmp_path / "run.toml"
    file.write_text(
        '[run]\nrounds = 2\nmetrics = ["f1", "brier"]\nmetric = "f1"\ntarget_value = 0.01\n'
    )
    more = ["--config", str(file), "--clients", "5", "--samples", "60", "--json"]
    assert main(["run", "fedavg", *more, "--directory", str(tmp_path / "file")]) == 0
    out = json.loads(capsys.readouterr().out)
    assert set(out["metrics"]) == {"f1", "brier"} and out["stopped"] == ["target"]
    assert main(["resume", str(tmp_path / "file"), "--json"]) == 0


def test_only_declared_figures_of_a_metric_leave_a_host():
    data = classes()
    asked = {"rounds": 1, "sample": 4, "metrics": NAMED}
    session = il.run(il.Ditto(), linear(), data, **asked).session()
    ids = session.people.evaluated
    down = session.server.message(session.server.version)
    found = session.hosts[0].evaluate(session.server.version, down, ids, ("test",))
    check_scores(found, ("test",), ids, TargetForm(3))
    auc = found["test"].metrics["auc"]
    assert auc.rows.shape == (7, 2), "a value per client, not its scores"
    with pytest.raises(Exception, match="undeclared"):
        check_scores(found, ("test",), ids, TargetForm(4))


# -- regression --------------------------------------------------------------------------------
def test_a_regression_has_no_accuracy_column_and_a_mean_predictor_beside_local():
    data = values()
    found = il.compare(["fedavg:lr=0.01"], linear(1, "mse"), data, rounds=5, sample=4)
    text = str(found)
    heading = next(line for line in text.splitlines() if "method" in line).split()
    assert "accuracy" not in text
    assert heading[:4] == ["method", "loss", "±", "95"] and {"rmse", "r2"} <= set(heading)
    assert "worst" in heading
    mean, fedavg, local = found.summary()
    assert mean["label"] == "training mean" and "local" in local["label"]
    squares, samples = [], 0
    for k in range(data.clients):
        train, test = data.part(k, "train")[1], data.part(k, "test")[1]
        squares.append(float(((test - train.mean()) ** 2).double().sum()))
        samples += len(test)
    assert mean["loss"]["mean"] == pytest.approx(sum(squares) / samples, rel=1e-5)
    assert mean["metrics"]["rmse"]["mean"] == pytest.approx(
        math.sqrt(sum(squares) / samples), rel=1e-5
    )
    for row in (mean, fedavg, local):
        assert row["loss"]["worst10"] is not None and row["metrics"]["r2"]["mean"] is not None


def test_the_progress_of_a_regression_tells_its_loss():
    seen = []
    il.run(il.FedAvg(lr=0.01), linear(1, "mse"), values(), rounds=1, sample=4,
           progress=lambda seed, round, figure: seen.append(figure))  # fmt: skip
    assert seen[0].name == "loss" and not math.isnan(seen[0])


def test_a_comparison_of_a_regression_is_saved_and_shown_again(tmp_path, capsys):
    asked = {"rounds": 2, "sample": 4, "directory": tmp_path / "c", "bytes": 2000}
    found = il.compare(["fedavg:lr=0.01"], linear(1, "mse"), values(), **asked)
    assert il.load(tmp_path / "c").summary() == found.summary()
    assert main(["show", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert "training mean" in out and "loss at 2 kB" in out


def test_scores_of_nobody_have_no_figures():
    none = torch.zeros(0)
    assert Scores(none, none, none, none, none).metrics == {}
