"""A record is plain data: it comes back from a directory without data or model."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.run.record import Record

FEATURES, CLASSES = 6, 3


def federation() -> il.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=100)
    ids = np.repeat([30, 4, 17, 2, 99], 20)
    return il.Federation.from_arrays(rng.standard_normal((100, FEATURES)) + y[:, None], y, ids)


def task() -> il.Task:
    return il.Task(lambda: nn.Linear(FEATURES, CLASSES))


SETTINGS = {"rounds": 4, "sample": 3, "batch": 8, "seeds": 2}
METHODS = [il.LpProj(dim=4), il.FedAvg(), il.Ffgg(part="none")]


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def same_figures(a: il.Result, b: il.Result) -> None:
    assert a.summary() == b.summary()
    assert repr(a.rounds_table()) == repr(b.rounds_table())
    assert repr(a.clients_table()) == repr(b.clients_table())
    for one, two in zip(a.seeds, b.seeds, strict=True):
        assert np.array_equal(one.by_client, two.by_client, equal_nan=True)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_run_directory_gives_the_result_back(method, tmp_path):
    data = federation()
    result = il.run(method, task(), data, directory=tmp_path / "run", **SETTINGS)
    loaded = il.load(tmp_path / "run")
    same_figures(result, loaded)
    assert str(loaded) == str(result) and repr(loaded) == repr(result)
    with pytest.raises(il.SettingError, match=r"models: this record has none; give idiolect.load"):
        loaded.personal(17)
    able = il.load(tmp_path / "run", task=task(), federation=data)
    for seed in (0, 1):
        for client in data.ids:
            got, want = (weights(r.personal(client, seed=seed)) for r in (able, result))
            assert torch.equal(got, want)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("more", [{}, {"held_out": 1}, {"attack": "zero", "malicious": 1}])
def test_a_result_can_be_saved_and_loaded(method, more, tmp_path):
    data = federation()
    result = il.run(method, task(), data, **SETTINGS, **more)
    assert result.save(tmp_path / "saved") == tmp_path / "saved"
    loaded = il.load(tmp_path / "saved", task=task(), federation=data)
    same_figures(result, loaded)
    for client in data.ids:
        assert torch.equal(weights(loaded.personal(client)), weights(result.personal(client)))
    with pytest.raises(il.SettingError, match="already holds a run"):
        result.save(tmp_path / "saved")


def test_a_saved_result_is_a_finished_run(tmp_path):
    result = il.run(il.FedAvg(), task(), federation(), **SETTINGS)
    result.save(tmp_path / "saved")
    again = il.run(
        il.FedAvg(), task(), federation(), directory=tmp_path / "saved", resume=True, **SETTINGS
    )
    assert again.summary() | {"seconds": 0} == result.summary() | {"seconds": 0}


def test_models_come_only_with_the_data_and_model_of_the_run(tmp_path):
    il.run(il.FedAvg(), task(), federation(), directory=tmp_path / "run", **SETTINGS)
    wrong = il.Task(lambda: nn.Linear(FEATURES, CLASSES + 1))
    with pytest.raises(il.SettingError, match="made with another model"):
        il.load(tmp_path / "run", task=wrong, federation=federation()).personal(2)


def test_a_record_is_plain_data():
    record = il.run(il.LpProj(dim=4), task(), federation(), **SETTINGS).record
    text = json.dumps(record.as_dict(), allow_nan=False)
    again = Record.from_dict(json.loads(text))
    assert again.summary() == record.summary()
    assert repr(pickle.loads(pickle.dumps(record))) == repr(record)
    assert record.settings["rounds"] == 4 and record.fields["dim"] == 4
    assert record.environment["packages"]["torch"] == torch.__version__
    assert record.parameters == (FEATURES + 1) * CLASSES
    one = record.seeds[0]
    assert [row["client"] for row in one.clients] == [2, 4, 17, 30, 99]
    assert one.by_client.shape == (4, 5) and one.rounds == 4 and one.stopped == "rounds"


def test_what_is_not_a_number_is_not_a_number_again():
    data = federation()
    nothing = il.Federation(
        data.inputs,
        data.targets,
        {s: data.offsets[s] if s == "train" else torch.full((6,), 60) for s in data.offsets},
        data.ids,
        CLASSES,
    )
    record = il.run(il.FedAvg(), task(), nothing, rounds=2).record
    again = Record.from_dict(json.loads(json.dumps(record.as_dict())))
    assert math.isnan(record.seeds[0].final["test"]["accuracy"])
    assert math.isnan(again.seeds[0].final["test"]["accuracy"])
    assert again.summary() == record.summary()


def test_a_record_of_another_format_is_refused():
    with pytest.raises(il.SettingError, match="format must be 6, which this version reads, got 1"):
        Record.from_dict({"format": 1, "seeds": []})


def test_tables_as_data_frames():
    result = il.run(il.FedAvg(), task(), federation(), **SETTINGS)
    assert list(result.to_pandas()["round"]) == [1, 2, 3, 4] * 2
    assert list(result.to_pandas("clients")["client"]) == [2, 4, 17, 30, 99] * 2
    with pytest.raises(il.SettingError, match="table must be one of 'rounds'"):
        result.to_pandas("rows")


@pytest.mark.parametrize("one_file", [False, True])
def test_the_models_of_all_clients_can_be_exported(one_file, tmp_path):
    data = federation()
    result = il.run(il.LpProj(dim=4), task(), data, **SETTINGS)
    paths = result.export(tmp_path / "models", seed=1, one_file=one_file)
    index = json.loads((tmp_path / "models" / "clients.json").read_text())
    assert set(index) == {p.name for p in paths[:-1]}
    for client in data.ids:
        want = dict(result.personal(client, seed=1).named_parameters())
        if one_file:
            tensors = load_file(tmp_path / "models" / "clients.safetensors")
            got = {n: tensors[f"{client}/{n}"] for n in want}
        else:
            (name,) = [n for n, id in index.items() if id == str(client)]
            got = load_file(tmp_path / "models" / name)
        assert got.keys() == want.keys()
        assert all(torch.equal(t, want[n]) for n, t in got.items())


def test_a_comparison_comes_back_too(tmp_path):
    methods = ["fedavg", il.LpProj(dim=4), "fedavg:channel=qsgd"]
    found = il.compare(
        methods, task(), federation(), directory=tmp_path / "c", **SETTINGS, bytes=5000
    )
    loaded = il.load(tmp_path / "c")
    assert loaded.labels == found.labels and loaded.summary() == found.summary()
    assert str(loaded) == str(found)
    unsaved = il.compare(methods, task(), federation(), **SETTINGS)
    unsaved.save(tmp_path / "later")
    again = il.load(tmp_path / "later")
    assert [{**r, "seconds": 0} for r in again.summary()] == [
        {**r, "seconds": 0} for r in unsaved.summary()
    ]
    assert (tmp_path / "later" / "curves.csv").exists()


def test_what_is_not_finished_is_said(tmp_path):
    with pytest.raises(il.SettingError, match=r"holds no run \(record.json is missing\)"):
        il.load(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(il.SettingError, match="is not finished; continue it with: idiolect resume"):
        il.load(tmp_path)


# -- the command line ----------------------------------------------------------------------------
SMALL = ["--clients", "5", "--samples", "40", "--rounds", "2", "--quiet"]


def test_show_prints_the_table_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "fedavg", *SMALL, "--json", "--directory", "one"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert main(["show", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures
    assert main(["compare", "fedavg", "lp-proj-1", *SMALL, "--directory", "two"]) == 0
    table = capsys.readouterr().out
    assert main(["show", "two"]) == 0
    assert capsys.readouterr().out == table
    assert main(["show", "one", "two"]) == 0
    both = capsys.readouterr().out
    assert "fedavg (one)" in both and "lp-proj-1" in both
    assert main(["show", "three"]) == 2
    assert "three holds no run" in capsys.readouterr().err


def test_export_writes_a_file_per_client(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "local", *SMALL, "--directory", "one"]) == 0
    assert main(["export", "one", "-o", "out", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(paths) == 6 and len(load_file(paths[0])) == 2
    assert main(["compare", "local", *SMALL, "--directory", "two"]) == 0
    assert main(["export", "two"]) == 2
    assert "is a comparison; export one of the runs inside: two/0-local" in capsys.readouterr().err
