"""Who is heard in a round: a uniform sample, each by itself, or a choice by losses.

A selection draws candidates from those that may take part. Most take all of them. One that `asks`
has the server ask its candidates for the loss of the shared model on their training data, and
chooses by what they answer; whoever does not answer is not chosen.

Every draw is keyed by seed, round and client, so that a resumed run selects the same clients and
one that may not take part changes nothing for the others.

>>> parse_selection("power-of-choice(candidates=4)")
PowerOfChoice(candidates=4)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import Knobs, SettingError, knob
from ..core.registry import PartTable
from ..core.streams import Keys
from ..wire.messages import Schema

# what a candidate answers: a loss and how many samples it is the mean of
ANSWER = Schema((("loss", (1,), torch.float64), ("samples", (1,), torch.int64)))


@dataclass(frozen=True)
class Pool:
    """Whom a round may hear, and how many it wants."""

    seed: int
    round: int
    keys: Keys  # uint64[N]: of all clients, by wire id
    eligible: Tensor  # int64, increasing: wire ids of those that may take part
    data: Tensor  # float64[N]: how much data each has (training samples, or its weight)
    sample: int  # m, clients heard
    clients: int = 0  # N, those that could take part when the run started

    def words(self, purpose: str, wire_ids: Tensor) -> Keys:  # -> uint64[K]
        """A random stream of this round for each of these clients."""
        return streams.keys(self.seed, purpose, self.round, self.keys[wire_ids.numpy()])


@dataclass(frozen=True)
class CandidateLosses:
    """What candidates answered: the mean loss of the shared model on their training data."""

    wire_ids: Tensor  # int64: those that answered
    losses: Tensor  # float64, in their order

    @classmethod
    def merge(cls, parts: Sequence[CandidateLosses]) -> CandidateLosses:
        """The answers of several hosts as one."""
        ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(p.wire_ids for p in parts)])
        losses = torch.cat([torch.zeros(0, dtype=torch.float64), *(p.losses for p in parts)])
        order = ids.argsort()
        return cls(ids[order], losses[order])


@dataclass(frozen=True)
class ClientSelection(Knobs):
    """The interface: `draw` gives candidates, who are all heard unless they are asked first."""

    asks: ClassVar[bool] = False  # whether candidates are asked for their losses

    def check(self, sample: int, eligible: int) -> None:
        """Refuse options that do not fit so many clients heard of so many."""

    def most_asked(self, sample: int, eligible: int) -> int:
        """How many candidates are asked at most."""
        return 0

    def draw(self, pool: Pool) -> Tensor:  # -> int64, increasing
        """The wire ids of the candidates."""
        raise NotImplementedError(f"{type(self).__name__} does not define draw")

    def choose(self, pool: Pool, answers: CandidateLosses) -> Tensor:  # -> int64, increasing
        """Those of the candidates that are heard, where they were asked."""
        raise NotImplementedError(f"{type(self).__name__} does not define choose")


@dataclass(frozen=True)
class Uniform(ClientSelection):
    """A uniform sample without replacement: every client as often as any other."""

    def draw(self, pool: Pool) -> Tensor:
        return select(pool.seed, pool.round, pool.keys, pool.eligible, pool.sample)


@dataclass(frozen=True)
class Poisson(ClientSelection):
    """Each client by itself with probability m / N: the number heard differs between rounds.

    The sampling for which theorems on differential privacy give more privacy to those who were
    perhaps not heard; `sample` is the mean number.
    """

    def draw(self, pool: Pool) -> Tensor:
        u = streams.uniform(pool.words("poisson", pool.eligible), 1)[:, 0]
        return pool.eligible[torch.from_numpy(u < pool.sample / max(pool.clients, 1))]


@dataclass(frozen=True)
class PowerOfChoice(ClientSelection):
    """Of candidates drawn by their amounts of data, those with the largest losses: fewer rounds.

    π_pow-d of Cho, Wang and Joshi (Towards understanding biased client selection in federated
    learning, AISTATS 2022). It is biased: clients whose data are hard, or wrongly labelled, are
    heard most, and the model does not go to the minimum of the mean loss.
    """

    asks: ClassVar[bool] = True

    candidates: int = knob(
        0, "D, candidates that are asked for their loss; 0 = twice as many as are heard", low=0
    )

    def number(self, sample: int, eligible: int) -> int:
        """D for so many clients heard of so many that may take part."""
        return min(self.candidates or 2 * sample, eligible)

    def check(self, sample: int, eligible: int) -> None:
        if self.candidates and not sample <= self.candidates <= eligible:
            raise SettingError(
                f"selection: candidates must be from the {sample} clients heard per round (sample) "
                f"to the {eligible} that can take part, got {self.candidates}"
            )

    def most_asked(self, sample: int, eligible: int) -> int:
        number = self.number(sample, eligible)
        return number if number > sample else 0

    def draw(self, pool: Pool) -> Tensor:
        # "a candidate set A of d clients without replacement such that client k is chosen with
        # probability p_k": the first d of a race of exponential clocks with rates p_k
        u = streams.uniform(pool.words("candidates", pool.eligible), 1)[:, 0]
        clock = -np.log1p(-u) / pool.data[pool.eligible].numpy()
        first = np.argsort(clock, kind="stable")[: self.number(pool.sample, len(pool.eligible))]
        return pool.eligible[torch.from_numpy(np.sort(first))]

    def choose(self, pool: Pool, answers: CandidateLosses) -> Tensor:
        # "the m clients with the largest values F_k(w)", ties broken at random; one that is not
        # finite says nothing, and comes last
        losses = answers.losses.numpy()
        finite = np.where(np.isfinite(losses), losses, -np.inf)
        ties = streams.bits(pool.words("ties", answers.wire_ids), 0, 1)[:, 0]
        largest = np.lexsort((ties, -finite))[: pool.sample]
        return answers.wire_ids[torch.from_numpy(largest)].sort().values


SELECTIONS: PartTable[ClientSelection, ClientSelection] = PartTable(
    "selection",
    "idiolect.selections",
    {"uniform": Uniform, "poisson": Poisson, "power-of-choice": PowerOfChoice},
    ClientSelection,
)
parse_selection = SELECTIONS.parse
selection_text = SELECTIONS.text


def select(
    seed: int, version: int, keys: Keys, eligible: Tensor, sample: int, purpose: str = "select"
) -> Tensor:
    """A uniform sample of `eligible` without replacement, increasing.

    keys: stream keys of all clients, uint64[N]; eligible: positions in them. A client that cannot
    take part changes nothing for the others.
    """
    places = streams.choose(streams.keys(seed, purpose, version, keys[eligible.numpy()]), sample)
    return eligible[torch.from_numpy(np.asarray(places))]
