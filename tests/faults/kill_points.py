"""kill -9 at any file operation of `idiolect run` and `idiolect resume`, then `idiolect resume`.

    cd tests && python -m faults.kill_points FOLDER [COUNT]

Counts the file operations of each case below, kills a process at each of them (or at COUNT of them,
spread over all), resumes what it left, and compares what came out with a run that was not
interrupted: server, private rows, ledger, history and figures. Prints a JSON object: for each case
how many operations there are, how many were tried, and those that ended otherwise. torch is
imported once; every command runs in a fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

import idiolect as il
from engine.setting import bits, of_hosts, of_server
from faults.fileops import at_operation
from idiolect.cli.main import main as idiolect

# a channel with memory, a server optimiser, rows of clients, and a last round that is saved twice
OPTIONS = {
    "--steps": 2,
    "--data": "synthetic",
    "--clients": 4,
    "--samples": 60,
    "--rounds": 3,
    "--sample": 2,
    "--batch": 8,
    "--eval-every": 1,
    "--checkpoint-every": 1,
    "--server-optimizer": "adam",
    "--channel": "feedback + topk(share=0.5)",
}
RUN = ["run", "fedprox-soft", "--quiet", *(str(text) for pair in OPTIONS.items() for text in pair)]

HALF_WAY = 90  # of the operations of a run


def forked(work: Callable[[], str], timeout: int = 120) -> str:
    """What a forked process says; "killed" where it was."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(timeout)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {status}"
    return said


def command(arguments: list[str], folder: Path, at: int = 0) -> str:
    """A command of its own process: the names of its file operations, or how it ended."""

    def work() -> str:
        # a killed process loses nothing that it has written; only a dead machine does
        os.fsync = lambda handle: None
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            at_operation(folder, at) as operations,
        ):
            code = idiolect(arguments)
        return f"exit code {code}" if code else "\n".join(operations)

    return forked(work)


def outcome(folder: Path) -> str:
    """SHA-256 of all that a finished run leaves behind: states, ledger, history, figures."""

    def work() -> str:
        result = il.load(folder)
        out = hashlib.sha256()
        for one in result.seeds:
            session = result.session(one.seed)
            ledger = session.server.ledger
            kept = of_server(session.server) | of_hosts(session.hosts) | ledger.counts
            for name, t in sorted(kept.items()):
                out.update(name.encode() + bits(t).numpy().tobytes())
            facts = (one.history, one.final, ledger.save()[1], one.by_client.tolist())
            out.update(repr(facts).encode())
        figures = {k: v for k, v in result.summary().items() if k != "seconds"}
        out.update(repr(sorted(figures.items())).encode())
        return out.hexdigest()

    return forked(work)


def run(folder: Path, at: int = 0) -> str:
    return command([*RUN, "--directory", str(folder)], folder, at)


def resume(folder: Path, at: int = 0) -> str:
    return command(["resume", str(folder), "--quiet"], folder, at)


def carried_on(folder: Path) -> str:
    """What a killed run comes to: resumed, or run anew where it had not begun."""
    begun = (folder / "settings.json").exists()
    said = resume(folder) if begun else run(folder)
    half_written = [p.name for p in folder.rglob("*") if p.name.startswith(".")]
    if half_written:
        return f"left behind: {half_written}"
    out = outcome(folder)
    return out if len(out) == 64 else f"{said[-300:]}; {out}"


def begun(folder: Path, finished: Path) -> None:
    """A run that was killed about half-way."""
    assert run(folder, at=HALF_WAY) == "killed"


def copied(folder: Path, finished: Path) -> None:
    shutil.copytree(finished, folder)


CASES: dict[str, tuple[Callable[[Path, Path], None], Callable[[Path, int], str]]] = {
    "a run": (lambda folder, finished: None, run),
    "resuming a finished run": (copied, resume),
    "resuming a killed run": (begun, resume),
}


def main(place: Path, count: int) -> None:
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        idiolect([*RUN, "--directory", str(place / "warm")])  # imports what it needs, once for all
    finished = place / "finished"
    said = run(finished)
    whole = outcome(finished)
    if len(whole) != 64:
        raise SystemExit(f"the run that is not interrupted failed: {said[-500:]}; {whole}")
    report = {}
    for name, (prepare, act) in CASES.items():
        folder = place / "run"
        prepare(folder, finished)
        operations = act(folder, 0).splitlines()
        shutil.rmtree(folder)
        every = range(1, len(operations) + 1)
        share = max(1, count // len(CASES))
        points = every if not count else every[share // 2 :: max(1, len(operations) // share)]
        wrong = {}
        for at in points:
            prepare(folder, finished)
            how = act(folder, at)
            came_to = carried_on(folder) if how == "killed" else f"not killed: {how[-300:]}"
            if came_to != whole:
                wrong[f"{at} {operations[at - 1]}"] = came_to
                print(f"{name}: {at} {operations[at - 1]}: {came_to}", file=sys.stderr)
            shutil.rmtree(folder)
        report[name] = {"operations": len(operations), "tried": len(points), "wrong": wrong}
        print(f"{name}: {len(points)} of {len(operations)}, {len(wrong)} wrong", file=sys.stderr)
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
