"""Quick, Draw!: drawings out of the package, some classes, dealt to clients."""

import gzip
import io
import json
import tarfile

import numpy as np
import pytest

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import archives
from idiolect.data.download import SOURCES, FetchError
from idiolect.data.sets import images as idx
from idiolect.data.sets.quickdraw import CLASSES, IMAGES, drawings_to_idx

MANY = SOURCES["quickdraw"].ways[0].many


@pytest.fixture
def folder(tmp_path):
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((5, 20, 28, 28), np.uint8)
    idx.write_idx(tmp_path / IMAGES, images * 51)
    (tmp_path / CLASSES).write_text("ant\nbat\ncat\ndog\neel\n")
    return tmp_path


def test_classes_are_evenly_spaced_by_name(folder):
    federation = data.load("quickdraw", path=str(folder), classes=3, clients=4, partition="iid")
    assert federation.class_names == ("ant", "cat", "eel") and federation.clients == 4
    assert federation.shape == (1, 28, 28) and federation.samples == 60
    for label, value in enumerate((0.0, 0.4, 0.8)):
        found = federation.inputs[federation.targets == label]
        assert len(found) == 20 and (found - value).abs().max() < 1e-6


@pytest.mark.parametrize("partition", ["dirichlet", "classes"])
def test_drawings_are_dealt_like_other_pictures(folder, partition):
    options = {"clients": 5, "classes": 5, "partition": partition, "minimum": 2}
    one, other = (data.load("quickdraw", path=str(folder), **options, seed=s) for s in (0, 1))
    assert one.clients == 5 and (one.sizes("test") > 0).any()
    assert one.fingerprint() != other.fingerprint()


def test_other_files_are_refused_by_name(folder):
    with pytest.raises(SettingError, match=r"classes must be at most 5, .* got 6"):
        data.load("quickdraw", path=str(folder), classes=6)
    (folder / CLASSES).write_text("ant\n")
    with pytest.raises(SettingError, match="does not go with the 1 names"):
        data.load("quickdraw", path=str(folder))
    (folder / CLASSES).unlink()
    with pytest.raises(SettingError, match=f"holds no file {CLASSES}"):
        data.load("quickdraw", path=str(folder))


# -- out of the package --


def drawing(value):
    return json.dumps([value] * 784) + "\n"


def tar(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    out.seek(0)
    return out


def test_drawings_of_the_package_become_bytes(tmp_path):
    base = "package/src/drawings/"
    members = {
        f"{base}hot dog.ndjson.gz": gzip.compress((drawing(1) * 100).encode()),
        "package/package.json": b"{}",
        f"{base}../evil.ndjson.gz": gzip.compress(b"x"),
        f"{base}ant.ndjson.gz": gzip.compress((drawing(0.502) * 100).encode()),
    }
    archives.extract(archives.tar_members(tar(members)), {}, {}, tmp_path, MANY)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ant.ndjson", "hot dog.ndjson"]
    drawings_to_idx(tmp_path)
    images = idx.read_idx(tmp_path / IMAGES)
    assert images.shape == (2, 100, 28, 28) and images[:, 0, 0, 0].tolist() == [128, 255]
    assert (tmp_path / CLASSES).read_text() == "ant\nhot dog\n"


def test_an_archive_is_taken_within_bounds(tmp_path, monkeypatch):
    name = "package/src/drawings/ant.ndjson.gz"
    monkeypatch.setattr(archives, "TOTAL", 10)
    with pytest.raises(FetchError, match="more than the 10 bytes"):
        archives.extract(
            archives.tar_members(tar({name: gzip.compress(bytes(11))})), {}, {}, tmp_path, MANY
        )
    with pytest.raises(FetchError, match="the archive has no package/src"):
        archives.extract(archives.tar_members(tar({"x": b""})), {}, {}, tmp_path, MANY)


@pytest.mark.parametrize("lines", [drawing(1), drawing(2) * 100, "[1]\n" * 100])
def test_other_drawings_are_refused(tmp_path, lines):
    (tmp_path / "ant.ndjson").write_text(lines)
    with pytest.raises(SettingError, match=r"ant\.ndjson: 100 drawings of 784 values"):
        drawings_to_idx(tmp_path)
