"""`import idiolect` waits for torch and little else."""

import subprocess
import sys

HEAVY = ("sklearn", "scipy", "pandas", "matplotlib", "PIL", "rich", "ray", "flwr", "optuna")

SCRIPT = f"""
import sys
import torch
before = set(sys.modules)
import idiolect
print(" ".join(name for name in {HEAVY} if name in set(sys.modules) - before))
"""


def test_no_heavy_package_is_imported_before_it_is_needed():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []
