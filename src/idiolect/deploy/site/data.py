"""The owner's data: as they are, in the form of an agreement, and as sums over columns.

Column sums let all sites scale by one mean and variance:

    sums {pass: 1, data: {target, features}, missing}
        -> sums {columns: {name: {kind, count, sum, missing} or {kind, categories, missing}}}
    sums {pass: 2, data: {target, features}, missing, means: {name: mean}}
        -> sums {columns: {name: {squares}}}

All numbers are over the training rows of the site; no value of a single row leaves. A site answers
for one target, one list of features and one treatment of missing values, ever: sums over rows that
differ in one of them could be subtracted from each other. The server combines the answers in
`idiolect.data.prepare.federated`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import data as data_sets
from ...core.documents import encode
from ...core.files import read_document, write_document
from ...core.knobs import SettingError
from ...core.text import plural
from ...core.types import leaves
from ...data.federation import Federation
from ...data.prepare import Preparation
from ...data.prepare.columns import CATEGORY, coded, read_names
from ...data.prepare.federated import MISSING, first_sums, second_sums
from ...data.read.tables import (
    ONE_CLIENT,
    ROLES,
    TableFile,
    TableOptions,
    clean_cells,
    read_table,
    training_rows,
    with_one_client,
)
from ...host.calls import Call
from ...host.service import Refused
from ...run.predict import sample_form
from .agreement import TABLE, ArrayForm, Members, TableForm

if TYPE_CHECKING:
    import pandas as pd

# what the owner decides about rows, whatever is agreed about columns
OWN_ROWS = (
    *("split", "valid", "test", "seed", "group", "time"),
    *("merge_names", "exclude_clients", "duplicates"),
)
NO_WEIGHTS = (
    "weight must be left out in a deployment: sites agree on numbers of samples, by which the "
    "server weighs them and checks what they claim, and weights would have to be trusted; leave "
    "the column out with --drop"
)
UNREADABLE = "this site's data cannot be read as agreed; its owner sees why"


@dataclass(frozen=True)
class SiteData:
    """Data as the owner named them: a table, or a data set by name, and how it is read.

    `share` is "2/3" for the second of three equal parts of the clients of a data set: for trials.
    """

    site: str
    data: str = "table"
    options: dict[str, Any] = field(default_factory=dict)  # as given
    share: str = ""

    @property
    def is_table(self) -> bool:
        return self.data == TABLE

    def __post_init__(self) -> None:
        if self.options.get("weight"):
            raise SettingError(NO_WEIGHTS)

    # -- what there is ---------------------------------------------------------------------------
    def check(self) -> str:
        """Read the data, and say what there is in a line; SettingError where they cannot be."""
        if self.options.get("subgroup"):
            raise SettingError(
                "subgroup must be left out of a deployment: sites agree on figures of clients, and "
                "those of small parts of a client's rows could tell about single ones; `idiolect "
                "run` gives them in a simulation"
            )
        if self.is_table:
            reader, frame = self.reader, self.frame
            for role in ROLES:
                name = self.options.get(role)
                if name and name not in frame.columns:
                    raise SettingError(f"{role}: column {name!r} is not in {reader.path}")
            size = f"{plural(len(frame), 'row')}, {plural(len(frame.columns), 'column')}"
            return f"{reader.path}: {size}"
        federation = self.loaded
        shapes = ", ".join(str(tuple(t.shape[1:])) for t in leaves(federation.inputs))
        sizes = f"{plural(federation.clients, 'client')}, {plural(federation.samples, 'sample')}"
        return f"{federation.name}: {sizes} of {shapes}"

    @cached_property
    def reader(self) -> TableFile:
        return TableFile(**self.options)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table in its file, its cells read as the owner says."""
        return clean_cells(self.reader.frame(), self.reader)

    @cached_property
    def loaded(self) -> Federation:
        """The data set."""
        federation = data_sets.load(self.data, **self.options)
        if federation.weights is not None:
            raise SettingError(NO_WEIGHTS)
        if not self.share:
            return federation
        part, _, of = self.share.partition("/")
        whole = part.isdigit() and of.isdigit() and 1 <= int(part) <= int(of) <= federation.clients
        if not whole:
            raise SettingError(
                f"share must be k/n, for the k-th of n parts of the {federation.clients} clients, "
                f"got {self.share!r}"
            )
        return federation.of(np.array_split(np.arange(federation.clients), int(of))[int(part) - 1])

    # -- as a federation wants them --------------------------------------------------------------
    def agreed(self, form: TableForm | ArrayForm) -> Federation:
        """The data in the agreed form; Refused names what does not fit, and no value of a row."""
        return self._table(form) if isinstance(form, TableForm) else self._arrays(form)

    def _arrays(self, form: ArrayForm) -> Federation:
        if self.is_table:
            raise Refused("data: this site has a table; arrays are asked for")
        federation = self.loaded
        inputs = [[str(t.dtype), list(t.shape[1:])] for t in leaves(federation.inputs)]
        if inputs != [form.inputs]:
            raise Refused(f"data: a sample is {inputs} at this site; {form.inputs} is agreed")
        if federation.classes != form.classes:
            raise Refused(
                f"data: there are {federation.classes} classes at this site; {form.classes} are "
                "agreed"
            )
        return federation

    def _table(self, form: TableForm) -> Federation:
        frame = self.table(form.target, form.features)
        classes = tuple(form.classes)
        _, labels = coded(frame[form.target].dropna()) if classes else (None, ())
        if any(value not in classes for value in labels):
            raise Refused(
                f"data: column {form.target!r} holds classes at this site that are not among the "
                f"{len(classes)} agreed"
            )
        prepared = None
        if form.preparation is not None:
            try:
                prepared = Preparation.from_dict(form.preparation)
            except SettingError as error:
                raise Refused(str(error)) from None
            if [column.name for column in prepared.columns] != form.features:
                raise Refused("data: the preparation is of other columns than the features")
        try:
            federation = read_table(frame, self.reading(form), self.site, prepared, classes)
        except SettingError as error:
            raise Refused(UNREADABLE) from error
        preparation = federation.preparation
        assert preparation is not None
        texts = [c.name for c in preparation.columns if c.kind == CATEGORY]
        if prepared is None and texts:
            raise Refused(
                f"data: column {texts[0]!r} holds categories, whose names all sites must know; "
                "a preparation is needed (preparation federated)"
            )
        return federation

    def table(self, target: str, features: Sequence[str]) -> pd.DataFrame:
        """The table, if it has these columns and its owner has not said otherwise."""
        if not self.is_table:
            raise Refused("data: this site has no table, and a table is asked for")
        try:
            frame = self.frame
        except SettingError as error:
            raise Refused(UNREADABLE) from error
        for name in (target, *features):
            if name not in frame.columns:
                raise Refused(f"data: column {name!r} is not in this site's table")
        own = self.options.get("target")
        if own and own != target:
            raise Refused(f"data: {target!r} is to be predicted; this site's owner allows another")
        allowed = read_names(self.options.get("features"))
        withheld = {*read_names(self.options.get("drop"))}
        roles = [role for role in ROLES if role != "target"]
        withheld |= {self.options[role] for role in roles if self.options.get(role)}
        for name in features:
            if name == target or name in withheld or (allowed and name not in allowed):
                raise Refused(f"data: column {name!r} is no feature at this site")
        if not self.options.get("client"):
            return with_one_client(frame, self.site)
        return frame

    def reading(self, form: TableForm) -> TableOptions:
        """How the table is read under an agreement."""
        own = {f.name: getattr(self.reader, f.name) for f in fields(TableOptions)}
        options = {name: own[name] for name in OWN_ROWS}
        options["client"] = self.options.get("client") or ONE_CLIENT
        options["target"] = form.target
        options["kind"] = "classes" if form.classes else "values"
        if form.preparation is None:
            scale = self.options.get("scale", "client")
            options["scale"] = "client" if scale == "federated" else scale
            options["features"] = tuple(form.features)
            options["missing"] = own["missing"]
            options["dates"] = own["dates"]
            options["date_order"] = own["date_order"]
        return TableOptions(**options)

    # -- who takes part --------------------------------------------------------------------------
    def members(self, federation: Federation, least: int, own_names: bool) -> Members:
        """The clients with at least `least` training samples, and their names at the server.

        That is the site's name, with numbers if they are several, or their own ids.
        """
        positions = (federation.sizes("train") >= least).nonzero().flatten().tolist()
        if not positions:
            raise Refused("min_samples: no client of this site has as many training samples")
        names = federation.names
        if not own_names:
            several = [f"{self.site}/{k + 1}" for k in range(federation.clients)]
            names = tuple(several) if federation.clients > 1 else (self.site,)
        ids = [federation.ids[k] for k in positions]
        return Members(
            ids, [names[k] for k in positions], {"name": federation.name, **sample_form(federation)}
        )


