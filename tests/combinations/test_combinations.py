"""Random combinations of everything; docs/reliability.md. `make faults` tries new ones, many more.

IDIOLECT_COMBINATIONS = how many new ones; without it the same few every time.
"""

import os
import random

import pytest

from combinations.checks import examine, removable
from combinations.draw import draw

MORE = int(os.environ.get("IDIOLECT_COMBINATIONS", "0"))
SEED = random.SystemRandom().randrange(10**6) if MORE else 0
GROUPS = 6  # tests that share the combinations
FEW = 60


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_combination_does_what_it_must_or_is_refused_before_it_starts(group):
    failures = []
    for number in range(group, MORE or FEW, GROUPS):
        combination = draw(SEED, number)
        names = removable(combination)
        removals = random.Random(number).sample(names, min(1, len(names)))
        for failure in examine(combination, removals).failures:
            failures.append(f"{failure}\n    {combination}")
    assert not failures, f"seed {SEED}:\n" + "\n".join(failures)
