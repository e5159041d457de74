"""Which part of a model should be personal: every split measured, and one recommended.

From a common start (FedAvg for some rounds, or given weights) the private part of every client is
fine-tuned, all else as it is. Validation data decide. What is within one standard error of the
best is as good, and of these the smallest private part is taken: section 4.3 of the FFGG paper,
"the smaller the personalized part w is, the easier will be its fine-tuning". Test data are never
looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.columns import FittedTable
from ..core.documents import plain
from ..core.draws import keyed_torch
from ..core.knobs import SettingError, build, check, knob, refused_in, with_role
from ..core.parts import Parts
from ..core.text import note, plural
from ..core.types import leaves
from ..data.federation import Federation
from ..host.evaluation import Evaluator, ScoreSums
from ..host.host import HostSettings
from ..methods import label_of
from ..models import adapt
from ..models.adapters import KINDS
from ..report.format import number
from ..report.progress import style_of
from ..report.tables import splits_table
from ..run.plan import AnyMethod, AnyModel, read_method, read_task
from ..run.run import run, torch_threads
from ..run.settings import DTYPES, EVALUATION, Settings
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from ..wire.messages import HEADER

ROUNDS = 50  # of FedAvg, where the user does not say
STEPS = 50  # of fine-tuning
RATES = [0.03, 0.1, 0.3, 1.0]  # the best of which each candidate has
DIVERGED = (
    "start: the start has diverged, and no candidate has a finite validation loss; "
    "choose a smaller learning rate, such as start='fedavg:lr=0.01'"
)


@dataclass(frozen=True)
class Splits:
    """The candidates as rows of plain data, the one to take, and why."""

    rows: list[dict[str, Any]]
    choice: str  # as `part` of a method: "layer:2", "adapter", or "none": nothing
    reasons: list[str]
    title: str
    facts: dict[str, Any] = field(default_factory=dict)

    def table(self, width: int = 0) -> FittedTable:
        """The table of the command line."""
        return splits_table(self.rows, self.choice, self.reasons, self.title, width)

    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        facts = {"choice": self.choice, "reasons": self.reasons, "candidates": self.rows}
        return cast(dict[str, Any], plain({**self.facts, **facts}))

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return f"Splits(choice={self.choice!r}, of {len(self.rows)})"


def splits(
    task: AnyModel,
    federation: Federation,
    *,
    parts: str = "",
    rank: int = 4,
    adapter: str = "low-rank",
    start: AnyMethod = "fedavg",
    private_start: str = "common",
    progress: bool | None = None,
    report: Any = None,
    tell: Callable[[str], None] | None = None,
    **settings: Any,
) -> Splits:
    """FineTuning every part of a model that could be personal, and recommend one.

    `parts` names candidates, separated by semicolons ("input;head;adapter,norms"); without it there
    is one for each block or layer, for norms, for biases, and for adapters of inner width `rank`
    (0: none) of kind `adapter`. `start` is the method whose shared model they start from; with
    `private_start="random"` it starts at random, as that of FFGG does by default. Settings
    are those of `run`: `rounds` of the start (50 without word, none with `weights`), `seeds`,
    `batch`, `sample`, ...; `finetune_steps` and `finetune_lr` are those of the private part (50
    steps, and the best of 0.03, 0.1, 0.3 and 1 on validation data). `report` and `tell` are for the
    command line: what rounds and lines of progress go to.

    >>> import idiolect as il
    >>> federation = il.data.load("digits", clients=4)
    >>> model = lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="16")
    >>> splits = il.splits(model, federation, rounds=5, finetune_steps=5)
    >>> [row["part"] for row in splits.rows]
    ['none', 'layer:1', 'layer:2', 'biases', 'adapter', 'all']
    """
    whole, _ = read_task(task, federation)
    if federation.subgroups:
        note("subgroup has no effect on splits; run and compare give its figures")
    if not bool(federation.sizes("valid").any()):
        raise SettingError(
            "data: no client has validation data, which decide between splits; "
            "give a validation share (valid=0.2)"
        )
    if private_start not in ("common", "random"):
        raise SettingError(f"private_start must be 'common' or 'random', got {private_start!r}")
    rounds = 0 if whole.initial.weights else ROUNDS  # weights are a start
    evaluation = with_role(Settings, EVALUATION)
    for_start = {name: value for name, value in settings.items() if name not in evaluation}
    for_start = {"rounds": rounds, **for_start}
    run_settings = build(Settings, for_start, "run")
    for name, reason in refused_in(Settings, "splits").items():
        if getattr(run_settings, name):
            raise SettingError(f"{name} must not be given to splits; {reason}")
    seeds = range(run_settings.seed, run_settings.seed + run_settings.seeds)
    method = read_method(start)
    bound = whole.under(run_settings.numerics(run_settings.seed))
    split_candidates = [
        SplitCandidate(NOTHING),
        *candidates(bound, parts, rank, adapter),
        SplitCandidate(EVERYTHING),
    ]
    steps = run_settings.finetune_steps or STEPS
    rates = [run_settings.finetune_lr] if "finetune_lr" in settings else RATES
    unseen = federation.without("test")
    if tell is None and style_of(progress) == "bar":
        from ..report.console import say as tell  # rich takes a while to import
    report_line = tell or (lambda text: None)
    for_run = {name: value for name, value in for_start.items() if not name.startswith("finetune_")}
    if report is not None:
        progress = report(label_of(method), run_settings.seed, run_settings.rounds)
    result = run(method, whole, unseen, progress=progress, **for_run, eval_every=0)
    scores: list[list[SplitScores]] = []  # by seed and candidate
    with torch_threads(run_settings.threads):
        for seed in seeds:
            session = result.session(seed)
            x0 = session.server.handover()
            if x0 is None:
                raise SettingError(
                    f"start must be a method that has a shared model, such as fedavg, got "
                    f"{label_of(method)}"
                )
            people = session.people.evaluated
            people = people[federation.sizes("train")[people] > 0]
            tuning = FineTuning(
                unseen.to(run_settings.device, DTYPES[run_settings.dtype]),
                people,
                streams.name_keys(federation.names)[people.numpy()],
                run_settings,
                seed,
                steps,
                private_start == "random",
            )
            scores.append([])
            for place, candidate in enumerate(split_candidates, 1):
                on, split, model = candidate.on(session.contract.task, x0)
                outcome = tuning(on, split, model, rates if len(split.w) else rates[:1])
                scores[-1].append(outcome)
                mass = unseen.weight_totals("valid")[people].sum()
                loss = float(outcome.loss["valid"].sum() / mass)
                report_line(
                    f"seed {seed}: {candidate.name} ({place} of {len(split_candidates)}), "
                    f"validation loss {number(loss)}"
                )
    sizes = {s: federation.weight_totals(s)[people] for s in ("train", "valid")}
    clients_heard = run_settings.sampled(len(people), method.traits.hears_all)
    rows = [
        _row(candidate, bound, [one[i] for one in scores], sizes, clients_heard, federation.classes)
        for i, candidate in enumerate(split_candidates)
    ]
    _against_best(rows, scores, sizes["valid"])
    choice, reasons = choose(rows, len(people))
    facts = {
        "data": federation.name,
        "clients": len(people),
        "d": whole.d,
        "start": {"method": label_of(method), "rounds": run_settings.rounds},
        "finetune": {"steps": steps, "rates": rates, "private_start": private_start},
        "seeds": list(seeds),
        "heard": clients_heard,
    }
    title = (
        f"{federation.name}: {plural(len(people), 'client')}, d = {whole.d:,}; "
        f"{plural(run_settings.rounds, 'round')} of {label_of(method)}, then "
        f"{plural(steps, 'step')} "
        "on the private part" + (", from a random start" if private_start == "random" else "")
    )
    return Splits(rows, choice, reasons, title, facts)


def _row(
    candidate: SplitCandidate,
    bound: Task,
    seeds: list[SplitScores],
    sizes: dict[str, Tensor],
    clients_heard: int,
    classes: int,
) -> dict[str, Any]:
    """A candidate as plain data: means over seeds, pooled over samples."""
    task, split, _ = candidate.on(bound, bound.start())
    shared, private = len(split.theta), len(split.w)
    message = HEADER.itemsize + task.dtype.itemsize * shared if shared else 0
    row: dict[str, Any] = {
        "part": candidate.part,
        "name": candidate.name,
        "also": list(candidate.also),
        "private": private,
        "shared": shared,
        "bytes_per_round": 2 * clients_heard * message,
        "lr": [m.lr for m in seeds] if private else [],
        "gradient_before": _mean([float(m.before.mean()) for m in seeds]),
        "gradient_left": _mean([float(m.left.mean()) for m in seeds]) if shared else 0.0,
        "gradient_left_of_mean": _mean([m.mean_left for m in seeds]) if shared else 0.0,
    }
    for s in ("train", "valid"):
        n = float(sizes[s].sum())
        row[f"{s}_loss"] = _mean([float(m.loss[s].sum()) / n for m in seeds])
        row[f"{s}_accuracy"] = (
            _mean([float(m.hits[s].sum()) / n for m in seeds]) if classes else math.nan
        )
    return row


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _against_best(
    rows: list[dict[str, Any]], measured: list[list[SplitScores]], sizes: Tensor
) -> None:
    """The gap of every row to the best partial one, and its standard error, into the rows.

    Paired over clients, each weighing as many samples as it has; with several seeds the larger of
    that and the standard error over seeds.
    """
    losses = torch.stack([torch.stack([m.loss["valid"] for m in seed]) for seed in measured])
    have = sizes > 0
    n = sizes[have]
    each = losses[:, :, have]  # [seeds, candidates, clients], summed over samples
    able = [i for i, row in enumerate(rows) if row["shared"] and math.isfinite(row["valid_loss"])]
    if not able:
        raise SettingError(DIVERGED)
    best = min(able, key=lambda i: rows[i]["valid_loss"])
    for i, row in enumerate(rows):
        gap = (each[:, i] - each[:, best]).mean(0)  # [clients]
        mean = gap.sum() / n.sum()
        spread = (gap - mean * n).square().sum().sqrt() / n.sum()
        error = float(spread) * math.sqrt(len(n) / max(len(n) - 1, 1))
        if len(each) > 1:
            by_seed = (each[:, i] - each[:, best]).sum(1) / n.sum()
            error = max(error, float(by_seed.std()) / math.sqrt(len(each)))
        row["gap"] = float(mean)
        row["gap_error"] = error
        row["tied"] = math.isfinite(row["gap"]) and row["gap"] <= error


def choose(rows: list[dict[str, Any]], clients: int) -> tuple[str, list[str]]:
    """The part to take, and why: in words."""
    able = [r for r in rows if r["shared"] and r["tied"]]
    row = min(able, key=lambda r: (r["private"], r["valid_loss"]))
    none, whole = rows[0], rows[-1]
    others = [r["name"] for r in able if r is not row]
    reasons = [f"{_recommended(row)}: validation loss {_against(row, none, whole)}"]
    if others:
        reasons.append(
            f"{', '.join(others)}: within one standard error of the best; "
            "of these the smallest private part is taken"
        )
    if row["private"]:
        reasons.append(_of_gradient(row, clients))
    if whole["gap"] < -whole["gap_error"]:
        reasons.append(
            f"a separate model for each client does better still ({number(whole['valid_loss'])}"
            "): see finetune, ditto and local too"
        )
    return row["part"], reasons


def _recommended(row: dict[str, Any]) -> str:
    if not row["private"]:
        return "no part needs to be personal (fedavg)"
    also = f" ({', '.join(row['also'])})" if row["also"] else ""
    adapters = row["name"].removeprefix(row["part"])
    return f"part={row['part']}{also}{adapters}"


def _against(row: dict[str, Any], none: dict[str, Any], whole: dict[str, Any]) -> str:
    mine, shared, own = (number(r["valid_loss"]) for r in (row, none, whole))
    if not row["private"]:
        return f"{mine}, against {own} with a model fine-tuned by each client"
    return (
        f"{mine} once it is fine-tuned, against {shared} of the shared model and "
        f"{own} of models fine-tuned as a whole"
    )


def _of_gradient(row: dict[str, Any], clients: int) -> str:
    """What the gradient that is left says (FFGG, section 4.3)."""
    before, after, together = (
        row[k] for k in ("gradient_before", "gradient_left", "gradient_left_of_mean")
    )
    share = after / before if before else 0.0
    text = (
        f"fine-tuning it takes the shared part's gradient from {before:.3g} to {after:.3g} per "
        f"client ({share:.0%}), {together:.3g} in the mean over clients"
    )
    if share < 0.05:
        return f"{text}: close to 0, so that the shared part will hardly move; less may do"
    if together > 2 * after / math.sqrt(clients):
        return f"{text}: there is more for the shared part to learn from all of them"
    return f"{text}: what is left differs from client to client, a mean learns little of it"


# -- Which parts of a model could be personal: its blocks or layers, norms, biases, adapters --

NOTHING = "none"  # the shared model for everyone
EVERYTHING = "all"  # a whole model for each


@dataclass(frozen=True)
class SplitCandidate:
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
        with keyed_torch(task.seed):
            module = adapt(task.module, self.rank, kind=self.kind)
        adapted = task.with_module(module)
        split = adapted.split(self.part)
        # parameters of the model itself are in the same order as before
        x0 = split.join(start[: task.d], split.parts(adapted.x0)[1])
        return adapted, split, torch.cat([x0, start[task.d :]])


def candidates(task: Task, text_list: str, rank: int, kind: str) -> list[SplitCandidate]:
    """Those that the user names, separated by semicolons, or all that the structure shows.

    >>> task = Task(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
    >>> [(c.part, c.also) for c in candidates(task, "", 0, "low-rank")]
    [('layer:1', ('input',)), ('layer:2', ('output',)), ('biases', ())]
    """
    if kind not in KINDS:
        raise SettingError(f"adapter must be one of {', '.join(KINDS)}, got {kind!r}")
    rank = check("rank", rank, knob(4, "the inner width of added adapters; 0 = none", low=0), int)
    parts = task.layout.parts
    texts = [text.strip() for text in text_list.split(";") if text.strip()] or _all(parts)
    by_parameters: dict[bytes, SplitCandidate] = {}
    for text in texts:
        if "adapter" in text.split(",") and not parts.adapter:
            continue
        split = task.split(text)
        if text_list and not len(split.theta):
            raise SettingError(
                f"parts must leave something to share, got {text!r}, which is all of the model"
            )
        if not len(split.theta) or not len(split.w):
            continue
        key = split.w.cpu().numpy().tobytes()
        first = by_parameters.get(key)
        by_parameters[key] = SplitCandidate(text) if first is None else _also(first, text)
    if rank and not parts.adapter:
        by_parameters[b"adapter"] = SplitCandidate("adapter", (), rank, kind)
    if not by_parameters:
        raise SettingError(
            "parts: this model has one layer alone, and no part of it could be shared while "
            "another is private; give it adapters (rank), or a model with several layers"
        )
    return list(by_parameters.values())


def _also(first: SplitCandidate, text: str) -> SplitCandidate:
    return SplitCandidate(first.part, (*first.also, text))


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


# -- What a split is like, measured: fine-tune the private part w of all clients, θ as it is --


@dataclass(frozen=True)
class SplitScores:
    """One candidate with one learning rate: float64[K], of each client."""

    lr: float
    loss: dict[str, Tensor]  # summed over samples
    hits: dict[str, Tensor]
    before: Tensor  # ||∇_θ f_m(θ, w)|| at the start
    left: Tensor  # ||F_m(θ)||, after fine-tuning
    mean_left: float  # ||mean F_m(θ)||


@dataclass(frozen=True)
class FineTuning:
    """Clients at work: their data, and how they step."""

    data: Federation
    clients: Tensor  # int64[K]: positions of those that count
    keys: np.ndarray  # uint64[K]
    settings: Settings
    seed: int
    steps: int
    random: bool = False  # whether the private part starts at random, as FFGG's does

    def __call__(self, task: Task, split: Split, start: Tensor, rates: list[float]) -> SplitScores:
        """The rate with the least validation loss; what the gradient is at its end."""
        validation = Evaluator(task, self.data, "valid")
        best = math.inf
        for rate in rates:
            models = self._finetune(task, split, start, rate)
            sums = self._scores(task, validation, models)
            loss = float(sums.loss.sum().nan_to_num(math.inf))
            if loss < best or rate == rates[0]:
                best, lr, x, valid = loss, rate, models, sums
        train = self._scores(task, Evaluator(task, self.data, "train"), x)
        before, after, total = self._gradients(task, split, start, x)
        clients = self.clients
        return SplitScores(
            lr,
            {"train": train.loss[clients], "valid": valid.loss[clients]},
            {"train": train.hits[clients], "valid": valid.hits[clients]},
            before,
            after,
            float((total / len(clients)).norm()),
        )

    def _finetune(self, task: Task, split: Split, start: Tensor, lr: float) -> Tensor:
        """The models of all clients, x[K, d + m]."""
        models = start.repeat(len(self.clients), 1)
        for at in torch.arange(len(self.clients)).split(self._at_once(task)):
            here = self._here(at)
            x = models[at]
            if self.random and len(split.w):
                x[:, split.w] = task.draw(here.keys("private start"))[:, split.w]
            models[at] = self._steps(task, split, x, here, lr)
        return models

    def _scores(self, task: Task, evaluator: Evaluator, models: Tensor) -> ScoreSums:
        """Accuracy and loss of the clients, times what their samples weigh."""
        sums = evaluator.blank()
        for at in torch.arange(len(self.clients)).split(self._at_once(task)):
            evaluator.personal(models[at], self.clients[at], sums)
        mean_weights = evaluator.mean_weights
        return ScoreSums(sums.hits * mean_weights, sums.loss * mean_weights)

    def _steps(self, task: Task, split: Split, x: Tensor, here: Here, lr: float) -> Tensor:
        if x.shape[-1] > task.d:
            here.statistics = {"w": x[:, task.d :].clone()}
        x = x[:, : task.d].clone()
        for _ in range(self.steps if len(split.w) else 0):
            g = task.grad(x, here.draw())
            x[:, split.w] -= lr * g[:, split.w]
        return here.complete(x)

    def _gradients(
        self, task: Task, split: Split, start: Tensor, models: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """||∇_θ f_m|| before and after, on all training data; and the sum of the F_m."""
        task = task.under(clip=0.0) if task.numerics.clip else task
        before, after = [], []
        total = start.new_zeros(len(split.theta), dtype=torch.float64)
        longest = int(self.data.sizes("train")[self.clients].max())
        for at in torch.arange(len(self.clients)).split(self._at_once(task, longest)):
            there = start.expand(len(at), -1)
            before.append(self._shared(task, split, there, at).norm(dim=1).double())
            F = self._shared(task, split, models[at], at)
            after.append(F.norm(dim=1).double())
            total += F.double().sum(0)
        return torch.cat(before).cpu(), torch.cat(after).cpu(), total

    def _shared(self, task: Task, split: Split, x: Tensor, at: Tensor) -> Tensor:
        """∇_θ f_m(x_m) of these clients, on all their training data."""
        here = self._here(at, "full")
        if x.shape[-1] > task.d:
            here.statistics = {"w": x[:, task.d :].clone()}
        return task.grad(x[:, : task.d].contiguous(), here.draw())[:, split.theta]

    def _here(self, at: Tensor, batching: str = "") -> Here:
        """Mini-batches as in training; with another `batching`, of the samples as they are."""
        s = self.settings
        return Here(
            self.data,
            self.clients[at],
            clients=self.keys[at.numpy()],
            seed=self.seed,
            round=s.rounds,
            batch=s.batch,
            batching=batching or s.batching,
            dtype=DTYPES[s.dtype],
            purpose="split",
            augment=None if batching else s.augment,
        )

    def _at_once(self, task: Task, batch: int = 0) -> int:
        """Rows at once, as a host has them."""
        s = self.settings
        host = HostSettings(chunk=s.chunk, memory=int(s.memory * 2**30))
        size = task.dtype.itemsize
        values = sum(t[0].numel() for t in leaves(self.data.inputs) if len(t))
        return host.rows_at_once(task.d * size, values * size, batch or s.batch)
