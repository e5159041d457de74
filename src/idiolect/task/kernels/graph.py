"""What a module computes, read from its torch.fx graph: a chain of layers? dropout?"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import fx, nn

from ...core.draws import keyed_draws

_ACTIVATION_MODULES = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu"}
_ACTIVATION_FUNCTIONS = {
    torch.relu: "relu",
    F.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    F.silu: "silu",
    F.sigmoid: "sigmoid",
    F.tanh: "tanh",
}
_ACTIVATION_METHODS = ("relu", "tanh", "sigmoid")
_DROPOUT_FUNCTIONS = {
    torch.dropout,
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
}


@dataclass(frozen=True)
class Layer:
    """One layer of a chain: "flatten", an activation, or "linear" with its parameters' names."""

    kind: str  # "" for a layer that changes nothing
    weight: str = ""
    bias: str = ""  # "" for a linear layer without bias
    path: str = field(default="", compare=False)  # of its module; "" where a function was called


def trace(module: nn.Module) -> fx.Graph | None:
    """The module's operations, or None where its control flow depends on data."""
    try:
        with keyed_draws(0):
            return fx.symbolic_trace(module).graph
    except Exception:  # whatever a user's forward does to a proxy
        return None


def has_dropout(module: nn.Module) -> bool:
    """Whether the module draws random numbers in training.

    Found are dropout layers, and dropout called as a function where the module can be traced.
    """

    def active(m: nn.Module) -> bool:
        p = m.p if isinstance(m, nn.modules.dropout._DropoutNd) else getattr(m, "dropout", 0)
        return isinstance(p, float) and p > 0

    if any(active(m) for m in module.modules()):
        return True
    if all(type(m).__module__.startswith("torch.nn.") for m in module.modules()):
        return False  # the layers of torch that call the function have its share as an attribute
    graph = trace(module)
    return graph is not None and any(
        node.op == "call_function" and node.target in _DROPOUT_FUNCTIONS for node in graph.nodes
    )


def layer_chain(module: nn.Module) -> list[Layer] | None:
    """The module as a chain of linear layers and activations, or None where it is anything else.

    Every trainable parameter must belong to exactly one layer of the chain: a module with layers
    that are used twice, tied, frozen or unused is no chain. Nor is one whose layers are others in
    training than in use.

    >>> [layer.kind for layer in layer_chain(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))]
    ['linear', 'tanh']
    """
    if any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        return None
    if type(module) is nn.Linear:  # tracing would look inside it
        layers: list[Layer] | None = [_linear(module, prefix="")]
    elif (steps := _steps(module)) and all(map(_is_torch_layer, steps.values())):
        layers = _in_sequence([_at(name, _of_module(m, name)) for name, m in steps.items()])
    else:
        modes = {m: m.training for m in module.modules()}
        layers = _traced_layers(module.train())
        if layers is not None and layers != _traced_layers(module.eval()):
            layers = None
        for m, training in modes.items():
            m.training = training
    used = [name for layer in layers or [] for name in (layer.weight, layer.bias) if name]
    trained = [name for name, p in module.named_parameters() if p.requires_grad]
    return layers if sorted(used) == sorted(trained) else None


def _steps(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that torch's own `Sequential` calls one after the other; {} of any other."""
    if type(module) is not nn.Sequential or "forward" in vars(module):
        return {}
    return {name: m for name, m in module._modules.items() if m is not None}


def _is_torch_layer(module: nn.Module) -> bool:
    """Whether it is a layer of torch itself with no other inside: what it does is known."""
    own = type(module).__module__.startswith("torch.nn.modules.") and "forward" not in vars(module)
    return own and not module._modules


def _in_sequence(steps: list[Layer | None]) -> list[Layer] | None:
    """The layers of a chain from those of its steps, or None where it is none."""
    layers: list[Layer] = []
    for layer in steps:
        late = layer is not None and layer.kind == "flatten"
        if layer is None or (late and any(earlier.kind == "linear" for earlier in layers)):
            return None
        layers += [layer] if layer.kind else []
    return layers if any(layer.kind == "linear" for layer in layers) else None


def _traced_layers(module: nn.Module) -> list[Layer] | None:
    graph = trace(module)
    return None if graph is None else _layers(graph, dict(module.named_modules()))


def _layers(graph: fx.Graph, modules: dict[str, nn.Module]) -> list[Layer] | None:
    """The layers of a graph in which every value goes into the next operation only."""
    steps: list[Layer | None] = []
    last: fx.Node | None = None  # the value that the next operation must take
    sizes: set[fx.Node] = set()  # nodes that hold x.size(0) or x.shape[0]
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
        elif node.op == "output":
            return _in_sequence(steps) if node.args[0] is last else None
        elif _is_batch_size(node, last, sizes):
            sizes.add(node)
        elif node.args and node.args[0] is last and (layer := _layer(node, modules, sizes)):
            steps.append(layer)
            last = node
        else:
            return None
    return None


def _is_batch_size(node: fx.Node, last: fx.Node | None, sizes: set[fx.Node]) -> bool:
    """Whether a node is `x.size(0)`, `x.shape` or `x.shape[0]` of the last value."""
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


def _layer(node: fx.Node, modules: dict[str, nn.Module], sizes: set[fx.Node]) -> Layer | None:
    """The layer that a traced node stands for, or None where a chain has no such layer."""
    if node.op == "call_module":
        name = str(node.target)
        return _at(name, _of_module(modules[name], name))
    if node.op == "call_function":
        return _of_function(node)
    if node.op == "call_method":
        return _of_method(node, sizes)
    return None


def _at(path: str, layer: Layer | None) -> Layer | None:
    return None if layer is None else replace(layer, path=path)


def _of_module(module: nn.Module, name: str) -> Layer | None:
    if type(module) is nn.Linear:
        return _linear(module, prefix=f"{name}.")
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Layer("flatten")
    if type(module) is nn.GELU and module.approximate == "none":
        return Layer("gelu")
    if type(module) is nn.Identity:
        return Layer("")
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
        return Layer("")
    if type(module) in _ACTIVATION_MODULES:
        return Layer(_ACTIVATION_MODULES[type(module)])
    return None


def _linear(module: nn.Linear, prefix: str) -> Layer:
    return Layer("linear", f"{prefix}weight", f"{prefix}bias" if module.bias is not None else "")


def _of_function(node: fx.Node) -> Layer | None:
    options = node.args[1:]
    if node.target is torch.flatten and (options == (1,) or node.kwargs == {"start_dim": 1}):
        return Layer("flatten")
    if node.target in _ACTIVATION_FUNCTIONS and not options:
        return Layer(_ACTIVATION_FUNCTIONS[node.target])
    return None


def _of_method(node: fx.Node, sizes: set[fx.Node]) -> Layer | None:
    options = node.args[1:]
    if node.target == "flatten" and options == (1,):
        return Layer("flatten")
    if node.target in ("view", "reshape") and len(options) == 2:  # x.view(len(x), -1)
        return Layer("flatten") if options[0] in sizes and options[1] == -1 else None
    if node.target in _ACTIVATION_METHODS and not options:
        return Layer(str(node.target))
    return None
