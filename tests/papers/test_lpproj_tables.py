"""Tables 2, 4, 10, 16 and 17 of the lp-proj paper and their figures, at a small scale."""

import json
from dataclasses import replace

import pytest

from idiolect_papers.lp_proj import personal as measure
from idiolect_papers.lp_proj import personal_pages as figures
from idiolect_papers.lp_proj import personal_pages as pages
from idiolect_papers.lp_proj import personal_pages as personal
from idiolect_papers.lp_proj import subspace, table2
from idiolect_papers.lp_proj.personal import (
    CASES,
    EQUAL,
    SYNTHETIC,
    UNTIED,
    Case,
    Size,
    candidates,
    method_of,
)
from idiolect_papers.lp_proj.personal_pages import COLUMNS, read_published

SMALL = {"clients": 5, "samples": 80}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Synthetic(0, 0), and digits with a model of two layers in place of MNIST."""
    folder = tmp_path_factory.mktemp("runs")
    digits = Case("MNIST", "digits", "mlp", 20, {}, note="digits in place of MNIST")
    size = Size(22, 2, 2, "few")
    return {
        SYNTHETIC.title: measure.outcome(
            SYNTHETIC, replace(size, options=SMALL), folder / "a", jobs=1
        ),
        "MNIST": measure.outcome(
            digits, Size(2, 2, 0, "few", {"clients": 4}), folder / "b", jobs=1
        ),
    }


def test_the_grid_is_that_of_the_paper():
    whole = candidates(Size(1, 1, 1), 610)
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
    short = candidates(Size(1, 1, 1, "R = 1"), 610)
    assert {row: len(short[row]) for row in ("lp-proj-1", "RSA", "FedAvg")} == {
        "lp-proj-1": 27,
        "RSA": 27,
        "FedAvg": 6,
    }
    few = candidates(Size(1, 1, 1, "few"), 610)
    assert len(few["lp-proj-1"]) == 4 and len(few["Ditto"]) == 8
    only = candidates(Size(1, 1, 0, "few"), 610)
    assert {len(found) for found in only.values()} == {1}
    assert only["lp-proj-1"][0].varied["personal_lr"] == 0.1


def test_every_published_row_is_there():
    published = read_published()
    titles = {title for title, _ in published}
    assert titles == {*CASES, "Synthetic, by volume"}
    assert all(set(cells) == set(COLUMNS) for cells in published.values())


def test_rows_that_the_paper_lacks_have_equal_gradients(found):
    for one in found.values():
        rows = one["rows"]
        assert rows[EQUAL]["gradients"] == rows["lp-proj-1"]["gradients"]
        assert rows["local"]["gradients"] < rows[EQUAL]["gradients"]
    assert "LG-FedAvg" in found["MNIST"]["rows"]
    assert "LG-FedAvg" not in found[SYNTHETIC.title]["rows"]
    assert found[SYNTHETIC.title]["rows"][UNTIED]["chosen"] == "as lp-proj-1"


def test_a_candidate_is_chosen_by_validation_data_alone(monkeypatch, tmp_path):
    size = Size(1, 1, 3, "few", SMALL)
    load = Case.load

    def poisoned(case, size):
        federation, task = load(case, size)
        tested = int(federation.offsets["test"][0])
        labels = federation.targets.clone()
        labels[tested:] = (labels[tested:] + 1) % 10
        return replace(federation, targets=labels), task

    def rows(folder):
        made = measure.outcome(SYNTHETIC, size, folder, jobs=1, rows=("FedAvg", "Ditto"))
        return made["rows"]

    clean = rows(tmp_path / "clean")
    monkeypatch.setattr(Case, "load", poisoned)
    other = rows(tmp_path / "poisoned")
    assert {r: row["chosen"] for r, row in other.items()} == {
        r: row["chosen"] for r, row in clean.items()
    }
    assert other["Ditto"]["accuracy"] != clean["Ditto"]["accuracy"]
    first = ", ".join(f"{k} {v:g}" for k, v in candidates(size, 610)["Ditto"][0].varied.items())
    assert clean["Ditto"]["chosen"] not in (first, "")  # it was chosen, not taken


def test_the_page_has_the_paper_beside_ours(found, tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page, stored, index = pages.table("lp-proj-table4", "Table 4", found, [*CASES], "quick").write(
        folder
    )
    text = page.read_text()
    assert text.index("alone with as many gradients") < text.index("published cells")
    assert "| Ditto | 0.3500 ± 0.0038 |" in text
    cells = json.loads(stored.read_text())["cells"]
    marks = {c["mark"] for c in cells if c["table"].startswith("MNIST")}
    assert "agrees" not in marks  # digits stand in
    assert {c["mark"] for c in cells if c["table"] == "CIFAR"} == {"not run"}
    assert "lp-proj-table4.md" in index.read_text()


def test_a_data_set_is_shown_at_the_full_scale_where_that_was_run(found, tmp_path):
    title = SYNTHETIC.title
    for scale, rounds in (("quick", "9 rounds"), ("full", "99 rounds")):
        place = tmp_path / ".runs" / f"lp-proj-{scale}" / title / personal.OUTCOME
        measure.store(place, found[title] | {"scale": rounds})
        (shown,) = personal.measured(tmp_path, "quick", [], {title: SYNTHETIC}).values()
        assert shown["scale"].endswith(rounds)
    assert shown["scale"] == "at the full scale, 99 rounds"


def test_the_opening_tells_compute_from_the_tie():
    seen = {"lp-proj-1": (0.80, 0.81), "lp-proj-2": (0.70, 0.71), "local": (0.50, 0.51)}
    seen |= {EQUAL: (0.95, 0.96), UNTIED: (0.80, 0.812)}
    one = {"rows": {row: {"accuracy": list(seeds)} for row, seeds in seen.items()}}
    text = pages.opening({"set": one})
    assert "lp-proj-1 less Local: -0.1500 ± 0.0000; the tie: -0.0010 ± 0.0127." in text


def test_one_seed_says_nothing_of_a_difference(found):
    rows = found[SYNTHETIC.title]["rows"]
    one = {row: figures | {"accuracy": figures["accuracy"][:1]} for row, figures in rows.items()}
    text = pages.opening({SYNTHETIC.title: {"rows": one}})
    assert "(one seed: it may be chance)" in text
    assert figures._unknown({"rows": one}).endswith("it may be chance")


@pytest.mark.parametrize("kind", ["training", "fairness", "losses", "collaboration"])
def test_figures_are_drawn_of_the_same_runs(found, tmp_path, kind):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page = getattr(figures, kind)("lp-proj-figure5", "Figure 5", found, "quick")
    page.write(folder)
    assert (folder / "lp-proj-figure5.png").stat().st_size > 10_000
    drawn = page.figures
    assert all(len(x) == len(y) > 0 for lines in drawn.values() for x, y in lines.values())
    if kind == "collaboration":
        _, y = drawn[SYNTHETIC.title][EQUAL]
        assert y == [pytest.approx(1.0)]  # with itself


def test_table_16_and_17(tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    size = subspace.Size(1, 2, {"clients": 3})
    page, *_ = subspace.write_table16(folder, "quick", size, "digits", jobs=1)
    assert "| lp-proj-1, orthogonal | 0.004026 |" in page.read_text()
    page, stored, *_ = subspace.write_table17(folder, "quick", size, "digits", jobs=1)
    cells = json.loads(stored.read_text())["cells"]
    assert len([c for c in cells if c["paper"]]) == 20
    assert "agrees" not in {c["mark"] for c in cells}


def test_table_2_in_form(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "none"))
    folder = tmp_path / "reproduced"
    folder.mkdir()
    size = table2.Size(1, 1, 4, 1, 0.01, "mlp", {"clients": 4}, source="digits", dim=20, blocks=5)
    page, stored, *_ = table2.write(folder, "quick", size, jobs=1)
    cells = json.loads(stored.read_text())["cells"]
    assert [c["mark"] for c in cells if c["paper"]] == ["not run"] * 12
    assert "times less" in page.read_text()


def test_emnist_is_that_of_the_user_where_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    assert CASES["EMNIST"].here().data == "quickdraw" and CASES["EMNIST"].here().note
    (tmp_path / "emnist").mkdir()
    own = CASES["EMNIST"].here()
    assert own.data == "emnist" and not own.note
    assert own.sizes["full"].options == {"clients": 248}
    assert CASES["MNIST"].here() is CASES["MNIST"]
