"""Names that others chose are shown as text, whatever they hold."""

import csv
import json
import re
import sys
import unicodedata
from pathlib import Path
from shlex import split

import numpy as np
import pytest
from rich.cells import cell_len

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.columns import render
from idiolect.core.text import csv_cell, label, shown
from idiolect.data import picture
from idiolect.report.tables import majority_row, results_table

NASTY = [  # (the name, a part of it that can be recognised)
    ("[/oops]", "[/oops]"),
    ("[bold red]site[/]", "[bold red]site[/]"),
    ("[link=file:///etc/passwd]x[/link]", "[link=file:///etc/passwd]x[/link]"),
    (":smile: ward", ":smile: ward"),
    ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
    ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
    ("\x1b]8;;http://evil.example\x1b\\link", "link"),
    ("\x9b2Jcleared", "\\x9b2Jcleared"),
    ("back\b\b\bspace", "back\\x08\\x08\\x08space"),
    ("two\nlines\r\n", "two\\nlines\\r\\n"),
    ("tab\tbed", "tab\\tbed"),
    ("\u202egnirts\u202c", "\\u202egnirts\\u202c"),
    ("iso\u2066late\u2069", "iso\\u2066late\\u2069"),
    ("zero\u200bwidth\u200d\ufeff", "zero\\u200bwidth\\u200d\\ufeff"),
    ("line\u2028separator", "line\\u2028separator"),
    ("=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0"),
    ("+1", "+1"),
    ("-2+3", "-2+3"),
    ("@SUM(1)", "@SUM(1)"),
    ("$\\frac{1}$ and 5 $", "$\\frac{1}$ and 5 $"),
    ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    ("back\\slash\\", "back\\slash\\"),
    ("Zürich 東京 𝕏", "Zürich 東京 𝕏"),
    ("%s %d {0} {x}", "%s %d {0} {x}"),
    ("\x7fdel", "\\x7fdel"),
    ("   ", "   "),
]
NAMES = [name for name, _ in NASTY]
HERE = "[/oops] \x1b[31mhere\n"

