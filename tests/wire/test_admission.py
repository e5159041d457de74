"""What the server accepts, from one batch of messages or from many.

A bad message is rejected under its reason, and its client counts as absent.
"""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.mutator import archive, torch_file
from idiolect.wire import admission
from idiolect.wire import admission as held
from idiolect.wire import messages as wire
from idiolect.wire.admission import BODIES, FATES, HEAD, REASONS, AdmittedMessages, Inbox, admit
from idiolect.wire.ragged import Ragged

RUN = 99
VERSION = 5
D = 6
CAP = 40.0
EXPECTED = torch.tensor([2, 3, 5, 8, 13])
SCHEMA = wire.Schema.of({"w": torch.zeros(D), "c": torch.zeros(2, dtype=torch.float64)})


def message(
    client: int,
    weight: float = 10.0,
    run: int = RUN,
    version: int = VERSION,
    schema: wire.Schema = SCHEMA,
    put=None,
) -> bytes:
    g = torch.Generator().manual_seed(client)
    state = {
        n: torch.randn(1, *shape, generator=g, dtype=dtype) for n, shape, dtype in schema.parts
    }
    if put is not None:
        state["w"][0, 3] = put
    with np.errstate(over="ignore"):
        packed = wire.pack(schema, run, version, np.array([client]), np.array([weight]), state)
    return packed[0].tobytes()


GOOD = {int(k): message(int(k)) for k in EXPECTED}


def taken(messages, cap: float = CAP) -> AdmittedMessages:
    return admit(messages, schema=SCHEMA, run=RUN, version=VERSION, expected=EXPECTED, cap=cap)


def equal(a: AdmittedMessages, b: AdmittedMessages) -> bool:
    return (
        torch.equal(a.wire_ids, b.wire_ids)
        and torch.equal(a.weights, b.weights)
        and np.array_equal(a.bytes, b.bytes)
        and np.array_equal(a.values, b.values)
        and a.up.keys() == b.up.keys()
        and all(torch.equal(t, b.up[n]) for n, t in a.up.items())
    )


def fitted(data: bytes) -> bytes:
    """Cut or filled to the right length, so that only its contents can give it away."""
    return data[: SCHEMA.length].ljust(SCHEMA.length, b"\0")


