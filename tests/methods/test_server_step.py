"""The server's step, schedules of learning rates, and messages."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.host import host
from idiolect.host.host import Host
from idiolect.server.protocol import HostUpdate
from idiolect.wire import messages as wire
from methods.common import an_lpproj, assert_equals, fedavg_reference, lpproj_reference
from reference import setting
from reference.server import Adam, Momentum
from reference.setting import (
    ROUNDS,
    SAMPLE,
    run,
)

# -- the server's step and schedules ---------------------------------------------------------------
SERVERS = {
    "sgd at half rate": ({"server_lr": 0.5}, lambda: Momentum(0.5, 0.0)),
    "momentum": ({"server_lr": 0.5, "server_options": "momentum=0.9"}, lambda: Momentum(0.5, 0.9)),
    "adam": (
        {
            "server_optimizer": "adam",
            "server_lr": 0.05,
            "server_options": "betas=(0.8, 0.95), eps=1e-3",
        },
        lambda: Adam(0.05, 0.8, 0.95, 1e-3),
    ),
}


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_optimiser_steps_along_the_change_that_clients_ask_for(federation, server):
    settings, by_hand = SERVERS[server]
    result = run(il.FedAvg(lr=0.3, steps=4), federation, **settings)
    assert_equals(result, fedavg_reference(federation, server=by_hand()), federation)
    result = run(an_lpproj(p=2, server_rate=0.7), federation, **settings)
    assert_equals(result, lpproj_reference(federation, p=2, beta=0.7, server=by_hand()), federation)


SCHEDULES = {
    "cosine": [0.5 * (1 + math.cos(math.pi * t / ROUNDS)) for t in range(ROUNDS)],
    "linear": [1, 2 / 3, 1 / 3],
    "step:2:0.1": [1, 1, 0.1],
    "inverse:0.5": [1, 1 / 1.5, 1 / 2],
    "exp:0.9": [1, 0.9, 0.81],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_scales_the_learning_rates_of_each_round(federation, schedule):
    factors = SCHEDULES[schedule]
    result = run(il.FedAvg(lr=0.3, steps=4), federation, schedule=schedule)
    assert_equals(
        result, fedavg_reference(federation, rates=[0.3 * f for f in factors]), federation
    )
    result = run(an_lpproj(), federation, schedule=schedule)
    rates = {"rates": [0.3 * f for f in factors], "personal_rates": [0.2 * f for f in factors]}
    assert_equals(result, lpproj_reference(federation, **rates), federation)


def test_a_schedule_of_one_field_leaves_the_other_rates_alone(federation):
    factors = SCHEDULES["inverse:0.5"]
    result = run(an_lpproj(), federation, schedule="lr=inverse:0.5")
    rates = {"rates": [0.3 * f for f in factors], "personal_rates": [0.2] * ROUNDS}
    assert_equals(result, lpproj_reference(federation, **rates), federation)


def test_a_schedule_of_the_servers_rate_scales_its_step(federation):
    rates = iter([1, 0.5, 0.25])
    result = run(il.FedAvg(lr=0.3, steps=4), federation, schedule="server_lr=exp:0.5")
    by_hand = fedavg_reference(federation, server=lambda w, mean: w + next(rates) * (mean - w))
    assert_equals(result, by_hand, federation)


def test_a_schedule_of_the_batch_grows_it_in_training_only(federation, monkeypatch):
    sizes = []

    class Noting(host.Here):
        def __init__(self, *args, **kwargs):
            sizes.append((kwargs["purpose"], kwargs["round"], kwargs["batch"]))
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(host, "Here", Noting)
    run(il.FedAvg(), federation, schedule="batch=grow:0.5", batch=5, rounds=3)
    assert {(r, b) for p, r, b in sizes if p == "batch"} == {(0, 5), (1, 8), (2, 10)}
    assert {b for p, _, b in sizes if p == "personal"} == {5}


# -- messages --------------------------------------------------------------------------------------
def test_lpproj_sends_21_numbers_to_every_client_and_21_from_each_sampled_one(monkeypatch):
    up, down = [], []
    updates = Host.updates

    def noting(self, order):
        down.append(len(order.down))
        for sent in updates(self, order):
            up.extend(len(sent.messages.row(k)) for k in range(len(sent.messages)))
            yield sent

    monkeypatch.setattr(Host, "updates", noting)
    federation = il.data.load("synthetic", clients=100)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    method = il.LpProj(p=1, dim=21, steps=1)
    summary = il.run(method, task, federation, rounds=3, sample=10, eval_every=0).summary()
    assert summary["values"] == {"up": 3 * 21 * 10, "down": 3 * 21 * 100}
    assert summary["bytes"] == {"up": 3 * 10 * (4 * 21 + 24), "down": 3 * 100 * (4 * 21 + 24)}
    assert summary["bytes"] == {"up": sum(up), "down": 100 * sum(down)}
    assert len(up) == 3 * 10 and len(down) == 3


def test_fedavg_sends_the_model_both_ways_and_local_sends_nothing(federation):
    d = len(setting.start())
    summary = run(il.FedAvg(), federation).summary()
    assert summary["values"] == {"up": ROUNDS * SAMPLE * d, "down": ROUNDS * SAMPLE * d}
    assert summary["bytes"] == {
        "up": ROUNDS * SAMPLE * (8 * d + 24),
        "down": ROUNDS * SAMPLE * (8 * d + 24),
    }
    summary = run(il.Local(), federation).summary()
    assert summary["values"] == summary["bytes"] == {"up": 0, "down": 0}


def spoil(message, reason):
    """A message that the server must refuse for this reason."""
    head = np.frombuffer(message[:24], dtype=wire.HEADER).copy()
    body = np.frombuffer(message[24:], dtype="<f8").copy()
    if reason == "size":
        return message[:-8]
    if reason == "not finite":
        body[-1] = np.nan
    elif reason == "weight":
        head["weight"] = -1
    elif reason == "stranger":
        head["client"] = 1000
    else:
        head["version" if reason == "round" else reason] += 1
    return head.tobytes() + body.tobytes()


@pytest.mark.parametrize(
    "reason", ["size", "magic", "schema", "run", "round", "stranger", "weight", "not finite"]
)
@pytest.mark.parametrize("kind", ["fedavg", "lp-proj"])
def test_a_rejected_message_is_an_absent_client(federation, monkeypatch, reason, kind):
    draws = setting.draws(federation)
    cohorts = draws.cohorts(ROUNDS, SAMPLE)
    faulty = cohorts[1][1]
    admitted = [[i for i in cohort if (t, i) != (1, faulty)] for t, cohort in enumerate(cohorts)]
    updates = Host.updates

    def spoiled(self, order):
        sent = HostUpdate.merge(list(updates(self, order)))
        messages = [
            spoil(sent.messages.row(k), reason)
            if (order.version, i) == (1, faulty)
            else sent.messages.row(k)
            for k, i in enumerate(order.heard.tolist())
        ]
        yield replace(sent, messages=messages)

    monkeypatch.setattr(Host, "updates", spoiled)
    if kind == "lp-proj":
        result = run(an_lpproj(p=2), federation)
        expected = lpproj_reference(federation, p=2, cohorts=admitted)
    else:  # the weighting that depends on how many are heard
        result = run(il.FedAvg(lr=0.3, steps=4, weighting="unbiased"), federation)
        expected = fedavg_reference(federation, weighting="unbiased", cohorts=admitted)
        expected["gradients"][faulty] += 4  # the client did its work; only its message was refused
    assert_equals(result, expected, federation)
    ledger = result.session().server.ledger
    assert ledger.refused == {reason: 1}
    assert (ledger.selected, ledger.admitted) == (ROUNDS * SAMPLE, ROUNDS * SAMPLE - 1)
