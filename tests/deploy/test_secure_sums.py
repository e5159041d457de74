"""Secure sums between sites: the sum is that of one process, and no message is seen by itself."""

import numpy as np
import pytest
import torch

import idiolect as il
from deploy.test_server import DATA, deployment, inprocess, quiet
from engine.stand_in import Wires, three
from idiolect.deploy.server import serve
from idiolect.host.calls import Call
from idiolect.privacy.sums.client import SumClient
from idiolect.privacy.sums.setting import SecureSums
from idiolect.privacy.sums.stages import (
    KEYS,
    MASKED,
    OPENED,
    SHARES,
    Place,
    ProtocolError,
    keys_request,
)
from idiolect.wire.messages import HEADER

pytest.importorskip("flwr")
SUMS = {"secure_sums": "secagg(clip=50.0, survivors=0.6)"}


def serve_all(wires, tmp_path, tell=quiet, terms=None, method="fedavg", **settings):
    plan = deployment(method, terms, **{**SUMS, **settings})
    return serve(wires, plan, tmp_path / "run", tell=tell)


def figures(result) -> list[tuple]:
    names = ("client", "test_accuracy", "test_loss")
    return [tuple(row[name] for name in names) for row in result.clients_table()]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "lp-proj"])
def test_a_deployed_run_has_the_figures_and_the_bytes_of_one_process(method, tmp_path):
    there = serve_all(Wires(three(DATA)), tmp_path, method=method)
    here = inprocess(method, **SUMS)
    assert there.summary()["bytes"] == here.summary()["bytes"]
    assert there.summary()["missing"] == there.summary()["rejected"] == 0
    for mine, its in zip(figures(there), figures(here), strict=True):
        assert mine[:2] == its[:2] and mine[2] == pytest.approx(its[2], rel=1e-6)


def test_what_leaves_a_site_is_masked(tmp_path):
    """The bytes of messages of the same round are other ones each time, and look uniform."""
    bodies: list[list[bytes]] = []
    for k in range(2):
        sent: list[bytes] = []

        def seen(node, asked, said, sent=sent):
            call = Call.open(said)
            if call.kind == "sent":
                rows = call.tensors["matrix"].numpy()[:, HEADER.itemsize :]
                sent.extend(row.tobytes() for row in rows)
            return said

        wires = Wires(three(DATA))
        wires.tamper = seen
        serve_all(wires, tmp_path / str(k), rounds=1)
        bodies.append(sent)
    assert len(bodies[0]) == len(bodies[1]) == 6
    raw = [np.frombuffer(b"".join(sent), dtype=np.uint8) for sent in bodies]
    assert (raw[0] == raw[1]).mean() < 0.02


# -- drop-out --------------------------------------------------------------------------------------
def losing(node: int, kind: str, stage: int | None = None, version: int = 1):
    """A site whose reply to a call of one round never comes."""

    def tamper(to, asked, said):
        call = Call.open(asked)
        facts = call.facts
        hit = to == node and call.kind == kind and facts.get("version") == version
        if hit and stage in (None, facts.get("stage")):
            return Call("failed", {"text": "gone"}).pack()
        return said

    return tamper


