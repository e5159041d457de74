"""The user's arrays as tensors, and what is refused about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import SettingError


def to_tensor(values: Any, name: str) -> Tensor:
    """An array as a tensor: floating inputs as float32 unless they are a tensor already."""
    if isinstance(values, Tensor):
        t = values.detach()
    else:
        array = np.asarray(values)
        if array.dtype == object or array.dtype.kind in "US":
            raise SettingError(f"{name}: {array.dtype} values are not accepted; give numbers")
        # a read-only array (a column of a data frame) is copied
        t = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if t.dtype == torch.float64:
        t = t.to(torch.float32) if name == "inputs" and not isinstance(values, Tensor) else t
    kept = (torch.uint8, torch.int16, torch.int32, torch.int64)
    if not t.is_floating_point() and (name == "targets" or t.dtype not in kept):
        t = t.to(torch.int64)
    return t


def check_arrays(x: Tensor, y: Tensor, ids: int) -> None:
    """Refuse inputs and targets that do not fit each other and the number of client ids."""
    if ids == 0:
        raise SettingError(
            "clients: an empty list was given; at least one sample with a client id is needed"
        )
    if not len(x) == len(y) == ids:
        raise SettingError(
            f"inputs, targets and clients differ in length: {len(x)}, {len(y)}, {ids}"
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).nonzero()[0, 0])
        raise SettingError(
            f"inputs: sample {bad} holds NaN or infinity; only finite features are accepted"
        )
    if y.is_floating_point():
        if not bool(torch.isfinite(y).all()):
            raise SettingError("targets: NaN or infinity found; only finite targets are accepted")
    elif int(y.min()) < 0:
        raise SettingError(
            f"targets: class {int(y.min())} is negative; classes are numbered from 0"
        )


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise SettingError(f"{name}: {share!r} is not accepted; a share in [0, 1)")


def count_classes(y: Tensor, classes: int | None) -> int:
    """The number of classes, given or found; 0 for a regression."""
    if y.is_floating_point():
        return 0
    found = int(y.max()) + 1
    if classes is not None and found > classes:
        raise SettingError(
            f"targets: class {found - 1} lies outside the {classes} classes; "
            f"accepted: 0 to {classes - 1}"
        )
    return classes or found
