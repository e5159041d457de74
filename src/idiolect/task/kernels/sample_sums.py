"""Clipped sums of the gradients of single samples, for any module.

Three ways with one meaning, the first of them that fits the module:

- recorded  one forward and one backward pass of all samples, without gradients of weights, which
            come from what the weights were used for (`recorded`)
- mapped    torch.func.vmap of the gradient over samples, as many as memory holds at once
- single    plain autograd, one sample after the other

The first is tried on a few samples in evaluation mode against the last: a module that takes samples
along another axis than the first is none for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from ...core.draws import keyed_draws
from ...core.types import Tree, length, map_tree
from ..batches import Batch
from ..forward import forward
from ..frozen import shared_copy
from ..layout import Layout
from ..losses import Loss, total
from . import recorded_lstm  # noqa: F401 (its rule)
from .clipped import NUMBERS_AT_ONCE, factors
from .mapped import one_loss
from .recorded import Record, Unrecorded
from .rows import over_threads, with_fast_pooling

if TYPE_CHECKING:
    from ..trial import Behaviour

_TRIED = 3  # samples of the trial


class SampleSums:
    """Clients one after the other, shared out among threads; of small models all at once."""

    def __init__(self, module: nn.Module, layout: Layout, behaviour: Behaviour, kernel: str):
        self.module = module
        self.layout = layout
        self.random = behaviour.draws or behaviour.draws_in_use
        self.on_cpu = layout.device.type == "cpu"
        self.original = with_fast_pooling(module) if self.on_cpu else shared_copy(module)
        self.copies: list[nn.Module] = []  # one per thread
        self.way = ""  # until a batch with samples has been seen
        # all clients in one pass, where the plain gradient is such: more of it than of Python
        self.together = kernel in ("vmap", "compiled") and not self.random

    def clipped_sums(self, x: Tensor, batch: Batch, loss: Loss, bound: float) -> Tensor:
        """Σ_s ∇ℓ_s min(1, bound / ||∇ℓ_s||) of each row: [K, d]; 0 for rows that are not active."""
        exists = batch.weights > 0
        weights = loss.weigh_alone(exists.to(x.dtype), batch.targets)
        at_work = exists.any(1)
        if batch.active is not None:
            at_work &= batch.active.to(at_work.device)
        g = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        rows = at_work.nonzero().flatten().tolist()
        if not rows:
            return g
        sizes = batch.real_samples()
        self.module.train()
        self.original.train()

        def of(k: int) -> tuple[Tree, Tree, Tensor]:
            def cut(t: Tensor) -> Tensor:
                return t[k][: sizes[k]]

            return map_tree(cut, batch.inputs), map_tree(cut, batch.targets), cut(weights)

        if not self.way:
            k = max(rows, key=sizes.__getitem__)
            self.way = self._choose(x[k], of(k), loss)
        if self.together and self.way == "recorded":
            samples = batch.inputs, batch.targets, weights
            if self._all_at_once(g, rows, x, samples, loss, bound):
                return g

        def run(thread: int, k: int) -> None:
            with keyed_draws(batch.noise(k) if self.random else 0, enabled=self.random):
                g[k] = self._one(thread, x[k].detach(), of(k), loss, bound)

        self._each(rows, run)
        return g

    def _one(
        self, thread: int, w: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss, bound: float
    ) -> Tensor:
        """The sum for one model, in the way that fits; a way that fails gives way to the next."""
        if self.way == "recorded":
            try:
                one = map_tree(lambda t: t.unsqueeze(0), samples)
                return self._recorded(self.copies[thread], w.unsqueeze(0), one, loss, bound)[0]
            except Unrecorded:
                self.way = "mapped"
        if self.way == "mapped":
            try:
                return self._mapped(w, samples, loss, bound)
            except (RuntimeError, NotImplementedError, ValueError, TypeError):
                self.way = "single"
        return self._single(w, samples, loss, bound)

    # -- the ways ----------------------------------------------------------------------------------
    def _recorded(
        self,
        module: nn.Module,
        x: Tensor,
        samples: tuple[Tree, Tree, Tensor],
        loss: Loss,
        bound: float,
    ) -> Tensor:
        """x[K, d] and samples [K, B, ...] -> [K, d], in one pass."""
        inputs, targets, weights = map_tree(lambda t: t.flatten(0, 1), samples)
        record = Record(len(x), len(weights), x.device)
        with torch.enable_grad():
            values = self.layout.unflatten(x)
            own = {name: record.weight(name, rows) for name, rows in values.items()}
            outputs = forward(module, inputs, own)
            record.backward(total(loss.each(outputs, targets), weights))
        with torch.no_grad():
            squares = record.squares()
            scale = factors(squares, bound)
            broken = ~squares.isfinite()
            if bool(broken.any()):
                record.without(broken)
            g = torch.zeros_like(x)
            for name, part in self.layout.unflatten(g).items():
                sums = record.sums(name, scale)
                if sums is not None:
                    part.copy_(sums)
        return g

    def _mapped(
        self, w: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss, bound: float
    ) -> Tensor:
        one = grad(one_loss(self.module, self.layout, loss))
        each = vmap(one, in_dims=(None, 0, 0, 0), randomness="different")
        at_once = max(1, NUMBERS_AT_ONCE // len(w))
        alone = map_tree(lambda t: t.unsqueeze(1), samples)  # each a mini-batch of one
        g = torch.zeros_like(w)
        for start in range(0, len(samples[2]), at_once):
            some = map_tree(lambda t, a=start: t[a : a + at_once], alone)
            g += _clipped(each(w, *some), bound)
        return g

    def _single(
        self, w: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss, bound: float
    ) -> Tensor:
        g = torch.zeros_like(w)
        for s in range(len(samples[2])):
            one = map_tree(lambda t, s=s: t[s : s + 1], samples)
            g += _clipped(self._gradient(w, one, loss).unsqueeze(0), bound)
        return g

    def _gradient(self, w: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss) -> Tensor:
        """Plain autograd."""
        inputs, targets, weights = samples
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            outputs = forward(self.module, inputs, self.layout.unflatten(leaf))
            value = total(loss.each(outputs, targets), weights)
            return torch.autograd.grad(value, leaf, materialize_grads=True)[0]

    def _all_at_once(
        self,
        g: Tensor,
        rows: list[int],
        x: Tensor,
        samples: tuple[Tree, Tree, Tensor],
        loss: Loss,
        bound: float,
    ) -> bool:
        """All clients in one recorded pass, into the rows of g; False where that fails."""
        at_work = torch.tensor(rows, device=x.device)
        parts = map_tree(lambda t: t[at_work], samples) if len(rows) < len(x) else samples
        try:
            g[at_work] = self._recorded(self.original, x[at_work], parts, loss, bound)
        except Unrecorded:
            self.together = False
        return self.together

    # -- the choice --------------------------------------------------------------------------------
    def _choose(self, w: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss) -> str:
        """ "recorded" where it gives what plain autograd does, for two numbers of samples."""
        self.module.eval()
        self.original.eval()
        generator = torch.Generator().manual_seed(0)
        shift = 0.05 * torch.randn((2, *w.shape), generator=generator, dtype=torch.float64)
        x = w.detach() + shift.to(w)  # a layer that starts at zero would hide what is behind it
        try:
            for number in (_TRIED, _TRIED - 1):
                inputs = map_tree(lambda t, n=number: _unlike(t, n), samples[0])
                targets, weights = map_tree(lambda t, n=number: _some(t, n), samples[1:])
                few = inputs, targets, weights
                singles = [map_tree(lambda t, s=s: t[s : s + 1], few) for s in range(number)]
                rows = [torch.stack([self._gradient(w, s, loss) for s in singles]) for w in x]
                each = torch.stack(rows)
                if not self._agrees(x[:1], few, loss, each[:1]):
                    return "mapped"
                self.together = self.together and self._agrees(x, few, loss, each)
        except Exception:  # whatever a user's module does with such weights
            return "mapped"
        finally:
            self.module.train()
            self.original.train()
        return "recorded"

    def _agrees(
        self, x: Tensor, samples: tuple[Tree, Tree, Tensor], loss: Loss, each: Tensor
    ) -> bool:
        """Whether a recorded pass of x[K, d] gives these gradients of single samples, clipped."""
        bound = float(each.norm(dim=-1).median()) or 1.0
        own = map_tree(lambda t: torch.stack([t] * len(x)), samples)
        try:
            g = self._recorded(self.original, x, own, loss, bound)
        except Unrecorded:
            return False
        rounding = 1e-8 if x.dtype == torch.float64 else 1e-3
        return torch.allclose(g, _clipped(each, bound), rtol=rounding, atol=rounding * bound)

    def _each(self, rows: list[int], work: Callable[[int, int], Any]) -> None:
        """`work(thread, k)` for every k of `rows`, on as many threads as torch may use."""
        threads = 1
        if self.on_cpu and not self.random and self.way == "recorded":
            threads = max(1, min(torch.get_num_threads(), len(rows)))
        while len(self.copies) < threads:
            self.copies.append(shared_copy(self.original))

        def share(i: int) -> None:
            for k in rows[i::threads]:
                work(i, k)

        over_threads(share, threads)


def _clipped(each: Tensor, bound: float) -> Tensor:
    """Gradients of single samples, [..., n, d], clipped and summed: [..., d]."""
    scale = factors(torch.linalg.vecdot(each, each), bound)
    if not bool(each.isfinite().all()):
        each = each.where(each.isfinite().all(-1, keepdim=True), 0)
    return (scale.unsqueeze(-2) @ each).squeeze(-2)


def _some(t: Tensor, number: int) -> Tensor:
    """So many of one client's samples, some of them repeated where it has fewer."""
    return t[torch.arange(number, device=t.device) % length(t)]


def _unlike(t: Tensor, number: int) -> Tensor:
    """The same, and numbers that differ from sample to sample."""
    some = _some(t, number)
    if not t.is_floating_point():
        return some
    some = some.nan_to_num(0.0, 0.0, 0.0).clamp(-1e3, 1e3)  # whatever one of them holds
    steps = torch.arange(number, device=t.device, dtype=t.dtype)
    return some + 0.1 * steps.view(-1, *[1] * (t.dim() - 1)) * (1 + some.abs())
