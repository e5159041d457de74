"""A site's calls in their order, over restarts, and what it refuses."""

import re
from importlib.metadata import version

import pandas as pd
import pytest
import torch

from deploy.site.common import OPTIONS, form, server_for, synthetic, table, with_table
from deploy.sites import RUN, agreement, array_form, in_process, plan_of, session_of
from helpers import rewrite
from host.replay import digest
from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.wire.messages import DownMessage


@pytest.fixture(scope="module")
def federation():
    return data.load("synthetic", **OPTIONS)


def test_hello_says_who_is_there(tmp_path):
    at = synthetic(tmp_path / "s")
    facts = at.ask(Call("hello")).facts
    assert facts == {"idiolect": facts["idiolect"], "site": "north", "run": None, "concluded": -1}
    _, engine = server_for(at)
    engine.advance()
    facts = at.ask(Call("hello")).facts
    assert facts["run"] == RUN and facts["concluded"] == 0


def test_the_census_names_clients_and_counts_their_samples(tmp_path, federation):
    at = synthetic(tmp_path / "s", client_names="numbered")
    reply = at.ask(agreement(plan_of("fedavg"), array_form(federation)))
    clients = reply.facts["clients"]
    assert [c["id"] for c in clients] == ["north/1", "north/2", "north/3", "north/4"]
    assert [c["train"] for c in clients] == federation.sizes("train").tolist()
    assert reply.facts["inputs"] == [["torch.float32", [60]]] and reply.facts["classes"] == 10


def test_one_client_has_the_name_of_its_site(tmp_path):
    at = with_table(tmp_path / "s", table())
    census = at.ask(agreement(plan_of("fedavg"), form()))
    assert [c["id"] for c in census.facts["clients"]] == ["north"]
    assert census.facts["inputs"] == [["torch.float32", [2]]] and census.facts["classes"] == 2


def test_a_client_with_too_few_samples_is_left_out_and_the_others_keep_their_numbers(tmp_path):
    frame = table(60)
    few = frame.assign(ward="attic")[:5]
    at = with_table(tmp_path / "s", pd.concat([few, frame]), client="ward")
    clients = at.ask(agreement(plan_of("fedavg"), form())).facts["clients"]
    assert [c["id"] for c in clients] == ["north/2", "north/3", "north/4"]


def test_calls_out_of_order_are_refused(tmp_path, federation):
    at = synthetic(tmp_path / "s")
    enrolment = {"wire_ids": [0, 1, 2, 3], "checksum": 0, "validation": True}
    assert "agree comes first" in at.refusal(Call("enrol", enrolment))
    order = calls.evaluate_call("evaluate", 0, DownMessage(b""), torch.arange(4), ("test",))
    assert "agree comes first" in at.refusal(order)
    at.ask(agreement(plan_of("fedavg"), array_form(federation)))
    assert "enrol comes first" in at.refusal(order)


@pytest.mark.parametrize("kind", ["save", "load", "begin", "arrived", "release"])
def test_calls_of_an_engines_own_hands_are_not_for_outsiders(tmp_path, kind):
    at = synthetic(tmp_path / "s")
    server_for(at)
    folder = tmp_path / "elsewhere"
    assert "internal call, refused from the network" in at.refusal(
        Call(kind, {"folder": str(folder)})
    )
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["", "eval", "x" * 500])
def test_anything_else_is_refused(tmp_path, kind):
    assert "unknown call" in synthetic(tmp_path / "s").refusal(Call(kind))


def test_bytes_that_are_no_frame_get_one_line_that_tells_nothing(tmp_path):
    at = synthetic(tmp_path / "s")
    for frame in (b"", b"secret value 17", bytes(100)):
        reply = Call.open(at.site.handle(frame))
        assert reply.kind == "failed"
        assert reply.facts == {"text": "ValueError at this site in ''"}


# -- what is agreed --------------------------------------------------------------------------------
def changed(federation, **changes) -> Call:
    call = agreement(plan_of("fedavg"), array_form(federation))
    for place, value in changes.items():
        first, _, then = place.partition("__")
        if then:
            call.facts[first] = {**call.facts[first], then: value}
        else:
            call.facts[first] = value
    return call


