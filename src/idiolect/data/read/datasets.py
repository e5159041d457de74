"""One data set per client as arrays: torch data sets, lists of samples, Hugging Face, Flower.

Neither `datasets` nor flwr-datasets is imported here: whoever has such an object has loaded it.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...core.knobs import SettingError
from ...core.text import note, shown, warn
from ..splits import ALIASES, SPLITS, complete_split
from .ids import read_ids
from .pictures import Pictures, mask, picture
from .samples import SampleReader, finish, gather, is_array, is_pair, join

Division = dict[str, Any]  # split -> data set; "" for a data set that is not divided


def read_datasets(
    datasets: Iterable[Any] | Mapping[Any, Any],
    inputs: str | Sequence[str] | None,
    target: str | None,
    sample: Callable[[Any], tuple[Any, Any]] | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The arguments of `Federation.from_arrays`."""
    reader = SampleReader(inputs, target, sample)
    clients = _divide(_by_id(datasets))
    sizes = []
    owners = []
    splits = []
    columns = []
    for client, division in clients.items():
        for split, dataset in division.items():
            where = f"client {shown(client, 60)!r}" + (f" ({split})" if split else "")
            size = len(dataset[1]) if is_pair(dataset) else len(dataset)
            if size:
                columns.append(_read(dataset, reader, where))
                sizes.append(size)
                owners.append(client)
                splits.append(split)
    if not columns:
        raise SettingError("clients: none of the data sets has a sample")
    if reader.changing:
        warn(
            f"{reader.changing} is another one when it is read again, as by a random transform; "
            "every sample is read once and stays as it was read. For augmentation that is drawn "
            "anew leave it out and give the run augment='crop(padding=4) + flip', or transform "
            "inputs in the model's forward while self.training is true"
        )
    empty = [repr(shown(c, 60)) for c in clients if c not in set(owners)]
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        note(f"clients: left out, as they have no sample: {', '.join(empty[:5])}{more}")
    ends = list(accumulate(sizes))

    def owner(i: int) -> str:
        k = bisect_right(ends, i)
        return f"client {shown(owners[k], 60)!r}, sample {i - ends[k] + sizes[k]}"

    targets, names = _targets([y for _, y, _ in columns], [names for _, _, names in columns])
    who = [client for client, size in zip(owners, sizes, strict=True) for _ in range(size)]
    if any(splits):
        if options.get("split") is not None:
            raise SettingError("split must be left out for data sets that are divided already")
        shares = {s: options.get(s, 0.2) for s in ("valid", "test")}
        seed = options.get("seed", 0)
        names_of_splits = np.repeat(splits, sizes)
        group = options.get("group")
        complete = complete_split(names_of_splits, who, **shares, seed=seed, group=group)
        options = options | {"split": complete}
    if names and "class_names" not in options:
        options = options | {"class_names": names}
    return {
        "inputs": finish(join([x for x, _, _ in columns]), owner),
        "targets": finish(targets, owner),
        "clients": who,
        **options,
    }


# -- who has which data set ------------------------------------------------------------------------
def _by_id(datasets: Any) -> dict[Any, Any]:
    """Client id -> what the user gave for it."""
    hint = "a dict or a list with one data set per client"
    if isinstance(datasets, type):
        raise SettingError(f"datasets must be {hint}, got the class {datasets.__name__}")
    if is_partitioner(datasets):
        return partitions(datasets)
    if isinstance(datasets, (Dataset, DataLoader)) or is_hub(datasets) or is_array(datasets):
        raise SettingError(
            f"datasets must be {hint}, got one {type(datasets).__name__} "
            "(one pool is dealt to clients by Federation.from_arrays and idiolect.data.partition)"
        )
    if isinstance(datasets, Mapping):
        splits = {ALIASES.get(k, k) for k in datasets if isinstance(k, str)}
        if len(splits) == len(datasets) and "train" in splits and splits <= set(SPLITS):
            raise SettingError(
                f"datasets must have client ids as keys, got {', '.join(map(repr, datasets))}; "
                "give {'client': {'train': ..., 'test': ...}}"
            )
        by_id = dict(datasets)
    elif isinstance(datasets, str) or not isinstance(datasets, Iterable):
        raise SettingError(f"datasets must be {hint}, got a {type(datasets).__name__}")
    else:
        by_id = {f"{k:05d}": dataset for k, dataset in enumerate(datasets)}
    if not by_id:
        raise SettingError("datasets must have at least one client, got none")
    for key in by_id:
        if key is None or key != key:
            raise SettingError(f"datasets must have client ids as keys, got {key}")
    read_ids(list(by_id))  # refused before anything is read
    return by_id


