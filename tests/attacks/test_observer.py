"""Collusion over several hosts: the same bits as if all messages of the round were on one host."""

import numpy as np
import pytest
import torch

from idiolect.attacks import ATTACKS, Observer, parse_attack, tamper
from idiolect.core import streams

LINES = [*ATTACKS, "mimic(which=keyed)", "same-value + ipm", "label-flip + scaling(factor=3)"]
ALONE = [line for line in LINES if not parse_attack(line).colludes]
NAMES = streams.name_keys([f"client {i}" for i in range(100)])
WIRE_IDS = torch.tensor([3, 8, 9, 20, 21, 40, 41, 77, 90])  # of one round, sorted
NOBODY = torch.empty(0, dtype=torch.int64)


def keys_of(wire_ids):
    return streams.keys(0, "attack", 5, NAMES[wire_ids.numpy()])


def messages(seed=0, dtype=torch.float32):
    """Two parts, a model and a change, of every client of the round; and the model sent down."""
    rng = np.random.default_rng(seed)
    up = {n: torch.tensor(rng.normal(1, 2, (len(WIRE_IDS), 6)), dtype=dtype) for n in ("c", "w")}
    return up, {"w": torch.tensor(rng.normal(size=6), dtype=dtype)}


def rows_of(up, wire_ids):
    places = torch.searchsorted(WIRE_IDS, wire_ids)
    return {n: rows[places] for n, rows in up.items()}


def on_one_host(attack, up, malicious, reference):
    """The rows of `malicious` after the attack on the whole round, as a single host calls it."""
    mask = torch.isin(WIRE_IDS, malicious)
    keys = keys_of(WIRE_IDS)
    sent = {n: attack(rows, mask, reference.get(n), keys) for n, rows in up.items()}
    return rows_of(sent, malicious)


def same_bits(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[n].contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8))
        for n in a
    )


def observed(up, honest, pieces, generator):
    """An observer that has seen the honest messages in `pieces` hosts, in any order."""
    observer = Observer()
    order = torch.randperm(len(honest), generator=generator)
    for part in honest[order].tensor_split(pieces):
        observer.see(5, "attack", part, rows_of(up, part))
    return observer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("line", LINES)
def test_however_honest_clients_are_divided_among_hosts_the_bits_are_those_of_one_host(line, dtype):
    attack = parse_attack(line)
    up, reference = messages(dtype=dtype)
    malicious = torch.tensor([77, 8, 21])  # in no order
    honest = WIRE_IDS[~torch.isin(WIRE_IDS, malicious)]
    whole = on_one_host(attack, up, malicious, reference)
    generator = torch.Generator().manual_seed(1)
    for pieces in (1, 2, 3, len(honest), 20):
        seen = observed(up, honest, pieces, generator).seen(5, "attack")
        sent = tamper(attack, malicious, rows_of(up, malicious), *seen, reference, keys_of)
        assert same_bits(sent, whole)


@pytest.mark.parametrize("line", LINES)
def test_malicious_clients_of_several_hosts_who_are_handed_over_together_agree(line):
    """Malicious clients in one order or another: each sends the same."""
    attack = parse_attack(line)
    up, reference = messages()
    honest = WIRE_IDS[4:]
    seen = honest, rows_of(up, honest)
    first = WIRE_IDS[:4]
    sent = tamper(attack, first, rows_of(up, first), *seen, reference, keys_of)
    back = first.flip(0)
    again = tamper(attack, back, rows_of(up, back), *seen, reference, keys_of)
    assert same_bits(sent, {n: rows.flip(0) for n, rows in again.items()})


@pytest.mark.parametrize("line", LINES)
def test_nobody_honest_in_the_round(line):
    attack = parse_attack(line)
    up, reference = messages()
    nothing = Observer().seen(5, "attack")
    assert torch.equal(nothing[0], NOBODY) and nothing[1] == {}
    sent = tamper(attack, WIRE_IDS, up, *nothing, reference, keys_of)
    assert same_bits(sent, on_one_host(attack, up, WIRE_IDS, reference))


@pytest.mark.parametrize("line", ALONE)
def test_an_attack_without_collusion_needs_no_honest_message(line):
    attack = parse_attack(line)
    up, reference = messages()
    malicious = torch.tensor([9, 40])
    sent = tamper(attack, malicious, rows_of(up, malicious), NOBODY, {}, reference, keys_of)
    assert same_bits(sent, on_one_host(attack, up, malicious, reference))


@pytest.mark.parametrize("line", LINES)
def test_nobody_malicious_sends_nothing(line):
    up, reference = messages()
    sent = tamper(parse_attack(line), NOBODY, rows_of(up, NOBODY), WIRE_IDS, up, reference, keys_of)
    assert {n: rows.shape for n, rows in sent.items()} == {"c": (0, 6), "w": (0, 6)}


def test_what_was_given_is_not_changed():
    up, reference = messages()
    malicious, honest = WIRE_IDS[:3], WIRE_IDS[3:]
    own, theirs = rows_of(up, malicious), rows_of(up, honest)
    tamper(parse_attack("gaussian"), malicious, own, honest, theirs, reference, keys_of)
    assert same_bits(own, rows_of(up, malicious)) and same_bits(theirs, rows_of(up, honest))


# -- what an observer keeps ------------------------------------------------------------------------
def seen_ids(observer, round, purpose="attack"):
    return observer.seen(round, purpose)[0].tolist()


def test_only_the_newest_round_is_kept():
    observer = Observer()
    one = {"w": torch.ones(1, 2)}
    observer.see(0, "attack", torch.tensor([1]), one)
    observer.see(1, "attack", torch.tensor([2]), one)
    observer.see(0, "attack", torch.tensor([3]), one)  # too late
    assert seen_ids(observer, 1) == [2] and seen_ids(observer, 2) == []
    with pytest.raises(ValueError, match="round: 0 is past; only messages of 1 are kept"):
        observer.seen(0, "attack")


def test_a_host_without_honest_clients_in_a_new_round_ends_the_last_one():
    observer = Observer()
    observer.see(0, "attack", torch.tensor([1]), {"w": torch.ones(1, 2)})
    observer.see(1, "attack", NOBODY, {"w": torch.ones(0, 2)})
    assert seen_ids(observer, 1) == []


def test_purposes_are_kept_apart():
    observer = Observer()
    observer.see(0, "attack", torch.tensor([1]), {"w": torch.ones(1, 2)})
    observer.see(0, "attack on the answer", torch.tensor([2]), {"values": torch.ones(1, 3)})
    assert seen_ids(observer, 0) == [1] and seen_ids(observer, 0, "attack on the answer") == [2]
    assert observer.seen(0, "attack on the answer")[1]["values"].shape == (1, 3)


def test_of_two_messages_of_one_client_the_later_counts():
    observer = Observer()
    observer.see(0, "attack", torch.tensor([4, 1]), {"w": torch.tensor([[4.0], [1.0]])})
    observer.see(0, "attack", torch.tensor([2, 4]), {"w": torch.tensor([[2.0], [-4.0]])})
    wire_ids, up = observer.seen(0, "attack")
    assert wire_ids.tolist() == [1, 2, 4] and up["w"].tolist() == [[1.0], [2.0], [-4.0]]


def test_seeing_is_repeatable():
    """`seen` takes nothing away: every host with malicious clients may ask."""
    observer = Observer()
    observer.see(0, "attack", torch.tensor([1]), {"w": torch.ones(1, 2)})
    assert seen_ids(observer, 0) == seen_ids(observer, 0) == [1]
