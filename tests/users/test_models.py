"""Models that people have, unchanged: what was tried, and that it works or is refused by name."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import idiolect as il
from users.own_modules import ResNet18, Segmenter

N, CLIENTS = 48, 4
IDS = [i % CLIENTS for i in range(N)]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(high: int, *shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def federation(inputs, targets, **options) -> il.Federation:
    kind = (
        "classes"
        if isinstance(targets, torch.Tensor) and not targets.is_floating_point()
        else "auto"
    )
    return il.Federation.from_arrays(inputs, targets, IDS, kind=kind, **options)


def run(task, data, method=None, **settings):
    given = {"rounds": 2, "sample": CLIENTS, "batch": 8} | settings
    return il.run(method or il.FedAvg(lr=0.05, steps=2), task, data, **given)


# -- layers that keep something ------------------------------------------------------------------
def test_a_resnet18_with_batch_norm_in_torchvisions_layout_runs():
    data = federation(draw(N, 3, 16, 16), whole(5, N))
    result = run(il.Task(ResNet18(classes=5)), data, rounds=1)
    names = set(result.personal(0).state_dict())
    assert {"bn1.running_mean", "layer4.1.bn2.num_batches_tracked", "fc.bias"} <= names
    assert result.personal(0).bn1.num_batches_tracked > 0
    assert result.record.notes["statistics"]["how"] == "averaged"


@pytest.mark.parametrize(
    "norm",
    [
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.BatchNorm2d(4, affine=False),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
        nn.utils.spectral_norm(nn.Conv2d(4, 4, 1)),
    ],
    ids=["instance norm", "batch norm without weights", "spectral norm", "old spectral norm"],
)
def test_every_layer_with_running_statistics_keeps_them_per_client(norm):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(4 * 36, 3))
    data = federation(draw(N, 1, 8, 8) + torch.tensor(IDS).view(-1, 1, 1, 1), whole(3, N))
    result = run(il.Task(net), data, statistics="private")
    buffers = [dict(result.personal(k).named_buffers()) for k in range(CLIENTS)]
    assert buffers[0] and any(
        not torch.equal(buffers[0][n], buffers[1][n]) for n in buffers[0] if "num" not in n
    )
    inputs = draw(5, 1, 8, 8, seed=9)
    session = result.session()
    ours = session.contract.task.outputs_of_one(session.personal(1), inputs)
    torch.testing.assert_close(result.personal(1)(inputs), ours, rtol=1e-5, atol=1e-5)


class Counting(nn.Module):
    """A module that changes a buffer of its own in training."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.ones(6))  # a constant

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.head(x * self.scale)


def test_a_buffer_that_forward_changes_is_refused_by_name_and_kept_on_request():
    data = federation(draw(N, 6), whole(2, N))
    with pytest.raises(il.SettingError, match=r"changes the buffer 'seen'.*buffers='seen'"):
        run(il.Task(Counting()), data)
    result = run(il.Task(Counting(), buffers="seen"), data)
    assert result.personal(0).seen == 2 * 2 * 8
    with pytest.raises(il.SettingError, match="'sen' matches no buffer of the model: seen, scale"):
        il.Task(Counting(), buffers="sen")


def test_a_mini_batch_of_one_is_refused_where_batch_norm_cannot_take_it():
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = federation(draw(N, 6), whole(2, N))
    size = int(data.sizes("train")[0])
    with pytest.raises(il.SettingError, match=r"batch: with .*'0' has a mini-batch of one sample"):
        run(il.Task(net), data, batch=size - 1, batching="epochs")
    run(il.Task(net), data, batch=size, batching="epochs")


# -- several inputs, several outputs -------------------------------------------------------------
class PictureAndTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(2 * 36 + 5, 3)

    def forward(self, picture, table):
        return self.head(torch.cat([self.picture(picture).flatten(1), table], 1))


@pytest.mark.parametrize("kernel", ["auto", "vmap", "rows"])
def test_a_model_of_a_picture_and_a_table_takes_a_tuple(kernel):
    data = federation((draw(N, 1, 8, 8), draw(N, 5)), whole(3, N))
    result = run(il.Task(PictureAndTable()), data, il.Ditto(), kernel=kernel)
    assert 0 <= result.summary()["accuracy"]["mean"] <= 1


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens, mask):
        h = self.words(tokens) * mask.unsqueeze(-1)
        return {"logits": self.head(h.sum(1) / mask.sum(1, keepdim=True)), "hidden": h.sum(1)}


def tokens_and_mask():
    lengths = 1 + whole(7, N, seed=5)
    mask = (torch.arange(7) < lengths.unsqueeze(1)).float()
    return {"tokens": whole(20, N, 7), "mask": mask}


def test_a_model_with_a_mask_takes_a_dict_and_its_logits_are_found():
    data = federation(tokens_and_mask(), whole(3, N))
    module = Masked()
    by_kernel = [
        run(il.Task(module), data, kernel=k, dtype="float64").summary()["loss"]["mean"]
        for k in ("vmap", "rows")
    ]
    assert by_kernel[0] == pytest.approx(by_kernel[1], abs=1e-10)


