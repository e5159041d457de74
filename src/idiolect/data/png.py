"""Eight-bit grey and RGB PNG files with zlib and numpy alone (not interlaced, no palette): enough for image sets stored as sheets."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.knobs import SettingError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LIMIT = 1 << 28  # bytes of pixels


def read(path: str | Path) -> np.ndarray:  # -> uint8[height, width, 1 or 3]
    """The pixels of a PNG file; checksums and sizes are checked before memory is taken.

    >>> import tempfile; name = tempfile.mkdtemp() + "/x.png"
    >>> write(name, np.arange(12, dtype=np.uint8).reshape(2, 2, 3)); read(name)[1, 0].tolist()
    [6, 7, 8]
    """
    path = Path(path)
    parts = list(_chunks(path))
    if not parts or parts[0][0] != b"IHDR" or len(parts[0][1]) != 13:
        raise SettingError(f"{path}: no PNG header")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    if depth != 8 or colour not in (0, 2) or interlaced:
        raise SettingError(
            f"{path}: depth {depth}, colour type {colour}, interlace {interlaced}; only plain 8-bit grey or RGB is read"
        )
    channels = 3 if colour == 2 else 1
    total = height * (1 + width * channels)
    if not 0 < total <= LIMIT:
        raise SettingError(
            f"{path}: {width} x {height} pixels are not accepted; at most {LIMIT} bytes"
        )
    try:
        raw = zlib.decompressobj().decompress(
            b"".join(body for kind, body in parts if kind == b"IDAT"), total + 1
        )
    except zlib.error as e:
        raise SettingError(f"{path}: damaged pixel data ({e})") from None
    if len(raw) != total:
        raise SettingError(
            f"{path}: {width} x {height} pixels promise {total} bytes, the file has {len(raw)}"
        )
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, 1 + width * channels)
    if lines[:, 0].max() > 4:
        raise SettingError(f"{path}: unknown line filter {lines[:, 0].max()}")
    return _unfilter(lines[:, 1:].reshape(height, width, channels), lines[:, 0])


def _chunks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    data = memoryview(path.read_bytes())
    if bytes(data[:8]) != SIGNATURE:
        raise SettingError(f"{path}: not a PNG file")
    at = 8
    while at + 12 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body, check = (
            bytes(data[at + 4 : at + 8]),
            data[at + 8 : at + 8 + size],
            data[at + 8 + size : at + 12 + size],
        )
        if (
            len(check) < 4
            or zlib.crc32(data[at + 4 : at + 8 + size]) != struct.unpack(">I", check)[0]
        ):
            raise SettingError(f"{path}: the {kind!r} part is cut off or its checksum is wrong")
        yield kind, bytes(body)
        at += 12 + size
        if kind == b"IEND":
            return
    raise SettingError(f"{path}: the file ends before its IEND part")


def _unfilter(filtered: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Undo the line filters (PNG specification, section 9).

    A pixel needs the ones to its left, above, and above left, so all pixels of one anti-diagonal are independent and are done at once.
    In a picture stored line by line an anti-diagonal is a regular stride, so nothing is copied.
    """
    height, width, channels = filtered.shape
    wide = (
        width + 1
    )  # a column of zeros at the left and a line of zeros on top stand for what lies outside
    done = np.zeros(((height + 1) * wide, channels), dtype=np.uint8)
    flat = filtered.reshape(-1, channels)
    lines = kinds.astype(np.int16)[:, None]
    for t in range(height + width - 1):  # row + column = t
        first, last = max(0, t - width + 1), min(height - 1, t)
        here = slice((first + 1) * wide + t - first + 1, (last + 1) * wide + t - last + 2, wide - 1)
        left = done[here.start - 1 : here.stop - 1 : wide - 1].astype(np.int16)
        above = done[here.start - wide : here.stop - wide : wide - 1].astype(np.int16)
        corner = done[here.start - wide - 1 : here.stop - wide - 1 : wide - 1].astype(np.int16)
        away_left, away_above, away_corner = (
            np.abs(above - corner),
            np.abs(left - corner),
            np.abs(left + above - 2 * corner),
        )
        paeth = np.where(
            (away_left <= away_above) & (away_left <= away_corner),
            left,
            np.where(away_above <= away_corner, above, corner),
        )
        kind = lines[first : last + 1]
        guess = np.where(
            kind == 4,
            paeth,
            np.where(
                kind == 3, (left + above) >> 1, np.where(kind == 2, above, left * (kind == 1))
            ),
        )
        source = slice(first * width + t - first, last * width + t - last + 1, max(width - 1, 1))
        done[here] = flat[source] + guess.astype(np.uint8)  # modulo 256
    return done.reshape(height + 1, wide, channels)[1:, 1:].copy()


def write(path: str | Path, pixels: np.ndarray) -> None:
    """Unfiltered pixels[height, width, 1 or 3] as a PNG file."""
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(p)) + k + p + struct.pack(">I", zlib.crc32(k + p)) for k, p in parts
    )
    Path(path).write_bytes(SIGNATURE + body)
