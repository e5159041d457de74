"""Rounds of several exchanges: the same clients in each; who is lost is absent from there on."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from engine.engine_suite import STATEFUL
from engine.loopback import Loopback, local_rounds, remote, remote_rounds
from engine.setting import (
    CLIENTS,
    EVERYONE,
    EXACT,
    FEDERATION,
    RUN,
    TASK,
    Network,
    balanced,
    contract,
    held,
    host,
    hosts,
    server,
    session,
)
from idiolect.channels import parse_channel
from idiolect.core.knobs import build
from idiolect.host.host import Host
from idiolect.host.service import Service
from idiolect.method import Exchange
from idiolect.methods.exchanges import check_exchanges
from idiolect.run.prepare import prepare, why_not
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.server.protocol import Contract
from idiolect.server.step import ServerStep
from idiolect.testing import check_method, private_of, state_of
from methods.common import Case
from reference import setting
from reference.feddane import feddane
from reference.setting import make_federation

BUILDS = {"local": local_rounds, "frames": remote}
every_build = pytest.mark.parametrize("engine_of", BUILDS.values(), ids=BUILDS)


class Classifier(nn.Linear):
    """A model that other processes can import."""

    def __init__(self):
        super().__init__(5, 3)


@dataclass(frozen=True)
class Three(il.Method):
    """Three exchanges, private rows that change in each, and everybody trains; a toy."""

    traits = il.Traits(
        trains="everyone",
        rates=(),
        changes=("a", "b"),
        exchanges=(
            Exchange("one", ("a",), ("w",)),
            Exchange("two", ("b",), ("w", "a")),
            Exchange("three", ("w",)),
        ),
    )

    def message(self, task):
        return {"a": task.d, "b": 2, "w": task.d}

    def server(self, task):
        return {"w": task.x0.clone(), "a": torch.zeros(task.d).to(task.x0), "b": task.x0[:2] * 0}

    def private(self, task, clients):
        rows = task.x0.new_zeros(len(clients), task.d)
        return {"a": rows, "seen": rows[:, :3].clone()}

    def update(self, task, down, private, here):
        w = down["w"].expand(here.rows, -1)
        seen = private["seen"].clone()
        seen[:, ("one", "two", "three").index(here.exchange)] = here.round + 1
        if here.exchange == "one":
            g = task.grad(w, here.draw())
            return {"a": g}, {"a": g, "seen": seen}
        if here.exchange == "two":
            b = (down["a"] - private["a"])[:, :2]
            return {"b": b}, private | {"seen": seen}
        x = w - 0.3 * (task.grad(w, here.draw()) + down["a"] - private["a"])
        return {"w": x + 0.01 * down["b"].sum()}, private | {"seen": seen}


# -- a client that is lost between the exchanges ---------------------------------------------------
def lose(wire_id, at):
    """The messages of a client from one version on are lost; and the orders that its host got."""
    orders = []

    class Losing(Network):
        def update(self, order):
            orders.append((order.version, order.heard.tolist()))
            return super().update(order)

    def tamper(version, messages):
        sender = [int(np.frombuffer(m[16:20], "<u4")[0]) for m in messages]
        return [m for m, k in zip(messages, sender, strict=True) if k != wire_id or version != at]

    return orders, lambda real: Losing(real, tamper)


@pytest.mark.parametrize(("at", "cohorts"), [(1, ("all", "rest")), (0, ("rest", "rest"))])
@every_build
def test_who_is_lost_in_an_exchange_is_absent_from_there_on(engine_of, at, cohorts):
    """Its gradient counts if it came; its model does not, and it is not asked for what follows."""
    federation = make_federation()
    made = session_of(federation)
    agreed = made.contract
    orders, faulty = lose(2, at)
    everyone = torch.arange(federation.clients)
    real = Host(agreed, federation, everyone, replace(made.hosts[0].settings, repeats=True))
    engine = engine_of(made.server, [faulty(real)])
    engine.advance()
    engine.advance()
    balanced(engine)
    case = Case(federation, sample=federation.clients)
    who = {"all": everyone.tolist(), "rest": [k for k in everyone.tolist() if k != 2]}
    expected = feddane(
        *case.about,
        [tuple(who[name] for name in cohorts), (who["all"], who["all"])],
        lambda t, i: case.batches(t, i, "batch gradient"),
        case.batches,
        *(0.2, 3, "samples", 0.1, 1.0, 1),
    )
    for name in ("w", "g"):
        np.testing.assert_allclose(
            engine.server.state[name].numpy(), expected[f"server {name}"], rtol=0, atol=1e-12
        )
    np.testing.assert_allclose(
        real.all_rows()["g"].numpy(), expected["private g"], rtol=0, atol=1e-12
    )
    asked = dict(orders)
    assert asked[0] == who["all"] and asked[1] == who[cohorts[0]] and asked[3] == who["all"]
    ledger = engine.server.ledger
    assert ledger.missing == {"silent": 1} and engine.rounds == 2
    assert ledger.selected == sum(len(heard) for heard in asked.values())


def session_of(federation):
    method = il.FedDane(lr=0.2, steps=3, anchor_batches=1)
    given = {"batch": setting.BATCH, "dtype": "float64", "seed": setting.SEED, "sample": 0}
    parts = prepare(method, setting.task(), federation, build(Settings, given, "run"))
    return Session(parts, setting.SEED, RUN)


def test_a_row_goes_back_to_the_exchange_before():
    """Of a client whose message did not count in the second exchange, only that is undone."""
    agreed = of(Sampled())
    real = host(agreed, EVERYONE)
    _, faulty = lose(2, 1)
    engine = local_rounds(server(agreed, sample=CLIENTS), [faulty(real)])
    engine.advance()
    seen = real.all_rows()["seen"]
    assert seen[2].tolist() == [1, 0, 0] and seen[3].tolist() == [1, 1, 1]
    engine.advance()
    assert real.all_rows()["seen"][2].tolist() == [2, 2, 2]


@dataclass(frozen=True)
class Sampled(Three):
    """The same, of sampled clients alone."""

    traits = replace(Three.traits, trains="sampled")


def of(method, channel="none") -> Contract:
    agreed = contract()
    return Contract(method, agreed.task, parse_channel(channel), RUN)


@every_build
def test_a_round_that_nobody_answers_ends_with_that_exchange(engine_of):
    agreed = contract("feddane")
    silent = {2, 5}  # the first exchange of round 1, the second of round 2
    made = [
        Network(h, lambda version, messages: [] if version in silent else messages)
        for h in hosts(agreed, 2)
    ]
    engine = engine_of(server(agreed, sample=CLIENTS), made)
    engine.advance()
    before = {n: t.clone() for n, t in engine.server.state.items()}
    engine.advance()
    assert engine.rounds == 2 and engine.server.version == 4 and engine.server.taking_part is None
    assert all(torch.equal(t, before[n]) for n, t in engine.server.state.items())
    engine.advance()
    after = engine.server.state
    assert torch.equal(after["w"], before["w"]) and not torch.equal(after["g"], before["g"])
    engine.advance()
    assert engine.rounds == 4 and not torch.equal(engine.server.state["w"], before["w"])
    balanced(engine)


def test_a_quorum_is_asked_of_every_exchange():
    agreed = contract("feddane")
    _, faulty = lose(2, 1)
    engine = local_rounds(
        server(agreed, sample=CLIENTS, quorum=CLIENTS), [faulty(host(agreed, EVERYONE))]
    )
    w = engine.server.state["w"].clone()
    engine.advance()
    assert torch.equal(engine.server.state["w"], w) and engine.server.state["g"].any()
    assert engine.server.ledger.last.rejected == {"too few": CLIENTS - 1}


# -- carriers, hosts and resume --------------------------------------------------------------------
@pytest.mark.parametrize("channel", ["none", STATEFUL, EXACT])
@pytest.mark.parametrize("method", ["feddane", "three"])
def test_carriers_and_numbers_of_hosts_do_not_matter(method, channel):
    agreed = contract("feddane", channel) if method == "feddane" else of(Three(), channel)
    engines = [
        local_rounds(server(agreed), hosts(agreed, 1)),
        local_rounds(server(agreed), hosts(agreed, 3)),
        remote(server(agreed), hosts(agreed, 2)),
    ]
    for engine in engines:
        for one in engine.hosts:
            object.__setattr__(one.settings, "chunk", 1)
        for _ in range(3):
            engine.advance()
        balanced(engine)
    assert held(engines[0]) == held(engines[1]) == held(engines[2])


@pytest.mark.parametrize("lost", [1, 3, 4])
def test_a_reply_that_is_lost_changes_nothing(lost):
    """Frame number `lost` to the second host gets no reply: the exchange is repeated to the bit."""
    agreed = of(Sampled())
    engines = []
    for number in (0, lost):
        made = hosts(agreed, 2)
        count = iter(range(1, 1000))
        carrier = Loopback(
            [Service(h) for h in made],
            lambda n, frame, count=count, number=number: n == 1 and next(count) == number,
        )
        engine = remote_rounds(server(agreed, sample=CLIENTS), made, carrier)
        for _ in range(2):
            engine.advance()
        engines.append(engine)
    assert held(engines[0]) == held(engines[1])


def test_a_toy_with_three_exchanges_keeps_every_promise():
    check_method(Three())


def test_rounds_and_exchanges_have_numbers():
    result = helpers.run(Three(), FEDERATION, TASK, rounds=4, sample=3)
    assert (private_of(result)["seen"] == 4).all()
    server = result.session().server
    assert server.version == 12 and server.rounds == result.summary()["rounds"] == 4


def test_processes_train_to_the_same_bits():
    settings = {"rounds": 2, "sample": 3, "hosts": 2, "chunk": 1, "threads": 1}
    here, there = (
        helpers.run(il.FedDane(), FEDERATION, il.Task(Classifier), engine=engine, **settings)
        for engine in ("local", "processes")
    )
    for name, t in state_of(here).items():
        assert torch.equal(t, state_of(there)[name]), name


def test_bytes_of_every_exchange_are_counted():
    result = helpers.run(il.FedDane(), FEDERATION, TASK, rounds=2, sample=3)
    made = result.session()
    d, width, heads = made.task.d, made.task.dtype.itemsize, 24
    sent = result.summary()["bytes"]
    assert sent["up"] == 2 * 3 * 2 * (heads + d * width)
    assert sent["down"] == 2 * 3 * (2 * heads + 3 * d * width)
    most = made.server.round_bytes()
    assert 2 * most == sent["up"] + sent["down"]
    assert made.server.ledger.last.selected == 6


def test_held_out_clients_and_newcomers_go_through_every_exchange():
    data = helpers.classification((20,) * 6)
    task = il.Task(lambda: nn.Linear(helpers.FEATURES, helpers.CLASSES))
    result = helpers.run(Three(), data, task, rounds=2, sample=2, held_out=2, held_out_rounds=3)
    held_out = result.session().people.held_out
    seen = private_of(result)["seen"][held_out]
    assert (seen == 2 + 3).all()
    new = helpers.classification((20,) * 2, seed=1)
    new = replace(new, ids=("new 0", "new 1"))
    personal = result.personalise(new, rounds=2)
    assert personal.summary()["rounds"] == 2


# -- rules, attacks, server optimisers, selections -------------------------------------------------
def test_a_rule_keeps_a_history_for_every_exchange():
    agreed = contract("feddane")
    engine = local_rounds(server(agreed, sample=CLIENTS, rule="centred-clipping"), hosts(agreed, 1))
    engine.advance()
    kept = engine.server.rule_state
    names = {name.partition(".")[0] for name in kept}
    assert names == {"gradient", "model"}
    g, w = (kept[n] for n in sorted(kept) if len(kept[n]) == agreed.task.d)
    assert torch.equal(g, engine.server.state["g"]) and torch.equal(w, engine.server.state["w"])


def test_attacks_act_on_every_exchange():
    made = [session("feddane", attack="sign-flip", malicious=1, sample=CLIENTS) for _ in range(2)]
    honest = session("feddane", sample=CLIENTS)
    for one in (*made, honest):
        one.engine.advance()
    assert torch.equal(made[0].server.state["g"], made[1].server.state["g"])
    for name in ("g", "w"):
        assert not torch.equal(made[0].server.state[name], honest.server.state[name])
    colluding = session("feddane", attack="alie", malicious=2, rule="median", sample=CLIENTS)
    colluding.engine.advance()
    assert colluding.engine.rounds == 1


def test_the_server_steps_once_per_round():
    agreed = contract("feddane")
    step = ServerStep("adam", 0.1)
    engine = local_rounds(server(agreed, step=step), hosts(agreed, 1))
    for _ in range(3):
        engine.advance()
    assert float(engine.server.state["optimizer.step"]) == 3


def test_candidates_are_asked_once_per_round():
    settings = {"rounds": 2, "sample": 2, "selection": "power-of-choice(candidates=4)"}
    dane, prox = (
        helpers.run(method, FEDERATION, TASK, **settings)
        for method in (il.FedDane(correction=0.0), il.FedProx())
    )
    assert torch.equal(state_of(dane)["w"], state_of(prox)["w"])  # of the same candidates
    plain = helpers.run(il.FedDane(), FEDERATION, TASK, rounds=2, sample=2)
    asked = dane.summary()["bytes"]["up"] - plain.summary()["bytes"]["up"]
    assert asked == 2 * 4 * 40


def test_messages_of_each_exchange_can_be_summed_as_they_arrive():
    settings = {"rounds": 2, "sample": 5, "rule": "mean"}
    held_all = state_of(helpers.run(il.FedDane(), FEDERATION, TASK, **settings))
    result = helpers.run(il.FedDane(), FEDERATION, TASK, memory=1e-9, **settings)
    assert result.session().server.plan.streams
    for name, t in state_of(result).items():
        torch.testing.assert_close(t, held_all[name], rtol=0, atol=1e-12)


def test_a_server_is_not_saved_between_exchanges():
    agreed = contract("feddane")
    at = server(agreed, sample=CLIENTS)
    (one,) = hosts(agreed, 1)
    current = at.open()
    sent = one.update(current.order)
    at.receive(current, sent.messages, sent.values)
    at.close(current)
    assert at.taking_part.tolist() == EVERYONE.tolist() and at.rounds == 0
    with pytest.raises(RuntimeError, match="between rounds"):
        at.save()


# -- what is refused -------------------------------------------------------------------------------
def test_messages_one_by_one_are_refused():
    assert "several exchanges" in why_not(il.FedDane(), TASK)


def test_running_statistics_are_refused():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(il.SettingError, match="model must have no running statistics"):
        helpers.run(il.FedDane(), FEDERATION, il.Task(net), rounds=1)


@pytest.mark.parametrize(
    ("exchanges", "reason"),
    [
        ((Exchange("one", ("w",)),), "two or more, with a name each"),
        ((Exchange("x", ("a",)), Exchange("x", ("w",))), "two or more, with a name each"),
        ((Exchange("x", ("c",)), Exchange("y", ("w",))), "got 'c'"),
        ((Exchange("x", ("a",), ("v",)), Exchange("y", ("w",))), "got 'v'"),
        ((Exchange("x", ("a", "w")), Exchange("y", ("w",))), "got 'w' twice"),
        ((Exchange("x", ("a",)), Exchange("y", ())), "sends a part"),
    ],
)
def test_exchanges_that_do_not_fit_are_refused(exchanges, reason):
    @dataclass(frozen=True)
    class Wrong(Three):
        traits = replace(Three.traits, exchanges=exchanges)

    with pytest.raises(il.SettingError, match=reason):
        check_exchanges(Wrong(), TASK)
