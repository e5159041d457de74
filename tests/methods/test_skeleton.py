"""A method of a user's own: the skeleton to copy, and the page that explains it."""

import runpy
from dataclasses import fields
from pathlib import Path

import pytest

import idiolect as il
from idiolect.cli.main import main
from idiolect.method import Combine, Method, Traits
from idiolect.methods import make_method
from idiolect.task.context import Here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "method-interface.md").read_text()


def test_the_skeleton_checks_itself(capsys):
    runpy.run_path(str(ROOT / "examples" / "method_skeleton.py"), run_name="__main__")
    assert "every promise" in capsys.readouterr().out


def test_the_skeleton_is_found_by_module_and_name(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT / "examples")
    assert make_method("method_skeleton:Mixture", share=0.3).share == 0.3
    with pytest.raises(il.SettingError, match=r"share .*weight of the shared model"):
        make_method("method_skeleton:Mixture", share=2)
    command = ["run", "method_skeleton:Mixture", "--share", "0.3", "--rounds", "1"]
    where = ["--clients", "4", "--quiet", "--directory", str(tmp_path / "run")]
    assert main(command + where) in (None, 0)
    assert "share=0.3" in capsys.readouterr().out


def test_the_page_has_every_member_of_a_method_and_every_trait():
    members = [n for n in vars(Method) if not n.startswith("_")]
    for name in (*members, *(f.name for f in fields(Traits))):
        assert f"| `{name}" in PAGE, name


def test_the_page_has_everything_that_here_and_the_rule_offer():
    offered = [n for n in vars(Here) if not n.startswith("_")] + ["rows", "round"]
    for name in offered:
        assert f"| `here.{name}" in PAGE, name
    for name in Combine.__annotations__:
        assert f"| `rule.{name}" in PAGE, name
