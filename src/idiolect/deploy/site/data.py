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

import hashlib
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
from ...data.prepare.cells import CellRules
from ...data.prepare.columns import CATEGORY, coded, read_names
from ...data.prepare.federated import MISSING, first_sums, second_sums
from ...data.prepare.fit import TableSamples
from ...data.read.tables import (
    ONE_CLIENT,
    ROLES,
    TableFile,
    TableOptions,
    clean_cells,
    read_table,
    samples_used,
    with_one_client,
)
from ...data.splits import SPLITS
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
MOST_SCALE = 1e15  # of what numbers are scaled by in a preparation
UNFIT = "the data of this site do not fit the contract"


def unfit(reason: str | SettingError) -> Refused:
    """A refusal that depends on the data: the network gets one text, the owner the reason."""
    refusal = Refused(UNFIT)
    refusal.__cause__ = reason if isinstance(reason, SettingError) else SettingError(reason)
    return refusal


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
    def check_form(self, form: TableForm | ArrayForm) -> None:
        """Refuse, by name, what the columns and the owner's options alone tell not to fit."""
        if isinstance(form, TableForm):
            self.table(form.target, form.features)
            _preparation(form)
        else:
            self._arrays(form)

    def agreed(self, form: TableForm | ArrayForm, least: int = 1) -> Federation:
        """The data in the agreed form; what does not fit is Refused without a word about it.

        A category with fewer than `least` training rows is as one that nobody has: a server that
        guesses names would see in a message which of them are here.
        """
        return self._table(form, least) if isinstance(form, TableForm) else self._arrays(form)

    def rows(self, form: TableForm | ArrayForm) -> str:
        """SHA-256 of which rows are used, and of the client and split of each."""
        if isinstance(form, ArrayForm):
            sizes = np.stack([self.loaded.sizes(split).numpy() for split in SPLITS])
            return _digest(*map(str, self.loaded.ids), sizes.tobytes())
        prepared = _preparation(form)
        missing = self.reader.missing if prepared is None else prepared.missing
        return self.rows_of(form.target, form.features, missing)

    def rows_of(self, target: str, features: Sequence[str], missing: str) -> str:
        """The same of these columns of a table."""
        return self.digest_of(self.samples(target, features, missing))

    def samples(self, target: str, features: Sequence[str], missing: str) -> TableSamples:
        """The rows that are used with these columns."""
        options = self.reading(TableForm(target, list(features), [], None))
        try:
            return samples_used(self.table(target, features), options, features, missing)
        except SettingError as error:
            raise error if isinstance(error, Refused) else unfit(error) from error

    def digest_of(self, samples: TableSamples) -> str:
        """SHA-256 of these rows."""
        import pandas as pd

        numbers = pd.util.hash_pandas_object(samples.frame.index).to_numpy(dtype=np.uint64)
        ids = [str(client) for client in samples.ids]
        columns = (numbers, samples.client.astype(np.int64), samples.part.astype(np.int64))
        return _digest(*ids, *(np.ascontiguousarray(column).tobytes() for column in columns))

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

    def _table(self, form: TableForm, least: int) -> Federation:
        frame = self.table(form.target, form.features)
        prepared = _preparation(form)
        classes = tuple(form.classes)
        _, labels = coded(frame[form.target].dropna()) if classes else (None, ())
        if not set(labels) <= set(classes):
            raise unfit(
                f"column {form.target!r} holds classes that are not among the {len(classes)} agreed"
            )
        if prepared is not None:
            samples = self.samples(form.target, form.features, prepared.missing)
            prepared = without_rare(prepared, samples.frame[samples.train], least)
        try:
            federation = read_table(frame, self.reading(form), self.site, prepared, classes)
        except SettingError as error:
            raise unfit(error) from error
        if prepared is not None:
            federation = replace(federation, preparation=_preparation(form))
        preparation = federation.preparation
        assert preparation is not None
        texts = [c.name for c in preparation.columns if c.kind == CATEGORY]
        if prepared is None and texts:
            raise unfit(
                f"column {texts[0]!r} holds categories, whose names all sites must know; "
                "a preparation is needed (scale federated)"
            )
        return federation

    def table(self, target: str, features: Sequence[str]) -> pd.DataFrame:
        """The table, if it has these columns and its owner has not said otherwise."""
        if not self.is_table:
            raise Refused("data: this site has no table, and a table is asked for")
        try:
            frame = self.frame
        except SettingError as error:
            raise unfit(error) from error
        for name in (target, *features):
            if name not in frame.columns:
                raise Refused(f"data: column {name!r} is not in this site's table")
        own = self.options.get("target")
        if own and own != target:
            raise Refused(f"data: {target!r} is to be predicted; this site's owner allows another")
        allowed = {*read_names(self.options.get("features"))}
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
            raise unfit(f"no client has {least} training samples (min_samples)")
        names = federation.names
        if not own_names:
            several = [f"{self.site}/{k + 1}" for k in range(federation.clients)]
            names = tuple(several) if federation.clients > 1 else (self.site,)
        ids = [federation.ids[k] for k in positions]
        return Members(
            ids, [names[k] for k in positions], {"name": federation.name, **sample_form(federation)}
        )


