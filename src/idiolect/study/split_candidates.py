"""Which parts of a model could be personal: its blocks or layers, norms, biases, adapters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import SettingError, check, knob
from ..core.parts import Parts
from ..models import adapt
from ..models.adapters import KINDS
from ..task.layout import Split
from ..task.task import Task

NOTHING = "none"  # the shared model for everyone
EVERYTHING = "all"  # a whole model for each


@dataclass(frozen=True)
class Candidate:
    """A part that could be private, as `part` of a method names it."""

    part: str
    also: tuple[str, ...] = ()  # other words for the same parameters
    rank: int = 0  # of the adapters that the model is to be given for it; 0 = it is as it is
    kind: str = ""  # of these adapters

    @property
    def name(self) -> str:
        """What it is called in a table: "layer:2", "adapter (low-rank 4)"."""
        if not self.rank:
            return self.part
        return f"{self.part} ({self.kind}{f' {self.rank}' if self.kind != 'conv' else ''})"

    def on(self, task: Task, start: Tensor) -> tuple[Task, Split, Tensor]:
        """The task, the split and the start of every client; with adapters, another model."""
        if not self.rank:
            return task, task.split(self.part), start
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            module = adapt(task.module, self.rank, kind=self.kind)
        adapted = Task(module, task.criterion, buffers=task.buffers).under(task.numerics)
        split = adapted.split(self.part)
        # parameters of the model itself are in the same order as before
        x0 = split.join(start[: task.d], split.parts(adapted.x0)[1])
        return adapted, split, torch.cat([x0, start[task.d :]])


def candidates(task: Task, given: str, rank: int, kind: str) -> list[Candidate]:
    """Those that the user names, separated by semicolons, or all that the structure shows.

    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
    >>> [(c.part, c.also) for c in candidates(task, "", 0, "low-rank")]
    [('layer:1', ('input',)), ('layer:2', ('output',)), ('biases', ())]
    """
    if kind not in KINDS:
        raise SettingError(f"adapter: {kind!r} is not accepted; one of {', '.join(KINDS)}")
    rank = check("rank", rank, knob(4, "the inner width of added adapters; 0 = none", low=0), int)
    parts = task.layout.parts
    texts = [text.strip() for text in given.split(";") if text.strip()] or _all(parts)
    found: dict[bytes, Candidate] = {}
    for text in texts:
        if "adapter" in text.split(",") and not parts.adapter:
            continue
        split = task.split(text)
        if given and not len(split.theta):
            raise SettingError(
                f"parts: {text!r} is not accepted; it is all of the model: nothing would be shared"
            )
        if not len(split.theta) or not len(split.w):
            continue
        key = split.w.cpu().numpy().tobytes()
        first = found.get(key)
        found[key] = Candidate(text) if first is None else _also(first, text)
    if rank and not parts.adapter:
        found[b"adapter"] = Candidate("adapter", (), rank, kind)
    if not found:
        raise SettingError(
            "parts: this model has one layer alone, and no part of it could be shared while "
            "another is private; give it adapters (rank), or a model with several layers"
        )
    return list(found.values())


def _also(first: Candidate, text: str) -> Candidate:
    return Candidate(first.part, (*first.also, text))


def _all(parts: Parts) -> list[str]:
    """Blocks and what is around them, or layers; then what is spread over all of them."""
    blocks = [f"block:{k}" for k in range(1, len(parts.blocks) + 1)]
    if parts.stack:
        places = ["embedding", *blocks, "head", "input", "output"]
    elif parts.blocks:
        places = ["input", *blocks, "output"]
    else:
        places = [f"layer:{k}" for k in range(1, len(parts.layers) + 1)] + ["input", "output"]
    words = {
        "norms": parts.norms,
        "biases": parts.biases,
        "adapter": parts.adapter,
        "adapter,norms": parts.adapter and parts.norms,
    }
    return places + [word for word, names in words.items() if names]
