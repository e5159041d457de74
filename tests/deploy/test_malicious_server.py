"""A server that wants more than it may have: nothing beyond the owner's rules leaves a site."""

import json
import time

import numpy as np
import pandas as pd
import pytest
import torch

from deploy.site.common import At, form, synthetic, table, with_table
from deploy.sites import RUN, agreement, array_form, plan_of
from idiolect.core.knobs import SettingError
from idiolect.data.prepare.federated import combine
from idiolect.deploy.site.data import UNFIT, SiteData
from idiolect.deploy.site.rules import Rules
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.methods import METHODS, make_method
from idiolect.server.protocol import RoundRequest
from idiolect.wire import messages as wire
from idiolect.wire.messages import DownMessage

ALL = torch.arange(4)


class Attacker:
    """A server that needs no session of its own: it knows the contract, and signs what it likes."""

    def __init__(self, at: At, plan=None, run: int = RUN, data: dict | None = None):
        self.at = at
        self.plan = plan or plan_of("fedavg", {"steps": 20, "lr": 0.1}, batch=64, rounds=500)
        self.run = run
        self.data = data or array_form(at.owned.loaded)

    def agree(self) -> Call:
        return self.at.ask(agreement(self.plan, self.data, self.run))

    def enter(self) -> "Attacker":
        """Agree and enrol: the site says the checksum of its own contract."""
        census = self.agree()
        assert census.kind == "census", census.facts
        self.contract = self.at.site.agreed.contract
        self.ids = list(range(len(census.facts["clients"])))
        facts = {"wire_ids": self.ids, "checksum": self.contract.checksum, "validation": True}
        assert self.at.ask(Call("enrol", facts)).kind == "status"
        return self

    def model(self, value: float = 0.0) -> dict:
        blank = self.contract.method.broadcast(
            self.contract.task, self.contract.method.server(self.contract.task)
        )
        return {n: torch.full_like(t, value) for n, t in blank.items()}

    def down(self, version: int, state: dict) -> DownMessage:
        return DownMessage(wire.pack_down(state, self.run, version, self.contract.checksum))

    def order(self, version: int, state: dict | None = None, factors: dict | None = None) -> Call:
        ids = torch.tensor(self.ids)
        down = self.down(version, self.model() if state is None else state)
        return calls.order_call(RoundRequest(version, down, ids, ids, factors or {}))

    def evaluation(self, version: int, state: dict | None = None, kind: str = "evaluate") -> Call:
        down = self.down(version, self.model() if state is None else state)
        return calls.evaluate_call(kind, version, down, torch.tensor(self.ids), ("test",))

    def conclusion(self, version: int) -> Call:
        ids = torch.tensor(self.ids)
        tensors = {"counted": ids, "unheard": ids[:0]}
        return Call("conclude", {"version": version}, tensors)

    def round(self, version: int, state: dict | None = None) -> Call:
        reply = self.at.ask(self.order(version, state))
        self.at.ask(self.conclusion(version))
        return reply


def numbers(at: At) -> int:
    """How many numbers have left in messages and figures."""
    return sum(int(r["numbers"]) for r in at.log() if r["direction"] == "out")


# -- orders ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "factors",
    [
        {"batch": 1 / 64},
        {"steps": 1 / 20},
        {"batch": 1 / 64, "steps": 1 / 20},
        {"rates": 2.0},
        {"lr": 1e9},
        {"steps": 1e12},
        {"nothing": 1.0},
    ],
)
def test_an_order_cannot_change_the_agreed_terms(tmp_path, factors):
    server = Attacker(synthetic(tmp_path / "s")).enter()
    before = numbers(server.at)
    assert "factors must be those of the agreed schedule" in server.at.refusal(
        server.order(0, factors=factors)
    )
    assert numbers(server.at) == before and server.at.site.usage.rounds == 0
    (line,) = [r for r in server.at.log() if r["direction"] == "in" and r["kind"] == "update"]
    assert all(name in line["content"] for name in factors)


