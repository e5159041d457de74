"""A host behind frames: what it is asked twice, what it does again, what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.setting import EVERYONE, contract, server, with_header
from engine.setting import host as engine_host
from host.replay import Recorded, digest, said, service_on
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.host.durable import Durable
from idiolect.host.service import Service
from idiolect.server.protocol import RoundConclusion, RoundRequest
from idiolect.wire.messages import DownMessage


@pytest.fixture(scope="module")
def recorded():
    return Recorded("scaffold", "feedback + lbgm(threshold=0.9) + half", rounds=5)


@pytest.fixture(params=["memory", "disk"])
def service(request, recorded, tmp_path):
    """Rows in memory alone, or on disk too."""
    return Service(recorded.host()) if request.param == "memory" else service_on(recorded, tmp_path)


def test_calls_give_the_replies_that_they_gave_before(service, recorded):
    replies = [service.handle(frame) for frame in recorded.calls]
    assert list(map(said, replies)) == list(map(said, recorded.replies))
    assert digest(service.host) == recorded.rows[4]


def test_a_call_that_comes_twice_is_carried_out_once(service, recorded):
    for frame, reply in zip(recorded.calls, recorded.replies, strict=True):
        once = service.handle(frame)
        assert service.handle(frame) == once and said(once) == said(reply)
    assert digest(service.host) == recorded.rows[4]


def test_an_order_for_the_round_that_was_concluded_last_does_it_again(service, recorded):
    """The server was restarted from its checkpoint of before."""
    recorded.replayed(service, 0, 3)
    for _ in range(2):
        order, *rest = recorded.of(2)
        assert service.handle(order) == recorded.replies[recorded.calls.index(order)]
        assert service.concluded == 1
        for frame in rest:
            service.handle(frame)
        assert service.concluded == 2 and digest(service.host) == recorded.rows[2]
    recorded.replayed(service, 3)
    assert digest(service.host) == recorded.rows[4]


def test_an_order_for_an_earlier_round_is_refused_and_changes_nothing(service, recorded):
    recorded.replayed(service, 0, 4)
    for version in (0, 1, 2):
        reply = Call.open(service.handle(recorded.of(version)[0]))
        assert reply.kind == "failed" and reply.facts["setting"]
        assert f", got {version}: this host can go back" in reply.facts["text"]
    assert service.concluded == 3 and digest(service.host) == recorded.rows[3]


def test_an_order_that_is_none_takes_nothing_back(service, recorded):
    recorded.replayed(service, 0, 3)
    call = Call.open(recorded.of(2)[0])
    down = calls.as_bytes(call.tensors["down"])
    for forged in (with_header(down, run=5), with_header(down, schema=5), down[:-1]):
        tensors = {**call.tensors, "down": calls.as_tensor(forged)}
        reply = service.handle(Call("update", call.facts, tensors).pack())
        assert Call.open(reply).kind == "failed"
        assert service.concluded == 2 and digest(service.host) == recorded.rows[2]


def test_rows_of_rounds_that_are_settled_cannot_be_taken_back(recorded):
    host = recorded.host()
    host.settings = replace(host.settings, repeats=False)
    service = Service(host)
    recorded.replayed(service, 0, 2)
    reply = Call.open(service.handle(recorded.of(1)[0]))
    assert reply.kind == "failed" and "rows before it are not kept" in reply.facts["text"]


def test_the_end_of_a_round_that_is_told_again_changes_nothing(service, recorded):
    recorded.replayed(service, 0, 3)
    verdict = calls.read_verdict(Call.open(recorded.of(2)[-1]))
    service.handle(Call("status").pack())  # so that it is not the same call twice in a row
    again = calls.verdict_call(verdict).pack()
    assert Call.open(service.handle(again)).facts["concluded"] == 2
    assert digest(service.host) == recorded.rows[2]


@pytest.mark.parametrize("kind", ["", "eval", "update ", "__init__", "x" * 1000])
def test_anything_else_is_no_call(service, kind):
    reply = Call.open(service.handle(Call(kind).pack()))
    assert reply.kind == "failed" and "unknown call" in reply.facts["text"]


def test_bytes_that_are_no_frame_get_a_reply_that_says_so(service):
    rng = np.random.default_rng(0)
    for length in (0, 3, 8, 100):
        assert Call.open(service.handle(rng.bytes(length))).kind == "failed"


def test_where_it_stands(service, recorded):
    assert Call.open(service.handle(Call("status").pack())).facts == {
        "concluded": -1,
        "written": -1,
    }
    recorded.replayed(service, 0, 2)
    assert Call.open(service.handle(Call("status").pack())).facts["concluded"] == 1


def test_rows_of_a_checkpoint_replace_those_on_disk(recorded, tmp_path):
    service = service_on(recorded, tmp_path / "rows")
    recorded.replayed(service, 0, 2)
    folder = str(tmp_path / "saved")
    service.handle(Call("save", {"folder": folder}).pack())
    recorded.replayed(service, 2, 4)
    rounds = torch.full((3,), 2)
    call = Call("load", {"folder": folder, "version": 2}, {"rounds": rounds})
    assert Call.open(service.handle(call.pack())).facts["concluded"] == 1
    again = service_on(recorded, tmp_path / "rows", begun=True)
    assert again.concluded == 1 and digest(again.host) == recorded.rows[1]


def test_a_round_whose_end_was_never_told_is_as_one_that_was_not_heard(recorded, tmp_path):
    """In memory and on disk: the next order finds the rows that it would find elsewhere."""
    told, untold = (service_on(recorded, tmp_path / name) for name in ("told", "untold"))
    for service in (told, untold):
        recorded.replayed(service, 0, 2)
        service.handle(recorded.of(2)[0])
    order = calls.read_order(Call.open(recorded.of(2)[0]))
    told.handle(calls.verdict_call(RoundConclusion(2, order.heard[:0], order.heard, {})).pack())
    for service in (told, untold):
        assert Call.open(service.handle(recorded.of(3)[0])).kind == "sent"
        assert service.concluded == 2
    assert digest(told.host) == digest(untold.host) != recorded.rows[2]
    for service in (told, untold):
        for frame in recorded.of(3)[1:]:
            service.handle(frame)
        again = service_on(recorded, service.durable.folder)
        assert digest(again.host) == digest(service.host)


def test_clients_that_arrive_one_by_one_are_on_disk_as_they_arrive(tmp_path):
    agreed = contract("ditto")
    host = engine_host(agreed, EVERYONE, asynchronous=True)
    durable = Durable(host, tmp_path)
    durable.load()
    service = Service(host, durable)
    down = server(agreed).message(0)
    for version, who in ((0, [0, 2, 5]), (3, [1]), (1, [4])):
        ids = torch.tensor(who)
        message = DownMessage(with_header(down.common, version=version))
        order = RoundRequest(version, message, ids, ids, {}, torch.zeros_like(ids))
        service.handle(calls.order_call(order, "begin").pack())
        for one in ids.split(1):
            verdict = RoundConclusion(version, one, one[:0], {})
            reply = Call.open(service.handle(calls.verdict_call(verdict, "arrived").pack()))
            assert reply.kind == "status", reply.facts
            again = Durable(engine_host(agreed, EVERYONE, asynchronous=True), tmp_path)
            again.load(begun=True)
            assert again.host.digest() == host.digest()
            assert torch.equal(again.host.store.version, host.store.version)
