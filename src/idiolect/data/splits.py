"""Training, validation and test samples: drawn at random per client, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Knobs, SettingError, knob
from ..core.text import note
from .read.ids import is_missing, read_ids
from .redraw import SPLIT

SPLITS = ("train", "valid", "test")
ALIASES = {"validation": "valid", "val": "valid"}  # as other libraries call them


def offsets_of(sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where each client's samples begin, split by split, and where the last of them end."""
    offsets = {}
    start = 0
    for split in SPLITS:
        offsets[split] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes[split].cumsum(0)])
        offsets[split] += start
        start = int(offsets[split][-1])
    return offsets


@dataclass(frozen=True)
class Shares(Knobs):
    """How much of each client's data validates and tests."""

    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    test: float = knob(0.2, "share of each client's samples kept for testing", low=0, below=1)
    seed: int = knob(0, "seed of the split", low=0)

    seed_draws: ClassVar[str] = SPLIT

    def shares(self) -> dict[str, Any]:
        """The same as options of `Federation.from_arrays`."""
        return {"valid": self.valid, "test": self.test, "seed": self.seed}


def draw_split(
    client: np.ndarray,
    valid: float,
    test: float,
    seed: int,
    group: np.ndarray | None = None,
    time: np.ndarray | None = None,
) -> np.ndarray:
    """A split for each sample; 0, 1 and 2 stand for train, valid and test.

    Each client's n samples are shuffled: the first round(test n) are for testing, then round(valid
    rest) of the rest for validation; at least one sample trains. With `group` (a number per
    sample), whole groups are drawn instead, as many as come nearest to these shares. With `time`,
    the latest samples test and those before them validate; samples of one moment stay together,
    and groups are ordered by their first sample.

    >>> np.bincount(draw_split(np.zeros(315, dtype=int), 0.2, 0.2, seed=0)).tolist()
    [202, 50, 63]
    >>> patient = np.array([7, 7, 7, 8, 8, 9, 9, 9, 9, 9])
    >>> draw_split(np.zeros(10, dtype=int), 0.0, 0.5, 0, group=patient).tolist()
    [0, 0, 0, 0, 0, 2, 2, 2, 2, 2]
    >>> draw_split(np.zeros(4, dtype=int), 0.25, 0.25, 0, time=np.array([4, 1, 3, 2])).tolist()
    [2, 0, 1, 0]
    """
    if group is not None or time is not None:
        return _draw_whole_units(client, valid, test, seed, group, time)
    # clients together, shuffled within each
    order = np.lexsort((np.random.default_rng(seed).random(len(client)), client))
    sizes = np.bincount(client)
    rank = np.empty(len(client), dtype=np.int64)
    rank[order] = np.arange(len(client)) - np.repeat(sizes.cumsum() - sizes, sizes)
    tests = np.minimum(np.rint(test * sizes).astype(np.int64), sizes - 1)
    valids = np.minimum(np.rint(valid * (sizes - tests)).astype(np.int64), sizes - tests - 1)
    return np.where(rank < tests[client], 2, np.where(rank < (tests + valids)[client], 1, 0))


def _draw_whole_units(
    client: np.ndarray,
    valid: float,
    test: float,
    seed: int,
    group: np.ndarray | None,
    time: np.ndarray | None,
) -> np.ndarray:
    """The same for units of samples: groups, or the samples of a client at one moment.

    A group with samples of several clients is on one side in all of them: such groups are drawn
    together, and each client's own groups by themselves.
    """
    if group is not None:
        keys = group
    else:
        assert time is not None
        keys = np.stack([client, time], axis=1)
    _, unit = np.unique(keys, axis=0, return_inverse=True)
    unit = unit.reshape(-1)
    sizes = np.bincount(unit)
    owner = unit_owners(client, unit)
    order_key = np.random.default_rng(seed).random(len(sizes))
    if time is not None:
        first = np.full(len(sizes), np.inf)
        np.minimum.at(first, unit, time)
        order = np.lexsort((order_key, -first, owner))
    else:
        order = np.lexsort((order_key, owner))
    tests = _nearest_units(sizes[order], owner[order], test)
    rest = order[~tests]
    valids = _nearest_units(sizes[rest], owner[rest], valid)
    part = np.zeros(len(sizes), dtype=np.int64)
    part[order[tests]] = 2
    part[rest[valids]] = 1
    _leave_some_to_train(part, client, unit)
    return part[unit]


