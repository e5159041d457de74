"""Weights of clients p_i: a method takes Σ p_i in place of its mean, or refuses them by name."""

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.methods import METHODS, make_method
from methods.common import (
    PARTS,
    Case,
    N,
    a_pfedme,
    an_lpproj,
    assert_equals,
    coins,
    fedavg_reference,
    lpproj_reference,
    pfedme_reference,
    trials,
)
from methods.test_ffgg import starts_of
from reference.dichotomy import dichotomy
from reference.ditto import ditto
from reference.fedalt import pillutla
from reference.feddeper import feddeper
from reference.fedprox import fedprox
from reference.ffgg import ffgg
from reference.finetune import finetune
from reference.l2gd import l2gd
from reference.lgfedavg import lgfedavg
from reference.perfedavg import perfedavg
from reference.rsa import rsa
from reference.scaffnew import scaffnew
from reference.scaffold import scaffold
from reference.setting import ROUNDS, assert_same, outcome, run

P = np.array([0.05, 0.3, 0.1, 0.2, 0.15, 0.05, 0.15])
WEIGHTS = {f"c{i}": 7 * p for i, p in enumerate(P)}  # only their ratios matter
OUTPUT = PARTS["network", "output"]


def check(federation, method, expected, model="logistic"):
    assert_equals(
        run(method, federation, model, client_weights=WEIGHTS), expected, federation, model
    )


# -- every method against its reference with weights, three of seven clients heard -----------------
def test_fedavg_and_its_heirs(federation):
    case = Case(federation)
    local = {"lr": 0.3, "steps": 4}
    rates, steps = [0.3] * ROUNDS, [4] * N
    shared = fedavg_reference(federation, weighting=P)
    check(federation, il.FedAvg(**local), shared)
    check(federation, il.FedProx(**local, mu=0.4), fedprox(*case.first, rates, steps, P, 0.4))
    tuned = finetune(case.model, case.data, shared["personal"], case.last_batches, 0.2, 2)
    check(
        federation,
        il.Finetune(**local, personal_lr=0.2, personal_steps=2),
        shared | {"personal": tuned, "deployment": np.full(N, 2)},
    )


@pytest.mark.parametrize("who", ["everyone", "sampled"])
def test_ditto(federation, who):
    method = il.Ditto(lr=0.3, personal_lr=0.2, steps=3, personal_steps=4, lam=0.7, who=who)
    expected = ditto(*Case(federation).first, 0.3, 0.2, 3, 4, lam=0.7, who=who, weighting=P)
    check(federation, method, expected)


def test_dichotomy_weighs_models_and_votes(federation):
    case = Case(federation)
    valid = [
        tuple(t.double().numpy() if t.is_floating_point() else t.numpy() for t in part)
        for part in (federation.part(k, "valid") for k in range(N))
    ]
    expected = dichotomy(
        case.model, case.data, valid, *case.first[2:], 0.3, 0.2, 3, 4, P, "federation"
    )
    check(federation, il.Dichotomy(lr=0.3, personal_lr=0.2, steps=3, personal_steps=4), expected)


def test_per_fedavg(federation):
    case = Case(federation)
    method = il.PerFedAvg(lr=0.3, personal_lr=0.2, steps=3, adapt_steps=2)
    expected = perfedavg(*case.first, case.last_batches, 0.3, 0.2, 3, 2, P, "first-order")
    check(federation, method, expected | {"deployment": np.full(N, 2)})


@pytest.mark.parametrize("p", [1, 2])
def test_lp_proj(federation, p):
    check(federation, an_lpproj(p=p), lpproj_reference(federation, p=p, weighting=P))


def test_pfedme(federation):
    expected = pfedme_reference(Case(federation), weighting=P, beta=0.7)
    check(federation, a_pfedme(server_rate=0.7), expected)


@pytest.mark.parametrize("server_step", ["sum", "sum-new", "mean"])
def test_rsa(federation, server_step):
    fields = {"p": 1, "lam": 0.05, "steps": 4, "decay": 0.3, "server_step": server_step}
    rates, personal_rates = [0.3] * ROUNDS, [0.2] * ROUNDS
    expected = rsa(*Case(federation).first, rates, personal_rates, **fields, weights=P)
    check(federation, il.Rsa(lr=0.3, personal_lr=0.2, **fields), expected)