@pytest.mark.parametrize(
    ("kind", "stage"),
    [("sum", KEYS), ("sum", SHARES), ("sum", MASKED), ("update", None), ("sum", OPENED)],
)
def test_a_site_that_is_lost_in_a_stage_costs_its_own_messages_only(kind, stage, tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = losing(101, kind, stage)
    told = []
    result = serve_all(wires, tmp_path, told.append)
    lost = 0 if stage == OPENED else 2  # in the last stage its messages have come
    assert result.summary()["missing"] == lost
    assert not [text for text in told if "does not count" in text]
    # the model is a model: no mask was left on it
    assert result.summary()["loss"]["mean"] == pytest.approx(
        inprocess(**SUMS).summary()["loss"]["mean"], rel=0.2
    )


@pytest.mark.parametrize(
    ("kind", "stage", "words"),
    [
        ("sum", KEYS, "round 2 does not count: keys: 4 of 6 clients are left, and 5 are needed"),
        ("update", None, "round 2 does not count: 4 of 6 messages have arrived, and 5 are needed"),
        ("sum", OPENED, "round 2 does not count: opened: 4 shares of the secret"),
    ],
)
def test_a_round_with_too_few_survivors_leaves_the_server_as_it_is(kind, stage, words, tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = losing(101, kind, stage)
    told = []
    settings = {"secure_sums": "secagg(clip=50.0, survivors=0.8)"}
    result = serve_all(wires, tmp_path, told.append, **settings)
    assert any(words in text for text in told), told
    assert result.summary()["missing"] + result.summary()["rejected"] == 6
    two_rounds = inprocess(rounds=2, **settings).summary()["loss"]["mean"]
    assert result.summary()["loss"]["mean"] == pytest.approx(two_rounds, rel=0.2)


def test_a_site_that_is_gone_for_good_is_waited_for_once(tmp_path):
    class Leaving(Wires):
        def send_to(self, node, frame):
            call = Call.open(frame)
            if node == 101 and call.kind == "sum" and call.facts["version"] == 1:
                self.sites.pop(101, None)
            return super().send_to(node, frame)

    terms = {"sites": 3, "least": 2, "deadline": 2.0, "wait": 2.0}
    result = serve_all(Leaving(three(DATA)), tmp_path, terms=terms)
    assert result.summary()["missing"] == 2


# -- a server that asks for more -------------------------------------------------------------------
def test_a_round_is_opened_once(tmp_path):
    wires = Wires(three(DATA))
    frames = {}

    def keep(node, asked, said):
        call = Call.open(asked)
        if call.kind == "sum":
            frames[node, call.facts["version"], call.facts["stage"]] = asked
        return said

    wires.tamper = keep
    serve_all(wires, tmp_path)
    site = wires.sites[100]
    reply = Call.open(site.handle(frames[100, 1, KEYS]))
    assert "the sum of this round was opened" in str(reply.facts)


def test_a_site_without_keys_sends_no_message(tmp_path):
    """A server that asks for the message and for nothing else gets none."""
    wires = Wires(three(DATA))
    orders = []

    def keep(node, asked, said):
        call = Call.open(asked)
        if call.kind == "update" and node == 100:
            orders.append(call)
        return said

    wires.tamper = keep
    serve_all(wires, tmp_path)
    site = wires.sites[100]
    order = orders[-1]
    down = order.tensors["down"].clone()
    down[4:8] = torch.tensor([3, 0, 0, 0], dtype=torch.uint8)  # the next round, without its stages
    asked = Call("update", {**order.facts, "version": 3}, {**order.tensors, "down": down})
    reply = Call.open(site.handle(asked.pack()))
    assert reply.kind == "sent" and not reply.tensors["lengths"].numel()


def test_a_server_that_was_stopped_goes_on(tmp_path):
    """What was opened stays opened; the next rounds have sums of their own."""
    sites = three(DATA, tmp_path)
    serve_all(Wires(sites), tmp_path, rounds=2)
    plan = deployment(**SUMS)
    again = serve(Wires(sites), plan, tmp_path / "run", resume=True, tell=quiet)
    whole = inprocess(**SUMS)
    assert again.summary()["bytes"] == whole.summary()["bytes"]
    for mine, its in zip(figures(again), figures(whole), strict=True):
        assert mine[2] == pytest.approx(its[2], rel=1e-6)


def test_methods_that_need_single_messages_are_refused_before_anybody_is_waited_for(tmp_path):
    with pytest.raises(il.SettingError, match=r"secure_sums: method: .*fedamp"):
        serve_all(Wires(three(DATA)), tmp_path, method="fedamp")


# -- with noise that clients share out -------------------------------------------------------------
def test_a_site_shares_noise_with_as_many_as_its_owner_has_agreed_to():
    """A sum of fewer clients, each with the share of many, would have too little noise."""
    sums = SecureSums(clip=1.0, survivors=0.6)
    grid = sums.grid(4, noise=1.0, least=sums.least(10))
    place = Place(run=1, version=0, client=0)
    client = SumClient(sums, grid, place, fewest=sums.least(10))
    with pytest.raises(ProtocolError, match="6 are needed to share its noise"):
        client.handle(KEYS, keys_request(place, 5))
    assert client.handle(KEYS, keys_request(place, 10))


def test_how_many_share_the_noise_must_be_agreed_before():
    with pytest.raises(il.SettingError, match="sample must be a number of clients"):
        deployment("fedavg", **SUMS, privacy="distributed(noise=2)")
