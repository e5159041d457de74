"""A term that a method adds to the loss: of outputs, of features, of given rows.

Teachers, prototypes, contrasts with other models: whatever is differentiable in what a model
computes for its mini-batch. The term is written for a cohort, one row per client, and the kernels
differentiate it with the loss, in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..core.knobs import SettingError, nearest
from ..core.types import State, Tree, leaves, map_tree
from .layout import Layout
from .losses import Loss, total

HEAD = "head"  # the layer that is meant unless another is named: see `Task.features`


@dataclass(frozen=True)
class Pass:
    """What K models computed for their mini-batches."""

    outputs: Tree  # [K, B, ...]; of standardised targets, in their units
    targets: Tree  # [K, B, ...]
    weights: Tensor  # [K, B]; 0 for samples that only fill a row up
    features: Tensor | None = None  # [K, B, ...] of the term's layer

    def of_client(self, row: int, samples: int) -> Pass:
        """Its first samples, of one client: K is 1."""

        def cut(t: Tensor) -> Tensor:
            return t[row : row + 1, :samples]

        features = None if self.features is None else cut(self.features)
        outputs, targets = map_tree(cut, self.outputs), map_tree(cut, self.targets)
        return Pass(outputs, targets, cut(self.weights), features)


@dataclass(frozen=True)
class Term:
    """What a method adds to the mini-batch loss of every row.

    `function(pass, rows)` returns a value for each sample, [K, B], which is averaged as the loss
    is, or one for each client, [K]. `rows` are the entries of `rows` and `samples` below.

    >>> def smooth(run: Pass, rows: State) -> Tensor:
    ...     return 0.1 * (run.features - rows["centre"].unsqueeze(1)).square().mean(-1)
    >>> term = Term(smooth, layer="head", rows={"centre": torch.zeros(4, 8)})
    """

    function: Callable[[Pass, State], Tensor]
    layer: str = ""  # whose features it sees: "head", or the name of a module; "" = none
    rows: State = field(default_factory=dict)  # of each client, [K, ...]: prototypes, models
    samples: State = field(default_factory=dict)  # of each sample, [K, B, ...]: teachers' outputs
    loss: float = 1.0  # the weight of the task's own loss beside it
    # it compares the samples of a client: it is given those of one client at a time, without any
    # that only fill a batch up
    by_client: bool = False

    def value(self, run: Pass) -> Tensor:
        """The sum over the rows of a cohort."""
        if not self.by_client:
            return self._total(run, self.rows | self.samples)
        sizes = (run.weights > 0).sum(1).tolist()
        parts = [self.of_client(k, n).value(run.of_client(k, n)) for k, n in enumerate(sizes) if n]
        return torch.stack(parts).sum() if parts else run.weights.new_zeros(())

    def of_client(self, row: int, samples: int) -> Term:
        """The term of one client's first samples."""
        rows = {n: t[row : row + 1] for n, t in self.rows.items()}
        cut = {n: t[row : row + 1, :samples] for n, t in self.samples.items()}
        return replace(self, rows=rows, samples=cut, by_client=False)

    def _total(self, run: Pass, rows: State) -> Tensor:
        each = self.function(run, rows)
        if each.shape == run.weights.shape:
            return (each * run.weights).sum()
        if each.shape == run.weights.shape[:1]:
            return each.sum()
        raise SettingError(
            f"extra: {getattr(self.function, '__name__', 'the function')} must return a value per "
            f"sample, {tuple(run.weights.shape)}, or per client, got {tuple(each.shape)}"
        )


def derivatives(
    run: Pass, loss: Loss, weights: Tensor, term: Term
) -> tuple[list[Tensor], Tensor | None]:
    """What loss and term are differentiated to: by each tensor of the outputs, by the features.

    `weights`: those of the loss, one per target where targets count differently.
    """
    with torch.enable_grad():
        outputs = map_tree(lambda t: t.detach().requires_grad_(), run.outputs)
        features = None if run.features is None else run.features.detach().requires_grad_()
        value = term.value(replace(run, outputs=outputs, features=features))
        if term.loss:
            value = value + term.loss * total(loss.of_rows(outputs, run.targets), weights)
        tensors = [*leaves(outputs), *([] if features is None else [features])]
        slopes = torch.autograd.grad(value, tensors, allow_unused=True, materialize_grads=True)
    if features is None:
        return list(slopes), None
    return list(slopes[:-1]), slopes[-1]


# -- features of a named layer ---------------------------------------------------------------------
@dataclass(frozen=True)
class FeatureLayer:
    """Where features are read: what a module is given, or what it returns."""

    path: str
    given: bool


def find_layer(module: nn.Module, layout: Layout, name: str) -> FeatureLayer:
    """The layer of a name: "head" is what the model's last layers are given."""
    if name == HEAD:
        if not layout.parts.head:
            raise SettingError(
                f"model must have layers for this method, got {type(module).__name__}"
            )
        return FeatureLayer(layout.parts.head[0].rpartition(".")[0], given=True)
    modules = dict(module.named_modules())
    if name not in modules or not name:
        raise nearest(name, [HEAD, *(n for n in modules if n)], "layer")
    return FeatureLayer(name, given=False)


@contextmanager
def reading(module: nn.Module, layer: FeatureLayer) -> Iterator[list[Tensor]]:
    """The features of the passes under way, in the order of the calls of that layer."""
    features: list[Tensor] = []
    target = module.get_submodule(layer.path)

    def before(_: nn.Module, args: tuple) -> None:
        features.append(args[0])

    def after(_: nn.Module, args: tuple, output: Tensor) -> None:
        features.append(output)

    if layer.given:
        hook = target.register_forward_pre_hook(before)
    else:
        hook = target.register_forward_hook(after)
    try:
        yield features
    finally:
        hook.remove()


def last(seen: list[Tensor], layer: str) -> Tensor:
    """The features of the last call; SettingError where the layer was not called."""
    if not seen or not isinstance(seen[-1], Tensor):
        raise SettingError(f"layer must be one that the model calls with one tensor, got {layer!r}")
    return seen[-1]
