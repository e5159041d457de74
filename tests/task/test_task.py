"""A model is a vector: flat round trips, what is refused, splits, clipping and decay."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from idiolect import Task
from idiolect.core.knobs import SettingError
from idiolect.core.streams import keys, name_keys
from idiolect.task.batches import Batch
from idiolect.task.task import Numerics


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def a_batch(rows: int, active: list[bool] | None = None) -> Batch:
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 6, 4, generator=g)
    targets = torch.randint(2, (rows, 6), generator=g)
    on = None if active is None else torch.tensor(active)
    return Batch(
        inputs, targets, torch.full((rows, 6), 1 / 6), torch.zeros(rows, dtype=torch.int64), on
    )


def test_a_model_is_its_parameters_in_order():
    module = mlp()
    task = Task(module)
    assert torch.equal(task.x0, nn.utils.parameters_to_vector(module.parameters()).detach())
    assert task.d == sum(p.numel() for p in module.parameters())


def test_vector_to_module_and_back_is_exact():
    task = Task(mlp())
    x = torch.randn(task.d)
    module = task.module_of(x)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()).detach(), x)
    parts = task.layout.unflatten(x)
    assert torch.equal(torch.cat([parts[n].flatten() for n in task.layout.names]), x)
    assert task.layout.span("2.weight") == (15, 30)


def test_the_module_of_a_vector_gives_the_tasks_outputs():
    task = Task(mlp()).under(dtype=torch.float64)
    x = torch.randn(3, task.d, dtype=torch.float64)
    inputs = torch.randn(3, 7, 4, dtype=torch.float64)
    outputs = task.outputs(x, inputs)
    for k in range(3):
        module = task.module_of(x[k])
        assert not module.training
        torch.testing.assert_close(module(inputs[k]).detach(), outputs[k])
        torch.testing.assert_close(task.outputs_of_one(x[k], inputs[k]), outputs[k])


def test_the_users_module_is_never_changed():
    module = mlp()
    before = copy.deepcopy(module.state_dict())
    task = Task(module).under(dtype=torch.float64)
    task.module_of(torch.zeros(task.d, dtype=torch.float64))
    task.grad(torch.zeros(2, task.d, dtype=torch.float64), replace_inputs(a_batch(2)))
    assert all(
        torch.equal(t, before[n]) and t.dtype == torch.float32
        for n, t in module.state_dict().items()
    )


def replace_inputs(batch: Batch) -> Batch:
    return Batch(batch.inputs.double(), batch.targets, batch.weights.double(), batch.tally)


@pytest.mark.parametrize(
    ("module", "layer", "instead"),
    [
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            "'1' (BatchNorm1d)",
            "GroupNorm",
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)), "'1'", "BatchNorm2d"),
    ],
)
def test_layers_that_mix_samples_in_use_are_refused_by_name(module, layer, instead):
    with pytest.raises(SettingError) as error:
        Task(module)
    assert layer in str(error.value) and instead in str(error.value)


def test_running_statistics_follow_the_parameters_in_a_row():
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    assert (task.d, task.statistics.m, task.kernel) == (15 + 6, 7, "rows")
    assert task.start()[task.d :].tolist() == [0, 0, 0, 1, 1, 1, 0]
    row = task.start().clone()
    row[task.d :] = torch.arange(7.0)
    module = task.module_of(row)
    assert module[1].running_var.tolist() == [3, 4, 5] and module[1].num_batches_tracked == 6
    assert set(task.tensors_of(row)) == set(module.state_dict())
    with pytest.raises(SettingError, match="running statistics"):
        task.under(kernel="vmap")
    with pytest.raises(SettingError, match="second derivatives"):
        task.hvp(task.x0[None], task.x0[None], a_batch(1))


def test_normalisation_without_running_statistics_is_accepted():
    assert Task(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4))).d == 20 + 8 + 8


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.ReLU()), "no trainable parameter"),
        (nn.Sequential(nn.LazyLinear(3)), "lazy"),
        (lambda: "a module", "got str"),
    ],
)
def test_what_cannot_be_trained_is_refused(model, says):
    with pytest.raises(SettingError, match=says):
        Task(model)


def test_frozen_parameters_stay_out_and_stay_as_they_are():
    module = mlp()
    module[0].requires_grad_(False)
    task = Task(module).under(kernel="vmap")
    assert task.layout.names == ("2.weight", "2.bias", "4.weight", "4.bias") and task.d == 32
    out = task.module_of(torch.zeros(task.d))
    assert torch.equal(out[0].weight, module[0].weight) and not out[2].weight.any()


def test_a_tied_parameter_is_counted_once_and_stays_tied():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    task = Task(module).under(kernel="vmap")
    assert task.d == 16
    out = task.module_of(torch.arange(16.0))
    assert out[2].weight is out[0].weight and torch.equal(
        out[2].weight.flatten(), torch.arange(16.0)
    )


def test_a_function_is_called_anew_under_each_seed():
    made = []

    def model():
        made.append(mlp())
        return made[-1]

    task = Task(model)
    a, b = (task.under(seed=seed) for seed in (1, 2))
    assert len(made) == 3 and not torch.equal(a.x0, b.x0)
    assert torch.equal(a.under(seed=2).x0, b.x0) and torch.equal(task.under(seed=1).x0, a.x0)


def test_making_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    task = Task(mlp).under(seed=3)
    task.draw(keys(0, "init", 0, name_keys(["a", "b"])))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_given_module_keeps_its_weights_under_every_seed():
    module = mlp()
    given = nn.utils.parameters_to_vector(module.parameters()).detach()
    for seed in (1, 2):
        assert torch.equal(Task(module).under(seed=seed).x0, given)


@pytest.mark.parametrize("model", [mlp, mlp()], ids=["function", "module"])
def test_models_drawn_for_clients_are_new_and_keyed_by_client(model):
    task = Task(model)
    key = keys(0, "init", 0, name_keys(["a", "b", "c"]))
    rows = task.draw(key)
    assert (
        rows.shape == (3, task.d)
        and not torch.equal(rows[0], rows[1])
        and not torch.equal(rows[0], task.x0)
    )
    assert torch.equal(task.draw(key[2:])[0], rows[2])
    bound = 4**-0.5  # PyTorch's initialisation of a layer with 4 inputs
    assert rows[:, :15].abs().max() <= bound


# -- splits ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("input", ["0.weight", "0.bias"]),
        ("output", ["4.weight", "4.bias"]),
        ("2.*", ["2.weight", "2.bias"]),
        ("*.bias", ["0.bias", "2.bias", "4.bias"]),
        ("0.*, 4.bias", ["0.weight", "0.bias", "4.bias"]),
        ("*", ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]),
    ],
)
def test_a_split_takes_the_named_parameters_and_join_undoes_it(pattern, names):
    task = Task(mlp())
    split = task.split(pattern)
    x = torch.randn(3, task.d)
    assert split.w.tolist() == [
        i for n in task.layout.names if n in names for i in range(*task.layout.span(n))
    ]
    theta, w = split.parts(x)
    assert theta.shape[-1] + w.shape[-1] == task.d
    assert torch.equal(split.join(theta, w), x)


def test_join_spreads_one_shared_part_over_private_rows():
    task = Task(mlp())
    split = task.split("output")
    x = torch.randn(3, task.d)
    joined = split.join(split.parts(x[0])[0], split.parts(x)[1])
    assert joined.shape == (3, task.d) and torch.equal(joined[0], x[0])
    assert torch.equal(joined[:, : split.w[0]], x[0, : split.w[0]].expand(3, -1))


def test_a_pattern_that_matches_nothing_lists_the_parameters():
    with pytest.raises(SettingError) as error:
        Task(mlp()).split("heads.*")
    assert all(
        word in str(error.value)
        for word in (
            "'heads.*' matches no parameter",
            "input",
            "output",
            "0.weight",
            "0.bias",
            "4.bias",
        )
    )


def test_the_only_layer_is_both_first_and_last():
    task = Task(nn.Linear(4, 2))
    assert task.split("input").w.tolist() == task.split("output").w.tolist() == list(range(10))


class Scale(nn.Module):
    """A parameter of the module itself beside its layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.body = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.body(x) * self.scale)


