"""Secure sums with sites as their owners run them: real processes, rules, restarts."""

from types import SimpleNamespace

import pytest
import torch

from deploy.site.common import Direct, server_for, synthetic
from deploy.sites import Process, array_form, enrol, in_process, plan_of, session_of, started
from deploy.sockets import Sockets
from deploy.test_site import DATA, NAMES, Fatal, state
from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.engine.remote_hosts import RemoteHosts
from idiolect.engine.retry import HostCalls
from idiolect.engine.secure_rounds import SecureRounds
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.privacy.sums.stages import KEYS, Place, keys_request

pytest.importorskip("flwr")
SUMS = "secagg(clip=50.0, survivors=0.6)"


@pytest.fixture(scope="module")
def federation():
    return data.load("synthetic", clients=6, samples=60)


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three, of two clients each."""
    made = [
        Process(
            tmp_path_factory.mktemp("sites") / name,
            *(*DATA, "--share", f"{k + 1}/3", "--site", name, "--min-samples", "1"),
        )
        for k, name in enumerate(NAMES)
    ]
    with started(made):
        yield made


def secure_rounds(server, hosts, carrier, said=None) -> SecureRounds:
    counters = server.contract.method.traits.counters
    group = RemoteHosts(hosts, HostCalls(carrier, deadline=60.0, strict=False), counters)
    return SecureRounds(server, group, (said if said is not None else []).append)


def test_sites_share_the_noise_of_a_sum_and_the_server_counts_it(sites, federation):
    """With little noise the sum is that of one process, and never twice the same."""
    plan = plan_of(
        "fedavg", secure_sums=SUMS, privacy="distributed(noise=1e-4)", sample=6, rounds=3
    )
    here, *there = (session_of(plan, federation, run=320 + k) for k in range(3))
    ours = in_process(here)
    ours.advance()
    states = []
    for session in there:
        told = enrol(sites, plan, array_form(federation), session)
        theirs = secure_rounds(session.server, told, Sockets([site.socket for site in sites]))
        try:
            theirs.advance()
        finally:
            theirs.close()
        assert session.server.ledger.admitted == 6
        assert session.server.privacy.exposures.tolist() == [1] * 6
        states.append(session.server.state["w"])
    for w in states:
        assert torch.allclose(w, here.server.state["w"], atol=1e-2)
    assert not torch.equal(*states)


@pytest.mark.parametrize("number, method", [(0, "scaffold"), (1, "lp-proj")])
def test_sites_come_to_what_one_process_comes_to(sites, federation, number, method):
    plan = plan_of(method, secure_sums=SUMS)
    here, there = (session_of(plan, federation, run=300 + number) for _ in range(2))
    told = enrol(sites, plan, array_form(federation), there)
    ours = in_process(here)
    said: list[str] = []
    theirs = secure_rounds(there.server, told, Sockets([site.socket for site in sites]), said)
    try:
        for _ in range(3):
            ours.advance()
            theirs.advance()
    finally:
        theirs.close()
    assert not said
    expected = state(ours)
    for name, t in state(theirs).items():
        assert torch.allclose(t, expected[name], rtol=0, atol=1e-10), name
    assert theirs.server.ledger.admitted == 18
    for name in ("bytes_up", "bytes_down"):
        assert torch.equal(theirs.server.ledger.counts[name], ours.server.ledger.counts[name])


@pytest.mark.parametrize("number, kind", [(0, "sum"), (1, "update")])
def test_a_site_that_is_killed_in_a_round_is_absent_from_it(sites, federation, number, kind):
    """Its keys were in memory only: what it says afterwards is of no use in that round."""
    plan = plan_of("fedavg", secure_sums=SUMS)
    session = session_of(plan, federation, run=310 + number)
    told = enrol(sites, plan, array_form(federation), session)
    said: list[str] = []
    rounds = secure_rounds(session.server, told, Fatal(sites, 1, kind, version=1), said)
    try:
        for _ in range(3):
            rounds.advance()
    finally:
        rounds.close()
    ledger = session.server.ledger
    # killed before the first stage it can begin again, for nobody knows its keys yet
    lost = 0 if kind == "sum" else 2
    assert ledger.admitted == 18 - lost and sum(ledger.missing.values()) == lost
    assert not [text for text in said if "does not count" in text]
    assert all(bool(t.isfinite().all()) and t.abs().max() < 100 for t in state(rounds).values())


# -- one site in this process ----------------------------------------------------------------------
def trained(at, rounds: int = 2):
    session, _ = server_for(at, plan_of("fedavg", secure_sums="secagg(clip=50.0)"))
    host = SimpleNamespace(wire_ids=torch.arange(4), settings=None)
    engine = secure_rounds(session.server, [host], Direct([at]))
    for _ in range(rounds):
        engine.advance()
    return session


def keys_call(version: int, session: int = 5) -> Call:
    frames = {k: keys_request(Place(77, version, k, session), 4) for k in range(4)}
    return calls.sum_call(version, KEYS, frames)


def test_a_round_that_was_opened_is_not_opened_again_after_a_restart(tmp_path):
    at = synthetic(tmp_path / "site")
    session = trained(at)
    assert session.server.ledger.admitted == 8
    at.restarted()
    assert "the sum of this round was opened" in at.refusal(keys_call(1))
    assert at.ask(keys_call(2)).kind == "summed"


def test_the_owner_reads_in_the_log_what_leaves(tmp_path):
    at = synthetic(tmp_path / "site")
    trained(at, rounds=1)
    lines = [line for line in at.log() if line["kind"] == "sum"]
    assert len(lines) == 8  # four stages, in and out
    assert all("shares of masks, for a sum of messages" in line["content"] for line in lines)


def test_calls_of_a_sum_that_make_no_sense_are_refused(tmp_path):
    at = synthetic(tmp_path / "site")
    trained(at, rounds=1)
    good = keys_call(1)
    two = {**good.tensors, "wire_ids": torch.tensor([0, 0, 1, 2])}
    for bad in (
        Call("sum", {"version": 1}, good.tensors),
        Call("sum", {"version": 1, "stage": "1"}, good.tensors),
        Call("sum", {"version": -1, "stage": 1}, good.tensors),
        Call("sum", {"version": 1, "stage": 1}, {}),
        Call("sum", {"version": 1, "stage": 1}, two),
        Call("sum", {"version": 1, "stage": 4}, good.tensors),
    ):
        assert at.ask(bad).kind in ("refused", "failed")
    assert not at.ask(calls.sum_call(1, KEYS, {9: b"x"})).tensors["wire_ids"].numel()
    assert at.ask(good).kind == "summed"


def test_a_site_without_the_package_refuses_the_terms(tmp_path, monkeypatch):
    def missing():
        raise SettingError("secure_sums needs the package flwr between sites")

    monkeypatch.setattr("idiolect.deploy.site.site.cryptography", missing)
    at = synthetic(tmp_path / "site")
    with pytest.raises(AssertionError, match="needs the package flwr"):
        trained(at)
