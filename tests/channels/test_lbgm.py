"""LBGM against the paper's rule, and that client and server look back at the same message."""

import numpy as np
import pytest
import torch

from channels.common import form, keys
from idiolect.channels import Form, parse_channel
from idiolect.channels.lbgm import LBGM
from idiolect.core.knobs import SettingError
from idiolect.wire.ragged import Ragged, Reader

F64 = torch.float64
TEXTS = (
    "lbgm",
    "lbgm(layers=True)",
    "lbgm(threshold=0.9) + half",
    "lbgm(threshold=0.9) + qsgd",
    "feedback + lbgm",
    "lbgm(threshold=1)",
)


def normal(*shape: int, seed: int = 0, dtype=F64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


class Pair:
    """Clients and server with what they keep for a channel."""

    def __init__(self, text: str, K: int, at: Form):
        self.chain, self.at = parse_channel(text), at
        self.client, self.server = (
            {n: torch.zeros(K, m, dtype=at.dtype) for n, m in self.chain.kept(w, at).items()}
            for w in ("client", "memory")
        )

    def send(self, x: torch.Tensor, who=None):
        """What arrives of the clients `who`, the bytes and the paper's count."""
        who = torch.arange(len(x)) if who is None else torch.tensor(who)
        body, state, values = self.chain.encode(
            x, {n: t[who] for n, t in self.client.items()}, keys(len(x)), self.at
        )
        reader = Reader(body)
        out, memory = self.chain.decode(
            reader, {n: t[who] for n, t in self.server.items()}, self.at
        )
        assert reader.finished().all() and (body.lengths <= self.chain.limit(self.at)).all()
        for kept, new in ((self.client, state), (self.server, memory)):
            for name in kept:
                kept[name][who] = new[name]
        # Both look back at the same message.
        assert all(torch.equal(self.client[n], t) for n, t in self.server.items())
        return out, body, values


def paper(
    x: np.ndarray, g: np.ndarray, threshold: float, spans
) -> tuple[np.ndarray, np.ndarray, int]:
    """Azam et al., Algorithm 1, for one client.

    -> (what the server uses, the look-back gradient, numbers sent)
    """
    out = x.copy()
    g = g.copy()
    sent = 0
    for a, b in spans:
        cosine = x[a:b] @ g[a:b] / max(np.linalg.norm(x[a:b]) * np.linalg.norm(g[a:b]), 1e-300)
        if g[a:b].any() and 1 - cosine**2 <= threshold:
            out[a:b] = x[a:b] @ g[a:b] / (g[a:b] @ g[a:b]) * g[a:b]
            sent += 1
        else:
            g[a:b] = x[a:b]
            sent += b - a
    return out, g, sent


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5, 0.95])
def test_rounds_are_those_of_the_paper(layers, threshold):
    at = Form(60, (0, 1, 20, 60), dtype=F64)
    pair = Pair(f"lbgm(threshold={threshold}, layers={layers})", 4, at)
    g = np.zeros((4, 60))
    kinds = set()  # numbers sent per message
    base = normal(4, 60)
    spans = ((0, 1), (1, 20), (20, 60)) if layers else ((0, 60),)
    for t in range(12):
        base = base + 0.4 * normal(4, 60, seed=t + 1)
        out, body, values = pair.send(base)
        for k in range(4):
            expected, g[k], sent = paper(base[k].numpy(), g[k], threshold, spans)
            assert np.allclose(out[k], expected, atol=1e-10)
            assert values[k] == sent and body.lengths[k] == 1 + 8 * sent
            kinds.add(sent)
        assert np.allclose(pair.server["0.g"], g, atol=1e-10)
    assert len(kinds) > 1  # some recycled, some in full


def test_a_recycled_message_is_the_projection_on_the_look_back():
    at = form(50, dtype=F64)
    pair, g = Pair("lbgm(threshold=1)", 3, at), normal(3, 50)
    pair.send(g)
    x = normal(3, 50, seed=1)
    out, body, values = pair.send(x)
    assert body.lengths.tolist() == [9] * 3 and values.tolist() == [1] * 3
    assert ((x - out) * g).sum(1).abs().max() < 1e-12
    assert torch.allclose(out / g, (out / g)[:, :1].expand_as(g))


def test_threshold_0_sends_everything_exactly():
    pair, x = Pair("lbgm(threshold=0)", 2, form(40)), normal(2, 40, dtype=torch.float32)
    for message in (x, x, 2 * x, torch.zeros_like(x)):
        out, body, values = pair.send(message)
        assert torch.equal(out, message)
        assert body.lengths.tolist() == [161] * 2 and values.tolist() == [40] * 2


