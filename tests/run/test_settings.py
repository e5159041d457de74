"""Settings: every bad value is refused before work starts, by name, with what would be accepted."""

import math

import pytest
import torch
from torch import optim

import idiolect as il
from idiolect import METHODS, FedAvg, FedProx, FedProxSoft, Local, LpProj, Settings
from idiolect.core.knobs import SettingError, build, describe
from idiolect.methods import make_method, name_of
from idiolect.run.schedule import Schedule
from idiolect.server.step import ServerStep
from idiolect.task.client_optimizer import optimizers, parse_options

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", -1),
        ("rounds", 2.5),
        ("rounds", "many"),
        ("rounds", True),
        ("rounds", INF),
        ("rounds", None),
        ("sample", -1),
        ("seeds", 0),
        ("seed", -1),
        ("seed", 2**70),
        ("batch", 0),
        ("batching", "replacement"),
        ("rule", "average"),
        ("server_lr", 0),
        ("server_lr", NAN),
        ("server_lr", INF),
        ("server_lr", 1e-400),
        ("clip", -0.1),
        ("weight_decay", -1),
        ("eval_every", -1),
        ("held_out", -1),
        ("bytes", -5),
        ("target_value", INF),
        ("target_value", NAN),
        ("dtype", "float16"),
        ("kernel", "vmapped"),
        ("threads", -1),
        ("chunk", -1),
        ("memory", 0),
        ("memory", INF),
        ("checkpoint_every", -1),
        ("schedule", 3),
    ],
)
def test_a_bad_setting_is_named_with_what_is_accepted(field, value):
    with pytest.raises(SettingError, match=f"^{field}(: .* is | must be .* got )"):
        Settings(**{field: value})


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "cpu:x", "meta"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(SettingError, match=r"^device: .*'cpu' always is"):
        Settings(device=device)


@pytest.mark.parametrize(
    "schedule",
    [
        "cosin",
        "step",
        "step:10",
        "step:0:0.5",
        "step:10:0",
        "step:x:0.5",
        "step:inf:0.5",
        "inverse:-1",
        "exp:0",
        "exp:nan",
        "exp:inf",
        "",
        "linear:1",
        "inverse:1:0",
        "grow:-1",
        "warmup:0",
        "cosine*",
        "lr=",
        "=cosine",
        "lr=cosine + lr=linear",
        "cosine + linear",
    ],
)
def test_a_bad_schedule_is_refused_with_the_forms(schedule):
    with pytest.raises(
        SettingError, match=r"^schedule must be constant, cosine, linear, step:EVERY:FACTOR.*, got "
    ):
        Settings(schedule=schedule)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", "momentum"),
        ("sgd", "momentum=-1"),
        ("sgd", "momentum='a'"),
        ("sgd", "momentun=0.9"),
        ("sgd", "0.9"),
        ("sgd", "lr=0.1"),
        ("sgd", "nesterov=True"),
        ("sgd", "momentum=__import__('os')"),
        ("sgd", "momentum=0.9) or f(lr=1"),
        ("sgd", "**{'a': 1}"),
        ("adam", "betas=3"),
        ("adam", "betas=(0.9,)"),
        ("adam", "betas=(0.9, 2)"),
        ("adam", "eps=-1"),
    ],
)
def test_bad_server_options_are_refused(optimizer, options):
    with pytest.raises(SettingError, match=r"^server_options( must be|: )"):
        Settings(server_optimizer=optimizer, server_options=options)


def test_an_unknown_server_optimiser_suggests_the_nearest():
    with pytest.raises(
        SettingError, match="server_optimizer: 'adan' is unknown; did you mean 'adam'"
    ):
        Settings(server_optimizer="adan")


def test_an_unknown_setting_suggests_the_nearest():
    with pytest.raises(
        SettingError, match="run setting: 'round' is unknown; did you mean 'rounds'"
    ):
        build(Settings, {"round": 3}, "run")


