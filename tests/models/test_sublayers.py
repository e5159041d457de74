"""The adapters of Pillutla et al.: after sublayers of transformers, in the blocks of ResNets."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.models import adapt, make
from idiolect.models.adapters import Adapter
from idiolect.task.batches import Batch

RANK = 3


class Words(nn.Module):
    """torch's own transformer layers, pre-norm or post-norm."""

    def __init__(self, norm_first=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        self.words = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.words(x)).mean(1))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 16, "max_position_embeddings": 16, "num_labels": 3}
    return BertForSequenceClassification(BertConfig(vocab_size=11, **small, **more))


def tokens():
    return torch.randint(11, (4, 7))


CASES = {  # kind, how to make it, inputs, the layers that get an adapter, numbers of one
    "transformer": (
        "bottleneck",
        lambda: make("transformer", (7,), 3, blocks=2, heads=2, width=8, hidden=12),
        lambda: torch.randint(3, (4, 7)),
        ["block1.attention.out", "block1.contract", "block2.attention.out", "block2.contract"],
        2 * 8 * RANK + RANK + 8,
    ),
    "encoder": (
        "bottleneck",
        Words,
        tokens,
        [f"encoder.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn", "linear2")],
        2 * 8 * RANK + RANK + 8,
    ),
    "bert": (
        "bottleneck",
        bert,
        tokens,
        [
            f"bert.encoder.layer.{i}.{name}"
            for i in (0, 1)
            for name in ("attention.output.dense", "output.dense")
        ],
        2 * 8 * RANK + RANK + 8,
    ),
    "resnet-small": (
        "conv",
        lambda: make("resnet-small", (1, 9, 9), 3),
        lambda: torch.randn(4, 1, 9, 9),
        [f"block1{b}.conv{i}" for b in "ab" for i in (1, 2)]
        + [f"block2{b}.conv{i}" for b in "ab" for i in (1, 2)],
        None,
    ),
}


def output(module, x):
    out = module(x)
    return out if isinstance(out, torch.Tensor) else out.logits


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    kind, create, inputs, places, count = CASES[request.param]
    module = create().double().eval()
    x = inputs()
    x = x.double() if x.is_floating_point() else x
    return module, adapt(module, RANK, kind=kind), x, places, count


def adapters(module):
    return {n.removesuffix(".adapter"): m for n, m in module.named_modules() if is_one(m)}


def is_one(module):
    return isinstance(module, Adapter)


def test_every_sublayer_or_convolution_of_a_block_has_one(case):
    module, adapted, _, places, count = case
    assert list(adapters(adapted)) == places
    for name, adapter in adapters(adapted).items():
        size = sum(p.numel() for p in adapter.parameters())
        width = len(adapter.up)
        assert size == (count or width**2 + 2 * width), name
    kept = [n for n, _ in adapted.named_parameters() if ".adapter." not in n]
    assert len(kept) == len(list(module.named_parameters()))


def test_without_its_last_weights_an_adapted_model_is_the_same_function(case):
    module, adapted, x, _, _ = case
    for adapter in adapters(adapted).values():
        nn.init.zeros_(adapter.up)
    torch.testing.assert_close(output(adapted, x), output(module, x), rtol=1e-12, atol=1e-12)
    with torch.no_grad():  # where torch takes a shorter way through transformers
        torch.testing.assert_close(output(adapted, x), output(module, x), rtol=1e-9, atol=1e-9)


def test_an_adapted_model_starts_near_the_same_function(case):
    """As near as the standard deviation of the weights, 0.01 twice, or 1e-4."""
    module, adapted, x, _, _ = case
    gap = (output(adapted, x) - output(module, x)).abs().max()
    assert 0 < gap < 0.02 * output(module, x).abs().max()


def test_an_adapter_acts_in_training_and_in_use_alike(case):
    module, adapted, x, _, _ = case
    for adapter in adapters(adapted).values():
        for weight in (adapter.up, getattr(adapter, "down", adapter.up)):
            nn.init.normal_(weight, std=2)
    with torch.no_grad():
        in_use = output(adapted.eval(), x)
    assert (in_use - output(module, x)).abs().max() > 1e-5
    torch.testing.assert_close(output(adapted, x), in_use, rtol=1e-9, atol=1e-9)


def test_every_adapter_has_a_gradient_from_the_start(case):
    _, adapted, x, _, _ = case
    output(adapted, x).square().sum().backward()
    assert all(
        float(p.grad.abs().sum()) > 0
        for adapter in adapters(adapted).values()
        for n, p in adapter.named_parameters()
        if n in ("up", "down")
    )


