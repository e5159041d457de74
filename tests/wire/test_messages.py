"""Messages as bytes: what is packed comes out, its length is 24 bytes and the numbers.

And a host takes only what is meant for it.
"""

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.wire import messages as wire

DTYPES = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8)
CPU = torch.device("cpu")


def rows(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    t = torch.randn(*shape) * 100
    return t.abs().to(dtype) if dtype == torch.uint8 else t.to(dtype)


def schema(state: dict[str, torch.Tensor]) -> wire.Schema:
    return wire.Schema.of({n: t[0] for n, t in state.items()})


def packed(state: dict[str, torch.Tensor], run=7, version=3) -> np.ndarray:
    K = len(next(iter(state.values())))
    return wire.pack(schema(state), run, version, np.arange(K), np.arange(1, K + 1), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype, shape):
    state = {"w": rows(dtype, 4, *shape)}
    out = wire.unpack(schema(state), packed(state)[:, 24:])
    assert out["w"].dtype == dtype and torch.equal(out["w"], state["w"])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.sampled_from(DTYPES), st.integers(1, 9)), min_size=1
    ),
    st.integers(1, 5),
)
def test_several_parts_come_back_and_the_length_is_the_header_and_the_numbers(parts, K):
    state = {n: rows(dtype, K, size) for n, (dtype, size) in parts.items()}
    messages = packed(state)
    length = 24 + sum(size * dtype.itemsize for dtype, size in parts.values())
    assert messages.shape == (K, length) and schema(state).length == length
    assert schema(state).values == sum(size for _, size in parts.values())
    out = wire.unpack(schema(state), messages[:, 24:])
    assert out.keys() == state.keys() and all(torch.equal(out[n], t) for n, t in state.items())


def test_numbers_that_are_not_ordinary_come_back_bit_for_bit():
    odd = torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38]])
    out = wire.unpack(schema({"w": odd}), packed({"w": odd})[:, 24:])["w"]
    assert torch.equal(out.view(torch.int32), odd.view(torch.int32))


def test_the_header_says_whose_message_it_is():
    state = {"w": torch.zeros(3, 2)}
    messages = wire.pack(
        schema(state), 2**32 - 1, 12, np.array([4, 9, 2**31]), np.array([1.0, 2.5, 1e6]), state
    )
    head = wire.header(messages)
    assert messages[0, :4].tobytes() == b"idl1"
    assert head["run"].tolist() == [2**32 - 1] * 3 and head["version"].tolist() == [12] * 3
    assert head["client"].tolist() == [4, 9, 2**31] and head["weight"].tolist() == [1.0, 2.5, 1e6]
    assert head["schema"].tolist() == [schema(state).checksum] * 3


def test_the_bytes_are_little_endian_in_this_order():
    message = wire.pack(
        wire.Schema.of({"w": torch.zeros(1)}),
        2,
        1,
        np.array([3]),
        np.array([0.5]),
        {"w": torch.ones(1, 1)},
    )[0].tobytes()
    assert message[:12] == b"idl1\x01\x00\x00\x00\x02\x00\x00\x00"
    assert message[16:] == b"\x03\x00\x00\x00\x00\x00\x00\x3f\x00\x00\x80\x3f"


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.zeros(2)},
        {"w": torch.zeros(3)},
        {"w": torch.zeros(2, 1)},
        {"w": torch.zeros(2).double()},
    ],
)
def test_another_name_shape_or_dtype_has_another_checksum(other):
    assert wire.Schema.of(other).checksum != wire.Schema.of({"w": torch.zeros(2)}).checksum


def test_another_contract_or_channel_has_another_checksum():
    parts = wire.Schema.of({"w": torch.zeros(2)}).parts
    schemas = [
        wire.Schema(parts),
        wire.Schema(parts, contract=1),
        wire.Schema(parts, contract=2**32 - 1),
        wire.Schema(parts, "half"),
        wire.Schema(parts, "half", contract=1),
    ]
    assert len({s.checksum for s in schemas}) == len(schemas)
    assert wire.Schema.of({"w": torch.zeros(2)}, contract=1) == schemas[1]


def test_without_a_contract_the_checksum_is_that_of_parts_and_channel():
    assert wire.Schema.of({"w": torch.zeros(2)}).checksum == zlib.crc32(b"[('w', (2,), '<f4')]")


def test_the_order_of_the_parts_does_not_depend_on_who_wrote_them_down():
    a, b = torch.zeros(2), torch.ones(3)
    assert wire.Schema.of({"a": a, "b": b}) == wire.Schema.of({"b": b, "a": a})


