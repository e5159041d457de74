"""Messages that are asked for again have other noise, and count again; gradients do too."""

import pytest
import torch

import idiolect as il
from engine.loopback import Loopback, remote_rounds
from engine.setting import CLIENTS, session
from helpers import classification, linear
from idiolect.host.service import Service

DATA = classification(sizes=(20,) * 6)


def rounds(privacy: str, lost: int, **settings):
    """An engine whose host does not answer to this many frames of the second round."""
    at = session("fedavg", privacy=privacy, sample=4, **settings)
    left = [lost]

    def lose(host: int, frame: bytes) -> bool:
        if at.server.version == 1 and b"update" in frame[:200] and left[0]:
            left[0] -= 1
            return True
        return False

    hosts = at.local_hosts
    carrier = Loopback([Service(host) for host in hosts], lose)
    return remote_rounds(at.server, hosts, carrier), at.server


@pytest.mark.parametrize(
    "privacy, source, again",
    [
        ("local(noise=1)", "secret", 1),
        ("local(noise=1)", "seed", 0),  # the very same bytes
        ("central(noise=1)", "secret", 0),  # the server sees them anyway
    ],
)
def test_a_message_that_is_asked_for_twice_is_spent_twice(privacy, source, again):
    engine, server = rounds(privacy, lost=1, noise_source=source)
    for _ in range(3):
        engine.advance()
    assert int(server.privacy.exposures.sum()) == 4 * (3 + again)
    assert server.privacy.begun == 3 + again
    assert server.ledger.admitted == 4 * 3


def test_it_is_not_asked_for_again_where_that_would_pass_the_budget():
    engine, server = rounds("local(noise=2)", lost=1, noise_source="secret", epsilon=4.2)
    for _ in range(2):
        engine.advance()
    spent = server.privacy.exposures.clone()
    assert server.privacy.worst() <= 4.2
    assert int(spent.max()) <= 3


def test_the_log_has_a_line_for_it():
    engine, server = rounds("local(noise=1)", lost=2, noise_source="secret")
    lines: list[int] = []
    server.privacy.log = lines.append
    for _ in range(3):
        engine.advance()
    assert lines == [0, 1, 1, 1, 2]


# -- gradients -------------------------------------------------------------------------------------
def samples(**settings):
    usual = {"rounds": 4, "batch": 5, "batching": "poisson", "sample": 2, "eval_every": 0}
    usual |= {"privacy": "samples(noise=1)", "noise_source": "seed"}
    return il.run(il.FedProxSoft(steps=3), linear(), DATA, **{**usual, **settings})


def account(**settings):
    method, data = settings.pop("method", "fedprox-soft"), DATA
    usual = {"privacy": "samples(noise=1)", "batching": "poisson", "batch": 5, "sample": 2}
    from idiolect.core.knobs import build
    from idiolect.methods import make_method
    from idiolect.run.prepare import prepare
    from idiolect.run.session import Session
    from idiolect.run.settings import Settings

    parts = prepare(make_method(method, steps=3), linear(), data, build(Settings, usual, "run"))
    return Session(parts, 0, 1)


def test_gradients_of_rounds_that_were_killed_count_for_whom_they_were_asked():
    at = account()
    server = at.server
    heard = [server._sampled(k) for k in range(3)]
    server.count_killed([0, 1, 2])
    at.advance()  # round 0 again: three gradients of each of its clients
    expected = torch.zeros(CLIENTS, dtype=torch.int64)
    for ids in (*heard, heard[0]):
        expected[ids] += 3
    assert server.privacy.exposures.tolist() == expected.tolist()


def test_gradients_of_killed_rounds_count_where_no_round_follows():
    at = account()
    at.advance()
    before = at.server.privacy.exposures.clone()
    tensors, facts = at.server.save()
    again = account()
    again.server.load(tensors, facts)
    again.server.count_killed([1])
    more = again.server.privacy.save()[0]["exposures"] - before
    assert more[again.server._sampled(1)].tolist() == [3, 3] and int(more.sum()) == 6
    assert again.server.privacy.worst() > at.server.privacy.worst()


def test_gradients_of_clients_that_did_not_report_count_as_the_most_that_any_did():
    at = account()
    at.advance()
    server = at.server
    current = server.open()
    silent = current.order.heard
    before = server.privacy.exposures.clone()
    server.close(current)
    assert (server.privacy.exposures - before)[silent].tolist() == [3, 3]


def test_a_stopped_run_goes_on_with_the_plan_that_it_began_with(tmp_path):
    def stop(moment) -> None:
        if moment.round == 2:
            raise RuntimeError("enough")

    settings = {"privacy": "samples", "epsilon": 2.0, "eval_every": 1}
    whole = samples(**settings)
    with pytest.raises(RuntimeError, match="enough"):
        samples(**settings, directory=tmp_path / "run", checkpoint_every=1, on_round=stop)
    again = samples(**settings, directory=tmp_path / "run", checkpoint_every=1, resume=True)
    assert again.seeds[0].history == whole.seeds[0].history
    assert again.seeds[0].privacy["noise"] == whole.seeds[0].privacy["noise"]
    assert again.seeds[0].stopped == whole.seeds[0].stopped == "rounds"
