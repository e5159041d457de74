"""Rows of clients that arrive in any order, each held once."""

from __future__ import annotations

import numpy as np
import torch

from ..core.types import State

MOVED = 16 << 20  # bytes that are moved at a time


class Held:
    """Rows at the places of their clients; `rows` gives them in increasing order of place.

    >>> held = Held(3)
    >>> held.put(np.array([2]), {"w": torch.ones(1, 2)})
    >>> held.put(np.array([0]), {"w": torch.zeros(1, 2)})
    >>> held.rows()["w"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, places: int):
        self.taken = np.zeros(places, dtype=bool)  # the places that have a row
        self._state: State = {}
        # the rows stand at the front, without gaps, and somebody may be reading them
        self._packed = False

    def put(self, places: np.ndarray, state: State) -> None:
        """Rows of new places, which increase. Everybody's at once are kept as they are."""
        if not len(places):
            return
        if len(places) == len(self.taken):
            self._state = {n: t.contiguous() for n, t in state.items()}
        else:
            room = self.room({n: t[:0] for n, t in state.items()})
            for n, t in state.items():
                room[n][index(places)] = t
        self.taken[places] = True

    def room(self, like: State) -> State:
        """A row for every place, to write new ones into; mark those that count in `taken`.

        `like`: tensors of the same type whose rows have the same shape, on the same device.
        """
        if self._state and not self._packed:
            return self._state
        old = self._state
        self._state = {n: t.new_empty(len(self.taken), *t.shape[1:]) for n, t in like.items()}
        at = torch.from_numpy(np.flatnonzero(self.taken))
        for n, t in old.items():
            self._state[n][at] = t[: len(at)]
        self._packed = False
        return self._state

    def rows(self) -> State:
        """The rows, sorted by place. They are not copied, and later ones do not change them."""
        count = int(self.taken.sum())
        if count < len(self.taken) and not self._packed:
            for t in self._state.values():
                _close_gaps(t, np.flatnonzero(self.taken))
            self._packed = True
        return {n: t[:count] for n, t in self._state.items()}


def index(places: np.ndarray) -> slice | np.ndarray:
    """Increasing places as an index of rows: a slice where they follow one another."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _close_gaps(rows: torch.Tensor, places: np.ndarray) -> None:
    """Move the rows at these places, which increase, to the front: a few at a time."""
    step = max(1, MOVED // max(1, rows[:1].numel() * rows.element_size()))
    first = int((places == np.arange(len(places))).sum())  # those before the first gap stay
    for a in range(first, len(places), step):
        moved = rows[torch.from_numpy(places[a : a + step])]
        rows[a : a + len(moved)] = moved