REFUSED = {
    "another shape": ({"data__inputs": ["torch.float32", [61]]}, r"\[60\].* is agreed"),
    "another number of classes": ({"data__classes": 3}, "10 classes at this site; 3 are agreed"),
    "a table": ({"data": form()}, "this site has no table"),
    "a run of 33 bits": ({"run": 2**32}, "32 bits"),
    "no seed": ({"seed": "zero"}, "seed must be a whole number, got a text"),
    "another kind": ({"data__kind": "pictures"}, "one of table, array"),
    "an unknown method": ({"plan__method": "fedavgg"}, "fedavgg"),
    "an unknown model": ({"plan__model": "lenett"}, "lenett"),
    "an unknown setting": ({"plan__settings": {"batches": 3}}, "batches"),
    "data": ({"plan__data": "synthetic"}, "cannot say which data"),
    "options of data": ({"plan__data_options": {"path": "/etc/passwd"}}, "cannot say which data"),
    "weights": ({"plan__task_options": {"weights": "/etc/passwd"}}, "cannot name a file"),
    "a file of weights": (
        {"plan__settings": {"client_weights": "/etc/passwd"}},
        "client_weights: a message cannot name a file",
    ),
    "a file of delays": ({"plan__settings": {"delays": 'trace(path="/etc/passwd")'}}, "delays"),
    "an attack": ({"plan__settings": {"attack": "gaussian"}}, "attack"),
    "arrivals": ({"plan__settings": {"timing": "arrivals"}}, "synchronous"),
    "code as a method": ({"plan__method": "os:system"}, "has not allowed it"),
    "code as a model": ({"plan__model": "subprocess:Popen"}, "has not allowed it"),
    "code as a channel": ({"plan__settings": {"channel": "os:system"}}, "has not allowed it"),
    "code as a rule": ({"plan__settings": {"rule": "os:system"}}, "has not allowed it"),
    "code as a selection": (
        {"plan__settings": {"selection": "os:system"}},
        "has not allowed it",
    ),
    "several exchanges": ({"plan__method": "feddane"}, "one exchange of messages per round"),
    "code as a metric": ({"plan__settings": {"metrics": "os:system"}}, "has not allowed it"),
    "a metric": ({"plan__settings": {"metrics": "auc"}}, "auc is to be counted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_agreement_that_does_not_fit_is_refused_by_name(tmp_path, federation, name):
    changes, reason = REFUSED[name]
    at = synthetic(tmp_path / "s")
    assert re.search(reason, at.refusal(changed(federation, **changes)))
    assert at.site.agreed is None and at.site.folder.runs() == []


def test_code_that_the_owner_allows_is_found(tmp_path, federation, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def small(inputs, outputs):\n    return nn.Linear(inputs[0], outputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    call = changed(federation, plan__model="own_models:small")
    at = synthetic(tmp_path / "s")
    assert "has not allowed it" in at.refusal(call)
    at.restarted(allow_code="own_models:small")
    assert at.ask(call).kind == "census"


def test_an_agreement_says_all_there_is_and_no_more(tmp_path, federation):
    at = synthetic(tmp_path / "s")
    call = changed(federation)
    for name in ("plan", "run", "seed", "data"):
        facts = {n: v for n, v in call.facts.items() if n != name}
        assert f"'{name}' is missing" in at.refusal(Call("agree", facts))
    assert "'code' is not expected" in at.refusal(Call("agree", {**call.facts, "code": "x"}))
    assert "no tensors" in at.refusal(Call("agree", call.facts, {"x": torch.zeros(1)}))


def test_terms_may_change_until_clients_are_enrolled_and_not_after(tmp_path, federation):
    at = synthetic(tmp_path / "s")
    at.ask(changed(federation, plan__method="fedprox"))
    server_for(at, plan_of("fedavg"))
    reason = at.refusal(agreement(plan_of("scaffold"), array_form(federation)))
    assert "was agreed with other terms" in reason
    assert at.ask(agreement(plan_of("fedavg"), array_form(federation))).kind == "census"


@pytest.mark.parametrize(
    "facts, reason",
    [
        ({"wire_ids": [0, 1, 2]}, "must be 4, one per client, got 3"),
        ({"wire_ids": [3, 2, 1, 0]}, "increasing whole numbers"),
        ({"wire_ids": [-1, 0, 1, 2]}, "32 bits"),
        ({"wire_ids": [0, 1, 2, 2**40]}, "32 bits"),
        ({"checksum": 1}, "version, method, model or settings differ"),
        ({"validation": 1}, "validation must be true or false, got a whole number"),
    ],
)
def test_an_enrolment_that_does_not_fit_is_refused(tmp_path, federation, facts, reason):
    at = synthetic(tmp_path / "s")
    plan = plan_of("ditto")
    at.ask(agreement(plan, array_form(federation)))
    checksum = session_of(plan, federation).contract.checksum
    sound = {"wire_ids": [0, 1, 2, 3], "checksum": checksum, "validation": True}
    assert reason in at.refusal(Call("enrol", {**sound, **facts}))
    assert at.site.service is None
    assert at.ask(Call("enrol", sound)).facts == {"concluded": -1, "written": -1}
    assert "enrolled otherwise" in at.refusal(Call("enrol", {**sound, "wire_ids": [1, 2, 3, 4]}))


# -- restarts --------------------------------------------------------------------------------------
def test_a_site_goes_on_after_a_restart_with_its_rows(tmp_path, federation):
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at)
    ours = in_process(session_of(plan_of("ditto"), federation))
    for _ in range(3):
        ours.advance()
        engine.advance()
        before = digest(at.site.service.host)
        at.restarted()
        assert digest(at.site.service.host) == before
        assert at.ask(Call("status")).facts == {
            "concluded": engine.rounds - 1,
            "written": engine.rounds - 1,
        }
    for name, t in engine.server.state.items():
        assert torch.equal(t, ours.server.state[name])
    assert any("resumed run 0000004d after 3 rounds" in line for line in at.told)


def test_a_restart_with_another_minimum_keeps_those_who_take_part(tmp_path):
    at = synthetic(tmp_path / "s")
    server_for(at)
    at.restarted(min_samples=10_000)
    assert at.site.service is not None and at.site.agreed.federation.clients == 4


def test_a_new_run_has_rows_of_its_own_and_the_old_ones_stay(tmp_path):
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at, run=1)
    engine.advance()
    engine.advance()
    first = digest(at.site.service.host)
    server_for(at, plan_of("fedavg"), run=2)
    assert at.ask(Call("hello")).facts["concluded"] == -1
    assert at.site.folder.runs() == [1, 2] and at.site.folder.current() == 2
    server_for(at, run=1)  # and back
    assert at.ask(Call("hello")).facts["concluded"] == 1
    assert digest(at.site.service.host) == first


def test_an_agreement_on_disk_that_was_changed_is_not_gone_on_with(tmp_path):
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at)
    engine.advance()
    file = at.path / "run-0000004d" / "agreement.json"
    rewrite(file, lambda facts: facts["plan"]["settings"].update(batch=9))
    with pytest.raises(SettingError, match=r"agreement\.json is not as it was written"):
        at.restarted()


def test_damaged_rows_are_not_started_anew(tmp_path):
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at)
    engine.advance()
    rows = at.path / "run-0000004d" / "rows"
    (rows / "round-000000000001.safetensors").write_bytes(b"")
    at.restarted()
    assert at.site.service is None
    assert any("round-000000000001.safetensors" in line for line in at.told)
    assert at.ask(Call("hello")).facts["run"] is None


