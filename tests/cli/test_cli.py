"""The command line.

One JSON object on stdout, clear errors, settings from flags and files, run directories, resume.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from shlex import split

import numpy as np
import pytest

import idiolect
from idiolect.cli.main import COMMANDS, main
from idiolect.data.federation import Federation
from idiolect.methods import METHODS
from idiolect.projections import PROJECTIONS
from idiolect.run.plan import Plan
from idiolect.task.kernels import KERNELS

SMALL = split(
    "--clients 5 --samples 40 --features 6 --classes 3 --rounds 3 --sample 2 --batch 8 --quiet"
)
KEYS = {
    "method",
    "settings",
    "rounds",
    "seeds",
    "accuracy",
    "loss",
    "bytes",
    "values",
    "gradients_per_client",
    "seconds",
    "rejected",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every command runs in a folder of its own; nothing need reach the disk itself."""
    monkeypatch.chdir(tmp_path)


def json_of(capsys, *argv: str):
    """What the command prints on stdout is exactly one JSON value."""
    assert main(list(argv)) == 0
    out = capsys.readouterr().out
    value = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert out.count("\n") == 1
    return value


def error_of(capsys, *argv: str) -> str:
    """The command ends with 2, prints nothing on stdout and one message on stderr."""
    assert main(list(argv)) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("error: ") and "Traceback" not in got.err
    return got.err


# -- run -------------------------------------------------------------------------------------------
def test_run_prints_one_json_object_with_what_is_promised(capsys):
    flags = split("--p 1 --dim 5 --lam 0.1 --data synthetic --alpha 0 --beta 0 --seeds 2 --json")
    got = json_of(capsys, "run", "lp-proj", *SMALL, *flags)
    assert got.keys() >= KEYS
    assert got["method"] == "lp-proj-1" and got["rounds"] == 3 and got["seeds"] == [0, 1]
    assert {"mean", "variance", "worst10", "ci95"} <= got["accuracy"].keys() and {
        "mean",
        "variance",
    } <= got["loss"].keys()
    assert (
        0 <= got["accuracy"]["worst10"] <= got["accuracy"]["mean"] <= 1
        and got["accuracy"]["ci95"] >= 0
    )
    assert got["values"] == {"up": 3 * 2 * 5, "down": 3 * 5 * 5} and got["bytes"] == {
        "up": 3 * 2 * 44,
        "down": 3 * 5 * 44,
    }
    assert got["rejected"] == 0 and got["seconds"] > 0 and got["gradients_per_client"] > 0
    assert got["settings"]["method"]["dim"] == 5 and got["settings"]["run"]["sample"] == 2


def test_run_is_the_python_call(capsys):
    got = json_of(capsys, "run", "fedavg", *SMALL, "--json", "--lr", "0.2")
    data = idiolect.data.load("synthetic", clients=5, samples=40, features=6, classes=3)
    task = idiolect.Task(lambda: idiolect.models.make("linear", (6,), 3))
    same = idiolect.run(idiolect.FedAvg(lr=0.2), task, data, rounds=3, sample=2, batch=8).summary()
    assert {k: v for k, v in got.items() if k != "seconds"} == {
        k: v for k, v in same.items() if k != "seconds"
    }


def test_run_without_json_prints_a_table_with_the_trivial_baseline(capsys):
    assert main(["run", "fedavg", *SMALL]) == 0
    got = capsys.readouterr()
    assert "fedavg" in got.out and "majority class" in got.out and "accuracy" in got.out
    assert "run directory: runs/" in got.err


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_by_its_name(name, capsys):
    traits = METHODS[name][0].traits
    more = ["--sample", "0"] if traits.hears_all else []
    more += ["--public", "9"] if traits.uses_public else []
    got = json_of(capsys, "run", name, *SMALL, "--rounds", "1", *more, "--json")
    assert got["rounds"] == 1 and got["loss"]["mean"] is not None


