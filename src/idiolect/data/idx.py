"""The IDX format of MNIST.

A file is 0, 0, the type, the number of dimensions, the dimensions as big-endian 32-bit numbers, and
the values.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ..core.knobs import SettingError

LIMIT = 1 << 30  # bytes; the largest known set in this format (EMNIST) has 640 MB
DIMENSIONS = 8  # at most; images in colour have 4
EXPANSION = 1032  # gzip unpacks a byte to at most so many
CHUNK = 1 << 20


def read(path: str | Path) -> np.ndarray:
    """The bytes of an IDX file, raw or gzipped, in its shape.

    The size is checked before memory is taken.

    >>> import tempfile; name = tempfile.mkdtemp() + "/x-idx1-ubyte"
    >>> write(name, np.array([3, 1, 4], dtype=np.uint8)); read(name).tolist()
    [3, 1, 4]
    """
    path = Path(path)
    try:
        with open(path, "rb") as f:
            packed = f.read(2) == b"\x1f\x8b"
            f.seek(0)
            most = os.fstat(f.fileno()).st_size * (EXPANSION if packed else 1)
            with gzip.open(f) if packed else f as stream:
                return _read(cast(BinaryIO, stream), path, most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise SettingError(f"{path}: damaged gzip file ({e})") from None
    except OSError as e:
        raise SettingError(f"{path}: cannot be read: {e.strerror or e}") from None


def _read(stream: BinaryIO, path: Path, most: int) -> np.ndarray:
    """`most`: the bytes that the file can hold."""
    head = stream.read(4)
    if len(head) < 4:
        raise SettingError(f"{path}: {len(head)} bytes, too short for an IDX file")
    if head[:2] != b"\0\0" or head[2] != 8:
        raise SettingError(f"{path}: starts with {head.hex()}, not an IDX file of bytes (000008..)")
    if head[3] > DIMENSIONS:
        raise SettingError(
            f"{path}: the header claims {head[3]} dimensions; at most {DIMENSIONS} are accepted"
        )
    sizes = stream.read(4 * head[3])
    if head[3] == 0 or len(sizes) < 4 * head[3]:
        raise SettingError(f"{path}: the header ends before its {head[3]} dimensions")
    shape = struct.unpack(f">{head[3]}I", sizes)
    total = math.prod(shape)
    if total > LIMIT:
        raise SettingError(
            f"{path}: the header claims {total} bytes of data; at most {LIMIT} are accepted"
        )
    body = bytearray()
    if total <= most:
        # one more shows whether anything follows
        while len(body) <= total and (chunk := stream.read(min(CHUNK, total + 1 - len(body)))):
            body += chunk
    if len(body) != total:
        found = "more" if len(body) > total else "less"
        raise SettingError(
            f"{path}: the header {shape} promises {total} bytes of data, the file has {found}"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def write(path: str | Path, values: np.ndarray) -> None:
    """The inverse of `read`, raw."""
    array = np.ascontiguousarray(values, dtype=np.uint8)
    Path(path).write_bytes(
        struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    )
