"""What every method must do: one suite of checks for the methods of the table and for users' own.

    from idiolect.testing import check_method
    check_method(MyMethod(lr=0.1))

Each check runs the method on a small federation of unlike clients and raises an AssertionError that
names what does not hold:

    declared       the traits fit: rates are fields; changes, uncompressed, exchanges name parts
    pure           no function changes its arguments; states and messages keep their form
    weigh          weights are a function of the sample numbers alone, finite, one per client
    linear         a method that calls itself linear needs no more than the mean of the messages
    combined       messages reach the server's state through `rule` alone, each by itself
    meaning        parts of a message are models or changes, as declared
    counted        gradients are those that the task evaluates and counts
    through_gradients  a method that says so uses training data for gradients alone
    deterministic  the same settings give the same bits
    chunks         clients one at a time or all together give the same result
    hosts          clients on one host or on three give the same bits
    stacks         a method with row_messages takes a message down for each client
    kernels        every kernel gives the same result
    no_data        a client without training data changes nothing for the others
    private        only counted messages leave a host; test data and other clients shape none
    resume         an interrupted run continues to exactly the result of an uninterrupted one
    learns         the model that is evaluated is the one that was trained: it gets better
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..channels import Channel
from ..core import streams
from ..core.knobs import SettingError, build
from ..core.types import State, first, prefixed
from ..data.federation import SPLITS, Federation
from ..engine.carriers.local import LocalHosts
from ..host.host import Host
from ..method import Method
from ..methods.exchanges import OneExchange, check_exchanges, exchanges_of
from ..methods.wrapped import innermost
from ..run.prepare import prepare, trained_task
from ..run.result import Result
from ..run.run import run
from ..run.session import Session
from ..run.settings import Settings as RunSettings
from ..server.protocol import Contract
from ..task.context import Here
from ..task.task import Task
from .probes import BlindTask, FixedRule, PlainMean, WatchedTask
from .twins import TwinnedHost, other_data, twins_of

SIZES = (30, 7, 24, 12, 40, 18)  # samples of each client, three fifths of them for training
WITHOUT_DATA = "client 2 without data"

Settings = dict[str, Any]  # of a run, and with "task" and "federation" where they are the user's


# -- the federation and the model of the checks ----------------------------------------------------
def federation(empty: bool = False, seed: int = 0) -> Federation:
    """Six unlike clients of 7 to 40 samples, in three separable classes.

    They have 12 public inputs, for methods that use such. With `empty`, one more client, in the
    middle of the others, that has no training data.
    """
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"client {k}" for k in range(len(SIZES))], SIZES)
    shares = [np.roll([0.6, 0.3, 0.1], k) for k in range(len(SIZES))]
    y = np.concatenate([rng.choice(3, n, p=p) for n, p in zip(SIZES, shares, strict=True)])
    x = 2 * np.eye(3, 5)[y] + 0.5 * rng.standard_normal((len(y), 5))
    split = np.resize(["test", "valid", "train", "train", "train"], len(y))
    if empty:
        ids = np.append(ids, [WITHOUT_DATA] * 2)
        x = np.concatenate([x, np.ones((2, 5))])
        y = np.append(y, [0, 1])
        split = np.append(split, ["test", "valid"])
    clients = Federation.from_arrays(
        torch.from_numpy(x), y, ids, split=split, classes=3, name="conformance"
    )
    return clients.with_public(torch.from_numpy(2 * rng.standard_normal((12, 5))))


def task() -> Task:
    """A small network with an input and an output layer."""
    return Task(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))


# -- what a run leaves behind ----------------------------------------------------------------------
def state_of(result: Result, seed: int | None = None) -> State:
    """The server's state at the end of a run: the method's and the server optimiser's."""
    return result.session(seed).server.state


def server_rows_of(result: Result, seed: int | None = None) -> State:
    """What the server keeps for each client, by wire id."""
    return result.session(seed).server.rows.all()


def private_of(result: Result, seed: int | None = None) -> State:
    """The private rows of all clients of all hosts, by wire id."""
    hosts = result.session(seed).hosts
    order = torch.cat([host.wire_ids for host in hosts]).argsort()
    rows = [host.all_rows() for host in hosts]
    return {name: torch.cat([r[name] for r in rows])[order] for name in rows[0]}


