"""Hosts of a run in other processes: worker processes on this machine, or actors of Ray.

Hosts on Ray load their data by name, and the run's own process never holds a sample. What it needs
to know of them (numbers of samples, their form, the fingerprint, the trivial baseline) is computed
where they are, and so is whether model, loss and metrics fit them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks import Attack
from ..core.scratch import ScratchFolder
from ..data.federation import Census, Federation
from ..engine.carriers import Carrier
from ..engine.remote_hosts import RemoteHosts
from ..engine.retry import HostCalls
from ..engine.rounds import Engine
from ..host.baselines import trivial
from ..host.host import Host
from ..host.lazy_federation import LazyFederation, test_groups, training_classes
from ..host.metrics import in_use
from ..host.remote_host import HostLike, RemoteHost
from ..host.service import HostRecipe
from ..method import Method
from ..server.server import Server
from ..task.losses import Loss
from ..task.trial import Behaviour
from .plan import Plan
from .prepare import People, RunParts, prepare
from .session import Share, build_engine, data_of_clients
from .settings import Settings
from .step_sizes import steepness_of

HOSTS = ".hosts"  # in a run directory: rows of running hosts


class WorkerHosts:
    """Starts the hosts of a seed in other processes and reaches them by a carrier."""

    def __init__(
        self, settings: Settings, origin: dict[str, Any], seed: int, directory: Path | None
    ):
        self.settings = settings
        self.origin = origin
        self._temporary: ScratchFolder | None = None
        if directory is None:
            self._temporary = ScratchFolder()
            self.folder = Path(self._temporary.name)
        else:
            self.folder = directory.absolute() / HOSTS / f"seed-{seed}"
            shutil.rmtree(self.folder, ignore_errors=True)  # a resumed run reads checkpoints
        self.carrier: Carrier | None = None

    def hosts(self, shares: Sequence[Share]) -> Sequence[HostLike]:
        engine, place = self.settings.carrier, self.settings.place
        assert engine.start is not None
        threads = place.threads if engine.cluster else torch.get_num_threads() // len(shares)
        recipes = [
            HostRecipe(
                share.kind,
                share.contract,
                self._data(share),
                share.wire_ids,
                share.settings,
                share.options,
                max(1, threads),
                str(self.folder / f"host-{n}") if engine.cluster else "",
            )
            for n, share in enumerate(shares)
        ]
        self.carrier = engine.start(recipes, place)
        return [_proxy(share) for share in shares]

    def _data(self, share: Share) -> Callable[[], Federation]:
        """How a host loads its data: by name, or as they are if the run has them as an object."""
        by_name = self.settings.carrier.loads_data
        if by_name and isinstance(share.federation, LazyFederation):
            load = share.federation.load
        elif by_name and self.origin.get("data"):
            load = partial(_load, self.origin)
        else:
            return partial(_as_is, share.data())
        task = share.contract.task
        how = (share.attack, task.seed, task.criterion)
        return partial(_load_share, load, share.wire_ids, *how)

    def engine(self, server: Server, hosts: Sequence[HostLike], method: Method) -> Engine:
        assert self.carrier is not None
        s = self.settings
        counters = server.contract.method.traits.counters
        calls = HostCalls(self.carrier, s.deadline, s.patience_for_hosts)
        group = RemoteHosts(hosts, calls, counters)
        for number, host in enumerate(hosts):
            assert isinstance(host, RemoteHost)
            host.ask = partial(group.ask, number)
        return build_engine(server, group, s, method)

    def leave(self, hosts: Sequence[HostLike]) -> None:
        for host in hosts:
            assert isinstance(host, RemoteHost)
            host.leave()

    def close(self) -> None:
        if self.carrier is not None:
            self.carrier.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()
            return
        with suppress(OSError):  # another seed is running
            self.folder.parent.rmdir()


def _proxy(share: Share) -> RemoteHost:
    census = share.federation
    if not isinstance(census, Census):
        census = Census.of_data(census)
    clients = census.of(share.wire_ids)
    local = Host(share.contract, clients, share.wire_ids, share.settings)
    return RemoteHost(local, share.data)


# -- what another process calls --------------------------------------------------------------------
def _as_is(data: Federation) -> Federation:
    """Data that are sent to their host."""
    return data


def _load_share(
    load: Callable[[], Federation],
    wire_ids: Tensor,
    attack: Attack | None,
    seed: int,
    loss: Loss,
) -> Federation:
    """Data that their host loads itself: `load` gives those of all clients."""
    return data_of_clients(load(), wire_ids, attack, seed, loss)


def _load(plan: dict[str, Any]) -> Federation:
    return Plan.read(plan, "origin").make_data()


def data_of(plans: Sequence[Plan]) -> Federation:
    """The data of plans that have the same: loaded here, or by hosts if all plans have them on Ray.

    >>> plan = Plan("fedavg", data="synthetic", data_options={"clients": 3})
    >>> data_of([plan]).clients
    3
    """
    settings = [plan.make_settings() for plan in plans]
    ask = settings[0].carrier.ask
    if ask is None or not all(s.carrier.loads_data for s in settings):
        return plans[0].make_data()
    return ask(partial(_survey, [plan.as_dict() for plan in plans]), settings[0].place)


def _survey(documents: list[dict[str, Any]]) -> LazyFederation:
    """Whose data are these, and do they fit what the plans want of them?"""
    load = partial(_load, documents[0])
    data = load()
    plans = [Plan.read(document, "origin") for document in documents]
    task = plans[0].make_tasks(data)
    parts = [prepare(p.make_method(), task, data, p.make_settings()) for p in plans]
    s = parts[0].settings
    loss = parts[0].first_task.criterion
    used = in_use(s.metrics, s.metric, data.classes, loss.name, parts[0].positive)
    baseline = trivial(data, loss, used)
    eligible = People.of(data, s, s.seed).eligible
    steepness = steepness_of(parts[0].first_task, data, s, eligible)
    return LazyFederation.of_data(
        data,
        sha256=data.fingerprint(),
        baseline=baseline,
        behaviour=parts[0].behaviour,
        target_scale=parts[0].target_scale,
        training_classes=training_classes(data),
        test_groups=None if data.groups is None else tuple(test_groups(data) or ()),
        steepness=() if steepness is None else astuple(steepness),
        by_group=tuple(_of_group(one, eligible) for one in parts[0].of_groups),
        load=load,
    )


def _of_group(parts: RunParts, eligible: Tensor) -> tuple[Behaviour, tuple[float, ...]]:
    """What the model of one group does on the data."""
    steepness = steepness_of(parts.first_task, parts.federation, parts.settings, eligible)
    return parts.behaviour, () if steepness is None else astuple(steepness)
