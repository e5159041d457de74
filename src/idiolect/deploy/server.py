"""The server's side of a deployed run: sites are gathered, and trained as in any other run.

Directory, ledger, metrics, checkpoints and record are those of every engine. Beside them lies
sites.json: who takes part under which wire ids. It is written before a site's first round, so that
a server that was killed finds everyone again.
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

from ..core.documents import expect
from ..core.files import check_object, read_json, write_json
from ..core.knobs import SettingError
from ..data.federation import Census
from ..data.prepare.federated import bytes_of_sums, combine, means
from ..engine.retry import PATIENCE
from ..host.metrics import form_of
from ..host.remote_host import HostLike
from ..host.settings import HostSettings
from ..method import Method
from ..report.progress import RoundReport
from ..run import checkpoint
from ..run.callbacks import Callbacks
from ..run.directory import RunDirectory, checkpoint_folder
from ..run.identity import identity_of, read_identity, run_number
from ..run.loop import Runner
from ..run.result import Result
from ..run.run import torch_threads
from ..run.session import Session, Share
from ..run.settings import Settings
from ..run.validate import check
from ..server.server import Server
from ..task.task import Task
from .config import Deployment, Terms, agreed_form
from .registry import Assembly, Network, Site, census_of
from .rounds import LOOK, Sites

SITES = "sites.json"
AGREEMENT = "agreement.json"  # the form of the data, as it was agreed
SUMS = "sums.json"  # bytes of the sums that the sites have told for it
MISSING = "mean"  # what stands for a number that is missing, where all sites read alike
NAME = "sites"  # of the data, in tables

Sums = dict[str, list[int]]  # site -> bytes up, bytes down


def serve(
    network: Network,
    deployment: Deployment,
    directory: Path,
    *,
    resume: bool = False,
    tell: Callable[[str], None] = print,
    progress: RoundReport | None = None,
) -> Result:
    """Gather the sites, and train with them; every round is saved.

    With `resume` a run goes on that was stopped: with the same sites, and any that have come since.
    """
    settings = deployment.run_plan.make_settings()
    with RunDirectory(directory, fresh=not resume) as folder:
        folder.clear()
        id = read_identity(directory)["id"] if resume else secrets.token_hex(16)
        run = run_number({"id": id}, settings.seed)
        assembly = Assembly(network, _agreement(deployment, run, settings), tell)
        assembly.same_node = not deployment.terms.insecure
        if resume:
            sites = _remembered(directory, settings.seed)
            assembly.agreement["data"] = check_object(read_json(directory / AGREEMENT))
            sums = _remembered_sums(directory)
        else:
            sites, sums = gather(assembly, deployment)
        server = Deployed(deployment, settings, assembly, sites, directory)
        server.sums = sums
        server.progress = progress
        return server.run(folder, id, resume)


def _agreement(deployment: Deployment, run: int, settings: Settings) -> dict[str, Any]:
    """What the sites are told that the federation is about."""
    data = agreed_form(deployment.data)
    plan = deployment.run_plan.as_dict()
    facts = {"plan": plan, "run": run, "seed": settings.seed, "data": data}
    return {**facts, "idiolect": version("idiolect")}


def gather(assembly: Assembly, deployment: Deployment) -> tuple[list[Site], Sums]:
    """As many sites as are wanted, with wire ids, by their names; SettingError if too few come."""
    terms = deployment.terms
    assembly.tell(f"waiting for {terms.sites} sites")
    sums: Sums = {}
    if deployment.data.get("scale") == "federated":
        sums = _prepare(assembly, deployment)
    _until(assembly, lambda: assembly.agreed, terms)
    sites = [assembly.agreed.pop(name) for name in sorted(assembly.agreed)]
    first = 0
    for site in sites:
        site.wire_ids = torch.arange(first, first + len(site.ids))
        first += len(site.ids)
    return sites, sums


def _until(assembly: Assembly, found: Callable[[], Collection[str]], terms: Terms) -> None:
    """Look until so many sites are found as are wanted."""
    end = time.monotonic() + terms.wait
    while len(found()) < terms.sites:
        if time.monotonic() > end:
            names = ", ".join(sorted(found())) or "none"
            raise SettingError(
                f"sites: {len(found())} of {terms.sites} have agreed within {terms.wait:g} seconds "
                f"({names}); what the others said is above"
            )
        assembly.look(LOOK)
        time.sleep(0.0 if assembly.talking else LOOK)


def _prepare(assembly: Assembly, deployment: Deployment) -> Sums:
    """Agree on how all sites read their tables: by the means of all, from sums in two passes.

    What it takes each of them, in bytes.
    """
    data, terms = deployment.data, deployment.terms
    features = data["features"]
    form = {"target": data["target"], "features": features}
    asked: dict[str, Any] = {"pass": 1, "data": form, "missing": MISSING}
    first: dict[str, Any] = {}

    def check(name: str, columns: dict[str, Any]) -> None:
        """Refuse what a site alone could not have told; one that comes in between has to wait."""
        if set(columns) != (set(features) if not first else set(told)):
            raise ValueError("sums: of other columns than were asked for")
        if not first:
            means([columns])
        elif name in first:
            combine(features, [first[name]], [columns], MISSING)
        else:
            raise ValueError("sums: it comes between two passes, and is asked again")

    assembly.check_sums = check
    assembly.sums = asked
    _until(assembly, lambda: assembly.told, terms)
    told = means([columns for _, columns in assembly.told.values()])
    first = {name: columns for name, (_, columns) in assembly.told.items()}
    assembly.ask_sums({**asked, "pass": 2, "means": told})
    _until(assembly, lambda: assembly.told, replace(terms, sites=len(first)))
    second = [assembly.told[name][1] for name in first]
    made = combine(features, list(first.values()), second, MISSING)
    assembly.sums = None
    assembly.agreement["data"]["preparation"] = made.as_dict()
    greeted, assembly.told = assembly.told, {}
    for name, (node, _) in greeted.items():
        assembly.propose(node, name)
    up, down = bytes_of_sums(list(first.values()), made)
    return {name: [sent, down] for name, sent in zip(first, up, strict=True)}


def _remembered_sums(directory: Path) -> Sums:
    path = directory / SUMS
    if not path.exists():
        return {}
    try:
        found = read_json(path)
        expect(found, dict[str, list[int]])
        return {name: [int(up), int(down)] for name, (up, down) in found.items()}
    except (OSError, ValueError) as error:
        raise SettingError(f"resume: cannot use {path}: {error}") from None


def _remembered(directory: Path, seed: int) -> list[Site]:
    """The sites of a run that goes on: those that its newest checkpoint knows."""
    path = directory / SITES
    try:
        saved = read_json(path)
        if not isinstance(saved, list) or not saved:
            raise ValueError("a list of sites is expected")
        sites = [Site.from_dict(one) for one in saved]
    except (OSError, ValueError) as error:
        raise SettingError(f"resume: cannot use {path}: {error}") from None
    done = checkpoint.rounds_done(checkpoint_folder(directory, seed))
    return [site for site in sites if not site.joined or site.joined < done]


class Deployed:
    """A run with these sites."""

    def __init__(
        self,
        deployment: Deployment,
        settings: Settings,
        assembly: Assembly,
        sites: list[Site],
        directory: Path,
    ):
        self.deployment = deployment
        # every round is saved: a site can go back by one
        self.settings = replace(settings, checkpoint_every=1)
        self.assembly = assembly
        self.sites = sites
        self.directory = directory
        self.progress: RoundReport | None = None
        self.sums: Sums = {}
        self.method = deployment.plan.make_method()
        self.census: Census = census_of(sites, NAME)
        self.task: Task = deployment.plan.make_task(self.census)
        check(self.method, self.task, self.census, self.settings)
        self.host_settings = HostSettings()

    def run(self, folder: RunDirectory, id: str, resume: bool) -> Result:
        origin = self.deployment.run_plan.as_dict()
        # a run is what it was at its start, whoever has joined since
        founders = census_of([site for site in self.sites if not site.joined], NAME)
        identity = identity_of(self.method, self.task, founders, self.settings, origin)
        identity |= {"id": id}
        parts = (self.method, self.task, self.census, self.settings)
        runner = _Runner(*parts, identity, {}, Callbacks(), placement=self)
        runner.deployed = self
        runner.progress = self.progress
        threads = self.settings.threads
        if resume:
            identity = runner.continued(folder, None)
            threads = threads or runner.starts[-1]["threads"]
            self.assembly.known = {site.name: site for site in self.sites}
            for site in self.sites:
                site.here = False
        with torch_threads(threads):
            runner.begin(folder, identity)
            write_json(self.directory / AGREEMENT, self.assembly.agreement["data"])
            write_json(self.directory / SUMS, self.sums)
            self.remember()
            return runner.run(folder, resume)

    # -- hosts elsewhere, as a session wants them --------------------------------------------------
    def hosts(self, shares: Sequence[Share]) -> list[HostLike]:
        """Stand-ins of the sites, filled by the engine: sites may join."""
        self.host_settings = shares[0].settings
        return []

    def engine(self, server: Server, hosts: Sequence[HostLike], method: Method) -> Sites:
        """What carries messages to the sites."""
        terms = self.deployment.terms
        self.assembly.network.nodes.clear()
        self.assembly.terms = {
            "checksum": server.contract.checksum,
            "validation": self.host_settings.validation,
        }
        engine = Sites(
            server,
            self.assembly,
            self.host_settings,
            form_of(self.census, self.task.criterion),
            deadline=terms.deadline,
            patience=min(PATIENCE, terms.deadline),
            least=terms.least,
            wait=terms.wait,
            sample_of=self.sampled,
        )
        for site in self.sites:
            engine.add(site)
        return engine

    def leave(self, hosts: Sequence[HostLike]) -> None:
        """No-op: sites keep their own state."""

    def close(self) -> None:
        """Sites are their owners'."""

    def sampled(self, eligible: int) -> int:
        """Clients heard per round, of so many."""
        asked = min(self.settings.sample, eligible)
        return replace(self.settings, sample=asked).sampled(eligible, self.method.traits.hears_all)

    def remember(self) -> None:
        """Who takes part, on disk."""
        write_json(self.directory / SITES, [site.as_dict() for site in self.sites])


class _Runner(Runner):
    """A runner whose sessions may grow."""

    deployed: Deployed

    def session(self, seed: int, folder: RunDirectory | None, here: bool = False) -> Session:
        made = super().session(seed, folder, here)
        for site in self.deployed.sites:
            if site.name in self.deployed.sums:  # once for all clients of the site
                up, down = self.deployed.sums[site.name]
                made.server.prepared(site.wire_ids[:1], torch.tensor([up]), down)
        engine = made.engine
        assert isinstance(engine, Sites)

        def joined(site: Site) -> None:
            self.deployed.sites.append(site)
            self.deployed.remember()
            made.join(site.wire_ids)

        engine.joined = joined
        return made
