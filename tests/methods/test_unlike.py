"""Methods for clients with unlike models: FedMD and FedTGP against their references."""

import numpy as np
import pytest
import torch

import helpers
import idiolect as il
from idiolect.core import streams
from idiolect.methods.fedtgp import NETWORK
from methods.common import Case, N, assert_equals, every_batching, every_model
from reference import setting
from reference.fedmd import fedmd
from reference.fedtgp import fedtgp
from reference.setting import (
    CLASSES,
    FEATURES,
    HIDDEN,
    MODELS,
    ROUNDS,
    SAMPLE,
    SEED,
    outcome,
    run,
)

PUBLIC = 2 * torch.randn(11, FEATURES, generator=torch.Generator().manual_seed(4)).double()


@pytest.fixture
def public(federation):
    return federation.with_public(PUBLIC)


def alignment_of(m):
    """The public inputs of a turn: all, or m of them drawn anew."""

    def alignment(t):
        words = streams.bits(streams.keys(SEED, "alignment", t), 0, len(PUBLIC))[0]
        return np.sort(words.argsort(kind="stable")[:m]) if m else np.arange(len(PUBLIC))

    return alignment


def digests_of(federation, steps, batch, count):
    """Mini-batches of the digest, as places among the inputs of a turn."""
    names = streams.name_keys(federation.names)

    def digests(t, i):
        words = streams.bits(streams.keys(SEED, "digest", t, names[[i]]), 0, steps * batch)
        return streams.below(words, np.full((1, 1), count))[0].reshape(steps, batch)

    return digests


# -- FedMD -----------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize(("m", "distance"), [(0, "absolute"), (6, "squared")])
def test_fedmd_is_algorithm_1(public, model, batching, m, distance):
    method = il.FedMd(
        lr=0.3, steps=4, digest_steps=3, digest_batch=5, alignment=m, distance=distance
    )
    case = Case(public, model, batching)
    one, data, start, *draws = case.first
    expected = fedmd(
        *([one] * N, data, [start] * N, *draws, 0.3, 4, PUBLIC.numpy(), alignment_of(m)),
        digests_of(public, 3, 5, m or len(PUBLIC)),
        distance,
    )
    assert_equals(run(method, public, model, batching=batching), expected, public, model)


@every_model
def test_fedmd_without_a_digest_has_the_models_of_local_for_those_heard(public, model):
    """Everyone is heard."""
    alone, tied = (
        outcome(run(m, public, model, sample=N))
        for m in (il.Local(lr=0.3, steps=4), il.FedMd(digest_steps=0, lr=0.3, steps=4))
    )
    np.testing.assert_array_equal(tied["personal"], alone["personal"])


def test_fedmd_sends_the_scores_of_the_public_inputs(public):
    sent = run(il.FedMd(steps=2), public).summary()["values"]
    assert sent["up"] == ROUNDS * SAMPLE * len(PUBLIC) * CLASSES
    some = run(il.FedMd(steps=2, alignment=4), public).summary()["values"]
    assert some["up"] == ROUNDS * SAMPLE * 4 * CLASSES


def test_fedmd_needs_public_inputs_and_logits(federation, public):
    with pytest.raises(il.SettingError, match=r"public must be inputs .* for fedmd, got none"):
        il.run(il.FedMd(), setting.task(), federation, rounds=1)
    with pytest.raises(il.SettingError, match="alignment must be at most the 11 public inputs"):
        run(il.FedMd(alignment=12), public)
    with pytest.raises(il.SettingError, match=r"loss must be one of classes .* got 'mse'"):
        helpers.run(il.FedMd(), helpers.regression(), helpers.linear(outputs=1, loss="mse"))


# -- FedTGP ----------------------------------------------------------------------------------------
def network_of(features):
    """The server's network at first, from its own streams."""
    keys = streams.keys(SEED, "prototypes", 0, streams.name_keys(NETWORK))
    shapes = [(CLASSES, features), (features, features), (features,), (features, features)]
    shapes.append((features,))
    parts = {}
    for k, (name, shape) in enumerate(zip(NETWORK, shapes, strict=True)):
        count = int(np.prod(shape))
        normal = streams.normal(keys[[k]], count)[0]
        uniform = (2 * streams.uniform(keys[[k]], count)[0] - 1) / np.sqrt(features)
        parts[name] = (normal if name == "embedding" else uniform).reshape(shape)
    return parts


def orders(t, e, n):
    return streams.bits(streams.keys(SEED, "prototypes", t), e * n, n)[0].argsort(kind="stable")


@every_model
@pytest.mark.parametrize(
    ("batch", "margin", "largest", "weighting"),
    [(4, "nearest", 100.0, "equal"), (0, "farthest", 0.3, "samples")],
)
def test_fedtgp_is_fedproto_with_trained_prototypes(
    federation, model, batch, margin, largest, weighting
):
    method = il.FedTgp(
        lr=0.3,
        steps=4,
        lam=2.0,
        server_epochs=5,
        server_batch=batch,
        prototype_lr=0.1,
        margin=margin,
        largest_margin=largest,
        weighting=weighting,
    )
    case = Case(federation, model)
    features = HIDDEN if model == "network" else FEATURES
    expected = fedtgp(
        *(*case.first, 0.3, 4, 2.0, network_of(features), orders),
        epochs=5,
        batch=batch,
        rate=0.1,
        largest=largest,
        margin=margin,
        weighting=weighting,
    )
    assert_equals(run(method, federation, model), expected, federation, model)


@every_model
def test_fedtgp_with_lambda_zero_has_the_models_of_local_for_those_heard(federation, model):
    """Everyone is heard."""
    alone, tied = (
        outcome(run(m, federation, model, sample=N))
        for m in (il.Local(lr=0.3, steps=4), il.FedTgp(lam=0, lr=0.3, steps=4, server_epochs=1))
    )
    np.testing.assert_array_equal(tied["personal"], alone["personal"])


def test_fedtgp_sends_what_fedproto_sends(federation):
    """Its network stays at the server."""
    sent = [
        run(method, federation, "network").summary()["values"]
        for method in (il.FedProto(steps=2), il.FedTgp(steps=2, server_epochs=1))
    ]
    assert sent[0] == sent[1]


def test_fedtgp_refuses_rules_that_would_have_nothing_to_combine(federation):
    with pytest.raises(il.SettingError, match=r"rule must be 'mean' for fedtgp.*by themselves"):
        run(il.FedTgp(), federation, rule="median")


def test_the_models_of_these_references_have_slopes_by_outputs():
    """What FedMD's reference differentiates by."""
    rng = np.random.default_rng(0)
    for by_hand in (m for _, m in MODELS.values()):
        x = rng.normal(size=100)[: by_hand.head().stop or 27]
        a, p = rng.normal(size=FEATURES), rng.normal(size=CLASSES)
        slope = [
            (by_hand.outputs(x + e, a) - by_hand.outputs(x - e, a)) @ p / 2e-6
            for e in 1e-6 * np.eye(len(x))
        ]
        np.testing.assert_allclose(by_hand.gradient_by_outputs(x, a, p), slope, atol=1e-8)