def test_the_agreed_schedule_and_no_other_is_followed(tmp_path):
    plan = plan_of("fedavg", batch=16, schedule="lr=step:2:0.5", rounds=10)
    server = Attacker(synthetic(tmp_path / "s"), plan).enter()
    assert server.at.ask(server.order(0, factors={"lr": 1.0})).kind == "sent"
    server.at.ask(server.conclusion(0))
    assert server.at.ask(server.order(3, factors={"lr": 0.5})).kind == "sent"
    assert "lr x 0.5" in server.at.log()[-2]["content"]
    assert "factors must be" in server.at.refusal(server.order(4, factors={"lr": 1.0}))
    assert "factors must be" in server.at.refusal(server.order(4))


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 1},
        {"batch": 7},
        {"batch": 64, "schedule": "batch=exp:0.5"},
        {"batch": 64, "schedule": "batch=inverse:1"},
        {"batch": 10**9},
    ],
)
def test_mini_batches_are_neither_tiny_nor_beyond_memory(tmp_path, settings):
    server = Attacker(synthetic(tmp_path / "s"), plan_of("fedavg", **settings, rounds=100))
    reply = server.agree()
    assert reply.kind == "refused"
    assert reply.facts["reason"].startswith(("min_batch", "memory"))
    assert server.at.site.agreed is None


def test_all_samples_of_a_client_are_batch_enough_and_the_owner_may_allow_smaller_ones(tmp_path):
    full = plan_of("fedavg", batching="full")
    assert Attacker(synthetic(tmp_path / "s"), full).agree().kind == "census"
    tiny = plan_of("fedavg", batch=2)
    assert Attacker(synthetic(tmp_path / "t", min_batch=2), tiny).agree().kind == "census"


def test_repeated_rounds_with_other_models_are_counted(tmp_path):
    server = Attacker(synthetic(tmp_path / "s", max_rounds=5)).enter()
    answers = [server.at.ask(server.order(0, server.model(k / 10))).kind for k in range(8)]
    assert answers == ["sent"] * 5 + ["refused"] * 3
    assert server.at.site.usage.rounds == 5


def test_a_replayed_order_gets_the_reply_it_had(tmp_path):
    server = Attacker(synthetic(tmp_path / "s", max_rounds=2)).enter()
    frame = server.order(0).pack()
    first = server.at.site.handle(frame)
    assert server.at.site.handle(frame) == first and server.at.site.usage.rounds == 1
    server.at.restarted()
    assert server.at.site.handle(frame) == first and server.at.site.usage.rounds == 1


def test_an_order_that_fails_is_counted(tmp_path, monkeypatch):
    """That it fails may depend on the data."""
    server = Attacker(synthetic(tmp_path / "s", max_rounds=3)).enter()

    def broken(order):
        raise ArithmeticError("a value")

    monkeypatch.setattr(server.at.site.service.host, "update", broken)
    kinds = [server.at.ask(server.order(0, server.model(k / 10))).kind for k in range(5)]
    assert kinds == ["failed"] * 3 + ["refused"] * 2


def test_rounds_and_evaluations_have_cautious_caps_by_default():
    rules = Rules()
    assert (rules.max_rounds, rules.most_evaluations, rules.max_questions) == (1000, 2020, 20)
    assert Rules(max_rounds=10).most_evaluations == 40
    assert Rules(max_rounds=0).most_evaluations == 0
    assert Rules(max_evaluations=3).most_evaluations == 3


# -- evaluations -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["evaluate", "evaluate_shared"])
def test_many_evaluations_with_chosen_models_end_at_the_cap(tmp_path, kind):
    at = synthetic(tmp_path / "s", max_evaluations=4)
    server = Attacker(at).enter()
    for k in range(3):
        assert at.ask(server.evaluation(0, server.model(k / 7), kind)).kind == "scores"
    at.restarted()
    assert at.ask(server.evaluation(0, server.model(0.9), kind)).kind == "scores"
    assert "max_evaluations: this site's owner allows 4" in at.refusal(
        server.evaluation(0, server.model(0.95), kind)
    )
    assert at.site.usage.evaluations == 4
    assert at.ask(server.order(0)).kind == "sent"  # training has its own cap


