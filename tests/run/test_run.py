"""A run: bad input is refused before work starts, it stops when it should, and held-out clients stay outside."""

import inspect
import time

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect import SettingError
from idiolect.host.host import Host

FEATURES, CLASSES = 5, 3


def federation(clients=8, samples=20, seed=0, **options) -> il.Federation:
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=clients * samples)
    x = rng.standard_normal((len(y), FEATURES)) + np.eye(CLASSES, FEATURES)[y]
    return il.Federation.from_arrays(x, y, np.repeat(np.arange(clients), samples), **options)


def linear() -> il.Task:
    return il.Task(lambda: nn.Linear(FEATURES, CLASSES))


FEDERATION = federation()
METHODS = {
    "FedAvg": il.FedAvg(),
    "FedProx": il.FedProx(),
    "FedProxSoft": il.FedProxSoft(),
    "Local": il.Local(),
    "LpProj": il.LpProj(dim=4),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


# -- bad input ---------------------------------------------------------------------------------------------------------------
class Image(nn.Module):
    """Reads its input's shape, as many networks do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        b, _channels, _height, _width = x.shape
        return self.head(x.reshape(b, -1))


class Asserting(Image):
    def forward(self, x):
        assert x.dim() == 4, "an image is needed"
        return self.head(x)


def empty_valued(**options) -> il.Federation:
    return il.Federation.from_arrays(
        np.zeros((6, FEATURES)), np.linspace(0, 1, 6), [0, 0, 0, 1, 1, 1], **options
    )


BAD = {
    "more sampled than there are": (
        {"sample": 9},
        "sample: 9 is not accepted; at most the 8 clients",
    ),
    "more sampled than are left": (
        {"sample": 7, "held_out": 2},
        "sample: 7 is not accepted; at most the 6 clients",
    ),
    "everyone held out": ({"held_out": 8}, "held_out: 8 is not accepted; less than the 8"),
    "dim above d": (
        {"method": il.LpProj(dim=19)},
        "dim: 19 is not accepted; a whole number from 1 to the model's 18",
    ),
    "dim 0": ({"method": il.LpProj(dim=0)}, "dim: 0 is not accepted"),
    "dim with identity": (
        {"method": il.LpProj(dim=4, projection="identity")},
        "dim: 4 is not accepted with projection 'identity'",
    ),
    "too few outputs": (
        {"task": il.Task(nn.Linear(FEATURES, 2))},
        "targets: class 2 lies outside the model's 2 outputs",
    ),
    "too few outputs, another loss": (
        {"task": il.Task(nn.Linear(FEATURES, 2), nn.CrossEntropyLoss(label_smoothing=0.1))},
        "targets: class 2 lies outside the model's 2 outputs",
    ),
    "three classes for a loss of two": (
        {"task": il.Task(nn.Linear(FEATURES, 1), "logistic")},
        "logistic",
    ),
    "several outputs for one value": (
        {"task": il.Task(nn.Linear(FEATURES, 2), "mse"), "data": empty_valued()},
        "outputs",
    ),
    "classes for real targets": (
        {"data": empty_valued()},
        "loss: 'cross_entropy' needs class numbers",
    ),
    "wrong width": (
        {"task": il.Task(nn.Linear(4, CLASSES))},
        r"model: it does not accept inputs of shape \(5,\)",
    ),
    "an image is expected": (
        {"task": il.Task(nn.Conv2d(1, 3, 2))},
        r"model: it does not accept inputs of shape \(5,\)",
    ),
    "the model unpacks a shape": (
        {"task": il.Task(Image())},
        r"model: it does not accept inputs of shape \(5,\)",
    ),
    "the model asserts a shape": (
        {"task": il.Task(Asserting())},
        r"model: it does not accept inputs of shape \(5,\)",
    ),
    "tokens are expected": (
        {"task": il.Task(nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(15, 3)))},
        "model: it does not accept",
    ),
    "an impossible kernel": (
        {"task": il.Task(Image()), "kernel": "stacked", "data": "image"},
        "kernel: 'stacked' needs a chain",
    ),
    "no training data": (
        {
            "data": il.Federation.from_arrays(
                np.eye(4, FEATURES), [0, 1, 2, 0], [0, 0, 1, 1], split=["test"] * 4
            )
        },
        "data: no client has a training sample",
    ),
    "nobody left with training data": ({"data": "lopsided", "held_out": 2}, "training sample"),
    "an unknown setting": ({"round": 3}, "did you mean 'rounds'"),
    "an unknown device": ({"device": "cuda:77"}, "device: 'cuda:77' is not available"),
}


def lopsided() -> il.Federation:
    """Three clients, of whom one has training data: the one that is held out first."""
    x, y = np.zeros((9, FEATURES)), np.arange(9) % CLASSES
    for owner in range(3):
        split = np.where(np.repeat(np.arange(3), 3) == owner, "train", "test")
        data = il.Federation.from_arrays(x, y, np.repeat(np.arange(3), 3), split=split)
        spare = il.Federation.from_arrays(x, y, np.repeat(np.arange(3), 3), split=["train"] * 9)
        held = (
            il.run(il.Local(steps=0), linear(), spare, rounds=0, held_out=2)
            .seeds[0]
            .held_out.tolist()
        )
        if owner in held:
            return data
    raise AssertionError


def prepared(change: dict) -> tuple:
    given = dict(change)
    data = given.pop("data", FEDERATION)
    if data == "image":
        data = il.Federation.from_arrays(
            np.zeros((6, 1, 1, FEATURES)), [0, 1, 2] * 2, [0, 0, 0, 1, 1, 1]
        )
    elif data == "lopsided":
        data = lopsided()
    return (given.pop("method", il.FedAvg()), given.pop("task", linear()), data), {
        "rounds": 2
    } | given


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_clear_error_before_any_work(name, monkeypatch):
    change, says = BAD[name]
    arguments, settings = prepared(change)
    monkeypatch.setattr(Host, "update", lambda *_: pytest.fail("work had started"))
    with pytest.raises(SettingError, match=says):
        il.run(*arguments, **settings)


@pytest.mark.parametrize(
    "name",
    ["more sampled than there are", "everyone held out", "wrong width", "an impossible kernel"],
)
def test_a_refused_run_leaves_its_directory_free(name, tmp_path):
    arguments, settings = prepared(BAD[name][0])
    with pytest.raises(SettingError):
        il.run(*arguments, directory=tmp_path / "run", **settings)
    assert (
        il.run(il.FedAvg(), linear(), FEDERATION, rounds=1, directory=tmp_path / "run")
        .seeds[0]
        .engine.round
        == 1
    )


@pytest.mark.parametrize(
    ("inputs", "targets", "clients", "says"),
    [
        (np.zeros((0, 2)), np.zeros(0, dtype=int), [], "clients: an empty list"),
        (
            np.array([[0.0, np.nan], [1, 1]]),
            [0, 1],
            [0, 1],
            "inputs: sample 0 holds NaN or infinity",
        ),
        (
            np.array([[0.0, 1], [np.inf, 1]]),
            [0, 1],
            [0, 1],
            "inputs: sample 1 holds NaN or infinity",
        ),
        (np.zeros((2, 2)), [0, -1], [0, 1], "targets: class -1 is negative"),
        (np.zeros((2, 2)), [0.0, np.nan], [0, 1], "targets: NaN or infinity"),
        (np.zeros((2, 2)), [0, 1], [0], "differ in length"),
    ],
)
def test_bad_data_is_a_clear_error(inputs, targets, clients, says):
    with pytest.raises(SettingError, match=says):
        il.Federation.from_arrays(inputs, targets, clients)


# -- stops -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method", [il.FedAvg(), il.LpProj(dim=4), il.FedProxSoft()], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("spare", [0, 1, -1])
def test_a_byte_budget_stops_before_the_round_that_would_exceed_it(method, spare):
    a_round = il.run(method, linear(), FEDERATION, rounds=1, sample=3).seeds[0].engine.ledger.bytes
    one = il.run(
        method, linear(), FEDERATION, rounds=10, sample=3, bytes=4 * a_round + spare
    ).seeds[0]
    assert one.stopped == "bytes" and one.engine.round == (4 if spare >= 0 else 3)
    assert one.engine.ledger.bytes <= 4 * a_round + spare
    assert (
        il.run(method, linear(), FEDERATION, rounds=4, sample=3, bytes=4 * a_round).seeds[0].stopped
        == "rounds"
    )


def test_a_budget_below_one_round_trains_nothing():
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=4, bytes=10)
    assert result.summary()["rounds"] == 0 and result.summary()["bytes"] == {"up": 0, "down": 0}


def test_a_target_accuracy_stops_at_the_first_round_that_reaches_it():
    free = il.run(il.Local(steps=1), linear(), FEDERATION, rounds=30).seeds[0].history
    target = free[9]["accuracy"]
    first = next(h["round"] for h in free if h["accuracy"] >= target)
    one = il.run(il.Local(steps=1), linear(), FEDERATION, rounds=30, target_accuracy=target).seeds[
        0
    ]
    assert one.stopped == "target" and one.engine.round == first and len(one.history) == first


def test_no_rounds_is_the_model_at_the_start():
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=0)
    assert (
        torch.equal(result.seeds[0].engine.server["w"], linear().x0)
        and result.summary()["gradients_per_client"] == 0
    )


def test_a_rate_that_has_decayed_to_nothing_does_not_end_the_run():
    assert (
        il.run(il.FedAvg(), linear(), FEDERATION, rounds=4, schedule="exp:1e-200").summary()[
            "rounds"
        ]
        == 4
    )


# -- the account -------------------------------------------------------------------------------------------------------------
@every_method
def test_bytes_and_values_are_those_of_the_messages(method):
    d = {"FedAvg": 18, "FedProx": 18, "FedProxSoft": 18, "Local": 0, "LpProj": 4}[
        type(method).__name__
    ]
    trained = 8 if method.trains == "everyone" else 3
    summary = il.run(method, linear(), FEDERATION, rounds=5, sample=3).summary()
    assert summary["values"] == {"up": 5 * 3 * d, "down": 5 * trained * d}
    length = 24 + 4 * d if d else 0
    assert summary["bytes"] == {"up": 5 * 3 * length, "down": 5 * trained * length}


@every_method
def test_every_message_asked_for_is_accounted_for(method):
    ledger = il.run(method, linear(), FEDERATION, rounds=5, sample=3).seeds[0].engine.ledger
    sends = type(method) is not il.Local
    assert ledger.selected == ledger.admitted == 15 * sends and not ledger.rejected


def test_gradients_are_counted_for_training_and_before_use():
    summary = il.run(il.FedAvg(steps=7), linear(), FEDERATION, rounds=4, sample=8).summary()
    assert summary["gradients_per_client"] == 28
    assert (
        il.run(
            il.FedAvg(epochs=2),
            linear(),
            FEDERATION,
            rounds=1,
            sample=8,
            batch=6,
            batching="epochs",
        ).summary()["gradients_per_client"]
        == 6
    )
    soft = il.run(il.FedProxSoft(steps=3, final_steps=5), linear(), FEDERATION, rounds=2, sample=8)
    assert soft.summary()["gradients_per_client"] == 2 * 3 + 5
    assert soft.seeds[0].engine.ledger.total("gradients") == 8 * 6


@every_method
def test_the_same_command_gives_the_same_bits(method):
    a, b = (il.run(method, linear(), FEDERATION, rounds=4, sample=3, seeds=2) for _ in range(2))
    for one, two in zip(a.seeds, b.seeds, strict=True):
        assert one.history == two.history
        assert all(torch.equal(t, two.engine.server[n]) for n, t in one.engine.server.items())
        assert all(
            torch.equal(t, two.engine.host.store.save()[n])
            for n, t in one.engine.host.store.save().items()
        )


@every_method
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_change_a_run(method, chunk):
    whole, parts = (
        il.run(method, linear(), FEDERATION, rounds=4, sample=3, chunk=c, dtype="float64")
        for c in (0, chunk)
    )
    for n, t in whole.seeds[0].engine.server.items():
        torch.testing.assert_close(parts.seeds[0].engine.server[n], t, rtol=1e-12, atol=1e-12)


def test_a_client_more_does_not_change_what_the_others_draw():
    """Clients are known by name: the models of training alone stay as they were."""
    more = federation(clients=9)
    few = il.Federation.from_arrays(
        torch.cat(
            [torch.cat([more.part(k, s)[0] for k in range(8)]) for s in ("train", "valid", "test")]
        ),
        torch.cat(
            [torch.cat([more.part(k, s)[1] for k in range(8)]) for s in ("train", "valid", "test")]
        ),
        np.concatenate(
            [np.repeat(np.arange(8), more.sizes(s)[:8]) for s in ("train", "valid", "test")]
        ),
        split=np.concatenate(
            [np.repeat(s, int(more.sizes(s)[:8].sum())) for s in ("train", "valid", "test")]
        ),
    )
    a, b = (il.run(il.Local(), linear(), f, rounds=2, dtype="float64") for f in (few, more))
    x, y = (r.seeds[0].engine.host.store.rows["x"] for r in (a, b))
    torch.testing.assert_close(x, y[:8], rtol=1e-12, atol=1e-12)


def test_settings_of_the_task_are_kept():
    """A kernel, a clip or a decay given to the task is not undone by the run's defaults."""
    module = nn.Linear(FEATURES, CLASSES)
    assert (
        il.run(il.FedAvg(), il.Task(module, kernel="rows"), FEDERATION, rounds=1).kernel == "rows"
    )
    for given in ({"clip": 1e-3}, {"weight_decay": 0.5}):
        by_task = il.run(il.FedAvg(), il.Task(module, **given), FEDERATION, rounds=2)
        by_run = il.run(il.FedAvg(), il.Task(module), FEDERATION, rounds=2, **given)
        plain = il.run(il.FedAvg(), il.Task(module), FEDERATION, rounds=2)
        w, v, u = (r.seeds[0].engine.server["w"] for r in (by_task, by_run, plain))
        assert torch.equal(w, v) and not torch.equal(w, u)


# -- held-out clients --------------------------------------------------------------------------------------------------------
@every_method
def test_held_out_clients_are_never_trained_and_receive_nothing(method):
    one = il.run(
        method, linear(), FEDERATION, rounds=6, sample=3, held_out=3, held_out_rounds=0
    ).seeds[0]
    assert len(one.held_out) == 3 and not set(one.held_out.tolist()) & set(one.clients.tolist())
    for name, counts in one.engine.ledger.counts.items():
        assert counts[one.held_out].sum() == 0, name
    if one.engine.host.store.rows:
        x = one.engine.host.store.rows["x"]
        assert torch.equal(x[one.held_out], one.engine.host.task.x0.repeat(3, 1))
        assert (
            not torch.equal(x[one.clients[:3]], one.engine.host.task.x0.repeat(3, 1))
            or type(method) is il.FedProxSoft
        )


@pytest.mark.parametrize(
    "method", [il.Local(), il.LpProj(dim=4), il.FedProxSoft()], ids=lambda m: type(m).__name__
)
def test_held_out_clients_are_personalised_and_scored_at_the_end(method):
    never, later = (
        il.run(method, linear(), FEDERATION, rounds=6, sample=3, held_out=3, held_out_rounds=r)
        for r in (0, 8)
    )
    assert later.summary()["held_out"]["clients"] == 3
    assert later.summary()["held_out"]["loss"]["mean"] < never.summary()["held_out"]["loss"]["mean"]
    assert later.summary()["accuracy"] == never.summary()["accuracy"], "the others are as they were"
    one = later.seeds[0]
    hits = samples = 0
    for k in one.held_out.tolist():
        x, y = FEDERATION.part(k, "test")
        hits, samples = hits + int((later.personal(k)(x).argmax(1) == y).sum()), samples + len(y)
    assert later.summary()["held_out"]["accuracy"]["mean"] == pytest.approx(hits / samples)


@every_method
def test_the_data_of_held_out_clients_do_not_matter(method):
    one = il.run(method, linear(), FEDERATION, rounds=4, sample=3, held_out=3)
    held = one.seeds[0].held_out
    inputs = FEDERATION.inputs.clone()
    for split in ("train", "valid", "test"):
        for k in held.tolist():
            a, b = FEDERATION.offsets[split][k : k + 2].tolist()
            inputs[a:b] += 100
    other = il.run(
        method,
        linear(),
        il.Federation(inputs, FEDERATION.targets, FEDERATION.offsets, FEDERATION.ids, CLASSES),
        rounds=4,
        sample=3,
        held_out=3,
    )
    assert torch.equal(other.seeds[0].held_out, held)
    assert other.summary()["accuracy"] == one.summary()["accuracy"]
    assert all(
        torch.equal(t, other.seeds[0].engine.server[n])
        for n, t in one.seeds[0].engine.server.items()
    )


def test_the_table_of_clients_shows_the_scores_of_held_out_clients_too():
    result = il.run(il.Local(), linear(), FEDERATION, rounds=6, held_out=3)
    rows, one = result.clients_table(), result.seeds[0]
    assert [r["client"] for r in rows if r["held_out"]] == [str(k) for k in one.held_out.tolist()]
    own = one.held_out_scores["test"].of_clients()[0]
    assert [rows[k]["test_accuracy"] for k in one.held_out.tolist()] == own[one.held_out].tolist()


# -- what comes out ----------------------------------------------------------------------------------------------------------
@every_method
def test_a_personal_model_by_number_or_name_predicts_with_the_accuracy_reported(method):
    result = il.run(method, linear(), FEDERATION, rounds=4, sample=3)
    accuracy = result.seeds[0].scores["test"].of_clients()[0]
    for k, name in enumerate(FEDERATION.names):
        x, y = FEDERATION.part(k, "test")
        for module in (result.personal(k), result.personal(name)):
            assert float((module(x).argmax(1) == y).double().mean()) == accuracy[k]


def test_a_client_may_be_given_by_a_number_of_numpy():
    result = il.run(il.Local(), linear(), FEDERATION, rounds=1)
    x, _ = FEDERATION.part(3, "test")
    assert torch.equal(result.personal(np.arange(8)[3])(x), result.personal(3)(x))


@pytest.mark.parametrize("client", ["nobody", 8, -1])
def test_the_model_of_an_unknown_client_is_a_clear_error(client):
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=1)
    with pytest.raises(SettingError, match="client"):
        result.personal(client)


