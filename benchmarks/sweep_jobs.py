"""How much faster is a sweep with two worker processes than with one?

`python -m benchmarks.sweep_jobs`, on an idle machine of two cores: rounds per second of the same
sweep by the clock, starting of the workers included, and what two bare processes reach beside each
other on this machine, which is the ceiling.
"""

from __future__ import annotations

import multiprocessing
import time

import torch

import idiolect as il

RUNS = 48
ROUNDS = 300


def model() -> torch.nn.Module:
    return il.models.make("linear", (60,), 10)


def work(_: int) -> None:
    """The work of half the sweep, as bare runs."""
    torch.set_num_threads(1)
    federation = il.data.load("synthetic")
    for seed in range(RUNS // 2):
        given = {"rounds": ROUNDS, "seed": seed, "threads": 1, "sample": 10, "eval_every": 0}
        il.run(il.Ditto(steps=5), model, federation, progress=False, **given)


def ceiling() -> float:
    """Work per second of two processes beside each other, over that of one."""
    spawn = multiprocessing.get_context("spawn")
    spent = []
    for many in (1, 2):
        with spawn.Pool(many) as pool:
            pool.map(abs, range(many), 1)  # processes are there
            began = time.perf_counter()
            pool.map(work, range(many), 1)
            spent.append(time.perf_counter() - began)
    return 2 * spent[0] / spent[1]


def main() -> None:
    federation = il.data.load("synthetic")
    grid = {"lam": [0.01, 0.1, 1.0], "personal_lr": [0.05, 0.1]}
    seconds = {}
    for jobs in (1, 2):
        began = time.perf_counter()
        il.sweep(
            il.Ditto(steps=5),
            model,
            federation,
            grid=grid,
            seeds=RUNS // 6,
            jobs=jobs,
            rounds=ROUNDS,
            sample=10,
            eval_every=0,
        )
        seconds[jobs] = time.perf_counter() - began
        print(f"--jobs {jobs}: {RUNS * ROUNDS / seconds[jobs]:.0f} rounds/s", flush=True)
    print(f"ratio {seconds[1] / seconds[2]:.2f}; two bare processes: {ceiling():.2f}")


if __name__ == "__main__":
    main()
