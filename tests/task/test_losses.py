"""Losses are those of torch, and every kernel differentiates them alike."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import idiolect as il
from idiolect import Task
from idiolect.core.knobs import SettingError
from idiolect.core.streams import name_keys
from idiolect.task.losses import as_loss
from task.common import a_batch, rows, same


def squared_margin(outputs, targets):
    """A user's loss: one value per sample."""
    return (1 - outputs.gather(1, targets.unsqueeze(1)).squeeze(1)) ** 2


LOSSES = {
    "cross_entropy": ("cross_entropy", 3, 3),
    "logistic": ("logistic", 1, 2),
    "mse": ("mse", 1, 0),
    "half_squared": ("half_squared", 1, 0),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), 3, 3),
    "class weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
        3,
        3,
    ),
    "huber": (nn.HuberLoss(), 1, 0),
    "a function": (squared_margin, 3, 3),
    "torch's function": (F.smooth_l1_loss, 1, 0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_the_same_gradient_in_every_kernel(name):
    loss, outputs, classes = LOSSES[name]
    same(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs)),
        a_batch((6,), classes=classes),
        ("stacked", "vmap", "rows"),
        loss,
    )


@pytest.mark.parametrize(
    ("loss", "each"),
    [
        ("cross_entropy", lambda out, y: F.cross_entropy(out, y, reduction="none")),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1),
        ),
        (
            "logistic",
            lambda out, y: F.binary_cross_entropy_with_logits(
                out[:, 0], y.double(), reduction="none"
            ),
        ),
        ("mse", lambda out, y: (out[:, 0] - y) ** 2),
        ("half_squared", lambda out, y: (out[:, 0] - y) ** 2 / 2),
    ],
)
def test_losses_are_torchs(loss, each):
    task = Task(nn.Linear(6, 1), loss)
    outputs = torch.randn(
        8, 1 if isinstance(loss, str) and loss != "cross_entropy" else 3, dtype=torch.float64
    )
    targets = (
        torch.randn(8, dtype=torch.float64)
        if loss in ("mse", "half_squared")
        else torch.randint(2, (8,))
    )
    torch.testing.assert_close(task.criterion.each(outputs, targets), each(outputs, targets))


def test_a_loss_that_returns_one_number_is_refused():
    task = Task(nn.Linear(6, 3), lambda out, y: F.cross_entropy(out, y)).under(dtype=torch.float64)
    with pytest.raises(SettingError, match="one value per sample"):
        task.loss(rows(task), a_batch((6,)))


def test_several_real_targets_per_sample_agree_in_every_kernel():
    same(
        nn.Linear(6, 4), a_batch((6,), targets=(4,), classes=0), ("vmap", "rows", "stacked"), "mse"
    )


# -- as a plain loop computes them -----------------------------------------------------------------
N, CLIENTS = 30, 3
G = torch.Generator().manual_seed(0)


def real(*shape):
    return torch.randn(N, *shape, generator=G, dtype=torch.float64)


def whole(high, *shape):
    return torch.randint(high, (N, *shape), generator=G)


def share(*shape):
    return real(*shape).softmax(-1)


