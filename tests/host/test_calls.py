"""Frames: the same bits on the other side, and a ValueError for anything that is none."""

import json
import resource
import struct
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from faults.mutator import Mutator
from idiolect.host import calls
from idiolect.host.calls import Call
from idiolect.host.metrics import MetricCounts, TargetForm, parse_metrics
from idiolect.host.scores import Scores
from idiolect.server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from idiolect.wire.messages import DownMessage
from idiolect.wire.ragged import Ragged

IDS = torch.tensor([2, 5, 9])
NONE = IDS[:0]
NAN = float("nan")
METRICS = parse_metrics("auc,f1")
ADDRESSED = DownMessage(b"x", IDS, np.arange(12, dtype=np.uint8).reshape(3, 4))


def orders() -> list[RoundRequest]:
    return [
        RoundRequest(0, DownMessage(b""), NONE, NONE),
        RoundRequest(7, DownMessage(bytes(range(256))), IDS, IDS[:2], {"rates": 0.1, "batch": 2}),
        RoundRequest(2**32 - 1, DownMessage(b"x"), IDS, NONE, {}, torch.tensor([0, 3, 1])),
        RoundRequest(3, ADDRESSED, IDS, IDS),
    ]


def sents() -> list[HostUpdate]:
    ragged = Ragged.of([b"abc", b"", b"longer one"])
    return [
        HostUpdate(Ragged.empty(0), np.zeros(0), NONE, NONE),
        HostUpdate(ragged, np.array([3.0, 0.0, 2.5]), IDS, torch.tensor([4, 0, 10**12])),
        HostUpdate(ragged, np.ones(3), IDS[:1], IDS[:1], {"probes": torch.tensor([5])}),
    ]


def scores() -> list[dict[str, Scores]]:
    rows = torch.tensor([[0.1, NAN], [1e300, -0.0], [0.0, 1.0]], dtype=torch.float64)
    measured = {m.name: MetricCounts(m, rows, torch.arange(6).view(2, 3)) for m in METRICS}
    hits = torch.tensor([NAN, 1.0, 0.5], dtype=torch.float64)
    one = Scores(IDS, hits, hits * 1e-300, torch.tensor([0, 4, 9]), torch.tensor([1, 2, 3]))
    empty = Scores(NONE, hits[:0], hits[:0], NONE, NONE)
    full = Scores(one.wire_ids, one.hits, one.loss, one.samples, one.gradients, measured)
    return [{}, {"test": one, "valid": empty}, {"train": full}]


