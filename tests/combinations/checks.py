"""What must hold of every combination.

A combination runs, or is refused with a SettingError before its first round. Where it runs:

    repeat      again, with torch's own generator elsewhere: the same models, figures and bytes
    hosts       on three hosts: the same models, or with chunk=1 everything, bit for bit
    resume      stopped by an exception after a round and resumed: the same bits
    figures     what is reported is what plain torch says of the modules handed out, in eval mode
    others      the data of one client change nothing that others keep or send in the same round
    alone       where nothing is sent, they change no figure of the others at all
    first step  local training on all data is that of a plain PyTorch loop
    without     an option that is removed changes something, or a word was said about it
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import math
import re
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import norm
from torch import nn

import idiolect as il
from idiolect import SettingError
from idiolect.core.knobs import build
from idiolect.run.plan import read_task
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.testing import state_of
from idiolect.wire import messages as wire

from . import data
from .draw import Combination, Values
from .losses import LOSSES
from .zoo import ZOO

SECONDS = 90  # after which a combination counts as one that hangs
NOT_COMPARED = ("seconds", "environment", "starts", "times")
# settings that act only in some cases, or never on figures: removing them may change nothing
CONDITIONAL = ("quorum", "patience", "keep_best", "hosts", "engine", "chunk", "kernel", "seed")
BOUNDS = ("clip", "norm-bound", "centred-clipping")  # parts that act where a norm exceeds a bound
# words about every setting that has to do with them
ABOUT_ALL = ("steps is 0", "nothing is sent")


class Failure(Exception):
    """A combination that does not do what it must."""

    def __init__(self, check: str, detail: str):
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail


@dataclass
class Attempt:
    """One run of a combination, or its refusal."""

    refusal: str = ""
    result: Any = None
    words: list[str] = field(default_factory=list)  # lines that the user has seen


class Stop(Exception):
    """Raised between two rounds, to stop a run there."""


# -- one run ---------------------------------------------------------------------------------------
def model_of(c: Combination) -> Any:
    """What `idiolect.run` is given as the model."""
    entry = ZOO[c.model]
    module = entry.build(data.TARGETS[c.targets][1])
    loss = LOSSES[c.loss].given()
    if loss is None and not entry.task:
        return module
    return il.Task(module, **({} if loss is None else {"loss": loss}), **dict(entry.task))


def federation_of(c: Combination) -> il.Federation:
    return data.federation(ZOO[c.model].inputs, c.targets, c.clients, c.ids, c.source)


@contextlib.contextmanager
def watched(words: list[str]) -> Iterator[None]:
    """Lines on stderr are collected; a warning of Python is a failure."""
    text = io.StringIO()
    with warnings.catch_warnings(record=True) as raised, contextlib.redirect_stderr(text):
        warnings.simplefilter("always")
        for hidden in (ResourceWarning, DeprecationWarning):  # which Python does not show either
            warnings.simplefilter("ignore", hidden)
        yield
    words += text.getvalue().splitlines()
    for warning in raised:
        where = f"{Path(warning.filename).name}"
        raise Failure("warning", f"{warning.category.__name__} ({where}): {warning.message}")


def attempt(c: Combination, federation: il.Federation | None = None, **more: Any) -> Attempt:
    """Run a combination; `more` are further settings or arguments of `idiolect.run`."""
    out = Attempt()
    rounds: list[int] = []
    stop_at = more.pop("stop_at", 0)

    def on_round(moment: il.Moment) -> None:
        rounds.append(moment.round)
        if moment.round == stop_at:
            raise Stop

    torch.manual_seed(more.pop("global_seed", 1))
    try:
        with watched(out.words):
            out.result = il.run(
                il.make_method(c.method, **c.fields),
                model_of(c),
                federation_of(c) if federation is None else federation,
                on_round=on_round,
                progress=False,
                **(c.settings() | more),
            )
    except SettingError as error:
        if rounds:
            raise Failure("late refusal", f"after round {rounds[-1]}: {error}") from None
        out.refusal = str(error)
    except (Stop, Failure):
        if not stop_at:
            raise
    except Exception as error:
        raise Failure("traceback", located(error)) from None
    if out.result is not None:
        out.words += str(out.result).splitlines()
    return out


def located(error: Exception) -> str:
    """An error with the place in idiolect that it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "src/idiolect" in f.filename]
    place = "?"
    if frames:
        place = f"{frames[-1].filename.split('src/')[-1]}, {frames[-1].name}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__} in {place}: {text[0] if text else ''}"[:300]