@pytest.mark.parametrize("text", ["lbgm(threshold=1)", "lbgm(threshold=1, layers=True)"])
def test_threshold_1_recycles_everything_after_the_first(text):
    pair = Pair(text, 3, form(40))
    parts = 2 if "layers" in text else 1
    for t in range(5):
        _, body, values = pair.send(normal(3, 40, seed=t, dtype=torch.float32))
        assert values.tolist() == [40 if t == 0 else parts] * 3
        assert body.lengths.tolist() == [161 if t == 0 else 1 + 4 * parts] * 3


def test_a_scaled_message_arrives_whole_and_zero_costs_one_number():
    pair, x = Pair("lbgm(threshold=0.01)", 2, form(40, dtype=F64)), normal(2, 40)
    pair.send(x)
    for factor in (1.0, -3.0, 1e-200, 0.0):
        out, body, _ = pair.send(factor * x)
        assert torch.allclose(out, factor * x, rtol=1e-12) and body.lengths.tolist() == [9] * 2


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_both_sides_look_back_at_the_same_message(text, dtype):
    pair, base = Pair(text, 5, form(70, dtype=dtype)), normal(5, 70, dtype=dtype)
    lengths = set()
    for t in range(10):  # `send` compares
        base = base + 0.2 * normal(5, 70, seed=t + 1, dtype=dtype)
        lengths |= set(pair.send(base)[1].lengths.tolist())
    assert len(lengths) > 1 and pair.server and all(t.any() for t in pair.server.values())


def test_with_half_the_look_back_is_what_arrived():
    pair, x = Pair("lbgm + half", 2, form(40)), normal(2, 40, dtype=torch.float32)
    out, body, _ = pair.send(x)
    assert torch.equal(out, x.half().float()) and torch.equal(pair.client["0.g"], out)
    assert body.lengths.tolist() == [81] * 2


@pytest.mark.parametrize("text", TEXTS)
def test_clients_not_heard_keep_their_look_back(text):
    pair, base = Pair(text, 4, form(30)), normal(4, 30, dtype=torch.float32)
    for t, who in enumerate(([0, 1], [2], [3, 0], [1, 2], [0, 1, 2, 3], [3])):
        kept = {n: m.clone() for n, m in pair.server.items()}
        pair.send((base + 0.3 * normal(4, 30, seed=t, dtype=torch.float32))[who], who)
        away = [k for k in range(4) if k not in who]
        assert all(torch.equal(m[away], kept[n][away]) for n, m in pair.server.items())


def test_a_message_does_not_depend_on_the_cohort():
    for text in TEXTS:
        chain, at = parse_channel(text), form(70)
        g, x = normal(6, 70, dtype=torch.float32), normal(6, 70, seed=1, dtype=torch.float32)
        x[:3] = g[:3] + 0.1 * x[:3]
        state = {
            n: g if n.endswith("g") else torch.zeros(6, m)
            for n, m in chain.kept("client", at).items()
        }
        body, after, values = chain.encode(x, state, keys(6), at)
        for k in range(6):
            one, own, count = chain.encode(
                x[[k]], {n: t[[k]] for n, t in state.items()}, keys(6)[[k]], at
            )
            assert one.row(0) == body.row(k) and count[0] == values[k]
            assert all(torch.equal(own[n][0], after[n][k]) for n in after)
        none, _, _ = chain.encode(x[:0], {n: t[:0] for n, t in state.items()}, keys(6)[:0], at)
        assert len(none) == 0
        out, _ = chain.decode(Reader(none), dict.fromkeys(chain.kept("memory", at), g[:0]), at)
        assert out.shape == (0, 70)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("text", ["lbgm", "lbgm(layers=True)"])
def test_a_message_with_an_odd_number_goes_in_full_and_the_next_recovers(text, odd):
    pair, x = Pair(text, 2, form(30)), normal(2, 30, dtype=torch.float32)
    pair.send(x)
    chain, at = pair.chain, pair.at
    spoilt = x.clone()
    spoilt[1, 7] = odd
    body, state, _ = chain.encode(spoilt, pair.client, keys(2), at)
    out, _ = chain.decode(Reader(body), pair.server, at)
    assert torch.allclose(out[0], x[0]) and out[1].isfinite().all() == (odd == 1e30)
    again, _, _ = chain.encode(x, state, keys(2), at)  # with a spoilt look-back at the client
    assert torch.allclose(chain.decode(Reader(again), pair.server, at)[0], x)


