"""What may leave a host: the declared messages, scores and counts, and not a byte more.

A `CheckedHost` stands before a host and looks at everything that it hands out; its twins must send
the same bytes (`idiolect.testing.twins`).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.host.host import Host
from idiolect.host.metrics import Metric, MetricCounts, TargetForm, form_of
from idiolect.host.scores import Scores
from idiolect.run.session import Session
from idiolect.server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from idiolect.server.selection import ANSWER
from idiolect.testing.twins import TwinnedHost, twins_of
from idiolect.wire import messages as wire
from idiolect.wire.ragged import Ragged


class Undeclared(AssertionError):
    """Something leaves a host that no message, score or count declares."""


class CheckedHost(TwinnedHost):
    """Hands out what the host does, if it is declared and its twins hand out the same."""

    def update(self, order: RoundRequest) -> HostUpdate:
        update = super().update(order)
        check_sent(self.host, order, update)
        return update

    def answer(self, query: Query) -> np.ndarray:
        answer = super().answer(query)
        check_answer(self.host, query, answer)
        return answer

    def conclude(self, verdict: RoundConclusion) -> None:
        reply = self.host.conclude(verdict)
        _demand(reply is None, f"the end of a round hands out {type(reply).__name__}")

    def evaluate(self, version, message, wire_ids, splits) -> dict[str, Scores]:
        host = self.host
        scores = host.evaluate(version, message, wire_ids, splits)
        form = form_of(host.data, host.contract.task.criterion)
        check_scores(scores, splits, host.wire_ids[host.rows(wire_ids)], form)
        return scores

    def evaluate_shared(self, version, message, splits, wire_ids=None) -> dict[str, Scores]:
        host = self.host
        scores = host.evaluate_shared(version, message, splits, wire_ids)
        clients = host.wire_ids if wire_ids is None else host.wire_ids[host.rows(wire_ids)]
        if scores:
            check_scores(scores, splits, clients, form_of(host.data, host.contract.task.criterion))
        return scores

    def losses(self, version, message, wire_ids) -> dict[str, Scores]:
        host = self.host
        scores = host.losses(version, message, wire_ids)
        clients = host.wire_ids[host.rows(wire_ids)]
        _demand(not scores["train"].metrics, "metrics beside losses")
        form = form_of(host.data, host.contract.task.criterion)
        check_scores(scores, ("train",), clients, form)
        self.sent += [bytes(ANSWER.length)] * len(clients)  # what they count as
        return scores


def checked_hosts(session: Session, data: Federation) -> list[CheckedHost]:
    """The hosts of a session, each before twins whose messages must be the same."""
    return [CheckedHost(host, twins_of(session, host, data)) for host in session.local_hosts]


def check_sent(host: Host, order: RoundRequest, update: HostUpdate) -> None:
    """What a host sends in a round: one declared message per client heard, and counts."""
    contract = host.contract.of(order.version)
    _exactly(update, HostUpdate)
    rows = host.rows(order.train)
    trained = host.wire_ids[rows]
    _whole(update.trained, torch.int64, (len(rows),))
    _demand(torch.equal(update.trained, trained), "others trained than those of the order")
    _whole(update.gradients, torch.int64, (len(rows),))
    _demand(bool((update.gradients >= 0).all()), "a number of gradients is negative")
    names = contract.method.traits.counters if len(rows) else ()
    _demand(tuple(update.counted) == names, "counts that the method does not declare")
    for counts in update.counted.values():
        _whole(counts, torch.int64, (len(rows),))
        _demand(bool((counts >= 0).all()), "a count is negative")

    is_heard = torch.isin(rows, host.rows(order.heard))
    senders = rows[is_heard] if contract.up.parts else rows[:0]
    _array(update.values, np.float64, (len(senders),))
    _exactly(update.messages, Ragged)
    lengths = update.messages.lengths
    _array(lengths, np.int64, (len(senders),))
    width = int(lengths.max(initial=0))
    _array(update.messages.matrix, np.uint8, (len(senders), width))
    unused = np.arange(width) >= lengths[:, None]
    _demand(not update.messages.matrix[unused].any(), "bytes behind the end of a message")
    if not len(senders):
        return
    heads = wire.heads(
        contract.up,
        contract.run,
        order.version,
        host.wire_ids[senders].numpy(),
        host.samples[senders].numpy(),
    )
    _demand(np.array_equal(update.messages.matrix[:, : heads.shape[1]], heads), "a header")
    least, most = contract.up_lengths(order.version)
    fits = (lengths >= least) & (lengths <= most)
    _demand(bool(fits.all()), f"a message of fewer than {least} or more than {most} bytes")
    if least == most:
        words = np.full(len(senders), float(contract.up.values))
        _demand(np.array_equal(update.values, words), "a number of values")
    same = np.unique(np.stack([lengths.astype(np.float64), update.values]), axis=1)
    _demand(len(np.unique(same[0])) == same.shape[1], "values that the length does not give")


def check_answer(host: Host, query: Query, answer: np.ndarray) -> None:
    """What a host sends in a second exchange: one declared message per client asked."""
    contract = host.contract
    indices = (len(query.message) - wire.HEADER.itemsize) // torch.int32.itemsize
    schema = contract.answer(query.part, query.message, indices)
    rows = host.rows(query.asked)
    _array(answer, np.uint8, (len(rows), schema.length))
    if not len(rows):
        return
    wire_ids = host.wire_ids[rows].numpy()
    weights = host.samples[rows].numpy()
    heads = wire.heads(schema, contract.run, query.version, wire_ids, weights)
    _demand(np.array_equal(answer[:, : heads.shape[1]], heads), "a header of an answer")


def check_scores(
    scores: dict[str, Scores],
    splits: tuple[str, ...],
    wire_ids: Tensor,
    form: TargetForm | None = None,
) -> None:
    """Scores of the clients asked for on the splits asked for: five numbers each.

    And of each metric its declared figures per client, and whole numbers summed over clients.
    """
    _demand(type(scores) is dict and tuple(scores) == splits, "scores of other splits")
    for one in scores.values():
        _exactly(one, Scores)
        shape = (len(wire_ids),)
        for name in ("wire_ids", "samples", "gradients"):
            _whole(getattr(one, name), torch.int64, shape)
        for name in ("hits", "loss"):
            _whole(getattr(one, name), torch.float64, shape)
        _check_metrics(one, form)
        _demand(torch.equal(one.wire_ids, wire_ids), "scores of other clients")
        counted = one.hits[~one.hits.isnan()]
        _demand(torch.equal(counted, counted.round()), "hits that are no whole numbers")


def _check_metrics(scores: Scores, form: TargetForm | None) -> None:
    _demand(form is not None or not scores.metrics, "metrics that were not asked for")
    for name, measured in scores.metrics.items():
        assert form is not None
        _exactly(measured, MetricCounts)
        metric = measured.metric
        _demand(isinstance(metric, Metric) and metric.name == name, "a metric of another name")
        _whole(measured.rows, torch.float64, (len(scores.wire_ids), metric.width(form)))
        _whole(measured.counts, torch.int64, tuple(metric.shape(form)))


def _exactly(value: object, cls: type) -> None:
    """An object of this very class with its declared fields and no other attribute."""
    _demand(type(value) is cls, f"{type(value).__name__} in place of {cls.__name__}")
    declared = {f.name for f in fields(cls)}
    more = set(vars(value)) - declared
    _demand(not more, f"{cls.__name__} with {sorted(more)}")


def _whole(t: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A tensor with nothing behind it: no larger storage, no graph, no attributes."""
    _demand(type(t) is Tensor and t.dtype == dtype and tuple(t.shape) == shape, f"a tensor {t}")
    _demand(t.grad_fn is None and not vars(t), "a tensor with a graph or attributes")
    own = t.numel() * t.element_size()
    _demand(t.untyped_storage().nbytes() == own, "a tensor that is part of a larger one")


def _array(a: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    fits = type(a) is np.ndarray and a.dtype == dtype and a.shape == shape
    _demand(fits, f"an array of other form: {getattr(a, 'shape', a)}, declared {shape}")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Undeclared(f"leaves a host undeclared: {what}")
