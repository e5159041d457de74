"""`idiolect data`: what there is, get one, see who has what."""

from __future__ import annotations

import json
from typing import Any

from ..core.columns import fitted_table, words
from ..core.knobs import SettingError, describe, nearest
from ..core.text import shown
from ..data import DATASETS, get, load, picture, table
from ..data.sources import SOURCES
from ..report.console import OUT, say
from .flags import Flags, Parser


def data(argv: list[str]) -> None:
    """Data sets: list, get or show."""
    parser = Parser("data", "Data sets: what there is, get one, see who has what.")
    parser.add_argument("action", nargs="?", default="list", help="list, get NAME or show NAME")
    parser.add_argument("name", nargs="?", help="the data set")
    parser.add_json()
    parser.add_argument(
        "--picture", help="show: also draw who has what into this file (.png, .svg, .pdf)"
    )
    flags = Flags(parser)
    if len(argv) > 1 and argv[0] == "show" and not argv[1].startswith("-"):
        flags.add("data", DATASETS.find(argv[1]), f"data {argv[1]}")
    parsed = flags.parse(argv)
    actions = {"list": _list, "get": _get, "show": _show}
    if parsed.action not in actions:
        raise nearest(parsed.action, actions, "data command")
    actions[parsed.action](parsed, flags.values(parsed, "data"))


def _named(name: str | None) -> str:
    if name is None:
        raise SettingError(f"data: name a data set: {', '.join(DATASETS)}")
    return name


def _get(parsed: Any, options: dict[str, Any]) -> None:
    name = _named(parsed.name)
    if name not in SOURCES and name in DATASETS:
        raise SettingError(
            f"data: {name!r} needs no download; use it with: idiolect run METHOD --data {name}"
        )
    folder = str(get(name))
    if parsed.json:
        print(json.dumps({"name": name, "folder": folder}))
    else:
        print(shown(f"{name} lies in {folder}"))


def _show(parsed: Any, options: dict[str, Any]) -> None:
    federation = load(_named(parsed.name), **options)
    if parsed.json:
        counts = federation.class_counts("train").tolist() if federation.classes else None
        facts = {
            "name": federation.name,
            "clients": list(federation.ids),
            "sizes": {s: federation.sizes(s).tolist() for s in federation.offsets},
            "class_counts": counts,
        }
        print(json.dumps(facts))
    else:
        OUT.print(table(federation, width=OUT.width))
    if parsed.picture:
        say(f"picture: {picture(federation, parsed.picture)}")


def _list(parsed: Any, options: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = []
    for name in DATASETS:
        cls = DATASETS.find(name)
        source = SOURCES.get(name)
        rows.append(
            {
                "name": name,
                "summary": (cls.__doc__ or "").strip().partition("\n")[0],
                "source": str(source.ways[0]) if source else "no download",
                "terms": source.terms if source else "",
                "fields": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    headings = {"name": "data", "summary": "what it is", "source": "from", "terms": "terms"}
    columns = [words(heading, key) for key, heading in headings.items()]
    OUT.print(fitted_table(columns, rows, OUT.width))
