"""Federated LoRA: each method shares, keeps or freezes the factors that its paper names."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.methods import equal_to
from methods.common import Case, N, assert_equals, note_distance
from reference.fedalt import pillutla
from reference.fedavg import fedavg
from reference.lgfedavg import lgfedavg
from reference.lora import Held, LowRank
from reference.setting import CLASSES, FEATURES, MODELS, ROUNDS, SAMPLE, assert_same, outcome, run

RANK = 4
BY_HAND = LowRank(FEATURES, CLASSES, RANK)
A, B = BY_HAND.coordinates("A"), BY_HAND.coordinates("B")


def low_rank():
    """y = (W + B A) x + b, with B away from zero so that A has a gradient at once."""
    module = il.models.adapt(nn.Linear(FEATURES, CLASSES), RANK)
    nn.init.normal_(module.adapter.up)
    return module


@pytest.fixture(autouse=True)
def model(monkeypatch):
    monkeypatch.setitem(MODELS, "lora", (low_rank, BY_HAND))


def test_the_gradient_written_by_hand_is_that_of_the_adapted_module(federation):
    case = Case(federation, "lora")
    X, y = case.data[3]
    slope = [
        (BY_HAND.loss(case.start + e, X, y) - BY_HAND.loss(case.start - e, X, y)) / 2e-6
        for e in 1e-6 * np.eye(len(case.start))
    ]
    np.testing.assert_allclose(BY_HAND.gradient(case.start, X, y), slope, atol=1e-8)


@pytest.mark.parametrize(("shared_part", "private"), [("lora_A", B), ("lora_B", A)])
def test_fedsa_lora_averages_one_factor_and_keeps_the_other(federation, shared_part, private):
    case = Case(federation, "lora")
    shared = np.setdiff1d(np.arange(len(case.start)), private)
    expected = lgfedavg(*case.about, shared, case.cohorts, case.batches, 0.3, [4] * N, "samples")
    result = run(il.FedSaLora(lr=0.3, steps=4, shared_part=shared_part), federation, "lora")
    assert_equals(result, expected, federation, "lora")
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * len(shared)


def test_ffa_lora_is_fedavg_in_which_a_has_no_gradient(federation):
    case = Case(federation, "lora")
    expected = fedavg(
        Held(BY_HAND, tuple(A)),
        case.data,
        case.start,
        case.cohorts,
        case.batches,
        [0.3] * ROUNDS,
        [4] * N,
        "samples",
    )
    shared = np.setdiff1d(np.arange(len(case.start)), A)
    expected["server theta"] = expected.pop("server w")[shared]
    result = run(il.FfaLora(lr=0.3, steps=4), federation, "lora")
    assert_equals(result, expected, federation, "lora")
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * len(shared)


def test_fedit_is_fedavg(federation):
    one, other = (run(cls(lr=0.3, steps=4), federation, "lora") for cls in (il.FedIt, il.FedAvg))
    note_distance(one, assert_same(outcome(one), outcome(other)))


@pytest.mark.parametrize(("share", "first"), [(0.5, 2), (0.25, 3), (0.99, 1), (0.01, 3)])
def test_dual_lora_is_fedalt_with_the_last_ranks_private(federation, share, first):
    case = Case(federation, "lora")
    ranks = slice(first, RANK)
    private = np.concatenate([BY_HAND.coordinates(part, ranks) for part in "AB"])
    expected = pillutla(
        *case.about,
        np.sort(private),
        case.cohorts,
        case.batches,
        0.3,
        0.2,
        4,
        3,
        True,
        "samples",
        False,
    )
    method = il.DualLora(lr=0.3, private_lr=0.2, steps=4, private_steps=3, private_ranks=share)
    result = run(method, federation, "lora")
    assert_equals(result, expected, federation, "lora")


def test_an_adapter_of_rank_two_r_is_the_sum_of_a_shared_and_a_personal_one():
    task = il.Task(low_rank)
    split = il.DualLora().split(task)
    x = torch.randn(task.d, generator=torch.Generator().manual_seed(0))
    theta, w = split.parts(x)
    inputs = torch.randn(5, FEATURES)
    both, shared, own = (
        task.outputs_of_one(split.join(*parts), inputs)
        for parts in (
            (theta, w),
            (theta, torch.zeros_like(w)),
            (torch.where(torch.isin(split.theta, torch.from_numpy(np.r_[A, B])), 0, theta), w),
        )
    )
    base = task.outputs_of_one(x.index_fill(0, torch.from_numpy(np.r_[A, B]), 0.0), inputs)
    torch.testing.assert_close(both, shared + own - base)


def test_an_adapter_of_rank_one_cannot_be_divided():
    task = il.Task(lambda: il.models.adapt(nn.Linear(FEATURES, CLASSES), 1))
    with pytest.raises(SettingError, match="rank must be 2 or more"):
        il.DualLora().split(task)


@pytest.mark.parametrize("cls", [il.FedSaLora, il.FfaLora, il.DualLora])
def test_without_lora_the_methods_say_that_they_are_fedavg(federation, cls):
    words = equal_to(cls(), il.Task(nn.Linear(4, 3)))
    assert words.startswith("all 15 parameters are shared: this is FedAvg")
    fields = {"lr": 0.3, "steps": 4} | ({"private_steps": 0} if cls is il.DualLora else {})
    methods = (cls(**fields), il.FedAvg(lr=0.3, steps=4))
    lora, plain = (outcome(run(method, federation))["personal"] for method in methods)
    assert_same({"personal": lora}, {"personal": plain}, 1e-12)
