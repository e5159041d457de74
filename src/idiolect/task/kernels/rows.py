"""Kernel "rows": one model after the other with plain autograd, rows shared out among threads."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..batches import Batch
from ..layout import Layout
from ..losses import Loss, spread
from .pooling import with_fast_pooling
from .threads import over_threads

# Samples that one model takes at once when it has many: few enough that the feature maps of a
# convolutional model stay in the processor's cache.
_SAMPLES_AT_ONCE = 512


class RowModule:
    """A copy of a module whose parameters are slices of one row of x[K, d] at a time."""

    def __init__(self, module: nn.Module, layout: Layout):
        self.module = copy.deepcopy(module)
        self.layout = layout
        self.parameters = [self.module.get_parameter(n) for n in layout.names]

    def with_weights(self, row: Tensor) -> nn.Module:  # row[d]
        """The module with the weights of a row, which are not copied."""
        for p, value in zip(self.parameters, self.layout.unflatten(row).values(), strict=True):
            p.data = value
        return self.module


class Rows:
    """One model after the other; a row without data or no longer active costs nothing.

    Each thread has a `RowModule` of its own, and a row's numbers do not depend on the number of
    threads. Modules with dropout always run here, on one thread: the mask of each row comes from
    that client's own stream.
    """

    name = "rows"

    def __init__(self, module: nn.Module, layout: Layout, random: bool):
        self.layout = layout
        self.random = random  # whether the module has dropout
        self.on_cpu = layout.device.type == "cpu"
        self.original = with_fast_pooling(module) if self.on_cpu else copy.deepcopy(module)
        self.row_modules: list[RowModule] = []  # one per thread

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack(self._outputs(x, list(inputs)))

    def of_one(self, w: Tensor, inputs: Tensor) -> Tensor:  # w[d], inputs[n, ...] -> [n, ...]
        """One model on many samples, in pieces that stay in the cache, shared out among threads."""
        if not len(inputs):
            return self.original.eval()(inputs)
        pieces = list(inputs.split(_SAMPLES_AT_ONCE))
        return torch.cat(self._outputs(w.expand(len(pieces), -1), pieces))

    def grad(self, x: Tensor, batch: Batch, loss: Loss) -> Tensor:
        weights = spread(batch.weights, batch.targets)
        at_work = batch.weights.sum(1) > 0
        if batch.active is not None:
            at_work &= batch.active
        g = torch.zeros(x.shape, dtype=x.dtype, device=x.device)

        def run(row_module: RowModule, k: int) -> None:
            with torch.enable_grad():
                with torch.random.fork_rng(devices=[], enabled=self.random):
                    if self.random:
                        torch.manual_seed(batch.noise(k))
                    out = row_module.with_weights(x[k].detach()).train()(batch.inputs[k])
                value = (loss.each(out, batch.targets[k]) * weights[k]).sum()
                parts = torch.autograd.grad(value, row_module.parameters, materialize_grads=True)
                torch.cat([p.reshape(-1) for p in parts], out=g[k])

        self._each(at_work.nonzero().flatten().tolist(), run)
        return g

    def _outputs(self, x: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        out: list[Tensor] = [x] * len(inputs)

        def run(row_module: RowModule, k: int) -> None:
            with torch.no_grad():
                out[k] = row_module.with_weights(x[k]).eval()(inputs[k])

        self._each(list(range(len(inputs))), run)
        return out

    def _each(self, rows: list[int], work: Callable[[RowModule, int], None]) -> None:
        """`work(row_module, k)` for every k of `rows`, on as many threads as torch may use."""
        threads = 1
        if self.on_cpu and not self.random:
            threads = max(1, min(torch.get_num_threads(), len(rows)))
        while len(self.row_modules) < threads:
            self.row_modules.append(RowModule(self.original, self.layout))

        def share(i: int) -> None:
            for k in rows[i::threads]:
                work(self.row_modules[i], k)

        over_threads(share, threads)
