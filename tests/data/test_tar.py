"""Archives of others: no more is unpacked than we ask for, and nothing is followed."""

import gzip
import io
import tarfile
import tracemalloc

import pytest

from idiolect.data import archives
from idiolect.data import archives as tar
from idiolect.data.download import FetchError

MEMBERS = {"a": "toy/a"}
FILES = {"a": 4}
MB = bytes(1 << 20)


def header(name, size=0, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, target
    return info.tobuf(tarfile.GNU_FORMAT)


def pack(path, *pieces):
    """A gzipped file of these pieces, written one by one."""
    with gzip.open(path, "wb", compresslevel=6) as out:
        for piece in pieces:
            out.write(piece)
    return path


def take(path, tmp_path):
    with archives.open_archive(path) as members:
        archives.extract(members, MEMBERS, FILES, tmp_path)
    return (tmp_path / "a").read_bytes()


FILE = header("toy/a", 4) + b"data".ljust(512, b"\0")


@pytest.mark.parametrize(
    "before",
    [
        (),
        (header("other", 700), bytes(1024)),
        (header("long", 300, tarfile.GNUTYPE_LONGNAME), b"x" * 512),
        (header("pax", 20, tarfile.XHDTYPE), b"20 path=toy/b\n".ljust(512, b"\0")),
        (header("folder", 0, tarfile.DIRTYPE), header("link", 0, tarfile.SYMTYPE, "/etc/passwd")),
        (header("device", 0, tarfile.CHRTYPE), header("pipe", 0, tarfile.FIFOTYPE)),
    ],
    ids=[
        "first",
        "after a file",
        "after a long name",
        "after PAX",
        "after a link",
        "after devices",
    ],
)
def test_a_file_is_found_by_its_plain_name_whatever_stands_before_it(tmp_path, before):
    assert take(pack(tmp_path / "t.gz", *before, FILE), tmp_path) == b"data"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([header("x", 1 << 30, tarfile.GNUTYPE_LONGNAME), *[MB] * 64], "more than 33554432 bytes"),
        ([header("x", 1 << 30, tarfile.XHDTYPE), *[MB] * 64], "more than 33554432 bytes"),
        ([header("x", 1 << 30), *[MB] * 64], "more than 33554432 bytes"),
        ([header("x", 1 << 30)], "ends 1073741824 bytes too early"),
        ([header("toy/a", 1 << 24), *[MB] * 2], "a has more than the 4 bytes expected"),
        ([header("toy/a", 1 << 40)], "not a regular file of at most"),
        ([header("toy/a", 0, tarfile.SYMTYPE, "/etc/passwd")], "not a regular file"),
        ([header("toy/a", 0, tarfile.LNKTYPE, "toy/b")], "not a regular file"),
        ([header("toy/a", 0, tarfile.CHRTYPE)], "not a regular file"),
        ([header("toy/a", 0, tarfile.GNUTYPE_SPARSE)], "not a regular file"),
        ([header("x") * 20_000], "more than 10000 members"),
        ([header("../toy/a", 4), bytes(512)], "has no toy/a"),
        ([b"y" * 512], "invalid header"),
    ],
)
def test_an_archive_made_to_harm_is_refused_within_bounds(tmp_path, monkeypatch, pieces, message):
    monkeypatch.setattr(archives, "LIMIT", 32 << 20)
    path = pack(tmp_path / "t.gz", *pieces)
    tracemalloc.start()
    with pytest.raises((FetchError, tarfile.TarError), match=message):
        take(path, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert sorted(p.name for p in tmp_path.iterdir()) in (["t.gz"], ["a", "t.gz"])


def test_other_packings_that_unpack_to_more_than_a_thousandfold_are_refused(tmp_path):
    import lzma

    (tmp_path / "t.xz").write_bytes(lzma.compress(FILE))
    with pytest.raises(gzip.BadGzipFile):
        take(tmp_path / "t.xz", tmp_path)


def test_bounded_gives_all_bytes_up_to_its_limit():
    stream = tar.Bounded(io.BytesIO(b"12345"), 5)
    assert stream.read(3) + stream.read(3) + stream.read(3) == b"12345"
