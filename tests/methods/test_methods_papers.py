"""The methods of other papers do what those papers say.

Each equals its plain NumPy reference, written from the paper's pseudo-code.
"""

import json
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from idiolect.cli.main import main
from idiolect.core import streams
from idiolect.methods import METHODS
from reference import setting
from reference.dichotomy import dichotomy
from reference.ditto import ditto
from reference.fedalt import pillutla
from reference.fedavg import fedavg
from reference.feddeper import feddeper
from reference.ffgg import ffgg
from reference.finetune import finetune
from reference.l2gd import l2gd
from reference.lgfedavg import lgfedavg
from reference.perfedavg import hessian_product, perfedavg
from reference.pfedme import pfedme
from reference.regression import Linear, least_squares
from reference.rsa import rsa
from reference.scaffnew import scaffnew
from reference.scaffold import scaffold
from reference.setting import (
    CLASSES,
    FEATURES,
    HIDDEN,
    MODELS,
    ROUNDS,
    SAMPLE,
    SEED,
    SIZES,
    assert_same,
    outcome,
    run,
)

N = len(SIZES)
LOGISTIC = MODELS["logistic"][1]
every_model = pytest.mark.parametrize("model", MODELS)
every_batching = pytest.mark.parametrize("batching", ["replace", "epochs", "full"])
every_weighting = pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])

# coordinates of the flat models, counted by hand: weights of a layer, then its biases
BETWEEN = FEATURES * HIDDEN + HIDDEN
PARTS = {
    ("network", "input"): np.arange(BETWEEN),
    ("network", "output"): np.arange(BETWEEN, BETWEEN + HIDDEN * CLASSES + CLASSES),
    ("logistic", "weight"): np.arange(FEATURES * CLASSES),
    ("logistic", "bias"): np.arange(FEATURES * CLASSES, (FEATURES + 1) * CLASSES),
}
every_part = pytest.mark.parametrize(("model", "part"), PARTS)


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()


def assert_equals(result, reference, federation, model="logistic", tolerance=1e-10):
    """A run leaves behind what the reference says, and clients spent as much before use."""
    reference = dict(reference)
    deployment = reference.pop("deployment", np.zeros(N, dtype=int))
    expected = reference | {
        "accuracy": setting.pooled_accuracy(MODELS[model][1], reference["personal"], federation)
    }
    assert_same(outcome(result), expected, tolerance)
    np.testing.assert_array_equal(setting.deployment(result), deployment)


class Case:
    """What a reference takes first: model, data, start, cohorts, batches.

    And the mini-batches that clients draw before use.
    """

    def __init__(self, federation, model="logistic", batching="replace", sample=SAMPLE):
        self.draws = setting.draws(federation, batching)
        self.model = MODELS[model][1]
        self.data = self.draws.data
        self.start = setting.start(model)
        self.cohorts = self.draws.cohorts(ROUNDS, sample)
        self.batches = self.draws.batches
        self.first = (self.model, self.data, self.start, self.cohorts, self.batches)
        self.about = (self.model, self.data, self.start)

    def last_batches(self, i):
        return self.draws.batches(ROUNDS, i, "personal")

    def run_of(self, counts):
        """i -> the mini-batches of client i over the whole run, counts[t] of them in round t."""
        return lambda i: chain.from_iterable(
            islice(self.batches(t, i), k) for t, k in enumerate(counts)
        )


def coins(purpose, t, count):
    """The numbers in [0, 1) that all clients share in round t."""
    return streams.uniform(streams.keys(SEED, purpose, t), count)[0]


def trials(u, p):
    """Trials until the first success, read from one uniform number: k with p (1 - p)^(k - 1)."""
    k = 1
    so_far = p
    while u >= so_far:
        so_far += p * (1 - p) ** k
        k += 1
    return k


