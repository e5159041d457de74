"""Where methods of other papers become FedAvg, Local, gradient descent or each other.

Bit for bit where no rounding stands between.
"""

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

import helpers
import idiolect as il
from helpers import state_of
from idiolect import testing
from idiolect.core import streams
from idiolect.host.host import Host
from idiolect.task.context import Here
from idiolect.wire import messages as wire
from methods.common import N, every_batching, every_model, every_weighting
from reference import setting
from reference.setting import BATCH, CLASSES, MODELS, ROUNDS, SAMPLE, SEED, outcome, run

CPU = torch.device("cpu")


def same(a, b):
    np.testing.assert_array_equal(a, b)


def close(a, b, atol=1e-12):
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def global_model(method, federation, model="logistic", **settings):
    after = outcome(run(method, federation, model, **settings))
    return after.get("server w", after.get("server theta"))


def mean_loss_descent(federation, model, lr, rounds=ROUNDS):
    """Gradient descent on (1/N) sum_i f_i, each f_i the mean loss of a client."""
    by_hand = MODELS[model][1]
    data = setting.draws(federation).data
    w = setting.start(model)
    for _ in range(rounds):
        w = w - lr * sum(by_hand.gradient(w, X, y) for X, y in data) / len(data)
    return w


# -- pFedMe and lp-proj ----------------------------------------------------------------------------
@every_model
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "more",
    [{}, {"nu": 0.05, "steps": 9}, {"server_rate": 0.7, "weighting": "samples"}, {"init": "own"}],
)
def test_lpproj_with_p_2_and_no_projection_is_pfedme_to_the_bit_from_the_same_start(
    federation, model, fresh, more
):
    fields = {
        "lam": 0.8,
        "lr": 0.3,
        "personal_lr": 0.2,
        "alternations": 3,
        "steps": 4,
        "nu": 0.0,
        "fresh": fresh,
    } | more
    whole = il.LpProj(p=2, projection="identity", dim=0, w_start="x0", **fields)
    tied = outcome(run(whole, federation, model))
    expected = outcome(run(il.PFedMe(**fields), federation, model))
    assert set(tied) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(tied[name], value, err_msg=name)


# -- to Local --------------------------------------------------------------------------------------
@every_model
@every_batching
def test_without_lambda_pfedme_lpproj_ditto_and_rsa_have_the_personal_models_of_local(
    federation, model, batching
):
    alone = outcome(run(il.Local(lr=0.2, steps=6), federation, model, batching=batching))[
        "personal"
    ]
    steps = {"personal_lr": 0.2, "steps": 2, "alternations": 3, "fresh": True}
    for method in (
        il.PFedMe(lam=0, **steps),
        il.LpProj(lam=0, dim=5, **steps),
        il.Ditto(lam=0, steps=0, personal_lr=0.2, personal_steps=6),
        il.Rsa(lam=0, personal_lr=0.2, steps=6),
    ):
        same(outcome(run(method, federation, model, batching=batching))["personal"], alone)


@every_model
def test_without_lambda_the_shared_model_of_pfedme_and_rsa_stays(federation, model):
    for method in (il.PFedMe(lam=0), il.Rsa(lam=0), il.Rsa(lam=0, server_step="mean")):
        close(global_model(method, federation, model), setting.start(model))


@every_model
@pytest.mark.parametrize("p", [0.2, 0.6])
def test_l2gd_with_lambda_zero_is_local_with_the_same_number_of_steps(federation, model, p):
    result = run(il.L2gd(lam=0, lr=0.1, p=p), federation, model, rounds=5)
    task = result.session().contract.task
    data = federation.to("cpu", torch.float64)
    of_run = {
        "clients": streams.name_keys(federation.names),
        "seed": SEED,
        "batch": BATCH,
        "batching": "replace",
        "dtype": torch.float64,
    }
    x = {"x": task.x0.repeat(N, 1)}
    steps = []
    for t in range(5):
        u = streams.uniform(streams.keys(SEED, "l2gd", t), 2)[0, 1]
        steps.append(next(k for k in range(1, 1000) if u < 1 - (1 - p) ** k))
        here = Here(data, torch.arange(N), round=t, **of_run)
        _, x = il.Local(lr=0.1 / (1 - p), steps=steps[-1]).update(task, {}, x, here)
    assert len(set(steps)) > 1
    after = outcome(result)
    close(after["personal"], x["x"].numpy())
    same(after["gradients"], np.full(N, sum(steps)))