def unit_owners(client: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The client of each unit of samples; for units of several clients, the number of clients.

    >>> unit_owners(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2])).tolist()
    [0, 2, 1]
    """
    lowest = np.full(unit.max() + 1, np.iinfo(np.int64).max)
    highest = np.zeros_like(lowest)
    np.minimum.at(lowest, unit, client)
    np.maximum.at(highest, unit, client)
    return np.where(lowest == highest, lowest, client.max() + 1)


def _nearest_units(sizes: np.ndarray, owner: np.ndarray, share: float) -> np.ndarray:
    """Which units are taken, in their order, to come nearest to a share of each owner's samples.

    Units are together by owner; the last one of each is never taken.
    """
    if not len(sizes):
        return np.zeros(0, dtype=bool)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(starts, append=len(owner))
    ends = sizes.cumsum()
    before = np.repeat(ends[starts] - sizes[starts], counts)  # samples of earlier owners
    total = np.repeat(ends[starts + counts - 1], counts) - before
    is_last = np.zeros(len(owner), dtype=bool)
    is_last[starts + counts - 1] = True
    middle = ends - before - sizes / 2
    return (middle <= share * total + 1e-9) & ~is_last & (share > 0)


def _leave_some_to_train(part: np.ndarray, client: np.ndarray, unit: np.ndarray) -> None:
    """Give a unit back to training where all those of a client were drawn, in place.

    That happens only where its units are other clients' too.
    """
    trains = np.bincount(client[part[unit] == 0], minlength=client.max() + 1)
    for k in np.flatnonzero((trains == 0) & (np.bincount(client) > 0)):
        own = unit[client == k]
        if (part[own] != 0).all():  # an earlier client may have given one back
            part[own[np.argmin(part[own])]] = 0


def group_ranks(client: np.ndarray, group: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The place of each sample's group in a random order of its client's groups: for folds.

    `drawn` has a random number per sample, of which the first one of a group counts. Groups of
    several clients have a place in one order of their own, so that place modulo the number of
    folds is the same fold at every client.

    >>> client, patient = np.array([0, 0, 0, 1]), np.array([5, 6, 5, 7])
    >>> group_ranks(client, patient, np.array([0.9, 0.1, 0.5, 0.3])).tolist()
    [1, 0, 1, 0]
    """
    _, first, unit = np.unique(group, return_index=True, return_inverse=True)
    owner = unit_owners(client, unit)
    order = np.lexsort((drawn[first], owner))
    ordered = owner[order]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return rank[unit]


def fold_counts(
    client: np.ndarray, group: np.ndarray | None, clients: int, folds: int
) -> np.ndarray:  # -> int64[clients]
    """How many folds each client has: as many as samples or groups, at most `folds`.

    A client with two or more groups, one of which is another client's too, has `folds` of them, so
    that the group is held out at both under the same seed; some of its folds may then be empty.

    >>> fold_counts(np.array([0, 0, 0, 1]), np.array([5, 6, 5, 7]), 2, folds=5).tolist()
    [2, 1]
    """
    if group is None:
        return np.minimum(folds, np.bincount(client, minlength=clients))
    if not len(group):
        return np.zeros(clients, dtype=np.int64)
    _, unit = np.unique(group, return_inverse=True)
    pairs = np.unique(np.stack([client, unit]), axis=1)
    count = np.bincount(pairs[0], minlength=clients)
    is_shared = unit_owners(client, unit) > client.max()
    shares = np.bincount(pairs[0][is_shared[pairs[1]]], minlength=clients) > 0
    return np.where(shares & (count > 1), folds, np.minimum(folds, count))


def time_blocks(
    client: np.ndarray, time: np.ndarray, group: np.ndarray | None, most: int
) -> np.ndarray:  # -> int64[n]
    """The block of each sample where each client's samples are cut in the order of time.

    Up to `most` blocks of about as many samples each, numbered from 0. Samples of one moment stay
    together, and groups do, ordered by their first sample. Groups of several clients are cut
    together, so that each has one block everywhere.

    >>> day = np.array([3, 1, 2, 2, 5, 9])
    >>> time_blocks(np.array([0, 0, 0, 0, 0, 1]), day, None, most=3).tolist()
    [2, 0, 1, 1, 2, 0]
    """
    if not len(client):
        return np.zeros(0, dtype=np.int64)
    keys = np.stack([client, time], axis=1) if group is None else group
    _, unit = np.unique(keys, axis=0, return_inverse=True)
    unit = unit.reshape(-1)
    owner = unit_owners(client, unit)
    begins = np.full(len(owner), np.iinfo(np.int64).max)
    np.minimum.at(begins, unit, time)
    order = np.lexsort((begins, owner))
    owner, sizes = owner[order], np.bincount(unit)[order]
    first = np.searchsorted(owner, owner)  # the first unit of the same owner
    ends = sizes.cumsum()
    middle = ends - sizes / 2 - (ends - sizes)[first]
    cut = (middle * most / np.bincount(owner, sizes)[owner]).astype(np.int64)
    changes = (np.diff(cut, prepend=cut[:1]) != 0) | (np.diff(owner, prepend=owner[:1]) != 0)
    number = changes.cumsum()
    block = np.empty(len(order), dtype=np.int64)
    block[order] = number - number[first]  # without gaps, where a unit is larger than a block
    return block[unit]