def test_the_other_seeds_models_are_there_too():
    result = il.run(il.Local(), linear(), FEDERATION, rounds=2, seeds=2)
    x, y = FEDERATION.part(3, "test")
    assert (
        float((result.personal(3, seed=1)(x).argmax(1) == y).double().mean())
        == result.seeds[1].scores["test"].of_clients()[0][3]
    )


def test_a_result_prints_as_a_table():
    text = str(il.run(il.LpProj(dim=4, lam=2), linear(), FEDERATION, rounds=2, sample=3))
    assert "lp-proj-1 dim=4 lam=2" in text and "accuracy" in text and "240" in text.replace(",", "")


def test_evaluation_every_other_round_and_at_the_end():
    rounds = [
        h["round"]
        for h in il.run(il.FedAvg(), linear(), FEDERATION, rounds=7, eval_every=3).seeds[0].history
    ]
    assert rounds == [3, 6, 7]
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=7, eval_every=0)
    assert result.seeds[0].history == [] and result.summary()["accuracy"]["mean"] is not None


def test_a_client_without_training_data_takes_no_part_but_is_scored():
    split = np.array((["train"] * 4 + ["test"] * 2) * 3 + ["test"] * 6)
    data = il.Federation.from_arrays(
        np.random.default_rng(0).standard_normal((24, FEATURES)),
        np.arange(24) % 3,
        np.repeat(np.arange(4), 6),
        split=split,
    )
    one = il.run(il.FedProxSoft(), linear(), data, rounds=5, sample=3).seeds[0]
    assert one.engine.ledger.counts["bytes_down"].tolist()[3] == 0 and one.scores[
        "test"
    ].samples.tolist() == [2, 2, 2, 6]
    assert torch.isfinite(one.engine.server["w"]).all()


