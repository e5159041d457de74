"""Names that stand for a method with settings, and names of the field that are not here."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.methods import METHODS, NAMES, make_method, named_method
from idiolect.methods.names import ABSENT
from idiolect.run.plan import row_spec
from methods.common import fedavg_reference
from reference.setting import assert_same, outcome, run

DATA = il.data.load("synthetic", clients=6, samples=60)


def train(method, model=None, **settings):
    usual = {"rounds": 2, "sample": 0, "eval_every": 0, "dtype": "float64"}
    return il.run(method, model or nn.Linear(60, 10), DATA, **{**usual, **settings})


# -- what a name stands for ------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in NAMES if n != "fedbn"])
def test_a_name_is_its_method_with_its_settings(name):
    torch.manual_seed(0)
    model = nn.Linear(60, 10)
    entry = named_method(name)
    result = train(name, model)
    spelled = train(make_method(entry.method, **entry.fields), model, **entry.run)
    assert_same(outcome(result), outcome(spelled))
    recorded = result.summary()["settings"]["run"]
    written = spelled.summary()["settings"]["run"]
    assert {s: recorded[s] for s in entry.run} == {s: written[s] for s in entry.run}


def test_fedbn_keeps_norms_and_their_statistics_at_the_client():
    model = nn.Sequential(nn.Linear(60, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    result = train("fedbn", model)
    d = sum(p.numel() for p in model.parameters())
    assert result.summary()["values"]["up"] == 2 * 6 * (d - 16)  # no scale, shift or statistics
    shared = train(il.FedAvg(), model).summary()["values"]["up"]
    assert shared == 2 * 6 * (d + 17)  # with mean, variance and a count of batches
    one, other = (dict(result.personal(k).named_buffers())["1.running_mean"] for k in (0, 1))
    assert not torch.equal(one, other)


def test_fedbn_on_a_model_without_norms_is_refused():
    with pytest.raises(il.SettingError, match="'norms' matches no parameter"):
        train("fedbn")


def test_no_name_hides_a_method():
    assert not set(NAMES) & set(METHODS)
    assert not set(ABSENT) & (set(METHODS) | set(NAMES))
    assert all(entry.method in METHODS for entry in NAMES.values())


# -- what is explicit wins -------------------------------------------------------------------------
def test_an_explicit_setting_wins_over_that_of_the_name():
    result = train("fedadam:steps=2", server_lr=0.5)
    said = result.summary()["settings"]["run"]
    assert (said["server_optimizer"], said["server_lr"]) == ("adam", 0.5)
    assert row_spec("fedbuff:weighting=samples,buffer=2")[1:] == (
        {"weighting": "samples"},
        {"timing": "arrivals", "staleness": "polynomial(a=0.5)", "buffer": "2"},
    )


def test_rows_of_a_comparison_have_the_settings_of_their_names_and_show_them():
    comparison = il.compare(
        ["fedavg", "fedavgm", "fedadam"], nn.Linear(60, 10), DATA, rounds=2, server_lr=0.5
    )
    runs = [row["settings"]["run"] for row in comparison.summary() if row["method"] == "fedavg"]
    adam = "betas=(0.9, 0.99), eps=1e-3"
    assert [r["server_options"] for r in runs] == ["", "momentum=0.9", adam]
    assert {r["server_lr"] for r in runs} == {0.5}
    assert "server_options=momentum=0.9" in str(comparison)


def test_flags_and_files_win_over_a_name(tmp_path, capsys):
    config = tmp_path / "a.toml"
    config.write_text('[method]\nname = "fedavgm"\nlr = 0.2\n[run]\nrounds = 1\n')
    words = ["--clients", "4", "--json", "--directory"]
    for flags, options in (([], "momentum=0.9"), (["--server-options", "momentum=0.5"],) * 2):
        folder = tmp_path / str(len(flags))
        assert main(["run", "--config", str(config), *words, str(folder), *flags]) in (None, 0)
        out = capsys.readouterr()
        settings = json.loads(out.out)["settings"]
        options = options if isinstance(options, str) else options[1]
        assert settings["run"]["server_options"] == options
        assert settings["method"]["lr"] == 0.2
        assert "fedavgm: fedavg with server_options='momentum=0.9'" in out.err


def test_a_name_with_settings_is_refused_where_they_cannot_be_set():
    with pytest.raises(il.SettingError, match="'fedavgm' is fedavg with settings of the run"):
        make_method("fedavgm")
    assert make_method("perfedavg") == il.PerFedAvg()


# -- what is not here ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedcp", "HeteroFL", "pefll"])
def test_a_method_of_the_field_that_is_not_here_is_said_to_be_missing(name):
    with pytest.raises(il.SettingError, match=f"'{name}' is not implemented; nearest: "):
        make_method(name)


@pytest.mark.parametrize("text", ABSENT.values(), ids=list(ABSENT))
def test_what_is_called_nearest_is_here(text):
    first = text.partition(" ")[0].strip(",")
    assert first in {*METHODS, *NAMES} or text.startswith("the setting sample")


def test_an_unknown_name_still_gets_the_nearest_known_one():
    with pytest.raises(il.SettingError, match="did you mean 'fedrep'"):
        make_method("fedrepp")


# -- Yogi ------------------------------------------------------------------------------------------
class YogiByHand:
    """FedYogi of Reddi et al. 2021, Algorithm 2."""

    def __init__(self, lr, beta1, beta2, tau):
        self.lr, self.beta1, self.beta2, self.tau = lr, beta1, beta2, tau
        self.m, self.v = 0.0, tau**2

    def __call__(self, w, target):
        delta = target - w
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        self.v = self.v - (1 - self.beta2) * delta**2 * np.sign(self.v - delta**2)
        return w + self.lr * self.m / (np.sqrt(self.v) + self.tau)


def test_fedyogi_is_algorithm_2_of_reddi_et_al(federation):
    by_hand = YogiByHand(0.01, 0.9, 0.99, 1e-3)
    expected = fedavg_reference(federation, server=by_hand)["server w"]
    settings = dict(named_method("fedyogi").run)
    result = outcome(run(il.FedAvg(lr=0.3, steps=4), federation, **settings))
    np.testing.assert_allclose(result["server w"], expected, rtol=0, atol=1e-10)
