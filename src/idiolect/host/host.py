"""A host: the owner of some clients, their data and their private rows. Only declared messages and scores leave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..adversary import Attack
from ..channels import Channel, Form
from ..channels.link import Link
from ..core import streams
from ..core.knobs import SettingError
from ..core.store import Store
from ..core.types import State, under
from ..data.federation import Federation
from ..method import Method
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task
from ..wire import messages as wire
from ..wire.ragged import Ragged, join
from .evaluation import Evaluator
from .scores import Scores

_CACHE = 32 << 20  # bytes that rows at work may touch in a step


@dataclass(frozen=True)
class HostSettings:
    batch: int = 64
    batching: str = "replace"
    chunk: int = 0  # rows at once; 0 = as many as fit in `memory`
    memory: int = (
        2 << 30
    )  # bytes for a chunk at work, and for private rows before they move to a file
    scratch: Path | None = None
    finetune_steps: int = 0  # SGD steps on every personal model before use
    finetune_lr: float = 0.1
    repeats: bool = (
        True  # whether a round may be asked for twice; then private rows take twice the memory
    )
    channel: Channel = field(default_factory=Channel)
    attack: Attack | None = None
    liars: Tensor | None = None  # int64: the malicious clients


@dataclass(frozen=True)
class Sent:
    """The messages of a round: bytes, whose they are, and what they count as in the lp-proj paper's 32-bit words."""

    messages: Ragged
    clients: Tensor  # int64[S]
    values: np.ndarray  # float64[S]