def test_a_run_directory_holds_everything(capsys, tmp_path):
    got = json_of(
        capsys,
        "run",
        "fedprox-soft",
        *SMALL,
        "--json",
        "--seeds",
        "2",
        "--directory",
        "here",
        "--checkpoint-every",
        "1",
    )
    names = {p.name for p in (tmp_path / "here").iterdir()}
    assert {
        "settings.json",
        "environment.json",
        "metrics.csv",
        "clients.csv",
        "result.json",
        "checkpoints",
    } <= names
    assert sorted(p.name for p in (tmp_path / "here" / "checkpoints").iterdir()) == [
        "seed-0",
        "seed-1",
    ]
    assert json.loads((tmp_path / "here" / "result.json").read_text()) == got


def test_runs_without_a_directory_get_one_each(capsys, tmp_path):
    for _ in range(3):
        assert main(["run", "fedavg", *SMALL, "--rounds", "1", "--json"]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 3


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("rum fedavg", "command: 'rum' is unknown; did you mean 'run'?"),
        ("run fedavgg", "method: 'fedavgg' is unknown; did you mean 'fedavg'?"),
        ("run nosuch", "method: 'nosuch' is unknown"),
        ("run", "run: name a method: local, fedavg"),
        (
            "run fedavg --round 3",
            "--round is not a flag of idiolect run fedavg; did you mean --rounds?",
        ),
        ("run fedavg --lam 1", "--lam is not a flag of idiolect run fedavg"),
        (
            "run fedavg --rounds many",
            "rounds must be a whole number >= 0, got 'many' (communication rounds)",
        ),
        (
            "run fedavg --lr -1",
            "lr must be a number > 0, got -1.0 (step size of local SGD)",
        ),
        ("run fedavg --rounds", "expected one argument; see: idiolect run fedavg --help"),
        ("run lp-proj --p 0.5", "p must be a number >= 1, got 0.5"),
        (
            "run lp-proj --dim 700 --quiet",
            "dim must be a whole number from 1 to the model's 610 parameters, got 700",
        ),
        (
            "run fedavg --clients 5 --samples 20 --sample 6 --quiet",
            "sample must be at most the 5 clients that can take part, got 6",
        ),
        ("run fedavg --data mnits", "data set: 'mnits' is unknown; did you mean 'mnist'?"),
        ("run fedavg --model mpl", "model: 'mpl' is unknown; did you mean 'mlp'?"),
        ("run fedavg --loss mae", "loss: 'mae' is unknown"),
        ("run fedavg --device gpu", "device: 'gpu' is not available here"),
        ("run fedavg --schedule never", "schedule must be constant, cosine"),
        ("run fedavg --server-optimizer adm", "did you mean 'adam'?"),
        ("run fedavg --kernel stackd", "kernel must be one of 'auto', 'stacked'"),
        ("run fedavg --config nosuch.toml", "config: cannot read nosuch.toml: No such file"),
        ("compare", "compare: name methods"),
        ("compare fedavg nosuch --quiet", "method: 'nosuch' is unknown"),
        ("compare fedavg:lrr=1 --quiet", "did you mean 'lr'?"),
        ("compare fedavg:lr=x --quiet", "lr must be a number > 0, got 'x'"),
        ("compare fedavg:lr --quiet", "lr must be a number > 0, got ''"),
        ("resume nosuch", "directory: nosuch holds no run"),
        ("resume", "the following arguments are required: run"),
        ("list methods --jsn", "did you mean --json?"),
        ("data lst", "data command: 'lst' is unknown; did you mean 'list'?"),
        ("data get", "data: name a data set"),
        ("data get nosuch", "nosuch"),
        ("data get synthetic", "'synthetic' needs no download"),
        ("data show", "data: name a data set"),
        ("data show digts", "did you mean 'digits'?"),
        ("data show synthetic --clients 0", "clients must be a whole number >= 1, got 0"),
        ("run fedavg --data table --path nosuch.csv", "path: there is no file 'nosuch.csv'"),
    ],
)
def test_a_mistake_is_one_clear_message(argv, says, capsys):
    assert says in error_of(capsys, *split(argv))


