"""How long an advice takes: `python -m benchmarks.advise_time`, about a minute on one core.

A table of 100 sites with 200 rows each (20 columns, 2 classes) and the model that the command line
takes for it. `idiolect advise` runs as a user has it, quick and in full: wall and CPU seconds, of
all that happens from the start of Python to its end. Then once more under cProfile: where the
seconds go. On a machine that others use, CPU seconds are the ones to compare.

Limits on an idle machine with two cores: 15 s quick, 2 minutes in full.
"""

from __future__ import annotations

import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

CLIENTS = 100
SAMPLES = 200
FEATURES = 20
LIMITS = {"--quick": 15.0, "": 120.0}  # wall seconds, by the flag
# what the profile is summed up by: a name, and the function whose cumulative time it is
PHASES = (
    ("load Python modules", "<frozen importlib._bootstrap>", "_find_and_load"),
    ("read the table", "data/__init__.py", "load"),
    ("trainings", "advise/training.py", "train"),
    ("  of these: set-up and checks of runs", "run/prepare.py", "prepare"),
    ("  of these: gradient steps", "idiolect/solvers.py", "sgd"),
    ("heterogeneity", "advise/advise.py", "_heterogeneity"),
    ("gains and intervals", "advise/advise.py", "_gains"),
    ("figures of the table", "advise/advise.py", "_table"),
    ("clients", "advise/estimate.py", "client_gains"),
    ("picture", "report/plots.py", "advice_picture"),
)


def write_table(path: Path) -> None:
    """Sites with a common logistic rule and a deviation of their own."""
    rng = np.random.default_rng(0)
    site = np.repeat(np.arange(CLIENTS), SAMPLES)
    x = rng.normal(size=(len(site), FEATURES))
    rule = 1.5 * rng.normal(size=FEATURES) + 0.5 * rng.normal(size=(CLIENTS, FEATURES))
    score = (x * rule[site]).sum(1) / np.sqrt(FEATURES)
    outcome = rng.random(len(site)) < 1 / (1 + np.exp(-score))
    table = pd.DataFrame(x, columns=[f"x{j}" for j in range(FEATURES)])
    table["site"] = [f"site {k}" for k in site]
    table["outcome"] = np.where(outcome, "yes", "no")
    table.to_csv(path, index=False)


def command(folder: Path, flag: str, *interpreter: str) -> list[str]:
    """The command line of one advice, into a folder of its own."""
    number = len(list(folder.iterdir()))
    flags = ["--client", "site", "--target", "outcome", *([flag] if flag else [])]
    directory = ["--directory", str(folder / f"advice {number}")]
    advise = ["idiolect.cli", "advise", "--data", "table", "--path", str(folder / "table.csv")]
    return [sys.executable, *interpreter, "-m", *advise, *flags, *directory]


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(arguments, check=True, capture_output=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def phases(profile: Path) -> list[tuple[str, float]]:
    """Cumulative seconds of each phase, from a stored profile."""
    functions = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    totals = []
    for name, file, function in PHASES:
        times = [
            row[3] for key, row in functions.items() if key[0].endswith(file) and key[2] == function
        ]
        totals.append((name, max(times, default=0.0)))
    return totals


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "table.csv")
        print(f"{CLIENTS} clients x {SAMPLES} samples, {FEATURES} features, 2 classes")
        for flag, limit in LIMITS.items():
            wall, cpu = seconds(command(folder, flag))
            print(
                f"\nadvise {flag or 'in full'}: {wall:.1f} s, {cpu:.1f} s of CPU "
                f"(limit {limit:g} s)"
            )
            profile = folder / "profile"
            seconds(command(folder, flag, "-m", "cProfile", "-o", str(profile)))
            print("where they go (under cProfile, which adds about a third):")
            for phase, cumulative in phases(profile):
                print(f"  {phase:40} {cumulative:6.1f} s")


if __name__ == "__main__":
    main()
