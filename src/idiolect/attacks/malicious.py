"""The malicious clients: how many there are, and which."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.streams import Keys


def how_many(malicious: float, clients: int) -> int:
    """The number of malicious clients: below 1 a share, rounded; from 1 on the number itself.

    At least one client stays honest.

    >>> how_many(0.1, 100), how_many(3, 100), how_many(0, 100)
    (10, 3, 0)
    """
    wanted = "malicious is a share of the clients below 1, or a whole number of them"
    number = math.nan if isinstance(malicious, (bool, str)) else float(malicious)
    if not (0 <= number < 1 or (math.isfinite(number) and number >= 1 and number.is_integer())):
        raise SettingError(f"malicious: {malicious!r} is not accepted; {wanted}")
    count = round(number * clients) if number < 1 else int(number)
    if number and not count:
        raise SettingError(
            f"malicious: {malicious!r} of {clients} clients is not one client; {wanted}"
        )
    if count > clients:
        raise SettingError(
            f"malicious: {malicious!r} is not accepted; there are only {clients} clients"
        )
    if count and count == clients:
        raise SettingError(
            f"malicious: {malicious!r} of {clients} clients leaves no honest one; "
            f"at most {clients - 1} may be malicious"
        )
    return count


def chosen(seed: int, keys: Keys, eligible: Tensor, count: int) -> Tensor:  # -> int64[count]
    """The malicious clients, sorted: `count` of the `eligible`, fixed by the seed.

    A larger set holds every smaller one, and a client that may not take part changes nothing for
    the others. `keys[N]` are streams.name_keys of all clients.

    >>> chosen(0, streams.name_keys(["a", "b", "c"]), torch.arange(3), 2).tolist()
    [0, 2]
    """
    if not 0 <= count <= len(eligible):
        raise SettingError(
            f"malicious: {count} is not accepted; {len(eligible)} clients can take part"
        )
    own_keys = streams.keys(seed, "malicious", 0, keys[eligible.numpy()])
    return eligible[torch.from_numpy(streams.choose(own_keys, count))].sort().values