def gradients_of(result: Result, seed: int | None = None) -> Tensor:  # -> int64[N]
    """Gradient evaluations that each client spent on training, by wire id."""
    return result.session(seed).server.ledger.counts["gradients"]


# -- the suite -------------------------------------------------------------------------------------
def check_method(
    method: Method,
    task: Task | nn.Module | None = None,
    federation: Federation | None = None,
    **settings: Any,
) -> None:
    """Run every check; `settings` are those of a run (rounds, sample, batch, ...).

    On a small network and six clients, or on a task and a federation of your own, for a method that
    needs a certain kind of model or data.
    """
    usual: Settings = {
        "rounds": 3,
        "sample": 0 if method.traits.hears_all else 3,
        "batch": 8,
        "dtype": "float64",
        "eval_every": 1,
    }
    own = {"task": task, "federation": federation}
    usual |= {name: thing for name, thing in own.items() if thing is not None}
    for check in CHECKS:
        try:
            for part in exchanges_of(method) if check in FUNCTIONS else (method,):
                check(part, {**usual, **settings})
        except AssertionError as error:
            promise = (check.__doc__ or "").strip().splitlines()[0]
            raise AssertionError(f"{type(method).__name__}: {promise} — {error}") from error


def declared(method: Method, settings: Settings) -> None:
    """The traits fit: `rates` are fields, `changes`, `uncompressed`, `exchanges` name parts."""
    message = method.message(_bound(method, settings))
    try:
        check_exchanges(method, _bound(method, settings))
    except SettingError as error:
        raise AssertionError(str(error)) from error
    for rate in method.traits.rates:
        assert isinstance(getattr(method, rate, None), float), f"rates: no field {rate!r}"
    for name in (*method.traits.changes, *method.traits.uncompressed):
        assert name in message, f"{name!r} is not a part of the message {message}"
    assert method.traits.trains in ("sampled", "everyone"), f"trains is {method.traits.trains!r}"


def pure(method: Method, settings: Settings) -> None:
    """Functions change none of their arguments; rows and messages keep names, shapes and dtypes."""
    bench = _Bench(method, settings)
    task = bench.task
    server = bench.server()
    down = bench.down(server)
    private = method.private(task, bench.keys)
    states = {"server": server, "down": down, "private": private}
    before = {name: _copy(state) for name, state in states.items()}

    here = bench.here()
    result = method.update(task, down, private, here)
    try:
        up, rows = bench.contract.checked(result, private, bench.clients)
    except SettingError as error:
        raise AssertionError(str(error)) from error
    assert all(t.dtype == task.dtype for t in up.values()), (
        f"a message must be in the task's dtype, {task.dtype}"
    )
    assert _form(rows) == _form(private), (
        f"private rows changed form: they were {_form(private)}, and update returned {_form(rows)}"
    )
    x = method.personal(task, bench.whole(server), rows, here)
    if isinstance(x, Tensor):
        expected = (bench.clients, task.d)
        assert x.shape == expected, f"personal models are {tuple(x.shape)}, expected {expected}"
    else:
        inputs = here.training_samples().inputs
        outputs = first(method.predict(task, x, inputs))
        assert outputs.shape[:2] == first(inputs).shape[:2], (
            f"predict gave {tuple(outputs.shape)}, expected {tuple(first(inputs).shape[:2])} first"
        )

    if up:
        messages = _copy(up)
        after = method.aggregate(task, server, up, bench.rule())
        assert _form(server | after) == _form(server), (
            f"server state changed form: it was {_form(server)}, and aggregate returned "
            f"{_form(after)}"
        )
        assert _equal(up, messages), "aggregate changed the messages in place"
    for name, state in states.items():
        assert _equal(state, before[name]), f"{name} was changed in place"


def weigh(method: Method, settings: Settings) -> None:
    """Weights are a function of the sample numbers alone: finite, one per client."""
    numbers = torch.tensor(SIZES, dtype=torch.float64)
    samples = numbers / numbers.mean()
    before = samples.clone()
    weights = method.weigh(samples)
    assert torch.equal(samples, before), "weigh changed the sample numbers in place"
    assert weights.shape == samples.shape, f"weights are {tuple(weights.shape)}"
    assert bool(torch.isfinite(weights).all()), "weights are not finite"
    assert torch.equal(method.weigh(samples), weights), "weights differ from call to call"


