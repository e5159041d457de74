"""Sequences of different lengths: padded to the longest, with a mask or their lengths beside them.

A model of one sequence is called with (padded, mask); a dict of sequences gets a key `mask`, unless
it brings a mask of its own (`attention_mask`), a tuple one more entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.notes import note
from .convert import Ragged
from .outcome import IGNORED

WAYS = ("mask", "lengths")


def pad(ragged: Ragged, value: float) -> Tensor:  # -> [n, longest, ...]
    return torch.nn.utils.rnn.pad_sequence(ragged.samples, batch_first=True, padding_value=value)


def pad_targets(ragged: Ragged, name: str) -> Tensor:
    """Class numbers of different lengths; positions beyond the end are ignored by the losses."""
    if ragged.samples[0].is_floating_point():
        raise SettingError(
            f"{name}: values of different lengths are not accepted; "
            "class numbers may differ in length, values may not"
        )
    note(f"{name}: sequences are padded with {IGNORED}, which the losses pass over")
    return pad(ragged, IGNORED)


def pad_inputs(tree: Any, name: str, way: str, padding: float) -> Any:
    """The tree with padded tensors for sequences, and their masks or lengths."""
    if way not in WAYS:
        raise SettingError(f"ragged: {way!r} is not accepted; one of 'mask', 'lengths'")
    if isinstance(tree, Ragged):
        lengths = _lengths(tree)
        _say(name, lengths, f"the model gets (padded, {way})", way)
        return pad(tree, padding), _beside(lengths, way)
    parts: list[tuple[Any, Any]] = []
    if isinstance(tree, (dict, tuple)):
        parts = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    found = {key: _lengths(part) for key, part in parts if isinstance(part, Ragged)}
    if not found:
        return tree
    padded = {key: pad(part, padding) if key in found else part for key, part in parts}
    if isinstance(tree, dict) and any("mask" in key for key in tree):
        _say(name, next(iter(found.values())), "the dict has a mask of its own", way)
        return padded
    extra = _name_each(found, way)
    if isinstance(tree, tuple):
        added = [_beside(lengths, way) for lengths in extra.values()]
        _say(name, next(iter(found.values())), f"the {way} comes last", way)
        return (*padded.values(), *added)
    _say(name, next(iter(found.values())), f"the model gets {', '.join(extra)} as well", way)
    return padded | {key: _beside(lengths, way) for key, lengths in extra.items()}


def _name_each(found: dict[Any, Tensor], way: str) -> dict[str, Tensor]:
    """One mask for sequences of the same lengths, otherwise one for each."""
    first = next(iter(found.values()))
    if all(torch.equal(first, lengths) for lengths in found.values()):
        return {way: first}
    return {f"{key}_{way}": lengths for key, lengths in found.items()}


def _lengths(ragged: Ragged) -> Tensor:
    return torch.tensor([len(v) for v in ragged.samples])


def _beside(lengths: Tensor, way: str) -> Tensor:
    if way == "lengths":
        return lengths
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(1)


def _say(name: str, lengths: Tensor, what: str, way: str) -> None:
    other = WAYS[1 - WAYS.index(way)]
    note(
        f"{name}: sequences of {int(lengths.min())} to {int(lengths.max())} entries are padded to "
        f"the longest; {what} (ragged='{other}' gives {other})"
    )
