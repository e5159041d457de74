"""A run killed at any file operation goes on to exactly the result it would have had.

`make test` tries a few operations, `make faults` all of them (IDIOLECT_FAULTS_KILLS=0).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.kill_points import CASES

KILLS = os.environ.get("IDIOLECT_FAULTS_KILLS", "4")  # 0 = at every operation


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("kills"))
    done = subprocess.run(
        [sys.executable, "-m", "faults.kill_points", place, KILLS],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_whatever_was_being_written_the_run_goes_on_to_the_same_result(case, report):
    found = report[case]
    assert found["operations"] > 20 and found["tried"]
    assert not found["wrong"]
