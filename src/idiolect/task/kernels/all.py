"""The cohort gradient: how K models of one architecture are run and differentiated together.

Four ways with one meaning (they agree to rounding, which tests check):

- stacked   batched matrix products and a hand-written backward pass; for chains of linear layers and activations
- vmap      torch.func.vmap over the gradient of the module; for any module
- rows      one model after the other; fastest for convolutions on a CPU, where a batch fills the core already
- compiled  vmap through torch.compile; pays off in long runs only, so never chosen by itself

`choose` picks by a fixed rule from the layers and the device, never by a measurement, so the same command gives the same bits.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, vmap

from ...core.knobs import SettingError
from ..batches import Batch
from ..layout import Layout
from ..losses import Loss
from .pooling import quicken
from .threads import over_threads

KERNELS = ("auto", "stacked", "vmap", "rows", "compiled")
aten = torch.ops.aten


def spread(weights: Tensor, targets: Tensor) -> Tensor:
    """Sample weights [K, B] over targets [K, B, ...]: a sample with several targets (a sentence) weighs their mean."""
    if targets.dim() == weights.dim():
        return weights
    many = targets[0, 0].numel()
    return (
        (weights / many)
        .view(*weights.shape, *[1] * (targets.dim() - weights.dim()))
        .expand_as(targets)
    )


# -- stacked: batched matrix products ----------------------------------------------------------------------------------------
_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {  # forward(z); backward(delta, z, forward(z))
    "relu": (torch.relu, lambda delta, z, a: aten.threshold_backward(delta, a, 0)),
    "tanh": (torch.tanh, lambda delta, z, a: aten.tanh_backward(delta, a)),
    "sigmoid": (torch.sigmoid, lambda delta, z, a: aten.sigmoid_backward(delta, a)),
    "gelu": (F.gelu, lambda delta, z, a: aten.gelu_backward(delta, z)),
    "silu": (F.silu, lambda delta, z, a: aten.silu_backward(delta, z)),
}
_MODULES = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu"}
_FUNCTIONS = {
    torch.relu: "relu",
    F.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    F.silu: "silu",
    F.sigmoid: "sigmoid",
    F.tanh: "tanh",
}


@dataclass(frozen=True)
class Step:
    """One link of a chain: "flatten", an activation, or "linear" with its parameters' names."""

    kind: str
    weight: str = ""
    bias: str = ""


def trace(module: nn.Module) -> fx.Graph | None:
    """The module's operations, or None where its control flow depends on data."""
    try:
        return fx.symbolic_trace(module).graph
    except Exception:  # whatever a user's forward does to a proxy
        return None


def chain(module: nn.Module) -> list[Step] | None:
    """The module as a chain of linear layers and activations, or None where it is anything else.

    Every trainable parameter must belong to exactly one link: layers used twice, tied, frozen or unused ones are no chain.
    """
    if any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return None
    if type(module) is nn.Linear:  # tracing would look inside it
        steps: list[Step] | None = [
            Step("linear", "weight", "bias" if module.bias is not None else "")
        ]
    else:
        graph = trace(module)
        steps = None if graph is None else _links(graph, dict(module.named_modules()))
    used = [name for s in steps or [] for name in (s.weight, s.bias) if name]
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    return steps if sorted(used) == sorted(trained) else None


def _links(graph: fx.Graph, layers: dict[str, nn.Module]) -> list[Step] | None:
    steps: list[Step] = []
    last: fx.Node | None = None
    sizes: set[fx.Node] = set()  # nodes that hold x.size(0) or x.shape[0]
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
        elif node.op == "output":
            return (
                steps if node.args[0] is last and any(s.kind == "linear" for s in steps) else None
            )
        elif _is_batch_size(node, last, sizes):
            sizes.add(node)
        elif node.args and node.args[0] is last and (step := _link(node, layers, sizes)):
            if step.kind == "flatten" and any(s.kind == "linear" for s in steps):
                return None
            steps += [step] if step.kind else []
            last = node
        else:
            return None
    return None


