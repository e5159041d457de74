"""Schools, students and film-goers: tables out of pickles, one client per group."""

import lzma

import numpy as np
import pytest

from data.pickles import dump, new_array, new_frame, old_array
from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data.sets import groups
from idiolect.data.sets.groups import write_columns

CHEM97 = "lea,school,student,score,gender,age,gcsescore\n" + "".join(
    f"1,{school},{k},{2 * (k % 6)},{'FM'[k % 2]},{k % 5 - 2},{5 + k / 8}\n"
    for school, many in ((7, 12), (3, 4), (5, 20))
    for k in range(many)
)
INSTEVAL = "s,d,studage,lectage,service,dept,y\n" + "".join(
    f"{s},{100 + k},{2 + s},{1 + k % 4},{k % 2},{1 + k % 3},{1 + k % 5}\n"
    for s in (1, 2)
    for k in range(15)
)
GENRES = ("Drama", "Comedy|Drama", "(no genres listed)", "Sci-Fi")
MOVIELENS = "userId,movieId,year,genres,rating,timestamp\n" + "".join(
    f"{u},{k},{'' if k == 3 else 1990.0 + k},{GENRES[k % 4]},{0.5 + k % 10 / 2},12345\n"
    for u in (1, 4)
    for k in range(20)
)
FILES = {"chem97": CHEM97, "insteval": INSTEVAL, "movielens": MOVIELENS}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def load(name, folder, **options):
    return data.load(name, path=str(folder), **options)


def test_a_school_with_few_pupils_is_left_out(folder):
    federation = load("chem97", folder)
    assert federation.ids == (5, 7) and federation.class_names == (0, 2, 4, 6, 8, 10)
    assert [federation.sizes(s).tolist() for s in ("train", "valid", "test")] == [
        [13, 8],
        [3, 2],
        [4, 2],
    ]
    assert federation.preparation.feature_names == ("gender=F", "gender=M", "age", "gcsescore")
    assert load("chem97", folder, minimum=1).clients == 3
    assert load("chem97", folder, clients=1).ids == (5,)  # the one with most
    with pytest.raises(SettingError, match="clients must be at most 2, got 3: 2 of 3 have at"):
        load("chem97", folder, clients=3)


@pytest.mark.parametrize("name", FILES)
def test_the_outcome_is_classes_or_values(folder, name):
    assert load(name, folder).classes == {"chem97": 6, "insteval": 5, "movielens": 2}[name]
    values = load(name, folder, kind="values")
    assert values.classes == 0 and values.targets.is_floating_point()


@pytest.mark.parametrize("name", FILES)
def test_the_seed_decides_the_split(folder, name):
    marks = [load(name, folder, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert marks[0] == marks[1] != marks[2]


def test_a_department_is_a_name(folder):
    names = load("insteval", folder).preparation.feature_names
    assert [n for n in names if n.startswith("dept")] == ["dept=1", "dept=2", "dept=3"]
    assert not {"d", "s"} & set(names)  # the lecturer is not a feature


def test_genres_are_features_and_liked_is_four_stars_or_more(folder, capsys):
    federation = load("movielens", folder, scale="none", valid=0, test=0)
    assert federation.preparation.feature_names == ("decade", "Comedy", "Drama", "Sci-Fi")
    assert federation.class_names == ("no", "yes")
    assert federation.part(0, "train")[1].tolist() == [
        int(0.5 + k % 10 / 2 >= 4) for k in range(20)
    ]
    assert federation.part(0, "train")[0][1].tolist() == pytest.approx([0.1, 1, 1, 0])
    assert "filled in with the mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not the chem97 data"),
        ("a,b\n1,2\n", "columns lea, school, student, score, gender, age, gcsescore are expected"),
        (CHEM97.replace("1,7,0,", "1,seven,0,"), "not the chem97 data"),
        (CHEM97.replace("1,7,0,0,", "1,7,0,,"), "column 'score' has missing values"),
    ],
)
def test_other_files_are_refused_by_name(folder, text, message):
    (folder / "chem97.csv").write_text(text)
    with pytest.raises(SettingError, match=message):
        load("chem97", folder)
    (folder / "chem97.csv").unlink()
    with pytest.raises(SettingError, match=r"holds no file chem97\.csv"):
        load("chem97", folder)


# -- out of the package --


def pack(folder, frame):
    (folder / "toy.pkl.xz").write_bytes(lzma.compress(dump(frame)))


def test_a_pickled_table_becomes_a_csv_file(tmp_path):
    numbers = new_array(np.array([[1, 2], [5, 6]]))
    words = old_array(["x, y", float("nan")], shape=(1, 2))
    pack(tmp_path, new_frame(["a", "word", "b"], [(numbers, [0, 2]), (words, [1])], 2))
    write_columns(tmp_path / "toy.pkl.xz", ("b", "word"), tmp_path / "toy.csv")
    assert (tmp_path / "toy.csv").read_bytes() == b'b,word\n5,"x, y"\n6,\n'
    with pytest.raises(SettingError, match=r"toy\.pkl\.xz: the table has no column 'c'"):
        write_columns(tmp_path / "toy.pkl.xz", ("a", "c"), tmp_path / "toy.csv")


def test_a_table_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    (tmp_path / "toy.pkl.xz").write_bytes(lzma.compress(bytes(1000)))
    monkeypatch.setattr(groups, "UNPACKED", 999)
    with pytest.raises(
        SettingError, match=r"toy\.pkl\.xz: the table unpacks to more than 999 bytes"
    ):
        groups.write_columns(tmp_path / "toy.pkl.xz", ("a",), tmp_path / "toy.csv")
