"""Cohorts for the tests of kernels, and the gradients of plain autograd that kernels must give."""

import torch
from torch import nn
from torch.func import functional_call

from idiolect import Task
from idiolect.task.batches import Batch

K = 3
B = 5


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 3)

    def forward(self, x):
        return self.b(x + torch.relu(self.a(x)))


class Text(nn.Module):
    """Tokens [B, T] to class scores."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def plain(task: Task, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses, gradients) with nothing but autograd, one model at a time.

    The loss is sum_i weight_i * mean over the targets of sample i, over the sum of these weights
    where the loss itself weighs classes.
    """
    losses, gradients = [], []
    for k in range(len(x)):
        flat = x[k].clone().requires_grad_()
        each = task.criterion.each(
            functional_call(task.module, task.layout.unflatten(flat), (batch.inputs[k],)),
            batch.targets[k],
        )
        weights = batch.weights[k]
        counts = task.criterion.counts(batch.targets[k])
        if counts is not None:
            weights = weights * counts / (weights * counts).sum()
        loss = (each.reshape(len(each), -1).mean(1) * weights).sum()
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, flat)[0])
    return torch.stack(losses), torch.stack(gradients)


def a_batch(
    inputs: tuple[int, ...], targets: tuple[int, ...] = (), classes: int = 3, tokens: int = 0
) -> Batch:
    """A batch with uneven weights, in which some samples are masked."""
    g = torch.Generator().manual_seed(1)
    x = (
        torch.randint(tokens, (K, B, *inputs), generator=g)
        if tokens
        else torch.randn(K, B, *inputs, generator=g, dtype=torch.float64)
    )
    if classes:
        y = torch.randint(classes, (K, B, *targets), generator=g)
    else:
        y = torch.randn(K, B, *targets, generator=g, dtype=torch.float64)
    weights = torch.rand(K, B, generator=g, dtype=torch.float64)
    weights[0, 3:] = 0
    weights[1, 1:] = 0
    return Batch(x, y, weights / weights.sum(1, keepdim=True), torch.zeros(K, dtype=torch.int64))


def rows(task: Task) -> torch.Tensor:
    """Different models, so that rows that are mixed up are noticed."""
    return task.x0 + 0.3 * torch.randn(
        K, task.d, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


def same(module: nn.Module, batch: Batch, kernels: tuple[str, ...], loss="cross_entropy") -> Task:
    """Check that the kernels agree with `plain`."""
    task = Task(module, loss).under(dtype=torch.float64)
    x = rows(task)
    losses, gradients = plain(task, x, batch)
    for kernel in kernels:
        t = task.under(kernel=kernel)
        torch.testing.assert_close(t.loss(x, batch), losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(t.grad(x, batch), gradients, rtol=0, atol=1e-10)
    return task
