"""Personalise new clients after training, from the finished server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.knobs import SettingError
from ..core.text import plural
from ..core.types import Id, Personal
from ..data.federation import SPLITS, Federation
from ..host.baselines import per_client
from ..host.host import Host
from ..host.scores import Scores, summarise
from ..host.subgroups import SubgroupScores
from ..methods.predictor import module_of
from ..report.subgroups import SubgroupFigure, subgroup_figures
from ..server.protocol import Contract, RoundRequest
from ..server.roster import Roster
from ..task.task import Task
from ..wire.messages import DownMessage
from .model_check import check_model
from .plan import read_federation
from .predict import facts_of, labels_of
from .record import Record, SeedRecord, client_rows
from .repeats import facts_of_repeat
from .sample_weights import effective_columns, weights_note
from .session import Session


@dataclass(frozen=True)
class PersonalisedModels:
    """The models of clients that joined after training."""

    contract: Contract
    roster: Roster  # of the new clients
    rounds: int  # of the run that they joined
    down: DownMessage  # the server's last message, with those to each of the new clients
    hosts: tuple[Host, ...]  # one; or one for each group, where clients have unlike models

    @property
    def task(self) -> Task:
        """Model and loss."""
        return self.contract.task

    def personal(self, client: Id) -> Personal:  # -> x[d], or a State
        """What a client predicts with."""
        return self.host_of(client).personal(self.rounds, self.down, self.roster.wire_id(client))

    def host_of(self, client: Id) -> Host:
        """The host of a client."""
        wire_id = self.roster.wire_id(client)
        return next(host for host in self.hosts if bool((host.wire_ids == wire_id).any()))

    def task_of(self, client: Id) -> Task:
        """Model and loss of a client."""
        return self.host_of(client).contract.task

    def module(self, client: Id) -> nn.Module:
        """The same as a torch module."""
        contract = self.host_of(client).contract
        return module_of(contract.method, contract.task, self.personal(client))


def personalised(
    session: Session,
    record: Record,
    federation: Federation,
    rounds: int,
    returning: bool,
    models: Mapping[Id, str] | None = None,
) -> tuple[PersonalisedModels, Record]:
    """The new clients after `rounds` of training towards the finished server, and their figures.

    `models`: the group of each, where groups of clients have unlike models.
    """
    read_federation(federation)
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 0:
        raise SettingError(f"rounds must be a whole number >= 0, got {rounds!r}")
    _check_ids(federation, session.server.roster, returning)
    _check_data(federation, facts_of_repeat(record.data, session.seed))
    contract = session.contract
    roster = Roster()
    roster.enrol(federation.ids, federation.sizes("train").tolist())
    hosts = _hosts(session, federation, _group_numbers(session, federation, models))
    # as Engine.personalise does for clients that were held out
    trained = roster.eligible_ids()
    first = session.rounds
    gradients = torch.zeros(len(roster), dtype=torch.int64)
    exchanges = len(contract.exchanges)
    for version in range(exchanges * first, exchanges * (first + rounds)):
        down = session.server.message_to_new(version, roster.keys, contract.of(version))
        for host in hosts:
            mine = trained[torch.isin(trained, host.wire_ids)]
            answer = host.update(RoundRequest(version, down.only(mine), mine, mine[:0]))
            gradients.index_add_(0, answer.trained, answer.gradients)
    down = session.server.message_to_new(first, roster.keys)
    parts = [host.evaluate(first, down, host.wire_ids, SPLITS) for host in hosts]
    scores = {split: Scores.merge([part[split] for part in parts]) for split in SPLITS}
    subgroups: list[SubgroupFigure] = []
    used = hosts[0].settings.metrics
    if federation.subgroups:
        counted = SubgroupScores.merge(
            [host.evaluate_subgroups(first, down, host.wire_ids) for host in hosts]
        )
        grouped = federation.groups is not None
        subgroups = subgroup_figures(
            *(counted, federation.subgroups, used, federation.ids, grouped),
            weighted=federation.weights is not None,
        )
    for host in hosts:
        host.release()
    new = PersonalisedModels(contract, roster, first, down, tuple(hosts))
    seed = _figures(session.seed, new, scores, gradients, effective_columns(federation))
    seed.subgroups = [figure.as_dict() for figure in subgroups]
    note = {
        "rounds": rounds,
        "text": f"{plural(len(roster), 'client')} after training: "
        f"{plural(rounds, 'round')} of training towards the "
        f"server of round {first}; nothing was sent up, its message came down once",
    }
    return new, replace(
        record,
        data=facts_of(federation),
        origin={},
        seeds=[seed],
        notes={"personalised": note, **weights_note(federation)},
        heard={},
        baseline=per_client(federation, contract.task.criterion, session.metrics, record.figure),
    )


def _group_numbers(
    session: Session, federation: Federation, models: Mapping[Id, str] | None
) -> Tensor:  # -> int64[K]
    """The group of each new client; 0 where all clients have one model."""
    if session.groups is None:
        if models is not None:
            raise SettingError("models must be left out: all clients of this run have one model")
        return torch.zeros(federation.clients, dtype=torch.int64)
    groups = session.groups if models is None else session.groups.with_clients(models)
    return groups.numbers(federation.ids)


def _hosts(session: Session, federation: Federation, groups: Tensor) -> list[Host]:
    """A host for the new clients of each group that has any."""
    hosts = []
    for k, contract in enumerate(session.contracts):
        wire_ids = (groups == k).nonzero().flatten()
        if not len(wire_ids):
            continue
        settings = replace(
            session.settings_of_group[k],
            scratch=None,
            validation=bool(federation.sizes("valid").any()),
        )
        check_model(contract.task, federation, settings.batch, session.settings.batching)
        hosts.append(Host(contract, federation.of(wire_ids), wire_ids, settings))
    return hosts


def _check_ids(federation: Federation, roster: Roster, returning: bool) -> None:
    run_ids = {str(client_id) for client_id in roster.ids}
    old = [client_id for client_id in federation.ids if str(client_id) in run_ids]
    if old and not returning:
        raise SettingError(
            f"clients: {old[0]!r} took part in the run (as did {len(old) - 1} others); new clients "
            "need new ids. If it is the same client, starting from scratch: returning=True"
        )


def _check_data(federation: Federation, data: dict[str, Any]) -> None:
    """Refuse data whose classes or columns mean something else than in training."""
    if bool(federation.classes) != bool(data.get("classes")):
        kinds = ("real targets", "classes")
        raise SettingError(
            f"data: these have {kinds[bool(federation.classes)]}, and the run was trained on "
            f"{kinds[bool(data.get('classes'))]}"
        )
    labels = labels_of(data)
    theirs = tuple(facts_of(federation).get("class_names", ()))
    if theirs != labels:
        raise SettingError(
            f"data: their classes are called {theirs or 'by their numbers'}, those of the run "
            f"{labels or 'by their numbers'}; they must be the same, in the same order"
        )
    own_preparation = None if federation.preparation is None else federation.preparation.as_dict()
    prepared = data.get("preparation")
    if (
        own_preparation is not None
        and prepared is not None
        and _statistics(own_preparation) != _statistics(prepared)
    ):
        raise SettingError(
            "data: these rows were prepared (encoded, scaled) in another way; prepare them as the "
            "training data were: Federation.from_frame(..., preparation=result.preparation, "
            "class_names=result.class_names)"
        )
    if (own_preparation is None) != (prepared is None):
        raise SettingError(
            "data: the run was trained on "
            + ("a table" if prepared is not None else "arrays")
            + ", and these are "
            + ("not from one" if own_preparation is None else "from a table")
            + "; prepare them alike: Federation.from_frame(..., preparation=result.preparation, "
            "class_names=result.class_names)"
        )


def _statistics(preparation: dict[str, Any]) -> Any:
    """What a preparation does to a row, whoever the clients are."""
    own = preparation["scale"] == "client"  # every client has its own statistics
    left_out = {"fill", "centre", "spread"} if own else set()
    columns = [{k: v for k, v in c.items() if k not in left_out} for c in preparation["columns"]]
    return columns, preparation["scale"], preparation["missing"]


def _figures(
    seed: int,
    new: PersonalisedModels,
    scores: dict[str, Scores],
    gradients: Tensor,
    more: dict[str, list[float]],
) -> SeedRecord:
    """The record of the new clients, with `more` columns of each."""
    ids = new.roster.ids
    total_gradients = gradients + scores["test"].gradients
    traffic = {
        "bytes_up": 0,
        "bytes_down": len(new.down),
        "values_up": 0,
        "values_down": new.contract.down.values + new.contract.addressed.values,
    }
    counts: dict[str, list[Any]] = {name: [n] * len(ids) for name, n in traffic.items()}
    counts["gradients"] = gradients.tolist()
    counts |= more
    no_client = [False] * len(ids)
    rows = client_rows(ids, scores, counts, held_out=no_client, malicious=no_client)
    return SeedRecord(
        seed,
        rounds=new.rounds,
        stopped="personalised",
        final={split: summarise(split_scores) for split, split_scores in scores.items()},
        clients=rows,
        sent={name: len(ids) * number for name, number in traffic.items()},
        gradients_per_client=float(total_gradients.double().mean()),
    )