def test_a_loss_may_take_all_that_a_model_returns():
    def loss(outputs, targets):
        return F.cross_entropy(outputs["logits"], targets, reduction="none") + 0.1 * outputs[
            "hidden"
        ].square().mean(1)

    data = federation(tokens_and_mask(), whole(3, N))
    assert run(il.Task(Masked(), loss), data).summary()["loss"]["mean"] > 0


def test_a_named_loss_refuses_outputs_it_cannot_tell_apart():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), super().forward(-x)

    data = federation(draw(N, 6), whole(3, N))
    with pytest.raises(il.SettingError, match="the model returns several tensors"):
        run(il.Task(Two(6, 3)), data)


def test_several_targets_go_to_the_users_loss():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.kind, self.size = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x):
            return self.kind(x), self.size(x).squeeze(-1)

    def loss(outputs, targets):
        kind, size = outputs
        return (
            F.cross_entropy(kind, targets["kind"], reduction="none") + (size - targets["size"]) ** 2
        )

    data = federation(draw(N, 6), {"kind": whole(3, N), "size": draw(N, seed=2)})
    summary = run(il.Task(TwoHeads(), loss), data).summary()
    assert summary["loss"]["mean"] > 0


# -- losses --------------------------------------------------------------------------------------
@pytest.mark.parametrize("ignore", [-100, 255])
def test_segmentation_with_an_ignored_index_is_torchs_mean_over_what_counts(ignore):
    y = whole(3, N, 6, 6)
    y[whole(4, N, 6, 6, seed=8) == 0] = ignore
    data = federation(draw(N, 1, 6, 6), y, ignored=ignore)
    assert data.classes == 3
    loss = nn.CrossEntropyLoss(ignore_index=ignore)
    task = il.Task(Segmenter(), loss)
    result = run(task, data, il.FedAvg(lr=0.1, steps=1), rounds=1, batching="full", sample=1)
    # one step of one client on all its data, by hand
    heard = [k for k, row in enumerate(result.clients_table()) if row["gradients"]]
    module = Segmenter()
    module.load_state_dict(task.module.state_dict())
    x, t = data.part(heard[0], "train")
    loss(module(x), t.where(t != -100, ignore)).backward()
    for name, p in module.named_parameters():
        found = result.personal(0).get_parameter(name)
        torch.testing.assert_close(found, p - 0.1 * p.grad, rtol=1e-5, atol=1e-6)
    x, t = data.part(0, "test")
    counts = t != -100
    hits = ((result.personal(0)(x).argmax(1) == t) & counts).flatten(1).sum(1)
    share = (hits / counts.flatten(1).sum(1)).mean()
    assert result.clients_table()[0]["test_accuracy"] == pytest.approx(float(share), abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "head", "targets"),
    [
        (nn.BCEWithLogitsLoss(), nn.Linear(6, 1), whole(2, N)),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), nn.Linear(6, 1), whole(2, N)),
        (nn.BCEWithLogitsLoss(), nn.Linear(6, 4), whole(2, N, 4).float()),
        (nn.BCELoss(), nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), whole(2, N)),
        (nn.NLLLoss(), nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(-1)), whole(3, N)),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5])), nn.Linear(6, 3), whole(3, N)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.Linear(6, 3), whole(3, N)),
        (nn.MultiMarginLoss(), nn.Linear(6, 3), whole(3, N)),
        (nn.HuberLoss(), nn.Linear(6, 2), draw(N, 2, seed=4)),
        (nn.L1Loss(), nn.Linear(6, 1), draw(N, seed=4)),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, nn.Module) else "",
)
def test_torchs_losses_train_as_torch_does(loss, head, targets):
    data = federation(draw(N, 6), targets)
    task = il.Task(head, loss)
    settings = {"rounds": 1, "batching": "full", "sample": 1, "dtype": "float64"}
    result = run(task, data, il.FedAvg(lr=0.1, steps=1), **settings)
    heard = next(k for k, row in enumerate(result.clients_table()) if row["gradients"])
    module = task.under(dtype=torch.float64).module
    x, y = data.to("cpu", torch.float64).part(heard, "train")
    out = module(x)
    if isinstance(loss, (nn.BCEWithLogitsLoss, nn.BCELoss, nn.L1Loss)):
        out, y = out.squeeze(-1), y.double()
    loss.double()(out, y).backward()
    for name, p in module.named_parameters():
        found = result.personal(0).get_parameter(name)
        torch.testing.assert_close(found, p - 0.1 * p.grad, rtol=0, atol=1e-10)
    accuracy = result.summary()["accuracy"]["mean"]
    makes_sense = not isinstance(loss, (nn.HuberLoss, nn.L1Loss))
    assert (accuracy is not None and accuracy == accuracy) == makes_sense


# -- kernels -------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words, self.layers = nn.Embedding(20, 4), kind(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layers(self.words(x))[0][:, -1])


@pytest.mark.parametrize(("kind", "kernel"), [(nn.LSTM, "rows"), (nn.GRU, "vmap")])
def test_recurrent_layers_take_the_kernel_that_was_measured_faster(kind, kernel):
    data = federation(whole(20, N, 7), whole(3, N))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(il.Task(Recurrent(kind)), data).record.kernel == kernel


