"""The user's own data sets: classes and functions, by name, `module:Name` or as they are."""

import functools
import json
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from idiolect import data
from idiolect.core import registry
from idiolect.core.knobs import Knobs, SettingError, describe, knob
from idiolect.data import DATASETS, Federation
from idiolect.data.entries import data_set


def made(clients, name="own"):
    who = np.repeat(np.arange(clients), 5)
    return Federation.from_arrays(np.zeros((len(who), 2)), who % 2, who, name=name)


@dataclass(frozen=True)
class Own(Knobs):
    """A data set of the user's own."""

    clients: int = knob(3, "number of clients", low=1)

    def load(self):
        return made(self.clients)


def own(clients: int = 3, *, deep: bool = False, path=None, sizes=[1, 2]):  # noqa: B006
    """A function of the user's own."""
    assert isinstance(clients, int) and isinstance(deep, bool) and sizes == [1, 2]
    return made(clients, f"own({deep}, {path})")


def from_file(path: str, clients: int):
    return made(clients, path)


def open_ended(clients: int = 3, **options):
    return made(clients, str(sorted(options)))


@pytest.mark.parametrize("thing", [Own, Own(), own, functools.partial(own), open_ended])
def test_the_thing_itself_is_loaded(thing):
    assert data.load(thing).clients == 3
    assert data.load(thing, clients=4).clients == 4


def test_the_options_given_win_over_those_of_the_object():
    assert data.load(Own(clients=5)).clients == 5
    assert data.load(Own(clients=5), clients=2).clients == 2


def test_text_becomes_the_type_of_the_option():
    f = data.load(own, clients="4", deep="true", path="here")
    assert f.clients == 4 and f.name == "own(True, here)"


def test_a_function_that_takes_any_option_gets_it():
    assert data.load(open_ended, colour="red").name == "['colour']"


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        (Own, {"client": 2}, "data set Own setting: 'client' is unknown; did you mean 'clients'"),
        (Own, {"clients": 0}, "clients must be a whole number >= 1, got 0"),
        (own, {"client": 2}, "data set own setting: 'client' is unknown; did you mean 'clients'"),
        (own, {"clients": "many"}, "clients must be a whole number, got 'many'"),
        (own, {"deep": 3}, "deep must be true or false, got 3"),
        (from_file, {}, "data set from_file: path, clients must be given"),
        (from_file, {"path": "x"}, "data set from_file: clients must be given"),
        (lambda: [1], {}, "must return a Federation, got a list"),
        (lambda clients, /: None, {}, "must take its options by name"),
        (dict, {}, "'dict' must be a subclass of Knobs with load"),
        (Knobs, {}, "'Knobs' must be a subclass of Knobs with load"),
        (3, {}, "'3' must be a subclass of Knobs with load"),
        ("synthetic", {"alhpa": 1}, "did you mean 'alpha'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(thing, options, message):
    with pytest.raises(SettingError, match=message):
        data.load(thing, **options)


def test_a_required_option_is_passed_on():
    f = data.load(from_file, path="x", clients=2)
    assert f.name == "x" and f.clients == 2


def test_a_function_describes_its_options_as_a_class_does():
    rows = describe(data_set("own", own))
    assert [(r["name"], r["type"], r["default"]) for r in rows] == [
        ("clients", "int", 3),
        ("deep", "bool", False),
        ("path", "object", None),
        ("sizes", "object", None),
    ]
    assert rows[0]["help"] == "option of own" and rows[0]["accepts"] == "a whole number"
    doc = data_set("own", own).__doc__
    assert doc.startswith("A function of the user's own.\n") and "clients (3): option of own" in doc
    assert json.dumps(describe(data_set("file", from_file)))
    assert data_set("file", from_file).__doc__


MODULE = """
from dataclasses import dataclass
import numpy as np
from idiolect.core.knobs import Knobs, knob
from idiolect.data import Federation

def visits(clients: int = 2) -> Federation:
    "Visits to a hospital."
    who = np.repeat(np.arange(clients), 5)
    return Federation.from_arrays(np.zeros((len(who), 2)), who % 2, who)

@dataclass(frozen=True)
class Visits(Knobs):
    clients: int = knob(2, "number of clients", low=1)

    def load(self):
        return visits(self.clients)

count = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `own_visits` in the current folder."""
    (tmp_path / "own_visits.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DATASETS, "_found", {})
    yield "own_visits"
    sys.modules.pop("own_visits", None)


@pytest.mark.parametrize("name", ["visits", "Visits"])
def test_a_module_of_the_current_folder_is_found(module, name):
    assert data.load(f"{module}:{name}", clients=4).clients == 4
    assert [row["name"] for row in describe(DATASETS.find(f"{module}:{name}"))] == ["clients"]
    with pytest.raises(SettingError, match="'client' is unknown; did you mean 'clients'"):
        data.load(f"{module}:{name}", client=4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_visits:count", "^data set: 'own_visits:count' must be a subclass of Knobs"),
        ("own_visits:nothing", "module 'own_visits' has no 'nothing'"),
        ("no_such_module:Name", "cannot be imported"),
        ("visits", "'visits' is unknown"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(module, name, message):
    with pytest.raises(SettingError, match=message):
        data.load(name)


def test_an_installed_package_offers_data_sets(module, monkeypatch):
    point = EntryPoint("hospital", "own_visits:visits", "idiolect.data")
    monkeypatch.syspath_prepend(".")

    def offered(group, name="hospital"):
        return [point] if (group, name) == ("idiolect.data", "hospital") else []

    monkeypatch.setattr(registry, "entry_points", offered)
    assert "hospital" in DATASETS and data.load("hospital", clients=3).clients == 3
    assert DATASETS["hospital"].__doc__.startswith("Visits to a hospital.\n")