def joined(federation: Federation, members: Members) -> Federation:
    """The data of those who take part, by the names that their random numbers are keyed by."""
    positions = [federation.position(client) for client in members.ids]
    return replace(federation.of(positions), ids=tuple(members.names))


# -- sums over columns -----------------------------------------------------------------------------
FILE = "sums.json"


@dataclass(frozen=True)
class SummedColumns:
    """The columns that sums are asked for."""

    target: str
    features: list[str]

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError("features must be one or more columns, each named once")


@dataclass(frozen=True)
class SumsRequest:
    """What is asked for; of unknown origin."""

    data: SummedColumns
    missing: str
    number: int = field(metadata={"key": "pass"})
    means: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number not in (1, 2) or (self.number == 1 and self.means):
            raise ValueError("pass must be 1, or 2 with means")
        if self.missing not in MISSING:
            raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {self.missing!r}")
        for name, mean in self.means.items():
            if name not in self.data.features or not math.isfinite(mean):
                raise ValueError(f"means must be a number per feature, got {name[:80]!r}")


def check_same(folder: Path, request: SumsRequest) -> None:
    """Refuse sums of other columns or rows than those that were asked for first."""
    path = folder / FILE
    columns = {**encode(request.data), "missing": request.missing}
    if not path.exists():
        write_document(path, columns)
    elif read_document(path, dict[str, Any], limit=64 << 20) != columns:
        raise Refused("sums: column sums are released once: two answers could be differenced")


def sums_reply(owned: SiteData, request: SumsRequest, least: int) -> Call:
    """The counts and sums; Refused where fewer training rows than the minimum are in one."""
    target, features = request.data.target, request.data.features
    frame = owned.table(target, features)
    how = owned.reading(TableForm(target, features, [], None))
    try:
        rows = training_rows(frame, how, features, request.missing)
        if len(rows) < least:
            raise Refused(f"min_samples: fewer than {least} training rows at this site")
        if request.number == 1:
            columns = first_sums(rows, features)
        else:
            columns = second_sums(rows, request.means)
    except Refused:
        raise
    except SettingError as error:
        raise Refused(UNREADABLE) from error
    for name, column in columns.items():
        if 0 < column.get("count", least) < least:
            raise Refused(f"min_samples: column {name!r} has fewer than {least} values here")
    return Call("sums", {"columns": columns})
