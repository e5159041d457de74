"""Would several runs as more rows of one matrix be faster than the same runs one after another?

`python -m benchmarks.batched_runs` compares the time per round of k runs with that of one run on k
times as many clients: the work of k runs in one matrix, without what batching would cost beside it
(a step size, a λ and a server of its own for every run). CPU time, one thread, minimum of several.
"""

from __future__ import annotations

import time
from functools import partial

import torch

import idiolect as il
from idiolect.methods import make_method

RUNS = (3, 12, 36)
LOGISTIC = ("synthetic", "linear", {}, 100)
MLP = ("mnist", "mlp", {"share": 0.05}, 20)
LENET = ("cifar10", "lenet", {"share": 0.02}, 20)
CASES = {
    "logistic, 100 clients train: lp-proj": (LOGISTIC, "lp-proj-1", {"dim": 21}, 20),
    "logistic, 100 clients train: pFedMe": (LOGISTIC, "pfedme", {}, 20),
    "logistic, 100 clients train: Local": (LOGISTIC, "local", {}, 20),
    "logistic, 10 of 100 train: FedAvg": (LOGISTIC, "fedavg", {}, 20),
    "MLP, 20 clients train: Local": (MLP, "local", {"steps": 5}, 6),
    "LeNet, 20 clients train: Local": (LENET, "local", {"steps": 2}, 4),
}


def seconds(case: tuple, runs: int, repeats: int = 3) -> float:
    """CPU seconds per round of a federation with `runs` times as many clients."""
    (source, model, options, clients), name, fields, rounds = case
    share = {k: v * runs for k, v in options.items()}
    federation = il.data.load(source, clients=clients * runs, **share)
    make = partial(il.models.make, model, federation.shape, federation.classes)
    method = make_method(name, **fields)
    rounds = max(2, rounds // runs)
    found = []
    for _ in range(repeats):
        spent = []
        for many in (1, 1 + rounds):
            began = time.process_time()
            given = {"rounds": many, "sample": clients * runs // 10, "threads": 1}
            il.run(method, make, federation, eval_every=0, progress=False, **given)
            spent.append(time.process_time() - began)
        found.append((spent[1] - spent[0]) / rounds)
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    print("| runs with | one run, ms per round |", *(f"{k} runs as one |" for k in RUNS))
    print("|---|---|" + "---|" * len(RUNS))
    for title, case in CASES.items():
        one = seconds(case, 1)
        ratios = [f"{one * k / seconds(case, k):.2f}× |" for k in RUNS if k <= 12 or "log" in title]
        print(f"| {title} | {1e3 * one:.1f} |", *ratios, flush=True)


if __name__ == "__main__":
    main()
