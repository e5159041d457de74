"""What a site makes of an agreement is what the server makes of its own plan."""

import pytest

from deploy.sites import RUN, array_form, plan_of, session_of
from idiolect import data
from idiolect.deploy.site.agreement import Agreement, Builder

SETTINGS = [
    {},
    {"channel": "feedback + qsgd(levels=16)", "weight_decay": 0.01, "clip": 1.0},
    {"optimizer": "adam", "optimizer_state": "private"},
    {"optimizer": "sgd", "optimizer_options": "momentum=0.9", "lr_scale": "*.bias=0.1"},
    {"dtype": "float32", "batching": "epochs", "finetune_steps": 3, "server_optimizer": "adam"},
    {"schedule": "cosine", "rule": "median"},
]


@pytest.fixture(scope="module")
def federation():
    return data.load("synthetic", clients=3, samples=40, features=8, classes=3)


CASES = [(method, given) for method in ("ditto", "fedavg") for given in SETTINGS]
FIXED_STEPS = ("lp-proj", "scaffold")  # they take no optimiser
CASES += [(method, s) for method in FIXED_STEPS for s in SETTINGS if "optimizer" not in s]


@pytest.mark.parametrize("method, settings", CASES)
def test_both_sides_come_to_the_same_contract(federation, method, settings):
    plan = plan_of(method, **settings)
    session = session_of(plan, federation)
    agreement = Agreement(plan.as_dict(), RUN, 0, array_form(federation))
    made, host_settings, _ = Builder()(agreement, federation, ())
    assert made.checksum == session.contract.checksum
    assert made.up == session.contract.up and made.down == session.contract.down
    theirs = session.hosts[0].settings
    for name in ("batch", "batching", "finetune_steps", "finetune_lr", "metrics"):
        assert getattr(host_settings, name) == getattr(theirs, name), name
    assert (host_settings.optimizer is None) == (theirs.optimizer is None)
    assert host_settings.repeats  # a server may be restarted


def test_another_seed_is_another_contract(federation):
    plan = plan_of("ditto")
    facts = {"plan": plan.as_dict(), "run": RUN, "data": array_form(federation)}
    sums = {
        Builder()(Agreement(**{**facts, "seed": s}), federation, ())[0].checksum for s in (0, 1)
    }
    assert len(sums) == 2
