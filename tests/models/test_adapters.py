"""An adapted model starts as the same function and keeps its names; only adapters are called so."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import state_of
from idiolect.core.knobs import SettingError
from idiolect.methods import FedAlt
from idiolect.models import PAPERS, adapt, make
from idiolect.models.adapters import Adapted, Adapter
from idiolect.task.batches import Batch


class Own(nn.Module):
    """A user's own module.

    Grouped, reflecting and dilated convolutions, a layer used in two places, and an attribute of a
    layer that is read.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, padding_mode="reflect")
        self.second = nn.Conv2d(4, 4, 3, padding="same", dilation=2)
        self.twice = nn.ModuleList([nn.Linear(64, 64), nn.Tanh()])
        self.again = self.twice[0]
        self.out = nn.Linear(64, 3, bias=False)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x))).flatten(1)
        return self.out(self.again(self.twice[1](self.twice[0](x))).view(-1, self.out.in_features))


class Words(nn.Module):
    """A small transformer: tokens [B, T] to class scores."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.words(x)).mean(1))


CASES = {  # how to make it, a batch of inputs, parameters of its adapters of rank 2
    "mlp": (
        lambda: make("mlp", (6,), 3, hidden="5"),
        lambda: torch.randn(4, 6),
        2 * (6 + 5 + 5 + 3),
    ),
    "lenet": (
        lambda: make("lenet", (1, 16, 16), 3),
        lambda: torch.randn(4, 1, 16, 16),
        2 * (25 + 6 + 6 * 25 + 16 + 16 + 120 + 120 + 84 + 84 + 3),
    ),
    "resnet-small": (
        lambda: make("resnet-small", (1, 9, 9), 3),
        lambda: torch.randn(4, 1, 9, 9),
        2 * (49 + 64 + 5 * 64 * 9 + 4 * 64 + 128 + 3 * (128 * 9 + 128) + (64 + 128) + (128 + 3)),
    ),
    "own": (Own, lambda: torch.randn(4, 2, 8, 8), 2 * (2 * 9 + 4 + 4 * 9 + 4 + 64 + 64 + 64 + 3)),
    "transformer": (Words, lambda: torch.randint(11, (4, 7)), 2 * (16 + 16 + 8 + 3)),
}


@pytest.fixture(params=CASES)
def case(request):
    """(the module, the same adapted, inputs, parameters of the adapters) in float64."""
    torch.manual_seed(0)
    create, inputs, count = CASES[request.param]
    module = create().double()
    x = inputs()
    x = x.double() if x.is_floating_point() else x
    return module, adapt(module, rank=2), x, count


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def is_adapter(name: str) -> bool:
    return "adapter" in name.split(".")


def stirred(module: nn.Module) -> nn.Module:
    """The same module with adapters that do something."""
    for part in module.modules():
        if isinstance(part, Adapter):
            nn.init.normal_(part.up, std=0.1)
    return module


def a_batch(x: torch.Tensor, rows: int = 2) -> Batch:
    inputs = torch.stack([x] * rows)
    targets = torch.arange(rows * len(x)).view(rows, -1) % 3
    return Batch(
        inputs,
        targets,
        torch.full(targets.shape, 1 / len(x), dtype=torch.float64),
        torch.zeros(rows, dtype=torch.int64),
    )


def test_an_adapted_model_starts_as_the_same_function(case):
    module, adapted, x, _ = case
    assert torch.equal(adapted(x), module(x))
    assert torch.equal(adapted.eval()(x), module.eval()(x))
    with torch.no_grad():  # where torch takes a shorter way through transformers
        assert torch.equal(adapted(x), module(x))


def test_an_adapter_that_is_not_zero_changes_the_function_in_training_and_in_use(case):
    module, adapted, x, _ = case
    stirred(adapted)
    assert not torch.allclose(adapted(x), module(x))
    with torch.no_grad():
        torch.testing.assert_close(adapted.eval()(x), adapted.train()(x))


def test_the_module_given_is_left_as_it_was(case):
    module, adapted, _, _ = case
    assert not any(isinstance(m, Adapted) for m in module.modules())
    stirred(adapted)
    assert not {p.data_ptr() for p in module.parameters()} & {
        p.data_ptr() for p in adapted.parameters()
    }


def test_an_adapter_has_rank_times_inputs_and_outputs_parameters(case):
    module, adapted, _, count = case
    assert size(adapted) == size(module) + count


def test_names_are_the_old_ones_with_layer_and_adapter_added(case):
    module, adapted, _, _ = case
    old = [n for n, _ in module.named_parameters()]
    new = [n for n, _ in adapted.named_parameters()]
    assert [n.replace(".layer.", ".") for n in new if not is_adapter(n)] == old
    assert all(n.endswith((".adapter.down", ".adapter.up")) for n in new if is_adapter(n))


def test_the_gradient_reaches_b_first_and_a_once_b_has_moved(case):
    _, adapted, x, _ = case

    def gradients() -> dict[str, float]:
        adapted.zero_grad()
        adapted(x).square().sum().backward()
        return {
            n: float(p.grad.abs().sum()) for n, p in adapted.named_parameters() if is_adapter(n)
        }

    assert all((g > 0) == n.endswith("up") for n, g in gradients().items())
    stirred(adapted)
    assert all(g > 0 for g in gradients().values())


def test_the_split_called_adapter_selects_all_and_only_the_adapters(case):
    module, adapted, _, count = case
    task = il.Task(adapted).under(dtype=torch.float64)
    theta, w = task.split("adapter").parts(task.x0)
    assert len(w) == count
    assert torch.equal(theta, nn.utils.parameters_to_vector(module.parameters()).detach())


@pytest.mark.parametrize("part", ["input", "output"])
def test_the_first_and_the_last_layer_are_those_of_the_model_before(case, part):
    module, adapted, _, _ = case
    before, after = (il.Task(m).under(dtype=torch.float64) for m in (module, adapted))
    assert torch.equal(before.split(part).parts(before.x0)[1], after.split(part).parts(after.x0)[1])


def test_a_layers_name_takes_its_adapter_along():
    task = il.Task(make("mlp", (6,), 3, hidden="5", adapter_rank=2))
    assert len(task.split("head.*").w) == 5 * 3 + 3 + 2 * (5 + 3)


def test_vmapped_and_row_by_row_gradients_agree(case):
    _, adapted, x, _ = case
    stirred(adapted)
    task = il.Task(adapted).under(dtype=torch.float64)
    a, b = (task.under(kernel=kernel) for kernel in ("vmap", "rows"))
    rows = a.x0 + 0.01 * torch.randn(2, a.d, dtype=torch.float64)
    batch = a_batch(x)
    torch.testing.assert_close(a.grad(rows, batch), b.grad(rows, batch), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        a.outputs(rows, batch.inputs), b.outputs(rows, batch.inputs), rtol=1e-10, atol=1e-10
    )


def test_an_adapted_chain_is_not_taken_for_a_plain_one():
    assert il.Task(make("mlp", (6,), 3)).kernel == "stacked"
    assert il.Task(make("mlp", (6,), 3, adapter_rank=2)).kernel == "vmap"


def test_a_model_drawn_anew_has_a_new_a_and_a_zero_b(case):
    _, adapted, _, _ = case
    task = il.Task(stirred(adapted)).under(dtype=torch.float64)
    x = task.draw(np.array([3, 4], dtype=np.uint64))
    for name, value in task.layout.unflatten(x).items():
        if name.endswith("adapter.up"):
            assert not value.any()
        elif name.endswith("adapter.down"):
            assert value.std() > 0 and not torch.equal(value[0], value[1])


def test_fedalt_with_private_adapters_moves_the_shared_part_and_improves_accuracy():
    federation = il.data.load("digits", clients=6)
    task = il.Task(lambda: make("mlp", (1, 8, 8), 10, hidden="20", adapter_rank=4))
    runs = {
        n: il.run(FedAlt(part="adapter"), task, federation, rounds=n, sample=6, kernel="vmap")
        for n in (0, 8)
    }
    before, after = (runs[n].summary()["accuracy"]["mean"] for n in (0, 8))
    theta = [state_of(runs[n])["theta"] for n in (0, 8)]
    assert after > before + 0.3
    assert len(theta[0]) == 64 * 20 + 20 + 20 * 10 + 10 and not torch.allclose(*theta)
    ups = [runs[8].personal(k).get_parameter("head.adapter.up") for k in (0, 1)]
    assert ups[0].any() and not torch.allclose(*ups)


def test_adapters_alone_improve_accuracy_while_the_shared_part_stands_still():
    federation = il.data.load("digits", clients=6)
    task = il.Task(make("mlp", (1, 8, 8), 10, hidden="20", adapter_rank=4))
    method = FedAlt(part="adapter", steps=0, private_steps=10)
    runs = [il.run(method, task, federation, rounds=n, sample=6) for n in (0, 5)]
    # The shared part is a mean of equal rows, which is exact up to rounding.
    torch.testing.assert_close(*(state_of(r)["theta"] for r in runs))
    assert runs[1].summary()["accuracy"]["mean"] > runs[0].summary()["accuracy"]["mean"] + 0.3


@pytest.mark.parametrize("name", PAPERS)
def test_every_model_takes_an_adapter_rank_and_has_none_by_default(name):
    inputs = (1, 16, 16)
    plain, zero, adapted = (
        make(name, inputs, 3, **o) for o in ({}, {"adapter_rank": 0}, {"adapter_rank": 2})
    )
    assert not any(is_adapter(n) for n, _ in plain.named_parameters()) and size(plain) == size(zero)
    assert size(adapted) > size(plain) and type(adapted) is nn.Sequential
    assert adapted.head.out_features == 3  # the layer's attributes can still be read


def test_only_the_layers_named_are_adapted_and_a_second_call_adds_the_others():
    module = make("mlp", (6,), 3, hidden="5,4")

    def adapted(m: nn.Module) -> list[str]:
        return [n for n, part in m.named_modules() if isinstance(part, Adapted)]

    assert adapted(adapt(module, layers="hidden*")) == ["hidden1", "hidden2"]
    assert adapted(adapt(module, layers="hidden2, head")) == ["hidden2", "head"]
    both = adapt(adapt(module, rank=1, layers="head"), rank=3)
    assert adapted(both) == ["hidden1", "hidden2", "head"]
    assert len(both.head.adapter.down) == 1 and len(both.hidden1.adapter.down) == 3


def test_a_layer_used_in_two_places_has_one_adapter_in_both():
    module = adapt(Own())
    assert module.again is module.twice[0] and isinstance(module.again, Adapted)


def test_a_single_layer_can_be_adapted():
    assert [n for n, _ in adapt(nn.Linear(3, 2)).named_parameters()] == [
        "layer.weight",
        "layer.bias",
        "adapter.down",
        "adapter.up",
    ]


def test_an_adapter_is_on_the_frozen_layers_device_and_of_its_type_and_is_trained():
    module = nn.Sequential(nn.Linear(3, 2)).to(torch.bfloat16).eval().requires_grad_(False)
    adapted = adapt(module)
    assert [n for n, p in adapted.named_parameters() if p.requires_grad] == [
        "0.adapter.down",
        "0.adapter.up",
    ]
    assert {p.dtype for p in adapted.parameters()} == {torch.bfloat16} and not any(
        m.training for m in adapted.modules()
    )


def test_attention_by_itself_is_passed_over_because_it_would_not_call_its_layers():
    module = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "head": nn.Linear(8, 3)})
    assert [n for n, _ in adapt(module).named_parameters() if is_adapter(n)] == [
        "head.adapter.down",
        "head.adapter.up",
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_tokens_do_not_reach_the_others_of_an_adapted_transformer():
    encoder = Words().encoder.double()
    adapted = adapt(encoder)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def kept(module: nn.Module) -> torch.Tensor:
        return module(x, src_key_padding_mask=padded)[~padded]

    assert torch.equal(kept(adapted), kept(encoder))
    expected = kept(stirred(adapted))
    with torch.no_grad():  # in use, torch packs the tokens that count into a nested tensor
        torch.testing.assert_close(kept(adapted.eval()), expected)


def test_a_whole_transformer_with_decoder_starts_as_the_same_function():
    module = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    y = torch.randn(2, 3, 8, dtype=torch.float64)
    adapted = adapt(module)
    assert torch.equal(adapted(x, y), module(x, y))
    assert size(adapted) == size(module) + 2 * 4 * 16


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        (
            nn.Linear(3, 2),
            {"rank": 0},
            r"^rank must be a whole number >= 1, got 0 ",
        ),
        (nn.Linear(3, 2), {"rank": 1.5}, r"^rank must be a whole number >= 1, got 1.5"),
        (
            nn.Linear(3, 2),
            {"layers": "head"},
            r"^layers: 'head' matches no layer .*: \* \(the module is one layer\)",
        ),
        (
            make("mlp", (6,), 3),
            {"layers": "haed"},
            r"^layers: 'haed' matches no layer .*: hidden1, head$",
        ),
        (nn.Embedding(3, 2), {}, r"^layers: '\*' matches no layer .*: none"),
        (adapt(nn.Linear(3, 2)), {}, r"^layers: '\*' matches no layer .*: none"),
        (nn.Sequential(nn.LazyLinear(2)), {}, r"^module: layer '0' is lazy"),
        (
            nn.ModuleDict({"my_adapter": nn.Linear(3, 2)}),
            {},
            r"^module must have no names with 'adapter.*got 'my_adapter.weight'",
        ),
    ],
)
def test_what_cannot_be_adapted_is_said(module, options, says):
    with pytest.raises(SettingError, match=says):
        adapt(module, **options)


@pytest.mark.parametrize("rank", [-1, 1.5, "many"])
def test_a_bad_adapter_rank_names_the_field(rank):
    with pytest.raises(
        SettingError,
        match=r"^adapter_rank must be a whole number >= 0, got .* \(",
    ):
        make("mlp", (6,), 3, adapter_rank=rank)
