"""Sites as real processes behind sockets: the same results as in one process."""

import copy
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from deploy.sites import (
    Process,
    array_form,
    enrol,
    in_process,
    over_sockets,
    plan_of,
    session_of,
    started,
)
from deploy.sockets import Sockets
from engine.loopback import remote_rounds
from idiolect import data
from idiolect.engine.remote_hosts import request_for
from idiolect.host import calls
from idiolect.host.calls import Call

DATA = ("--data", "synthetic", "--clients", "6", "--samples", "60", "--client-names", "own")
# of one layer, ffgg's own part would be all of it, and nothing would be sent
METHODS = {"fedavg": {}, "ditto": {}, "lp-proj": {}, "scaffold": {}, "ffgg": {"part": "biases"}}
NAMES = ("north", "south", "west")


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


def state(engine) -> dict:
    return {n: t.clone() for n, t in engine.server.state.items()}


@pytest.mark.parametrize("number, method", list(enumerate(METHODS)))
def test_sites_come_to_what_one_process_comes_to(sites, federation, number, method):
    plan = plan_of(method, METHODS[method])
    here, there = (session_of(plan, federation, run=100 + number) for _ in range(2))
    told = enrol(sites, plan, array_form(federation), there)
    ours, theirs = in_process(here), over_sockets(there, told, sites)
    try:
        for _ in range(3):
            ours.advance()
            theirs.advance()
        everyone = torch.arange(6)
        scores = [e.evaluate(everyone, ("test",))["test"] for e in (ours, theirs)]
    finally:
        theirs.close()
    expected = state(ours)
    for name, t in state(theirs).items():
        assert torch.allclose(t, expected[name], rtol=0, atol=1e-10), name
    assert theirs.server.ledger.admitted == ours.server.ledger.admitted == 18
    assert torch.equal(scores[0].hits, scores[1].hits)
    assert torch.allclose(scores[0].loss, scores[1].loss, atol=1e-10)


class Fatal(Sockets):
    """Kills a site just before it is sent one call, and starts it again a while later."""

    def __init__(self, sites, host: int, kind: str, version: int):
        super().__init__([site.socket for site in sites])
        self.site = sites[host]
        self.when = (host, kind, version)
        self.killed = False

    def send(self, host, frame):
        call = Call.open(frame)
        if not self.killed and (host, call.kind, call.facts.get("version")) == self.when:
            self.killed = True
            self.site.kill()
            threading.Thread(target=self.site.start).start()
        return super().send(host, frame)


@pytest.mark.parametrize(
    "number, method, kind", [(0, "scaffold", "update"), (1, "ditto", "conclude")]
)
def test_a_site_that_is_killed_in_a_round_comes_back_and_nothing_differs(
    sites, federation, number, method, kind
):
    plan = plan_of(method, channel="feedback + topk(share=0.5)")
    here, there = (session_of(plan, federation, run=200 + number) for _ in range(2))
    told = enrol(sites, plan, array_form(federation), there)
    ours = in_process(here)
    carrier = Fatal(sites, 1, kind, version=1)
    theirs = remote_rounds(there.server, told, carrier)
    try:
        for _ in range(3):
            ours.advance()
            theirs.advance()
    finally:
        theirs.close()
    assert carrier.killed
    expected = state(ours)
    for name, t in state(theirs).items():
        assert torch.allclose(t, expected[name], rtol=0, atol=1e-10), name
    ledger = theirs.server.ledger
    assert ledger.admitted == ours.server.ledger.admitted == 18 and not ledger.missing
    assert sites[1].ask(Call("hello")).facts["concluded"] == 2


def test_a_server_that_is_restarted_from_its_checkpoint_repeats_a_round(sites, federation):
    """The sites have concluded it, and go back to their rows from before it."""
    plan = plan_of("scaffold")
    here, there = (session_of(plan, federation, run=300) for _ in range(2))
    told = enrol(sites, plan, array_form(federation), there)
    ours, theirs = in_process(here), over_sockets(there, told, sites)
    try:
        for _ in range(2):
            ours.advance()
            theirs.advance()
        tensors, facts = theirs.server.save()
        saved = {n: t.clone() for n, t in tensors.items()}, copy.deepcopy(facts)
        theirs.advance()  # and the server dies before its next checkpoint
        theirs.server.load(*saved)
        assert theirs.server.version == 2
        ours.advance()
        theirs.advance()
    finally:
        theirs.close()
    expected = state(ours)
    for name, t in state(theirs).items():
        assert torch.allclose(t, expected[name], rtol=0, atol=1e-10), name


def test_a_second_start_on_a_state_directory_is_refused_by_the_process_that_holds_it(sites):
    site = sites[0]
    code, said = Process(site.state, *site.arguments).end()
    assert code == 2
    assert f"is in use by the process with the id {site.process.pid}" in said
    assert site.ask(Call("hello")).kind == "hello"


def test_sites_stop_by_a_signal_after_the_call_under_way(sites, federation):
    """This is the last test: SIGTERM and SIGINT, exit code 0, no socket left behind."""
    plan = plan_of("ditto", {"steps": 400}, batch=50)
    session = session_of(plan, federation, run=400)
    told = enrol(sites, plan, array_form(federation), session)
    round = session.server.open()
    replies = {}

    def work(n: int) -> None:
        order = calls.order_call(request_for(round.order, told[n]))
        replies[n] = sites[n].ask(order)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    codes = []
    for n, number in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM)):
        code, said = sites[n].stop(number)
        codes.append(code)
        assert "has stopped" in said
        assert not Path(sites[n].socket).exists()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0]
    assert [replies[n].kind for n in range(3)] == ["sent"] * 3
