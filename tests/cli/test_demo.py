"""`idiolect demo`: where federation helps, then where it does not."""

import json

import pytest

import idiolect as il
from idiolect.cli.main import main

QUICK = ["--rounds", "2", "--seeds", "1", "--quiet"]


def test_the_demo_leads_with_the_case_where_federation_helps(tmp_path, capsys):
    assert main(["demo", *QUICK, "--directory", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr()
    assert said.out.index("digits: 60 clients") < said.out.index("synthetic(0, 0): 100 clients")
    assert said.err.count("Reading it:") == 2
    assert "no effect" not in said.err + said.out
    assert (tmp_path / "demo/demo.png").read_bytes()[:4] == b"\x89PNG"
    assert il.load(tmp_path / "demo/digits").labels == [
        "local steps=40",
        "fedavg",
        "finetune",
        "ditto",
    ]


def test_the_demo_prints_one_json_value(tmp_path, capsys):
    assert main(["demo", *QUICK, "--json", "--directory", str(tmp_path / "demo")]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert list(tables) == ["digits", "synthetic"]
    assert {row["rounds"] for rows in tables.values() for row in rows if row["seeds"]} == {2}


def test_flags_that_would_make_it_another_comparison_are_refused(tmp_path, capsys):
    assert main(["demo", "--data", "mnist"]) == 2
    assert "--data is not a flag of idiolect demo" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_shows_what_it_says(tmp_path, capsys):
    assert main(["demo", "--quiet", "--json", "--directory", str(tmp_path / "demo")]) == 0
    tables = json.loads(capsys.readouterr().out)
    digits, synthetic = (
        {row["label"]: (row["accuracy"]["mean"], row["accuracy"]["ci95"] or 0) for row in rows}
        for rows in (tables["digits"], tables["synthetic"])
    )

    def clearly_better(rows, one, other):
        return rows[one][0] - rows[one][1] > rows[other][0] + rows[other][1]

    for method in ("fedavg", "finetune", "ditto"):
        assert clearly_better(digits, method, "local steps=40"), method
    for method in ("finetune", "ditto"):
        assert clearly_better(digits, method, "fedavg"), method
    assert clearly_better(synthetic, "majority class", "fedavg")
    assert clearly_better(synthetic, "lp-proj-1", "local steps=1")
    assert not clearly_better(synthetic, "lp-proj-1", "local")
    assert not clearly_better(synthetic, "lp-proj-2", "local")
