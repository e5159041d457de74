"""Kernel "stacked": batched matrix products and a hand-written backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batches import Batch
from ..layout import Layout
from ..losses import Loss, spread
from ..term import Pass, Term, derivatives, find_layer
from .clipped import factors, matrix_squares
from .graph import Layer
from .mapped import Unmappable

aten = torch.ops.aten

_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {  # forward(z); backward(delta, z, forward(z))
    "relu": (torch.relu, lambda delta, z, a: aten.threshold_backward(delta, a, 0)),
    "tanh": (torch.tanh, lambda delta, z, a: aten.tanh_backward(delta, a)),
    "sigmoid": (torch.sigmoid, lambda delta, z, a: aten.sigmoid_backward(delta, a)),
    "gelu": (F.gelu, lambda delta, z, a: aten.gelu_backward(delta, z)),
    "silu": (F.silu, lambda delta, z, a: aten.silu_backward(delta, z)),
}


class Stacked:
    """Layer l of all K models is one `baddbmm`; the backward pass writes straight into g[K, d].

    Values are kept features first, h[K, features, M] with M the samples of a row: W h and delta h'
    then need no transposed copy, and the softmax runs along contiguous memory (three times faster
    for small models than samples first).
    """

    name = "stacked"

    def __init__(self, module: nn.Module, layers: list[Layer], layout: Layout):
        self.module = module
        self.layers = layers
        self.layout = layout
        self.flattens = any(layer.kind == "flatten" for layer in layers)
        self.strides = tuple(torch.empty(s, device="meta").stride() for s in layout.shapes)

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        out = self._forward(self._views(x), inputs)[-1]
        return out.transpose(1, 2).contiguous().view(*self._lead(inputs), -1)

    def features(self, x: Tensor, inputs: Tensor, layer: str) -> Tensor:
        values = self._forward(self._views(x), inputs)
        return self._by_sample(values[self._place(layer)], inputs)

    def _place(self, layer: str) -> int:
        """Where in the chain the features of a layer stand."""
        where = find_layer(self.module, self.layout, layer)
        if where.given:
            owners = [one.weight.rpartition(".")[0] for one in self.layers]
            return owners.index(where.path)
        paths = [one.path for one in self.layers]
        if where.path in paths:
            return paths.index(where.path) + 1
        raise Unmappable(
            f"kernel: 'stacked' keeps no features of the layer {layer!r}; it needs kernel 'vmap'"
        )

    def _by_sample(self, h: Tensor, inputs: Tensor) -> Tensor:
        """h[K, features, M] as [K, B, ..., features]."""
        return h.transpose(1, 2).contiguous().view(*self._lead(inputs), -1)

    def _slopes(
        self, values: list[Tensor], batch: Batch, loss: Loss, weights: Tensor, term: Term
    ) -> tuple[Tensor, Tensor | None, int]:
        """Derivatives by the outputs and by the features of a term, and the place of these."""
        place = self._place(term.layer) if term.layer else 0
        features = self._by_sample(values[place], batch.inputs) if term.layer else None
        outputs = self._by_sample(values[-1], batch.inputs)
        run = Pass(outputs, batch.targets, batch.weights, features)
        (delta,), by_features = derivatives(run, loss, weights, term)
        if by_features is not None:
            by_features = by_features.flatten(1, -2).transpose(1, 2)
        return delta.flatten(1, -2).transpose(1, 2), by_features, place

    def grad(self, x: Tensor, batch: Batch, loss: Loss, term: Term | None = None) -> Tensor:
        p = self._views(x)
        values = self._forward(p, batch.inputs)
        weights = loss.weigh(batch.weights, batch.targets)
        by_features: Tensor | None = None
        place = 0
        if term is not None:
            delta, by_features, place = self._slopes(values, batch, loss, weights, term)
        else:
            delta = self._delta(values[-1], batch, loss, weights)
        g = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        parts = self._views(g)
        first = self._first_linear()
        for i in range(len(self.layers) - 1, first - 1, -1):
            layer = self.layers[i]
            h = values[i]
            if by_features is not None and place == i + 1:
                delta = delta + by_features
            if layer.kind == "linear":
                parts[layer.weight].copy_(torch.bmm(delta, h.transpose(1, 2)))  # dW = delta h'
                if layer.bias:
                    torch.sum(delta, 2, out=parts[layer.bias])
                if i > first:
                    delta = torch.bmm(p[layer.weight].transpose(1, 2), delta)
            elif layer.kind != "flatten":
                delta = _ACTIVATIONS[layer.kind][1](delta, h, values[i + 1])
        return g

    def _delta(self, out: Tensor, batch: Batch, loss: Loss, weights: Tensor) -> Tensor:
        """The derivative of the weighed losses by the outputs: [K, outputs, M]."""
        targets = batch.targets
        written = type(loss).delta is not Loss.delta  # by hand, for one target per output column
        if written and targets[0].numel() == out.shape[2]:
            flat = spread(weights, targets).flatten(1)
            return loss.delta(out, targets.flatten(1), flat)
        return loss.delta_by_autograd(out, targets, weights, self._lead(batch.inputs))

    def _first_linear(self) -> int:
        return next(i for i, layer in enumerate(self.layers) if layer.kind == "linear")

    def clipped_sums(self, x: Tensor, batch: Batch, loss: Loss, bound: float) -> Tensor:
        """Σ_s ∇ℓ_s min(1, bound / ||∇ℓ_s||) of each row: [K, d]; 0 for rows that are not active."""
        p = self._views(x)
        values = self._forward(p, batch.inputs)
        exists = batch.weights > 0
        if batch.active is not None:
            exists = exists & batch.active.to(exists.device).unsqueeze(1)
        weights = loss.weigh_alone(exists.to(x.dtype), batch.targets)
        delta = self._delta(values[-1], batch, loss, weights)
        first = self._first_linear()
        deltas: dict[int, Tensor] = {}
        squares = torch.zeros(exists.shape, dtype=x.dtype, device=x.device)
        for i in range(len(self.layers) - 1, first - 1, -1):
            layer = self.layers[i]
            h = values[i]
            if layer.kind == "linear":
                deltas[i] = delta
                squares += _layer_squares(h, delta, exists.shape[1], bool(layer.bias))
                if i > first:
                    delta = torch.bmm(p[layer.weight].transpose(1, 2), delta)
            elif layer.kind != "flatten":
                delta = _ACTIVATIONS[layer.kind][1](delta, h, values[i + 1])
        scale = factors(squares, bound).unsqueeze(1)  # [K, 1, B]
        broken = None if bool(squares.isfinite().all()) else ~squares.isfinite().unsqueeze(1)
        g = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        parts = self._views(g)
        for i, delta in deltas.items():
            layer = self.layers[i]
            h = values[i]
            delta = _over_positions(torch.mul, delta, scale)
            if broken is not None:  # 0 times infinity
                delta, h = (_over_positions(_blank, t, broken) for t in (delta, h))
            parts[layer.weight].copy_(torch.bmm(delta, h.transpose(1, 2)))
            if layer.bias:
                torch.sum(delta, 2, out=parts[layer.bias])
        return g

    def hvp(self, x: Tensor, v: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """Hessian of each row's loss times v[K, d]: rows share nothing, so one double backward."""
        weights = loss.weigh(batch.weights, batch.targets)
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            out = self._forward(self.layout.unflatten(x), batch.inputs)[-1]
            outputs = out.transpose(1, 2).reshape(*self._lead(batch.inputs), -1)
            each = loss.of_rows(outputs, batch.targets)
            value = (each * spread(weights, each)).sum()
            (g,) = torch.autograd.grad(value, x, create_graph=True)
            if not g.requires_grad:  # a loss with straight pieces
                return torch.zeros_like(x)
            return torch.autograd.grad((g * v).sum(), x)[0]

    def _forward(self, p: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
        """The value before each layer, and the output."""
        h = inputs.flatten(2) if self.flattens else inputs
        h = h.flatten(1, -2).transpose(1, 2)  # [K, features, M]
        values = []
        for layer in self.layers:
            values.append(h)
            if layer.kind == "linear":
                if layer.bias:
                    h = torch.baddbmm(p[layer.bias].unsqueeze(2), p[layer.weight], h)
                else:
                    h = torch.bmm(p[layer.weight], h)
            elif layer.kind != "flatten":
                h = _ACTIVATIONS[layer.kind][0](h)
        return [*values, h]

    def _lead(self, inputs: Tensor) -> torch.Size:
        """The axes before the features of an output."""
        return inputs.shape[:2] if self.flattens else inputs.shape[:-1]

    def _views(self, x: Tensor) -> dict[str, Tensor]:
        """As `layout.unflatten`, in a third of its time, which counts for small models."""
        if x.stride(1) != 1:
            return self.layout.unflatten(x)
        rows = x.stride(0)
        first = x.storage_offset()
        layout = self.layout
        views = zip(layout.names, layout.shapes, self.strides, layout.starts, strict=False)
        return {
            name: x.as_strided((len(x), *shape), (rows, *stride), first + start)
            for name, shape, stride, start in views
        }


# -- samples with several positions: h[K, features, M], M = B T ------------------------------------
def _over_positions(apply: Callable, h: Tensor, by_sample: Tensor) -> Tensor:
    """`apply(h, by_sample)` for by_sample[K, 1, B] at every position of h."""
    samples = by_sample.shape[2]
    if h.shape[2] == samples:
        return apply(h, by_sample)
    return apply(h.unflatten(2, (samples, -1)), by_sample.unsqueeze(3)).flatten(2)


def _blank(h: Tensor, broken: Tensor) -> Tensor:
    return h.masked_fill(broken, 0)


def _layer_squares(h: Tensor, delta: Tensor, samples: int, bias: bool) -> Tensor:  # -> [K, B]
    """Squared norms of the gradients of single samples in one linear layer."""
    if h.shape[2] == samples:  # (||a||² + 1) ||δ||²
        squares = torch.linalg.vecdot(h, h, dim=1)
        return (squares + 1 if bias else squares) * torch.linalg.vecdot(delta, delta, dim=1)
    a, d = (t.unflatten(2, (samples, -1)).permute(0, 2, 3, 1).flatten(0, 1) for t in (h, delta))
    squares = matrix_squares(a, d)
    if bias:
        sums = d.sum(1)
        squares = squares + torch.linalg.vecdot(sums, sums)
    return squares.view(-1, samples)
