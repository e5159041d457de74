"""Scores of personal models have the same bits whoever else is evaluated, and how it is stored."""

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.host.evaluation import Evaluator, padded_lengths

EQUAL = [7] * 9
EVEN = [10] * 6
UNEQUAL = [3, 9, 4, 4, 4, 17, 1, 2, 30]


def federation_of(sizes: list[int]) -> il.Federation:
    """As many test samples as training samples."""
    draw = torch.Generator().manual_seed(0)
    count = 2 * sum(sizes)
    split = np.concatenate([["train"] * n + ["test"] * n for n in sizes])
    return il.Federation.from_arrays(
        torch.randn(count, 12, generator=draw),
        torch.randint(4, (count,), generator=draw),
        np.repeat(np.arange(len(sizes)), 2 * np.array(sizes)),
        split=split,
        classes=4,
    )


def models_of(task: il.Task, clients: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return task.x0 + 0.3 * torch.randn(clients, task.d, generator=draw)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("sizes", [EQUAL, EVEN, UNEQUAL])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_client_alone_has_the_scores_it_has_among_others(sizes, split, one_thread):
    federation = federation_of(sizes)
    task = il.Task(il.models.make("mlp", (12,), 4))
    x = models_of(task, len(sizes))
    together = Evaluator(task, federation, split)
    expected = together.blank()
    together.personal(x, torch.arange(len(sizes)), expected)
    for order in (torch.arange(len(sizes)).flip(0), *torch.arange(len(sizes)).split(1)):
        found = together.blank()
        Evaluator(task, federation, split).personal(x[order], order, found)
        assert torch.equal(found.loss[order], expected.loss[order])
        assert torch.equal(found.hits[order], expected.hits[order])


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL])
def test_scores_are_those_of_each_model_on_its_own_samples(sizes):
    federation = federation_of(sizes)
    task = il.Task(il.models.make("mlp", (12,), 4))
    x = models_of(task, len(sizes))
    evaluator = Evaluator(task, federation, "test")
    found = evaluator.blank()
    evaluator.personal(x, torch.arange(len(sizes)), found)
    for k, start in enumerate(federation.offsets["test"][:-1].tolist()):
        mine = slice(start, start + sizes[k])
        outputs = task.module_of(x[k])(federation.inputs[mine]).detach()
        targets = federation.targets[mine]
        loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")
        assert float(found.loss[k]) == pytest.approx(float(loss), rel=1e-5)
        assert int(found.hits[k]) == int((outputs.argmax(1) == targets).sum())


def test_equal_clients_side_by_side_are_not_copied():
    federation = federation_of(EVEN)
    task = il.Task(il.models.make("mlp", (12,), 4))
    evaluator = Evaluator(task, federation, "train")
    evaluator.personal(models_of(task, 6), torch.arange(6), evaluator.blank())
    assert evaluator._kept == 0


@pytest.mark.parametrize("sizes", [EQUAL, EVEN, UNEQUAL])
def test_a_row_is_filled_up_with_samples_of_its_own_client(sizes):
    federation = federation_of(sizes)
    evaluator = Evaluator(il.Task(torch.nn.Linear(12, 4)), federation, "test")
    for group in evaluator._groups(torch.arange(len(sizes))):
        inputs, _, exists = evaluator._padded(group)
        for k, row in enumerate(group.tolist()):
            start, end = federation.offsets["test"][row : row + 2].tolist()
            own = {tuple(sample.tolist()) for sample in federation.inputs[start:end]}
            assert {tuple(sample.tolist()) for sample in inputs[k]} == own
            assert int(exists[k].sum()) == end - start


def test_padding_is_an_eighth_at_most_and_never_a_single_sample():
    sizes = np.arange(3000)
    lengths = padded_lengths(sizes)
    assert lengths[0] == 0 and (lengths[1:] > 1).all() and (lengths >= sizes).all()
    assert (lengths[17:] - sizes[17:] <= sizes[17:] / 8).all()
    assert (lengths[:17] - sizes[:17] <= 1).all()


@pytest.mark.parametrize("chunk", [0, 2, 4])
def test_every_client_is_scored_with_its_own_model_whatever_the_sizes_and_chunks(chunk):
    federation = federation_of(UNEQUAL)
    task = il.Task(il.models.make("mlp", (12,), 4))
    result = il.run(il.Local(), task, federation, rounds=2, batch=4, chunk=chunk)
    for row in result.clients_table():
        k = federation.ids.index(row["client"])
        start = int(federation.offsets["test"][k])
        mine = slice(start, start + UNEQUAL[k])
        outputs = result.personal(row["client"])(federation.inputs[mine]).detach()
        loss = torch.nn.functional.cross_entropy(outputs, federation.targets[mine])
        assert row["test_loss"] == pytest.approx(float(loss), rel=1e-4)
