"""Is anyone left behind? The clients of a result by name."""

import json

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import idiolect as il
from helpers import classification, regression
from idiolect.core.columns import render
from idiolect.report.clients import clients_view

SIZES = (40,) * 20
NAMES = [f"hospital-{k}" for k in range(20)]


def named(of, **options):
    data = of(SIZES, features=4, **options)
    return il.Federation(
        data.inputs, data.targets, data.offsets, tuple(NAMES), data.classes, data.name
    )


@pytest.fixture(scope="module")
def found():
    task = il.Task(lambda: nn.Linear(4, 3))
    return il.compare(
        ["fedavg", "ditto"], task, named(classification), rounds=3, seeds=2, sample=20
    )


def by_hand(result):
    tables = [s.clients for s in result.seeds]
    each = np.array([[row["test_accuracy"] for row in table] for table in tables]).mean(0)
    return dict(zip(NAMES, each, strict=True))


def test_best_median_and_worst_are_shown_by_name_with_their_samples(found):
    view = clients_view(found.results[0])
    each = by_hand(found.results[0])
    rows = view.rows()
    assert [r["place"] for r in rows] == ["best"] * 3 + ["median"] * 3 + ["worst"] * 5
    assert rows[0]["values"]["fedavg"] == pytest.approx(max(each.values()))
    assert rows[-1]["values"]["fedavg"] == pytest.approx(min(each.values()))
    for row in rows:
        assert row["values"]["fedavg"] == pytest.approx(each[row["client"]])
        assert row["samples"] == 8 and row["client"] in str(view)


def test_gains_over_local_are_those_of_all_clients_with_verdicts(found):
    view = clients_view(found)
    assert [s.name for s in view.served] == ["fedavg", "ditto", "local"]
    local = by_hand(found.results[-1])
    for served, result in zip(view.served, found.results[:2], strict=False):
        gains = {name: value - local[name] for name, value in by_hand(result).items()}
        assert {name: g.gain for name, g in served.gains.items()} == pytest.approx(gains)
        row = served.row(higher=True)
        assert row["gain"] + row["lose"] + row["cannot_tell"] == 20
        # eight test samples of a client do not show a gain of one or two of them
        assert row["cannot_tell"] >= 15
    assert view.served[-1].row(True)["gain"] is None
    alone = clients_view(found.results[1], local=found.results[-1])
    assert alone.served[0].gains == view.served[1].gains


def test_clients_below_their_own_majority_class_are_counted(found):
    data = named(classification)
    share = (data.majority_hits("test") / data.sizes("test")).tolist()
    each = by_hand(found.results[0])
    below = sum(each[n] < s - 1e-9 for n, s in zip(NAMES, share, strict=True))
    view = clients_view(found.results[0])
    assert view.served[0].row(True)["below_constant"] == below
    assert "below majority class" in str(view)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_it_fits_the_terminal_and_names_what_does_not(found, width):
    for table in clients_view(found).tables():
        text = render(table, width)
        assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    console = Console(width=width, record=True, quiet=True)
    console.print(clients_view(found))


def test_a_column_for_each_method_of_a_comparison(found):
    text = render(clients_view(found).tables()[1], 100)
    heading = next(line for line in text.splitlines() if "client " in line)
    assert [w for w in heading.split() if w in ("fedavg", "ditto", "local")] == [
        "fedavg",
        "ditto",
        "local",
    ]


def test_a_regression_is_ordered_by_its_loss():
    task = il.Task(lambda: nn.Linear(4, 1), "mse")
    result = il.run(il.FedAvg(lr=0.01), task, named(regression), rounds=2, sample=20)
    view = clients_view(result)
    losses = [r["values"]["fedavg"] for r in view.rows()]
    assert view.figure == "loss" and not view.higher and losses == sorted(losses)
    assert "over constant answer" in str(view)
    assert json.dumps(view.as_dict())


def test_without_models_two_accuracies_are_taken_to_disagree_as_often_as_they_can(found):
    record_only = il.compare(
        ["fedavg"], il.Task(lambda: nn.Linear(4, 3)), named(classification), rounds=1, sample=20
    )
    for result in record_only.results:
        result._sessions.clear()
    gains = clients_view(record_only).served[0].gains
    assert {g.verdict for g in gains.values()} <= {"gains", "loses", "cannot tell"}
    assert all(g.low < g.gain < g.high for g in gains.values())


def test_a_result_read_back_has_the_same_view(found, tmp_path):
    path = found.save(tmp_path / "c")
    assert str(clients_view(il.load(path))) == str(clients_view(found))


def test_verdicts_count_groups_and_say_how_many(tmp_path):
    """Five copies of every row under one patient are no more evidence than the row."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)).astype("f4"), rng.integers(0, 3, 200)
    site, split = np.array(["a", "b"]).repeat(100), np.array(["train", "test"] * 100)
    copies = il.Federation.from_arrays(
        x.repeat(5, 0),
        y.repeat(5),
        site.repeat(5),
        split=split.repeat(5),
        group=np.arange(200).repeat(5),
    )
    task = il.Task(lambda: nn.Linear(4, 3))
    found = il.compare(["fedavg"], task, copies, rounds=3, directory=tmp_path / "c", batch=50)
    view = clients_view(found)
    assert "groups of test samples" in str(view) and view.rows()[0]["groups"] == 50
    gain = view.served[0].gains["a"]
    assert (gain.samples, gain.groups) == (250, 50) and gain.high - gain.low > 0.1
    without = clients_view(il.Result(found.results[0].record), il.Result(found.results[1].record))
    assert {g.verdict for g in without.served[0].gains.values()} == {"cannot tell"}
    assert "a record does not say which samples are of one group" in str(without).replace("\n", " ")
    card = found.results[0].card()
    assert "groups of test samples (Wilson)" in card
