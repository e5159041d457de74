"""What a newcomer types, and what the command line makes of it."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shlex import split

import numpy as np
import pytest
import torch

import idiolect
from idiolect.cli import portable
from idiolect.cli.main import main
from idiolect.data.read.tables import TableFile
from idiolect.report import plots as curve_picture
from idiolect.report import progress
from idiolect.report.plots import write_curves
from idiolect.report.targets import Goals

COMMAND = [sys.executable, "-m", "idiolect.cli"]
DATA = split("--clients 4 --samples 30 --features 4 --classes 2 --sample 2 --batch 8")
QUICK = [*DATA, "--quiet"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def output(capsys, line: str, *more: str) -> str:
    """What a command prints on stdout."""
    try:
        assert main([*split(line), *more]) == 0
    except SystemExit as end:
        assert not end.code
    return capsys.readouterr().out


def refused(capsys, line: str, *more: str) -> str:
    """What a command that is refused says."""
    assert main([*split(line), *more]) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.count("error: ") == 1
    return got.err


# -- the method stands anywhere --------------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    [
        "run --rounds 2 fedavg --json",
        "run --json --rounds 2 --lr 0.1 fedavg",
        "run --json fedavg --rounds=2",
        "run fedavg:lr=0.1 --rounds 2 --json",
    ],
)
def test_the_method_may_stand_anywhere_among_the_arguments(line, capsys):
    got = json.loads(output(capsys, line, *QUICK))
    assert got["method"] == "fedavg" and got["rounds"] == 2


def test_a_switch_does_not_swallow_the_method(capsys):
    got = json.loads(output(capsys, "run --rounds 1 --stateful fedalt --json", *QUICK))
    assert got["method"] == "fedalt" and got["settings"]["method"]["stateful"] is True


def test_a_data_set_may_stand_behind_its_flags(capsys):
    got = json.loads(output(capsys, "data --json show --clients 3 synthetic"))
    assert len(got["clients"]) == 3


# -- suggestions -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fedavg --rounds 3", "did you mean: idiolect run fedavg --rounds 3?"),
        ("fedavg ditto", "did you mean: idiolect compare fedavg ditto?"),
        ("--rounds 3 fedavg", "did you mean: idiolect run --rounds 3 fedavg?"),
        ("mnist", "did you mean: idiolect data show mnist?"),
        ("visits.csv", "did you mean: idiolect init visits.csv?"),
        ("train fedavg", "did you mean 'run'?"),
        ("methods", "did you mean: idiolect list methods?"),
        ("run fedavg ditto", "did you mean: idiolect compare fedavg ditto?"),
        ("run digits", "'digits' is a data set: idiolect run METHOD --data digits"),
        ("run visits.csv", "'visits.csv' is a table: idiolect init visits.csv"),
        ("run fedavg --data visits.csv", "--data table --path visits.csv"),
        ("run fedavg --batch-size 8", "did you mean --batch?"),
        ("run fedavg --learning-rate 8", "did you mean --lr?"),
        ("run fedavg --lam 1", "it belongs to the methods fedprox-soft, lp-proj"),
        ("run fedavg --path x.csv", "or --data table"),
        ("run FedAvgg", "did you mean 'fedavg'?"),
        ("show", "the following arguments are required: runs"),
    ],
)
def test_a_mistake_meets_the_right_command(line, says, capsys):
    assert says in refused(capsys, line)


@pytest.mark.parametrize(
    "line", ["plot", "tune", "clients", "frobnicate", "run nosuch", "run fedavg --colour red"]
)
def test_nothing_is_suggested_where_nothing_is_near(line, capsys):
    assert "did you mean" not in refused(capsys, line)


# -- help ------------------------------------------------------------------------------------------
def test_help_is_a_command_too(capsys):
    assert output(capsys, "help run") == output(capsys, "run --help")
    assert output(capsys, "help") == output(capsys, "--help")
    assert output(capsys, "help run fedavg") == output(capsys, "run fedavg --help")


def test_help_has_one_section_after_the_other_and_says_more_on_demand(capsys):
    short = output(capsys, "run ditto --help")
    assert "method ditto:" in short and "--rounds 200" in short and "run: participation:" in short
    assert len(short.splitlines()) < len(output(capsys, "run ditto --help all").splitlines())
    one = output(capsys, "run ditto --help rounds")
    assert "(default 200; a whole number >= 0)" in " ".join(one.split())
    section = output(capsys, "run ditto --help participation")
    assert "--quorum" in section and "--lr" not in section


def test_the_version_by_one_letter(capsys):
    assert output(capsys, "-V") == output(capsys, "--version")


# -- progress --------------------------------------------------------------------------------------
def test_without_a_terminal_there_is_a_line_of_progress_at_each_tenth():
    done = subprocess.run(
        [*COMMAND, *split("run fedavg --rounds 20 --json"), *DATA],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "rounds/s" in line]
    assert len(lines) == 10 and lines[4].startswith("10 of 20 rounds (50 %): fedavg seed 0")
    assert "left" in lines[0] and "accuracy 0." in lines[0] and "left" not in lines[-1]
    assert json.loads(done.stdout)["rounds"] == 20 and done.stdout.count("\n") == 1


def test_a_slow_run_says_where_it_is_every_ten_seconds(monkeypatch):
    now = [0.0]
    said: list[str] = []
    monkeypatch.setattr(progress, "clock", lambda: now[0])
    meter = progress.Meter(1000, "lines", speed=True)
    monkeypatch.setattr(meter, "note", said.append)
    for round in range(1, 61):  # a round per second, six of a hundred
        now[0] += 1
        meter.update(round, "fedavg seed 0")
    assert len(said) == 6
    assert said[0] == "10 of 1,000 rounds (1 %): fedavg seed 0, 1 rounds/s, about 16 min left"


def test_quiet_means_no_progress(capsys):
    assert main([*split("run fedavg --rounds 3 --quiet"), *DATA]) == 0
    assert "rounds/s" not in capsys.readouterr().err


# -- pictures --------------------------------------------------------------------------------------
def curve_of(name: str, level: float, **more: float) -> list[dict]:
    figures = {"seed": 0, "accuracy": level, "loss": 1.0, "gradients": 2.0}
    sent = {"bytes": 10, "values": 3, "seconds": 0.5}
    return [
        {"method": name, "round": r, **figures, **{k: v * r for k, v in sent.items()}, **more}
        for r in (1, 2, 3)
    ]


def test_seventeen_lines_are_told_apart_by_colour_style_and_marker():
    looks = [curve_picture._style(i, 17) for i in range(17)]
    assert len({(s["color"], str(s["linestyle"])) for s in looks}) == 17
    assert all("marker" in s for s in looks)


def test_curves_are_drawn_against_rounds_bytes_gradients_and_seconds(tmp_path, monkeypatch):
    drawn = []
    panel = curve_picture._panel
    monkeypatch.setattr(
        curve_picture, "_panel", lambda *a: (drawn.append((a[2], a[3])), panel(*a))[1]
    )
    write_curves([curve_of("a", 0.5), curve_of("b", 0.6)], Goals(), tmp_path)
    costs = ("rounds", "bytes", "gradients", "seconds")
    assert drawn == [(cost, "accuracy") for cost in costs]
    drawn.clear()
    nan = float("nan")
    write_curves([curve_of("a", nan)], Goals(), tmp_path, ("rounds",))
    assert drawn == [("rounds", "loss")]  # a regression has no accuracy
    drawn.clear()
    write_curves([curve_of("a", 0.5, seconds=nan)], Goals(), tmp_path)
    assert [cost for cost, _ in drawn] == ["rounds", "bytes", "gradients"]  # no times are known


def test_a_run_leaves_its_curves_and_several_runs_are_drawn_in_one_picture(capsys, tmp_path):
    for name in ("fedavg", "local"):
        output(capsys, f"run {name} --rounds 6 --directory {name}", *QUICK)
        assert (tmp_path / name / "curves.png").read_bytes()[:4] == b"\x89PNG"
    lines = (tmp_path / "fedavg" / "curves.csv").read_text().splitlines()
    seconds = [float(line.split(",")[-1]) for line in lines[1:]]
    assert lines[0].endswith(",seconds") and seconds == sorted(seconds) and seconds[0] > 0
    output(capsys, "show fedavg local --picture both.png --against bytes,seconds")
    assert (tmp_path / "both.png").read_bytes()[:4] == b"\x89PNG"
    assert "did you mean 'rounds'" in refused(capsys, "show fedavg --picture a.png --against round")


def test_times_stand_in_the_record_and_not_in_the_table_that_a_resumed_run_repeats(
    capsys, tmp_path
):
    output(capsys, "run fedavg --rounds 6 --directory here", *QUICK)
    record = json.loads((tmp_path / "here" / "record.json").read_text())
    assert len(record["seeds"][0]["times"]) == 6
    assert "seconds" not in (tmp_path / "here" / "metrics.csv").read_text()


# -- a table of one's own --------------------------------------------------------------------------
def visits(path: Path, rows: int = 120, sites: str = "hospital") -> Path:
    """A table as people have them: an identifier, text, a gap, columns on different scales."""
    rng = np.random.default_rng(0)
    site = np.arange(rows) % 3
    age = rng.normal(60, 12, rows).round()
    income = rng.lognormal(10, 1, rows).round()
    ill = age + 4 * rng.normal(size=rows) > 60
    lines = ["patient_id,hospital,age,sex,income,outcome"]
    for i in range(rows):
        cells = (i + 1000, f"{sites}-{site[i] + 1}", age[i] if i else "", "fm"[i % 2], income[i])
        lines.append(",".join(map(str, (*cells, "ill" if ill[i] else "well"))))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a table, the file that `init` wrote for it, and a run."""
    folder = tmp_path_factory.mktemp("trained")
    visits(folder / "visits.csv")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(split("init visits.csv")) == 0
        quick = "--rounds 5 --seeds 1 --quiet --directory run"
        assert main(split(f"run ditto --config idiolect.toml {quick}")) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def there(trained, monkeypatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def test_init_says_what_it_found_and_why_and_what_to_do_next(tmp_path, capsys):
    visits(tmp_path / "visits.csv")
    assert main(split("init visits.csv -o mine.toml")) == 0
    got = capsys.readouterr()
    assert "client: 'hospital' (its name, and 3 different values in 120 rows)" in got.err
    assert "target: 'outcome' (its name, and 2 different values)" in got.err
    assert "missing: 1 value in 1 column" in got.err
    assert "'patient_id' (an identifier" in got.out and "3 clients, 120 samples" in got.out
    assert "classes   2 ('ill', 'well')" in got.out
    assert "Next: idiolect compare --config mine.toml --clients-table" in got.out
    file = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert file["methods"] == ["local", "fedavg", "ditto"]
    assert file["data"]["client"] == "hospital" and file["data"]["missing"] == "mean"
    assert file["run"]["rounds"] == 100 and file["run"]["batch"] == 8


def test_the_file_that_init_writes_explains_every_option_of_a_table(there):
    text = (there / "idiolect.toml").read_text()
    for f in dataclasses.fields(TableFile):
        assert re.search(rf"^(# )?{f.name} = ", text, flags=re.MULTILINE), f.name
    assert max(map(len, text.splitlines())) <= 100


def test_init_asks_where_it_is_not_sure(tmp_path, capsys):
    (tmp_path / "odd.csv").write_text("a,b,c\n" + "1,2,0.5\n2,3,0.6\n" * 10)
    says = refused(capsys, "init odd.csv")
    assert "client: which column says whose row it is? it may be 'a'" in says
    assert "Say it: --client COLUMN" in says and not (tmp_path / "idiolect.toml").exists()
    says = refused(capsys, "init odd.csv --client a")
    assert "target: which column is to be predicted?" in says and "'c'" in says
    output(capsys, "init odd.csv --client a --target c --kind values")
    assert 'kind = "values"' in (tmp_path / "idiolect.toml").read_text()


def test_two_columns_that_may_be_the_client_are_a_question(tmp_path, capsys):
    (tmp_path / "two.csv").write_text("site,bank,y\n" + "1,2,0\n2,3,1\n" * 10)
    assert "it may be 'site' (2 different values), 'bank'" in refused(capsys, "init two.csv")


def test_init_does_not_write_over_a_file(there, capsys):
    assert "is there already; -o FILE, or --force" in refused(capsys, "init visits.csv")


def test_the_file_of_init_compares_three_methods(there, capsys):
    quick = "--rounds 2 --seeds 1 --quiet --json --directory compared"
    rows = json.loads(output(capsys, f"compare --config idiolect.toml {quick}"))
    assert [r["method"] for r in rows[:4]] == ["majority", "local", "fedavg", "ditto"]


def test_data_show_tells_what_became_of_the_columns(there, capsys):
    line = "data show table --path visits.csv --client hospital --target outcome --missing mean"
    got = json.loads(output(capsys, f"{line} --json"))
    assert got["class_names"] == ["ill", "well"] and "patient_id" in got["dropped"]
    kinds = {c["column"]: c["kind"] for c in got["columns"]}
    assert kinds == {"age": "number", "sex": "category", "income": "number"}
    shown = output(capsys, line)
    assert "an identifier" in shown and "scaled (federated)" in shown and "well" in shown


# -- predict, personalise, export ------------------------------------------------------------------
def test_predict_writes_labels_and_probabilities_for_raw_rows(there, capsys):
    (there / "rows.csv").write_text("income,sex,age\n20000,f,85\n20000,m,30\n")
    output(capsys, "predict run --client hospital-3 --data rows.csv -o out.csv")
    lines = (there / "out.csv").read_text().splitlines()
    assert lines[0] == "label,probability ill,probability well"
    assert [line.split(",")[0] for line in lines[1:]] == ["ill", "well"]
    model = idiolect.load("run").personal("hospital-3")
    assert model is not None and float(lines[1].split(",")[1]) > 0.5


@pytest.mark.parametrize("method", ["ditto", "finetune"])
def test_models_are_used_without_the_training_table_unless_they_need_it(tmp_path, method, capsys):
    visits(tmp_path / "visits.csv")
    line = "--data table --path visits.csv --client hospital --target outcome --missing mean"
    output(capsys, f"run {method} {line} --rounds 2 --quiet --directory run")
    Path("rows.csv").write_text("age,sex,income\n50,f,20000\n71,m,9000\n")
    before = output(capsys, "predict run --client hospital-2 --data rows.csv")
    Path("visits.csv").rename("moved.csv")
    if method == "finetune":  # it trains on the client's data before it predicts
        says = refused(capsys, "predict run --client hospital-2 --data rows.csv")
        assert "there is no file" in says and "visits.csv" in says
    else:
        assert output(capsys, "predict run --client hospital-2 --data rows.csv") == before


def test_rows_of_several_clients_are_predicted_by_the_model_of_each(there, capsys):
    (there / "many.csv").write_text("h,age,sex,income\nhospital-1,60,f,1\nhospital-2,60,f,1\n")
    both = json.loads(output(capsys, "predict run --client-column h --data many.csv --json"))
    one = json.loads(output(capsys, "predict run --client hospital-2 --data many.csv --json"))
    assert both["clients"] == ["hospital-1", "hospital-2"]
    assert both["probabilities"][1] == pytest.approx(one["probabilities"][1])
    assert both["probabilities"][0] != pytest.approx(one["probabilities"][0])
    got = output(capsys, "predict run --data visits.csv")  # the training table's own column
    assert got.startswith("patient_id,hospital,label") and got.count("\n") == 121


def test_predictions_stand_beside_the_names_of_their_rows(there, capsys):
    lines = ["patient,weight,income,sex,age", "p9,70.5,20000,f,85", "p3,81.5,20000,m,30"]
    (there / "rows.csv").write_text("\n".join([*lines, ""]))
    table = output(capsys, "predict run --client hospital-3 --data rows.csv").splitlines()
    assert table[0] == "patient,label,probability ill,probability well"
    assert [line.split(",")[:2] for line in table[1:]] == [["p9", "ill"], ["p3", "well"]]
    assert main(split("predict run --client hospital-3 --data rows.csv --json")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["ids"] == {"patient": ["p9", "p3"]}
    assert "rows are named by the column 'patient'; --id-column NAME says otherwise" in said.err
    by_age = output(capsys, "predict run --client hospital-3 --data rows.csv --id-column age")
    assert [line.split(",")[:2] for line in by_age.splitlines()] == [
        ["age", "label"],
        ["85", "ill"],
        ["30", "well"],
    ]
    says = refused(capsys, "predict run --client hospital-3 --data rows.csv --id-column pateint")
    assert "did you mean 'patient'?" in says


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--client hospital-33 --data visits.csv", "did you mean 'hospital-3'?"),
        ("--data nosuch.csv --client hospital-1", "there is no file 'nosuch.csv'"),
        ("--client-column hopsital --data visits.csv", "did you mean 'hospital'?"),
        ("--data short.csv --client hospital-1", "column 'age' is not in the table"),
        ("--data short.csv", "say whose model predicts"),
        ("--client hospital-1 --data visits.csv -o visits.csv", "it is the file of the rows"),
    ],
)
def test_a_prediction_that_cannot_be_made_says_why(there, line, says, capsys):
    (there / "short.csv").write_text("sex,income\nf,3\n")
    assert main(["predict", "run", *split(line)]) == 2
    assert says in capsys.readouterr().err


