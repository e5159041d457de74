"""The owner's rules: what may leave, how much, and that a refusal changes nothing."""

import math

import pandas as pd
import pytest
import torch

from deploy.consents import consent_to
from deploy.site.common import OPTIONS, form, server_for, synthetic, table, with_table
from deploy.sites import agreement, array_form, plan_of
from host.replay import digest
from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.deploy.site.data import UNFIT
from idiolect.deploy.site.rules import Rules
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.wire import messages as wire

EVERYONE = torch.arange(4)


@pytest.fixture(scope="module")
def federation():
    return data.load("synthetic", **OPTIONS)


def order(session, version=None) -> Call:
    return calls.order_call(session.server.open(version).order)


def scores(at, session, metrics=()):
    down = session.server.message(0)
    call = calls.evaluate_call("evaluate", 0, down, EVERYONE, ("test", "train"))
    return calls.read_scores(at.ask(call), EVERYONE, metrics)


def test_rounds_are_capped_over_restarts_and_a_refused_one_changes_nothing(tmp_path):
    at = synthetic(tmp_path / "s", max_rounds=2)
    session, engine = server_for(at)
    engine.advance()
    at.restarted()
    engine.advance()
    before = digest(at.site.service.host)
    for _ in range(2):
        reason = at.refusal(order(session))
        assert "max_rounds: this site's owner allows 2 rounds" in reason
        at.restarted()
    assert digest(at.site.service.host) == before
    at.restarted(max_rounds=3)
    assert at.ask(order(session)).kind == "sent"


def test_a_site_without_rounds_left_agrees_to_no_more_of_them(tmp_path):
    at = synthetic(tmp_path / "s", max_rounds=1)
    session, engine = server_for(at)
    engine.advance()
    call = agreement(plan_of("ditto"), array_form(at.owned.loaded))
    assert at.ask(call).kind == "census"  # what came back last may have been lost
    reason = at.refusal(order(session))
    at.ask(Call("hello"))  # as a server does before it asks again
    assert at.refusal(call) == reason
    at.restarted(max_rounds=2)
    consent_to(at.path, plan_of("ditto"), array_form(at.owned.loaded))
    assert at.ask(call).kind == "census"


def test_numbers_are_capped_over_restarts_and_a_refused_round_leaves_the_rows(tmp_path):
    at = synthetic(tmp_path / "s")
    session, engine = server_for(at)
    before_rounds = at.site.usage.numbers
    engine.advance()
    per_round = at.site.usage.numbers - before_rounds
    assert per_round == 4 * session.contract.up.values
    at.restarted(max_numbers=at.site.usage.numbers + per_round - 1)
    rows = digest(at.site.service.host)
    assert "max_numbers" in at.refusal(order(session))
    assert digest(at.site.service.host) == rows
    at.restarted(max_numbers=at.site.usage.numbers + per_round)
    engine.advance()
    assert "max_numbers" in at.refusal(order(session))


def test_a_reply_that_is_too_large_does_not_leave(tmp_path):
    at = synthetic(tmp_path / "s", max_message=0.015)
    session, _ = server_for(at)
    rows = digest(at.site.service.host)
    assert "max_message" in at.refusal(order(session))
    assert digest(at.site.service.host) == rows


def test_accuracy_and_loss_may_leave_unless_the_owner_says_otherwise(tmp_path):
    at = synthetic(tmp_path / "s")
    session, _ = server_for(at)
    found = scores(at, session)
    assert not found["test"].hits.isnan().any() and not found["test"].loss.isnan().any()
    at.restarted(metrics="loss")
    found = scores(at, session)
    assert found["test"].hits.isnan().all() and not found["test"].loss.isnan().any()
    assert at.site.usage.metrics == {"accuracy": 1, "loss": 2}
    at.restarted(metrics="")
    call = calls.evaluate_call("evaluate", 0, session.server.message(0), EVERYONE, ("test",))
    assert "no figures of evaluations" in at.refusal(call)


def test_a_figure_of_few_samples_does_not_leave(tmp_path, federation):
    tests = federation.sizes("test")
    at = synthetic(tmp_path / "s", min_samples=int(tests.max()))
    session, _ = server_for(at)
    assert (scores(at, session)["test"].samples == tests).all()  # just enough
    least = int(tests.max()) + 1
    assert int(federation.sizes("train").min()) >= least
    at.restarted(min_samples=least)
    found = scores(at, session)
    assert not found["test"].samples.any()
    assert not found["test"].hits.any() and not found["test"].loss.any()
    assert (found["train"].samples == federation.sizes("train")).all()