@pytest.mark.parametrize("text", TEXTS)
def test_hostile_bytes_never_raise_and_do_not_touch_the_others(text):
    at, rng = Form(60, (0, 7, 8, 60)), np.random.default_rng(len(text))
    pair, x = Pair(text, 2, at), normal(2, 60, dtype=torch.float32)
    pair.send(x)
    g = normal(1, 60, dtype=torch.float32)
    bodies = [
        pair.chain.encode(m, pair.client, keys(2), at)[0]
        for m in (x, normal(2, 60, seed=3, dtype=torch.float32))
    ]
    strings = [b"", b"\xff" * pair.chain.limit(at), b"\0" * pair.chain.limit(at)]
    for i in range(1500):
        s = bytearray(bodies[i % 2].row(i // 2 % 2))
        for _ in range(rng.integers(0, 4)):
            s[rng.integers(len(s)) if i % 7 else 0] = rng.choice(
                [0, 1, 255, 127, rng.integers(256)]
            )
        strings.append(
            bytes(s[: rng.integers(len(s) + 1) if i % 3 == 0 else len(s)])
            + rng.bytes(rng.integers(3) if i % 5 == 0 else 0)
        )
    sound = bodies[0].row(0)

    def receive(some: list[bytes]):
        reader = Reader(Ragged.of(some))
        memory = {n: g.expand(len(some), -1).clone() for n in pair.server}
        out, after = pair.chain.decode(reader, memory, at)
        assert out.shape == (len(some), 60) and all(t.shape == out.shape for t in after.values())
        assert (reader.at <= [len(s) for s in some]).all()
        return out, reader.finished()

    alone = receive([sound])[0][0]
    for step in (3, len(strings)):
        for a in range(0, min(len(strings), 200 * step), step):
            out, good = receive([*strings[a : a + step], sound])
            assert good[-1] and torch.equal(out[-1], alone)


def test_flags_and_multiples_that_make_no_sense_are_marked():
    at, memory = Form(3, (0, 1, 3)), {"0.g": torch.ones(6, 3)}
    number = [np.float32(v).tobytes() for v in (2.0, np.nan, np.inf)]
    some = [
        b"\1" + number[0],
        b"\3" + number[0],
        b"\1" + number[1],
        b"\1" + number[2],
        b"\1",
        b"\0" + number[0],
    ]
    reader = Reader(Ragged.of(some))
    out, _ = parse_channel("lbgm").decode(reader, memory, at)
    assert reader.finished().tolist() == [True] + [False] * 5 and out[0].tolist() == [2.0] * 3
    some = [
        b"\3" + 2 * number[0],
        b"\7" + 2 * number[0],
        b"\2" + number[0] + number[1],
        b"\1" + 2 * number[0],
        b"\0" + 3 * number[0],
        b"",
    ]
    reader = Reader(Ragged.of(some))
    parse_channel("lbgm(layers=True)").decode(reader, memory, at)
    assert reader.finished().tolist() == [True, False, False, False, True, False]


@pytest.mark.parametrize("text", ["threshold=-0.1", "threshold=1.1", "threshold=nan", "layers=2"])
def test_options_out_of_range_are_refused(text):
    with pytest.raises(SettingError):
        parse_channel(f"lbgm({text})")


def test_nothing_can_follow_layers_and_the_whole_row_is_counted_down():
    with pytest.raises(SettingError, match="last stage"):
        parse_channel("lbgm(layers=True) + half").check(form(40))
    assert parse_channel("lbgm").check(form(40)) == [] and LBGM().down_values(form(40)) == 40
    assert LBGM(layers=True).limit(Form(40, tuple(range(0, 41, 4)))) == 2 + 160
    assert LBGM().limit(form(40)) == 5
    assert LBGM().client(form(40)) == LBGM().memory(form(40)) == {"g": 40}


def test_feedback_sends_later_what_a_multiple_leaves_out():
    """Clients with different optima never send small messages.

    Without feedback the errors pull the mean away, with it they do not.
    """
    at = form(40, dtype=F64)
    curvature = torch.logspace(0, -1, 40, dtype=F64)
    target = normal(3, 40)
    off = {}
    for text in ("lbgm(threshold=0.5)", "feedback + lbgm(threshold=0.5)"):
        pair, w, words = Pair(text, 3, at), torch.zeros(40, dtype=F64), 0.0
        for _ in range(600):
            out, _, values = pair.send(-0.2 * curvature * (w - target))
            w, words = w + out.mean(0), words + values.mean()
        off[text] = float((w - target.mean(0)).norm() / target.mean(0).norm())
        assert words < 0.7 * 600 * 40
    assert off["feedback + lbgm(threshold=0.5)"] < 0.05 and off["lbgm(threshold=0.5)"] > 0.3