def test_a_refused_run_leaves_its_directory_free(capsys):
    error_of(capsys, "run", "fedavg", *SMALL, "--sample", "9", "--directory", "here")
    assert json_of(capsys, "run", "fedavg", *SMALL, "--directory", "here", "--json")["rounds"] == 3
    error_of(capsys, "compare", "fedavg", *SMALL, "--sample", "9", "--directory", "there")
    assert len(json_of(capsys, "compare", "fedavg", *SMALL, "--directory", "there", "--json")) == 3


def test_a_directory_with_a_run_is_not_written_over(capsys):
    json_of(capsys, "run", "fedavg", *SMALL, "--directory", "here", "--json")
    assert "already holds a run" in error_of(capsys, "run", "fedavg", *SMALL, "--directory", "here")
    assert "already holds a run" in error_of(
        capsys, "compare", "fedavg", *SMALL, "--directory", "here"
    )


# -- the user's own table --------------------------------------------------------------------------
def csv(path: Path, header: str = "client,a,b,target") -> None:
    rng = np.random.default_rng(0)
    rows = [
        f"site {i % 3},{rng.standard_normal():.4f},{rng.standard_normal():.4f},{i % 2}"
        for i in range(60)
    ]
    path.write_text("\n".join([header, *rows]) + "\n")


def test_a_users_csv_runs(capsys, tmp_path):
    csv(tmp_path / "mine.csv")
    got = json_of(
        capsys,
        "run",
        "fedavg",
        "--data",
        "table",
        "--path",
        "mine.csv",
        "--rounds",
        "2",
        "--sample",
        "2",
        "--json",
        "--quiet",
    )
    assert got["settings"]["data"] == "mine" and got["settings"]["parameters"] == 2 * 2 + 2


def test_a_csv_without_a_client_column_is_a_clear_error(capsys, tmp_path):
    csv(tmp_path / "mine.csv", "hospital,a,b,target")
    says = error_of(capsys, "run", "fedavg", "--data", "table", "--path", "mine.csv", "--quiet")
    assert (
        "client: column 'client' is not in the table; its columns: hospital, a, b, target" in says
    )
    got = json_of(
        capsys,
        *split(
            "run fedavg --data table --path mine.csv --client hospital --rounds 1 --sample 2 "
            "--json --quiet"
        ),
    )
    assert got["rounds"] == 1


def test_a_csv_with_fractions_for_client_ids_is_a_clear_error(capsys, tmp_path):
    csv(tmp_path / "mine.csv", "a,client,b,target")
    assert "an id must be a whole number or text" in error_of(
        capsys, "run", "fedavg", "--data", "table", "--path", "mine.csv", "--quiet"
    )


# -- compare ---------------------------------------------------------------------------------------
def test_compare_gives_a_list_with_the_baselines(capsys):
    rows = json_of(capsys, "compare", "fedavg", "lp-proj:p=2,dim=5", *SMALL, "--json")
    assert [r["method"] for r in rows] == ["majority", "fedavg", "lp-proj-2", "local"]
    assert all(
        {"accuracy", "loss", "bytes", "values", "gradients_per_client", "seconds", "rejected"}
        <= r.keys()
        for r in rows
    )
    most = max(r["gradients_per_client"] for r in rows[:3])
    assert (
        most <= rows[3]["gradients_per_client"] <= most + 3
        and "as many gradients" in rows[3]["label"]
    )
    assert (
        rows[0]["bytes"] == rows[3]["bytes"] == {"up": 0, "down": 0}
        and rows[0]["gradients_per_client"] == 0
    )


