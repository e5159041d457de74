"""A host: the owner of some clients, their data and their private rows. Only declared messages and scores leave it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import streams, wire
from ..batches import Batches
from ..data.federation import Federation
from ..evaluate import Evaluator
from ..fields import SettingError
from ..method import Method, State
from ..metrics import Scores
from ..solvers import sgd
from ..task import Task
from .store import Store


@dataclass(frozen=True)
class HostSettings:
    batch: int = 64
    batching: str = "replace"
    chunk: int = 0  # rows at once; 0 = as many as fit in `memory`
    memory: int = 2 << 30  # bytes for a chunk at work, and for private rows before they move to a file
    scratch: Path | None = None
    finetune_steps: int = 0  # SGD steps on every personal model before use
    finetune_lr: float = 0.1


class Host:
    """Runs a method's client side for its clients, chunk by chunk."""

    def __init__(self, method: Method, task: Task, data: Federation, run: int, settings: HostSettings):
        self.method, self.task, self.run, self.settings = method, task, run, settings
        self.data = data.to(task.device, task.dtype)
        self.keys = streams.name_keys(data.names)
        self.sizes = data.sizes("train")
        self.up = wire.Schema(tuple((n, (m,), task.dtype) for n, m in sorted(method.message(task).items())))
        self.down = wire.Schema.of(method.broadcast(task, method.server(task)))
        self.store = Store(data.clients, lambda ids: method.private(task, self.keys[ids.numpy()]), settings.memory, settings.scratch)
        self.gradients = torch.zeros(data.clients, dtype=torch.int64)  # spent in training
        self.deployment = torch.zeros(data.clients, dtype=torch.int64)  # spent by the last personalisation before use
        self._evaluators: dict[str, Evaluator] = {}

    def update(self, round: int, message: bytes, train: Tensor, send: Tensor, rate: float = 1.0) -> np.ndarray:
        """A round for the clients `train`; the messages of those in `send`, a byte matrix. Ids are sorted."""
        down = wire.open_one(self.down, message, self.run, round, self.task.device)
        method, out = self.method.scaled(rate), []
        for ids in train.split(self.chunk):
            batches = self._batches(ids, round)
            up, rows = method.update(self.task, down, self.store.read(ids, round), batches)
            self.store.write(ids, round, rows)
            self.gradients[ids] += batches.tally
            heard = torch.isin(ids, send)
            if self.up.parts and bool(heard.any()):
                who, rows_up = ids[heard], {n: t[heard.to(t.device)] for n, t in up.items()}
                out.append(wire.pack(self.up, self.run, round, who.numpy(), self.sizes[who].numpy(), rows_up))
        return np.concatenate(out) if out else np.empty((0, self.up.length), dtype=np.uint8)

    def evaluate(self, round: int, message: bytes, clients: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores of the personal models on the clients' own data; `round` keys what personalisation draws."""
        down = wire.open_one(self.down, message, self.run, round, self.task.device)
        scores = {split: self._evaluator(split).blank() for split in splits}
        for ids in clients.split(self.chunk):
            x = self._personal(round, down, ids)
            if len(ids) > 1 and x.stride(0) == 0:  # one model for all
                return {split: self._evaluator(split).shared(x[0]) for split in splits}
            for split in splits:
                self._evaluator(split).personal(x, ids, scores[split])
        return scores

    def evaluate_shared(self, round: int, message: bytes, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores of the method's one global model; empty where it has none."""
        w = self.method.shared(self.task, wire.open_one(self.down, message, self.run, round, self.task.device))
        return {} if w is None else {split: self._evaluator(split).shared(w) for split in splits}

    def personal(self, round: int, message: bytes, client: int) -> Tensor:  # -> x[d]
        """The model a client predicts with: for its owner only, no engine calls this."""
        down = wire.open_one(self.down, message, self.run, round, self.task.device)
        return self._personal(round, down, torch.tensor([client]))[0]

    def _personal(self, round: int, down: State, ids: Tensor) -> Tensor:
        batches = self._batches(ids, round, "personal")
        x = self.method.personal(self.task, down, self.store.read(ids), batches)
        if self.settings.finetune_steps:
            x = sgd(self.task, x, batches, self.settings.finetune_lr, self.settings.finetune_steps)
        self.deployment[ids] = batches.tally
        return x

    def _batches(self, ids: Tensor, round: int, purpose: str = "batch") -> Batches:
        return Batches(
            self.data,
            ids,
            seed=self.task.seed,
            round=round,
            names=self.keys,
            batch=self.settings.batch,
            batching=self.settings.batching,
            dtype=self.task.dtype,
            purpose=purpose,
            validate=lambda x: self._errors(x, ids),
        )

    def _errors(self, x: Tensor, ids: Tensor) -> Tensor:
        """Error of each model on its client's validation data."""
        if not int(self.data.sizes("valid").sum()):
            raise SettingError("data: this method decides by validation data, and no client has any; give a validation share")
        scores = self._evaluator("valid").blank()
        self._evaluator("valid").personal(x, ids, scores)
        accuracy, loss = scores.of_clients()
        return (1 - accuracy if self.data.classes else loss)[ids].nan_to_num(0.0)

    def _evaluator(self, split: str) -> Evaluator:
        if split not in self._evaluators:
            self._evaluators[split] = Evaluator(self.task, self.data, split)
        return self._evaluators[split]

    @property
    def chunk(self) -> int:
        """Rows at once: as set, or what fits: about eight vectors of R^d and a batch with its activations a row."""
        if self.settings.chunk:
            return self.settings.chunk
        sample = self.data.inputs[0].numel() * self.task.dtype.itemsize
        row = 8 * self.task.d * self.task.dtype.itemsize + 4 * self.settings.batch * sample
        return max(1, self.settings.memory // row)