def test_settings_from_text_are_settings_from_values():
    text = {
        "rounds": "30",
        "server_lr": "0.5",
        "target_value": "1e-1",
        "batching": "full",
        "seed": "7",
    }
    assert build(Settings, text, "run") == Settings(
        rounds=30, server_lr=0.5, target_value=0.1, batching="full", seed=7
    )
    assert make_method("lp-proj", fresh="yes", p="2", dim="1e1") == LpProj(
        fresh=True, p=2.0, dim=10
    )
    assert make_method("lp-proj", fresh="no") == LpProj(fresh=False)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().rounds = 3


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (FedAvg, "lr", 0),
        (FedAvg, "lr", -0.1),
        (FedAvg, "lr", NAN),
        (FedAvg, "lr", INF),
        (FedAvg, "lr", "fast"),
        (FedAvg, "steps", -1),
        (FedAvg, "steps", 1.5),
        (FedAvg, "weighting", "sample"),
        (FedProx, "mu", -1),
        (FedProxSoft, "lam", -1),
        (Local, "init", "random"),
        (LpProj, "p", 0.5),
        (LpProj, "p", INF),
        (LpProj, "dim", -1),
        (LpProj, "lam", -0.1),
        (LpProj, "personal_lr", 0),
        (LpProj, "projection", "gausian"),
        (LpProj, "fresh", "maybe"),
    ],
)
def test_a_bad_hyper_parameter_is_named_with_what_is_accepted(cls, field, value):
    with pytest.raises(SettingError, match=rf"^{field} must be .*, got .* \("):
        cls(**{field: value})


def test_unknown_methods_and_fields_suggest_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'fedavg'"):
        make_method("fedavgg")
    with pytest.raises(SettingError, match="did you mean 'lam'"):
        make_method("lp-proj", lamb=1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_name_and_described_fields(name):
    method = make_method(name)
    assert make_method(name_of(method)) == method
    fields = describe(type(method))
    assert fields and all(
        f["help"] and f["accepts"] and type(f["default"]).__name__ == f["type"] for f in fields
    )


# -- schedules -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine", [1, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 - math.cos(math.pi / 4)) / 2]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("step:2:0.1", [1, 1, 0.1, 0.1]),
        ("inverse:1", [1, 1 / 2, 1 / 3, 1 / 4]),
        ("inverse:1:2", [1, 1 / 4, 1 / 9, 1 / 16]),
        ("grow:2", [1, 3, 5, 7]),
        ("grow:1:0.5", [1, 2**0.5, 3**0.5, 2]),
        ("exp:0.5", [1, 0.5, 0.25, 0.125]),
        ("warmup:3", [1 / 3, 2 / 3, 1, 1]),
        ("warmup:2*exp:0.5", [0.5, 0.5, 0.25, 0.125]),
        ("exp:1e+0", [1, 1, 1, 1]),
    ],
)
def test_schedules_over_rounds(schedule, rates):
    curve = Schedule.parse(schedule)
    assert [curve.factors(r, 4).get("rates", 1) for r in range(4)] == pytest.approx(rates)
    assert Schedule.parse(str(curve)) == curve


def test_a_schedule_scales_every_learning_rate_of_a_method():
    half = LpProj(lr=0.2, personal_lr=0.4, lam=3).scaled({"rates": 0.5})
    assert (half.lr, half.personal_lr, half.lam) == (0.1, 0.2, 3)


def test_a_schedule_gives_each_field_a_curve_of_its_own():
    text = "cosine + lr=inverse:0.5 + nu=inverse:1:2 + steps=grow:0.26 + batch=grow:1"
    schedule = Schedule.parse(text)
    assert str(schedule) == text
    assert schedule.fields == ("lr", "nu", "steps", "batch")
    assert schedule.over_all_rounds
    assert not Schedule.parse("warmup:3*exp:0.9").over_all_rounds
    method = LpProj(lr=0.2, personal_lr=0.4, nu=1e-2, steps=5)
    third = method.scaled(schedule.factors(2, 4))
    assert (third.lr, third.personal_lr) == (0.1, 0.2)  # rates without a curve have the first
    assert third.nu == pytest.approx(1e-2 / 9)
    assert third.steps == round(5 * 1.52)
    assert Schedule.parse("constant").factors(3, 4) == {}
    assert method.scaled({}) is method


