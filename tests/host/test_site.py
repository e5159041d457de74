"""Sites as real processes behind sockets: the same results as in one process."""

import pytest
import torch

from host.sites import (
    Process,
    array_form,
    enrol,
    in_process,
    over_sockets,
    plan_of,
    session_of,
    started,
)
from idiolect import data

DATA = ("--data", "synthetic", "--clients", "6", "--samples", "60", "--client-names", "own")
METHODS = ["fedavg", "ditto", "lp-proj", "scaffold", "ffgg"]
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
    plan = plan_of(method)
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
