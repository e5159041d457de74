"""Source archives are fetched by pip, and nothing in them is run."""

import io
import os
import sys
import tarfile

import pytest

from idiolect.data import download
from idiolect.data.download import SOURCES, DataSource, File, Way

SETUP = (
    "open(r'{ran}', 'w').close()\nfrom setuptools import setup\nsetup(name='my-toy', version='1')"
)
BODY = b"what is wanted"


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """A source archive in a folder that pip looks into; its build would leave the file `ran`."""
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    links = tmp_path / "links"
    links.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    archive = links / "my-toy-1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        setup = SETUP.format(ran=tmp_path / "ran").encode()
        for name, body in (("setup.py", setup), ("res/a.txt", BODY)):
            info = tarfile.TarInfo(f"my-toy-1/{name}")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))

    def start(sha256=""):
        path = tmp_path / "body"
        path.write_bytes(BODY)
        known = File(len(BODY), download.sha256(path))
        members = {"a": "my-toy-1/res/a.txt"}
        way = Way("sdist", "my-toy==1", members, sha256 or download.sha256(archive))
        monkeypatch.setitem(SOURCES, "toy", DataSource({"a": known}, (way,), "none"))

    return start


def test_a_source_archive_is_fetched_without_running_its_build(offer, tmp_path):
    offer()
    folder = download.get("toy")
    assert [p.name for p in folder.iterdir()] == ["a"] and (folder / "a").read_bytes() == BODY
    assert not (tmp_path / "ran").exists()


def test_a_source_archive_with_another_hash_is_not_unpacked(offer, tmp_path):
    offer("0" * 64)
    with pytest.raises(download.FetchError, match=r"my-toy==1: .* failed with status"):
        download.get("toy")
    assert not (tmp_path / "ran").exists() and not list((tmp_path / "cache" / "toy").iterdir())


def test_both_clients_are_asked_for_the_same_archive(tmp_path, monkeypatch):
    for name in ("hapt", "shakespeare"):
        asked = []
        monkeypatch.setattr(download, "_client", lambda *given, asked=asked: asked.append(given))
        for number, way in enumerate(SOURCES[name].ways):
            scratch = tmp_path / f"{name}{number}"
            scratch.mkdir()
            with pytest.raises(download.FetchError, match=r"expected one \*.tar.gz file, found 0"):
                download._archive(way, scratch, print)
            wanted = (scratch / "wanted.txt").read_text()
            assert wanted == f"{way.ref} --hash=sha256:{way.sha256}\n"
        (pip, _, env), (uv, _, _) = asked
        assert pip[:3] == [sys.executable, "-m", "pip"] and uv[:4] == ["uv", "tool", "run", "pip"]
        assert pip[3:] == uv[4:] and "--require-hashes" in pip and "--no-deps" in pip
        assert os.path.isfile(os.path.join(env["PYTHONPATH"], "setuptools", "build_meta.py"))
