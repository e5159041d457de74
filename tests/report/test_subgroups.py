"""Figures by subgroup: they add up, their intervals count what is independent, and say no more."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.host.scores import wilson
from idiolect.report.clients import clients_view
from idiolect.report.subgroups import over_seeds
from idiolect.run.summary import Summary, merge

rng = np.random.default_rng(0)
N = 480
SEX = np.array(["f", "m"])[rng.integers(0, 2, N)]
ARM = np.array(["a", "b", "c"])[rng.integers(0, 3, N)]
SITE = np.array(["north", "south", "west"])[np.arange(N) // 2 % 3]  # a patient has two rows
X = rng.normal(size=(N, 3)).astype("f4")
Y = (X[:, 0] + np.where(SEX == "f", 3.0, 0.3) * rng.normal(size=N) > 0).astype(int)


def data(**options):
    subgroup = options.pop("subgroup", {"sex": SEX, "arm": ARM})
    return il.Federation.from_arrays(X, Y, SITE, subgroup=subgroup, test=0.5, valid=0, **options)


def trained(federation=None, method="ditto", **settings):
    settings = {"rounds": 3, "seeds": 1, **settings}
    task = il.Task(lambda: nn.Linear(3, 2))
    return il.run(method, task, data() if federation is None else federation, **settings)


RESULT = trained(metrics="auc,f1")


def lines(result, **wanted):
    table = result.to_pandas("subgroups")
    for name, value in wanted.items():
        table = table[table[name] == value]
    return table


def truth(result, federation, client=None):
    """Every test sample's probability of class 1, class, hit and label of sex, from the models."""
    out = []
    for k, name in enumerate(federation.ids):
        if client is not None and name != client:
            continue
        low, high = (int(federation.offsets["test"][k + i]) for i in (0, 1))
        x, y = federation.part(k, "test")
        with torch.no_grad():
            p = result.personal(name)(x).double().softmax(1)[:, 1].numpy()
        codes = federation.subgroups[0].codes[low:high].numpy()
        out.append(pd.DataFrame({"p": p, "y": y.numpy(), "sex": codes}))
    return pd.concat(out)


@pytest.mark.parametrize("client", ["", "south"])
def test_a_figure_is_that_of_the_samples_of_the_subgroup(client):
    samples = truth(RESULT, data(), client or None)
    for code, sex in enumerate("fm"):
        own = samples[samples["sex"] == code]
        rows = lines(RESULT, model="personal", column="sex", client=client, subgroup=sex)
        values = rows.set_index("figure")["value"]
        assert (rows["samples"] == len(own)).all()
        hits = (own["p"] > 0.5) == own["y"]
        p_of_class = np.where(own["y"] == 1, own["p"], 1 - own["p"])
        assert values["accuracy"] == pytest.approx(hits.mean())
        assert values["loss"] == pytest.approx(-np.log(p_of_class).mean(), rel=1e-5)
        assert values["auc"] == pytest.approx(roc_auc_score(own["y"], own["p"]), abs=2e-3)
        assert values["f1"] == pytest.approx(f1_score(own["y"], own["p"] > 0.5))


@pytest.mark.parametrize("column", ["sex", "arm"])
@pytest.mark.parametrize("figure", ["accuracy", "loss"])
def test_the_overall_figure_is_the_mean_of_its_subgroups_by_samples(column, figure):
    summary = RESULT.summary()
    for model, overall in (("personal", summary), ("shared", summary["global_model"])):
        rows = lines(RESULT, model=model, column=column, figure=figure, client="")
        mean = np.average(rows["value"], weights=rows["samples"])
        assert mean == pytest.approx(overall[figure]["mean"])


