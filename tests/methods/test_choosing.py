"""Fine-tuning before use, and the dichotomy that chooses by validation data."""

from itertools import islice

import numpy as np
import pytest
import torch

import idiolect as il
from methods.common import (
    Case,
    N,
    a_pfedme,
    assert_equals,
    every_batching,
    every_model,
    every_weighting,
    pfedme_reference,
)
from reference import setting
from reference.dichotomy import dichotomy
from reference.fedavg import fedavg
from reference.feddeper import feddeper
from reference.finetune import finetune
from reference.perfedavg import perfedavg
from reference.setting import (
    CLASSES,
    ROUNDS,
    SIZES,
    run,
)


# -- fine-tuning -----------------------------------------------------------------------------------
def fedavg_of(case):
    return fedavg(*case.first, [0.3] * ROUNDS, [4] * N, "samples")


@every_model
@every_batching
def test_finetune_is_fedavg_and_then_steps_of_ones_own(federation, model, batching):
    case = Case(federation, model, batching)
    expected = fedavg_of(case)
    expected["personal"] = finetune(
        case.model, case.data, expected["personal"], case.last_batches, 0.2, 3
    )
    result = run(
        il.Finetune(lr=0.3, steps=4, personal_lr=0.2, personal_steps=3),
        federation,
        model,
        batching=batching,
    )
    assert_equals(result, expected | {"deployment": np.full(N, 3)}, federation, model)


@every_model
def test_a_run_can_fine_tune_any_method_before_use(federation, model):
    case = Case(federation, model)
    tuning = {"finetune_steps": 3, "finetune_lr": 0.15}
    tuned = {"deployment": np.full(N, 3)}
    for method, expected in (
        (il.FedAvg(lr=0.3, steps=4), fedavg_of(case)),
        (
            il.FedDeper(lr=0.2, rho=0.05, lam=0.6, steps=4),
            feddeper(*case.first, 0.2, 0.05, 0.6, 4, True),
        ),
        (a_pfedme(alternations=2), pfedme_reference(case, R=2)),
    ):
        expected["personal"] = finetune(
            case.model, case.data, expected["personal"], case.last_batches, 0.15, 3
        )
        assert_equals(run(method, federation, model, **tuning), expected | tuned, federation, model)


def test_a_run_fine_tunes_after_the_methods_own_adaptation_with_mini_batches_not_yet_used(
    federation,
):
    case = Case(federation)
    expected = perfedavg(*case.first, case.last_batches, 0.3, 0.2, 3, 2, "samples", "first-order")
    expected["personal"] = finetune(
        case.model,
        case.data,
        expected["personal"],
        lambda i: islice(case.last_batches(i), 2, None),
        lr=0.15,
        steps=3,
    )
    method = il.PerFedAvg(lr=0.3, personal_lr=0.2, steps=3, adapt_steps=2, weighting="samples")
    result = run(method, federation, finetune_steps=3, finetune_lr=0.15)
    assert_equals(result, expected | {"deployment": np.full(N, 5)}, federation)


# -- the dichotomous strategy ----------------------------------------------------------------------
def with_validation(empty=()):
    """The federation, with 6 + k samples of client k drawn anew as validation data.

    None for the clients in `empty`.
    """
    whole = setting.make_federation(sizes=[n + 6 + k for k, n in enumerate(SIZES)])
    inputs, targets, clients, split = [], [], [], []
    for k, n in enumerate(SIZES):
        for part in ("train", "test"):
            X, y = whole.part(k, part)
            kinds = (
                ["test"] * len(y) if part == "test" else ["train"] * n + ["valid"] * (len(y) - n)
            )
            keep = [j for j, kind in enumerate(kinds) if kind != "valid" or k not in empty]
            inputs.append(X[keep])
            targets.append(y[keep])
            clients += [f"c{k}"] * len(keep)
            split += [kinds[j] for j in keep]
    return il.Federation.from_arrays(
        torch.cat(inputs), torch.cat(targets), clients, split=split, classes=CLASSES
    )


def check_dichotomy(federation, model, level, personal_lr, weighting="samples", epochs=0):
    case = Case(federation, model, "epochs" if epochs else "replace")
    valid = [(X.numpy(), y.numpy()) for X, y in (federation.part(i, "valid") for i in range(N))]
    fields = {
        "lr": 0.3,
        "personal_lr": personal_lr,
        "steps": 4,
        "personal_steps": 5,
        "weighting": weighting,
        "level": level,
    }
    by_hand = dict(fields)
    if epochs:
        by_hand |= dict.fromkeys(("steps", "personal_steps"), case.draws.passes(epochs))
        by_hand["later"] = lambda t, i: case.batches(t, i, "batch 1")
    expected = dichotomy(
        case.model, case.data, valid, case.start, case.cohorts, case.batches, **by_hand
    )
    method = il.Dichotomy(**fields, epochs=epochs)
    result = run(method, federation, model, batching=case.draws.batching)
    assert_equals(result, expected, federation, model)
    return [bool(np.array_equal(x, expected["server w"])) for x in expected["personal"]]


@every_weighting
def test_the_dichotomy_of_the_federation_uses_what_does_better_on_validation_data(weighting):
    federation = with_validation()
    assert not any(
        check_dichotomy(federation, "logistic", "federation", 0.4, weighting)
    )  # local models have learnt
    assert all(
        check_dichotomy(federation, "logistic", "federation", 1e-6, weighting)
    )  # local models have not
    check_dichotomy(federation, "network", "federation", 0.4, weighting)


@every_model
def test_the_dichotomy_of_each_client_uses_what_does_better_on_its_own_validation_data(model):
    shared = check_dichotomy(with_validation(), model, "client", 0.02)
    assert any(shared) and not all(shared)


@pytest.mark.parametrize("level", ["federation", "client"])
def test_a_client_without_validation_data_has_no_vote_in_the_dichotomy(level):
    check_dichotomy(with_validation(empty=(1, 3)), "logistic", level, 0.02)


def test_with_epochs_both_models_of_the_dichotomy_are_trained_in_passes():
    check_dichotomy(with_validation(), "logistic", "client", 0.02, epochs=2)
