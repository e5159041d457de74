"""Bit codes: the vectorised coders write what a slow, obvious coder writes.

And refuse what no coder would write.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.channels import bits
from idiolect.wire.ragged import Ragged, Reader, join

RNG = np.random.default_rng


def as_bytes(text: str) -> bytes:
    """A text of 0 and 1 as bytes, first character in the lowest bit."""
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


def low_first(x: int, width: int) -> str:
    return "".join(str(x >> b & 1) for b in range(width))


@pytest.mark.parametrize("width", range(1, 33))
def test_fixed_width_is_the_obvious_bit_string_and_comes_back(width):
    for n in (1, 2, 7, 8, 9, 31):
        codes = RNG(width).integers(0, 2**width, size=(3, n))
        raw = bits.pack(codes, width)
        assert raw.shape == (3, bits.size(n, width))
        for row, code in zip(raw, codes, strict=True):
            assert row.tobytes() == as_bytes("".join(low_first(int(c), width) for c in code))
        assert (bits.unpack(raw, width, n) == codes).all() and not bits.stray_bits(
            raw, n * width
        ).any()


def test_fixed_width_of_no_rows():
    for width in (1, 5, 8, 13, 32):
        raw = bits.pack(np.zeros((0, 5), dtype=np.int64), width)
        assert bits.unpack(raw, width, 5).shape == (0, 5)


def gamma(numbers: list[int]) -> bytes:
    """Prefixes, then suffixes; before them the number of suffix bits."""
    more = [x.bit_length() - 1 for x in numbers]
    text = "".join("0" * m + "1" for m in more) + "".join(
        low_first(x, m) for x, m in zip(numbers, more, strict=True)
    )
    assert len(text) == sum(2 * m + 1 for m in more)
    return sum(more).to_bytes(4, "little") + as_bytes(text)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.integers(1, 9), st.integers(1, 2**32 - 1)), max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_gamma_codes_are_those_of_the_obvious_coder_and_come_back(rows):
    counts = np.array([len(r) for r in rows])
    flat = np.array([x for r in rows for x in r], dtype=np.int64)
    coded = bits.pack_gamma(flat, counts)
    assert [coded.row(k) for k in range(len(rows))] == [gamma(r) for r in rows]
    reader = Reader(coded)
    read = bits.read_gamma(reader, np.ones(len(rows), dtype=bool), counts, 2**32 - 1)
    assert read.tolist() == flat.tolist()
    assert reader.finished().all()
    assert (coded.lengths <= [bits.gamma_limit(len(r), 2**32 - 1) for r in rows]).all()


def test_gamma_of_some_rows_leaves_the_others_alone():
    who, counts = np.array([True, False, True]), np.array([2, 3])
    coded = join(
        [
            Ragged.of([b"ab", b"cd", b"ef"]),
            bits.pack_gamma(np.array([5, 1, 7, 8, 9]), counts).spread(who),
        ]
    )
    reader = Reader(coded)
    reader.take(2)
    assert (
        bits.read_gamma(reader, who, counts, 9).tolist() == [5, 1, 7, 8, 9]
        and reader.finished().all()
    )


def test_only_true_gamma_codes_are_accepted():
    """Of all strings of two bytes after S, exactly those are taken that the coder writes.

    For three numbers up to 5.
    """
    top, true = 5, {gamma(list(xs)) for xs in itertools.product(range(1, 6), repeat=3)}
    for total in range(8):
        size = -(-(3 + 2 * total) // 8)
        strings = [
            total.to_bytes(4, "little") + bytes(b)
            for b in itertools.product(range(256), repeat=min(size, 2))
        ]
        strings = strings if size <= 2 else [s + b"\0" for s in strings]
        reader = Reader(Ragged.of(strings))
        values = bits.read_gamma(
            reader, np.ones(len(strings), dtype=bool), np.full(len(strings), 3), top
        )
        assert values.min() >= 1 and values.max() <= top and len(values) == 3 * len(strings)
        assert {s for s, ok in zip(strings, reader.finished(), strict=True) if ok} == true & set(
            strings
        )


def test_a_gamma_length_no_message_can_have_allocates_nothing():
    reader = Reader(Ragged.of([b"\xff\xff\xff\xff" + b"\1" * 9, b"\0\0\0\0\7"]))
    assert (
        bits.read_gamma(reader, np.ones(2, dtype=bool), np.array([3, 3]), 100).tolist() == [1] * 6
    )
    assert reader.finished().tolist() == [False, True]


def fano(places: list[int], n: int) -> bytes:
    k = len(places)
    if k == n:
        return b""
    codes = [as_bytes("".join("1" if j in places else "0" for j in range(n)))]
    for low in range(n.bit_length()):
        high = ["0"] * (k + ((n - 1) >> low))
        for i, x in enumerate(places):
            high[i + (x >> low)] = "1"
        codes.append(
            as_bytes("".join(low_first(x & (2**low - 1), low) for x in places))
            + as_bytes("".join(high))
        )
    return min(codes, key=len)  # the first of the shortest: the plain bits where they are as short


@pytest.mark.parametrize("n", range(1, 10))
def test_elias_fano_of_every_set(n):
    for k in range(1, n + 1):
        sets = np.array(list(itertools.combinations(range(n), k)))
        raw = bits.pack_places(sets, n)
        assert raw.shape[1] == bits.places_size(k, n)
        assert [r.tobytes() for r in raw] == [fano(list(map(int, s)), n) for s in sets]
        reader = Reader(Ragged.even(raw))
        assert (
            bits.read_places(reader, np.ones(len(raw), dtype=bool), k, n) == sets
        ).all() and reader.finished().all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 99))
def test_elias_fano_of_random_sets_is_near_the_information_bound(n, share, seed):
    k = max(1, round(share**3 * n))
    sets = np.sort(np.array([RNG((seed, i)).permutation(n)[:k] for i in range(3)]), axis=1)
    raw = bits.pack_places(sets, n)
    assert [r.tobytes() for r in raw] == [fano(list(map(int, s)), n) for s in sets]
    reader = Reader(Ragged.even(raw))
    assert (
        bits.read_places(reader, np.ones(3, dtype=bool), k, n) == sets
    ).all() and reader.finished().all()
    bound = math.log2(math.comb(n, k))
    assert bound <= 8 * raw.shape[1] <= min(bound + k + 16, n + 7)


@pytest.mark.parametrize(("n", "k"), [(40, 2), (12, 3), (23, 1), (16, 5)])
def test_exactly_the_sets_are_accepted(n, k):
    """Among all byte strings of the right length there is one for each set.

    A wrong count, order or range is marked.
    """
    size = bits.places_size(k, n)
    assert size <= 2
    strings = np.array(list(itertools.product(range(256), repeat=size)), dtype=np.uint8)
    reader = Reader(Ragged.even(strings))
    places = bits.read_places(reader, np.ones(len(strings), dtype=bool), k, n)
    assert reader.finished().sum() == math.comb(n, k)
    assert places.shape == (len(strings), k) and (np.diff(places, axis=1) > 0).all()
    assert places.min() >= 0 and places.max() < n


def test_bytes_of_numbers_are_low_byte_first():
    assert bits.to_bytes(np.array([[1, 258]]), "<u4").tolist() == [[1, 0, 0, 0, 2, 1, 0, 0]]
    assert bits.from_bytes(bits.to_bytes(np.array([[1.5]]), "<f8"), "<f8").tolist() == [[1.5]]


@given(st.floats(0, allow_infinity=False))
def test_ceil32_is_not_below_and_finite(x):
    y = float(bits.ceil32(np.array(x)))
    assert math.isfinite(y) and (y >= x or x > 3.4e38) and y <= x * (1 + 2**-23) + 2e-45


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_join_puts_the_parts_of_each_row_one_after_the_other(parts):
    whole = join([Ragged.of(p) for p in parts])
    assert [whole.row(k) for k in range(3)] == [b"".join(p[k] for p in parts) for k in range(3)]
