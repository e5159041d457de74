"""What a user tries first in Python: names, models, ids, sample sizes, helpful types and errors."""

import copy
import inspect
import os
import pickle
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from benchmarks import typed_settings
from helpers import classification, regression
from idiolect.run.settings import Settings
from idiolect.run.typed_settings import RunSettings

FEATURES, CLASSES = 6, 3


class Net(nn.Module):
    """What users have: a class of their own."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(x)))


@pytest.fixture(scope="module")
def data() -> il.Federation:
    return classification(sizes=(20,) * 4)


# -- clients by their own ids ----------------------------------------------------------------------
@pytest.fixture(scope="module")
def numbered_from_one() -> il.Result:
    rng = np.random.default_rng(0)
    ids = np.repeat([1, 2, 3], 20)
    x, y = rng.standard_normal((60, FEATURES)), rng.integers(CLASSES, size=60)
    return il.run("local", Net, il.Federation.from_arrays(x, y, ids), rounds=2)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.flatten() for p in module.parameters()])


def test_client_1_is_the_client_called_1_and_not_the_second(numbered_from_one):
    result = numbered_from_one
    first, second = weights(result.personal(1)), weights(result.personal(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, weights(result.personal(position=0)))
    assert torch.equal(first, weights(result.personal("1")))
    assert torch.equal(first, weights(result.personal(np.int64(1))))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"client": 0}, "client: 0 is unknown; clients are numbered 1 to 3"),
        ({"client": 4}, "client: 4 is unknown"),
        ({"position": 3}, "position must be a whole number from 0 to 2, got 3"),
        ({"position": -1}, "position must be a whole number from 0 to 2, got -1"),
        ({"position": True}, "position must be .* got True"),
        ({}, "client: give its id, or its position="),
        ({"client": 1, "position": 0}, "and not both"),
        ({"client": 1, "seed": 1}, "seed must be one of 0, got 1"),
    ],
)
def test_a_client_that_is_not_there_is_said_with_what_is(given, says, numbered_from_one):
    with pytest.raises(il.SettingError, match=says):
        numbered_from_one.personal(**given)


def test_an_unknown_name_suggests_the_nearest():
    names = np.repeat(["hospital-1", "hospital-3"], 20)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, FEATURES)), rng.integers(CLASSES, size=40)
    result = il.run("fedavg", Net, il.Federation.from_arrays(x, y, names), rounds=1)
    result.personal("hospital-3")
    with pytest.raises(il.SettingError, match="did you mean 'hospital-3'"):
        result.personal("hopital-3")


def test_seed_is_the_seed_and_not_an_index(data):
    result = il.run("local", Net, data, rounds=1, seed=7, seeds=2)
    assert torch.equal(weights(result.personal(0)), weights(result.personal(0, seed=7)))
    assert not torch.equal(weights(result.personal(0)), weights(result.personal(0, seed=8)))
    with pytest.raises(il.SettingError, match="seed must be one of 7, 8, got 0"):
        result.personal(0, seed=0)


# -- how many are heard ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("clients", "heard"), [(1, 1), (5, 5), (20, 20), (21, 10), (100, 10), (1000, 100)]
)
def test_a_small_federation_hears_everyone(clients, heard):
    assert Settings().sampled(clients) == heard
    assert Settings(sample=1).sampled(clients) == 1


def test_five_hospitals_are_all_heard_in_every_round():
    result = il.run("fedavg", Net, classification(sizes=(20,) * 5), rounds=2)
    assert all(row["bytes_up"] for row in result.clients_table())
    per_client = {row["bytes_up"] for row in result.clients_table()}
    assert len(per_client) == 1


# -- names -----------------------------------------------------------------------------------------
def figures(result: il.Result) -> dict:
    return {**result.summary(), "seconds": 0, "chosen": None}


@pytest.mark.parametrize("method", ["ditto:lam=0.5", il.Ditto(lam=0.5)])
@pytest.mark.parametrize(
    "model", [Net, lambda: Net(), il.Task(Net)], ids=["class", "lambda", "task"]
)
def test_a_method_and_a_model_may_be_given_in_any_form(method, model, data):
    wanted = figures(il.run(il.Ditto(lam=0.5), il.Task(lambda: Net()), data, rounds=2))
    assert figures(il.run(method, model, data, rounds=2)) == wanted


def test_a_class_of_methods_has_its_defaults(data):
    assert il.run(il.FedAvg, Net, data, rounds=1).record.fields == il.FedAvg().as_dict()


def test_a_module_itself_is_the_start(data):
    net = Net()
    result = il.run("fedavg", net, data, rounds=0)
    assert torch.equal(weights(result.personal(0)), weights(net))


def test_a_bare_model_gets_its_loss_from_the_data_and_the_result_says_so(data):
    result = il.run("fedavg", Net, data, rounds=1)
    assert result.record.model["loss"] == "cross_entropy"
    assert "loss: cross_entropy, as the data have 3 classes" in str(result)
    real = il.run("fedavg", nn.Linear(FEATURES, 1), regression(sizes=(20,) * 3), rounds=1)
    assert real.record.model["loss"] == "mse"
    assert "loss: mse, as the targets are real numbers" in str(real)
    given = il.run("fedavg", il.Task(Net, "cross_entropy"), data, rounds=1)
    assert "chosen" not in given.summary() and "loss: " not in str(given)


def test_comparisons_and_pipelines_take_the_same(data):
    found = il.compare(["fedavg", il.Local, il.Ditto()], Net, data, rounds=1, baselines=False)
    assert found.labels == ["fedavg", "local", "ditto"]
    assert "loss: cross_entropy" in str(found)
    stages = il.pipeline([("fedavg", 1), (il.Ditto, 1)], Net, data)
    assert [r.method for r in stages] == ["fedavg", "ditto"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dito", Net, "data"), "method: 'dito' is unknown; did you mean 'ditto'"),
        (("ditto:lamb=1", Net, "data"), "did you mean 'lam'"),
        ((3, Net, "data"), "got an object of type int"),
        ((Net, "ditto", "data"), "got the class Net; the order is"),
        (("ditto", "data", Net), "got a federation; the order is"),
        (("ditto", "data", Net()), "got a federation; the order is"),
        (("ditto", Net, Net()), "federation must come third, got an object of type Net"),
        (
            ("ditto", Net, np.zeros(3)),
            "federation must be a Federation, got an object of type ndarray; make",
        ),
        (("ditto", Net, il.Federation), "got the class Federation; make"),
        (("ditto", il.Task, "data"), "task must be an object, .* got the class Task"),
        (("ditto", 5, "data"), "task must be a torch.nn.Module.* got an object of type int"),
        (("ditto", nn.Linear, "data"), "task: Linear needs in_features, out_features; give an obj"),
        (("ditto", il.Ditto(), "data"), "got an object of type Ditto"),
    ],
)
def test_what_does_not_fit_is_said_in_the_users_words(arguments, says, data):
    given = [data if isinstance(a, str) and a == "data" else a for a in arguments]
    with pytest.raises(il.SettingError, match=says):
        il.run(*given, rounds=1)


def test_a_comparison_wants_a_list(data):
    with pytest.raises(il.SettingError, match="methods must be a list"):
        il.compare("ditto", Net, data)


# -- types and help --------------------------------------------------------------------------------
def test_the_keywords_of_run_are_the_settings_with_their_types():
    """`Settings` owns them: `make settings` writes the typed keywords."""
    assert typed_settings.TARGET.read_text() == typed_settings.written()
    assert sorted(typing.get_type_hints(RunSettings)) == sorted(f.name for f in fields(Settings))


USED = """
import idiolect as il