OWN = f"""
import numpy as np
import idiolect as il

def nasty() -> il.Federation:
    "[/oops] \\x1b[31m data"
    names = {NAMES!r}
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=12 * len(names))
    x = rng.standard_normal((len(y), 4)) + y[:, None]
    return il.Federation.from_arrays(x, y, np.repeat(np.array(names, object), 12), name={HERE!r})
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_nasty_data.py").write_text(OWN, encoding="utf-8")
    yield
    sys.modules.pop("own_nasty_data", None)


def harmless(text: str) -> bool:
    """No character that moves, colours, hides or turns anything, but line ends."""
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl") for c in text)


def done(capsys, *argv: str) -> tuple[str, str]:
    """stdout and stderr of a command that works and prints nothing but text."""
    assert main(list(argv)) == 0
    got = capsys.readouterr()
    assert harmless(got.out) and harmless(got.err)
    return got.out, got.err


RUN = split("--data own_nasty_data:nasty --rounds 2 --sample 4 --batch 4 --eval-every 1 --quiet")


def test_a_federation_of_nasty_names_runs_and_is_shown(capsys):
    out, err = done(capsys, "run", "fedavg", *RUN, "--directory", HERE)
    assert "fedavg" in out and "run directory: [/oops] \\x1b[31mhere\\n" in err
    out, _ = done(capsys, "show", HERE)
    assert "[/oops] \\x1b[31mhere\\n" in out  # the name of the data
    out, _ = done(capsys, "show", HERE, HERE)
    assert "(oops] \\x1b[31mhere\\n)" in out
    out, _ = done(capsys, "export", HERE)
    assert f"{len(NAMES)} files and clients.json in " + shown(HERE) in out
    index = json.loads((Path(HERE) / "models" / "clients.json").read_text())
    assert sorted(index.values()) == sorted(NAMES)
    done(capsys, "resume", HERE, "--quiet")


def test_a_comparison_of_nasty_names_runs_and_is_shown(capsys):
    out, err = done(capsys, "compare", "fedavg", "local", *RUN, "--directory", HERE)
    assert "[/oops] \\x1b[31mhere\\n: 26 clients" in out and shown(HERE) in err
    out, _ = done(capsys, "show", HERE)
    assert "[/oops] \\x1b[31mhere\\n: 26 clients" in out
    done(capsys, "pipeline", "fedavg@1", "local@1", *RUN, "--directory", f"{HERE} 2")


def test_the_table_of_clients_shows_every_name():
    federation = il.data.load("own_nasty_data:nasty")
    text = render(il.data.table(federation, rows=100), width=140)
    assert harmless(text)
    for _, known in NASTY:
        assert known.strip() in text
    rule = next(i for i, line in enumerate(text.splitlines()) if "──" in line)
    body = text.splitlines()[rule + 1 : rule + 1 + federation.clients]
    widths = {cell_len(line) for line in body}
    assert len(widths) == 1  # wide characters do not push the columns


@pytest.mark.filterwarnings("ignore:Glyph")
def test_data_are_shown_with_a_picture(capsys):
    file = "[red]\x1b[31m.svg"
    out, err = done(capsys, "data", "show", "own_nasty_data:nasty", "--picture", file)
    assert "[/oops]" in out and "picture: [red]\\x1b[31m.svg" in err
    assert "<script>" not in Path(file).read_text(encoding="utf-8")


def test_names_with_dollars_are_drawn_as_they_are(tmp_path):
    names = ["$\\frac$", "$x^2$", "5 $", "\\$"]
    federation = il.Federation.from_arrays(np.eye(8), [0, 1] * 4, np.repeat(names, 2), name="$\\q$")
    assert picture(federation, tmp_path / "p.png").exists()


def test_errors_quote_names_as_text(capsys):
    for argv in (
        ["run", "\x1b[31m"],
        ["show", HERE],
        ["resume", "\x1b]0;x\x07"],
        ["run", "fedavg", "--config", HERE],
        ["run", "fedavg", "--\x1b[31m"],
        ["data", "get", "[/x]\x1b"],
        ["data", "show", "table", "--path", f"{HERE}.csv"],
        ["\x1b[2J"],
    ):
        assert main(argv) == 2
        got = capsys.readouterr()
        assert harmless(got.err) and got.err.count("\n") == 1 and got.out == ""


def test_a_table_file_with_nasty_columns_is_refused_as_text(capsys):
    columns = ["\x1b[31mclient", "[/oops]", "f"]
    with open("t.csv", "w", newline="") as f:
        csv.writer(f).writerows([columns, ["a", 0, 1.5], ["b", 1, 2.5]])
    assert main(["data", "show", "table", "--path", "t.csv"]) == 2
    err = capsys.readouterr().err
    assert harmless(err) and "\\x1b[31mclient" in err and "[/oops]" in err


def test_no_csv_file_of_a_run_holds_a_formula(capsys):
    done(capsys, "compare", "fedavg", *RUN, "--directory", "here")
    tables = sorted(Path("here").rglob("*.csv"))
    assert {t.name for t in tables} >= {"clients.csv", "metrics.csv", "curves.csv"}
    for table in tables:
        with table.open(encoding="utf-8", newline="") as f:
            for row in csv.reader(f):
                for cell in row:
                    assert not re.match(r"[=+@\t\r\n]|-(?![0-9.]*(e[-+]?[0-9]+)?$)", cell)
    with (Path("here") / "0-fedavg" / "clients.csv").open(encoding="utf-8", newline="") as f:
        got = {row["client"] for row in csv.DictReader(f)}
    assert got == set(map(csv_cell, NAMES))


def test_ids_that_are_numbers_stay_numbers_in_csv(tmp_path):
    federation = il.Federation.from_arrays(np.eye(8), [0, 1] * 4, [-1, -1, -1, -1, 2, 2, 2, 2])
    task = il.Task(lambda: il.models.make("linear", (8,), 2))
    il.run(il.FedAvg(), task, federation, rounds=1, sample=1, directory=tmp_path / "run")
    with (tmp_path / "run" / "clients.csv").open(newline="") as f:
        assert [row["client"] for row in csv.DictReader(f)] == ["-1", "2"]


@pytest.mark.parametrize(("name", "known"), NASTY)
def test_labels_and_titles_of_results_are_shown_as_text(name, known):
    federation = il.Federation.from_arrays([[0.0]] * 4, [0, 1, 0, 1], [0, 0, 1, 1])
    row = majority_row(federation) | {"label": name, "seeds": [0], "collapsed": [3]}
    text = render(results_table([row], name, 140), 140)
    assert harmless(text) and text.count(known.strip()) >= 3  # title, label, note


@pytest.mark.parametrize(("name", "known"), NASTY)
def test_shown_is_one_line_that_can_be_recognised(name, known):
    assert known in shown(name) and harmless(shown(name)) and "\n" not in shown(name)


def test_a_long_name_is_cut():
    assert shown("x" * 10**6, most=20) == "x" * 17 + "..." and len(label("x" * 100, most=20)) == 20


@pytest.mark.parametrize("value", [1, -1, 0.5, -0.5, None, True, "", "site -1", " =1"])
def test_cells_that_are_no_formulas_stay_as_they_are(value):
    assert csv_cell(value) is value
