"""A run: settings in, result out; with checkpoints, exact resume, and a stop on rounds, bytes or accuracy."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import adversary, channels
from ..channels.link import Link
from ..core import streams
from ..core.knobs import SettingError, build
from ..data.federation import SPLITS, Federation
from ..engine.inprocess import InProcess, select
from ..host.host import Host, HostSettings
from ..host.scores import summarise
from ..method import Method
from ..methods import METHODS, name_of
from ..server import rules as aggregation
from ..server.step import ServerStep
from ..task.task import Task
from ..wire.ledger import Ledger
from . import checkpoint
from .directory import RunDirectory, environment
from .interrupts import polite
from .result import Result, SeedResult
from .schedule import factor
from .settings import DTYPES, Settings

Progress = Callable[
    [int, int, float], None
]  # seed, rounds done, accuracy so far (NaN before the first evaluation)


@dataclass(frozen=True)
class Start:
    """Where a run begins in place of a new model: the shared model x0[d], and private rows by name."""

    x0: Tensor
    rows: dict[str, Tensor]

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name, t in sorted({"x0": self.x0, **self.rows}.items()):
            digest.update(
                name.encode()
                + t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        return digest.hexdigest()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run stopped between two rounds; what was done is in its directory."""


def run(
    method: Method,
    task: Task,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    progress: Progress | None = None,
    origin: dict[str, Any] | None = None,
    resume: bool = False,
    start: dict[int, Start] | None = None,
    **settings: Any,
) -> Result:
    """Train `method` on `federation` and evaluate every client's own model on its own data.

    Settings are the fields of `Settings`: rounds, sample, seeds, batch, ... With a `directory`, settings, metrics and checkpoints
    are written there and `resume=True` continues a run that was interrupted, to exactly the result it would have had.
    `origin` describes data and model by name, so that `idiolect resume` can rebuild them. `start` gives, for each seed, the model and
    private rows to start from (see `idiolect.pipeline`).

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> result = il.run(il.FedAvg(), il.Task(torch.nn.Linear(60, 10)), federation, rounds=2, sample=2)
    >>> result.summary()["values"]
    {'up': 2440, 'down': 2440}
    """
    chosen = build(Settings, settings, "run")
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    check(method, task, federation, chosen)
    identity = _identity(method, task, federation, chosen, origin)
    if start:
        identity["start"] = {str(seed): s.sha256() for seed, s in start.items()}
    if directory is None:
        return _run(method, task, federation, chosen, identity, None, progress, False, start or {})
    with RunDirectory(directory, fresh=not resume) as folder:
        if resume:
            folder.clear()
            _same(folder.read_json("settings.json"), identity, folder.path)
        else:
            try:
                folder.write_json("environment.json", environment())
                folder.write_json("settings.json", identity)
            except OSError as error:
                raise SettingError(
                    f"directory: cannot write to {folder.path}: {error.strerror}"
                ) from None
        result = _run(
            method, task, federation, chosen, identity, folder, progress, resume, start or {}
        )
        with _disk("the result"):
            folder.write_csv("clients.csv", result.clients_table())
            folder.write_json("result.json", result.summary())
        return result


def _run(
    method: Method,
    task: Task,
    federation: Federation,
    settings: Settings,
    identity: dict[str, Any],
    folder: RunDirectory | None,
    progress: Progress | None,
    resume: bool,
    start: dict[int, Start],
) -> Result:
    name = name_of(method)
    result = Result(
        name, label(method), identity["method"], settings, federation.name, task.d, "", []
    )
    eligible = len(_eligible(federation, settings))
    under = _under(task, settings, seed=settings.seed)
    result.notes = method.report(under, eligible, settings.sampled(eligible, method.hears_all))
    for note in result.notes.values():
        if note.get("warning"):
            _warn(note["warning"])
    with polite("finishing this round, then saving") as interrupted:
        for seed in range(settings.seed, settings.seed + settings.seeds):
            one = _prepare(
                method, task, federation, settings, identity, seed, folder, start.get(seed)
            )
            result.kernel = one.engine.host.task.kernel
            result.seeds.append(one)
            _train(one, settings, folder, progress, resume, interrupted)
            _finish(one, settings)
            with _disk("metrics.csv"):
                if folder and result.rounds_table():
                    folder.write_csv("metrics.csv", result.rounds_table())
    return result


