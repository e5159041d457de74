"""A channel fitted to the parts of a message."""

import numpy as np
import pytest
import torch

from channels.common import form, keys
from idiolect.channels import Channel, parse_channel
from idiolect.channels.link import Link
from idiolect.channels.sketch import Sketch

PARTS = {"c": form(40), "n": form(1), "w": form(100)}


def link(text: str) -> Link:
    return Link(parse_channel(text), PARTS, exact=("n",))


def messages(K: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(K, f.n, generator=generator) for name, f in PARTS.items()}


def through(one: Link, up, reference=None):
    """(what arrives, the body of each message)"""
    state = one.blank("client", len(up["w"]), torch.zeros(1))
    bodies, _, _ = one.encode(up, reference or {}, state, keys(len(up["w"])), 0)
    memory = one.blank("memory", len(up["w"]), torch.zeros(1))
    out, good, _ = one.decode(bodies, memory, 0)
    assert good.all() and (bodies.lengths <= one.limit()).all()
    return out, bodies


def test_nothing_is_coded_without_stages():
    assert not Link(Channel(), PARTS).codes and not link("none").codes
    assert link("half").codes and link("sketch").codes


@pytest.mark.parametrize("text", ["none", "half", "feedback + topk(share=0.1) + half", "lbgm"])
def test_the_rule_sees_every_part_as_it_is(text):
    assert link(text).rule_sizes() == {"c": 40, "n": 1, "w": 100}


@pytest.mark.parametrize(
    "text",
    [
        "sketch(columns=6, rows=3)",
        "sketch(columns=6, rows=3, exact=True)",
        "clip + sketch(columns=6, rows=3) + half",
    ],
)
def test_the_rule_sees_tables_of_sketched_parts_and_exact_parts_as_they_are(text):
    one = link(text)
    assert one.rule_sizes() == {"c": 18, "n": 1, "w": 18}
    up, _ = through(one, messages())
    assert {name: rows.shape[1] for name, rows in up.items()} == one.rule_sizes()


def test_tables_have_the_default_sizes_of_each_part():
    sizes = link("sketch").rule_sizes()
    assert sizes == {"c": Sketch().numbers(form(40)), "n": 1, "w": Sketch().numbers(form(100))}


def test_exact_parts_arrive_bit_for_bit():
    up = messages()
    out, bodies = through(link("half"), up)
    assert torch.equal(out["n"], up["n"]) and torch.equal(out["w"], up["w"].half().float())
    assert np.array_equal(bodies.lengths, np.full(3, 2 * 40 + 4 + 2 * 100))


def test_coded_parts_with_a_reference_are_sent_as_changes():
    up = messages()
    reference = {"n": torch.ones(1), "w": torch.full((100,), 5.0)}
    one = link("half")
    out, _ = through(one, up, reference)
    assert torch.equal(out["w"], (up["w"] - 5).half().float()) and torch.equal(out["n"], up["n"])
    models = one.restore(out, reference)
    assert torch.equal(models["w"], out["w"] + 5)
    assert torch.equal(models["n"], up["n"]) and torch.equal(models["c"], out["c"])


def test_the_stage_that_is_decoded_from_the_aggregate_and_its_parts():
    one = link("clip + sketch + half")
    assert one.aggregate_stage == Sketch()
    parts = one.aggregate_parts(7)
    assert [(name, prefix) for name, prefix, _ in parts] == [("c", "c.1."), ("w", "w.1.")]
    assert [(f.n, f.round) for _, _, f in parts] == [(40, 7), (100, 7)]
    assert link("half").aggregate_stage is None and link("half").aggregate_parts(0) == []
