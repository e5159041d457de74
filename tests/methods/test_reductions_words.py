"""Settings that make a method another one: it is said before the run, and it is true."""

import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.methods import METHODS, equal_to, make_method

LINEAR = il.Task(nn.Linear(60, 10))
NETWORK = il.Task(nn.Sequential(nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, 10)))
ADAPTED = il.Task(lambda: il.models.adapt(NETWORK.module, rank=2))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (il.Ffgg(), "all 610 parameters are private: nothing is sent; every client trains alone"),
        (il.Ffgg(start="kept"), "nothing is sent; this is Local"),
        (il.Ffgg(start="common"), "restarted from the initial model each time"),
        (il.LocalFfgg(), "all 610 parameters are private: nothing is sent"),
        (il.FedAlt(), "all 610 parameters are private: nothing is sent; this is Local"),
        (il.FedAlt(stateful=False), "restarted from the initial model in each round"),
        (il.FedSim(), "all 610 parameters are private: nothing is sent; this is Local"),
        (il.LgFedAvg(), "all 610 parameters are shared: this is FedAvg"),
        (il.FedSim(part="none"), "all 610 parameters are shared: this is FedAvg"),
        (il.FedAlt(part="none"), "this is FedAvg, and its private steps change nothing"),
        (il.Ffgg(part="none"), "this is FedAvg with one step per round"),
        (il.LocalFfgg(part="none"), "this is FedAvg, with clients that weigh the same"),
        (il.Ditto(lam=0), "lam is 0: the personal models are Local's"),
        (il.PFedMe(lam=0), "lam is 0: nothing is shared"),
        (il.LpProj(lam=0), "lam is 0: nothing is shared"),
        (il.L2gd(lam=0), "lam is 0: nothing is shared, and this is Local"),
        (il.Rsa(lam=0), "lam is 0: the personal models are Local's"),
        (il.FedProxSoft(lam=0), "lam is 0: the personal models are Local's"),
        (il.Cfl(eps1=0), "eps1 is 0: no group is ever divided: this is FedAvg"),
        (il.FedAmp(lam=0), "lam is 0: nothing pulls: this is Local"),
        (il.FedAmp(share=0), "share is 0: each model is pulled to itself"),
        (il.FedProx(mu=0), "mu is 0: this is FedAvg"),
        (il.FedDeper(rho=0), "rho is 0: the shared model is FedAvg's"),
        (il.Finetune(personal_steps=0), "personal_steps is 0: this is FedAvg"),
        (il.FedAvg(steps=0), "steps is 0: no model is trained"),
        (il.LpProj(steps=0), "steps is 0: the personal models stay as they start"),
        (il.Ditto(steps=0), "steps is 0: the shared model stays as it starts"),
        (il.FedProxSoft(steps=0), "steps is 0: the shared model stays as it starts"),
        (il.Dichotomy(steps=0), "steps is 0: FedAvg's model stays as it starts"),
        (il.Ffgg(part="bias", steps=0), "stays at a random start"),
        (il.FedPer(), "all 610 parameters are private: nothing is sent; this is Local"),
        (il.FedRep(), "all 610 parameters are private: nothing is sent; this is Local"),
        (il.FedBabu(), "nothing is sent; every client fine-tunes the initial model"),
        (il.FedPer(part="none"), "all 610 parameters are shared: this is FedAvg"),
        (il.FedBabu(part="none"), "this is FedAvg, fine-tuned before use"),
        (
            il.Apfl(alpha=1, alpha_lr=0),
            "alpha is 1 and alpha_lr is 0: the personal models",
        ),
        (il.Apfl(alpha=0, alpha_lr=0), "the personal models are the shared one"),
        (il.FedAla(weight_lr=0), "weight_lr is 0: this is FedAvg"),
        (il.Ifca(clusters=1), "clusters is 1: this is FedAvg"),
        (il.FedPac(combine=False, lam=0), "combine is 0 and lam is 0: each client's head"),
        (il.PFedBayes(zeta=0), "zeta is 0: nothing ties the posteriors"),
        (il.FedNova(epochs=0), "epochs is 0: all clients take the same number of steps"),
        (il.SlowMo(beta=0), "beta is 0 and server_rate is 1: this is FedAvg"),
    ],
    ids=str,
)
def test_a_reduction_is_named(method, says):
    assert says in equal_to(method, LINEAR)


@pytest.mark.parametrize("name", list(METHODS))
def test_no_method_is_another_at_its_defaults_on_a_model_with_two_layers_and_adapters(name):
    assert equal_to(make_method(name), ADAPTED) == ""


@pytest.mark.parametrize(
    "method",
    [
        *(il.FedAvg(steps=0, epochs=1), il.FedAlt(steps=0)),
        *(il.Apfl(alpha=1), il.SlowMo(beta=0, server_rate=0.5)),
    ],
    ids=str,
)
def test_what_still_trains_is_left_alone(method):
    """FedAlt without shared steps is the last stage of the papers' recipe."""
    assert equal_to(method, NETWORK) == ""


