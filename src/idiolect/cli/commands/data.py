"""`idiolect data`: what there is, get one, see who has what."""

from __future__ import annotations

import json
from typing import Any

from ...core.columns import FittedTable, words
from ...core.knobs import SettingError, describe
from ...core.text import listed, plural, shown
from ...data import DATASETS, get, load, picture, table
from ...data.check import check
from ...data.download import OWN, SOURCES
from ...data.federation import Federation
from ...data.read.tables import SUFFIXES, TableFile
from ...report.console import OUT, literal, say
from ...run.sample_weights import weight_facts
from ..options import Parser, run_action
from ..output import emit


def data(argv: list[str]) -> None:
    """Data sets: list, get or show; check a table of your own."""
    flags_only = all(word.startswith("-") for word in argv) and not {"-h", "--help"} & set(argv)
    run_action("data", ACTIONS, ["list", *argv] if flags_only else argv, "data command")


def _parser(action: str, description: str | None) -> Parser:
    parser = Parser(f"data {action}", description, output=("json",))
    parser.add_argument("name", nargs="?", help="the data set")
    return parser


def _named(parsed: Any) -> str:
    if parsed.name is None:
        raise SettingError(f"data: name a data set: {', '.join(DATASETS)}")
    return parsed.name


def _get(argv: list[str]) -> None:
    """Download a data set."""
    parsed = _parser("get", _get.__doc__).parse(argv)
    name = _named(parsed)
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
    facts = {"name": name, "folder": folder, "terms": source.terms, "citation": source.citation}
    lines = [f"{name} lies in {folder}", f"terms: {source.terms}"]
    lines += [f"cite: {source.citation}"] if source.citation else []
    if parsed.output.json:
        print(json.dumps(facts))
    else:
        print("\n".join(map(shown, lines)))


def _show(argv: list[str]) -> None:
    """See who has what."""
    parser = _parser("show", _show.__doc__)
    parser.add_argument(
        "--picture", help="also draw who has what into this file (.png, .svg, .pdf)"
    )
    if places := parser.words(argv, DATASETS.known().values()):
        name = argv[places[0]]
        parser.add_fields("data", DATASETS.find(name), f"data {name}")
    parsed = parser.parse(argv)
    federation = load(_named(parsed), **parser.values(parsed, "data"))
    counts = federation.class_counts("train").tolist() if federation.classes else None
    facts = {
        "name": federation.name,
        "clients": list(federation.ids),
        "sizes": {s: federation.sizes(s).tolist() for s in federation.offsets},
        "class_counts": counts,
        "class_names": list(federation.class_names),
        **weight_facts(federation),
        **_table_facts(federation),
    }
    views = [_columns(federation)] if federation.preparation is not None else []
    emit(parsed.output.json, facts, table(federation, width=OUT.width), *views)
    if parsed.picture:
        say(f"picture: {picture(federation, parsed.picture)}")


def _check(argv: list[str]) -> None:
    """Everything in a table that needs a decision, and the flag that settles it."""
    parser = Parser("data check", _check.__doc__, output=("json",))
    parser.add_argument("table", help=f"your file: {', '.join(SUFFIXES)}")
    parser.add_fields("data", TableFile, "how the table is read", {"path"})
    parsed = parser.parse(argv)
    options = parser.values(parsed, "data")
    roles = [options.pop(role, None) for role in ("client", "target")]
    report = check(parsed.table, *roles, **options)
    lines = repr(report).splitlines()
    if report.flags:
        lines.append(f"All at once: {report.flags}")
    emit(parsed.output.json, report.as_dict(), *map(literal, lines))


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


def _columns(federation: Federation) -> FittedTable:
    """What was made of the columns of a table."""
    preparation = federation.preparation
    assert preparation is not None
    kind = "classes" if federation.classes else "real values"
    title = (
        f"{plural(len(preparation.columns), 'column')}, "
        f"{plural(len(preparation.feature_names), 'feature')}; "
        f"target: {kind}"
    )
    rows = []
    for c in preparation.columns:
        if c.categories:
            text = f"{plural(len(c.feature_names), 'feature')} of 0 or 1: {listed(c.categories)}"
        else:
            text = {"none": "as it is"}.get(preparation.scale, f"scaled ({preparation.scale})")
        if c.fill and preparation.missing != "refuse":
            text += f"; missing values: {preparation.missing}"
        rows.append({"column": c.name, "kind": c.kind, "becomes": text})
    for name, why in preparation.dropped.items():
        rows.append({"column": name, "kind": "dropped", "becomes": why})
    return FittedTable([words(key, key) for key in ("column", "kind", "becomes")], rows, title)


def _origin(name: str) -> str:
    if name in SOURCES:
        return str(SOURCES[name].ways[0])
    return "your files (--path)" if name in OWN else "no download"


def _list(argv: list[str]) -> None:
    """What data sets there are."""
    parsed = Parser("data list", _list.__doc__, output=("json",)).parse(argv)
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
    headings = {"name": "data", "summary": "what it is", "source": "from", "terms": "terms"}
    columns = [words(heading, key) for key, heading in headings.items()]
    emit(parsed.output.json, rows, FittedTable(columns, rows))


ACTIONS = {"list": _list, "get": _get, "show": _show, "check": _check}
