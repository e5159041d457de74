"""What may leave a site: its owner's rules, and the check of every reply against them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...core.knobs import Knobs, SettingError, knob
from ...core.text import plural
from ...host import calls
from ...host.calls import Call
from ...host.metrics import MetricCounts
from ...host.scores import Scores
from ...host.service import Refused
from ...wire import messages as wire
from .state import Usage

MIB = 1 << 20
MORE_EVALUATIONS = 20  # than two per round: before the first, after the last, of resumed runs
ALWAYS = ("accuracy", "loss")  # what every evaluation counts


def read_words(value: Any) -> tuple[str, ...]:
    """Words with commas between them.

    >>> read_words("accuracy, loss")
    ('accuracy', 'loss')
    """
    if isinstance(value, str):
        value = [piece.strip() for piece in value.split(",") if piece.strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise SettingError(f"it must be words with commas between them, got {value!r}")
    return tuple(dict.fromkeys(value))


def read_code(value: Any) -> tuple[str, ...]:
    """Names of code, `package:Name` each, or of things that installed packages offer."""
    names = read_words(value)
    for name in names:
        if not re.fullmatch(r"[\w.:-]+", name):
            raise SettingError(f"allow_code must name code as package:Name, got {name!r}")
    return names


def write_words(words: tuple[str, ...]) -> str:
    """The inverse."""
    return ",".join(words)


@dataclass(frozen=True)
class Rules(Knobs):
    """What the owner of a site lets out, and how much of it."""

    metrics: tuple[str, ...] = knob(
        ALWAYS,
        "figures of evaluations that may leave, with commas; empty: none",
        parse=read_words,
        write=write_words,
    )
    min_samples: int = knob(
        10,
        "samples that a client needs to take part, and that a figure is counted over before it "
        "may leave",
        low=1,
    )
    min_batch: int = knob(
        8,
        "samples that a mini-batch must have; batching 'full' takes all that a client has",
        low=1,
    )
    max_rounds: int = knob(
        1000, "orders to train that this site answers, ever; 0 = no limit", low=0
    )
    max_evaluations: int = knob(
        -1,
        "evaluations that this site answers, ever; 0 = no limit, -1 = two per round of max_rounds "
        "and 20 more",
        low=-1,
    )
    max_questions: int = knob(
        20,
        "different forms of the data and sums of columns that a server may ask for, ever: whether "
        "the data fit tells about them; 0 = no limit",
        low=0,
    )
    max_numbers: int = knob(0, "numbers that may leave, ever; 0 = no limit", low=0)
    max_message: float = knob(256.0, "MiB of the largest message, in or out", above=0)
    sums: bool = knob(
        True,
        "counts, sums and names of categories of columns may leave, so that all sites scale alike",
    )
    allow_private_rows: tuple[str, ...] = knob(
        (),
        "methods, with commas, whose messages are the private models or tell them (l2gd, pfedme)",
        parse=read_words,
        write=write_words,
    )
    client_names: str = knob(
        "numbered",
        "what the server calls the clients of this site: its name with numbers, or their own ids",
        choices=("numbered", "own"),
    )
    allow_code: tuple[str, ...] = knob(
        (),
        "code besides the built-in methods, models and so on that a federation may name, with "
        "commas: package:Name",
        parse=read_code,
        write=write_words,
    )

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest message."""
        return int(self.max_message * MIB)

    @property
    def most_evaluations(self) -> int:
        """Evaluations that are answered; 0 = no limit."""
        if self.max_evaluations >= 0:
            return self.max_evaluations
        return 2 * self.max_rounds + MORE_EVALUATIONS if self.max_rounds else 0

    @property
    def caps(self) -> dict[str, int]:
        """How much of what may leave, ever; what has no limit is left out."""
        caps = {
            "rounds": self.max_rounds,
            "evaluations": self.most_evaluations,
            "questions about the data": self.max_questions,
            "numbers": self.max_numbers,
        }
        return {name: most for name, most in caps.items() if most}


@dataclass(frozen=True)
class Content:
    """What a reply says, for the log and for the caps."""

    numbers: int = 0
    words: str = ""
    metrics: tuple[str, ...] = ()


def content(reply: Call, itemsize: int) -> Content:
    """The content of a reply; `itemsize` is that of a number of the messages."""
    if reply.kind == "sent":
        lengths = reply.tensors["lengths"]
        numbers = int(reply.tensors["values"].sum().ceil())
        trained = len(reply.tensors["trained"])
        words = f"{plural(len(lengths), 'message')} of clients, {plural(numbers, 'number')} in all"
        return Content(numbers, f"{words}; gradient evaluations of {plural(trained, 'client')}")
    if reply.kind == "answered":
        inside = (reply.tensors["lengths"] - wire.HEADER.itemsize).clamp(min=0)
        numbers = int(inside.sum()) // itemsize
        return Content(numbers, f"values of coordinates that the server asked for: {numbers}")
    if reply.kind == "scores":
        return _of_scores(reply)
    if reply.kind == "census":
        clients = len(reply.facts["clients"])
        return Content(
            3 * clients, f"names of {plural(clients, 'client')} and how many samples each has"
        )
    if reply.kind == "sums":
        columns = reply.facts["columns"].values()
        numbers = sum(isinstance(v, int | float) for c in columns for v in c.values())
        names = sum(len(c.get("categories", ())) for c in columns)
        words = f"counts and sums of {plural(len(reply.facts['columns']), 'column')}"
        return Content(
            numbers,
            words + (f", names of {plural(names, 'category', 'categories')}" if names else ""),
        )
    words_of = {
        "hello": "version, name and rounds done",
        "summed": "keys and shares of masks, for a sum of messages",
        "consent": "whether the owner has agreed to it",
    }
    return Content(0, words_of.get(reply.kind, ""))


