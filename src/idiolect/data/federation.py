"""A federation: one tensor for the whole data set, clients as index ranges of it.

Rows are ordered by split, then by client, so that the training, validation and test data of all clients are three slices and
a client's part is a range: `inputs[offsets["train"][k] : offsets["train"][k + 1]]` is what client k trains on. Nothing is stored
per client or per sample in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import SettingError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Federation:
    """N clients' data. Make one with `from_arrays`, `from_frame`, `from_datasets` or `idiolect.data.load`."""

    inputs: Tensor  # [n, ...] features (floating) or tokens (integers)
    targets: Tensor  # [n] or [n, ...]: class numbers (int64) or real values (floating)
    offsets: dict[str, Tensor]  # split -> int64[N + 1], positions in `inputs`
    names: tuple[str, ...]  # N client names, in order
    classes: int  # number of classes; 0 for regression
    name: str = "arrays"

    @property
    def clients(self) -> int:
        return len(self.names)

    def sizes(self, split: str) -> Tensor:  # -> int64[N]
        return self.offsets[split].diff()

    def part(self, client: int, split: str) -> tuple[Tensor, Tensor]:
        """The data of one client: (inputs, targets)."""
        low, high = self.offsets[split][client].item(), self.offsets[split][client + 1].item()
        return self.inputs[low:high], self.targets[low:high]

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Federation:
        """The same data on a device; floating inputs and targets in `dtype`, class numbers and tokens unchanged."""

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype)

        return replace(self, inputs=move(self.inputs), targets=move(self.targets))

    def fingerprint(self) -> str:
        """SHA-256 over data, ranges and names: what a resumed run checks."""
        digest = hashlib.sha256()
        for t in (self.inputs, self.targets, *(self.offsets[s] for s in SPLITS)):
            digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
            digest.update(
                t.detach().cpu().contiguous().view(torch.uint8).numpy().data if t.numel() else b""
            )
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()

    def class_counts(self, split: str = "train") -> Tensor:  # -> int64[N, classes]
        """Who has what: samples of each class at each client."""
        if not self.classes:
            raise SettingError(
                f"class counts: {self.name!r} is a regression data set; only classes can be counted"
            )
        sizes, offsets = self.sizes(split), self.offsets[split]
        labels = self.targets[int(offsets[0]) : int(offsets[-1])]
        labels = labels.flatten(1) if labels.dim() > 1 else labels.unsqueeze(1)
        client = (
            torch.repeat_interleave(torch.arange(self.clients), sizes)
            .unsqueeze(1)
            .expand_as(labels)
        )
        cell = client * self.classes + labels.cpu()
        return torch.bincount(cell.flatten(), minlength=self.clients * self.classes).view(
            self.clients, self.classes
        )

    def majority_hits(self, split: str = "test") -> Tensor:  # -> int64[N]
        """Samples that each client gets right by always answering its most frequent training class."""
        return (
            self.class_counts(split)
            .gather(1, self.class_counts("train").argmax(1, keepdim=True))
            .squeeze(1)
        )

    @classmethod
    def from_arrays(
        cls,
        inputs: Any,
        targets: Any,
        clients: Sequence | np.ndarray | Tensor,
        *,
        split: Sequence[str] | np.ndarray | None = None,
        classes: int | None = None,
        valid: float = 0.2,
        test: float = 0.2,
        seed: int = 0,
        name: str = "arrays",
    ) -> Federation:
        """From features, targets and a client id per sample.

        `split` names each sample's part ("train", "valid" or "test"). Without it, `test` of each client's samples are drawn at
        random for testing, then `valid` of the rest for validation (the papers' 80/20, twice). `classes` is the number of
        classes (found from the targets otherwise; real-valued targets make a regression).

        >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], ["a", "a", "b", "b"], valid=0, test=0.5)
        >>> f.names, f.sizes("train").tolist(), f.sizes("test").tolist()
        (('a', 'b'), [1, 1], [1, 1])
        """
        x, y = _tensor(inputs, "inputs"), _tensor(targets, "targets")
        ids = _ids(clients)
        _check(x, y, ids, valid, test)
        names, client = np.unique(ids, return_inverse=True)
        part = (
            draw_split(client, valid, test, seed) if split is None else _read_split(split, len(ids))
        )
        order = np.lexsort(
            (np.arange(len(ids)), client, part)
        )  # by split, then client, then as given
        counts = np.bincount(part * len(names) + client, minlength=3 * len(names)).reshape(
            3, len(names)
        )
        ends = np.concatenate([[0], counts.ravel().cumsum()])
        offsets = {
            s: torch.from_numpy(ends[i * len(names) : (i + 1) * len(names) + 1].copy())
            for i, s in enumerate(SPLITS)
        }
        index = torch.from_numpy(order)
        return cls(
            x[index],
            y[index],
            offsets,
            tuple(str(n) for n in names),
            _count_classes(y, classes),
            name,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str,
        split: str | None = None,
        kind: str = "auto",
        **options: Any,
    ) -> Federation:
        """From a pandas or polars data frame: one column of client ids, one of targets, the rest numeric features.

        `kind` says what the target is: "classes" (numbered in sorted order), "values" (a regression) or "auto": fractions are
        values, whole numbers are class numbers as they stand, anything else names classes.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"site": ["x", "x", "y"], "age": [40, 50, 60], "ill": ["no", "yes", "no"]})
        >>> f = Federation.from_frame(frame, client="site", target="ill", valid=0, test=0)
        >>> f.names, f.classes, f.targets.tolist()
        (('x', 'y'), 2, [0, 1, 0])
        """
        columns = [str(c) for c in frame.columns]
        for role, column in (("client", client), ("target", target), ("split", split)):
            if column is not None and column not in columns:
                raise SettingError(
                    f"{role}: column {column!r} is not in the table; its columns: {', '.join(columns)}"
                )
        features = [c for c in columns if c not in (client, target, split)]
        table = {c: frame[c].to_numpy() for c in columns}
        for c in features:
            if not np.issubdtype(table[c].dtype, np.number) and table[c].dtype != bool:
                raise SettingError(
                    f"column {c!r} holds {table[c].dtype}, not numbers; encode or drop it first"
                )
        if not features:
            raise SettingError(f"the table has no feature columns beside {client!r} and {target!r}")
        y = _targets(table[target], target, kind)
        x = np.stack([np.asarray(table[c], dtype=np.float32) for c in features], axis=1)
        parts = None if split is None else table[split]
        return cls.from_arrays(x, y, table[client], split=parts, **options)

    @classmethod
    def from_datasets(cls, datasets: Iterable[Any] | dict[str, Any], **options: Any) -> Federation:
        """From torch data sets of (input, target) pairs, one per client (a dict gives the clients names)."""
        named = (
            datasets
            if isinstance(datasets, dict)
            else {f"{k:05d}": d for k, d in enumerate(datasets)}
        )
        if not named:
            raise SettingError("clients: an empty list was given; at least one client is needed")
        inputs, targets, ids = [], [], []
        for client, dataset in named.items():
            for i in range(len(dataset)):  # once, at loading
                x, y = dataset[i]
                inputs.append(torch.as_tensor(x))
                targets.append(torch.as_tensor(y))
                ids.append(client)
        if not inputs:
            raise SettingError("clients: none of the data sets has a sample")
        return cls.from_arrays(torch.stack(inputs), torch.stack(targets), np.array(ids), **options)


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        t = values.detach()
    else:
        array = np.asarray(values)
        if array.dtype == object or array.dtype.kind in "US":
            raise SettingError(f"{name}: {array.dtype} values are not accepted; give numbers")
        t = torch.from_numpy(
            np.require(array, requirements=["C", "W"])
        )  # a read-only array (a frame's column) is copied
    if t.dtype == torch.float64:
        t = t.to(torch.float32) if name == "inputs" and not isinstance(values, Tensor) else t
    kept = (torch.uint8, torch.int16, torch.int32, torch.int64)
    if not t.is_floating_point() and (name == "targets" or t.dtype not in kept):
        t = t.to(torch.int64)
    return t


