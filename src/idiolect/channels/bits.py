"""Whole numbers as bits, for all rows at once: fixed width, Elias gamma and Elias-Fano.

No Python runs per number or per client. Bit b of a row is bit b % 8, from the low end, of its byte
b // 8. What is read may be hostile: a row that makes no sense is marked in the reader and reads as
something harmless; no size depends on bytes that were not checked first.
"""

from __future__ import annotations

import numpy as np

from ..core import streams
from ..wire.ragged import Ragged, Reader

Array = np.ndarray


# -- fixed width -----------------------------------------------------------------------------------
def pack(codes: Array, width: int) -> Array:  # [K, n] -> uint8[K, ceil(n width / 8)]
    """Numbers below 2^width, of `width` bits (1 to 32) each, one after the other.

    >>> pack(np.array([[1, 2, 3]]), 3).tolist()  # 001, 010, 011 from the low end
    [[209, 0]]
    """
    rows, n = codes.shape
    if width == 1:
        return np.packbits(codes != 0, axis=1, bitorder="little")
    if width % 8 == 0 and width != 24:
        return to_bytes(codes, f"<u{width // 8}")
    groups = -(-n // 8)  # eight numbers fill `width` bytes
    whole = np.zeros((rows, 8 * groups), dtype=_word(width))
    whole[:, :n] = codes
    lanes = np.ascontiguousarray(whole.reshape(rows, groups, 8).transpose(2, 0, 1))
    out = np.zeros((width, rows, groups), dtype=np.uint8)
    for i, j, shift in _overlaps(width):
        out[j] |= (lanes[i] << shift if shift >= 0 else lanes[i] >> -shift).astype(np.uint8)
    packed = np.ascontiguousarray(out.transpose(1, 2, 0)).reshape(rows, groups * width)
    return packed[:, : size(n, width)]


def unpack(raw: Array, width: int, n: int) -> Array:  # uint8[K, bytes] -> unsigned[K, n]
    """The inverse of `pack`.

    >>> unpack(np.array([[209, 0]], dtype=np.uint8), 3, 3).tolist()
    [[1, 2, 3]]
    """
    if width == 1:
        return np.unpackbits(np.ascontiguousarray(raw), axis=1, count=n, bitorder="little")
    if width % 8 == 0 and width != 24:
        return from_bytes(raw, f"<u{width // 8}")
    rows = len(raw)
    groups = -(-n // 8)
    word = _word(width)
    whole = np.zeros((rows, groups * width), dtype=np.uint8)
    whole[:, : raw.shape[1]] = raw
    octets = np.ascontiguousarray(whole.reshape(rows, groups, width).transpose(2, 0, 1))
    octets = octets.astype(word)
    lanes = np.zeros((8, rows, groups), dtype=word)
    for i, j, shift in _overlaps(width):
        lanes[i] |= octets[j] >> shift if shift >= 0 else octets[j] << -shift
    lanes &= word(2**width - 1)
    return np.ascontiguousarray(lanes.transpose(1, 2, 0)).reshape(rows, 8 * groups)[:, :n]


def size(n: int, width: int) -> int:
    """Bytes of n numbers of `width` bits."""
    return -(-n * width // 8)


def stray_bits(raw: Array, used: int) -> Array:  # -> bool[K]
    """Rows with a bit set in their last byte after the first `used` bits: no encoder writes that.

    >>> stray_bits(np.array([[209, 0], [209, 4]], dtype=np.uint8), 9).tolist()
    [False, True]
    """
    return raw[:, -1] >> (used % 8) != 0 if used % 8 else np.zeros(len(raw), dtype=bool)


def _word(width: int) -> type[np.unsignedinteger]:
    """The smallest unsigned type of at least `width` bits."""
    return np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32


def _overlaps(width: int) -> list[tuple[int, int, int]]:
    """(number, byte, place of the number's lowest bit in that byte), where the two share bits.

    For a group of eight numbers, which fills `width` bytes.
    """
    return [
        (i, j, i * width - 8 * j)
        for i in range(8)
        for j in range(width)
        if i * width < 8 * j + 8 and 8 * j < (i + 1) * width
    ]


# -- Elias gamma -----------------------------------------------------------------------------------
def pack_gamma(values: Array, counts: Array) -> Ragged:
    """Elias gamma codes of counts[k] numbers in row k, 1 <= number < 2^32.

    `values` holds the numbers of all rows one after the other. A number x with N = floor(log2 x)
    takes 2 N + 1 bits: N zeros and a one, then the N bits below its leading one. Here a row's
    prefixes come first and its suffixes after them, so that it can be read without a loop; before
    them stands S, the sum of N, as 4 bytes: 4 + ceil((count + 2 S) / 8) bytes.

    Elias 1975, "Universal codeword sets and representations of the integers".

    >>> pack_gamma(np.array([1, 1, 5]), np.array([3, 0])).lengths.tolist()
    [5, 4]
    """
    values = values.astype(np.int64, copy=False)
    counts = counts.astype(np.int64)
    suffix_bits = np.zeros(len(values), dtype=np.int64)  # N of every number
    for b in range(1, int(values.max(initial=0)).bit_length()):
        suffix_bits += values >= 1 << b
    ends = np.cumsum(counts)
    after = np.concatenate([[0], np.cumsum(suffix_bits)])  # suffix bits of all numbers up to one
    earlier = after[ends - counts]  # suffix bits of the rows before
    total = after[ends] - earlier  # S of every row
    lengths = -(-(counts + 2 * total) // 8)
    begin = 8 * (np.cumsum(lengths) - lengths)  # a row's first bit in the bits of all rows
    bits = np.zeros(8 * int(lengths.sum()), dtype=np.uint8)
    row_shift = np.repeat(begin - earlier - (ends - counts), counts)
    bits[after[1:] + np.arange(len(values)) + row_shift] = 1  # the one that ends each prefix
    suffix = after[:-1] + np.repeat(begin - earlier + counts + total, counts)
    has = np.flatnonzero(suffix_bits > 0)
    b = 0
    while len(has):  # bit b of all suffixes that have one
        bits[suffix[has] + b] = (values[has] >> b) & 1
        b += 1
        has = has[suffix_bits[has] > b]
    matrix = np.zeros((len(counts), 4 + int(lengths.max(initial=0))), dtype=np.uint8)
    matrix[:, :4] = to_bytes(total[:, None], "<u4")
    used = np.arange(matrix.shape[1] - 4) < lengths[:, None]
    matrix[:, 4:][used] = np.packbits(bits, bitorder="little")
    return Ragged(matrix, lengths + 4)


def read_gamma(reader: Reader, who: Array, counts: Array, top: int) -> Array:
    """The numbers of the rows `who`, counts[k] in row k, one row after the other.

    1 <= number <= top; a bad row reads as ones.
    """
    counts = counts.astype(np.int64)
    longest = top.bit_length() - 1  # the largest N
    total = from_bytes(reader.take(4, who), "<u4")[:, 0].astype(np.int64)
    fine = total <= longest * counts
    total = np.where(fine, total, 0)
    lengths = np.where(fine, -(-(counts + 2 * total) // 8), 0)
    bits = np.unpackbits(reader.take(lengths, who), axis=1, bitorder="little")
    width = bits.shape[1]
    column = np.arange(width)
    prefix = bits.astype(bool) & (column < (counts + total)[:, None])
    fine &= prefix.sum(axis=1) == counts
    beyond = column >= (counts + 2 * total)[:, None]
    fine &= bits.sum(axis=1, where=beyond) == 0  # nothing after the last suffix
    if width:  # the prefixes end where S says
        last = np.maximum(counts + total - 1, 0) % width
        fine &= prefix[np.arange(len(bits)), last] | (counts == 0)
    prefix[~fine] = False
    sound_counts = np.where(fine, counts, 0)
    # the first number of every row that has any
    starts = (np.cumsum(sound_counts) - sound_counts)[sound_counts > 0]
    row = np.repeat(np.arange(len(bits)), sound_counts)  # the row of every number
    place = np.flatnonzero(prefix) - row * width
    suffix_bits = np.diff(place, prepend=-1) - 1  # N of every number
    suffix_bits[starts] = place[starts]
    high = suffix_bits > longest
    fine[row[high]] = False
    suffix_bits[high] = 0
    before = np.cumsum(suffix_bits) - suffix_bits
    first = (np.arange(len(bits)) * width + counts + total)[sound_counts > 0] - before[starts]
    suffix = before + np.repeat(first, sound_counts[sound_counts > 0])
    numbers = np.int64(1) << suffix_bits
    flat = bits.reshape(-1)
    has = np.flatnonzero(suffix_bits > 0)
    b = 0
    while len(has):  # bit b of all suffixes that have one
        numbers[has] |= flat[suffix[has] + b].astype(np.int64) << b
        b += 1
        has = has[suffix_bits[has] > b]
    fine[row[numbers > top]] = False
    reader.reject(~fine, who)
    values = np.ones(int(counts.sum()), dtype=np.int64)
    values[np.repeat(fine, counts)] = numbers[fine[row]]
    return values


def gamma_limit(count: int, top: int) -> int:
    """The most bytes `count` numbers up to `top` take."""
    return 4 + size(count * (2 * top.bit_length() - 1), 1)


# -- Elias-Fano ------------------------------------------------------------------------------------
def places_size(k: int, n: int) -> int:
    """Bytes of k places out of n: about k (2 + log2(n / k)) / 8, never more than n / 8.

    >>> places_size(795, 79_510)
    852
    """
    if k == n:
        return 0
    return min(size(n, 1), min(_places_size(k, n, low) for low in range(n.bit_length())))


def pack_places(places: Array, n: int) -> Array:  # int64[K, k] -> uint8[K, places_size(k, n)]
    """Elias-Fano code of increasing places x_0 < ... < x_{k-1} < n.

    The low bits of all of them, then one bit vector with ones at i + (x_i >> low). Where one plain
    bit per place is as short, that. Elias 1974; Fano 1971.

    >>> pack_places(np.array([[3, 7, 60]]), 64).shape
    (1, 3)
    """
    rows, k = places.shape
    if k == n:
        return np.zeros((rows, 0), dtype=np.uint8)
    row = np.arange(rows)[:, None]
    low = _low(k, n)
    if low is None:
        plain = np.zeros((rows, n), dtype=bool)
        plain[row, places] = True
        return pack(plain, 1)
    high = np.zeros((rows, k + ((n - 1) >> low)), dtype=bool)
    high[row, (places >> low) + np.arange(k)] = True
    if not low:
        return pack(high, 1)
    return np.concatenate([pack(places & (2**low - 1), low), pack(high, 1)], axis=1)


def read_places(reader: Reader, who: Array, k: int, n: int) -> Array:  # -> int64[rows of who, k]
    """Places written by `pack_places`.

    A row with another count, out of order or out of range is marked and reads as 0 ... k - 1.
    """
    rows = int(who.sum())
    harmless = np.broadcast_to(np.arange(k), (rows, k))
    if k == n:
        return harmless.copy()
    low = _low(k, n)
    lower: Array | int = 0
    if low:
        raw = reader.take(size(k, low), who)
        reader.reject(stray_bits(raw, k * low), who)
        lower = unpack(raw, low, k).astype(np.int64)
    length = n if low is None else k + ((n - 1) >> low)
    ones = np.unpackbits(reader.take(size(length, 1), who), axis=1, bitorder="little")
    fine = ones.sum(axis=1, dtype=np.int64) == k
    ones[~fine] = 0
    ones[~fine, :k] = 1
    places = np.nonzero(ones)[1].reshape(rows, k)
    if low is not None:
        places = ((places - np.arange(k)) << low) | lower
    fine &= (np.diff(places, axis=1) > 0).all(axis=1) & (places[:, -1] < n)
    reader.reject(~fine, who)
    return np.where(fine[:, None], places, harmless)


def _places_size(k: int, n: int, low: int) -> int:
    """Bytes of the Elias-Fano code with this many low bits."""
    return size(k, low) + size(k + ((n - 1) >> low), 1)


def _low(k: int, n: int) -> int | None:
    """The number of low bits with the shortest code; None where a plain bit vector is as short."""
    low = min(range(n.bit_length()), key=lambda b: _places_size(k, n, b))
    return low if _places_size(k, n, low) < size(n, 1) else None


# -- bytes of numbers ------------------------------------------------------------------------------
def to_bytes(x: Array, kind: str) -> Array:  # x[K, n] -> uint8[K, n * itemsize]
    """Numbers as bytes, the low byte first; `kind` is a NumPy type such as "<f4"."""
    flat = np.ascontiguousarray(x.astype(kind, copy=False))
    return flat.view(np.uint8).reshape(len(x), x.shape[1] * flat.itemsize)


def from_bytes(raw: Array, kind: str) -> Array:
    """The inverse of `to_bytes`, in the machine's own byte order."""
    dtype = np.dtype(kind)
    x = np.ascontiguousarray(raw).view(dtype).reshape(len(raw), raw.shape[1] // dtype.itemsize)
    return x.astype(dtype.newbyteorder("="), copy=False)


def ceil32(x: Array) -> Array:
    """float64 >= 0 as the nearest float32 not below it; what is finite stays finite.

    >>> bool(ceil32(np.array(0.1)) >= 0.1), float(ceil32(np.array(1e300)))
    (True, 3.4028234663852886e+38)
    """
    top = float(np.finfo(np.float32).max)
    x = np.where(np.isfinite(x), np.minimum(x, top), x)
    near = x.astype(np.float32)
    with np.errstate(over="ignore"):  # nextafter is computed also where it is not used
        return np.where(near < x, np.nextafter(near, np.float32(np.inf)), near).astype(np.float32)


def count(n: int, bucket: int) -> int:
    """How many buckets n numbers fill.

    >>> count(1000, 512)
    2
    """
    return -(-n // bucket)


def split(x: Array, bucket: int) -> Array:  # x[K, n] -> [K, buckets, numbers per bucket]
    """Rows cut into buckets; the last is filled up with zeros."""
    rows, n = x.shape
    bucket = min(bucket, n)
    if n % bucket:
        whole = np.zeros((rows, count(n, bucket) * bucket), dtype=x.dtype)
        whole[:, :n] = x
        x = whole
    return x.reshape(rows, count(n, bucket), bucket)


def norms(x: Array, kind: str) -> Array:  # x[K, buckets, b] -> float32[K, buckets]
    """The norm of every bucket, "l2" or "inf", rounded up to float32.

    So it is never below a number of the bucket that float32 can hold.
    """
    if kind == "inf":
        return ceil32(np.maximum(x.max(axis=2), -x.min(axis=2)).astype(np.float64))
    with np.errstate(over="ignore"):
        return ceil32(np.sqrt(np.einsum("kbj,kbj->kb", x, x, dtype=np.float64, casting="safe")))


def ratio(x: Array, norm: Array, steps: int) -> Array:  # x[K, buckets, b] -> in [-steps, steps]
    """steps x / norm; zero where the norm is zero or not finite.

    A norm that is not finite is sent, and makes its bucket not finite at the receiver.
    """
    usable = np.isfinite(norm) & (norm > 0)
    r = x / np.where(usable, norm, 1)[..., None].astype(x.dtype)
    if not usable.all():
        r[~usable] = 0
    r *= steps
    return r


def dither(r: Array, keys: Array) -> Array:  # r[K, ...] -> whole numbers
    """Stochastic rounding: up with the probability of the fraction, so that the mean is r."""
    u = streams.uniform(keys, int(np.prod(r.shape[1:]))).reshape(r.shape)
    u += r
    return np.floor(u, out=u)


def join(unit: Array, norm: Array, bucket: int) -> Array:  # unit[K, n], norm[K, buckets] -> [K, n]
    """Numbers in [-1, 1] times the norm of their bucket."""
    n = unit.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        return unit * np.repeat(norm.astype(unit.dtype), min(bucket, n), axis=1)[:, :n]
