"""In a plain Python process, without MKL_CBWR in its environment: the same bits on any hosts."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import torch
if "computes first" in sys.argv:
    torch.randn(9, 9) @ torch.randn(9, 9)
import numpy as np
from torch import nn
import idiolect as il
from idiolect.testing import private_of, state_of

torch.set_num_threads(1)
rng = np.random.default_rng(0)


def chain(inputs, hidden, activation):
    return lambda: nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(37, 21), nn.LayerNorm(21), nn.GELU())
        self.head = nn.Linear(21, 3)

    def forward(self, x):
        return self.head(self.layers(x) + 1)


class Rows(nn.Module):  # it draws, so that it is trained row by row
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(37, 21), nn.SiLU(), nn.Dropout(0.2))
        self.head = nn.Linear(21, 3)

    def forward(self, x):
        return self.head(self.layers(x) + 1)


def differs(method, model, shape, clients, dtype, figures=True, **more):
    sizes = rng.integers(5, 40, clients)
    n = sizes.sum()
    data = il.Federation.from_arrays(
        rng.normal(size=(n, *shape)).astype("f4"),
        rng.integers(0, 3, n),
        np.repeat(np.arange(clients), sizes),
    )
    settings = dict(rounds=2, sample=0, batch=7, dtype=dtype) | more
    a, b = (il.run(method, il.Task(model), data, hosts=h, **settings) for h in (1, 3))
    same = a.seeds[0].final == b.seeds[0].final if figures else True
    for part in (state_of, private_of):
        same &= all(torch.equal(t, part(b)[name]) for name, t in part(a).items())
    return not same


METHODS = (
    il.FedAvg(steps=3),
    il.Ditto(steps=3),
    il.PFedMe(steps=2),
    il.Scaffold(steps=3),
    il.LpProj(p=1, dim=5, steps=3),
    il.FedAlt(part="output", steps=2, private_steps=1),
)
bad = []
if "computes first" not in sys.argv:
    for i, features in enumerate((3, 15, 16, 38, 54, 65)):
        method, clients = METHODS[i % len(METHODS)], (2, 3, 5, 9, 12, 13)[i % 6]
        dtype = ("float32", "float64")[i // 2 % 2]
        models = {
            "linear": lambda: nn.Linear(features, 3),
            "relu": chain(features, 2 * i + 3, nn.ReLU),
            "tanh": chain(features, 2 * i + 3, nn.Tanh),
        }
        for name, model in models.items():
            if differs(method, model, (features,), clients, dtype):
                bad.append((type(method).__name__, name, features, clients, dtype))
    for dtype in ("float32", "float64"):
        if differs(il.Ditto(steps=2), convolution, (1, 8, 8), 5, dtype):
            bad.append(("convolution", dtype))
        # row by row, models of unequal clients on all their data; p other than 1 and 2
        for method in (il.Ditto(steps=2), il.LpProj(p=1.7, dim=5, steps=2)):
            for batching in ("replace", "full", "epochs"):
                if differs(method, Rows, (37,), 5, dtype, figures=False, batching=batching):
                    bad.append(("rows", type(method).__name__, batching, dtype))
        # one client at a time: any model at all, a shared one too
        for model in (Normed, chain(37, 21, nn.Sigmoid)):
            if differs(il.FedAvg(steps=2), model, (37,), 5, dtype, chunk=1, batching="full"):
                bad.append(("chunk 1, shared", dtype))
        for model in (Normed, chain(37, 21, nn.Sigmoid)):
            if differs(il.Ditto(steps=2), model, (37,), 5, dtype, chunk=1):
                bad.append(("chunk 1", dtype))
else:
    differs(il.FedAvg(steps=1), lambda: nn.Linear(4, 3), (4,), 3, "float32")
print(bad)
"""


def process(*arguments: str) -> subprocess.CompletedProcess:
    environment = {n: v for n, v in os.environ.items() if n != "MKL_CBWR"}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_one_host_and_three_give_the_same_bits():
    done = process()
    assert done.stdout == "[]\n", done.stdout + done.stderr
    assert "MKL" not in done.stderr


def test_where_torch_computed_before_the_import_it_is_said_once():
    done = process("computes first")
    assert done.returncode == 0
    assert done.stderr.count("MKL is not in its reproducible mode") == 1
    assert "import idiolect before torch computes anything" in done.stderr
