"""Dropout is drawn from each client's own stream, whatever the cohort."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Federation, Task
from idiolect.core.knobs import SettingError
from idiolect.core.streams import name_keys
from idiolect.task.batches import Batch
from idiolect.task.context import Here
from task.common import B, K, rows

FEDERATION = Federation.from_arrays(
    np.random.default_rng(0).standard_normal((30, 6)),
    np.arange(30) % 3,
    np.repeat(np.arange(K), 10),
)


def drawn(clients: list[int], round: int = 0) -> Batch:
    """A batch with the keys of these clients' own randomness."""
    data = FEDERATION.to("cpu", torch.float64)
    here = Here(
        data,
        torch.tensor(clients),
        clients=name_keys(data.names)[clients],
        seed=0,
        round=round,
        batch=B,
        batching="replace",
        dtype=torch.float64,
    )
    return here.draw()


class DropsInForward(nn.Module):
    """As in torch's MNIST example: dropout as a function, which no list of layers shows."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(F.dropout(self.conv(x.unsqueeze(1)).flatten(1), 0.5, self.training))


DROPOUT = {
    "a layer": nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3)),
    "a function": DropsInForward(),
}


@pytest.mark.parametrize("kind", DROPOUT)
def test_a_clients_dropout_does_not_depend_on_the_cohort(kind):
    task = Task(DROPOUT[kind]).under(dtype=torch.float64)
    x = rows(task)
    together = task.grad(x, drawn([0, 1, 2]))
    torch.manual_seed(123)
    for k in (2, 0, 1):
        assert torch.equal(task.grad(x[k : k + 1], drawn([k]))[0], together[k])


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_is_new_in_every_step_and_round(kind):
    task = Task(DROPOUT[kind]).under(dtype=torch.float64)
    x = rows(task)
    first = drawn([0, 1, 2])
    later = drawn([0, 1, 2], round=1)
    on_the_same_data = replace(later, inputs=first.inputs, targets=first.targets)
    assert not torch.equal(task.grad(x, first), task.grad(x, on_the_same_data))


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_leaves_the_global_generator_alone(kind):
    task = Task(DROPOUT[kind]).under(dtype=torch.float64)
    before = torch.get_rng_state()
    task.grad(rows(task), drawn([0, 1, 2]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_is_off_when_a_model_is_used(kind):
    task = Task(DROPOUT[kind]).under(dtype=torch.float64)
    batch = drawn([0, 1, 2])
    x = rows(task)
    task.grad(x, batch)
    together = task.outputs(x, batch.inputs)
    for k in range(K):
        with torch.no_grad():
            alone = task.module_of(x[k])(batch.inputs[k])
        torch.testing.assert_close(together[k], alone)
        torch.testing.assert_close(task.outputs_of_one(x[k], batch.inputs[k]), alone)


def test_dropout_in_the_forward_of_linear_layers_is_refused_or_trains():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 20)
            self.b = nn.Linear(20, 3)

        def forward(self, x):
            return self.b(F.dropout(torch.relu(self.a(x)), 0.5, self.training))

    try:
        task = Task(Net()).under(dtype=torch.float64)
        assert torch.equal(
            task.grad(rows(task), drawn([0, 1, 2])), task.grad(rows(task), drawn([0, 1, 2]))
        )
    except SettingError as error:
        assert "'rows'" in str(error)
    task = Task(Net()).under(kernel="rows", dtype=torch.float64)
    assert torch.equal(
        task.grad(rows(task), drawn([0, 1, 2])), task.grad(rows(task), drawn([0, 1, 2]))
    )
