"""`idiolect init` on tables as they are: all findings at once, and on where it can."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from idiolect.cli.main import main

N = 300


@pytest.fixture
def visits(tmp_path, monkeypatch) -> pd.DataFrame:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": np.arange(N) // 3 + 500, "age": rng.normal(60, 9, N).round(2)})
    frame["hospital"] = np.array(["Nord", "Mitte", "West"])[np.arange(N) // 3 % 3]
    frame["outcome"] = np.where(frame.age + 9 * rng.normal(size=N) > 60, "ill", "well")
    return frame


def write(frame: pd.DataFrame, **options) -> None:
    frame.to_csv("visits.csv", index=False, **options)


def said(capsys, command: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(command.split()) == code
    got = capsys.readouterr()
    return " ".join((got.err + got.out).split())


def test_a_repeated_patient_is_named_with_its_flag_and_the_flag_is_in_the_file(visits, capsys):
    write(visits)
    assert "--group patient" in said(capsys, "init visits.csv")
    assert "group" not in tomllib.loads(Path("idiolect.toml").read_text())["data"]
    text = said(capsys, "init visits.csv --force --group patient")
    assert "300 rows of 100 groups" in text and "repeated" not in text
    assert tomllib.loads(Path("idiolect.toml").read_text())["data"]["group"] == "patient"
    report = json.loads("{" + said(capsys, "init visits.csv --force --json").partition("{")[2])
    assert {"kind": "repeated", "column": "patient", "flag": "--group patient"}.items() <= (
        report["findings"][0].items()
    )


def test_at_a_terminal_it_asks_whether_rows_belong_together(visits, capsys, monkeypatch):
    write(visits)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    questions = []

    def answer(question: str) -> str:
        questions.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    said(capsys, "init visits.csv")
    assert questions == ["Do rows with the same 'patient' belong together? [y/n] "]
    assert tomllib.loads(Path("idiolect.toml").read_text())["data"]["group"] == "patient"
    monkeypatch.setattr("builtins.input", lambda question: "n")
    said(capsys, "init visits.csv --force")
    assert "group" not in tomllib.loads(Path("idiolect.toml").read_text())["data"]


def test_encoding_and_decimal_marks_are_chosen_and_marked_in_the_file(visits, capsys):
    write(
        visits.assign(town="Köln", ward=np.resize(["süd", "ost"], N)),
        sep=";",
        decimal=",",
        encoding="cp1252",
    )
    said(capsys, "init visits.csv")
    text = Path("idiolect.toml").read_text()
    assert 'decimal = ","  # chosen by idiolect init: check it' in text
    assert 'encoding = "cp1252"  # chosen by idiolect init: check it' in text


def test_all_findings_are_said_before_a_question_and_before_a_refusal(visits, capsys):
    dose = [f"{1 + i % 30} mg" for i in range(N)]
    frame = visits.assign(dose=dose, ward="A", crp=np.resize(["<3", "4", "5", "9"], N))
    write(frame.rename(columns={"outcome": "r1"}))
    text = said(capsys, "init visits.csv", 2)
    assert "--units strip" in text and "--limits value" in text and "which column is" in text
    write(frame)
    text = said(capsys, "init visits.csv", 2)
    assert "All findings at once: idiolect init visits.csv --client hospital" in text
    flags = "--units strip --limits value --drop ward --group patient"
    assert "no findings" not in said(capsys, f"init visits.csv {flags}")


def test_a_table_is_checked_without_writing_anything(visits, capsys, tmp_path):
    write(visits.assign(hospital=visits.hospital.mask(visits.index < 3, "NORD ")))
    columns = "--client hospital --target outcome"
    text = said(capsys, f"data check visits.csv {columns}")
    assert "2 findings" in text and "All at once: --merge-names true --group patient" in text
    assert [p.name for p in tmp_path.iterdir()] == ["visits.csv"]
    capsys.readouterr()
    assert main(f"data check visits.csv {columns} --json".split()) == 0
    assert [f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]] == [
        "client names",
        "repeated",
    ]
    said(capsys, f"init visits.csv {columns} --merge-names true --group patient")
    assert tomllib.loads(Path("idiolect.toml").read_text())["data"]["merge_names"] is True