def _is_batch_size(node: fx.Node, last: fx.Node | None, sizes: set[fx.Node]) -> bool:
    if node.op == "call_method" and node.target == "size":
        return node.args[0] is last and node.args[1:] == (0,)
    if node.op == "call_function" and node.target is getattr and node.args[1] == "shape":
        return node.args[0] is last
    return bool(
        node.op == "call_function"
        and node.target is operator.getitem
        and node.args[0] in sizes
        and node.args[1] == 0
    )


def _link(node: fx.Node, layers: dict[str, nn.Module], sizes: set[fx.Node]) -> Step | None:
    """The step a traced node stands for; kind "" for one that changes nothing."""
    rest = node.args[1:]
    if node.op == "call_module":
        layer, name = layers[str(node.target)], str(node.target)
        if type(layer) is nn.Linear:
            return Step(
                "linear", f"{name}.weight", f"{name}.bias" if layer.bias is not None else ""
            )
        if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            return Step("flatten")
        if type(layer) is nn.GELU and layer.approximate == "none":
            return Step("gelu")
        if type(layer) is nn.Identity or (
            isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p == 0
        ):
            return Step("")
        return Step(_MODULES[type(layer)]) if type(layer) in _MODULES else None
    if node.op == "call_function":
        if node.target is torch.flatten and (rest == (1,) or node.kwargs == {"start_dim": 1}):
            return Step("flatten")
        return Step(_FUNCTIONS[node.target]) if node.target in _FUNCTIONS and not rest else None
    if node.op == "call_method":
        if node.target == "flatten" and rest == (1,):
            return Step("flatten")
        if (
            node.target in ("view", "reshape")
            and len(rest) == 2
            and rest[0] in sizes
            and rest[1] == -1
        ):
            return Step("flatten")
        return (
            Step(str(node.target))
            if node.target in ("relu", "tanh", "sigmoid") and not rest
            else None
        )
    return None


class Stacked:
    """Batched matrix products: layer l of all K models is one `baddbmm`; the backward pass writes straight into g[K, d].

    Values are kept features first, h[K, features, M] with M the samples of a row: W h and delta h' then need no transposed copy,
    and the softmax runs along contiguous memory (three times faster for small models than samples first).
    """

    name = "stacked"

    def __init__(self, steps: list[Step], layout: Layout):
        self.steps, self.layout = steps, layout
        self.flattens = any(s.kind == "flatten" for s in steps)
        self.strides = tuple(torch.empty(s, device="meta").stride() for s in layout.shapes)

    def _views(self, x: Tensor) -> dict[str, Tensor]:
        """As `layout.unflatten`, in one call a parameter: for small models that is a tenth of the time."""
        if x.stride(1) != 1:
            return self.layout.unflatten(x)
        k, first, lay = x.stride(0), x.storage_offset(), self.layout
        views = zip(lay.names, lay.shapes, self.strides, lay.starts, strict=False)
        return {
            n: x.as_strided((len(x), *shape), (k, *stride), first + a)
            for n, shape, stride, a in views
        }

    def _forward(
        self, p: dict[str, Tensor], inputs: Tensor
    ) -> list[Tensor]:  # -> the value before each step, and the output
        h = inputs.flatten(2) if self.flattens else inputs
        h = h.flatten(1, -2).transpose(1, 2)  # [K, features, M]
        values = []
        for s in self.steps:
            values.append(h)
            if s.kind == "linear":
                h = (
                    torch.baddbmm(p[s.bias].unsqueeze(2), p[s.weight], h)
                    if s.bias
                    else torch.bmm(p[s.weight], h)
                )
            elif s.kind != "flatten":
                h = _ACTIVATIONS[s.kind][0](h)
        return [*values, h]

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        lead = inputs.shape[:2] if self.flattens else inputs.shape[:-1]
        return (
            self._forward(self._views(x), inputs)[-1].transpose(1, 2).contiguous().view(*lead, -1)
        )

    def grad(self, x: Tensor, batch: Batch, loss: Loss) -> Tensor:
        p = self._views(x)
        values = self._forward(p, batch.inputs)
        out, weights = values[-1], spread(batch.weights, batch.targets)
        if batch.targets.flatten(1).shape[1] == out.shape[2]:
            delta = loss.delta(out, batch.targets.flatten(1), weights.flatten(1))  # [K, outputs, M]
        else:  # several real targets a sample
            delta = loss.delta_by_autograd(out, batch.targets, weights)
        g = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        parts = self._views(g)
        first = next(i for i, s in enumerate(self.steps) if s.kind == "linear")
        for i in range(len(self.steps) - 1, first - 1, -1):
            s, h = self.steps[i], values[i]
            if s.kind == "linear":
                parts[s.weight].copy_(torch.bmm(delta, h.transpose(1, 2)))  # dW = delta h'
                if s.bias:
                    torch.sum(delta, 2, out=parts[s.bias])
                if i > first:
                    delta = torch.bmm(p[s.weight].transpose(1, 2), delta)
            elif s.kind != "flatten":
                delta = _ACTIVATIONS[s.kind][1](delta, h, values[i + 1])
        return g