def _prepare(
    method: Method,
    task: Task,
    federation: Federation,
    s: Settings,
    identity: dict[str, Any],
    seed: int,
    folder: RunDirectory | None,
    start: Start | None,
) -> SeedResult:
    everyone, held = torch.arange(federation.clients), _held_out(federation, s)
    inside, eligible = everyone[~torch.isin(everyone, held)], _eligible(federation, s)
    task = _under(task, s, clients=len(eligible), seed=seed)
    number = zlib.crc32(repr((sorted(identity["method"].items()), identity["data"], seed)).encode())
    attack, liars = adversary.parse_attack(s.attack), _liars(federation, s, seed)
    if attack:
        federation = attack.poison(federation, liars, seed)
    host_settings = HostSettings(
        batch=s.batch,
        batching=s.batching,
        chunk=s.chunk,
        memory=int(s.memory * 2**30),
        scratch=folder.path if folder else None,
        finetune_steps=s.finetune_steps,
        finetune_lr=s.finetune_lr,
        repeats=False,  # nothing between server and host can be lost or come twice here
        channel=channels.parse_channel(s.channel),
        attack=attack,
        liars=liars,
    )
    if start:
        task.x0 = start.x0.to(task.x0)
    host = Host(method, task, federation, number, host_settings)
    if start:
        host.store.adopt(start.rows)
    step = ServerStep(s.server_optimizer, s.server_lr, s.server_options)
    engine = InProcess(
        host,
        aggregation.parse_rule(s.rule),
        step,
        eligible,
        s.sampled(len(eligible), method.hears_all),
    )
    return SeedResult(seed, engine, inside[~torch.isin(inside, liars)], held, liars)


def _liars(federation: Federation, s: Settings, seed: int) -> Tensor:
    """The malicious clients of a seed."""
    eligible = _eligible(federation, s)
    return adversary.chosen(
        seed,
        streams.name_keys(federation.names),
        eligible,
        adversary.how_many(s.malicious, len(eligible)),
    )


def _held_out(federation: Federation, s: Settings) -> Tensor:
    """The clients kept out of training: the same for every seed."""
    return select(
        s.seed,
        0,
        streams.name_keys(federation.names),
        torch.arange(federation.clients),
        s.held_out,
        "held out",
    )


def _train(
    one: SeedResult,
    s: Settings,
    folder: RunDirectory | None,
    progress: Progress | None,
    resume: bool,
    interrupted: Callable[[], bool],
) -> None:
    """Rounds until one of the stops; state is complete between rounds, so that is where it is saved."""
    engine = one.engine
    if resume and folder:
        checkpoint.clear(folder.checkpoints(one.seed))
        if checkpoint.found(folder.checkpoints(one.seed)):
            _restore(one, folder.checkpoints(one.seed))
    began = time.perf_counter() - one.seconds
    while not (stop := _stop(one, s)):
        if interrupted():
            one.seconds = time.perf_counter() - began
            _save(one, folder)
            raise Interrupted(f"stopped after round {engine.round} of {s.rounds} (seed {one.seed})")
        engine.advance(factor(s.schedule, engine.round, s.rounds))
        if s.eval_every and (engine.round % s.eval_every == 0 or engine.round == s.rounds):
            _evaluate(one)
        one.seconds = time.perf_counter() - began
        if s.checkpoint_every and engine.round % s.checkpoint_every == 0:
            _save(one, folder)
        if progress:
            progress(
                one.seed, engine.round, one.history[-1]["accuracy"] if one.history else float("nan")
            )
    one.stopped = stop
    _save(one, folder)
    if interrupted() and one.seed + 1 < s.seed + s.seeds:
        raise Interrupted(f"stopped after the last round of seed {one.seed}")


def _stop(one: SeedResult, s: Settings) -> str:
    """Why the run ends here; "" while it goes on."""
    if one.engine.round >= s.rounds:
        return "rounds"
    if s.bytes and one.engine.ledger.bytes + one.engine.round_bytes > s.bytes:
        return "bytes"
    if s.target_accuracy and one.history and one.history[-1]["accuracy"] >= s.target_accuracy:
        return "target"
    return ""


def _evaluate(one: SeedResult) -> None:
    engine = one.engine
    scores = engine.evaluate(one.clients, ("test",))["test"]
    ledger = engine.ledger
    totals = {n: ledger.total(n) for n in ("bytes_up", "bytes_down", "values_up", "values_down")}
    spent = float(ledger.counts["gradients"][one.clients].double().mean())
    one.history.append(
        {
            "round": engine.round,
            **summarise(scores, one.clients),
            **totals,
            "gradients_per_client": spent,
        }
    )
    one.by_client.append(scores.of_clients()[0].float())
    one.note_collapse()