def _targets(column: np.ndarray, name: str, kind: str) -> np.ndarray:
    """A target column as class numbers or real values."""
    if kind not in ("auto", "classes", "values"):
        raise SettingError(f"kind: {kind!r} is not accepted; one of 'auto', 'classes', 'values'")
    missing = (
        column != column
        if column.dtype != object
        else np.array([v is None or v != v for v in column], dtype=bool)
    )
    if missing.any():
        raise SettingError(
            f"target: row {int(np.argmax(missing))} of column {name!r} is empty; every sample needs a target"
        )
    numeric = np.issubdtype(column.dtype, np.number)
    if kind == "values":
        if not numeric:
            raise SettingError(
                f"target: column {name!r} holds {column.dtype}, not numbers; a regression needs numbers"
            )
        return column.astype(np.float32)
    if kind == "auto" and numeric:
        return column
    return np.unique(column if numeric else column.astype(str), return_inverse=True)[
        1
    ]  # numbered in sorted order


def _ids(clients: Any) -> np.ndarray:
    """Client ids as whole numbers or text; an empty one is refused, not taken for a client called "nan"."""
    ids = np.asarray(clients)
    if ids.ndim != 1:
        raise SettingError(
            f"clients: an array of shape {ids.shape} is not accepted; one client id per sample"
        )
    if ids.dtype == object:
        missing = np.array([i is None or i != i for i in ids], dtype=bool)
    else:
        missing = ids != ids  # NaN
    if missing.any():
        raise SettingError(f"clients: sample {int(np.argmax(missing))} has no client id")
    return ids.astype(str) if ids.dtype == object else ids