def test_metrics_by_code_are_not_imported(tmp_path):
    plan = plan_of("fedavg", metrics="os:system")
    assert "has not allowed it" in Attacker(synthetic(tmp_path / "s"), plan).agree().facts["reason"]


# -- what is agreed --------------------------------------------------------------------------------
def with_gaps(rows: int = 120) -> pd.DataFrame:
    """One patient has no weight: columns with and without it would be of different rows."""
    frame = table(rows)
    frame["weight"] = np.random.default_rng(1).normal(70, 9, rows).round(1)
    frame.loc[17, "weight"] = np.nan
    return frame


def test_agreements_over_other_columns_are_of_the_same_rows(tmp_path):
    at = with_table(tmp_path / "s", with_gaps(), missing="drop")
    plan = plan_of("fedavg")
    assert at.ask(agreement(plan, form(["age", "bp"]), 1)).kind == "census"
    assert at.refusal(agreement(plan, form(["age", "weight"]), 2)) == UNFIT
    assert "other rows of the table would be used" in at.told[-1] and "17" not in at.told[-1]
    assert at.ask(agreement(plan, form(["bp"]), 3)).kind == "census"  # the same rows
    at.restarted()
    assert at.refusal(agreement(plan, form(["weight"]), 4)) == UNFIT


def test_sums_and_agreements_are_of_the_same_rows(tmp_path):
    at = with_table(tmp_path / "s", with_gaps(), missing="drop")
    data = {"target": "ill", "features": ["age", "weight"]}
    assert at.ask(Call("sums", {"pass": 1, "data": data, "missing": "drop"})).kind == "sums"
    assert at.refusal(agreement(plan_of("fedavg"), form(["age"]))) == UNFIT


def test_a_table_that_has_changed_needs_a_new_directory(tmp_path):
    at = with_table(tmp_path / "s", table(80))
    assert at.ask(agreement(plan_of("fedavg"), form())).kind == "census"
    table(81).to_csv(at.owned.options["path"], index=False)
    at.owned = SiteData("north", "table", at.owned.options)
    at.restarted()
    assert at.site.agreed is None and "begin with a new directory" in at.told[-1]


def test_other_columns_than_the_owner_allows_are_refused(tmp_path):
    at = with_table(tmp_path / "s", table(), features="age", target="ill")
    assert "is no feature" in at.refusal(agreement(plan_of("fedavg"), form(["age", "bp"])))
    assert "owner allows another" in at.refusal(
        agreement(plan_of("fedavg"), form(["age"], ["f", "m"], target="sex"))
    )


def test_a_preparation_cannot_read_cells_its_own_way(tmp_path):
    """Codes for missing values would choose rows by what they hold."""
    at = with_table(tmp_path / "s", table())
    data = {"target": "ill", "features": ["age"]}
    first = at.ask(Call("sums", {"pass": 1, "data": data, "missing": "drop"})).facts["columns"]
    facts = {"pass": 2, "data": data, "missing": "drop", "means": {"age": 60.0}}
    second = at.ask(Call("sums", facts)).facts["columns"]
    prepared = combine(["age"], [first], [second], "drop").as_dict()
    assert at.ask(agreement(plan_of("fedavg"), form(["age"], preparation=prepared))).kind
    prepared["cells"]["missing_codes"] = ["age=60.1"]
    reason = at.refusal(agreement(plan_of("fedavg"), form(["age"], preparation=prepared)))
    assert reason == "preparation: cells must be read as this site's owner says"


@pytest.mark.parametrize("changes", [{"spread": [1e-34]}, {"centre": [1e300]}])
def test_a_preparation_cannot_ask_how_large_a_value_is(tmp_path, changes):
    """A scaled number beyond 32 bits would be refused: a search for the largest value."""
    at = with_table(tmp_path / "s", table())
    column = {"kind": "number", "count": 60, "sum": 3600.0, "missing": False}
    prepared = combine(["age"], [{"age": column}], [{"age": {"squares": 100.0}}]).as_dict()
    assert (
        at.ask(agreement(plan_of("fedavg"), form(["age"], preparation=prepared))).kind == "census"
    )
    asked = len(at.site.usage.questions)
    prepared["columns"][0].update(changes)
    reason = at.refusal(agreement(plan_of("fedavg"), form(["age"], preparation=prepared)))
    assert reason.startswith("preparation: centre and fill must be at most 1e+15")
    assert len(at.site.usage.questions) == asked


