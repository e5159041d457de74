"""Every rule keeps the symmetries it should have, and leaves its input alone."""

import numpy as np
import pytest
import torch

from idiolect.server.rules import parse_rule
from server.rules.common import ALL, FIXED_LENGTH, KEYED, draw


@pytest.mark.parametrize("text", ALL)
def test_moving_all_rows_moves_the_aggregate(text):
    rows, weights = draw(12, 5)
    rule = parse_rule(text)
    shift = torch.tensor([3.0, -7.0, 0.5, 100.0, 0.0], dtype=torch.float64)
    moved = rule(rows + shift, weights, key=3)
    wanted = rule(rows, weights, key=3) + shift
    torch.testing.assert_close(moved, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("text", [t for t in ALL if t not in FIXED_LENGTH])
def test_scaling_all_rows_scales_the_aggregate(text):
    rows, weights = draw(12, 5)
    rule = parse_rule(text)
    scaled = rule(8 * rows, weights, key=3)
    wanted = 8 * rule(rows, weights, key=3)
    torch.testing.assert_close(scaled, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("text", ["centred-clipping(tau={})", "norm-bound(bound={}) + mean"])
def test_a_length_in_the_options_scales_with_the_rows(text):
    rows, weights = draw(12, 5)
    scaled = parse_rule(text.format(8))(8 * rows, weights)
    wanted = 8 * parse_rule(text.format(1))(rows, weights)
    torch.testing.assert_close(scaled, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("text", [t for t in ALL if t not in KEYED])
def test_the_order_of_the_clients_does_not_matter(text):
    rows, weights = draw(12, 5)
    rule = parse_rule(text)
    order = torch.from_numpy(np.random.default_rng(1).permutation(12))
    shuffled = rule(rows[order], weights[order])
    torch.testing.assert_close(shuffled, rule(rows, weights), rtol=0, atol=1e-10)


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_give_that_row_in_their_own_dtype(text, dtype):
    row = draw(1, 6, dtype=dtype)[0][0]
    found = parse_rule(text)(row.expand(12, -1), draw(12, 1)[1])
    assert found.dtype == dtype
    torch.testing.assert_close(found, row)


@pytest.mark.parametrize("text", ALL)
def test_a_message_of_no_numbers_stays_one(text):
    assert parse_rule(text)(torch.zeros(12, 0), torch.ones(12)).shape == (0,)


@pytest.mark.parametrize("text", ALL)
def test_rows_are_not_written_to(text):
    rows, weights = draw(12, 5)
    before = rows.clone()
    parse_rule(text)(rows, weights)[:] = 7
    assert torch.equal(rows, before)


@pytest.mark.parametrize(
    "text", [t for t in ALL if not t.startswith(("mean", "geometric")) and not t.endswith(" mean")]
)
def test_weights_change_nothing_where_the_paper_has_none(text):
    rows, weights = draw(12, 5)
    rule = parse_rule(text)
    assert torch.equal(rule(rows, weights), rule(rows, 1000 * weights**4))