def same(a: object, b: object) -> bool:
    """Bit for bit, whatever it is made of."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        return a.dtype == b.dtype and a.shape == b.shape and same(a.numpy(), b.numpy())
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Ragged):
        assert isinstance(b, Ragged)
        return [a.row(k) for k in range(len(a))] == [b.row(k) for k in range(len(b))]
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if hasattr(a, "__dataclass_fields__"):
        assert type(a) is type(b)
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return type(a) is type(b) and a == b


def travelled(call: Call) -> Call:
    return Call.open(call.pack())


@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize("kind", ["update", "begin"])
def test_an_order_arrives_as_it_was_sent(order, kind):
    call = travelled(calls.order_call(order, kind))
    assert call.kind == kind and same(calls.read_order(call), order)


@pytest.mark.parametrize("sent", sents())
def test_what_a_host_sends_arrives_as_it_was_sent(sent):
    assert same(calls.read_sent(travelled(calls.sent_reply(sent)), IDS, [*sent.counted]), sent)


@pytest.mark.parametrize("asked", [NONE, IDS])
def test_a_question_and_its_answers_arrive_as_they_were_sent(asked):
    query = Query(3, "w", b"coordinates", asked)
    assert same(calls.read_query(travelled(calls.query_call(query))), query)
    answers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    found = calls.read_answer(travelled(calls.answer_reply(answers)))
    assert same(found, Ragged.even(answers))


@pytest.mark.parametrize("taken", [{}, {"w": b"\x00\xff", "c": b""}])
def test_the_end_of_a_round_arrives_as_it_was_sent(taken):
    verdict = RoundConclusion(4, IDS[:2], IDS[2:], taken)
    for kind in ("conclude", "arrived"):
        assert same(calls.read_verdict(travelled(calls.verdict_call(verdict, kind))), verdict)


@pytest.mark.parametrize("down", [DownMessage(b"down"), ADDRESSED])
def test_a_wish_for_scores_arrives_as_it_was_sent(down):
    call = calls.evaluate_call("evaluate", 5, down, IDS, ("test", "valid"))
    assert same(
        dict(enumerate(calls.read_evaluate(travelled(call)))),
        dict(enumerate((5, down, IDS, ("test", "valid")))),
    )


def test_messages_of_their_own_must_be_one_for_each_client():
    order = RoundRequest(3, ADDRESSED, IDS, IDS)
    for train in (IDS[:2], torch.tensor([2, 2, 5])):
        call = calls.order_call(replace(order, train=train, heard=train[:0]))
        with pytest.raises(ValueError, match=r"own must be|name each client once"):
            calls.read_order(travelled(call))


@pytest.mark.parametrize("found, metrics", [*zip(scores(), [(), (), METRICS], strict=True)])
def test_scores_arrive_as_they_were_sent(found, metrics):
    assert same(calls.read_scores(travelled(calls.scores_reply(found)), IDS, metrics), found)


# -- anything else ---------------------------------------------------------------------------------
READERS = {
    "update": calls.read_order,
    "sent": lambda call: calls.read_sent(call, IDS, ["probes"]),
    "answer": calls.read_query,
    "answered": calls.read_answer,
    "conclude": calls.read_verdict,
    "evaluate": calls.read_evaluate,
    "scores": lambda call: calls.read_scores(call, IDS, METRICS),
}


def sound() -> list[bytes]:
    made = [calls.order_call(o) for o in orders()]
    made += [calls.sent_reply(s) for s in sents()]
    made += [calls.query_call(Query(3, "w", b"coordinates", IDS))]
    made += [calls.answer_reply(np.arange(12, dtype=np.uint8).reshape(3, 4))]
    made += [calls.verdict_call(RoundConclusion(4, IDS, NONE, {"w": b"abc"}))]
    made += [calls.evaluate_call("evaluate", 5, ADDRESSED, IDS, ("test",))]
    made += [calls.scores_reply(s) for s in scores()]
    return [call.pack() for call in made]


def opened(frame: bytes) -> str:
    """What comes of a frame: all there is to read of it was read, or a ValueError."""
    try:
        call = Call.open(frame, most=1 << 20)
        READERS.get(call.kind, lambda call: None)(call)
    except ValueError:
        return "refused"
    return "read"


def test_mutated_frames_are_refused_or_sound():
    """Never another error, and never much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mutator = Mutator(sound(), seed=1)
    fates = [opened(next(mutator)) for _ in range(20_000)]
    assert fates.count("refused") > 5_000 and fates.count("read") > 1_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def words(value: object):
    """Facts, one of which is another."""
    yield from (None, -1, 2**70, 1.5, NAN, "", "x" * 5000, [], [[]], {}, {"a": {}}, True)
    if isinstance(value, list):
        yield [*value, *value]