def test_a_run_changes_no_global_generator():
    torch.manual_seed(5), np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    il.run(il.LpProj(dim=4, init="own"), linear(), FEDERATION, rounds=2)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.array_equal(
        np.random.get_state()[1], before[1]
    )


def test_the_public_names_are_there():
    assert all(hasattr(il, name) for name in il.__all__)
    assert list(inspect.signature(il.run).parameters)[:3] == ["method", "task", "federation"]


# -- many clients ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "memory"),
    [(il.FedAvg(), 2.0), (il.FedProxSoft(steps=2, final_steps=0), 0.25)],
    ids=["memory", "file"],
)
def test_ten_thousand_clients_with_ten_thousand_parameters(method, memory, tmp_path):
    rng, n = np.random.default_rng(0), 10_000
    y = rng.integers(10, size=2 * n)
    data = il.Federation.from_arrays(
        rng.standard_normal((2 * n, 90), dtype=np.float32),
        y,
        np.repeat(np.arange(n), 2),
        split=["train", "test"] * n,
    )
    task = il.Task(lambda: nn.Sequential(nn.Linear(90, 100), nn.ReLU(), nn.Linear(100, 10)))
    began = time.perf_counter()
    one = il.run(
        method, task, data, rounds=3, sample=100, batch=4, eval_every=0, memory=memory
    ).seeds[0]
    assert time.perf_counter() - began < 60
    assert task.d == 10_110 and one.engine.ledger.admitted == 300
    assert one.engine.host.store.file_backed is (memory < 1)
    assert torch.isfinite(one.engine.server["w"]).all() and one.final()["accuracy"] > 0


def test_a_method_that_decides_by_validation_data_says_when_there_are_none():
    data = il.data.load("synthetic", clients=4, samples=40, valid=0.0)
    with pytest.raises(il.SettingError, match="validation"):
        il.run(il.Dichotomy(), il.Task(torch.nn.Linear(60, 10)), data, rounds=1)


@pytest.mark.parametrize("token", [7, -1])
def test_a_token_outside_the_models_table_is_refused(token):
    module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3))
    tokens = np.array([[0, 1, 2], [3, 4, 5], [6, 0, 1], [2, 3, 4]])
    owners = [0, 0, 1, 1]
    assert il.run(
        il.FedAvg(),
        il.Task(module),
        il.Federation.from_arrays(tokens, [0, 1, 2, 0], owners),
        rounds=1,
    )
    tokens[2, 1] = token
    with pytest.raises(SettingError, match="does not accept inputs"):
        il.run(
            il.FedAvg(),
            il.Task(module),
            il.Federation.from_arrays(tokens, [0, 1, 2, 0], owners),
            rounds=1,
        )