def test_l2gd(federation):
    case = Case(federation)
    u = [coins("l2gd", t, 2) for t in range(ROUNDS)]
    gradient_steps = [trials(b, 0.4) for _, b in u]
    mean_steps = [0] + [trials(a, 0.6) for a, _ in u[1:]]
    xi = [c for m, k in zip(mean_steps, gradient_steps, strict=True) for c in [1] * m + [0] * k]
    draws = case.run_of(gradient_steps)
    expected = l2gd(*case.about, xi, case.cohorts, draws, lr=0.05, lam=0.8, p=0.4, weighting=P)
    check(federation, il.L2gd(lr=0.05, lam=0.8, p=0.4), expected)


def test_scaffold_keeps_c_the_weighted_mean_of_all_control_variates(federation):
    expected = scaffold(*Case(federation).first, 0.3, 4, 0.6, "II", P)
    np.testing.assert_allclose(
        expected["server c"], P @ np.array(expected["private c"]), atol=1e-12
    )
    check(federation, il.Scaffold(lr=0.3, steps=4, server_rate=0.6), expected)


def test_scaffnew_keeps_the_weighted_sum_of_its_control_variates_at_zero(federation):
    case = Case(federation)
    steps = [trials(coins("scaffnew", t, 1)[0], 0.3) for t in range(ROUNDS)]
    theta = [c for k in steps for c in [0] * (k - 1) + [1]]
    expected = scaffnew(*case.about, theta, case.run_of(steps), [0.2] * len(theta), 0.3, P)
    np.testing.assert_allclose(P @ np.array(expected["private h"]), 0, atol=1e-12)
    after = outcome(run(il.Scaffnew(lr=0.2, p=0.3), federation, client_weights=WEIGHTS))
    assert_same({name: after[name] for name in expected}, expected, 1e-10)


def test_feddeper(federation):
    fields = {"lr": 0.2, "rho": 0.05, "lam": 0.6, "steps": 4, "same_batch": True}
    check(federation, il.FedDeper(**fields), feddeper(*Case(federation).first, **fields, p=P))


def test_methods_with_a_private_part(federation):
    case = Case(federation, "network")
    shared = [case.cohorts, case.batches]
    expected = lgfedavg(*case.about, OUTPUT, *shared, 0.3, [4] * N, P)
    check(federation, il.LgFedAvg(lr=0.3, steps=4), expected, "network")
    fields = {"lr": 0.3, "private_lr": 0.2, "steps": 3, "stateful": True}
    for method, simultaneous in (
        (il.FedAlt(**fields, private_steps=4), False),
        (il.FedSim(**fields), True),
    ):
        expected = pillutla(
            *case.about,
            OUTPUT,
            *shared,
            **fields,
            private_steps=4,
            weighting=P,
            simultaneous=simultaneous,
        )
        check(federation, method, expected, "network")
    starts = starts_of(case, "network", OUTPUT, "common")
    common = [*shared, case.last_batches, starts, [0.3] * ROUNDS, 0.2, 4, "sgd"]
    fields = {"lr": 0.3, "private_lr": 0.2, "steps": 4, "start": "common"}
    check(federation, il.Ffgg(**fields), ffgg(*case.about, OUTPUT, *common, p=P), "network")
    local = ffgg(*case.about, OUTPUT, *common, local_steps=3, p=P)
    check(federation, il.LocalFfgg(**fields, local_steps=3), local, "network")


# -- what holds for all of them --------------------------------------------------------------------
SENDING = [
    name for name in METHODS.built_in if name != "local" and not make_method(name).traits.uncombined
]


def small(name):
    fields = {"dim": 5} if name.startswith("lp-proj") else {}
    return make_method(name, **fields)


@pytest.mark.parametrize("name", SENDING)
def test_equal_weights_are_to_the_bit_as_none_and_summed_messages_are_weighed_alike(
    federation, name
):
    """0.1 for each: a number whose sums round."""
    method = small(name)
    alike = outcome(run(method, federation, "network", client_weights=dict.fromkeys(WEIGHTS, 0.1)))
    weighting = method.as_dict().get("weighting")
    equal = type(method)(**method.as_dict() | ({"weighting": "equal"} if weighting else {}))
    # an unbiased step adds changes to w, the votes of dichotomy go by samples, and in messages of
    # fedproto the prototypes of a class are weighed by its samples
    if weighting != "unbiased" and name not in ("dichotomy", "fedproto"):
        assert_same(alike, outcome(run(equal, federation, "network")))
    held, summed = (
        outcome(run(method, federation, "network", client_weights=WEIGHTS, memory=memory))
        for memory in (2.0, 1e-9)
    )
    assert_same(held, summed, 1e-11)


