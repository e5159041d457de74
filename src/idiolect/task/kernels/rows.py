"""Kernel "rows": one model after the other with plain autograd, rows shared out among threads.

On a CPU its 2x2 max pooling is a faster one than torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...core.draws import keyed_draws
from ...core.types import Tree, length, map_tree
from ..batches import Batch
from ..buffers import Statistics
from ..forward import forward
from ..frozen import shared_copy
from ..layout import Layout
from ..losses import Loss, spread, total
from ..term import Pass, Term, find_layer, last, reading

if TYPE_CHECKING:
    from ..trial import Behaviour

# Samples that one model takes at once when it has many: few enough that the feature maps of a
# convolutional model stay in the processor's cache.
_SAMPLES_AT_ONCE = 512


class RowModule:
    """A copy of a module whose trained parameters are slices of one row of x[K, d] at a time."""

    def __init__(self, module: nn.Module, layout: Layout, statistics: Statistics | None):
        self.module = shared_copy(module)
        self.layout = layout
        self.statistics = statistics
        self.parameters = [self.module.get_parameter(n) for n in layout.names]
        names = statistics.layout.names if statistics else ()
        self.buffers = [self.module.get_buffer(n) for n in names]

    def with_weights(self, row: Tensor, running: Tensor | None = None) -> nn.Module:
        """The module with the weights of a row[d], which are not copied.

        Statistics are `running`[m], which training then changes, else the row's end, row[d + m].
        """
        d = self.layout.starts[-1]
        for p, value in zip(self.parameters, self.layout.unflatten(row[:d]).values(), strict=True):
            p.data = value
        if self.statistics is not None:
            if running is None:
                running = row[d:] if len(row) > d else self.statistics.start.clone()
            self._set(self.statistics, running)
        return self.module

    def _set(self, statistics: Statistics, running: Tensor) -> None:
        parts = statistics.layout.unflatten(running)
        for buffer, (name, value) in zip(self.buffers, parts.items(), strict=True):
            if name in statistics.whole:
                buffer.copy_(value)
            else:
                buffer.data = value

    def read_counts(self, running: Tensor) -> None:
        """Whole numbers that training has changed, back into the row."""
        assert self.statistics is not None
        parts = self.statistics.layout.unflatten(running)
        for buffer, (name, value) in zip(self.buffers, parts.items(), strict=True):
            if name in self.statistics.whole:
                value.copy_(buffer)

    def __call__(self, inputs: Tree) -> Tree:
        return forward(self.module, inputs)


class Rows:
    """One model after the other; a row without data or no longer active costs nothing.

    Each thread has its own `RowModule`, and a row's numbers do not depend on the number of
    threads. What needs each client by itself always runs here (`kernels.needs_rows`). A model that
    draws random numbers runs on one thread: each row's come from that client's own stream.
    """

    name = "rows"

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        behaviour: Behaviour,
        statistics: Statistics | None = None,
    ):
        self.layout = layout
        self.behaviour = behaviour
        self.random = behaviour.draws or behaviour.draws_in_use
        self.statistics = statistics
        self.on_cpu = layout.device.type == "cpu"
        self.original = with_fast_pooling(module) if self.on_cpu else shared_copy(module)
        self.row_modules: list[RowModule] = []  # one per thread

    def outputs(self, x: Tensor, inputs: Tree) -> Tree:
        rows = [map_tree(lambda t, k=k: t[k], inputs) for k in range(length(inputs))]
        return stacked(self._outputs(x, rows))

    def of_one(self, w: Tensor, inputs: Tree) -> Tree:  # w[d], inputs[n, ...] -> [n, ...]
        """One model on many samples, in pieces that stay in the cache, shared out among threads."""
        n = length(inputs)
        if not n:
            return RowModule(self.original.eval(), self.layout, self.statistics)(inputs)
        pieces = [
            map_tree(lambda t, a=a: t[a : a + _SAMPLES_AT_ONCE], inputs)
            for a in range(0, n, _SAMPLES_AT_ONCE)
        ]
        return joined(self._outputs(w.expand(len(pieces), -1), pieces))

    def features(self, x: Tensor, inputs: Tree, layer: str) -> Tensor:
        where = find_layer(self.original, self.layout, layer)
        out: list[Tensor] = [x] * length(inputs)

        def run(row_module: RowModule, k: int) -> None:
            draws = keyed_draws(0, enabled=self.behaviour.draws_in_use)
            with torch.no_grad(), draws, reading(row_module.module, where) as features:
                row_module.with_weights(x[k]).eval()
                row_module(map_tree(lambda t: t[k], inputs))
                out[k] = last(features, layer)

        self._each(list(range(len(out))), run)
        return torch.stack(out)

    def grad(self, x: Tensor, batch: Batch, loss: Loss, term: Term | None = None) -> Tensor:
        weights = loss.weigh(batch.weights, batch.targets)
        at_work = batch.weights.sum(1) > 0
        if batch.active is not None:
            at_work &= batch.active
        g = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        running = batch.running
        # samples that fill a batch up, to the length of others, are left out: they must be neither
        # in statistics nor beside those that are real, and the bits of a row are its own
        sizes = batch.real_samples()
        named = term is not None and term.layer
        layer = find_layer(self.original, self.layout, term.layer) if term and named else None

        def run(row_module: RowModule, k: int) -> None:
            some = slice(sizes[k])
            inputs = map_tree(lambda t: t[k][some], batch.inputs)
            targets = map_tree(lambda t: t[k][some], batch.targets)
            shares = weights[k][some]
            full = targets
            if batch.sequences is not None and isinstance(targets, Tensor):
                real = batch.weights[k].cpu() > 0
                longest = int(batch.sequences.lengths[k][real].max())
                inputs = batch.sequences.cut(inputs, longest)
                if targets.dim() > 1:
                    targets = targets[:, :longest]
                    shares = shares[:, :longest] if shares.dim() > 1 else shares
            mine = None if running is None else running[k]
            layer_outputs: list[Tensor] = []
            with torch.enable_grad():
                with keyed_draws(batch.noise(k) if self.random else 0, enabled=self.random):
                    model = row_module.with_weights(x[k].detach(), mine).train()
                    with (
                        nullcontext(layer_outputs)
                        if layer is None
                        else reading(model, layer) as layer_outputs
                    ):
                        outputs = row_module(inputs)
                    each = loss.each(outputs, targets)
                if shares.dim() == 1 and each.dim() > 1 and targets is not full:
                    shares = spread(shares, full)[:, : each.shape[1]]
                value = total(each, shares)
                if term is not None:
                    features = last(layer_outputs, term.layer).unsqueeze(0) if term.layer else None
                    seen_outputs, seen_targets = (
                        map_tree(lambda t: t.unsqueeze(0), tree) for tree in (outputs, targets)
                    )
                    sample_weights = batch.weights[k : k + 1, some]
                    run_of_row = Pass(seen_outputs, seen_targets, sample_weights, features)
                    value = term.loss * value + term.of_client(k, sizes[k]).value(run_of_row)
                parts = torch.autograd.grad(value, row_module.parameters, materialize_grads=True)
                torch.cat([p.to_dense().reshape(-1) for p in parts], out=g[k])
            if mine is not None:
                row_module.read_counts(mine)

        self._each(at_work.nonzero().flatten().tolist(), run)
        return g

    def _outputs(self, x: Tensor, inputs: list[Tree]) -> list[Tree]:
        out: list[Tree] = [x] * len(inputs)

        def run(row_module: RowModule, k: int) -> None:
            with torch.no_grad(), keyed_draws(0, enabled=self.behaviour.draws_in_use):
                row_module.with_weights(x[k]).eval()
                out[k] = row_module(inputs[k])

        self._each(list(range(len(inputs))), run)
        return out

    def _each(self, rows: list[int], work: Callable[[RowModule, int], None]) -> None:
        """`work(row_module, k)` for every k of `rows`, on as many threads as torch may use."""
        threads = 1
        if self.on_cpu and not self.random:
            threads = max(1, min(torch.get_num_threads(), len(rows)))
        while len(self.row_modules) < threads:
            self.row_modules.append(RowModule(self.original, self.layout, self.statistics))

        def share(i: int) -> None:
            for k in rows[i::threads]:
                work(self.row_modules[i], k)

        over_threads(share, threads)


def stacked(outputs: list[Tree]) -> Tree:
    """The outputs of K models as one tree, [K, ...]."""
    return map_tree(lambda *parts: torch.stack(parts), *outputs)


def joined(outputs: list[Tree]) -> Tree:
    """The outputs of one model for several pieces of its samples, [n, ...]."""
    return map_tree(lambda *parts: torch.cat(parts), *outputs)


# -- Python threads over independent pieces of work, each on one core: for convolutions this is
# -- faster than torch's own threads within one piece
@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        workers, thread_name_prefix="idiolect", initializer=torch.set_num_threads, initargs=(1,)
    )


def over_threads(work: Callable[[int], None], threads: int) -> None:
    """work(0), ..., work(threads - 1), one per thread.

    An exception in any of them is raised here, after all have ended.

    >>> done: list[int] = []
    >>> over_threads(done.append, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    if threads < 2:
        work(0)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # each thread is one core's work
    try:
        others: list[Future] = [_pool(threads - 1).submit(work, i) for i in range(1, threads)]
        try:
            work(0)
        finally:
            errors = [f.exception() for f in others]
    finally:
        torch.set_num_threads(before)
    for error in errors:
        if error is not None:
            raise error


# -- pooling ---------------------------------------------------------------------------------------
# 2x2 max pooling on a CPU in half the time of torch's, with the same values and gradients. In
# LeNet, torch's takes as long as the convolutions. Taking the larger of neighbouring columns and
# then of neighbouring rows is two vectorised passes; comparing strictly in that order picks the
# same element of a window as torch does, also among equal ones.
class _MaxPool(torch.autograd.Function):
    """Values and gradients of 2x2 max pooling for even heights and widths."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:  # z[..., H, W], both even
        columns = torch.maximum(z[..., 0::2], z[..., 1::2])  # [..., H, W / 2]
        ctx.save_for_backward(z, columns)
        return torch.maximum(columns[..., 0::2, :], columns[..., 1::2, :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Tensor:
        z, columns = ctx.saved_tensors
        lower_is_larger = columns[..., 1::2, :] > columns[..., 0::2, :]
        of_columns = torch.empty_like(columns)
        _route(delta, lower_is_larger, of_columns[..., 0::2, :], of_columns[..., 1::2, :])
        right_is_larger = z[..., 1::2] > z[..., 0::2]
        of_z = torch.empty_like(z)
        _route(of_columns, right_is_larger, of_z[..., 0::2], of_z[..., 1::2])
        return of_z


def _route(delta: Tensor, second_is_larger: Tensor, first: Tensor, second: Tensor) -> None:
    """Send delta to the second of each pair where that was larger, else to the first."""
    torch.mul(delta, second_is_larger, out=second)
    torch.sub(delta, second, out=first)


class FastPool(nn.Module):
    """The same function as nn.MaxPool2d(2)."""

    def forward(self, z: Tensor) -> Tensor:
        return F.max_pool2d(z, 2) if z.shape[-1] % 2 or z.shape[-2] % 2 else _MaxPool.apply(z)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is nn.MaxPool2d(2) without padding, dilation or other options."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    want = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}
    return all(getattr(layer, name) in (value, (value, value)) for name, value in want.items())


def with_fast_pooling(module: nn.Module) -> nn.Module:
    """A copy of the module with its 2x2 max pooling layers replaced.

    In a Sequential, pooling goes before a ReLU: the larger of max(0, a) and max(0, b) is
    max(0, the larger of a and b), gradients included, and leaves the ReLU a quarter of the work.

    >>> with_fast_pooling(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    Sequential(
      (0): FastPool()
      (1): ReLU()
    )
    """
    module = FastPool() if _is_plain(module) else shared_copy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain(child):
                setattr(parent, name, FastPool())
        if type(parent) is nn.Sequential:
            _pool_first(parent)
    return module


def _pool_first(sequence: nn.Sequential) -> None:
    """Swap every ReLU with the pooling that follows it."""
    layers = sequence._modules
    names = [name for name, _ in sequence.named_children()]
    for a, b in pairwise(names):
        if type(layers[a]) is nn.ReLU and type(layers[b]) is FastPool:
            layers[a], layers[b] = layers[b], layers[a]
