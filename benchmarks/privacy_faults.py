"""Faults planted in the code that protects clients, to show what an audit sees.

>>> with planted("noise halved"):
...     pass  # noise has half of its standard deviation here
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from idiolect.core.streams import Keys
from idiolect.core.types import State
from idiolect.privacy import AdaptiveClip, Local, Noise, plan
from idiolect.privacy.clipping import clip_factors, message_norms
from idiolect.privacy.noise import released
from idiolect.server import private_mean
from idiolect.server.private_mean import PrivacyAccount, PrivateMean

MODULES = (private_mean, plan)  # of the server's mechanism and the clients'
WEIGHT = 3.0  # of clients with many samples
Change = tuple[Any, str, Any]  # what is replaced where by what


def _halved(values: Tensor, noise: Tensor, sigma: float) -> Tensor:
    return released(values, noise, sigma / 2)


def _unclipped(norms: Tensor, clip: float) -> Tensor:
    return torch.ones_like(norms)


def _weighted_after(norms: Tensor, clip: float) -> Tensor:
    return WEIGHT * clip_factors(norms, clip)


def _first_part(up: State, reference: State) -> Tensor:
    name = min(up)
    return message_norms({name: up[name]}, reference)


def _same_draw(self: PrivacyAccount, round: int, seed: int) -> int:
    return seed


def _uncounted(self: PrivacyAccount, round: int, eligible: Tensor, heard: Tensor) -> None:
    self.begun += 1
    self.exposures[heard] = 1


class _RepeatedNoise:
    """Draws once for each purpose and gives the same in every later round of the same account."""

    def __init__(self) -> None:
        self.normal = Noise.normal
        self.first: dict[tuple, Tensor] = {}

    def __call__(
        self,
        source: Noise,
        rows: int,
        count: int,
        purpose: str = "",
        turn: int = 0,
        clients: Keys | None = None,
    ) -> Tensor:
        key = (rows, count, purpose)
        if turn == 0 or key not in self.first:
            self.first[key] = self.normal(source, rows, count, purpose, turn, clients)
        return self.first[key].clone()


def _repeated() -> list[Change]:
    repeated = _RepeatedNoise()

    def normal(self: Noise, *args: Any, **options: Any) -> Tensor:
        return repeated(self, *args, **options)

    return [(Noise, "normal", normal)]


def _by_number_heard() -> list[Change]:
    mean = PrivateMean.__call__

    def call(
        self: PrivateMean, up: State, reference: State, version: int, asked: int
    ) -> tuple[State, float]:
        return mean(self, up, reference, version, len(next(iter(up.values()))))

    return [(PrivateMean, "__call__", call)]


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the changes that make it so."""

    words: str
    changes: tuple[Change, ...] = ()
    make: Any = None  # () -> changes, where they remember something

    def all_changes(self) -> list[Change]:
        """Made anew where they remember something."""
        return self.make() if self.make else list(self.changes)


FAULTS: dict[str, Fault] = {
    "noise halved": Fault(
        "the noise has half the standard deviation",
        tuple((module, "released", _halved) for module in MODULES),
    ),
    "clipping skipped": Fault(
        "messages are summed as they are",
        tuple((module, "clip_factors", _unclipped) for module in MODULES),
    ),
    "noise reused": Fault("every round adds the noise of the first", make=_repeated),
    "weights after clipping": Fault(
        f"clipped messages count by samples, here {WEIGHT:g} times, and noise does not know",
        ((private_mean, "clip_factors", _weighted_after),),
    ),
    "one part not clipped": Fault(
        "the norm is that of the first of two parts",
        ((private_mean, "message_norms", _first_part),),
    ),
    "public draw": Fault(
        "who is heard follows from the seed of the run, and ε is that of a secret draw",
        ((PrivacyAccount, "sampling_seed", _same_draw),),
    ),
    "divided by the number heard": Fault(
        "the noisy sum is divided by the number of messages, which one client changes",
        make=_by_number_heard,
    ),
    "half the sensitivity": Fault(
        "clients' noise is for messages C apart, and two of them can be 2 C apart",
        ((Local, "sensitivity", lambda self, clip: clip),),
    ),
    "count without noise": Fault(
        "the count by which C moves is exact",
        ((AdaptiveClip, "count_noise", 1e-9), (AdaptiveClip, "update_noise", 4.0)),
    ),
    "count not accounted": Fault(
        "the count has its noise, and the sum as little as without a count",
        ((AdaptiveClip, "update_noise", property(lambda self: self.noise)),),
    ),
    "rounds not counted": Fault(
        "only the first round counts", ((PrivacyAccount, "begin", _uncounted),)
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The code with a fault, until the end of the block; "" = as it is."""
    with ExitStack() as stack:
        for target, attribute, value in FAULTS[name].all_changes() if name else []:
            stack.enter_context(patch.object(target, attribute, value))
        yield