def test_metrics_beyond_accuracy_and_loss_are_allowed_by_name(tmp_path, federation):
    plan = plan_of("ditto", metrics="auc,f1")
    at = synthetic(tmp_path / "s", metrics="accuracy,auc")
    reason = at.refusal(agreement(plan, array_form(federation)))
    assert reason == "metrics: f1 is to be counted; this site's owner allows accuracy, auc"
    at.restarted(metrics="accuracy,auc,f1")
    session, _ = server_for(at, plan)
    found = scores(at, session, session.metrics)
    assert found["test"].metrics["auc"].rows.shape[0] == 4
    assert set(at.site.usage.metrics) == {"accuracy", "auc", "f1"}


def test_metrics_of_few_samples_do_not_leave(tmp_path, federation):
    plan = plan_of("ditto", metrics="auc,f1")
    at = synthetic(tmp_path / "s", metrics="accuracy,loss,auc,f1")
    session, _ = server_for(at, plan)
    whole = scores(at, session, session.metrics)["test"]
    at.restarted(min_samples=int(federation.sizes("test").max()) + 1)
    found = scores(at, session, session.metrics)["test"]
    for name, measured in found.metrics.items():
        assert whole.metrics[name].counts.any() or whole.metrics[name].rows.any()
        assert not measured.counts.any()
        assert not measured.rows.nan_to_num(0.0).any()


@pytest.mark.parametrize("metrics", ["f1", "auc", "auc,f1", "rmse,r2"])
def test_metrics_of_clients_with_few_samples_stay_while_those_of_others_leave(tmp_path, metrics):
    """Two wards of forty test samples, one of four: its figures, and all that is pooled, stay."""
    sizes = {"er": 40, "icu": 4, "surgery": 40}
    frame = pd.concat(
        [table(200, seed=k).assign(ward=w)[: 60 + n] for k, (w, n) in enumerate(sizes.items())]
    )
    frame["part"] = [p for n in sizes.values() for p in ["train"] * 60 + ["test"] * n]
    rules = {"metrics": f"accuracy,loss,{metrics}", "min_samples": 10}
    at = with_table(tmp_path / "s", frame, rules, client="ward", split="part")
    plan = plan_of("fedavg", metrics=metrics)
    values = {"features": ["age"], "classes": [], "target": "bp"} if "rmse" in metrics else {}
    assert at.ask(agreement(plan, form(**values))).kind == "census"
    contract, ids = at.site.agreed.contract, torch.arange(3)
    facts = {"wire_ids": ids.tolist(), "checksum": contract.checksum, "validation": True}
    at.ask(Call("enrol", facts))
    w = torch.arange(contract.task.d, dtype=torch.float64)
    down = wire.DownMessage(wire.pack_down({"w": w - 3}, 77, 0, contract.checksum))
    reply = at.ask(calls.evaluate_call("evaluate", 0, down, ids, ("test",)))
    figures = calls.read_scores(reply, ids, at.site.agreed.settings.metrics)["test"]
    assert figures.samples.tolist() == [40, 0, 40] and figures.loss[1] == 0
    assert set(figures.metrics) == set(metrics.split(","))
    whole = at.site.service.host.evaluate(0, down, ids, ("test",))["test"]
    for name, measured in figures.metrics.items():
        assert whole.metrics[name].rows[1].abs().sum() > 0  # there is something to withhold
        if measured.rows.numel():
            assert not measured.rows[1].nan_to_num(0.0).any(), name
        assert not measured.counts.any(), name  # of all clients together


def test_sums_of_columns_leave_only_if_allowed_and_of_enough_rows(tmp_path):
    call = Call(
        "sums", {"pass": 1, "data": {"target": "ill", "features": ["age"]}, "missing": "refuse"}
    )
    at = with_table(tmp_path / "s", table())
    assert at.ask(call).kind == "sums"
    assert "counts and sums of 1 column" in at.log()[-1]["content"]
    at.restarted(min_samples=1000)
    assert at.refusal(call) == UNFIT and "min_samples" in at.told[-1]
    at.restarted(sums=False, min_samples=1)
    assert "lets no sums of columns leave" in at.refusal(call)


def test_a_site_without_enough_samples_takes_no_part(tmp_path):
    at = with_table(tmp_path / "s", table(40), rules={"min_samples": 100})
    assert at.refusal(agreement(plan_of("fedavg"), form())) == UNFIT
    assert "no client has 100 training samples" in at.told[-1]


@pytest.mark.parametrize(
    "given", [{"min_samples": 0}, {"max_rounds": -1}, {"max_message": 0}, {"client_names": "all"}]
)
def test_rules_that_are_none_are_refused_by_name(given):
    (name,) = given
    with pytest.raises(SettingError, match=name):
        Rules(**given)


def test_rules_are_plain_data_and_back():
    rules = Rules(metrics="auc, loss", allow_code="mine:Model", max_numbers=7)
    assert Rules(**rules.as_dict()) == rules
    assert rules.metrics == ("auc", "loss") and math.isclose(rules.max_message, 256)