def test_a_regression_is_predicted_by_value(tmp_path, capsys):
    lines = [f"s{i % 2},{i},{0.5 * i + 0.1 * (i % 3)}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,price", *lines]) + "\n")
    table = "--data table --path t.csv --client site --target price --features x"
    assert main(split(f"run local {table} --rounds 20 --directory run --quiet")) == 0
    (tmp_path / "rows.csv").write_text("x\n10\n40\n")
    capsys.readouterr()
    lines = output(capsys, "predict run --client s0 --data rows.csv").splitlines()
    assert lines[0] == "value" and float(lines[1]) < float(lines[2])


def test_new_clients_get_models_after_training(there, capsys):
    visits(there / "new.csv", 60, "clinic")
    got = json.loads(output(capsys, "personalise run --data new.csv --rounds 3 --json"))
    assert [row["client"] for row in got["clients"]] == ["clinic-1", "clinic-2", "clinic-3"]
    assert len(list((there / "run" / "personalised").glob("*.safetensors"))) == 3
    assert main(split("personalise run --data visits.csv")) == 2
    assert "took part in the run" in capsys.readouterr().err


def test_export_of_one_client_says_what_goes_in(there, capsys):
    output(capsys, "export run --format torchscript --client hospital-2 -o scripts")
    about = json.loads((there / "scripts" / "client-000001.json").read_text())
    assert about["client"] == "hospital-2" and about["classes"] == ["ill", "well"]
    assert about["features"] == ["age", "sex=f", "sex=m", "income"]
    module = torch.jit.load(there / "scripts" / "client-000001.pt")
    rows = torch.randn(4, 4)
    assert torch.allclose(module(rows), idiolect.load("run").personal("hospital-2")(rows))
    assert "of one client: --client ID" in refused(capsys, "export run --format onnx")
    assert "did you mean 'onnx'" in refused(capsys, "export run --format onx")