def linear(method: Method, settings: Settings) -> None:
    """A method that calls itself linear needs no more than the weighted mean of the messages."""
    bench = _Bench(method, settings)
    task = bench.task
    server = bench.server()
    private = method.private(task, bench.keys)
    up, _ = method.update(task, bench.down(server), private, bench.here())
    if not method.traits.linear or not up:
        return
    rule = bench.rule()
    mean = {name: row.expand(bench.clients, -1) for name, row in rule(up).items()}
    from_messages = method.aggregate(task, server, up, rule)
    from_mean = method.aggregate(task, server, mean, rule)
    for name, t in from_messages.items():
        _close(t, from_mean[name], 1e-9, f"server {name!r}")


def combined(method: Method, settings: Settings) -> None:
    """Messages reach the server's state through `rule` alone, each by itself.

    Under a rule that gives the same vectors whatever it is given, other messages change nothing;
    and what the rule is given is a row per client, made of this client's message. A method whose
    server keeps the messages apart says so (Traits.uncombined).
    """
    if method.traits.uncombined:
        return
    bench = _Bench(method, settings)
    task = bench.task
    server = bench.server()
    up, _ = method.update(task, bench.down(server), bench.private(), bench.here())
    other = {name: torch.cat([t[:1] + 0.1, t[1:]]) for name, t in up.items()}  # of the first client
    everyone = {name: t + 0.1 for name, t in up.items()}
    if not up:
        return
    rules, states = [], []
    for messages in (up, other, everyone):
        rules.append(FixedRule(method, bench.rule().samples, bench.clients))
        states.append(method.aggregate(task, _copy(server), _copy(messages), rules[-1]))
    for state in states[1:]:
        for name, t in states[0].items():
            assert torch.equal(t, state[name]), (
                f"server {name!r} depends on the messages in another way than through `rule`: "
                "a robust rule would have no effect; combine rows by rule(...), or say in "
                "Traits.uncombined why not"
            )
    for before, after in zip(rules[0].rows, rules[1].rows, strict=False):
        for name, t in before.items():
            assert len(t) == bench.clients, (
                f"`rule` was given {len(t)} rows {name!r} of {bench.clients} clients: "
                "it must be given a row for each"
            )
            assert torch.equal(t[1:], after[name][1:]), (
                f"the rows {name!r} that `rule` was given mix the messages of several clients: "
                "a robust rule could not tell them apart"
            )


def meaning(method: Method, settings: Settings) -> None:
    """Parts of a message are models or changes, as declared.

    A server that gets back the model it sent, or changes of zero, stays as it is. So where it moves
    by what is declared and would stay by another declaration, that is the right one.
    """
    bench = _Bench(method, settings)
    task = bench.task
    start = bench.server()
    up, _ = method.update(task, bench.down(start), bench.private(), bench.here())
    if not up or method.traits.uncombined:
        return
    for server in (start | method.aggregate(task, start, up, bench.rule()), start):
        down = method.broadcast(task, server)
        neutral = {}  # by part: what each kind of message is that says nothing new
        for name, rows in up.items():
            kinds = {"change": torch.zeros_like(rows)}
            if name in down and down[name].shape == rows.shape[1:]:
                kinds["model"] = down[name].expand_as(rows)
            if name in method.reference(task, down):
                kinds = {"model": kinds["model"], **kinds}  # as declared, first
            elif name not in method.traits.changes:
                # neither: at the start it may be zero in the state too, as any change
                kinds = {"other": rows} | (kinds if server is not start else {})
            if name in method.traits.uncompressed:
                kinds = dict([*kinds.items()][:1])
            neutral[name] = kinds
        for choice in product(*neutral.values()):
            messages = {name: neutral[name][kind] for name, kind in zip(up, choice, strict=True)}
            after = server | method.aggregate(task, server, messages, bench.rule())
            watched = {method.traits.shared_name, *up} & server.keys()
            if all(_gap(after[n], server[n]) <= 1e-9 for n in watched):
                break
        else:
            continue
        for (name, kinds), kind in zip(neutral.items(), choice, strict=True):
            advice = f"must name {name!r}" if kind == "change" else f"must not name {name!r}"
            assert kind == next(iter(kinds)), (
                f"the part {name!r} of the message is a {kind}: Traits.changes {advice}"
            )


