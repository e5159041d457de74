"""The fixed rule that chooses a kernel, and what is taken for a chain of layers."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect import Task, models
from idiolect.core.knobs import SettingError
from idiolect.task.kernels import Vmapped, layer_chain
from task.common import Skip, Text


class DependsOnData(nn.Module):
    """Its control flow depends on the data: it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x) if x.shape[0] > 0 else x


class Twice(nn.Module):
    """Two uses of one value: seen from its end it looks like a chain."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)

    def forward(self, x):
        return self.a(x) * self.b(x)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class OtherInUse(nn.Module):
    """A chain in training and another one in use."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return torch.relu(self.a(x)) if self.training else torch.tanh(self.a(x))


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda m, i, o: 2 * o)
    return module


@pytest.mark.parametrize(
    "module",
    [
        Skip(),
        Twice(),
        Text(),
        Scaled(6, 3),
        nn.Sequential(Scaled(6, 3)),
        OtherInUse(),
        nn.Sequential(nn.Linear(6, 6), OtherInUse()),
        hooked(),
        nn.Sequential(nn.Linear(6, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        nn.Sequential(nn.ReLU()),
        models.make("resnet-small", (1, 9, 9), 3),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_not_a_chain_is_not_taken_for_one(module):
    assert layer_chain(module) is None


def test_the_rule_is_fixed():
    mlp = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    assert Task(mlp).kernel == "stacked"
    assert Task(models.make("lenet", (1, 16, 16), 3)).kernel == "rows"
    assert Task(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3))).kernel == "rows"
    assert Task(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1)).kernel == "rows"
    assert Task(Skip()).kernel == "vmap"
    assert Task(DependsOnData()).kernel == "vmap"
    for kernel in ("vmap", "rows", "compiled"):
        assert Task(mlp).under(kernel=kernel).kernel == kernel


def test_convolutions_away_from_the_cpu_take_vmap():
    lenet = Task(models.make("lenet", (1, 16, 16), 3))
    assert lenet.under(device=torch.device("meta")).kernel == "vmap"


@pytest.mark.parametrize(
    ("module", "kernel", "says"),
    [
        (Skip(), "stacked", "'vmap', 'rows' or 'compiled'"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), "vmap", "'rows'"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), "stacked", "'rows'"),
        (nn.Linear(6, 3), "vmapped", "auto, stacked, vmap, rows, compiled"),
    ],
)
def test_forcing_an_impossible_kernel_says_what_would_do(module, kernel, says):
    with pytest.raises(SettingError, match=says):
        Task(module).under(kernel=kernel)


def test_an_operator_that_torch_maps_row_by_row_causes_no_warning(recwarn):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Bilinear(6, 6, 2)

        def forward(self, x):
            return self.both(x, x)

    task = Task(Pair())
    assert task.outputs(task.x0.repeat(3, 1), torch.ones(3, 4, 6)).shape == (3, 4, 2)
    assert task.kernel == "vmap" and not recwarn.list


class Recurrent(nn.Module):
    """torch maps its gradient, but not its outputs where no gradient is asked for."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 3)
        self.layer = nn.RNN(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0][:, -1])


class OnlyInUse(nn.Module):
    """A decision about data that is taken in evaluation mode alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        z = self.layer(x)
        return z if self.training or bool(z.isfinite().all()) else torch.zeros_like(z)


@pytest.mark.parametrize(("model", "kernel"), [(Recurrent, "vmap"), (OnlyInUse, "rows")])
def test_a_model_is_trained_by_the_same_kernel_in_every_round(model, kernel, monkeypatch):
    gradients = []
    before = Vmapped.grad
    monkeypatch.setattr(Vmapped, "grad", lambda *a: (gradients.append(1), before(*a))[1])
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (40, 5))
    x = x if model is Recurrent else x.astype(np.float32)
    data = il.Federation.from_arrays(x, rng.integers(0, 2, 40), np.repeat(range(4), 10))
    result = il.run("local", il.Task(model()), data, rounds=2)
    assert result.record.kernel == kernel
    # one of them in the trial, whose outputs came first
    assert len(gradients) == (1 + 2 * il.Local().steps if kernel == "vmap" else 0)
    task = il.Task(model()).under(kernel="rows")
    outputs = task.outputs(task.x0.expand(2, -1), data.inputs[:6].unflatten(0, (2, 3)))
    mapped = task.under(kernel=kernel).outputs(
        task.x0.expand(2, -1), data.inputs[:6].unflatten(0, (2, 3))
    )
    torch.testing.assert_close(outputs, mapped)