def use(federation: il.Federation, task: il.Task) -> None:
    il.run("ditto", task, federation, rounds=5, rule="median")
    il.run("ditto", task, federation, round=5)
    il.compare(["ditto"], task, federation, rounds="many")
"""


def test_a_type_checker_sees_a_misspelt_setting(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "used.py").write_text(USED)
    others = ("torch", "numpy", "rich", "safetensors", "pandas", "sklearn", "scipy", "PIL")
    skipped = "".join(f"[mypy-{n},{n}.*]\nfollow_imports = skip\n" for n in others)
    ours = "[mypy]\nignore_missing_imports = true\n[mypy-idiolect.*]\nfollow_imports = silent\n"
    (tmp_path / "mypy.ini").write_text(ours + skipped)
    source = str(Path(il.__file__).parents[1])
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "used.py"]
    found = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env=env(MYPYPATH=source)
    )
    lines = [line for line in found.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in lines] == ["6", "7"], found.stdout
    assert 'Unexpected keyword argument "round" for "run"' in lines[0]


def env(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def test_help_tells_what_each_field_of_a_method_means():
    text = inspect.getdoc(il.LpProj)
    assert text.startswith("Personal models tied in L^p")
    for row in fields(il.LpProj):
        assert f"    {row.name} (" in text and row.metadata["help"] in text
    names = [line.split()[0] for line in text.partition("Fields:\n")[2].splitlines()]
    assert names == [f.name for f in fields(il.LpProj)]
    assert "lam" in il.Ditto.__doc__ and "rounds" in il.Settings.__doc__


def test_a_child_class_tells_of_inherited_fields_once():
    text = il.FedProx.__doc__
    assert text.count("Fields:") == 1 and text.count("    lr (") == 1


def test_reprs_say_in_one_line_what_it_is_the_main_figure_and_how_to_see_more(data):
    settings = {"rounds": 2, "seeds": 2}
    result = il.run("ditto", Net, data, **settings)
    comparison = il.compare(["fedavg", "ditto"], Net, data, **settings)
    sweep = il.sweep("fedavg", Net, data, grid={"lr": [0.1, 0.2]}, jobs=1, **settings)
    tuned = il.tune("fedavg", Net, data, grid={"lr": [0.1, 0.2]}, jobs=1, **settings)
    advice = il.advise(data, Net, quick=True, gradients=10)
    for thing in (result, comparison, sweep, tuned, advice, data):
        line = repr(thing)
        assert line.startswith(f"{type(thing).__name__}(") and "\n" not in line, line
        assert len(line) <= 300 and "print() shows" in line
        assert len(str(thing).splitlines()) > 3 and str(thing) != line
    by_label = {row["label"]: row["accuracy"]["mean"] for row in comparison.summary()}
    assert f"accuracy {by_label['ditto']:.4f}, 2 seeds; print() shows the table" in repr(result)
    assert f"fedavg {by_label['fedavg']:.4f}, ditto {by_label['ditto']:.4f}" in repr(comparison)
    best = max(row["valid"]["accuracy"]["mean"] for row in sweep.merged())
    assert "2 settings, 4 runs" in repr(sweep) and f"accuracy {best:.4f}" in repr(sweep)
    assert "pooled validation accuracy 0." in repr(tuned)


def test_what_is_shown_fits_on_a_screen(data):
    result = il.run("ditto", Net, data, rounds=2, seeds=2)
    found = il.compare([il.FedAvg(lr=0.1 + k / 100) for k in range(12)], Net, data, rounds=1)
    task = il.Task(Net)
    seen = [result, found, task, il.Settings(), il.Settings(rounds=5, rule="median")]
    seen += [result.record, result.seeds[0], task.split("head.*"), il.LpProj(), il.Ditto()]
    seen += [result.predict(data.inputs, client=0), il.METHODS, data]
    for thing in seen:
        text = repr(thing)
        assert len(text) <= 500 and len(text.splitlines()) <= 24, text
        assert " object at 0x" not in text
    assert repr(data).startswith("Federation('") and "print() shows more" in repr(data)
    assert repr(il.Settings(rounds=5)) == "Settings(rounds=5)"
    assert repr(task) == "Task(Net, 'cross_entropy', d = 43)"


# -- a small model ---------------------------------------------------------------------------------
def test_the_default_dimension_of_lp_proj_fits_a_small_model_and_it_is_said(capsys):
    data = classification(sizes=(20,) * 4, features=2, classes=2)
    result = il.run("lp-proj", nn.Linear(2, 2), data, rounds=2)
    assert "dim: the model has 6 parameters, fewer than the 21 of the default; 3 are used" in (
        capsys.readouterr().err
    )
    assert result.summary()["projection"]["dim"] == 3
    assert "3 are used" in str(result).replace("\n", " ")
    assert result.summary()["values"]["up"] == 2 * 4 * 3


def test_a_dimension_that_is_given_and_too_large_says_what_is_accepted():
    data = classification(sizes=(20,) * 4, features=2, classes=2)
    says = "dim must be a whole number from 1 to the model's 6 parameters, got 7"
    with pytest.raises(il.SettingError, match=says):
        il.run("lp-proj:dim=7", nn.Linear(2, 2), data, rounds=2)


def test_a_larger_model_has_the_dimension_of_the_papers(data, capsys):
    result = il.run("lp-proj", Net, data, rounds=1)
    assert result.summary()["projection"]["dim"] == 21 and "are used" not in capsys.readouterr().err


def test_a_row_that_cannot_run_is_left_out_of_a_comparison_with_a_word(data, tmp_path, capsys):
    rows = ["fedavg", "lp-proj:dim=5000", il.Local(steps=5)]
    found = il.compare(rows, Net, data, rounds=1, directory=tmp_path / "c")
    assert found.labels == ["fedavg", "local steps=5"]
    says = "lp-proj-1 dim=5000 is left out: dim must be a whole number"
    assert says in " ".join(str(found).split())
    assert "parameters, got 5000" in capsys.readouterr().err
    again = il.load(tmp_path / "c")
    assert again.skipped == found.skipped and says in " ".join(str(again).split())
    resumed = il.compare(rows, Net, data, rounds=1, directory=tmp_path / "c", resume=True)
    assert resumed.labels == found.labels


def test_what_fits_no_row_is_an_error_and_so_is_a_misspelt_one(data):
    with pytest.raises(il.SettingError, match="parameters, got 5000"):
        il.compare(["lp-proj:dim=5000"], Net, data, rounds=1)
    with pytest.raises(il.SettingError, match="did you mean 'fedavg'"):
        il.compare(["fedavgg", "local"], Net, data, rounds=1)


# -- copies ----------------------------------------------------------------------------------------
def test_a_result_can_be_pickled_with_its_figures_and_says_where_models_are(data, tmp_path):
    result = il.run("ditto", Net, data, rounds=2)
    joblib = pytest.importorskip("joblib")
    joblib.dump(result, tmp_path / "result")
    for other in (pickle.loads(pickle.dumps(result)), joblib.load(tmp_path / "result")):
        assert other.summary() == result.summary() and str(other) == str(result)
        with pytest.raises(il.SettingError, match=r"result.save\(directory\), not by pickle"):
            other.personal(0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_result_keeps_its_models(copied, data):
    result = il.run("ditto", Net, data, rounds=2)
    other = copied(result)
    assert torch.equal(weights(other.personal(3)), weights(result.personal(3)))
    assert other.summary() == result.summary()


def test_a_comparison_can_be_pickled(data):
    found = il.compare(["fedavg"], Net, data, rounds=1)
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


# -- starting --------------------------------------------------------------------------------------
def in_a_process(code: str) -> str:
    source = str(Path(il.__file__).parents[1])
    words = [sys.executable, "-c", code]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, env=env(PYTHONPATH=source)
    ).stdout


def test_importing_idiolect_waits_for_torch_and_little_else():
    code = """
import sys, torch
before = set(sys.modules)
from idiolect import *
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    slow = {"flwr", "matplotlib", "pandas", "pyarrow", "ray", "rich", "scipy", "sklearn"}
    assert not slow & set(in_a_process(code).split())


def test_the_version_is_told_without_torch():
    code = """
import sys
sys.argv = ["idiolect", "--version"]
import idiolect_command
idiolect_command.main()
print("torch" in sys.modules, "idiolect" in sys.modules, "numpy" in sys.modules)
"""
    version, _, loaded = in_a_process(code).strip().partition("\n")
    assert version[0].isdigit() and loaded == "False False False"


def test_the_command_is_the_starter_that_is_installed():
    import tomllib

    file = Path(il.__file__).parents[2] / "pyproject.toml"
    if not file.exists():
        pytest.skip("an installed package")
    said = tomllib.loads(file.read_text())
    assert said["project"]["scripts"]["idiolect"] == "idiolect_command:main"
    assert said["tool"]["setuptools"]["py-modules"] == ["idiolect_command"]