def test_nothing_declared_is_nothing_sent():
    assert wire.Schema.of({}).length == 0 and wire.pack_down({}, 1, 2) == b""
    assert wire.open_down(wire.Schema.of({}), b"", 1, 2, CPU) == {}


@pytest.mark.parametrize("bad", [torch.zeros(2, 3).double(), torch.zeros(2, 4)])
def test_a_method_that_sends_what_it_did_not_declare_is_stopped(bad):
    with pytest.raises(ValueError, match="declared"):
        wire.pack(wire.Schema.of({"w": torch.zeros(3)}), 0, 0, np.arange(2), np.ones(2), {"w": bad})


# -- messages down ---------------------------------------------------------------------------------
DOWN = {"w": torch.tensor([1.0, -2.0]), "c": torch.tensor(3.0, dtype=torch.float64)}


def test_a_message_down_comes_back():
    message = wire.pack_down(DOWN, run=7, version=3)
    assert len(message) == 24 + 8 + 8
    out = wire.open_down(wire.Schema.of(DOWN), message, 7, 3, CPU)
    assert out.keys() == DOWN.keys() and all(torch.equal(out[n], t) for n, t in DOWN.items())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (wire.pack_down(DOWN, 8, 3), "run is 8, expected 7"),
        (wire.pack_down(DOWN, 7, 2), "version is 2, expected 3"),
        (wire.pack_down(DOWN, 7, 4), "version is 4, expected 3"),
        (wire.pack_down({"v": torch.zeros(2), "c": DOWN["c"]}, 7, 3), "schema"),
        (wire.pack_down(DOWN, 7, 3, contract=5), "schema"),
        (b"idl2" + wire.pack_down(DOWN, 7, 3)[4:], "magic"),
        (
            wire.pack(
                wire.Schema.of(DOWN),
                7,
                3,
                np.array([5]),
                np.ones(1),
                {n: t[None] for n, t in DOWN.items()},
            )[0].tobytes(),
            "client is 5",
        ),
        (wire.pack_down(DOWN, 7, 3)[:-1], "39 bytes, expected 40"),
        (wire.pack_down(DOWN, 7, 3) + b"\0", "41 bytes, expected 40"),
        (b"", "0 bytes, expected 40"),
    ],
)
def test_a_host_refuses_what_is_not_for_this_run_and_version(message, says):
    with pytest.raises(ValueError, match=says):
        wire.open_down(wire.Schema.of(DOWN), message, 7, 3, CPU)


def test_a_message_down_with_the_same_contract_comes_back():
    message = wire.pack_down(DOWN, 7, 3, contract=5)
    out = wire.open_down(wire.Schema.of(DOWN, contract=5), message, 7, 3, CPU)
    assert all(torch.equal(out[n], t) for n, t in DOWN.items())


def test_finite_looks_at_every_part_of_every_message():
    state = {
        "a": torch.zeros(4, 2),
        "b": torch.zeros(4, 3, dtype=torch.float64),
        "n": torch.zeros(4, 1, dtype=torch.int64),
    }
    state["a"][1, 0] = float("inf")
    state["b"][2, 2] = float("nan")
    assert wire.finite(state).tolist() == [True, False, False, True]
    assert wire.finite({"n": state["n"]}).tolist() == [True] * 4


def test_the_shape_that_was_sent_is_named_beside_the_declared_one():
    schema = wire.Schema.of({"w": torch.zeros(3)})
    rows = {"w": torch.zeros(2, 4, 5)}
    with pytest.raises(ValueError, match=r"float32\(4, 5\), declared torch.float32\(3,\)"):
        wire.pack(schema, 1, 0, np.arange(2), np.ones(2), rows)


def test_numbers_are_packed_and_read_without_a_copy_where_they_lie_well():
    rows = torch.arange(12.0).reshape(3, 4)
    raw = wire.raw_bytes(rows)
    assert np.shares_memory(raw, rows.numpy())
    assert wire.numbers(raw, np.dtype("f4")).data_ptr() == rows.data_ptr()
    wide = np.zeros((3, 17), dtype=np.uint8)  # rows of 17 bytes: the second is not aligned
    wide[:, :16] = raw
    copied = wire.numbers(wide[:, :16], np.dtype("f4"))
    assert torch.equal(copied, rows) and not np.shares_memory(copied.numpy(), wide)
