"""Table 2 of FFGG in form: three steps, step sizes by validation data, published cells by files."""

import json

import pytest

from idiolect_papers.ffgg import table2
from idiolect_papers.ffgg.table2 import (
    FFGG,
    ROWS,
    TABLE2,
    TABLE3,
    FfggCase,
    FfggTable2Size,
    Pipelines,
    against,
    best_split,
    cases,
    comparison,
    fixed,
    measure,
)
from idiolect_papers.page import page_of

SMALL = FfggCase(
    "synthetic",
    "mlp",
    {"clients": 4, "samples": 60},
    {"hidden": "8,8"},
    clients_per_round=2,
    rounds=(4, 1),
)
FEW = FfggTable2Size("quick: a tenth", seeds=2, first=(0.1, 0.3), rates=(0.1,), workers=1)


def test_the_published_table_is_whole():
    assert len(TABLE2) == 7 and all(len(row) == 3 for row in TABLE2.values())
    assert TABLE2["FFGG (Adapter)"]["GLDv2"].mean == 64.93
    assert TABLE3["StackOverflow"]["rounds"] == (1000, 500)


def test_full_scale_has_the_settings_of_table_3(tmp_path):
    found = cases("full", tmp_path)
    case = found["shakespeare (for StackOverflow)"]
    assert case.settings(1, 50) == {
        "rounds": 1000,
        "sample": 50,
        "batch": 64,
        "server_optimizer": "Adam",
        "server_lr": 5e-4,
        "schedule": "warmup:100*linear",
        "clip": 0.1,
    }
    assert found["hapt"].settings(2, 50)["rounds"] == 500


def test_published_sets_are_run_where_their_files_are(tmp_path):
    assert set(cases("quick", tmp_path)) == set(table2.STAND_INS)
    (tmp_path / "femnist").mkdir()
    found = cases("quick", tmp_path)
    assert found["FEMNIST"].options["path"] == str(tmp_path / "femnist")
    assert cases("full", tmp_path)["FEMNIST"].model == "resnet18"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "reproduced"
    folder.mkdir()
    found = table2.page(measure({"FEMNIST": SMALL}, FEW, folder), FEW)
    return found, found.write(folder)


def test_a_tenth_of_quick_marks_the_cells_that_were_run(page):
    found, (text, stored, drawn, _) = page
    kept = json.loads(stored.read_text())
    assert text.read_text() == page_of(kept)
    marks = {cell["column"]: set() for cell in kept["cells"]}
    for cell in kept["cells"]:
        marks[cell["column"]].add(cell["mark"])
    assert marks["GLDv2"] == marks["StackOverflow"] == {"not run"}
    assert "not run" not in marks["FEMNIST"]
    assert "GLDv2, StackOverflow cannot be fetched" in kept["opening"]
    assert drawn.stat().st_size > 1000
    assert found.seconds > 0


def test_every_row_goes_on_from_the_same_shared_model(page):
    found, _ = page
    for one in found.figures["FEMNIST"]:
        assert set(one["rows"]) == set(ROWS)
        starts = {row["start"] for row in one["rows"].values()}
        assert starts == {one["rows"]["FedAvg"]["test"]}
        assert one["first"] in FEW.first


def test_step_sizes_are_chosen_without_test_data():
    rates = fixed((0.001, 0.3))
    search = Pipelines(SMALL, 0, (0.001, 0.3), rates).train()
    assert search["first"] == 0.3
    assert {row["lr"] for name, row in search["rows"].items() if name != "FedAvg"} == {0.3}
    assert all(row["test"] is None for row in search["rows"].values())
    assert all(row["valid"] is not None for row in search["rows"].values())


def test_a_stored_run_is_gone_on_with(tmp_path):
    rates = {f"{FFGG}: Adapter": (0.1,)}
    job = Pipelines(SMALL, 0, (0.1,), rates, str(tmp_path))
    first = job.train()
    again = job.train()
    assert again["rows"] == first["rows"]
    assert len(list(tmp_path.rglob("settings.json"))) == 3  # one for each step
    alone = Pipelines(SMALL, 0, (0.1,), rates).train()
    assert alone["rows"] == first["rows"]


def result(**tests):
    rows = {row: {"test": 0.5, "valid": 0.5, "personalised": 0.5, "start": 0.4} for row in ROWS}
    for row, test in tests.items():
        rows[row.replace("_", " ")] |= {"test": test, "valid": test}
    return {"rows": rows, "first": 0.1, "majority": 0.1, "seconds": 1.0}


def test_the_order_is_said_with_its_interval():
    found = [result(), result()]
    for one, test in zip(found, (0.7, 0.71), strict=True):
        one["rows"]["FFGG: Adapter"] |= {"test": test, "valid": 0.9}
        one["rows"]["FedAvg"] |= {"test": test + 0.1}
    assert best_split(found, FFGG) == "FFGG: Adapter"
    row = against("set", found)
    assert row["FedAvg"] == "-10.00 ± 0.00 (worse)"
    assert row["Local Training"].endswith("(better)")
    assert "against FedAvg: worse on 1" in comparison({"set": found})["comparisons"]


def test_validation_data_choose_the_split_not_test_data():
    one = result()
    one["rows"]["FFGG: Input Layer"] |= {"test": 0.9, "valid": 0.1}
    one["rows"]["FFGG: Output Layer"] |= {"test": 0.1, "valid": 0.9}
    assert best_split([one], FFGG) == "FFGG: Output Layer"


def test_every_row_has_the_same_step_sizes_to_choose_from():
    rates = fixed((0.1, 0.3))
    assert rates.pop("FedAvg") == (0.1,)  # its own is that of step 1
    assert set(rates.values()) == {(0.1, 0.3)}
