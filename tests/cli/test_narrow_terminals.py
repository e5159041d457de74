"""Every table of the command line on narrow terminals: a figure is whole or its column named."""

import io
import re

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import idiolect as il
from idiolect.cli import output
from idiolect.cli.commands import data as data_commands
from idiolect.cli.commands import list as lists
from idiolect.cli.commands import train
from idiolect.cli.main import main
from idiolect.data import Federation

WIDTHS = (60, 80, 100)
MODULES = (data_commands, output, train)


@pytest.fixture(params=WIDTHS)
def narrow(request, monkeypatch):
    """A function that runs a command on a terminal of so many columns and gives what it printed."""
    width = request.param
    out = io.StringIO()
    for module in MODULES:
        monkeypatch.setattr(module, "OUT", Console(file=out, width=width))

    def run(*arguments):
        assert main([*arguments]) == 0
        lines = out.getvalue().splitlines()
        assert all(cell_len(line) <= width for line in lines), max(lines, key=cell_len)
        assert "…" not in out.getvalue()
        return out.getvalue()

    return run


def whole_or_named(text, figures):
    """Every figure of a column stands there whole, or the note names the column."""
    table, _, note = text.partition("no room for")
    note = " ".join(note.split())
    for heading, figure in figures.items():
        there = figure in re.split(r"\s{2,}|\n", table)
        assert there != (heading in note), heading


@pytest.mark.parametrize("command", ["methods", "channels", "attacks", "rules"])
def test_lists_fit(narrow, command):
    text = " ".join(narrow("list", command).split())
    if command == "channels":
        assert "318,064" in text


def test_the_list_of_data_sets_fits(narrow):
    assert "synthetic" in narrow("data", "list")


def test_a_table_of_data_with_large_counts_fits(narrow, monkeypatch):
    monkeypatch.setattr(Federation, "sizes", lambda self, split: torch.full((4,), 10_000_000))
    many = torch.full((4, 10), 1_234_567)
    monkeypatch.setattr(Federation, "class_counts", lambda self, split="train": many)
    monkeypatch.setattr(Federation, "class_totals", lambda self, split="train": many.double())
    monkeypatch.setattr(Federation, "majority_hits", lambda self, split="test": many[:, 0])
    text = narrow("data", "show", "synthetic", "--clients", "4", "--samples", "20")
    figures = dict.fromkeys(("train", "valid", "test"), "10,000,000")
    assert "1,234,567" in text
    whole_or_named(text.replace("(1,234,567)", ""), figures)


def test_kernels_with_large_times_fit(narrow, monkeypatch):
    row = {"kernel": "compiled", "chosen": True, "clients": 10_000_000, "d": 10**12, "error": ""}
    rows = [row | {"milliseconds": 1234567.891}]
    monkeypatch.setattr(lists, "measure", lambda *_: rows)
    text = narrow("list", "kernels", "--measure", "--clients", "4", "--samples", "20")
    whole_or_named(text, {"ms per gradient of the cohort": "1,234,567.89"})
    assert "10,000,000 of 4 clients" in text and "1,000,000,000,000" in text


def test_projections_with_large_sizes_fit(narrow, monkeypatch):
    row = {
        "projection": "gaussian",
        "s_min": 0.8159,
        "s_max": 12345.6789,
        "memory": 123_456.7e9,
        "build_ms": 1_234_567.8,
        "pass_ms": 123_456.789,
        "bytes_per_round": 98_765.4e9,
    }
    refused = {"projection": "orthogonal", "refused": "too large: 8,000 GB"}
    monkeypatch.setattr(lists, "all_kinds", lambda *_: [row, refused])
    text = narrow("list", "projections", "--measure", "--clients", "4", "--samples", "20")
    figures = {
        "s_min": "0.8159",
        "s_max": "12345.6789",
        "memory": "123456.7 GB",
        "ms to make": "1,234,567.8",
        "ms for P x and Pᵀ u": "123,456.789",
        "bytes per round": "98765.4 GB",
    }
    whole_or_named(text, figures)
    assert "orthogonal: too large: 8,000 GB" in text


def test_results_fit_and_say_how_many_are_heard(narrow, tmp_path):
    small = ["--clients", "8", "--samples", "40", "--rounds", "2", "--sample", "3", "--quiet"]
    folder = str(tmp_path / "run")
    more = ["--metrics", "auc,f1,brier", "--directory", folder]
    assert "3 of 8 clients heard per round" in " ".join(
        narrow("run", "ditto", *small, *more).split()
    )
    assert "3 of 8 clients heard per round" in " ".join(narrow("show", folder).split())


def test_every_way_to_a_results_table_says_how_many_are_heard(narrow, tmp_path):
    small = ["--clients", "8", "--samples", "40", "--sample", "3", "--quiet"]
    folder = str(tmp_path / "c")
    compared = narrow("compare", "fedavg", *small, "--rounds", "1", "--directory", folder)
    assert "3 of 8 clients heard per round" in " ".join(compared.split())
    staged = narrow("pipeline", "fedavg@1", "ditto@1", *small, "--directory", str(tmp_path / "p"))
    assert " ".join(staged.split()).count("3 of 8 clients heard per round") == 2
    task = il.Task(torch.nn.Linear(60, 10))
    data = il.data.load("synthetic", clients=8, samples=40)
    result = il.run(il.FedAvg(), task, data, rounds=1, sample=3)
    assert "3 of 8 clients heard per round" in str(result)
