"""kill -9 at any stage of a private run: its rounds count, and what it comes to is the same."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import idiolect as il
from faults.test_kill import POINTS, arm
from helpers import classification, linear
from idiolect.privacy.accountant import Accountant
from idiolect.run.privacy_log import PrivacyLog
from idiolect.testing import state_of

DATA = classification(sizes=(20,) * 6)
NOISE, ROUNDS = 2.0, 6
KINDS = {
    "known": {"privacy": f"central(noise={NOISE})"},
    "poisson": {"privacy": f"central(noise={NOISE})", "selection": "poisson"},
    "local": {"privacy": f"local(noise={NOISE})"},
}


def run(directory: Path | None, resume: bool = False, kind: str = "poisson") -> il.Result:
    return il.run(
        *("fedavg", linear(), DATA),
        directory=directory,
        resume=resume,
        rounds=ROUNDS,
        sample=3,
        batch=8,
        checkpoint_every=2,
        noise_source="seed",
        **KINDS[kind],
    )


@pytest.fixture(scope="module")
def whole() -> dict[str, il.Result]:
    return {kind: run(None, kind=kind) for kind in KINDS}


def accounts(result: il.Result) -> np.ndarray:
    return result.session().server.privacy.exposures.numpy()


def check_invariant(directory: Path, result: il.Result, straight: il.Result) -> None:
    """Every round begun is counted once, of a client that it exposed, and none is forgotten."""
    account = result.session().server.privacy
    begun = PrivacyLog.of(directory, 0).after(0)
    assert account.begun == len(begun) >= ROUNDS
    assert set(begun) == set(range(ROUNDS))
    extra = accounts(result) - accounts(straight)
    assert extra.min() >= 0
    per_round = 6 if account.plan.exposure.amplified else 3
    assert extra.sum() == per_round * (len(begun) - ROUNDS) == per_round * account.killed
    mechanism = Accountant(NOISE, account.plan.exposure.rate)
    for row, count in zip(result.clients_table(), account.exposures.tolist(), strict=True):
        assert row["epsilon"] == mechanism.epsilon(count, 1e-5)
    for name, t in state_of(straight).items():
        assert torch.equal(t, state_of(result)[name]), name


@pytest.mark.parametrize("point", POINTS)
def test_no_round_is_forgotten_wherever_the_process_dies(point, whole, tmp_path):
    directory = tmp_path / "run"
    kind = list(KINDS)[list(POINTS).index(point) % len(KINDS)]
    child = os.fork()
    if child == 0:
        arm(*POINTS[point])
        run(directory, kind=kind)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    check_invariant(directory, run(directory, resume=True, kind=kind), whole[kind])


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(
    "where",
    [
        "idiolect.run.privacy_log:PrivacyLog.append",
        "idiolect.server.private_mean:PrivacyAccount.begin",
        "idiolect.server.server:Server.open",
        "idiolect.server.private_mean:PrivateMean.__call__",
    ],
)
def test_nor_where_it_dies_about_the_log_itself(where, side, whole, tmp_path):
    directory = tmp_path / "run"
    child = os.fork()
    if child == 0:
        arm(where, 4, side)
        run(directory)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    check_invariant(directory, run(directory, resume=True), whole["poisson"])


def test_a_run_that_is_killed_when_it_makes_its_directory_begins_or_is_refused(whole, tmp_path):
    """The logs are there before settings.json is: a directory with it has all of them."""
    for number in range(1, 8):
        directory = tmp_path / f"run-{number}"
        child = os.fork()
        if child == 0:
            arm("os:replace", number, "before")
            run(directory)
            os._exit(0)
        os.waitpid(child, 0)
        begun = (directory / "settings.json").exists()
        assert not begun or PrivacyLog.of(directory, 0).path.exists()
        check_invariant(directory, run(directory, resume=begun), whole["poisson"])
        shutil.rmtree(directory)


def test_a_disk_without_room_ends_the_run_before_an_uncounted_round(tmp_path, monkeypatch):
    real = os.write

    def full(handle: int, content: bytes) -> int:
        if b" " in bytes(content)[:12] and len(content) < 21:
            real(handle, bytes(content)[:3])
            raise OSError(28, "No space left on device")
        return real(handle, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(il.SettingError, match="a round must be written down before it spends"):
        run(tmp_path / "run")
    monkeypatch.undo()
    result = run(tmp_path / "run", resume=True)
    assert accounts(result).tolist() == [ROUNDS + 1] * 6  # the line that was cut off counts
