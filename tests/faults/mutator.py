"""Bad messages made of sound ones, from a seed: the same seed gives the same messages.

Most of them keep a header that is right, so that their bodies are opened.
"""

import io
import pickle
import zipfile
from collections.abc import Sequence

import numpy as np
import torch

from idiolect.wire import messages as wire

HEAD = wire.HEADER.itemsize
NUMBERS = (np.nan, np.inf, -np.inf, 1e38, -1e38, 3.4e38, 1e300, 1e-40, 1e-45, -0.0, 65504.0, 1e5)
COUNTS = (0, 1, 2, 7, 8, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)


class Mutator:
    """Takes sound messages of one channel and gives bad ones.

    >>> a, b = Mutator([bytes(40), bytes(60)], seed=3), Mutator([bytes(40), bytes(60)], seed=3)
    >>> [next(a) for _ in range(20)] == [next(b) for _ in range(20)]
    True
    """

    def __init__(self, sound: Sequence[bytes], seed: int):
        self.sound = sound
        self.rng = np.random.default_rng(seed)
        self.foreign = [pickle.dumps({"w": [0.0] * 6}), archive(), torch_file()]
        self.kinds = [
            self.flipped,
            self.truncated,
            self.extended,
            self.spliced,
            self.other_header,
            self.other_count,
            self.other_number,
            self.overwritten,
            self.repeated_stretch,
            self.random_bytes,
            self.of_another_kind,
            self.unchanged,
        ]

    def __iter__(self) -> "Mutator":
        return self

    def __next__(self) -> bytes:
        return self.kinds[self._below(len(self.kinds))]()

    # -- one kind each -----------------------------------------------------------------------------
    def unchanged(self) -> bytes:
        return self._any()

    def flipped(self) -> bytes:
        """A few bits are others; of the body, but for one message in eight."""
        data = bytearray(self._any())
        first = 0 if self._below(8) == 0 else HEAD
        for _ in range(1 + self._below(5) if len(data) > first else 0):
            data[first + self._below(len(data) - first)] ^= 1 << self._below(8)
        return bytes(data)

    def truncated(self) -> bytes:
        data = self._any()
        return data[: self._below(len(data)) if self._below(3) else len(data) - 1]

    def extended(self) -> bytes:
        return self._any() + self.rng.bytes(1 + self._below(20))

    def spliced(self) -> bytes:
        """The beginning of one message and the end of another."""
        a, b = self._any(), self._any()
        cut = HEAD + self._below(max(1, len(a) - HEAD))
        end = cut if self._below(2) else HEAD + self._below(max(1, len(b) - HEAD))
        return a[:cut] + b[end:]

    def other_header(self) -> bytes:
        data = self._any()
        head = np.frombuffer(data[:HEAD], dtype=wire.HEADER).copy()
        name = wire.HEADER.names[self._below(6)]
        if name == "weight":
            value = (*NUMBERS, 0.0, -1.0, 1.0)[self._below(len(NUMBERS) + 3)]
            with np.errstate(over="ignore"):
                head[name] = value
        elif self._below(2):
            head[name] = (int(head[name][0]) + (1, -1)[self._below(2)]) % 2**32
        else:
            head[name] = COUNTS[self._below(len(COUNTS))]
        return head.tobytes() + data[HEAD:]

    def other_count(self) -> bytes:
        """Four bytes of the body are some other whole number."""
        return self._placed(np.uint32(COUNTS[self._below(len(COUNTS))]).tobytes())

    def other_number(self) -> bytes:
        """A number of the body is not finite, or at the edge of what can be held."""
        kind = ("<f4", "<f8", "<f2")[self._below(3)]
        with np.errstate(over="ignore"):
            return self._placed(np.array(NUMBERS[self._below(len(NUMBERS))]).astype(kind).tobytes())

    def overwritten(self) -> bytes:
        """A stretch of ones or of zeros: the largest places and counts, or the smallest."""
        return self._placed((b"\xff", b"\0", b"\x80", b"\x7f")[self._below(4)] * self._below(40))

    def repeated_stretch(self) -> bytes:
        """Some bytes of the body stand there twice: places that are equal or out of order."""
        data = self._any()
        a = HEAD + self._below(max(1, len(data) - HEAD))
        return self._placed(data[a : a + 1 + self._below(12)])

    def random_bytes(self) -> bytes:
        data = self._any()
        kept = HEAD if self._below(4) else 0
        count = len(data) - kept if self._below(2) else self._below(2 * len(data))
        return data[:kept] + self.rng.bytes(count)

    def of_another_kind(self) -> bytes:
        """A pickle, an archive or a file of torch: as it is, after a header, or cut to length."""
        data, foreign = self._any(), self.foreign[self._below(len(self.foreign))]
        match self._below(4):
            case 0:
                return foreign
            case 1:
                return foreign[: len(data)].ljust(len(data), b"\0")
            case 2:
                return data[:HEAD] + foreign
            case _:
                return data[:HEAD] + foreign[: len(data) - HEAD].ljust(len(data) - HEAD, b"\0")

    # -- helpers -----------------------------------------------------------------------------------
    def _below(self, n: int) -> int:
        return int(self.rng.random() * n)

    def _any(self) -> bytes:
        return self.sound[self._below(len(self.sound))]

    def _placed(self, put: bytes) -> bytes:
        """These bytes somewhere in a body, on a multiple of four but for one in four."""
        data = bytearray(self._any())
        at = HEAD + self._below(max(1, len(data) - HEAD))
        at -= (at % 4) * (self._below(4) > 0)
        put = put[: len(data) - at]
        data[at : at + len(put)] = put
        return bytes(data)


def archive() -> bytes:
    """A zip file whose one name leaves its folder."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("../../x", "x")
    return out.getvalue()


def torch_file() -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save({"w": torch.zeros(6)}, out)
    return out.getvalue()
