"""Random combinations of everything; docs/reliability.md.

`make test` tries the same few every time; with IDIOLECT_FAULTS_COMBINATIONS, as in `make faults`,
so many others, of a seed of the day. `python -m tests.combinations --count 2000 --seed 7` tries as
many as you like, and shrinks those that fail.
"""

import datetime
import os
import random

import pytest

from combinations.checks import examine, removable
from combinations.draw import draw

GROUPS = 2  # tests that share the combinations
COUNT = int(os.environ.get("IDIOLECT_FAULTS_COMBINATIONS", "20"))
SEED = 0 if COUNT == 20 else datetime.date.today().toordinal()


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_combination_does_what_it_must_or_is_refused_before_it_starts(group):
    failures = []
    for number in range(group, COUNT, GROUPS):
        combination = draw(SEED, number)
        names = removable(combination)
        removals = random.Random(number).sample(names, min(1, len(names)))
        broken = examine(combination, removals).failures
        failures += [f"{failure}\n    {combination}" for failure in broken]
    assert not failures, "\n".join([f"seed {SEED}:", *failures])
