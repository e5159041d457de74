"""What is used of Flower beyond its public API: in one file, there, and refused where it is not."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import flwr

from idiolect.core.knobs import SettingError
from idiolect.deploy.flower import internals

ROOT = Path(__file__).parents[2]
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}


@pytest.mark.parametrize("role", internals.NAMES)
def test_the_flower_that_is_installed_has_all_that_is_used(role):
    internals.check(role)


def test_a_flower_that_lacks_something_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(internals.NAMES, "relay", {"pull_task": "flwr.supernode.gone"})
    monkeypatch.setitem(internals.WHERE, "pull_task", "flwr.supernode.gone")
    words = re.escape(f"{internals.UNFIT}: {flwr.__version__} has no flwr.supernode.gone.pull_task")
    with pytest.raises(SettingError, match=words):
        internals.check("relay")


def test_waiting_times_that_are_no_longer_arguments_are_noticed(monkeypatch):
    monkeypatch.setitem(internals.WHERE, "pull_objects", __name__)
    monkeypatch.setitem(globals(), "pull_objects", lambda ids: None)
    monkeypatch.setattr(internals, "import_module", lambda name: _Here)
    with pytest.raises(SettingError, match="initial_backoff"):
        internals.check("parts")


class _Here:
    pull_objects = staticmethod(lambda ids: None)
    pull_and_inflate_object_from_tree = pull_objects


def _imported(path: Path) -> set[str]:
    modules: set[str] = set()
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "flwr" in text else ():
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {m for m in modules if m == "flwr" or m.startswith("flwr.")}


def test_all_other_files_use_what_flower_documents():
    for path in sorted((ROOT / "src" / "idiolect").rglob("*.py")):
        if path.name != "internals.py":
            assert _imported(path) <= PUBLIC, path


def test_internals_names_every_part_in_its_table():
    path = ROOT / "src" / "idiolect" / "deploy" / "flower" / "internals.py"
    assert _imported(path) <= PUBLIC
    used = set(re.findall(r'part\("(\w+)"\)', path.read_text()))
    assert used <= set(internals.WHERE)


def test_both_ends_of_the_range_are_tested():
    with open(ROOT / "pyproject.toml", "rb") as file:
        extra = tomllib.load(file)["project"]["optional-dependencies"]["flower"][0]
    oldest, below = re.fullmatch(r"flwr>=([\d.]+),<([\d.]+)", extra).groups()
    pinned = re.search(r"^flwr==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    newest = re.search(r"^FLOWER_NEWEST := ([\d.]+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    assert pinned.startswith(f"{oldest}.")
    major, minor, _ = map(int, newest.split("."))
    assert below == f"{major}.{minor + 1}"
    assert flwr.__version__ in (pinned, newest)
