"""kill -9 at any point of a round, of a checkpoint or of the end of a run.

The run continues to exactly the result it would have had. Run as a script, this file kills a forked
child at each point and resumes what it left; the tests read what came out.
"""

import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il

AGAIN = "000000000006-1"  # the last round, at the end of the run
POINTS = {  # what is called, the call at which to die, before or after it
    "before the first round": ("idiolect.host.host:Host.updates", 1, "before"),
    "before the clients' work": ("idiolect.host.host:Host.updates", 5, "before"),
    "after the clients' work": ("idiolect.server.server:Server.account", 5, "before"),
    "when a client's message has been received": (
        "idiolect.server.server:Server.receive",
        5,
        "after",
    ),
    "before the aggregation": ("idiolect.server.server:Server.close", 5, "before"),
    "after the aggregation": ("idiolect.server.server:Server.close", 5, "after"),
    "when the clients know the verdict": ("idiolect.host.host:Host.conclude", 5, "after"),
    "in an evaluation": ("idiolect.engine.rounds:Engine.evaluate", 5, "before"),
    "before a checkpoint": ("idiolect.run.checkpoint:save", 2, "before"),
    "after a checkpoint": ("idiolect.run.checkpoint:save", 2, "after"),
    "in the first checkpoint": ("idiolect.run.checkpoint:write_tensors", 2, "after"),
    "between the files of a checkpoint": ("idiolect.run.checkpoint:write_tensors", 3, "after"),
    "before a host saves its rows": ("idiolect.host.host:Host.save", 2, "before"),
    "between the files of a host": ("idiolect.host.host:write_tensors", 3, "after"),
    "before a checkpoint has its name": ("os:replace", "000000000004-0", "before"),
    "when a checkpoint has its name": ("os:replace", "000000000004-0", "after"),
    "when a round is saved again, before it has its name": ("os:replace", AGAIN, "before"),
    "when a round is saved again, and has its name": ("os:replace", AGAIN, "after"),
    "when the same round's earlier checkpoint is half removed": (
        "shutil:rmtree",
        "000000000006-0",
        "before",
    ),
    "when an old checkpoint is half removed": ("shutil:rmtree", "000000000002-0", "before"),
    "when the last checkpoint has its name": ("os:replace", "000000000006-0", "after"),
    "in the last evaluation": ("idiolect.engine.rounds:Engine.evaluate", 7, "before"),
    "before the result is written": ("os:replace", "result.json", "before"),
}


FULL = "a disk without room"


def run(directory: Path, resume: bool = False, progress=None) -> il.Result:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    data = il.Federation.from_arrays(
        rng.standard_normal((120, 8)) + y[:, None], y, np.repeat(np.arange(6), 20)
    )
    settings = {
        "rounds": 6,
        "sample": 3,
        "checkpoint_every": 2,
        "server_options": "momentum=0.9",
        "batching": "epochs",
        "batch": 8,
        "channel": "feedback + topk(share=0.5)",
    }
    return il.run(
        il.FedProxSoft(steps=3),
        il.Task(lambda: nn.Linear(8, 3)),
        data,
        directory=directory,
        resume=resume,
        progress=progress,
        **settings,
    )


def digest(result: il.Result) -> str:
    """SHA-256 of server, private rows, ledger, history and summary."""
    out = hashlib.sha256()
    for one in result.seeds:
        session = result.session(one.seed)
        ledger = session.server.ledger
        (host,) = session.hosts
        for state in (session.server.state, host.store.save(), host.coder.save(), ledger.counts):
            for name, t in sorted(state.items()):
                out.update(name.encode() + t.contiguous().view(torch.uint8).numpy().tobytes())
        facts = (one.history, one.final, ledger.save()[1], one.by_client.tolist())
        out.update(repr(facts).encode())
    out.update(repr(sorted((k, v) for k, v in result.summary().items() if k != "seconds")).encode())
    return out.hexdigest()


def arm(where: str, at: int | str, side: str) -> None:
    """Die by SIGKILL at the `at`-th call, or at the call whose path ends in `at`."""
    module, _, path = where.partition(":")
    owner = importlib.import_module(module)
    *holders, name = path.split(".")
    for holder in holders:
        owner = getattr(owner, holder)
    real = getattr(owner, name)
    calls = [0]

    def fatal(*args, **kwargs):
        calls[0] += 1
        paths = [str(a) for a in args if isinstance(a, (str, Path))]
        here = (
            calls[0] == at if isinstance(at, int) else any(Path(p).name == at for p in paths[-1:])
        )
        if here and name == "rmtree" and Path(paths[0]).exists():
            next(p for p in Path(paths[0]).iterdir()).unlink()
        elif here and name == "rmtree":
            here = False
        if here and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        out = real(*args, **kwargs)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return out

    setattr(owner, name, fatal)


def kill_and_resume(directory: Path, point: tuple) -> str:
    child = os.fork()
    if child == 0:
        arm(*point)
        run(directory)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        return "the child was not killed"
    return digest(run(directory, resume=True))


def fill_and_resume(directory: Path) -> str:
    """From the third round on no file can grow: a full disk, as the operating system shows it."""

    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == 3:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, digest(run(directory, progress=progress)).encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    kept = sorted(p.name for p in (directory / "checkpoints" / "seed-0").iterdir())
    if kept != ["000000000002-0"]:
        return f"{said}; checkpoints: {kept}"
    again = digest(run(directory, resume=True))
    return again if said == again else said


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    # a killed process loses nothing that it has written; only a dead machine does
    os.fsync = lambda handle: None
    out = {"whole": digest(run(folder / "whole"))}
    for name, point in {**POINTS, FULL: None}.items():
        directory = folder / "run"
        try:
            out[name] = kill_and_resume(directory, point) if point else fill_and_resume(directory)
            left = [
                str(p.relative_to(directory))
                for p in directory.rglob("*")
                if p.name.startswith(".")
            ]
            if left:
                out[name] = f"left behind: {left}"
        except Exception as error:
            out[name] = f"{type(error).__name__}: {error}"
        shutil.rmtree(directory)
    print(json.dumps(out))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path_factory.mktemp("killed"))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_here_resumes_exactly_and_leaves_nothing_half_written(point, outcomes):
    assert outcomes[point] == outcomes["whole"]


@pytest.mark.slow
def test_a_run_on_a_disk_without_room_ends_with_its_result_and_keeps_its_last_checkpoint(outcomes):
    assert outcomes[FULL] == outcomes["whole"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
