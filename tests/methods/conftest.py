"""The small federation of the references, for every test of methods."""

import pytest

from reference import setting


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()
