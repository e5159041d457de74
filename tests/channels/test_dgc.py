"""Deep Gradient Compression, against the paper's recursion written out for one client."""

import numpy as np
import pytest
import torch

from channels.common import form, keys, send, start
from idiolect.channels import parse_channel
from idiolect.channels.dgc import DGC
from idiolect.core.knobs import SettingError

F64 = torch.float64


def paper(g, u, v, k, momentum, masking, clip, parts):
    """Lin et al. 2018, algorithm 1 with momentum correction, clipping and masking, for one client.

    -> (sent, u, v)
    """
    if clip and np.linalg.norm(g) > clip:
        g = g * clip / np.linalg.norm(g)
    u = momentum * u + g
    v = v + u
    mask = np.zeros(len(g), dtype=bool)
    for (a, b), kk in zip(parts, k, strict=True):
        threshold = np.sort(np.abs(v[a:b]))[-kk]
        mask[a:b] = np.abs(v[a:b]) >= threshold
    return np.where(mask, v, 0), (np.where(mask, 0, u) if masking else u), np.where(mask, 0, v)


@pytest.mark.parametrize("masking", [True, False])
@pytest.mark.parametrize("clip", [0.0, 3.0])
@pytest.mark.parametrize("layers", [True, False])
def test_six_rounds_are_those_of_the_paper(masking, clip, layers):
    n, K = 60, 3
    options = f"masking={masking}, clip={clip}, layers={layers}, warmup=2, start=0.5, rise=0.5"
    text = f"dgc(sparsity=0.95, momentum=0.8, {options})"
    rng = np.random.default_rng(0)
    state = start(parse_channel(text), K, form(n, dtype=F64))
    u, v = np.zeros((K, n)), np.zeros((K, n))
    parts = [(0, 20), (20, 60)] if layers else [(0, 60)]
    for t, sparsity in enumerate([0.5, 0.5, 0.75, 0.75, 0.875, 0.875, 0.9375, 0.9375, 0.95]):
        g = rng.normal(size=(K, n))
        out, state, _ = send(text, torch.from_numpy(g), form(n, t, F64), state)
        k = [max(1, round((1 - sparsity) * (b - a))) for a, b in parts]
        for i in range(K):
            sent, u[i], v[i] = paper(g[i], u[i], v[i], k, 0.8, masking, clip, parts)
            assert np.count_nonzero(sent) == sum(k)
            np.testing.assert_allclose(out[i].numpy(), sent, atol=1e-10, rtol=0)
        np.testing.assert_allclose(state["0.u"].numpy(), u, atol=1e-10, rtol=0)
        np.testing.assert_allclose(state["0.v"].numpy(), v, atol=1e-10, rtol=0)


def test_the_warm_up_of_both_papers():
    lin = [DGC(sparsity=0.999).now(form(9, t)) for t in range(6)]
    assert np.allclose(lin, [0.75, 0.9375, 0.984375, 0.99609375, 0.999, 0.999])
    perfed = DGC(sparsity=0.999, start=0.25, rise=0.75)
    assert np.allclose(
        [perfed.now(form(9, t)) for t in range(40)],
        [min(1 - 0.75 * 0.75**t, 0.999) for t in range(40)],
    )
    assert DGC(sparsity=0.9, warmup=0).now(form(9)) == 0.9
    assert DGC(sparsity=0.5).now(form(9)) == 0.5, "a warm-up never sends less than the end of it"
    sent = {t: DGC(warmup=3).numbers(form(1000, t)) for t in (0, 2, 3, 5, 6, 9, 10**6)}
    assert sent == {0: 250, 2: 250, 3: 62, 5: 62, 6: 16, 9: 10, 10**6: 10}


@pytest.mark.parametrize("after", ["", " + half", " + qsgd(levels=4)", " + sign"])
def test_without_momentum_what_was_received_and_v_add_up_to_what_was_sent(after):
    text = f"dgc(sparsity=0.9, momentum=0.0, warmup=0){after}"
    state = start(parse_channel(text), 2, form(50, dtype=F64))
    total = torch.zeros(2, 50, dtype=F64)
    received = torch.zeros(2, 50, dtype=F64)
    for t in range(12):
        g = torch.randn(2, 50, generator=torch.Generator().manual_seed(t), dtype=F64)
        out, state, _ = send(text, g, form(50, t, F64), state, keys(2, t))
        total = total + g
        received = received + out
    assert torch.allclose(received + state["0.v"], total, atol=1e-12)
    assert out.count_nonzero(dim=1).max() <= 5


def test_words_are_one_and_a_half_per_number_sent():
    stage = DGC(sparsity=0.99, warmup=0)
    coded = stage.encode(
        torch.randn(2, 79510),
        {"u": torch.zeros(2, 79510), "v": torch.zeros(2, 79510)},
        keys(2),
        form(79510),
    )
    assert coded.values.tolist() == [1.5 * 795] * 2 and stage.down_values(form(79510)) == 1.5 * 795
    assert (coded.body.lengths == stage.limit(form(79510))).all() and coded.rest.shape == (2, 795)


def test_nothing_sparse_and_no_momentum_is_no_compression():
    x = torch.randn(2, 30)
    out, state, body = send("dgc(sparsity=0.0, momentum=0.0, warmup=0)", x, form(30))
    assert torch.equal(out, x) and not state["0.v"].any() and (body.lengths == 4 * 30).all()


@pytest.mark.parametrize(
    "options",
    [
        {"sparsity": 1},
        {"sparsity": -0.1},
        {"momentum": 1},
        {"clip": -1},
        {"warmup": 0.5},
        {"rise": 0},
        {"start": 1},
    ],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(SettingError, match=next(iter(options))):
        DGC(**options)