def test_the_split_adapter_finds_them_and_norms_come_along(case):
    module, adapted, _, _, _ = case
    task = il.Task(adapted)
    theta, w = task.split("adapter").parts(task.under(dtype=torch.float64).x0)
    assert len(w) == sum(p.numel() for a in adapters(adapted).values() for p in a.parameters())
    before = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert torch.equal(theta, before)
    norms = sum(
        p.numel()
        for m in module.modules()
        if isinstance(m, (nn.LayerNorm, nn.GroupNorm))
        for p in m.parameters()
    )
    assert len(task.split("adapter,norms").w) == len(w) + norms
    for part in ("input", "output", "head", "norms"):  # as without adapters
        plain = il.Task(module).under(dtype=torch.float64)
        bound = task.under(dtype=torch.float64)
        assert torch.equal(
            plain.split(part).parts(plain.x0)[1], bound.split(part).parts(bound.x0)[1]
        )


@pytest.mark.parametrize("name", ["transformer", "resnet-small"])
def test_gradients_of_a_cohort_are_those_of_one_model_at_a_time(name):
    torch.manual_seed(1)
    kind, create, inputs, _, _ = CASES[name]
    task = il.Task(adapt(create(), RANK, kind=kind)).under(dtype=torch.float64)
    x = inputs()
    x = x.double() if x.is_floating_point() else x
    many = (2, 4, 7) if name == "transformer" else (2, 4)
    targets = torch.randint(3, many)
    batch = Batch(
        torch.stack([x, x]),
        targets,
        torch.full((2, 4), 1 / 4, dtype=torch.float64),
        torch.zeros(2, dtype=torch.int64),
    )
    rows = task.x0 + 0.05 * torch.randn(2, task.d, dtype=torch.float64)
    a, b = (task.under(kernel=kernel).grad(rows, batch) for kernel in ("vmap", "rows"))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_a_model_drawn_anew_has_new_adapters_of_the_papers_scale():
    task = il.Task(make("transformer", (5,), 7, width=64, adapter="bottleneck", adapter_rank=16))
    rows = task.draw(np.array([3, 4], dtype=np.uint64))
    for name, value in task.layout.unflatten(rows).items():
        if name.endswith(("adapter.down", "adapter.up")):
            assert value.std() == pytest.approx(0.01, rel=0.1)
            assert not torch.equal(value[0], value[1])
        elif "adapter" in name:
            assert not value.any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"adapter": "bottleneck"},
            "with adapter 'bottleneck', got 0",
        ),
        ({"adapter": "conv", "adapter_rank": 2}, "a 1x1 convolution has no inner width"),
        ({"adapter": "bottleneck", "adapter_rank": 2}, "as a transformer has; kind 'low-rank'"),
        ({"adapter": "conv"}, "as a ResNet has; kind 'low-rank'"),
        ({"adapter": "lora"}, "'low-rank', 'bottleneck', 'conv'"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises(SettingError) as error:
        make("mlp", (6,), 3, **options)
    assert says in str(error.value)


def test_adapters_of_an_adapted_model_are_not_doubled():
    once = adapt(make("transformer", (5,), 7, blocks=2, width=8), 2, "block1.*", "bottleneck")
    twice = adapt(once, 2, kind="bottleneck")
    assert list(adapters(twice)) == [
        f"block{i}.{name}" for i in (1, 2) for name in ("attention.out", "contract")
    ]


def test_fedalt_trains_bottleneck_adapters_with_the_norms():
    federation = il.data.load("digits", clients=5)
    tokens = (federation.inputs.flatten(1)[:, ::8] > 0.5).long()  # 8 tokens of two kinds
    classes = federation.targets.unsqueeze(1).expand(-1, 8)
    words = il.Federation(
        tokens, classes.contiguous(), federation.offsets, federation.ids, 10, "bits"
    )
    model = {"blocks": 2, "heads": 2, "width": 8, "hidden": 8, "adapter_rank": 4}
    task = il.Task(lambda: make("transformer", (8,), 10, adapter="bottleneck", **model))
    method = il.FedAlt(part="adapter,norms", lr=0.5, private_lr=0.5)
    runs = [il.run(method, task, words, rounds=n, sample=5, batch=16) for n in (0, 6)]
    losses = [r.summary()["loss"]["mean"] for r in runs]
    assert losses[1] < losses[0] - 0.05