def test_a_parameter_of_the_whole_module_does_not_make_everything_the_first_layer():
    task = Task(Scale())
    assert len(task.split("input").w) < task.d and task.split("output").w.tolist() == list(
        range(16, 24)
    )


# -- gradients -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["stacked", "vmap", "rows"])
def test_clipping_bounds_each_row_and_keeps_its_direction(kernel):
    task = Task(nn.Linear(4, 2)).under(kernel=kernel)
    x = torch.stack([task.x0, 50 * torch.ones(task.d)])
    free = task.grad(x, a_batch(2))
    bound = float(free.norm(dim=1).mean())
    held = task.under(clip=bound).grad(x, a_batch(2))
    small, large = free.norm(dim=1).argsort().tolist()
    assert torch.equal(held[small], free[small])
    torch.testing.assert_close(held[large], free[large] * bound / free[large].norm())
    tiny = task.under(clip=1e-3).grad(x, a_batch(2)).norm(dim=1)
    assert bool((tiny <= 1.0001e-3).all())


def test_clipping_a_zero_gradient_leaves_it_zero():
    task = Task(nn.Linear(4, 1, bias=False), "mse").under(clip=1.0)
    batch = Batch(
        torch.ones(1, 2, 4),
        torch.zeros(1, 2),
        torch.full((1, 2), 0.5),
        torch.zeros(1, dtype=torch.int64),
    )
    assert torch.equal(task.grad(torch.zeros(1, 4), batch), torch.zeros(1, 4))