def test_compare_without_baselines_and_with_local_itself(capsys):
    rows = json_of(capsys, "compare", "fedavg", *SMALL, "--json", "--no-baselines")
    assert [r["method"] for r in rows] == ["majority", "fedavg"]
    rows = json_of(capsys, "compare", "fedavg", "local:steps=9", *SMALL, "--json")
    assert [r["method"] for r in rows] == ["majority", "fedavg", "local"]


def test_methods_may_stand_among_the_flags(capsys):
    rows = json_of(capsys, "compare", "--json", "fedavg", *SMALL, "local:steps=9")
    assert [r["method"] for r in rows] == ["majority", "fedavg", "local"]


def test_json_stays_json_without_test_data(capsys):
    rows = json_of(capsys, "compare", "fedavg", *SMALL, "--test", "0", "--json")
    assert rows[0]["accuracy"]["mean"] is None and rows[1]["accuracy"]["mean"] is None


def test_compare_resumes_to_the_same_list(capsys, tmp_path):
    rows = json_of(
        capsys, "compare", "fedavg", "fedprox-soft", *SMALL, "--json", "--directory", "here"
    )
    shutil.rmtree(tmp_path / "here" / "1-fedprox-soft")
    again = json_of(capsys, "resume", "here", "--json", "--quiet")
    for r in (*rows, *again):
        del r["seconds"]
    assert again == rows


# -- files -----------------------------------------------------------------------------------------
TOML = """
[method]
name = "lp-proj"
p = 2
dim = 4

[run]
rounds = 2
sample = 2
seeds = 2

[data]
name = "synthetic"
clients = 4
samples = 30
features = 5
classes = 3

[model]
name = "mlp"
hidden = "7"
"""


def test_settings_come_from_a_file_and_flags_win(capsys, tmp_path):
    (tmp_path / "s.toml").write_text(TOML)
    got = json_of(capsys, "run", "--config", "s.toml", "--json", "--quiet")
    assert got["method"] == "lp-proj-2" and got["rounds"] == 2 and got["seeds"] == [0, 1]
    assert (
        got["settings"]["parameters"] == 5 * 7 + 7 + 7 * 3 + 3 and got["values"]["up"] == 2 * 2 * 4
    )
    got = json_of(
        capsys,
        *split(
            "run lp-proj --config s.toml --json --quiet --rounds 1 --dim 6 --seeds=1 --classes 4 "
            "--hidden 3 --seed 5"
        ),
    )
    assert got["rounds"] == 1 and got["values"]["up"] == 12 and got["seeds"] == [5]
    assert (
        got["settings"]["parameters"] == 5 * 3 + 3 + 3 * 4 + 4
        and got["settings"]["method"]["p"] == 2
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[method\nname = 1", "s.toml is not TOML"),
        ('[mehtod]\nname = "fedavg"', "did you mean 'method'?"),
        (
            '[method]\nname = "fedavg"\n[run]\nround = 3',
            "run setting: 'round' is unknown; did you mean 'rounds'?",
        ),
        ('[method]\nname = "fedavg"\nlrr = 3', "did you mean 'lr'?"),
        ('[method]\nname = "fedavgg"', "did you mean 'fedavg'?"),
        ('[method]\nname = "fedavg"\n[data]\nclient = 3', "did you mean 'clients'?"),
        (
            '[method]\nname = "fedavg"\n[run]\nrounds = "x"',
            "rounds must be a whole number >= 0, got 'x'",
        ),
        ('method = "fedavg"', "method"),
        ("[run]\nrounds = 3", "run: name a method"),
    ],
)
def test_a_mistake_in_a_file_is_one_clear_message(text, says, capsys, tmp_path):
    (tmp_path / "s.toml").write_text(text)
    assert says in error_of(capsys, "run", "--config", "s.toml", "--quiet")