@pytest.mark.parametrize("number", range(len(sound())))
def test_facts_and_tensors_of_another_kind_are_refused_or_sound(number):
    call = Call.open(sound()[number])
    facts, tensors = call.facts, call.tensors
    changed = [Call(call.kind, {**facts, n: o}, tensors) for n in facts for o in words(facts[n])]
    changed += [Call(call.kind, {m: v for m, v in facts.items() if m != n}, tensors) for n in facts]
    changed += [Call(call.kind, {**facts, "more": 1}, tensors)]
    for n, t in tensors.items():
        others = [t[:0], torch.cat([t, t]), t.unsqueeze(0), torch.zeros(()), -t.double() - 1]
        others += [t.float(), t.to(torch.int8), torch.full(t.shape, 2**40), t.clone().bool()]
        changed += [Call(call.kind, facts, {**tensors, n: other}) for other in others]
        changed += [Call(call.kind, facts, {m: u for m, u in tensors.items() if m != n})]
    changed += [Call(call.kind, facts, {**tensors, "more": torch.zeros(1)})]
    fates = [opened(one.pack()) for one in changed]
    assert fates.count("refused") > len(fates) // 3
    assert fates[-1] == "refused"


def frame(head: bytes, rest: bytes = b"", length: int | None = None) -> bytes:
    size = len(head) if length is None else length
    return calls.MAGIC + size.to_bytes(4, "little") + head + rest


def tensors_of(header: object) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


SOUND_HEAD = b'{"kind": "update", "facts": {}}'
HUGE = {
    "a length beyond the end": frame(SOUND_HEAD, length=2**32 - 1),
    "no head": frame(b""),
    "no tensors": frame(SOUND_HEAD),
    "nested": frame(b"[" * 100_000),
    "digits": frame(b'{"kind": "update", "facts": {"version": ' + b"9" * 10_000 + b"}}"),
    "twice": frame(b'{"kind": "a", "kind": "b", "facts": {}}'),
    "no text": frame(b"\xff\xfe\xfd"),
    "a tensor of a terabyte": frame(
        SOUND_HEAD,
        tensors_of({"down": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}),
    ),
    "a product beyond all bits": frame(
        SOUND_HEAD,
        tensors_of({"d": {"dtype": "F64", "shape": [2**40, 2**40], "data_offsets": [0, 8]}})
        + bytes(8),
    ),
    "a header of many bytes": frame(SOUND_HEAD, struct.pack("<Q", 2**60)),
    "another kind of number": frame(
        SOUND_HEAD,
        tensors_of({"d": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]}}) + b"\x01",
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_frames_that_promise_much_are_refused_without_memory(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        call = Call.open(HUGE[name])
        with pytest.raises(ValueError):
            calls.read_order(call)
    except ValueError:
        pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_a_frame_of_more_bytes_than_allowed_is_refused():
    with pytest.raises(ValueError, match="a frame must have 8 to 100 bytes"):
        Call.open(Call("update", {"text": "x" * 200}).pack(), most=100)


def test_a_reply_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="the call must be 'sent', got 'status'"):
        calls.read_sent(Call("status"), IDS, ())
    with pytest.raises(ValueError, match="the call must be 'scores', got 'status'"):
        calls.read_scores(Call("status"), IDS, ())


def test_scores_of_strangers_are_refused():
    reply = travelled(calls.scores_reply(scores()[1]))
    with pytest.raises(ValueError, match="clients of this host"):
        calls.read_scores(reply, IDS[:2], ())


@pytest.mark.parametrize("value", [-1, calls.MOST_COUNTED + 1, 2**62])
def test_a_metric_that_counts_below_none_or_beyond_all_is_refused(value):
    metric = parse_metrics("auc")[0]
    form = TargetForm(2)
    counts = torch.zeros(*metric.shape(form), dtype=torch.int64)
    rows = torch.zeros(len(IDS), metric.width(form), dtype=torch.float64)
    zeros = torch.zeros(len(IDS), dtype=torch.int64)
    scores = Scores(IDS, zeros.double(), zeros.double(), zeros, zeros, {})
    sound = replace(scores, metrics={"auc": MetricCounts(metric, rows, counts)})
    calls.read_scores(travelled(calls.scores_reply({"test": sound})), IDS, (metric,))
    counts[0, 0, 0] = value
    with pytest.raises(ValueError, match="the metric auc counts below 0 or beyond all"):
        calls.read_scores(travelled(calls.scores_reply({"test": sound})), IDS, (metric,))
