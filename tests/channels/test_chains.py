"""Stages together: what fits, what is refused and why, and that error feedback loses nothing."""

import pytest
import torch

from channels.common import form, keys, send, start
from idiolect.channels import parse_channel
from idiolect.core.knobs import SettingError

F64 = torch.float64


@pytest.mark.parametrize(
    "after",
    [
        "topk(share=0.1) + half",
        "topk(share=0.1) + qsgd",
        "sign",
        "int8",
        "randomk(unbiased=False)",
        "clip + qsgd",
        "half",
    ],
)
def test_with_feedback_what_arrived_and_what_is_kept_add_up_to_what_was_sent(after):
    text = f"feedback + {after}"
    state = start(parse_channel(text), 3, form(40, dtype=F64))
    total = torch.zeros(3, 40, dtype=F64)
    received = torch.zeros(3, 40, dtype=F64)
    for t in range(10):
        x = torch.randn(3, 40, generator=torch.Generator().manual_seed(t), dtype=F64)
        out, state, _ = send(text, x, form(40, t, F64), state, keys(3, t))
        total = total + x
        received = received + out
        assert torch.allclose(received + state["0.e"], total, atol=1e-12)
    assert state["0.e"].any()


def test_a_chain_is_its_stages_one_after_the_other():
    x = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    top, _, _ = send("topk(share=0.1)", x, form(500))
    both, _, body = send("topk(share=0.1) + half", x, form(500))
    places = parse_channel("topk(share=0.1)").stages[0].limit(form(500))
    assert torch.equal(both, top.half().float()) and (body.lengths == places + 100).all()
    quantised, _, _ = send("topk(share=0.1) + qsgd(norm=inf)", x, form(500))
    step = top.abs().amax(1, keepdim=True) / 15
    assert ((quantised != 0) <= (top != 0)).all()
    assert ((quantised - top).abs() <= step + 1e-6).all()


def test_a_chain_is_as_long_as_its_parts_say():
    for text in (
        "topk + qsgd",
        "dgc + half",
        "feedback + topk + half",
        "clip + qsgd",
        "randomk + int8",
        "feedback + sign",
    ):
        _, _, body = send(text, torch.randn(2, 1000), form(1000, 9))
        assert (body.lengths == parse_channel(text).limit(form(1000, 9))).all(), text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("half + topk", "nothing is left to send after 'half'; it must be the last stage"),
        ("qsgd + half", "nothing is left to send after 'qsgd'; it must be the last stage"),
        ("sign + clip", "nothing is left to send after 'sign'; it must be the last stage"),
        (
            "topk + feedback + half",
            "'feedback' remembers coordinates, and 'topk' sends others every round: "
            "put it before 'topk'",
        ),
        (
            "randomk + dgc",
            "'dgc' remembers coordinates, and 'randomk' sends others every round: "
            "put it before 'randomk'",
        ),
        (
            "feedback + dgc",
            "'feedback' and 'dgc' would both send again what was lost: keep one of them",
        ),
        ("feedback + feedback + sign", "'feedback' and 'feedback' would both"),
    ],
)
def test_stages_that_do_not_fit_are_refused(text, why):
    with pytest.raises(SettingError) as error:
        parse_channel(text).check(form(100))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("topq", "'topq' is unknown; did you mean 'topk'?"),
        ("qsgd(level=4)", "'level' is unknown; did you mean 'levels'?"),
        ("qsgd(levels=1)", "levels must be a whole number >= 2 and <= 32768, got 1"),
        ("dgc(sparsity=1)", "sparsity must be a number >= 0 and < 1, got 1.0"),
        ("topk(share=0)", "share must be a number > 0 and <= 1, got 0.0"),
        ("topk(0.1)", "channel must be NAME or NAME(option=value, ...)"),
        ("topk(share=__import__('os'))", "must be NAME or NAME(option=value, ...)"),
    ],
)
def test_a_wrong_line_says_what_is_wrong(text, why):
    with pytest.raises(SettingError) as error:
        parse_channel(text)
    assert why in str(error.value)


def test_words_follow_the_stage_that_counts():
    counts = {
        "topk(share=0.1) + half": 50.0,
        "dgc(sparsity=0.9, warmup=0) + half": 150.0,
        "none": 1000.0,
        "randomk(share=0.1)": 100.0,
    }
    for text, words in counts.items():
        chain = parse_channel(text)
        _, _, values = chain.encode(
            torch.randn(2, 1000), start(chain, 2, form(1000)), keys(2), form(1000)
        )
        assert values.tolist() == [words] * 2, text


def test_what_is_kept_in_single_precision_is_what_the_server_saw():
    """Rows of double precision, sent in single: the rounding is an error like any other."""
    x = torch.tensor([[1 / 3, 2 / 3]], dtype=F64)
    chain = parse_channel("feedback")
    _, state, _ = chain.encode(x, {"0.e": torch.zeros(1, 2, dtype=F64)}, keys(1), form(2))
    assert torch.equal(state["0.e"], x - x.float().double())
