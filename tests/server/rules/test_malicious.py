"""Every rule withstands the malicious clients that it says it withstands, and huge numbers."""

import pytest
import torch

from idiolect.server.rules import parse_rule
from server.rules.common import KEYED, ROBUST, WRAPPED, draw, with_malicious


@pytest.mark.parametrize("where", [1e6, -1e6, 1e30])
@pytest.mark.parametrize(
    "text",
    [t for t in ROBUST if not t.startswith(("geometric", "centred"))] + ["nnm(f=2) + median"],
)
def test_with_two_malicious_of_twelve_the_aggregate_stays_among_the_honest_rows(text, where):
    honest, _ = draw(10, 5)
    found = parse_rule(text)(with_malicious(honest, 2, where), torch.ones(12))
    assert (found >= honest.amin(0) - 1e-12).all()
    assert (found <= honest.amax(0) + 1e-12).all()


def test_the_geometric_median_moves_no_further_than_its_theorem_says():
    honest, _ = draw(10, 5)
    mid = honest.mean(0)
    found = parse_rule("geometric-median")(with_malicious(honest, 2, 1e6), torch.ones(12))
    bound = 2 * (10 / 12) / (1 - 2 * 2 / 12)
    assert (found - mid).norm() <= bound * (honest - mid).norm(dim=1).max()


def test_per_step_malicious_clients_move_centred_clipping_by_their_share_of_tau():
    honest, _ = draw(10, 5)
    ones = torch.ones(12)
    central = torch.cat([honest, honest.median(0).values.expand(2, -1)])
    far = with_malicious(honest, 2, 1e6)
    median = parse_rule("median")
    clipping = parse_rule("centred-clipping(tau=2, steps=1)")
    starts_differ = (median(far, ones) - median(central, ones)).norm()
    moved = (clipping(far, ones) - clipping(central, ones)).norm()
    assert moved <= 2 * starts_differ + 2 * 2 / 12 + 1e-9


def test_one_malicious_client_takes_the_mean_anywhere():
    honest, _ = draw(10, 5)
    assert parse_rule("mean")(with_malicious(honest, 1, 1e6), torch.ones(11)).min() > 9e4


@pytest.mark.parametrize("text", [*ROBUST, *WRAPPED, *KEYED])
def test_rows_of_1e38_leave_no_nan(text):
    rows = draw(12, 5, dtype=torch.float32)[0]
    rows[:2] = 3e38
    rows[3, 1] = -3e38
    assert torch.isfinite(parse_rule(text)(rows, torch.ones(12))).all()


@pytest.mark.parametrize(
    "text", ["krum(f=2)", "multi-krum(f=2)", "bulyan(f=2)", "mda(f=2)", "nnm(f=2) + median"]
)
def test_squares_that_overflow_float64_keep_malicious_rows_out(text):
    rows = draw(12, 5)[0]
    rows[0] = 1e200
    rows[5] = -1e200
    assert parse_rule(text)(rows, torch.ones(12)).abs().max() < 3
