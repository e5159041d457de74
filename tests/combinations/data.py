"""Federations of every form, small and drawn from a seed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import idiolect as il
from idiolect.core.types import map_tree

FEATURES = 6  # numbers of a vector
SIDE = 6  # pixels: with 3 or 4, channels would be taken to stand last
VOCABULARY = 9
LENGTH = 5  # words of a sentence
CLASSES = 3

Rng = np.random.Generator


# -- inputs of n samples ---------------------------------------------------------------------------
def _normal(*shape: int) -> Callable[[Rng, int], Any]:
    return lambda rng, n: rng.standard_normal((n, *shape)).astype(np.float32)


def _words(rng: Rng, n: int) -> Any:
    return rng.integers(0, VOCABULARY, (n, LENGTH))


def _ragged(rng: Rng, n: int) -> Any:
    return [torch.from_numpy(rng.integers(1, VOCABULARY, rng.integers(1, 7))) for _ in range(n)]


def _two(rng: Rng, n: int) -> tuple[Any, Any]:
    return _normal(4)(rng, n), _normal(3)(rng, n)


def _ids(rng: Rng, n: int) -> Any:
    return {"user": rng.integers(0, VOCABULARY, n), "item": rng.integers(0, VOCABULARY, n)}


INPUTS: dict[str, Callable[[Rng, int], Any]] = {
    "vector": _normal(FEATURES),
    "picture": _normal(2, SIDE, SIDE),
    "tokens": _words,
    "ragged": _ragged,
    "tuple": _two,
    "dict": lambda rng, n: dict(zip(("left", "right"), _two(rng, n), strict=True)),
    "ids": _ids,
}


# -- targets ---------------------------------------------------------------------------------------
def _classes(rng: Rng, n: int, count: int = CLASSES) -> Any:
    labels = rng.integers(0, count, n)
    labels[: min(n, count)] = np.arange(count)[:n]  # every class is there
    return labels


def _mask(rng: Rng, n: int) -> Any:
    mask = rng.integers(0, 2, (n, SIDE, SIDE))
    mask[:, 0, : SIDE // 2] = -100  # pixels without a target
    return mask


def _class_and_value(rng: Rng, n: int) -> Any:
    return {"kind": _classes(rng, n), "value": rng.standard_normal(n).astype(np.float32)}


# name -> (targets, how many outputs a model has for them)
TARGETS: dict[str, tuple[Callable[[Rng, int], Any], int]] = {
    "classes": (_classes, CLASSES),
    "binary": (lambda rng, n: _classes(rng, n, 2), 1),
    "real": (lambda rng, n: rng.standard_normal(n).astype(np.float32), 1),
    "several": (_normal(2), 2),
    "labels": (lambda rng, n: rng.integers(0, 2, (n, 3)).astype(np.float32), 3),
    "mask": (_mask, 2),
    "words": (_words, VOCABULARY),
    "class and value": (_class_and_value, CLASSES),
    "itself": (_normal(FEATURES), FEATURES),
}


# -- clients ---------------------------------------------------------------------------------------
SIZES = {  # samples of each client
    "even": (12,) * 5,
    "unequal": (1, 25, 3, 12, 7, 2),
    "two": (9, 14),
    "alone": (15,),
    "many": (5,) * 23,
    "untested": (12, 8, 10, 9),  # the second client has no test rows
    "idle": (12, 8, 10, 9),  # the second client has no training rows
}
IDS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda k: 7 * k + 3,
    "text": lambda k: f"Klinik {chr(90 - k)} Zürich",
}


def federation(
    inputs: str, targets: str, clients: str, ids: str = "numbers", source: str = "arrays"
) -> il.Federation:
    """The data of a combination; whatever is noted on stderr about them is left out."""
    sizes = SIZES[clients]
    rng = np.random.default_rng(len(inputs) + 100 * len(targets) + 10_000 * len(clients))
    n = sum(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x, y = INPUTS[inputs](rng, n), TARGETS[targets][0](rng, n)
    names = [IDS[ids](k) for k in owner.tolist()]
    options: dict[str, Any] = {}
    if clients in ("untested", "idle"):
        split = np.resize(["train", "test", "train", "valid"], n)
        split[owner == 1] = "train" if clients == "untested" else "test"
        options["split"] = split
    with contextlib.redirect_stderr(io.StringIO()):
        if source == "datasets":
            whole = TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
            parts = {
                IDS[ids](k): torch.utils.data.Subset(whole, np.flatnonzero(owner == k).tolist())
                for k in range(len(sizes))
            }
            return il.Federation.from_datasets(parts)
        return il.Federation.from_arrays(x, y, names, **options)


def with_other_data(federation: il.Federation, position: int) -> il.Federation:
    """The same federation, but the samples of one client are others, of the same form."""
    rows = torch.cat(
        [torch.arange(int(o[position]), int(o[position + 1])) for o in federation.offsets.values()]
    )

    def other(t: Tensor) -> Tensor:
        t = t.clone()
        if bool(((t == 0) | (t == 1)).all()):  # a mask stays as it is
            return t
        if t.is_floating_point():
            t[rows] = 0.4 - 1.7 * t[rows]
        else:
            most = int(t.max())
            t[rows] = torch.where(t[rows] < 0, t[rows], most - t[rows].clamp(min=0))
        return t

    def other_target(t: Tensor) -> Tensor:
        binary = bool(((t == 0) | (t == 1)).all())
        return torch.where(_at(t, rows), 1 - t, t) if binary else other(t)

    return replace(
        federation,
        inputs=map_tree(other, federation.inputs),
        targets=map_tree(other_target, federation.targets),
    )


def _at(t: Tensor, rows: Tensor) -> Tensor:
    at = torch.zeros(len(t), dtype=torch.bool)
    at[rows] = True
    return at.view(-1, *[1] * (t.dim() - 1))
