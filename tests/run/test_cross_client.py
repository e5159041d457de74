"""A personal model on the data of other clients."""

from functools import partial

import numpy as np
import pytest

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.run.cross_client import circle_shifts
from idiolect.study import Stock, run_many

DATA = il.data.load("digits", clients=6, classes_per_client=2)
TASK = il.Task(partial(il.models.make, "mlp", DATA.shape, DATA.classes, hidden="8"))
KINDS = ("local", "fedavg", "finetune", "ditto", "fedamp", "knn-per", "fedem", "fedrod")


def trained(method="local", federation=DATA, **settings):
    return il.run(method, TASK, federation, rounds=3, progress=False, **settings)


def by_predictions(result, client, others):
    """The mean accuracy over others of what a client answers, asked one by one."""
    hits = []
    for other in others:
        x, y = DATA.part(DATA.ids.index(other), "test")
        hits.append(np.mean(result.predict(x, client=client).labels == y.numpy()))
    return np.mean(hits)


@pytest.mark.parametrize("method", KINDS)
def test_a_row_is_the_mean_over_others_of_what_the_clients_own_model_predicts(method):
    result = trained(method)
    rows = result.cross_client_table(others=0)
    assert [row["client"] for row in rows] == list(DATA.ids)
    for row in rows[:2]:
        others = [client for client in DATA.ids if client != row["client"]]
        assert row["others"] == len(others)
        expected = by_predictions(result, row["client"], others)
        assert row["test_accuracy"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("others", [0, 2])
def test_rows_do_not_depend_on_the_number_of_hosts(others):
    one, three = (trained("ditto", hosts=h).cross_client_table(others) for h in (1, 3))
    assert one == three


def test_every_model_meets_so_many_others_and_none_twice():
    rows = trained().cross_client_table(others=2)
    assert [row["others"] for row in rows] == [2] * 6
    shifts = circle_shifts(50, 7, seed=3)
    assert len(set(shifts.tolist())) == 7 and 0 not in shifts and shifts.max() < 50
    assert circle_shifts(1, 0, seed=0).tolist() == []


def test_one_shared_model_is_as_good_on_average_on_all_others_as_on_their_own():
    result = trained("fedavg")
    accuracies = [row["test_accuracy"] for row in result.clients_table()]
    for k, row in enumerate(result.cross_client_table(others=0)):
        rest = accuracies[:k] + accuracies[k + 1 :]
        assert row["test_accuracy"] == pytest.approx(np.mean(rest), abs=1e-9)


def test_malicious_and_held_out_clients_are_left_out():
    result = trained("fedavg", held_out=2, malicious=1, attack="sign-flip")
    marked = {r["client"] for r in result.clients_table() if r["held_out"] or r["malicious"]}
    rows = result.cross_client_table(others=0)
    assert len(marked) == 3 and {row["client"] for row in rows} == set(DATA.ids) - marked
    assert [row["others"] for row in rows] == [2] * 3


def test_clients_without_samples_are_met_by_nobody():
    x, y = DATA.inputs[:40], DATA.targets[:40]
    client = [0] * 20 + [1] * 19 + [2]  # one sample trains
    few = il.Federation.from_arrays(x, y, client, classes=10, valid=0, test=0.5)
    rows = trained("fedavg", few).cross_client_table(others=0)
    assert [row["others"] for row in rows] == [1, 1, 2]
    (alone,) = trained("fedavg", few.without("valid").of([2])).cross_client_table()
    assert alone["others"] == 0 and alone["test_accuracy"] is None


def test_each_seed_has_its_own_rows_and_a_split_may_be_named():
    result = trained(seeds=2)
    assert [row["seed"] for row in result.cross_client_table(1)] == [0] * 6 + [1] * 6
    assert "valid_accuracy" in result.cross_client_table(1, "valid")[0]


def test_a_study_may_keep_the_rows_of_its_runs():
    plan = il.Plan.of("ditto", settings={"rounds": 3})
    sweep = run_many([plan], Stock({"": DATA}, {"": TASK}), [0], jobs=1, keep=("cross_client",))
    (summary,) = sweep.summaries.values()
    expected = trained("ditto", threads=1).cross_client_table()
    assert summary["cross_client"] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [({"others": -1}, "others must be"), ({"split": "tests"}, "split must be one of")],
)
def test_what_cannot_be_met_is_refused(options, words):
    with pytest.raises(SettingError, match=words):
        trained().cross_client_table(**options)
