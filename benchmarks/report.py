"""docs/speed.md from the figures of one run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"

TEXT = """# Speed

Rounds a second of whole simulations, all doing the same work on one thread. Made by `make bench`; do not edit.

![Rounds a second by workload and system](speed.svg)

{rates}

Measured with {versions} on {machine}. Rates depend on the machine; ratios much less. (wall): by the wall clock; all others by CPU time.

## What is compared

Every system trains the same model on the same data, 100 clients of equal size, 10 heard a round, and every round ends with an evaluation
on the test data of all 100 clients.

| workload | samples a client | in a round |
|---|---|---|
| FedAvg, MLP 784-100-10 | 434 + 109 to test | 10 clients, one pass in batches of 64: 70 gradients |
| pFedMe, MLP 784-100-10 | 434 + 109 | 100 clients, 20 steps on one batch of 64 each: 2,000 gradients |
| Ditto, MLP 784-100-10 | 434 + 109 | 10 clients, a pass for the shared and one for the personal model: 140 gradients |
| FedAvg, LeNet 3x32x32 | 200 + 50 | 10 clients, one pass in batches of 64: 40 gradients |
| lp-proj, logistic 60-10 | 202 + 63 | 100 clients, 20 steps on one batch of 64 each: 2,000 gradients |

- **idiolect**: the engine of `idiolect run`, messages packed and unpacked, scores of every client.
- **loop, DataLoader**: plain PyTorch as a careful user writes it, one client after the other: a module, `optim.SGD`, `DataLoader`.
- **loop, indexing**: the same with batches taken by indexing, which saves the DataLoader's Python per sample.
- **Flower** (FedAvg only): its simulation with one Ray actor of one CPU; clients train by indexing. The server evaluates on the pooled
  test data, which is faster there than 100 evaluation messages. Its processes may use the second core.
- **pfl** (FedAvg only): its simulated back end in one process, central evaluation on the pooled test data. It does not shuffle batches.
- **FedJAX** (FedAvg only): its default back end in one process, compiled by XLA for one thread; the pooled test data too. Compilation
  is not counted. Version 0.0.17 runs with JAX 0.4.25 and NumPy 1.26, so it has an environment of its own.

The data are Gaussian clouds of the named shapes, so no download is needed. A test ([tests/benchmarks/test_loop.py]\
(../tests/benchmarks/test_loop.py)) checks that the loop and idiolect reach the same loss and accuracy from as many gradients in all five.

A round is timed after warm-up rounds, so start-up is not counted, and the fastest of several is taken. Systems in one process take turns;
the other packages run in a process of their own. Flower's actor is another process, so it and idiolect are compared by the wall clock.

## Figures and goals

{figures}

A floor is the bare matrix products (for LeNet: convolutions and products) of the same sizes as in the round, without activations, loss,
batches, messages and scores.

## Where a goal is missed, and what the profile shows

- **MLP rounds against other systems.** The products are most of what every system does here. Our round takes {over} times as long as
  its bare products, and the loop with DataLoader {loop} times as long as ours: a system that did nothing but the products would be
  {best} times the loop. Goals of 20 (loop), 10 (Flower) and 3 (pfl) are out of reach of any implementation on a core with this speed of
  products (AVX2, some 70 GFLOP/s); on one with twice that, everything but the products weighs twice as much. FedJAX's compiled round is
  about as fast as ours.
- **LeNet rounds.** The same: convolutions take two thirds of the round, and they are the same in the loop.
- **Small models are where vectorised clients pay**: {small} times the loop for lp-proj on 100 logistic clients.
- **Logistic against its floor.** A step of 100 models takes two products of 0.18 ms. Beside them: softmax 0.10 ms, P x and Pᵀu 0.10 ms,
  the loss's derivative 0.05 ms, the step, its stopping rule and copies 0.08 ms, and some 0.1 ms of Python and of torch's calls. Only a
  compiled step could take these away, and compiling takes longer than most runs.
- **`sparse`** misses its goal by what else is in the cache: two more passes over 3 MB. `contiguous`, `block` and `layers` meet it.
- **Two threads on LeNet rounds** miss narrowly: rows are shared out evenly, and what is not rows (drawing, averaging, scores) stays on
  one.

## Run it

`make bench` sets up `.venv-bench` and `.venv-fedjax` with the pins of `benchmarks/requirements*.txt`, takes some minutes on two idle
cores and writes this page, the picture and [benchmarks/latest.json](../benchmarks/latest.json). `python -m benchmarks.run` runs in any
environment that has idiolect and leaves out what is not installed.

## Tried and not used

| package | why |
|---|---|
| FedLab 1.3.0 | imports torchvision, whose wheel does not load beside the CPU build of torch |
| FLSim 0.1.0 | does not import on Python 3.11: a mutable dataclass default |
| FedML 0.8.50 | does not import: see FedLab; also needs protobuf < 4, which Flower does not accept |
| Plato 1.0 | asks for a configuration file before it imports; not pursued |
| NVFlare 2.9.0 | runs; made for separate sites: 2.6 s a round in its simulator for two tiny clients |
"""


def systems(figures: list[dict]) -> list[str]:
    return list(dict.fromkeys(f["system"] for f in figures if "system" in f))


def rates(figures: list[dict]) -> list[list[str]]:
    """A row a workload: its name, then rounds a second of each system."""
    found = {(f["workload"], f["system"]): f for f in figures if "system" in f}

    def cell(f: dict | None) -> str:
        return (
            "–" if f is None else f"{f['value']:.3g}" + (" (wall)" if f["clock"] == "wall" else "")
        )

    return [
        [w, *(cell(found.get((w, s))) for s in systems(figures))]
        for w in dict.fromkeys(w for w, _ in found)
    ]


def write(figures: list[dict], rows: list[tuple[str, ...]], path: Path = PAGE) -> None:
    """`rows`: figure, value, goal and whether it is met."""
    value = {f["name"]: f["value"] for f in figures}

    def find(*words: str) -> float:
        return next((v for name, v in value.items() if all(w in name for w in words)), float("nan"))

    over, loop = (
        find("bare products", "MLP 784"),
        find("against loop, DataLoader", "FedAvg, MLP 784"),
    )
    text = TEXT.format(
        over=f"{over:.2f}",
        loop=f"{loop:.1f}",
        best=f"{over * loop:.1f}",
        small=f"{find('against loop, DataLoader', 'lp-proj'):.0f}",
        rates=markdown(["rounds a second", *systems(figures)], rates(figures)),
        figures=markdown(["figure", "value", "goal", ""], rows),
        versions=", ".join(
            f"{name} {v}" for name in ("torch", "flwr", "pfl") if (v := installed(name))
        ),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
    )
    path.write_text(text)


def markdown(head: list[str], rows: list) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
