"""Tensors in files: private, and read only once their names, shapes and dtypes are known."""

import errno
import json
import os
import struct

import pytest
import torch
from safetensors import SafetensorError

from idiolect.core import tensors
from idiolect.core.tensors import bytes_of, read_tensors, shapes_of, write_tensors

STATE = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor([7])}


def anything(shapes) -> None:
    """Accepts all of them."""


def test_what_is_written_is_read_and_is_the_users_alone(tmp_path):
    path = tmp_path / "a.safetensors"
    before = os.umask(0)
    try:
        write_tensors(path, STATE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    read = read_tensors(path, anything)
    assert all(torch.equal(t, STATE[n]) for n, t in read.items()) and read.keys() == STATE.keys()


def test_shapes_say_what_tensors_take():
    assert bytes_of(shapes_of(STATE)) == 6 * 4 + 8
    assert bytes_of(shapes_of({"half": torch.zeros(3, 2, dtype=torch.float16)})) == 12


def test_nothing_is_read_that_the_check_refuses(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_tensors(path, STATE)

    def refuse(shapes) -> None:
        raise ValueError(f"{len(shapes)} tensors")

    with pytest.raises(ValueError, match=r"a\.safetensors: 2 tensors"):
        read_tensors(path, refuse)


def test_a_link_is_not_read(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, STATE)
    link = tmp_path / "b.safetensors"
    link.symlink_to(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_tensors(link, anything)


def test_numbers_of_a_strange_type_are_refused(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match=r"a\.safetensors: numbers of type F8_E4M3"):
        read_tensors(path, anything)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\xff" * 64, b"PK\x03\x04" + bytes(60)])
def test_other_files_are_refused_by_name(content, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^a\.safetensors: "):
        read_tensors(path, anything)


def test_a_full_disk_is_an_error_of_the_system_and_no_other_is(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr(tensors, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_tensors(tmp_path / "a.safetensors", STATE)
    assert caught.value.errno == errno.ENOSPC and str(caught.value.filename).endswith(
        "a.safetensors"
    )

    def broken(*_):
        raise SafetensorError("invalid")

    monkeypatch.setattr(tensors, "save_file", broken)
    with pytest.raises(SafetensorError, match="invalid"):
        write_tensors(tmp_path / "a.safetensors", STATE)