def test_a_scaled_field_stays_within_its_range():
    method = LpProj(lr=1e-300, steps=3)
    small = method.scaled({"lr": 1e-300, "steps": 1e-9, "p": 0.1})
    assert (small.lr > 0, small.steps, small.p) == (True, 1, 1.0)
    assert LpProj(steps=0).scaled({"steps": 5}).steps == 0


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("steep=cosine", "schedule: lp-proj-1 setting: 'steep' is unknown; did you mean 'steps'"),
        ("dim=exp:0.9", "schedule must not change 'dim': it is part of what clients send"),
        ("init=cosine", "schedule: lp-proj-1 setting: 'init' is unknown"),
    ],
)
def test_a_schedule_of_what_cannot_change_is_refused_before_the_run(schedule, says):
    federation = il.data.load("synthetic", clients=3)
    with pytest.raises(SettingError, match=says):
        il.run(LpProj(), il.Task(torch.nn.Linear(60, 10)), federation, rounds=2, schedule=schedule)


def test_a_schedule_of_the_batch_needs_mini_batches():
    federation = il.data.load("synthetic", clients=3)
    task = il.Task(torch.nn.Linear(60, 10))
    with pytest.raises(SettingError, match="schedule must not have 'batch' with batching 'full'"):
        il.run("fedavg", task, federation, rounds=2, schedule="batch=grow:1", batching="full")


# -- the server's step -----------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(optimizers()))
def test_the_servers_optimiser_is_torchs_over_several_rounds(name):
    """Its state travels through the server's state as plain tensors."""
    g = torch.Generator().manual_seed(0)
    w, changes = torch.randn(5, generator=g), [torch.randn(5, generator=g) for _ in range(5)]
    step, server = ServerStep(name, 0.05), {"w": w.clone()}
    mine = w.clone()
    theirs = optimizers()[name]([mine], lr=0.05)
    for change in changes:
        server = step(server, {"w": server["w"] - change}, "w")
        mine.grad = change.clone()
        theirs.step()
        torch.testing.assert_close(server["w"], mine, rtol=1e-5, atol=1e-6)
        assert all(isinstance(t, torch.Tensor) for t in server.values())


def test_momentum_is_kept_and_kept_apart_from_the_methods_state():
    step = ServerStep("sgd", 1.0, "momentum=0.9")
    server = {"w": torch.zeros(2)}
    for _ in range(2):
        server = step(server, {"w": torch.ones(2)}, "w")
    assert torch.equal(server["w"], torch.tensor([1.9, 1.9]))
    assert step.method_state(server).keys() == {"w"} and len(server) == 2


def test_the_plain_step_takes_the_aggregate_exactly():
    after = {"w": torch.randn(4), "c": torch.randn(2)}
    assert ServerStep()({"w": torch.randn(4), "c": torch.zeros(2)}, after, "w") == after


def test_the_optimiser_steps_on_the_vector_that_is_named_and_on_no_other():
    server = {"w": torch.zeros(2), "theta": torch.zeros(2)}
    after = {"w": torch.ones(2), "theta": torch.ones(2)}
    found = ServerStep("sgd", 0.5)(server, after, "theta")
    assert found["theta"].tolist() == [0.5, 0.5] and found["w"].tolist() == [1.0, 1.0]


def test_without_the_shared_vector_the_step_is_plain_and_the_optimiser_keeps_its_state():
    step = ServerStep("sgd", 1.0, "momentum=0.9")
    server = step({"w": torch.zeros(2)}, {"w": torch.ones(2)}, "w")
    after = {"votes": torch.ones(2)}
    found = step(server, after, "w")
    assert step.method_state(found) == after
    assert found["optimizer.momentum_buffer"] is server["optimizer.momentum_buffer"]


def test_options_are_literals_only():
    given = "betas=(0.9, 0.99), eps=1e-3"
    assert parse_options("", "server_options") == {}
    assert parse_options(given, "server_options") == {"betas": (0.9, 0.99), "eps": 1e-3}
    assert issubclass(optimizers()["adam"], optim.Adam)


def test_a_target_that_nobody_would_look_at_is_refused():
    with pytest.raises(SettingError, match=r"eval_every must be .* with a target_value"):
        Settings(target_value=0.5, eval_every=0)


def test_an_old_name_is_refused_with_the_new_one():
    with pytest.raises(SettingError, match=r"target_accuracy: .* target_value \(with metric='acc"):
        build(Settings, {"target_accuracy": 0.5}, "run")
