"""docs/privacy.md is made from the code as it is."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.privacy_page import PAGE, page


def test_the_page_is_that_of_the_code():
    assert PAGE.read_text() == page()