@every_model
@pytest.mark.parametrize("solver", ["sgd", "gd"])
def test_ffgg_with_everything_private_and_kept_is_local(federation, model, solver):
    settings = {"sample": N, "batching": "replace" if solver == "sgd" else "full"}
    alone = outcome(run(il.Local(lr=0.2, steps=4), federation, model, **settings))
    method = il.Ffgg(part="all", solver=solver, start="kept", private_lr=0.2, steps=4)
    same(outcome(run(method, federation, model, **settings))["private w"], alone["private x"])


@every_model
def test_fedalt_and_fedsim_with_everything_private_are_local(federation, model):
    alone = outcome(run(il.Local(lr=0.2, steps=4), federation, model, sample=N))["personal"]
    for method in (
        il.FedAlt(part="all", private_lr=0.2, private_steps=4),
        il.FedSim(part="all", private_lr=0.2, steps=4),
    ):
        same(outcome(run(method, federation, model, sample=N))["personal"], alone)


# -- to FedAvg -------------------------------------------------------------------------------------
@every_model
@every_weighting
def test_with_everything_shared_lg_fedavg_fedsim_and_fedalt_are_fedavg(
    federation, model, weighting
):
    shared = outcome(run(il.FedAvg(lr=0.3, steps=4, weighting=weighting), federation, model))
    fields = {"lr": 0.3, "steps": 4, "weighting": weighting}
    for method in (
        il.LgFedAvg(shared_part="all", **fields),
        il.FedSim(part="none", **fields),
        il.FedAlt(part="none", private_steps=0, **fields),
    ):
        after = outcome(run(method, federation, model))
        same(after["server theta"], shared["server w"])
        same(after["personal"], shared["personal"])
        same(after["gradients"], shared["gradients"])


@every_model
def test_local_ffgg_with_nothing_private_is_fedavg_with_equal_weights(federation, model):
    """Full batches: Algorithm 4 spends a gradient on line 6 even with nothing for it to move."""
    method = il.LocalFfgg(part="none", lr=0.3, local_steps=4)
    fedavg = il.FedAvg(lr=0.3, steps=4, weighting="equal")
    close(*(global_model(m, federation, model, batching="full") for m in (method, fedavg)))


@every_model
@every_batching
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_step_of_everyone_is_fedavg_with_one_step(
    federation, model, batching, option
):
    scaffold = il.Scaffold(lr=0.3, steps=1, server_rate=1, option=option)
    fedavg = il.FedAvg(lr=0.3, steps=1, weighting="equal")
    close(
        *(
            global_model(m, federation, model, batching=batching, sample=N)
            for m in (scaffold, fedavg)
        )
    )


@every_model
@every_batching
def test_feddeper_with_rho_zero_has_the_global_model_of_fedavg(federation, model, batching):
    deper = il.FedDeper(lr=0.2, rho=0, steps=4)
    fedavg = il.FedAvg(lr=0.2, steps=4, weighting="equal")
    close(*(global_model(m, federation, model, batching=batching) for m in (deper, fedavg)))


@every_model
@every_batching
def test_scaffnew_that_always_communicates_is_fedavg_with_one_step(federation, model, batching):
    scaffnew = il.Scaffnew(lr=0.3, p=1)
    fedavg = il.FedAvg(lr=0.3, steps=1, weighting="equal")
    close(
        *(
            global_model(m, federation, model, batching=batching, sample=N)
            for m in (scaffnew, fedavg)
        )
    )


@every_model
@every_weighting
def test_finetune_with_no_steps_is_fedavg_and_ditto_has_its_shared_model(
    federation, model, weighting
):
    fedavg = outcome(run(il.FedAvg(lr=0.3, steps=4, weighting=weighting), federation, model))
    setting.assert_same(
        outcome(
            run(
                il.Finetune(lr=0.3, steps=4, weighting=weighting, personal_steps=0),
                federation,
                model,
            )
        ),
        fedavg,
    )
    same(
        global_model(il.Finetune(lr=0.3, steps=4, weighting=weighting), federation, model),
        fedavg["server w"],
    )
    same(
        global_model(il.Ditto(lr=0.3, steps=4, weighting=weighting), federation, model),
        fedavg["server w"],
    )


