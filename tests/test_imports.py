"""`import idiolect` is quick, its public names wait for torch and little else."""

import subprocess
import sys

import idiolect

HEAVY = [
    "sklearn",
    "scipy.stats",
    "pandas",
    "matplotlib",
    "PIL",
    "rich",
    "ray",
    "flwr",
    "optuna",
    "torchmetrics",
    "polars",
    "pyarrow",
]

NAMES = f"""
import sys
import torch
before = set(sys.modules)
from idiolect import *
print(" ".join(name for name in {HEAVY} if name in set(sys.modules) - before))
"""


def output(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_no_heavy_package_is_imported_before_it_is_needed():
    assert output(NAMES) == ""


def test_importing_the_package_loads_no_torch():
    assert output("import idiolect, sys; print('torch' in sys.modules)") == "False"


def test_run_is_the_function_whatever_was_imported_first():
    code = "import idiolect.run.settings, idiolect as il; print(callable(il.run), il.data.__name__)"
    assert output(code) == "True idiolect.data"


def test_every_public_name_is_there():
    for name in idiolect.__all__:
        assert getattr(idiolect, name) is not None
    assert set(idiolect.__all__) <= set(dir(idiolect))


def test_public_modules_are_there_when_they_are_used_first():
    """In a process of its own: a module that something else has loaded would hide a missing one."""
    for name in ("streams", "methods", "projections", "solvers"):
        assert output(f"import idiolect as il; print(il.{name}.__name__)").startswith("idiolect.")
