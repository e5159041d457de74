"""Data that cannot be fetched: the standard files are read, others are refused by name."""

import gzip
import json
import sys

import numpy as np
import pytest

from idiolect import data
from idiolect.cli.commands.data import data as command
from idiolect.core.knobs import SettingError
from idiolect.data.download import OWN
from idiolect.data.sets import femnist
from idiolect.data.sets import images as idx


@pytest.mark.parametrize("name", OWN)
def test_what_is_expected_is_said_where_no_path_is_given(name, tmp_path):
    with pytest.raises(SettingError, match=f"path: {name} cannot be fetched") as error:
        data.load(name)
    assert OWN[name].expects in str(error.value)
    with pytest.raises(SettingError, match="there is no folder") as error:
        data.load(name, path=str(tmp_path / "none"))
    assert OWN[name].expects in str(error.value)
    with pytest.raises(SettingError, match="cannot be fetched") as error:
        command(["get", name])
    for text in (OWN[name].expects, OWN[name].terms, OWN[name].citation, "--path"):
        assert text in str(error.value)


@pytest.mark.parametrize("name", OWN)
def test_an_empty_folder_is_refused_by_what_it_lacks(name, tmp_path):
    missing = {
        "emnist": "emnist-byclass-train-images-idx3-ubyte",
        "femnist": r"no \.json file",
        "stackoverflow": r"neither stackoverflow_train\.h5 nor stackoverflow_train\.jsonl",
        "gldv2": r"no file federated_train\.csv",
        "cifar100": r"no file train\.bin",
        "tiny-imagenet": r"no file wnids\.txt",
        "digit-domains": "none of the folders mnist, mnist-m, svhn, usps",
        "domains": "no pictures",
    }
    with pytest.raises(SettingError, match=missing[name]):
        data.load(name, path=str(tmp_path))


# -- emnist --


def emnist(folder, subset="byclass", first=0, classes=62, packed=False):
    rng = np.random.default_rng(0)
    for split, each in (("train", 10), ("test", 2)):
        labels = np.repeat(np.arange(first, first + classes), each).astype(np.uint8)
        images = rng.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
        images[:, 3, 5] = labels  # row 3, column 5 of the file
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"emnist-{subset}-{split}-{kind}-ubyte"
            idx.write_idx(path, values)
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_emnist_is_read_upright(tmp_path, packed):
    emnist(tmp_path, packed=packed)
    options = {"clients": 31, "classes_per_client": 4}
    federation = data.load("emnist", path=str(tmp_path), **options)
    assert (federation.clients, federation.classes) == (31, 62)
    assert federation.shape == (1, 28, 28) and federation.name == "emnist"
    found = (federation.inputs[:, 0, 5, 3] * 255).round().long()  # turned: row 5, column 3
    assert (found == federation.targets).all()
    other = data.load("emnist", path=str(tmp_path), **options, seed=1)
    assert federation.fingerprint() != other.fingerprint()


def test_the_letters_of_emnist_count_from_one(tmp_path):
    emnist(tmp_path, "letters", first=1, classes=26)
    options = {"subset": "letters", "clients": 13}
    federation = data.load("emnist", path=str(tmp_path), **options)
    assert federation.classes == 26 and federation.targets.unique().tolist() == list(range(26))
    emnist(tmp_path, "letters", first=0, classes=26)
    with pytest.raises(SettingError, match="label of emnist-letters-train is 0; accepted: 1 to 26"):
        data.load("emnist", path=str(tmp_path), **options)


def test_emnist_has_no_other_classes(tmp_path):
    emnist(tmp_path, "digits", classes=11)
    with pytest.raises(SettingError, match="label 10 lies outside the 10 classes"):
        data.load("emnist", path=str(tmp_path), subset="digits")


# -- femnist --


def leaf(path, **writers):
    """A file as LEAF writes it; a writer is given by the classes of its samples."""
    path.parent.mkdir(exist_ok=True)
    users = {w: {"x": [[c / 100] * 784 for c in y], "y": list(y)} for w, y in writers.items()}
    whole = {"users": list(users), "num_samples": [len(y) for y in writers.values()]}
    path.write_text(json.dumps({**whole, "user_data": users}))