def _preparation(form: TableForm) -> Preparation | None:
    """The preparation that a form has; Refused where it is none, or reads cells its own way."""
    if form.preparation is None:
        return None
    try:
        prepared = Preparation.from_dict(form.preparation)
    except SettingError as error:
        raise Refused(str(error)) from None
    if [column.name for column in prepared.columns] != form.features:
        raise Refused("data: the preparation is of other columns than the features")
    if prepared.cells != CellRules():  # a code for missing values would choose rows by their values
        raise Refused("preparation: cells must be read as this site's owner says")
    numbers = [
        n for c in prepared.columns for n in (*c.centre, *c.fill, *(1 / s for s in c.spread))
    ]
    if not all(abs(number) <= MOST_SCALE for number in numbers):
        # scaled numbers beyond 32 bits are refused, which would tell how large a value is
        raise Refused(
            f"preparation: centre and fill must be at most {MOST_SCALE:g}, spread at least "
            f"{1 / MOST_SCALE:g}"
        )
    return prepared


def without_rare(prepared: Preparation, rows: pd.DataFrame, least: int) -> Preparation:
    """A preparation that takes no cell for a category with fewer than `least` of these rows."""
    columns = []
    for column in prepared.columns:
        if column.kind == CATEGORY:
            codes, values = coded(rows[column.name])
            counts = dict(zip(values, np.bincount(codes[codes >= 0]).tolist(), strict=True))
            is_text = isinstance(column.categories[0], str)
            names = [
                name if counts.get(name, 0) >= least else f"\0{n}" if is_text else math.nan
                for n, name in enumerate(column.categories)
            ]
            column = replace(column, categories=tuple(names))
        columns.append(column)
    return replace(prepared, columns=tuple(columns))


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


ROWS_FILE = "rows.json"


@dataclass(frozen=True)
class FixedRows:
    """Which rows a state directory has answered for."""

    rows: str  # SHA-256, see `SiteData.rows`


def check_rows(folder: Path, rows: str) -> None:
    """Refuse other rows than those of the first agreement or sums: answers could be differenced."""
    path = folder / ROWS_FILE
    if not path.exists():
        write_document(path, encode(FixedRows(rows)))
    elif read_document(path, FixedRows, limit=1 << 16).rows != rows:
        raise unfit(
            "other rows of the table would be used, or in another split, than this state directory "
            f"was begun with ({path.name}): what left for both could be subtracted, which tells of "
            "single rows. If the table itself has changed, or other columns are to decide which "
            "rows are used, begin with a new directory (--state), whose caps start at zero"
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
        features = set(self.data.features)
        for name, mean in self.means.items():
            if name not in features or not math.isfinite(mean):
                raise ValueError(f"means must be a number per feature, got {name[:80]!r}")


def check_same(folder: Path, request: SumsRequest) -> None:
    """Refuse sums of other columns or rows than those that were asked for first."""
    path = folder / FILE
    columns = {**encode(request.data), "missing": request.missing}
    if not path.exists():
        write_document(path, columns)
    elif read_document(path, dict[str, Any], limit=64 << 20) != columns:
        raise Refused("sums: column sums are released once: two answers could be differenced")


def sums_reply(owned: SiteData, request: SumsRequest, least: int) -> tuple[Call, str]:
    """The counts and sums, and which rows they are of; Refused where they are of too few rows."""
    target, features = request.data.target, request.data.features
    samples = owned.samples(target, features, request.missing)
    rows = samples.frame[samples.train]
    if len(rows) < least:
        raise unfit(f"there are fewer than {least} training rows (min_samples)")
    try:
        if request.number == 1:
            columns = first_sums(rows, features, least)
        else:
            columns = second_sums(rows, request.means)
    except SettingError as error:
        raise unfit(error) from error
    for name, column in columns.items():
        if 0 < column.get("count", least) < least:
            raise unfit(f"column {name!r} has fewer than {least} values (min_samples)")
        if not all(math.isfinite(v) for v in column.values() if isinstance(v, float)):
            raise unfit(f"column {name!r}: its sums are no finite numbers")
    return Call("sums", {"columns": columns}), owned.digest_of(samples)