def counted(method: Method, settings: Settings) -> None:
    """Gradients are those that the task evaluates and counts.

    Where those of the task tell nothing of the data, a method that calls the model or autograd by
    itself must not depend on the training data.
    """
    outcomes = []
    data = _data(settings)
    for training_data in (data, other_data(data, ("train",))):
        bench = _Bench(method, settings, training_data)
        watched = WatchedTask(bench.task)
        bench.task = watched
        server = bench.server()
        watched.evaluations = 0  # those of earlier exchanges
        down = bench.down(server)
        here, before_use = bench.here(), bench.here()
        with watched.watch():
            up, rows = method.update(watched, down, bench.private(), here)
            x = method.personal(watched, bench.whole(server), rows, before_use)
        tally = here.tally + before_use.tally
        gap = (tally - watched.evaluations).abs().amax()
        assert not gap, f"the tally of gradient evaluations is off by {int(gap)} of a client"
        models = {"x": x} if isinstance(x, Tensor) else prefixed(x, "personal.")
        outcomes.append({**prefixed(up, "up."), **prefixed(rows, "private."), **models})
    if not _equal(*({n: t.detach() for n, t in outcome.items()} for outcome in outcomes)):
        assert not watched.own_gradients, (
            f"{' and '.join(sorted(watched.own_gradients))} used on training data outside of "
            "task.grad and task.hvp: such gradients are not counted; take task.grad(x, here.draw())"
            ", and task.outputs or task.loss where no gradient is needed"
        )


def through_gradients(method: Method, settings: Settings) -> None:
    """A method that says its messages depend on data through gradients alone uses nothing else.

    Where every gradient is zero, or that of |x|²/2, other training data change neither messages nor
    private rows.
    """
    if not method.traits.data_through_gradients:
        return
    data = _data(settings)
    for scale in (0.0, 1.0):
        outcomes = []
        for training_data in (data, other_data(data, ("train",))):
            bench = _Bench(method, settings, training_data)
            bench.task = BlindTask(bench.task, scale)
            here = bench.here(gradients_only=True)
            try:
                down = bench.down(bench.server())
                up, rows = method.update(bench.task, down, bench.private(), here)
            except SettingError as error:
                raise AssertionError(f"data_through_gradients: {error}") from error
            outcomes.append({**prefixed(up, "up."), **prefixed(rows, "private.")})
        for name, t in outcomes[0].items():
            assert torch.equal(t, outcomes[1][name]), (
                f"data_through_gradients: {name} depends on training data by another way than "
                "task.grad(x, here.draw())"
            )


def stacks(method: Method, settings: Settings) -> None:
    """A method with row_messages takes a message down for each client, as if each were alone."""
    if not method.traits.row_messages:
        return
    bench = _Bench(method, settings)
    task = bench.task
    server = bench.server()
    down = method.broadcast(task, server)
    own = bench.own(server)
    private = method.private(task, bench.keys)
    two = [down, {n: t + 0.1 for n, t in down.items()}]
    apart = [method.update(task, d | own, _copy(private), bench.here()) for d in two]
    at = torch.arange(bench.clients) % 2
    rows = {n: torch.stack([d[n] for d in two])[at] for n in down}
    together = method.update(task, rows | own, _copy(private), bench.here())
    for which, what in enumerate(("message", "private rows")):
        for name, t in together[which].items():
            expected = torch.stack([apart[int(k)][which][name][i] for i, k in enumerate(at)])
            _close(t, expected, 1e-9, f"{what} {name!r}")


def deterministic(method: Method, settings: Settings) -> None:
    """The same settings give the same bits."""
    _same(_run(method, settings), _run(method, settings), 0.0)


def chunks(method: Method, settings: Settings) -> None:
    """Clients one at a time or all together give the same result."""
    together = _run(method, settings)
    for chunk in (1, 4):
        _same(together, _run(method, {**settings, "chunk": chunk}), 1e-9)


