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
    "host/rows.py": "class Row:\n    found = 1\n",
    "method.py": (
        "class Method:\n    'A docstring.'\n    traits: int = 0\n    _own: int = 0\n"
        "    def check(self): ...\n    def update(self): ...\nclass Row: ...\n"
    ),
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


def test_imports_upwards_and_sideways_are_listed(tree):
    assert [(i.source, i.target) for i in tree.upwards()] == [
        ("idiolect.core.streams", "idiolect.host.host"),
        ("idiolect.wire", "idiolect.task.split"),
    ]


def test_uses_count_outside_their_own_room_only(tree):
    uses = tree.uses()
    assert Use("idiolect.engine.inprocess", "host.update", called=True) in uses
    assert Use("idiolect.engine.inprocess", "host.data", called=False) in uses
    assert len(uses) == 2


def test_the_other_figures(tree):
    rows = figures(tree)
    assert rows["idiolect"] == "18 in 12"
    assert rows["... idiolect/host"] == "5 in 3"
    assert rows["functions"] == "5, 1.6 lines on average"
    assert rows["modules with exactly one importer"] == "2"  # host.host and task.split
    assert rows["names in `idiolect.__all__`"] == "2"
    assert rows["members of Method"] == "3"
    assert rows["longest file"] == "7 lines (idiolect.method)"
    assert rows["longest function"] == "2 lines (idiolect.host.host:own)"
    assert rows["lines over 100 columns"].startswith("1 of ")


def test_doubled_class_names_and_participles(tree):
    assert tree.doubled_classes() == {"Row": ["idiolect.host.rows", "idiolect.method"]}
    assert tree.participles() == {"found": 1}


def test_this_checkout_has_no_import_upwards():
    assert Tree(ROOT, read_layers()).upwards() == []
