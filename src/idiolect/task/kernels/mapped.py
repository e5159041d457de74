"""Kernels "vmap" and "compiled": the gradient of one model, mapped over rows by torch.func."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from ...core.knobs import SettingError
from ...core.text import first_line
from ...core.types import Tree, leaves, length, map_tree
from ..batches import Batch
from ..forward import forward
from ..layout import Layout
from ..losses import Loss, total
from ..term import Pass, Term, derivatives, find_layer, last, reading

# An operator that torch cannot map it runs row by row: the result is right, and the warning, which
# asks the user to write to the authors of torch, is about speed alone.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


def one_loss(module: nn.Module, layout: Layout, loss: Loss) -> Callable[..., Tensor]:
    """The mini-batch loss of one model as a function of its flat vector, for torch.func."""

    def value(flat: Tensor, inputs: Tree, targets: Tree, weights: Tensor) -> Tensor:
        out = forward(module, inputs, layout.unflatten(flat))
        return total(loss.each(out, targets), weights)

    return value


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """torch's fast path for transformers in evaluation mode cannot be mapped."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Unmappable(SettingError):
    """A module that torch.func cannot map over rows: random numbers, decisions about data, ..."""


class Vmapped:
    """The gradient of one model, mapped over rows; for any module without random numbers."""

    name = "vmap"

    def __init__(self, module: nn.Module, layout: Layout):
        self.module = module
        self.layout = layout
        self.proved: set[str] = set()  # what has been mapped once: "outputs", "grad"
        self._run = vmap(self._forward)
        self._grads: dict[Loss, Callable[..., Tensor]] = {}

    def __reduce__(self) -> tuple[type[Vmapped], tuple[nn.Module, Layout]]:
        """In another process, mapped functions are created again."""
        return type(self), (self.module, self.layout)

    def maps(self, x: Tensor, inputs: Tree, targets: Tree, loss: Loss) -> bool:
        """Whether outputs and gradients of two models x[d] on samples [n, ...] can be mapped."""
        weights = torch.ones(2, length(targets), dtype=x.dtype, device=x.device)
        x, inputs, targets = map_tree(lambda t: torch.stack([t, t]), (x, inputs, targets))
        batch = Batch(inputs, targets, weights, torch.zeros(2, dtype=torch.int64))
        try:
            self.outputs(x, inputs)
            self.grad(x, batch, loss)
        except Unmappable:
            return False
        except Exception:  # of the model or the data: the check of the model names it
            pass
        return True

    def outputs(self, x: Tensor, inputs: Tree) -> Tree:
        self.module.eval()
        with self._mapping("outputs"), _without_fast_path():
            try:
                return self._run(x, inputs)
            except RuntimeError:
                if "outputs" in self.proved:
                    raise
            # GRU and RNN are mapped step by step, as for a gradient, or not at all
            self._run = vmap(self._forward_of_vjp)
            return self._run(x, inputs)

    def _forward(self, flat: Tensor, inputs: Tree) -> Tree:
        return forward(self.module, inputs, self.layout.unflatten(flat))

    def _forward_of_vjp(self, flat: Tensor, inputs: Tree) -> Tree:
        return vjp(lambda x: self._forward(x, inputs), flat)[0]

    def features(self, x: Tensor, inputs: Tree, layer: str) -> Tensor:
        self.module.eval()
        with self._mapping("features"), _without_fast_path():
            return self._with_features(x, inputs, layer)[1]

    def _with_features(self, x: Tensor, inputs: Tree, layer: str) -> tuple[Tree, Tensor]:
        """Outputs, and what a layer gives."""
        where = find_layer(self.module, self.layout, layer)

        def one(flat: Tensor, inputs: Tree) -> tuple[Tree, Tensor]:
            with reading(self.module, where) as values:
                outputs = self._forward(flat, inputs)
                return outputs, last(values, layer)

        return vmap(one)(x.contiguous(), inputs)

    def _grad_with(self, x: Tensor, batch: Batch, loss: Loss, term: Term) -> Tensor:
        """The gradient of loss and term: forward, their derivatives, and back through the model."""
        weights = loss.weigh(batch.weights, batch.targets)

        def computed(x: Tensor) -> tuple[list[Tensor], Tree]:
            """All that is differentiated through, and the outputs in their form."""
            if term.layer:
                outputs, features = self._with_features(x, batch.inputs, term.layer)
                return [*leaves(outputs), features], outputs
            outputs = vmap(self._forward)(x, batch.inputs)
            return leaves(outputs), outputs

        values: tuple[list[Tensor], Callable[..., tuple[Tensor]], Tree]
        values = vjp(computed, x.contiguous(), has_aux=True)  # type: ignore[assignment]
        parts, back, outputs = values
        features = parts[-1] if term.layer else None
        run = Pass(outputs, batch.targets, batch.weights, features)
        slopes, by_features = derivatives(run, loss, weights, term)
        return back([*slopes, *([] if by_features is None else [by_features])])[0]

    def grad(self, x: Tensor, batch: Batch, loss: Loss, term: Term | None = None) -> Tensor:
        if term is not None:
            self.module.train()
            with self._mapping("grad with a term"):
                return self._grad_with(x, batch, loss, term)
        if loss not in self._grads:
            self._grads[loss] = self._prepare(vmap(grad(one_loss(self.module, self.layout, loss))))
        self.module.train()
        weights = loss.weigh(batch.weights, batch.targets)
        with self._mapping("grad"):
            return self._grads[loss](x.contiguous(), batch.inputs, batch.targets, weights)

    @contextmanager
    def _mapping(self, what: str) -> Iterator[None]:
        """A module that torch cannot map shows that at its first call."""
        try:
            yield
        except (SettingError, IndexError):  # of the model or the data, not of mapping
            raise
        except Exception as error:  # whatever a user's forward does to a mapped tensor
            if what in self.proved:
                raise
            reason = first_line(error)
            raise Unmappable(
                f"kernel: {self.name!r} cannot run this model ({reason}); it needs kernel 'rows'"
            ) from error
        self.proved.add(what)

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return function


class Compiled(Vmapped):
    """As `Vmapped`, with the gradient compiled by torch.compile."""

    name = "compiled"

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function)
