"""The training runs of experiments: stopped and started again, they go on where they were."""

from pathlib import Path

import pytest

import idiolect as il
from idiolect.study.many import Stock, Trial
from idiolect_papers.own import golden, projections, rules
from idiolect_papers.runs import stored_runs


@pytest.fixture
def small(monkeypatch):
    """Golden and projections, as small as they can be."""
    monkeypatch.setattr(golden, "ROUNDS", 1)
    monkeypatch.setattr(golden, "SEEDS", 1)
    monkeypatch.setattr(golden, "METHODS", {"fedavg": None, "local": None, "lp-proj-1": None})
    title = "Synthetic(0, 0)"
    monkeypatch.setattr(golden, "FEDERATIONS", {title: golden.FEDERATIONS[title]})
    options = {"clients": 4, "samples": 40}
    small = {"clients_per_round": 2, "dim": 5, "rounds": 1}
    case = projections.ProjectionCase("synthetic", "linear", options, **small)
    monkeypatch.setattr(projections, "FEDERATIONS", {title: case, projections.DIGITS: case})
    monkeypatch.setattr(projections, "KINDS", ("contiguous",))
    monkeypatch.setattr(projections, "DIMS", (5,))


# one of the six cells of projections stands in both tables and is run once
@pytest.mark.parametrize(("experiment", "many"), [(golden, 3), (projections, 5)])
def test_an_experiment_goes_on_where_it_was_and_writes_the_same_page(
    tmp_path, monkeypatch, small, trained, experiment, many
):
    sizes = {"jobs": 1} if experiment is golden else {"jobs": 1, "seeds": 1}
    whole = experiment.write(tmp_path / "whole", **sizes)
    everything = list(trained)
    trained.clear()
    train = Trial.train

    def dying(trial):
        if len(trained) == 2:
            raise MemoryError("no room")
        return train(trial)

    with (
        monkeypatch.context() as patch,
        pytest.raises(il.SettingError, match=f"{many - 2} of {many} runs failed.*no room"),
    ):
        patch.setattr(Trial, "train", dying)
        experiment.write(tmp_path / "parts", **sizes)
    assert not (tmp_path / "parts" / whole[0].name).exists()
    parts = experiment.write(tmp_path / "parts", **sizes)
    assert trained == everything and len(everything) == many
    assert [p.read_bytes() for p in parts] == [p.read_bytes() for p in whole]
    assert {p.name for p in (tmp_path / "parts").iterdir()} == {p.name for p in whole}


@pytest.fixture
def stock():
    task = il.Task(lambda: il.models.make("linear", (60,), 10))
    return Stock({"few": il.data.load("synthetic", clients=4, samples=40)}, {"linear": task})


def setting(lr):
    run = {"rounds": 2, "eval_every": 1}
    part = {"settings": run, "data": "few", "model": "linear", "name": "fedavg"}
    return il.Plan.of(il.FedAvg(lr=lr), **part, varied={"lr": lr})


def test_several_sweeps_of_an_experiment_share_what_is_stored(tmp_path, stock, trained):
    with stored_runs(tmp_path, "page", jobs=1) as runs:
        first = runs({"a": setting(0.1), "b": setting(0.2)}, stock, range(1), ("by_round",))
        both = runs({"b": setting(0.2)}, stock, range(2), ("by_round",))
        assert (tmp_path / ".page").is_dir()
    assert len(trained) == 3 and both["b"][0] == first["b"][0]
    assert [row["round"] for row in first["a"][0]["by_round"]] == [1, 2]
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_run_is_no_sweep(tmp_path, stock):
    with stored_runs(tmp_path, "page") as runs:
        assert runs({}, stock, range(2)) == {}
        assert not Path(runs.directory).exists()


def test_a_setting_that_stands_there_twice_is_a_mistake(tmp_path, stock):
    with (
        pytest.raises(ValueError, match=r"fedavg lr=0\.1: the same setting"),
        stored_runs(tmp_path, "page", jobs=1) as runs,
    ):
        runs({"a": setting(0.1), "b": setting(0.1)}, stock, range(1))


def test_rules_go_on_where_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "RULES", ("mean", "median"))
    columns = {"δ = 0.1": (20, 2), "δ = 0.2": (20, 4)}, {"n = 10": (10, 1)}
    monkeypatch.setattr(rules, "TABLES", dict(zip(rules.TABLES, columns, strict=True)))
    results = {2: None, 4: (2.0, "a", "b"), 1: (1.5, "alike", "mimic")}  # by malicious clients
    monkeypatch.setattr(rules, "worst", lambda text, n, f: results[f])
    whole = rules.write(tmp_path / "whole")
    done = []

    def dying(text, n, f):
        if n == 10:
            done.append(text)
            if len(done) == 2:
                raise MemoryError
        return results[f]

    monkeypatch.setattr(rules, "worst", dying)
    with pytest.raises(MemoryError):
        rules.write(tmp_path / "parts")
    rules.write(tmp_path / "parts")
    assert done == ["mean", "median", "median"]
    assert [(tmp_path / "parts" / p.name).read_bytes() for p in whole] == [
        p.read_bytes() for p in whole
    ]
    assert {p.name for p in (tmp_path / "parts").iterdir()} == {p.name for p in whole}