# -- methods, data, help ---------------------------------------------------------------------------
def test_methods_lists_every_method_with_its_fields(capsys):
    rows = json_of(capsys, "list", "methods", "--json")
    assert [r["name"] for r in rows] == list(METHODS)
    for r in rows:
        assert r["summary"] and r["trains"] in ("sampled", "everyone")
        assert all({"name", "type", "default", "help", "accepts"} <= f.keys() for f in r["fields"])
    by_name = {r["name"]: {f["name"]: f["default"] for f in r["fields"]} for r in rows}
    assert by_name["lp-proj-2"]["p"] == 2.0 and by_name["lp-proj-1"]["p"] == 1.0
    assert main(["list", "methods"]) == 0 and "lp-proj" in capsys.readouterr().out


def test_data_list_and_show(capsys):
    rows = json_of(capsys, "data", "list", "--json")
    assert {"synthetic", "mnist", "table"} <= {r["name"] for r in rows} and all(
        r["summary"] and r["source"] for r in rows
    )
    got = json_of(
        capsys,
        "data",
        "show",
        "synthetic",
        "--clients",
        "3",
        "--samples",
        "20",
        "--classes",
        "2",
        "--json",
    )
    assert len(got["clients"]) == 3 and np.shape(got["class_counts"]) == (3, 2)
    assert [sum(c) for c in got["class_counts"]] == got["sizes"]["train"]
    assert main(["data"]) == 0 and "synthetic" in capsys.readouterr().out
    assert main(["data", "show", "synthetic", "--clients", "3"]) == 0 and capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    try:
        assert main([command, "--help"]) == 0
    except SystemExit as end:
        assert end.code == 0
    assert f"idiolect {command}" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["fedavg", "lp-proj"])
def test_the_help_of_a_method_shows_its_fields(method, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", method, "--help"])
    out = capsys.readouterr().out
    assert (
        end.value.code == 0
        and "--lr" in out
        and "--rounds" in out
        and ("--lam" in out) == (method == "lp-proj")
    )


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_names_every_command(argv, capsys):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"idiolect {name}" in out for name in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


# -- resume ----------------------------------------------------------------------------------------
def result_of(text: str) -> dict:
    got = json.loads(text)
    del got["seconds"]
    return got


def test_an_interrupted_command_says_how_to_go_on_and_resume_gives_the_same_result(
    capsys, monkeypatch
):
    from idiolect.engine.rounds import Rounds

    whole = json_of(
        capsys,
        "run",
        "fedprox-soft",
        *SMALL,
        "--rounds",
        "6",
        "--seeds",
        "2",
        "--json",
        "--directory",
        "whole",
    )
    advance = Rounds.advance

    def interrupt(self, *args):
        advance(self, *args)
        if self.server.version == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Rounds, "advance", interrupt)
    assert (
        main(
            [
                "run",
                "fedprox-soft",
                *SMALL,
                "--rounds",
                "6",
                "--seeds",
                "2",
                "--json",
                "--directory",
                "here",
            ]
        )
        == 130
    )
    got = capsys.readouterr()
    assert (
        got.out == ""
        and "stopped after round 4 of 6 (seed 0); continue with: idiolect resume here" in got.err
    )
    monkeypatch.setattr(Rounds, "advance", advance)
    again = json_of(capsys, "resume", "here", "--json", "--quiet")
    del again["seconds"], whole["seconds"]
    assert again == whole


def test_a_run_started_from_python_is_resumed_from_python(capsys):
    data = idiolect.data.load("synthetic", clients=4, samples=20)
    idiolect.run(
        idiolect.FedAvg(),
        idiolect.Task(lambda: idiolect.models.make("linear", (60,), 10)),
        data,
        rounds=1,
        directory="here",
    )
    assert "was started from Python" in error_of(capsys, "resume", "here")


COMMAND = [sys.executable, "-m", "idiolect.cli"]
LONG = split(
    "run fedprox-soft --clients 8 --samples 40 --features 6 --classes 3 --rounds 200 --sample 4 "
    "--batch 8 --seed 3 --steps 2 --final-steps 2 --checkpoint-every 5 "
    "--server-options momentum=0.5 --threads 1 --quiet --json"
)


