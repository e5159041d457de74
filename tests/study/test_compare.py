"""Comparisons: what a budget buys and a target costs, rows with settings of their own, curves.

Also malicious clients and collapsed runs in tables, and the lists of parts.
"""

import csv
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from shlex import split

import pytest

from idiolect import Federation, SettingError, Settings
from idiolect.attacks import ATTACKS
from idiolect.channels import CHANNELS
from idiolect.cli.commands import list as info
from idiolect.cli.main import main
from idiolect.core.columns import render
from idiolect.report.format import goal, number, size
from idiolect.report.plots import curve_picture, write_curves
from idiolect.report.tables import majority_row, results_table
from idiolect.report.targets import Goals
from idiolect.run.plan import Plan, method_spec, row_spec
from idiolect.server.rules import RULES
from idiolect.study.compare import goals_of

DOCS = Path(__file__).parents[2] / "docs"
SMALL = split(
    "--clients 5 --samples 40 --features 6 --classes 3 --rounds 3 --sample 2 --batch 8 --quiet"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def json_of(capsys, *argv: str):
    assert main(list(argv)) == 0
    return json.loads(capsys.readouterr().out)


def table_of(capsys, *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def error_of(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    return capsys.readouterr().err


def history(seed: int, *rounds: tuple[float, int], loss: float = 1.0, every: int = 1) -> list[dict]:
    """Evaluated rounds as (accuracy, bytes so far); values are a quarter of the bytes."""
    return [
        {
            "method": "m",
            "seed": seed,
            "round": every * (i + 1),
            "accuracy": a,
            "loss": loss,
            "bytes": b,
            "values": b / 4,
            "gradients": 1.0,
        }
        for i, (a, b) in enumerate(rounds)
    ]


# -- the two columns ----------------------------------------------------------------------------
def test_the_budget_is_met_by_the_last_round_within_it_and_the_target_by_the_first_that_has_it():
    got = Goals(budget=25, target=0.5).reached(
        history(0, (0.2, 10), (0.6, 20), (0.4, 30), (0.9, 40))
    )
    assert got["at_budget"] == {
        "mean": 0.6,
        "ci95": None,
        "by_seed": [0.6],
        "rounds": [2],
        "unspent": False,
    }
    assert got["to_target"] == {"mean": 20, "ci95": None, "by_seed": [20], "rounds": [2]}


def test_a_total_equal_to_the_budget_is_within_it():
    assert Goals(budget=20).reached(history(0, (0.2, 10), (0.6, 20), (0.4, 30)))["at_budget"][
        "rounds"
    ] == [2]


def test_in_values_the_same_number_is_a_budget_of_words():
    got = Goals(budget=5, target=0.5).reached(history(0, (0.2, 10), (0.6, 20), (0.4, 30)))
    assert got["at_budget"]["mean"] is None and got["at_budget_values"]["mean"] == 0.6
    assert got["to_target"]["mean"] == 20 and got["to_target_values"]["mean"] == 5


def test_there_is_no_figure_where_the_first_round_is_beyond_the_budget_or_no_round_has_the_target():
    got = Goals(budget=9, target=0.95).reached(history(0, (0.2, 10), (0.9, 20)))
    for name in ("at_budget", "to_target"):
        assert (
            got[name]["mean"] is None
            and got[name]["by_seed"] == [None]
            and got[name]["rounds"] == [None]
        )
        assert goal(got[name], number) == "★"


def test_only_what_is_asked_for_is_there():
    rounds = history(0, (0.2, 10))
    assert Goals().reached(rounds) == {}
    assert set(Goals(budget=1).reached(rounds)) == {"at_budget", "at_budget_values"}
    assert set(Goals(target=0.5).reached(rounds)) == {"to_target", "to_target_values"}


def test_several_seeds_give_a_mean_and_its_interval():
    got = Goals(budget=10, target=0.1).reached(
        history(0, (0.2, 10)) + history(1, (0.4, 8)) + history(2, (0.6, 6))
    )
    assert got["at_budget"]["mean"] == pytest.approx(0.4) and got["at_budget"][
        "ci95"
    ] == pytest.approx(4.303 * 0.2 / 3**0.5, rel=1e-3)
    assert got["to_target"]["by_seed"] == [10, 8, 6] and got["to_target"]["mean"] == 8
    assert goal(got["to_target"], size) == "8 ± 5"


def test_where_only_some_seeds_can_the_cell_says_how_many_and_there_is_no_mean():
    got = Goals(target=0.5).reached(
        history(0, (0.2, 10)) + history(1, (0.6, 10)) + history(2, (0.4, 10))
    )
    assert got["to_target"]["mean"] is None and got["to_target"]["by_seed"] == [None, 10, None]
    assert goal(got["to_target"], size) == "★ 1 of 3"


def test_collapsed_models_meet_no_goal():
    sound, gone = history(0, (0.2, 10))[0], history(0, (0.1, 10), (0.9, 20), loss=float("nan"))[1]
    got = Goals(budget=100, target=0.5).reached([sound, gone])
    assert got["at_budget"]["mean"] is None and got["to_target"]["mean"] is None
    assert Goals(budget=15).reached([sound, gone])["at_budget"]["mean"] == 0.2


def test_rounds_that_end_with_budget_to_spare_are_marked():
    assert (
        Goals(budget=25).reached(history(0, (0.2, 10), (0.3, 20)))["at_budget"]["unspent"] is False
    )  # a third round would not fit
    got = Goals(budget=30).reached(history(0, (0.2, 10), (0.3, 20)))["at_budget"]
    assert got["unspent"] is True and goal(got, number) == "0.3000 †"


def test_a_method_that_sends_nothing_meets_every_budget():
    got = Goals(budget=1, target=0.3).reached(history(0, (0.2, 0), (0.3, 0)))
    assert (
        got["at_budget"]["mean"] == 0.3
        and got["at_budget"]["unspent"] is False
        and got["to_target"]["mean"] == 0
    )


def test_goals_are_the_whole_comparisons_and_must_be_seen():
    assert goals_of([Settings(bytes=5, target_value=0.5)] * 2, "values") == Goals(5, 0.5, "values")
    with pytest.raises(SettingError, match="eval_every must be a whole number >= 1 with bytes"):
        goals_of([Settings(bytes=5, eval_every=0)])
    with pytest.raises(SettingError, match="got 5 and 6"):
        goals_of([Settings(bytes=5), Settings(bytes=6)])
    with pytest.raises(SettingError, match="count must be one of 'bytes', 'values', got 'words'"):
        goals_of([Settings()], "words")


# -- rows with settings of their own ------------------------------------------------------------
def test_commas_inside_parentheses_do_not_split():
    name, fields = method_spec(
        "fedavg:channel=topk(share=0.1) + qsgd(levels=4, norm=inf),lr=0.2,"
        "server_options=betas=(0.9, 0.99)"
    )
    assert name == "fedavg" and fields["channel"] == "topk(share=0.1) + qsgd(levels=4, norm=inf)"
    assert fields["lr"] == "0.2" and fields["server_options"] == "betas=(0.9, 0.99)"
    assert method_spec("fedavg") == ("fedavg", {}) and method_spec("fedavg:lr=1,") == (
        "fedavg",
        {"lr": "1"},
    )


def test_a_row_has_fields_of_its_method_and_settings_of_its_run():
    assert row_spec("lp-proj:p=1,rule=krum(f=1),finetune-steps=3") == (
        "lp-proj",
        {"p": "1"},
        {"rule": "krum(f=1)", "finetune_steps": "3"},
    )
    plan = Plan("fedavg", settings={"rounds": 3, "batch": 8}, own={"batch": "4"})
    assert plan.make_settings().batch == 4 and plan.make_settings().rounds == 3
    assert Plan(**plan.as_dict()).as_dict() == plan.as_dict()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedavg:chanel=half", "did you mean 'channel'?"),
        ("fedavg:stps=3", "did you mean 'steps'?"),
        (
            "fedavg:seeds=3",
            "seeds must be the same for the whole comparison, got one for fedavg alone; give "
            "--seeds",
        ),
        ("fedavg:target_value=0.3", "--target-value"),
        ("fedavg:channel=haf", "channel: 'haf' is unknown; did you mean 'half'?"),
        ("fedavg:rule=krum(f=1)", "rule: krum needs at least 5 clients (n >= 2 f + 3), not 2"),
        ("fedavg:attack=sign-flip", "malicious must be above 0 with an attack"),
        ("fedavg:channel=half(kind=float16", "channel must be NAME or NAME(option=value, ...)"),
    ],
)
def test_a_bad_row_is_one_clear_message(spec, says, capsys, tmp_path):
    assert says in error_of(capsys, "compare", spec, *SMALL, "--directory", "here")
    assert not (tmp_path / "here").exists()


def test_rows_have_channels_of_their_own_and_their_labels_say_so(capsys, tmp_path):
    specs = [
        "fedavg",
        "fedavg:channel=qsgd(levels=4, norm=inf),finetune_steps=2",
        "fedavg:sample=4,rounds=2",
    ]
    rows = json_of(capsys, "compare", *specs, *SMALL, "--json", "--directory", "here")
    labels = [r["label"] for r in rows]
    assert labels[1:4] == [
        "fedavg",
        "fedavg channel=qsgd(levels=4, norm=inf) finetune_steps=2",
        "fedavg sample=4 rounds=2",
    ]
    assert (
        rows[2]["settings"]["run"]["channel"] == "qsgd(levels=4, norm=inf)"
        and rows[2]["bytes"]["up"] < rows[1]["bytes"]["up"]
    )
    assert rows[3]["rounds"] == 2 and rows[3]["bytes"]["up"] == rows[1]["bytes"]["up"] * 4 * 2 // (
        2 * 3
    )
    local = rows[4]
    assert (
        local["settings"]["run"]["channel"] == "none"
        and local["settings"]["run"]["finetune_steps"] == 0
        and local["rounds"] == 3
    )
    assert local["gradients_per_client"] >= max(r["gradients_per_client"] for r in rows[:4])
    one = json_of(capsys, "resume", "here/1-fedavg", "--json", "--quiet")
    assert one["settings"] == rows[2]["settings"] and one["accuracy"] == rows[2]["accuracy"]


