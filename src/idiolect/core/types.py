"""The types that every room shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")
Id = int | str  # the user's own name of a client
State = dict[str, Tensor]  # server: plain tensors; private rows and messages: leading axis = client


def under(state: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with a prefix, without it.

    >>> list(under({"w.e": Tensor(), "c.e": Tensor()}, "w."))
    ['e']
    """
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def prefixed(state: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The inverse of `under`."""
    return {f"{prefix}{n}": t for n, t in state.items()}


Personal = Tensor | State  # what clients predict with: x[K, d], or rows for `Method.predict`
Tree = Any  # Tensor | tuple[Tree, ...] | list[Tree] | dict[str, Tree]


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in its order.

    >>> import torch
    >>> [t.tolist() for t in leaves({"a": torch.ones(1), "b": (torch.zeros(2),)})]
    [[1.0], [0.0, 0.0]]
    """
    return [tree] if isinstance(tree, Tensor) else pytree.tree_leaves(tree)


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same tree with `function` of each tensor (and of those at its place in the others).

    >>> import torch
    >>> map_tree(len, (torch.ones(3), {"mask": torch.ones(3, 2)}))
    (3, {'mask': 3})
    """
    if isinstance(tree, Tensor):
        return function(tree, *others)
    return pytree.tree_map(function, tree, *others)


def first(tree: Tree) -> Tensor:
    """Any one tensor of a tree: all have as many samples, on the same device."""
    return leaves(tree)[0]


def length(tree: Tree) -> int:
    """The number of samples."""
    return len(first(tree))


@dataclass(frozen=True)
class Sequences:
    """Samples of different lengths in padded tensors: a mini-batch is cut to its longest.

    >>> import torch
    >>> words, mask = torch.ones(2, 5), torch.ones(2, 5)
    >>> cut = Sequences(torch.tensor([3, 2]), padded=(True, True)).cut((words, mask), 3)
    >>> [tuple(t.shape) for t in cut]
    [(2, 3), (2, 3)]
    """

    lengths: Tensor  # int64[n], or of a batch int64[K, B]
    padded: tuple[bool, ...]  # of the tensors of a sample, whether its second axis is padded

    def of(self, index: Tensor) -> Sequences:
        """The same for some samples."""
        return Sequences(self.lengths[index], self.padded)

    def cut(self, inputs: Tree, length: int) -> Tree:
        """inputs[B, ...] without what lies beyond this length."""
        parts, form = pytree.tree_flatten(inputs)
        short = [t[:, :length] if p else t for t, p in zip(parts, self.padded, strict=True)]
        return pytree.tree_unflatten(short, form)
