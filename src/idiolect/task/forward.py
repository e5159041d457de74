"""A model's forward pass: how it is called, and which of its outputs count; the same everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ..core.types import Tree, leaves


def forward(module: nn.Module, inputs: Tree, weights: dict[str, Tensor] | None = None) -> Tree:
    """The tensors that a module returns for inputs[n, ...], with its own weights or with these."""
    args, named = arguments(module, inputs)
    if weights is None:
        return tensors_of(module(*args, **named))
    return tensors_of(functional_call(module, weights, args, named))


def arguments(module: nn.Module, inputs: Tree) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
    """How a model is called: model(tensor), model(*tuple) or model(**dict).

    Where its forward has no parameters for the entries, the tuple or dict is its one argument.

    >>> class Named(nn.Module):
    ...     def forward(self, tokens, mask): ...
    >>> class Whole(nn.Module):
    ...     def forward(self, batch): ...
    >>> arguments(Named(), {"tokens": 1, "mask": 2}), arguments(Whole(), {"tokens": 1, "mask": 2})
    (((), {'tokens': 1, 'mask': 2}), (({'tokens': 1, 'mask': 2},), {}))
    """
    if isinstance(inputs, dict):
        names: tuple[str, ...] | int = tuple(inputs)
        entries: tuple[tuple[Tree, ...], dict[str, Tree]] = (), inputs
    elif isinstance(inputs, (tuple, list)):
        names = len(inputs)
        entries = tuple(inputs), {}
    else:
        return (inputs,), {}
    method = module.forward
    function = getattr(method, "__func__", method)
    return ((inputs,), {}) if _is_whole(function, method is not function, names) else entries


@lru_cache(maxsize=64)
def _is_whole(function: Callable[..., Any], bound: bool, names: tuple[str, ...] | int) -> bool:
    """Whether a forward takes a dict with these names, or a tuple so long, as its one argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return False
    own = (None,) if bound else ()

    def takes(*args: None, **named: None) -> bool:
        try:
            signature.bind(*own, *args, **named)
        except TypeError:
            return False
        return True

    as_entries = takes(*[None] * names) if isinstance(names, int) else takes(**dict.fromkeys(names))
    return not as_entries and takes(None)


def tensors_of(outputs: Any) -> Tree:
    """What a module returns, without what is no tensor, such as the cache of a decoder.

    A dict loses such an entry; in a tuple it becomes (), so that the others keep their places.

    >>> import torch
    >>> tensors_of({"logits": torch.ones(1), "past": object()}), tensors_of((torch.ones(1), None))
    ({'logits': tensor([1.])}, (tensor([1.]), ()))
    """
    if isinstance(outputs, Tensor) or all(isinstance(t, Tensor) for t in leaves(outputs)):
        return outputs
    if isinstance(outputs, Mapping):
        entries = {name: tensors_of(value) for name, value in outputs.items()}
        entries = {name: value for name, value in entries.items() if leaves(value)}
        # Hugging Face's ModelOutput, whose entries are attributes too, stays one
        return type(outputs)(**entries) if is_dataclass(outputs) else entries
    if isinstance(outputs, (tuple, list)):
        values = [tensors_of(value) for value in outputs]
        named = hasattr(outputs, "_fields")
        return type(outputs)(*values) if named else tuple(values)
    return ()
