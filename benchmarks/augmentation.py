"""What does augmentation cost? CPU time of a run with it over one without.

`python -m benchmarks.augmentation`: random pictures, one thread, batch 64, the best of several
runs of each kind by turns.
"""

from __future__ import annotations

import time

import numpy as np
import torch

import idiolect as il

CLIENTS, SAMPLES, TURNS = 20, 128, 3
AUGMENT = ("crop(padding=4) + flip", "cutout(size=8)", "jitter")
CASES = {  # name of the model -> its options, shape of a picture, rounds
    "mlp": ({"hidden": "100"}, (1, 28, 28), 40),
    "lenet": ({}, (3, 32, 32), 4),
}


def seconds(name: str, augment: str) -> float:
    """CPU seconds of a run."""
    options, shape, rounds = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS * SAMPLES, *shape), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    data = il.Federation.from_arrays(x, y, np.repeat(np.arange(CLIENTS), SAMPLES), channels="first")
    before = time.process_time()
    il.run(
        il.FedAvg(steps=5),
        lambda: il.models.make(name, shape, 10, **options),
        data,
        rounds=rounds,
        sample=CLIENTS,
        eval_every=0,
        augment=augment,
        progress=False,
    )
    return time.process_time() - before


def main() -> None:
    torch.set_num_threads(1)
    for name in CASES:
        kinds = ("none", *AUGMENT)
        turns = [{kind: seconds(name, kind) for kind in kinds} for _ in range(TURNS)]
        best = {kind: min(turn[kind] for turn in turns) for kind in kinds}
        ratios = ", ".join(f"{kind} {best[kind] / best['none']:.2f}" for kind in AUGMENT)
        print(f"{name}: {best['none']:.2f} s without; {ratios}", flush=True)


if __name__ == "__main__":
    main()
