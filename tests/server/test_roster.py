"""Who takes part: ids of the owner's choosing, wire ids that are never given again."""

import json

import numpy as np
import pytest
import torch

from idiolect import SettingError
from idiolect.server.roster import Roster


def of(*ids, samples=10) -> Roster:
    roster = Roster()
    roster.enrol(ids, [samples] * len(ids))
    return roster


def test_ids_are_numbers_or_texts():
    roster = of(7, "north", -3, "12")
    assert [roster.wire_id(id) for id in (7, "north", -3, "12")] == [0, 1, 2, 3]
    assert roster.wire_id("7") == 0 and roster.wire_id("-3") == 2  # from a command line
    assert len(roster) == 4 and roster.ids == [7, "north", -3, "12"]


def test_an_unknown_id_is_refused_with_the_nearest():
    roster = of("north", "south", 7)
    with pytest.raises(SettingError, match=r"client: 'nort' is unknown; did you mean 'north'"):
        roster.wire_id("nort")
    with pytest.raises(SettingError, match=r"client: 8 is unknown"):
        roster.wire_id(8)
    with pytest.raises(SettingError, match="is unknown"):
        roster.leave(["north", "nowhere"])
    assert roster.eligible.all()


def test_wire_ids_are_never_given_again():
    roster = of("a", "b")
    roster.leave(["a", "b"])
    assert roster.enrol(["c"], [5]).tolist() == [2]
    assert [roster.wire_id(id) for id in "abc"] == [0, 1, 2]


@pytest.mark.parametrize("new", [["c", "a"], ["c", "c"], [1, "1"], ["7"]])
def test_ids_that_cannot_be_told_apart_are_refused_and_nobody_is_enrolled(new):
    """Random numbers are keyed by the text of an id: 7 and "7" would draw the same."""
    roster = of("a", 7)
    with pytest.raises(SettingError, match="enrolled already; ids are unique"):
        roster.enrol(new, [1] * len(new))
    assert len(roster) == len(roster.samples) == len(roster.eligible) == len(roster.keys) == 2
    with pytest.raises(SettingError, match="'c' is unknown"):
        roster.wire_id("c")
    assert roster.enrol(["c"], [1]).tolist() == [2]


def test_one_number_of_samples_per_client():
    with pytest.raises(SettingError, match="2 ids, 1 numbers of samples"):
        Roster().enrol(["a", "b"], [1])


def test_leaving_and_coming_back():
    roster = of("a", "b", "c")
    roster.enrol(["empty"], [0])
    assert roster.eligible_ids().tolist() == [0, 1, 2]
    roster.leave(["b", "empty"])
    roster.leave([])
    assert roster.eligible_ids().tolist() == [0, 2]
    roster.rejoin(["b", "empty"])
    roster.rejoin([])
    assert roster.eligible_ids().tolist() == [0, 1, 2]  # nothing to train on is nothing to send


def test_who_may_not_take_part_from_the_start():
    roster = Roster()
    roster.enrol(["a", "b", "c"], [4, 6, 8], eligible=[True, False, True])
    assert roster.eligible_ids().tolist() == [0, 2]
    assert roster.mean_samples() == 6 and roster.most_samples() == 8
    assert Roster().mean_samples() == 1 and Roster().most_samples() == 0


def test_a_roster_that_was_saved_is_the_same():
    roster = of(7, "north", "12", samples=3)
    roster.leave(["north"])
    tensors, facts = roster.save()
    again = Roster.loaded(tensors, json.loads(json.dumps(facts)))
    assert again.ids == roster.ids and again.eligible.tolist() == [True, False, True]
    assert torch.equal(again.samples, roster.samples)
    assert np.array_equal(again.keys, roster.keys)
    assert again.wire_id("7") == 0 and again.enrol(["new"], [1]).tolist() == [3]
    roster.leave([7])
    assert again.eligible.tolist() == [True, False, True, True]  # nothing is shared
