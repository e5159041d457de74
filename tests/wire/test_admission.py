"""What the server accepts: a bad message is rejected under its reason and leaves everything as if that client had been absent."""

import io
import pickle
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch

from idiolect.wire import messages as wire
from idiolect.wire.admission import REASONS, Admitted, admit

RUN, ROUND, D, CAP = 99, 5, 6, 40.0
EXPECTED = torch.tensor([2, 3, 5, 8, 13])
SCHEMA = wire.Schema.of({"w": torch.zeros(D), "c": torch.zeros(2, dtype=torch.float64)})


def message(
    client: int,
    weight: float = 10.0,
    run: int = RUN,
    round: int = ROUND,
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
        return wire.pack(schema, run, round, np.array([client]), np.array([weight]), state)[
            0
        ].tobytes()


GOOD = {int(k): message(int(k)) for k in EXPECTED}


def taken(messages, cap: float = CAP) -> Admitted:
    return admit(messages, schema=SCHEMA, run=RUN, round=ROUND, expected=EXPECTED, cap=cap)


def equal(a: Admitted, b: Admitted) -> bool:
    return (
        torch.equal(a.clients, b.clients)
        and torch.equal(a.weights, b.weights)
        and np.array_equal(a.bytes, b.bytes)
        and all(torch.equal(t, b.up[n]) for n, t in a.up.items())
    )


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("../../x", "x")
    return out.getvalue()


def torch_file() -> bytes:
    out = io.BytesIO()
    torch.save({"w": torch.zeros(D)}, out)
    return out.getvalue()


def fitted(data: bytes) -> bytes:
    """Cut or filled to the right length, so that only its contents can give it away."""
    return data[: SCHEMA.length].ljust(SCHEMA.length, b"\0")


OTHER = wire.Schema.of(
    {"w": torch.zeros(D), "d": torch.zeros(2, dtype=torch.float64)}
)  # as long, but something else
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
    "the round before": ("round", message(8, round=ROUND - 1)),
    "a round to come": ("round", message(8, round=ROUND + 1)),
    "another schema": ("schema", message(8, schema=OTHER)),
    "a client not asked": ("stranger", message(9)),
    "the server's own number": ("stranger", message(wire.SERVER)),
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
    assert absent.clients.tolist() == [2, 3, 5, 13] and equal(got, absent)


def test_all_bad_messages_at_once_leave_the_good_ones():
    got = taken([*GOOD.values(), *(bad for _, bad in BAD.values())])
    assert equal(got, taken(list(GOOD.values())))
    assert got.rejected == Counter(reason for reason, _ in BAD.values())


def test_only_bad_messages_leave_nobody():
    got = taken([bad for name, (_, bad) in BAD.items() if name != "another client's id"])
    assert len(got.clients) == 0 and len(got.weights) == 0 and got.up["w"].shape == (0, D)
    assert sum(got.rejected.values()) == len(BAD) - 1


def test_no_message_at_all_leaves_nobody():
    got = taken([])
    assert len(got.clients) == 0 and got.rejected == {} and got.up["c"].shape == (0, 2)


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
    assert results[0].clients.tolist() == EXPECTED.tolist()
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
        assert len(got.clients) + sum(got.rejected.values()) == 100
        assert set(got.clients.tolist()) <= set(EXPECTED.tolist()) and got.clients.unique().equal(
            got.clients
        )
        assert torch.isfinite(got.up["w"]).all() and torch.isfinite(got.up["c"]).all()
        assert ((got.weights > 0) & (got.weights <= CAP)).all()
        fates.update(got.rejected)
    assert set(fates) == set(REASONS) - {"channel"}