# -- the references themselves ---------------------------------------------------------------------
def test_the_hessian_written_by_hand_is_the_slope_of_the_gradient(federation):
    X, y = setting.draws(federation).data[3]
    x = setting.start()
    rng = np.random.default_rng(0)
    v = rng.normal(size=len(x))
    target = rng.normal(size=len(y))
    slope = (LOGISTIC.gradient(x + 1e-5 * v, X, y) - LOGISTIC.gradient(x - 1e-5 * v, X, y)) / 2e-5
    np.testing.assert_allclose(hessian_product(LOGISTIC, x, v, X, y), slope, atol=1e-8)
    model = Linear()
    x = x[: FEATURES + 1]
    v = v[: FEATURES + 1]
    slope = [
        (model.loss(x + e, X, target) - model.loss(x - e, X, target)) / 2e-5
        for e in 1e-5 * np.eye(len(x))
    ]
    np.testing.assert_allclose(model.gradient(x, X, target), slope, atol=1e-8)
    slope = (model.gradient(x + v, X, target) - model.gradient(x - v, X, target)) / 2
    np.testing.assert_allclose(model.hessian_product(x, v, X, target), slope, atol=1e-12)


def test_shared_coins_are_uniform_and_their_waiting_times_geometric():
    u = np.array([coins("l2gd", t, 2) for t in range(4000)])
    assert abs(u.mean() - 0.5) < 0.01 and abs(np.corrcoef(u.T)[0, 1]) < 0.05
    for p in (0.2, 0.7):
        k = np.array([trials(v, p) for v in u[:, 0]])
        assert k.mean() == pytest.approx(1 / p, rel=0.05) and np.mean(k == 1) == pytest.approx(
            p, abs=0.03
        )


# -- Ditto -----------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("who", ["everyone", "sampled"])
def test_ditto_is_algorithm_1_whoever_trains(federation, model, batching, who):
    method = il.Ditto(lr=0.3, personal_lr=0.2, steps=3, personal_steps=4, lam=0.7, who=who)
    expected = ditto(*Case(federation, model, batching).first, 0.3, 0.2, 3, 4, lam=0.7, who=who)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_ditto_weighs_the_shared_models_as_it_is_told(federation, weighting):
    method = il.Ditto(
        lr=0.3, personal_lr=0.2, steps=3, personal_steps=4, lam=0.7, weighting=weighting
    )
    expected = ditto(
        *Case(federation).first, 0.3, 0.2, 3, 4, lam=0.7, who="everyone", weighting=weighting
    )
    assert_equals(run(method, federation), expected, federation)


# -- pFedMe ----------------------------------------------------------------------------------------
def a_pfedme(**fields):
    return il.PFedMe(
        **({"lr": 0.3, "personal_lr": 0.2, "lam": 0.8, "steps": 4, "nu": 0.0} | fields)
    )


def pfedme_reference(case, **fields):
    fields = {
        "lr": 0.3,
        "personal_lr": 0.2,
        "lam": 0.8,
        "R": 1,
        "steps": 4,
        "nu": 0.0,
        "beta": 1.0,
    } | fields
    return pfedme(*case.first, **fields)


@every_model
@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_pfedme_is_algorithm_1(federation, model, R, fresh, reset):
    result = run(
        a_pfedme(alternations=R, fresh=fresh, reset=reset, server_rate=0.7), federation, model
    )
    expected = pfedme_reference(Case(federation, model), R=R, fresh=fresh, reset=reset, beta=0.7)
    assert_equals(result, expected, federation, model)


@every_batching
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_pfedme_is_algorithm_1_for_every_batching_and_weighting(federation, batching, weighting):
    result = run(a_pfedme(alternations=2, weighting=weighting), federation, batching=batching)
    assert_equals(
        result,
        pfedme_reference(Case(federation, batching=batching), R=2, weighting=weighting),
        federation,
    )


