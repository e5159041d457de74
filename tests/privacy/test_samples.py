"""Privacy of single samples: noise on every gradient, counted by client."""

import math

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.privacy import Accountant
from idiolect.privacy.noise import Noise
from idiolect.privacy.samples import SampleExposure, sample_clipping
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.server.private_mean import SampleAccount

FEDERATION = il.data.load("digits", clients=6)
SIZES = FEDERATION.sizes("train").numpy()
DELTA = 1e-5
RATES = np.array([0.5, 0.11, 0.1, 0.01])


def model():
    return il.models.make("linear", (1, 8, 8), 10)


def run(method="fedavg", **settings):
    own = {"rounds": 3, "batch": 16, "privacy": "samples(noise=1)", "noise_source": "seed"}
    return il.run(method, model, FEDERATION, **(own | settings))


def session(method="fedavg", **settings):
    own = {"rounds": 3, "batch": 16, "privacy": "samples(noise=1)", "sample": 3}
    parts = prepare(
        il.make_method(method), il.Task(model), FEDERATION, Settings(**(own | settings))
    )
    return Session(parts, 0, 1)


def test_every_gradient_of_training_is_an_exposure_at_the_clients_own_rate():
    result = run("ditto", sample=3)
    rows = result.clients_table()
    for row, size in zip(rows, SIZES, strict=True):
        exact = Accountant(1.0, min(1.0, 16 / size)).epsilon(row["gradients"], DELTA)
        assert exact <= row["epsilon"] <= 1.3 * exact
    spent = result.summary()["privacy"]
    assert (
        spent["unit"] == "sample"
        and spent["epsilon"]["worst"]
        >= max(
            Accountant(1.0, 16 / n).epsilon(r["gradients"], DELTA)
            for r, n in zip(rows, SIZES, strict=True)
        )
        - 1e-9
    )


def test_noise_has_the_stated_deviation_and_is_on_the_sum():
    clipping = sample_clipping(0.5, 2.0, Noise("secret"))
    batch = type("Drawn", (), {"noise_keys": (np.zeros(4, dtype=np.uint64), 1)})()
    noise = clipping.noise(torch.zeros(4, 50_000), batch)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.01)
    assert abs(float(np.corrcoef(noise[:2].numpy())[0, 1])) < 0.02


def test_calibrated_noise_stays_within_the_budget_for_the_planned_gradients():
    plan = session("fedavg", privacy="samples", epsilon=4.0).server.privacy.plan
    worst = plan.samples.worst(plan.noise, plan.samples.planned, plan.delta)
    assert 0.97 * 4 < worst <= 4
    result = run(privacy="samples", epsilon=4.0, sample=3)
    assert result.summary()["privacy"]["epsilon"]["worst"] <= 4


def test_a_budget_with_given_noise_stops_the_run_before_it_is_passed():
    result = run(privacy="samples(noise=0.8)", epsilon=6.0, rounds=50)
    (seed,) = result.seeds
    assert seed.stopped == "epsilon" and 0 < seed.rounds < 50
    assert seed.privacy["epsilon"]["worst"] <= 6


def test_the_worst_client_is_never_rounded_down():
    exposure = SampleExposure(RATES, np.zeros(4, dtype=np.int64), 16)
    counts = np.array([3, 40, 50, 500])
    exact = [Accountant(1.0, q).epsilon(int(n), DELTA) for q, n in zip(RATES, counts, strict=True)]
    assert max(exact) - 1e-9 <= exposure.worst(1.0, counts, DELTA) <= 1.1 * max(exact)
    assert (exposure.each(1.0, counts, DELTA) >= np.minimum(exact, max(exact)) - 1e-9).all()
    assert exposure.at_most(1.0, counts, DELTA) >= max(exact) - 1e-9


def test_a_killed_round_counts_for_those_that_were_asked_again():
    account = session().server.privacy
    assert isinstance(account, SampleAccount)
    everyone = torch.arange(6)
    account.count_killed(everyone[:3])
    account.begin(0, everyone, everyone[:3])
    account.gradients(everyone[:3], torch.tensor([5, 5, 5]))
    account.end(everyone[:3])
    assert account.exposures.tolist()[:3] == [10, 10, 10]


def test_a_client_that_has_not_reported_counts_with_the_most_of_the_others():
    account = session().server.privacy
    everyone = torch.arange(6)
    account.begin(0, everyone, everyone[:3])
    account.gradients(everyone[:2], torch.tensor([4, 7]))
    account.end(everyone[:3])
    assert account.exposures.tolist() == [4, 7, 7, 0, 0, 0]


def test_mini_batches_are_drawn_from_a_secret_of_the_host():
    draws = []
    for _ in range(2):
        host = session().local_hosts[0]
        batch = host.here(torch.arange(3), 0, "batch", 16).draw()
        draws.append(batch.inputs.sum().item())
    assert draws[0] != draws[1]
    seeded = [session(noise_source="seed").local_hosts[0]._batch_seed for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_the_same_seed_repeats_a_run_whose_noise_comes_from_it():
    one, other = run().summary(), run().summary()
    assert one["accuracy"] == other["accuracy"] and one["loss"] == other["loss"]


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("fedproto", {}, "depend on the data in other ways than by gradients"),
        ("lp-proj", {}, "it must draw another"),
        ("fedavg", {"batching": "epochs"}, "batching must be 'poisson'"),
        ("fedavg", {"schedule": "batch=step:2:0.5"}, "schedule"),
        ("fedavg", {"privacy": "samples(noise=0.001)"}, "noise must be 0 or a number >= 0.05"),
    ],
)
def test_what_would_not_be_counted_is_refused(method, settings, words):
    with pytest.raises(il.SettingError, match=words):
        run(method, **settings)


def test_a_model_that_mixes_samples_is_refused():
    def mixing():
        return torch.nn.Sequential(
            torch.nn.Flatten(1),
            torch.nn.Linear(64, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 10),
        )

    with pytest.raises(il.SettingError, match="use GroupNorm"):
        il.run("fedavg", mixing, FEDERATION, rounds=1, privacy="samples(noise=1)")


def test_without_much_noise_it_learns_and_with_much_it_does_not():
    quiet = run(privacy="samples(noise=0.05)", rounds=20).summary()["accuracy"]["mean"]
    loud = run(privacy="samples(noise=200)", rounds=20).summary()["accuracy"]["mean"]
    assert quiet > 0.5 > loud and math.isfinite(loud)