def final(method, rounds=4):
    """Test losses of all clients at the end."""
    data = il.data.load("synthetic", clients=4, samples=40, features=6, classes=3)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
    result = il.run(method, model, data, rounds=rounds, batching="full", dtype="float64")
    return torch.tensor([row["test_loss"] for row in result.seeds[0].clients])


LOCAL = il.Local(lr=0.2, steps=6)
FEDAVG = il.FedAvg(lr=0.2, steps=3)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        (il.FedAlt(private_lr=0.2, private_steps=6, steps=0), LOCAL),
        (il.FedSim(private_lr=0.2, steps=6), LOCAL),
        (il.Ditto(lam=0, personal_lr=0.2, personal_steps=6), LOCAL),
        (il.PFedMe(lam=0, personal_lr=0.2, steps=6, nu=0), LOCAL),
        (il.LpProj(lam=0, personal_lr=0.2, steps=6, nu=0, dim=3), LOCAL),
        (il.Rsa(lam=0, personal_lr=0.2, steps=6), LOCAL),
        (il.FedAmp(lam=0, lr=0.2, steps=6), LOCAL),
        (il.Cfl(eps1=0, lr=0.2, steps=3), il.FedAvg(lr=0.2, steps=3, weighting="equal")),
        (il.LgFedAvg(lr=0.2, steps=3), FEDAVG),
        (il.FedSim(part="none", lr=0.2, steps=3), FEDAVG),
        (il.FedAlt(part="none", lr=0.2, steps=3), FEDAVG),
        (il.FedProx(mu=0, lr=0.2, steps=3), FEDAVG),
        (il.Finetune(personal_steps=0, lr=0.2, steps=3), FEDAVG),
        (il.FedPer(lr=0.2, steps=6), LOCAL),
        (il.FedRep(private_lr=0.2, private_steps=6, steps=0), LOCAL),
        (il.FedPer(part="none", lr=0.2, steps=3), FEDAVG),
        (il.FedBabu(part="none", personal_steps=0, lr=0.2, steps=3), FEDAVG),
        (il.FedAla(part="weight", weight_lr=0, lr=0.2, steps=3), FEDAVG),
        (il.Ifca(clusters=1, lr=0.2, steps=3), FEDAVG),
        (il.FedNova(epochs=0, lr=0.2, steps=3), FEDAVG),
        (il.SlowMo(beta=0, lr=0.2, steps=3), FEDAVG),
        (il.Apfl(alpha=1, alpha_lr=0, lr=0.2, steps=6), LOCAL),
        (il.Ffgg(part="none", lr=0.2), il.FedAvg(lr=0.2, steps=1, weighting="equal")),
        (
            il.LocalFfgg(part="none", lr=0.2, local_steps=3),
            il.FedAvg(lr=0.2, steps=3, weighting="equal"),
        ),
    ],
    ids=str,
)
def test_what_is_said_is_true(method, other):
    assert equal_to(method, il.Task(nn.Linear(6, 3)))
    torch.testing.assert_close(final(method), final(other), rtol=1e-12, atol=1e-12)


def test_ffgg_with_everything_private_is_local_and_a_round_more():
    method = il.Ffgg(start="kept", private_lr=0.2, steps=6)
    torch.testing.assert_close(final(method, 3), final(LOCAL, 4), rtol=1e-12, atol=1e-12)


def test_ffgg_with_everything_private_and_a_common_start_has_no_use_for_rounds():
    method = il.Ffgg(start="common", private_lr=0.2, steps=6)
    alone = il.Ffgg(start="kept", private_lr=0.2, steps=6)
    data = il.data.load("synthetic", clients=4, samples=40, features=6, classes=3)
    task = il.Task(nn.Linear(6, 3))
    first, fourth = (il.run(method, task, data, rounds=n, batching="full") for n in (1, 4))
    assert first.summary()["loss"] == fourth.summary()["loss"]
    kept = il.run(alone, task, data, rounds=4, batching="full").summary()
    assert kept["train"]["loss"]["mean"] < fourth.summary()["train"]["loss"]["mean"]


def test_a_run_says_it_before_the_first_round_and_below_its_table(capsys):
    data = il.data.load("synthetic", clients=3, samples=30)
    result = il.run("ffgg", nn.Linear(60, 10), data, rounds=1)
    said = "ffgg: all 610 parameters are private: nothing is sent"
    assert f"warning: {said}" in capsys.readouterr().err
    assert said in " ".join(str(result).split())
    assert said in result.summary()["equal_to"]["warning"]
    assert result.summary()["values"] == {"up": 0, "down": 0}