def test_femnist_is_read_by_writer(tmp_path):
    leaf(tmp_path / "all_data_0.json", f0001=range(20), f0002=[61] * 10)
    leaf(tmp_path / "all_data_1.json", f0003=range(9), f0004=range(30))
    federation = data.load("femnist", path=str(tmp_path))
    assert federation.ids == ("f0001", "f0002", "f0004")  # the third has fewer than ten
    assert federation.classes == 62 and federation.shape == (1, 28, 28)
    assert [federation.sizes(s).tolist() for s in ("train", "valid", "test")] == [
        [13, 6, 19],
        [3, 2, 5],
        [4, 2, 6],
    ]
    assert (federation.inputs[:, 0, 0, 0] * 100).round().long().equal(federation.targets)
    assert data.load("femnist", path=str(tmp_path), clients=1).ids == ("f0004",)
    assert data.load("femnist", path=str(tmp_path), minimum=1).clients == 4
    with pytest.raises(SettingError, match="clients must be at most 3, got 4: 3 of 4 have"):
        data.load("femnist", path=str(tmp_path), clients=4)


def test_the_division_of_leaf_is_kept_and_validation_is_drawn_from_training(tmp_path):
    leaf(tmp_path / "train" / "a.json", one=[1] * 10, two=[2] * 20)
    leaf(tmp_path / "test" / "a.json", one=[3] * 5, two=[4] * 6, stranger=[5] * 20)
    federation = data.load("femnist", path=str(tmp_path))
    assert federation.ids == ("one", "two")
    assert [federation.sizes(s).tolist() for s in ("train", "valid", "test")] == [
        [8, 16],
        [2, 4],
        [5, 6],
    ]
    assert federation.part(1, "test")[1].tolist() == [4] * 6


@pytest.mark.parametrize(
    "text",
    [
        "junk",
        "[]",
        "{}",
        '{"user_data": {"w": {"x": [[1, 2]], "y": [0]}}}',
        '{"user_data": {"w": {"x": [], "y": []}}}',
        json.dumps({"user_data": {"w": {"x": [[0.0] * 784], "y": [62]}}}),
        json.dumps({"user_data": {"w": {"x": [[0.0] * 784], "y": [0.5]}}}),
        json.dumps({"user_data": {"w": {"x": [[0.0] * 784], "y": ["a"]}}}),
    ],
)
def test_other_files_are_no_femnist(tmp_path, text, monkeypatch):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(SettingError, match=r"odd\.json is not a file of LEAF's femnist"):
        data.load("femnist", path=str(tmp_path))
    monkeypatch.setattr(femnist, "LIMIT", 1)
    with pytest.raises(SettingError, match="more than 1 bytes"):
        data.load("femnist", path=str(tmp_path))


def test_femnist_stays_within_memory(tmp_path):
    leaf(tmp_path / "a.json", one=range(20))
    with pytest.raises(SettingError, match="memory"):
        data.load("femnist", path=str(tmp_path), memory=1e-6)


# -- stackoverflow --

SAID = {"100": ["how do i sort ?"] * 30, "7": ["use a map ."] * 30, "8": ["thanks"]}


def lines(folder, part="train"):
    with open(folder / f"stackoverflow_{part}.jsonl", "w") as out:
        for user, texts in SAID.items():
            for text in texts:
                out.write(json.dumps({"user": user, "text": text}) + "\n")


def hdf5(folder, part="train"):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / f"stackoverflow_{part}.h5", "w") as file:
        for user, texts in SAID.items():
            group = file.create_group(f"examples/{user}")
            # the sentences lie out of order, as their dates say
            marked = [f"{k} {text}" for k, text in enumerate(texts)][::-1]
            dates = [f"2010-01-01 00:{k:02d}:00 UTC" for k in range(len(texts))][::-1]
            group["tokens"] = np.array([m.encode() for m in marked], dtype=object)
            group["creation_date"] = np.array([d.encode() for d in dates], dtype=object)


