"""Memory maps larger than memory: sorted on disk, used in place, never held in memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from idiolect import Federation
from idiolect.core.knobs import SettingError
from idiolect.data.read import memory_maps as mapped

N = 60
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
WHO = np.tile(["b", "a", "c"], N // 3)


@pytest.fixture
def large(monkeypatch):
    """Maps of any size count as large, and are read a few samples at a time."""
    monkeypatch.setattr(mapped, "SMALL", 0)
    monkeypatch.setattr(mapped, "CHUNK", 100)


def on_disk(folder, array, name="x.npy"):
    np.save(folder / name, array)
    return np.load(folder / name, mmap_mode="r")


@pytest.mark.parametrize("array", [X, X.astype(np.float64), X.astype(np.int64)])
def test_a_map_makes_the_same_federation_as_an_array(array, tmp_path, large, capsys):
    f = Federation.from_arrays(on_disk(tmp_path, array), Y, WHO, scratch=str(tmp_path))
    assert f.fingerprint() == Federation.from_arrays(array, Y, WHO).fingerprint()
    assert "sorted by split and client into a scratch file" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["x.npy"]  # the scratch file has no name


def test_slices_of_maps_and_pictures_are_maps_too(tmp_path, large):
    pixels = np.random.default_rng(0).integers(0, 256, (N + 5, 6, 7, 3), dtype=np.uint8)
    part = on_disk(tmp_path, pixels)[5:]
    assert mapped.is_mapped(part) and not mapped.is_mapped(pixels)
    f = Federation.from_arrays(part, Y, WHO)
    assert f.inputs.shape == (N, 3, 6, 7)
    assert f.fingerprint() == Federation.from_arrays(pixels[5:], Y, WHO).fingerprint()


def test_targets_may_be_maps(tmp_path, large):
    masks = np.random.default_rng(0).integers(0, 3, (N, 5, 5), dtype=np.uint8)
    f = Federation.from_arrays(X, on_disk(tmp_path, masks), WHO)
    assert f.fingerprint() == Federation.from_arrays(X, masks, WHO).fingerprint()


def test_a_map_that_is_in_order_is_used_in_place(tmp_path, large, capsys):
    x = on_disk(tmp_path, X)
    f = Federation.from_arrays(x, Y, np.sort(WHO), valid=0, test=0)
    assert f.inputs.data_ptr() == x.ctypes.data and not capsys.readouterr().err


def test_the_scratch_file_may_be_written_to_and_outlives_the_folder(tmp_path, large):
    x = on_disk(tmp_path, X)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    f = Federation.from_arrays(x, Y, WHO, scratch=str(scratch))
    shutil.rmtree(scratch)
    f.inputs[0] = 7.0
    assert f.inputs[0].tolist() == [7] * 4 and np.array_equal(x, X)


def test_samples_that_are_not_finite_are_named(tmp_path, large):
    bad = X.copy()
    bad[37, 2] = np.nan
    for who in (WHO, np.zeros(N, dtype=int)):
        with pytest.raises(SettingError, match="inputs: sample 37 holds NaN"):
            Federation.from_arrays(on_disk(tmp_path, bad), Y, who, valid=0, test=0)


def test_room_on_the_disk_is_checked_first(tmp_path, large, monkeypatch):
    x = on_disk(tmp_path, X)
    with pytest.raises(SettingError, match="scratch: there is no folder"):
        Federation.from_arrays(x, Y, WHO, scratch=str(tmp_path / "nowhere"))
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SettingError, match=r"needs 960 bytes, and .* has 100 bytes free"):
        Federation.from_arrays(x, Y, WHO, scratch=str(tmp_path))


def test_small_maps_are_simply_read(tmp_path, capsys):
    f = Federation.from_arrays(on_disk(tmp_path, X), Y, WHO)
    assert f.inputs.shape == (N, 4) and not capsys.readouterr().err


LIMITED = """
import resource, sys
import numpy as np
import torch
import idiolect as il

torch.set_num_threads(1)
n, d = 120_000, 500  # 229 MiB
x = np.memmap(sys.argv[1], dtype=np.float32, mode="r", shape=(n, d))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
room = int(status["VmData"].split()[0]) * 1024 + 140 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (room, room))  # memory that is no file
try:
    np.ones((n, d), dtype=np.float32)
    raise SystemExit("the limit has no effect")
except MemoryError:
    pass
who = np.random.default_rng(0).integers(0, 20, n)
f = il.Federation.from_arrays(x, np.arange(n) % 2, who, scratch=sys.argv[2])
f.fingerprint()
k = f.position(7)
first = f.part(k, "train")[0][:, 0]
assert set(first.tolist()) <= set(np.flatnonzero(who == 7).tolist()) and len(first) > 3000
il.run(il.FedAvg(), il.Task(lambda: torch.nn.Linear(d, 2)), f, rounds=1, sample=2)
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux")
def test_a_map_is_sorted_and_trained_on_within_less_memory_than_it_takes(tmp_path):
    x = np.memmap(tmp_path / "x.bin", dtype=np.float32, mode="w+", shape=(120_000, 500))
    x[:, 0] = np.arange(len(x))
    x.flush()
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "x.bin"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stderr
    assert os.listdir(tmp_path) == ["x.bin"]