def test_a_file_with_other_outputs_is_not_written(there, capsys, monkeypatch):
    wrong = (lambda module, sample: (b"", lambda rows: module(rows) + 1), ".onnx")
    monkeypatch.setitem(portable.FORMATS, "onnx", wrong)
    assert main(split("export run --format onnx --client hospital-1 -o wrong")) == 2
    assert "gives other outputs; nothing was written" in capsys.readouterr().err
    assert not (there / "wrong").exists()


def test_onnx_without_its_packages_says_what_to_install(there, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert main(split("export run --format onnx --client hospital-1")) == 2
    assert "pip install 'idiolect[export]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_the_other_formats_give_the_outputs_of_the_model(form, there, capsys):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    assert "checked against the model" in output(
        capsys, f"export run --format {form} --client hospital-2 -o {form}"
    )


# -- longer ----------------------------------------------------------------------------------------
def test_resume_goes_on_to_more_rounds(capsys):
    output(capsys, "run fedavg --rounds 2 --directory short", *QUICK)
    whole = json.loads(output(capsys, "run fedavg --rounds 5 --directory whole --json", *QUICK))
    longer = json.loads(output(capsys, "resume short --rounds 5 --quiet --json"))
    assert longer["rounds"] == 5 and longer["accuracy"] == whole["accuracy"]
    assert main(split("resume short --rounds 3 --quiet")) == 2


