"""Who gets which sample: pure functions from labels to one client number per sample.

-1 stands for a sample that is left out. Each function first decides a matrix
`counts[classes, clients]`, then deals the shuffled samples of every class accordingly. So no sample
is given twice, and two partitions that decide the same counts are the same kind of federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.knobs import Knobs, SettingError, knob
from .redraw import PARTITION

TRIES = 1000  # draws of Dirichlet shares before giving up on `minimum`


def by_classes(
    labels: np.ndarray,
    clients: int,
    classes_per_client: int = 2,
    seed: int = 0,
    level: bool = True,
    uneven: bool = False,
) -> np.ndarray:
    """Every client holds exactly `classes_per_client` classes, as in the FedAvg and lp-proj papers.

    Each class is cut into shards; each client takes shards of different classes, from the classes
    with most shards left. `level` makes all shards equally large (the smallest class decides, the
    rest is left out), as for Table 3 of the lp-proj paper. `uneven` makes them unlike instead: all
    but one shard of a class are drawn between a tenth of an even share and an even share, and one
    has the rest, as in PFLlib's pathological setting.

    >>> labels = np.repeat([0, 1, 2, 3], 10)
    >>> client = by_classes(labels, clients=4, classes_per_client=2)
    >>> [len(np.unique(labels[client == k])) for k in range(4)]
    [2, 2, 2, 2]
    """
    number, have = _number(labels, clients)
    if not 1 <= classes_per_client <= len(have):
        raise SettingError(
            f"classes_per_client must be from 1 to {len(have)}, the classes of the data, "
            f"got {classes_per_client}"
        )
    rng = np.random.default_rng(seed)
    shard_count = clients * classes_per_client
    shards = np.full(len(have), shard_count // len(have))
    shards[rng.permutation(len(have))[: shard_count % len(have)]] += 1
    if (have < shards).any():
        c = int(np.argmax(shards - have))
        raise SettingError(
            f"clients: {clients} clients need {shards[c]} shards of a class "
            f"with {have[c]} samples; take fewer clients"
        )
    sizes = _shard_sizes(have, shards, level, rng if uneven else None)
    counts = np.zeros((len(have), clients), dtype=np.int64)
    for k in range(clients):  # fullest classes first, so the last client still finds different ones
        take = np.lexsort((rng.random(len(have)), -shards))[:classes_per_client]
        shards[take] -= 1
        counts[take, k] = sizes[take, shards[take]]
    return _deal(number, counts, rng)


def _shard_sizes(
    have: np.ndarray, shards: np.ndarray, level: bool, rng: np.random.Generator | None
) -> np.ndarray:  # -> int64[classes, most shards of a class]
    """How large each shard of each class is; drawn by `rng`, or as even as can be."""
    size, rest = np.divmod(have, np.maximum(shards, 1))
    place = np.arange(shards.max())
    if rng is not None:
        drawn = rng.integers(
            np.maximum(size // 10, 1)[:, None], size[:, None] + 1, (len(have), len(place))
        )
        drawn = np.where((place > 0) & (place < shards[:, None]), drawn, 0)
        drawn[:, 0] = have - drawn.sum(1)
        return drawn
    if level:
        return np.full((len(have), len(place)), size[shards > 0].min())
    return size[:, None] + (place < rest[:, None])


def dirichlet(
    labels: np.ndarray,
    clients: int,
    alpha: float = 0.5,
    seed: int = 0,
    minimum: int = 10,
    capped: bool = False,
) -> np.ndarray:
    """Each class is shared out by p ~ Dirichlet(alpha, ..., alpha).

    A small alpha gives few classes per client, a large one makes clients alike. Shares are drawn
    again until every client has `minimum` samples. With `capped` a client that has an even share
    of all samples gets none of the classes that follow, as in Wang et al. (2020) and PFLlib: sizes
    are then less unlike.

    >>> client = dirichlet(np.repeat([0, 1, 2], 100), clients=5, alpha=1.0)
    >>> bool(np.bincount(client).min() >= 10), len(client)
    (True, 300)
    """
    if not alpha > 0:
        raise SettingError(f"alpha must be a number > 0, got {alpha!r}")
    number, have = _number(labels, clients, minimum)
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(have))
        counts = _capped_counts(have, shares) if capped else _counts(have, shares)
        if counts.sum(0).min() >= max(minimum, 1):
            return _deal(number, counts, rng)
    raise SettingError(
        f"alpha: {alpha:g} left a client with fewer than {max(minimum, 1)} of {len(labels)} "
        f"samples in each of {TRIES} draws for {clients} clients; "
        "take a larger alpha, fewer clients or a smaller minimum"
    )


def _counts(have: np.ndarray, shares: np.ndarray) -> np.ndarray:  # -> int64[classes, clients]
    """Every class by its own shares."""
    return np.stack([allot(int(n), p) for n, p in zip(have, shares, strict=True)])


def _capped_counts(have: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Class after class, among the clients that have less than an even share so far."""
    even = have.sum() / shares.shape[1]
    counts = np.zeros(shares.shape, dtype=np.int64)
    for c, n in enumerate(have):
        open_clients = counts.sum(0) < even
        p = np.where(open_clients, shares[c], 0.0)
        counts[c] = allot(int(n), p if p.sum() > 0 else open_clients.astype(float))
    return counts


