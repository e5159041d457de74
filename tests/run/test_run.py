"""A run.

Bad input is refused before work starts, it stops when it should, and held-out clients stay outside.
"""

import inspect
import time

import numpy as np
import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from helpers import private_of, state_of
from idiolect import SettingError
from idiolect.host.host import Host

FEATURES, CLASSES = 5, 3


def linear() -> il.Task:
    return helpers.linear(FEATURES, CLASSES)


def federation(clients=8, **options) -> il.Federation:
    return helpers.classification((20,) * clients, FEATURES, CLASSES, **options)


FEDERATION = federation()
METHODS = {
    "FedAvg": il.FedAvg(),
    "FedProx": il.FedProx(),
    "FedProxSoft": il.FedProxSoft(),
    "Local": il.Local(),
    "LpProj": il.LpProj(dim=4),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


# -- bad input -------------------------------------------------------------------------------------
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
        "sample must be at most the 8 clients .* got 9",
    ),
    "more sampled than are left": (
        {"sample": 7, "held_out": 2},
        "sample must be at most the 6 clients .* got 7",
    ),
    "everyone held out": ({"held_out": 8}, "held_out must be less than the 8 clients, got 8"),
    "dim above d": (
        {"method": il.LpProj(dim=19)},
        "dim must be a whole number from 1 to the model's 18 parameters, got 19",
    ),
    "dim 0": ({"method": il.LpProj(dim=0)}, "parameters, got 0"),
    "dim with identity": (
        {"method": il.LpProj(dim=4, projection="identity")},
        "with projection 'identity', got 4",
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
        rows = il.run(il.Local(), linear(), spare, rounds=0, held_out=2).clients_table()
        if rows[owner]["held_out"]:
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
    monkeypatch.setattr(Host, "updates", lambda *_: pytest.fail("work had started"))
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
    again = il.run(il.FedAvg(), linear(), FEDERATION, rounds=1, directory=tmp_path / "run")
    assert again.seeds[0].rounds == 1


@pytest.mark.parametrize(
    ("inputs", "targets", "clients", "says"),
    [
        (np.zeros((0, 2)), np.zeros(0, dtype=int), [], "clients must name at least one"),
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
        (np.zeros((2, 2)), [0.0, np.nan], [0, 1], "targets must be finite, got NaN or infinity"),
        (np.zeros((2, 2)), [0, 1], [0], "differ in length"),
    ],
)
def test_bad_data_is_a_clear_error(inputs, targets, clients, says):
    with pytest.raises(SettingError, match=says):
        il.Federation.from_arrays(inputs, targets, clients)


def sent(result):
    """Bytes of the first seed, both directions."""
    return result.session().server.ledger.bytes


# -- stops -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method", [il.FedAvg(), il.LpProj(dim=4), il.FedProxSoft()], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("spare", [0, 1, -1])
def test_a_byte_budget_stops_before_the_round_that_would_exceed_it(method, spare):
    per_round = sent(il.run(method, linear(), FEDERATION, rounds=1, sample=3))
    budget = 4 * per_round + spare
    result = il.run(method, linear(), FEDERATION, rounds=10, sample=3, bytes=budget)
    assert result.seeds[0].stopped == "bytes"
    assert result.seeds[0].rounds == (4 if spare >= 0 else 3)
    assert sent(result) <= budget
    assert (
        il.run(method, linear(), FEDERATION, rounds=4, sample=3, bytes=4 * per_round)
        .seeds[0]
        .stopped
        == "rounds"
    )


def test_a_budget_below_one_round_trains_nothing():
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=4, bytes=10)
    assert result.summary()["rounds"] == 0 and result.summary()["bytes"] == {"up": 0, "down": 0}


def test_a_target_value_stops_at_the_first_round_that_reaches_it():
    free = il.run(il.Local(steps=1), linear(), FEDERATION, rounds=30).seeds[0].history
    target = free[9]["accuracy"]
    first = next(h["round"] for h in free if h["accuracy"] >= target)
    one = il.run(il.Local(steps=1), linear(), FEDERATION, rounds=30, target_value=target).seeds[0]
    assert one.stopped == "target" and one.rounds == first and len(one.history) == first


