"""A method that adds named parts to the user's module."""

from dataclasses import dataclass

import torch
from safetensors import safe_open
from torch import nn

import idiolect as il
from helpers import classification, run, state_of
from idiolect.testing import check_method

D = 6 * 5 + 5 + 5 * 3 + 3
GATE = 6 * 6 + 6


class Gated(nn.Module):
    """A user's module behind a gate for each of its inputs."""

    def __init__(self, inner):
        super().__init__()
        self.gate = nn.Linear(6, 6)
        self.inner = inner

    def forward(self, x):
        return self.inner(x * self.gate(x).sigmoid())


@dataclass(frozen=True)
class GatedAverage(il.FedAvg):
    """FedAvg of a model and its gate."""

    def extend(self, module):
        return Gated(module)


@dataclass(frozen=True)
class OwnGate(il.FedSim):
    """The gate stays with the client."""

    part: str = il.knob("gate.*", "the private part")

    def extend(self, module):
        return Gated(module)


def task():
    return il.Task(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))


def test_what_is_added_is_trained_and_sent():
    result = run(GatedAverage(steps=3), classification(), task(), sample=3)
    assert result.summary()["values"]["up"] == 3 * 3 * (D + GATE)
    extended = GatedAverage().extended(task()).under(dtype=torch.float64)
    start, end = (
        extended.tensors_of(x)["gate.weight"] for x in (extended.x0, state_of(result)["w"])
    )
    assert extended.d == D + GATE and not torch.equal(start, end)


def test_what_is_added_may_be_private():
    result = run(OwnGate(steps=3), classification(), task(), sample=3)
    assert result.summary()["values"]["up"] == 3 * 3 * D
    a, b = (result.personal(k) for k in (0, 1))
    assert not torch.equal(a.gate.weight, b.gate.weight)
    assert torch.equal(a.inner[0].weight, b.inner[0].weight)


def test_the_users_task_is_left_as_it_is():
    own = task()
    run(GatedAverage(steps=1), classification(), own)
    assert own.d == D and GatedAverage().extended(own).d == D + GATE


def test_an_extended_model_is_exported_and_loaded(tmp_path):
    data = classification()
    method = il.make_method("run.test_extended:GatedAverage", steps=2)
    result = run(method, data, task(), directory=tmp_path / "run")
    result.export(tmp_path / "models")
    (first, *_) = sorted((tmp_path / "models").rglob("*.safetensors"))
    with safe_open(first, "pt") as file:
        assert {"gate.weight", "gate.bias", "inner.0.weight"} <= set(file.keys())
    loaded = il.load(tmp_path / "run", task=task(), federation=data)
    x = data.inputs[:5].double()
    torch.testing.assert_close(loaded.personal(3)(x), result.personal(3)(x), rtol=0, atol=0)


def test_what_is_added_starts_the_same_under_the_same_seed():
    a, b, c = (GatedAverage().extended(task()).under(seed=seed).x0 for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_method_that_extends_the_module_passes_the_suite():
    @dataclass(frozen=True)
    class Scaled(il.FedAvg):
        def extend(self, module):
            return nn.Sequential(nn.Linear(5, 5), module)

    check_method(Scaled())