@every_model
@pytest.mark.parametrize("hessian", ["first-order", "finite", "exact"])
def test_per_fedavg_without_adaptation_is_fedavg(federation, model, hessian):
    """A step of size 1e-14 in place of none; full batches, as Per-FedAvg draws more of them."""
    meta = il.PerFedAvg(lr=0.3, personal_lr=1e-14, steps=4, hessian=hessian, weighting="samples")
    close(
        *(
            global_model(m, federation, model, batching="full")
            for m in (meta, il.FedAvg(lr=0.3, steps=4))
        )
    )


def test_the_dichotomy_without_local_steps_has_fedavgs_model():
    data = testing.federation()  # with validation data
    task = testing.task()
    close(
        *(
            state_of(helpers.run(method, data, task))["w"]
            for method in (
                il.Dichotomy(lr=0.3, steps=4, personal_steps=0),
                il.FedAvg(lr=0.3, steps=4),
            )
        )
    )


# -- to gradient descent and centralised SGD -------------------------------------------------------
@every_model
@pytest.mark.parametrize("rho", [0.0, 0.3])
@pytest.mark.parametrize("same_batch", [True, False])
def test_feddeper_with_one_step_and_lambda_1_is_centralised_sgd(federation, model, rho, same_batch):
    """Its Remark 3: with everyone heard, the mean of the v's is x; the penalty has no effect."""
    method = il.FedDeper(lr=0.2, steps=1, rho=rho, lam=1, same_batch=same_batch)
    close(
        global_model(method, federation, model, batching="full", sample=N),
        mean_loss_descent(federation, model, 0.2),
    )


def test_feddeper_with_one_step_and_lambda_below_1_is_not_centralised_sgd(federation):
    method = il.FedDeper(lr=0.2, steps=1, rho=0.3, lam=0.5)
    away = global_model(method, federation, batching="full", sample=N) - mean_loss_descent(
        federation, "logistic", 0.2
    )
    assert np.abs(away).max() > 1e-3


@every_model
def test_ffgg_with_nothing_private_is_gradient_descent_on_the_mean_loss(federation, model):
    for solver in ("sgd", "gd", "adam", "cg", "newton"):
        method = il.Ffgg(part="none", lr=0.4, solver=solver)
        close(
            global_model(method, federation, model, batching="full", sample=N),
            mean_loss_descent(federation, model, 0.4),
        )


@every_model
def test_scaffnew_that_always_communicates_is_gradient_descent_on_the_mean_loss(federation, model):
    close(
        global_model(il.Scaffnew(lr=0.4, p=1), federation, model, batching="full"),
        mean_loss_descent(federation, model, 0.4),
    )


@pytest.mark.parametrize("method", [il.Scaffnew(lr=0.5, p=0.3), il.Scaffold(lr=0.05, steps=8)])
def test_scaffnew_and_scaffold_with_all_data_reach_the_minimum_of_the_mean_loss_where_fedavg_drifts(
    method,
):
    """Their fixed point is that of gradient descent, however many local steps: no gradient."""
    federation = setting.make_federation(sizes=(30,) * 4)
    by_hand = MODELS["logistic"][1]
    parts = setting.draws(federation).data
    settings = {"batching": "full", "sample": 4, "rounds": 200, "weight_decay": 0.5}

    def slope(method):
        w = global_model(method, federation, **settings)
        return np.abs(sum(by_hand.gradient(w, X, y) + 0.5 * w for X, y in parts) / 4).max()

    assert slope(method) < 1e-8
    assert slope(il.FedAvg(lr=0.5, steps=8)) > 1e-3


@every_model
@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold I", "scaffold II", "finetune"])
def test_with_one_client_the_global_model_is_centralised_sgd(model, name):
    fields = {"lr": 0.2, "steps": 5}
    method = {
        "fedavg": il.FedAvg(**fields),
        "ditto": il.Ditto(**fields),
        "scaffold I": il.Scaffold(**fields, option="I"),
        "scaffold II": il.Scaffold(**fields),
        "finetune": il.Finetune(**fields),
    }[name]
    alone = setting.make_federation(sizes=(40,))
    by_hand = MODELS[model][1]
    draws = setting.draws(alone)
    w = setting.start(model)
    X, y = draws.data[0]
    for t in range(ROUNDS):
        batches = draws.batches(t, 0)
        for _ in range(5):
            I = next(batches)
            w = w - 0.2 * by_hand.gradient(w, X[I], y[I])
    close(global_model(method, alone, model, sample=1), w)