def _of_scores(reply: Call) -> Content:
    splits = reply.facts["splits"]
    figures = [n for n, t in reply.tensors.items() if not n.endswith(".wire_ids") and t.numel()]
    numbers = sum(reply.tensors[n].numel() for n in figures)
    columns = {n: reply.tensors[f"{s}.{c}"] for s in splits for n, c in _COLUMN.items()}
    names = [n for n, t in columns.items() if not bool(t.isnan().all())]
    names += dict.fromkeys(n.split(".rows.", 1)[1] for n in figures if ".rows." in n)
    clients = max((len(reply.tensors[f"{s}.wire_ids"]) for s in splits), default=0)
    words = (
        f"{', '.join(names) or 'no figures'} of {plural(clients, 'client')} on {', '.join(splits)}"
    )
    return Content(numbers, words, tuple(names) if clients else ())


_COLUMN = {"accuracy": "hits", "loss": "loss"}


class Exhausted(Refused):
    """What the owner allows is used up: no later order will be answered either."""


def check_caps(rules: Rules, usage: Usage, numbers: int, size: int) -> None:
    """Refuse a reply that would go beyond what the owner allows."""
    if rules.max_numbers and usage.numbers + numbers > rules.max_numbers:
        raise Exhausted(
            f"max_numbers: this site's owner lets {rules.max_numbers} numbers leave; "
            f"{usage.numbers} have, and these are {numbers}"
        )
    if size > rules.most_bytes:
        raise Refused(
            f"max_message: a reply of {size} bytes; this site's owner allows {rules.most_bytes}"
        )


def count_round(rules: Rules, usage: Usage, order: str) -> None:
    """Count an order to train, before anything is computed; Refused beyond what is allowed.

    `order` is the digest of its frame: the same one again, after a restart, is counted once.
    """
    if order == usage.last_order:
        return
    if rules.max_rounds and usage.rounds >= rules.max_rounds:
        raise Exhausted(
            f"max_rounds: this site's owner allows {rules.max_rounds} rounds, and they are done"
        )
    usage.rounds += 1
    usage.last_order = order


def count_evaluation(rules: Rules, usage: Usage) -> None:
    """The same for an evaluation."""
    most = rules.most_evaluations
    if most and usage.evaluations >= most:
        raise Refused(
            f"max_evaluations: this site's owner allows {most} evaluations, and they are done"
        )
    usage.evaluations += 1


def count_question(rules: Rules, usage: Usage, question: str) -> None:
    """The same for a question about the data, by its digest: the same question counts once.

    That the data fit tells something of them, and so does that they do not.
    """
    if question in usage.questions:
        return
    if rules.max_questions and len(usage.questions) >= rules.max_questions:
        raise Refused(
            f"max_questions: this site's owner allows {rules.max_questions} different questions "
            "about the form of the data, and they have been asked"
        )
    usage.questions.append(question)


def withheld(rules: Rules, scores_by_split: dict[str, Scores]) -> dict[str, Scores]:
    """Scores without what the owner keeps: figures of few samples, and metrics not allowed.

    A client with fewer samples than the minimum is as one without any.
    """
    if scores_by_split and not set(rules.metrics) & {*ALWAYS, *_names(scores_by_split)}:
        raise Refused("metrics: this site's owner lets no figures of evaluations leave")
    return {split: _withheld(rules, scores) for split, scores in scores_by_split.items()}


def _names(scores_by_split: dict[str, Scores]) -> set[str]:
    return {name for scores in scores_by_split.values() for name in scores.metrics}


def _withheld(rules: Rules, scores: Scores) -> Scores:
    few = scores.samples < rules.min_samples
    columns = {n: _zero(getattr(scores, n), few) for n in ("hits", "loss", "samples", "gradients")}
    for name, column in _COLUMN.items():
        if name not in rules.metrics:
            columns[column] = torch.full_like(columns[column], torch.nan)
    metrics = {}
    for name, measured in scores.metrics.items():
        # pooled counts cannot be split by client: withheld if any client has too few samples
        if name not in rules.metrics or (bool(few.any()) and measured.counts.numel()):
            blank = MetricCounts(
                measured.metric, measured.rows * torch.nan, torch.zeros_like(measured.counts)
            )
            metrics[name] = blank
        else:
            metrics[name] = replace(measured, rows=_zero(measured.rows, few))
    return replace(scores, **columns, metrics=metrics)


def _zero(t: Tensor, which: Tensor) -> Tensor:
    t = t.clone()
    t[which] = 0
    return t


def without_few(rules: Rules, reply: Call, metrics: tuple) -> Call:
    """A reply with scores, as it may leave."""
    ids = [reply.tensors[f"{split}.wire_ids"] for split in reply.facts["splits"]]
    everyone = torch.cat([torch.zeros(0, dtype=torch.int64), *ids]).unique()
    return calls.scores_reply(withheld(rules, calls.read_scores(reply, everyone, metrics)))