def _check(x: Tensor, y: Tensor, ids: np.ndarray, valid: float, test: float) -> None:
    if len(ids) == 0:
        raise SettingError(
            "clients: an empty list was given; at least one sample with a client id is needed"
        )
    if not len(x) == len(y) == len(ids):
        raise SettingError(
            f"inputs, targets and clients differ in length: {len(x)}, {len(y)}, {len(ids)}"
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = (
            int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0])
            if x.dim() > 1
            else int((~torch.isfinite(x)).nonzero()[0])
        )
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
    for name, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:
            raise SettingError(f"{name}: {share!r} is not accepted; a share in [0, 1)")


def _count_classes(y: Tensor, classes: int | None) -> int:
    if y.is_floating_point():
        return 0
    found = int(y.max()) + 1
    if classes is not None and found > classes:
        raise SettingError(
            f"targets: class {found - 1} lies outside the {classes} classes; accepted: 0 to {classes - 1}"
        )
    return classes or found


def draw_split(client: np.ndarray, valid: float, test: float, seed: int) -> np.ndarray:
    """Per client: the first round(test n) of a random order are tests, then round(valid rest) validation; one sample at least trains.

    0, 1 and 2 stand for train, valid and test.

    >>> np.bincount(draw_split(np.zeros(315, dtype=int), 0.2, 0.2, seed=0)).tolist()
    [202, 50, 63]
    """
    order = np.lexsort(
        (np.random.default_rng(seed).random(len(client)), client)
    )  # clients together, shuffled within
    sizes = np.bincount(client)
    rank = np.empty(len(client), dtype=np.int64)
    rank[order] = np.arange(len(client)) - np.repeat(sizes.cumsum() - sizes, sizes)
    tests = np.minimum(np.rint(test * sizes).astype(np.int64), sizes - 1)
    valids = np.minimum(np.rint(valid * (sizes - tests)).astype(np.int64), sizes - tests - 1)
    return np.where(rank < tests[client], 2, np.where(rank < (tests + valids)[client], 1, 0))


def _read_split(split: Sequence[str] | np.ndarray, n: int) -> np.ndarray:
    names = np.asarray(split).astype(str)
    if len(names) != n:
        raise SettingError(f"split: {len(names)} entries for {n} samples")
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise SettingError(f"split: {unknown[0]!r} is unknown; known: {', '.join(SPLITS)}")
    return np.select([names == s for s in SPLITS], range(3))
