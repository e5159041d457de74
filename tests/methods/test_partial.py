"""Methods with a private part: LG-FedAvg, FedAlt, FedSim, FedPer, FedRep and FedBABU."""

import numpy as np
import pytest

import idiolect as il
from methods.common import (
    PARTS,
    Case,
    N,
    assert_equals,
    every_batching,
    every_part,
    every_weighting,
)
from reference.fedalt import pillutla
from reference.fedbabu import fedbabu
from reference.lgfedavg import lgfedavg
from reference.setting import ROUNDS, SAMPLE, assert_same, outcome, run, start


# -- LG-FedAvg -------------------------------------------------------------------------------------
@every_part
@every_batching
def test_lg_fedavg_trains_all_layers_and_averages_the_shared_ones(
    federation, model, part, batching
):
    case = Case(federation, model, batching)
    shared = PARTS[model, part]
    expected = lgfedavg(*case.about, shared, case.cohorts, case.batches, 0.3, [4] * N, "samples")
    result = run(
        il.LgFedAvg(lr=0.3, steps=4, shared_part=part), federation, model, batching=batching
    )
    assert_equals(result, expected, federation, model)
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * len(shared)


@every_weighting
def test_lg_fedavg_counted_in_passes_shares_the_top_layer(federation, weighting):
    case = Case(federation, "network", "epochs")
    shared = PARTS["network", "output"]
    steps = case.draws.passes(2)
    expected = lgfedavg(*case.about, shared, case.cohorts, case.batches, 0.3, steps, weighting)
    result = run(
        il.LgFedAvg(lr=0.3, epochs=2, weighting=weighting), federation, "network", batching="epochs"
    )
    assert_equals(result, expected, federation, "network")


# -- FedAlt and FedSim -----------------------------------------------------------------------------
def check_pillutla(
    federation,
    simultaneous,
    model,
    part,
    stateful,
    batching="replace",
    weighting="samples",
    epochs=0,
):
    case = Case(federation, model, batching)
    private = PARTS[model, part]
    passes = case.draws.passes(epochs)
    expected = pillutla(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        lr=0.3,
        private_lr=0.2,
        steps=passes if epochs else 3,
        private_steps=passes if epochs else 4,
        stateful=stateful,
        weighting=weighting,
        simultaneous=simultaneous,
        later=(lambda t, i: case.batches(t, i, "batch 1")) if epochs else None,
    )
    fields = {
        "part": part,
        "lr": 0.3,
        "private_lr": 0.2,
        "steps": 3,
        "epochs": epochs,
        "stateful": stateful,
        "weighting": weighting,
    }
    method = il.FedSim(**fields) if simultaneous else il.FedAlt(**fields, private_steps=4)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_part
@pytest.mark.parametrize("stateful", [True, False])
def test_fedalt_takes_the_private_steps_first_and_then_the_shared_ones(
    federation, model, part, stateful
):
    check_pillutla(federation, False, model, part, stateful)


@every_part
@pytest.mark.parametrize("stateful", [True, False])
def test_fedsim_takes_both_steps_from_the_same_point(federation, model, part, stateful):
    check_pillutla(federation, True, model, part, stateful)


@every_batching
@every_weighting
def test_fedalt_and_fedsim_are_their_algorithms_for_every_batching_and_weighting(
    federation, batching, weighting
):
    for simultaneous in (False, True):
        check_pillutla(federation, simultaneous, "network", "output", True, batching, weighting)


@every_batching
@pytest.mark.parametrize("epochs", [1, 2])
def test_fedalt_and_fedsim_counted_in_passes_are_their_algorithms(federation, batching, epochs):
    """Clients with fewer mini-batches take fewer steps; nobody's draws depend on the others."""
    for simultaneous in (False, True):
        check_pillutla(federation, simultaneous, "network", "output", True, batching, epochs=epochs)


@pytest.mark.parametrize("method", [il.FedAlt, il.FedSim])
def test_a_pass_over_the_data_with_another_optimiser_stops_for_each_client_in_its_time(
    federation, method
):
    """SGD of torch is the plain step."""
    plain, torchs = (
        outcome(run(method(epochs=1), federation, "network", batching="epochs", **options))
        for options in (
            {},
            {"optimizer": "sgd", "optimizer_options": "momentum=0.0, dampening=0.1"},
        )
    )
    assert_same(plain, torchs, 1e-12)


# -- FedPer, FedRep, FedBABU -----------------------------------------------------------------------
def others(model, part):
    """The coordinates that are not of this part."""
    return np.setdiff1d(np.arange(len(start(model))), PARTS[model, part])


@every_part
@every_batching
def test_fedper_trains_both_parts_and_averages_the_body(federation, model, part, batching):
    case = Case(federation, model, batching)
    shared = others(model, part)
    expected = lgfedavg(*case.about, shared, case.cohorts, case.batches, 0.3, [4] * N, "samples")
    method = il.FedPer(lr=0.3, steps=4, part=part)
    result = run(method, federation, model, batching=batching)
    assert_equals(result, expected, federation, model)
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * len(shared)


@pytest.mark.parametrize(
    "epochs", [{"steps": 1}, {"epochs": 1}, {"epochs": 1, "private_epochs": 3}]
)
@every_batching
def test_fedrep_fits_the_head_first_and_then_the_body(federation, batching, epochs):
    case = Case(federation, "network", batching)
    by_passes = "epochs" in epochs
    head_passes = case.draws.passes(epochs.get("private_epochs", 1))
    expected = pillutla(
        *case.about,
        PARTS["network", "output"],
        case.cohorts,
        case.batches,
        lr=0.3,
        private_lr=0.2,
        steps=case.draws.passes(1) if by_passes else 1,
        private_steps=head_passes if by_passes else 6,
        stateful=True,
        weighting="equal",
        simultaneous=False,
        later=(lambda t, i: case.batches(t, i, "batch 1")) if by_passes else None,
    )
    method = il.FedRep(lr=0.3, private_lr=0.2, private_steps=6, **epochs)
    result = run(method, federation, "network", batching=batching)
    assert_equals(result, expected, federation, "network")


@every_batching
@pytest.mark.parametrize("epochs", [0, 2])
def test_fedbabu_trains_the_body_alone_and_fine_tunes_before_use(federation, batching, epochs):
    case = Case(federation, "network", batching)
    steps = case.draws.passes(epochs) if epochs else [4] * N
    head = PARTS["network", "output"]
    amounts = {"lr": 0.3, "personal_lr": 0.2, "personal_steps": 2}
    expected = fedbabu(
        *case.about,
        head,
        *(case.cohorts, case.batches, case.last_batches),
        steps=steps,
        weighting="samples",
        **amounts,
    )
    result = run(
        il.FedBabu(**amounts, steps=4, epochs=epochs), federation, "network", batching=batching
    )
    assert_equals(result, expected, federation, "network")


def test_the_head_of_fedbabu_is_the_initial_one_until_it_is_fine_tuned(federation):
    head = PARTS["network", "output"]
    result = run(il.FedBabu(personal_steps=0), federation, "network")
    personal = outcome(result)["personal"]
    np.testing.assert_array_equal(personal[:, head], np.tile(start("network")[head], (N, 1)))
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * len(others("network", "output"))