def test_no_rounds_is_the_model_at_the_start():
    result = il.run(il.FedAvg(), linear(), FEDERATION, rounds=0)
    assert (
        torch.equal(state_of(result)["w"], linear().x0)
        and result.summary()["gradients_per_client"] == 0
    )


def test_a_rate_that_has_decayed_to_nothing_does_not_end_the_run():
    assert (
        il.run(il.FedAvg(), linear(), FEDERATION, rounds=4, schedule="exp:1e-200").summary()[
            "rounds"
        ]
        == 4
    )


# -- the account -----------------------------------------------------------------------------------
@every_method
def test_bytes_and_values_are_those_of_the_messages(method):
    d = {"FedAvg": 18, "FedProx": 18, "FedProxSoft": 18, "Local": 0, "LpProj": 4}[
        type(method).__name__
    ]
    trained = 8 if method.traits.trains == "everyone" else 3
    summary = il.run(method, linear(), FEDERATION, rounds=5, sample=3).summary()
    assert summary["values"] == {"up": 5 * 3 * d, "down": 5 * trained * d}
    length = 24 + 4 * d if d else 0
    assert summary["bytes"] == {"up": 5 * 3 * length, "down": 5 * trained * length}


@every_method
def test_every_message_asked_for_is_accounted_for(method):
    ledger = il.run(method, linear(), FEDERATION, rounds=5, sample=3).session().server.ledger
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
    assert soft.session().server.ledger.total("gradients") == 8 * 6


@every_method
def test_the_same_command_gives_the_same_bits(method):
    a, b = (il.run(method, linear(), FEDERATION, rounds=4, sample=3, seeds=2) for _ in range(2))
    for seed in (0, 1):
        assert a.seeds[seed].history == b.seeds[seed].history
        for of in (state_of, private_of):
            one, two = of(a, seed), of(b, seed)
            assert all(torch.equal(t, two[n]) for n, t in one.items())


@every_method
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_change_a_run(method, chunk):
    whole, parts = (
        il.run(method, linear(), FEDERATION, rounds=4, sample=3, chunk=c, dtype="float64")
        for c in (0, chunk)
    )
    for n, t in state_of(whole).items():
        torch.testing.assert_close(state_of(parts)[n], t, rtol=1e-12, atol=1e-12)


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
    x, y = (private_of(r)["x"] for r in (a, b))
    torch.testing.assert_close(x, y[:8], rtol=1e-12, atol=1e-12)


def test_the_settings_of_the_run_are_what_it_computes_with():
    """Device, precision, kernel, clip and decay have one owner."""
    module = nn.Linear(FEATURES, CLASSES)
    plain = il.run(il.FedAvg(), il.Task(module), FEDERATION, rounds=2)
    for given in ({"clip": 1e-3}, {"weight_decay": 0.5}):
        other = il.run(il.FedAvg(), il.Task(module), FEDERATION, rounds=2, **given)
        assert not torch.equal(state_of(other)["w"], state_of(plain)["w"])
    rows = il.run(il.FedAvg(), il.Task(module), FEDERATION, rounds=1, kernel="rows")
    assert rows.record.kernel == "rows"
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        result = il.run(il.FedAvg(), il.Task(module.double()), FEDERATION, rounds=1, dtype=name)
        assert state_of(result)["w"].dtype is dtype and result.record.settings["dtype"] == name


@pytest.mark.parametrize(
    "own", [{"dtype": torch.float64}, {"kernel": "rows"}, {"clip": 0.1}, {"seed": 3}]
)
def test_a_task_with_settings_of_its_own_is_refused(own):
    with pytest.raises(SettingError, match=r"task: it has .* settings of the run"):
        il.run(il.FedAvg(), linear().under(**own), FEDERATION, rounds=1)
    with pytest.raises(TypeError):
        il.Task(nn.Linear(FEATURES, CLASSES), **own)


