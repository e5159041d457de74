"""The data sets, the models, and what is tried for every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from torch import nn

from idiolect import data, models
from idiolect.data.federation import Federation
from idiolect.method import Method
from idiolect.methods import make_method
from idiolect.task.task import Task

from ...known_words import known_words
from .bigrams import Bigrams

PERSONALISED = ("finetune", "ditto", "lp-proj-2", "fedalt", "pfedme")
METHODS = ("local", "fedavg", *PERSONALISED)
STRENGTHS = (0.1, 1.0)  # λ of ditto, lp-proj and pfedme
FINETUNING = (10, 50)  # steps before use
PRIVATE = (0.1, 1.0)  # the private step size as a multiple of the other, for one part alone


@dataclass(frozen=True)
class Case:
    """A data set and its model."""

    data: str
    clients: str  # what a client is
    model: str | type[nn.Module] = "linear"
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)  # the two in the middle for personal methods
    parts: tuple[str, ...] = ("biases",)  # that fedalt may keep private
    known: bool = False  # only known words are to be predicted
    most: int = 100  # clients at quick scale; 0: the data set's own number
    batch: int = 32
    rounds: int = 30  # at quick scale

    def load(self, most: bool) -> Federation:
        """All clients, or at most so many: those with most samples."""
        limit = {"clients": self.most} if most and self.most else {}
        federation = data.load(self.data, **{**self.options, **limit})
        return known_words(federation) if self.known else federation

    def task(self, federation: Federation) -> Task:
        made = partial(
            models.make, self.model, federation.shape, federation.classes, **self.model_options
        )
        return Task(made)


_TEXT: dict[str, Any] = {
    "model": Bigrams,
    "rates": (1.0, 3.0, 10.0, 30.0),
    "parts": ("frequency",),
    "known": True,
    "batch": 8,
    "rounds": 15,
    "most": 15,
}
_IMAGES: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": "32"},
    "parts": ("output", "input"),
    "batch": 16,
    "rounds": 20,
}
CASES = {
    "hapt": Case("hapt", "people", most=0, **_IMAGES),
    "heart": Case("heart", "hospitals", most=0),
    "chem97": Case("chem97", "schools"),
    "insteval": Case("insteval", "students"),
    "movielens": Case("movielens", "people"),
    "quickdraw (clients made by a label split)": Case(
        "quickdraw", "Dirichlet shares, α = 0.5", most=20, **_IMAGES
    ),
    "shakespeare": Case("shakespeare", "roles", options={"length": 20, "cap": 20_000}, **_TEXT),
    "sotu": Case("sotu", "presidents", options={"vocabulary": 100, "cap": 10_000}, **_TEXT),
    "chitchat": Case("chitchat", "people who chat", options={"vocabulary": 100}, **_TEXT),
}


def candidates(name: str, case: Case, d: int, steps: int) -> Iterator[tuple[Method, dict]]:
    """What is tried for a method, with its varied fields: as many settings for each.

    All of them take `steps` gradients per client and round.
    """
    if name in ("local", "fedavg"):
        for lr in case.rates:
            yield make_method(name, lr=lr, steps=steps), {"lr": lr}
        return
    for lr, second in product(case.rates[1:3], _seconds(name, case)):
        yield _personalised(name, lr, second, d, steps), {"lr": lr, **second}


def _seconds(name: str, case: Case) -> list[dict[str, Any]]:
    """The other setting that is tried beside the step size."""
    if name == "finetune":
        return [{"personal_steps": n} for n in FINETUNING]
    if name != "fedalt":
        return [{"lam": lam} for lam in STRENGTHS]
    if len(case.parts) > 1:
        return [{"part": part} for part in case.parts]
    return [{"part": case.parts[0], "private_lr": times} for times in PRIVATE]


def _personalised(name: str, lr: float, second: dict[str, Any], d: int, steps: int) -> Method:
    half = steps // 2
    if name == "finetune":
        return make_method(name, lr=lr, personal_lr=lr, steps=steps, **second)
    if name == "ditto":
        return make_method(
            name, lr=lr, personal_lr=lr, steps=half, personal_steps=steps - half, **second
        )
    if name == "fedalt":
        private = lr * second.get("private_lr", 1.0)
        own = {"part": second["part"], "private_lr": private}
        return make_method(name, lr=lr, steps=half, private_steps=steps - half, **own)
    if name == "pfedme":
        return make_method(name, personal_lr=lr, steps=steps, fresh=True, **second)
    subspace = {"projection": "sparse", "dim": max(1, d // 4), "w_start": "x0"}
    return make_method(name, personal_lr=lr, steps=steps, fresh=True, **subspace, **second)
