"""preset=paper: the fields of a method's paper by one word."""

import dataclasses
import json

import pytest

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.methods import METHODS, label_of, make_method
from idiolect.run.plan import read_method, row_spec

WITH = [name for name in METHODS if METHODS.find(name)[0].traits.presets]


@pytest.mark.parametrize("name", WITH)
def test_a_preset_is_made_of_fields_that_the_method_accepts(name):
    cls, fixed = METHODS.find(name)
    for preset, fields in cls.traits.presets.items():
        method = make_method(name, preset=preset)
        assert all(getattr(method, k) == v for k, v in {**fields, **fixed}.items())
        assert method != make_method(name)  # else there is no need of it


def test_fields_given_beside_a_preset_win_and_so_do_those_of_the_name():
    method = make_method("lp-proj-2", preset="paper", lam=3)
    assert (method.p, method.lam, method.lr) == (2.0, 3.0, 0.1)
    assert make_method("feddeper*", preset="paper").steps == make_method("feddeper*").steps


def test_an_empty_preset_is_none():
    assert make_method("pfedme", preset="") == make_method("pfedme")


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(SettingError, match="'papre' is unknown; did you mean 'paper'"):
        make_method("pfedme", preset="papre")


def test_a_method_without_presets_says_so():
    with pytest.raises(SettingError, match="preset must be empty, got 'paper'"):
        make_method("local", preset="paper")


def test_the_form_of_comparisons_takes_it():
    assert row_spec("pfedme:preset=paper,lam=1")[1] == {"preset": "paper", "lam": "1"}
    assert read_method("pfedme:preset=paper") == make_method("pfedme", preset="paper")


def test_a_label_names_the_preset_and_what_else_differs():
    assert label_of(make_method("pfedme", preset="paper")) == "pfedme preset=paper"
    assert label_of(make_method("pfedme", preset="paper", reset=True)).endswith("reset=True")
    assert "preset" not in label_of(make_method("pfedme", preset="paper", lam=1))


def test_a_field_called_preset_is_the_methods_own():
    @dataclasses.dataclass(frozen=True)
    class Mine(il.FedAvg):
        """A method with such a field."""

        preset: str = il.knob("a", "a field")

    from idiolect.methods import unfold

    assert unfold(Mine, {"preset": "b"}, "mine") == {"preset": "b"}


def small(folder):
    """Arguments of a short run."""
    to = ["--json", "--quiet", "--directory", str(folder / "run")]
    return ["--data", "digits", "--clients", "2", *to]


def test_the_command_line_takes_it(tmp_path, capsys):
    main(["run", "pfedme", "--preset", "paper", "--rounds", "1", *small(tmp_path)])
    shown = json.loads(capsys.readouterr().out)
    assert shown["label"] == "pfedme preset=paper"
    assert shown["settings"]["method"]["lam"] == 15.0


def test_a_settings_file_takes_it(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('[method]\nname = "pfedme"\npreset = "paper"\n[run]\nrounds = 1\n')
    main(["run", "--config", str(file), *small(tmp_path)])
    assert json.loads(capsys.readouterr().out)["settings"]["method"]["lam"] == 15.0


def test_the_list_of_methods_tells_it(capsys):
    main(["list", "methods", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["pfedme"]["presets"]["paper"]["lam"] == 15.0
    assert rows["local"]["presets"] == {}