# -- any module --------------------------------------------------------------------------------------------------------------
def one_loss(module: nn.Module, layout: Layout, loss: Loss) -> Callable[..., Tensor]:
    def value(flat: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        out = functional_call(module, layout.unflatten(flat), (inputs,))
        return (loss.each(out, targets) * weights).sum()

    return value


class Vmapped:
    """torch.func: the gradient of one model, mapped over rows."""

    name = "vmap"

    def __init__(self, module: nn.Module, layout: Layout):
        self.module, self.layout = module, layout
        self._run = vmap(
            lambda flat, inputs: functional_call(module, layout.unflatten(flat), (inputs,))
        )
        self._grads: dict[Loss, Callable[..., Tensor]] = {}

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        self.module.train()  # nothing in it is random, and torch's fast path for evaluation cannot be mapped
        return self._run(x, inputs)

    def grad(self, x: Tensor, batch: Batch, loss: Loss) -> Tensor:
        if loss not in self._grads:
            self._grads[loss] = self._prepare(vmap(grad(one_loss(self.module, self.layout, loss))))
        self.module.train()
        try:
            return self._grads[loss](
                x.contiguous(), batch.inputs, batch.targets, spread(batch.weights, batch.targets)
            )
        except RuntimeError as error:
            if "randomness" not in str(error):
                raise
            what = "cannot give each client its own random numbers; this model needs kernel 'rows'"
            raise SettingError(f"kernel: {self.name!r} {what}") from None

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return function


class Compiled(Vmapped):
    """As vmap, through torch.compile: only the gradient step is compiled."""

    name = "compiled"

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function)