# -- what a run leaves -----------------------------------------------------------------------------
def digest(tensors: dict[str, torch.Tensor]) -> str:
    total = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        t = t.detach().cpu().contiguous()
        total.update(f"{name}{t.dtype}{tuple(t.shape)}".encode())
        total.update(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return total.hexdigest()[:12]


def traces(result: il.Result) -> Values:
    """Everything that must be the same again: models, figures, bytes."""
    out: Values = {}
    for seed in result.seeds:
        for client in seed.clients:
            module = result.personal(client["client"], seed=seed.seed)
            out[f"model of {client['client']} (seed {seed.seed})"] = digest(module.state_dict())
        out[f"server (seed {seed.seed})"] = digest(state_of(result, seed.seed))
    for at, row in enumerate(result.rounds_table()):
        out[f"round line {at}"] = json.dumps(row, default=str)
    for at, row in enumerate(result.clients_table()):
        out[f"client line {at}"] = json.dumps(row, default=str)
    summary = {k: v for k, v in result.summary().items() if k not in NOT_COMPARED}
    summary.pop("settings", None)
    out |= {f"summary {k}": json.dumps(v, default=str) for k, v in summary.items()}
    return out


def differences(one: Values, other: Values) -> list[str]:
    return [name for name in one | other if one.get(name) != other.get(name)]


def told(names: list[str]) -> str:
    return f"{len(names)} differ: {', '.join(names[:4])}"


# -- the checks ------------------------------------------------------------------------------------
def check_repeats(c: Combination, result: il.Result, first: Values) -> None:
    if c.settings().get("timing") == "arrivals" and "engine" in c.options:
        return  # in real time
    apart = differences(first, traces(attempt(c, global_seed=2).result))
    if apart:
        raise Failure("repeat", told(apart))
    # docs/scale.md: the same models on any number of hosts, or, one client at a time, everything
    models_alone = promises_bits(c, result)
    if not models_alone:
        c = replace(c, options=c.options | {"chunk": {"chunk": 1}})
        first = traces(attempt(c).result)
    hosts = 1 if c.settings().get("hosts", 1) > 1 else 3
    again = attempt(c, hosts=hosts, global_seed=2)
    if again.refusal:
        raise Failure("hosts", f"refused with {hosts} hosts: {again.refusal}")
    apart = differences(first, traces(again.result))
    if models_alone:
        apart = [name for name in apart if name.startswith(("model of", "server"))]
    if apart:
        raise Failure("hosts", told(apart))


def promises_bits(c: Combination, result: il.Result) -> bool:
    """Whether models have the same bits on any number of hosts, as docs/scale.md says."""
    if {"patience", "keep_best"} & c.options.keys():
        return False  # figures decide which models are handed out
    if result.record.kernel == "rows":
        return True
    exact_losses = ("default", "cross_entropy", "CrossEntropyLoss", "mse", "half_squared")
    return (
        result.record.kernel == "stacked"
        and c.model in ("linear", "mlp-relu", "mlp-tanh")
        and c.targets in ("classes", "real")
        and c.loss in exact_losses
        and "batching" not in c.options
    )


def check_resume(c: Combination, first: Values) -> None:
    if c.settings().get("timing") == "arrivals" and "engine" in c.options:
        return
    with tempfile.TemporaryDirectory(prefix="combination-") as folder:
        place = {"directory": f"{folder}/run"}
        attempt(c, **place, stop_at=1, global_seed=3)
        resumed = attempt(c, **place, resume=True, global_seed=4)
        if resumed.refusal:
            raise Failure("resume", f"refused: {resumed.refusal}")
        apart = differences(first, traces(resumed.result))
    if apart:
        raise Failure("resume", told(apart))


def plain_loss(c: Combination, module: nn.Module, part: tuple[Any, Any]) -> torch.Tensor:
    return LOSSES[c.loss].plain(ZOO[c.model].call(module, part[0]), part[1])


def close(a: float, b: float, digits: int) -> bool:
    return math.isclose(a, b, rel_tol=10.0**-digits, abs_tol=10.0**-digits)


def check_figures(c: Combination, result: il.Result) -> None:
    """Reported loss and accuracy of every client against its module, in plain torch."""
    double = c.settings().get("dtype") == "float64"
    dtype = torch.float64 if double else torch.float32
    federation = federation_of(c).to("cpu", dtype)
    digits = 8 if double else 3
    first_seed = result.seeds[0]
    for row in first_seed.clients:
        position = federation.position(row["client"])
        for split in ("test",) if row["malicious"] else ("test", "train"):  # theirs are poisoned
            part = federation.part(position, split)
            loss = row.get(f"{split}_loss")
            if loss is None or not row[f"{split}_samples"] or not math.isfinite(loss):
                continue
            module = result.personal(row["client"])
            if module.training:
                raise Failure("figures", "the module handed out is in training mode")
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                plain = float(plain_loss(c, module, part))
                outputs = ZOO[c.model].call(module, part[0])
            if not close(loss, plain, digits) and abs(plain) < 1e6:
                raise Failure("figures", f"{split} loss {loss:.6g} reported, {plain:.6g} in torch")
            if c.targets == "classes" and isinstance(outputs, torch.Tensor):
                top = outputs.topk(2, -1).values
                if float((top[:, 0] - top[:, 1]).min()) < 1e-4:
                    continue  # ties
                hits = float((outputs.argmax(-1) == part[1]).double().mean())
                reported = row[f"{split}_accuracy"]
                if not close(reported, hits, 6):
                    raise Failure(
                        "figures", f"{split} accuracy {reported:.6g} reported, {hits:.6g} in torch"
                    )


def first_round(c: Combination, federation: il.Federation) -> tuple[dict, dict, set, int]:
    """After one local round: private rows and messages by wire id; who is malicious; the contract.

    Step sizes and the scale of targets are in the contract: they come from the data of all clients.
    """
    settings = c.settings()
    for name in ("timing", "delays", "concurrency", "next_client", "staleness", "buffer"):
        settings.pop(name, None)
    for name in ("change_from", "engine", "resume", "seeds"):
        settings.pop(name, None)
    method = il.make_method(c.method, **c.fields)
    task, _ = read_task(model_of(c), federation)
    parts = prepare(method, task, federation, build(Settings, settings, "run"))
    session = Session(parts, parts.settings.seed, 7)
    order = session.server.open().order
    rows: dict[int, str] = {}
    sent: dict[int, str] = {}
    for host in session.hosts:
        update = host.update(order)
        messages = update.messages
        if len(messages):
            senders = wire.header(messages.matrix)["client"].tolist()
            for k, sender in enumerate(senders):
                sent[int(sender)] = hashlib.sha256(messages.row(k)).hexdigest()
        kept = host.all_rows()
        for k, wire_id in enumerate(host.wire_ids.tolist()):
            rows[wire_id] = digest({name: t[k] for name, t in kept.items()})
    malicious = set(session.people.malicious.tolist())
    return rows, sent, malicious, session.contract.checksum


def check_others(c: Combination) -> None:
    """Another client's data are neither in the rows nor in the messages of a client."""
    federation = federation_of(c)
    changed = int(federation.sizes("train").argmax())
    other = data.with_other_data(federation, changed)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(6)
            rows, sent, malicious, contract = first_round(c, federation)
            torch.manual_seed(6)
            other_rows, other_sent, _, other_contract = first_round(c, other)
    except SettingError:
        return  # the other data, or rounds in place of arrivals, do not fit
    if contract != other_contract:
        return
    settings = build(Settings, c.settings(), "run")
    colludes = settings.attack is not None and settings.attack.colludes
    skipped = {changed} | (malicious if colludes else set())
    for what, one, two in (("rows", rows, other_rows), ("messages", sent, other_sent)):
        apart = [k for k in one if k not in skipped and one[k] != two.get(k)]
        if apart:
            raise Failure("others", f"{what} of clients {apart} depend on the data of {changed}")


def check_alone(c: Combination, result: il.Result) -> None:
    """Where nothing is sent, the data of one client do not change the figures of the others."""
    if any(result.summary()["bytes"].values()) or {"patience", "keep_best"} & c.options.keys():
        return  # the last two go by the figures of all clients
    federation = federation_of(c)
    changed = int(federation.sizes("train").argmax())
    other = attempt(c, data.with_other_data(federation, changed))
    if other.refusal:
        return
    for one, two in zip(result.clients_table(), other.result.clients_table(), strict=True):
        if federation.position(one["client"]) != changed and str(one) != str(two):
            names = [n for n in one if str(one[n]) != str(two[n])]
            raise Failure("alone", f"{', '.join(names[:4])} of a client depend on another's data")


def check_accounts(c: Combination, result: il.Result) -> None:
    """Under privacy what every client has spent is that of what it was exposed to, in its budget.

    By the formula of Gaussian mechanisms where whoever is heard is known.
    """
    settings = c.settings()
    for seed in result.seeds:
        account = result.session(seed.seed).server.privacy
        if account is None or account.plan.samples is not None:
            continue
        plan = account.plan
        spent = [row["epsilon"] for row in seed.clients]
        if account.begun != seed.rounds:
            raise Failure("accounts", f"{account.begun} rounds begun, {seed.rounds} done")
        if plan.epsilon and max(spent) > plan.epsilon:
            raise Failure("accounts", f"{max(spent)} spent of {plan.epsilon}")
        ledger = result.session(seed.seed).server.ledger
        if not plan.exposure.amplified and int(account.exposures.sum()) != ledger.selected:
            raise Failure("accounts", "exposures are not the messages that were asked for")
        for one, count in zip(spent, account.exposures.tolist(), strict=True):
            if plan.exposure.amplified:
                continue
            mu = count**0.5 / plan.noise  # Balle and Wang 2018, theorem 8
            delta = norm.cdf(mu / 2 - one / mu) if count else plan.delta
            delta -= math.exp(one) * norm.cdf(-mu / 2 - one / mu) if count else 0.0
            if not math.isclose(delta, plan.delta, rel_tol=1e-3):
                raise Failure("accounts", f"{count} exposures cost {one} at {delta}, not delta")
    if settings.get("privacy") and not any("epsilon" in row for row in result.rounds_table()):
        sends = any(result.summary()["bytes"].values())
        if sends and settings.get("eval_every", 1):
            raise Failure("accounts", "what was spent is in no table")


def check_first_step(c: Combination) -> None:
    """Two steps on all data of each client, by idiolect and by a plain loop."""
    entry = ZOO[c.model]
    if entry.random:
        return
    kernel = c.settings().get("kernel", "auto")
    simple = replace(c, method="local", fields={"lr": 0.05, "steps": 2, "init": "common"})
    simple = replace(
        simple, options={"all": {"batching": "full", "kernel": kernel, "dtype": "float64"}}
    )
    run = attempt(simple, rounds=1)
    if run.refusal:
        return
    federation = federation_of(c).to("cpu", torch.float64)
    start = entry.build(data.TARGETS[c.targets][1]).double().train()
    for position, client in enumerate(federation.ids):
        if not int(federation.sizes("train")[position]):
            continue
        module = copy.deepcopy(start)
        trained = [p for p in module.parameters() if p.requires_grad]
        part = federation.part(position, "train")
        for _ in range(2):
            loss = plain_loss(c, module, part)
            grads = torch.autograd.grad(loss, trained, allow_unused=True)
            with torch.no_grad():
                for p, g in zip(trained, grads, strict=True):
                    if g is not None:
                        p -= 0.05 * g
        ours = run.result.personal(client).state_dict()
        gaps = {
            name: float((t - ours[name]).abs().max())
            for name, t in module.state_dict().items()
            if name in ours and t.is_floating_point() and t.numel()
        }
        worst = max(gaps, key=lambda name: gaps[name])
        if not gaps[worst] < 1e-7:
            raise Failure(
                "first step", f"client {client}: {worst} is {gaps[worst]:.3g} from a plain loop"
            )


def check_without(c: Combination, name: str, first: Values, words: list[str]) -> None:
    """Removing an option changes something, or a word was said."""
    less = attempt(c.without(name))
    if less.refusal or (name in c.fields and c.fields[name] == default_field(c, name)):
        return
    if differences(first, traces(less.result)):
        return
    settings = c.options.get(name, {name: None})
    if any(bound in str(settings.get(name)) for bound in BOUNDS):
        return
    if c.method == "fedalt" and c.fields.get("steps") == 0:
        return  # the shared part is not trained: the last stage of the papers' recipe
    if name in ("rule", "client_weights") and c.method in ("lp-proj-1", "dichotomy"):
        # messages are one step away from the shared model, often all of them the same; Local may
        # be what is chosen
        return
    if chosen_anyway(c, less.result, settings):
        return
    if any(about in line for about in ABOUT_ALL for line in words):
        return
    said = [line for line in words if line not in less.words]
    if not any(setting in line for setting in settings for line in said):
        raise Failure(f"without {name}", f"{c.options.get(name) or c.fields[name]!r}: no effect")


def default_field(c: Combination, name: str) -> Any:
    return getattr(il.make_method(c.method), name)


def chosen_anyway(c: Combination, less: il.Result, settings: Values) -> bool:
    """Whether these settings say what a run does without them."""
    federation = federation_of(c)
    trained = int((federation.sizes("train") > 0).sum()) - c.settings().get("held_out", 0)
    sizes = federation.sizes("train")
    all_at_once = min(4, settings.get("batch", 0)) >= int(sizes.max())  # 4: see `settings`
    metrics = set(settings.get("metrics", "none").split(","))
    return (
        settings.get("sample") == trained
        or settings.get("rule") == "mean"
        or all_at_once
        or metrics <= {name for row in less.rounds_table() for name in row}
    )


def removable(c: Combination) -> list[str]:
    return [n for n in (*c.options, *c.fields) if n not in CONDITIONAL]


# -- all of them -----------------------------------------------------------------------------------
@dataclass
class Outcome:
    """What became of a combination."""

    combination: Combination
    refusal: str = ""
    failures: list[Failure] = field(default_factory=list)


def examine(c: Combination, removals: list[str] | None = None, only: str = "") -> Outcome:
    """All checks of a combination, or one of them; `removals`: the options to remove in turn."""
    outcome = Outcome(c)

    def tried(name: str, check: Callable[[], None]) -> None:
        if only and only not in name:
            return
        try:
            with time_limit():
                check()
        except Failure as failure:
            outcome.failures.append(failure)
        except SettingError as error:
            outcome.failures.append(Failure(name, f"SettingError: {error}"))
        except Exception as error:
            outcome.failures.append(Failure(name, located(error)))

    try:
        with time_limit():
            run = attempt(c)
    except Failure as failure:
        outcome.failures.append(failure)
        return outcome
    except SettingError as error:  # of the data
        outcome.refusal = str(error)
        return outcome
    if run.refusal:
        outcome.refusal = run.refusal
        return outcome
    first: Values = {}

    def read() -> None:
        first.update(traces(run.result))

    tried(f"{only} models", read)
    if not first:
        return outcome
    tried("repeat, hosts", lambda: check_repeats(c, run.result, first))
    tried("resume", lambda: check_resume(c, first))
    tried("figures", lambda: check_figures(c, run.result))
    tried("others", lambda: check_others(c))
    tried("alone", lambda: check_alone(c, run.result))
    tried("accounts", lambda: check_accounts(c, run.result))
    tried("first step", lambda: check_first_step(c))
    for name in removable(c) if removals is None else removals:
        tried(f"without {name}", lambda n=name: check_without(c, n, first, run.words))
    return outcome


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """A Failure where the block takes too long."""

    def late(*_: Any) -> None:
        raise Failure("hangs", f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def normalised(text: str) -> str:
    """A text without the numbers and names in it, to group those that are alike."""
    text = re.sub(r"'[^']*'", "'…'", text)
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", text)[:160]
