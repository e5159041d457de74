"""Rows of a host's clients in files, each file with the clients that its rows belong to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..core.files import private_folder
from ..core.store import Store
from ..core.tensors import Shapes, bytes_of, check_shapes, read_tensors, shapes_of, write_tensors

Stores = dict[str, Store]  # by the names of their files


def save(stores: Stores, wire_ids: Tensor, folder: Path) -> None:
    """A file per store, in a folder that nobody else may read."""
    private_folder(folder)
    for name, store in stores.items():
        write_tensors(folder / name, {**store.save(), "wire_ids": wire_ids})


def load(
    stores: Stores,
    wire_ids: Tensor,
    folder: Path,
    device: torch.device,
    rounds: int | Tensor | None,
) -> None:
    """As they were saved, all or none; ValueError for what these stores cannot have saved."""
    tensors_by_store = {}
    for name, store in stores.items():
        tensors_by_store[name] = read_tensors(folder / name, _check_of(store, wire_ids))
        if not torch.equal(tensors_by_store[name].pop("wire_ids"), wire_ids):
            raise ValueError(f"{folder}: these are the rows of other clients")
    for name, store in stores.items():
        store.load(tensors_by_store[name], device, rounds=rounds)


def most_bytes(stores: Stores, wire_ids: Tensor) -> int:
    """The most that `save` writes."""
    rows = [bytes_of(store.expected()) for store in stores.values()]
    return sum(rows) + len(stores) * bytes_of(shapes_of({"wire_ids": wire_ids}))


def _check_of(store: Store, wire_ids: Tensor) -> Callable[[Shapes], None]:
    def check(shapes: Shapes) -> None:
        own = {n: shape for n, shape in shapes.items() if n == "wire_ids"}
        check_shapes(own, shapes_of({"wire_ids": wire_ids}))
        store.check({n: shape for n, shape in shapes.items() if n != "wire_ids"})

    return check