def federation(inputs, targets):
    kind = "auto"
    if isinstance(targets, torch.Tensor) and not targets.is_floating_point():
        kind = "classes"
    ids = [(i % 7) // 3 for i in range(N)]  # of different sizes
    data = il.Federation.from_arrays(inputs, targets, ids, kind=kind, valid=0, test=0.2)
    return data.to("cpu", torch.float64)


def one_of_each(data, batching):
    """A mini-batch of every client."""
    return il.Here(
        data,
        torch.arange(CLIENTS),
        clients=name_keys(data.names),
        seed=0,
        round=0,
        batch=7,  # the second of an epoch is a shorter one
        batching=batching,
        dtype=torch.float64,
    )


def same_as_a_plain_loop(module, loss, data, kernels, plain_loss=None):
    """loss(model(x), y) and its gradient, of each client's own samples."""
    plain_loss = plain_loss or loss
    task = Task(module, loss).under(dtype=torch.float64)
    x = task.x0 + 0.3 * torch.randn(CLIENTS, task.d, generator=G, dtype=torch.float64)
    for batching in ("replace", "epochs", "full"):
        here = one_of_each(data, batching)
        here.draw()
        batch = here.draw()
        for k in range(CLIENTS):
            some = batch.weights[k] > 0
            inputs, targets = (
                il.core.types.map_tree(lambda t, k=k, some=some: t[k][some], tree)
                for tree in (batch.inputs, batch.targets)
            )
            model = task.module_of(x[k]).train()
            value = plain_loss(model(inputs), targets).mean()
            value.backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            for kernel in kernels:
                ours = task.under(kernel=kernel)
                torch.testing.assert_close(ours.loss(x, batch)[k], value, rtol=0, atol=1e-10)
                torch.testing.assert_close(ours.grad(x, batch)[k], gradient, rtol=0, atol=1e-10)


ALL = ("stacked", "vmap", "rows")
SIGNS = (2 * whole(2, 3) - 1).double()
PICKED = torch.tensor([[2, 0, -1], [1, -1, -1], [0, 1, 2]]).repeat(N // 3, 1)
TORCH_LOSSES = {
    "L1Loss": (nn.L1Loss(), 3, real(3)),
    "MSELoss": (nn.MSELoss(), 3, real(3)),
    "HuberLoss": (nn.HuberLoss(delta=0.5), 3, real(3)),
    "SmoothL1Loss": (nn.SmoothL1Loss(beta=0.5), 3, real(3)),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(full=True), 3, whole(5, 3).double()),
    "KLDivLoss": (nn.KLDivLoss(), 3, share(3)),
    "KLDivLoss batchmean": (nn.KLDivLoss(reduction="batchmean"), 3, share(3)),
    "KLDivLoss of pixels": (nn.KLDivLoss(reduction="batchmean"), 6, share(2, 3)),
    "BCEWithLogitsLoss": (
        nn.BCEWithLogitsLoss(
            weight=torch.tensor([1.0, 2, 3]), pos_weight=torch.tensor([3.0, 1, 2])
        ).double(),
        3,
        whole(2, 3).double(),
    ),
    "BCELoss": (nn.BCELoss(weight=torch.tensor([1.0, 2, 3])).double(), 3, whole(2, 3).double()),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(label_smoothing=0.2), 3, whole(3)),
    "CrossEntropyLoss with weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5, 0.5]), ignore_index=1).double(),
        3,
        whole(3),
    ),
    "NLLLoss": (nn.NLLLoss(weight=torch.tensor([1.0, 5, 0.5])).double(), 3, whole(3)),
    "MultiMarginLoss": (
        nn.MultiMarginLoss(p=2, weight=torch.tensor([1.0, 5, 0.5])).double(),
        3,
        whole(3),
    ),
    "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss(), 3, PICKED.double()),
    "MultiLabelSoftMarginLoss": (
        nn.MultiLabelSoftMarginLoss(weight=torch.tensor([1.0, 2, 3])).double(),
        3,
        whole(2, 3).double(),
    ),
    "SoftMarginLoss": (nn.SoftMarginLoss(), 3, SIGNS),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), 3, SIGNS),
    "kl_div": (functools.partial(F.kl_div, reduction="batchmean", log_target=True), 3, real(3)),
    "huber_loss": (functools.partial(F.huber_loss, delta=2.0), 3, real(3)),
}
LAST = {"KLDivLoss of pixels": nn.Unflatten(1, (2, 3)), "BCELoss": nn.Sigmoid()}


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:reduction. 'mean'")
@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_every_loss_of_torch_is_what_a_plain_loop_computes(name):
    loss, outputs, targets = TORCH_LOSSES[name]
    plain_loss = loss
    if name == "MultiLabelMarginLoss":  # targets of the data are class numbers or real numbers

        def loss(out, y):
            return F.multilabel_margin_loss(out, y.long(), reduction="none")

        def plain_loss(out, y):
            return F.multilabel_margin_loss(out, y.long())

    module = nn.Sequential(nn.Linear(5, outputs), LAST.get(name, nn.Identity()))
    kernels = ("vmap", "rows") if name == "KLDivLoss of pixels" else ALL
    same_as_a_plain_loop(module, loss, federation(real(5), targets), kernels, plain_loss)


