"""A round that was begun and never closed has not happened.

The server is lost when hosts have done their work, comes back from what it saved, and opens the
round again; clients may have joined or left meanwhile, so that it names others.
"""

import pytest

from faults.engine import Plan
from faults.parties import FEDERATION, Faulty, Model, Setting, differences


@pytest.mark.parametrize("method", ["scaffold", "lg-fedavg", "ditto"])
@pytest.mark.parametrize("channel", ["none", "feedback + topk(share=0.2)"])
@pytest.mark.parametrize("leaves", [None, 0, 3])
def test_a_round_that_is_opened_again_starts_from_the_rows_before_it(
    method, channel, leaves, tmp_path
):
    setting = Setting(method, channel, sample=4)
    faulty = Faulty(setting, tmp_path)
    model = Model(setting)
    for lost in (False, True, True, False):
        if lost:
            faulty.lose_server_in_a_round()
        if lost and leaves is not None:
            faulty.server.roster.leave([FEDERATION.ids[leaves]])
            model.do("leave", leaves)
        faulty.post.plan = Plan()
        faulty.advance()
        model.do("round", faulty.post.verdict.counted.tolist(), {})
        assert not differences(faulty.kept(), model.kept())