def arranged(client: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The order of samples in a federation: by split, then by client, then as given."""
    return np.lexsort((np.arange(len(client)), client, part))


def read_groups(group: Any, n: int) -> np.ndarray:  # -> int64[n]
    """A number per sample from the user's group of each, of any type; all need one."""
    values = np.asarray(group)
    if values.ndim != 1 or len(values) != n:
        raise SettingError(
            f"group must be one entry per sample ({n}), got an array of shape {values.shape}"
        )
    missing = np.array([is_missing(value) for value in values.tolist()], dtype=bool)
    if missing.any():
        raise SettingError(
            f"group: sample {int(np.argmax(missing))} has none ({int(missing.sum()):,} in all); "
            "every sample needs one"
        )
    if values.dtype == object:
        values = np.array([f"{type(value).__name__} {value}" for value in values])
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def read_times(time: Any, n: int) -> np.ndarray:  # -> float64[n]
    """The time of each sample as a number, from numbers or dates; all need one."""
    values = np.asarray(time)
    if values.ndim != 1 or len(values) != n:
        raise SettingError(
            f"time must be one entry per sample ({n}), got an array of shape {values.shape}"
        )
    if values.dtype.kind not in "iufM":
        try:
            values = values.astype("datetime64[ns]")
        except (TypeError, ValueError):
            raise SettingError(
                f"time must be numbers or dates such as 2026-01-31, got {values[0]!r}"
            ) from None
    missing = np.isnat(values) if values.dtype.kind == "M" else ~np.isfinite(values)
    if missing.any():
        raise SettingError(
            f"time: sample {int(np.argmax(missing))} has none ({int(missing.sum()):,} in all); "
            "every sample needs one"
        )
    if values.dtype.kind == "M":
        values = values.astype("datetime64[ns]").astype(np.int64)
    return values.astype(np.float64)


def read_weights(weight: Any, n: int) -> np.ndarray:  # -> float64[n]
    """How much each sample counts: numbers > 0, one per sample.

    >>> read_weights([2, 0.5], 2).tolist()
    [2.0, 0.5]
    >>> read_weights([2, 0, 0], 3)
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: weight must be finite numbers > 0, got 0.0 for sample 1 \
(2 such samples in all); leave out samples that do not count
    """
    if isinstance(weight, Tensor):
        weight = weight.detach().cpu()
    values = np.asarray(weight)
    if values.ndim != 1 or len(values) != n:
        raise SettingError(
            f"weight must be one number per sample ({n}), got an array of shape {values.shape}"
        )
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise SettingError(f"weight must be numbers, got {values.tolist()[0]!r}") from None
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SettingError(
            f"weight must be finite numbers > 0, got {values[at]} for sample {at} "
            f"({int(wrong.sum()):,} such samples in all); leave out samples that do not count"
        )
    return values


def places_in_time(time: np.ndarray) -> np.ndarray:  # -> int64[n]
    """Times as whole numbers from 0 in the same order; one number for one moment."""
    return np.unique(time, return_inverse=True)[1].astype(np.int64).reshape(-1)


def split_samples(
    client: np.ndarray,
    split: Sequence[str] | np.ndarray | None,
    valid: float,
    test: float,
    seed: int,
    group: np.ndarray | None = None,
    time: np.ndarray | None = None,
) -> np.ndarray:
    """The user's split as numbers, or one that is drawn; groups on both sides are refused."""
    if split is None:
        return draw_split(client, valid, test, seed, group, time)
    if time is not None:
        raise SettingError("time must be left out with split, which says what is tested")
    part = read_split(split, len(client))
    if group is not None:
        pairs = np.unique(np.stack([group, part]), axis=1)[0]
        torn = int((np.bincount(pairs) > 1).sum())
        if torn:
            raise SettingError(
                f"split must have every group on one side, got {torn:,} groups with samples in "
                "several splits; leave out split or group"
            )
    return part


def read_split(split: Sequence[str] | np.ndarray, n: int) -> np.ndarray:
    """The user's "train", "valid" and "test" as 0, 1 and 2."""
    names = np.asarray(split).astype(str)
    if names.ndim != 1:
        raise SettingError(f"split must be one entry per sample, got shape {names.shape}")
    for alias, name in ALIASES.items():
        names = np.where(names == alias, name, names)
    if len(names) != n:
        raise SettingError(f"split: {len(names)} entries for {n} samples")
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise SettingError(f"split: {unknown[0]!r} is unknown; known: {', '.join(SPLITS)}")
    return np.select([names == s for s in SPLITS], range(3))


def complete_split(
    split: Sequence[str] | np.ndarray,
    clients: Any,
    valid: float,
    test: float,
    seed: int,
    group: Any = None,
) -> np.ndarray:  # -> text[n]
    """The split of each sample by name; a split that nobody has is drawn from training samples.

    `clients` has the client id of each sample, and `group` what stays on one side.
    """
    part = read_split(split, len(split))
    shares = {
        name: share
        for name, share in (("valid", valid), ("test", test))
        if share and SPLITS.index(name) not in part
    }
    if shares:
        words = " and ".join(f"{share:.0%} for {name}" for name, share in shares.items())
        note(f"split: there is no {' or '.join(shares)} part; of the training samples {words}")
        train = np.flatnonzero(part == 0)
        _, who = np.unique(read_ids(clients)[1][train], return_inverse=True)
        groups = None if group is None else read_groups(group, len(part))[train]
        part[train] = draw_split(
            who, shares.get("valid", 0.0), shares.get("test", 0.0), seed, groups
        )
    return np.array(SPLITS)[part]
