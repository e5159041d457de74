"""A host: the owner of some clients, their data and their private rows.

Only declared messages, scores and counts leave it. What the wire calls a client by its wire id is a
row here; the numbering of rows is the host's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..channels import Form
from ..core import streams
from ..core.files import private_folder
from ..core.knobs import SettingError, whole
from ..core.store import Store
from ..core.tensors import Shapes, bytes_of, check_shapes, read_tensors, shapes_of, write_tensors
from ..core.types import Personal, State, Tree, leaves, prefixed, under
from ..data.federation import Federation
from ..privacy.plan import MessageNoise
from ..server.protocol import Contract, ExchangeId, HostUpdate, Query, RoundConclusion, RoundRequest
from ..solvers import sgd
from ..task.augment import Augmentation
from ..task.client_optimizer import Fitted, Optimise
from ..task.context import Here
from ..task.sample_clipping import SampleClipping
from ..wire import messages as wire
from ..wire.messages import DownMessage, ReceivedDown
from ..wire.ragged import Ragged
from .async_work import AsyncWork
from .evaluation import Counting, EachOutput, EachSample, Evaluator, ScoreSums
from .metrics import EvaluatedSamples, Metric, Tally, form_of
from .scores import Scores
from .subgroups import SubgroupScores, SubgroupTally

if TYPE_CHECKING:
    from .remote_host import HostLike

_CPU = torch.device("cpu")
_CACHE = 32 << 20  # bytes that rows at work may touch in a step


@dataclass(frozen=True)
class HostSettings:
    """How a host works: the run's settings that concern it."""

    batch: int = 64
    batching: str = "replace"
    chunk: int = 0  # rows at once; 0 = as many as fit in `memory`
    memory: int = 2 << 30  # bytes for a chunk at work, and for rows before they move to a file
    scratch: Path | None = None
    finetune_steps: int = 0  # SGD steps on every personal model before use
    finetune_lr: float = 0.1
    optimizer: Fitted | None = None  # how clients step; None = plainly
    augment: Augmentation | None = None  # of training samples, in every mini-batch
    repeats: bool = True  # a round may be asked for after it was concluded, until the next one
    validation: bool = True  # whether any client of the run, at whichever host, has validation data
    metrics: tuple[Metric, ...] = ()  # counted beside accuracy and loss
    message_noise: MessageNoise | None = None  # of each message, before the channel
    sample_clipping: SampleClipping | None = None  # of every gradient in a round
    # clients start and arrive one by one: what they keep is theirs when their message has counted
    asynchronous: bool = False

    def rows_at_once(self, model: int, sample: int, samples: int) -> int:
        """Rows at once: as set, or as many as stay in the cache through their steps.

        A row at work takes a model, its gradient and a batch, of `samples` of these bytes. There is
        at least one row per thread, and no more than fit in memory (about eight vectors of R^d and
        a batch with its activations per row).
        """
        if self.chunk:
            return self.chunk
        batch = samples * sample
        fit = self.memory // (8 * model + 4 * batch)
        return max(1, min(fit, max(_CACHE // (2 * model + batch), torch.get_num_threads())))


class Host:
    """Runs a method's client side for its clients, chunk by chunk.

    A client whose message did not count is as one that was not selected: see `conclude`.
    """

    gathers: bool = False  # whether all messages of a round are in one place before any is sent
    stacks: bool = True  # whether clients that started from different models may train together

    def __init__(
        self, contract: Contract, data: Federation, wire_ids: Tensor, settings: HostSettings
    ):
        if len(wire_ids) != data.clients or bool((wire_ids.diff() <= 0).any()):
            raise ValueError("wire ids: one per client of the data is needed, increasing")
        task = contract.task
        self.contract = contract
        self.settings = settings
        self.data = data.to(task.device, task.dtype)
        self.wire_ids = wire_ids  # int64[N], increasing: row -> wire id
        self.keys = streams.name_keys(data.names)
        self.samples = data.sizes("train")
        # whether a client that is not selected keeps its private row: then one that was not heard
        # goes back to the row it had before the round
        self.rows_go_back = contract.method.traits.trains == "sampled" and bool(contract.up.length)
        self.store = Store(
            data.clients,
            lambda rows: contract.method.private(task, self.keys[rows.numpy()]),
            settings.memory,
            settings.scratch,
            (settings.repeats or self.rows_go_back) and not settings.asynchronous,
        )
        # what the channel keeps at each client
        self.coder = Store(
            data.clients,
            lambda rows: contract.link.blank("client", len(rows), task.x0),
            settings.memory,
            settings.scratch,
            not settings.asynchronous,
        )
        # what methods train with: gradients with noise, where single samples are protected
        self.training_task = task
        clipping = settings.sample_clipping
        if clipping is not None:
            self.training_task = task.with_clipped_samples(clipping)
            # who knows the seed of the run must not know which samples a mini-batch has
            noise = clipping.noise
            self._batch_seed = noise.noise.word("mini-batches", 0) if noise else task.seed  # type: ignore[attr-defined]
        self.async_work = AsyncWork(self) if settings.asynchronous else None
        self._evaluators: dict[str, Evaluator] = {}

    # -- a round ---------------------------------------------------------------------------------
    def update(self, order: RoundRequest) -> HostUpdate:
        """Train the clients of this host that the order names; messages of those that are heard."""
        return HostUpdate.merge(list(self.updates(order)))

    def updates(self, order: RoundRequest) -> Iterator[HostUpdate]:
        """The same, a chunk of clients at a time: no more than one chunk's models are in memory.

        A host that `gathers` sends everything with its last chunk.
        """
        contract = self.contract.of(order.version)
        train = self.rows(order.train)
        heard_rows = self.rows(order.heard)
        received = self.open_down(order)
        self.undo(order.version)
        method = contract.method.scaled(order.factors)
        batch = whole(self.settings.batch, order.factors.get("batch", 1.0))
        # the last exchange of a round draws what the only one of a round would
        purpose = "batch" if contract.ends_round else f"batch {contract.exchange}"
        waiting: list[tuple[Tensor, State]] = []
        chunks = train.split(self.chunk_of(batch)) if len(train) else ()
        for number, rows in enumerate(chunks, 1):
            here = self.here(rows, contract.round_of(order.version), purpose, batch)
            down = received.of(self.wire_ids[rows])
            private = self.store.read(rows, order.version)
            up, after = contract.checked(
                method.update(self.training_task, down, private, here), private, len(rows)
            )
            del private
            self.store.write(rows, order.version, after)
            gradients = here.tally
            none = torch.zeros_like(gradients)
            counted = {name: here.counts.get(name, none) for name in method.traits.counters}
            sends = torch.isin(rows, heard_rows)
            if contract.up.length and bool(sends.any()):
                if not bool(sends.all()):
                    up = {n: t[sends.to(t.device)] for n, t in up.items()}
                waiting.append((rows[sends], up))
            # a chunk of large models is gone before the next one is at work
            del up, after, here, down
            messages, values = Ragged.empty(0), np.zeros(0)
            if waiting and (number == len(chunks) or not self.gathers):
                messages, values = self._send(order.version, received, waiting)
            yield HostUpdate(messages, values, self.wire_ids[rows], gradients, counted)

    def undo(self, version: int) -> None:
        """A round that was begun and never concluded has not happened: the server was lost in it.

        Opened again it may name others, where clients have joined or left.
        """
        everyone = torch.arange(self.data.clients)
        self.coder.back(everyone, version)
        if self.store.keep:
            self.store.back(everyone, version)

    def undo_not_finite(self, version: int) -> int:
        """Clients whose rows a round has made not finite have those from before it; how many."""
        broken = torch.zeros(self.data.clients, dtype=torch.bool)
        stores = [store for store in (self.store, self.coder) if store.rows and store.keep]
        for store in stores:
            written = (store.version == version).nonzero().flatten()
            for rows in written.split(self.chunk) if len(written) else ():
                parts = [t for t in store.read(rows).values() if t.is_floating_point()]
                for t in parts:
                    broken[rows] |= ~t.flatten(1).isfinite().all(1).cpu()
        clients = broken.nonzero().flatten()
        for store in stores:
            store.back(clients, version)
        return len(clients)

    def _send(
        self, version: int, received: ReceivedDown, waiting: list[tuple[Tensor, State]]
    ) -> tuple[Ragged, np.ndarray]:
        """Messages through the channel, each with a header; and what they count as in words."""
        contract = self.contract.of(version)
        rows, up = waiting.pop()
        if waiting:
            waiting.append((rows, up))
            rows = torch.cat([some for some, _ in waiting])
            up = {n: torch.cat([state[n] for _, state in waiting]) for n in up}
            waiting.clear()
        reference = contract.reference(contract.method, received.of(self.wire_ids[rows]))
        up = self.protected(rows, up, reference, version)
        up = self.leaving(ExchangeId(version), rows, up, reference)
        messages, after, words = self.encode(
            rows, version, up, reference, version, self.coder.read(rows, version)
        )
        self.coder.write(rows, version, after)
        return messages, words

    def encode(
        self,
        rows: Tensor,
        versions: int | np.ndarray,
        up: State,
        reference: State,
        turns: int | np.ndarray,
        channel_rows: State,
    ) -> tuple[Ragged, State, np.ndarray]:
        """Messages of these clients through the channel, each with a header.

        Also what the channel keeps at them afterwards, and 32-bit words per message, as the lp-proj
        paper counts. `versions` stand in the headers, `turns` key the channel's random numbers.
        """
        version = versions if isinstance(versions, int) else int(versions[0])
        contract = self.contract.of(version)
        wire_ids = self.wire_ids[rows].numpy()
        heads = wire.heads(contract.up, contract.run, versions, wire_ids, self._weights(rows))

        def keys() -> streams.Keys:
            return streams.keys(contract.task.seed, "channel", turns, self.keys[rows.numpy()])

        return contract.link.encode(heads, up, reference, channel_rows, keys, version)

    def _weights(self, rows: Tensor) -> np.ndarray:
        """What messages of these clients weigh; 1 where how many samples they have would tell."""
        samples = self.samples[rows].numpy()
        noisy = self.settings.message_noise is not None or self.contract.noise is not None
        return np.ones_like(samples) if noisy else samples

    def protected(self, rows: Tensor, up: State, reference: State, version: int) -> State:
        """The messages with each client's own noise, where clients add it."""
        mechanism = self.settings.message_noise
        if mechanism is None:
            return up
        return mechanism(up, reference, self.keys[rows.numpy()], version)

    def leaving(self, exchange: ExchangeId, rows: Tensor, up: State, reference: State) -> State:
        """The messages as they leave the clients, before the channel; honest ones do not change."""
        return up

    def answer(self, query: Query) -> np.ndarray:
        """The exact values that the server asks for in a second exchange, as a byte matrix."""
        contract = self.contract
        coordinates = self._asked(query.message, "query", query.version)
        rows = self.rows(query.asked)
        stage = contract.link.aggregate_stage
        assert stage is not None
        prefix, form = self._aggregate_part(query.part, query.version)
        schema = contract.answer(query.part, query.message, len(coordinates))
        if not len(rows):
            return np.empty((0, schema.length), dtype=np.uint8)
        coder_rows = under(self.coder.read(rows), prefix)
        values = {"values": stage.answer(coder_rows, coordinates, form)}
        values = self.leaving(ExchangeId(query.version, query.part), rows, values, {})
        wire_ids = self.wire_ids[rows].numpy()
        weights = self._weights(rows)
        return wire.pack(schema, contract.run, query.version, wire_ids, weights, values)

    def conclude(self, verdict: RoundConclusion) -> None:
        """The end of a round, for what the clients keep.

        A client whose message did not count is as one that was not selected. What its channel keeps
        is as before the round, as it is at the server: else LBGM would send multiples of what the
        server has never seen, and a message that is not finite would stay in the error of its
        sender for good. So is its private row where only selected clients train: else SCAFFOLD's
        control variates would no longer have the server's as their mean. Where everyone trains, a
        client that is not selected trains too, and its row stays. What it computed stays counted. A
        client learns it with the next broadcast: one bit, not counted.

        Clients whose messages counted forget the coordinates that the server has taken.
        """
        unheard = self.rows(verdict.unheard)
        self.coder.back(unheard, verdict.version)
        if self.rows_go_back:
            self.store.back(unheard, verdict.version)
        self._forget(verdict)
        if not self.settings.repeats:
            self.coder.settle(verdict.version)
            self.store.settle(verdict.version)

    def _forget(self, verdict: RoundConclusion) -> None:
        """The coordinates that the server has taken in a second exchange."""
        stage = self.contract.link.aggregate_stage
        counted = self.rows(verdict.counted)
        if not verdict.taken or stage is None or not len(counted):
            return
        for part, message in verdict.taken.items():
            coordinates = self._asked(message, "chosen", verdict.version)
            prefix, form = self._aggregate_part(part, verdict.version)
            coder_rows = self.coder.read(counted)
            after = stage.forget(under(coder_rows, prefix), coordinates, form)
            self.coder.write(counted, verdict.version, coder_rows | prefixed(after, prefix))

    def _asked(self, message: bytes, name: str, version: int) -> Tensor:  # -> int64
        """Coordinates in a message of the second exchange."""
        count = (len(message) - wire.HEADER.itemsize) // torch.int32.itemsize
        schema = wire.Schema(
            ((name, (max(count, 0),), torch.int32),), contract=self.contract.checksum
        )
        tensors = self._open(schema, message, version, _CPU)
        return tensors[name].long().to(self.contract.task.device)

    def open_down(self, order: RoundRequest) -> ReceivedDown:
        """The message down of an order, checked."""
        return self._open_down(self.contract.of(order.version), order.version, order.down)

    def open_message(self, version: int, message: DownMessage) -> ReceivedDown:
        """A whole message down, checked, for clients of this host."""
        return self._open_down(self.contract, version, message)

    def _open_down(self, contract: Contract, version: int, message: DownMessage) -> ReceivedDown:
        device = contract.task.device
        common = self._open(contract.down, message.common, version, device)
        mine = message.only(self.wire_ids)
        if not contract.addresses:
            return ReceivedDown(common, mine.wire_ids[:0], {})
        if not len(mine.wire_ids):  # then no row can be asked for
            mine = replace(mine, own=np.zeros((0, contract.addressed.length), dtype=np.uint8))
        own = wire.open_own(contract.addressed, mine, contract.run, version, device)
        return ReceivedDown(common, mine.wire_ids, own)

    def _open(
        self, schema: wire.Schema, message: bytes, version: int, device: torch.device
    ) -> State:
        return wire.open_down(schema, message, self.contract.run, version, device)

    def _aggregate_part(self, part: str, version: int) -> tuple[str, Form]:
        parts = self.contract.link.aggregate_parts(version)
        return next((prefix, form) for name, prefix, form in parts if name == part)

    # -- models ----------------------------------------------------------------------------------
    def evaluate(
        self, version: int, message: DownMessage, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores of the personal models of this host's clients among `wire_ids`, on their own data.

        `version` keys what personalisation draws.
        """
        received = self.open_message(version, message)
        everyone = self.rows(wire_ids)
        gradients = torch.zeros(self.data.clients, dtype=torch.int64)
        sums = {split: self._evaluator(split).blank() for split in splits}
        tallies = {split: self._tally(everyone) for split in splits}
        # clients of like size together: fewer lengths per chunk, hence fewer passes of the kernel
        by_size = everyone[self.samples[everyone].argsort(stable=True)]
        for rows in by_size.split(self.chunk) if len(by_size) else ():
            x, tally = self._personal(version, received, rows)
            gradients[rows] = tally
            if isinstance(x, Tensor) and _is_one_model(x, received.common):
                sums = {s: self._evaluator(s).shared(x[0], tallies[s]) for s in splits}
                break
            for split in splits:
                self._evaluator(split).personal(x, rows, sums[split], tallies[split])
        return {s: self._scores(s, sums[s], everyone, gradients, tallies[s]) for s in splits}

    def evaluate_shared(
        self,
        version: int,
        message: DownMessage,
        splits: tuple[str, ...],
        wire_ids: Tensor | None = None,
    ) -> dict[str, Scores]:
        """Scores of the method's one global model on these clients, or all; {} without one."""
        contract = self.contract
        w = contract.method.shared(contract.task, self.open_message(version, message).common)
        if w is None:
            return {}
        rows = self.rows(self.wire_ids if wire_ids is None else wire_ids)
        nothing = torch.zeros(self.data.clients, dtype=torch.int64)
        scores_by_split = {}
        for split in splits:
            tally = self._tally(rows)
            sums = self._evaluator(split).shared(w, tally)
            scores_by_split[split] = self._scores(split, sums, rows, nothing, tally)
        return scores_by_split

    def losses(self, version: int, message: DownMessage, wire_ids: Tensor) -> dict[str, Scores]:
        """Losses of the one global model on training data, for a server that selects by them.

        Each from its client's own samples alone, to the last bit. Nothing else is counted.
        """
        contract = self.contract
        w = contract.method.shared(contract.task, self.open_message(version, message).common)
        if w is None:
            raise ValueError("losses: the method has no shared model")
        everyone = self.rows(wire_ids)
        evaluator = self._evaluator("train")
        sums = evaluator.blank()
        by_size = everyone[self.samples[everyone].argsort(stable=True)]
        for rows in by_size.split(self.chunk) if len(by_size) else ():
            evaluator.personal(w.expand(len(rows), -1), rows, sums)
        nothing = torch.zeros(self.data.clients, dtype=torch.int64)
        return {"train": self._scores("train", sums, everyone, nothing, None)}

    def evaluate_subgroups(
        self, version: int, message: DownMessage, wire_ids: Tensor, shared: bool = False
    ) -> SubgroupScores:
        """Personal models, or the shared one, on the test data of these clients, by subgroup."""
        contract = self.contract
        rows = self.rows(wire_ids)
        tally = SubgroupTally(contract.task, self.data, self.settings.metrics, rows)
        if shared:
            w = contract.method.shared(contract.task, self.open_message(version, message).common)
            assert w is not None
            self._evaluator("test").shared(w, tally)
        else:
            self._each_personal(version, message, "test", tally, rows)
        return tally.scores(self.wire_ids[rows])

    def evaluate_others(self, models: Personal, wire_ids: Tensor, split: str) -> Scores:
        """Scores of models of other clients, one for each of these clients, on their data."""
        rows = self.rows(wire_ids)
        sums = self._evaluator(split).blank()
        self._evaluator(split).personal(models, rows, sums)
        nothing = torch.zeros(self.data.clients, dtype=torch.int64)
        return self._scores(split, sums, rows, nothing, None)

    def each_sample(
        self, version: int, message: DownMessage, split: str
    ) -> tuple[Tensor, Tensor]:  # -> float64[n], float64[n]
        """Hits and loss of every sample of a split by its client's personal model, for its owner.

        Samples are in the order of the data: by client.
        """
        each = EachSample(self.contract.task, self.data, split)
        self._each_personal(version, message, split, each, torch.arange(self.data.clients))
        return each.means()

    def each_output(self, version: int, message: DownMessage, split: str) -> EvaluatedSamples:
        """What its client's personal model answers to every sample of a split, for its owner.

        Samples are in the order of the data: by client.
        """
        task = self.contract.task
        each = EachOutput(self.data, split, form_of(self.data, task.criterion))
        self._each_personal(version, message, split, each, torch.arange(self.data.clients))
        return each.samples()

    def _each_personal(
        self, version: int, message: DownMessage, split: str, each: Counting, clients: Tensor
    ) -> None:
        """Show every sample of these rows' split, and the answer of its client's personal model."""
        received = self.open_message(version, message)
        evaluator = self._evaluator(split)
        by_size = clients[self.samples[clients].argsort(stable=True)]
        for rows in by_size.split(self.chunk) if len(by_size) else ():
            x, _ = self._personal(version, received, rows)
            if isinstance(x, Tensor) and _is_one_model(x, received.common):
                evaluator.shared(x[0], each)
                break
            evaluator.personal(x, rows, evaluator.blank(), each)

    def _scores(
        self, split: str, sums: ScoreSums, rows: Tensor, gradients: Tensor, tally: Tally | None
    ) -> Scores:
        sizes = self.data.sizes(split)[rows]
        counted = (sums.hits[rows], sums.loss[rows], sizes, gradients[rows])
        metrics = {} if tally is None else tally.measured(rows)
        weights = None
        if self.data.weights is not None:
            weights = self.data.weight_totals(split)[rows]
        return Scores(self.wire_ids[rows], *counted, metrics, weights)

    def _tally(self, rows: Tensor) -> Tally | None:
        metrics = self.settings.metrics
        if not metrics:
            return None
        return Tally(
            metrics, form_of(self.data, self.contract.task.criterion), self.data.clients, rows
        )

    def personal(self, version: int, message: DownMessage, wire_id: int) -> Personal:
        """What a client predicts with: x[d], or a State. For its owner; no engine calls this."""
        rows = self.personal_rows(version, message, torch.tensor([wire_id]))
        return rows[0] if isinstance(rows, Tensor) else {n: t[0] for n, t in rows.items()}

    def personal_rows(self, version: int, message: DownMessage, wire_ids: Tensor) -> Personal:
        """The same for several clients of this host, in their order: x[K, d], or rows."""
        received = self.open_message(version, message)
        chunks = self.rows(wire_ids).split(self.chunk)
        return joined_rows([self._personal(version, received, rows)[0] for rows in chunks])

    def _personal(
        self, version: int, received: ReceivedDown, rows: Tensor
    ) -> tuple[Personal, Tensor]:
        """x[K, d] or rows to predict with, and the gradient evaluations that personalising took."""
        task = self.contract.task
        here = self.here(rows, version, "personal")
        down = received.of(self.wire_ids[rows])
        x = self.contract.method.personal(task, down, self.store.read(rows), here)
        steps = self.settings.finetune_steps
        if steps and isinstance(x, Tensor):
            x = self._finetuned(x, here, steps)
        return x, here.tally

    def _finetuned(self, x: Tensor, here: Here, steps: int) -> Tensor:
        """Models, with their running statistics where they have any, after SGD steps."""
        task = self.contract.task
        if self.settings.optimizer is not None:
            here.optimise = Optimise(self.settings.optimizer.before_use())
        if x.shape[-1] > task.d:
            here.statistics = {"w": x[:, task.d :].clone()}
        x = sgd(task, x[:, : task.d], here, self.settings.finetune_lr, steps)
        return here.complete(x)

    def unreported(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores, of no sample, of those of these clients that belong to this host."""
        form = form_of(self.data, self.contract.task.criterion)
        blank = Scores.blank(self.wire_ids[self.rows(wire_ids)], self.settings.metrics, form)
        return dict.fromkeys(splits, blank)

    # -- private rows of the owner ---------------------------------------------------------------
    def adopt(self, earlier: HostLike) -> None:
        """Start from the private rows of an earlier stage of the same clients, where they fit."""
        self.store.adopt({n: t.clone() for n, t in earlier.all_rows().items()})

    def all_rows(self) -> State:
        """The private rows of all clients here, for their owner; those never met are made now."""
        return self.store.read(torch.arange(self.data.clients))

    def digest(self) -> str:
        """SHA-256 of the private rows: it tells whether two are the same, and nothing else."""
        digest = hashlib.sha256()
        for name, t in sorted(self.all_rows().items()):
            flat = t.detach().cpu().contiguous().view(-1)
            digest.update(name.encode() + flat.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Private rows and what the channel keeps, as files in a folder of the owner's.

        Nobody else may read it. Each file has the clients that its rows belong to.
        """
        private_folder(folder)
        for name, store in self.stores().items():
            write_tensors(folder / name, {**store.save(), "wire_ids": self.wire_ids})

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """As it was saved; ValueError for anything that this host cannot have saved.

        No row may be newer than the `rounds` that are done: given for all rows, or for each.
        """
        own = shapes_of({"wire_ids": self.wire_ids})

        def check_of(store: Store) -> Callable[[Shapes], None]:
            def check(shapes: Shapes) -> None:
                check_shapes({n: shape for n, shape in shapes.items() if n in own}, own)
                store.check({n: shape for n, shape in shapes.items() if n not in own})

            return check

        stores = self.stores()
        saved = {n: read_tensors(folder / n, check_of(store)) for n, store in stores.items()}
        for tensors in saved.values():
            if not torch.equal(tensors.pop("wire_ids"), self.wire_ids):
                raise ValueError(f"{folder}: these are the rows of other clients")
        for name, store in stores.items():
            store.load(saved[name], self.contract.task.device, rounds=rounds)

    def stores(self) -> dict[str, Store]:
        """What is saved, by the names of the files."""
        stores = {"private.safetensors": self.store, "channel.safetensors": self.coder}
        return stores | (self.async_work.stores() if self.async_work else {})

    def most_bytes(self) -> int:
        """The most that `save` writes."""
        stores = self.stores().values()
        rows = sum(bytes_of(store.expected()) for store in stores)
        return rows + len(stores) * bytes_of(shapes_of({"wire_ids": self.wire_ids}))

    def release(self) -> None:
        """Forget what only makes evaluation faster, and rows kept from before a round."""
        self._evaluators.clear()
        if not self.settings.repeats and len(self.wire_ids):
            self.store.settle(int(self.store.version.max()))

    # -- inside ----------------------------------------------------------------------------------
    def rows(self, wire_ids: Tensor) -> Tensor:  # -> int64, in the order of wire_ids
        """The rows of those of these clients that belong to this host."""
        if not len(self.wire_ids):
            return wire_ids[:0]
        if torch.equal(wire_ids, self.wire_ids):
            return torch.arange(len(wire_ids))
        at = torch.searchsorted(self.wire_ids, wire_ids).clamp(max=len(self.wire_ids) - 1)
        return at[self.wire_ids[at] == wire_ids]

    def here(
        self,
        rows: Tensor,
        version: int,
        purpose: str = "batch",
        batch: int = 0,
        turns: np.ndarray | None = None,
    ) -> Here:
        """What the code of these clients may see."""
        task = self.contract.task
        trains = self.settings.sample_clipping is not None and purpose.startswith("batch")
        here = Here(
            self.data,
            rows,
            clients=self.keys[rows.numpy()],
            seed=self._batch_seed if trains else task.seed,
            round=version,
            batch=batch or self.settings.batch,
            batching="poisson" if trains else self.settings.batching,
            gradients_only=trains,
            dtype=task.dtype,
            purpose=purpose,
            validate=lambda x, loss: self._errors(x, rows, loss),
            turns=turns,
            augment=self.settings.augment,
        )
        if self.settings.optimizer is not None:
            here.optimise = Optimise(self.settings.optimizer)
        return here

    def _errors(self, x: Personal, rows: Tensor, loss: bool) -> Tensor:
        """Error, or loss, of what clients predict with on their own validation data."""
        if not self.settings.validation:
            raise SettingError(
                "data: this method decides by validation data, and no client has any; "
                "give a validation share"
            )
        sizes = self.data.sizes("valid")
        sums = self._evaluator("valid").blank()
        self._evaluator("valid").personal(x, rows, sums)
        n = torch.where(sizes > 0, sizes, torch.nan)
        error = sums.loss / n if loss or not self.data.classes else 1 - sums.hits / n
        return error[rows].nan_to_num(0.0)

    def _evaluator(self, split: str) -> Evaluator:
        if split not in self._evaluators:
            task = self.contract.task
            one_by_one = self.settings.chunk == 1
            self._evaluators[split] = Evaluator(task, self.data, split, one_by_one, self._predict)
        return self._evaluators[split]

    def _predict(self, personal: State, inputs: Tree) -> Tree:
        with torch.no_grad():
            return self.contract.method.predict(self.contract.task, personal, inputs)

    @property
    def chunk(self) -> int:
        """Rows at once."""
        return self.chunk_of(self.settings.batch)

    def chunk_of(self, batch: int) -> int:
        """Rows at once, with mini-batches of this size."""
        task = self.contract.task
        size = task.dtype.itemsize
        values = sum(t[0].numel() for t in leaves(self.data.inputs) if len(t))
        return self.settings.rows_at_once(task.d * size, values * size, batch)


def joined_rows(parts: Sequence[Personal]) -> Personal:
    """Rows of several groups of clients as one; a State's tensors are filled up with zeros.

    >>> joined_rows([{"x": torch.ones(1, 2)}, {"x": torch.ones(2, 3)}])["x"].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    states = [part for part in parts if not isinstance(part, Tensor)]
    if not states:
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    out: State = {}
    for name, like in states[0].items():
        rows = [state[name] for state in states]
        shape = [max(t.shape[axis] for t in rows) for axis in range(1, like.dim())]
        out[name] = like.new_zeros(sum(map(len, rows)), *shape)
        at = 0
        for t in rows:
            out[name][(slice(at, at + len(t)), *(slice(n) for n in t.shape[1:]))] = t
            at += len(t)
    return out


def _is_one_model(x: Tensor, down: State) -> bool:
    """Whether the rows of x are one model for all clients: then it is evaluated as that.

    Rows of one vector have no stride. A single row may have one, and then shows by being a vector
    of the message down itself: so a client alone at its host has the scores it would have among
    others.
    """
    if len(x) > 1 or x.stride(0) == 0:
        return x.stride(0) == 0
    return any(x.data_ptr() == t.data_ptr() for t in down.values())