# -- a real comparison --------------------------------------------------------------------------
def test_a_budget_and_a_target_stop_no_run_of_a_comparison_but_a_single_run(capsys):
    flags = [*SMALL, "--bytes", "500", "--target-value", "0.05", "--json"]
    rows = json_of(capsys, "compare", "fedavg", "lp-proj-1:dim=2", *flags, "--directory", "here")
    assert [r["rounds"] for r in rows] == [0, 3, 3, 3] and rows[1]["stopped"] == ["rounds"]
    assert json_of(capsys, "run", "fedavg", *flags)["rounds"] < 3
    majority, fedavg, lpproj, local = rows
    assert majority["at_budget"] is None and majority["to_target"] is None
    a_round = 2 * 2 * (24 + 4 * 21)  # two clients, both ways, 21 numbers
    assert (
        fedavg["at_budget"]["rounds"] == [500 // a_round] and fedavg["to_target"]["mean"] == a_round
    )
    assert (
        fedavg["at_budget_values"]["rounds"] == [3]
        and fedavg["to_target_values"]["mean"] == 2 * 2 * 21
    )
    assert (
        lpproj["to_target"]["mean"] == (2 + 5) * (24 + 8)
        and lpproj["to_target_values"]["mean"] == (2 + 5) * 2
    )
    assert (
        local["to_target"]["mean"] == 0 and local["at_budget"]["mean"] == local["accuracy"]["mean"]
    )
    again = json_of(capsys, "resume", "here", "--json", "--quiet")
    kept = (
        "label",
        "accuracy",
        "bytes",
        "at_budget",
        "to_target",
        "at_budget_values",
        "to_target_values",
    )
    assert [{k: r[k] for k in kept} for r in again] == [{k: r[k] for k in kept} for r in rows]


def test_the_table_has_the_two_columns_and_says_what_a_star_is(capsys):
    out = table_of(
        capsys,
        "compare",
        "fedavg",
        "lp-proj-1:dim=2",
        *SMALL,
        "--bytes",
        "300",
        "--target-value",
        "1",
        "--seeds",
        "2",
    )
    assert "accuracy at 300 B" in out and "bytes to 1" in out
    assert (
        "★ at the budget: its first evaluated round had sent more" in out
        and "★ to the target: not reached in the rounds run" in out
    )
    out = table_of(
        capsys,
        "compare",
        "fedavg",
        *SMALL,
        "--bytes",
        "3000",
        "--count",
        "values",
        "--no-baselines",
    )
    assert (
        "accuracy at 3,000 values" in out
        and " to " not in out.splitlines()[2]
        and "†" in out
        and "as the lp-proj paper counts" in out
    )


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_columns_fit_the_terminal(width):
    row = majority_row(Federation.from_arrays([[0.0]] * 4, [0, 1, 0, 1], [0, 0, 1, 1])) | {
        "label": "fedavg " * 9,
        "seeds": [0, 1],
        "rounds": 9,
    }
    row |= Goals(328020, 0.6).reached(history(0, (0.7, 300)) + history(1, (0.8, 400)))
    out = render(results_table([row], None, width, Goals(328020, 0.6)), width)
    assert (
        "accuracy at 328 kB" in out
        and "bytes to 0.6" in out
        and "0.7500 ± 0.6353 †" in out
        and "…" not in out
    )


def test_without_goals_nothing_is_added(capsys):
    rows = json_of(capsys, "compare", "fedavg", *SMALL, "--json")
    assert not any(k.startswith(("at_budget", "to_target")) for r in rows for k in r)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            "--bytes 300 --eval-every 0",
            "--eval-every must be a whole number >= 1 with bytes in a comparison",
        ),
        (
            "--target-value 0.5 --eval-every 0",
            "--eval-every must be a whole number >= 1 with a target_value, got 0",
        ),
        ("--count words", "count must be one of 'bytes', 'values', got 'words'"),
    ],
)
def test_goals_that_cannot_be_seen_are_refused(flags, says, capsys):
    assert says in error_of(capsys, "compare", "fedavg", *SMALL, *split(flags))