# -- rounds ----------------------------------------------------------------------------------------
def test_a_message_that_comes_twice_is_answered_once(tmp_path):
    at = synthetic(tmp_path / "s")
    session, _ = server_for(at)
    frame = calls.order_call(session.server.open().order).pack()
    replies = {at.site.handle(frame) for _ in range(3)}
    assert len(replies) == 1 and at.site.usage.rounds == 1
    numbers = at.site.usage.numbers
    at.restarted()
    assert at.site.handle(frame) in replies
    assert (at.site.usage.rounds, at.site.usage.numbers) == (1, numbers)


def test_an_error_inside_tells_nothing_of_the_data(tmp_path, monkeypatch):
    at = synthetic(tmp_path / "s")
    session, _ = server_for(at)

    def broken(order):
        raise RuntimeError("row 17 holds John Smith, 42")

    monkeypatch.setattr(at.site.service.host, "update", broken)
    reply = at.ask(calls.order_call(session.server.open().order))
    assert reply.kind == "failed" and reply.facts == {
        "text": "RuntimeError at this site in 'update'"
    }
    assert any("John Smith" in line for line in at.told)  # the owner may know
    assert "John Smith" not in (at.path / "messages.csv").read_text()


def test_an_order_of_another_contract_changes_nothing(tmp_path):
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at)
    engine.advance()
    before = digest(at.site.service.host)
    other = session_of(plan_of("ditto", batch=9), at.owned.loaded)
    assert at.ask(calls.order_call(other.server.open(1).order)).kind == "failed"
    assert digest(at.site.service.host) == before
    assert at.ask(Call("status")).facts == {"concluded": 0, "written": 0}


def test_a_channel_with_a_second_exchange_works_over_a_site(tmp_path, federation):
    plan = plan_of("fedavg", channel="sketch(columns=5, rows=3, k=2, exact=True)")
    at = synthetic(tmp_path / "s")
    _, engine = server_for(at, plan)
    ours = in_process(session_of(plan, federation))
    for _ in range(2):
        ours.advance()
        engine.advance()
    assert torch.equal(engine.server.state["w"], ours.server.state["w"])
    asked = [r for r in at.log() if r["kind"] == "answer" and r["direction"] == "out"]
    assert asked and all(int(r["numbers"]) > 0 for r in asked)


def test_a_server_of_another_version_is_refused_by_name(tmp_path):
    at = synthetic(tmp_path / "s")
    call = agreement(plan_of("ditto"), array_form(at.site.owned.loaded))
    ours = version("idiolect")
    said = at.refusal(Call("agree", {**call.facts, "idiolect": "99.1"}))
    assert f"version: the server has idiolect 99.1, this site {ours}" in said
    assert at.ask(Call("agree", {**call.facts, "idiolect": ours})).kind == "census"
