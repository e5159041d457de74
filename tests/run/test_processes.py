"""A run whose hosts are worker processes is the run of one process, bit for bit."""

import pytest
import torch

import idiolect as il
from idiolect.testing import federation, state_of

DATA = federation()
CASES = {
    "ditto": {},
    "scaffold": {"channel": "feedback + topk(share=0.5)"},
    "fedavg": {"attack": "sign-flip", "malicious": 2, "rule": "median", "metrics": "auc"},
}


def both(method, **settings):
    module = torch.nn.Linear(5, 3)
    given = {"rounds": 3, "sample": 4, "batch": 8, "eval_every": 1, "progress": False, **settings}
    return [
        il.run(method, module, DATA, **given, hosts=2, engine=engine)
        for engine in ("local", "processes")
    ]


@pytest.mark.parametrize("method", CASES)
def test_worker_processes_give_the_same_bits(method):
    here, there = both(method, **CASES[method])
    for name, t in state_of(here).items():
        assert torch.equal(t, state_of(there)[name]), name
    assert torch.equal(here.session().personal_rows(), there.session().personal_rows())
    assert here.rounds_table() == there.rounds_table()
    for name in ("accuracy", "loss", "bytes", "values", "gradients_per_client", "rejected"):
        assert here.summary()[name] == there.summary()[name], name


def test_a_colluding_attack_needs_local_hosts():
    with pytest.raises(il.SettingError, match="attack: 'alie' requires engine='local'"):
        both("fedavg", attack="alie", malicious=2)