def _divide(by_id: dict[Any, Any]) -> dict[Any, Division]:
    clients = {client: _divisions(dataset, client) for client, dataset in by_id.items()}
    divided = [bool(set(d) - {""}) for d in clients.values()]
    if any(divided) and not all(divided):
        whole = list(clients)[divided.index(False)]
        raise SettingError(
            f"client {whole!r}: its data set is not divided into train and test, those of other "
            "clients are; divide all or none"
        )
    for client, division in clients.items():
        for dataset in division.values():
            _check(dataset, client)
    return clients


def _divisions(dataset: Any, client: Any) -> Division:
    if isinstance(dataset, Mapping):
        division: Division = {ALIASES.get(str(k), str(k)): part for k, part in dataset.items()}
        unknown = [key for key in division if key not in SPLITS]
        if unknown:
            raise SettingError(
                f"client {client!r}: the key {unknown[0]!r} is unknown; "
                f"a dict names splits: {', '.join(SPLITS)}"
            )
        return division
    several = isinstance(dataset, tuple) and len(dataset) in (2, 3) and not is_pair(dataset)
    if several and all(
        isinstance(part, (Dataset, list)) or is_hub(part) or is_pair(part) for part in dataset
    ):
        names = SPLITS if len(dataset) == 3 else ("train", "test")
        return dict(zip(names, dataset, strict=True))
    return {"": dataset}


def _check(dataset: Any, client: Any) -> None:
    """Refuse what is no data set, by the name of the client."""
    where = f"client {shown(client, 60)!r}"
    if isinstance(dataset, type):
        raise SettingError(f"{where} must be a data set, got the class {dataset.__name__}")
    if isinstance(dataset, IterableDataset) or is_streamed(dataset):
        raise SettingError(
            f"{where} must be a data set with a length and an index, got one that can only be "
            "iterated; give list(dataset)"
        )
    if isinstance(dataset, DataLoader):
        raise SettingError(f"{where} must be a data set, got a DataLoader; give its .dataset")
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_pair(dataset) and (not sized or is_array(dataset) or isinstance(dataset, str)):
        raise SettingError(
            f"{where} must be a data set of samples (input, target), or a pair of arrays "
            f"(inputs, targets), got a {type(dataset).__name__}"
        )


# -- their samples ---------------------------------------------------------------------------------
def _read(dataset: Any, reader: SampleReader, where: str) -> tuple[Any, Any, tuple[str, ...]]:
    if is_hub(dataset):
        return read_columns(dataset, reader, where)
    return (*reader.read(dataset, where), ())


def _targets(columns: list, names: list[tuple[str, ...]]) -> tuple[Any, tuple[str, ...]]:
    """All targets, and the names of the classes where all data sets have the same."""
    if not any(names):
        return join(columns), ()
    if all(n == names[0] for n in names):
        return join(columns), names[0]
    if any(not isinstance(c, Tensor) or c.dim() != 1 for c in columns):
        raise SettingError("clients: their class labels have different names; all must agree")
    return join([_named(c, own) for c, own in zip(columns, names, strict=True)]), ()


def _named(column: Tensor, names: tuple[str, ...]) -> list:
    if names and int(column.min()) < 0:
        raise SettingError(
            f"targets: class {int(column.min())} is negative; "
            "it stands for samples without a label: leave them out"
        )
    return [names[k] for k in column.tolist()] if names else column.tolist()


