"""What is not proved, or cannot be counted, is refused with the reason; and what is said of it."""

import re
import subprocess
import sys

import pytest
from torch import nn

import idiolect as il
from helpers import classification, linear
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.privacy import accountant

DATA = classification(sizes=(20,) * 6, valid=0.2)
CENTRAL = {"privacy": "central(noise=2)"}


def refusal(method="fedavg", model=None, data=None, **settings) -> str:
    usual = {"rounds": 2, "batch": 8, "noise_source": "seed"}
    with pytest.raises(SettingError) as error:
        il.run(method, model or linear(), data or DATA, **{**usual, **settings})
    return str(error.value)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"epsilon": -1}, "epsilon must be a number >= 0, got -1"),
        ({"epsilon": float("nan")}, "epsilon must be a number >= 0, got nan"),
        ({"epsilon": float("inf")}, "epsilon must be "),
        ({"privacy": "central"}, "epsilon must be a number > 0 with privacy 'central', got 0: or"),
        ({"privacy": "local", "epsilon": 0}, "epsilon must be a number > 0 with privacy 'local'"),
        ({**CENTRAL, "delta": 0}, "delta must be a number > 0 and < 1, got 0"),
        ({**CENTRAL, "delta": 1}, "delta must be a number > 0 and < 1, got 1"),
        ({"privacy": "central(noise=-1)"}, "noise must be a number >= 0, got -1"),
        ({"privacy": "central(noise=1, clip=0)"}, "clip must be a number > 0, got 0"),
        ({"privacy": "central(noise=1, quantile=1)"}, "quantile must be "),
        ({"privacy": "everyone"}, "privacy"),
        ({**CENTRAL, "noise_source": "dice"}, "noise_source must be one of 'secret', 'seed', got"),
        # budgets
        (
            {**CENTRAL, "epsilon": 1.5},
            "epsilon must be at least 1.99 for one round with noise 2 and delta 1e-05, got 1.5",
        ),
        (
            {**CENTRAL, "epsilon": 0.2, "selection": "poisson", "sample": 3},
            "for one round with noise 2 and delta 1e-05, got 0.2",
        ),
        (
            {"epsilon": 1e-9, "delta": 1e-12, "rounds": 10**6, "selection": "poisson", "sample": 3},
            "epsilon must be larger for 1,000,000 rounds at delta 1e-12",
        ),
        (
            {"privacy": "central(noise=0.01)", "selection": "poisson", "sample": 3},
            "noise must be 0 or a number >= 0.05 with Poisson sampling, got 0.01",
        ),
        # methods
        (
            {"method": "feddane", **CENTRAL},
            "privacy must be none for feddane, got 'central(noise=2",
        ),
        ({"method": "fedamp", **CENTRAL}, "the server does not combine messages"),
        ({"method": "ifca", **CENTRAL}, "needs more of the messages than their mean; 'local' can"),
        ({"method": "cfl", **CENTRAL}, "keeps or sends something for single clients"),
        (
            {"method": il.Scaffold(), **CENTRAL, "secure_sums": True},
            "privacy must be 'distributed' with secure_sums",
        ),
        ({"method": il.FedAvg(weighting="samples"), **CENTRAL}, "weighting must be 'equal' with"),
        # rules, channels, selections, timing
        ({**CENTRAL, "rule": "median"}, "rule must be 'mean' with privacy 'central(noise=2.0)'"),
        ({**CENTRAL, "channel": "sketch(columns=5, rows=3, k=4)"}, "channel must decode each mess"),
        (
            {**CENTRAL, "selection": "power-of-choice", "sample": 2},
            "selection must be 'uniform' or 'poisson' with privacy",
        ),
        ({**CENTRAL, "timing": "arrivals"}, "timing must be 'rounds' with privacy"),
        ({**CENTRAL, "quorum": 2}, "quorum must be 1 with privacy"),
        ({**CENTRAL, "client_weights": "{}"}, ""),
        ({**CENTRAL, "patience": 2}, "patience must be 0 with privacy"),
        ({**CENTRAL, "keep_best": True}, "keep_best must be False with privacy"),
        ({**CENTRAL, "target_value": 0.5}, "target_value must be None with privacy"),
        ({**CENTRAL, "bytes": 10**6, "selection": "poisson", "sample": 3}, "bytes must be 0"),
        ({"privacy": "distributed(noise=2)"}, "secure_sums must be given with privacy 'distrib"),
    ],
)
def test_bad_input_is_refused_with_the_reason(settings, message):
    if settings.get("client_weights") == "{}":
        settings = {**settings, "client_weights": {k: 1.0 + k for k in range(6)}}
        message = "every client counts alike, so that C bounds it"
    assert message in refusal(**settings)


def test_a_delta_that_could_show_a_client_is_warned_of(capsys):
    il.run("fedavg", linear(), DATA, rounds=1, delta=0.2, privacy="central(noise=2)")
    error = capsys.readouterr().err
    assert "delta: 0.2 is not below 1 over the 6 clients" in error
    assert "at most 0.02 is usual" in error


def test_without_the_library_it_says_what_to_install(monkeypatch):
    accountant.library.cache_clear()
    accountant._epsilon.cache_clear()
    for name in [m for m in sys.modules if m.partition(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for settings in (CENTRAL, {"epsilon": 3.0}, {"privacy": "local(noise=2)"}):
        assert "pip install 'idiolect[privacy]'" in refusal(**settings)
    monkeypatch.undo()
    accountant.library.cache_clear()


def test_without_privacy_the_library_is_not_imported():
    code = (
        "import sys, idiolect as il, torch; "
        "il.run('fedavg', torch.nn.Linear(60, 10), il.data.load('synthetic', clients=3, "
        "samples=60), rounds=1); assert 'dp_accounting' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_refused_run_leaves_no_directory(tmp_path):
    message = refusal(**CENTRAL, epsilon=0.5, directory=tmp_path / "run")
    assert "epsilon must be at least" in message
    assert not (tmp_path / "run" / "settings.json").exists()


# -- commands and studies --------------------------------------------------------------------------
def test_stages_that_spend_on_the_same_data_are_refused():
    stages = [("fedavg", 2), ("fedavg", 2)]
    with pytest.raises(SettingError, match="privacy must be none with several stages"):
        il.pipeline(stages, linear(), DATA, privacy="central(noise=2)")


def test_so_is_a_part_of_the_model_chosen_by_figures_without_noise():
    with pytest.raises(SettingError, match="privacy must not be given to splits; parts of the"):
        il.splits(nn.Linear(6, 3), DATA, privacy="central(noise=2)", rounds=2)


def test_a_comparison_says_that_its_rows_add_up():
    table = il.compare(["fedavg", "scaffold", "local"], linear(), DATA, rounds=2, **CENTRAL)
    text = " ".join(str(table).split())
    assert "ε is that of one run: runs on the same data add up for whoever sees several" in text
    assert "not covered by ε: figures of this table" in text


def test_tuning_says_that_its_trainings_are_not_in_epsilon():
    tuned = il.tune(
        "fedavg", linear(), DATA, grid={"lr": [0.1, 0.2]}, jobs=1, **CENTRAL | {"rounds": 2}
    )
    assert "the search is not in ε" in str(tuned)


def test_the_list_of_protections_says_who_is_protected_from_whom(capsys):
    assert main(["list", "protections"]) in (0, None)
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for word in ("central", "distributed", "local", "samples", "docs/privacy.md"):
        assert word in text