class Decides(nn.Linear):
    """Its control flow depends on data: torch cannot map it over clients."""

    def forward(self, x):
        return super().forward(x if bool(x.isfinite().all()) else x.nan_to_num())


class DecidesForAll(nn.Linear):
    """What it gives for a sample depends on the others."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_a_model_that_cannot_be_mapped_is_run_row_by_row():
    data = federation(draw(N, 6), whole(3, N))
    result = run(il.Task(Decides(6, 3)), data)
    assert result.record.kernel == "rows" == result.summary()["settings"]["kernel"]
    with pytest.raises(il.SettingError, match=r"'vmap' cannot run this model.*kernel 'rows'"):
        run(il.Task(Decides(6, 3)), data, kernel="vmap")
    with pytest.raises(il.SettingError, match=r"depends on the samples beside it"):
        run(il.Task(DecidesForAll(6, 3)), data)


def test_a_hugging_face_bert_runs_unchanged():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        num_labels=3,
    )
    found = tokens_and_mask()
    inputs = {"input_ids": found["tokens"], "attention_mask": found["mask"].long()}
    data = federation(inputs, whole(3, N))
    task = il.Task(transformers.BertForSequenceClassification(config))
    result = run(task, data, il.FedAvg(lr=0.1, steps=1))
    model = result.personal(2)
    assert isinstance(model, transformers.BertForSequenceClassification)
    x, y = data.part(2, "test")
    with torch.no_grad():
        hits = (model(**x).logits.argmax(-1) == y).float().mean()
    assert result.clients_table()[2]["test_accuracy"] == pytest.approx(float(hits))


# -- sequences of different lengths --------------------------------------------------------------
class Tagger(nn.Module):
    """A class for every word; remembers how long the batches were."""

    def __init__(self, per_word: bool):
        super().__init__()
        self.words, self.layers = nn.Embedding(20, 4), nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.per_word, self.seen = per_word, []

    def forward(self, words, mask):
        self.seen.append(words.shape[1])
        h = self.layers(self.words(words))[0]
        if self.per_word:
            return self.head(h)
        return self.head((h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("per_word", [False, True])
def test_sequences_of_different_lengths_are_padded_per_batch_with_a_mask(per_word):
    lengths = [2 + i % 4 for i in range(N)]
    lengths[0] = 40  # one long sentence, of client 0
    words = [whole(20, n, seed=i) for i, n in enumerate(lengths)]
    targets = [whole(3, n, seed=i) for i, n in enumerate(lengths)] if per_word else whole(3, N)
    data = federation(words, targets, valid=0, test=0.2)
    assert data.inputs[0].shape == (N, 40) and data.inputs[1].dtype == torch.bool
    lost = []
    module = Tagger(per_word)
    for kernel in ("rows", "vmap"):
        task = il.Task(module).under(kernel=kernel, dtype=torch.float64)
        here = il.Here(
            data,
            torch.arange(CLIENTS),
            clients=il.core.streams.name_keys(data.names),
            seed=0,
            round=0,
            batch=4,
            batching="epochs",
            dtype=torch.float64,
        )
        x = task.x0.repeat(CLIENTS, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lost.append([task.grad(x, here.draw()) for _ in range(3)])
        if kernel == "rows":
            seen = [n for m in task._kernel.row_modules for n in m.module.seen if type(n) is int]
            assert len(seen) == 12 and sorted(seen)[-2] <= 5 and max(seen) in (5, 40)
    for ours, mapped in zip(*lost, strict=True):  # what is cut off counts for nothing
        torch.testing.assert_close(ours, mapped, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("net", "loss"),
    [
        (nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), nn.BCELoss()),
        (nn.Linear(6, 1), nn.BCEWithLogitsLoss()),
        (nn.Linear(6, 2), nn.CrossEntropyLoss()),
        (nn.Sequential(nn.Linear(6, 2), nn.LogSoftmax(-1)), nn.NLLLoss()),
    ],
    ids=["probabilities", "one logit", "logits", "log-probabilities"],
)
def test_metrics_and_predictions_read_outputs_as_the_loss_does(net, loss):
    x = draw(N, 6)
    labels = ["ill" if v else "well" for v in (x[:, 0] > 0).tolist()]
    data = il.Federation.from_arrays(x, labels, IDS)
    metrics = "log_loss,f1,auc"
    result = run(il.Task(net, loss), data, il.FedAvg(lr=1.0, steps=9), rounds=20, metrics=metrics)
    summary = result.summary()
    assert summary["metrics"]["log_loss"]["mean"] == pytest.approx(
        summary["loss"]["mean"], abs=1e-5
    )
    assert summary["accuracy"]["mean"] > 0.8 and summary["metrics"]["f1"]["mean"] > 0.8
    found = result.predict(x, client=1)
    assert found.classes == ("ill", "well")
    share = sum(a == b for a, b in zip(found.labels, labels, strict=True)) / N
    assert share > 0.8
    assert found.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    likely = found.probabilities.argmax(1)
    assert [found.classes[i] for i in likely] == list(found.labels)