def test_refusals_are_no_oracle(tmp_path):
    """A list of classes, or a preparation, asks about values: one text, and few of them."""
    frame = table()
    frame["income"] = np.arange(80) + 1000.25
    at = with_table(tmp_path / "s", frame, rules={"max_questions": 6})
    plan = plan_of("fedavg")
    ages = sorted(set(frame["age"]))
    questions = [form(["bp"], ages[k:], target="age") for k in range(1, 5)]
    questions += [form(["bp", "sex"]), form(["bp"], ["no", "maybe"]), form(["bp"], ["no", "so"])]
    reasons = [at.refusal(agreement(plan, question)) for question in questions]
    assert reasons[:6] == [UNFIT] * 6
    assert reasons[6].startswith("max_questions: this site's owner allows 6")
    assert reasons[0] == at.refusal(agreement(plan, questions[0]))  # the same one again
    at.restarted()
    assert "max_questions" in at.refusal(agreement(plan, questions[6]))
    assert "max_questions" in at.refusal(
        Call("sums", {"pass": 1, "data": {"target": "ill", "features": ["age"]}, "missing": "drop"})
    )


def test_categories_of_few_rows_are_not_named(tmp_path):
    frame = table(60)
    frame["name"] = [f"patient {k}" for k in range(26)] + ["other"] * 34
    frame["town"] = ["north"] * 30 + ["south"] * 28 + ["Smith's farm"] * 2
    at = with_table(tmp_path / "s", frame, valid="0", test="0")
    data = {"target": "ill", "features": ["name", "town"]}
    reply = at.ask(Call("sums", {"pass": 1, "data": data, "missing": "refuse"}))
    columns = reply.facts["columns"]
    assert columns["name"]["categories"] == ["other"]
    assert columns["town"]["categories"] == ["north", "south"]
    assert "patient" not in json.dumps(reply.facts) and "farm" not in json.dumps(reply.facts)
    prepared = combine(["name", "town"], [columns], [{}]).as_dict()
    census = at.ask(agreement(plan_of("fedavg"), form(["name", "town"], preparation=prepared)))
    assert census.facts["inputs"] == [["torch.float32", [3]]]


@pytest.mark.parametrize("column, names", [("name", ["patient 3", "x"]), ("age", [61.5, 1.5])])
def test_guessed_categories_of_few_rows_leave_no_trace_in_messages(tmp_path, column, names):
    """A preparation with names out of a directory, or values: which of them are in the table?"""
    frame = table(80)
    frame["name"] = [f"patient {k}" for k in range(80)]
    frame.loc[7, "age"] = 61.5
    at = with_table(tmp_path / "s", frame, valid="0", test="0")
    guesses = {"kind": "category", "categories": names, "missing": False}
    prepared = combine([column], [{column: guesses}], [{}]).as_dict()
    plan = plan_of("fedavg", {"lr": 0.1}, batching="full")
    server = Attacker(at, plan, data=form([column], preparation=prepared)).enter()
    reply = at.ask(server.order(0))
    up = reply.tensors["matrix"][:, wire.HEADER.itemsize :].contiguous().view(torch.float64)
    weights, bias = up[0, :4].reshape(2, 2), up[0, 4:]  # of a linear model: two classes
    assert not weights.any() and bias.any()
    assert at.site.agreed.federation.preparation.as_dict() == prepared  # for models at the site


def test_a_category_of_enough_rows_is_learnt_from(tmp_path):
    at = with_table(tmp_path / "s", table(80), valid="0", test="0")
    prepared = combine(
        ["sex"], [{"sex": {"kind": "category", "categories": ["f", "m"], "missing": False}}], [{}]
    ).as_dict()
    Attacker(at, plan_of("fedavg"), data=form(["sex"], preparation=prepared)).enter()
    assert at.site.agreed.federation.inputs.sum(1).tolist() == [1.0] * 80