# -- Hugging Face data sets column by column, partitions of flwr-datasets --------------------------
SORTS = {
    "ClassLabel": "number",
    "Image": "array",
    "List": "array",
    "LargeList": "array",
    "Sequence": "array",
    "Array2D": "array",
    "Array3D": "array",
    "Array4D": "array",
    "Array5D": "array",
}


def is_hub(value: Any) -> bool:
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, getattr(library, "Dataset", ()))


def is_streamed(value: Any) -> bool:
    library = sys.modules.get("datasets")
    if library is None:
        return False
    streams = ("IterableDataset", "IterableDatasetDict")
    return isinstance(value, tuple(getattr(library, s) for s in streams if hasattr(library, s)))


def is_partitioner(value: Any) -> bool:
    return hasattr(value, "load_partition") and not isinstance(value, type)


def partitions(value: Any) -> dict[Any, Any]:
    """Client id -> data set, or splits of it, of a partitioner or a FederatedDataset."""
    if not hasattr(value, "partitioners"):  # one partitioner
        first = value.load_partition(0)
        names = getattr(value, "partition_id_to_natural_id", {})
        return {
            names.get(k, k): value.load_partition(k) if k else first
            for k in range(value.num_partitions)
        }
    clients: dict[Any, dict[str, Any]] = {}
    for split, partitioner in value.partitioners.items():
        first = value.load_partition(0, split)
        for k in range(partitioner.num_partitions):
            part = value.load_partition(k, split) if k else first
            clients.setdefault(k, {})[split] = part
    return clients


def read_columns(
    dataset: Any, reader: SampleReader, where: str
) -> tuple[Any, Any, tuple[str, ...]]:
    """Columns (inputs, targets) and the names of the classes, () without a ClassLabel."""
    features = dataset.features
    if reader.sample is not None or dataset.format["type"] == "custom":  # a transform
        x, y = reader.read(dataset, where)
        return x, y, _names(features.get(reader.keys.target) if reader.keys else None)
    keys = reader.choose({name: _sort(feature) for name, feature in features.items()})
    for key in (*keys.inputs, keys.target):
        if key not in features:
            raise SettingError(f"{where} has no column {key!r}; it has {', '.join(features)}")
    y = _column(dataset, keys.target, f"{where}: {keys.target!r}", masks=True)
    names = _names(features[keys.target])
    columns = {key: _column(dataset, key, f"{where}: {key!r}") for key in keys.inputs}
    if keys.stacked:
        return torch.stack([c.to(torch.float32) for c in columns.values()], 1), y, names
    return (columns[keys.inputs[0]] if keys.alone else columns), y, names


def _names(feature: Any) -> tuple[str, ...]:
    """The names of a ClassLabel, or of a list of them (a label per word)."""
    inner = getattr(feature, "feature", feature)
    return tuple(getattr(inner, "names", None) or ())


def _sort(feature: Any) -> str:
    kind = type(feature).__name__
    if kind == "Value":
        if "string" in feature.dtype:
            return "text"
        number = feature.dtype.startswith(("int", "uint", "float", "bool"))
        return "number" if number else "other"
    return SORTS.get(kind, "other")


def _column(dataset: Any, key: str, where: str, masks: bool = False) -> Any:
    feature = dataset.features[key]
    only = dataset.select_columns([key])
    if type(feature).__name__ == "Image":
        rows = only.with_format(None)
        if masks:
            classes = [mask(rows[i][key], f"{where}, row {i}") for i in range(len(rows))]
            return gather(classes, where)
        return Pictures(picture(rows[i][key], f"{where}, row {i}") for i in range(len(rows)))
    if type(feature).__name__ == "Value" and "string" in feature.dtype:
        return list(only.with_format(None)[:][key])
    try:
        array = np.asarray(only.with_format("numpy")[:][key])
    except ValueError:  # lists beside missing values
        array = np.empty(0, dtype=object)
    if array.dtype == object:  # lists of different lengths
        return gather(only.with_format(None)[:][key], where)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
