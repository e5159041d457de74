"""Heart disease by hospital: what the files hold is what is learnt from, and gaps are said."""

import hashlib
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import download
from idiolect.data.download import SOURCES, File
from idiolect.data.sets.heart import HOSPITALS, Heart

# as in the published files: whole numbers or with a point, "?" for a missing value
FILES = {
    "Cleveland": "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
    "67.0,1.0,4.0,160.0,286.0,0.0,2.0,108.0,1.0,1.5,2.0,3.0,3.0,2\n",
    "Hungary": "28,1,2,130,132,0,2,185,0,0,?,?,?,0\n29,0,2,120,243,0,0,160,0,0,?,?,?,1\n",
    "Switzerland": "32,1,1,95,0,?,0,127,0,.7,1,?,?,1\n34,1,4,115,0,?,?,154,0,.2,1,?,?,3\n",
    "VA": "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n44,1,3,?,209,0,1,?,0,0,?,?,?,0\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / HOSPITALS[name]).write_text(text)
    return tmp_path


def test_each_hospital_is_a_client_and_any_degree_of_disease_is_disease(folder):
    found = data.load("heart", path=str(folder), valid=0, test=0)
    assert found.ids == ("Cleveland", "Hungary", "Switzerland", "VA")
    assert found.class_names == ("no", "yes")
    assert found.class_counts("train").tolist() == [[1, 1], [1, 1], [0, 2], [1, 1]]
    assert found.preparation.missing == "mean" and found.preparation.scale == "federated"


def test_the_table_has_names_for_codes_and_gaps_where_nothing_was_measured(folder, capsys):
    frame = Heart(path=str(folder)).frame()
    assert frame["cp"].tolist()[:3] == ["typical", "asymptomatic", "atypical"]
    assert frame["restecg"].isna().sum() == 1 and frame["ca"].isna().sum() == 6
    assert frame["oldpeak"].tolist()[4:6] == [0.7, 0.2]
    swiss = frame[frame["hospital"] == "Switzerland"]
    assert swiss["chol"].isna().all()  # 0 in the file, which no patient has
    assert "'chol' is 0 in 2 of 8 rows: read as missing" in capsys.readouterr().err


def test_missing_values_are_said_and_may_be_refused(folder, capsys):
    data.load("heart", path=str(folder), valid=0, test=0)
    said = capsys.readouterr().err
    assert "missing values are filled in with the mean: 'trestbps' 1; 'chol' 2; 'fbs' 2" in said
    with pytest.raises(SettingError, match=r"column 'trestbps' has 1 missing value in 1 client"):
        data.load("heart", path=str(folder), missing="refuse")
    kept = data.load("heart", path=str(folder), missing="drop", valid=0, test=0)
    assert kept.ids == ("Cleveland", "Hungary", "VA") and kept.samples == 5


def test_hospitals_and_columns_may_be_chosen(folder):
    two = data.load("heart", path=str(folder), hospitals="VA,Cleveland", drop="", valid=0, test=0)
    assert two.ids == ("Cleveland", "VA")
    assert {"slope", "ca", "thal"} <= {c.name for c in two.preparation.columns}
    with pytest.raises(SettingError, match=r"hospital: 'Hungry' is unknown; did you mean 'Hungary"):
        Heart(hospitals="Hungry")
    with pytest.raises(SettingError, match="each once"):
        Heart(hospitals="VA,VA")


BAD = {
    "fewer columns": ("63,1,1\n", "3 columns; 14 are expected"),
    "text": (FILES["VA"].replace("63,1,4", "x,1,4"), "not the heart data"),
    "another code": (FILES["VA"].replace("63,1,4", "63,1,9"), "column 'cp' holds 9"),
    "no diagnosis": (FILES["VA"].replace(",2\n", ",?\n"), "a number from 0 to 4 in every row"),
    "nothing": ("", "not the heart data"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_another_is_refused(folder, name):
    text, message = BAD[name]
    (folder / HOSPITALS["VA"]).write_text(text)
    with pytest.raises(SettingError, match=message):
        Heart(path=str(folder)).frame()


def test_a_missing_file_is_named(folder):
    (folder / HOSPITALS["VA"]).unlink()
    with pytest.raises(SettingError, match=r"holds no file processed.va.data"):
        Heart(path=str(folder)).load()
    assert Heart(path=str(folder), hospitals="Hungary,Cleveland").frame().shape == (4, 15)


def test_the_files_are_taken_from_a_wheel_and_nothing_else_is(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    wheel = tmp_path / "fedimpute-0.3.0-py3-none-any.whl"
    way = SOURCES["heart"].ways[0]
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("fedimpute/__init__.py", "boom")
        for name, text in FILES.items():
            z.writestr(way.members[HOSPITALS[name]], text)
    made = replace(way, sha256=download.sha256(wheel), size=wheel.stat().st_size)
    known = {
        HOSPITALS[name]: File(len(text), hashlib.sha256(text.encode()).hexdigest())
        for name, text in FILES.items()
    }
    monkeypatch.setitem(SOURCES, "heart", replace(SOURCES["heart"], files=known, ways=(made,)))
    monkeypatch.setattr(
        download, "_client", lambda _, to: (to / wheel.name).write_bytes(wheel.read_bytes())
    )
    found = data.load("heart", valid=0, test=0)
    assert np.isfinite(found.inputs.numpy()).all() and found.samples == 8
    assert sorted(p.name for p in (tmp_path / "cache" / "heart").iterdir()) == sorted(known)