def test_few_missing_values_are_not_mentioned(tmp_path):
    frame = with_gaps()
    at = with_table(tmp_path / "s", frame, valid="0", test="0")
    data = {"target": "ill", "features": ["age", "weight"]}
    reply = at.ask(Call("sums", {"pass": 1, "data": data, "missing": "mean"}))
    assert reply.facts["columns"]["weight"]["missing"] is False


def test_tiny_cohorts_take_no_part(tmp_path):
    at = with_table(tmp_path / "s", table(12))
    assert at.refusal(agreement(plan_of("fedavg"), form())) == UNFIT  # 9 or 10 rows to train


DISCLOSING = {
    "l2gd": {},
    "pfedme": {"alternations": 1},
    "rsa": {},
    "lp-proj": {"p": 2.0, "projection": "identity", "dim": 0},
    "feddeper": {"lam": 1.0},
    "fedala": {"part": "all"},
}


@pytest.mark.parametrize("method", DISCLOSING)
def test_methods_that_send_the_private_model_are_allowed_by_name(tmp_path, method):
    at = synthetic(tmp_path / "s")
    plan = plan_of(method, DISCLOSING[method])
    reason = Attacker(at, plan).agree().facts["reason"]
    assert f"allow_private_rows: {method} as agreed tells the private models" in reason
    at.restarted(allow_private_rows=method)
    assert Attacker(at, plan).agree().kind == "census"


def test_lp_proj_of_as_many_dimensions_as_the_model_has_is_the_private_model(tmp_path):
    at = with_table(tmp_path / "s", table())
    for fields in ({"dim": 6}, {"dim": 4}, {"dim": 0, "projection": "identity"}):
        call = agreement(plan_of("lp-proj", {"p": 2.0, **fields}), form())  # d = 6
        assert "allow_private_rows" in at.refusal(call)
    for fields in ({"dim": 2, "p": 2.0}, {"dim": 6, "p": 1.0}):
        assert at.ask(agreement(plan_of("lp-proj", fields), form())).kind == "census"


@pytest.mark.parametrize("method", ["l2gd", "pfedme", "rsa", "lp-proj", "feddeper"])
def test_what_is_declared_to_be_told_is_told(tmp_path, method):
    """The private model, computed from messages alone."""
    fields = DISCLOSING[method] | ({"server_step": "sum-new"} if method == "rsa" else {})
    at = synthetic(tmp_path / "s", allow_private_rows=method)
    server = Attacker(at, plan_of(method, fields, batch=8)).enter()
    w = server.model(0.0)["w"]
    reply = server.at.ask(server.order(0))
    up = reply.tensors["matrix"][:, wire.HEADER.itemsize :].contiguous().view(torch.float64)
    host = at.site.service.host
    private = next(iter(host.all_rows().values()))
    if method == "feddeper":
        up = up + w
    elif method in ("pfedme", "lp-proj"):
        up = w - (w - up) / 1.0  # ηλ = share / R = 1
    assert torch.allclose(up, private, atol=1e-9)


def test_every_method_says_whether_its_messages_tell_private_models():
    declared = {name for name in METHODS if make_method(name).traits.discloses}
    assert declared == {
        "fedala",
        "fedamp",
        "fedfomo",
        "heurfedamp",
        "l2gd",
        "lp-proj-2",
        "pfedbayes",
        "pfedgraph",
        "pfedme",
        "rsa",
    }


# -- what is stored --------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_message_down_that_is_not_sane_is_refused_before_it_is_stored(tmp_path, value):
    at = synthetic(tmp_path / "s")
    server = Attacker(at, plan_of("ditto")).enter()
    server.round(0)
    before = {p: p.read_bytes() for p in (at.path / "run-0000004d" / "rows").rglob("*.safe*")}
    broken = server.model(0.0)
    broken["w"][3] = value
    for call in (server.order(1, broken), server.evaluation(1, broken)):
        assert "down: numbers of 'w' must be finite" in at.refusal(call)
    after = {p: p.read_bytes() for p in (at.path / "run-0000004d" / "rows").rglob("*.safe*")}
    assert after == before