def hosts(method: Method, settings: Settings) -> None:
    """Clients on one host or on three give the same bits.

    One row at a time in both, as the last bits of a kernel may depend on how many rows it is given.
    """
    alone = {**settings, "chunk": 1}
    _same(_run(method, alone), _run(method, {**alone, "hosts": 3}), 0.0)


def kernels(method: Method, settings: Settings) -> None:
    """Every kernel gives the same result."""
    results = []
    for kernel in ("rows", "vmap", "stacked"):
        try:
            results.append(_run(method, {**settings, "kernel": kernel}))
        except SettingError:
            # a user's model, or what the method adds to it, may not be fit for it
            if "task" not in settings and type(method).extend is Method.extend:
                raise
    for result in results[1:]:
        _same(results[0], result, 1e-9)


def no_data(method: Method, settings: Settings) -> None:
    """A client without training data changes nothing for the others."""
    if "federation" in settings:
        return
    without = _run(method, settings)
    among = _run(method, settings, federation(empty=True))
    ids = among.session().server.roster.ids
    others = torch.tensor([id != WITHOUT_DATA for id in ids])
    for name, t in state_of(without).items():
        assert torch.equal(t, state_of(among)[name]), f"server {name!r} differs"
    server_rows = server_rows_of(among)
    for name, t in server_rows_of(without).items():
        gap = _gap(t, server_rows[name][others])
        assert not gap, (
            f"server {name!r} differs by {gap:.0e}: take only rows of clients that were heard, as "
            "a product with more rows, be they of weight 0, differs in its last bits"
        )
    rows = private_of(among)
    for name, t in private_of(without).items():
        assert torch.equal(t, rows[name][others]), f"private {name!r} differs"


def private(method: Method, settings: Settings) -> None:
    """Only messages that are counted leave a host; test data and other clients' shape none.

    One row at a time: a loop may end when all rows of a chunk have converged.
    """
    two_hosts = {**_of_run(settings), "hosts": 2, "chunk": 1}
    data = _data(settings)
    parts = prepare(method, _task(settings), data, build(RunSettings, two_hosts, "run"))
    session = Session(parts, 0, 7)
    hosts = [TwinnedHost(host, twins_of(session, host, data)) for host in session.local_hosts]
    session.engine.group = LocalHosts(cast(list[Host], hosts))
    for _ in range(settings["rounds"]):
        session.engine.advance()
        session.engine.evaluate(session.people.evaluated, SPLITS)
    session.engine.evaluate_shared(SPLITS)
    bytes_out = sum(len(message) for host in hosts for message in host.sent)
    assert bytes_out == session.server.ledger.total("bytes_up"), "more bytes left than were counted"


def resume(method: Method, settings: Settings) -> None:
    """An interrupted run continues to exactly the result of an uninterrupted one."""
    whole = _run(method, settings)
    saving = {**settings, "checkpoint_every": 1}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        started = (method, _task(settings), _data(settings))
        run(*started, directory=folder, **_of_run(saving))
        newest = max((folder / "checkpoints" / "seed-0").iterdir())
        shutil.rmtree(newest)  # as if it had been stopped one round earlier
        again = run(*started, directory=folder, resume=True, **_of_run(saving))
        _same(whole, again, 0.0)
    assert whole.seeds[0].history == again.seeds[0].history, "the history differs"


def learns(method: Method, settings: Settings) -> None:
    """The model that is evaluated is the one that was trained: it gets better."""
    long = {**settings, "rounds": max(40, settings["rounds"]), "eval_every": 0, "batch": 16}
    before = _run(method, {**long, "rounds": 0}).seeds[0].final["train"]
    after = _run(method, long).seeds[0].final["train"]
    # or perfect as it was
    higher = after["accuracy"] > min(before["accuracy"], 1 - 1e-9)
    for figure, better in (
        ("loss", after["loss"] < before["loss"]),
        ("accuracy", higher or not _data(settings).classes),
    ):
        assert better, f"training {figure} {before[figure]:.3f} before, {after[figure]:.3f} after"


