"""The history of a run takes 8 bytes per figure, in memory and (in base64) in a checkpoint."""

import json
import math
import tracemalloc

import pytest

from idiolect.run.history import History

ROWS = [{"round": n, "bytes_up": 2**53 + n, "loss": n / 3} for n in range(1, 6)]


def test_it_reads_as_a_list_of_dicts():
    history = History(ROWS)
    assert history == ROWS and list(history) == ROWS and len(history) == 5
    assert history[-1] == ROWS[-1] and history[1:3] == ROWS[1:3] and history.pop() == ROWS[-1]
    assert type(history[0]["round"]) is int and not History()
    with pytest.raises(IndexError):
        history[4]


def test_it_is_packed_and_unpacked_bit_for_bit():
    packed = json.loads(json.dumps(History([*ROWS, {**ROWS[0], "loss": math.nan}]).packed()))
    again = History.unpacked(packed)
    assert again[:5] == ROWS and math.isnan(again[5]["loss"])


@pytest.mark.parametrize(
    "packed", [{"a": "x"}, {"a": "q!"}, {"a": "qAAA="}, {"a": "dAAAAAAAAAAA=", "b": "d"}, {"a": ""}]
)
def test_what_is_not_packed_is_refused(packed):
    with pytest.raises(ValueError):
        History.unpacked(packed)


def test_it_takes_8_bytes_per_figure():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        history = History()
        for n in range(1000):
            history.append({f"figure {i}": n * 0.1 for i in range(30)})
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size < 1.25 * 8 * 30 * len(history) + 10_000
