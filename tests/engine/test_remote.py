"""Rounds with hosts behind frames of bytes: the same as in one process."""

import pytest

from engine.engine_suite import EngineSuite
from engine.loopback import remote


class TestRemote(EngineSuite):
    @pytest.fixture
    def build(self):
        return remote