def sum_of_errors(outputs, targets, reduction="sum"):
    return F.mse_loss(outputs, targets, reduction=reduction)


@pytest.mark.parametrize(
    "loss",
    [
        *(
            kind(reduction="sum")
            for kind in (nn.MSELoss, nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.HuberLoss)
        ),
        nn.KLDivLoss(reduction="sum"),
        sum_of_errors,
        functools.partial(F.mse_loss, reduction="sum"),
        functools.partial(F.l1_loss, reduction="average"),
    ],
)
def test_a_sum_over_samples_is_refused_by_name(loss):
    with pytest.raises(SettingError, match=r"loss: the reduction of \w+ must be 'mean'.* got '"):
        Task(nn.Linear(5, 3), loss)


@pytest.mark.parametrize(
    "loss",
    [
        nn.TripletMarginLoss(),
        nn.TripletMarginWithDistanceLoss(),
        nn.CosineEmbeddingLoss(),
        nn.MarginRankingLoss(),
        nn.GaussianNLLLoss(),
        nn.CTCLoss(),
        F.gaussian_nll_loss,
        lambda outputs: outputs.sum(1),
    ],
)
def test_a_loss_of_other_arguments_is_refused_with_them(loss):
    with pytest.raises(SettingError, match=r"takes \(.*and a loss takes \(outputs, targets\)"):
        Task(nn.Linear(5, 3), loss)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_functions_without_a_signature_are_losses_too():
    @torch.jit.script
    def squared(outputs: torch.Tensor, targets: torch.Tensor):
        return (outputs - targets) ** 2

    same_as_a_plain_loop(nn.Linear(5, 3), squared, federation(real(5), real(3)), ALL)


# -- a user's own: outputs and targets as the model and the data have them -------------------------
def dice(outputs, targets):
    p, y = outputs.sigmoid().flatten(1), targets.flatten(1).to(outputs.dtype)
    return 1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)


def distance(outputs, targets):
    return (outputs - targets).square().sum(1)


def two_heads(outputs, targets):
    return F.cross_entropy(outputs[0], targets, reduction="none") + outputs[1].square().mean(1)


def of_dict(outputs, targets):
    kind = F.cross_entropy(outputs[:, :3], targets["kind"], reduction="none")
    return kind + (outputs[:, 3] - targets["size"]) ** 2


def of_tuple(outputs, targets):
    return of_dict(outputs, {"kind": targets[0], "size": targets[1]})


def by_word(outputs, targets):
    assert outputs.shape == (*targets.shape, 3)
    return F.cross_entropy(outputs.movedim(2, 1), targets, reduction="none")