def test_threads_are_put_back_after_a_run():
    before = torch.get_num_threads()
    il.run(il.FedAvg(), linear(), FEDERATION, rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before


# -- held-out clients ------------------------------------------------------------------------------
@every_method
def test_held_out_clients_are_never_trained_and_receive_nothing(method):
    settings = {"rounds": 6, "sample": 3, "held_out": 3, "held_out_rounds": 0}
    result = il.run(method, linear(), FEDERATION, **settings)
    session = result.session()
    held_out, evaluated = session.people.held_out, session.people.evaluated
    assert len(held_out) == 3 and not set(held_out.tolist()) & set(evaluated.tolist())
    for name, counts in session.server.ledger.counts.items():
        assert counts[held_out].sum() == 0, name
    rows = private_of(result)
    if rows:
        start = session.contract.task.x0.repeat(3, 1)
        assert torch.equal(rows["x"][held_out], start)
        trained = not torch.equal(rows["x"][evaluated[:3]], start)
        assert trained or type(method) is il.FedProxSoft


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
    hits = samples = 0
    for k in later.session().people.held_out.tolist():
        x, y = FEDERATION.part(k, "test")
        hits += int((later.personal(k)(x).argmax(1) == y).sum())
        samples += len(y)
    assert later.summary()["held_out"]["accuracy"]["mean"] == pytest.approx(hits / samples)


@every_method
def test_the_data_of_held_out_clients_do_not_matter(method):
    one = il.run(method, linear(), FEDERATION, rounds=4, sample=3, held_out=3)
    held = one.session().people.held_out
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
    assert torch.equal(other.session().people.held_out, held)
    assert other.summary()["accuracy"] == one.summary()["accuracy"]
    assert all(torch.equal(t, state_of(other)[n]) for n, t in state_of(one).items())


def test_the_table_of_clients_shows_the_scores_of_held_out_clients_too():
    result = il.run(il.Local(), linear(), FEDERATION, rounds=6, held_out=3)
    rows = result.clients_table()
    held_out = result.session().people.held_out
    assert [r["client"] for r in rows if r["held_out"]] == held_out.tolist()
    scores = result.session().engine.evaluate(held_out, ("test",))["test"]
    own = scores.of_clients()[0]
    assert [rows[k]["test_accuracy"] for k in held_out.tolist()] == own.tolist()


# -- what comes out --------------------------------------------------------------------------------
@every_method
def test_a_personal_model_predicts_with_the_accuracy_reported(method):
    result = il.run(method, linear(), FEDERATION, rounds=4, sample=3)
    for k, row in enumerate(result.clients_table()):
        x, y = FEDERATION.part(k, "test")
        for module in (result.personal(row["client"]), result.personal(str(row["client"]))):
            assert float((module(x).argmax(1) == y).double().mean()) == row["test_accuracy"]


def test_a_client_is_called_by_its_own_id():
    """Client 13 is client 13, not the fourteenth; and a text is a text."""
    ids = np.repeat([13, 2, 700], 20)
    rng = np.random.default_rng(0)
    data = il.Federation.from_arrays(
        rng.standard_normal((60, FEATURES)), rng.integers(CLASSES, size=60), ids
    )
    result = il.run(il.Local(), linear(), data, rounds=2, sample=3)
    rows = {row["client"]: row for row in result.clients_table()}
    assert list(rows) == [2, 13, 700]
    x, y = data.part(data.position(13), "test")
    right = (result.personal(13)(x).argmax(1) == y).double().mean()
    assert float(right) == rows[13]["test_accuracy"]
    with pytest.raises(SettingError, match=r"client: 1 is unknown; .* the nearest is 2"):
        result.personal(1)


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
    right = (result.personal(3, seed=1)(x).argmax(1) == y).double().mean()
    assert float(right) == result.seeds[1].clients[3]["test_accuracy"]
    with pytest.raises(SettingError, match="seed must be one of 0, 1, got 2"):
        result.personal(3, seed=2)


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
    result = il.run(il.FedProxSoft(), linear(), data, rounds=5, sample=3)
    rows = result.clients_table()
    assert rows[3]["bytes_down"] == 0 and [r["test_samples"] for r in rows] == [2, 2, 2, 6]
    assert torch.isfinite(state_of(result)["w"]).all()


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


# -- many clients ----------------------------------------------------------------------------------
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
    settings = {"rounds": 3, "sample": 100, "batch": 4, "eval_every": 0, "memory": memory}
    result = il.run(method, task, data, **settings)
    assert time.perf_counter() - began < 60
    session = result.session()
    assert task.d == 10_110 and session.server.ledger.admitted == 300
    assert session.hosts[0].store.file_backed is (memory < 1)
    assert torch.isfinite(session.server.state["w"]).all()
    assert result.summary()["accuracy"]["mean"] > 0


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
