"""docs/methods.md is made from the code as it is."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.methods_page import PAGE, PEERS, STORED, page

from idiolect.methods import METHODS, NAMES

DISTANCES = json.loads(STORED.read_text())


def test_the_page_is_that_of_the_code():
    assert PAGE.read_text() == page(DISTANCES)


def test_every_method_has_been_compared_with_a_reference_and_agrees():
    kinds = {cls.__name__ for cls, _ in METHODS.built_in.values()}
    assert kinds <= set(DISTANCES)
    assert max(DISTANCES.values()) <= 1e-10


def test_what_peers_have_is_named_as_here():
    assert {name for methods in PEERS.values() for name in methods} <= {*METHODS, *NAMES}