@every_model
@pytest.mark.parametrize("reset", [False, True])
def test_pfedme_stops_each_envelope_where_its_squared_gradient_is_small(federation, model, reset):
    expected = pfedme_reference(Case(federation, model), R=3, nu=0.05, steps=9, reset=reset)
    assert (
        expected["gradients"].max() < ROUNDS * 3 * 9 and len(set(expected["gradients"])) > 3
    )  # all stop early, not all alike
    assert_equals(
        run(a_pfedme(alternations=3, nu=0.05, steps=9, reset=reset), federation, model),
        expected,
        federation,
        model,
    )


# -- Per-FedAvg ------------------------------------------------------------------------------------
def check_perfedavg(federation, model, hessian, batching="replace", weighting="samples"):
    case = Case(federation, model, batching)
    method = il.PerFedAvg(
        lr=0.3, personal_lr=0.2, steps=3, adapt_steps=2, hessian=hessian, weighting=weighting
    )
    expected = perfedavg(*case.first, case.last_batches, 0.3, 0.2, 3, 2, weighting, hessian)
    assert_equals(
        run(method, federation, model, batching=batching),
        expected | {"deployment": np.full(N, 2)},
        federation,
        model,
    )


@every_model
@every_batching
@pytest.mark.parametrize("hessian", ["first-order", "finite"])
def test_per_fedavg_is_algorithm_1_without_second_derivatives(federation, model, batching, hessian):
    check_perfedavg(federation, model, hessian, batching)


@every_weighting
def test_per_fedavg_is_algorithm_1_with_the_exact_hessian(federation, weighting):
    check_perfedavg(federation, "logistic", "exact", weighting=weighting)


def test_per_fedavgs_exact_meta_gradient_is_the_slope_of_the_loss_after_a_step(federation):
    """With full batches and one client: the derivative of F(w) = f(w - alpha grad f(w)).

    By differences of F itself.
    """
    alone = setting.make_federation(sizes=(15,))
    result = outcome(
        run(
            il.PerFedAvg(lr=1.0, personal_lr=0.2, steps=1, hessian="exact"),
            alone,
            batching="full",
            sample=1,
            rounds=1,
        )
    )
    X, y = setting.draws(alone).data[0]
    w = setting.start()

    def after(w):
        return LOGISTIC.loss(w - 0.2 * LOGISTIC.gradient(w, X, y), X, y)

    slope = [(after(w + e) - after(w - e)) / 2e-5 for e in 1e-5 * np.eye(len(w))]
    np.testing.assert_allclose(w - result["server w"], slope, atol=1e-8)


@pytest.mark.parametrize(
    "name", [name for name, (cls, _) in METHODS.items() if "epochs" in cls.__dataclass_fields__]
)
def test_a_method_with_a_field_for_passes_over_the_data_takes_them_or_refuses_them(
    federation, name
):
    try:
        spent = outcome(
            run(METHODS[name][0](steps=1, epochs=2), federation, batching="epochs", sample=N)
        )["gradients"]
    except il.SettingError as refused:
        assert "epochs" in str(refused)
    else:
        assert spent[np.argmax(SIZES)] > spent[np.argmin(SIZES)]  # 4 batches per pass, and 1


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


# -- RSA -------------------------------------------------------------------------------------------
def check_rsa(federation, factors=(1,) * ROUNDS, model="logistic", **fields):
    fields = {"p": 1, "lam": 0.05, "steps": 4, "decay": 0.0, "server_step": "sum"} | fields
    settings = {} if set(factors) == {1} else {"schedule": "exp:0.5"}
    rates = [0.3 * f for f in factors]
    personal_rates = [0.2 * f for f in factors]
    expected = rsa(*Case(federation, model).first, rates, personal_rates, **fields)
    assert_equals(
        run(il.Rsa(lr=0.3, personal_lr=0.2, **fields), federation, model, **settings),
        expected,
        federation,
        model,
    )


