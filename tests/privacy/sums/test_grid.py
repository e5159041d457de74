"""The arithmetic of secure sums: the plain clipped mean, up to one step of the grid."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.channels.dense import clipped
from idiolect.core.knobs import SettingError
from idiolect.privacy.sums.grid import TAILS, WIDTHS, Grid, finest_exponent
from idiolect.privacy.sums.setting import SecureSums, parse_sums, sums_text


def mean_of(grid: Grid, rows: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
    """As a round does it, over the bytes that travel."""
    bodies = grid.pack(grid.residues(grid.quantise(rows), noise))
    return grid.mean(grid.total(grid.unpack(bodies)), len(rows), torch.float64)


@pytest.mark.parametrize("clients", [2, 10, 100])
@pytest.mark.parametrize("bits", [24, 32, 40, 48])
@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_the_sum_is_the_plain_clipped_mean_to_a_step(clients, bits, size):
    rows = size * torch.randn(clients, 50, generator=torch.Generator().manual_seed(0)).double()
    grid = Grid.fit(clip=2.0, clients=clients, numbers=50, bits=bits)
    gap = (mean_of(grid, rows) - clipped(rows, 2.0).mean(0)).abs().max().item()
    assert gap <= grid.step * (1 + 1e-9)


def test_parts_of_a_message_are_clipped_as_one_vector():
    """A message of two parts of norm 1 each has the norm √2, and loses a factor of √2."""
    grid = Grid.fit(clip=1.0, clients=2, numbers=4)
    rows = torch.tensor([[1.0, 0, 0, 1.0]] * 2)
    expected = torch.tensor([1, 0, 0, 1]) / math.sqrt(2)
    assert torch.allclose(mean_of(grid, rows).float(), expected, atol=2 * grid.step)


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from(WIDTHS[1:]),
    st.floats(1e-20, 1e20),
)
def test_no_row_has_a_norm_above_the_clip(rows, bits, clip):
    grid = Grid.fit(clip=clip, clients=5, numbers=3, bits=bits)
    whole = grid.quantise(torch.tensor(rows)).numpy().astype(object)
    assert ((whole * whole).sum(1) <= grid.norm**2).all()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 10_000),
    st.sampled_from(WIDTHS),
    st.floats(0, 20),
    st.floats(0, 1),
)
def test_no_sum_can_overflow(clients, bits, noise, share):
    """With every client at the clip in one number, and all their noise in the tail."""
    least = max(1, int(share * clients))
    k = finest_exponent(clients, bits, noise, least)
    if k < 0:
        return
    tail = TAILS * noise * 2**k * math.sqrt(clients / least) + (clients / 2 if noise else 0)
    assert clients * 2**k + tail < 2 ** (bits - 1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("clients", [1, 2, 3, 100])
def test_the_extremes_come_back_exactly(sign, bits, clients):
    grid = Grid.fit(clip=1.0, clients=clients, numbers=1, bits=bits)
    rows = torch.full((clients, 1), sign * 1e30)
    assert mean_of(grid, rows).item() == sign * 1.0


def test_a_finer_grid_would_overflow_or_is_the_finest_there_is():
    for clients in (2, 100, 5000):
        for bits in WIDTHS:
            k = finest_exponent(clients, bits)
            assert k == 30 or clients * 2 ** (k + 1) > 2 ** (bits - 1) - 1


def test_noise_is_part_of_the_sum_and_makes_room_for_itself():
    grid = Grid.fit(clip=1.0, clients=10, numbers=4, noise=50.0, least=7)
    assert grid.exponent < Grid.fit(clip=1.0, clients=10, numbers=4).exponent
    noise = torch.arange(40).reshape(10, 4) * grid.norm - 20 * grid.norm
    rows = torch.zeros(10, 4)
    expected = noise.double().mean(0) * grid.step
    assert torch.equal(mean_of(grid, rows, noise), expected)


def test_rounding_is_toward_zero():
    grid = Grid.fit(clip=1.0, clients=2, numbers=2)
    rows = torch.tensor([[0.9, -0.9]], dtype=torch.float64) * grid.step
    assert grid.quantise(rows).tolist() == [[0, 0]]


@pytest.mark.parametrize("bits", WIDTHS)
def test_numbers_travel_in_their_bits(bits):
    grid = Grid(1.0, 3, bits, 5, 2)
    residues = np.random.default_rng(0).integers(0, grid.modulus, (3, 5), dtype=np.uint64)
    raw = grid.pack(residues)
    assert raw.shape == (3, 5 * bits // 8) and raw.dtype == np.uint8
    assert (grid.unpack(raw) == residues).all()


def test_bytes_of_another_length_are_refused():
    grid = Grid.fit(clip=1.0, clients=2, numbers=5)
    with pytest.raises(ValueError, match="a row must have 20 bytes"):
        grid.unpack(np.zeros((1, 19), dtype=np.uint8))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_not_sent(bad):
    grid = Grid.fit(clip=1.0, clients=2, numbers=2)
    with pytest.raises(ValueError, match="rows must be finite"):
        grid.quantise(torch.tensor([[bad, 0.0]]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": 0.0}, "clip must be a number > 0 under secure sums, got 0.0"),
        ({"bits": 20}, "bits must be one of 16, 24, 32, 40, 48, got 20"),
        ({"noise": -1.0}, "noise must be a number >= 0, got -1.0"),
        ({"least": 101}, "least must be from 1 to the 100 clients, got 101"),
        ({"bits": 16}, "16 leave 256 in a sum of 100 clients: 24 or more would do"),
        (
            {"bits": 24, "noise": 1000.0},
            "24 leave 64 in a sum of 100 clients with noise of 1000 times the clip: 32 or more",
        ),
        ({"clients": 2**45}, "no width would do"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(options, words):
    with pytest.raises(SettingError) as error:
        Grid.fit(**{"clip": 1.0, "clients": 100, "numbers": 50, **options})
    assert words in str(error.value)


def test_the_setting_is_written_as_it_is_read():
    sums = parse_sums("secagg(clip=0.5, survivors=0.8)")
    assert sums == SecureSums(clip=0.5, survivors=0.8)
    assert parse_sums(sums_text(sums)) == sums
    assert parse_sums("none") is None and parse_sums(False) is None


@pytest.mark.parametrize("heard", [0, 1])
def test_a_sum_of_one_is_refused(heard):
    with pytest.raises(SettingError, match="the sum of one message is that message"):
        SecureSums().check(heard)


def test_more_clients_than_there_is_room_for_are_refused():
    with pytest.raises(SettingError, match="clients must be at least the 2,000 heard per round"):
        SecureSums().check(2000)


@pytest.mark.parametrize(("clients", "least"), [(2, 2), (3, 3), (10, 7), (100, 70)])
def test_the_minimum_of_survivors(clients, least):
    assert SecureSums().least(clients) == least