class Rows:
    """One model after the other with plain autograd; a row with no data or no longer at work costs nothing.

    A row's slices stand in as the parameters of one private copy of the module, so nothing is copied or rebuilt. With several
    threads, rows are shared out among them, each with its own copy: a row's numbers do not depend on how many there are. Modules
    with dropout always run here, on one thread: each row's mask comes from that client's own stream.
    """

    name = "rows"

    def __init__(self, module: nn.Module, layout: Layout, random: bool):
        self.layout, self.random = layout, random
        self.on_cpu = layout.device.type == "cpu"
        self.original = quicken(module) if self.on_cpu else copy.deepcopy(module)
        self.worn: list[_Worn] = []

    def _each(self, rows: list[int], work: Callable[[_Worn, int], None]) -> None:
        """`work(copy, k)` for every k of `rows`, on as many threads as torch may use."""
        threads = (
            max(1, min(torch.get_num_threads(), len(rows)))
            if self.on_cpu and not self.random
            else 1
        )
        while len(self.worn) < threads:
            self.worn.append(_Worn(self.original, self.layout))

        def share(i: int) -> None:
            for k in rows[i::threads]:
                work(self.worn[i], k)

        over_threads(share, threads)

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack(self._outputs(x, list(inputs)))

    def of_one(self, w: Tensor, inputs: Tensor) -> Tensor:  # w[d], inputs[n, ...] -> [n, ...]
        """One model on many samples, in pieces that stay in the cache, shared out among threads."""
        pieces = list(inputs.split(_PIECE))
        return (
            torch.cat(self._outputs(w.expand(len(pieces), -1), pieces))
            if len(inputs)
            else self.original.eval()(inputs)
        )

    def _outputs(self, x: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        out: list[Tensor] = [x] * len(inputs)

        def run(worn: _Worn, k: int) -> None:
            with torch.no_grad():
                out[k] = worn(x[k]).eval()(inputs[k])

        self._each(list(range(len(inputs))), run)
        return out

    def grad(self, x: Tensor, batch: Batch, loss: Loss) -> Tensor:
        weights = spread(batch.weights, batch.targets)
        at_work = batch.weights.sum(1) > 0
        if batch.active is not None:
            at_work &= batch.active
        g = torch.zeros(x.shape, dtype=x.dtype, device=x.device)

        def run(worn: _Worn, k: int) -> None:
            with torch.enable_grad():
                with torch.random.fork_rng(devices=[], enabled=self.random):
                    if self.random:
                        torch.manual_seed(batch.noise(k))
                    out = worn(x[k].detach()).train()(batch.inputs[k])
                value = (loss.each(out, batch.targets[k]) * weights[k]).sum()
                parts = torch.autograd.grad(value, worn.parameters, materialize_grads=True)
                torch.cat([p.reshape(-1) for p in parts], out=g[k])

        self._each(at_work.nonzero().flatten().tolist(), run)
        return g


_PIECE = 512  # samples that go through a convolutional model at once


class _Worn:
    """A copy of a module that wears the weights of one row at a time."""

    def __init__(self, module: nn.Module, layout: Layout):
        self.module, self.layout = copy.deepcopy(module), layout
        self.parameters = [self.module.get_parameter(n) for n in layout.names]

    def __call__(self, row: Tensor) -> nn.Module:
        for p, value in zip(self.parameters, self.layout.unflatten(row).values(), strict=True):
            p.data = value
        return self.module


Kernel = Stacked | Vmapped | Rows


_DROPS = {
    torch.dropout,
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
}


def has_dropout(module: nn.Module) -> bool:
    """Whether the module draws random numbers in training: dropout layers, or dropout as a function where that can be traced."""

    def active(m: nn.Module) -> bool:
        p = m.p if isinstance(m, nn.modules.dropout._DropoutNd) else getattr(m, "dropout", 0)
        return isinstance(p, float) and p > 0

    if any(active(m) for m in module.modules()):
        return True
    graph = trace(module)
    return graph is not None and any(
        node.op == "call_function" and node.target in _DROPS for node in graph.nodes
    )


def choose(module: nn.Module, layout: Layout, kernel: str = "auto") -> Kernel:
    """The fixed rule: dropout -> rows; chain of linear layers -> stacked; convolutions on a CPU -> rows; else vmap."""
    if kernel not in KERNELS:
        raise SettingError(f"kernel: {kernel!r} is not accepted; one of {', '.join(KERNELS)}")
    random = has_dropout(module)
    steps = None if random else chain(module)
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
    if kernel == "auto":
        kernel = (
            "rows"
            if random
            else "stacked"
            if steps
            else "rows"
            if convolves and layout.device.type == "cpu"
            else "vmap"
        )
    if random and kernel != "rows":
        raise SettingError(
            f"kernel: {kernel!r} cannot give each client its own dropout; a model with dropout needs kernel 'rows'"
        )
    if kernel == "stacked":
        if steps is None:
            raise SettingError(
                "kernel: 'stacked' needs a chain of linear layers and activations; this model takes 'vmap', 'rows' or 'compiled'"
            )
        return Stacked(steps, layout)
    if kernel == "rows":
        return Rows(module, layout, random)
    return Compiled(module, layout) if kernel == "compiled" else Vmapped(module, layout)
