"""`idiolect data`: what there is, get one, see who has what."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...core.columns import fitted_table, words
from ...core.knobs import SettingError, describe, nearest
from ...core.text import listed, shown
from ...data import DATASETS, get, load, picture, table
from ...data.download import OWN, SOURCES
from ...data.federation import Federation
from ...report.console import OUT, literal, say
from ..options import Parser


def data(argv: list[str]) -> None:
    """Data sets: list, get or show."""
    parser = Parser("data", "Data sets: what there is, get one, see who has what.")
    parser.add_argument("action", nargs="?", default="list", help="list, get NAME or show NAME")
    parser.add_argument("name", nargs="?", help="the data set")
    parser.add_json()
    parser.add_argument(
        "--picture", help="show: also draw who has what into this file (.png, .svg, .pdf)"
    )
    words = [argv[i] for i in parser.words(argv, DATASETS.known().values())]
    if len(words) > 1 and words[0] == "show":
        parser.add_fields("data", DATASETS.find(words[1]), f"data {words[1]}")
    parsed = parser.parse(argv)
    actions = {"list": _list, "get": _get, "show": _show}
    if parsed.action not in actions:
        raise nearest(parsed.action, actions, "data command")
    actions[parsed.action](parsed, parser.values(parsed, "data"))


def _named(name: str | None) -> str:
    if name is None:
        raise SettingError(f"data: name a data set: {', '.join(DATASETS)}")
    return name


def _get(parsed: Any, options: dict[str, Any]) -> None:
    name = _named(parsed.name)
    if name in OWN:
        own = OWN[name]
        raise SettingError(
            f"data: {name!r} cannot be fetched; use it with: idiolect run METHOD --data {name} "
            f"--path FOLDER, a folder that holds {own.expects}. Terms: {own.terms}. "
            f"Cite: {own.citation}"
        )
    if name not in SOURCES and name in DATASETS:
        raise SettingError(
            f"data: {name!r} needs no download; use it with: idiolect run METHOD --data {name}"
        )
    folder = str(get(name))
    source = SOURCES[name]
    if parsed.json:
        about = {"terms": source.terms, "citation": source.citation}
        print(json.dumps({"name": name, "folder": folder, **about}))
        return
    print(shown(f"{name} lies in {folder}"))
    print(f"terms: {source.terms}")
    if source.citation:
        print(f"cite: {source.citation}")


def _show(parsed: Any, options: dict[str, Any]) -> None:
    federation = load(_named(parsed.name), **options)
    if parsed.json:
        counts = federation.class_counts("train").tolist() if federation.classes else None
        facts = {
            "name": federation.name,
            "clients": list(federation.ids),
            "sizes": {s: federation.sizes(s).tolist() for s in federation.offsets},
            "class_counts": counts,
            "class_names": list(federation.class_names),
            **_table_facts(federation),
        }
        print(json.dumps(facts))
    else:
        OUT.print(table(federation, width=OUT.width))
        if federation.preparation is not None:
            OUT.print(_columns(federation))
    if parsed.picture:
        say(f"picture: {picture(federation, parsed.picture)}")


def _table_facts(federation: Federation) -> dict[str, Any]:
    """What was made of the columns of a table, as plain data; {} for other data."""
    preparation = federation.preparation
    if preparation is None:
        return {}
    columns = [
        {"column": c.name, "kind": c.kind, "features": list(c.feature_names)}
        for c in preparation.columns
    ]
    facts = {"columns": columns, "dropped": preparation.dropped}
    return {**facts, "scale": preparation.scale, "missing": preparation.missing}


def _columns(federation: Federation) -> Table:
    """What was made of the columns of a table."""
    preparation = federation.preparation
    assert preparation is not None
    kind = "classes" if federation.classes else "real values"
    title = (
        f"{len(preparation.columns)} columns, {len(preparation.feature_names)} features; "
        f"target: {kind}"
    )
    out = Table("column", "kind", "becomes", title=title, title_justify="left", box=SIMPLE_HEAD)
    for c in preparation.columns:
        if c.categories:
            text = f"{len(c.feature_names)} features of 0 or 1: {listed(c.categories)}"
        else:
            text = {"none": "as it is"}.get(preparation.scale, f"scaled ({preparation.scale})")
        if c.fill and preparation.missing != "refuse":
            text += f"; missing values: {preparation.missing}"
        out.add_row(literal(c.name), literal(c.kind), literal(text))
    for name, why in preparation.dropped.items():
        out.add_row(literal(name), literal("dropped"), literal(why))
    return out


def _origin(name: str) -> str:
    if name in SOURCES:
        return str(SOURCES[name].ways[0])
    return "your files (--path)" if name in OWN else "no download"


def _list(parsed: Any, options: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = []
    for name in DATASETS:
        cls = DATASETS.find(name)
        source = SOURCES.get(name) or OWN.get(name)
        rows.append(
            {
                "name": name,
                "summary": (cls.__doc__ or "").strip().partition("\n")[0],
                "source": _origin(name),
                "terms": source.terms if source else "",
                "citation": source.citation if source else "",
                "fields": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    headings = {"name": "data", "summary": "what it is", "source": "from", "terms": "terms"}
    columns = [words(heading, key) for key, heading in headings.items()]
    OUT.print(fitted_table(columns, rows, OUT.width))
