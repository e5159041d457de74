"""Every run has an id: what was sent in one is worth nothing in another."""

import json
from dataclasses import replace

import pytest
import torch

from engine.setting import FEDERATION, TASK
from idiolect.core.knobs import build
from idiolect.methods import make_method
from idiolect.run.identity import RunIdentity, run_number
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.server.server import Server
from run.robust.common import run

METHOD = make_method("fedprox-soft")
GIVEN = {"batch": 8, "sample": 5, "rounds": 4}
SAME_ID = "5" * 32


def session(id: str | None = SAME_ID, **settings) -> Session:
    chosen = build(Settings, GIVEN | settings, "run")
    identity = RunIdentity.of(METHOD, TASK, FEDERATION, chosen)
    if id:
        identity = replace(identity, id=id)
    parts = prepare(METHOD, TASK, FEDERATION, chosen)
    return Session(parts, 0, run_number(identity.id, 0))


def replayed(here: Session, there: Session) -> Server:
    """What the clients of one run send, given to the server of another, round by round."""
    for _ in range(3):
        orders = [s.server.open() for s in (here, there)]
        (host,) = here.hosts
        sent = host.update(orders[0].order)
        there.server.receive(orders[1], sent.messages, sent.values)
        there.server.close(orders[1])
        here.server.receive(orders[0], sent.messages, sent.values)
        host.conclude(here.server.close(orders[0]))
    return there.server


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 16},
        {"rule": "median"},
        {"schedule": "cosine"},
        {"server_lr": 0.5},
        {"id": None},
    ],
    ids=lambda change: "an id" if "id" in change else next(iter(change)),
)
def test_messages_of_a_run_that_differs_in_one_thing_alone_are_all_rejected(other):
    there = session(**other)
    before = {n: t.clone() for n, t in there.server.state.items()}
    server = replayed(session(), there)
    assert server.ledger.admitted == 0 and server.ledger.selected == 15
    assert server.ledger.refused.keys() <= {"run", "schema"}
    assert sum(server.ledger.refused.values()) == 15
    assert all(torch.equal(t, before[n]) for n, t in server.state.items())


def test_the_same_run_accepts_its_own():
    assert replayed(session(), session()).ledger.admitted == 15


def test_settings_that_may_change_on_resume_are_no_part_of_the_contract():
    one, other = session(), session(threads=1, memory=0.5, checkpoint_every=3, rounds=9)
    assert one.contract.checksum == other.contract.checksum


def test_rounds_are_part_of_the_contract_where_the_schedule_spreads_rates_over_them():
    one, other = session(schedule="cosine"), session(schedule="cosine", rounds=9)
    assert one.contract.checksum != other.contract.checksum


def test_messages_of_another_run_that_is_longer_are_all_rejected():
    """Not by their rounds, which may grow, but by the run's id."""
    server = replayed(session(), session(id=None, rounds=9))
    assert server.ledger.admitted == 0 and server.ledger.refused.keys() <= {"run", "schema"}


def test_the_id_is_random_kept_in_the_directory_and_stays_on_resume(tmp_path):
    ids = set()
    for name in ("a", "b"):
        run("fedavg", directory=tmp_path / name)
        ids.add(json.loads((tmp_path / name / "settings.json").read_text())["id"])
        run("fedavg", directory=tmp_path / name, resume=True)
        ids.add(json.loads((tmp_path / name / "settings.json").read_text())["id"])
    assert len(ids) == 2 and all(len(id) == 32 for id in ids)


def test_seeds_of_a_run_have_numbers_of_their_own():
    numbers = {run_number(id, seed) for id in (SAME_ID, "6" * 32) for seed in range(50)}
    assert len(numbers) == 100 and all(0 <= n < 2**32 for n in numbers)
