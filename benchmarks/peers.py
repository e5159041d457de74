"""Other packages, each in a process of its own.

The process notes the clocks after every round, and the fastest round counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from .timing import Times, now

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "Flower": ("flwr", "flower"),
    "pfl": ("pfl", "pfl_peer"),
    "FedJAX": ("fedjax", "fedjax_peer"),
}  # system: (package, module)
OWN = {
    "FedJAX": Path(os.environ.get("FEDJAX_PYTHON", ROOT / ".venv-fedjax" / "bin" / "python"))
}  # systems with their own Python
ROUNDS = 8
_SIGN = "marks: "


class Marks:
    """The clocks and the score after each round, in the peer's process."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float, float]] = []

    def add(self, accuracy: float, loss: float) -> None:
        self.rows.append((*now(), accuracy, loss))

    def write(self) -> None:
        print(_SIGN + json.dumps(self.rows), flush=True)


def installed(system: str) -> bool:
    package = PACKAGES[system][0]
    if OWN[system].exists() if system in OWN else importlib.util.find_spec(package):
        return True
    print(f"{package} is not installed: make bench-peers installs it", flush=True)
    return False


def measure(system: str, key: str, rounds: int = ROUNDS) -> Times | None:
    """The fastest round after the first two; None, and why, where the package does not run."""
    module = PACKAGES[system][1]
    command = [
        str(OWN.get(system, sys.executable)),
        "-c",
        f"from benchmarks import {module}; {module}.main({key!r}, {rounds})",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_SIGN)]
    if done.returncode or not lines:
        print(f"{system} did not run:\n" + "\n".join(done.stderr.splitlines()[-8:]), flush=True)
        return None
    rows = json.loads(lines[-1].removeprefix(_SIGN))
    cpu, wall = ([b[i] - a[i] for a, b in pairwise(rows[1:])] for i in (0, 1))
    accuracy, loss = rows[-1][2:]
    found = f"accuracy {accuracy:.3f}, loss {loss:.3f} after {len(rows)} evaluations"
    print(f"{system}: {found}", flush=True)
    return Times(min(cpu), min(wall))
