"""A channel fitted to the messages of a method: which parts it codes, against what, and what both sides keep for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core import streams
from ..core.types import State
from ..method import Method
from ..task.task import Task
from ..wire.ragged import Ragged, Reader, join
from .channel import Channel
from .stage import Form, Stage


@dataclass(frozen=True)
class Link:
    """The parts of a message, each through the channel (those in `exact` as they are), one after the other."""

    chain: Channel
    parts: dict[str, Form]
    exact: tuple[str, ...] = ()

    @classmethod
    def fit(cls, chain: Channel, method: Method, task: Task) -> Link:
        message = sorted(method.message(task).items())
        parts = {
            n: Form(m, task.layout.starts if m == task.d else (0, m), dtype=task.dtype)
            for n, m in message
        }
        return cls(chain, parts, method.plain)

    def check(self) -> list[str]:
        """Refuse what does not fit; warnings otherwise."""
        return [w for _, chain, form in self._coded() for w in chain.check(form)]

    def __bool__(self) -> bool:
        return bool(self.chain.stages)

    def _coded(self, round: int = 0) -> list[tuple[str, Channel, Form]]:
        return [
            (n, Channel() if n in self.exact else self.chain, replace(f, round=round))
            for n, f in self.parts.items()
        ]

    def limit(self, round: int = 0) -> int:
        """The most bytes the body of a message can take."""
        return sum(chain.limit(form) for _, chain, form in self._coded(round))

    def down_values(self, round: int = 0) -> float:
        return sum(chain.down_values(form) for _, chain, form in self._coded(round))

    def kept(self, what: str) -> dict[str, int]:
        """What is kept: "client" rows, "memory" rows of the server for each client, or "server" vectors; name -> numbers."""
        return {
            f"{n}.{key}": size
            for n, chain, form in self._coded()
            for key, size in chain.kept(what, form).items()
        }

    def blank(self, what: str, rows: int | None, like: Tensor) -> State:
        """Zeros for everything kept; `rows` None for the server's vectors."""
        return {
            n: like.new_zeros(size if rows is None else (rows, size))
            for n, size in self.kept(what).items()
        }

    # -- the client's side -----------------------------------------------------------------------------------------------------
    def encode(
        self, up: State, reference: State, state: State, keys: np.ndarray, round: int
    ) -> tuple[Ragged, State, np.ndarray]:
        """Bodies of the messages, the clients' rows after it, and the words a message costs as the lp-proj paper counts."""
        bodies, values = [], np.zeros(len(keys))
        for i, (name, chain, form) in enumerate(self._coded(round)):
            rows = up[name] - reference[name] if name in reference and chain.stages else up[name]
            with np.errstate(over="ignore"):
                own = streams.mix(keys + np.uint64(1000 * i))
            body, kept, words = chain.encode(rows, _of(state, name), own, form)
            state = state | {f"{name}.{n}": t for n, t in kept.items()}
            bodies.append(body)
            values += words
        return join(bodies), state, values

    # -- the server's side -----------------------------------------------------------------------------------------------------
    def decode(self, bodies: Ragged, memory: State, round: int) -> tuple[State, np.ndarray, State]:
        """What arrived (changes, where there is a reference), which messages made sense, and the memory of these clients."""
        reader, up = Reader(bodies), {}
        for name, chain, form in self._coded(round):
            up[name], kept = chain.decode(reader, _of(memory, name), form)
            memory = memory | {f"{name}.{n}": t for n, t in kept.items()}
        return up, reader.finished(), memory

    def restore(self, up: State, reference: State) -> State:
        """Changes to models again."""
        coded = {n for n, chain, _ in self._coded() if chain.stages}
        return {
            n: rows + reference[n] if n in reference and n in coded else rows
            for n, rows in up.items()
        }

    # -- stages that the server decodes from the aggregate -----------------------------------------------------------------------
    @property
    def joint(self) -> Stage | None:
        at = self.chain.joint
        return None if at is None else self.chain.stages[at]

    def joint_parts(self, round: int) -> list[tuple[str, str, Form]]:
        """(part, prefix of what its joint stage keeps, its form)."""
        at = self.chain.joint
        return [
            (n, f"{n}.{at}.", chain.forms(form)[at])
            for n, chain, form in self._coded(round)
            if at is not None and chain.stages
        ]


def _of(state: State, part: str) -> State:
    return {n.removeprefix(f"{part}."): t for n, t in state.items() if n.startswith(f"{part}.")}


def only(state: State, prefix: str) -> State:
    """The entries under a prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