def test_samples_with_weights_count_by_them():
    weight = rng.integers(1, 9, N).astype(float)
    federation = data(weight=weight)
    result = trained(federation, metrics="auc,f1")
    samples = truth(result, federation)
    samples["weight"] = federation.weights_of("test").numpy()
    for code, sex in enumerate("fm"):
        own = samples[samples["sex"] == code]
        mass, hits = own["weight"], (own["p"] > 0.5) == own["y"]
        values = {
            "accuracy": np.average(hits, weights=mass),
            "f1": f1_score(own["y"], own["p"] > 0.5, sample_weight=mass),
            "auc": roc_auc_score(own["y"], own["p"], sample_weight=mass),
        }
        rows = lines(result, model="personal", column="sex", client="", subgroup=sex)
        figures = dict(zip(rows["figure"], rows["value"], strict=True))
        assert {name: figures[name] for name in values} == pytest.approx(values, abs=2e-3)
    row = lines(result, model="personal", column="sex", client="", subgroup="f", figure="accuracy")
    count = int((samples["sex"] == 0).sum())
    low, high = wilson(float(row["value"].iloc[0]) * count, count)
    assert row["high"].iloc[0] - row["low"].iloc[0] > high - low  # weights that are unlike say less


def test_without_groups_the_interval_of_accuracy_is_that_of_wilson():
    for _, row in lines(RESULT, figure="accuracy").iterrows():
        want = wilson(row["value"] * row["samples"], row["samples"])
        assert (row["low"], row["high"]) == pytest.approx(want)


def test_two_subgroups_differ_by_the_difference_of_their_figures():
    rows = lines(RESULT, model="personal", column="sex", figure="accuracy", client="")
    f, m = (row for _, row in rows.iterrows())
    assert f["difference"] == pytest.approx(f["value"] - m["value"]) == -m["difference"]
    low = f["difference"] - math.hypot(f["value"] - f["low"], m["high"] - m["value"])
    assert f["difference_low"] == pytest.approx(low) == -m["difference_high"]


def test_copies_of_a_sample_in_one_group_say_as_much_as_the_sample():
    """Of losses, whose interval is Student's t in both cases."""
    models = nn.Linear(3, 2)
    split = np.where(np.arange(N) % 2, "train", "test")
    options = {"split": split, "subgroup": {"sex": SEX}}
    once = il.Federation.from_arrays(X, Y, SITE, group=np.arange(N), **options)
    options = {"split": split.repeat(5), "subgroup": {"sex": SEX.repeat(5)}}
    copies = il.Federation.from_arrays(
        X.repeat(5, 0), Y.repeat(5), SITE.repeat(5), group=np.arange(N).repeat(5), **options
    )
    single, repeated = (
        il.run("fedavg", il.Task(models), each, rounds=0).to_pandas("subgroups")
        for each in (once, copies)
    )
    assert (repeated["samples"] == 5 * single["samples"]).all()
    assert (repeated["groups"] == single["groups"]).all()
    bounds = ["low", "high", "difference_low", "difference_high"]
    np.testing.assert_allclose(repeated[bounds], single[bounds], rtol=1e-5, atol=1e-6)


def test_a_subgroup_of_too_few_samples_has_no_figure():
    split = np.where(np.arange(N) % 3, "train", "test")
    sex = SEX.copy()
    sex[np.flatnonzero(split == "test")[:4]] = "x"
    result = trained(il.Federation.from_arrays(X, Y, SITE, subgroup={"sex": sex}, split=split))
    rows = [row for row in result.subgroups.overall if row["subgroup"] == "x"]
    assert rows and all(row["verdict"] == "too few" for row in rows)
    assert all(math.isnan(row["value"]) and row["samples"] < 5 for row in rows)
    assert "too few: fewer than 5 samples" in str(result.subgroups)


def test_a_difference_is_called_only_where_its_interval_leaves_out_zero():
    rows = RESULT.subgroups.rows
    verdicts = {row["verdict"] for row in rows}
    assert {"better", "worse", "cannot tell"} <= verdicts
    for row in rows:
        if row["verdict"] in ("better", "worse"):
            assert row["difference_low"] > 0 or row["difference_high"] < 0
            is_higher = row["difference"] > 0
            assert (row["verdict"] == "better") == (is_higher != (row["figure"] == "loss"))


