"""Table 1 and Figures 3 to 7 of the FedDeper paper, small: digits in place of MNIST."""

import math
from dataclasses import replace

import pytest

from idiolect.methods import FedDeper
from idiolect.study.many import Stock
from idiolect_papers import EXPERIMENTS
from idiolect_papers.case import majority_accuracy
from idiolect_papers.feddeper import convergence, figure3, figure7, table1
from idiolect_papers.feddeper.runs import (
    CASES,
    LOCAL,
    SIZES,
    SMALLER,
    DeperCase,
    DeperResults,
    DeperSize,
    counted,
    diverges,
    methods,
    outcome,
)
from idiolect_papers.feddeper.table1 import read_published
from idiolect_papers.page import page_of

FEW = DeperCase("MNIST", 10, "MLP", 5)
MANY = DeperCase("MNIST", 100, "MLP", 5)
SMALL = DeperSize(
    "quick: a test", {FEW: 4, MANY: 4}, points=2, learnt=2.0, sources={"MNIST": "digits"}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "reproduced"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return outcome(folder, "test", SMALL, CASES, jobs=1)


def test_every_cell_of_table_1_is_transcribed():
    published = read_published()
    assert len(published) == 60
    assert {case for case, _ in published} == set(CASES)
    assert {method for _, method in published} == set(methods(10))
    assert published[DeperCase("MNIST", 100, "CNN", 10), "SCAF"] == 67.11


def test_settings_are_the_printed_ones():
    for clients, rho in ((10, 0.03), (100, 0.005)):
        made = methods(clients)
        assert all(method.lr == 0.01 for method in made.values())
        assert {name: method.steps for name, method in made.items()} == {
            "Deper": 10,
            "Deper*": 5,
            "Avg": 10,
            "Prox": 10,
            "SCAF": 10,
        }
        assert (made["Deper"].rho, made["Deper"].lam, made["Prox"].mu) == (rho, 0.5, 1.0)
    full = SIZES["full"].rounds
    assert {c.data: K for c, K in full.items()} == {"MNIST": 500, "CIFAR-10": 2000}
    assert set(full) == set(CASES)
    assert set(SIZES["quick"].rounds) < set(CASES)


def test_clients_hold_two_classes():
    federation = SMALL.source(FEW).load()[0]
    held = [len(federation.part(k, "train")[1].unique()) for k in range(10)]
    assert held == [2] * 10


def test_local_has_the_gradients_of_fedavg(found):
    spent = {m: found.summaries[FEW, m][0]["gradients_per_client"] for m in ("Avg", LOCAL)}
    trained = spent["Avg"] - 10  # without those of the personal models that Figure 7 is about
    assert trained == spent[LOCAL] == 20


def test_the_global_model_is_followed_by_rounds(found):
    assert found.rounds(FEW, "Deper") == [2, 4]
    last = found.curve(FEW, "Deper", "test_accuracy")[-1]
    assert 100 * last == pytest.approx(found.accuracy(FEW, "Deper").mean)
    assert found.own_curve(FEW, "Deper")[-1] != last
    assert found.accuracy(FEW, LOCAL) is None


def test_table_1_has_the_paper_beside_ours_and_says_what_was_not_run(folder, found):
    page, *_ = table1.page(folder, "test", SMALL, jobs=1).write(folder)
    text = page.read_text()
    ours = found.accuracy(FEW, "Deper")
    assert f"| Deper | 94.92 | {ours} " in text
    assert "50 · not run" in text
    assert f"| {LOCAL} | – | – |" in text


@pytest.mark.parametrize(("number", "clients", "claims"), [(4, 10, 3), (5, 100, 3)])
def test_convergence_is_judged_by_what_the_paper_says(folder, number, clients, claims):
    made = convergence.page(number, "MNIST", clients, folder, "test", SMALL, jobs=1)
    assert len(made.claims) == claims
    assert "not run at this scale: MNIST" in made.opening.lower() or "MLP, m = 10" in made.opening
    page, _, picture, _ = made.write(folder)
    assert picture.stat().st_size > 0
    assert "training loss at the end" in page.read_text()


def test_methods_that_have_learnt_nothing_are_not_compared(folder):
    strict = replace(SMALL, learnt=0.0)
    made = convergence.page(5, "MNIST", 100, folder, "test", strict, jobs=1)
    assert not made.claims
    assert "too few to compare methods" in made.opening


def test_figure_7_has_both_models(folder, found):
    made = figure7.page(folder, "test", SMALL, jobs=1)
    assert len(made.claims) == 5
    rows = next(iter(made.tables.values()))
    assert [row["method"] for row in rows][-1] == "Local, equal gradients"
    assert rows[0]["personal models"] == pytest.approx(found.own(FEW, "Deper").mean / 100)


def test_figure_3_varies_one_thing_at_a_time(folder):
    size = figure3.DeperFigure3Size(
        "quick: a test",
        4,
        rhos=(0.0, 0.03),
        lams=(0.5, 1.0),
        steps=(5, 10),
        shorter=(2,),
        data=SMALL,
    )
    panels = size.panels()
    assert panels["ϱ"][0.03] == panels["λ"][0.5] == panels["τ"][10] == panels["K"][4]
    assert [p.rounds * p.steps for p in panels["K"].values()] == [40, 40]
    made = figure3.page(folder, "test", size, jobs=1)
    assert [row["training loss"] > 0 for row in made.tables["(a) penalty ϱ:"]] == [True, True]
    assert len(made.claims) == 5


def test_rises_and_verdicts():
    assert convergence.rises([3.0, 1.0, 2.0, 2.0]) == pytest.approx(1 / 3)
    assert (counted(2, 2), counted(1, 2), counted(0, 2)) == (True, "same order", False)


def test_majority_of_two_equal_classes_is_about_half():
    assert math.isclose(majority_accuracy(SMALL.source(FEW).load()[0]), 0.5, abs_tol=0.1)


def test_all_are_listed():
    names = [f"feddeper-{n}" for n in ("table1", *(f"figure{k}" for k in range(3, 8)))]
    assert all(EXPERIMENTS[name].kind == "trained" for name in names)
    assert isinstance(methods(10)["Deper*"], FedDeper)
    assert callable(page_of)


def test_a_method_that_diverges_is_said_to():
    case = DeperCase("MNIST", 100, "MLP", 5)
    curve = [{"round": 1, "train_loss": 0.9}, {"round": 2, "train_loss": 99.0}]
    settled = [{"round": 1, "train_loss": 0.9}, {"round": 2, "train_loss": 0.8}]
    found = DeperResults(
        SIZES["quick"],
        Stock({}, {}),
        {
            (case, "Deper"): [{"global_by_round": curve}],
            (case, "Avg"): [{"global_by_round": settled}],
            (case, SMALLER): [{"global_model": {"accuracy": {"mean": 0.9}}}],
        },
    )
    text = diverges(found, case, "Deper")
    assert "training loss is 0.90 in round 1 and 99 in round 2" in text
    assert (
        "waits 20 rounds" in text
        and "With ϱ = 0.001, the one other value" in text
        and "it ends at 90.00 %" in text
    )
    assert diverges(found, case, "Avg") == ""