def test_weight_decay_adds_the_model_itself():
    task = Task(nn.Linear(4, 2))
    x = torch.randn(3, task.d)
    torch.testing.assert_close(
        task.under(weight_decay=0.3).grad(x, a_batch(3)), task.grad(x, a_batch(3)) + 0.3 * x
    )


def test_every_gradient_is_counted_for_the_rows_at_work():
    task = Task(nn.Linear(4, 2))
    x = task.x0.repeat(3, 1)
    batch = a_batch(3)
    task.grad(x, batch)
    task.grad(x, batch.only(torch.tensor([True, False, True])))
    task.grad(
        x, batch.only(torch.tensor([True, False, True])).only(torch.tensor([True, True, False]))
    )
    assert batch.tally.tolist() == [3, 1, 2]


def test_an_unknown_loss_suggests_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'cross_entropy'"):
        Task(nn.Linear(4, 2), "crossentropy")
    with pytest.raises(SettingError, match="loss cannot be 3"):
        Task(nn.Linear(4, 2), 3)


def test_numpy_keys_of_any_size_draw_a_model():
    rows = Task(mlp).draw(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert torch.isfinite(rows).all()


# -- the settings of a run -------------------------------------------------------------------------
def test_under_leaves_the_task_itself_as_it_was_and_adds_up():
    task = Task(nn.Linear(4, 2))
    bound = task.under(dtype=torch.float64).under(clip=0.5)
    assert task.numerics == Numerics() and task.x0.dtype == torch.float32
    assert bound.numerics == Numerics(dtype=torch.float64, clip=0.5)
    assert torch.equal(task.under(bound.numerics).x0, bound.x0)
    with pytest.raises(TypeError, match="dtyp"):
        task.under(dtyp=torch.float64)


def test_a_task_says_nothing_of_how_it_is_computed():
    with pytest.raises(TypeError):
        Task(nn.Linear(4, 2), dtype=torch.float64)
