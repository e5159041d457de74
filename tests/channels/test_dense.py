"""Signs, eight bits, sixteen bits and clipping."""

import pytest
import torch

from channels.common import form, send
from idiolect.channels.dense import Clip, Half, Int8, Sign
from idiolect.core.knobs import SettingError

NORMAL = torch.randn(5, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
F64 = torch.float64


def test_signs_arrive_with_the_mean_magnitude():
    x = NORMAL.clone()
    x[0, 3] = 0.0
    out, _, body = send("sign", x, form(200, dtype=F64))
    assert torch.allclose(
        out, x.abs().mean(1, keepdim=True) * torch.where(x < 0, -1.0, 1.0), rtol=2e-7
    )
    assert (body.lengths == 25 + 4).all()
    error = ((out - x) ** 2).sum(1)
    assert torch.allclose(error, (x**2).sum(1) - x.abs().sum(1) ** 2 / 200, rtol=1e-5)


def test_signs_with_a_scale_for_each_tensor():
    out, _, body = send("sign(layers=True)", NORMAL, form(200, dtype=F64))
    for a, b in ((0, 66), (66, 200)):
        part = NORMAL[:, a:b]
        assert torch.allclose(
            out[:, a:b], part.abs().mean(1, keepdim=True) * part.sign(), rtol=2e-7
        )
    assert (body.lengths == 25 + 8).all()


def test_signs_alone():
    out, _, body = send("sign(scale=none)", NORMAL, form(200, dtype=F64))
    assert torch.equal(out, NORMAL.sign()) and (body.lengths == 25).all()


@pytest.mark.parametrize("bucket", [1, 16, 200, 10_000])
def test_eight_bits_are_within_half_a_step(bucket):
    out, _, body = send(f"int8(bucket={bucket})", NORMAL, form(200, dtype=F64))
    for a in range(0, 200, bucket):
        part = NORMAL[:, a : a + bucket]
        assert (
            (out[:, a : a + bucket] - part).abs()
            <= part.abs().amax(1, keepdim=True) / 254 * (1 + 1e-5)
        ).all()
    assert (body.lengths == 200 + 4 * -(-200 // bucket)).all()


def test_eight_bits_with_stochastic_rounding_are_right_on_average():
    times, row = 4000, NORMAL[0, :30]
    out, _, _ = send("int8(rounding=stochastic)", row.expand(times, 30), form(30, dtype=F64))
    assert ((out.mean(0) - row).abs() <= 5 * out.std(0) / times**0.5 + 2**-22 * row.abs()).all()
    assert ((out - row).abs() <= row.abs().max() / 127 * (1 + 1e-5)).all()


def test_sixteen_bits():
    x = torch.tensor([[1.0, -1e9, 1 / 3, 65504.0, 1e-9]])
    assert torch.equal(send("half", x, form(5))[0], x.clamp(-65504, 65504).half().float())
    wide, _, body = send("half(kind=bfloat16)", x, form(5))
    assert ((wide - x).abs() <= 2**-8 * x.abs()).all() and body.lengths.tolist() == [10]
    assert send("half(kind=bfloat16)", torch.full((1, 1), 3.4028e38), form(1))[0].isfinite().all()
    assert torch.equal(
        send("half", torch.tensor([[float("inf")]]), form(1))[0], torch.tensor([[float("inf")]])
    )


def test_clipped_rows_keep_their_direction_and_short_rows_everything():
    x = torch.cat([NORMAL, 1e-3 * NORMAL])
    out, _, _ = send("clip(norm=2.0)", x, form(200, dtype=F64))
    assert torch.allclose(out[:5].norm(dim=1), torch.full((5,), 2.0, dtype=F64))
    assert torch.equal(out[5:], x[5:])
    assert torch.allclose(torch.cosine_similarity(out, x), torch.ones(10, dtype=F64))
    assert torch.allclose(
        send("clip", torch.full((1, 4), 3e38), form(4))[0], torch.full((1, 4), 0.5)
    )


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (Sign, {"scale": "l2"}),
        (Int8, {"bucket": 0}),
        (Int8, {"rounding": "up"}),
        (Half, {"kind": "float8"}),
        (Clip, {"norm": 0}),
        (Sign, {"layers": 2}),
    ],
)
def test_options_that_cannot_work_are_refused(stage, options):
    with pytest.raises(SettingError, match=next(iter(options))):
        stage(**options)
