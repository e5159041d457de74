"""Data sets of the Hugging Face library `datasets`, column by column; partitions of flwr-datasets.

Neither library is imported here: whoever has such an object has loaded it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from ..core.knobs import SettingError
from .samples import Pictures, Reader, gather, mask, picture

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
        own = getattr(value, "partition_id_to_natural_id", {})
        many = range(value.num_partitions)
        return {own.get(k, k): value.load_partition(k) if k else first for k in many}
    found: dict[Any, dict[str, Any]] = {}
    for split, partitioner in value.partitioners.items():
        first = value.load_partition(0, split)
        for k in range(partitioner.num_partitions):
            part = value.load_partition(k, split) if k else first
            found.setdefault(k, {})[split] = part
    return found


def read_columns(dataset: Any, reader: Reader, where: str) -> tuple[Any, Any, tuple[str, ...]]:
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
        return "text" if "string" in feature.dtype else _number(feature.dtype)
    return SORTS.get(kind, "other")


def _number(dtype: str) -> str:
    return "number" if dtype.startswith(("int", "uint", "float", "bool")) else "other"


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