def test_rows_that_are_not_finite_any_more_are_not_stored(tmp_path):
    at = synthetic(tmp_path / "s")
    server = Attacker(at, plan_of("ditto", {"personal_lr": 1e300, "lam": 1e10})).enter()
    for version in range(3):
        server.round(version, server.model(1e8))
        assert all(t.isfinite().all() for t in at.site.service.host.all_rows().values())
    at.restarted()
    assert all(t.isfinite().all() for t in at.site.service.host.all_rows().values())
    assert any("were not finite, and are not kept" in line for line in at.told)


@pytest.mark.parametrize("version", [0, 1, 2**32 - 1])
def test_a_round_is_concluded_only_after_it_was_begun(tmp_path, version):
    at = synthetic(tmp_path / "s")
    server = Attacker(at).enter()
    assert "version must be that of the round under way" in at.refusal(server.conclusion(version))
    assert at.ask(server.order(0)).kind == "sent"
    if version:
        assert "round under way" in at.refusal(server.conclusion(version))
    assert at.ask(server.conclusion(0)).facts["concluded"] == 0
    assert server.round(1).kind == "sent"


def test_rows_go_back_by_one_round_and_no_further(tmp_path):
    at = synthetic(tmp_path / "s")
    server = Attacker(at, plan_of("ditto")).enter()
    for version in range(3):
        server.round(version)
    assert "no further" in at.refusal(server.order(1))
    assert at.ask(server.order(2, server.model(0.1))).kind == "sent"
    at.restarted()  # taken back, and not concluded again
    assert at.ask(Call("status")).facts["concluded"] == 1


def test_a_thousand_agreements_do_not_lock_a_state_directory(tmp_path):
    at = synthetic(tmp_path / "s")
    first = Attacker(at, run=1).enter()
    first.round(0)
    for run in range(2, 40):
        assert Attacker(at, run=run).agree().kind == "census"
    Attacker(at, run=50).enter()
    assert at.site.folder.runs() == [1, 50]  # those in which nothing happened are gone
    assert len(at.site.usage.questions) == 1  # the same form of the data each time
    assert Attacker(at, run=1).enter().round(1).kind == "sent"
    assert at.site.folder.runs() == [1]


def test_answers_of_a_second_exchange_are_told_once_per_round(tmp_path):
    plan = plan_of("fedavg", channel="sketch(columns=5, rows=3, k=2, exact=True)")
    at = synthetic(tmp_path / "s")
    server = Attacker(at, plan).enter()

    def question(version: int, coordinates: list[int]) -> Call:
        asked = torch.tensor(coordinates, dtype=torch.int32)
        message = wire.pack_down({"query": asked}, RUN, version, server.contract.checksum)
        tensors = {"message": calls.as_tensor(message), "asked": torch.tensor(server.ids)}
        return Call("answer", {"version": version, "part": "w"}, tensors)

    assert "round under way" in at.refusal(question(0, [0, 1]))
    assert at.ask(server.order(0)).kind == "sent"
    assert at.ask(question(0, [0, 1])).kind == "answered"
    assert "told once" in at.refusal(question(0, [2, 3]))


# -- frames ----------------------------------------------------------------------------------------
def test_models_beyond_memory_are_refused_before_they_are_built(tmp_path):
    at = synthetic(tmp_path / "s")
    for options in ({"adapter_rank": 10**8}, {"adapter_rank": 10**12}):
        plan = plan_of("fedavg")
        plan.model_options.update(options)
        begin = time.process_time()
        reason = at.refusal(agreement(plan, array_form(at.owned.loaded)))
        assert reason.startswith("memory: ") and time.process_time() - begin < 2


@pytest.mark.parametrize(
    "method, fields, settings",
    [
        ("lp-proj", {"dim": 10**9}, {}),
        ("lp-proj", {"dim": 10**9, "projection": "sparse"}, {}),
        ("fedavg", {}, {"channel": "sketch(columns=10000000000, rows=3, k=2)"}),
        ("fedavg", {}, {"channel": "sketch(columns=5, rows=10000000000, k=2)"}),
    ],
)
def test_messages_beyond_memory_are_refused_before_they_are_made(
    tmp_path, method, fields, settings
):
    at = synthetic(tmp_path / "s")
    begin = time.process_time()
    reason = at.refusal(agreement(plan_of(method, fields, **settings), array_form(at.owned.loaded)))
    assert reason.startswith("memory: ") and time.process_time() - begin < 2


