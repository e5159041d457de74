"""`idiolect data`: what there is, get one, see who has what."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.knobs import SettingError, describe, nearest
from ..data import DATASETS, get, load, picture, table
from ..data.sources import SOURCES


def main(argv: list[str], out: Console) -> None:
    from .flags import Flags, Parser

    parser = Parser(
        prog="idiolect data",
        allow_abbrev=False,
        description="Data sets: what there is, get one, see who has what.",
    )
    parser.add_argument("action", nargs="?", default="list", help="list, get NAME or show NAME")
    parser.add_argument("name", nargs="?", help="the data set")
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parser.add_argument(
        "--picture", help="show: also draw who has what into this file (.png, .svg, .pdf)"
    )
    flags = Flags(parser)
    if len(argv) > 1 and argv[0] == "show" and argv[1] in DATASETS:
        flags.add("data", DATASETS[argv[1]], f"data {argv[1]}")
    parsed = flags.parse(argv)
    if parsed.action == "list":
        _list(parsed.json, out)
    elif parsed.action == "get":
        if parsed.name not in SOURCES and parsed.name in DATASETS:
            raise SettingError(
                f"data: {parsed.name!r} needs no download; "
                f"use it with: idiolect run METHOD --data {parsed.name}"
            )
        folder = get(_named(parsed.name))
        print(
            json.dumps({"name": parsed.name, "folder": str(folder)})
            if parsed.json
            else f"{parsed.name} lies in {folder}"
        )
    elif parsed.action == "show":
        federation = load(_named(parsed.name), **flags.values(parsed, "data"))
        if parsed.json:
            counts = federation.class_counts("train").tolist() if federation.classes else None
            sizes = {s: federation.sizes(s).tolist() for s in federation.offsets}
            print(
                json.dumps(
                    {
                        "name": federation.name,
                        "clients": list(federation.names),
                        "sizes": sizes,
                        "class_counts": counts,
                    }
                )
            )
        else:
            out.print(table(federation))
        if parsed.picture:
            Console(stderr=True).print(
                f"picture: {picture(federation, parsed.picture)}", highlight=False
            )
    else:
        raise nearest(parsed.action, ("list", "get", "show"), "data command")


def _named(name: str | None) -> str:
    if name is None:
        raise SettingError(f"data: name a data set: {', '.join(DATASETS)}")
    return name


def _list(as_json: bool, out: Console) -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "summary": (cls.__doc__ or "").strip().splitlines()[0],
            "source": str(SOURCES[name].ways[0]) if name in SOURCES else "no download",
            "terms": SOURCES[name].terms if name in SOURCES else "",
            "fields": describe(cls),
        }
        for name, cls in DATASETS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    shown = Table("data", "what it is", "from", "terms")
    for r in rows:
        shown.add_row(r["name"], r["summary"], r["source"], r["terms"])
    out.print(shown)