def test_a_client_of_weight_two_counts_as_two_alike():
    """By the rules that weigh, through a channel that decodes the sum, and in a buffer."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(24, 4)), rng.integers(0, 3, 24)

    def data(sites):
        rows = np.concatenate([8 * "abc".index(site[0]) + np.arange(8) for site in sites])
        split = ["train"] * 7 + ["test"]
        ids = np.repeat(sites, 8)
        return il.Federation.from_arrays(x[rows], y[rows], ids, split=split * len(sites), classes=3)

    def model(federation, **settings):
        start = torch.manual_seed(0) and torch.nn.Linear(4, 3)
        result = il.run(
            il.FedAvg(lr=0.3, steps=2),
            start,
            federation,
            rounds=3,
            batching="full",
            dtype="float64",
            eval_every=0,
            **settings,
        )
        return result.session().server.state["w"]

    weights = {"a": 1.0, "b": 2.0, "c": 1.0}
    alike = dict.fromkeys(["a", "b", "b2", "c"], 1.0)
    arrivals = {"timing": "arrivals", "next_client": "same"}
    for settings, buffers in (
        ({}, (0, 0)),
        ({"rule": "geometric-median(steps=300)"}, (0, 0)),
        ({"channel": "sketch(columns=9)"}, (0, 0)),
        (arrivals, (3, 4)),
    ):
        one, two = ({"buffer": b} if b else {} for b in buffers)
        weighed = model(data(["a", "b", "c"]), client_weights=weights, **settings, **one)
        twice = model(data(["a", "b", "b2", "c"]), client_weights=alike, **settings, **two)
        torch.testing.assert_close(weighed, twice, rtol=0, atol=1e-9, msg=str(settings))


# -- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (il.FedAvg(weighting="equal"), {}, "weighting must be left out with client_weights"),
        (il.Ditto(weighting="samples"), {}, "weighting must be left out with client_weights"),
        (il.FedAvg(), {"rule": "median"}, "client_weights: the rule 'median' does not go by"),
        (il.FedAvg(), {"rule": "mean(weighted=false)"}, "does not go by clients' weights"),
        (il.FedAvg(), {"rule": "bucketing + mean"}, "does not go by clients' weights"),
        (il.FedAvg(), {"sample": 1}, "client_weights must be left out for fedavg: .* one message"),
        (il.FedAvg(), {"timing": "arrivals"}, "one message here, .* buffer"),
    ],
)
def test_weights_that_could_not_act_are_refused_by_name(federation, method, settings, message):
    with pytest.raises(SettingError, match=message):
        run(method, federation, client_weights=WEIGHTS, **settings)


def test_a_method_of_ones_own_that_weighs_by_itself_is_refused(federation):
    class Plain(il.FedAvg):
        def aggregate(self, task, server, up, rule):
            return rule(up, torch.ones_like(rule.samples))

    with pytest.raises(SettingError, match="client_weights must be left out for Plain"):
        run(Plain(), federation, client_weights=WEIGHTS)


def test_unbiased_steps_take_weights_by_any_rule_and_from_one_message(federation):
    method = il.FedAvg(weighting="unbiased")
    for settings in ({"rule": "median"}, {"sample": 1}, {"timing": "arrivals"}):
        plain, weighed = (
            outcome(run(method, federation, **settings, **weights))["server w"]
            for weights in ({}, {"client_weights": WEIGHTS})
        )
        assert not np.array_equal(plain, weighed), settings


def test_a_row_of_a_comparison_that_cannot_take_the_weights_is_left_out_with_the_reason(federation):
    rows = ["fedavg", "ditto:weighting=samples"]
    comparison = il.compare(
        rows, lambda: torch.nn.Linear(4, 3), federation, rounds=1, client_weights=WEIGHTS
    )
    (reason,) = comparison.skipped.values()
    assert "weighting must be left out with client_weights" in reason


@pytest.mark.parametrize("name", ["local", "fedalt"])  # fedalt: a linear model is all private
def test_where_nothing_is_sent_weights_are_taken_and_change_nothing(federation, name):
    plain, weighed = (
        outcome(run(make_method(name), federation, **weights))
        for weights in ({}, {"client_weights": WEIGHTS})
    )
    assert_same(plain, weighed)
