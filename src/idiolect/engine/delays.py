"""How long clients take, for simulated time: one delay per piece of work, in any unit.

A delay covers the way down, the training and the way up. It is keyed by the client's name and by
how often it has started before, so that nobody else changes it.

>>> import numpy as np
>>> names = streams.name_keys(["a", "b"])
>>> parse_delays("constant(mean=2)").draw(0, names, np.zeros(2)).tolist()
[2.0, 2.0]
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core import streams
from ..core.files import regular_file
from ..core.knobs import Knobs, OtherThan, SettingError, knob
from ..core.registry import PartTable
from ..core.streams import Keys

MOST = 10_000_000  # delays of a trace


@dataclass(frozen=True)
class Delays(Knobs):
    """The interface: `unit` draws delays of mean 1, which `mean` and each client's speed scale."""

    mean: float = knob(1.0, "the mean delay of the mean client", above=0)
    spread: float = knob(
        0.0,
        "how unlike the clients are: sigma of the log-normal factor that each has on its mean "
        "delay; 0 = all alike",
        low=0,
        high=5,
    )
    slow: float = knob(0.0, "the share of the clients that are stragglers", low=0, high=1)
    slowdown: float = knob(
        10.0, "how many times longer a straggler takes", low=1, acts_with={"slow": OtherThan(0)}
    )

    def unit(self, keys: Keys) -> np.ndarray:  # uint64[K] -> float64[K]
        """Delays of mean 1, from a random stream each."""
        raise NotImplementedError(f"{type(self).__name__} does not define delays")

    def draw(self, seed: int, clients: Keys, turns: np.ndarray) -> np.ndarray:  # -> float64[K]
        """The delays of these clients (stream keys), which have started `turns` times before."""
        keys = streams.keys(seed, "delay", np.asarray(turns, dtype=np.int64), clients)
        return self.mean * self.speeds(seed, clients) * self.unit(keys)

    def speeds(self, seed: int, clients: Keys) -> np.ndarray:  # -> float64[K]
        """The factor on each client's mean delay: the same for the whole run."""
        keys = streams.keys(seed, "speed", 0, clients)
        factor = np.ones(len(clients))
        if self.spread:
            factor *= _lognormal(streams.normal(keys, 1)[:, 0], self.spread)
        if self.slow:
            factor[streams.uniform(keys, 1, start=2)[:, 0] < self.slow] *= self.slowdown
        return factor


@dataclass(frozen=True)
class ConstantDelay(Delays):
    """Every piece of work takes the same time."""

    def unit(self, keys: Keys) -> np.ndarray:
        return np.ones(len(keys))


@dataclass(frozen=True)
class Exponential(Delays):
    """Memoryless delays, as of queues."""

    def unit(self, keys: Keys) -> np.ndarray:
        return -np.log1p(-streams.uniform(keys, 1)[:, 0])


@dataclass(frozen=True)
class Pareto(Delays):
    """Heavy-tailed delays: P(delay > t) = (t_0 / t)^shape, with t_0 = mean (shape - 1) / shape."""

    shape: float = knob(1.5, "the tail; the variance is infinite up to 2", above=1)

    def unit(self, keys: Keys) -> np.ndarray:
        least = (self.shape - 1) / self.shape
        return least * (1 - streams.uniform(keys, 1)[:, 0]) ** (-1 / self.shape)


@dataclass(frozen=True)
class LogNormal(Delays):
    """Delays whose logarithm is normal, as measured on phones."""

    sigma: float = knob(1.0, "standard deviation of the logarithm", above=0, high=5)

    def unit(self, keys: Keys) -> np.ndarray:
        return _lognormal(streams.normal(keys, 1)[:, 0], self.sigma)


@dataclass(frozen=True)
class Trace(Delays):
    """Measured delays from a CSV file with a column `delay`, and `client` where it is known.

    With a column `client` the n-th piece of work of a client takes its n-th delay, from the first
    again after the last; a client that is not in the file, and every client of a file without that
    column, takes delays of the file at random. The other options are factors on what it says.
    """

    path: str = knob("", "the file")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._delays  # refuses a file that cannot be read

    @cached_property
    def _delays(self) -> dict[np.uint64 | None, np.ndarray]:
        """By the stream key of the client; None for all of them."""
        return read_trace(self.path)

    def draw(self, seed: int, clients: Keys, turns: np.ndarray) -> np.ndarray:
        everything = self._delays[None]
        keys = streams.keys(seed, "delay", np.asarray(turns, dtype=np.int64), clients)
        at = streams.below(streams.bits(keys, 0, 1)[:, 0], np.array(len(everything)))
        delays = everything[at]
        for k, (client, turn) in enumerate(zip(clients, turns, strict=True)):
            own = self._delays.get(client)
            if own is not None:
                delays[k] = own[int(turn) % len(own)]
        return self.mean * self.speeds(seed, clients) * delays


def read_trace(path: str) -> dict[np.uint64 | None, np.ndarray]:
    """The delays of a file, of all clients together and of each."""
    wanted = "trace(path=FILE.csv), a file with a column 'delay' of numbers > 0"
    if not path:
        raise SettingError(f"delays must be {wanted}, got no file")
    try:
        with regular_file(path, "delays").open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if "delay" not in (rows.fieldnames or ()):
                raise SettingError(f"delays must be {wanted}; {path} has no such column")
            delays: list[float] = []
            names: list[str] = []
            for row in rows:
                delays.append(float(row["delay"]))
                names.append(row.get("client") or "")
                if not 0 < delays[-1] < math.inf or len(delays) > MOST:
                    raise ValueError
    except (OSError, ValueError, TypeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "a delay must be a number > 0"
        raise SettingError(f"delays must be {wanted}; {path}: {reason}") from None
    if not delays:
        raise SettingError(f"delays must be {wanted}; {path} has no line")
    everything = np.array(delays)
    delays_by_key: dict[np.uint64 | None, np.ndarray] = {None: everything}
    named = np.array(names)
    for name in sorted(set(names) - {""}):
        delays_by_key[streams.name_keys([name])[0]] = everything[named == name]
    return delays_by_key


def _lognormal(z: np.ndarray, sigma: float) -> np.ndarray:
    """exp(sigma z - sigma²/2): of mean 1."""
    return np.exp(sigma * z - sigma**2 / 2)


DELAYS: PartTable[Delays, Delays | None] = PartTable(
    "delays",
    "idiolect.delays",
    {
        "constant": ConstantDelay,
        "exponential": Exponential,
        "pareto": Pareto,
        "lognormal": LogNormal,
        "trace": Trace,
    },
    Delays,
    empty=lambda: None,
)
parse_delays = DELAYS.parse
delays_text = DELAYS.text