@pytest.mark.parametrize("p", [1, 1.5, 2])
@pytest.mark.parametrize("server_step", ["sum", "mean"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rsa_steps_along_the_gradient_of_the_norm_at_clients_and_server(
    federation, p, server_step, decay
):
    check_rsa(federation, p=p, server_step=server_step, decay=decay)


@pytest.mark.parametrize("p", [1, 1.5, 2])
def test_rsa_is_its_algorithm_for_a_network_and_for_a_single_step_per_round(federation, p):
    check_rsa(federation, model="network", p=p)
    check_rsa(federation, p=p, steps=1)


@pytest.mark.parametrize("server_step", ["sum", "mean"])
def test_a_schedule_scales_the_rate_of_rsa_at_clients_and_server(federation, server_step):
    check_rsa(federation, factors=[0.5**t for t in range(ROUNDS)], server_step=server_step)


# -- L2GD ------------------------------------------------------------------------------------------
def check_l2gd(federation, p, model="logistic", sample=SAMPLE, literal=False, weighting="equal"):
    case = Case(federation, model, sample=sample)
    u = [coins("l2gd", t, 2) for t in range(ROUNDS)]
    gradient_steps = [trials(b, p) for _, b in u]
    mean_steps = [0] + [
        trials(a, 1 - p) for a, _ in u[1:]
    ]  # all models are equal at the start: a mean step would change nothing
    xi = [c for m, k in zip(mean_steps, gradient_steps, strict=True) for c in [1] * m + [0] * k]
    expected = l2gd(
        *case.about,
        xi,
        case.cohorts,
        case.run_of(gradient_steps),
        lr=0.05,
        lam=0.8,
        p=p,
        weighting=weighting,
        literal=literal,
    )
    result = run(
        il.L2gd(lr=0.05, lam=0.8, p=p, weighting=weighting), federation, model, sample=sample
    )
    assert_equals(result, expected, federation, model)
    return mean_steps, gradient_steps


@every_model
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_l2gd_is_algorithm_1_with_the_mean_of_those_heard(federation, model, weighting):
    check_l2gd(federation, 0.4, model, weighting=weighting)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_l2gd_with_everyone_heard_is_algorithm_1_to_the_letter(federation, p):
    mean_steps, gradient_steps = check_l2gd(federation, p, sample=N, literal=True)
    assert max(mean_steps) > 1 or max(gradient_steps) > 1


# -- SCAFFOLD --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_is_algorithm_1_with_either_control_variate(federation, model, batching, option):
    expected = scaffold(*Case(federation, model, batching).first, 0.3, 4, 1.0, option)
    assert_equals(
        run(il.Scaffold(lr=0.3, steps=4, option=option), federation, model, batching=batching),
        expected,
        federation,
        model,
    )


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("sample", [1, N])
def test_scaffold_takes_the_global_step_it_is_told_whoever_is_heard(federation, option, sample):
    expected = scaffold(*Case(federation, sample=sample).first, 0.3, 4, 0.6, option)
    result = run(
        il.Scaffold(lr=0.3, steps=4, option=option, server_rate=0.6), federation, sample=sample
    )
    assert_equals(result, expected, federation)


# -- Scaffnew --------------------------------------------------------------------------------------
def check_scaffnew(federation, p, model="logistic", batching="replace", factor=1.0):
    case = Case(federation, model, batching)
    steps = [trials(coins("scaffnew", t, 1)[0], p) for t in range(ROUNDS)]
    theta = [c for k in steps for c in [0] * (k - 1) + [1]]
    rates = [0.2 * factor**t for t, k in enumerate(steps) for _ in range(k)]
    settings = {} if factor == 1 else {"schedule": f"exp:{factor}"}
    result = run(
        il.Scaffnew(lr=0.2, p=p), federation, model, batching=batching, sample=0, **settings
    )
    expected = scaffnew(*case.about, theta, case.run_of(steps), rates, p)
    after = outcome(result)
    assert_same({name: after[name] for name in expected}, expected, 1e-10)
    np.testing.assert_allclose(np.sum(expected["private h"], axis=0), 0, atol=1e-12)


@every_model
@every_batching
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_scaffnew_is_algorithm_2_with_everyone_heard(federation, model, batching, p):
    check_scaffnew(federation, p, model, batching)


def test_scaffnew_takes_each_control_variate_with_the_rate_of_the_steps_it_corrects(federation):
    check_scaffnew(federation, 0.5, factor=0.5)


# -- FedDeper --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("same_batch", [True, False])
def test_feddeper_is_algorithm_1(federation, model, batching, same_batch):
    expected = feddeper(
        *Case(federation, model, batching).first,
        lr=0.2,
        rho=0.05,
        lam=0.6,
        steps=4,
        same_batch=same_batch,
    )
    method = il.FedDeper(lr=0.2, rho=0.05, lam=0.6, steps=4, same_batch=same_batch)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


# -- FFGG ------------------------------------------------------------------------------------------
def starts_of(case, model, private, how):
    """starts(t, i): where the private part of client i starts in round t."""
    task = setting.task(model).under(seed=SEED, dtype=torch.float64)
    if how != "random":
        return lambda t, i: case.start[private]
    return lambda t, i: task.draw(streams.keys(SEED, "private start", t, case.draws.keys[[i]]))[
        0
    ].numpy()[private]


def check_ffgg(
    federation,
    model,
    part,
    solver="sgd",
    start="random",
    batching="replace",
    steps=4,
    local_steps=None,
    product=None,
):
    case = Case(federation, model, batching)
    private = PARTS[model, part]
    extra = {} if local_steps is None else {"local_steps": local_steps}
    expected = ffgg(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        case.last_batches,
        starts_of(case, model, private, start),
        rates=[0.3] * ROUNDS,
        private_lr=0.2,
        steps=steps,
        solver=solver,
        kept=start == "kept",
        product=product,
        **extra,
    )
    method = (il.Ffgg if local_steps is None else il.LocalFfgg)(
        part=part, lr=0.3, private_lr=0.2, steps=steps, solver=solver, start=start, **extra
    )
    result = run(method, federation, model, batching=batching)
    assert_equals(result, expected, federation, model)
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * (len(case.start) - len(private))


@every_part
@pytest.mark.parametrize("solver", ["sgd", "gd", "adam"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_ffgg_is_algorithm_1_with_every_iterative_solver_and_start(
    federation, model, part, solver, start
):
    check_ffgg(federation, model, part, solver, start)


@every_batching
def test_ffgg_is_algorithms_1_and_2_for_every_batching(federation, batching):
    check_ffgg(federation, "network", "output", "gd", batching=batching)


@pytest.mark.parametrize("start", ["random", "common", "kept"])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_ffgg_with_conjugate_gradients_on_a_logistic_loss_takes_newtons_direction_in_part(
    federation, part, start
):
    def product(x, v, X, y):
        return hessian_product(LOGISTIC, x, v, X, y)

    check_ffgg(federation, "logistic", part, "cg", start, "full", steps=2, product=product)


def test_a_schedule_scales_the_rate_of_ffggs_step_at_the_server(federation):
    case = Case(federation, "network")
    private = PARTS["network", "output"]
    starts = starts_of(case, "network", private, "common")
    rates = [0.3 * 0.5**t for t in range(ROUNDS)]
    expected = ffgg(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        case.last_batches,
        starts,
        rates,
        0.2,
        0,
        "sgd",
    )
    result = run(
        il.Ffgg(lr=0.3, steps=0, start="common"), federation, "network", schedule="exp:0.5"
    )
    assert_equals(result, expected, federation, "network")


@every_part
@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_local_ffgg_is_algorithm_4(federation, model, part, solver, start):
    check_ffgg(federation, model, part, solver, start, local_steps=3)


@every_batching
def test_local_ffgg_is_algorithm_4_for_every_batching(federation, batching):
    check_ffgg(federation, "network", "input", "gd", batching=batching, local_steps=3)


# -- FFGG with exact solvers -----------------------------------------------------------------------
OWN = np.arange(3, 7)  # own.weight and own.bias; shared.weight comes first


class Regressor(nn.Module):
    """y = shared(a) + own(b): three features for everyone; three and the constant per client."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(3, 1, bias=False)
        self.own = nn.Linear(3, 1)

    def forward(self, x):
        return self.shared(x[..., :3]) + self.own(x[..., 3:])


def regression(sizes):
    """Clients with linear rules of their own, and noise."""
    rng = np.random.default_rng(2)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(owner), 6))
    y = (X * rng.normal(size=(len(sizes), 6))[owner]).sum(1) + 0.3 * rng.normal(size=len(owner))
    ids = [f"c{k}" for k in owner]
    return il.Federation.from_arrays(
        torch.from_numpy(X), torch.from_numpy(y), ids, split=["train"] * len(ids)
    )


def regressor():
    return il.Task(Regressor, "half_squared")


def run_regression(federation, **fields):
    """(theta, personal models) of FFGG with half the squared error, all data in every batch."""
    method = il.Ffgg(**({"part": "own.*", "lr": 0.3} | fields))
    settings = {"rounds": ROUNDS, "sample": 3, "seed": SEED, "batching": "full"}
    session = helpers.run(method, federation, regressor(), **settings).session()
    personal = [session.personal(id).numpy() for id in federation.ids]
    return session.server.state["theta"].numpy(), np.stack(personal)


def regression_start():
    return regressor().under(seed=SEED, dtype=torch.float64).x0.numpy()


@pytest.mark.parametrize("solver", ["cg", "newton"])
@pytest.mark.parametrize("start", ["random", "common", "kept"])
def test_ffgg_with_an_exact_solver_fits_the_private_part_by_least_squares(solver, start):
    federation = regression((12, 25, 9, 40, 17))
    draws = setting.draws(federation, "full")
    x = regression_start()
    for cohort in draws.cohorts(
        ROUNDS, 3
    ):  # theta <- theta - lr mean of grad_theta f_i(theta, w_i*(theta))
        best = {i: least_squares(x, OWN, *draws.data[i]) for i in cohort}
        x[:3] -= (
            0.3 * sum(Linear().gradient(best[i], *draws.data[i])[:3] for i in cohort) / len(cohort)
        )
    theta, personal = run_regression(federation, solver=solver, start=start, steps=8)
    np.testing.assert_allclose(theta, x[:3], atol=1e-8)
    np.testing.assert_allclose(
        personal, [least_squares(x, OWN, *part) for part in draws.data], atol=1e-8
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_ffgg_with_few_conjugate_gradient_steps_takes_just_those(steps):
    federation = regression((12, 25, 9, 40, 17))
    draws = setting.draws(federation, "full")
    model = Linear()
    x = regression_start()
    cohorts = draws.cohorts(ROUNDS, 3)
    batches = draws.batches
    expected = ffgg(
        model,
        draws.data,
        x,
        OWN,
        cohorts,
        batches,
        last_batches=lambda i: batches(ROUNDS, i, "personal"),
        starts=lambda t, i: x[OWN],
        rates=[0.3] * ROUNDS,
        private_lr=0,
        steps=steps,
        solver="cg",
        product=model.hessian_product,
    )
    theta, personal = run_regression(federation, solver="cg", start="common", steps=steps)
    np.testing.assert_allclose(theta, expected["server theta"], atol=1e-10)
    np.testing.assert_allclose(personal, expected["personal"], atol=1e-10)


@pytest.mark.parametrize("solver", ["cg", "newton"])
def test_where_many_private_parts_fit_ffggs_exact_solvers_take_the_nearest_to_the_start(solver):
    """Two samples, four private coordinates: the Hessian has rank two.

    Whatever lies in its kernel must stay as it is.
    """
    federation = regression((2, 25, 2, 40, 2))
    draws = setting.draws(federation, "full")
    start = regression_start()
    theta, personal = run_regression(federation, solver=solver, start="common", steps=12)
    x = np.concatenate([theta, start[OWN]])
    for i, (X, y) in enumerate(draws.data):
        B = np.column_stack([X, np.ones(len(X))])[:, OWN]
        change = np.linalg.lstsq(B, y - Linear().outputs(x, X), rcond=None)[
            0
        ]  # of all solutions the one of least norm
        np.testing.assert_allclose(personal[i], np.concatenate([theta, x[OWN] + change]), atol=1e-8)


def test_ffggs_newton_step_is_defined_for_a_softmax_whose_hessian_is_singular(federation):
    """A constant added to all biases changes nothing, so the Hessian has a kernel.

    The probabilities after the step are defined all the same.
    """
    personal = outcome(
        run(
            il.Ffgg(part="bias", solver="newton", start="common"),
            federation,
            batching="full",
            rounds=0,
        )
    )["personal"]
    x = setting.start()
    private = PARTS["logistic", "bias"]
    for i, (X, y) in enumerate(setting.draws(federation).data):
        columns = [hessian_product(LOGISTIC, x, np.eye(len(x))[j], X, y)[private] for j in private]
        step = (
            np.linalg.pinv(np.stack(columns, axis=1), rcond=1e-10)
            @ LOGISTIC.gradient(x, X, y)[private]
        )
        change = personal[i][private] - (x[private] - step)
        np.testing.assert_allclose(change, change.mean(), atol=1e-8)


@pytest.mark.parametrize("part", ["input", "output"])
def test_ffggs_conjugate_gradients_stay_where_they_have_arrived(federation, part):
    """At most 15 coordinates: 25 steps are enough.

    60 must not wander off along directions without curvature.
    """

    def losses(steps):
        method = il.Ffgg(part=part, solver="cg", start="common", steps=steps)
        session = run(method, federation, "network", batching="full", rounds=0).session()
        return session.engine.evaluate(torch.arange(N), ("train",))["train"].loss

    np.testing.assert_allclose(losses(60), losses(25), atol=1e-6)


# -- FedAlt and FedSim -----------------------------------------------------------------------------
def check_pillutla(
    federation, simultaneous, model, part, stateful, batching="replace", weighting="samples"
):
    case = Case(federation, model, batching)
    private = PARTS[model, part]
    expected = pillutla(
        *case.about,
        private,
        case.cohorts,
        case.batches,
        lr=0.3,
        private_lr=0.2,
        steps=3,
        private_steps=4,
        stateful=stateful,
        weighting=weighting,
        simultaneous=simultaneous,
    )
    fields = {
        "part": part,
        "lr": 0.3,
        "private_lr": 0.2,
        "steps": 3,
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


# -- fine-tuning -----------------------------------------------------------------------------------
def fedavg_reference(case):
    return fedavg(*case.first, [0.3] * ROUNDS, [4] * N, "samples")


@every_model
@every_batching
def test_finetune_is_fedavg_and_then_steps_of_ones_own(federation, model, batching):
    case = Case(federation, model, batching)
    expected = fedavg_reference(case)
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
        (il.FedAvg(lr=0.3, steps=4), fedavg_reference(case)),
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


def check_dichotomy(federation, model, level, personal_lr, weighting="samples"):
    case = Case(federation, model)
    valid = [(X.numpy(), y.numpy()) for X, y in (federation.part(i, "valid") for i in range(N))]
    fields = {
        "lr": 0.3,
        "personal_lr": personal_lr,
        "steps": 4,
        "personal_steps": 5,
        "weighting": weighting,
        "level": level,
    }
    expected = dichotomy(
        case.model, case.data, valid, case.start, case.cohorts, case.batches, **fields
    )
    assert_equals(run(il.Dichotomy(**fields), federation, model), expected, federation, model)
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


# -- the table -------------------------------------------------------------------------------------
def test_every_method_of_the_table_says_who_trains(capsys):
    assert main(["methods", "--json"]) in (None, 0)
    trains = {row["name"]: row["trains"] for row in json.loads(capsys.readouterr().out)}
    assert set(trains.values()) == {"sampled", "everyone"} and trains["ditto"] == "everyone"