class Host:
    """Runs a method's client side for its clients, chunk by chunk."""

    def __init__(
        self, method: Method, task: Task, data: Federation, run: int, settings: HostSettings
    ):
        self.method, self.task, self.run, self.settings = method, task, run, settings
        self.data = data.to(task.device, task.dtype)
        self.keys = streams.name_keys(data.names)
        self.sizes = data.sizes("train")
        self.link = Link.fit(settings.channel, method, task)
        parts = tuple((n, (m,), task.dtype) for n, m in sorted(method.message(task).items()))
        self.up = wire.Schema(parts, repr(settings.channel.stages) if self.link.codes else "")
        self.down = wire.Schema.of(method.broadcast(task, method.server(task)))
        fresh = lambda ids: method.private(task, self.keys[ids.numpy()])  # noqa: E731
        self.store = Store(data.clients, fresh, settings.memory, settings.scratch, settings.repeats)
        self.coder = Store(
            data.clients,
            lambda ids: self.link.blank("client", len(ids), task.x0),
            settings.memory,
            settings.scratch,
        )
        self.gradients = torch.zeros(data.clients, dtype=torch.int64)  # spent in training
        self.deployment = torch.zeros(
            data.clients, dtype=torch.int64
        )  # spent by the last personalisation before use
        self._evaluators: dict[str, Evaluator] = {}

    def update(
        self, round: int, message: bytes, train: Tensor, send: Tensor, rate: float = 1.0
    ) -> Sent:
        """A round for the clients `train`; the messages of those in `send`. Ids are sorted."""
        down = wire.open_down(self.down, message, self.run, round, self.task.device)
        method, out = self.method.scaled(rate), []
        together = (
            self.settings.attack is not None
        )  # liars who collude see the honest messages of the round
        waiting: list[tuple[Tensor, State]] = []
        for ids in train.split(self.chunk):
            batches = self._batches(ids, round)
            up, rows = method.update(self.task, down, self.store.read(ids, round), batches)
            self.store.write(ids, round, rows)
            self.gradients[ids] += batches.tally
            heard = torch.isin(ids, send)
            if self.up.parts and bool(heard.any()):
                waiting.append(
                    (
                        ids[heard],
                        up
                        if bool(heard.all())
                        else {n: t[heard.to(t.device)] for n, t in up.items()},
                    )
                )
            del up, rows, batches  # a chunk of large models is gone before the next one is at work
            if waiting and not together:
                out.append(self._send(round, down, *waiting.pop()))
        if waiting:
            up = {n: torch.cat([rows[n] for _, rows in waiting]) for n in waiting[0][1]}
            out.append(self._send(round, down, torch.cat([ids for ids, _ in waiting]), up))
        if not out:
            return Sent(Ragged.empty(0), send[:0], np.zeros(0))
        return out[0] if len(out) == 1 else _together(out)

    def _send(self, round: int, down: State, ids: Tensor, up: State) -> Sent:
        """What clients really send: their messages, bent where they lie, through the channel, with a header."""
        reference = self.method.reference(self.task, down)
        up = self._attacked(round, ids, up, reference)
        names, weights = ids.numpy(), self.sizes[ids].numpy()
        if not self.link.codes:
            packed = wire.pack(self.up, self.run, round, names, weights, up)
            return Sent(Ragged.even(packed), ids, np.full(len(ids), float(self.up.values)))
        keys = streams.keys(self.task.seed, "channel", round, self.keys[names])
        bodies, state, values = self.link.encode(
            up, reference, self.coder.read(ids, round), keys, round
        )
        self.coder.write(ids, round, state)
        return Sent(
            join([Ragged.even(wire.heads(self.up, self.run, round, names, weights)), bodies]),
            ids,
            values,
        )

    def _attacked(
        self, round: int, ids: Tensor, up: State, reference: State, purpose: str = "attack"
    ) -> State:
        attack, liars = self.settings.attack, self.settings.liars
        if attack is None or liars is None:
            return up
        bad = torch.isin(ids, liars).to(self.task.device)
        keys = streams.keys(self.task.seed, purpose, round, self.keys[ids.numpy()])
        return {n: attack(rows, bad, reference.get(n), keys) for n, rows in up.items()}

    def answer(
        self, round: int, part: str, query: bytes, clients: Tensor, schema: wire.Schema
    ) -> np.ndarray:
        """The exact values that the server asks for, a byte matrix (a channel's second exchange)."""
        asked = wire.open_down(schema, query, self.run, round, torch.device("cpu"))["query"].long()
        stage, (prefix, form) = self.link.aggregate_stage, self._joint(part, round)
        assert stage is not None
        state = under(self.coder.read(clients), prefix)
        rows = {"values": stage.answer(state, asked.to(self.task.device), form)}
        rows = self._attacked(round, clients, rows, {}, "attack on the answer")
        answers = wire.Schema((("values", (len(asked),), self.task.dtype),))
        return wire.pack(
            answers, self.run, round, clients.numpy(), self.sizes[clients].numpy(), rows
        )

    def forget(
        self, round: int, part: str, chosen: bytes, clients: Tensor, schema: wire.Schema
    ) -> None:
        """The coordinates that the server has taken: the clients' error starts anew there."""
        taken = wire.open_down(schema, chosen, self.run, round, torch.device("cpu"))[
            "chosen"
        ].long()
        stage, (prefix, form) = self.link.aggregate_stage, self._joint(part, round)
        assert stage is not None
        rows = self.coder.read(clients)
        after = stage.forget(under(rows, prefix), taken.to(self.task.device), form)
        self.coder.write(clients, round, rows | {f"{prefix}{n}": t for n, t in after.items()})

    def unheard(self, round: int, clients: Tensor) -> None:
        """Clients whose messages did not count: what they remember of the channel is as before the round, as it is at the server.

        Else LBGM would send multiples of what the server has never seen, and a message that is not finite would stay in the error
        of its sender for good. A client learns it with the next broadcast: one bit, not counted.
        """
        if self.link.codes and len(clients):
            self.coder.write(clients, round, self.coder.read(clients, round))

    def _joint(self, part: str, round: int) -> tuple[str, Form]:
        return next(
            (prefix, form)
            for name, prefix, form in self.link.aggregate_parts(round)
            if name == part
        )

    def evaluate(
        self, round: int, message: bytes, clients: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores of the personal models on the clients' own data; `round` keys what personalisation draws."""
        down = wire.open_down(self.down, message, self.run, round, self.task.device)
        scores = {split: self._evaluator(split).blank() for split in splits}
        for ids in clients.split(self.chunk):
            x = self._personal(round, down, ids)
            if len(ids) > 1 and x.stride(0) == 0:  # one model for all
                return {split: self._evaluator(split).shared(x[0]) for split in splits}
            for split in splits:
                self._evaluator(split).personal(x, ids, scores[split])
        return scores

    def evaluate_shared(
        self, round: int, message: bytes, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores of the method's one global model; empty where it has none."""
        w = self.method.shared(
            self.task, wire.open_down(self.down, message, self.run, round, self.task.device)
        )
        return {} if w is None else {split: self._evaluator(split).shared(w) for split in splits}

    def personal(self, round: int, message: bytes, client: int) -> Tensor:  # -> x[d]
        """The model a client predicts with: for its owner only, no engine calls this."""
        down = wire.open_down(self.down, message, self.run, round, self.task.device)
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
            raise SettingError(
                "data: this method decides by validation data, and no client has any; give a validation share"
            )
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
        """Rows at once: as set; or as many as stay in the cache through their steps (a model, its gradient, a batch each), at least
        one a thread, and no more than fit in memory (about eight vectors of R^d and a batch with its activations a row)."""
        if self.settings.chunk:
            return self.settings.chunk
        model = self.task.d * self.task.dtype.itemsize
        batch = self.settings.batch * self.data.inputs[0].numel() * self.task.dtype.itemsize
        fit = self.settings.memory // (8 * model + 4 * batch)
        return max(1, min(fit, max(_CACHE // (2 * model + batch), torch.get_num_threads())))


def _together(sent: list[Sent]) -> Sent:
    width = max(s.messages.matrix.shape[1] for s in sent)
    matrix = np.concatenate(
        [np.pad(s.messages.matrix, ((0, 0), (0, width - s.messages.matrix.shape[1]))) for s in sent]
    )
    lengths = np.concatenate([s.messages.lengths for s in sent])
    return Sent(
        Ragged(matrix, lengths),
        torch.cat([s.clients for s in sent]),
        np.concatenate([s.values for s in sent]),
    )
