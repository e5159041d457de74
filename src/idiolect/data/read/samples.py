"""Samples one by one as columns: trees of tensors, lists of text, pictures.

A column is a tensor where all samples have one shape, otherwise a list with an entry per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from ...core.draws import keyed_draws
from ...core.knobs import SettingError, nearest
from ...core.text import note
from .convert import is_sparse, read_array, rows_of, to_tensor
from .pictures import Pictures, form_of, is_picture, mask, picture
from .random_transforms import random_transform

READ_AGAIN = 32  # samples that are read twice, to see whether they are the same
OF_EACH = 8  # of one data set
_SEED = 0x1D101EC7  # of the draws of a second reading: one that nobody has seeded the first with
TARGETS = ("label", "labels", "target", "targets", "y")
NUMBERS = ("id", "idx", "index", "__index_level_0__")  # of samples, not features


@dataclass(frozen=True)
class Keys:
    """Which keys of samples that are dicts are inputs, and which is the target."""

    inputs: tuple[str, ...]
    target: str
    alone: bool  # one input, given as it is, not in a dict
    stacked: bool  # numbers, which together are a row of features


def choose_keys(
    sorts: dict[str, str],
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
) -> Keys:
    """By name, or guessed and noted; `sorts` says "number", "array", "text" or "other" of each key.

    >>> choose_keys({"pixels": "array", "label": "number"}, "pixels", "label").inputs
    ('pixels',)
    """
    input_keys = [] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for key, what in [*((key, "inputs") for key in input_keys), (target, "target")]:
        if key is not None and key not in sorts:
            raise nearest(str(key), map(str, sorts), what)
    label = target if target is not None else _guess_target(sorts, input_keys)
    if inputs is None:
        input_keys = _guess_inputs(sorts, label)
    elif not input_keys:
        raise SettingError("inputs must name at least one key, got an empty list")
    if target is None or inputs is None:
        note(
            f"samples: inputs are {', '.join(map(repr, input_keys))}, the target is {label!r}; "
            "inputs= and target= name others"
        )
    stacked = all(sorts[key] == "number" for key in input_keys)
    alone = len(input_keys) == 1 and (inputs is None or isinstance(inputs, str))
    return Keys(tuple(input_keys), label, alone, stacked)


def _guess_target(sorts: dict[str, str], input_keys: list[str]) -> str:
    for key in TARGETS:
        if key in sorts and key not in input_keys:
            return key
    raise SettingError(
        f"target: none of the keys is called {', '.join(TARGETS)}; "
        f"target= names one of: {', '.join(map(str, sorts))}"
    )


def _guess_inputs(sorts: dict[str, str], target: str) -> list[str]:
    others = [key for key in sorts if key != target]
    features = [key for key in others if sorts[key] in ("number", "array") and key not in NUMBERS]
    unused = ", ".join(repr(key) for key in others if key not in features)
    if not features:
        raise SettingError(
            f"inputs: no key but {target!r} holds numbers or pictures"
            + (f"; {unused} would have to become numbers first" if unused else "")
        )
    if unused:
        note(f"samples: left out are {unused} (text, or numbers of samples)")
    return features


class SampleReader:
    """Reads data sets; keys of dicts are chosen at the first sample and hold for all of them."""

    def __init__(
        self,
        inputs: str | Sequence[str] | None,
        target: str | None,
        sample: Callable[[Any], tuple[Any, Any]] | None,
    ):
        self.inputs = inputs
        self.target = target
        self.sample = sample
        self.keys: Keys | None = None
        self.read_again = 0  # samples that were read twice
        self.changing = ""  # what is another one when it is read again, as by a random transform

    def read(self, dataset: Any, where: str) -> tuple[Any, Any]:
        """Columns (inputs, targets) of a data set; `where` names its client."""
        pair = self._tensors(dataset, where)
        if pair is not None:
            return pair
        parts = [self.split(dataset[i], f"{where}, sample {i}") for i in range(len(dataset))]
        self._read_again(dataset, parts, where)
        if (name := random_transform(dataset)) and not self.changing:
            self.changing = f"{where}, whose transform {name} is random,"
        targets = [mask(y, f"{where}, sample {i}") for i, (_, y) in enumerate(parts)]
        return (
            gather([x for x, _ in parts], f"{where}: inputs"),
            gather(targets, f"{where}: targets"),
        )

    def _read_again(self, dataset: Any, parts: list[tuple[Any, Any]], where: str) -> None:
        """Note a sample that is another one when it is read again: a random transform."""
        some = min(len(parts), OF_EACH, READ_AGAIN - self.read_again)
        with keyed_draws(_SEED + self.read_again):
            for i in range(0 if self.changing else some):
                self.read_again += 1
                at = f"{where}, sample {i}"
                if not is_same(self.split(dataset[i], at), parts[i]):
                    self.changing = at
                    return

    def choose(self, sorts: dict[str, str]) -> Keys:
        if self.keys is None:
            self.keys = choose_keys(sorts, self.inputs, self.target)
        return self.keys

    # -- quickly, where there are tensors ----
    def _tensors(self, dataset: Any, where: str) -> tuple[Any, Any] | None:
        if self.sample is not None:
            return None
        if is_pair(dataset):
            return _column(dataset[0], f"{where}: inputs"), _labels(dataset[1])
        if type(dataset) is TensorDataset:
            if len(dataset.tensors) != 2:
                raise _not_a_pair(f"{where}, sample 0", dataset.tensors)
            return dataset.tensors[0], dataset.tensors[1]
        if type(dataset) is Subset:
            pair = self._tensors(dataset.dataset, where)
            if pair is not None:
                index = torch.as_tensor(np.asarray(list(dataset.indices), dtype=np.int64))
                return pair[0][index], _at(pair[1], index)
        if type(dataset) is ConcatDataset:
            pairs = [self._tensors(part, where) for part in dataset.datasets]
            columns = [pair for pair in pairs if pair is not None]
            if len(columns) == len(pairs):
                return join([x for x, _ in columns]), join([y for _, y in columns])
        return None

    # -- one sample ----
    def split(self, sample: Any, where: str) -> tuple[Any, Any]:
        """(input, target) of one sample."""
        if self.sample is not None:
            pair = self.sample(sample)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise SettingError(
                    f"sample must return (input, target), got {form_of(pair)} for {where}"
                )
            return pair[0], pair[1]
        if isinstance(sample, Mapping):
            return self._split_dict(sample, where)
        if isinstance(sample, (tuple, list)) and len(sample) == 2:
            return sample[0], sample[1]
        raise _not_a_pair(where, sample)

    def _split_dict(self, sample: Mapping, where: str) -> tuple[Any, Any]:
        keys = self.choose({str(key): _sort(value) for key, value in sample.items()})
        for key in (*keys.inputs, keys.target):
            if key not in sample:
                raise SettingError(f"{where} has no key {key!r}; it has {', '.join(sample)}")
        if keys.stacked:
            row = [float(sample[key]) for key in keys.inputs]
            return torch.tensor(row, dtype=torch.float32), sample[keys.target]
        if keys.alone:
            return sample[keys.inputs[0]], sample[keys.target]
        return {key: sample[key] for key in keys.inputs}, sample[keys.target]


def is_pair(value: Any) -> bool:
    """Whether it is a pair of arrays (inputs, targets), of all samples of a client."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    first, second = value
    if not is_array(first) or rows_of(first) < 0:
        return False
    return (is_array(second) or isinstance(second, list)) and rows_of(second) == rows_of(first)


