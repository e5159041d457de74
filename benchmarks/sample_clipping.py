"""The gradient of DP-SGD over the plain one, beside what Opacus makes of the same models.

    python -m benchmarks.sample_clipping

Ours: a cohort's gradient with clipped samples and Gaussian noise over its plain gradient, both by
the kernel that the task chooses. Opacus (`pip install opacus`): per-sample gradients, clipping and
noise for one client after the other, over plain autograd on the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import models
from idiolect.task.batches import Batch
from idiolect.task.sample_clipping import SampleClipping
from idiolect.task.task import Task

from .timing import fastest

GOAL = 2.5


class Tagger(nn.Module):
    """Words [B, T] to a class, by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0][:, -1])


class Case(NamedTuple):
    label: str
    clients: int
    batch: int
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a sample
    words: int = 0  # the vocabulary, of models of tokens
    per_word: bool = False  # whether every word has a target


TRANSFORMER = {"blocks": 2, "heads": 4, "width": 64, "hidden": 256}


def transformer(tied: bool = True) -> nn.Module:
    return models.make("transformer", (32,), 200, **TRANSFORMER, tied=tied)


CASES = (
    Case("MLP 784-100-10", 10, 64, lambda: models.make("mlp", (784,), 10), (784,)),
    Case("logistic 60-10", 100, 64, lambda: models.make("linear", (60,), 10), (60,)),
    Case("LeNet 3x32x32", 5, 64, lambda: models.make("lenet", (3, 32, 32), 10), (3, 32, 32)),
    Case("transformer", 4, 16, transformer, (32,), 200, True),
    Case("transformer, untied", 4, 16, lambda: transformer(False), (32,), 200, True),
    Case(
        "transformer with LoRA",
        4,
        16,
        lambda: frozen(models.adapt(transformer(), rank=4)),
        (32,),
        200,
        True,
    ),
    Case("LSTM", 5, 32, Tagger, (20,), 1000),
)


def frozen(module: nn.Module) -> nn.Module:
    """All but the adapters."""
    for name, p in module.named_parameters():
        p.requires_grad_("adapter" in name)
    return module


def batch_of(case: Case) -> Batch:
    form = (case.clients, case.batch)
    rng = torch.Generator().manual_seed(0)
    if case.words:
        inputs = torch.randint(case.words, (*form, *case.shape), generator=rng)
    else:
        inputs = torch.rand(*form, *case.shape, generator=rng)
    classes = case.words if case.per_word else 10
    targets = torch.randint(classes, (*form, *case.shape) if case.per_word else form, generator=rng)
    weights = torch.full(form, 1 / case.batch)
    return Batch(inputs, targets, weights, torch.zeros(case.clients, dtype=torch.int64))


def noise(sums: Tensor, batch: Batch) -> Tensor:
    return sums + torch.randn(sums.shape)


def plain_step(modules: list[nn.Module], batch: Batch) -> Callable[[], None]:
    def work() -> None:
        for module, x, y in zip(modules, batch.inputs, batch.targets, strict=True):
            module.zero_grad()
            out = module(x)
            F.cross_entropy(out.flatten(0, -2), y.flatten()).backward()

    return work


def opacus_step(modules: list[nn.Module], batch: Batch) -> Callable[[], None]:
    """Per-sample gradients, clipped, summed and with noise, by Opacus' own module and optimiser."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.validators import ModuleValidator

    pairs = []
    for module in modules:
        if not ModuleValidator.is_valid(module):  # torch's LSTM: it has its own
            module = ModuleValidator.fix(module)
        wrapped = GradSampleModule(module, batch_first=True, loss_reduction="mean", strict=False)
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        optimiser = DPOptimizer(
            torch.optim.SGD(trained, lr=0.0),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=batch.weights.shape[1],
        )
        pairs.append((wrapped, optimiser))

    def work() -> None:
        for (module, optimiser), x, y in zip(pairs, batch.inputs, batch.targets, strict=True):
            optimiser.zero_grad()
            out = module(x)
            F.cross_entropy(out.flatten(0, -2), y.flatten()).backward()
            optimiser.pre_step()

    return work


def figures() -> Iterator[dict]:
    for case in CASES:
        task = Task(case.module)
        batch = batch_of(case)
        x = task.draw(torch.arange(case.clients).numpy().astype("uint64") << 20)
        clipped = task.under(sample_clipping=SampleClipping(1.0, noise))
        modules = [task.module_of(row).train() for row in x]
        copies = [task.module_of(row).train() for row in x]
        works = [
            lambda task=task, x=x, batch=batch: task.grad(x, batch),
            lambda task=clipped, x=x, batch=batch: task.grad(x, batch),
            plain_step(modules, batch),
        ]
        try:
            of_opacus = opacus_step(copies, batch)
            of_opacus()
            works.append(of_opacus)
            why = ""
        except Exception as error:  # not installed, or a module that it does not take
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        times = fastest(*works)
        sums = clipped._sample_sums
        way = getattr(sums, "way", "stacked")
        name = f"{case.clients} {case.label}, batch {case.batch}"
        yield {
            "name": f"gradient with clipped samples ({task.kernel}, {way}) over plain, {name}",
            "value": times[1] / times[0],
            "unit": "x",
            "goal": GOAL,
            "better": "lower",
        }
        if why:
            print(f"Opacus, {name}: {why}")
            continue
        for what, value in (
            ("Opacus over plain autograd", times[3] / times[2]),
            ("Opacus over ours", times[3] / times[1]),
        ):
            yield {
                "name": f"{what}, {name}",
                "value": value,
                "unit": "x",
                "goal": None,
                "better": "lower",
            }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for figure in figures():
        print(f"{figure['name']}: {figure['value']:.2f} {figure['unit']}", flush=True)
