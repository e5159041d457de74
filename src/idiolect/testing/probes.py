"""Rules and tasks that watch how a method uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ..core.types import State, Tree
from ..method import Method
from ..task.batches import Batch
from ..task.sample_clipping import SampleClipping, refuse
from ..task.task import Task
from ..task.term import HEAD, Term


@dataclass
class PlainMean:
    """A weighted mean in place of a run's rule: what `Method.aggregate` is given as `rule`."""

    method: Method
    samples: Tensor  # float64[S], over the mean client's
    clients: int

    @property
    def heard(self) -> int:
        return len(self.samples)

    @property
    def weight(self) -> float:
        return float(self.heard)

    @property
    def wire_ids(self) -> Tensor:
        return torch.arange(self.heard)

    def among(self, selection: Tensor) -> PlainMean:
        return replace(self, samples=self.samples[selection])

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        weights = self.method.weigh(self.samples) if weights is None else weights
        share = weights / weights.sum()
        return {name: share.to(rows.dtype) @ rows for name, rows in up.items()}


@dataclass
class FixedRule(PlainMean):
    """A rule that gives the same vectors whatever the messages, and keeps what it was given."""

    rows: list[State] = field(default_factory=list)  # of each call

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        self.rows.append({name: t.clone() for name, t in up.items()})
        return {name: torch.linspace(-0.1, 0.1, t.shape[-1]).to(t) for name, t in up.items()}


class WatchedTask(Task):
    """A task whose derivatives are those of |x|²/2, whatever the data, and are counted twice.

    `evaluations` is its own count, to compare with the tally of the batches. What a method makes
    of the training data in `watch()` cannot come from these derivatives; `own_gradients` says by
    what else it may have differentiated: the model, its kernel or autograd.
    """

    def __init__(self, task: Task):
        self.__dict__.update(task.__dict__)
        self.evaluations: Tensor | int = 0  # int64[K]
        self.own_gradients: set[str] = set()
        self._inside = 0  # calls of the task's own functions under way
        self._kernel: Any = _WatchedKernel(task._kernel, self)

    def grad(self, x: Tensor, batch: Batch, extra: Term | None = None) -> Tensor:
        self._count(batch, 1)
        return x.detach().clone()

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        self._count(batch, 2)
        return v.detach().clone()

    def loss(self, x: Tensor, batch: Batch) -> Tensor:
        return x.detach().square().sum(-1) / 2

    def outputs(self, x: Tensor, inputs: Tree, as_trained: bool = False) -> Tree:
        with self._own_work():
            return super().outputs(x, inputs, as_trained)

    def features(self, x: Tensor, inputs: Tree, layer: str = HEAD) -> Tensor:
        with self._own_work():
            return super().features(x, inputs, layer)

    def outputs_of_one(self, w: Tensor, inputs: Tree) -> Tree:
        with self._own_work():
            return super().outputs_of_one(w, inputs)

    def _count(self, batch: Batch, gradients: int) -> None:
        rows = torch.ones_like(batch.tally) if batch.active is None else batch.active.cpu().long()
        batch.tally.add_(gradients * rows)
        self.evaluations = self.evaluations + gradients * rows

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def notice(self, what: str) -> None:
        """A method differentiates by itself."""
        if not self._inside:
            self.own_gradients.add(what)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Notice calls of the model and of autograd outside of the task's functions."""
        shapes = _shapes(self.module)
        layers = set(self.module.modules())

        def called(module: nn.Module, _: Any) -> None:
            if torch.is_grad_enabled() and (module in layers or _shapes(module) == shapes):
                self.notice("the model")

        engine: Callable[..., Any] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def run(*arguments: Any, **options: Any) -> Any:
            self.notice("autograd")
            return engine(*arguments, **options)

        hook = register_module_forward_pre_hook(called)
        try:
            with mock.patch.object(torch.autograd, "_engine_run_backward", run):
                yield
        finally:
            hook.remove()


class BlindTask(Task):
    """A task whose gradients are x times a number, whatever the data, and that refuses all else."""

    def __init__(self, task: Task, scale: float):
        self.__dict__.update(task.__dict__)
        # what reads data is refused as where samples are clipped
        self.numerics = replace(task.numerics, sample_clipping=SampleClipping(1.0))
        self._scale = scale

    def grad(self, x: Tensor, batch: Batch, extra: Term | None = None) -> Tensor:
        if extra is not None:
            refuse(self, "a term that the method adds to the loss")
        return self._scale * x.detach()

    def outputs(self, x: Tensor, inputs: Tree, as_trained: bool = False) -> Tree:
        refuse(self, "outputs of a model")

    def outputs_of_one(self, w: Tensor, inputs: Tree) -> Tree:
        refuse(self, "outputs of a model")


class _WatchedKernel:
    """A task's kernel: every use by a method itself is noticed."""

    def __init__(self, kernel: Any, task: WatchedTask):
        self._kernel = kernel
        self._task = task

    def __getattr__(self, name: str) -> Any:
        if name == "grad":
            self._task.notice("the kernel")
        return getattr(self._kernel, name)


def _shapes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, p.shape) for name, p in module.named_parameters()]
