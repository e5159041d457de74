"""The log of rounds begun: on the disk before a round, cut off, damaged, missing."""

import os

import pytest

from idiolect.core.knobs import SettingError
from idiolect.privacy.plan import Mechanism
from idiolect.run.privacy_log import PrivacyLog

MECHANISM = Mechanism(noise=1.5, rate=0.1, rounds=30, sample=10, clients=100)


@pytest.fixture
def log(tmp_path):
    log = PrivacyLog.of(tmp_path, 3)
    log.create(MECHANISM)
    for round in range(4):
        log.append(round)
    return log


def test_it_gives_back_what_was_written(log):
    assert log.path.name == "privacy-seed-3.log"
    assert log.mechanism() == MECHANISM
    assert log.after(0) == [0, 1, 2, 3] and log.after(3) == [3] and log.after(4) == []
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_line_is_on_the_disk_itself_when_a_round_begins(log, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    log.append(4)
    assert synced == [log.path.stat().st_size]


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_line_that_was_cut_off_counts_wherever_it_was_cut(log, cut):
    size = log.path.stat().st_size
    os.truncate(log.path, size - cut)
    rounds = log.after(0)
    assert rounds[:3] == [0, 1, 2]
    assert len(rounds) == (3 if cut == 11 else 4)
    assert rounds[3] in ((3,) if cut == 1 else (None,))


@pytest.mark.parametrize("cut", range(1, 11))
def test_what_comes_behind_a_line_that_was_cut_off_is_one_more(log, cut):
    os.truncate(log.path, log.path.stat().st_size - cut)
    log.append(3)
    log.append(4)
    assert len(log.after(0)) == 6 and log.after(4) == [3, 4]


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_a_log_with_fewer_rounds_than_the_checkpoint_is_refused(log, lines):
    content = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(content[: max(5 - lines, 1)]))
    with pytest.raises(ValueError, match=r"rounds and the checkpoint 4: what was spent is not"):
        log.after(4)


def test_a_log_that_is_missing_is_refused(log):
    log.path.unlink()
    for read in (log.mechanism, lambda: log.after(0)):
        with pytest.raises(ValueError, match="is missing: what was spent is not known; put the"):
            read()
    with pytest.raises(SettingError, match="a round must be written down before it spends"):
        log.append(4)


def test_a_log_with_a_changed_byte_is_refused_or_says_no_less(log):
    content = log.path.read_bytes()
    for at in range(len(content)):
        for bit in (0, 3, 6):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            log.path.write_bytes(bytes(changed))
            try:
                assert len(log.after(0)) == 4 and log.mechanism() == MECHANISM
            except ValueError as error:
                assert str(log.path) in str(error)


def test_a_link_in_its_place_is_refused(log, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_bytes(log.path.read_bytes())
    log.path.unlink()
    log.path.symlink_to(target)
    with pytest.raises(ValueError, match="cannot use"):
        log.after(0)
    with pytest.raises(SettingError, match="cannot write"):
        log.append(4)
