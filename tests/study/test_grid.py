"""Grids of runs: stored one by one, continued where they were, stopped without a loss."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from idiolect import Interrupted
from idiolect.study import jobs as grid
from idiolect.study.jobs import finish, stored
from study.tiny_jobs import Square


@pytest.fixture
def trained(monkeypatch):
    """The numbers of the jobs that were really run."""
    numbers = []
    train = Square.train

    def counting(job):
        numbers.append(job.number)
        return train(job)

    monkeypatch.setattr(Square, "train", counting)
    return numbers


@pytest.fixture
def threads(monkeypatch):
    """Worker threads in place of worker processes, which take seconds to start."""
    monkeypatch.setattr(grid, "_pool", lambda workers, share: ThreadPoolExecutor(workers))


def squares(results):
    return {job.number: result["square"] for job, result in results.items()}


def test_all_jobs_are_run_and_stored_as_json(tmp_path, trained):
    path = tmp_path / "new folder" / "runs.jsonl"
    results = finish([Square(2), Square(3)], path)
    assert squares(results) == {2: 4, 3: 9} and trained == [2, 3]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["key"] for line in lines] == ["square 2", "square 3"]
    assert lines[0]["job"] == "the square of 2"
    assert "NaN" not in path.read_text()


def test_a_result_is_the_same_whether_run_now_or_read_again(tmp_path):
    first = finish([Square(2)], tmp_path / "runs.jsonl")
    assert first == {Square(2): {"square": 4, "nothing": None, "pair": [1, 2]}}
    assert finish([Square(2)], tmp_path / "runs.jsonl") == first
    assert stored(tmp_path / "runs.jsonl") == {"square 2": first[Square(2)]}


def test_started_again_it_runs_only_what_is_missing(tmp_path, trained):
    path = tmp_path / "runs.jsonl"
    finish([Square(2), Square(3)], path)
    results = finish([Square(4), Square(3), Square(2)], path)
    assert trained == [2, 3, 4]
    assert list(squares(results)) == [4, 3, 2]  # in the order of the jobs


def test_jobs_of_another_grid_in_the_file_are_left_alone(tmp_path):
    path = tmp_path / "runs.jsonl"
    finish([Square(2)], path)
    assert squares(finish([Square(3)], path)) == {3: 9}
    assert set(stored(path)) == {"square 2", "square 3"}


def test_a_job_given_twice_is_run_once(tmp_path, trained):
    finish([Square(2), Square(2)], tmp_path / "runs.jsonl")
    assert trained == [2]


@pytest.mark.parametrize("rest", ['{"key": "square 3", "resu', "null\n", '{"key": "square 3"}\n'])
def test_a_line_that_was_cut_off_counts_as_not_run(rest, tmp_path, trained):
    path = tmp_path / "runs.jsonl"
    finish([Square(2)], path)
    path.write_text(path.read_text() + rest)
    assert squares(finish([Square(2), Square(3)], path)) == {2: 4, 3: 9}
    assert trained == [2, 3]
    assert squares(finish([Square(2), Square(3)], path)) == {2: 4, 3: 9}
    assert trained == [2, 3]


def test_the_report_tells_what_is_stored_and_then_every_job(tmp_path):
    told = []
    path = tmp_path / "runs.jsonl"
    finish([Square(2)], path)
    finish(
        [Square(2), Square(3), Square(4)],
        path,
        report=lambda results, job: told.append((len(results), job)),
    )
    assert told == [(1, None), (2, Square(3)), (3, Square(4))]


def test_results_that_come_in_any_order_are_filed_under_their_own_job(tmp_path, threads):
    jobs = [Square(n, seconds=0.02 * (n % 3)) for n in range(12)]
    path = tmp_path / "runs.jsonl"
    results = finish(jobs, path, workers=3)
    assert squares(results) == {n: n**2 for n in range(12)} and list(results) == jobs
    assert {key: result["square"] for key, result in stored(path).items()} == {
        f"square {n}": n**2 for n in range(12)
    }


def test_an_error_of_a_job_is_raised_and_earlier_results_are_kept(tmp_path):
    path = tmp_path / "runs.jsonl"
    with pytest.raises(ValueError, match="broken"):
        finish([Square(2), Square(3, error="broken"), Square(4)], path)
    assert set(stored(path)) == {"square 2"}


# -- Ctrl-C -------------------------------------------------------------------------------------
def press_ctrl_c_when(condition, times=1):
    def wait_and_press():
        while not condition():
            time.sleep(0.005)
        for _ in range(times):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)

    threading.Thread(target=wait_and_press, daemon=True).start()


def test_ctrl_c_lets_the_job_at_work_end(tmp_path, trained, capsys):
    path = tmp_path / "runs.jsonl"
    jobs = [Square(n, seconds=0.2) for n in range(5)]
    press_ctrl_c_when(lambda: len(trained) == 2)
    with pytest.raises(Interrupted, match="finished jobs are stored"):
        finish(jobs, path)
    assert trained == [0, 1] and set(stored(path)) == {"square 0", "square 1"}
    assert "finishing the jobs at work" in capsys.readouterr().err
    assert squares(finish(jobs, path)) == {n: n**2 for n in range(5)}
    assert trained == [0, 1, 2, 3, 4]


def test_ctrl_c_lets_the_jobs_of_all_workers_end(tmp_path, trained, threads):
    path = tmp_path / "runs.jsonl"
    jobs = [Square(n, seconds=0.2) for n in range(9)]
    press_ctrl_c_when(lambda: len(trained) == 2)
    with pytest.raises(Interrupted):
        finish(jobs, path, workers=2)
    assert 2 <= len(trained) < 9
    assert set(stored(path)) == {f"square {n}" for n in trained}


def test_a_second_ctrl_c_stops_at_once(tmp_path, trained):
    path = tmp_path / "runs.jsonl"
    press_ctrl_c_when(lambda: len(trained) == 1, times=2)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        finish([Square(2, seconds=5.0)], path)
    assert time.monotonic() - began < 2 and stored(path) == {}


# -- processes ----------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path):
    jobs = [Square(n) for n in range(5)]
    one = finish(jobs, tmp_path / "one.jsonl", workers=1)
    two = finish(jobs, tmp_path / "two.jsonl", workers=2)
    assert one == two and stored(tmp_path / "one.jsonl") == stored(tmp_path / "two.jsonl")


_GRID = """
import sys
from pathlib import Path
from idiolect.study.jobs import finish
from study.tiny_jobs import Square
if __name__ == "__main__":
    jobs = [Square(n, seconds=float(sys.argv[2])) for n in range(20)]
    finish(jobs, Path(sys.argv[1]), workers=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("presses", "seconds"), [(1, 0.5), (2, 30.0)])
