"""Private, atomic files; JSON of unknown origin."""

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest

from idiolect.core import files
from idiolect.core.knobs import SettingError

posix = pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")


def mode(path) -> int:
    return path.stat().st_mode & 0o777


@posix
def test_folders_and_files_are_the_users_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = files.private_folder(tmp_path / "a" / "b")
        files.write_atomic(folder / "x.bin", b"1")
        with open(folder / "log", "a", opener=files.private_opener) as log:
            log.write("line\n")
    finally:
        os.umask(before)
    assert [mode(p) for p in (tmp_path / "a", folder)] == [0o700, 0o700]
    assert [mode(folder / n) for n in ("x.bin", "log")] == [0o600, 0o600]


@posix
def test_a_file_that_others_could_read_is_private_once_written_again(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("{}")
    file.chmod(0o644)
    files.write_json(file, {"a": 1})
    assert mode(file) == 0o600 and json.loads(file.read_text()) == {"a": 1}


def test_a_folder_that_is_a_link_or_a_file_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SettingError, match="symbolic link"):
        files.private_folder(tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        files.private_folder(tmp_path / "file")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "x.bin"
    files.write_atomic(file, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(file, b"new")
    assert file.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_content_reaches_the_disk_before_the_name_and_the_name_after_it(tmp_path, monkeypatch):
    seen = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda f: seen.append(os.readlink(f"/proc/self/fd/{f}")) or sync(f)
    )
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append("rename") or replace(a, b))
    files.write_atomic(tmp_path / "x.bin", b"1")
    assert seen[0].startswith(str(tmp_path / ".x.bin."))
    assert seen[1:] == ["rename", str(tmp_path)]


def test_a_link_is_written_over_not_through(tmp_path):
    (tmp_path / "target").write_bytes(b"theirs")
    (tmp_path / "x").symlink_to(tmp_path / "target")
    files.write_atomic(tmp_path / "x", b"ours")
    assert (tmp_path / "target").read_bytes() == b"theirs" and not (tmp_path / "x").is_symlink()


def link(path):
    path.with_name("elsewhere").write_text("{}")
    path.symlink_to(path.with_name("elsewhere"))


CONTENT = {
    "a key twice": (b'{"a": 1, "a": 2}', "twice"),
    "not UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "no JSON": (b"{", "Expecting"),
    "empty": (b"", "Expecting"),
    "nested without end": (b"[" * 200_000, "nested too deeply"),
    "half a character": (b'{"a": "\\ud800"}', "not Unicode"),
    "a whole number without end": (b"9" * 5000, "digits"),
    "a list": (b"[]", "must be an object, got a list"),
    "too long": (b" " * 999 + b"{}", "at most 512"),
}


@pytest.mark.parametrize(("content", "says"), CONTENT.values(), ids=CONTENT.keys())
def test_what_is_no_json_object_is_a_setting_error_that_names_the_file(content, says, tmp_path):
    file = tmp_path / "settings.json"
    file.write_bytes(content)
    limit = 512 if says == "at most 512" else 1 << 20
    with pytest.raises(SettingError, match=f"settings.json.*{says}"):
        files.read_document(file, dict[str, Any], limit)


@posix
@pytest.mark.parametrize(
    "make", [link, getattr(os, "mkfifo", None), os.mkdir], ids=["link", "pipe", "folder"]
)
def test_only_regular_files_are_read(make, tmp_path):
    file = tmp_path / "settings.json"
    make(file)
    with pytest.raises(SettingError, match="not a regular file"):
        files.read_document(file, dict[str, Any])


@dataclass
class Fields:
    labels: list[str]
    rounds: int
    share: float


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"labels": [], "rounds": 1, "share": 1, "more": 0}, "'more' is not expected; known: lab"),
        ({"labels": [], "share": 1}, "'rounds' is missing"),
        ({"labels": {}, "rounds": 1, "share": 1}, "labels must be a list, got an object"),
        (
            {"labels": [], "rounds": True, "share": 1},
            "rounds must be a whole number, got true or false",
        ),
        ({"labels": [], "rounds": 1, "share": "1"}, "share must be a number, got a text"),
    ],
)
def test_fields_are_those_expected(value, says, tmp_path):
    file = tmp_path / "x.json"
    files.write_document(file, value)
    with pytest.raises(SettingError, match=says):
        files.read_document(file, Fields)
    assert files.read_document(file, dict[str, Any]) == value


def test_a_file_may_have_as_many_bytes_as_the_limit_and_no_more(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"12345")
    assert files.read_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes; at most 4"):
        files.read_bytes(path, 4)
