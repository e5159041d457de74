"""The parts of an advice: intervals, calls of single clients, the rule, and R^2 against C m/N."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import idiolect as il
from idiolect.data.sets.regression import LogisticRegression
from idiolect.report.verdicts import CANNOT_TELL, GAINS, LOSES, discoveries, judged_clients
from idiolect.run.plan import Plan
from idiolect.study.advise import advice as words
from idiolect.study.advise.estimate import (
    MANY_CLIENTS,
    Compared,
    Gain,
    HeldOutSamples,
    alternative,
    client_gains,
    decide,
    satterthwaite,
)
from idiolect.study.advise.heterogeneity import heterogeneity
from idiolect.study.advise.training import Candidate, Holdout
from idiolect_papers.closed_forms import logistic

RNG = np.random.default_rng(0)


# -- intervals -------------------------------------------------------------------------------------
def test_with_many_clients_of_one_size_the_interval_is_a_t_interval_over_clients():
    each = RNG.normal(0.1, 1, (MANY_CLIENTS, 7))
    held = HeldOutSamples(np.repeat(np.arange(MANY_CLIENTS), 7), MANY_CLIENTS, repeated=True)
    gain = held.gain(each.reshape(1, -1))
    want = stats.ttest_1samp(each.mean(1), 0).confidence_interval()
    assert (gain.low, gain.high) == pytest.approx((want.low, want.high))
    assert gain.above(0) == pytest.approx(
        stats.ttest_1samp(each.mean(1), 0, alternative="greater").pvalue
    )


def test_with_few_clients_the_interval_is_over_the_samples_within_them():
    each = RNG.normal(0, 1, (3, 50)) + np.array([[-5], [0], [5]])  # clients differ much
    held = HeldOutSamples(np.repeat(np.arange(3), 50), 3, repeated=True)
    gain = held.gain(each.reshape(1, -1))
    within = each.var(1, ddof=1).sum() / 50 / 9
    assert gain.error == pytest.approx(math.sqrt(within)) and gain.freedom == 147


def test_what_changes_from_training_to_training_widens_the_interval():
    owner = np.repeat(np.arange(20), 7)
    each = RNG.normal(0, 1, 140)
    held = HeldOutSamples(owner, 20, repeated=True)
    alike = held.gain(np.stack([each] * 3))
    shifted = held.gain(np.stack([each - 0.5, each, each + 0.5]))
    assert shifted.mean == pytest.approx(alike.mean)
    assert shifted.error**2 == pytest.approx(alike.error**2 + 0.25 / 3)
    assert shifted.freedom < alike.freedom


def test_samples_of_other_folds_do_not_count_as_other_trainings():
    owner = np.repeat(np.arange(20), 10)
    d = np.full((5, 200), math.nan)
    for s in range(5):
        d[s, s::5] = RNG.normal(0, 1, 40)
    whole = np.nansum(d, axis=0)[None]
    errors = [
        HeldOutSamples(owner, 20, repeated).gain(v).error
        for v, repeated in ((d, False), (whole, True))
    ]
    assert errors[0] < 1.3 * errors[1]


def test_of_few_clients_folds_count_that_other_samples_would_train_other_models():
    owner = np.repeat(np.arange(6), 30)
    d = np.full((3, 180), math.nan)
    for s in range(3):
        d[s, s::3] = np.tile([-1.0, 1.0], 30)  # all folds alike
    whole = np.nansum(d, axis=0)[None]
    folds = HeldOutSamples(owner, 6, repeated=False).gain(d)
    given = HeldOutSamples(owner, 6, repeated=True).gain(whole)
    assert folds.error == pytest.approx(math.sqrt(1.5) * given.error)  # 1 + n2/n1


def test_intervals_hold_what_they_promise():
    held = HeldOutSamples(np.repeat(np.arange(25), 8), 25, repeated=True)
    inside = 0
    for _ in range(400):
        d = 0.2 + RNG.normal(0, 0.3, 25).repeat(8) + RNG.normal(0, 1, 200)
        gain = held.gain(d[None])
        inside += gain.low <= 0.2 <= gain.high
    assert 0.91 <= inside / 400 <= 0.99


def test_a_handful_of_samples_tells_no_error_and_agreement_on_few_is_not_certainty():
    few = HeldOutSamples(np.arange(12), 12, repeated=True, counted=True)
    assert few.gain(np.zeros((1, 12))).freedom == 0
    some = HeldOutSamples(np.repeat(np.arange(12), 2), 12, repeated=True, counted=True)
    assert some.gain(np.zeros((1, 24))).high > 0.05


def test_degrees_of_freedom_of_a_sum_lie_between_those_of_its_parts():
    assert satterthwaite((1.0, 10), (0.0, 4)) == 10
    assert 4 < satterthwaite((1.0, 10), (1.0, 4)) < 14
    assert satterthwaite((1.0, 0), (1.0, 4)) == 0


# -- clients ---------------------------------------------------------------------------------------
def test_clients_who_gain_and_lose_are_called_and_the_others_are_not():
    owner = np.repeat(np.arange(4), 30)
    truth = np.array([0.8, 0.0, -0.8, 0.0]).repeat(30)
    d = truth + RNG.normal(0, 0.5, 120)
    held = HeldOutSamples(owner, 4, repeated=True)
    found = client_gains(d[None], held, ("a", "b", "c", 7))
    assert [c.verdict for c in found] == [GAINS, CANNOT_TELL, LOSES, CANNOT_TELL]
    assert [c.client for c in found] == ["a", "b", "c", 7]


def test_where_nobody_gains_or_loses_hardly_anyone_is_called():
    held = HeldOutSamples(np.repeat(np.arange(50), 20), 50, repeated=True)
    called = sum(
        c.verdict != CANNOT_TELL
        for _ in range(10)
        for c in client_gains(RNG.normal(0, 1, (1, 1000)), held, tuple(range(50)))
    )
    assert called <= 5  # of 500


def test_the_false_discovery_rate_is_that_of_scipy():
    rng = np.random.default_rng(4)
    for _ in range(20):
        p = rng.beta(0.3, 1.0, 30)
        assert (discoveries(p) == (stats.false_discovery_control(p) <= 0.05)).all()
    assert not len(discoveries(np.zeros(0)))


def test_hits_are_called_by_the_exact_sign_test():
    d = np.zeros(40)
    d[:5], d[20:32] = 1, 1  # five samples better: p = 1/16; twelve: p < 0.001
    held = HeldOutSamples(np.repeat([0, 1], 20), 2, repeated=True, counted=True)
    assert [c.verdict for c in client_gains(d[None], held, (0, 1))] == [CANNOT_TELL, GAINS]


def test_of_fewer_than_five_samples_nothing_is_said():
    held = HeldOutSamples(np.repeat([0, 1], [4, 30]), 2, repeated=True)
    found = client_gains(np.ones((1, 34)) + RNG.normal(0, 0.01, (1, 34)), held, (0, 1))
    assert found[0].verdict == CANNOT_TELL and math.isinf(found[0].high)
    assert found[1].verdict == GAINS


def test_five_samples_on_which_both_agree_leave_a_wide_interval():
    (client,) = judged_clients(np.zeros(5), np.zeros(5, dtype=int), ("a",), counted=True)
    assert client.low < -0.3 and client.high > 0.3 and client.verdict == CANNOT_TELL


def test_a_client_without_the_rare_outcome_borrows_the_others_variance():
    rng = np.random.default_rng(1)
    common = rng.normal(0, 1, 80)
    quiet = np.full(10, 0.01)  # no outcome among its ten samples: all differ by the same
    owner = np.repeat([0, 1, 2], [40, 40, 10])
    clients = judged_clients(np.r_[common, quiet], owner, ("a", "b", "c"), counted=False)
    assert clients[2].low < -0.2 and clients[2].verdict == CANNOT_TELL


@pytest.mark.parametrize("counted", [True, False])
def test_intervals_of_single_clients_hold_the_truth(counted):
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(40), 10)
    inside = 0
    for _ in range(50):
        d = rng.choice([-1.0, 0.0, 1.0], 400, p=[0.1, 0.7, 0.2])
        d = d if counted else d + 0.1 * rng.normal(size=400)
        clients = judged_clients(d, owner, tuple(range(40)), counted)
        inside += sum(c.low <= 0.1 <= c.high for c in clients)
    assert inside / 2000 >= 0.93


@pytest.mark.parametrize("counted", [True, False])
def test_copies_of_a_row_in_one_group_leave_the_interval_of_the_row(counted):
    rng = np.random.default_rng(3)
    owner = np.repeat([0, 1, 2], [12, 20, 7])
    d = rng.integers(-1, 2, 39) + (0.0 if counted else rng.normal(size=39))
    rows = judged_clients(d, owner, ("a", "b", "c"), counted)
    copies = judged_clients(
        d.repeat(5), owner.repeat(5), ("a", "b", "c"), counted, group=np.arange(39).repeat(5)
    )
    for one, other in zip(rows, copies, strict=True):
        assert (other.low, other.high, other.gain) == pytest.approx((one.low, one.high, one.gain))
        assert other.verdict == one.verdict
        assert (other.samples, other.groups) == (5 * one.samples, one.samples)
        assert one.groups is None


def test_five_rows_of_four_patients_are_too_few():
    group = np.array([0, 0, 1, 2, 3])
    (client,) = judged_clients(
        np.ones(5), np.zeros(5, dtype=int), ("a",), counted=True, group=group
    )
    assert math.isinf(client.high) and client.verdict == CANNOT_TELL
    assert (client.samples, client.groups) == (5, 4)


@pytest.mark.parametrize("counted", [True, False])
def test_intervals_hold_the_truth_where_rows_of_a_group_are_alike(counted):
    rng = np.random.default_rng(4)
    clients, groups = 40, 10
    by_groups, by_rows = 0, 0
    for _ in range(10):
        size = rng.integers(1, 8, clients * groups)
        group = np.arange(clients * groups).repeat(size)
        if not counted:
            d = rng.normal(0.1, 1.0, clients * groups)[group] + rng.normal(0, 0.3, len(group))
        else:  # a group leans to one of the two
            lean = rng.dirichlet((0.45, 0.25, 1.3), clients * groups)[group]
            d = np.array([1.0, -1.0, 0.0])[
                (rng.random(len(group))[:, None] > lean.cumsum(1)).sum(1)
            ]
        owner, ids = group // groups, tuple(range(clients))
        grouped = judged_clients(d, owner, ids, counted, group=group)
        by_groups += sum(c.low <= 0.1 <= c.high for c in grouped)
        by_rows += sum(c.low <= 0.1 <= c.high for c in judged_clients(d, owner, ids, counted))
    assert by_groups / 400 >= 0.93 > by_rows / 400


# -- the rule --------------------------------------------------------------------------------------
def of(label, mean, error, sent=100.0, freedom=50):
    return Compared(label, Gain(mean, error, freedom), sent)


def test_a_clear_gain_is_deployed_the_cheapest_of_equals():
    given = [of("fedavg", 0.05, 0.01), of("ditto", 0.055, 0.01), of("lp-proj", 0.052, 0.01, 10.0)]
    assert decide(given, tie=0.01).choice == "lp-proj"
    assert decide(given, tie=0.001).choice == "ditto"


def test_a_gain_that_is_real_but_below_a_tie_is_not_worth_a_message():
    decision = decide([of("fedavg", 0.003, 0.0005)], tie=0.01)
    assert decision.choice == "local" and decision.p < 0.001


def test_what_may_gain_or_not_is_undecided():
    decision = decide([of("fedavg", -0.2, 0.01), of("ditto", 0.01, 0.02)], tie=0.01)
    assert decision.choice == "undecided" and decision.hopes == ("ditto",)


def test_where_no_error_can_be_told_nothing_is_decided():
    assert decide([of("fedavg", 0.5, math.nan, freedom=0)], tie=0.01).choice == "undecided"


def test_the_alternative_is_too_close_to_call_where_the_interval_holds_zero():
    found = [alternative(Gain(mean, 0.01, 50)) for mean in (0.05, 0.0, -0.05)]
    assert found == ["fedavg", "too close to call", "local"]


def test_words_name_what_is_deployed_and_how_sure_it_is():
    compared = [of("ditto", 0.05, 0.01)]
    unit = words.GainUnit("accuracy", 0.01)
    said = words.deployment(decide(compared, 0.01), compared, unit, folds=True)
    assert said[0] == "Deploy ditto: it gains 1 point of accuracy or more over learning alone."
    assert "+5.0 points" in said[1] and said[2].endswith("gains nothing (p < 0.001).")


def test_words_of_a_refuted_gain_say_that_the_data_rule_it_out():
    compared = [of("fedavg", -0.02, 0.005), of("ditto", 0.001, 0.003)]
    unit = words.GainUnit("accuracy", 0.01)
    said = words.deployment(decide(compared, 0.01), compared, unit, folds=True)
    assert said[0] == "Train each site alone: no federated method gained 1 point of accuracy."
    assert said[2] == "The data rule out a gain of 1 point (p = 0.002)."


def test_undecided_words_claim_nothing_clear():
    compared = [of("fedavg", 0.02, 0.02), of("ditto", 0.01, 0.02)]
    unit = words.GainUnit("accuracy", 0.01)
    said = " ".join(words.deployment(decide(compared, 0.01), compared, unit, folds=True))
    assert (
        "We cannot tell yet whether fedavg or ditto is at least 1 point better than learning "
        "alone." in said
    )
    assert "clearly" not in said


# -- R^2 against C m/N -----------------------------------------------------------------------------
def halves_of(federation):
    return Holdout.of(federation, "auto", 0).halves(0)


def test_r2_and_the_threshold_are_those_of_a_plain_numpy_version():
    federation = il.data.load("logistic", clients=5, samples=20, features=3, valid=0.0)
    halves = halves_of(federation)
    x = torch.from_numpy(RNG.normal(0, 1, (10, 3)))
    task = logistic.task(LogisticRegression(features=3)).under(dtype=torch.float64)
    found = heterogeneity([(x, halves.to("cpu", torch.float64))], task, seed=0)
    a, b = x[0::2].numpy(), x[1::2].numpy()
    n = federation.sizes("train").numpy()
    p = n / n.sum()
    r2 = sum(p[i] * (a[i] - p @ a) @ (b[i] - p @ b) for i in range(5))
    v = sum(p[i] * ((a[i] - b[i]) ** 2).sum() for i in range(5)) / 4
    assert found.r2 == pytest.approx(r2) and found.threshold == pytest.approx(v * (1 - p @ p))
    assert found.constant == pytest.approx(found.threshold * n.sum() / 5)
    # in units of risk: the same with the Hessian of each client's loss at the mean model
    w = (p @ a + p @ b) / 2
    crossed = own = 0.0
    for i in range(5):
        parts = [halves.part(2 * i + h, "train")[0].double().numpy() for h in (0, 1)]
        H = 0
        for z in parts:
            s = 1 / (1 + np.exp(-z @ w))
            H = H + (z * (s * (1 - s))[:, None]).T @ z / len(z) / 2
        crossed += p[i] * (a[i] - p @ a) @ H @ (b[i] - p @ b)
        own += p[i] * (a[i] - b[i]) @ H @ (a[i] - b[i]) / 4
    assert found.norm == "risk"
    assert found.ratio == pytest.approx(crossed / own / (1 - p @ p))


@pytest.mark.parametrize(("times", "side"), [(0.0, "below"), (1.0, "near"), (9.0, "above")])
def test_the_ratio_is_one_where_fedavg_and_local_cross(times, side):
    s = LogisticRegression(
        clients=40, samples=300, features=4, bound=2.0, design="signs", norm=0.5, radius=0.1,
        places="sphere", valid=0.0, test=0.0,
    )  # fmt: skip
    radius = times**0.5 * logistic.crossing(s, s.draw()[1], s.samples)
    federation = LogisticRegression(**{**s.as_dict(), "radius": radius}).load()
    halves = halves_of(federation)
    task = logistic.task(s).under(dtype=torch.float64)
    x = logistic.local(halves)  # the exact optima of the halves
    found = heterogeneity([(x, halves.to("cpu", torch.float64))], task, seed=0)
    assert found.side == side
    assert found.r2 == pytest.approx(radius**2, abs=0.3 * found.threshold + 0.1 * radius**2)
    if times:
        assert times / 1.5 <= found.ratio <= 1.5 * times


def test_r2_needs_two_clients_with_four_samples():
    federation = il.data.load("logistic", clients=3, samples=3, features=3, valid=0.0, test=0.0)
    task = logistic.task(LogisticRegression(features=3))
    assert heterogeneity([(torch.zeros(6, 3), halves_of(federation))], task, 0) is None


def test_the_simpler_or_better_one_is_deployed_at_equal_bytes():
    fedavg = Compared("fedavg", Gain(0.096, 0.02, 50), 10.0, personal=False)
    ditto = Compared("ditto", Gain(0.068, 0.01, 50), 10.0)
    assert decide([fedavg, ditto], 0.01).choice == "fedavg"  # better and simpler
    near = Compared("ditto", Gain(0.101, 0.01, 50), 10.0)
    assert decide([fedavg, near], 0.01).choice == "fedavg"  # simpler, and within a tie
    far = Compared("ditto", Gain(0.12, 0.01, 50), 10.0)
    assert decide([fedavg, far], 0.01).choice == "ditto"
    cheap = Compared("lp-proj", Gain(0.09, 0.01, 50), 1.0)
    assert decide([fedavg, cheap], 0.01).choice == "lp-proj"


def test_words_say_what_was_weighed():
    fedavg = Compared("fedavg", Gain(0.096, 0.02, 50), 10.0, personal=False)
    ditto = Compared("ditto", Gain(0.068, 0.01, 50), 10.0)
    unit = words.GainUnit("accuracy", 0.01)
    assert words.weighing("fedavg", [fedavg, ditto], unit) == [
        "It gained most; next is ditto (+6.8 points)."
    ]
    near = Compared("ditto", Gain(0.101, 0.01, 50), 10.0)
    assert "less simple" in words.weighing("fedavg", [fedavg, near], unit)[0]


def test_intervals_that_hold_together_are_narrower_where_candidates_move_together():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(30), 4)
    held = HeldOutSamples(owner, 30, repeated=True)
    common = rng.normal(size=(1, 120))
    alike = [common + 0.1 * rng.normal(size=(1, 120)) for _ in range(3)]
    apart = [rng.normal(size=(1, 120)) for _ in range(3)]
    assert 0.03 < held.joint_level(alike) <= 0.05
    assert 0.05 / 3 <= held.joint_level(apart) < 0.02
    assert held.joint_level(apart[:1]) == 0.05


def test_step_sizes_without_effect_are_not_varied():
    rates = {text: Candidate(Plan.of(text)).rates for text in ("lp-proj:p=1", "lp-proj:p=2")}
    assert rates == {
        "lp-proj:p=1": ["lr", "personal_lr"],
        "lp-proj:p=2": ["lr", "share", "personal_lr"],
    }