# -- what RSA bounds -------------------------------------------------------------------------------
def shared_models(method, federation, monkeypatch, **settings):
    """w as the server sent it in every round, and after the last."""
    seen = []
    updates = Host.updates

    def noting(self, order):
        contract = self.contract
        down = wire.open_down(contract.down, order.down.common, contract.run, order.version, CPU)
        seen.append(down["w"].numpy())
        return updates(self, order)

    monkeypatch.setattr(Host, "updates", noting)
    last = global_model(method, federation, **settings)
    monkeypatch.undo()
    return np.array([*seen, last])


@pytest.mark.parametrize(
    ("server_step", "bound"),
    [("sum", 0.3 * 0.05 * SAMPLE), ("sum-new", 0.3 * 0.05 * SAMPLE), ("mean", 0.3 * 0.05)],
)
def test_rsa_1_moves_the_shared_model_by_at_most_lr_lambda_from_each_client(
    federation, monkeypatch, server_step, bound
):
    method = il.Rsa(p=1, lr=0.3, lam=0.05, server_step=server_step)
    w = shared_models(method, federation, monkeypatch, rounds=8)
    moves = np.abs(np.diff(w, axis=0))
    assert moves.shape == (8, 15)
    assert moves.max() == pytest.approx(bound, abs=1e-12)  # the bound, and it is reached


@pytest.mark.parametrize("sent", [0.0, 1e300, -1e300])
def test_whatever_a_client_sends_rsa_1_moves_by_at_most_lr_lambda(sent):
    task = setting.task().under(dtype=torch.float64)
    method = il.Rsa(p=1, lr=0.3, lam=0.05)
    server = method.server(task)
    honest = server["w"] + torch.linspace(-1, 1, 3, dtype=torch.float64).unsqueeze(1)
    with_malicious = torch.cat([honest, torch.full_like(honest[:1], sent)])

    def step(rows):
        rule = testing.PlainMean(method, torch.ones(len(rows)), clients=len(rows))
        return method.aggregate(task, server, {"w": rows}, rule)["w"]

    assert (step(with_malicious) - step(honest)).abs().max() <= 0.3 * 0.05 + 1e-12


# -- what the dichotomy promises -------------------------------------------------------------------
@every_model
def test_the_dichotomy_at_level_client_is_never_worse_on_validation_data_than_fedavg_or_local(
    model,
):
    rng = np.random.default_rng(3)
    owner = np.repeat(np.arange(8), rng.integers(30, 60, size=8))
    rules = rng.normal(size=(8, CLASSES, setting.FEATURES)) * (np.arange(8) % 2)[
        :, None, None
    ] + rng.normal(size=(CLASSES, setting.FEATURES))
    X = torch.from_numpy(rng.normal(size=(len(owner), setting.FEATURES)))
    y = np.einsum("ncf,nf->nc", rules[owner], X.numpy()).argmax(1)
    federation = il.Federation.from_arrays(X, y, [f"c{k}" for k in owner], classes=CLASSES)
    assert int(federation.sizes("valid").min()) > 0
    result = run(
        il.Dichotomy(lr=0.3, steps=5, personal_lr=0.3, personal_steps=5, level="client"),
        federation,
        model,
    )
    after = outcome(result)
    by_hand = MODELS[model][1]

    def errors(models):
        parts = [federation.part(k, "valid") for k in range(8)]
        return np.array(
            [
                1 - by_hand.hits(x, X.numpy(), y.numpy()) / len(y)
                for x, (X, y) in zip(models, parts, strict=True)
            ]
        )

    used, shared, local = (
        errors(m) for m in (after["personal"], [after["server w"]] * 8, after["private x"])
    )
    same(used, np.minimum(shared, local))
    assert (shared < local).any() and (local < shared).any()  # there is something to choose


def test_a_personal_model_of_ffgg_is_solved_anew_and_not_kept(federation):
    """Stateless: a client that was never sampled has a model as good as any.

    Asking twice gives the same one.
    """
    result = run(il.Ffgg(part="output", steps=30), federation, "network")
    heard = {i for cohort in setting.draws(federation).cohorts(ROUNDS, SAMPLE) for i in cohort}
    stranger = next(k for k in range(N) if k not in heard)
    once, twice = (
        parameters_to_vector(result.personal(federation.ids[stranger]).parameters())
        .detach()
        .numpy()
        for _ in range(2)
    )
    same(once, twice)
    by_hand = MODELS["network"][1]
    X, y = setting.draws(federation).data[stranger]
    assert by_hand.loss(once, X, y) < by_hand.loss(setting.start("network"), X, y)
    assert outcome(result)["private w"].shape == (N, 0)
