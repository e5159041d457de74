"""The figures of a source tree are those of a tree small enough to count by hand."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.structure import ROOT, Tree, Use, figures, read_layers

LAYERS = [{"engine"}, {"host"}, {"wire", "task"}, {"core"}]
FILES = {
    "__init__.py": '__all__ = ["a", "b"]\n',
    "core/__init__.py": "",
    "core/streams.py": "def upwards():\n    from ..host import host\n",
    "host/__init__.py": "",
    "host/host.py": "from ..core import streams\n\ndef own(host):\n    return host.rows\n",
    "wire/__init__.py": "from ..task import split\n",
    "task/__init__.py": "",
    "task/split.py": "import idiolect.core.streams\n" + "#" * 101 + "\n",
    "engine/__init__.py": "",
    "engine/inprocess.py": "def go(self):\n    self.host.update(self.host.data)\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "src" / "idiolect" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(tmp_path, LAYERS)


def test_imports_upwards_and_sideways_are_found(tree):
    found = [(i.source, i.target) for i in tree.upwards()]
    assert found == [("core.streams", "host.host"), ("wire", "task.split")]


def test_uses_count_outside_their_own_room_only(tree):
    uses = tree.uses()
    assert Use("engine.inprocess", "host.update", called=True) in uses
    assert Use("engine.inprocess", "host.data", called=False) in uses
    assert len(uses) == 2


def test_the_other_figures(tree):
    rows = figures(tree)
    assert rows["modules"] == "10"
    assert rows["names in `idiolect.__all__`"] == "2"
    assert rows["longest file"] == "4 lines (host.host)"
    assert rows["longest function"] == "2 lines (host.host:own)"
    assert rows["lines over 100 columns"].startswith("1 of ")


def test_this_checkout_has_no_import_upwards():
    assert Tree(ROOT, read_layers()).upwards() == []
