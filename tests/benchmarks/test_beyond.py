"""The arithmetic of scale.md is that of real runs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.beyond import FEDAVG, KINDS, LPPROJ, SETTING, needs

import idiolect as il
from benchmarks import beyond, on_ray
from idiolect.host.calls import order_call, sent_reply, verdict_call
from idiolect.server.protocol import RoundConclusion
from idiolect.testing import federation, task
from idiolect.wire.messages import HEADER


@pytest.mark.parametrize("kind", [FEDAVG, LPPROJ])
def test_bytes_per_round_are_those_of_a_run(kind):
    whole, data = task(), federation()
    method = {"FedAvg": "fedavg"}.get(kind.name, "lp-proj:dim=4")
    small = replace(kind, numbers=whole.d if kind is FEDAVG else 4)
    run = il.run(method, whole, data, rounds=3, sample=2, progress=False)
    sent = run.summary()["bytes"]
    expected = needs(small, data.clients, replace(SETTING, heard=2))
    assert sent["up"] + sent["down"] == 3 * expected.sent


@pytest.mark.parametrize("kind", [FEDAVG, LPPROJ])
def test_bytes_of_frames_are_those_of_the_calls_of_a_round(kind):
    """But for the heads of the frames, which are allowed for."""
    whole, data = task(), federation()
    method = {"FedAvg": "fedavg"}.get(kind.name, "lp-proj:dim=4")
    small = replace(kind, numbers=whole.d if kind is FEDAVG else 4)
    session = il.run(method, whole, data, rounds=1, sample=2, progress=False).session()
    order = session.server.open().order
    sent = session.hosts[0].update(order)
    verdict = RoundConclusion(order.version, order.heard, order.heard[:0], {})
    calls = (order_call(order), sent_reply(sent), verdict_call(verdict))
    tensors = sum(t.nbytes for call in calls for t in call.tensors.values())
    one = replace(SETTING, heard=2)
    expected = needs(small, data.clients, one)
    assert expected.hosts == 2  # and one had all of it here
    message = beyond.HEADER + beyond.NUMBER * small.numbers
    assert tensors == expected.frames - 2 * (message + beyond.FRAMES) + message
    heads = sum(len(call.pack()) for call in calls) - tensors
    assert heads < 2 * beyond.FRAMES


def test_what_is_sent_grows_with_those_that_train():
    """FedAvg asks those that are heard, lp-proj tells everyone 50 numbers."""
    one, more = (needs(FEDAVG, n) for n in (10**6, 10**8))
    assert one.sent == more.sent == 2 * 1000 * (24 + 4 * 10_010) and one.rows == 0
    one, more = (needs(LPPROJ, n) for n in (10**6, 10**8))
    assert one.sent == (10**6 + 1000) * 224 and more.rows == 10**8 * 40_040
    assert more.hosts > 90 * one.hosts and more.driver > 10 * one.driver


def test_twice_the_memory_of_hosts_is_half_as_many_hosts():
    wide = replace(SETTING, host_bytes=2 * SETTING.host_bytes)
    for kind in KINDS:
        few, many = needs(kind, 10**8, wide).hosts, needs(kind, 10**8).hosts
        assert few < 0.55 * many
        assert needs(kind, 10**8, wide).seconds >= needs(kind, 10**8).seconds


def test_the_constants_give_back_the_figures_that_they_are_from():
    """With 2 hosts, and as many heard as were measured."""
    s, m = replace(SETTING, heard=100), beyond.MEASURED
    assert needs(FEDAVG, 10_000, s).seconds == pytest.approx(m.fedavg[0], abs=0.01)
    assert needs(FEDAVG, 100_000, s).seconds == pytest.approx(m.fedavg[1], abs=0.01)
    for clients, seconds in zip((1_000, 10_000), m.lpproj, strict=True):
        assert needs(LPPROJ, clients, s).seconds == pytest.approx(seconds, rel=0.05)
    assert needs(FEDAVG, 10_000, s).sent == 8_012_800  # of the table methods
    assert needs(LPPROJ, 10_000, s).sent == 2_262_400
    assert needs(LPPROJ, 10_000, s).frames == pytest.approx(428_270, rel=0.01)
    assert needs(FEDAVG, 10_000, s).frames == pytest.approx(4_093_966, rel=0.01)


def test_constants_of_form_are_those_of_the_code():
    assert HEADER.itemsize == beyond.HEADER
    model = il.Task(lambda: il.models.make("linear", (1000,), 10))
    assert model.d == beyond.PARAMETERS
    assert on_ray.MANY["options"]["samples"] == SETTING.samples


def test_the_table_has_a_line_for_each_method_and_size():
    head, *lines = [line for line in beyond.rows() if len(line) > 1]
    assert [line[0] for line in lines] == ["1,000,000"] * 2 + ["100,000,000"] * 2
    assert all(len(line) == len(head) for line in lines)


def test_the_host_with_more_clients_of_a_round():
    assert on_ray.largest_share(1000, 1000) == 0.5
    assert on_ray.largest_share(2, 1) == 1.0
    assert 0.53 < on_ray.largest_share(1000, 100) < 0.54
