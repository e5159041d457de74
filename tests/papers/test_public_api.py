"""The papers' package imports public names of idiolect alone, so these are enough for a study."""

import ast
import importlib
from pathlib import Path

import idiolect as il
import idiolect_papers

ROOT = Path(idiolect_papers.__file__).parent
PACKAGES = ("data", "methods", "models", "projections", "report", "solvers", "study", "task")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def is_public(module, name):
    if module == "idiolect":
        return not name or name in il.__all__
    if module.startswith("idiolect.data.sets."):
        return True
    package = module.removeprefix("idiolect.")
    return package in PACKAGES and hasattr(importlib.import_module(module), name)


def test_papers_import_public_names_only():
    private = [
        (path.relative_to(ROOT).as_posix(), f"{module}.{name}")
        for path in sorted(ROOT.rglob("*.py"))
        for module, name in imports(path)
        if module.partition(".")[0] == "idiolect" and not is_public(module, name)
    ]
    assert private == []
