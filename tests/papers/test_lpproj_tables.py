"""Tables 2, 4, 10, 16 and 17 of the lp-proj paper and their figures, at a small scale."""

import json
from dataclasses import replace

import pytest

from idiolect_papers.case import Case, Scale
from idiolect_papers.lp_proj import personal, subspace, table2
from idiolect_papers.lp_proj import personal_pages as pages
from idiolect_papers.lp_proj.cases import CASES, MAIN, case_of
from idiolect_papers.lp_proj.personal import (
    EQUAL,
    UNTIED,
    SearchScale,
    candidates,
    method_of,
    outcome,
    scale_of,
)
from idiolect_papers.published import read_table

SMALL = {"clients": 5, "samples": 80}
TITLE = "Synthetic(0, 0)"
SYNTHETIC = CASES[TITLE]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Synthetic(0, 0), and digits with a model of two layers in place of MNIST."""
    folder = tmp_path_factory.mktemp("runs")
    digits = Case("digits", "mlp", dim=20)
    scale = SearchScale(22, 2, SMALL, 2, "few")
    first = SearchScale(2, 2, {"clients": 4}, 0, "few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(personal.NOTES, "digits", "digits in place of MNIST")
        return {
            TITLE: outcome(TITLE, SYNTHETIC, scale, folder / "a", jobs=1),
            "MNIST": outcome("MNIST", digits, first, folder / "b", jobs=1),
        }


def test_the_grid_is_that_of_the_paper():
    whole = candidates(SearchScale(1, 1), 610)
    assert {row: len(found) for row, found in whole.items()} == {
        "Ditto": 54,
        "pFedMe": 54,
        "Per-FedAvg": 9,
        "FedAvg": 6,
        "local": 3,
        "lp-proj-1": 54,
        "lp-proj-2": 54,
        "RSA": 54,
        "LG-FedAvg": 6,
    }
    made = method_of("lp-proj-2", whole["lp-proj-2"][-1], SYNTHETIC).as_dict()
    assert (made["p"], made["alternations"], made["steps"], made["lam"]) == (2.0, 5, 20, 10.0)
    assert made["dim"] == 21
    short = candidates(SearchScale(1, 1, grid="R = 1"), 610)
    assert {row: len(short[row]) for row in ("lp-proj-1", "RSA", "FedAvg")} == {
        "lp-proj-1": 27,
        "RSA": 27,
        "FedAvg": 6,
    }
    few = candidates(SearchScale(1, 1, grid="few"), 610)
    assert len(few["lp-proj-1"]) == 4 and len(few["Ditto"]) == 8
    only = candidates(SearchScale(1, 1, {}, 0, "few"), 610)
    assert {len(found) for found in only.values()} == {1}
    assert only["lp-proj-1"][0].varied["personal_lr"] == 0.1


def test_every_published_row_is_there():
    published = read_table("lp-proj-table4", "lp-proj-table10")
    assert published.keys() == CASES.keys()
    rows = [row for table in published.values() for row in table.values()]
    assert all(set(row) == set(pages.COLUMNS) for row in rows)


def test_rows_that_the_paper_lacks_have_equal_gradients(found):
    for one in found.values():
        rows = one["rows"]
        assert rows[EQUAL]["gradients"] == rows["lp-proj-1"]["gradients"]
        assert rows["local"]["gradients"] < rows[EQUAL]["gradients"]
    assert "LG-FedAvg" in found["MNIST"]["rows"]
    assert "LG-FedAvg" not in found[TITLE]["rows"]
    assert found[TITLE]["rows"][UNTIED]["chosen"] == "as lp-proj-1"


def test_a_candidate_is_chosen_by_validation_data_alone(monkeypatch, tmp_path):
    scale = SearchScale(1, 1, SMALL, 3, "few")
    load = Case.load

    def poisoned(case, **options):
        federation, task = load(case, **options)
        tested = int(federation.offsets["test"][0])
        labels = federation.targets.clone()
        labels[tested:] = (labels[tested:] + 1) % 10
        return replace(federation, targets=labels), task

    def rows(folder):
        rows = ("FedAvg", "Ditto")
        return outcome(TITLE, SYNTHETIC, scale, folder, jobs=1, rows=rows)["rows"]

    clean = rows(tmp_path / "clean")
    monkeypatch.setattr(Case, "load", poisoned)
    other = rows(tmp_path / "poisoned")
    assert {r: row["chosen"] for r, row in other.items()} == {
        r: row["chosen"] for r, row in clean.items()
    }
    assert other["Ditto"]["accuracy"] != clean["Ditto"]["accuracy"]
    first = ", ".join(f"{k} {v:g}" for k, v in candidates(scale, 610)["Ditto"][0].varied.items())
    assert clean["Ditto"]["chosen"] not in (first, "")  # it was chosen, not taken


def test_the_page_has_the_paper_beside_ours(found, tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page, stored, index = pages.table(4, found, MAIN, "quick").write(folder)
    text = page.read_text()
    assert text.index("alone with as many gradients") < text.index("published cells")
    assert "| Ditto | 0.3500 ± 0.0038 |" in text
    cells = json.loads(stored.read_text())["cells"]
    marks = {c["mark"] for c in cells if c["table"].startswith("MNIST")}
    assert "agrees" not in marks  # digits stand in
    assert {c["mark"] for c in cells if c["table"] == "CIFAR"} == {"not run"}
    assert "lp-proj-table4.md" in index.read_text()


def test_a_data_set_is_shown_at_the_full_scale_where_that_was_run(found, tmp_path):
    title = TITLE
    for scale, rounds in (("quick", "9 rounds"), ("full", "99 rounds")):
        place = tmp_path / ".runs" / f"lp-proj-{scale}" / title
        place.mkdir(parents=True)
        (place / pages.OUTCOME).write_text(json.dumps(found[title] | {"scale": rounds}))
        (shown,) = pages.measured(tmp_path, "quick", [], [title]).values()
        assert shown["scale"].endswith(rounds)
    assert shown["scale"] == "at the full scale, 99 rounds"


def test_the_opening_tells_compute_from_the_tie():
    seen = {"lp-proj-1": (0.80, 0.81), "lp-proj-2": (0.70, 0.71), "local": (0.50, 0.51)}
    seen |= {EQUAL: (0.95, 0.96), UNTIED: (0.80, 0.812)}
    one = {"rows": {row: {"accuracy": list(seeds)} for row, seeds in seen.items()}}
    text = pages.opening({"set": one})
    assert "lp-proj-1 less Local: -0.1500 ± 0.0000; the tie: -0.0010 ± 0.0127." in text


def test_one_seed_says_nothing_of_a_difference(found):
    rows = found[TITLE]["rows"]
    one = {row: figures | {"accuracy": figures["accuracy"][:1]} for row, figures in rows.items()}
    text = pages.opening({TITLE: {"rows": one}})
    assert "(one seed: it may be chance)" in text
    assert pages._unknown({"rows": one}).endswith("it may be chance")


@pytest.mark.parametrize("number", [5, 6, 7, 9])
def test_figures_are_drawn_of_the_same_runs(found, tmp_path, number):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page = pages.figure(number, found, "quick")
    page.write(folder)
    assert (folder / f"lp-proj-figure{number}.png").stat().st_size > 10_000
    drawn = page.figures
    assert all(len(x) == len(y) > 0 for lines in drawn.values() for x, y in lines.values())
    if number == 9:  # collaboration
        _, y = drawn[TITLE][EQUAL]
        assert y == [pytest.approx(1.0)]  # with itself


def test_table_16_and_17(tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    size = Scale(1, 2, {"clients": 3})
    digits = Case("digits", "mlp", model_options={"hidden": "100"})
    page, *_ = subspace.write_table(folder, 16, "quick", size, digits, jobs=1)
    assert "| lp-proj-1, orthogonal | 0.004026 |" in page.read_text()
    page, stored, *_ = subspace.write_table(folder, 17, "quick", size, digits, jobs=1)
    cells = json.loads(stored.read_text())["cells"]
    assert len([c for c in cells if c["paper"]]) == 20
    assert "agrees" not in {c["mark"] for c in cells}


def test_table_2_in_form(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "none"))
    folder = tmp_path / "reproduced"
    folder.mkdir()
    size = table2.Table2Scale(1, 1, {"clients": 4}, 1, 4, 0.01, dim=20, blocks=5)
    page, stored, *_ = table2.write(folder, "quick", size, Case("digits", "mlp"), jobs=1)
    cells = json.loads(stored.read_text())["cells"]
    assert [c["mark"] for c in cells if c["paper"]] == ["not run"] * 12
    assert "times less" in page.read_text()


def test_emnist_is_that_of_the_user_where_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    stand_in = case_of("EMNIST")
    assert stand_in.data == "quickdraw" and stand_in.data in personal.NOTES
    (tmp_path / "emnist").mkdir()
    own = case_of("EMNIST")
    assert own.data == "emnist" and own.data not in personal.NOTES
    assert scale_of(own, "full").options == {"clients": 248}
    assert case_of("MNIST") is CASES["MNIST"]
