"""What a trial shows of models and losses that nobody here wrote, and what follows from it."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.task.losses import as_loss
from idiolect.task.trial import try_out

KERNELS = ("auto", "rows", "vmap", "stacked")
SIZES = (5, 12, 2, 9)


# -- losses ---------------------------------------------------------------------------------------
def info_nce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Contrastive: every sample against all others of its class."""
    z = F.normalize(outputs, dim=1)
    alike = (targets[:, None] == targets[None, :]).to(z.dtype)
    scores = z @ z.T / 0.5
    return scores.logsumexp(1) - (scores * alike).sum(1) / alike.sum(1)


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    """Hinge of every pair in the wrong order."""
    gap = outputs[:, :1] - outputs[:, :1].T
    order = (targets[:, None] > targets[None, :]).to(outputs.dtype)
    return (order * F.relu(1 - gap)).mean(1)


def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, classes weighed by how often they are in the batch."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    return each / (targets[:, None] == targets[None, :]).sum(1)


def with_selection(outputs: Tensor, targets: Tensor) -> Tensor:
    """Looks across samples by a choice that depends on data: torch cannot map it."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    hard = each[each > each.mean()]
    return each + hard.sum() / len(each)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - (-each).exp()) ** 2 * each


COMPARING = (info_nce, ranking, balanced, with_selection)


# -- models ---------------------------------------------------------------------------------------
class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 3)

    def hidden(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.hidden(torch.tanh(self.a(x))))


class HiddenDropout(Base):
    """torch.fx cannot trace it, so no list of operations shows the dropout."""

    def hidden(self, h):
        return F.dropout(h, 0.3, self.training) if float(h.detach().sum()) > -1e9 else h


class Noise(Base):
    def hidden(self, h):
        return h + 0.1 * torch.randn_like(h) if self.training else h


class StochasticDepth(Base):
    def hidden(self, h):
        return h if self.training and torch.rand(()) < 0.02 else 2 * h


class NumpyNoise(Base):
    def hidden(self, h):
        return h + torch.from_numpy(np.random.randn(*h.shape)).to(h) if self.training else h


class PythonChoice(Base):
    def hidden(self, h):
        return h * (1 + random.random()) if self.training else h


class Sampled(Base):
    """As a variational auto-encoder: it samples in evaluation mode too."""

    def hidden(self, h):
        return h + 0.1 * torch.randn_like(h)


class OwnGenerator(Base):
    def __init__(self):
        super().__init__()
        self.source = np.random.default_rng(0)

    def hidden(self, h):
        return h + torch.from_numpy(self.source.standard_normal(h.shape)).to(h)


class Centred(Base):
    """In training it takes the mean of the batch away, in use nothing."""

    def hidden(self, h):
        return h - h.mean(0) if self.training else h


class AlwaysCentred(Base):
    def hidden(self, h):
        return h - h.mean(0)


class Branching(Base):
    """What it does depends on all samples together; on few of them it does not show."""

    def forward(self, x):
        z = super().forward(x)
        return z if float(x[:, 0].sum()) < 3 else -z


class Adjusted(Base):
    """Logit adjustment: only training adds the log-priors."""

    def forward(self, x):
        z = super().forward(x)
        return z + torch.tensor([0.0, 2.0, -3.0]).to(z) if self.training else z


DRAWING = (HiddenDropout, Noise, StochasticDepth, NumpyNoise, PythonChoice)


def samples(n: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.arange(n) % 3


def federation(changed: bool = False) -> il.Federation:
    """Four clients of unequal size; `changed`: another sample of the first one."""
    x, y = samples(2 * sum(SIZES))
    x = x.double()
    if changed:
        x[0] += 5
        y[0] = (y[0] + 1) % 3
    split = np.concatenate([["train"] * n + ["test"] * n for n in SIZES])
    owner = np.repeat(list("abcd"), 2 * np.array(SIZES))
    return il.Federation.from_arrays(x, y, owner, split=split, classes=3)


def behaviour(module: nn.Module, loss="cross_entropy"):
    return try_out(module, as_loss(loss), *samples())


# -- what the trial shows -------------------------------------------------------------------------
@pytest.mark.parametrize("loss", COMPARING)
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Base, HiddenDropout])
def test_a_loss_that_looks_across_samples_is_recognised(loss, make):
    assert behaviour(make(), loss).compares


@pytest.mark.parametrize("loss", [focal, F.cross_entropy, nn.MultiMarginLoss()])
def test_a_loss_of_each_sample_is_recognised(loss):
    assert not behaviour(nn.Linear(6, 3), loss).compares
    assert not behaviour(Base(), loss).compares


@pytest.mark.parametrize("model", DRAWING)
def test_random_numbers_in_training_are_recognised_and_the_generators_left_alone(model):
    module = model()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    shown = behaviour(module)
    assert shown.draws and not shown.draws_in_use and shown.repeats
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_random_numbers_in_use_and_generators_of_its_own_are_recognised():
    assert behaviour(Sampled()).draws_in_use
    assert not behaviour(OwnGenerator()).repeats


def test_outputs_that_depend_on_the_samples_beside_them():
    assert behaviour(Centred()).mixes
    assert not behaviour(Base()).mixes
    with pytest.raises(SettingError, match=r"in evaluation mode.* depends on the samples beside"):
        behaviour(AlwaysCentred())


def test_control_flow_that_only_several_samples_together_show_is_recognised():
    x, y = samples(8)
    x[:, 0] = 0.5  # below the bound alone and up to five together
    with pytest.raises(SettingError, match="in evaluation mode"):
        try_out(Branching(), as_loss("cross_entropy"), x, y)


def test_a_head_that_starts_at_zero_hides_nothing():
    module = Centred()
    nn.init.zeros_(module.b.weight)
    assert behaviour(module).mixes


# -- losses across samples ------------------------------------------------------------------------
def plain(module: nn.Module, loss, x: Tensor, y: Tensor, steps: int, lr: float) -> nn.Module:
    """Full-batch SGD, one model, nothing but torch."""
    module.train()
    for _ in range(steps):
        module.zero_grad()
        loss(module(x), y).mean().backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= lr * p.grad
    return module.eval()


def of_client(data: il.Federation, k: int, split: str) -> tuple[Tensor, Tensor]:
    low, high = data.offsets[split][k : k + 2].tolist()
    return data.inputs[low:high], data.targets[low:high]


@pytest.mark.parametrize("loss", COMPARING)
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Base, Centred])
def test_training_and_the_reported_loss_are_those_of_a_plain_loop(loss, make):
    data = federation()
    torch.manual_seed(0)
    start = make().double()
    result = il.run(
        il.Local(steps=3, lr=0.2),
        il.Task(start, loss),
        data,
        rounds=2,
        batching="full",
        dtype="float64",
    )
    total = 0.0
    for k, client in enumerate("abcd"):
        expected = plain(make().double(), loss, *of_client(data, k, "train"), 0, 0.2)
        expected.load_state_dict(start.state_dict())
        plain(expected, loss, *of_client(data, k, "train"), 6, 0.2)
        module = result.personal(client)
        for p, q in zip(module.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-10)
        with torch.no_grad():
            x, y = of_client(data, k, "test")
            total += float(loss(expected(x), y).sum())
    mean = total / sum(SIZES)
    assert result.seeds[0].final["test"]["loss"] == pytest.approx(mean, rel=1e-9)


def of_test(result, client: str) -> float:
    """The loss that is reported for a client."""
    return result.seeds[0].clients["abcd".index(client)]["test_loss"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("batching", ["full", "epochs", "replace"])
@pytest.mark.parametrize("loss", [info_nce, with_selection, focal])
def test_one_clients_sample_does_not_move_another_client(kernel, batching, loss):
    def of(changed: bool):
        return il.run(
            il.Local(steps=4),
            il.Task(nn.Linear(6, 3, dtype=torch.float64), loss),
            federation(changed),
            rounds=1,
            batch=4,
            batching=batching,
            kernel=kernel,
            dtype="float64",
        )

    if loss is not focal and kernel in ("vmap", "stacked"):
        with pytest.raises(SettingError, match=r"kernel must be 'rows'.*loss of a sample depends"):
            of(False)
        return
    torch.manual_seed(0)
    one = of(False)
    torch.manual_seed(0)
    other = of(True)
    for client in "bcd":
        weights = [r.personal(client).weight for r in (one, other)]
        assert torch.equal(*weights)
        assert of_test(one, client) == of_test(other, client)
    assert not torch.equal(one.personal("a").weight, other.personal("a").weight)


@pytest.mark.parametrize("batching", ["full", "epochs"])
def test_a_short_batch_is_filled_up_with_samples_of_the_same_client(batching):
    from idiolect.core.streams import name_keys
    from idiolect.task.context import Here

    data = federation().to("cpu", torch.float64)
    here = Here(
        data,
        torch.arange(4),
        clients=name_keys(data.names),
        seed=0,
        round=0,
        batch=4,
        batching=batching,
        dtype=torch.float64,
    )
    for _ in range(6):
        inputs = here.draw().inputs
        for k in range(4):
            own = {tuple(s.tolist()) for s in of_client(data, k, "train")[0]}
            assert {tuple(s.tolist()) for s in inputs[k]} <= own


def test_running_statistics_are_of_the_clients_own_samples():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.InstanceNorm1d(2, track_running_stats=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.norm(x.view(-1, 2, 3)).flatten(1))

    torch.manual_seed(0)
    module = Normed()
    results = [
        il.run("local:steps=3", il.Task(module), federation(c), rounds=1, batching="full")
        for c in (False, True)
    ]
    for client in "bcd":
        one, other = (r.personal(client).norm.running_mean for r in results)
        assert torch.equal(one, other)
    x, _ = of_client(federation(), 1, "train")
    reference = Normed().train()
    for _ in range(3):
        reference(x.float())
    torch.testing.assert_close(
        results[0].personal("b").norm.running_mean, reference.norm.running_mean
    )


# -- random numbers -------------------------------------------------------------------------------
def trained(model: nn.Module, **settings) -> dict[str, Tensor]:
    torch.manual_seed(random.randrange(2**30))  # what the program drew before does not matter
    result = il.run("ditto", il.Task(model), federation(), rounds=2, **settings)
    return {f"{c}.{n}": p for c in "abcd" for n, p in result.personal(c).state_dict().items()} | {
        "loss": torch.tensor(result.seeds[0].final["test"]["loss"])
    }


@pytest.mark.parametrize("model", [*DRAWING, Sampled])
def test_random_models_give_the_same_bits_again_and_on_any_number_of_hosts(model):
    start = model()
    first = trained(start)
    for settings in ({}, {"hosts": 3}, {"chunk": 1}):
        again = trained(start, **settings)
        assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], t) for n, t in trained(start, seed=1).items())


def test_what_cannot_be_reproduced_is_said(capsys):
    il.run("fedavg", il.Task(OwnGenerator()), federation(), rounds=1)
    assert "cannot be reproduced" in capsys.readouterr().err
    result = il.run("fedavg", il.Task(Sampled()), federation(), rounds=1)
    assert "in evaluation mode too" in capsys.readouterr().err
    assert "in evaluation mode too" in str(result)


def test_a_random_loss_is_keyed_too():
    def noisy(outputs, targets):
        return F.cross_entropy(outputs + torch.randn_like(outputs), targets, reduction="none")

    def run():
        return il.run("local", il.Task(start, noisy), federation(), rounds=1)

    start = Base()
    one, other = run(), run()
    assert torch.equal(one.personal("c").b.weight, other.personal("c").b.weight)
    assert one.seeds[0].final["test"] == other.seeds[0].final["test"]


@pytest.mark.parametrize("model", [Noise, Centred])
def test_a_kernel_that_cannot_be_right_is_refused(model):
    with pytest.raises(SettingError, match="kernel must be 'rows' or 'auto'"):
        il.run("local", il.Task(model()), federation(), rounds=1, kernel="vmap")


# -- a task without a run -------------------------------------------------------------------------
def test_a_task_is_tried_on_its_first_batch():
    from task.common import a_batch, rows

    batch = a_batch((6,))
    task = il.Task(nn.Linear(6, 3), info_nce).under(dtype=torch.float64)
    x = rows(task)
    gradients = task.grad(x, batch)
    losses = task.loss(x, batch)
    assert task.kernel == "rows"
    for k, (inputs, targets, weights) in enumerate(
        batch.rows_of(batch.inputs, batch.targets, batch.weights)
    ):
        module = task.module_of(x[k])
        loss = (info_nce(module(inputs), targets) * weights).sum()
        own = torch.autograd.grad(loss, list(module.parameters()))
        torch.testing.assert_close(gradients[k], torch.cat([p.flatten() for p in own]))
        torch.testing.assert_close(losses[k], loss.detach())
