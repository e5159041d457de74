"""Sequences of different lengths: padded to the longest, with a mask or their lengths beside them.

A model of one sequence is called with (padded, mask); a dict of sequences gets a key `mask`, unless
it brings a mask of its own (`attention_mask`), a tuple one more entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note
from ...core.types import Sequences, leaves
from .convert import RaggedSamples

WAYS = ("mask", "lengths")
IGNORED = -100  # the class number that torch's losses pass over


def pad(ragged: RaggedSamples, value: float) -> Tensor:  # -> [n, longest, ...]
    return torch.nn.utils.rnn.pad_sequence(ragged.samples, batch_first=True, padding_value=value)


def pad_targets(ragged: RaggedSamples, name: str) -> Tensor:
    """Class numbers of different lengths; positions beyond the end are ignored by the losses."""
    if ragged.samples[0].is_floating_point():
        raise SettingError(
            f"{name} must be class numbers to differ in length, got values of different lengths"
        )
    note(f"{name}: sequences are padded with {IGNORED}, which the losses pass over")
    return pad(ragged, IGNORED)


def sequences_of(tree: Any, padded: Any, targets: Any) -> Sequences | None:
    """Which tensors of the padded tree are sequences, and how long each sample's are.

    None where nothing was padded, and where targets go with the padded length.
    """
    parts = _parts(tree)
    lengths_by_key = {
        key: _lengths(part) for key, part in parts.items() if isinstance(part, RaggedSamples)
    }
    if not lengths_by_key:
        return None
    lengths = torch.stack(list(lengths_by_key.values())).amax(0)
    longest = int(lengths.max())
    flags: list[bool] = []
    for key, part in _parts(padded).items():
        is_mask = key not in parts and isinstance(part, Tensor) and part.dim() == 2
        flags += [key in lengths_by_key or is_mask] * len(leaves(part))
    sequences = [t for t, flag in zip(leaves(padded), flags, strict=True) if flag]
    if any(t.shape[1] != longest for t in sequences) or not _go_with(targets, lengths):
        return None
    return Sequences(lengths, tuple(flags))


def _parts(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, dict):
        return tree
    return dict(enumerate(tree)) if isinstance(tree, tuple) else {0: tree}


def _go_with(targets: Any, lengths: Tensor) -> bool:
    """Whether there is one target per sample, or one per entry of its sequence at most."""
    if isinstance(targets, (dict, tuple)):
        return False
    if targets.ndim == 1:
        return True
    words = torch.as_tensor(targets)
    if words.dim() != 2 or words.is_floating_point() or words.shape[1] != int(lengths.max()):
        return False
    counted = words != IGNORED
    last = (counted * torch.arange(1, words.shape[1] + 1)).amax(1)
    return bool((last <= lengths).all())


def ignore_padding(targets: Any, inputs: Any) -> Any:
    """The class numbers of words, without those where the inputs' attention mask is 0.

    >>> inputs = {"input_ids": torch.ones(1, 3), "attention_mask": torch.tensor([[1, 1, 0]])}
    >>> ignore_padding(torch.tensor([[5, 6, 0]]), inputs)
    tensor([[   5,    6, -100]])
    """
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if mask is None or getattr(targets, "shape", None) != mask.shape:
        return targets
    words = torch.as_tensor(targets)
    padding = torch.as_tensor(mask) == 0
    if words.is_floating_point() or not bool((words[padding] != IGNORED).any()):
        return targets
    note("targets: those where attention_mask is 0 do not count")
    return torch.where(padding, IGNORED, words)


def pad_inputs(tree: Any, name: str, way: str, padding: float) -> Any:
    """The tree with padded tensors for sequences, and their masks or lengths."""
    if way not in WAYS:
        raise SettingError(f"ragged must be one of 'mask', 'lengths', got {way!r}")
    parts = _parts(tree)
    lengths_by_key = {
        key: _lengths(part) for key, part in parts.items() if isinstance(part, RaggedSamples)
    }
    if not lengths_by_key:
        return tree
    padded = {
        key: pad(part, padding) if key in lengths_by_key else part for key, part in parts.items()
    }
    beside = {key: _beside(v, way) for key, v in _name_each(lengths_by_key, way).items()}
    if isinstance(tree, dict):
        what = f"the model gets {', '.join(beside)} as well"
        if any("mask" in key for key in tree):
            beside = {}
            what = "the dict has a mask of its own"
    else:
        single = isinstance(tree, RaggedSamples)
        what = f"the model gets (padded, {way})" if single else f"the {way} comes last"
    lengths = next(iter(lengths_by_key.values()))
    other = WAYS[1 - WAYS.index(way)]
    note(
        f"{name}: sequences of {int(lengths.min())} to {int(lengths.max())} entries are padded to "
        f"the longest; {what} (ragged='{other}' gives {other})"
    )
    return padded | beside if isinstance(tree, dict) else (*padded.values(), *beside.values())


def _name_each(lengths_by_key: dict[Any, Tensor], way: str) -> dict[str, Tensor]:
    """One mask for sequences of the same lengths, otherwise one for each."""
    first = next(iter(lengths_by_key.values()))
    if all(torch.equal(first, lengths) for lengths in lengths_by_key.values()):
        return {way: first}
    return {f"{key}_{way}": lengths for key, lengths in lengths_by_key.items()}


def _lengths(ragged: RaggedSamples) -> Tensor:
    return torch.tensor([len(v) for v in ragged.samples])


def _beside(lengths: Tensor, way: str) -> Tensor:
    if way == "lengths":
        return lengths
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
