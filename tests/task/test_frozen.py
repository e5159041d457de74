"""Frozen parameters are held once and keep their precision; copies of a module share them."""

import copy

import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.task.kernels.rows import Rows


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)


class Mixed(nn.Module):
    """A bfloat16 body, frozen, and a float32 head that casts what it is given."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5, dtype=torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x.to(self.body.weight.dtype)).relu().float())


def half_frozen():
    return nn.Sequential(nn.Linear(6, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3))


def federation(samples=60, clients=3):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 6, generator=noise)
    return il.Federation.from_arrays(x, x[:, :3].argmax(1), [i % clients for i in range(samples)])


def test_a_task_its_copies_and_the_personal_modules_share_the_frozen_parameters():
    module = half_frozen()
    task = il.Task(module)
    data = federation()
    result = il.run("ditto:steps=1,personal_steps=1", task, data, rounds=1, kernel="rows")
    kernel = task.under(kernel="rows")._kernel
    assert isinstance(kernel, Rows)
    kernel.outputs(task.x0.repeat(2, 1), torch.zeros(2, 1, 6))
    holders = [task.module, kernel.original, *(m.module for m in kernel.row_modules)]
    holders += [result.personal(client) for client in data.ids]
    assert len(holders) >= 6
    assert {m[0].weight.data_ptr() for m in holders} == {module[0].weight.data_ptr()}
    assert len({m[2].weight.data_ptr() for m in holders[-3:]}) == 3


def test_training_leaves_the_frozen_parameters_as_they_are():
    module = half_frozen()
    before = copy.deepcopy(module)
    il.run("fedavg", il.Task(module), federation(), rounds=2)
    for p, q in zip(module.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)


def test_new_initialisations_leave_the_frozen_parameters_as_they_are():
    module = half_frozen()
    before = module[0].weight.clone()
    il.run("local:init=own", il.Task(module), federation(), rounds=1)
    assert torch.equal(module[0].weight, before)


def test_weights_of_a_file_are_not_written_into_the_module_given(tmp_path):
    from safetensors.torch import save_file

    module = half_frozen()
    before = module[0].weight.clone()
    save_file({n: t + 1 for n, t in module.state_dict().items()}, tmp_path / "model.safetensors")
    task = il.Task(module, weights=tmp_path)
    assert torch.equal(task.module[0].weight, before + 1)
    assert torch.equal(module[0].weight, before)


def test_a_base_in_a_lower_precision_than_the_trained_part_keeps_it():
    module = Mixed()
    for dtype in (torch.float32, torch.float64):
        task = il.Task(module).under(dtype=dtype)
        assert task.module.body.weight.dtype == torch.bfloat16
        assert task.module.body.weight.data_ptr() == module.body.weight.data_ptr()
        assert task.x0.dtype == task.module.head.weight.dtype == dtype
    shorter, result = (il.run("fedavg", module, federation(), rounds=n) for n in (1, 40))
    assert result.summary()["loss"]["mean"] < shorter.summary()["loss"]["mean"]
    assert result.personal(0).body.weight.dtype == torch.bfloat16


def test_a_module_of_one_precision_takes_that_of_the_run_altogether():
    module = half_frozen()
    task = il.Task(module).under(dtype=torch.float64)
    assert {p.dtype for p in task.module.parameters()} == {torch.float64}
    assert {p.dtype for p in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("kernel", ["rows", "vmap"])
def test_the_gradient_of_a_mixed_module_is_that_of_plain_autograd(kernel):
    module = Mixed()
    task = il.Task(module).under(kernel=kernel)
    data = federation(samples=12, clients=1)
    x, y = data.part(0, "train")
    batch = il.task.batches.Batch(
        x[None], y[None], torch.full((1, len(y)), 1 / len(y)), torch.zeros(1, dtype=torch.int64)
    )
    loss = nn.functional.cross_entropy(module(x), y)
    plain = torch.autograd.grad(loss, list(module.head.parameters()))
    expected = torch.cat([g.flatten() for g in plain])
    gradient = task.grad(task.x0[None], batch)[0]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=2e-3)  # bfloat16 rounds at 4e-3
