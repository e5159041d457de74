"""Sites in this process, and a server that asks them: what tests of a site's parts share."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from deploy.consents import consent_to
from deploy.sites import RUN, Told, agreement, array_form, plan_of, session_of
from engine.loopback import remote_rounds
from idiolect.deploy.site.agreement import Builder
from idiolect.deploy.site.data import SiteData
from idiolect.deploy.site.rules import Rules
from idiolect.deploy.site.site import Site
from idiolect.deploy.site.state import StateFolder
from idiolect.engine.carriers import Carrier
from idiolect.engine.rounds import Rounds
from idiolect.host.calls import Call
from idiolect.run.session import Session

OPTIONS = {"clients": 4, "samples": 60}
OWN = {"min_samples": 1, "client_names": "own"}


@dataclass
class At:
    """A site in a folder, as one process after another would have it."""

    path: Path
    owned: SiteData
    rules: Rules
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site = self.started()

    def started(self) -> Site:
        """A new process."""
        folder = StateFolder(self.path)
        folder.open()
        folder.write_site(self.owned, self.rules.as_dict())
        site = Site(self.owned, folder, self.rules, Builder(), self.told.append)
        site.resume()
        return site

    def restarted(self, **rules) -> Site:
        """The process ends, and another one starts, perhaps with other rules."""
        self.site.close()
        self.site.folder.close()
        if rules:
            self.rules = Rules(**{**self.rules.as_dict(), **rules})
        self.site = self.started()
        return self.site

    def ask(self, call: Call) -> Call:
        return Call.open(self.site.handle(call.pack()))

    def refusal(self, call: Call) -> str:
        """Why a call is refused."""
        reply = self.ask(call)
        assert reply.kind == "refused", reply
        return reply.facts["reason"]

    def log(self) -> list[dict[str, str]]:
        with open(self.path / "messages.csv", newline="") as file:
            return list(csv.DictReader(file))


def synthetic(path: Path, **rules) -> At:
    """Four clients of a data set by name."""
    owned = SiteData("north", "synthetic", dict(OPTIONS))
    return At(path, owned, Rules(**{**OWN, **rules}))


def table(rows: int = 80, seed: int = 0) -> pd.DataFrame:
    """Patients of three wards."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "ward": rng.choice(["er", "icu", "surgery"], rows),
            "age": rng.normal(60, 12, rows).round(1),
            "bp": rng.normal(130, 15, rows).round(1),
            "sex": rng.choice(["f", "m"], rows),
        }
    )
    frame["ill"] = np.where(frame["age"] + rng.normal(0, 5, rows) > 60, "yes", "no")
    return frame


def with_table(path: Path, frame: pd.DataFrame, rules: dict | None = None, **options) -> At:
    file = path.parent / f"{path.name}.csv"
    frame.to_csv(file, index=False)
    owned = SiteData("north", "table", {"path": str(file), **options})
    return At(path, owned, Rules(**(rules or {})))


def form(features=("age", "bp"), classes=("no", "yes"), preparation=None, target="ill") -> dict:
    return {
        "kind": "table",
        "target": target,
        "features": list(features),
        "classes": list(classes),
        "preparation": preparation,
    }


class Direct(Carrier):
    """Frames to sites of this process."""

    def __init__(self, sites: list[At]):
        self.sites = sites
        self.replies: list[tuple[int, bytes]] = []

    def send(self, host, frame):
        self.replies.append((len(self.replies), self.sites[host].site.handle(frame)))
        return len(self.replies) - 1

    def receive(self, seconds):
        return [self.replies[-1]]


def server_for(at: At, plan=None, run: int = RUN) -> tuple[Session, Rounds]:
    """A server that the clients of one site are enrolled at, and its engine."""
    plan = plan or plan_of("ditto")
    data = at.owned.loaded
    session = session_of(plan, data, run)
    consent_to(at.path, plan, array_form(data))
    census = at.ask(agreement(plan, array_form(data), run))
    assert census.kind == "census", census.facts
    ids = [session.server.roster.wire_id(c["id"]) for c in census.facts["clients"]]
    facts = {"wire_ids": ids, "checksum": session.contract.checksum, "validation": True}
    reply = at.ask(Call("enrol", facts))
    assert reply.kind == "status", reply.facts
    told = Told(torch.tensor(ids), SimpleNamespace(metrics=session.metrics))
    return session, remote_rounds(session.server, [told], Direct([at]))