CHECKS: tuple[Callable[[Method, Settings], None], ...] = (
    declared,
    pure,
    weigh,
    linear,
    combined,
    meaning,
    counted,
    through_gradients,
    deterministic,
    chunks,
    hosts,
    stacks,
    kernels,
    no_data,
    private,
    resume,
    learns,
)

# of the method's functions alone: where a round has several exchanges, in each of them
FUNCTIONS = (pure, linear, combined, meaning, counted, through_gradients, stacks)


# -- inside ----------------------------------------------------------------------------------------
class _Bench:
    """A method on its own, with no server or host around it."""

    def __init__(self, method: Method, settings: Settings, data: Federation | None = None):
        self.method = method
        self.settings = settings
        self.task = _bound(method, settings)
        self.data = (data or _data(settings)).to(self.task.device, self.task.dtype)
        self.contract = Contract(method, self.task, Channel(), 0)
        self.clients = self.data.clients
        self.keys = streams.name_keys(self.data.names)

    def private(self) -> State:
        return self.method.private(self.task, self.keys)

    def server(self) -> State:
        """The state before the first round; in a later exchange, after those before it."""
        state = self.method.server(self.task) | self.method.server_rows(self.task, self.keys)
        if not isinstance(self.method, OneExchange):
            return state
        for one in exchanges_of(self.method.inner)[: self.method.number]:
            down = one.broadcast(self.task, state) | self.own(state)
            up, _ = one.update(self.task, down, self.private(), self.here())
            state = state | one.aggregate(self.task, state, up, self.rule())
        return state

    def whole(self, server: State) -> State:
        """The message down that clients predict with."""
        method = innermost(self.method)
        return method.broadcast(self.task, server) | self.own(server)

    def own(self, server: State) -> State:
        return self.method.address(self.task, server, torch.arange(self.clients))

    def down(self, server: State) -> State:
        return self.method.broadcast(self.task, server) | self.own(server)

    def here(self, gradients_only: bool = False) -> Here:
        return Here(
            self.data,
            torch.arange(self.clients),
            clients=self.keys,
            seed=0,
            round=1,
            batch=self.settings["batch"],
            batching=self.settings.get("batching", "replace"),
            dtype=self.task.dtype,
            validate=lambda x, loss: torch.zeros(self.clients, dtype=torch.float64),
            gradients_only=gradients_only,
        )

    def rule(self) -> PlainMean:
        samples = self.data.sizes("train").double()
        return PlainMean(self.method, samples / samples.mean(), self.clients)


def _task(settings: Settings) -> Task:
    """The user's task, or the suite's."""
    model = settings.get("task") or task()
    return model if isinstance(model, Task) else Task(model)


def _data(settings: Settings) -> Federation:
    """The user's federation, or the suite's."""
    return settings.get("federation") or federation()


def _of_run(settings: Settings) -> Settings:
    return {n: value for n, value in settings.items() if n not in ("task", "federation")}


def _bound(method: Method, settings: Settings) -> Task:
    """The task that the method trains, in the precision that the settings name."""
    task = trained_task(method, _task(settings), _data(settings))
    return task.under(dtype=getattr(torch, settings["dtype"]))


def _run(method: Method, settings: Settings, data: Federation | None = None) -> Result:
    return run(method, _task(settings), data or _data(settings), **_of_run(settings))


def _same(a: Result, b: Result, tolerance: float) -> None:
    states = (
        ("server", state_of(a), state_of(b)),
        ("server", server_rows_of(a), server_rows_of(b)),
        ("private", private_of(a), private_of(b)),
    )
    for what, ours, theirs in states:
        assert ours.keys() == theirs.keys(), f"{what} has other entries"
        for name, t in ours.items():
            _close(t, theirs[name], tolerance, f"{what} {name!r}")
    _close(gradients_of(a), gradients_of(b), 0.0, "gradient counts")


def _close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    if not tolerance:
        assert torch.equal(a, b), f"{what} differs"
    elif a.numel():
        gap = _gap(a, b)
        scale = 1 + float(a.abs().max())
        assert gap <= tolerance * scale, f"{what} differs by {gap:.2e}"


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.numel() else 0.0


def _copy(state: State) -> State:
    return {name: t.clone() for name, t in state.items()}


def _equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())


def _form(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (t.shape, t.dtype) for name, t in state.items()}
