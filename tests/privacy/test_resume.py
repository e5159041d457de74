"""Stopped, killed, resumed, with more rounds: the budget is never under-counted."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch

import idiolect as il
from helpers import classification, linear
from idiolect.privacy.accountant import Accountant
from idiolect.run.checkpoint import CheckpointError
from idiolect.run.run import Interrupted
from idiolect.testing import state_of

DATA = classification(sizes=(20,) * 12)
KNOWN = {"privacy": "central(noise=2)", "sample": 4}
POISSON = {"privacy": "central(noise=1.5)", "sample": 4, "selection": "poisson"}
LOCAL = {"privacy": "local(noise=3)", "sample": 4}
SECRET = {"noise_source": "secret"}


def run(folder, stop=0, die=0, method="fedavg", **settings) -> il.Result:
    """Six rounds; with SIGINT or SIGKILL after a round."""

    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)
        if round == die:
            os.kill(os.getpid(), signal.SIGKILL)

    usual = {"rounds": 6, "batch": 8, "eval_every": 3, "noise_source": "seed"}
    resume = folder is not None and (folder / "settings.json").exists()
    return il.run(
        *(method, linear(), DATA),
        directory=folder,
        resume=resume,
        progress=progress,
        **{**usual, **settings},
    )


def killed(folder, **settings) -> None:
    """A run of which nothing but its directory is left."""
    child = os.fork()
    if child == 0:
        run(folder, **settings)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def exposures(result: il.Result, seed: int = 0) -> torch.Tensor:
    return result.session(seed).server.privacy.exposures


def spent(result: il.Result) -> list[float]:
    return [row["epsilon"] for row in result.clients_table()]


@pytest.mark.parametrize("privacy", [KNOWN, POISSON, LOCAL], ids=["known", "poisson", "local"])
def test_a_run_that_was_stopped_goes_on_to_the_same_result(tmp_path, privacy):
    whole = run(None, **privacy)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop=3, **privacy)
    again = run(tmp_path / "run", **privacy)
    for name, t in state_of(whole).items():
        assert torch.equal(t, state_of(again)[name])
    assert spent(whole) == spent(again)
    assert whole.seeds[0].privacy == again.seeds[0].privacy
    assert whole.seeds[0].history == again.seeds[0].history


def test_with_secret_noise_a_stopped_run_counts_each_round_once(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop=3, **POISSON | SECRET)
    again = run(tmp_path / "run", **POISSON | SECRET)
    assert exposures(again).tolist() == [6] * 12
    assert again.seeds[0].privacy["rounds"] == 6


@pytest.mark.parametrize("every, saved", [(0, 0), (2, 4)])
@pytest.mark.parametrize("privacy", [KNOWN, POISSON, LOCAL], ids=["known", "poisson", "local"])
def test_rounds_after_the_last_checkpoint_of_a_killed_run_count_twice(
    tmp_path, privacy, every, saved
):
    whole = run(None, **privacy)
    killed(tmp_path / "run", die=5, checkpoint_every=every, checkpoint_minutes=0, **privacy)
    again = run(tmp_path / "run", checkpoint_every=every, checkpoint_minutes=0, **privacy)
    redone = 5 - saved
    assert again.seeds[0].privacy["rounds"] == 6 + redone
    more = exposures(again) - exposures(whole)
    clients = 12 if privacy is POISSON else 4
    assert int(more.sum()) == clients * redone
    if privacy is POISSON:
        assert more.tolist() == [redone] * 12
    assert sum(spent(again)) > sum(spent(whole))
    for name, t in state_of(whole).items():  # the noise of the seed is the same again
        assert torch.equal(t, state_of(again)[name])


def test_a_run_that_is_killed_again_and_again_counts_every_round_begun(tmp_path):
    for _ in range(3):
        killed(tmp_path / "run", die=2, checkpoint_minutes=0, **POISSON)
    again = run(tmp_path / "run", checkpoint_minutes=0, **POISSON)
    assert again.seeds[0].privacy["rounds"] == 3 * 2 + 6
    assert exposures(again).tolist() == [12] * 12


def test_a_round_killed_before_it_ended_counts(tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        from idiolect.server.server import Server

        real = Server.close

        def close(self, current):
            if current.version == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, current)

        Server.close = close
        run(tmp_path / "run", checkpoint_every=1, **POISSON)
        os._exit(0)
    os.waitpid(child, 0)
    again = run(tmp_path / "run", checkpoint_every=1, **POISSON)
    assert exposures(again).tolist() == [7] * 12


def test_an_older_checkpoint_counts_what_came_after_it_twice(tmp_path, capsys):
    run(tmp_path / "run", checkpoint_every=3, **POISSON)
    newest = max((tmp_path / "run" / "checkpoints" / "seed-0").iterdir())
    (newest / "server.safetensors").write_bytes(b"damaged")
    again = run(tmp_path / "run", checkpoint_every=3, **POISSON)
    assert "is damaged" in capsys.readouterr().err
    assert exposures(again).tolist() == [9] * 12


# -- the log ---------------------------------------------------------------------------------------
def stopped(folder, **settings):
    with pytest.raises(Interrupted):
        run(folder, stop=3, **settings)
    return folder / "privacy-seed-0.log"


@pytest.mark.parametrize("content", [None, b"", b"what?\n"])
def test_a_log_that_is_missing_or_damaged_is_refused(tmp_path, content):
    log = stopped(tmp_path / "run", **POISSON)
    log.unlink() if content is None else log.write_bytes(content)
    with pytest.raises(il.SettingError, match=r"privacy-seed-0\.log .*what was spent is not known"):
        run(tmp_path / "run", **POISSON)


def test_a_log_that_is_missing_is_refused_before_the_first_checkpoint_too(tmp_path):
    killed(tmp_path / "run", die=2, checkpoint_minutes=0, **POISSON)
    (tmp_path / "run" / "privacy-seed-0.log").unlink()
    with pytest.raises(il.SettingError, match="what was spent is not known"):
        run(tmp_path / "run", **POISSON)


def test_a_log_that_was_cut_is_refused(tmp_path):
    log = stopped(tmp_path / "run", **POISSON)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(il.SettingError, match="has 2 rounds and the checkpoint 3"):
        run(tmp_path / "run", **POISSON)


def test_a_line_that_was_cut_off_counts_for_everyone(tmp_path):
    log = stopped(tmp_path / "run", **KNOWN)
    log.write_bytes(log.read_bytes() + b"4 0a")
    again = run(tmp_path / "run", **KNOWN)
    whole = run(None, **KNOWN)
    assert (exposures(again) - exposures(whole)).tolist() == [1] * 12


def test_a_checkpoint_with_other_noise_is_refused(tmp_path):
    log = stopped(tmp_path / "run", **POISSON)
    other = tmp_path / "other"
    killed(other, die=1, checkpoint_minutes=0, **POISSON | {"privacy": "central(noise=9)"})
    lines = log.read_bytes().splitlines(keepends=True)
    first = (other / log.name).read_bytes().splitlines(keepends=True)[0]
    log.write_bytes(b"".join([first, *lines[1:]]))
    with pytest.raises(CheckpointError, match=r"privacy.noise must be 9.0, as the run was begun"):
        run(tmp_path / "run", **POISSON)


# -- more rounds -----------------------------------------------------------------------------------
@pytest.mark.parametrize("sampling", [{}, {"selection": "poisson"}])
def test_more_rounds_keep_the_noise_and_end_at_the_budget(tmp_path, sampling, capsys):
    budget = {"epsilon": 2.0, "sample": 4, **sampling}
    first = run(tmp_path / "run", **budget)
    noise = first.seeds[0].privacy["noise"]
    longer = run(tmp_path / "run", **budget, rounds=60)
    assert "rounds: the noise was chosen for clients heard" in capsys.readouterr().err
    after = longer.seeds[0].privacy
    assert after["noise"] == noise
    assert after["epsilon"]["worst"] <= 2.0
    assert longer.seeds[0].stopped == "epsilon" and 6 <= longer.seeds[0].rounds < 60
    # the figure is that of all rounds with the noise that they had
    count = int(exposures(longer).max())
    rate = 4 / 12 if sampling else 1.0
    assert after["epsilon"]["worst"] == Accountant(noise, rate).epsilon(count, 1e-5)


def test_more_rounds_with_noise_of_ones_own_spend_more(tmp_path):
    run(tmp_path / "run", **POISSON)
    longer = run(tmp_path / "run", **POISSON, rounds=9)
    assert exposures(longer).tolist() == [9] * 12 and longer.seeds[0].stopped == "rounds"


@pytest.mark.parametrize("change", [{"epsilon": 4.0}, {"delta": 1e-3}, {"privacy": "local"}])
def test_another_budget_or_mechanism_does_not_continue_a_run(tmp_path, change):
    run(tmp_path / "run", epsilon=2.0, sample=4)
    with pytest.raises(il.SettingError, match=r"resume: .* was made with another run"):
        run(tmp_path / "run", **{"epsilon": 2.0, "sample": 4, **change})


def test_a_finished_run_is_read_again_with_the_same_figures(tmp_path):
    done = run(tmp_path / "run", epsilon=2.0, sample=4)
    read = il.load(tmp_path / "run", task=linear(), federation=DATA)
    assert read.summary()["privacy"] == done.summary()["privacy"]
    assert read.session(0).server.privacy.figures() == done.seeds[0].privacy
    shutil.move(tmp_path / "run" / "privacy-seed-0.log", tmp_path / "away")
    with pytest.raises(il.SettingError, match="what was spent is not known"):
        il.load(tmp_path / "run", task=linear(), federation=DATA).session(0)


# -- seeds -----------------------------------------------------------------------------------------
def test_each_seed_has_an_account_and_a_log_of_its_own(tmp_path):
    killed(tmp_path / "run", die=4, seeds=2, checkpoint_minutes=0, **POISSON)
    again = run(tmp_path / "run", seeds=2, checkpoint_minutes=0, **POISSON)
    assert [s.privacy["rounds"] for s in again.seeds] == [10, 6]
    assert [exposures(again, s).tolist() for s in (0, 1)] == [[10] * 12, [6] * 12]
    worst = max(s.privacy["epsilon"]["worst"] for s in again.seeds)
    assert again.summary()["privacy"]["epsilon"]["worst"] == worst
    assert len(list((tmp_path / "run").glob("privacy-seed-*.log"))) == 2


def test_the_record_of_a_run_has_what_was_spent(tmp_path):
    done = run(tmp_path / "run", **POISSON)
    document = json.loads((tmp_path / "run" / "record.json").read_text())
    assert document["seeds"][0]["privacy"]["epsilon"]["worst"] == max(spent(done))
    header, *rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    column = header.split(",").index("epsilon")
    assert np.allclose([float(row.split(",")[column]) for row in rows], spent(done))


@pytest.mark.parametrize("method", ["local", "fedper"])
def test_a_method_that_sends_nothing_has_no_log_and_needs_none(tmp_path, method):
    settings = {"method": method, "privacy": "local(noise=1)"}
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop=3, **settings)
    again = run(tmp_path / "run", **settings)
    assert not list((tmp_path / "run").glob("privacy-*"))
    assert again.seeds[0].privacy == {} and "epsilon" not in again.clients_table()[0]
    assert il.load(tmp_path / "run", task=linear(), federation=DATA).session(0).rounds == 6