def is_array(value: Any) -> bool:
    """Whether it is an array, a frame or a column of some library."""
    hugging_face = type(value).__module__.partition(".")[0] == "datasets"  # these have a shape too
    if hugging_face or isinstance(value, Dataset):
        return False
    sized = hasattr(value, "shape") and hasattr(value, "__len__")
    return isinstance(value, (Tensor, np.ndarray)) or sized or is_sparse(value)


# -- columns ---------------------------------------------------------------------------------------
def gather(values: list, where: str) -> Any:
    """A column, or a tree of them, from the values of all samples of a data set."""
    if not values:
        return []
    first = values[0]
    if isinstance(first, Mapping):
        for i, value in enumerate(values):
            if not isinstance(value, Mapping) or set(value) != set(first):
                raise SettingError(f"{where}: sample {i} has other keys than sample 0")
        return {str(k): gather([v[k] for v in values], f"{where}[{k!r}]") for k in first}
    if isinstance(first, tuple) or (isinstance(first, list) and _of_arrays(first)):
        for i, value in enumerate(values):
            if not isinstance(value, (tuple, list)) or len(value) != len(first):
                raise SettingError(f"{where}: sample {i} has another form than sample 0")
        return tuple(gather([v[j] for v in values], f"{where}[{j}]") for j in range(len(first)))
    if any(is_picture(v) for v in values):
        return Pictures(picture(v, f"{where}, sample {i}") for i, v in enumerate(values))
    if any(isinstance(v, str) for v in values):
        return [v.item() if isinstance(v, (Tensor, np.generic)) else v for v in values]
    tensors = [_tensor(v, f"{where}, sample {i}") for i, v in enumerate(values)]
    alike = all(t.shape == tensors[0].shape for t in tensors)
    return torch.stack(tensors) if alike else tensors