def in_a_row(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")


def by_sentence(outputs, targets):
    return by_word(outputs, targets).mean(1)


def hinge(outputs, targets):
    assert outputs.shape == targets.shape
    return (1 - (2 * targets - 1) * outputs).clamp(min=0)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind, self.size = nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        return self.kind(x), self.size(x)


KIND_AND_SIZE = {"kind": whole(3), "size": real()}
PICTURES = real(1, 4, 4)
OWN = {
    "dice of masks": (nn.Conv2d(1, 1, 3, padding=1), PICTURES, whole(2, 4, 4), dice),
    "dice of real masks": (nn.Conv2d(1, 1, 1), PICTURES, whole(2, 4, 4).double(), dice),
    "dice of a chain": (nn.Linear(16, 16), PICTURES.flatten(1), whole(2, 16), dice),
    "two real targets": (nn.Linear(5, 2), real(5), real(2), distance),
    "two whole targets": (nn.Linear(5, 2), real(5), whole(4, 2), distance),
    "outputs in a tuple": (TwoHeads(), real(5), whole(3), two_heads),
    "targets in a dict": (nn.Linear(5, 4), real(5), KIND_AND_SIZE, of_dict),
    "targets in a tuple": (nn.Linear(5, 4), real(5), tuple(KIND_AND_SIZE.values()), of_tuple),
    "a class per word": (nn.Linear(5, 3), real(6, 5), whole(3, 6), by_word),
    "a class per word, in a row": (nn.Linear(5, 3), real(6, 5), whole(3, 6), in_a_row),
    "a value per sentence": (nn.Linear(5, 3), real(6, 5), whole(3, 6), by_sentence),
    "one output for two classes": (nn.Linear(5, 1), real(5), whole(2), hinge),
}


@pytest.mark.parametrize("name", OWN)
def test_a_users_own_loss_is_what_a_plain_loop_computes(name):
    module, inputs, targets, loss = OWN[name]
    is_chain = type(module) is nn.Linear
    data = federation(inputs, targets)

    same_as_a_plain_loop(
        module, loss, data, ALL if is_chain else ("vmap", "rows"), on_plain_outputs(loss)
    )


def on_plain_outputs(loss):
    """The one thing that differs from a plain loop: outputs[n, 1] for targets[n] are [n]."""
    return lambda outputs, y: loss(outputs.squeeze(1) if loss is hinge else outputs, y)


@pytest.mark.parametrize("name", OWN)
def test_the_reported_loss_is_that_of_the_module_handed_out(name):
    module, inputs, targets, loss = OWN[name]
    data = federation(inputs, targets)
    settings = {"rounds": 1, "batch": 4, "dtype": "float64"}
    for method in ("fedavg", "ditto"):
        result = il.run(method, Task(module, loss), data, **settings)
        assert "loss" in str(result)
        for k, row in enumerate(result.clients_table()):
            x, y = data.part(k, "test")
            with torch.no_grad():
                value = on_plain_outputs(loss)(result.personal(k).double()(x), y).mean()
            assert row["test_loss"] == pytest.approx(float(value), abs=1e-10)
            assert math.isnan(row["test_accuracy"]) == (
                loss not in (by_word, in_a_row, by_sentence)
            )


def test_predictions_have_the_form_of_the_targets():
    for name, high in (("dice of masks", 2), ("dice of a chain", 2), ("a class per word", 3)):
        module, inputs, targets, loss = OWN[name]
        result = il.run("fedavg", Task(module, loss), federation(inputs, targets), rounds=1)
        answer = result.predict(inputs[:4], client=0)
        assert answer.labels.shape == targets[:4].shape
        assert answer.probabilities.shape == (*targets[:4].shape, high)
    shorter = result.predict(inputs[:4, :3], client=0)
    assert shorter.labels.tolist() == answer.labels[:, :3].tolist()


def test_predictions_of_pixels_have_their_classes_second():
    net = nn.Conv2d(1, 2, 1)
    result = il.run("fedavg", Task(net), federation(PICTURES, whole(2, 4, 4)), rounds=1)
    likely = result.personal(0)(PICTURES.float()).argmax(1)
    assert result.predict(PICTURES.float(), client=0).labels.tolist() == likely.tolist()


def outer(outputs, targets):
    return (outputs.unsqueeze(1) - targets) ** 2


def steps_first(outputs, targets):
    pairs = zip(outputs.unbind(1), targets.unbind(1), strict=True)
    return torch.stack([F.cross_entropy(o, y, reduction="none") for o, y in pairs])


def classes_last(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("name", "loss", "says"),
    [
        ("two real targets", outer, r"got shape \(3, 3, 2\) for 3 samples and \(2, 2, 2\) for 2"),
        ("a class per word", steps_first, r"one per target .* got shape \(6, 3\) for 3 samples"),
        (
            "a class per word",
            classes_last,
            r"given outputs of shape \(3, 6, 3\), targets of shape \(3, 6\); .*movedim\(-1, 1\)",
        ),
        ("two real targets", lambda out, y: ((out - y) ** 2).mean(), r"got shape \(\) for 3"),
        ("two real targets", lambda out, y: 1.0, "got float for 3 samples"),
    ],
    ids=["broadcast", "steps first", "raises", "a number", "no tensor"],
)
def test_a_loss_of_another_form_is_refused_with_the_shapes_it_was_given(name, loss, says):
    module, inputs, targets, _ = OWN[name]
    with pytest.raises(SettingError, match=says):
        il.run("fedavg", Task(module, loss), federation(inputs, targets), rounds=1)


def test_outputs_that_may_not_be_probabilities_are_refused_before_the_run():
    inputs, targets = torch.rand(30, 3), torch.arange(30) % 2
    task = Task(nn.Linear(3, 1), nn.BCELoss())
    nn.init.constant_(task.module.bias, 0.5)  # within 0 and 1, as it starts
    with pytest.raises(SettingError, match=r"bce takes probabilities from 0 to 1.*BCEWithLogits"):
        il.run("local", task, federation(inputs, targets), rounds=1)
    proper = Task(nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), nn.BCELoss())
    il.run("local", proper, federation(inputs, targets), rounds=1)


