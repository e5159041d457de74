"""Folders of pictures that users bring."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect import Federation, data
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError


def put(path, size=(6, 5), mode="RGB", colour=255, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)


@pytest.fixture
def sites(tmp_path):
    """client/class/file: cats are black and dogs are white."""
    for site in ("Aachen", "Bonn"):
        for k in range(5):
            put(tmp_path / site / "cat" / f"{k}.png", colour="black")
            put(tmp_path / site / "dog" / f"{k}.jpg", colour="white")
    return tmp_path


def test_folders_are_clients_and_classes(sites, capsys):
    f = Federation.from_folder(sites)
    assert f.ids == ("Aachen", "Bonn") and f.class_names == ("cat", "dog")
    assert f.inputs.shape == (20, 3, 5, 6) and f.name == sites.name
    assert torch.equal(f.inputs.mean((1, 2, 3)).round().long(), f.targets)
    said = capsys.readouterr().err
    assert "folders are read as client/class/file; layout= names another" in said
    assert "pictures are read in colour" in said and "bytes are scaled" in said


def test_folders_of_classes_are_dealt_to_clients(sites):
    f = Federation.from_folder(sites / "Bonn", clients=2, partition="iid", test=0, valid=0)
    assert f.ids == (0, 1) and f.sizes("train").tolist() == [5, 5]
    by_class = Federation.from_folder(
        sites / "Bonn", clients=2, partition="classes", classes_per_client=1
    )
    assert (by_class.class_counts("train") > 0).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("order", ["client/split", "split/client"])
def test_folders_may_name_the_split(tmp_path, order):
    for client in ("a", "b"):
        for split in ("train", "val", "test"):
            for label in ("x", "y"):
                first, second = (client, split) if order == "client/split" else (split, client)
                put(tmp_path / first / second / label / "1.png")
    f = Federation.from_folder(tmp_path)
    assert [f.sizes(s).tolist() for s in f.offsets] == [[2, 2]] * 3


def test_folders_called_train_and_test_are_not_clients(tmp_path, capsys):
    for split in ("train", "test"):
        for k in range(5):
            put(tmp_path / split / "cat" / f"{k}.png")
            put(tmp_path / split / "dog" / f"{k}.png")
    f = Federation.from_folder(tmp_path, clients=2, partition="iid")
    assert f.clients == 2 and f.sizes("test").tolist() == [5, 5]
    assert "split/class/file" in capsys.readouterr().err


def test_files_that_are_no_pictures_are_named_and_left_out(sites, capsys):
    (sites / "Bonn" / "cat" / "notes.txt").write_text("cats")
    (sites / "Bonn" / "cat" / ".DS_Store").write_text("")
    assert len(Federation.from_folder(sites).targets) == 20
    assert "Bonn/cat/notes.txt left out; pictures end in .png" in capsys.readouterr().err


def test_sizes_must_agree_or_are_made_to(sites):
    put(sites / "Bonn" / "cat" / "wide.png", size=(9, 5))
    with pytest.raises(SettingError, match=r"'Bonn/cat/wide.png' has 9 x 5 .* or size=32 resizes"):
        Federation.from_folder(sites)
    assert Federation.from_folder(sites, size=4).inputs.shape == (21, 3, 4, 4)


def test_grey_and_coloured_pictures(tmp_path, capsys):
    put(tmp_path / "a" / "x" / "1.png", mode="L")
    put(tmp_path / "a" / "y" / "1.png", mode="1")
    assert Federation.from_folder(tmp_path).inputs.shape == (2, 1, 5, 6)
    assert "all pictures are grey" in capsys.readouterr().err
    put(tmp_path / "a" / "y" / "2.png", mode="RGBA", colour="red")
    assert Federation.from_folder(tmp_path).inputs.shape == (3, 3, 5, 6)
    assert "in colour (2 of 3 are grey); colour=grey" in capsys.readouterr().err
    assert Federation.from_folder(tmp_path, colour="grey").inputs.shape == (3, 1, 5, 6)


def test_sixteen_bits_keep_their_scale_and_turned_photographs_are_upright(tmp_path):
    (tmp_path / "a" / "x").mkdir(parents=True)
    deep = np.full((5, 6), 32768, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "a" / "x" / "deep.png")
    turned = Image.Exif()
    turned[274] = 6
    put(tmp_path / "a" / "y" / "turned.jpg", size=(5, 6), mode="L", exif=turned)
    f = Federation.from_folder(tmp_path, valid=0, test=0)
    assert f.inputs.shape == (2, 1, 5, 6) and float(f.inputs[0].mean()) == pytest.approx(128 / 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "class/file"}, "'class/file' has 1 levels of folders, 'Aachen/cat/0.png'"),
        (
            {"layout": "foo"},
            "layout must be levels of client, split and class that end in file, such",
        ),
        (
            {"layout": "client/file"},
            "layout must be levels of client, split and class that end in file, such",
        ),
        ({"colour": "blue"}, "colour must be one of 'auto', 'grey', 'rgb', got 'blue'"),
        ({"sizes": 3}, "'sizes' is unknown; did you mean 'size'"),
        ({"size": 4000, "memory": 0.5}, "takes 3.58 GiB; at most 0.5 GiB"),
    ],
)
def test_bad_options_are_refused(sites, options, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_folder(sites, **options)


def test_bad_folders_are_refused(sites, tmp_path, monkeypatch):
    def refused(path, message):
        with pytest.raises(SettingError, match=message):
            Federation.from_folder(path)

    refused(sites / "nowhere", "there is no folder")
    refused(sites / "Bonn" / "cat", "lies in 0 levels of folders")
    (sites / "empty").mkdir()
    refused(sites / "empty", "there are no pictures")
    put(sites / "single" / "cat" / "1.png")
    refused(sites / "single", "has one class only, 'cat'")
    put(sites / "mixed" / "1.png")
    put(sites / "mixed" / "deep" / "1.png")
    refused(sites / "mixed", "lie at different depths")


@pytest.mark.parametrize("damage", ["text", "cut", "bomb"])
def test_damaged_pictures_are_refused_by_name(sites, damage, monkeypatch):
    path = sites / "Bonn" / "cat" / "bad.png"
    if damage == "text":
        path.write_bytes(b"no picture")
    elif damage == "cut":
        noise = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:60])
    else:
        put(path, size=(200, 200))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30_000)
    with pytest.raises(SettingError, match=r"'Bonn/cat/bad.png' (is not a picture|has too many)"):
        Federation.from_folder(sites, size=8)


def test_folders_are_a_data_set_of_the_command_line(sites, capsys):
    assert data.load("folder", path=str(sites)).clients == 2
    main(["data", "show", "folder", "--path", str(sites), "--size", "8", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["clients"] == ["Aachen", "Bonn"] and sum(facts["sizes"]["train"]) == 12
