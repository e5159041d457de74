"""Bucketing: every client in one bucket, drawn from the key alone."""

import torch

from idiolect.server.rules import RULES, parse_rule
from server.rules.common import draw


def buckets(n, size, key):
    """The rows and weights of buckets of n clients, whose rows are the unit vectors."""
    return RULES["bucketing"](size=size)(
        torch.eye(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64), key=key
    )


def test_buckets_hold_every_client_once():
    for n, size in [(10, 2), (11, 2), (11, 3), (3, 5), (4, 1)]:
        rows, weights = buckets(n, size, key=5)
        smaller_last = [n % size] if n % size else []
        assert len(rows) == -(-n // size)
        assert weights.tolist() == [size] * (n // size) + smaller_last
        torch.testing.assert_close(rows * weights[:, None], (rows > 0).double())
        assert ((rows > 0).sum(0) == 1).all()


def test_the_key_alone_decides_the_buckets():
    rows, weights = draw(12, 3)
    rule = parse_rule("bucketing + median")
    found = [rule(rows, weights, key=k) for k in (0, 1, 2, 0)]
    assert torch.equal(found[0], found[3])
    assert torch.equal(found[0], rule(rows, weights))
    assert len({tuple(x.tolist()) for x in found}) == 3


def test_with_equal_weights_buckets_do_not_change_the_mean():
    rows, _ = draw(11, 4)
    rule = parse_rule("bucketing(size=3) + mean")
    found = rule(rows, torch.ones(11, dtype=torch.float64), key=9)
    torch.testing.assert_close(found, rows.mean(0), rtol=0, atol=1e-12)


def test_buckets_of_one_leave_the_rule_as_it_is():
    rows, weights = draw(11, 4)
    found = parse_rule("bucketing(size=1) + krum(f=2)")(rows, weights, key=4)
    torch.testing.assert_close(found, parse_rule("krum(f=2)")(rows, weights))


def test_every_client_meets_every_other_about_equally_often():
    counts = torch.zeros(6, 6, dtype=torch.float64)
    for key in range(600):
        member = (buckets(6, 2, key)[0] > 0).double()
        counts += member.T @ member / 600
    together = counts[~torch.eye(6, dtype=torch.bool)]
    assert (together - 0.2).abs().max() < 0.08
