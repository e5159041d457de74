"""The contract: what both sides must have alike, in 32 bits of every header."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.setting import CLIENTS, TASK, contract, hosts, server
from idiolect.methods import make_method
from idiolect.wire import messages as wire

BASE = contract("fedprox-soft")


def variants():
    longer = make_method("fedprox-soft", steps=7)
    return {
        "another method": contract("fedavg"),
        "a field of the method": replace(BASE, method=longer),
        "precision": contract(dtype=torch.float64),
        "seed": contract(seed=4),
        "gradient clipping": contract(clip=1.0),
        "weight decay": contract(weight_decay=0.1),
        "channel": contract(channel="half"),
        "an option of the channel": contract(channel="topk(share=0.3)"),
        "another option of the channel": contract(channel="topk(share=0.4)"),
        "run": replace(BASE, run=BASE.run + 1),
    }


def test_the_checksum_changes_with_everything_both_sides_must_have_alike():
    checksums = [BASE.checksum, *(c.checksum for c in variants().values())]
    assert len(set(checksums)) == len(checksums)
    assert all(0 <= c < 2**32 for c in checksums)


def test_the_checksum_does_not_depend_on_how_one_side_computes():
    again = contract()
    assert again is not BASE and again.checksum == BASE.checksum
    assert contract(kernel="rows").checksum == BASE.checksum
    written_out = make_method("fedprox-soft", **BASE.method.as_dict())
    assert replace(BASE, method=written_out).checksum == BASE.checksum


def test_every_schema_has_the_checksum():
    for schema in (BASE.up, BASE.down, BASE.answer("w", b"", 3)):
        assert schema.contract == BASE.checksum
        assert schema.checksum != replace(schema, contract=0).checksum


@pytest.mark.parametrize("name", variants())
def test_a_message_under_another_contract_is_rejected_as_schema(name):
    other = variants()[name]
    at = server(BASE, sample=CLIENTS)
    round = at.open()
    body = BASE.up.length - wire.HEADER.itemsize
    heads = wire.heads(other.up, BASE.run, 0, np.arange(CLIENTS), np.ones(CLIENTS))
    at.receive(round, [head.tobytes() + bytes(body) for head in heads])
    at.close(round)
    assert at.ledger.surplus == {"schema": CLIENTS} and not at.ledger.admitted


def test_hosts_refuse_a_message_down_under_another_contract():
    order = server(replace(BASE, run=BASE.run, method=make_method("fedprox-soft", steps=7))).open()
    (host,) = hosts(BASE, 1)
    with pytest.raises(ValueError, match="message down: schema"):
        host.update(order.order)


def test_the_message_down_is_what_the_schema_says():
    for name in ("fedavg", "scaffold", "lp-proj-1", "lg-fedavg", "local"):
        agreed = contract(name)
        assert len(server(agreed).message(0)) == agreed.down.length
    assert TASK.numerics == TASK.numerics.__class__()  # a contract binds a copy of the task
