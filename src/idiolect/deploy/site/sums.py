"""Counts and sums of a table's columns, so that all sites scale by one mean and variance.

    sums {pass: 1, data: {target, features}, missing}
        -> sums {columns: {name: {kind, count, sum, missing} or {kind, categories, missing}}}
    sums {pass: 2, data: {target, features}, missing, means: {name: mean}}
        -> sums {columns: {name: {squares}}}

All numbers are over the training rows of the site; no value of a single row leaves. A site answers
about one target, one list of features and one treatment of missing values, ever: sums over rows
that differ in one of them could be subtracted from each other. What the server makes of the answers
is `idiolect.data.prepare.federated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.documents import expect_fields
from ...core.files import check_object, read_json_object, write_json
from ...core.knobs import SettingError
from ...data.prepare.federated import MISSING, first_sums, second_sums
from ...data.read.frames import training_rows
from ...host.calls import Call
from ...host.service import Refused
from .owned import UNREADABLE, Owned

FILE = "sums.json"


@dataclass(frozen=True)
class Asked:
    """What is asked for."""

    number: int  # of the pass
    target: str
    features: list[str]
    missing: str
    means: dict[str, float] = field(default_factory=dict)


def read_sums_call(call: Call) -> Asked:
    """Of unknown origin; Refused says what is wrong."""
    try:
        second = call.facts.get("pass") == 2
        fields: dict[str, Any] = {"pass": int, "data": dict[str, Any], "missing": str}
        if second:
            fields["means"] = dict[str, float]
        found = check_object(call.facts, fields)
        expect_fields(found["data"], {"target": str, "features": list[str]}, place="data")
        if found["pass"] not in (1, 2):
            raise ValueError("pass: 1 or 2 is expected")
        if found["missing"] not in MISSING:
            raise ValueError(f"missing: one of {', '.join(MISSING)} is expected")
        features = found["data"]["features"]
        if not features or len(set(features)) < len(features):
            raise ValueError("features: one or more columns, each named once")
        for name, mean in found.get("means", {}).items():
            if name not in features or not math.isfinite(mean):
                raise ValueError(f"means: {name[:80]!r}: a number for some of the features each")
    except ValueError as error:
        raise Refused(f"sums: {error}") from None
    means = found.get("means", {})
    return Asked(found["pass"], found["data"]["target"], features, found["missing"], means)


def check_same(folder: Path, asked: Asked) -> None:
    """Refuse sums of other columns or rows than those that were asked for first."""
    path = folder / FILE
    what = {"target": asked.target, "features": asked.features, "missing": asked.missing}
    if not path.exists():
        write_json(path, what)
    elif read_json_object(path, limit=64 << 20) != what:
        raise Refused("sums: others were asked for before, and two could be subtracted")


def sums_reply(owned: Owned, asked: Asked, least: int) -> Call:
    """The counts and sums; Refused where fewer training rows than the minimum are in one."""
    frame = owned.table(asked.target, asked.features)
    form = {"target": asked.target, "classes": [], "features": asked.features, "preparation": None}
    try:
        rows = training_rows(frame, owned.reading(form), asked.features, asked.missing)
        if len(rows) < least:
            raise Refused(f"min_samples: fewer than {least} training rows at this site")
        if asked.number == 1:
            columns = first_sums(rows, asked.features)
        else:
            columns = second_sums(rows, asked.means)
    except Refused:
        raise
    except SettingError as error:
        raise Refused(UNREADABLE) from error
    for name, column in columns.items():
        if 0 < column.get("count", least) < least:
            raise Refused(f"min_samples: column {name!r} has fewer than {least} values here")
    return Call("sums", {"columns": columns})
