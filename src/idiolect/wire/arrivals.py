"""Messages as they came, in any form: headers can be read without touching a body."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import messages as wire
from .ragged import Ragged

HEAD = wire.HEADER.itemsize
Messages = Sequence[bytes | memoryview] | np.ndarray | Ragged


class Arrivals:
    """Messages as they came; nothing is copied until it is asked for, and then only that.

    >>> arrived = Arrivals([bytes(30), b"short"])
    >>> arrived.lengths.tolist(), len(arrived.headers()), arrived.take(np.array([1])).row(0)
    ([30, 5], 2, b'short')
    """

    def __init__(self, messages: Messages):
        self._messages = Ragged.even(messages) if isinstance(messages, np.ndarray) else messages
        if isinstance(self._messages, Ragged):
            self.lengths = self._messages.lengths
        else:
            self.lengths = np.array([len(m) for m in self._messages], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def headers(self) -> np.ndarray:  # -> HEADER[K]
        """The headers; a message shorter than one is filled up with zeros."""
        if isinstance(self._messages, Ragged):
            first = self._messages.matrix[:, :HEAD]
            if first.shape[1] < HEAD:
                first = np.pad(first, ((0, 0), (0, HEAD - first.shape[1])))
        else:
            joined = b"".join(bytes(m[:HEAD]).ljust(HEAD, b"\0") for m in self._messages)
            first = np.frombuffer(joined, dtype=np.uint8).reshape(len(self), HEAD)
        return wire.header(first)

    def take(self, chosen: np.ndarray) -> Ragged:  # chosen: int64, places in the order of arrival
        """Some of the messages, no wider than the longest of them; a stretch is not copied."""
        if not isinstance(self._messages, Ragged):
            return Ragged.of([self._messages[i] for i in chosen])
        lengths = self.lengths[chosen]
        width = int(lengths.max(initial=0))
        stretch = len(chosen) > 0 and bool((np.diff(chosen) == 1).all())
        rows = slice(int(chosen[0]), int(chosen[-1]) + 1) if stretch else chosen
        return Ragged(self._messages.matrix[:, :width][rows], lengths)
