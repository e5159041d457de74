"""What privacy costs a round in time: each protection over none, alternating in one run.

python -m benchmarks.privacy_cost [--rounds 12]

FedAvg, a multilayer perceptron 784-100-10, 100 clients that are all heard, one pass over 434
samples in batches of 64: CPU seconds of a round on one thread, the least of all rounds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import idiolect as il
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings

CLIENTS, SAMPLES = 100, 434
KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "central, C stays": {"privacy": "central(noise=1, quantile=0)"},
    "central, C follows a quantile": {"privacy": "central(noise=1)"},
    "local": {"privacy": "local(noise=1)"},
    "secure sums": {"secure_sums": True},
    "distributed": {"secure_sums": True, "privacy": "distributed(noise=1)"},
    "samples": {"privacy": "samples(noise=1)"},
}


def sessions() -> dict[str, Session]:
    """A session for each kind of privacy, on the same data and model."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLIENTS * SAMPLES, 784, generator=generator)
    targets = torch.randint(10, (len(inputs),), generator=generator)
    owners = [i // SAMPLES for i in range(len(inputs))]
    federation = il.Federation.from_arrays(inputs, targets, owners, test=0.0)
    task = il.Task(lambda: il.models.make("mlp", (784,), 10, hidden="100"))
    method = il.make_method("fedavg", epochs=1, lr=0.05)
    common = {"rounds": 1000, "sample": CLIENTS, "batch": 64, "eval_every": 0, "threads": 1}
    return {
        name: Session(prepare(method, task, federation, Settings(**common, **own)), 0, 1)
        for name, own in KINDS.items()
    }


def measured(rounds: int) -> dict[str, float]:
    """The least CPU seconds of a round, by kind; kinds take turns."""
    torch.set_num_threads(1)
    running = sessions()
    least = dict.fromkeys(running, float("inf"))
    for _ in range(rounds):
        for name, session in running.items():
            start = time.process_time()
            session.advance()
            least[name] = min(least[name], time.process_time() - start)
    return least


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    least = measured(parser.parse_args().rounds)
    print("| privacy | ms per round | over none |\n|---|---|---|")
    for name, seconds in least.items():
        print(f"| {name} | {1000 * seconds:.0f} | {seconds / least['none']:.3f} |")


if __name__ == "__main__":
    main()
