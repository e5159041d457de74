"""`idiolect.check`: everything about a dirty table in one pass, and a flag for each finding."""

import gzip
import json
import shlex

import numpy as np
import pandas as pd
import pytest

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.data.check import check

N = 600
rng = np.random.default_rng(0)
AGE = rng.normal(60, 12, N).round(3)
ILL = AGE + 8 * rng.normal(size=N) > 60
CLEAN = pd.DataFrame(
    {
        "site": np.repeat(["north", "south", "west"], N // 3),
        "age": AGE,
        "sex": rng.choice(["f", "m"], N),
        "outcome": np.where(ILL, "ill", "well"),
    }
)


def found(frame=CLEAN, **options):
    return check(frame, **{"client": "site", "target": "outcome", **options})


def only(frame=CLEAN, **options):
    """The one finding of a table."""
    findings = found(frame, **options).findings
    assert len(findings) == 1, findings
    return findings[0]


def settled(frame, flag: str, **options):
    """The table with what a flag says, in Python: no finding is left, and it can be loaded."""
    words = shlex.split(flag)
    given = {words[i][2:].replace("-", "_"): words[i + 1] for i in range(0, len(words), 2)}
    given = {name: value == "true" if value == "true" else value for name, value in given.items()}
    report = found(frame, **given, **options)
    assert not [f for f in report.findings if f.kind != "target missing"], report
    return il.Federation.from_frame(frame, client="site", target="outcome", **given, **options)


def test_a_clean_table_has_no_finding():
    assert found().findings == ()
    assert repr(found()) == "no findings in 600 rows of 4 columns"


def test_spellings_of_a_client_are_found_and_merged():
    names = CLEAN.site.mask(CLEAN.index < 40, "NORTH").mask(CLEAN.index == 50, "north ")
    frame = CLEAN.assign(site=names)
    findings = found(frame).findings
    assert findings[0].kind == "client names" and findings[0].flag == "--merge-names true"
    assert "'NORTH', 'north', 'north '" in findings[0].text
    assert settled(frame, findings[0].flag).ids == ("north", "south", "west")


def test_copies_are_found_and_dropped_and_chance_is_no_copy():
    twice = pd.concat([CLEAN, CLEAN.head(30)], ignore_index=True)
    finding = only(twice)
    assert finding.kind == "duplicates" and "30 rows repeat" in finding.text
    assert "in another split than the first" in finding.text
    assert settled(twice, finding.flag).samples == N
    elsewhere = pd.concat([CLEAN, CLEAN.head(30).assign(site="west")], ignore_index=True)
    assert only(elsewhere).flag == "--duplicates drop-across"
    assert settled(elsewhere, "--duplicates drop-across").samples == N
    coarse = CLEAN.assign(age=(CLEAN.age // 20).astype(float))  # many rows are alike by chance
    assert found(coarse).findings == ()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("score", np.where(ILL, 0.9, 0.1) + 0.05 * rng.normal(size=N)),
        ("label", np.where(ILL, "positive", "negative")),
        ("discharged", np.where(ILL, np.nan, 1.0)),
    ],
)
def test_a_column_that_tells_the_target_is_a_leak(name, values):
    report = found(CLEAN.assign(**{name: values}), missing="mean")
    assert [(f.kind, f.flag) for f in report.findings] == [("leak", f"--drop {name}")]


def test_a_good_predictor_is_no_leak_and_a_copy_of_a_value_is_one():
    frame = CLEAN.assign(outcome=AGE + 3 * rng.normal(size=N))
    assert found(frame).findings == ()
    assert only(frame.assign(dose=frame.outcome * 2 + 1)).kind == "leak"


def test_codes_of_missing_values_are_found_by_their_distance():
    frame = CLEAN.assign(age=CLEAN.age.mask(CLEAN.index % 20 == 0, 999))
    finding, missing = found(frame).findings
    assert (finding.kind, finding.column) == ("missing code", "age")
    assert finding.flag == "--missing-codes age=999"
    assert "30 missing values" in missing.text  # as they then are
    federation = settled(frame, found(frame).flags)
    assert federation.preparation.columns[0].centre[0] < 70
    new = pd.DataFrame({"age": [999.0, np.nan], "sex": ["f", "f"]})
    first, second = federation.preparation.apply(new)
    assert (first == second).all()  # new rows are read alike
    children = CLEAN.assign(children=rng.integers(0, 5, N).astype(float))
    children.loc[::30, "children"] = -1
    assert only(children, missing="mean").flag == "--missing-codes children=-1"
    assert found(CLEAN.assign(change=rng.integers(-1, 2, N))).findings == ()


def test_identifiers_row_numbers_and_constants_are_said_in_one_pass():
    frame = CLEAN.assign(patient_id=rng.permutation(N) + 7000, ward="A", index=np.arange(N))
    report = found(frame)
    assert {f.kind: f.column for f in report.findings} == {
        "identifier": "patient_id",
        "constant": "ward",
        "row number": "index",
    }
    assert report.flags == "--drop patient_id,ward,index"
    settled(frame, report.flags)


def test_codes_with_leading_zeros_stay_as_they_are_written(tmp_path):
    path = tmp_path / "visits.csv"
    plz = rng.choice(["01067", "20095", "80331"], N)
    CLEAN.assign(area=plz).to_csv(path, index=False)
    report = check(path, client="site", target="outcome")
    assert [(f.kind, f.flag) for f in report.findings] == [("code", "--categories area")]
    assert "leading zeros" in report.findings[0].text
    columns = {"path": str(path), "client": "site", "target": "outcome"}
    federation = il.data.load("table", **columns, categories="area")
    assert federation.preparation.columns[-1].categories == ("01067", "20095", "80331")
    many = CLEAN.assign(zip_code=rng.integers(10000, 99999, N))
    assert only(many).flag == "--drop zip_code"
    few = CLEAN.assign(zip_code=rng.choice([10115, 20095], N) + rng.integers(0, 2, N))
    assert only(few).flag == "--categories zip_code"
    assert settled(few, "--categories zip_code").preparation.columns[-1].kind == "category"


def test_units_and_limits_are_found_and_read_and_recorded():
    dose = rng.integers(1, 40, N)
    frame = CLEAN.assign(
        dose=[f"{d} mg" for d in dose], crp=[f"<{d}" if d < 5 else str(d) for d in dose]
    )
    report = found(frame)
    assert {f.kind: f.flag for f in report.findings} == {
        "unit": "--units strip",
        "limit": "--limits value",
    }
    for flag in ("units", "limits"):
        with pytest.raises(SettingError, match=f"--{flag}"):
            drop = "crp" if flag == "units" else "dose"
            il.Federation.from_frame(frame, client="site", target="outcome", drop=drop)
    federation = settled(frame, report.flags)
    prepared = federation.preparation.from_dict(
        json.loads(json.dumps(federation.preparation.as_dict()))
    )
    inputs = prepared.apply(frame)
    assert np.corrcoef(inputs[:, -1], dose)[0, 1] > 0.999
    assert np.corrcoef(inputs[:, -2], dose)[0, 1] > 0.999
    with pytest.raises(SettingError, match=r"must hold one unit \(mg\), got 'g'"):
        prepared.apply(frame.assign(dose="3 g"))
    mixed = CLEAN.assign(dose=[f"{d} {'mg' if d % 2 else 'g'}" for d in dose])
    assert "several units ('g', 'mg')" in only(mixed).text


def test_words_among_numbers_are_codes_of_missing_values():
    frame = CLEAN.assign(crp=[f"{v:.1f}" if i % 25 else "n/d" for i, v in enumerate(AGE)])
    finding = found(frame).findings[0]
    assert (finding.kind, finding.flag) == ("mixed types", "--missing-codes crp=n/d")
    assert settled(frame, found(frame).flags).preparation.columns[-1].kind == "number"


def test_dates_are_found_with_the_order_of_day_and_month():
    days = pd.date_range("2024-01-01", periods=N).strftime("%d.%m.%Y")
    frame = CLEAN.assign(seen=days)
    finding = only(frame)
    assert (finding.kind, finding.flag) == ("date", "--dates days")
    federation = settled(frame, finding.flag, scale="none")
    assert np.diff(federation.preparation.apply(frame)[:, -1]).tolist() == [1.0] * (N - 1)
    unclear = CLEAN.assign(seen=np.resize(["01/02/2026", "03/04/2026", "05/06/2026"], N))
    assert [f.flag for f in found(unclear).findings] == ["--date-order dmy", "--dates days"]
    settled(unclear, "--date-order mdy --dates days")


def test_missing_values_are_counted_by_column_and_client():
    frame = CLEAN.assign(age=CLEAN.age.mask(CLEAN.site == "west"))
    frame["sex"] = frame.sex.mask(frame.index % 50 == 0)
    age, sex = found(frame).findings
    assert (age.column, age.client) == ("age", "west") and "200 missing values (33%)" in age.text
    assert "a category of its own" in sex.text and sex.flag == "--missing mean"
    federation = settled(frame, "--missing mean")
    assert federation.preparation.feature_names == ("age", "sex=f", "sex=m", "sex missing")


def test_missing_text_is_a_category_of_its_own_and_said(capsys):
    frame = CLEAN.assign(sex=CLEAN.sex.mask(CLEAN.index % 5 == 0))
    federation = il.Federation.from_frame(frame, client="site", target="outcome", missing="mean")
    assert federation.preparation.apply(frame)[0, 1:].tolist() == [0.0, 0.0, 1.0]
    assert "missing text is a category of its own" in capsys.readouterr().err


def test_rows_without_a_target_are_dropped_with_a_word(capsys):
    frame = CLEAN.assign(outcome=CLEAN.outcome.mask(CLEAN.index < 9))
    assert "9 rows without a target ('outcome') will be dropped" in only(frame).text
    federation = il.Federation.from_frame(frame, client="site", target="outcome")
    assert federation.samples == N - 9
    assert "9 rows without a target ('outcome') are dropped" in capsys.readouterr().err
    numbers = frame.assign(outcome=pd.Series(ILL.astype(float)).mask(frame.index < 9))
    assert il.Federation.from_frame(numbers, client="site", target="outcome").class_names == (0, 1)


def test_clients_and_classes_that_cannot_be_judged_are_named():
    site = CLEAN.site.mask(CLEAN.index < 12, "tiny")
    outcome = CLEAN.outcome.mask(CLEAN.site == "west", "well").mask(CLEAN.index == 250, "odd")
    findings = {f.kind: f for f in found(CLEAN.assign(site=site, outcome=outcome)).findings}
    assert set(findings) == {"small client", "one-class client", "rare class"}
    assert findings["small client"].flag == "--exclude-clients tiny"
    assert findings["one-class client"].client == "west"
    assert findings["rare class"].flag == "--missing-codes outcome=odd"
    settled(
        CLEAN.assign(site=site, outcome=outcome),
        "--exclude-clients tiny,west --missing-codes outcome=odd",
    )


def test_repeated_patients_are_found_by_name_and_by_their_rows():
    patient = np.arange(N) // 3
    for name, values in (
        ("patient_id", patient + 4000),
        ("mrn", [f"m{p}" for p in patient]),
        ("episode", [f"e{p}" for p in patient]),
    ):
        finding = only(CLEAN.assign(**{name: values}))
        assert (finding.kind, finding.flag) == ("repeated", f"--group {name}")
    settled(CLEAN.assign(patient=patient), "--group patient")
    assert found(CLEAN.assign(visits=rng.integers(0, 40, N))).findings == ()


def test_arrays_are_checked_too():
    x = np.stack([AGE, ILL], axis=1)
    report = check(x, client=CLEAN.site.to_numpy(), target=ILL)
    assert [(f.kind, f.column) for f in report.findings] == [("leak", "x1")]
    assert check(CLEAN).findings == ()  # neither client nor target is needed


def dirty(path):
    frame = CLEAN.assign(
        site=CLEAN.site.mask(CLEAN.index < 20, "NORTH"),
        lab=[f"{1000 + v:,.1f}".replace(",", "_").replace(".", ",").replace("_", ".") for v in AGE],
        seen=pd.date_range("2024-01-01", periods=N).strftime("%d.%m.%Y"),
        patient=np.arange(N) // 2 + 100,
        town=np.where(rng.random(N) > 0.5, "Köln", "Bonn"),
        leak=np.where(ILL, "j", "n"),
        age=CLEAN.age.map(lambda v: str(v).replace(".", ",")).mask(CLEAN.index % 30 == 0),
    )
    frame.to_csv(path, index=False, sep=";", encoding="cp1252")


def test_one_pass_over_a_dirty_file_gives_the_flags_that_make_it_clean(tmp_path):
    path = tmp_path / "visits.csv"
    dirty(path)
    report = check(path, client="site", target="outcome")
    kinds = [f.kind for f in report.findings]
    assert kinds == [
        *("encoding", "decimal", "thousands", "client names", "date", "repeated", "missing"),
        "leak",
    ]
    assert max(map(len, repr(report).splitlines())) <= 80
    words = shlex.split(report.flags)
    options = {words[i][2:].replace("-", "_"): words[i + 1] for i in range(0, len(words), 2)}
    columns = {"path": str(path), "client": "site", "target": "outcome"}
    federation = il.data.load("table", **columns, **options)
    assert federation.ids == ("north", "south", "west") and federation.groups is not None
    lab = next(c for c in federation.preparation.columns if c.name == "lab")
    assert lab.kind == "number" and 1040 < lab.centre[0] < 1080


def test_files_that_are_packed_or_of_excel_are_read(tmp_path):
    text = CLEAN.to_csv(index=False).encode()
    (tmp_path / "visits.csv.gz").write_bytes(gzip.compress(text))
    CLEAN.to_excel(tmp_path / "visits.xlsx", index=False)
    (tmp_path / "visits.csv").write_bytes(text)
    columns = {"client": "site", "target": "outcome"}
    plain, *others = (
        il.data.load("table", path=str(tmp_path / f"visits{suffix}"), **columns)
        for suffix in (".csv", ".csv.gz", ".xlsx")
    )
    assert {f.name for f in (plain, *others)} == {"visits"}
    assert all(f.fingerprint() == plain.fingerprint() for f in others)


def test_a_plain_install_says_what_excel_needs(tmp_path, monkeypatch):
    CLEAN.to_excel(tmp_path / "visits.xlsx", index=False)
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(SettingError, match=r"openpyxl: pip install 'idiolect\[excel\]'"):
        il.data.load("table", path=str(tmp_path / "visits.xlsx"), client="site", target="outcome")


def test_an_encoding_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_bytes("site,ort,outcome\na,Köln,ja\n".encode("cp1252"))
    columns = {"path": str(path), "client": "site", "target": "outcome"}
    with pytest.raises(SettingError, match=r"not written in utf-8.*--encoding cp1252"):
        il.data.load("table", **columns)
    with pytest.raises(SettingError, match="encoding must be one that Python knows"):
        il.data.load("table", **columns, encoding="klingon")
    with pytest.raises(SettingError, match="thousands must be another mark than decimal"):
        il.data.load("table", **columns, encoding="cp1252", decimal=",", thousands=",")


def test_new_rows_are_read_as_the_dirty_table_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dirty("visits.csv")
    report = check("visits.csv", client="site", target="outcome")
    columns = "--client site --target outcome"
    run = f"run local --data table --path visits.csv {columns} {report.flags} --rounds 1"
    assert main([*shlex.split(run), "--seeds", "1", "--directory", "runs/mine"]) == 0
    capsys.readouterr()
    assert main(shlex.split("predict runs/mine --client-column site --data visits.csv --json")) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert len(predicted["labels"]) == N and set(predicted["clients"]) == {"north", "south", "west"}