def _finish(one: SeedResult, s: Settings) -> None:
    one.scores = one.engine.evaluate(one.clients, SPLITS)
    one.note_collapse(one.final())
    if len(one.liars):
        one.liars_scores = one.engine.evaluate(one.liars, SPLITS)
    one.shared_scores = one.engine.evaluate_shared(("test",))
    if len(one.held_out):
        one.engine.personalise(one.held_out, s.held_out_rounds)
        one.held_out_scores = one.engine.evaluate(one.held_out, SPLITS)


# -- checkpoints -------------------------------------------------------------------------------------------------------------
def _save(one: SeedResult, folder: RunDirectory | None) -> None:
    if folder is None:
        return
    tensors, facts = one.engine.ledger.save()
    by_client = (
        torch.stack(one.by_client)
        if one.by_client
        else torch.zeros(0, one.engine.host.data.clients)
    )
    states = {
        "server": {n: t.cpu() for n, t in one.engine.server.items()},
        "private": {n: t.cpu() for n, t in one.engine.host.store.save().items()},
        "history": {**tensors, "by_client": by_client},
    }
    if one.engine.host.link.codes:
        states["channel"] = {n: t.cpu() for n, t in one.engine.save_channel().items()}
    with _disk(f"the checkpoint of round {one.engine.round}"):
        record = {"ledger": facts, "history": one.history, "seconds": one.seconds}
        checkpoint.save(folder.checkpoints(one.seed), one.engine.round, states, record)


def _restore(one: SeedResult, path: Path) -> None:
    engine = one.engine
    engine.round, states, facts = checkpoint.load(path, warn=_warn)
    device = engine.host.task.device
    engine.server = {n: t.to(device) for n, t in states["server"].items()}
    engine.host.store.load(
        {n: t.to(device) if n.startswith("rows.") else t for n, t in states["private"].items()}
    )
    engine.load_channel(
        {n: t.to(device) if ".rows." in n else t for n, t in states.get("channel", {}).items()}
    )
    engine.ledger = Ledger.load(states["history"], facts["ledger"])
    engine.host.gradients = engine.ledger.counts["gradients"].clone()
    one.by_client = list(states["history"]["by_client"])
    one.history = facts["history"]
    for done in range(len(one.history)):
        one.note_collapse(one.history[done])
    one.seconds = facts["seconds"]