# As long as SCHEMA, but something else.
OTHER = wire.Schema.of({"w": torch.zeros(D), "d": torch.zeros(2, dtype=torch.float64)})
BAD = {
    "NaN": ("not finite", message(8, put=float("nan"))),
    "plus infinity": ("not finite", message(8, put=float("inf"))),
    "minus infinity": ("not finite", message(8, put=-float("inf"))),
    "truncated": ("size", GOOD[8][:-1]),
    "the header only": ("size", GOOD[8][:24]),
    "less than a header": ("size", GOOD[8][:10]),
    "trailing bytes": ("size", GOOD[8] + b"\0"),
    "twice as long": ("size", GOOD[8] * 2),
    "empty": ("size", b""),
    "another magic": ("magic", b"idl2" + GOOD[8][4:]),
    "another run": ("run", message(8, run=RUN + 1)),
    "the round before": ("round", message(8, version=VERSION - 1)),
    "a round to come": ("round", message(8, version=VERSION + 1)),
    "another schema": ("schema", message(8, schema=OTHER)),
    "another contract": ("schema", message(8, schema=wire.Schema(SCHEMA.parts, contract=1))),
    "a client not asked": ("stranger", message(9)),
    "the server's own number": ("stranger", message(wire.FROM_SERVER)),
    "a number past all clients": ("stranger", message(2**31)),
    "another client's id": ("repeated", message(5, weight=40)),
    "weight 0": ("weight", message(8, weight=0)),
    "weight -0": ("weight", message(8, weight=-0.0)),
    "a negative weight": ("weight", message(8, weight=-1)),
    "weight NaN": ("weight", message(8, weight=float("nan"))),
    "infinite weight": ("weight", message(8, weight=float("inf"))),
    "weight 1e300, infinite in four bytes": ("weight", message(8, weight=1e300)),
    "pickle": ("size", pickle.dumps({"w": [0.0] * D})),
    "zip": ("size", archive()),
    "torch.save": ("size", torch_file()),
    "pickle of the right length": ("magic", fitted(pickle.dumps({"w": [0.0] * D}))),
    "zip of the right length": ("magic", fitted(archive())),
    "torch.save of the right length": ("magic", fitted(torch_file())),
    "zeros": ("magic", bytes(SCHEMA.length)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_is_rejected_under_its_reason_and_is_an_absent_client(name):
    reason, bad = BAD[name]
    absent = taken([m for k, m in GOOD.items() if k != 8])
    got = taken([bad if k == 8 else m for k, m in GOOD.items()])
    assert got.rejected == {reason: 1} and reason in REASONS
    assert absent.wire_ids.tolist() == [2, 3, 5, 13] and equal(got, absent)


def test_all_bad_messages_at_once_leave_the_good_ones():
    got = taken([*GOOD.values(), *(bad for _, bad in BAD.values())])
    assert equal(got, taken(list(GOOD.values())))
    reasons = Counter(reason for reason, _ in BAD.values())
    reasons["repeated"] += reasons.pop("not finite")  # not even opened: client 8 has been admitted
    assert got.rejected == got.surplus == reasons


def test_only_bad_messages_leave_nobody():
    got = taken([bad for name, (_, bad) in BAD.items() if name != "another client's id"])
    assert len(got.wire_ids) == 0 and len(got.weights) == 0 and got.up["w"].shape == (0, D)
    assert sum(got.rejected.values()) == len(BAD) - 1


def test_no_message_at_all_leaves_nobody():
    got = taken([])
    assert len(got.wire_ids) == 0 and got.rejected == {} and got.up["c"].shape == (0, 2)


@pytest.mark.parametrize("claim", [1e30, 3e38, 41.0])
def test_a_weight_beyond_the_cap_counts_as_the_cap(claim):
    got = taken([message(2, weight=claim), GOOD[3]])
    assert got.weights.tolist() == [CAP, 10.0] and got.rejected == {}


@pytest.mark.parametrize("put", [1e20, -1e20, 1e-45, -0.0])
def test_large_and_tiny_finite_numbers_are_accepted_unchanged(put):
    got = taken([message(2, put=put)])
    assert got.rejected == {} and got.up["w"][0, 3] == torch.tensor(put)


def test_of_several_messages_of_one_client_the_first_sound_one_counts():
    first, second = message(2, put=1.0), message(2, put=2.0)
    got = taken([message(2, put=float("nan")), first, second, first])
    assert got.up["w"][:, 3].tolist() == [1.0] and got.rejected == {"not finite": 1, "repeated": 2}


def test_rows_come_out_sorted_by_client_whatever_the_order_of_arrival():
    orders = [np.random.default_rng(i).permutation(list(GOOD)) for i in range(5)]
    results = [taken([GOOD[k] for k in order]) for order in orders]
    assert results[0].wire_ids.tolist() == EXPECTED.tolist()
    assert all(equal(r, results[0]) for r in results)


def test_a_byte_matrix_is_taken_as_the_same_messages():
    matrix = np.stack([np.frombuffer(m, dtype=np.uint8) for m in GOOD.values()])
    assert equal(taken(matrix), taken(list(GOOD.values())))
    assert equal(taken([memoryview(m) for m in GOOD.values()]), taken(list(GOOD.values())))


def test_a_matrix_of_the_wrong_width_is_rejected_for_its_size():
    matrix = np.zeros((3, SCHEMA.length + 4), dtype=np.uint8)
    assert taken(matrix).rejected == {"size": 3}


def test_the_bytes_admitted_are_the_bytes_received():
    got = taken([*GOOD.values(), b"", BAD["NaN"][1]])
    assert got.bytes.tolist() == [len(m) for m in GOOD.values()] == [24 + 4 * D + 8 * 2] * 5


def mutate(rng: np.random.Generator, good: bytes) -> bytes:
    data = bytearray(good)
    match rng.integers(6):
        case 0:  # flip bits anywhere
            for at in rng.integers(len(data), size=rng.integers(1, 6)):
                data[at] ^= 1 << int(rng.integers(8))
        case 1:  # in the header
            data[rng.integers(24)] = rng.integers(256)
        case 2:
            del data[rng.integers(len(data)) :]
        case 3:
            data += rng.bytes(int(rng.integers(1, 40)))
        case 4:
            data = bytearray(rng.bytes(len(data)))
        case 5:  # a stretch of ones: NaN, -1, the largest numbers
            at = int(rng.integers(len(data)))
            data[at : at + 8] = b"\xff" * len(data[at : at + 8])
    return bytes(data)


def test_twenty_thousand_mutated_messages_raise_nothing_and_each_has_one_fate():
    rng, good = np.random.default_rng(0), list(GOOD.values())
    fates: Counter[str] = Counter()
    for _ in range(200):
        messages = [mutate(rng, good[rng.integers(5)]) for _ in range(100)]
        got = taken(messages)
        assert len(got.wire_ids) + sum(got.rejected.values()) == 100
        assert set(got.wire_ids.tolist()) <= set(EXPECTED.tolist())
        assert got.wire_ids.unique().equal(got.wire_ids)
        assert torch.isfinite(got.up["w"]).all() and torch.isfinite(got.up["c"]).all()
        assert ((got.weights > 0) & (got.weights <= CAP)).all()
        fates.update(got.rejected)
    assert set(fates) == set(REASONS) - {"channel", "overflow"}  # of channels, of sums


def test_a_schema_without_parts_admits_nothing():
    nothing = wire.Schema(())
    got = admit([b"", b"x"], schema=nothing, run=RUN, version=VERSION, expected=EXPECTED, cap=CAP)
    assert got.rejected == {"size": 2} and got.up == {} and len(got.wire_ids) == 0


# -- the fate of every expected client -------------------------------------------------------------
def fates(got: AdmittedMessages) -> dict[int, str]:
    return {int(k): FATES[f] for k, f in zip(EXPECTED, got.fates, strict=True)}


def check_fates(got: AdmittedMessages) -> None:
    """Everyone expected is admitted, rejected or missing; other rejected messages are surplus."""
    by_fate = Counter(fates(got).values())
    assert sum(by_fate.values()) == len(EXPECTED)
    assert [k for k, fate in fates(got).items() if fate == "admitted"] == got.wire_ids.tolist()
    turned_away = {reason: by_fate[reason] for reason in REASONS if by_fate[reason]}
    assert Counter(got.rejected) == Counter(got.surplus) + Counter(turned_away)
    assert min(got.surplus.values(), default=1) > 0


SENT = [*GOOD.values(), *(bad for _, bad in BAD.values()), message(3, put=float("nan"))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(SENT), max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_every_expected_client_has_one_fate_and_every_other_message_is_surplus(messages, cuts):
    got = in_batches(messages, [min(cut, len(messages)) for cut in cuts])
    check_fates(got)
    assert len(got.wire_ids) + sum(got.rejected.values()) == len(messages)


HEADER_WRONG = ("magic", "schema", "run", "round", "stranger", "repeated")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_message_decides_a_fate_only_if_its_header_is_right(name):
    reason, bad = BAD[name]
    got = taken([bad if k == 8 else m for k, m in GOOD.items()])
    addressed = reason not in HEADER_WRONG and bad[:20] == GOOD[8][:20]
    assert fates(got)[8] == (reason if addressed else "missing")
    assert got.surplus == ({} if addressed else {reason: 1})


def test_of_several_bad_messages_the_first_decides_and_a_sound_one_overrules_it():
    short, heavy, sound = GOOD[8][:-1], message(8, weight=-1), GOOD[8]
    nobody = in_batches([short, heavy], [1])
    assert fates(nobody)[8] == "size" and nobody.surplus == {"weight": 1}
    got = in_batches([short, heavy, sound, heavy], [1, 2])
    assert fates(got)[8] == "admitted" and got.surplus == {"size": 1, "weight": 2}


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3, 4]])
def test_after_a_few_bad_bodies_no_more_of_that_client_are_opened(cuts):
    bad = message(8, put=float("nan"))
    late = in_batches([*[bad] * BODIES, GOOD[8], GOOD[3]], cuts)
    assert fates(late)[8] == "not finite" and late.wire_ids.tolist() == [3]
    assert late.rejected == {"too many": 1, "not finite": BODIES}
    in_time = in_batches([*[bad] * (BODIES - 1), GOOD[8], bad], cuts)
    assert fates(in_time)[8] == "admitted"
    assert in_time.rejected == {"repeated": 1, "not finite": BODIES - 1}


