"""Subgroups of samples (sex, region, age band) that figures are given for: a label per sample.

Unlike groups they decide nothing about splits, and unlike roles of columns they may be inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.text import shown
from .read.ids import is_missing

MOST_VALUES = 20  # of a column; more are no subgroups
MISSING = "missing"  # the subgroup of samples without a value
DEFAULT = "subgroup"  # the name of a column that has none


@dataclass(frozen=True)
class Subgroups:
    """One column of subgroups: what they are called, and which one each sample is of."""

    name: str  # "sex"
    labels: tuple[str, ...]  # ("f", "m", "missing")
    codes: Tensor  # int64[n], positions in `labels`

    def map(self, function: Callable[[Tensor], Tensor]) -> Subgroups:
        """The same column of other samples."""
        return replace(self, codes=function(self.codes))


def read_subgroups(subgroup: Any, n: int) -> tuple[Subgroups, ...]:
    """Columns from an entry per sample, or from a dict of such columns by name.

    >>> (sex,) = read_subgroups({"sex": ["m", "f", None, "f"]}, 4)
    >>> sex.labels, sex.codes.tolist()
    (('f', 'm', 'missing'), [1, 0, 2, 0])
    """
    if subgroup is None:
        return ()
    if isinstance(subgroup, Mapping) or hasattr(subgroup, "columns"):
        columns = {str(name): subgroup[name] for name in subgroup}
        if not columns:
            raise SettingError("subgroup must have at least one column, got none")
    else:
        columns = {str(getattr(subgroup, "name", None) or DEFAULT): subgroup}
    return tuple(read_column(name, values, n) for name, values in columns.items())


def read_column(name: str, values: Any, n: int) -> Subgroups:
    """A column by its values: text, booleans, or numbers of which there are few."""
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1 or len(array) != n:
        raise SettingError(
            f"subgroup must be one entry per sample ({n}), got {name!r} of shape {array.shape}"
        )
    entries = [None if is_missing(value) else _plain(value) for value in array.tolist()]
    distinct = {value for value in entries if value is not None} - {MISSING}
    if len(distinct) > MOST_VALUES:
        numeric = all(isinstance(value, int | float) for value in distinct)
        advice = "make bands of it (age: 18-39, 40-64, 65+)" if numeric else "merge the rarer ones"
        raise SettingError(
            f"subgroup must be a column of at most {MOST_VALUES} values, got {name!r} with "
            f"{len(distinct):,}; {advice}"
        )
    texts = {value: shown(value) for value in sorted(distinct, key=_order)}
    labels = list(dict.fromkeys(texts.values()))
    if any(value in (None, MISSING) for value in entries):
        labels.append(MISSING)
    place = {label: code for code, label in enumerate(labels)}
    code_of = {value: place[text] for value, text in texts.items()}
    code_of |= dict.fromkeys((None, MISSING), place.get(MISSING, 0))
    codes = np.fromiter((code_of[value] for value in entries), np.int64, n)
    return Subgroups(name, tuple(labels), torch.from_numpy(codes))


def _plain(value: Any) -> Any:
    """A value by which it can be told from others: whole numbers as such, other things as text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers in their order, before text in that of the alphabet."""
    return isinstance(value, str), value