def test_second_derivatives_of_a_loss_without_a_forward_mode():
    data = federation(torch.randn(30, 3), torch.randn(30))
    method = il.make_method("per-fedavg", hessian="exact", steps=2)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    huber, squared = (
        il.run(method, Task(net, loss), data, rounds=2, dtype="float64").personal(0)
        for loss in (nn.HuberLoss(delta=1e6), nn.MSELoss())  # within delta half of the square
    )
    halved = il.run(method, Task(net, "half_squared"), data, rounds=2, dtype="float64").personal(0)
    for a, b, c in zip(*(m.parameters() for m in (huber, halved, squared)), strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.equal(a, c)


# -- losses of real targets by name ----------------------------------------------------------------
def _huber(r, bound):
    return np.where(abs(r) <= bound, r**2 / 2, bound * (abs(r) - bound / 2))


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        ("l1", abs),
        ("huber", lambda r: _huber(r, 1.0)),
        ("huber(delta=0.3)", lambda r: _huber(r, 0.3)),
        ("smooth_l1(beta=0.3)", lambda r: _huber(r, 0.3) / 0.3),
        ("quantile(q=0.9)", lambda r: np.maximum(-0.9 * r, 0.1 * r)),
        (nn.HuberLoss(delta=0.3), lambda r: _huber(r, 0.3)),
        (nn.SmoothL1Loss(beta=0.3), lambda r: _huber(r, 0.3) / 0.3),
        (nn.L1Loss(), abs),
    ],
    ids=lambda loss: "" if callable(loss) and not isinstance(loss, nn.Module) else str(loss),
)
def test_a_loss_of_real_targets_is_that_of_numpy_and_its_written_derivative_that_of_autograd(
    loss, value
):
    rng = np.random.default_rng(0)
    outputs, targets = rng.standard_normal((2, 3, 8))
    criterion = as_loss(loss)
    out, y = torch.tensor(outputs).unsqueeze(1), torch.tensor(targets)  # [K, 1, M], [K, M]
    each = criterion.each(out[0].T, y[0])
    assert np.allclose(each, value(outputs[0] - targets[0]))
    weights = torch.full((3, 8), 1 / 8, dtype=torch.float64)
    written = criterion.delta(out, y, weights)
    assert torch.allclose(written, criterion.delta_by_autograd(out, y, weights, y.shape))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("huber(delta=0)", "delta must be a number > 0"),
        ("quantile(q=2)", "q must be a number > 0 and < 1"),
        ("quantile(p=0.5)", "is unknown"),
        ("mse(delta=1)", "has no options"),
        ("hubber", "did you mean 'huber'"),
    ],
)
def test_options_that_a_loss_does_not_have_are_refused_by_name(text, words):
    with pytest.raises(SettingError, match=words):
        as_loss(text)
