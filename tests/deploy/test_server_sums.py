"""Sums that sites tell before the first round are booked as those of one process are."""

import pandas as pd
import pytest

import idiolect as il
from engine.stand_in import Wires
from idiolect.data.prepare.federated import bytes_of_sums, combine, first_sums, means, second_sums
from idiolect.deploy.config import Deployment, Terms
from idiolect.deploy.server import serve
from idiolect.deploy.site.agreement import Builder
from idiolect.deploy.site.data import SiteData
from idiolect.deploy.site.rules import Rules
from idiolect.deploy.site.site import Site
from idiolect.deploy.site.state import StateFolder
from idiolect.run.plan import Plan

SETTINGS = {"rounds": 2, "batch": 8, "threads": 1}
FEATURES = ["age", "pressure", "ward"]


def tables() -> dict[str, pd.DataFrame]:
    made = {}
    for k, name in enumerate(("east", "north", "south")):
        rows = range(60)
        made[name] = pd.DataFrame(
            {
                "age": [40.0 + k + r % 7 for r in rows],
                "pressure": [None if r % 11 == 0 else 100.0 + (r * (k + 3)) % 13 for r in rows],
                "ward": [("icu", "er", "surgery")[r % (k + 1)] for r in rows],
                "outcome": ["y" if (r * 7 + k) % 3 else "n" for r in rows],
            }
        )
    return made


def sites(tmp_path, **options) -> dict[int, Site]:
    found = {}
    for k, (name, table) in enumerate(tables().items()):
        path = tmp_path / f"{name}.csv"
        table.assign(half=[r % 2 for r in range(len(table))]).to_csv(path, index=False)
        folder = StateFolder(tmp_path / name)
        folder.open()
        owned = SiteData(name, "table", {"path": str(path), **options})
        found[100 + k] = Site(owned, folder, Rules(), Builder(), lambda text: None)
    return found


def deployment(scale: str = "federated", features=FEATURES) -> Deployment:
    form = {"kind": "table", "target": "outcome", "classes": ["n", "y"], "scale": scale}
    form["kinds"] = ["text" if name == "ward" else "number" for name in features]
    terms = Terms(sites=3, wait=5.0, deadline=20.0)
    return Deployment(
        Plan("fedavg", {}, "", settings=SETTINGS), {**form, "features": features}, terms
    )


def test_a_deployed_run_books_the_bytes_that_one_process_books(tmp_path):
    there = serve(Wires(sites(tmp_path)), deployment(), tmp_path / "run", tell=lambda text: None)
    frame = pd.concat([table.assign(site=name) for name, table in tables().items()])
    federation = il.Federation.from_frame(frame, client="site", target="outcome", missing="mean")
    here = il.run("fedavg", il.models.make("linear", federation.shape, 2), federation, **SETTINGS)
    assert federation.preparation.bytes_down > 0
    for name in ("bytes", "values"):
        assert there.summary()[name] == here.summary()[name]
    each = [row["bytes_up"] for row in there.clients_table()]
    assert each == [row["bytes_up"] for row in here.clients_table()] and len(set(each)) == 3
    assert il.load(tmp_path / "run").summary()["bytes"] == here.summary()["bytes"]


def test_a_site_tells_its_sums_once_for_all_its_clients(tmp_path):
    numbers = FEATURES[:2]
    found = serve(
        Wires(sites(tmp_path, client="half")),
        deployment(features=numbers),
        tmp_path / "run",
        tell=lambda text: None,
    )
    sent = [row["bytes_up"] for row in found.clients_table()]
    assert len(sent) == 6
    assert [a - b for a, b in zip(sent[::2], sent[1::2], strict=True)] == [2 * 3 * 8] * 3


def test_nothing_is_booked_where_nothing_is_told(tmp_path):
    pieces = sites(tmp_path)
    found = serve(
        Wires(pieces), deployment("client", FEATURES[:1]), tmp_path / "run", tell=lambda text: None
    )
    up = found.summary()["bytes"]["up"]
    assert up == sum(row["bytes_up"] for row in found.clients_table())
    assert up % (3 * SETTINGS["rounds"]) == 0


@pytest.mark.parametrize("features", [FEATURES, FEATURES[:2], FEATURES[2:]])
def test_bytes_of_sums_are_those_of_a_federation(features):
    first = [first_sums(table, features) for table in tables().values()]
    told = means(first)
    second = [second_sums(table, told) for table in tables().values()]
    up, down = bytes_of_sums(first, combine(features, first, second, "mean"))
    frame = pd.concat([table.assign(site=name) for name, table in tables().items()])
    made = il.Federation.from_frame(
        frame, client="site", target="outcome", features=features, missing="mean", valid=0, test=0
    ).preparation
    assert (tuple(up), down) == (made.bytes_up, made.bytes_down)