def kill_when(folder: Path, round: int, argv: list[str]) -> None:
    """kill -9 of a real process once it has the checkpoint of this round."""
    process = subprocess.Popen([*COMMAND, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not any(
        int(p.name.partition("-")[0]) >= round for p in folder.glob("checkpoints/seed-3/[0-9]*")
    ):
        assert process.poll() is None and time.monotonic() < until, process.stderr.read()
        time.sleep(0.002)
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_result(capsys, tmp_path):
    """Two kills at whatever point the process is, then the rest."""
    assert main([*LONG, "--directory", "whole"]) == 0
    whole = result_of(capsys.readouterr().out)
    kill_when(tmp_path / "here", 15, [*LONG, "--directory", "here"])
    kill_when(tmp_path / "here", 80, ["resume", "here", "--quiet"])
    done = subprocess.run(
        [*COMMAND, "resume", "here", "--json"], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1 and result_of(done.stdout) == whole


def test_the_installed_command_keeps_stdout_for_the_result():
    done = subprocess.run(
        [*COMMAND, "run", "fedavg", *SMALL[:-1], "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["method"] == "fedavg" and "run directory" in done.stderr


def test_tokens_get_a_model_that_reads_tokens():
    federation = Federation.from_arrays(
        np.zeros((4, 5), dtype=np.int64), np.ones((4, 5), dtype=np.int64), [0, 0, 1, 1], classes=7
    )
    task = Plan(
        "fedavg", model_options={"width": 8, "hidden": 8, "heads": 2, "blocks": 1}
    ).make_task(federation)
    assert any("embed" in name for name in task.layout.names)


# -- lists of parts, and what a comparison adds ----------------------------------------------------
@pytest.mark.parametrize("command", ["channels", "attacks", "rules"])
def test_the_parts_of_a_run_are_listed_for_people_and_programs(command, capsys):
    rows = json_of(capsys, "list", command, "--json")
    assert all(r["name"] and r["summary"] for r in rows)
    assert main(["list", command]) == 0 and all(
        r["name"] in capsys.readouterr().out for r in rows[:1]
    )
    assert "did you mean --json?" in error_of(capsys, "list", command, "--jsn")
    assert f"did you mean: idiolect list {command}" in error_of(capsys, command)


@pytest.mark.parametrize("kind", ["kernels", "projections"])
def test_what_can_be_measured_is_listed_without_training_anything(kind, capsys):
    rows = json_of(capsys, "list", kind, "--json")
    names = {"kernels": KERNELS[1:], "projections": PROJECTIONS}[kind]
    assert [r[kind[:-1]] for r in rows] == list(names) and all(r["summary"] for r in rows)
    assert f"idiolect list {kind} --measure --dim 3" in error_of(capsys, kind, "--dim", "3")
    assert "did you mean 'kernels'?" in error_of(capsys, "list", "kernel")


def test_compare_takes_rows_from_a_file_with_settings_of_their_own(capsys, tmp_path):
    lines = [
        'methods = ["fedavg", "fedavg:channel=feedback + topk(share=0.2)"]',
        "[run]",
        "rounds = 2",
        "bytes = 900",
        "target_value = 0.1",
    ]
    (tmp_path / "s.toml").write_text("\n".join(lines))
    rows = json_of(
        capsys,
        "compare",
        "--config",
        "s.toml",
        *split("--clients 4 --samples 30 --sample 2 --json --quiet"),
    )
    assert [r["label"] for r in rows[1:3]] == [
        "fedavg",
        "fedavg channel=feedback + topk(share=0.2)",
    ]
    assert all(
        r["rounds"] == 2 and r["at_budget"]["mean"] is None and r["to_target"]["by_seed"]
        for r in rows[1:3]
    )
