"""The default engine does what every engine must."""

import pytest

from engine.engine_suite import EngineSuite
from idiolect.engine.rounds import InProcess


class TestInProcess(EngineSuite):
    @pytest.fixture
    def build(self):
        return InProcess