# -- several batches -------------------------------------------------------------------------------
def inbox(**changes) -> Inbox:
    arguments = {"expected": EXPECTED, "cap": CAP}
    return Inbox(SCHEMA, RUN, VERSION, **{**arguments, **changes})


def in_batches(messages: list[bytes], cuts: list[int], values=None, **changes) -> AdmittedMessages:
    """The messages split before the given places."""
    box = inbox(**changes)
    for a, b in pairwise([0, *sorted(cuts), len(messages)]):
        box.receive(messages[a:b], None if values is None else values[a:b])
    return box.admitted()


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 40), max_size=6))
def test_any_split_of_the_messages_into_batches_gives_the_same(random, cuts):
    messages = [*GOOD.values(), *(bad for name, (_, bad) in BAD.items() if name != "NaN")]
    random.shuffle(messages)  # "another client's id" differs from GOOD[5]: the first of them counts
    values = np.arange(len(messages)) + 0.5
    cuts = [min(cut, len(messages)) for cut in cuts]
    together = in_batches(messages, [], values)
    apart = in_batches(messages, cuts, values)
    assert equal(apart, together) and apart.rejected == together.rejected
    assert np.array_equal(apart.fates, together.fates) and apart.surplus == together.surplus
    assert list(apart.rejected) == [reason for reason in REASONS if reason in apart.rejected]
    assert together.wire_ids.tolist() == EXPECTED.tolist()
    assert equal(in_batches(messages, cuts), taken(messages))


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_the_batches_gives_the_same(seed):
    messages = [*GOOD.values(), *GOOD.values(), BAD["another run"][1], b""]
    order = np.random.default_rng(seed).permutation(len(messages))
    apart = in_batches([messages[i] for i in order], list(range(1, len(messages))))
    together = taken(messages)
    assert equal(apart, together) and apart.rejected == together.rejected
    assert apart.rejected == {"size": 1, "run": 1, "repeated": 5}