def test_a_comparison_goes_on_to_more_rounds_and_a_pipeline_does_not(capsys):
    output(capsys, "compare fedavg local --rounds 2 --directory both", *QUICK)
    rows = json.loads(output(capsys, "resume both --rounds 4 --quiet --json"))
    assert {r["rounds"] for r in rows[1:]} == {4}
    output(capsys, "pipeline fedavg@1 local@1 --directory line", *QUICK)
    assert "rounds must be those of the stages (METHOD@ROUNDS), got 4" in refused(
        capsys, "resume line --rounds 4"
    )


# -- is anyone left behind -------------------------------------------------------------------------
def test_the_clients_are_shown_by_name_on_request(there, capsys):
    quick = "--rounds 2 --seeds 1 --quiet"
    line = f"compare local fedavg --config idiolect.toml {quick} --clients-table"
    shown = output(capsys, f"{line} --directory by-name")
    assert "hospital-2" in shown and "gain over Local" in shown
    assert "hospital-2" in output(capsys, "show by-name --clients-table")
    rows = output(capsys, f"{line} --json --directory by-name-json")
    assert isinstance(json.loads(rows), list)  # the view goes to stderr


def test_the_target_on_the_command_line_is_the_column_of_a_table(there, capsys):
    table = "--data table --path visits.csv --client hospital --target outcome --missing mean"
    flags = "--target-value 0.01 --rounds 3 --quiet --json"
    got = json.loads(output(capsys, f"run local {table} {flags} --directory reached"))
    assert got["stopped"] == ["target"] and got["rounds"] == 1


def test_a_line_that_sends_nothing_in_its_rounds_is_level():
    prepared = [{**p, "bytes": 790} for p in curve_of("local", 0.5)]
    assert curve_picture._silent(prepared, "bytes")
    assert not curve_picture._silent(prepared, "rounds")
    assert not curve_picture._silent(curve_of("fedavg", 0.5), "bytes")
    one_round = [{**prepared[0], "seed": seed} for seed in range(3)]
    assert not curve_picture._silent(one_round, "bytes")


def test_the_legend_of_many_lines_is_inside_the_picture(tmp_path):
    from matplotlib.image import imread

    few, many = ([curve_of(f"method {n}", 0.5) for n in range(lines)] for lines in (8, 22))
    short, tall = (
        imread(curve_picture.curve_picture(curves, Goals(), tmp_path / "curves.png")[0]).shape[0]
        for curves in (few, many)
    )
    assert short == 720 and tall > 150 * 22 * 0.25
