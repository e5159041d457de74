"""Scratch folders of killed processes are removed at the next start, and no others."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from idiolect.core.scratch import PREFIX, ScratchFolder, hold, remove_abandoned

pytestmark = pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")


def abandoned(place: Path, name: str = "abcdefgh", mode: int = 0o700) -> Path:
    folder = place / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "samples-0").write_bytes(b"samples")
    folder.chmod(mode)
    return folder


def test_a_folder_that_nobody_holds_is_removed_by_the_next(tmp_path):
    folder = abandoned(tmp_path)
    with ScratchFolder(tmp_path) as name:
        assert not folder.exists() and Path(name).parent == tmp_path
        assert os.stat(name).st_mode & 0o777 == 0o700
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_held_stays(tmp_path):
    with ScratchFolder(tmp_path) as first, ScratchFolder(tmp_path) as second:
        assert os.path.isdir(first) and os.path.isdir(second)

    class Owner:
        pass

    owner, folder = Owner(), abandoned(tmp_path)
    assert hold(folder, owner)
    remove_abandoned(tmp_path)
    assert folder.exists()
    del owner
    remove_abandoned(tmp_path)
    assert not folder.exists()


def test_what_is_not_such_a_folder_stays(tmp_path):
    """Links, files, other names, and folders that others may write to or that are another's."""
    target = abandoned(tmp_path, "results-of-mine")
    (tmp_path / f"{PREFIX}linklink").symlink_to(target)
    (tmp_path / f"{PREFIX}filefile").write_bytes(b"")
    os.mkfifo(tmp_path / f"{PREFIX}pipepipe")
    abandoned(tmp_path, "opentoal", 0o777)
    if os.geteuid() == 0:
        os.chown(abandoned(tmp_path, "another1"), 12345, 12345)
    before = sorted(tmp_path.rglob("*"))
    ScratchFolder(tmp_path).cleanup()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_inside_leads_nowhere(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"")
    folder = abandoned(tmp_path)
    (folder / "out").symlink_to(tmp_path / "precious")
    remove_abandoned(tmp_path)
    assert not folder.exists() and (tmp_path / "precious" / "file").exists()


def test_a_folder_taken_for_abandoned_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    real = tempfile.TemporaryDirectory.__init__
    names = []

    def racing(self, **options):
        real(self, **options)
        names.append(self.name)
        if len(names) == 1:
            remove_abandoned(tmp_path)  # by another process that starts

    monkeypatch.setattr(tempfile.TemporaryDirectory, "__init__", racing)
    with ScratchFolder(tmp_path) as name:
        assert names == [names[0], name] and os.path.isdir(name)
        assert not os.path.exists(names[0])


SWEEP = """
import sys
from idiolect.cli.main import main
if __name__ == "__main__":
    main(["sweep", "fedavg", "--data", "synthetic", "--clients", "4", "--rounds", "100000",
          "--grid", "lr=0.1,0.2", "--jobs", "2", "--quiet", "--directory", sys.argv[1]])
"""


def test_the_data_of_a_killed_sweep_are_gone_with_the_next_start(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    environment = {**os.environ, "TMPDIR": str(scratch)}
    sweep = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "sweep")],
        env=environment,
        preexec_fn=lambda: os.umask(0),
    )
    try:
        end = time.monotonic() + 60
        while not list(scratch.glob("*/samples-0")) and time.monotonic() < end:
            time.sleep(0.05)
        (samples,) = scratch.glob("*/samples-0")
        modes = [os.stat(path).st_mode & 0o777 for path in (samples, samples.parent)]
        assert modes == [0o600, 0o700]
        remove_abandoned(scratch)
        assert samples.exists()  # it is at work
    finally:
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait()
    assert samples.exists()
    ScratchFolder(scratch).cleanup()
    assert not list(scratch.glob(f"{PREFIX}*"))
