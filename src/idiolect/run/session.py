"""One seed of a run: contract, roster, server, hosts and the engine between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..attacks import Attack
from ..attacks.malicious import MaliciousHost, Observer, WatchedHost
from ..core.documents import decode, expect
from ..core.knobs import SettingError
from ..core.tensors import Shapes, bytes_of, check_shapes, shapes_of
from ..core.types import Id, Personal, State
from ..data.federation import Federation
from ..data.prepare.target_sums import bytes_of_moments
from ..engine.arrivals import Arrivals, Pace
from ..engine.carriers.local import LocalHosts
from ..engine.remote_hosts import RemoteHosts
from ..engine.rounds import Engine, Rounds
from ..host.host import Host, HostSettings
from ..host.lazy_federation import whole
from ..host.remote_host import HostLike
from ..method import Method
from ..methods.predictor import module_of, no_single_model
from ..privacy.plan import Mechanism
from ..server.asynchronous import AsyncServer
from ..server.protocol import Contract
from ..server.roster import Roster
from ..server.server import Server
from ..task.groups import sizes_text
from ..task.losses import Loss
from ..task.task import Task
from . import checkpoint as checkpoints
from .checkpoint import Bound, Checkpoint
from .contract import build_contract
from .groups import layouts_of
from .identity import RunIdentity
from .prepare import People, RunParts, concurrency
from .settings import Settings

START = "start.x0"  # in a checkpoint; with a number behind it where groups have unlike models


@dataclass(frozen=True)
class Start:
    """Where a seed begins in place of a new model: an earlier stage's model and private rows."""

    x0: Tensor  # the shared model, as `Task.start` gives one
    earlier: Session | None = None  # whose private rows its hosts adopt, where they fit

    def sha256(self) -> str:
        """A digest of all it holds: what a resumed run checks."""
        digest = hashlib.sha256(_bytes(self.x0))
        for host in self.earlier.hosts if self.earlier else ():
            digest.update(host.digest().encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Share:
    """Some of the clients, and what their host is made of."""

    kind: type[Host]
    contract: Contract
    federation: Federation
    wire_ids: Tensor  # int64, increasing: which of the federation's clients they are
    settings: HostSettings
    options: dict[str, Any]
    attack: Attack | None = None  # of these clients, where they are malicious

    def data(self) -> Federation:
        """The data of these clients alone."""
        task = self.contract.task
        data = whole(self.federation)
        return data_of_clients(data, self.wire_ids, self.attack, task.seed, task.criterion)

    def host(self) -> Host:
        """The host in this process."""
        return self.kind(self.contract, self.data(), self.wire_ids, self.settings, **self.options)


class HostPlacement(Protocol):
    """Hosts in other processes: how they are made and reached."""

    def hosts(self, shares: Sequence[Share]) -> Sequence[HostLike]:
        """A proxy for the host of each share."""

    def engine(self, server: Server, hosts: Sequence[HostLike], method: Method) -> Engine:
        """What carries messages to them."""

    def leave(self, hosts: Sequence[HostLike]) -> None:
        """The hosts are about to end: rows go where their owner finds them."""

    def close(self) -> None:
        """They end."""


class Session:
    """A seed's moving parts. Nothing of it is in the record that a run leaves behind."""

    def __init__(
        self,
        parts: RunParts,
        seed: int,
        run: int,
        scratch: Path | None = None,
        start: Start | None = None,
        started: bool = False,
        placement: HostPlacement | None = None,
        mechanism: Mechanism | None = None,
    ):
        """`mechanism`: the noise of a run that has begun; None: chosen for this one."""
        federation, settings = parts.federation, parts.settings
        self.seed = seed
        self.settings = settings
        self.people = parts.people_of(seed)
        tests = federation.sizes("test")[self.people.evaluated]
        self.tested = bool(tests.sum())  # whether any evaluated client has test data
        # from an earlier stage, not from a new model; its start is given here or in a checkpoint
        self.started = started or start is not None
        keeps = [self.started or starts_in_checkpoint(one.task) for one in parts.each_group]
        tasks = [one.task_of(seed) for one in parts.each_group]
        if start is not None:
            tasks[0].begin_at(start.x0)
        layouts = layouts_of(parts)
        privacy = parts.privacy_plan(seed, mechanism)
        built = [
            build_contract(
                *(parts.method, task, settings, run, federation.classes, parts.positive),
                layouts,
                privacy,
            )
            for task in tasks
        ]
        self.contracts = [contract for contract, _ in built]  # of each group of clients
        self.groups = parts.groups
        self.group_numbers = parts.group_numbers
        self._starts = {  # what a checkpoint has of them, by name
            f"start.x0{f'.{k}' if len(tasks) > 1 else ''}": task
            for k, task in enumerate(tasks)
            if keeps[k]
        }
        self.contract, host_settings = built[0]
        method = self.contract.method
        roster = Roster()
        eligible = torch.zeros(federation.clients, dtype=torch.bool)
        eligible[self.people.eligible] = True
        samples = federation.sizes("train").tolist()
        weights = settings.client_weights.of(federation.names)
        own_weights = weights is not None
        if weights is None and federation.weights is not None:
            # one without training samples takes no part, and needs a number all the same
            weights = (
                federation.weight_totals("train").where(federation.sizes("train") > 0, 1.0).tolist()
            )
        if privacy is not None:  # every client counts alike
            weights, own_weights = [1.0] * federation.clients, False
        roster.enrol(federation.ids, samples, eligible.tolist(), weights, own_weights)
        self.server = Server(
            self.contract,
            roster,
            rule=settings.rule,
            step=settings.server_step,
            sample=settings.sampled(len(self.people.eligible), method.traits.hears_all),
            quorum=settings.quorum,
            selection=settings.selection,
            memory=host_settings.memory,
            scratch=scratch,
            privacy=privacy,
        )
        if federation.preparation is not None and not self.started:
            bytes_up = torch.tensor(federation.preparation.bytes_of(federation.ids))
            down = federation.preparation.bytes_down
            self.server.prepared(torch.arange(federation.clients), bytes_up, down)
        if parts.target_scale is not None and not self.started:
            up, down = bytes_of_moments(len(parts.target_scale.centre))
            senders = self.people.eligible
            self.server.prepared(senders, torch.full((len(senders),), up), down)
        self.classes = federation.classes
        self.metrics = host_settings.metrics
        common: dict[str, Any] = {
            "scratch": scratch,
            "chunk": settings.chunk,
            "repeats": False,  # no round is requested again after it was concluded
            "validation": bool(federation.sizes("valid").any()),
            "asynchronous": settings.asynchronous,
        }
        sides = [(contract, replace(of_host, **common)) for contract, of_host in built]
        self.settings_of_group = [of_host for _, of_host in sides]
        shares = _shares(sides, parts.group_numbers, federation, settings, self.people)
        self.placement = placement
        if placement is None:
            group = LocalHosts([share.host() for share in shares])
            self.engine = build_engine(self.server, group, settings, method)
        else:
            self.engine = placement.engine(self.server, placement.hosts(shares), method)
        self.hosts: Sequence[HostLike] = self.engine.hosts
        if start and start.earlier:
            for host, earlier in zip(self.hosts, start.earlier.hosts, strict=True):
                host.adopt(earlier)
        self.held_out_personalised = False

    def join(self, wire_ids: Tensor) -> None:
        """Clients that have enrolled after the start take part from the next round on."""
        eligible = torch.cat([self.people.eligible, wire_ids])
        evaluated = torch.cat([self.people.evaluated, wire_ids])
        self.people = replace(self.people, eligible=eligible, evaluated=evaluated)

    @property
    def local_hosts(self) -> list[Host]:
        """The hosts that are in this process."""
        return [host for host in self.hosts if isinstance(host, Host)]

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.engine.rounds

    @property
    def task(self) -> Task:
        """Model and loss, as this seed computes them."""
        return self.contract.task

    @property
    def roster(self) -> Roster:
        """Who takes part."""
        return self.server.roster

    def advance(self) -> None:
        """One round."""
        s = self.settings
        with numbers_fit(s.dtype):
            self.engine.advance(s.schedule.factors(self.rounds, s.rounds))

    def contract_of(self, client: Id) -> Contract:
        """What the host of a client has agreed on: with the model of its group."""
        return self.contracts[int(self.group_numbers[self.roster.wire_id(client)])]

    def task_of(self, client: Id) -> Task:
        """Model and loss of a client."""
        return self.contract_of(client).task

    # -- models, for their owners ----------------------------------------------------------------
    def personal(self, client: Id) -> Personal:  # -> x[d], or a State
        """What a client predicts with."""
        wire_id = self.server.roster.wire_id(client)
        version = self.rounds
        down = self.server.message(version, torch.tensor([wire_id]))
        for host in self.hosts:
            if bool((host.wire_ids == wire_id).any()):
                return host.personal(version, down, wire_id)
        raise SettingError(f"client: {client!r} is hosted in another process")

    def personal_rows(self) -> Tensor:  # -> x[N, d]
        """The models of all clients, in the order of the federation.

        Of a method whose clients predict with one each.
        """
        if self.groups is not None:
            raise SettingError(
                f"models: clients have unlike ones (d = {sizes_text(self.groups, ',')}), which are "
                "no rows of one matrix; personal(client) has each"
            )
        version = self.rounds
        rows = []
        for host in self.hosts:
            down = self.server.message(version, host.wire_ids)
            models = host.personal_rows(version, down, host.wire_ids)
            if not isinstance(models, Tensor):
                raise SettingError(no_single_model(self.contract.method))
            rows.append(models)
        order = torch.cat([host.wire_ids for host in self.hosts]).argsort()
        return torch.cat(rows)[order.to(rows[0].device)]

    def module(self, client: Id) -> nn.Module:
        """The same as a torch module."""
        contract = self.contract_of(client)
        return module_of(contract.method, contract.task, self.personal(client))

    # -- checkpoints -----------------------------------------------------------------------------
    def save(
        self, folder: Path, identity: RunIdentity, facts: dict[str, Any] | None = None
    ) -> Path:
        """Write a checkpoint: the server's side, work under way, and every host by itself.

        `facts`: what else it holds.
        """
        tensors, server = self.server.save()
        tensors = tensors | {name: task.start().cpu() for name, task in self._starts.items()}
        states = {"server": tensors}
        own: dict[str, Any] = {
            "server": server | {"held_out_personalised": self.held_out_personalised}
        }
        under_way, engine = self.engine.save()
        if under_way:
            states["engine"] = under_way
        if engine:
            own["engine"] = engine
        parts = {_host_folder(number): host.save for number, host in enumerate(self.hosts)}
        bound = self._bound(identity)
        return checkpoints.save(folder, bound, self.rounds, states, own | (facts or {}), parts)

    def restore(
        self,
        folder: Path,
        identity: RunIdentity,
        settings: Settings,
        warn: Callable[[str], None],
    ) -> Checkpoint:
        """Return to the newest sound checkpoint of a folder; that checkpoint.

        A CheckpointError names any that this session cannot have saved.
        """
        most_bytes = self.most_bytes(settings.rounds)
        newest = checkpoints.load(folder, self._bound(identity), settings.rounds, most_bytes, warn)
        with newest.refused_on_error():
            self._load(newest, settings)
        return newest

    def _bound(self, identity: RunIdentity) -> Bound:
        return Bound(identity.id, self.seed, identity.digest(), self.contract.checksum)

    def _load(self, checkpoint: Checkpoint, settings: Settings) -> None:
        """As it was saved, hosts from their folders; ValueError for what was not saved by this."""
        facts = decode(checkpoint.facts.get("server"), dict[str, Any], "server")
        personalised = facts.pop("held_out_personalised", None)
        expect(personalised, bool, "server.held_out_personalised")
        server = self.server
        enrolled = len(server.roster)
        start = shapes_of({name: task.start() for name, task in self._starts.items()})

        def check_server(shapes: Shapes) -> None:
            check_shapes({n: s for n, s in shapes.items() if n.startswith(START)}, start)
            server.check({n: s for n, s in shapes.items() if not n.startswith(START)}, facts)

        tensors = checkpoint.read("server", check_server)
        starts = {name: tensors.pop(name) for name in start}
        server.load(tensors, facts)
        version = self.engine.versions(checkpoint.round)
        if server.version != version or len(server.roster) != enrolled:
            raise ValueError("server: another round or other clients than the checkpoint is of")
        self._load_engine(checkpoint)
        for name, x0 in starts.items():
            self._starts[name].begin_at(x0)
        self.held_out_personalised = personalised
        # work that is under way may be of the newest version
        newest = torch.full((enrolled,), version + settings.asynchronous)
        exchanges = len(self.contract.exchanges)
        newest[self.people.held_out] += settings.held_out_rounds * exchanges * personalised
        for number, host in enumerate(self.hosts):
            host.load(checkpoint.path / _host_folder(number), newest[host.wire_ids])

    def _load_engine(self, checkpoint: Checkpoint) -> None:
        """What was under way."""
        under_way = decode(checkpoint.facts.get("engine", {}), dict[str, Any], "engine")
        tensors: State = {}
        if under_way and self.engine.most_bytes():
            tensors = checkpoint.read("engine", lambda shapes: self.engine.check(shapes, under_way))
        else:
            self.engine.check({}, under_way)
        self.engine.load(tensors, under_way, checkpoint.round)

    def most_bytes(self, rounds: int) -> int:
        """The most that a checkpoint takes: server, hosts, and figures of every round."""
        figures = 4 * (rounds + 1) * len(self.server.roster)
        tasks = {str(k): contract.task.start() for k, contract in enumerate(self.contracts)}
        start = bytes_of(shapes_of(tasks))
        hosts = sum(host.most_bytes() for host in self.hosts)
        return self.server.most_bytes() + self.engine.most_bytes() + start + hosts + figures

    def personalise_held_out(self, rounds: int) -> None:
        """Held-out clients train towards the finished server, once."""
        if len(self.people.held_out) and not self.held_out_personalised:
            self.engine.personalise(self.people.held_out, rounds)
            self.held_out_personalised = True

    def leave(self, keep: bool) -> None:
        """Training and evaluation are over; `keep`: rows must outlive hosts in other processes."""
        if self.placement is not None and keep:
            self.placement.leave(self.hosts)

    def close(self) -> None:
        """What was started for this seed ends."""
        self.engine.close()
        if self.placement is not None:
            self.placement.close()

    def release(self) -> None:
        """Free what only training and evaluation need."""
        for host in self.hosts:
            host.release()


@contextmanager
def numbers_fit(dtype: str) -> Iterator[None]:
    """A product of settings that overflows is a SettingError."""
    try:
        yield
    except RuntimeError as error:
        if "without overflow" not in str(error):
            raise
        raise SettingError(
            f"method: its step sizes and weights multiply to more than {dtype} holds; "
            "choose smaller ones, or dtype float64"
        ) from None


def build_engine(
    server: Server, group: LocalHosts | RemoteHosts, settings: Settings, method: Method
) -> Engine:
    """The engine of these settings."""
    if not settings.asynchronous:
        return Rounds(server, group, settings.delays)
    eligible = int(server.roster.eligible.sum())
    pace = Pace(concurrency(method, settings, eligible, server.sample), settings.next_client)
    arrivals = AsyncServer(server, settings.staleness, settings.buffer, settings.change_from)
    return Arrivals(server, group, arrivals, pace, settings.delays)


def starts_in_checkpoint(task: Task) -> bool:
    """Whether checkpoints keep all that a run started from: the weights of a user's module.

    Not where other parts of the module count too (frozen parameters, constant buffers): then the
    same module is needed to continue the run, or to use its models.
    """
    module = task.model
    if not isinstance(module, nn.Module):
        return False
    statistic_names = task.statistics.layout.names if task.statistics else ()
    counters = "num_batches_tracked"  # of BatchNorm: no prediction depends on it
    buffers = [n for n, _ in module.named_buffers() if not n.endswith(counters)]
    return all(p.requires_grad for p in module.parameters()) and set(buffers) <= set(
        statistic_names
    )


def _host_folder(number: int) -> str:
    """Where a host's part of a checkpoint lies."""
    return f"host-{number}"


def data_of_clients(
    federation: Federation, wire_ids: Tensor, attack: Attack | None, seed: int, loss: Loss
) -> Federation:
    """The data of some clients alone, as their attack wants them where they are malicious."""
    if attack is not None:
        federation = attack.poison(federation, wire_ids, seed, loss)
    return federation.of(wire_ids)


def _shares(
    sides: Sequence[tuple[Contract, HostSettings]],  # of each group of clients
    groups: Tensor,  # int64[N]: the group of each client
    federation: Federation,
    settings: Settings,
    people: People,
) -> list[Share]:
    """Shares of the honest clients, then of the malicious: they are asked after the others.

    All clients of a host are of one group, so that it has one model.
    """
    attack = settings.attack
    everyone = torch.arange(federation.clients)
    honest = everyone[~torch.isin(everyone, people.malicious)]
    parts = np.array_split(honest.numpy(), min(settings.hosts, len(honest)))
    observer = Observer() if attack is not None and attack.colludes else None
    host_shares: list[Share] = []

    def add(
        kind: type[Host], wire_ids: Tensor, options: dict[str, Any], own: Attack | None
    ) -> None:
        for k, (contract, host_settings) in enumerate(sides):
            mine = wire_ids[groups[wire_ids] == k]
            if len(mine) or len(sides) == 1:
                host_shares.append(
                    Share(kind, contract, federation, mine, host_settings, options, own)
                )

    for part in parts:
        kind = WatchedHost if observer else Host
        options: dict[str, Any] = {"observer": observer} if observer else {}
        add(kind, torch.from_numpy(part), options, None)
    if attack is not None:
        options = {"attack": attack, "observer": observer}
        add(MaliciousHost, people.malicious, options, attack)
    return host_shares


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