def test_ctrl_c_on_a_grid_in_processes(presses, seconds, tmp_path):
    """One press ends it after the jobs at work, two at once; no worker is left behind."""
    script = tmp_path / "script.py"
    path = tmp_path / "runs.jsonl"
    script.write_text(_GRID)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(path), str(seconds)]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if presses == 1:
        while process.poll() is None and not stored(path):
            time.sleep(0.05)
    else:
        time.sleep(15)  # the workers are started and at work
    began = time.monotonic()
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
        time.sleep(0.3)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0 and "finishing the jobs at work" in said
    assert time.monotonic() - began < 15
    done = len(stored(path))
    assert (0 < done < 20) if presses == 1 else done == 0
    with pytest.raises(ProcessLookupError):  # the session is empty
        for _ in range(50):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_nothing_of_any_paper_is_in_the_runner():
    assert "lp-proj" not in Path(grid.__file__).read_text()


def living(group: int) -> list[int]:
    """Processes of a session, as /proc tells; one that is dead but not yet waited for is none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("when", ["at work", "while workers start"])
def test_workers_end_when_their_parent_is_killed_and_the_grid_goes_on(when, tmp_path):
    """kill -9 of the parent: neither a worker nor the resource tracker stays."""
    script = tmp_path / "script.py"
    path = tmp_path / "runs.jsonl"
    script.write_text(_GRID)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(path), "0.5"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    started = 3 if when == "while workers start" else 4  # the parent, the tracker, the workers
    while len(living(process.pid)) < started or (when == "at work" and not stored(path)):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while living(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living(process.pid) == []
    before = stored(path)
    assert set(before) <= {f"square {n}" for n in range(20)}
    results = finish([Square(n) for n in range(20)], path)
    assert squares(results) == {n: n**2 for n in range(20)}
    assert all(stored(path)[key] == result for key, result in before.items())


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "seconds"), [(1, 0.5), (2, 30.0)])
def test_sigterm_to_all_processes_of_a_grid_lets_the_jobs_at_work_end(signals, seconds, tmp_path):
    """As a scheduler sends it: to the parent and its workers. A second one stops at once."""
    script = tmp_path / "script.py"
    path = tmp_path / "runs.jsonl"
    script.write_text(_GRID)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(path), str(seconds)]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while len(living(process.pid)) < 4 or (signals == 1 and not stored(path)):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0 if signals == 1 else 12)  # the workers have their jobs
    for _ in range(signals):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.3)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0 and "finishing the jobs at work" in said
    assert (0 < len(stored(path)) < 20) if signals == 1 else not stored(path)
    deadline = time.monotonic() + 10
    while living(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living(process.pid) == []