def test_of_messages_in_several_batches_the_first_sound_one_counts():
    bad = message(2, put=float("nan"))
    first = message(2, put=1.0)
    second = message(2, put=2.0)
    got = in_batches([bad, first, second, bad, first], [1, 2, 3, 4])
    assert got.up["w"][:, 3].tolist() == [1.0]
    assert got.rejected == {"repeated": 3, "not finite": 1}


def test_no_batch_empty_batches_and_bad_batches_leave_nobody():
    unopened = inbox()
    empty = inbox()
    empty.receive([])
    empty.receive(np.zeros((0, SCHEMA.length), dtype=np.uint8))
    empty.receive(Ragged.empty(0))
    for box in (unopened, empty):
        got = box.admitted()
        assert equal(got, taken([])) and got.rejected == {} and got.up["c"].shape == (0, 2)
    empty.receive([b""])
    empty.receive([BAD["NaN"][1]])
    assert empty.admitted().rejected == {"size": 1, "not finite": 1}
    assert equal(empty.admitted(), taken([]))


def test_nobody_expected_makes_everybody_a_stranger():
    got = in_batches(list(GOOD.values()), [2], expected=EXPECTED[:0])
    assert got.rejected == {"stranger": 5} and len(got.wire_ids) == 0


def test_the_order_of_the_expected_clients_does_not_matter():
    got = in_batches(list(GOOD.values()), [2], expected=EXPECTED.flip(0))
    assert equal(got, taken(list(GOOD.values())))


def test_what_was_admitted_can_be_looked_at_between_batches():
    box = inbox()
    box.receive([GOOD[13], GOOD[2]])
    early = box.admitted()
    box.receive([GOOD[3], GOOD[2]])
    assert early.wire_ids.tolist() == [2, 13] and early.rejected == {}
    late = box.admitted()
    assert late.wire_ids.tolist() == [2, 3, 13] and late.rejected == {"repeated": 1}
    assert equal(early, taken([GOOD[2], GOOD[13]]))


def test_values_go_with_their_messages():
    messages = [GOOD[13], b"", BAD["NaN"][1], GOOD[2], GOOD[13]]
    got = in_batches(messages, [3], values=np.array([1.5, 2.0, 3.0, 4.25, 5.0]))
    assert got.wire_ids.tolist() == [2, 13] and got.values.tolist() == [4.25, 1.5]
    assert got.values.dtype == np.float64


def test_without_values_a_message_counts_as_the_numbers_of_the_schema():
    box = inbox()
    box.receive([GOOD[3]])
    box.receive([GOOD[2]], np.array([0.5]))
    assert box.admitted().values.tolist() == [0.5, D + 2.0]
    with pytest.raises(ValueError, match="1 values for 2 messages"):
        box.receive([GOOD[5], GOOD[8]], np.array([1.0]))


def decode(bodies: Ragged, wire_ids: np.ndarray):
    """A channel of one byte per message, zero being nonsense, that remembers its sender."""
    byte = np.array([bodies.row(k)[0] if bodies.lengths[k] else 0 for k in range(len(bodies))])
    rows = {"w": torch.from_numpy(byte.astype(np.float32))[:, None]}
    return rows, byte != 0, {"w.0.g": torch.from_numpy(wire_ids)[:, None]}


