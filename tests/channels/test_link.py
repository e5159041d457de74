"""A channel fitted to the parts of a message."""

import numpy as np
import pytest
import torch

from channels.common import form, keys
from idiolect.channels import Channel, parse_channel
from idiolect.channels.link import Link
from idiolect.channels.sketch import Sketch
from idiolect.wire.ragged import Ragged

PARTS = {"c": form(40), "n": form(1), "w": form(100)}


def link(text: str) -> Link:
    return Link.of(parse_channel(text), PARTS, exact=("n",))


def messages(K: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(K, f.n, generator=generator) for name, f in PARTS.items()}


def through(one: Link, up, reference=None, received=None):
    """(what arrives, the body of each message)"""
    state = one.blank("client", len(up["w"]), torch.zeros(1))
    no_head = np.zeros((len(up["w"]), 0), dtype=np.uint8)
    bodies, _, _ = one.encode(no_head, up, reference or {}, state, lambda: keys(len(up["w"])), 0)
    memory = one.blank("memory", len(up["w"]), torch.zeros(1))
    out, good, _ = one.decode(bodies, received or {}, memory, 0)
    least, most = one.lengths()
    assert good.all() and (bodies.lengths >= least).all() and (bodies.lengths <= most).all()
    return out, bodies


def test_without_stages_the_link_is_the_identity():
    up = messages()
    reference = {"w": torch.full((100,), 5.0)}
    for one in (Link(Channel(), PARTS), link("none")):  # of the general link too
        out, bodies = through(one, up, reference, reference)
        assert all(torch.equal(out[name], rows) for name, rows in up.items())
        assert one.lengths()[1] == 4 * 141
        assert bodies.row(1) == b"".join(up[name][1].numpy().tobytes() for name in PARTS)
    assert link("none").coding == "" and link("none").lengths() == (4 * 141, 4 * 141)
    assert link("half").coding and link("sketch").coding


def test_numbers_that_travel_as_they_are_are_read_in_their_place():
    heads = np.zeros((3, 24), dtype=np.uint8)
    one = link("none")
    sent, _, _ = one.encode(heads, messages(), {}, {}, lambda: keys(3), 0)
    out, _, _ = one.decode(Ragged(sent.matrix[:, 24:], sent.lengths - 24), {}, {}, 0)
    assert all(np.shares_memory(rows.numpy(), sent.matrix) for rows in out.values())


def test_a_part_of_another_type_than_declared_is_refused():
    with pytest.raises(ValueError, match="message 'w' is"):
        through(link("half"), messages() | {"w": torch.zeros(3, 100, dtype=torch.float64)})


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
    models, _ = through(one, up, reference, reference)
    assert torch.equal(models["w"], out["w"] + 5)
    assert torch.equal(models["n"], up["n"]) and torch.equal(models["c"], out["c"])


def test_the_stage_that_is_decoded_from_the_aggregate_and_its_parts():
    one = link("clip + sketch + half")
    assert one.aggregate_stage == Sketch()
    parts = one.aggregate_parts(7)
    assert [(name, prefix) for name, prefix, _ in parts] == [("c", "c.1."), ("w", "w.1.")]
    assert [(f.n, f.round) for _, _, f in parts] == [(40, 7), (100, 7)]
    assert link("half").aggregate_stage is None and link("half").aggregate_parts(0) == []


@pytest.mark.parametrize("text", ["none", "half", "feedback + topk + qsgd", "lbgm", "sketch"])
def test_a_part_without_numbers_passes_by_the_channel(text):
    """Beside other parts it takes no bytes; and it is no reason to refuse the channel."""
    parts = {"theta": form(0), "w": form(100)}
    both = Link.of(parse_channel(text), parts)
    alone = Link.of(parse_channel(text), {"w": form(100)})
    assert both.check() == alone.check() and both.lengths() == alone.lengths()
    for what in ("client", "memory", "server"):
        assert both.kept(what) == alone.kept(what)
    assert both.rule_sizes() == {"theta": 0, **alone.rule_sizes()}
    arrived, _ = through(both, {"theta": torch.zeros(3, 0), "w": messages()["w"]})
    assert arrived["theta"].shape == (3, 0)
