"""Shapes are as the comments say, in whole runs; and a wrong one is caught (see shapes.py)."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor, nn

import idiolect as il
from helpers import classification, with_public
from idiolect.attacks import ATTACKS
from idiolect.channels import CHANNELS
from idiolect.core import streams
from idiolect.methods import METHODS, make_method
from idiolect.projections import PROJECTIONS
from idiolect.server.rules import RULES, parse_rule
from idiolect.server.rules.rule import Rule
from idiolect.task.batches import Batch
from shapes import checked, places


def federation() -> il.Federation:
    return classification((30, 7, 24, 12, 40, 18), features=5)


def task() -> il.Task:
    return il.Task(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))


def train(method: il.Method, **settings: object) -> il.Result:
    usual = {
        "rounds": 2,
        "sample": 0 if method.traits.hears_all else 5,
        "batch": 4,
        "dtype": "float64",
    }
    return il.run(method, task(), with_public(method, federation()), **{**usual, **settings})


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_keeps_to_its_shapes(name):
    fields = {"dim": 5} if name.startswith("lp-proj") else {}
    with checked() as calls:
        train(make_method(name, **fields))
    assert any(":Task.grad" in call for call in calls)
    assert any(call.endswith(".update") for call in calls)


@pytest.mark.parametrize("kernel", ["stacked", "vmap", "rows"])
def test_every_kernel_keeps_to_its_shapes(kernel):
    with checked():
        train(make_method("per-fedavg"), kernel=kernel)


RULES_AND_WRAPPERS = [
    name if issubclass(cls, Rule) else f"{name} + median" for name, cls in RULES.items()
]


@pytest.mark.parametrize("rule", RULES_AND_WRAPPERS)
def test_every_rule_keeps_to_its_shapes(rule):
    with checked() as calls:
        train(make_method("scaffold"), rule=rule, sample=6)
    assert calls["idiolect.server.rules.rule:combine_message"]


@pytest.mark.parametrize("channel", [*CHANNELS, "sketch(exact=true)", "feedback + sign"])
def test_every_channel_keeps_to_its_shapes(channel):
    with checked() as calls:
        train(make_method("fedavg"), channel=channel)
    assert any(call.endswith(".encode") for call in calls)


@pytest.mark.parametrize("kind", list(PROJECTIONS))
def test_every_projection_keeps_to_its_shapes(kind):
    dim = 0 if kind == "identity" else 5
    with checked() as calls:
        train(make_method("lp-proj", projection=kind, dim=dim))
    assert any(call.endswith(".down") for call in calls)


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_every_attack_keeps_to_its_shapes(attack):
    with checked() as calls:
        train(make_method("fedavg"), attack=attack, malicious="2", rule="median", sample=6)
    on_messages = not ATTACKS[attack].poisons
    assert bool(calls["idiolect.attacks.attack:Attack.__call__"]) >= on_messages


def test_functions_that_training_does_not_call_keep_to_their_shapes():
    own = task()
    x = own.x0.repeat(3, 1)
    batch = Batch(
        inputs=torch.zeros(3, 4, 5),
        targets=torch.zeros(3, 4, dtype=torch.int64),
        weights=torch.full((3, 4), 0.25),
        tally=torch.zeros(3, dtype=torch.int64),
    )
    with checked() as calls:
        own.loss(x, batch)
        own.hvp(x, x, batch)
        own.draw(streams.keys(0, "init", 0, streams.name_keys(["a", "b"])))
        own.module_of(own.x0)
    assert sum(calls.values()) >= 5


def test_checks_are_taken_away_again():
    before = [vars(owner)[name] for _, owner, name, _ in places()]
    plain = il.Task.grad
    with checked():
        assert il.Task.grad is not plain
    assert [vars(owner)[name] for _, owner, name, _ in places()] == before


# -- planted faults ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Transposed(il.FedAvg):
    """Personal models by column instead of by row."""

    def personal(self, task, down, private, here):
        return super().personal(task, down, private, here).T


@dataclass(frozen=True)
class OneForAll(il.FedAvg):
    """One message instead of one per client."""

    def update(self, task, down, private, here):
        up, private = super().update(task, down, private, here)
        return {"w": up["w"].mean(0, keepdim=True)}, private


@dataclass(frozen=True)
class Column(Rule):
    """[m, 1] instead of [m]."""

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        return rows.mean(0).unsqueeze(1)


@pytest.mark.parametrize("method", [Transposed(), OneForAll()])
def test_a_method_with_a_wrong_shape_is_caught(method):
    with checked(), pytest.raises(TypeCheckError):
        train(method)


def test_a_rule_with_a_wrong_shape_is_caught():
    rows = torch.zeros(4, 3)
    with checked(), pytest.raises(TypeCheckError):
        Column()(rows, torch.ones(4))
    with checked(), pytest.raises(TypeCheckError):
        parse_rule("mean")(rows, torch.ones(5))


def test_rows_of_another_model_are_caught():
    own = task()
    with checked(), pytest.raises(TypeCheckError):
        own.outputs(torch.zeros(2, own.d + 1), torch.zeros(2, 4, 5))
    with checked(), pytest.raises(TypeCheckError):
        own.outputs(torch.zeros(2, own.d), torch.zeros(3, 4, 5))
