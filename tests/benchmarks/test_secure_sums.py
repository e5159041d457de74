"""The benchmark of secure sums measures rounds whose sum is right."""

import pytest
from benchmarks.secure_sums import measured

from idiolect.privacy.sums.cost import protocol_bytes
from idiolect.privacy.sums.setting import SecureSums

pytest.importorskip("flwr")


def test_a_row_of_the_table():
    row = measured(SecureSums(), clients=4, numbers=5, dropped=0.0)
    assert (row["up"], row["down"]) == protocol_bytes(SecureSums().plan(4))
    assert row["message"] == 24 + 4 * 5 and row["server"] > 0
