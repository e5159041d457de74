"""The account of a run: counts by wire id, which grow with the clients that enrol."""

import pytest
import torch

from idiolect.wire.ledger import COUNTS, Ledger, LedgerError, RoundEntry


def used() -> Ledger:
    ledger = Ledger(3)
    ledger.sent_down(torch.tensor([0, 2]), 108, 21)
    ledger.sent_up(torch.tensor([2]), torch.tensor([50]), torch.tensor([10.5], dtype=torch.float64))
    ledger.add_gradients(torch.tensor([2, 0]), torch.tensor([5, 7]))
    ledger.enter(RoundEntry(0, 2, 1, rejected={"size": 1}, surplus={"stranger": 3}, bytes=50))
    return ledger


def test_counts_are_indexed_by_wire_id():
    counts = used().counts
    assert counts["bytes_down"].tolist() == [108, 0, 108]
    assert counts["values_down"].tolist() == [21, 0, 21]
    assert counts["bytes_up"].tolist() == [0, 0, 50]
    assert counts["values_up"].tolist() == [0, 0, 10.5]
    assert counts["gradients"].tolist() == [7, 0, 5]
    assert used().bytes == 266 and used().total("gradients") == 12


def test_gradients_add_up_over_rounds():
    ledger = used()
    ledger.add_gradients(torch.tensor([1, 2]), torch.tensor([1, 1]))
    assert ledger.counts["gradients"].tolist() == [7, 1, 6]


def test_clients_that_enrol_later_start_at_zero():
    ledger = used()
    before = {name: counts.clone() for name, counts in ledger.counts.items()}
    ledger.grow(5)
    assert ledger.clients == 5
    for name in COUNTS:
        assert torch.equal(ledger.counts[name][:3], before[name])
        assert ledger.counts[name][3:].tolist() == [0, 0]
        assert ledger.counts[name].dtype == before[name].dtype
    ledger.sent_down(torch.tensor([4]), 10, 1)
    assert ledger.counts["bytes_down"].tolist() == [108, 0, 108, 0, 10]
    assert ledger.selected == 2 and ledger.rejected == {"size": 1}


def test_a_ledger_grows_by_nobody_but_never_shrinks():
    ledger = used()
    ledger.grow(3)
    assert ledger.clients == 3 and ledger.counts["gradients"].tolist() == [7, 0, 5]
    with pytest.raises(ValueError, match="at least 3, as in the ledger, got 2"):
        ledger.grow(2)


def test_a_saved_ledger_comes_back():
    ledger = used()
    ledger.grow(4)
    again = Ledger.load(*ledger.save())
    assert again.clients == 4 and again.save()[1] == ledger.save()[1]
    assert all(torch.equal(again.counts[n], ledger.counts[n]) for n in COUNTS)
    assert all(again.counts[n].dtype == ledger.counts[n].dtype for n in COUNTS)


@pytest.mark.parametrize(
    "entry",
    [
        RoundEntry(3, selected=4, admitted=3),
        RoundEntry(3, selected=4, admitted=4, missing={"silent": 1}),
        RoundEntry(3, selected=4, admitted=3, rejected={"size": 1}, missing={"silent": 1}),
        RoundEntry(3, selected=4, admitted=5, rejected={"size": -1}),
    ],
)
def test_a_round_whose_clients_do_not_add_up_is_an_error(entry):
    ledger = used()
    with pytest.raises(LedgerError, match=r"do not add up.*round=3"):
        ledger.enter(entry)
    assert ledger.last is not None and ledger.last.round == 0 and ledger.selected == 2


def test_bytes_that_no_admitted_message_had_are_an_error():
    ledger = used()
    ledger.sent_up(torch.tensor([1]), torch.tensor([9]), torch.zeros(1, dtype=torch.float64))
    with pytest.raises(LedgerError, match="59 bytes are booked to clients, 58 were admitted"):
        ledger.enter(RoundEntry(1, selected=1, admitted=1, bytes=8))


def test_totals_are_the_sums_of_the_rounds():
    ledger = used()
    for round in (1, 2):
        ledger.enter(RoundEntry(round, 3, 0, {"size": 1}, {"silent": 1, "crashed": 1}, {"run": 2}))
    assert (ledger.selected, ledger.admitted, ledger.last.round) == (8, 1, 2)
    assert ledger.rejected == {"size": 3} and ledger.missing == {"silent": 2, "crashed": 2}
    assert ledger.surplus == {"stranger": 3, "run": 4}
    assert ledger.refused == {"size": 3, "stranger": 3, "run": 4}


def test_what_was_sent_before_the_first_round_is_counted_and_the_account_still_balances():
    ledger = Ledger(3)
    ledger.prepared(torch.arange(3), torch.tensor([48, 48, 0]), 32)
    assert ledger.counts["bytes_up"].tolist() == [48, 48, 0]
    assert ledger.counts["values_up"].tolist() == [12, 12, 0]  # 32-bit words
    assert ledger.counts["values_down"].tolist() == [8, 8, 8]
    ledger.sent_up(torch.tensor([2]), torch.tensor([50]), torch.tensor([10.5], dtype=torch.float64))
    ledger.enter(RoundEntry(0, selected=1, admitted=1, bytes=50))
    assert ledger.bytes == 2 * 48 + 3 * 32 + 50
    assert Ledger.load(*ledger.save()).bytes_admitted == ledger.bytes_admitted == 146
