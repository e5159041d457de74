"""Rows on disk by round: whole after any end of the process, and one round back at any time."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from faults.fileops import at_operation
from faults.kill_points import forked
from host.replay import Recorded, digest, said, service_on
from idiolect.host import durable as module
from idiolect.host.calls import Call
from idiolect.host.durable import Durable
from idiolect.wire.messages import DownMessage

STATEFUL = "feedback + lbgm(threshold=0.9) + half"
CASES = [("scaffold", "none"), ("ditto", STATEFUL), ("lp-proj", "none"), ("fedavg", "none")]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c[0])
def recorded(request):
    return Recorded(*request.param)


@pytest.fixture(scope="module")
def scaffold():
    return Recorded("scaffold", STATEFUL)


@pytest.fixture(params=[256, 1, 0], ids=["never", "every second", "every"])
def rewritten(request, monkeypatch):
    """How often all rows are written anew."""
    monkeypatch.setattr(module, "MOST_FILES", request.param)
    return request.param


def test_rows_on_disk_are_those_in_memory_after_every_round(recorded, rewritten, tmp_path):
    service = service_on(recorded, tmp_path)
    for version in range(recorded.rounds):
        recorded.replayed(service, version, version + 1)
        assert digest(service.host) == recorded.rows[version]
        again = service_on(recorded, tmp_path, begun=True)
        assert again.concluded == version
        assert digest(again.host) == recorded.rows[version]


def test_a_new_process_goes_on_to_the_same_bits(recorded, rewritten, tmp_path):
    for version in range(recorded.rounds):
        service = service_on(recorded, tmp_path, begun=version > 0)
        for frame in recorded.of(version):
            reply = service.handle(frame)
            assert said(reply) == said(recorded.replies[recorded.calls.index(frame)])
    assert digest(service.host) == recorded.rows[recorded.rounds - 1]


def test_the_last_round_can_be_taken_back_at_any_time(recorded, rewritten, tmp_path):
    """Also right after all rows were written anew, and by a process that was started since."""
    service = service_on(recorded, tmp_path)
    for version in range(recorded.rounds):
        recorded.replayed(service, version, version + 1)
        for host_of in (service, service_on(recorded, tmp_path)):
            host_of.durable.back(version)
            assert digest(host_of.host) == recorded.rows[version - 1]
            assert host_of.durable.version == version - 1
            host_of.concluded = version - 1
            recorded.replayed(host_of, version, version + 1)
            assert digest(host_of.host) == recorded.rows[version]
        service = service_on(recorded, tmp_path)


def test_one_round_is_taken_back_and_no_more(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path)
    scaffold.replayed(service, 0, 4)
    with pytest.raises(ValueError, match="round 2 cannot be taken back; 3 is the last"):
        service.durable.back(2)
    assert digest(service.host) == scaffold.rows[3]


def test_rows_that_were_reset_cannot_be_taken_back(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path)
    scaffold.replayed(service, 0, 4)
    service.durable.reset(3)
    with pytest.raises(ValueError, match="rows before it are not kept"):
        service.durable.back(3)
    again = service_on(scaffold, tmp_path)
    assert again.concluded == 3 and digest(again.host) == scaffold.rows[3]


def test_a_reset_makes_later_rounds_void(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path / "rows")
    scaffold.replayed(service, 0, 2)
    service.host.save(tmp_path / "checkpoint")
    scaffold.replayed(service, 2, 5)
    service.host.load(tmp_path / "checkpoint")
    service.durable.reset(1)
    again = service_on(scaffold, tmp_path / "rows")
    assert again.concluded == 1 and digest(again.host) == scaffold.rows[1]


def test_disk_space_is_bounded(scaffold, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_FILES", 1)
    service = service_on(scaffold, tmp_path)
    counts = []
    for version in range(scaffold.rounds):
        scaffold.replayed(service, version, version + 1)
        names = [p.name for p in tmp_path.iterdir()]
        counts.append(len(names))
        assert sum(n.startswith("base-") for n in names) <= 2
        assert not [n for n in names if n.startswith(".")]
    assert max(counts) <= 8


def test_a_round_that_changed_nothing_counts_as_concluded(tmp_path):
    recorded = Recorded("fedavg", rounds=2)
    recorded.replayed(service_on(recorded, tmp_path))
    assert service_on(recorded, tmp_path, begun=True).concluded == 1


# -- files of others, and damaged ones -------------------------------------------------------------
def test_rows_that_existed_are_not_started_anew(scaffold, tmp_path):
    with pytest.raises(ValueError, match="are not here, and they existed"):
        service_on(scaffold, tmp_path, begun=True)
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 2)
    (tmp_path / "host.json").unlink()
    with pytest.raises(ValueError, match=r"host\.json is missing"):
        service_on(scaffold, tmp_path)


def test_rows_of_another_run_are_refused(scaffold, tmp_path):
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 1)
    other = Recorded("ditto", rounds=1)
    with pytest.raises(ValueError, match="rows of another run or clients"):
        service_on(other, tmp_path)


def newest(folder, pattern: str):
    return sorted(folder.glob(pattern))[-1]


def flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def emptied(path) -> None:
    path.write_bytes(b"")


def link(path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("harm", [flip, cut, emptied, link])
def test_a_damaged_round_is_refused_by_name(scaffold, tmp_path, harm):
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 3)
    harm(tmp_path / "round-000000000002.safetensors")
    with pytest.raises((ValueError, OSError), match=r"round-000000000002\.safetensors"):
        service_on(scaffold, tmp_path)


@pytest.mark.parametrize("harm", [flip, cut, emptied])
def test_a_damaged_base_is_refused_by_name(scaffold, tmp_path, monkeypatch, harm):
    monkeypatch.setattr(module, "MOST_FILES", 1)
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 4)
    base = newest(tmp_path, "base-*")
    harm(base / "private.safetensors")
    with pytest.raises(ValueError, match=f"{base.name}/private"):
        service_on(scaffold, tmp_path)


def test_a_round_that_is_missing_is_noticed(scaffold, tmp_path):
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 4)
    (tmp_path / "round-000000000002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"round-000000000003\.safetensors: .* a file is missing"):
        service_on(scaffold, tmp_path)


def resealed(path, change) -> None:
    """A file whose checksum is right, made by somebody who knows how."""
    tensors = load_file(path)
    del tensors["checksum"]
    change(tensors)
    save_file({**tensors, "checksum": torch.tensor([module._crc(tensors)])}, path)


FORGED = {
    "rows of a stranger": lambda t: t.update({"private.safetensors:ids": torch.tensor([77])}),
    "too many rows": lambda t: t.update({"private.safetensors:ids": torch.arange(9)}),
    "ids out of order": lambda t: t["private.safetensors:ids"].copy_(torch.tensor([1, 1, 1])),
    "another part": lambda t: t.update({"secret": torch.zeros(1)}),
    "another precision": lambda t: t.update({n: x.double() for n, x in t.items() if ":rows." in n}),
    "no predecessor": lambda t: t.pop("before"),
    "two predecessors": lambda t: t.update({"before": torch.tensor([0, 1])}),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_round_is_refused_by_name(scaffold, tmp_path, forgery):
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 2)
    resealed(tmp_path / "round-000000000002.safetensors", FORGED[forgery])
    with pytest.raises(ValueError, match=r"round-000000000002\.safetensors"):
        service_on(scaffold, tmp_path)


def test_a_file_that_is_no_part_of_it_is_left_alone(scaffold, tmp_path):
    scaffold.replayed(service_on(scaffold, tmp_path), 0, 2)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".round-000000000003.safetensors.abcd").write_text("half")
    assert service_on(scaffold, tmp_path).concluded == 1
    assert (tmp_path / "notes.txt").exists()
    assert not (tmp_path / ".round-000000000003.safetensors.abcd").exists()


def test_files_are_private(scaffold, tmp_path):
    folder = tmp_path / "rows"
    scaffold.replayed(service_on(scaffold, folder), 0, 2)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(p.stat().st_mode & 0o077 == 0 for p in folder.iterdir())


# -- the last message down -------------------------------------------------------------------------
def last_message(durable: Durable) -> tuple[int, bytes]:
    version, down = durable.last_down()
    return version, down.common


def test_messages_of_single_clients_are_kept_with_the_one_to_all(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path)
    own = np.arange(8, dtype=np.uint8).reshape(2, 4)
    service.durable.keep_down(0, DownMessage(b"all", torch.tensor([1, 4]), own))
    _, down = service.durable.last_down()
    assert down.common == b"all" and down.wire_ids.tolist() == [1, 4]
    assert down.own.tolist() == own.tolist()


def test_the_last_message_down_is_kept_with_the_rows(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path)
    assert service.durable.last_down() is None
    for version in range(4):
        service.durable.keep_down(version, DownMessage(bytes([version]) * 10))
        scaffold.replayed(service, version, version + 1)
    assert last_message(service.durable) == (3, bytes([3]) * 10)
    service.durable.keep_down(4, DownMessage(b"newer"))
    again = service_on(scaffold, tmp_path).durable
    assert last_message(again) == (4, b"newer")
    again.back(3)  # a message of a later version goes with later rows
    assert last_message(again) == (3, bytes([3]) * 10)
    assert len(list(tmp_path.glob("down-*"))) == 2
    flip(newest(tmp_path, "down-*4.safetensors"))
    with pytest.raises(ValueError, match=r"down-000000000004\.safetensors: it is damaged"):
        again.last_down()


def test_looking_changes_nothing_on_disk(scaffold, tmp_path):
    service = service_on(scaffold, tmp_path)
    scaffold.replayed(service, 0, 3)
    half = tmp_path / ".round-000000000009.safetensors.abcd"
    half.write_text("being written by the process at work")
    looking = Durable(scaffold.host(), tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert looking.peek() == 2 and digest(looking.host) == scaffold.rows[2]
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


# -- kill -9 ---------------------------------------------------------------------------------------
def session(recorded: Recorded, folder, at: int = 0) -> str:
    """All rounds from where the folder stands, the fourth one twice; killed at an operation.

    A digest of the rows at the end, or the number of operations.
    """

    def work() -> str:
        module.MOST_FILES = 1
        with at_operation(folder, at) as operations:
            service = service_on(recorded, folder)
            for version in range(service.concluded + 1, recorded.rounds):
                service.durable.keep_down(version, DownMessage(bytes([version]) * 8))
                recorded.replayed(service, version, version + 1)
                if version == 3:
                    recorded.replayed(service, version, version + 1)
        left = [p.name for p in folder.iterdir() if p.name.startswith(".")]
        assert not left, left
        version, down = last_message(service.durable)
        assert down == bytes([version]) * 8
        return f"{len(operations)} {digest(service.host)}"

    return forked(work, timeout=60)


def test_a_process_killed_at_any_file_operation_goes_on_to_the_same_rows(tmp_path):
    recorded = Recorded("scaffold", STATEFUL, rounds=5)
    operations, whole = session(recorded, tmp_path / "whole").split()
    assert whole == recorded.rows[4] and int(operations) > 60
    step = 1 if os.environ.get("IDIOLECT_FAULTS_KILLS") == "0" else 13
    tried = 0
    for at in range(1, int(operations) + 1, step):
        folder = tmp_path / "rows"
        assert session(recorded, folder, at) == "killed", at
        assert session(recorded, folder).split()[-1] == whole, at
        shutil.rmtree(folder)
        tried += 1
    assert tried >= 5


def test_a_process_killed_in_the_middle_of_a_round_does_it_again(scaffold, tmp_path):
    """A real one, by SIGKILL from outside, while it trains."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        service = service_on(scaffold, tmp_path)
        scaffold.replayed(service, 0, 3)
        service.handle(scaffold.of(3)[0])  # trained, and not concluded
        os.write(told, b"x")
        signal.pause()
    assert os.read(ready, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for end in (ready, told):
        os.close(end)
    service = service_on(scaffold, tmp_path, begun=True)
    assert service.concluded == 2 and digest(service.host) == scaffold.rows[2]
    scaffold.replayed(service, 3)
    assert digest(service.host) == scaffold.rows[scaffold.rounds - 1]


def test_facts_that_are_no_json_are_refused_by_name(scaffold, tmp_path):
    service_on(scaffold, tmp_path)
    (tmp_path / "host.json").write_text(json.dumps({"run": "seven"}))
    with pytest.raises(ValueError, match=r"host\.json"):
        service_on(scaffold, tmp_path)
    assert Call.open(scaffold.calls[0]).kind == "update"


def test_what_a_round_changed_is_on_disk_before_its_file_has_a_name(
    scaffold, tmp_path, monkeypatch
):
    """And the name is before the round counts: a power cut leaves all of it, or nothing."""
    service = service_on(scaffold, tmp_path)
    seen = []
    sync, replace = os.fsync, os.replace

    def synced(handle):
        seen.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def renamed(before, after):
        seen.append(("rename", str(before), str(after)))
        replace(before, after)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    scaffold.replayed(service, 0, 1)
    file = str(tmp_path / "round-000000000001.safetensors")
    (at,) = [k for k, event in enumerate(seen) if event[0] == "rename" and event[2] == file]
    temporary = seen[at][1]
    assert ("sync", temporary) in seen[:at]
    assert ("sync", str(tmp_path)) in seen[at + 1 :]


def test_all_rows_are_on_disk_before_their_folder_has_a_name(scaffold, tmp_path, monkeypatch):
    service = service_on(scaffold, tmp_path)
    scaffold.replayed(service, 0, 1)
    seen = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda f: seen.append(os.readlink(f"/proc/self/fd/{f}")) or sync(f)
    )
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(f"{a} > {b}") or replace(a, b))
    service.durable.rewrite(0)
    final = f" > {tmp_path}/base-"
    (at,) = [k for k, event in enumerate(seen) if final in event and event.count("/base-") == 1]
    folder = seen[at].split(" > ")[0]
    names = ("private.safetensors", "channel.safetensors")
    assert {f"{folder}/{name}" for name in names} | {folder} <= set(seen[:at])
    assert str(tmp_path) in seen[at + 1 :]
