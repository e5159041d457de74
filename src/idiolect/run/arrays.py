"""Arrays of a record as safetensors, piece by piece: they may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np

PIECE = 1 << 20  # numbers written at once


def float32_safetensors(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these float32 arrays, as the library writes them.

    >>> from safetensors.numpy import load
    >>> load(b"".join(float32_safetensors({"seed-0": np.ones((1, 2), np.float32)})))
    {'seed-0': array([[1., 1.]], dtype=float32)}
    """
    header = {}
    end = 0
    for name in sorted(arrays):
        start = end
        end += 4 * arrays[name].size
        shape = list(arrays[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in sorted(arrays):
        flat = arrays[name].reshape(-1)
        for at in range(0, len(flat), PIECE):
            yield np.ascontiguousarray(flat[at : at + PIECE], "<f4").tobytes()
