"""Large models train with the methods of Table 2 of the lp-proj paper.

They send what the table implies and take the memory that their states need.
"""

import math
from functools import partial

import pytest
import torch
from torch import nn

import idiolect as il
from idiolect import models
from idiolect.data.federation import Federation
from idiolect.wire.messages import HEADER
from idiolect_papers.own.large_models import METHODS, activations, session, states
from idiolect_papers.own.memory import Live


def images(clients: int, each: int, side: int = 9) -> Federation:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(clients * each, 3, side, side, generator=draw)
    y = torch.arange(clients * each) % 2
    return Federation.from_arrays(
        x,
        y.numpy(),
        torch.arange(clients).repeat_interleave(each).numpy(),
        split=["train"] * len(x),
        classes=2,
    )


def sentences(clients: int, each: int, length: int = 5, words: int = 50) -> Federation:
    tokens = torch.randint(
        words, (clients * each, length + 1), generator=torch.Generator().manual_seed(0)
    ).numpy()
    who = torch.arange(clients).repeat_interleave(each).numpy()
    return Federation.from_arrays(
        tokens[:, :-1], tokens[:, 1:], who, split=["train"] * len(tokens), classes=words
    )


def task_of(model: str, federation: Federation) -> il.Task:
    return il.Task(
        partial(models.make, model, tuple(federation.inputs.shape[1:]), federation.classes)
    )


@pytest.mark.parametrize(("model", "lr"), [("resnet18", 0.001), ("transformer", 0.01)])
@pytest.mark.parametrize("name", [n for n in METHODS if n != "lp-proj-2, contiguous"])
def test_a_round_on_a_large_model_lowers_the_training_loss(model, lr, name):
    torch.set_num_threads(1)
    federation = images(2, 4) if model == "resnet18" else sentences(2, 4)
    task = task_of(model, federation)
    run = session(METHODS[name](lr), task, federation, clients_per_round=2, rows=1, batch=4)
    everyone = torch.arange(2)
    before = run.engine.evaluate(everyone, ("train",))["train"].loss
    run.engine.advance()
    after = run.engine.evaluate(everyone, ("train",))["train"].loss
    assert bool(torch.isfinite(after).all()) and float(after.sum()) < float(before.sum())


def test_lp_proj_with_fifty_blocks_on_resnet34_sends_d_sub_numbers_per_client():
    torch.set_num_threads(1)
    federation = images(2, 2)
    task = task_of("resnet34", federation)
    method = METHODS["lp-proj-2, 50 blocks"](0.001)
    assert method.blocks == 50 and method.dim == 750 and task.d > 21_000_000
    run = session(method, task, federation, clients_per_round=2, rows=1, batch=2)
    run.engine.advance()
    for way in ("bytes_up", "bytes_down"):
        assert run.server.ledger.counts[way].tolist() == [HEADER.itemsize + 4 * 750] * 2


@pytest.mark.parametrize(("clients", "rows"), [(4, 4), (8, 2)])
@pytest.mark.parametrize("name", METHODS)
def test_rounds_take_at_most_half_as_much_again_as_the_states_the_method_names(name, clients, rows):
    federation = images(clients, 4)
    task = il.Task(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(243, 2000),
            nn.ReLU(),
            nn.Linear(2000, 250),
            nn.ReLU(),
            nn.Linear(250, 2),
        )
    )
    assert task.d > 900_000
    method = METHODS[name](0.01)
    run = session(method, task, federation, clients_per_round=2, rows=rows, batch=4)
    with Live() as live:
        for _ in range(3):
            run.engine.advance()
    named = task.dtype.itemsize * sum(states(method, task, clients, rows, 2).values())
    assert live.peak - activations(run.hosts[0]) <= 1.5 * named


def test_the_live_counter_forgets_what_is_dropped_and_sees_arrays():
    with Live() as live:
        for _ in range(5):
            x = torch.zeros(250_000)
            y = x.numpy() + 1
            del x, y
    assert math.isclose(live.peak, 2_000_000, rel_tol=0.05)