@contextmanager
def _disk(what: str) -> Iterator[None]:
    """A full disk must not cost the run: say it, keep what was saved before, go on in memory."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _warn(
            f"{what} could not be written ({error.strerror}); earlier files are untouched and the run goes on"
        )


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


# -- what a run is, and what it may be ---------------------------------------------------------------------------------------
def _identity(
    method: Method, task: Task, federation: Federation, s: Settings, origin: dict[str, Any] | None
) -> dict[str, Any]:
    """What must be the same when a run is resumed."""
    parameters = [
        [name, list(shape)]
        for name, shape in zip(task.layout.names, task.layout.shapes, strict=True)
    ]
    given = (
        Start(task.x0, {}).sha256()
        if isinstance(task.model, nn.Module)
        else "made anew for each seed"
    )
    model = {
        "module": type(task.module).__name__,
        "loss": task.criterion.name,
        "parameters": parameters,
        "weights": given,
    }
    return {
        "format": 1,
        "method": {"name": name_of(method), **method.as_dict()},
        "run": s.as_dict(),
        "data": {
            "name": federation.name,
            "clients": federation.clients,
            "sha256": federation.fingerprint(),
        },
        "model": model,
        "origin": origin or {},
    }


def _same(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    for part in ("format", "method", "run", "data", "model", "start"):
        old, new = saved.get(part), now.get(part)
        if old != new:
            pair = (
                (old, new)
                if isinstance(old, dict) and isinstance(new, dict)
                else ({part: old}, {part: new})
            )
            what = ", ".join(
                f"{k} was {pair[0].get(k)!r}, is {v!r}"
                for k, v in pair[1].items()
                if pair[0].get(k) != v
            )
            raise SettingError(
                f"resume: {path} was made with another {part}: {what}; only the same settings continue a run"
            )


def check(method: Method, task: Task, federation: Federation, s: Settings) -> None:
    """Everything that can be refused before work starts."""
    method.check(task)
    if federation.clients == 0:
        raise SettingError("clients: the federation is empty; at least one client is needed")
    if s.held_out >= federation.clients:
        raise SettingError(
            f"held_out: {s.held_out} is not accepted; less than the {federation.clients} clients"
        )
    eligible = _eligible(federation, s)
    if not len(eligible):
        raise SettingError("data: no client has a training sample (those held out do not count)")
    heard = s.sampled(len(eligible), method.hears_all)
    aggregation.parse_rule(s.rule).check(heard)
    adversary.how_many(s.malicious, len(eligible))
    under = _under(task, s)
    for warning in Link.fit(channels.parse_channel(s.channel), method, under).check():
        _warn(warning)
    _check_model(under, federation)


def _check_model(task: Task, federation: Federation) -> None:
    """One sample through model and loss: the one with the largest class."""
    loss, classes = task.criterion, federation.classes
    at = (
        int(federation.targets.flatten(1).amax(1).argmax())
        if federation.targets.dim() > 1
        else int(federation.targets.argmax())
    )
    one = dataclasses.replace(
        federation, inputs=federation.inputs[at : at + 1], targets=federation.targets[at : at + 1]
    )
    one = one.to(task.device, task.dtype)
    try:
        if (
            not federation.inputs.is_floating_point()
        ):  # tokens: a mapped embedding would read past its table without a word
            flat = federation.inputs.flatten(1)
            for extreme in (int(flat.amax(1).argmax()), int(flat.amin(1).argmin())):
                task.outputs_of_one(
                    task.x0, federation.inputs[extreme : extreme + 1].to(task.device)
                )
        out = task.outputs_of_one(task.x0, one.inputs)
    except Exception as error:  # whatever a user's forward raises
        shape = tuple(federation.inputs.shape[1:])
        raise SettingError(
            f"model: it does not accept inputs of shape {shape}: {(str(error) or repr(error)).splitlines()[0]}"
        ) from None
    if not classes and loss.name in ("cross_entropy", "logistic"):
        raise SettingError(
            f"loss: {loss.name!r} needs class numbers; the targets are real numbers: use 'mse' or 'half_squared'"
        )
    if loss.name == "logistic" and (classes > 2 or out.shape[-1] != 1):
        raise SettingError(
            f"loss: 'logistic' is for two classes and one output; there are {classes} classes and {out.shape[-1]} outputs"
        )
    if loss.name in ("mse", "half_squared") and out.squeeze(-1).shape != one.targets.shape:
        raise SettingError(
            f"model: {tuple(out.shape[1:])} outputs for {tuple(one.targets.shape[1:]) or 'one'} target; {loss.name!r} needs as many"
        )
    too_few = f"targets: class {classes - 1} lies outside the model's {out.shape[-1]} outputs"
    if loss.name == "cross_entropy" and out.shape[-1] < classes:
        raise SettingError(too_few)
    try:
        loss.each(out, one.targets)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            too_few
            if classes > out.shape[-1]
            else f"loss: {loss.name} does not fit the model's outputs: {error}"
        ) from None


def _eligible(federation: Federation, s: Settings) -> Tensor:
    """The clients that may take part: not held out, with training data."""
    everyone = torch.arange(federation.clients)
    inside = everyone[~torch.isin(everyone, _held_out(federation, s))]
    return inside[federation.sizes("train")[inside] > 0]


def _under(task: Task, s: Settings, **changes: Any) -> Task:
    """The task under the run's settings; what the task was given itself stays where the run says nothing."""
    default = Settings()
    return task.to(
        device=s.device if s.device != default.device else task.device,
        dtype=DTYPES[s.dtype] if s.dtype != default.dtype else task.dtype,
        kernel=s.kernel if s.kernel != default.kernel else task.asked_kernel,
        clip=s.clip or task.clip,
        weight_decay=s.weight_decay or task.weight_decay,
        **changes,
    )


def label(method: Method) -> str:
    """The method's name and the fields that differ from its defaults: "lp-proj-1 lam=1"."""
    name = name_of(method)
    fixed = METHODS[name][1] if name in METHODS else {}
    changed = [
        f
        for f in dataclasses.fields(method)
        if f.name not in fixed and getattr(method, f.name) != f.default
    ]
    return " ".join([name, *(f"{f.name}={_short(getattr(method, f.name))}" for f in changed)])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
