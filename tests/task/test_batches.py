"""What clients draw: keyed by client and round, whatever the cohort, as the settings say."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import numbered
from idiolect import Federation
from idiolect.core.knobs import SettingError
from idiolect.core.streams import name_keys
from idiolect.task.batches import BATCHING
from idiolect.task.context import Here

SIZES = (7, 1, 20, 5, 64)  # training samples of clients 0 .. 4; client 5 has none


def federation(sizes: tuple[int, ...] = SIZES, without_data: int = 1) -> Federation:
    return numbered(sizes, without_data)


def of_clients(
    data: Federation,
    clients: list[int],
    batching: str,
    batch: int = 4,
    seed: int = 0,
    round: int = 2,
    purpose: str = "batch",
) -> Here:
    return Here(
        data,
        torch.tensor(clients),
        clients=name_keys(data.names)[clients],
        seed=seed,
        round=round,
        batch=batch,
        batching=batching,
        purpose=purpose,
    )


def drawn(here: Here, steps: int) -> list[list[list[int]]]:
    """[step][row] -> samples with weight."""
    out = []
    for _ in range(steps):
        batch = here.draw()
        out.append(
            [
                batch.inputs[k, batch.weights[k] > 0, 0].long().tolist()
                for k in range(len(batch.inputs))
            ]
        )
    return out


@pytest.mark.parametrize("batching", BATCHING)
@given(st.permutations(range(6)), st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_what_a_client_draws_depends_on_nobody_else(batching, order, size):
    data = federation()
    alone = {k: [step[0] for step in drawn(of_clients(data, [k], batching), 35)] for k in range(6)}
    cohort = list(order)[:size]
    for row, k in enumerate(cohort):
        assert [step[row] for step in drawn(of_clients(data, cohort, batching), 35)] == alone[k]


@pytest.mark.parametrize("batching", ["replace", "epochs"])
def test_seed_and_round_change_what_is_drawn(batching):
    data = federation()
    first = drawn(of_clients(data, [4], batching, 32), 2)
    assert first == drawn(of_clients(data, [4], batching, 32), 2)
    assert first != drawn(of_clients(data, [4], batching, 32, seed=1), 2)
    assert first != drawn(of_clients(data, [4], batching, 32, round=3), 2)
    assert first[0] != first[1]


@pytest.mark.parametrize("batching", BATCHING)
def test_a_client_sees_only_its_own_training_samples(batching):
    data = federation()
    for k in range(5):
        own = set(range(int(data.offsets["train"][k]), int(data.offsets["train"][k + 1])))
        seen = {
            i for step in drawn(of_clients(data, list(range(6)), batching), 250) for i in step[k]
        }
        assert seen == own


@pytest.mark.parametrize("batching", BATCHING)
def test_targets_belong_to_their_inputs(batching):
    batch = of_clients(federation(), [0, 2, 4], batching).draw()
    assert torch.equal(
        batch.targets[batch.weights > 0], batch.inputs[..., 0].long()[batch.weights > 0] % 3
    )


def test_drawing_with_replacement_is_uniform():
    data = federation((20,), without_data=0)
    counts = np.bincount(np.ravel(drawn(of_clients(data, [0], "replace", 50), 200)), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_with_replacement_every_place_of_the_batch_is_filled():
    batch = of_clients(federation(), [0, 1], "replace").draw()
    assert batch.inputs.shape == (2, 4, 1) and torch.equal(batch.weights, torch.full((2, 4), 0.25))


@pytest.mark.parametrize("batch", [1, 3, 4, 7, 20, 64, 100])
def test_an_epoch_visits_every_sample_once_and_its_last_batch_may_be_smaller(batch):
    data = federation()
    here = of_clients(data, [0, 1, 2, 3, 4], "epochs", batch)
    passes = here.steps(0, 3).tolist()
    assert passes == [3 * -(-n // batch) for n in SIZES]
    steps = drawn(here, max(passes))
    for k, n in enumerate(SIZES):
        own = range(int(data.offsets["train"][k]), int(data.offsets["train"][k + 1]))
        each = -(-n // batch)
        for e in range(3):
            pieces = [steps[e * each + j][k] for j in range(each)]
            assert sorted(chain.from_iterable(pieces)) == list(own)
            assert [len(p) for p in pieces] == [batch] * (each - 1) + [n - batch * (each - 1)]


def test_every_pass_has_a_new_order():
    here = of_clients(federation(), [2], "epochs")
    orders = [tuple(chain.from_iterable(s[0] for s in drawn(here, 5))) for _ in range(4)]
    assert len(set(orders)) == 4


def test_orders_are_uniform():
    data = federation((3,), without_data=0)
    orders = [
        tuple(drawn(of_clients(data, [0], "epochs", 3, round=r), 1)[0][0]) for r in range(1200)
    ]
    counts = [orders.count(o) for o in set(orders)]
    assert len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-3


def test_full_is_all_the_data_every_time():
    here = of_clients(federation(), [0, 1, 4], "full")
    assert drawn(here, 2) == [[list(range(7)), [7], list(range(33, 97))]] * 2
    assert torch.allclose(here.draw().weights.sum(1), torch.ones(3))
    assert here.steps(0, 5).tolist() == [5, 5, 5]


@pytest.mark.parametrize("batching", [b for b in BATCHING if b != "poisson"])
def test_weights_sum_to_one_and_to_zero_for_a_client_without_data(batching):
    here = of_clients(federation(), [1, 5, 3], batching)
    for _ in range(20):
        assert torch.allclose(here.draw().weights.sum(1), torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("batching", BATCHING)
def test_a_cohort_without_any_data_draws_nothing(batching):
    batch = of_clients(federation(), [5], batching).draw()
    assert not batch.weights.any() and torch.isfinite(batch.inputs).all()


def test_a_client_without_data_takes_no_steps_in_epochs():
    assert of_clients(federation(), [5, 1], "epochs").steps(7, 2).tolist() == [0, 2]
    assert of_clients(federation(), [5, 1], "epochs").steps(7, 0).tolist() == [7, 7]


def test_personalisation_draws_other_numbers_than_training():
    data = federation()
    training, personalisation = (
        of_clients(data, [4], "replace", 32, purpose=purpose).draw().inputs
        for purpose in ("batch", "personal")
    )
    assert not torch.equal(training, personalisation)


# -- what else `here` offers -----------------------------------------------------------------------
def test_a_clients_keys_depend_on_purpose_and_round_and_on_nobody_else():
    data = federation()
    keys = of_clients(data, [0, 3], "full").keys("noise")
    assert keys.dtype == np.uint64 and keys.shape == (2,)
    assert keys[1] == of_clients(data, [3], "full").keys("noise")[0]
    assert keys[1] != of_clients(data, [3], "full", round=3).keys("noise")[0]
    assert keys[1] != of_clients(data, [3], "full").keys("other")[0]


def test_all_clients_of_a_round_share_their_coins():
    data = federation()
    coins = of_clients(data, [0, 3], "full").coins("coin", 5)
    assert coins.shape == (5,) and bool((coins >= 0).all() and (coins < 1).all())
    assert np.array_equal(coins, of_clients(data, [4], "full").coins("coin", 5))
    assert not np.array_equal(coins, of_clients(data, [4], "full", round=3).coins("coin", 5))


def test_without_validation_data_there_is_nothing_to_decide_by():
    here = of_clients(federation(), [0], "full")
    with pytest.raises(SettingError, match="no validation data"):
        here.validate(torch.zeros(1, 3))


def test_the_draws_are_those_of_every_earlier_version():
    """A change here changes every published figure: then these must be changed on purpose."""
    data = federation()
    assert drawn(of_clients(data, [4], "replace", 6), 1) == [[[88, 90, 75, 46, 92, 95]]]
    assert drawn(of_clients(data, [0], "epochs", 7), 2) == [
        [[2, 5, 3, 4, 0, 6, 1]],
        [[5, 1, 2, 3, 6, 4, 0]],
    ]
