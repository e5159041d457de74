"""Who keeps shares of whose secrets."""

import random

import pytest
from scipy.stats import hypergeom

from idiolect.privacy.sums.graph import COLLUDING, LEAK, LOSS, neighbours, share_plan, tail


@pytest.mark.parametrize("clients", [2, 3, 10, 20])
def test_few_clients_share_with_everyone_and_the_threshold_is_the_minimum(clients):
    least = max(2, -(-7 * clients // 10))
    plan = share_plan(clients, least)
    assert plan.complete and plan.threshold == least == plan.least


@pytest.mark.parametrize("share", [0.6, 0.7, 0.9])
@pytest.mark.parametrize("clients", [21, 50, 100, 1000])
def test_more_clients_share_with_as_many_as_it_takes(clients, share):
    least = round(share * clients)
    plan = share_plan(clients, least)
    assert plan.threshold > plan.shares / 2
    others, drawn = clients - 1, plan.shares - 1
    colluding = hypergeom.sf(plan.threshold - 1, others, int(COLLUDING * clients), drawn)
    dropped = hypergeom.sf(plan.shares - plan.threshold, others, clients - least, drawn)
    assert plan.complete or clients * colluding <= LEAK * (1 + 1e-6)
    assert plan.complete or clients * dropped <= LOSS * (1 + 1e-6)


def test_the_tail_is_scipys():
    assert tail(99, 30, 48, 25) == pytest.approx(hypergeom.sf(24, 99, 30, 48), rel=1e-9)


@pytest.mark.parametrize("shares", [3, 4, 9])
def test_the_number_of_shares_can_be_chosen(shares):
    plan = share_plan(100, 70, shares)
    assert plan.shares == shares - 1 + shares % 2
    assert plan.threshold > plan.shares / 2


@pytest.mark.parametrize(("clients", "shares"), [(5, 0), (60, 0), (60, 7)])
def test_neighbours_are_mutual(clients, shares):
    plan = share_plan(clients, round(0.7 * clients), shares)
    around = neighbours(range(clients), plan, random.Random(0))
    for k, others in around.items():
        assert len(others) == len(set(others)) == plan.shares - 1 and k not in others
        assert all(k in around[j] for j in others)


def test_neighbours_are_drawn_anew():
    plan = share_plan(60, 42)
    assert neighbours(range(60), plan) != neighbours(range(60), plan)
