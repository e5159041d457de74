"""Random combinations of everything, the same few every time; docs/reliability.md.

`python -m tests.combinations --count 2000 --seed 7` tries others.
"""

import random

import pytest

from combinations.checks import examine, removable
from combinations.draw import draw

GROUPS = 4  # tests that share the combinations
COUNT = 60

# Defects that are known and open, by the number of the combination: its checks that fail. Nothing
# else may fail, and what no longer fails leaves this list.
BITS = ("hosts", "resume")  # last bits depend on how many clients are computed together
OPEN = {
    20: BITS,
    22: ("figures",),  # class weights are left out of the reported loss
    37: BITS,
    43: BITS,
    53: BITS,
}


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_combination_does_what_it_must_or_is_refused_before_it_starts(group):
    for number in range(group, COUNT, GROUPS):
        combination = draw(0, number)
        names = removable(combination)
        removals = random.Random(number).sample(names, min(1, len(names)))
        failures = examine(combination, removals).failures
        known = OPEN.get(number, ())
        new = [str(failure) for failure in failures if failure.check not in known]
        assert not new, "\n".join([f"combination {number}:", *new, str(combination)])
        # last bits may be the same on another machine
        assert failures or not set(known) - set(BITS), f"{number} holds now: remove it from OPEN"
