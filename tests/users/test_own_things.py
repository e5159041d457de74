"""A user's own method, model, data set, channel, attack or rule works where a built-in one does."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import idiolect as il
from idiolect.cli.main import main
from idiolect.data import DATASETS
from idiolect.methods import METHODS
from idiolect.models import MODELS
from idiolect.testing import check_method, state_of
from users import own_things
from users.own_things import Doubled, Halfway, Quiet, Shout, small_net, two_moons

SETTINGS = {"rounds": 3, "sample": 4, "batch": 8}


def task() -> il.Task:
    return il.Task(lambda: small_net((5,), 2))


def test_objects_work_in_python():
    federation = il.data.load(two_moons, clients=5)
    found = il.compare([Halfway(), il.FedAvg(), "fedavg:lr=0.2"], task(), federation, **SETTINGS)
    assert found.labels[:3] == ["Halfway", "fedavg", "fedavg lr=0.2"]
    assert "Halfway" in str(found) and set(found.to_pandas()["method"]) == set(found.labels)
    halfway, fedavg = (state_of(r)["w"] for r in found.results[:2])
    assert not torch.equal(halfway, fedavg)
    plain = il.run(il.FedAvg(), task(), federation, **SETTINGS)
    doubled = il.run(il.FedAvg(), task(), federation, channel=Doubled(), **SETTINGS)
    assert torch.allclose(state_of(plain)["w"], state_of(doubled)["w"], atol=1e-5)
    loud = il.run(il.FedAvg(), task(), federation, attack=Shout(), malicious=1, **SETTINGS)
    calm = il.run(
        il.FedAvg(), task(), federation, attack=Shout(), malicious=1, rule=Quiet(), **SETTINGS
    )
    assert state_of(loud)["w"].norm() > 10 * state_of(calm)["w"].norm()


def test_texts_of_own_things_are_parsed_back():
    settings = il.Settings(channel=Doubled(factor=4.0), rule=Quiet(), attack=Shout(), malicious=2)
    assert settings.as_dict()["channel"] == "users.own_things:Doubled(factor=4.0)"
    assert il.Settings(**settings.as_dict()) == settings


def test_a_method_of_ones_own_passes_the_suite():
    check_method(Halfway())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the user's module, where the command is run."""
    shutil.copy(own_things.__file__, tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


COMMON = ("--data", "mine:two_moons", "--model", "mine:small_net", "--width", "6", "--rounds", "3")


def test_module_and_name_work_on_the_command_line(folder, capsys):
    words = ["mine:Halfway", *COMMON, "--clients", "5", "--share", "0.7", "--json"]
    given = ["--channel", "mine:Doubled", "--rule", "mine:Quiet", "--directory", "run"]
    given += ["--attack", "mine:Shout(factor=3.0)", "--malicious", "1"]
    assert main(["run", *words, *given]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["method"] == "mine:Halfway" and got["settings"]["method"]["share"] == 0.7
    assert got["settings"]["run"]["channel"] == "mine:Doubled"
    assert got["settings"]["parameters"] == 5 * 6 + 6 + 6 * 2 + 2
    assert main(["resume", "run", "--json", "--trust"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "seconds": 0} == {**got, "seconds": 0}
    assert main(["show", "run"]) == 0 and "mine:Halfway" in capsys.readouterr().out
    assert main(["export", "run", "--one-file", "--trust"]) == 0


def forgotten() -> None:
    """As in a new process: no name has been looked up yet."""
    for table in (METHODS, MODELS, DATASETS):
        table._found.clear()


def test_code_that_a_directory_names_runs_only_if_it_is_trusted(folder, capsys):
    """A run directory may be somebody else's."""
    assert main(["run", "mine:Halfway", *COMMON, "--directory", "run", "--quiet"]) == 0
    forgotten()
    for command in (["resume", "run"], ["export", "run"]):
        capsys.readouterr()
        assert main(command) == 2
        says = capsys.readouterr().err
        assert re.search(r"'mine:\w+' is code outside idiolect that run names", says)
        assert "--trust" in says
        forgotten()
    with pytest.raises(il.SettingError, match="is code outside idiolect"):
        il.load("run").personal(0)
    il.load("run", trust=True).personal(0)


def test_a_comparison_takes_names_of_both_kinds(folder, capsys):
    words = ["mine:Halfway:share=0.2", "fedavg", *COMMON, "--json", "--directory", "both"]
    assert main(["compare", *words]) == 0
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)]
    assert labels[1:3] == ["mine:Halfway share=0.2", "fedavg"]
    assert main(["resume", "both", "--json", "--quiet", "--trust"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "mine:Nothing"], "method: module 'mine' has no 'Nothing'"),
        (["run", "nowhere:Halfway"], "method: 'nowhere:Halfway' cannot be imported"),
        (["run", "mine:Quiet"], "method must be a subclass of Method, got 'mine:Quiet'"),
        (
            ["run", "fedavg", "--rule", "mine:Shout"],
            "rule must be a subclass of Rule or Wrapper, got 'mine:Shout'",
        ),
        (
            ["run", "fedavg", "--channel", "mine:Shout"],
            "channel must be a subclass of Stage, got 'mine:Shout'",
        ),
        (
            ["run", "fedavg", "--attack", "mine:Quiet", "--malicious", "1"],
            "attack must be a subclass of Attack, got 'mine:Quiet'",
        ),
        (["run", "fedavg", "--data", "mine:Halfway"], "data set: 'mine:Halfway' must be"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder, capsys, words, says):
    assert main(words) == 2
    assert says in capsys.readouterr().err


# -- an installed package --------------------------------------------------------------------------
ENTRY_POINTS = """\
[idiolect.methods]
halfway = installed_things:Halfway
[idiolect.models]
small-net = installed_things:small_net
[idiolect.data]
two-moons = installed_things:two_moons
[idiolect.channels]
doubled = installed_things:Doubled
[idiolect.attacks]
shout = installed_things:Shout
[idiolect.rules]
quiet = installed_things:Quiet
"""


@pytest.fixture
def installed(tmp_path):
    """An environment in which a package with entry points is installed."""
    site = tmp_path / "site"
    info = site / "idiolect_things-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(own_things.__file__, site / "installed_things.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: idiolect-things\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


SCRIPT = """
import contextlib, io, json, sys
from idiolect.cli.main import main
from idiolect.methods import make_method
from idiolect.data import DATASETS
from idiolect.methods import METHODS
from idiolect.models import MODELS
from idiolect.testing import check_method

def printed(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(words)) == 0, words
    return json.loads(out.getvalue())

given = ["--data", "two-moons", "--model", "small-net", "--rounds", "2", "--quiet", "--json"]
own = ["--channel", "doubled", "--rule", "quiet", "--attack", "shout", "--malicious", "1"]
kinds = ("methods", "channels", "attacks", "rules")
listed = {kind: printed("list", kind, "--json") for kind in kinds}
listed["data"] = printed("data", "--json")
json.dump({
    "listed": {kind: [row["name"] for row in rows] for kind, rows in listed.items()},
    "compared": [r["label"] for r in printed("compare", "halfway:share=0.3", "fedavg", *given)],
    "run": printed("run", "halfway", *given, *own)["rounds"],
    "checked": check_method(make_method("halfway")),
}, sys.stdout)
"""


def test_things_of_an_installed_package_are_listed_run_and_checked(installed, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=installed, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    names = {"methods": "halfway", "channels": "doubled", "attacks": "shout", "rules": "quiet"}
    for kind, name in (names | {"data": "two-moons"}).items():
        assert name in got["listed"][kind]
    assert got["compared"][1:3] == ["halfway share=0.3", "fedavg"]
    assert got["run"] == 2 and got["checked"] is None
