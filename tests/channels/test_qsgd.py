"""QSGD: right on average, within the stated variance, of the stated size."""

import math

import pytest
import torch

from channels.common import form, keys, receive, send
from idiolect.channels import parse_channel
from idiolect.channels.qsgd import QSGD
from idiolect.core.knobs import SettingError
from idiolect.wire.ragged import Ragged

ROW = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TIMES = 4000


@pytest.mark.parametrize(
    "options",
    [
        "levels=2",
        "levels=5, bucket=16",
        "norm=inf",
        "levels=3, bucket=7, norm=inf",
        "levels=2, coding=elias",
    ],
)
def test_the_mean_is_the_row_and_the_variance_within_the_bound(options):
    at = form(40, dtype=torch.float64)
    out, _, _ = send(f"qsgd({options})", ROW.expand(TIMES, 40), at, key=keys(TIMES))
    assert ((out.mean(0) - ROW).abs() <= 5 * out.std(0) / TIMES**0.5 + 2**-22 * ROW.abs()).all()
    (stage,) = parse_channel(f"qsgd({options})").stages
    s, b = stage.levels - 1, min(stage.bucket, 40)
    error = ((out - ROW) ** 2).sum(1).mean()
    if stage.norm == "l2":
        bound = sum(min(b / s**2, b**0.5 / s) * float((part**2).sum()) for part in ROW.split(b))
        assert error <= bound
    else:
        steps = torch.cat([part.abs().max() / s * torch.ones_like(part) for part in ROW.split(b)])
        assert ((out - ROW).abs() < steps * (1 + 1e-6)).all()


@pytest.mark.parametrize("norm", ["l2", "inf"])
def test_every_number_is_a_level_of_its_bucket(norm):
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
    out, _, _ = send(f"qsgd(levels=6, bucket=32, norm={norm})", x, form(100))
    for a in range(0, 100, 32):
        part, arrived = x[:, a : a + 32], out[:, a : a + 32]
        size = (
            part.norm(dim=1, keepdim=True)
            if norm == "l2"
            else part.abs().max(1, keepdim=True).values
        )
        level = arrived / size * 5
        assert torch.allclose(level, level.round(), atol=1e-4) and level.abs().max() < 5.1
        assert (arrived * part >= 0).all()


def test_a_row_with_one_number_is_exact():
    x = torch.zeros(1, 600)
    x[0, 3], x[0, 599] = -7.25, 1e-30
    for options in ("", "coding=elias", "norm=inf, levels=2"):
        assert torch.equal(send(f"qsgd({options})", x, form(600))[0], x)


@pytest.mark.parametrize(
    ("n", "levels", "bucket"),
    [(1000, 16, 512), (610, 5, 500), (7, 2, 3), (79510, 16, 512), (100, 17, 1000)],
)
def test_bytes_and_words_are_those_of_the_formula(n, levels, bucket):
    stage = QSGD(levels=levels, bucket=bucket)
    coded = stage.encode(torch.ones(2, n), {}, keys(2), form(n))
    words = (n + 32 * math.ceil(n / bucket) + math.ceil(math.log2(levels)) * n) / 32
    assert coded.values.tolist() == [words] * 2 and stage.down_values(form(n)) == words
    assert (coded.body.lengths == math.ceil(4 * words)).all()
    assert stage.limit(form(n)) == math.ceil(4 * words)


def test_both_codings_carry_the_same_numbers():
    x = torch.randn(4, 3000, generator=torch.Generator().manual_seed(3))
    for options in ("levels=2", "levels=16", "levels=9, norm=inf", "levels=200, bucket=3000"):
        a, _, packed = send(f"qsgd({options})", x, form(3000))
        b, _, elias = send(f"qsgd({options}, coding=elias)", x, form(3000))
        assert torch.equal(a, b) and (elias.lengths < packed.lengths).all()
    _, _, long = send("qsgd(norm=inf, coding=elias)", torch.ones(1, 3000), form(3000))
    assert long.lengths[0] > QSGD().limit(form(3000)), "no zeros, no gain"


def test_the_longest_elias_message_is_within_the_limit():
    stage = QSGD(levels=16, norm="inf", coding="elias")
    for x in (
        torch.ones(1, 1000),
        torch.ones(1, 1000) * (torch.arange(1000) % 2),
        torch.ones(1, 1000) * (torch.arange(1000) % 4 == 3),
    ):
        assert stage.encode(x, {}, keys(1), form(1000)).body.lengths[0] <= stage.limit(form(1000))


def test_a_level_that_does_not_exist_is_refused():
    body = QSGD(levels=5).encode(torch.ones(1, 2), {}, keys(1), form(2)).body.row(0)
    for level in range(8):
        _, reader = receive("qsgd(levels=5)", Ragged.of([body[:4] + bytes([level])]), form(2))
        assert reader.finished().tolist() == [level < 5]


@pytest.mark.parametrize(
    "options",
    [
        {"levels": 1},
        {"levels": 1.5},
        {"bucket": 0},
        {"norm": "l1"},
        {"coding": "zip"},
        {"levels": 10**6},
    ],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(SettingError, match=next(iter(options))):
        QSGD(**options)