def quantity(
    labels: np.ndarray, clients: int, sigma: float = 1.0, seed: int = 0, minimum: int = 10
) -> np.ndarray:
    """Clients differ in size only: `minimum` each, the rest by log-normal shares.

    sigma 0 makes them equal.

    >>> np.bincount(quantity(np.zeros(100, dtype=int), clients=4, sigma=0.0)).tolist()
    [25, 25, 25, 25]
    """
    if not sigma >= 0:
        raise SettingError(f"sigma must be a number >= 0, got {sigma!r}")
    number, _ = _number(labels, clients, minimum)
    rng = np.random.default_rng(seed)
    least = max(minimum, 1)
    sizes = least + allot(len(number) - least * clients, rng.lognormal(0.0, sigma, clients))
    return _deal(np.zeros_like(number), sizes[None], rng)


def iid(labels: np.ndarray, clients: int, seed: int = 0) -> np.ndarray:
    """A random deal in equal parts: the federation without heterogeneity.

    >>> np.bincount(iid(np.arange(10) % 2, clients=3)).tolist()
    [4, 3, 3]
    """
    return quantity(labels, clients, sigma=0.0, seed=seed, minimum=1)


def mirror(
    labels: np.ndarray, clients: np.ndarray, others: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Deal `others` so that each class goes to the clients that hold it in `labels`, in proportion.

    This gives the test part of a data set to the clients of its training part; a class that no
    client holds is left out.

    >>> mirror(np.array([0, 0, 1]), np.array([0, 0, 1]), np.array([1, 0, 1, 0, 2])).tolist()
    [1, 0, 1, 0, -1]
    """
    many = int(clients.max()) + 1
    top = int(max(labels.max(), others.max())) + 1
    used = clients >= 0
    counts_held = np.bincount(labels[used] * many + clients[used], minlength=top * many)
    counts_held = counts_held.reshape(top, many)
    have = np.bincount(others, minlength=top)
    rng = np.random.default_rng(seed)
    counts = np.zeros_like(counts_held)
    for c in np.flatnonzero(counts_held.any(1)):
        order = rng.permutation(many)  # so that remainders do not always go to the first clients
        counts[c, order] = allot(int(have[c]), counts_held[c, order])
    return _deal(others, counts, rng)


def largest_clients(sizes: Mapping[Any, int], clients: int, minimum: int) -> list[Any]:
    """The `clients` clients with most samples (0: all), of those that have at least `minimum`.

    >>> largest_clients({"a": 3, "b": 1, "c": 5}, clients=1, minimum=2)
    ['c']
    """
    able = sorted(client for client, size in sizes.items() if size >= minimum)
    if not max(1, clients) <= len(able):
        raise SettingError(
            f"clients must be at most {len(able)}, got {clients}: {len(able)} of {len(sizes)} "
            f"have at least {minimum} samples"
        )
    return sorted(able, key=lambda client: -sizes[client])[:clients] if clients else able


def allot(n: int, shares: np.ndarray) -> np.ndarray:  # -> int64[len(shares)]
    """n things by shares, in whole numbers that add up to n (largest remainders).

    >>> allot(10, np.array([1.0, 1.0, 1.0])).tolist()
    [4, 3, 3]
    """
    exact = n * (shares / shares.sum())
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1
    return counts


def _number(labels: np.ndarray, clients: int, minimum: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Classes numbered 0, 1, ... without gaps, and how many samples each has.

    What cannot be dealt is refused.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise SettingError(
            f"labels must be one whole number per sample, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    if len(labels) and labels.min() < 0:
        raise SettingError(f"labels: class {labels.min()} is negative; classes are numbered from 0")
    if clients < 1:
        raise SettingError(f"clients must be a whole number >= 1, got {clients}")
    if clients * max(minimum, 1) > len(labels):
        raise SettingError(
            f"clients: {len(labels)} samples are too few for {clients} clients "
            f"with at least {max(minimum, 1)} each"
        )
    _, number = np.unique(labels, return_inverse=True)
    return number, np.bincount(number)


def _deal(number: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Give client k `counts[c, k]` random samples of class c; what is left over stays -1."""
    client = np.full(len(number), -1, dtype=np.int64)
    for c, row in enumerate(counts):
        who = np.repeat(np.arange(len(row)), row)
        client[rng.permutation(np.flatnonzero(number == c))[: len(who)]] = who
    return client


def partition_knob(default: str, where: str = "") -> Any:
    """The setting for who gets what, of everything that is dealt to clients."""
    return knob(
        default,
        f"who gets what{where}: a fixed number of classes, Dirichlet shares of each class, "
        "unequal sizes, or an even random deal",
        choices=("classes", "dirichlet", "quantity", "iid"),
    )


@dataclass(frozen=True)
class Partitioned(Knobs):
    """How one pool of labelled samples becomes many clients.

    >>> Partitioned(clients=2, partition="iid").assign(np.zeros(4, dtype=int)).tolist()
    [1, 1, 0, 0]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, partition in (("uneven", "classes"), ("capped", "dirichlet")):
            if getattr(self, name) and self.partition != partition:
                raise SettingError(
                    f"{name} must be false with partition {self.partition!r}, got True: it is "
                    f"about partition {partition!r}"
                )

    clients: int = knob(100, "number of clients", low=1)
    partition: str = partition_knob("classes")
    classes_per_client: int = knob(2, "classes of each client (partition classes)", low=1)
    level: bool = knob(True, "equal shards, cut to the smallest class (partition classes)")
    uneven: bool = knob(
        False,
        "in place of level: shards of a class drawn from a tenth of an even share to an even one, "
        "the last has the rest (partition classes)",
    )
    alpha: float = knob(
        0.5, "concentration; small: few classes per client (partition dirichlet)", above=0
    )
    capped: bool = knob(
        False,
        "a client that has an even share of all samples gets none of the classes that follow "
        "(partition dirichlet)",
    )
    sigma: float = knob(1.0, "log-normal spread of client sizes (partition quantity)", low=0)
    minimum: int = knob(10, "least samples of a client (partitions dirichlet and quantity)", low=1)
    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    seed: int = knob(0, "seed of the partition and of the split", low=0)

    seed_draws: ClassVar[str] = PARTITION

    def assign(self, labels: np.ndarray) -> np.ndarray:  # -> int64[n], -1: left out
        """A client number for every sample."""
        if self.partition == "classes":
            return by_classes(
                labels, self.clients, self.classes_per_client, self.seed, self.level, self.uneven
            )
        if self.partition == "dirichlet":
            return dirichlet(labels, self.clients, self.alpha, self.seed, self.minimum, self.capped)
        if self.partition == "quantity":
            return quantity(labels, self.clients, self.sigma, self.seed, self.minimum)
        return iid(labels, self.clients, self.seed)

    def deal(self, labels: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Clients, labels and arrays of the samples that are dealt to a client."""
        client = self.assign(labels)
        used = client >= 0
        return client[used], labels[used], *(array[used] for array in arrays)
