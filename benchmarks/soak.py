"""Does a long run grow? Resident memory and open descriptors over many rounds.

    python -m benchmarks.soak --clients 10000 --rounds 1000
    python -m benchmarks.soak --metrics f1,log_loss,balanced_accuracy

Every round is evaluated on every client, in a run directory with a checkpoint every 50 rounds.
Prints a line every 100 rounds and exits with 1 if, after the first 100, memory has grown by more
than 1 MB per 100 rounds or a descriptor is left open. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import idiolect as il

EVERY = 100  # rounds between lines
LIMIT = 1.0  # MB per 100 rounds
FEATURES, HIDDEN, CLASSES = 60, 140, 10  # a model of 9,950 numbers
SAMPLES = 10  # per client
METRICS = "f1,log_loss,balanced_accuracy"


def resident() -> float:
    """MB of this process in memory, without the pages of mapped files."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def federation(clients: int) -> il.Federation:
    """Clients with a few samples each, from a fixed seed."""
    rng = np.random.default_rng(0)
    targets = rng.integers(CLASSES, size=clients * SAMPLES)
    inputs = rng.standard_normal((clients * SAMPLES, FEATURES)).astype(np.float32)
    inputs[:, :CLASSES] += 2 * np.eye(CLASSES, dtype=np.float32)[targets]
    return il.Federation.from_arrays(inputs, targets, np.repeat(np.arange(clients), SAMPLES))


def soak(
    clients: int, rounds: int, heard: int, directory: str | None, metrics: str = ""
) -> list[tuple]:
    """(round, MB, descriptors) every 100 rounds."""
    seen: list[tuple[int, float, int]] = []
    began = time.monotonic()

    def progress(seed: int, round: int, accuracy: float) -> None:
        if round % EVERY:
            return
        gc.collect()
        seen.append((round, resident(), descriptors()))
        took = time.monotonic() - began
        print(
            f"round {round:5d}  {seen[-1][1]:8.2f} MB  {seen[-1][2]:3d} descriptors  "
            f"accuracy {accuracy:.4f}  {took:6.0f} s",
            flush=True,
        )

    task = il.Task(lambda: il.models.make("mlp", (FEATURES,), CLASSES, hidden=str(HIDDEN)))
    il.run(
        il.FedAvg(steps=2),
        task,
        federation(clients),
        rounds=rounds,
        sample=heard,
        batch=8,
        threads=1,
        checkpoint_every=50,
        directory=directory,
        progress=progress,
        metrics=metrics,
    )
    return seen


def verdict(seen: list[tuple[int, float, int]]) -> list[str]:
    """What is wrong; [] when nothing grows.

    >>> verdict([(100, 300.0, 9), (200, 300.5, 9), (300, 301.0, 9)])
    []
    >>> verdict([(100, 300.0, 9), (200, 302.0, 9), (300, 304.0, 10)])
    ['memory grows by 2.00 MB per 100 rounds', 'descriptors went from 9 to 10']
    """
    (first, memory, files), *_, (last, memory_then, files_then) = seen
    wrong = []
    growth = (memory_then - memory) / (last - first) * 100
    if growth > LIMIT:
        wrong.append(f"memory grows by {growth:.2f} MB per 100 rounds")
    if files_then > files:
        wrong.append(f"descriptors went from {files} to {files_then}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Does a long run grow?")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--heard", type=int, default=100, help="clients heard per round")
    parser.add_argument("--no-directory", action="store_true", help="a run that keeps no files")
    parser.add_argument("--metrics", default="", help="also evaluated, e.g. " + METRICS)
    parsed = parser.parse_args()
    if parsed.rounds < 2 * EVERY:
        parser.error(f"--rounds: at least {2 * EVERY}")
    il.keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        directory = None if parsed.no_directory else str(Path(folder) / "run")
        seen = soak(parsed.clients, parsed.rounds, parsed.heard, directory, parsed.metrics)
    wrong = verdict(seen)
    first, last = seen[0], seen[-1]
    growth = (last[1] - first[1]) / (last[0] - first[0]) * 100
    print(f"after the first {first[0]} rounds: {growth:+.3f} MB per 100 rounds")
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
