"""A rule acts once per message: the same clients for all of its parts."""

import numpy as np
import pytest
import torch

from idiolect.server.rules import RULES, combine_message, parse_rule
from server.rules import definitions
from server.rules.common import ALL, draw

F = 2
SELECTING = {  # the clients that a rule takes of rows x
    "krum(f=2)": lambda x: definitions.krum_order(x, F)[:1],
    "multi-krum(f=2)": lambda x: definitions.krum_order(x, F)[: len(x) - F],
    "mda(f=2)": lambda x: definitions.mda_chosen(x, F),
    "bulyan(f=2)": lambda x: definitions.bulyan_chosen(x, F),
}
BY_COORDINATE = {"mean", "median", "trimmed-mean", "meamed", "bucketing"}


def message(n=12, dtype=torch.float64):
    """Messages of two parts, not in the order of their names, and weights."""
    rows, weights = draw(n, 7, dtype=dtype)
    return {"w": rows[:, :4], "c": rows[:, 4:]}, weights


def joined(parts):
    return torch.cat([parts["c"], parts["w"]], dim=-1)  # in the order of their names


@pytest.mark.parametrize("text", SELECTING)
def test_a_rule_that_selects_takes_the_same_clients_for_both_parts(text):
    up, weights = message()
    chosen = SELECTING[text](joined(up).numpy())
    by_part = {name: SELECTING[text](rows.numpy()) for name, rows in up.items()}
    assert set(by_part["w"]) != set(by_part["c"])  # a case in which it matters
    combined, _ = combine_message(parse_rule(text), up, weights)
    for name, rows in up.items():
        taken = rows.numpy()[chosen]
        if text.startswith("bulyan"):  # its second stage, by coordinate
            wanted = definitions.mean_around_median(taken, len(chosen) - 2 * F)
        else:
            wanted = taken.mean(0)
        np.testing.assert_allclose(combined[name].numpy(), wanted, rtol=0, atol=1e-12)


def test_krum_returns_the_whole_message_of_one_client():
    up, weights = message()
    rule = parse_rule("krum(f=2)")
    combined, _ = combine_message(rule, up, weights)
    sender = [k for k in range(12) if torch.equal(up["w"][k], combined["w"])]
    assert len(sender) == 1
    assert torch.equal(up["c"][sender[0]], combined["c"])
    by_part = {name: rule(rows, weights) for name, rows in up.items()}
    assert not torch.equal(joined(by_part), joined(combined))


@pytest.mark.parametrize("text", ALL)
def test_a_message_of_one_part_is_the_rule_itself_bit_for_bit(text):
    rows, weights = draw(12, 7, dtype=torch.float32)
    rule = parse_rule(text)
    combined, state = combine_message(rule, {"w": rows}, weights, key=3)
    assert combined.keys() == {"w"}
    assert state == {}
    assert torch.equal(combined["w"], rule(rows, weights, key=3))


@pytest.mark.parametrize("text", ALL)
def test_two_parts_are_combined_as_one_vector(text):
    up, weights = message()
    rule = parse_rule(text)
    combined, _ = combine_message(rule, up, weights, key=3)
    assert list(combined) == ["c", "w"]
    wanted = rule(joined(up), weights, key=3)
    torch.testing.assert_close(joined(combined), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", [t for t in ALL if parse_rule(t).by_coordinate])
def test_a_rule_by_coordinate_runs_part_by_part_bit_for_bit(text):
    up, weights = message(dtype=torch.float32)
    rule = parse_rule(text)
    combined, _ = combine_message(rule, up, weights, key=3)
    assert all(torch.equal(combined[n], rule(rows, weights, key=3)) for n, rows in up.items())


@pytest.mark.parametrize("text", ALL)
def test_by_coordinate_means_that_a_column_changes_its_own_number_alone(text):
    rule = parse_rule(text)
    others_stay = []
    for seed in range(5):  # Krum may happen to choose the same client again
        rows, weights = draw(12, 7, seed)
        changed = rows.clone()
        changed[:, 0] = 10 * draw(12, 1, seed + 100)[0][:, 0]
        before = rule(rows, weights, key=3)[1:]
        after = rule(changed, weights, key=3)[1:]
        others_stay.append(torch.allclose(after, before, rtol=0, atol=1e-12))
    assert all(others_stay) == rule.by_coordinate


def test_which_rules_are_by_coordinate():
    assert {name for name, part in RULES.built_in.items() if part.by_coordinate} == BY_COORDINATE
    assert parse_rule("bucketing + median").by_coordinate
    assert not parse_rule("nnm + median").by_coordinate
    assert not parse_rule("bucketing + krum").by_coordinate


@pytest.mark.parametrize("text", ["krum(f=2)", "median", "bucketing + centred-clipping"])
def test_parts_keep_their_own_dtype_and_share_no_memory(text):
    up, weights = message()
    up["w"] = up["w"].float()
    combined, _ = combine_message(parse_rule(text), up, weights)
    assert combined["w"].dtype == torch.float32
    assert combined["c"].dtype == torch.float64
    storages = {t.untyped_storage().data_ptr() for t in combined.values()}
    assert len(storages) == 2


def test_messages_are_not_written_to():
    up, weights = message()
    before = {name: rows.clone() for name, rows in up.items()}
    for text in ALL:
        combined, _ = combine_message(parse_rule(text), up, weights)
        for row in combined.values():
            row[:] = 7
    assert all(torch.equal(up[name], before[name]) for name in up)


@pytest.mark.parametrize("text", ["mean", "krum", "centred-clipping"])
def test_a_message_without_parts_stays_one_and_so_does_the_state(text):
    rule = parse_rule(text)
    state = rule.blank(3, torch.zeros(1))
    combined, after = combine_message(rule, {}, torch.ones(5), state=state)
    assert combined == {}
    assert after == state