def join(columns: list) -> Any:
    """The same column of several data sets as one; trees part by part."""
    columns = [c for c in columns if not (isinstance(c, list) and not c)]
    first = columns[0]
    if any(_keys(c) != _keys(first) for c in columns):
        raise SettingError("clients: samples of different forms or keys; all clients must agree")
    if isinstance(first, dict):
        return {key: join([c[key] for c in columns]) for key in first}
    if isinstance(first, tuple):
        return tuple(join([c[i] for c in columns]) for i in range(len(first)))
    if all(isinstance(c, Pictures) for c in columns):
        return Pictures(v for c in columns for v in c)
    if all(isinstance(c, Tensor) and c.shape[1:] == first.shape[1:] for c in columns):
        return torch.cat(columns)
    text = any(isinstance(v, str) for c in columns if isinstance(c, list) for v in c)
    return [v for c in columns for v in (c.tolist() if text and isinstance(c, Tensor) else c)]


def _keys(column: Any) -> Any:
    """What two trees must share to be joined: keys of a dict, length of a tuple."""
    if isinstance(column, dict):
        return set(column)
    return len(column) if isinstance(column, tuple) else None


def finish(column: Any, owners: Callable[[int], str]) -> Any:
    """Pictures as one tensor, in one size and either grey or coloured; trees part by part."""
    if isinstance(column, dict):
        return {key: finish(c, owners) for key, c in column.items()}
    if isinstance(column, tuple):
        return tuple(finish(c, owners) for c in column)
    if not isinstance(column, Pictures):
        if isinstance(column, list) and all(isinstance(v, Tensor) for v in column):
            _check_shapes(column, owners)
        return column
    size = column[0].shape[1:]
    for i, p in enumerate(column):
        if p.shape[1:] != size:
            raise SettingError(
                f"{owners(i)}: a picture of {_pixels(p.shape[1:])} pixels; {owners(0)} has "
                f"{_pixels(size)}, and all must agree: resize them first"
            )
    if len({len(p) for p in column}) > 1:
        note("inputs: grey pictures among coloured ones are read as coloured")
        return torch.stack([p.expand(3, *size) for p in column])
    return torch.stack(list(column))


def _check_shapes(samples: list[Tensor], owners: Callable[[int], str]) -> None:
    """Samples may differ in their length, and in nothing else."""
    first = samples[0]
    for i, v in enumerate(samples):
        if v.dim() != first.dim() or v.shape[1:] != first.shape[1:]:
            raise SettingError(
                f"{owners(i)} has shape {tuple(v.shape)}, {owners(0)} {tuple(first.shape)}; "
                "samples may differ in their first axis only (sequences of different lengths)"
            )


def _pixels(size: Any) -> str:
    return f"{size[1]} x {size[0]}"


def _of_arrays(values: list) -> bool:
    return any(is_array(v) and rows_of(v) >= 0 for v in values)


def _column(values: Any, where: str) -> Any:
    array = read_array(values, where)
    if is_sparse(array):
        raise SettingError(
            f"{where} must be dense, got a sparse matrix; give all of them to "
            "Federation.from_arrays (scipy.sparse.vstack), or matrix.toarray()"
        )
    return to_tensor(array) if isinstance(array, (Tensor, np.ndarray)) else array.samples


def _labels(values: Any) -> Any:
    """Targets of a pair of arrays: a tensor of numbers, or a list."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return list(values)


def _at(column: Any, index: Tensor) -> Any:
    return [column[i] for i in index.tolist()] if isinstance(column, list) else column[index]


def is_same(a: Any, b: Any) -> bool:
    """Whether two samples, or parts of them, are equal.

    >>> is_same((np.array([1, np.nan]), "cat"), (np.array([1, np.nan]), "cat"))
    True
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, Tensor):
        close = a.is_floating_point() and a.shape == b.shape
        return torch.equal(a, b) or (close and torch.allclose(a, b, 0, 0, equal_nan=True))
    one, other = np.asarray(a), np.asarray(b)
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


# -- values ----------------------------------------------------------------------------------------
def _sort(value: Any) -> str:
    """What a value of a dict is, for the choice of keys."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return "number"
    if is_picture(value):
        return "array"
    if isinstance(value, (Tensor, np.ndarray)):
        return "array" if value.ndim else "number"
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], str):
        return "array"
    return "other"


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if value is None:
        raise SettingError(f"{where}: every sample needs a value, got None")
    try:
        array = value if isinstance(value, (bool, int, float)) else np.asarray(value)
        if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
            raise TypeError
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(
            f"{where} must be a tensor, an array, a number or a picture, got {form_of(value)}"
        ) from None


def _not_a_pair(where: str, sample: Any) -> SettingError:
    hint = "sample=, a function from a sample to (input, target), says what is what"
    if isinstance(sample, (tuple, list)) and len(sample) == 3:
        hint += ": sample=lambda s: ((s[0], s[2]), s[1])"
    return SettingError(
        f"{where} must be a pair (input, target) or a dict, got {form_of(sample)}. {hint}"
    )
