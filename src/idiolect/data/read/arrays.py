"""A federation from arrays: samples are read, put in order of split and client, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note
from ...core.types import leaves
from ..splits import (
    SPLITS,
    arranged,
    offsets_of,
    places_in_time,
    read_groups,
    read_times,
    read_weights,
    split_samples,
)
from ..subgroups import read_subgroups
from .convert import (
    RaggedSamples,
    check_memory,
    each_leaf,
    in_units,
    is_sparse,
    read_tree,
    rows_of,
    to_tensor,
)
from .ids import read_ids
from .memory_maps import arrange, check_finite, is_mapped
from .pictures import Change, check_channels, plan_pixels
from .sequences import ignore_padding, pad_inputs, sequences_of
from .targets import check_special, read_targets

if TYPE_CHECKING:
    from ..federation import Federation

MEMORY = 4.0  # GiB that a sparse matrix may take as a dense one


def from_arrays(
    cls: type[Federation],
    inputs: Any,
    targets: Any,
    clients: Any,
    *,
    split: Any = None,
    kind: str = "auto",
    classes: int | None = None,
    class_names: Sequence[Any] | None = None,
    ignored: int | None = None,
    special: Sequence[int] = (),
    group: Any = None,
    time: Any = None,
    weight: Any = None,
    subgroup: Any = None,
    scale_images: bool = True,
    channels: str = "auto",
    ragged: str = "mask",
    padding: float = 0.0,
    memory: float = MEMORY,
    scratch: str | None = None,
    valid: float = 0.2,
    test: float = 0.2,
    seed: int = 0,
    name: str = "arrays",
) -> Federation:
    """From features, targets and a client id per sample (what an id may be: data/read/ids.py).

    Arrays are NumPy arrays and memory maps, lists, torch tensors, columns and frames of pandas
    and polars, arrays and tables of pyarrow, sparse matrices of scipy; `inputs` and `targets`
    may be tuples and dicts of them. Every guess is noted in a line on stderr:

    - `kind`: whether targets are "classes" or "values" (a regression); "auto" goes by the
      values, by the rule in data/read/targets.py. Labels of any type become class numbers and are
      kept in `class_names`.
    - `classes`: the number of classes; targets are then class numbers as they stand.
      `class_names`: the labels of the classes in order, or names for class numbers.
    - `ignored`: the class number that marks pixels or words without a target (255, say).
    - `special`: the class numbers of tokens that are no words (padding, unknown, begin and end
      of a sentence): they are trained on, and the metric next_word_accuracy leaves them out.
    - `scale_images`: inputs of bytes with two or more axes per sample are scaled to [0, 1].
    - `channels`: whether pictures have their channels "first" or "last"; "auto" goes by the
      shape.
    - `ragged`: a list of sequences of different lengths is padded with `padding`; the model
      gets (padded, mask), or with "lengths" (padded, lengths).
    - `memory`: a sparse matrix is made dense if it then takes at most this many GiB.
    - `scratch`: the folder for memory maps that have to be sorted; they are never held in
      memory.

    `split` says for each sample whether it is for "train", "valid" or "test". Without it,
    `test` of each client's samples are drawn at random for testing, then `valid` of the rest
    for validation (the papers' 80/20, twice). `group` is what each sample is of (a patient, a
    device): samples of one stay on one side of every split. `time` (a number or date per sample)
    has each client's last samples test, and those before them validate. `weight` (a number > 0 per
    sample) is how much each counts, in training and in every figure: how many people a row of a
    survey stands for. `subgroup` (an entry per sample such as "f" or "m", or a dict of such columns
    by name) has figures given for each value.

    >>> from idiolect import Federation
    >>> sites = ["a", "a", "b", "b"]
    >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], sites, valid=0, test=0.5)
    >>> f.ids, f.sizes("train").tolist(), f.sizes("test").tolist()
    (('a', 'b'), [1, 1], [1, 1])
    >>> Federation.from_arrays(np.eye(4), ["no", "yes", "no", "no"], sites).class_names
    ('no', 'yes')
    """
    ids, client = read_ids(clients)
    n = len(client)
    if n == 0:
        raise SettingError("clients must name at least one sample's client, got an empty list")
    _check_arrays(inputs, targets, n)
    samples = read_tree(inputs, "inputs", n)
    x = pad_inputs(samples, "inputs", ragged, padding)
    _check_lengths(x, "inputs", n)
    y = read_targets(targets, n, kind, classes, class_names, ignored)
    y = replace(y, values=ignore_padding(y.values, x))
    _check_lengths(y.values, "targets", n)
    sequences = sequences_of(samples, x, y.values)
    for key, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:
            raise SettingError(f"{key} must be a share in [0, 1), got {share!r}")
    groups = None if group is None else read_groups(group, n)
    times = None if time is None else read_times(time, n)
    weights = None if weight is None else read_weights(weight, n)
    subgroups = read_subgroups(subgroup, n)
    part = split_samples(client, split, valid, test, seed, groups, times)
    order = arranged(client, part)
    counts = np.bincount(part * len(ids) + client, minlength=3 * len(ids)).reshape(3, -1)
    check_channels(channels, [leaf.ndim for leaf in leaves(x)])

    def arrange_inputs(values: Any, name: str) -> Tensor:
        # a mask is a part of a tree; an array of booleans alone is read as numbers
        keep_bool = isinstance(x, (dict, tuple))
        change = None if is_sparse(values) else plan_pixels(values, name, scale_images, channels)
        return _arrange_inputs(values, name, order, change, keep_bool, memory, scratch)

    return cls(
        inputs=each_leaf(x, "inputs", arrange_inputs),
        targets=each_leaf(
            y.values, "targets", lambda v, at: _arrange_targets(v, at, order, scratch)
        ),
        offsets=offsets_of(dict(zip(SPLITS, torch.from_numpy(counts), strict=True))),
        ids=ids,
        classes=y.classes,
        name=name,
        class_names=y.class_names,
        sequences=sequences and sequences.of(torch.from_numpy(order)),
        special=check_special(special, y.classes),
        groups=None if groups is None else torch.from_numpy(groups[order]),
        weights=None if weights is None else torch.from_numpy(weights[order]),
        subgroups=tuple(column.map(lambda t: t[torch.from_numpy(order)]) for column in subgroups),
        times=None if times is None else torch.from_numpy(places_in_time(times)[order]),
    )


# -- lengths ---------------------------------------------------------------------------------------
def _check_arrays(inputs: Any, targets: Any, n: int) -> None:
    """Refuse what is no array, and arrays of different lengths with all three in one message."""
    for name, values in (("inputs", inputs), ("targets", targets)):
        if values is None or isinstance(values, str) or callable(values):
            kind = values.__name__ if isinstance(values, type) else type(values).__name__
            article = "the class" if isinstance(values, type) else "a"
            raise SettingError(f"{name} must be an array, samples first, got {article} {kind}")
    sizes = [_row_count(values) for values in (inputs, targets)]
    if None not in sizes and not sizes[0] == sizes[1] == n:
        raise SettingError(
            f"inputs, targets and clients differ in length: {sizes[0]}, {sizes[1]}, {n}"
        )


def _row_count(values: Any) -> int | None:
    """The number of samples of one array; None for trees and what may be one."""
    if hasattr(values, "shape"):
        return rows_of(values)
    if isinstance(values, list) and not any(hasattr(v, "shape") for v in values):
        return len(values)
    return None


def _check_lengths(tree: Any, name: str, n: int) -> None:
    def check(leaf: Any, at: str) -> None:
        if isinstance(leaf, RaggedSamples):
            raise SettingError(
                f"{at} must not be nested deeper, got sequences of different lengths"
            )
        if rows_of(leaf) != n:
            raise SettingError(f"{at}: {rows_of(leaf)} samples, but {n} client ids")

    each_leaf(tree, name, check)


# -- in order --------------------------------------------------------------------------------------
def _arrange_inputs(
    values: Any,
    name: str,
    order: np.ndarray,
    change: Change | None,
    keep_bool: bool,
    memory: float,
    scratch: str | None,
) -> Tensor:
    if is_mapped(values):
        return arrange(values, order, change, name, scratch)
    if is_sparse(values):
        _note_dense(values.shape[0] * values.shape[1] * 4, values.shape, name, memory)
        t = torch.from_numpy(values[order].astype(np.float32).toarray())
    else:
        if isinstance(values, Tensor) and values.layout != torch.strided:
            _note_dense(values.numel() * values.itemsize, tuple(values.shape), name, memory)
            values = values.to_dense()
        t = to_tensor(values, keep_bool=keep_bool)
        t = t[torch.from_numpy(order).to(t.device)]
        t = t if change is None else change(t)
    check_finite(t, name, order)
    return t


def _note_dense(size: int, shape: tuple[int, ...], name: str, memory: float) -> None:
    check_memory(size, memory, name, f"the sparse matrix of shape {shape} made dense")
    note(f"{name}: the sparse matrix is made dense, {in_units(size)}")


def _arrange_targets(values: Any, name: str, order: np.ndarray, scratch: str | None) -> Tensor:
    def widen(t: Tensor) -> Tensor:
        return t if t.is_floating_point() else t.to(torch.int64)

    if is_mapped(values):
        return arrange(values, order, widen, name, scratch)
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    return widen(values[torch.from_numpy(order).to(values.device)])
