"""A client whose message did not count is as one that was not selected."""

import pytest
import torch

from engine.loopback import local_rounds
from engine.setting import (
    CLIENTS,
    EXACT,
    Network,
    balanced,
    contract,
    host,
    of_hosts,
    of_server,
    server,
)
from helpers import ONE_EXCHANGE
from idiolect.methods import make_method
from idiolect.server.server import Server

ROUNDS = 6
FAULTY = 2  # the round in which one client is not heard
EVERYONE = torch.arange(CLIENTS)
STATEFUL = "feedback + lbgm(threshold=0.9) + half"


class Passing(Server):
    """A server that does not select some of the clients in one round."""

    passed_over: torch.Tensor = EVERYONE[:0]

    def _sampled(self, version: int) -> torch.Tensor:
        chosen = super()._sampled(version)
        return chosen[~torch.isin(chosen, self.passed_over)] if version == FAULTY else chosen


def spoilt(message: bytes) -> bytes:
    """A body of NaN, in single and in half precision."""
    return message[:24] + b"\xff" * (len(message) - 24)


def run(agreed, *, faults: int, how: str, sample: int, repeats: bool = False):
    """Six rounds; in one of them the last clients heard are not selected, or not understood."""
    at = server(agreed, sample=sample)
    at.__class__ = Passing
    affected = at._sampled(FAULTY)[-faults:]
    if how == "not selected":
        at.passed_over = affected

    def tamper(version: int, messages: list[bytes]) -> list[bytes]:
        if version != FAULTY or how == "not selected":
            return messages
        kept, gone = messages[:-faults], messages[-faults:]
        return [*kept, *map(spoilt, gone)] if how == "not finite" else kept

    behind = Network(host(agreed, EVERYONE, repeats=repeats), tamper)
    engine = local_rounds(at, [behind])
    for _ in range(ROUNDS):
        engine.advance()
        balanced(engine)
    return engine, affected


def everything(engine) -> dict[str, torch.Tensor]:
    return of_server(engine.server) | of_hosts(engine.hosts)


def assert_same(one, other) -> None:
    """Bit for bit; with messages to single clients up to rounding, by who else trains (float32)."""
    a, b = everything(one), everything(other)
    assert a.keys() == b.keys()
    most = 1e-6 if one.server.contract.addresses else 0.0
    for name, t in a.items():
        torch.testing.assert_close(t, b[name], rtol=0.0, atol=most, msg=name)


@pytest.mark.parametrize("name", ONE_EXCHANGE)
def test_a_client_that_is_not_heard_is_as_one_that_was_not_selected(name):
    """For the server, for every private row and for what the channel keeps."""
    method = make_method(name)
    agreed = contract(name)
    sample = CLIENTS if method.traits.hears_all else 4
    absent, affected = run(agreed, faults=1, how="not selected", sample=sample)
    if not agreed.up.parts:
        return  # nothing is sent, nothing can be rejected
    for how in ("not finite", "missing"):
        for repeats in (False, True):
            engine, _ = run(agreed, faults=1, how=how, sample=sample, repeats=repeats)
            ledger = engine.server.ledger
            assert ledger.rejected.total() + ledger.missing.total() == 1
            assert_same(engine, absent)
    if method.traits.trains == "sampled":  # it has computed all the same
        spent = engine.server.ledger.counts["gradients"] - absent.server.ledger.counts["gradients"]
        assert (spent[affected] > 0).all() and int((spent != 0).sum()) == 1


@pytest.mark.parametrize("channel", [STATEFUL, "sketch(columns=5, rows=3, k=4)", EXACT])
@pytest.mark.parametrize("name", ["scaffold", "fedalt", "ditto"])
def test_so_it_is_through_a_channel(name, channel):
    agreed = contract(name, channel)
    absent, _ = run(agreed, faults=2, how="not selected", sample=5)
    for how in ("not finite", "missing"):
        engine, _ = run(agreed, faults=2, how=how, sample=5)
        assert_same(engine, absent)


@pytest.mark.parametrize("name", ONE_EXCHANGE)
def test_a_round_that_does_not_count_leaves_everything_as_it_was(name):
    """Fewer messages than the quorum: nobody is heard."""
    method = make_method(name)
    agreed = contract(name)
    if not agreed.up.parts or method.traits.trains == "everyone":
        return  # rows of everyone are trained in any case
    at = server(agreed, sample=CLIENTS if method.traits.hears_all else 4, quorum=4)
    one = host(agreed, EVERYONE, repeats=False)
    engine = local_rounds(at, [Network(one, lambda version, ms: ms if version != 1 else ms[:3])])
    engine.advance()
    before = everything(engine)
    engine.advance()
    for n, t in before.items():
        assert torch.equal(t, everything(engine)[n]), n
    engine.advance()
    assert any(not torch.equal(t, everything(engine)[n]) for n, t in before.items())


@pytest.mark.parametrize("repeats", [False, True])
def test_the_server_s_control_variate_stays_the_mean_of_the_clients(repeats):
    """SCAFFOLD needs c = mean of c_i: one rejection moved it from 1e-8 to 1e-2."""
    agreed = contract("scaffold")
    engine, _ = run(agreed, faults=1, how="not finite", sample=4, repeats=repeats)
    rows = of_hosts(engine.hosts)["store.c"]
    gap = (engine.server.state["c"] - rows.mean(0)).abs().max()
    assert rows.abs().max() > 0.1 and gap < 1e-6


def test_a_host_of_a_simulation_keeps_nothing_of_a_round_that_is_concluded():
    agreed = contract("scaffold", STATEFUL)
    one = host(agreed, EVERYONE, repeats=False)
    engine = local_rounds(server(agreed), [one])
    engine.advance()
    assert not one.store._before and not one.coder._before


def test_rows_in_files_go_back_too(tmp_path):
    agreed = contract("scaffold")
    both = []
    for memory in (1 << 30, 1):
        one = host(agreed, EVERYONE, repeats=False, memory=memory, chunk=2, scratch=tmp_path)
        lossy = Network(one, lambda version, ms: ms[:-1] if version == 1 else ms)
        engine = local_rounds(server(agreed), [lossy])
        for _ in range(4):
            engine.advance()
        both.append(everything(engine))
        assert one.store.file_backed == (memory == 1)
    for n, t in both[0].items():
        assert torch.allclose(t, both[1][n], rtol=1e-5, atol=1e-6), n
