"""Rows of clients that arrive in any order, each held once."""

from __future__ import annotations

import numpy as np
import torch

from ..core.types import State

COPIED = 16 << 20  # bytes that are moved at a time


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
        self._packed = False  # the rows stand at the front, without the gaps of missing ones
        self._lent = False  # somebody reads them: they must not change any more

    def put(self, places: np.ndarray, state: State) -> None:
        """Rows of new places, which are increasing. Everybody's at once are kept as they are."""
        if not len(places):
            return
        if len(places) == len(self.taken):
            self._state = {n: t.contiguous() for n, t in state.items()}
        else:
            self._make_room(state)
            at = _index(places)
            for n, t in state.items():
                self._state[n][at] = t
        self.taken[places] = True

    def rows(self) -> State:
        """The rows, sorted by place. They are not copied, and later ones do not change them."""
        count = int(self.taken.sum())
        if count < len(self.taken) and not self._packed:
            for t in self._state.values():
                _close_gaps(t, np.flatnonzero(self.taken))
            self._packed = True
        self._lent = True
        return {n: t[:count] for n, t in self._state.items()}

    def _make_room(self, like: State) -> None:
        """A row for every place, with the rows so far at theirs."""
        if self._state and not self._packed and not self._lent:
            return
        old = self._state
        self._state = {n: t.new_empty(len(self.taken), *t.shape[1:]) for n, t in like.items()}
        at = _index(np.flatnonzero(self.taken))
        for n, t in old.items():
            self._state[n][at] = t[: len(at)] if self._packed else t[at]
        self._packed = False
        self._lent = False


def _index(places: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(places)


def _close_gaps(rows: torch.Tensor, places: np.ndarray) -> None:
    """Move the rows at these places, which are increasing, to the front: a few at a time."""
    row = max(1, rows[:1].numel() * rows.element_size())
    step = max(1, COPIED // row)
    first = int((places == np.arange(len(places))).sum())  # those before the first gap stay
    for a in range(first, len(places), step):
        moved = rows[_index(places[a : a + step])]
        rows[a : a + len(moved)] = moved