def test_of_many_subgroups_one_that_stands_out_by_chance_is_not_called():
    def line(number, low):
        own = {"model": "personal", "column": "arm", "subgroup": str(number), "figure": "accuracy"}
        gap = {"difference": 0.1, "difference_low": low, "difference_high": 0.2 - low}
        return own | {"samples": 50, "value": 0.5, "low": 0.4, "high": 0.6} | gap

    alone = over_seeds([[line(0, 0.005)]], {"accuracy": True})
    assert alone[0]["verdict"] == "better"
    many = over_seeds(
        [[line(0, 0.005), *(line(k, -0.1) for k in range(1, 10))]], {"accuracy": True}
    )
    assert {row["verdict"] for row in many} == {"cannot tell"}


def test_intervals_hold_what_they_should_where_rows_of_a_patient_are_alike():
    """One small check of coverage: every subgroup is a sample of the same 40 kinds of patients."""
    draws = np.random.default_rng(1)
    size, patients = 4, 40
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model.bias.zero_()

    def draw(groups):
        x = draws.normal(size=groups).repeat(size) + 0.5 * draws.normal(size=groups * size)
        y = (x + draws.normal(size=groups).repeat(size) > 0).astype(int)
        return x.astype("f4")[:, None], y

    x, y = draw(20_000)
    p = 1 / (1 + np.exp(-2 * x[:, 0]))
    loss = -np.log(np.where(y == 1, p, 1 - p)).mean()
    truth = {"accuracy": ((p > 0.5) == y).mean(), "loss": loss, "auc": roc_auc_score(y, p)}
    inside = {name: [] for name in truth}
    for _ in range(2):
        x, y = draw(20 * patients)
        group = np.arange(20 * patients).repeat(size)
        federation = il.Federation.from_arrays(
            np.r_[x, x[:1]],
            np.r_[y, y[:1]],
            ["a"] * (len(y) + 1),
            group=np.r_[group, -1],
            split=["test"] * len(y) + ["train"],
            subgroup=np.r_[group // patients, 0],
        )
        result = il.run("fedavg", il.Task(model), federation, rounds=0, metrics="auc")
        for _, row in lines(result, client="", model="personal").iterrows():
            inside[row["figure"]].append(row["low"] <= truth[row["figure"]] <= row["high"])
    assert all(np.mean(held) >= 0.88 for held in inside.values()), inside


# -- where they come from --------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [{"hosts": 3}, {"engine": "processes", "hosts": 2}])
def test_figures_do_not_depend_on_which_hosts_clients_are_at(settings):
    federation, model = data(group=np.arange(N) // 2), nn.Linear(3, 2)
    one, many = (
        il.run("ditto", il.Task(model), federation, rounds=2, metrics="auc", **each)
        for each in ({}, settings)
    )
    pd.testing.assert_frame_equal(one.to_pandas("subgroups"), many.to_pandas("subgroups"))
    gains = clients_view(many, one).served[0].gains
    assert {(g.gain, g.groups) for g in gains.values()} == {(0.0, 40)} and gains["west"].high < 0.1


def test_malicious_and_held_out_clients_are_left_out():
    result = trained(data(), "fedavg", attack="same-value", malicious=1 / 3)
    clients = {row["client"] for row in result.clients_table() if not row["malicious"]}
    assert {row["client"] for row in result.subgroups.rows if "client" in row} == clients


def test_a_regression_has_loss_and_its_metrics():
    federation = il.Federation.from_arrays(
        X, X[:, 0] + rng.normal(size=N), SITE, subgroup={"sex": SEX}, kind="values", test=0.5
    )
    result = il.run("fedavg", il.Task(lambda: nn.Linear(3, 1), "mse"), federation, rounds=3)
    rows = lines(result, client="", model="personal", subgroup="f").set_index("figure")
    assert list(rows.index) == ["loss", "rmse", "r2"]
    assert rows["low"].notna().all() and rows["value"]["rmse"] ** 2 == pytest.approx(
        rows["value"]["loss"]
    )


def test_a_function_of_the_user_that_fails_on_a_small_part_has_no_value_there():
    def spread(outputs, targets):
        if len(targets) < 60:
            raise ZeroDivisionError
        return float(outputs.std())

    result = trained(data(), metrics=[("spread", spread)], finetune_steps=0)
    rows = lines(result, figure="spread")
    assert rows["value"].isna().any() and rows["low"].isna().all()


# -- where they are shown --------------------------------------------------------------------------
def test_they_are_written_read_back_and_not_there_unasked(tmp_path):
    result = trained(directory=tmp_path / "run", seeds=2)
    file = pd.read_csv(tmp_path / "run" / "subgroups.csv")
    table = result.to_pandas("subgroups")
    assert len(file) == len(table) and file["value"].tolist() == pytest.approx(
        table["value"].tolist(), nan_ok=True
    )
    again = il.load(tmp_path / "run")
    pd.testing.assert_frame_equal(again.to_pandas("subgroups"), table)
    assert str(again.subgroups) == str(result.subgroups)
    plain = trained(il.Federation.from_arrays(X, Y, SITE), directory=tmp_path / "plain")
    assert not (tmp_path / "plain" / "subgroups.csv").exists()
    assert not plain.subgroups and "subgroups" not in plain.summary()


def test_summaries_of_single_seeds_merge_to_that_of_all():
    both = trained(seeds=2).summary()
    each = [Summary.from_dict(trained(seed=seed).summary()) for seed in (0, 1)]
    merged = merge(each).as_dict()
    assert merged["subgroups"] == both["subgroups"]
    widths = [row["high"] - row["low"] for row in both["subgroups"]]
    single = [row["high"] - row["low"] for row in trained().summary()["subgroups"]]
    assert np.mean(widths) > 0.9 * np.mean(single)  # other trainings are no new samples


def test_new_clients_have_them_too():
    result = trained()
    new = il.Federation.from_arrays(X, Y, ["new"] * N, subgroup={"sex": SEX}, test=0.5)
    assert {row["subgroup"] for row in result.personalise(new).subgroups.overall} == {"f", "m"}


def visits(path):
    frame = pd.DataFrame(X, columns=["age", "dose", "crp"])
    frame["hospital"], frame["sex"], frame["region"] = SITE, SEX, ARM
    frame["patient"] = [f"p{i // 2}" for i in range(N)]
    frame["outcome"] = np.where(Y, "ill", "well")
    frame.to_csv(path, index=False)
    return ["--data", "table", "--path", str(path), "--client", "hospital", "--target", "outcome"]


def test_the_command_line_shows_them_at_80_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    table = [*visits(tmp_path / "visits.csv"), "--rounds", "2", "--quiet", "--test", "0.4"]
    by = ["--subgroup", "sex,region", "--group", "patient", "--drop", "region"]
    assert main(["run", "ditto", *table, *by, "--directory", "run"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for words in ("accuracy by sex", "accuracy by region", "the column sex is an input", "groups"):
        assert words in out
    assert "the column region is no input" in out
    assert main(["compare", "fedavg", "local", *table, *by, "--clients-table"]) == 0
    shown = capsys.readouterr().out
    assert "groups of test samples" in shown
    rows = [line.split()[:2] for line in shown.split("accuracy by sex,")[1].splitlines()]
    for method in ("fedavg", "local"):
        assert [method, "f"] in rows and [method, "m"] in rows
    assert "accuracy by sex within clients" in shown
    assert main(["show", "run", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert {row["column"] for row in summary["subgroups"]} == {"sex", "region"}
    assert main(["card", "run"]) == 0
    card = capsys.readouterr().out
    section = card.split("## For whom it works")[1].split("\n## ")[0]
    assert "### By sex" in section and "### By region" in section and "| f |" in section


def test_the_settings_file_names_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    visits(tmp_path / "visits.csv")
    (tmp_path / "idiolect.toml").write_text(
        '[data]\nname = "table"\npath = "visits.csv"\nclient = "hospital"\ntarget = "outcome"\n'
        'group = "patient"\nsubgroup = "sex"\n\n[run]\nrounds = 1\n\n[method]\nname = "fedavg"\n'
    )
    assert main(["run", "--config", "idiolect.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["subgroups"][0]["column"] == "sex"
