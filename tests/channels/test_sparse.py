"""Top-k and random-k."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.common import form, keys, send
from idiolect.channels.sparse import RandomK, TopK, largest
from idiolect.core.knobs import SettingError

NORMAL = torch.randn(5, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_the_largest_are_those_of_a_stable_sort(row, data):
    k = data.draw(st.integers(1, len(row)))
    order = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))[:k]
    assert largest(np.array([row, row], dtype=float), k).tolist() == [sorted(order)] * 2


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_top_k_sends_the_largest_as_they_are_and_contracts(share):
    k = max(1, round(share * 200))
    out, _, body = send(f"topk(share={share})", NORMAL, form(200, dtype=torch.float64))
    kept = out != 0
    assert (kept.sum(1) == k).all() and torch.equal(out[kept], NORMAL[kept])
    for i in range(5):
        assert k == 200 or NORMAL[i][kept[i]].abs().min() >= NORMAL[i][~kept[i]].abs().max()
    assert (((out - NORMAL) ** 2).sum(1) <= (1 - k / 200) * (NORMAL**2).sum(1) + 1e-12).all()
    assert (body.lengths == TopK(share=share).limit(form(200)) + 8 * k).all()


def test_top_k_of_a_model_of_79510_numbers_costs_a_byte_and_a_bit_for_each_place():
    assert TopK(share=0.01).limit(form(79510)) == 852 < 795 * 1.08


def test_random_k_is_right_on_average_with_the_stated_variance():
    times, row = 6000, NORMAL[0, :40]
    out, _, body = send("randomk(share=0.2)", row.expand(times, 40), form(40, dtype=torch.float64))
    assert ((out != 0).sum(1) == 8).all() and (body.lengths == 8 + 8 * 8).all()
    assert ((out.mean(0) - row).abs() <= 5 * out.std(0) / times**0.5).all()
    error = ((out - row) ** 2).sum(1)
    assert abs(error.mean() - 4 * (row**2).sum()) <= 5 * error.std() / times**0.5


def test_random_k_without_the_factor_sends_numbers_as_they_are_and_contracts_on_average():
    times, row = 6000, NORMAL[0, :40]
    out, _, _ = send(
        "randomk(share=0.25, unbiased=False)", row.expand(times, 40), form(40, dtype=torch.float64)
    )
    assert torch.equal(out[out != 0], row.expand(times, 40)[out != 0])
    error = ((out - row) ** 2).sum(1)
    assert abs(error.mean() - 0.75 * (row**2).sum()) <= 5 * error.std() / times**0.5


def test_every_pair_of_places_is_as_likely():
    out, _, _ = send("randomk(share=0.4)", torch.ones(20_000, 5), form(5))
    both = ((out != 0).double().T @ (out != 0).double()) / 20_000
    chance = torch.full((5, 5), 0.1, dtype=torch.float64).fill_diagonal_(0.4)
    assert (both - chance).abs().max() < 5 * (0.24 / 20_000) ** 0.5


def test_random_places_change_from_round_to_round_and_from_client_to_client():
    a, b = (
        send("randomk(share=0.1)", torch.ones(2, 500), form(500), key=keys(2, t))[0] != 0
        for t in (0, 1)
    )
    assert not torch.equal(a[0], a[1]) and not torch.equal(a[0], b[0])


@pytest.mark.parametrize("stage", [TopK, RandomK])
@pytest.mark.parametrize("share", [0, 1.1, -1, "many"])
def test_shares_that_cannot_work_are_refused(stage, share):
    with pytest.raises(SettingError, match="share"):
        stage(share=share)
