"""The server's side of a deployed run: sites are gathered, and trained as in any other run.

Directory, ledger, metrics, checkpoints and record are those of every engine. Beside them lies
sites.json: who takes part under which wire ids. It is written before a site's first round, so that
a server that was killed finds everyone again. Who was put out is in put-out/ (exclusions.py).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..core.files import read_document, write_document
from ..core.knobs import SettingError
from ..core.text import plural
from ..data.federation import Census
from ..data.prepare.federated import bytes_of_sums, check_first, check_second, combine, means
from ..engine.carriers import SiteCarrier
from ..host.host import HostSettings
from ..host.metrics import form_of, in_use, positive_class
from ..host.remote_host import HostLike
from ..method import Method
from ..report.progress import RoundReport
from ..run import checkpoint
from ..run.callbacks import Callbacks
from ..run.directory import RunDirectory, checkpoint_folder
from ..run.identity import RunIdentity, run_number
from ..run.loop import Runner
from ..run.prepare import prepare
from ..run.result import Result
from ..run.run import torch_threads
from ..run.session import Session, Share
from ..run.settings import Settings
from ..server.private_mean import PrivacyAccount
from ..server.server import Server
from ..task.task import Task
from ..wire.ledger import Ledger
from .config import MISSING, Deployment, FederationTerms, Terms, agreed_form, kinds_of_columns
from .exclusions import Exclusions
from .registry import RegisteredSite, SiteRegistry, census_of
from .rounds import SiteRounds
from .site.agreement import check_one_exchange, read_form
from .watch import ENDED, STOPPED, TRAINING, WAITING, ServerStatus, SiteStatus, StatusFile

SITES = "sites.json"
AGREEMENT = "agreement.json"  # the form of the data, as it was agreed
SUMS = "sums.json"  # bytes of the column sums that the sites sent for it
NAME = "sites"  # of the data, in tables

Sums = dict[str, list[int]]  # site -> bytes up, bytes down


def serve(
    network: SiteCarrier,
    deployment: Deployment,
    directory: Path,
    *,
    resume: bool = False,
    tell: Callable[[str], None] = print,
    progress: RoundReport | None = None,
    status: Path | None = None,
) -> Result:
    """Gather the sites, and train with them; every round is saved.

    With `resume` a stopped run is resumed: with the same sites, and any that have come since. How
    far it is, and with whom, is in the file `status`, for whoever watches.
    """
    settings = deployment.run_plan.make_settings()
    _check_positive(deployment, settings)
    check_one_exchange(deployment.plan.make_method())
    with RunDirectory(directory, fresh=not resume) as folder:
        folder.clear()
        run_id = RunIdentity.read(directory).id if resume else secrets.token_hex(16)
        run = run_number(run_id, settings.seed)
        terms = FederationTerms.of(deployment.terms.name, deployment.run_plan, deployment.data)
        agreement = _agreement(deployment, run, settings)
        registry = SiteRegistry(network, terms, agreement, tell, Exclusions(directory))
        registry.load_exclusions()
        registry.same_node = not deployment.terms.insecure
        watched = _watched(status, deployment, directory, settings, registry)
        registry.most_clients = deployment.terms.most_clients
        registry.most_samples = deployment.terms.most_samples
        if resume:
            sites = _remembered(directory, settings.seed)
            registry.agreement["data"] = read_document(directory / AGREEMENT, dict[str, Any])
            path = directory / SUMS
            sums = read_document(path, dict[str, list[int]]) if path.exists() else {}
        with watched:
            if not resume:
                sites, sums = gather(registry, deployment)
            server = DeployedRun(deployment, settings, registry, sites, directory)
            server.sums = sums
            server.progress = progress
            server.watched = watched
            return server.run(folder, run_id, resume)


def _watched(
    path: Path | None,
    deployment: Deployment,
    directory: Path,
    settings: Settings,
    registry: SiteRegistry,
) -> WatchedRun:
    """A run whose status is written while it lasts."""
    terms = deployment.terms
    method, now = deployment.plan.method, time.time()
    rounds = settings.rounds
    status = ServerStatus(
        WAITING, str(directory), method, 0, rounds, now, 0.0, now, terms.wait, terms.deadline
    )
    watched = WatchedRun(StatusFile(path, status), registry)
    registry.looked = watched.looked
    return watched


class WatchedRun:
    """A run while it lasts, for whoever watches it."""

    def __init__(self, file: StatusFile, registry: SiteRegistry):
        self.file = file
        self.registry = registry
        self.ledger: Ledger | None = None
        self.privacy: PrivacyAccount | None = None

    def __enter__(self) -> WatchedRun:
        self.file.write(self.sites)
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.file.status.state = ENDED if kind is None else STOPPED
        self.file.write(self.sites)

    def looked(self) -> None:
        """The registry has looked who is there."""
        self.file.write(self.sites, force=False)

    def trained(self, server: Server) -> None:
        """A round is done, or a run that was stopped is about to go on."""
        status = self.file.status
        if server.version > status.rounds_done and status.state == TRAINING:
            status.last_round = time.time()
        status.state, status.rounds_done = TRAINING, server.version
        self.ledger, self.privacy = server.ledger, server.privacy
        status.privacy = None if server.privacy is None else server.privacy.figures()
        self.file.write(self.sites)

    def sites(self) -> list[SiteStatus]:
        """Everyone that has come, by name."""
        registry = self.registry
        members = {site.node: site for site in registry.agreed.values()}
        members |= {site.node: site for site in registry.enrolled.values()}
        rows = []
        for node in {*registry.records, *members}:
            record = registry.record(node, members[node].name if node in members else "")
            site = members.get(node)
            traffic = {"bytes_up": 0, "bytes_down": 0}
            if site is not None and self.ledger is not None and site.wire_ids:
                counts = self.ledger.counts
                traffic = {n: int(counts[n][site.wire_ids].sum()) for n in traffic}
            rows.append(
                SiteStatus(
                    record.name,
                    site is not None and site.here,
                    len(site.clients) if site is not None else 0,
                    record.seen,
                    record.rounds,
                    record.rejected,
                    record.missing,
                    **traffic,
                    put_out=record.put_out,
                    reason=record.reason,
                    put_out_at=record.put_out_at if record.put_out else 0.0,
                    epsilon=self._spent_by(site),
                )
            )
        return sorted(rows, key=lambda row: row.site)

    def _spent_by(self, site: RegisteredSite | None) -> float | None:
        """ε of the client of a site that has spent most; None where it is not accounted."""
        if self.privacy is None or site is None or not site.wire_ids:
            return None
        return float(self.privacy.epsilons()[site.wire_ids].max())


def _check_positive(deployment: Deployment, settings: Settings) -> None:
    """Refuse metrics of one of two classes where labels and settings do not tell which it is."""
    labels = _labels(deployment)
    positive = positive_class(labels, settings.positive)
    in_use(settings.metrics, settings.metric, len(labels), "", positive)


def _labels(deployment: Deployment) -> tuple[Any, ...]:
    """The labels of the classes, as sites agree to them."""
    return read_form(agreed_form(deployment.data)).labels


def _agreement(deployment: Deployment, run: int, settings: Settings) -> dict[str, Any]:
    """The terms that are proposed to the sites."""
    data = agreed_form(deployment.data)
    plan = deployment.run_plan.as_dict()
    facts = {"plan": plan, "run": run, "seed": settings.seed, "data": data}
    return {**facts, "idiolect": version("idiolect")}


def gather(registry: SiteRegistry, deployment: Deployment) -> tuple[list[RegisteredSite], Sums]:
    """As many sites as are wanted, with wire ids, by their names; SettingError if too few come."""
    terms = deployment.terms
    registry.tell(f"waiting for {plural(terms.sites, 'site')}")
    sums: Sums = {}
    if deployment.data.get("scale") == "federated":
        sums = _prepare(registry, deployment)
    _until(registry, lambda: registry.agreed, terms)
    sites = [registry.agreed.pop(name) for name in sorted(registry.agreed)]
    first = 0
    for site in sites:
        site.wire_ids = list(range(first, first + len(site.clients)))
        first += len(site.clients)
    return sites, sums


def _until(registry: SiteRegistry, present: Callable[[], Collection[str]], terms: Terms) -> None:
    """Wait until as many sites are present as the terms require."""
    if not registry.wait_until(lambda: len(present()) >= terms.sites, terms.wait):
        names = ", ".join(sorted(present())) or "none"
        raise SettingError(
            f"sites: {len(present())} of {terms.sites} have agreed within {terms.wait:g} "
            f"seconds ({names}); why others have not is above"
        )


def _prepare(registry: SiteRegistry, deployment: Deployment) -> Sums:
    """Agree on how all sites read their tables: by the means of all, from sums in two passes.

    What it takes each of them, in bytes.
    """
    data, terms = deployment.data, deployment.terms
    features = data["features"]
    kinds = kinds_of_columns(data)
    form = {"target": data["target"], "features": features}
    request: dict[str, Any] = {"pass": 1, "data": form, "missing": MISSING}
    first: dict[str, Any] = {}

    def check(name: str, columns: dict[str, Any]) -> None:
        """Refuse sums that no site with such columns can have."""
        if not first:
            check_first(columns, kinds)
        elif name in first:
            check_second(columns, first[name], all_means)
        else:
            raise ValueError("sums: it joined between two passes, and is asked again")

    registry.check_sums = check
    registry.sums = request
    _until(registry, lambda: registry.column_sums, terms)
    all_means = means([columns for _, columns in registry.column_sums.values()])
    first = {name: columns for name, (_, columns) in registry.column_sums.items()}
    nodes = {name: node for name, (node, _) in registry.column_sums.items()}
    registry.ask_sums({**request, "pass": 2, "means": all_means})
    # sites that do not answer in time, or not as they must, have no part in it

    def settled() -> bool:
        absent = set(first) - set(registry.column_sums)
        return all(registry.record(nodes[name], name).reason for name in absent)

    registry.wait_until(settled, terms.deadline)
    _until(registry, lambda: registry.column_sums, terms)
    centres = None
    for name in set(first) - set(registry.column_sums):
        registry.tell(f"{name} has no part in the means: its second sums did not come")
        del first[name]
        centres = all_means
    second = [registry.column_sums[name][1] for name in first]
    preparation = combine(features, list(first.values()), second, MISSING, centres)
    registry.sums = None
    registry.agreement["data"]["preparation"] = preparation.as_dict()
    greeted, registry.column_sums = registry.column_sums, {}
    for name, (node, _) in greeted.items():
        registry.ask_agreement(node, name)
    up, down = bytes_of_sums(list(first.values()), preparation)
    return {name: [bytes_up, down] for name, bytes_up in zip(first, up, strict=True)}


def _remembered(directory: Path, seed: int) -> list[RegisteredSite]:
    """The sites of a resumed run: those in its newest checkpoint."""
    rows = read_document(directory / SITES, dict[str, list[dict[str, Any]]]).get("sites", ())
    try:
        sites = [RegisteredSite.from_dict(row) for row in rows]
        if not sites:
            raise ValueError("it names no site")
    except ValueError as error:
        raise SettingError(f"resume: cannot use {directory / SITES}: {error}") from None
    rounds = checkpoint.rounds_done(checkpoint_folder(directory, seed))
    return [site for site in sites if not site.joined or site.joined < rounds]


class DeployedRun:
    """A run with these sites."""

    def __init__(
        self,
        deployment: Deployment,
        settings: Settings,
        registry: SiteRegistry,
        sites: list[RegisteredSite],
        directory: Path,
    ):
        self.deployment = deployment
        # every round is saved: a site can go back by one
        self.settings = replace(settings, checkpoint_every=1)
        self.registry = registry
        self.sites = sites
        self.directory = directory
        self.progress: RoundReport | None = None
        self.watched: WatchedRun | None = None
        self.sums: Sums = {}
        self.method = deployment.plan.make_method()
        self.census: Census = replace(census_of(sites, NAME), class_names=_labels(deployment))
        self.task: Task = deployment.plan.make_task(self.census)
        self.parts = prepare(self.method, self.task, self.census, self.settings)
        self.host_settings = HostSettings()

    def run(self, folder: RunDirectory, run_id: str, resume: bool) -> Result:
        origin = self.deployment.run_plan.as_dict()
        # hash the founding sites only
        founders = census_of([site for site in self.sites if not site.joined], NAME)
        identity = RunIdentity.of(self.method, self.task, founders, self.settings, origin)
        identity = replace(identity, id=run_id)
        runner = DeployedRunner(
            {self.settings.seed: self.parts}, identity, {}, Callbacks(), placement=self
        )
        runner.deployed = self
        runner.progress = self.progress
        threads = self.settings.threads
        if resume:
            identity = runner.continued(folder, None)
            threads = threads or runner.starts[-1]["threads"]
            self.registry.enrolled = {site.name: site for site in self.sites}
            for site in self.sites:
                site.here = False
        with torch_threads(threads):
            runner.begin(folder, identity)
            write_document(self.directory / AGREEMENT, self.registry.agreement["data"])
            write_document(self.directory / SUMS, self.sums)
            self.remember()
            return runner.run(folder, resume)

    # -- hosts elsewhere, as a session wants them --------------------------------------------------
    def hosts(self, shares: Sequence[Share]) -> list[HostLike]:
        """Stand-ins of the sites, filled by the engine: sites may join."""
        self.host_settings = shares[0].settings
        return []

    def engine(self, server: Server, hosts: Sequence[HostLike], method: Method) -> SiteRounds:
        """What carries messages to the sites."""
        self.registry.network.nodes.clear()
        self.registry.terms = {
            "checksum": server.contract.checksum,
            "validation": self.host_settings.validation,
        }
        form = form_of(self.census, self.task.criterion)
        engine = SiteRounds(
            server,
            self.registry,
            self.host_settings,
            form,
            self.deployment.terms,
            self.sampled,
        )
        for site in self.sites:
            engine.add(site)
        if self.watched is not None:
            engine.trained = self.watched.trained
        return engine

    def leave(self, hosts: Sequence[HostLike]) -> None:
        """No-op: sites keep their own state."""

    def close(self) -> None:
        """No-op: sites keep running."""

    def sampled(self, eligible: int) -> int:
        """Clients sampled per round among the eligible."""
        sample = min(self.settings.sample, eligible)
        return replace(self.settings, sample=sample).sampled(eligible, self.method.traits.hears_all)

    def remember(self) -> None:
        """Who takes part, on disk."""
        rows = [site.as_dict() for site in self.sites]
        write_document(self.directory / SITES, {"sites": rows})


class DeployedRunner(Runner):
    """A runner whose sessions may grow."""

    deployed: DeployedRun

    def session(self, seed: int, folder: RunDirectory | None, here: bool = False) -> Session:
        session = super().session(seed, folder, here)
        for site in self.deployed.sites:
            if site.name in self.deployed.sums:  # once for all clients of the site
                up, down = self.deployed.sums[site.name]
                session.server.prepared(torch.tensor(site.wire_ids[:1]), torch.tensor([up]), down)
        engine = session.engine
        assert isinstance(engine, SiteRounds)

        def joined(site: RegisteredSite) -> None:
            self.deployed.sites.append(site)
            self.deployed.remember()
            session.join(torch.tensor(site.wire_ids))

        engine.joined = joined
        return session