def test_a_target_above_1_for_an_accuracy_is_refused(capsys):
    says = error_of(capsys, "compare", "fedavg", *SMALL, "--target-value", "80")
    assert "--target-value must be from 0 to 1 for an accuracy, got 80" in says


# -- curves -------------------------------------------------------------------------------------
def test_curves_are_written(capsys, tmp_path):
    rows = json_of(
        capsys,
        "compare",
        "fedavg",
        "lp-proj-1:dim=2",
        *SMALL,
        "--seeds",
        "2",
        "--json",
        "--directory",
        "here",
    )
    with (tmp_path / "here" / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert list(points[0]) == [
        "method",
        "seed",
        "round",
        "accuracy",
        "loss",
        "bytes",
        "values",
        "gradients",
        "seconds",
    ]
    assert len(points) == 3 * 2 * 3 and {p["method"] for p in points} == {
        r["label"] for r in rows[1:]
    }
    mine = [p for p in points if p["method"] == "fedavg" and p["seed"] == "1"]
    assert [p["round"] for p in mine] == ["1", "2", "3"] and all(
        int(a["bytes"]) < int(b["bytes"]) for a, b in pairwise(mine)
    )
    assert float(mine[-1]["accuracy"]) == rows[1]["accuracy"]["by_seed"][1]
    assert (tmp_path / "here" / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_there_is_a_table_without_matplotlib_and_no_picture_of_nothing(tmp_path, monkeypatch):
    def files_of(curves, name):
        (tmp_path / name).mkdir()
        write_curves(curves, Goals(), tmp_path / name)
        return sorted(p.name for p in (tmp_path / name).iterdir())

    assert files_of([history(0, (0.2, 10))], "both") == ["curves.csv", "curves.png"]
    nothing = [history(0, (float("nan"), 10), loss=float("nan"))]
    assert files_of(nothing, "nothing") == ["curves.csv"]
    table = (tmp_path / "nothing/curves.csv").read_text()
    assert table.splitlines()[1] == "m,0,1,,,10,2.5,1.0,"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert files_of([history(0, (0.2, 10))], "broken") == ["curves.csv"]


def test_curves_of_a_comparison_that_never_evaluates_are_empty(capsys, tmp_path):
    assert (
        main(["compare", "fedavg", *SMALL, "--eval-every", "0", "--directory", "here", "--json"])
        == 0
    )
    assert (tmp_path / "here" / "curves.csv").read_text().count("\n") == 1 and not (
        tmp_path / "here" / "curves.png"
    ).exists()


@pytest.mark.parametrize(
    "goals",
    [
        Goals(),
        Goals(15, 0.5),
        Goals(budget=10**6, count="values"),
        Goals(target=0.1, count="values"),
    ],
)
def test_a_picture_of_any_shape_is_drawn(goals, tmp_path):
    shapes = [
        history(0, (0.2, 10), (0.3, 20)) + history(1, (0.1, 11), (0.4, 19)),
        history(0, (0.2, 0), (0.3, 0)),  # sends nothing
        history(0, (0.2, 5)),  # one round
        history(0, (0.2, 10**6), loss=float("inf")),  # collapsed: left out
        *[history(0, (0.1 * i, 10), (0.1 * i, 100)) for i in range(9)],
    ]
    assert curve_picture(shapes, goals, tmp_path / "c.png") == [tmp_path / "c.png"]
    assert curve_picture(shapes[1:2], goals, tmp_path / "d.png") == [tmp_path / "d.png"]


# -- malicious clients and collapsed runs -------------------------------------------------------
def test_a_run_with_malicious_clients_says_so(capsys):
    flags = [*SMALL, "--attack", "zero", "--malicious", "2"]
    assert "malicious" in table_of(capsys, "run", "fedavg", *flags)
    assert "malicious" not in table_of(capsys, "run", "fedavg", *SMALL)
    out = " ".join(table_of(capsys, "compare", "fedavg", *flags).split())
    assert "those of the benign clients alone" in out
    assert "the majority class is over all clients" in out
    rows = json_of(
        capsys,
        "compare",
        "fedavg:attack=zero",
        "fedavg:attack=mimic,rule=median",
        *SMALL,
        "--malicious",
        "2",
        "--json",
    )
    assert [r.get("malicious", {}).get("clients") for r in rows] == [None, 2, 2, 2]
    rows = json_of(capsys, "compare", "fedavg", "fedavg:attack=zero,malicious=2", *SMALL, "--json")
    assert [r.get("malicious", {}).get("clients") for r in rows] == [None, None, 2, None]


def test_a_collapsed_run_shows_a_star_and_when(capsys):
    out = table_of(
        capsys,
        "compare",
        "fedavg",
        *SMALL,
        "--sample",
        "5",
        "--attack",
        "gaussian(std=1e20)",
        "--malicious",
        "1",
        "--no-baselines",
    )
    line = next(text for text in out.splitlines() if text.split()[:1] == ["fedavg"])
    assert line.split()[1:6] == ["★"] * 5 and re.search(r"★ fedavg: collapsed in round \d", out)
    assert "nan" not in out.lower()


def test_the_caption_names_the_seeds_that_collapsed():
    figures = {"mean": 0.5, "ci95": 0.1, "variance": 0.1, "worst10": 0.1}
    row = majority_row(Federation.from_arrays([[0.0]] * 4, [0, 1, 0, 1], [0, 0, 1, 1]))
    row |= {
        "label": "a [b]",
        "accuracy": figures,
        "loss": figures,
        "seeds": [3, 4, 5],
        "rounds": 9,
        "collapsed": [None, 7, None],
    }
    out = render(results_table([row]), 200)
    assert "★ a [b]: collapsed in round 7 (seed 4)" in out and "0.5" not in out
    assert "★" not in render(results_table([row | {"collapsed": [None] * 3}]), 200)


# -- the lists ----------------------------------------------------------------------------------
def test_channels_lists_every_channel_with_the_bytes_of_a_message(capsys):
    rows = {r["name"]: r for r in json_of(capsys, "list", "channels", "--d", "1000", "--json")}
    assert set(rows) == {"none", *CHANNELS} and all(
        r["summary"].endswith(".") for r in rows.values()
    )
    assert {o["name"]: o["default"] for o in rows["qsgd"]["options"]}["levels"] == 16
    got = {name: r["bytes"]["first"] - 24 for name, r in rows.items()}
    assert (
        got["none"] == 4000
        and got["half"] == 2000
        and got["int8"] == 1000 + 2 * 4
        and got["sign"] == 125 + 4
    )
    assert (
        got["qsgd"] == 5 * 1000 // 8 + 2 * 4
        and got["randomk"] == 8 + 4 * 10
        and got["sketch"] == 5 * 40 * 4
    )
    assert rows["lbgm"]["bytes"] == {"first": 24 + 4001, "again": 24 + 5}
    out = table_of(capsys, "list", "channels", "--d", "1000")
    assert "levels=16" in out and "4,024" in out and "4,025, then 29" in out
    assert "d must be" in error_of(capsys, "list", "channels", "--d", "0")


@pytest.mark.parametrize(("command", "names"), [("attacks", ATTACKS), ("rules", RULES)])
def test_attacks_and_rules_are_listed_with_their_options(command, names, capsys):
    rows = json_of(capsys, "list", command, "--json")
    assert [r["name"] for r in rows] == list(names)
    assert all(
        r["summary"]
        and all({"name", "default", "help", "accepts"} <= o.keys() for o in r["options"])
        for r in rows
    )
    out = table_of(capsys, "list", command)
    assert all(name in out for name in names)


def test_rules_say_what_they_need():
    needs = {name: info._needs(cls) for name, cls in RULES.items()}
    assert (
        needs["krum"] == "n >= 2 f + 3"
        and needs["bulyan"] == "n >= 4 f + 3"
        and needs["mean"] == "any n"
    )
    assert "n / size rows" in needs["bucketing"] and needs["norm-bound"] == "as the rule after it"


# -- the documents ------------------------------------------------------------------------------
def commands() -> list[str]:
    pages = [(DOCS / name).read_text() for name in ("channels.md", "attacks.md")]
    return [
        line
        for page in pages
        for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
        for line in block.splitlines()
    ]


@pytest.mark.parametrize("line", commands())
def test_the_commands_of_the_documents_run(line, capsys):
    word, *argv = split(line)
    assert word == "idiolect" and main(argv) == 0
    assert capsys.readouterr().out


def test_the_bytes_in_the_document_are_the_bytes_sent():
    table = re.findall(
        r"^\| `([\w-]+)` \| ([\d,]+) \|", (DOCS / "channels.md").read_text(), flags=re.MULTILINE
    )
    assert {name for name, _ in table} == {"none", *CHANNELS}
    for name, shown in table:
        stages = () if name == "none" else (CHANNELS[name](),)
        assert int(shown.replace(",", "")) == info.message_bytes(stages, 79510)["first"], name


def test_the_documents_name_every_attack():
    page = (DOCS / "attacks.md").read_text()
    assert all(f"`{name}`" in page for name in ATTACKS)