def test_stack_overflow_is_read_from_lines_by_user(tmp_path):
    lines(tmp_path)
    options = {"path": str(tmp_path), "minimum": 50, "length": 4}
    federation = data.load("stackoverflow", **options)
    assert federation.ids == ("100", "7") and federation.shape == (4,)
    assert federation.sizes("train").tolist() == [(96 - 1) // 4, (77 - 1) // 4]
    inputs, targets = federation.part(0, "train")
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert data.load("stackoverflow", **options, users=1).ids == ("100",)
    with pytest.raises(SettingError, match="neither stackoverflow_heldout"):
        data.load("stackoverflow", **options, part="heldout")


def test_stack_overflow_is_read_from_hdf5_in_order_of_time(tmp_path):
    hdf5(tmp_path, "test")
    options = {"path": str(tmp_path), "minimum": 50, "part": "test", "length": 6}
    made = data.DATASETS.find("stackoverflow")(**options)
    federation, words = made.draw()
    assert federation.ids == ("100", "7")
    assert [words[k] for k in federation.part(0, "train")[0][0]] == [
        "0",
        "how",
        "do",
        "i",
        "sort",
        "?",
    ]
    assert data.load("stackoverflow", **options, users=1).clients == 1


def test_a_user_in_another_file_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    hdf5(tmp_path)
    with h5py.File(tmp_path / "stackoverflow_train.h5", "a") as file:
        file["examples/101"] = h5py.ExternalLink("/etc/hosts", "/")
    with pytest.raises(SettingError, match="user '101' is a link to elsewhere"):
        data.load("stackoverflow", path=str(tmp_path))


def test_hdf5_needs_h5py(tmp_path, monkeypatch):
    (tmp_path / "stackoverflow_train.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SettingError, match=r"needs h5py: pip install 'idiolect\[hdf5\]'"):
        data.load("stackoverflow", path=str(tmp_path))


@pytest.mark.parametrize("line", ["junk", "[]", '{"user": "a"}', '{"user": "a", "text": 3}'])
def test_other_lines_are_no_stack_overflow(tmp_path, line):
    (tmp_path / "stackoverflow_train.jsonl").write_text(line + "\n")
    with pytest.raises(SettingError, match=r"_train\.jsonl is not the stackoverflow data"):
        data.load("stackoverflow", path=str(tmp_path))


# -- gldv2 --


def landmarks(folder, users, place="train", nested=True):
    """A map, and a picture of one colour each: the class is its red value."""
    from PIL import Image

    rows = ["user_id,image_id,class"]
    for user, labels in users.items():
        for k, label in enumerate(labels):
            image = f"{user:02x}{k:02x}ffff"
            rows.append(f"{user},{image},{label}")
            below = folder.joinpath(place, *(image[:3] if nested else ""))
            below.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7), (label, 0, 0)).save(below / f"{image}.jpg", quality=95)
    (folder / "federated_train.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("place, nested", [("train", True), ("images", False), (".", False)])
def test_landmarks_are_read_by_user(tmp_path, place, nested):
    users = {11: [100, 200] * 6, 2: [200] * 10, 5: [50] * 3}
    landmarks(tmp_path, users, place, nested)
    federation = data.load("gldv2", path=str(tmp_path), size=8)
    assert federation.ids == ("11", "2") and federation.class_names == ("100", "200")
    assert federation.shape == (3, 8, 8)
    assert federation.sizes("train").tolist() == [8, 6]
    red = (federation.inputs[:, 0, 4, 4] * 255).round()
    expected = (federation.targets + 1) * 100
    assert (red - expected).abs().max() <= 3  # JPEG
    assert data.load("gldv2", path=str(tmp_path), clients=1).ids == ("11",)
    with pytest.raises(SettingError, match="clients must be at most 2, got 3: 2 of 3 have"):
        data.load("gldv2", path=str(tmp_path), clients=3)


def test_pictures_that_are_not_there_are_refused_or_left_out(tmp_path, capsys):
    landmarks(tmp_path, {1: [10, 20] * 6})
    (tmp_path / "train" / "0" / "1" / "0" / "0100ffff.jpg").unlink()
    with pytest.raises(SettingError, match=r"1 of 12 pictures are not in .*0100ffff\.jpg"):
        data.load("gldv2", path=str(tmp_path))
    assert data.load("gldv2", path=str(tmp_path), skip_missing=True).samples == 11
    assert "1 of 12 pictures are not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "user_id,image_id,class\n",
        "user,image,label\n1,abc,2\n",
        "user_id,image_id,class\n1,../../etc/passwd,2\n",
        "user_id,image_id,class\n1,abcdef,\n",
    ],
)
def test_other_maps_are_refused(tmp_path, text):
    (tmp_path / "federated_train.csv").write_text(text)
    with pytest.raises(SettingError, match=r"federated_train\.csv is not a map of pictures"):
        data.load("gldv2", path=str(tmp_path))
