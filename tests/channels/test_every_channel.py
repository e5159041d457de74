"""What holds for every channel: sizes, odd numbers, hostile bytes.

And that nobody's message depends on the cohort.
"""

import numpy as np
import pytest
import torch

from channels.common import CHANNELS, form, keys, receive, send, start
from idiolect.channels import parse_channel
from idiolect.wire.ragged import Ragged

every = pytest.mark.parametrize("text", CHANNELS)


def normal(K: int, n: int, dtype=torch.float32, seed=0) -> torch.Tensor:
    return torch.randn(K, n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def signs_only(text: str) -> bool:
    return text == "sign(scale=none)"


@every
@pytest.mark.parametrize("n", [1, 2, 9, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_arrive_and_the_lengths_are_within_the_limit(text, n, dtype):
    parse_channel(text).check(form(n, dtype=dtype))
    for K in (1, 5):
        out, state, _ = send(text, normal(K, n, dtype), form(n, dtype=dtype))
        assert out.isfinite().all() and all(
            t.isfinite().all() and t.dtype == dtype for t in state.values()
        )


@every
def test_no_rows_are_no_messages(text):
    out, _, body = send(text, torch.zeros(0, 9), form(9))
    assert out.shape == (0, 9) and len(body) == 0


@every
def test_zeros_arrive_as_zeros(text):
    out, state, _ = send(text, torch.zeros(2, 30), form(30))
    assert signs_only(text) or (not out.any() and not any(t.any() for t in state.values()))


@every
@pytest.mark.parametrize("size", [1e38, 1e-40, 1e-45])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_and_tiny_numbers_arrive_without_a_fault(text, size, dtype):
    x = size * normal(3, 50, dtype).clamp(-3, 3)
    out, _, _ = send(text, x, form(50, dtype=dtype))
    overflows = size == 1e38 and "randomk" in text  # random-k multiplies by n / k
    assert out.isfinite().all() or overflows
    if size < 1 and not signs_only(text):
        assert (out.abs() <= 25 * size * 50**0.5).all()


@every
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_does_not_arrive_as_finite(text, odd):
    x = normal(3, 50)
    x[1, 17] = odd
    chain = parse_channel(text)
    body, _, _ = chain.encode(x, start(chain, 3, form(50)), keys(3), form(50))
    out, reader = receive(text, body, form(50))
    good = torch.from_numpy(reader.finished()) & out.isfinite().all(dim=1)
    assert good[0] and good[2]
    assert not good[1] or "randomk" in text  # random-k does not send every place


@every
def test_a_message_does_not_depend_on_the_cohort(text):
    x, key, at = normal(6, 70), keys(6), np.array([4, 1])
    _, state, body = send(text, x, form(70), key=key)
    _, some, less = send(text, x[at], form(70), key=key[at])
    assert [less.row(i) for i in range(2)] == [body.row(int(k)) for k in at]
    assert all(torch.equal(some[n], state[n][at]) for n in state)


@every
def test_rows_may_lie_anywhere_in_memory(text):
    x = normal(50, 8)
    _, _, strided = send(text, x.T[::2], form(50))
    _, _, contiguous = send(text, x.T[::2].contiguous(), form(50))
    assert strided.row(1) == contiguous.row(1)
    expanded, _, _ = send(text, x[:1].expand(3, 8), form(8))
    alone, _, _ = send(text, x[:1], form(8))
    assert torch.equal(expanded[0], alone[0])


@every
def test_rows_and_state_are_not_changed(text):
    x = normal(3, 40)
    chain, was = parse_channel(text), x.clone()
    state = start(chain, 3, form(40))
    chain.encode(x, state, keys(3), form(40))
    assert torch.equal(x, was) and not any(t.any() for t in state.values())


@every
def test_hostile_bytes_never_raise_and_never_grow(text):
    n, at = 60, form(60, round=1)
    chain, rng = parse_channel(text), np.random.default_rng(len(text))
    body, _, _ = chain.encode(normal(2, n), start(chain, 2, at), keys(2, 1), at)
    strings = []
    for i in range(2000):
        s = bytearray(body.row(i % 2))
        for _ in range(rng.integers(0, 4)):
            if s:
                s[rng.integers(len(s))] = rng.choice([0, 255, 128, rng.integers(256)])
        cut = rng.integers(len(s) + 1) if i % 3 == 0 else len(s)
        strings.append(bytes(s[:cut]) + rng.bytes(rng.integers(3) if i % 5 == 0 else 0))
    most = chain.limit(at)
    strings += [b"", b"\xff" * most, b"\0" * most] + [
        rng.bytes(rng.integers(most + 1)) for _ in range(200)
    ]
    for step in (1, 7, len(strings)):  # a few at a time, and all together
        for a in range(0, len(strings) if step > 1 else 200, step):
            _, reader = receive(text, Ragged.of(strings[a : a + step]), at)
            lengths = [len(s) for s in strings[a : a + step]]
            assert (reader.finished() <= (reader.at == lengths)).all()
            assert (reader.at <= lengths).all()


@every
def test_a_bad_row_does_not_change_the_others(text):
    chain, at = parse_channel(text), form(60, round=1)
    body, _, _ = chain.encode(normal(3, 60), start(chain, 3, at), keys(3, 1), at)
    whole, _ = receive(text, body, at)
    for spoilt in (b"", body.row(1)[:-1], body.row(1) + b"\0", b"\xff" * int(body.lengths[1])):
        out, reader = receive(text, Ragged.of([body.row(0), spoilt, body.row(2)]), at)
        assert torch.equal(out[[0, 2]], whole[[0, 2]]) and reader.finished()[[0, 2]].all()
        assert len(spoilt) == body.lengths[1] or not reader.finished()[1]


@every
def test_encoding_twice_gives_the_same_bytes_and_another_round_is_another_stream(text):
    x = normal(2, 200)
    a, b = send(text, x, form(200))[2], send(text, x, form(200))[2]
    assert a.row(0) == b.row(0)
    if any(name in text for name in ("qsgd", "randomk", "stochastic")):
        assert send(text, x, form(200), key=keys(2, 5))[2].row(0) != a.row(0)