def test_batches_through_a_channel_give_the_same_rows_and_memory():
    def coded(client: int, body: bytes) -> bytes:
        return GOOD[client][:HEAD] + body

    messages = [
        coded(13, b"\0"),
        coded(13, b"\7"),
        coded(3, b"\5"),
        coded(3, b""),
        coded(2, b"\1\1"),  # longer than the limit
        coded(2, b"\2"),
        coded(13, b"\1"),
    ]
    together = in_batches(messages, [], decode=decode, lengths=(24, 25))
    assert together.wire_ids.tolist() == [2, 3, 13]
    assert together.up["w"].tolist() == [[2], [5], [7]]
    assert together.memory["w.0.g"].tolist() == [[2], [3], [13]]
    assert together.bytes.tolist() == [25] * 3
    assert together.rejected == {"size": 1, "repeated": 2, "channel": 1}
    for cuts in ([1], [2, 4], [1, 2, 3, 4, 5, 6]):
        apart = in_batches(messages, cuts, decode=decode, lengths=(24, 25))
        assert equal(apart, together) and apart.rejected == together.rejected
        assert torch.equal(apart.memory["w.0.g"], together.memory["w.0.g"])


def test_one_batch_is_not_copied_again():
    box = inbox()
    box.receive(list(GOOD.values()))
    once, twice = box.admitted(), box.admitted()
    assert all(t.data_ptr() == twice.up[n].data_ptr() for n, t in once.up.items())


def test_rows_of_several_batches_are_held_once():
    box = inbox()
    for batch in ([GOOD[13], GOOD[2]], [GOOD[3]], [GOOD[8], GOOD[5]]):
        box.receive(batch)
    once, twice = box.admitted(), box.admitted()
    assert all(t.data_ptr() == twice.up[n].data_ptr() for n, t in once.up.items())
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in once.up.values())
    assert equal(once, taken(list(GOOD.values())))


# -- what is opened --------------------------------------------------------------------------------
def counted(opened: list[list[int]]):
    """`decode`, which writes down whose bodies it is given."""

    def counting(bodies: Ragged, wire_ids: np.ndarray):
        if len(bodies):
            opened.append(wire_ids.tolist())
        return decode(bodies, wire_ids)

    return counting


def test_only_the_body_of_a_message_that_can_count_is_opened():
    opened: list[list[int]] = []
    head = {k: m[:HEAD] for k, m in GOOD.items()}
    wrong = [
        message(8, run=RUN + 1)[:HEAD],
        message(9)[:HEAD],
        message(8, weight=0)[:HEAD],
        head[8] + bytes(2),
    ]
    messages = [*(h + b"\7" for h in wrong), head[3] + b"\1", *[head[3] + b"\2"] * 50]
    got = in_batches(messages, [10, 20], decode=counted(opened), lengths=(24, 25))
    assert opened == [[3]] and got.up["w"].tolist() == [[1.0]]
    assert fates(got) == {2: "missing", 3: "admitted", 5: "missing", 8: "weight", 13: "missing"}
    bad = [head[3] + b"\0"] * 50
    opened.clear()
    in_batches(bad, [10, 20], decode=counted(opened), lengths=(24, 25))
    assert opened == [[3]] * BODIES


@pytest.mark.parametrize("group", [1, 150, 300])
def test_bodies_opened_in_groups_give_the_same_rows(group, monkeypatch):
    messages = [GOOD[13], BAD["NaN"][1], *GOOD.values(), BAD["another run"][1]]
    coded = [m[:HEAD] + bytes([i % 4]) for i, m in enumerate(messages)]
    whole = in_batches(messages, [4])
    opened: list[list[int]] = []
    whole_coded = in_batches(coded, [4], decode=decode, lengths=(24, 25))
    monkeypatch.setattr(admission, "GROUP", group)
    monkeypatch.setattr(held, "MOVED", group)
    apart = in_batches(messages, [4])
    apart_coded = in_batches(coded, [4], decode=counted(opened), lengths=(24, 25))
    assert equal(apart, whole) and apart.rejected == whole.rejected
    assert equal(apart_coded, whole_coded) and apart_coded.rejected == whole_coded.rejected
    assert max(map(len, opened)) == max(1, group // (HEAD + 1 + SCHEMA.length))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(SENT), max_size=30))
def test_lists_and_padded_matrices_of_the_same_messages_are_the_same(messages):
    ragged = Ragged.of(messages)
    noise = np.random.default_rng(0).integers(256, size=ragged.matrix.shape, dtype=np.uint8)
    beyond = np.arange(ragged.matrix.shape[1]) >= ragged.lengths[:, None]
    padded = Ragged(np.where(beyond, noise, ragged.matrix), ragged.lengths)
    a, b = taken(messages), taken(padded)
    assert equal(a, b) and a.rejected == b.rejected and a.surplus == b.surplus
    assert np.array_equal(a.fates, b.fates)


def test_a_matrix_narrower_than_a_header_is_rejected_for_its_size():
    got = taken(np.zeros((3, 10), dtype=np.uint8))
    assert got.rejected == got.surplus == {"size": 3}
