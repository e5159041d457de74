"""Mutants are functions with one change, and the table counts what became of them."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.mutation.__main__ import TARGETS, file_of, report

TEXT = '''"""A module."""
LIMIT = 3


class Counter:
    def add(self, n: int | None) -> int:
        if n < LIMIT:
            self.total += n
        return self.total
'''


def test_every_function_is_changed_and_nothing_else():
    mutants = pytest.importorskip("benchmarks.mutation.mutants")
    found = list(mutants.Source(TEXT, "counter.py").mutants())
    assert {m.function for m in found} == {"Counter.add"}
    changes = {m.diff.splitlines()[-1].lstrip("+").strip() for m in found}
    assert {"if n <= LIMIT:", "if n >= LIMIT:", "if not n < LIMIT:", "pass"} <= changes
    assert {m.lines for m in found} == {(7, 7), (8, 8)}  # no constant, no annotation


def test_the_table_counts_what_became_of_the_mutants(tmp_path):
    fates = ["killed", "killed", "timeout", "survived"]
    change = {"operator": "AddNot", "line": 7, "function": "add", "diff": "-a\n+b", "seconds": 1}
    found = {"module": "wire.ledger", "mutants": 9, "tested": 4, "seconds": 90}
    found["results"] = [{"fate": fate, **change} for fate in fates]
    (tmp_path / "wire.ledger.json").write_text(json.dumps(found))
    text = report(tmp_path)
    assert "| wire.ledger | 9 | 4 | 2 | 1 | 0 | 1 | 75.0 % | 1.5 |" in text
    assert "## wire.ledger: 1 that no test noticed" in text


def test_the_tests_of_every_module_are_there():
    root = Path(__file__).parents[2]
    for name, tests in TARGETS.items():
        if file_of(name).exists():
            assert all((root / path).exists() for path in tests), name
