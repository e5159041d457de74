"""What a newcomer types, and what the command line makes of it."""

import json
import subprocess
import sys
from shlex import split

import pytest

from idiolect.cli import progress
from idiolect.cli.main import main
from idiolect.report import curve_picture, curves
from idiolect.report.goals import Goals

COMMAND = [sys.executable, "-m", "idiolect.cli"]
DATA = split("--clients 4 --samples 30 --features 4 --classes 2 --sample 2 --batch 8")
QUICK = [*DATA, "--quiet"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda handle: None)


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
    assert "method ditto:" in short and "--rounds 200" in short and "run: selection:" in short
    assert len(short.splitlines()) < len(output(capsys, "run ditto --help all").splitlines())
    one = output(capsys, "run ditto --help rounds")
    assert "communication rounds (default 200; a whole number >= 0)" in " ".join(one.split())
    section = output(capsys, "run ditto --help selection")
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
    show = progress.Lines(1000, said.append)
    for round in range(1, 61):  # a round per second, six of a hundred
        now[0] += 1
        show(round, "fedavg seed 0", 1.0)
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
    curves.write([curve_of("a", 0.5), curve_of("b", 0.6)], Goals(), tmp_path)
    costs = ("rounds", "bytes", "gradients", "seconds")
    assert drawn == [(cost, "accuracy") for cost in costs]
    drawn.clear()
    nan = float("nan")
    curves.write([curve_of("a", nan)], Goals(), tmp_path, ("rounds",))
    assert drawn == [("rounds", "loss")]  # a regression has no accuracy
    drawn.clear()
    curves.write([curve_of("a", 0.5, seconds=nan)], Goals(), tmp_path)
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
