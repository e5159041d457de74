"""Rules that keep state at the server: centred clipping learns from the round before."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from idiolect.server.rules import Rule, combine_message, parse_rule
from server.rules import definitions
from server.rules.common import ALL, draw

TAU = 0.7
STEPS = 2
CLIPPING = f"centred-clipping(tau={TAU}, steps={STEPS})"


def shapes(state):
    return {name: (t.shape, t.dtype) for name, t in state.items()}


def test_a_round_starts_from_the_aggregate_of_the_round_before():
    rule = parse_rule(CLIPPING)
    state = rule.blank(5, torch.zeros(1, dtype=torch.float64))
    aggregate = None  # no round before the first
    for seed in range(3):
        rows, weights = draw(9, 5, seed)
        row, state = rule.combine_with_state(rows, weights, state)
        aggregate = definitions.centred_clipping(rows.numpy(), TAU, STEPS, aggregate)
        np.testing.assert_allclose(row.numpy(), aggregate, rtol=0, atol=1e-12)
        assert torch.equal(state["centre"], row)


def test_history_makes_a_difference():
    rule = parse_rule(CLIPPING)
    rows, weights = draw(9, 5)
    state = {"centre": torch.full((5,), 3.0, dtype=torch.float64), "begun": torch.ones(1)}
    row, _ = rule.combine_with_state(rows, weights, state)
    assert not torch.allclose(row, rule(rows, weights))


@pytest.mark.parametrize("tau", [0, 0.7])
def test_without_a_state_every_round_starts_from_the_median(tau):
    last = parse_rule(f"centred-clipping(tau={tau})")
    median = parse_rule(f"centred-clipping(tau={tau}, start=median)")
    for seed in range(2):
        rows, weights = draw(9, 5, seed, dtype=torch.float32)
        row, state = last.combine_with_state(rows, weights, {})
        assert state == {}
        assert torch.equal(row, last(rows, weights))
        assert torch.equal(row, median(rows, weights))


def test_the_first_round_is_the_rule_without_a_state_bit_for_bit():
    rule = parse_rule("centred-clipping")
    rows, weights = draw(9, 5, dtype=torch.float32)
    row, _ = rule.combine_with_state(rows, weights, rule.blank(5, rows))
    assert torch.equal(row, rule(rows, weights))


def test_start_median_declares_no_state():
    rule = parse_rule("centred-clipping(start=median)")
    assert rule.server(5) == {}
    assert rule.blank(5, torch.zeros(1)) == {}


def test_tau_0_is_the_median_distance_from_the_last_aggregate():
    rows, weights = draw(9, 5)
    centre = torch.full((5,), 3.0, dtype=torch.float64)
    state = {"centre": centre, "begun": torch.ones(1, dtype=torch.float64)}
    row, _ = parse_rule("centred-clipping(tau=0)").combine_with_state(rows, weights, state)
    tau = (rows - centre).norm(dim=1).median()
    wanted = definitions.centred_clipping(rows.numpy(), float(tau), 3, centre.numpy())
    np.testing.assert_allclose(row.numpy(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("text", ALL)
def test_the_shape_of_the_state_never_changes(text, dtype):
    rule = parse_rule(text)
    state = rule.blank(5, torch.zeros(1, dtype=dtype))
    declared = shapes(state)
    assert {name: t.numel() for name, t in state.items()} == rule.server(5)
    for seed, n in enumerate((12, 13, 12)):  # the number of clients heard may change
        rows, weights = draw(n, 5, seed, dtype=dtype)
        row, state = rule.combine_with_state(rows, weights, state, key=seed)
        assert shapes(state) == declared
        assert row.dtype == dtype


def test_the_state_is_not_written_to_and_shares_no_memory_with_the_aggregate():
    rule = parse_rule("centred-clipping")
    rows, weights = draw(9, 5)
    blank = rule.blank(5, rows)
    row, state = rule.combine_with_state(rows, weights, blank)
    row[:] = 7
    assert not blank["centre"].any() and not blank["begun"].any()
    assert not torch.equal(state["centre"], row)


def test_a_wrapped_rule_passes_the_state_to_its_rule():
    wrapped = parse_rule(f"norm-bound(bound=1.5) + {CLIPPING}")
    inner = parse_rule(CLIPPING)
    assert wrapped.server(5) == inner.server(5) == {"centre": 5, "begun": 1}
    state = wrapped.blank(5, torch.zeros(1, dtype=torch.float64))
    inner_state = dict(state)
    for seed in range(2):
        rows, weights = draw(9, 5, seed)
        row, state = wrapped.combine_with_state(rows, weights, state)
        bounded, _ = wrapped.wrappers[0](rows, weights)
        wanted, inner_state = inner.combine_with_state(bounded, weights, inner_state)
        assert torch.equal(row, wanted)
        assert torch.equal(state["centre"], inner_state["centre"])


def test_a_message_of_two_parts_has_one_history():
    rule = parse_rule(CLIPPING)
    state = rule.blank(5, torch.zeros(1, dtype=torch.float64))
    aggregate = None
    for seed in range(2):
        rows, weights = draw(9, 5, seed)
        up = {"w": rows[:, 2:], "c": rows[:, :2]}
        combined, state = combine_message(rule, up, weights, state=state)
        aggregate = definitions.centred_clipping(rows.numpy(), TAU, STEPS, aggregate)
        found = torch.cat([combined["c"], combined["w"]])
        np.testing.assert_allclose(found.numpy(), aggregate, rtol=0, atol=1e-12)
        assert torch.equal(state["centre"], found)


@dataclass(frozen=True)
class MovingAverage(Rule):
    """A user's rule that is by coordinate and yet keeps state."""

    by_coordinate = True

    def server(self, n):
        return {"average": n}

    def combine_with_state(self, rows, weights, state, *, key=0):
        self.check(len(rows))
        if not state:
            return rows.mean(0), state
        average = 0.5 * state["average"] + 0.5 * rows.mean(0)
        return average, {"average": average.clone()}


def test_the_state_of_a_rule_by_coordinate_covers_all_parts():
    rule = MovingAverage()
    rows, weights = draw(9, 5)
    up = {"w": rows[:, 2:], "c": rows[:, :2]}
    state = rule.blank(5, rows)
    for share in (0.5, 0.75):
        combined, state = combine_message(rule, up, weights, state=state)
        torch.testing.assert_close(combined["w"], share * rows[:, 2:].mean(0))
        torch.testing.assert_close(combined["c"], share * rows[:, :2].mean(0))
    torch.testing.assert_close(rule(rows, weights), rows.mean(0))
