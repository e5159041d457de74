"""Partitions: who gets which sample."""

import numpy as np
import pytest

from idiolect.core.knobs import SettingError
from idiolect.data import partition
from idiolect.data.splits import draw_split

LABELS = np.random.default_rng(0).integers(0, 10, 4000)

EVERY = {
    "classes": lambda seed: partition.by_classes(LABELS, 20, 2, seed),
    "classes, all samples": lambda seed: partition.by_classes(LABELS, 20, 2, seed, level=False),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 20, 0.3, seed),
    "quantity": lambda seed: partition.quantity(LABELS, 20, 1.5, seed),
    "iid": lambda seed: partition.iid(LABELS, 20, seed),
}


def held(labels, client, clients):
    return [len(np.unique(labels[client == k])) for k in range(clients)]


@pytest.mark.parametrize("name", EVERY)
def test_every_client_has_samples_and_no_sample_is_dealt_twice(name):
    client = EVERY[name](0)
    # one number per sample: dealt once or left out
    assert client.shape == LABELS.shape and client.min() >= -1
    assert np.bincount(client[client >= 0], minlength=20).min() > 0
    assert client.max() == 19


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides_the_partition(name):
    assert (EVERY[name](3) == EVERY[name](3)).all()
    assert (EVERY[name](3) != EVERY[name](4)).any()


@pytest.mark.parametrize("name", [n for n in EVERY if n != "classes"])
def test_all_samples_are_used_unless_shards_are_levelled(name):
    assert (EVERY[name](0) >= 0).all()


@pytest.mark.parametrize(("clients", "each"), [(20, 2), (7, 3), (3, 1), (50, 4), (13, 10), (10, 1)])
@pytest.mark.parametrize("level", [True, False])
def test_k_classes_per_client_gives_every_client_exactly_k_classes(clients, each, level):
    client = partition.by_classes(LABELS, clients, each, seed=1, level=level)
    assert held(LABELS, client, clients) == [each] * clients


def test_levelled_shards_are_equally_large():
    labels = np.repeat([0, 1, 2, 3], [100, 130, 205, 170])
    client = partition.by_classes(labels, 4, 2, level=True)
    # two shards of 50: the smallest class gives two
    assert np.bincount(client[client >= 0]).tolist() == [100] * 4


@pytest.mark.parametrize(
    ("sizes", "clients", "train"),
    [
        ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 100, 434),  # MNIST
        ([6000] * 10, 100, 480),  # Fashion-MNIST
        ([5000] * 10, 200, 200),  # CIFAR-10
    ],
)
def test_two_classes_per_client_reproduce_the_sizes_of_table_3(sizes, clients, train):
    client = partition.by_classes(np.repeat(np.arange(10), sizes), clients, 2)
    client = client[client >= 0]
    part = draw_split(client, 0.2, 0.0, seed=0)
    assert (np.bincount(client[part == 0], minlength=clients) == train).all()


def test_a_small_alpha_gives_fewer_classes_than_a_large_one():
    few = np.mean(held(LABELS, partition.dirichlet(LABELS, 20, 0.1), 20))
    many = np.mean(held(LABELS, partition.dirichlet(LABELS, 20, 100.0), 20))
    assert few < 8 < many == 10


def test_dirichlet_keeps_the_minimum():
    assert np.bincount(partition.dirichlet(LABELS, 20, 0.1, minimum=40)).min() >= 40


def test_an_alpha_that_starves_clients_is_refused_with_advice():
    with pytest.raises(SettingError, match=r"alpha: 0\.001 left a client .* larger alpha"):
        partition.dirichlet(LABELS, 200, 0.001)


def test_quantity_skew_changes_sizes_and_not_class_shares():
    labels = np.repeat([0, 1], 20_000)
    client = partition.quantity(labels, 10, sigma=1.0)
    sizes = np.bincount(client)
    assert sizes.max() > 3 * sizes.min() >= 30
    shares = np.bincount(client[labels == 0]) / sizes
    assert np.abs(shares - 0.5).max() < 0.06


def test_iid_parts_are_equal():
    assert np.ptp(np.bincount(partition.iid(LABELS, 7))) <= 1


def test_the_test_part_follows_the_training_part():
    client = partition.dirichlet(LABELS, 10, 0.3)
    others = np.random.default_rng(1).integers(0, 10, 2000)
    mirrored = partition.mirror(LABELS, client, others)
    train = np.zeros((10, 10))
    test = np.zeros((10, 10))
    np.add.at(train, (LABELS, client), 1)
    np.add.at(test, (others, mirrored), 1)
    wanted = train / train.sum(1, keepdims=True) * test.sum(1, keepdims=True)
    assert (mirrored >= 0).all() and np.abs(test - wanted).max() < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.by_classes(LABELS, 10, 11), "classes_per_client must be .* got 11"),
        (lambda: partition.by_classes(LABELS, 10, 0), "classes_per_client must be .* got 0"),
        (lambda: partition.by_classes(np.repeat([0, 1], [500, 3]), 100, 1), "take fewer clients"),
        (lambda: partition.iid(LABELS, 0), "clients must be a whole number >= 1, got 0"),
        (lambda: partition.iid(LABELS[:5], 6), "too few for 6 clients"),
        (lambda: partition.iid(np.array([], dtype=int), 1), "too few"),
        (lambda: partition.quantity(LABELS, 20, -1.0), "sigma"),
        (lambda: partition.dirichlet(LABELS, 20, 0.0), "alpha"),
        (lambda: partition.iid(np.array([0, -1]), 1), "class -1 is negative"),
        (lambda: partition.iid(np.array([0.5, 1.0]), 1), "float64"),
    ],
)
def test_what_cannot_be_dealt_is_refused(call, message):
    with pytest.raises(SettingError, match=message):
        call()


# -- as in PFLlib ----------------------------------------------------------------------------------
def test_uneven_shards_are_between_a_tenth_and_all_of_an_even_share_but_for_the_last():
    labels = np.repeat(np.arange(10), 400)
    client = partition.by_classes(labels, 20, 2, seed=3, uneven=True)
    assert (client >= 0).all()
    for c in range(10):
        sizes = np.sort(np.bincount(client[labels == c], minlength=20))[-4:]
        assert (sizes[:3] >= 10).all() and (sizes[:3] <= 100).all() and sizes.sum() == 400
    assert len(np.unique(np.bincount(client))) > 10


def test_a_capped_client_gets_no_class_after_its_even_share():
    labels = np.repeat(np.arange(10), 400)
    client = partition.dirichlet(labels, 20, 0.1, seed=0, minimum=1, capped=True)
    counts = np.stack([np.bincount(client[labels == c], minlength=20) for c in range(10)])
    before = counts.cumsum(0) - counts
    assert (counts[before >= 200] == 0).all() and counts.sum() == 4000
    free = np.bincount(partition.dirichlet(labels, 20, 0.1, seed=0, minimum=1))
    assert counts.sum(0).max() < free.max()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"uneven": True, "partition": "iid"}, "uneven must be false with partition 'iid'"),
        ({"capped": True}, "capped must be false with partition 'classes'"),
    ],
)
def test_options_of_another_partition_are_refused(options, words):
    with pytest.raises(SettingError, match=words):
        partition.Partitioned(**options)