def test_checks_of_a_large_frame_are_linear(tmp_path):
    at = with_table(tmp_path / "s", table())
    keys = ",".join(f'"k{k}":1' for k in range(50_000)) + ',"k49999":2'
    head = f'{{"kind":"agree","facts":{{{keys}}}}}'.encode()
    frame = calls.MAGIC + len(head).to_bytes(4, "little") + head + Call("x").pack()[-8:]
    features = [f"c{k}" for k in range(50_000)]
    means = dict.fromkeys(features, 0.0)
    data = {"target": "ill", "features": features}
    classes = [f"class {k}" for k in range(40_000)]
    frame_of_sums = Call("sums", {"pass": 2, "data": data, "missing": "drop", "means": means})
    begin = time.process_time()  # of this process: others may be busy
    at.site.handle(frame)
    at.ask(frame_of_sums)
    at.ask(agreement(plan_of("fedavg"), form(classes=["no", "yes", *classes])))
    assert time.process_time() - begin < 15  # a quadratic check took a minute


def test_an_oversized_frame_is_refused_by_its_length(tmp_path):
    at = synthetic(tmp_path / "s", max_message=0.1)
    assert Call.open(at.site.handle(bytes(200_000))).kind == "failed"
    assert at.site.most_bytes() <= 0.1 * 2**20


# -- missing files ---------------------------------------------------------------------------------
def trained(path, rounds: int = 3, **rules) -> At:
    at = synthetic(path, **rules)
    server = Attacker(at, plan_of("ditto")).enter()
    for version in range(rounds):
        server.round(version)
    return at


@pytest.mark.parametrize(
    "name, reason",
    [
        ("spent.json", r"spent\.json is missing.*caps would start at zero"),
        ("rows.json", r"rows\.json is missing"),
        ("current.json", r"current\.json is missing"),
        ("run-0000004d/agreement.json", r"agreement\.json is missing"),
        ("run-0000004d/members.json", r"members\.json is missing"),
        ("run-0000004d/enrolled.json", r"enrolled\.json is missing"),
        ("run-0000004d/rows/round-000000000003.safetensors", "after round 2, and 3 was concluded"),
    ],
)
def test_a_missing_file_ends_the_start_with_what_is_missing(tmp_path, name, reason):
    at = trained(tmp_path / "s")
    (at.path / name).unlink()
    with pytest.raises(SettingError, match=reason) as refusal:
        at.restarted()
    assert "from a backup" in str(refusal.value) and "a new one (--state)" in str(refusal.value)


def test_an_older_count_of_what_has_left_ends_the_start(tmp_path):
    at = synthetic(tmp_path / "s", max_rounds=4)
    server = Attacker(at, plan_of("ditto")).enter()
    server.round(0)
    earlier = (at.path / "spent.json").read_bytes()
    server.round(1)
    server.round(2)
    (at.path / "spent.json").write_bytes(earlier)
    with pytest.raises(SettingError, match="older than the rows"):
        at.restarted()


def test_a_kill_after_any_write_is_no_missing_file(tmp_path, monkeypatch):
    """Every write of a file is the last one of a process once; the next one starts, and goes on."""
    from idiolect.core import files

    class Killed(BaseException):
        pass

    real = files.os.replace
    at = synthetic(tmp_path / "s")
    left = [0]

    def replace(*paths):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        real(*paths)
        if left[0] == -1000:
            raise AssertionError

    server = Attacker(at, plan_of("ditto"))
    version = 0
    for kill in range(1, 40):
        monkeypatch.setattr(files.os, "replace", replace)
        left[0] = kill % 7 + 1
        try:
            server.enter()
            server.round(version)
            version = at.site.concluded + 1
            if kill % 3 == 0 and version:
                at.ask(server.order(version - 1, server.model(kill / 100)))  # taken back
        except Killed:
            pass
        monkeypatch.setattr(files.os, "replace", real)
        at.restarted()
        version = at.site.concluded + 1
    assert at.site.concluded >= 0
