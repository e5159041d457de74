"""What a finished seed leaves in memory: in a directory nothing, without one its models only."""

import gc
import weakref

import pytest
import torch

import idiolect as il
from idiolect.host.evaluation import Evaluator
from idiolect.host.host import Host
from idiolect.run import session as sessions

SEEDS = 3


@pytest.fixture
def made(monkeypatch):
    """Weak references to every session, host and evaluator that is made, by class name."""
    found: dict[str, list[weakref.ref]] = {}
    for cls in (sessions.Session, Host, Evaluator):
        references = found.setdefault(cls.__name__, [])

        def noted(self, *args, init=cls.__init__, references=references, **kwargs):
            references.append(weakref.ref(self))
            init(self, *args, **kwargs)

        monkeypatch.setattr(cls, "__init__", noted)
    return found


def alive(references: list[weakref.ref]) -> int:
    gc.collect()
    return sum(r() is not None for r in references)


def run(**settings) -> il.Result:
    federation = il.data.load("synthetic", clients=4, samples=60)
    task = il.Task(torch.nn.Linear(60, 10))
    return il.run(il.PFedMe(), task, federation, rounds=2, sample=2, seeds=SEEDS, **settings)


def test_a_run_in_a_directory_holds_nothing_of_a_finished_seed(made, tmp_path):
    at_work: list[int] = []  # sessions alive after each round

    def progress(seed, rounds, accuracy):
        at_work.append(alive(made["Session"]))

    result = run(directory=tmp_path / "run", progress=progress)
    assert at_work == [1] * (2 * SEEDS)
    assert len(made["Session"]) == SEEDS
    assert {name: alive(references) for name, references in made.items()} == {
        "Session": 0,
        "Host": 0,
        "Evaluator": 0,
    }
    assert len(result.seeds) == SEEDS


def test_a_directorys_models_are_read_for_one_seed_at_a_time(made, tmp_path):
    result = run(directory=tmp_path / "run")
    for seed in range(SEEDS):
        result.session(seed)
        assert alive(made["Session"]) == 1


def test_without_a_directory_models_stay_and_evaluation_caches_do_not(made):
    result = run()
    assert alive(made["Session"]) == SEEDS
    assert alive(made["Host"]) == SEEDS
    assert made["Evaluator"] and alive(made["Evaluator"]) == 0
    assert [result.session(seed).seed for seed in range(SEEDS)] == list(range(SEEDS))
