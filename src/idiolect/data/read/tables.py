"""Tables: one row per sample, one column of client ids.

A data frame, or a CSV, Parquet or Excel file, becomes rows with a client and a split each
(TableSamples); these are prepared (data/prepare) and become a federation.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import numpy as np
import torch

from ...core.files import given_path
from ...core.knobs import SettingError, knob, nearest
from ...core.text import note, option, plural
from ..entries import register
from ..federation import Federation
from ..prepare import Preparation
from ..prepare.cells import DECIMALS, LIMITS, THOUSANDS, UNITS, CellRules, read_codes
from ..prepare.columns import (
    CATEGORY,
    DATE,
    DATE_ORDERS,
    NUMBER,
    candidates,
    choose,
    date_order,
    days,
    find,
    kind_of,
    name_words,
    numbers,
    pd_text,
    read_frame,
    read_names,
    refuse_twice,
    why_not,
    write_names,
)
from ..prepare.fit import TableSamples, extend, fit, say_clients, say_preparation, some
from ..prepare.preparation import MISSING, SCALES
from ..splits import (
    SPLITS,
    Shares,
    arranged,
    places_in_time,
    read_groups,
    read_times,
    read_weights,
    split_samples,
    unit_owners,
)
from ..subgroups import MOST_VALUES, Subgroups
from .ids import name_form, plain_id, read_ids
from .targets import read_target_column

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 28  # rows by columns of a Parquet file: 2 GiB as numbers of eight bytes
TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (*TEXTS, ".parquet", ".xlsx")
DUPLICATES = ("keep", "drop", "drop-across")
WORKBOOK = 1 << 30  # bytes of an Excel file, unpacked
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


def missing_knob(default: str) -> Any:
    """The setting for missing values, of everything that reads a table."""
    return knob(
        default,
        "missing values: refuse them, drop the sample, or fill in mean, median or zero "
        "(+flag: and a feature that says so)",
        choices=MISSING,
    )


def scale_knob(default: str = "federated") -> Any:
    """The setting for the scale of numbers, likewise."""
    return knob(
        default,
        "numbers are scaled by mean and variance of the training rows: of all clients (federated, "
        "by sums that clients send), of each client, or not at all (none)",
        choices=SCALES,
    )


@dataclass(frozen=True)
class TableOptions(Shares):
    """How a table is read: what its columns are, and what is done to them."""

    client: str = knob("client", "column of client ids")
    target: str = knob("target", "column to predict")
    split: str = knob("", "column of train, valid or test; empty: drawn at random")
    kind: str = knob(
        "auto",
        "what the target is: classes, values (regression), or auto: text, two distinct numbers "
        "and few whole numbers are classes",
        choices=("auto", "classes", "values"),
    )
    features: tuple[str, ...] = knob(
        (),
        "columns to learn from, with commas; empty: all but identifiers and constants",
        parse=read_names,
        write=write_names,
    )
    drop: tuple[str, ...] = knob(
        (), "columns to leave out, with commas", parse=read_names, write=write_names
    )
    missing: str = missing_knob("refuse")
    scale: str = scale_knob()
    max_categories: int = knob(50, "most categories of a column", low=1)
    dates: str = knob(
        "refuse",
        "columns of dates: refuse them, drop them, or days since 1970-01-01 as a number",
        choices=("refuse", "drop", "days"),
    )
    group: str = knob(
        "",
        "column of what rows are of (a patient, a device): rows of one stay on one side of every "
        "split and fold; never a feature; empty: every row is by itself",
    )
    time: str = knob(
        "",
        "column of times: each client's last rows test, those before them validate; never a "
        "feature; empty: drawn at random",
    )
    weight: str = knob(
        "",
        "column of how much each row counts (people that it stands for), numbers > 0: in training "
        "and in figures; never a feature; empty: all alike",
    )
    subgroup: tuple[str, ...] = knob(
        (),
        f"columns of at most {MOST_VALUES} values (sex, region), with commas: figures are given "
        "for each value; still features, unless dropped",
        parse=read_names,
        write=write_names,
    )
    merge_names: bool = knob(False, "client ids that differ only in case or spaces are one client")
    exclude_clients: tuple[str, ...] = knob(
        (), "client ids to leave out, with commas", parse=read_names, write=write_names
    )
    duplicates: str = knob(
        "keep",
        "rows that are there twice: keep them, drop those of the same client, or drop copies "
        "across clients too (drop-across)",
        choices=DUPLICATES,
    )
    missing_codes: tuple[str, ...] = knob(
        (),
        "what stands for a missing value, with commas: ?,-1 in features and target, age=999 in one "
        "column",
        parse=read_codes,
        write=write_names,
    )
    categories: tuple[str, ...] = knob(
        (),
        "columns of numbers that are codes (a ZIP code), with commas: they become categories",
        parse=read_names,
        write=write_names,
    )
    decimal: str = knob(".", "the decimal mark of numbers", choices=DECIMALS)
    thousands: str = knob("", "the mark between thousands; empty: none", choices=THOUSANDS)
    units: str = knob(
        "refuse", "numbers with a unit, such as '12 mg': refuse or strip it", choices=UNITS
    )
    limits: str = knob(
        "refuse",
        "numbers with a limit, such as '<7': refuse, or take the limit for the value",
        choices=LIMITS,
    )
    date_order: str = knob(
        "auto",
        "day and month in dates such as 01/02/2026; auto: what dots (day first) or a number above "
        "12 show",
        choices=DATE_ORDERS,
    )


@dataclass(frozen=True)
class TableSet(Shares):
    """A data set that is a table; fields and class variables that `TableOptions` has go there."""

    name: ClassVar[str] = ""
    client: ClassVar[str] = ""  # column of client ids
    target: ClassVar[str] = ""  # column to predict

    def load(self) -> Federation:
        names = [f.name for f in fields(TableOptions) if hasattr(self, f.name)]
        options = TableOptions(**{name: getattr(self, name) for name in names})
        return read_table(self.frame(), options, self.name)

    def frame(self) -> pd.DataFrame:
        """The table: id, outcome and features of the clients that take part."""
        raise NotImplementedError


def read_table(
    table: Any,
    options: TableOptions,
    name: str,
    preparation: Preparation | None = None,
    class_names: tuple[Any, ...] | None = None,
) -> Federation:
    """The federation in a frame; see `Federation.from_frame`."""
    _check_known(options, preparation, class_names)
    samples, rules = table_samples(table, options, preparation)
    if preparation is None:
        samples, prepared = _prepare(samples, options, rules)
    else:
        samples, prepared = _prepare_alike(samples, preparation)
    targets, labels, reason = read_target_column(
        samples.frame[options.target], options.target, options.kind, class_names
    )
    if labels and preparation is not None and class_names is None:
        raise SettingError(
            "class_names: give those of the federation that the preparation is of (() for a "
            "regression): classes must have the same numbers"
        )
    if reason:
        note(reason)
    _say_repeated(samples, options)
    if options.client != ONE_CLIENT:
        say_clients(samples.ids, samples.client, options.client)
    clients = [samples.ids[k] for k in samples.client]
    federation = Federation.from_arrays(
        prepared.apply(samples.frame, clients),
        targets,
        clients,
        split=np.array(SPLITS)[samples.part],
        group=samples.group,
        weight=samples.weight,
        subgroup={name: samples.frame[name].to_numpy() for name in options.subgroup} or None,
        kind="classes" if labels else "values",
        classes=len(labels) or None,
        name=name,
    )
    _say_subgroups(federation.subgroups, prepared)
    times = None
    if samples.time is not None:  # the split was drawn by it already
        places = {client_id: k for k, client_id in enumerate(federation.ids)}
        client = np.array([places[i] for i in samples.ids])[samples.client]
        order = arranged(client, samples.part)
        times = torch.from_numpy(places_in_time(samples.time)[order])
    read = replace(federation, class_names=labels, preparation=prepared, times=times)
    return replace(read, weight_name=options.weight)


ONE_CLIENT = "(all rows)"  # the column of clients of a table that has one client


def with_one_client(frame: pd.DataFrame, client_id: str) -> pd.DataFrame:
    """A table without a column of clients, as that of one client."""
    frame = frame.copy(deep=False)
    frame.insert(0, ONE_CLIENT, client_id)
    return frame


def clean_cells(frame: pd.DataFrame, options: TableOptions) -> pd.DataFrame:
    """A table with its cells read by the rules of these options."""
    frame = read_frame(frame)
    beside = [getattr(options, role) for role in ROLES if role not in CELLS_OF]
    return CellRules.of(options).clean(frame, [c for c in frame.columns if c not in beside])[0]


def table_samples(
    table: Any, options: TableOptions, preparation: Preparation | None = None
) -> tuple[TableSamples, CellRules]:
    """The rows of a table that are used, with client and split; and how their cells are read."""
    frame = read_frame(table)
    roles = check_roles(frame, options)
    rules = CellRules.of(options) if preparation is None else preparation.cells
    beside = [roles[role] for role in roles if role not in CELLS_OF]
    frame, rules = rules.clean(frame, [c for c in frame.columns if c not in beside])
    frame = _with_target(frame, options.target)
    frame = _merge_clients(frame, options)
    frame = _without_copies(frame, options)
    return _split(frame, options), rules


def feature_columns(
    samples: TableSamples, options: TableOptions
) -> tuple[dict[str, str], dict[str, str]]:
    """(features, dropped): the kind of each column to learn from, and why another is none.

    Everything that reads a table goes by this: `load`, `idiolect init` and `deploy init`.
    """
    roles = check_roles(samples.frame, options)
    names = candidates(samples.frame.columns, roles, options.features, options.drop)
    return choose(
        samples.frame,
        names,
        samples.train,
        keep=bool(options.features),
        dates=options.dates,
        most=options.max_categories,
        codes=options.categories,
    )


def _prepare(
    samples: TableSamples, options: TableOptions, rules: CellRules
) -> tuple[TableSamples, Preparation]:
    """The samples that are kept, and a new preparation from their training rows."""
    kinds, dropped = feature_columns(samples, options)
    complete = _without_missing(samples, kinds, options.missing)
    prepared = fit(
        complete,
        kinds,
        scale=options.scale,
        missing=options.missing,
        max_categories=options.max_categories,
        dropped=dropped | dict.fromkeys(options.drop, "as asked"),
        cells=replace(rules, categories=tuple(c for c in rules.categories if c in kinds)),
        order=options.date_order,
    )
    say_preparation(prepared)
    return complete, prepared


def _prepare_alike(
    samples: TableSamples, preparation: Preparation
) -> tuple[TableSamples, Preparation]:
    """The same by an earlier preparation, which learns of clients that it does not know."""
    kinds = {column.name: column.kind for column in preparation.columns}
    for name in kinds:
        find(name, "frame", samples.frame.columns)
    complete = _without_missing(samples, kinds, preparation.missing)
    return complete, extend(preparation, complete)


DECIDED = (  # options that a preparation has decided
    *("features", "drop", "missing", "scale", "max_categories", "dates", "date_order"),
    *("missing_codes", "categories", "decimal", "thousands", "units", "limits"),
)


def _check_known(
    options: TableOptions, preparation: Preparation | None, class_names: tuple[Any, ...] | None
) -> None:
    """Data that are read as earlier ones were leave nothing else to choose."""
    if class_names is not None:
        decided = "classes" if class_names else "values"
        if options.kind not in ("auto", decided):
            raise SettingError(
                f"kind must be 'auto' or {decided!r} with these class_names, got {options.kind!r}"
            )
    if preparation is None:
        return
    for name in DECIDED:
        if getattr(options, name) != getattr(TableOptions(), name):
            raise SettingError(f"{name} must be left out with a preparation, which decides it")


ROLES = ("client", "target", "split", "group", "time", "weight")
CELLS_OF = ("target", "weight")  # roles whose cells are read by the rules, as those of features


def check_roles(frame: pd.DataFrame, options: TableOptions) -> dict[str, str]:
    """The columns that are no features, by what they are."""
    columns = frame.columns
    roles = {role: getattr(options, role) for role in ROLES}
    roles = {role: name for role, name in roles.items() if name}
    for role, name in roles.items():
        if name not in columns and name in map(str, frame.index.names):
            raise SettingError(
                f"{role}: {name!r} is the index of the frame, not a column; "
                "give frame.reset_index()"
            )
        find(name, role, columns)
        other = next(r for r, n in roles.items() if n == name)
        if other != role:
            raise SettingError(f"{role}: {name!r} is the column of the {other} too; name another")
    for name in options.subgroup:
        find(name, "subgroup", columns)
        if name in roles.values():
            role = next(r for r, n in roles.items() if n == name)
            raise SettingError(
                f"subgroup: {name!r} is the column of the {role}; name a column that says "
                "something else of a row"
            )
    if not len(frame):
        raise SettingError("the table is empty: it has columns, but no rows")
    return roles


# -- which rows ------------------------------------------------------------------------------------
def _with_target(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """The rows that have a target; those without one are counted in a line."""
    lacks = frame[target].isna().to_numpy()
    if not lacks.any():
        return frame
    if lacks.all():
        raise SettingError(f"target: column {target!r} is empty in every row")
    count = int(lacks.sum())
    are = "is" if count == 1 else "are"
    note(f"{plural(count, 'row')} without a target ({target!r}) {are} dropped")
    rest = frame[~lacks]
    column = rest[target]
    whole = column.dtype.kind == "f" and bool((column % 1 == 0).all())
    # a gap makes fractions of whole numbers, and classes 0.0 and 1.0 of 0 and 1
    return rest.assign(**{target: column.astype(np.int64)}) if whole else rest


def _merge_clients(frame: pd.DataFrame, options: TableOptions) -> pd.DataFrame:
    """Spellings of one client as its most frequent one, and without the clients left out."""
    column = frame[options.client]
    if options.merge_names and pd_text(column):
        spellings = column.map(spelling_of(column), na_action="ignore")
        changed = int((spellings != column)[column.notna()].sum())
        if changed:
            rows = plural(changed, "row")
            note(f"client: another spelling of the client id in {rows} (merge_names)")
        frame = frame.assign(**{options.client: spellings})
        column = spellings
    if options.exclude_clients:
        texts = column.map(lambda value: str(plain_id(value)), na_action="ignore")
        for name in options.exclude_clients:
            find_client(name, texts)
        frame = frame[~texts.isin(options.exclude_clients)]
        if not len(frame):
            raise SettingError("exclude_clients must leave a client, got all of them")
    return frame


def spelling_of(column: pd.Series) -> dict[Any, str]:
    """The most frequent spelling of each name, without spaces at the ends.

    >>> import pandas as pd
    >>> spelling_of(pd.Series(["Nord", "Nord ", "NORD", "Nord"]))["NORD"]
    'Nord'
    """
    counts = column.value_counts()
    best: dict[str, str] = {}
    for name in counts.index:  # the most frequent first
        best.setdefault(name_form(name), " ".join(str(name).split()))
    return {name: best[name_form(name)] for name in counts.index}


def find_client(name: str, texts: pd.Series) -> None:
    """Refuse an id that no row has."""
    if not (texts == name).any():
        raise nearest(name, [str(text) for text in texts.dropna().unique()], "exclude_clients")


def copies(frame: pd.DataFrame, options: TableOptions, across: bool) -> np.ndarray:  # -> bool[n]
    """The rows that repeat an earlier one in everything but identifiers and row numbers.

    With `across`, the client may be another.
    """
    _, first = np.unique(
        cell_keys(frame[content(frame, options, across)]).sum(1), return_index=True
    )
    repeats = np.ones(len(frame), dtype=bool)
    repeats[first] = False
    return repeats


def content(frame: pd.DataFrame, options: TableOptions, across: bool) -> list[str]:
    """The columns that make two rows the same."""
    every = np.ones(len(frame), dtype=bool)
    roles = check_roles(frame, options)
    beside = {roles["client"]} if across else set()
    names = []
    for name in frame.columns:
        if name in beside or name in options.drop:
            continue
        if name not in roles.values() and is_row_label(frame[name], name, every):
            continue
        names.append(name)
    return names


def cell_keys(frame: pd.DataFrame) -> np.ndarray:  # -> uint64[n, columns]
    """A number for each cell, by its text and its column: equal cells have equal ones."""
    import pandas as pd

    keys = []
    for j, name in enumerate(frame.columns):
        codes, distinct = pd.factorize(frame[name].astype(object), use_na_sentinel=False)
        texts = np.array([str(value) for value in distinct], dtype=object)
        keys.append(pd.util.hash_array(texts, hash_key=f"{j:016d}")[codes])
    return np.stack(keys, axis=1)


def is_row_label(column: pd.Series, name: str, rows: np.ndarray) -> bool:
    """Whether a column numbers or names the rows."""
    try:
        kind = kind_of(column, name)
        reason = "" if kind == DATE else why_not(column, name, kind, rows, len(rows))
    except SettingError:  # whatever it holds
        return False
    return reason.startswith(("a row number", "an identifier"))


def _without_copies(frame: pd.DataFrame, options: TableOptions) -> pd.DataFrame:
    if options.duplicates == "keep":
        return frame
    twice = copies(frame, options, across=options.duplicates == "drop-across")
    if twice.any():
        count = plural(int(twice.sum()), "row")
        note(f"{count} dropped, which repeat an earlier one (duplicates)")
    return frame[~twice]


def _split(frame: pd.DataFrame, options: TableOptions) -> TableSamples:
    import pandas as pd

    column = frame[options.client]
    missing = column.isna().to_numpy()
    if missing.any():
        raise SettingError(f"clients: sample {int(np.argmax(missing))} has no client id")
    whole = pd.api.types.is_integer_dtype(column.dtype)
    ids, client = read_ids(column.to_numpy(dtype=np.int64) if whole else column.to_numpy())
    group = read_groups(frame[options.group].to_numpy(), len(frame)) if options.group else None
    time = read_times(_moments(frame[options.time], options), len(frame)) if options.time else None
    split = frame[options.split].to_numpy() if options.split else None
    part = split_samples(client, split, **options.shares(), group=group, time=time)
    if not (part == 0).any():
        raise SettingError(f"split: column {options.split!r} has no row for 'train'")
    if group is not None:
        _say_groups(options.group, group, client)
    weight = _weights(frame[options.weight], options) if options.weight else None
    return TableSamples(frame, ids, client, part, group, weight, time)


def _weights(column: pd.Series, options: TableOptions) -> np.ndarray:  # -> float64[n]
    """The weight of each row, of a column of numbers."""
    if kind_of(column, options.weight) != NUMBER:
        raise SettingError(f"weight: column {options.weight!r} must hold numbers, got text")
    return read_weights(numbers(column, options.weight), len(column))


def _moments(column: pd.Series, options: TableOptions) -> np.ndarray:
    """A column of times as numbers."""
    kind = kind_of(column, options.time)
    if kind == DATE:
        return days(column, options.time, date_order(column, options.time, options.date_order))
    if kind == NUMBER:
        return numbers(column, options.time)
    raise SettingError(f"time: column {options.time!r} must hold numbers or dates, got text")


PERSON_WORDS = {
    *("patient", "person", "subject", "participant", "individual", "user", "customer", "mrn"),
    *("device", "machine", "sensor", "serial", "animal", "household", "id", "pid", "case"),
}


def repeated_units(frame: pd.DataFrame, name: str, kind: str, client: str) -> int:  # -> values
    """How many values a column of persons or devices has, if clients have several rows of each.

    It is one by its name, or because every value is of one client and is there several times.
    """
    column = frame[name]
    present = column.notna()
    if kind not in (NUMBER, CATEGORY):
        return 0
    if kind == NUMBER and not bool((column[present].astype(float) % 1 == 0).all()):
        return 0
    pairs = frame.loc[present, [client, name]].drop_duplicates()
    distinct = int(column.nunique())
    clients = int(frame[client].nunique())
    is_repeated = len(pairs) <= 0.9 * int(present.sum())
    if distinct < 10 or distinct < 2 * clients or not is_repeated:
        return 0
    is_nested = len(pairs) <= 1.05 * distinct and clients > 1
    has_labels = kind == CATEGORY or distinct > 50
    named = bool(PERSON_WORDS & set(name_words(name)))
    return distinct if named or (is_nested and has_labels) else 0


def _say_repeated(samples: TableSamples, options: TableOptions) -> None:
    """A column that is called a patient or a device and repeats, where no group is named."""
    if options.group or options.split:
        return
    roles = [getattr(options, role) for role in ROLES]
    for name in samples.frame.columns:
        if name in roles or not PERSON_WORDS & set(name_words(name)):
            continue
        try:
            kind = kind_of(samples.frame[name], name)
        except SettingError:  # a column that is dropped may hold anything
            continue
        if count := repeated_units(samples.frame, name, kind, options.client):
            note(
                f"column {name!r} has {count:,} values in {len(samples.frame):,} rows: if rows of "
                f"one value belong together, --group {name} keeps them on one side of the split"
            )


def _say_groups(name: str, group: np.ndarray, client: np.ndarray) -> None:
    count = int(group.max()) + 1
    text = f"{len(group):,} rows of {count:,} groups ({name!r}), each on one side of every split"
    shared = int((unit_owners(client, group) > client.max()).sum())
    if shared:
        text += f"; {shared:,} have rows of several clients, on the same side in all of them"
    note(text)


def _say_subgroups(subgroups: Sequence[Subgroups], prepared: Preparation) -> None:
    """Whether columns of subgroups are inputs as well."""
    features = {column.name for column in prepared.columns}
    for column in subgroups:
        is_input = "an input too" if column.name in features else "no input"
        change = f"; {option('drop', column.name)} leaves it out" if column.name in features else ""
        values = plural(len(column.labels), "value")
        note(f"subgroup: figures by {column.name!r} ({values}), which is {is_input}{change}")


def _without_missing(samples: TableSamples, kinds: dict[str, str], missing: str) -> TableSamples:
    """All samples, or with `missing` "drop" those that have a value in every column.

    Missing values are refused here, or counted in a line. `kinds`: column -> its kind.
    """
    lacks = samples.frame[list(kinds)].isna().to_numpy()
    counts = {name: int(count) for name, count in zip(kinds, lacks.sum(0), strict=True) if count}
    if not counts:
        return samples
    rows = lacks.any(1)
    if missing == "refuse":
        name = next(iter(counts))
        clients = len(np.unique(samples.client[samples.frame[name].isna().to_numpy()]))
        more = f"; so have {len(counts) - 1} other columns" if len(counts) > 1 else ""
        raise SettingError(
            f"column {name!r} has {plural(counts[name], 'missing value')} in "
            f"{plural(clients, 'client')}{more}; "
            f"fill them in or drop the samples: {option('missing', 'mean')} (or median, zero, "
            "drop; mean+flag: and a feature that says so), or leave the column out: "
            f"{option('drop', name)}"
        )
    where = some(f"{name!r} {count:,}" for name, count in counts.items())
    if missing != "drop":
        _say_filled(counts, kinds, missing)
        return samples
    complete = samples.only(~rows)
    lost = len(samples.ids) - len(complete.ids)
    lost_text = f", and with them all samples of {plural(lost, 'client')}" if lost else ""
    count = int(rows.sum())
    are = "is" if count == 1 else "are"
    note(f"{plural(count, 'sample')} with missing values {are} dropped ({where}){lost_text}")
    if not complete.train.any():
        raise SettingError("missing: no training sample has a value in every column")
    return complete


def _say_filled(counts: dict[str, int], kinds: dict[str, str], missing: str) -> None:
    texts = {name: count for name, count in counts.items() if kinds[name] == CATEGORY}
    filled = {name: count for name, count in counts.items() if name not in texts}
    if filled:
        words = some(f"{name!r} {count:,}" for name, count in filled.items())
        note(f"missing values are filled in with the {missing}: {words}")
    if texts:
        words = some(f"{name!r} {count:,}" for name, count in texts.items())
        note(f"missing text is a category of its own, if training rows have it: {words}")


def samples_used(
    table: Any, options: TableOptions, features: Sequence[str], missing: str
) -> TableSamples:
    """The rows of a table that `read_table` would choose, with the client and split of each."""
    samples, _ = table_samples(table, options)
    kinds = {name: kind_of(samples.frame[name], name) for name in features}
    return _without_missing(samples, kinds, missing)


# -- files ---------------------------------------------------------------------------------------
@register("table")
@dataclass(frozen=True)
class TableFile(TableOptions):
    """A CSV, Parquet or Excel file with a column of client ids, a target column, and features."""

    path: str = knob("", f"the file: {', '.join(SUFFIXES)}")
    separator: str = knob(
        "auto",
        "what stands between the values of a .csv file; auto: by its first line",
        choices=("auto", *SEPARATORS, *SEPARATORS.values()),
    )
    encoding: str = knob("utf-8", "of a .csv file: utf-8, cp1252 (of Windows), latin-1, ...")

    def load(self) -> Federation:
        return read_table(self.frame(), self, Path(self.path).name.partition(".")[0])

    def frame(self) -> pd.DataFrame:
        """The table as it is in the file."""
        import pandas as pd

        path = given_path(self.path, "path")
        name = path.name.lower()
        if not name.endswith(SUFFIXES):
            raise SettingError(
                f"path must be a file that ends in {', '.join(SUFFIXES)}, got {self.path!r}"
            )
        if not path.is_file():
            raise SettingError(f"path: there is no file {self.path!r}")
        try:
            if name.endswith(TEXTS):
                return _read_text(path, self)
            if name.endswith(".xlsx"):
                return _read_workbook(path, self)
            _check_size(path)
            return pd.read_parquet(path)
        except SettingError:
            raise
        except ImportError:
            needs = "an Excel file needs openpyxl: pip install 'idiolect[excel]'"
            if not name.endswith(".xlsx"):
                needs = "Parquet needs pyarrow: pip install 'idiolect[frames]'"
            raise SettingError(f"reading {needs}") from None
        except Exception as e:  # whatever the libraries raise for a damaged file
            raise SettingError(f"path: {self.path!r} cannot be read: {e}") from None


def file_alike(path: str, client: str, options: Mapping[str, Any]) -> TableFile:
    """The reader of another file that is written as the one was that these options are of."""
    names = ("separator", "encoding", "decimal", "thousands", "categories")
    same = {name: options[name] for name in names if name in options}
    return TableFile(path=path, client=client, **same)


def _read_text(path: Path, options: TableFile) -> pd.DataFrame:
    import pandas as pd

    encoding = "utf-8-sig" if options.encoding.lower() in ("utf-8", "utf8") else options.encoding
    client = options.client
    try:
        with _open_text(path, encoding) as file:
            first = file.readline()
            if options.separator == "auto":
                mark = _find_separator(first, path)
            else:
                mark = SEPARATORS.get(options.separator, options.separator)
            file.seek(0)
            header = next(csv.reader(file, delimiter=mark, skipinitialspace=True), [])
        refuse_twice([name for name in header if name])
        texts = {name: str for name in (client, *options.categories) if name in header}
        frame = pd.read_csv(
            path,
            sep=mark,
            encoding=encoding,
            low_memory=False,
            skipinitialspace=True,
            dtype=str if options.thousands else texts,  # pandas would read 31.12.2025 as a number
            decimal=options.decimal,
        )
        if options.thousands:
            rules = CellRules.of(options)
            numeric = [name for name in frame.columns if name not in texts]
            frame = frame.assign(**{name: rules.plain_numbers(frame[name]) for name in numeric})
    except LookupError:
        raise SettingError(
            f"encoding must be one that Python knows, such as utf-8 or cp1252, got "
            f"{options.encoding!r}"
        ) from None
    except UnicodeDecodeError as error:
        raise SettingError(
            f"path: {str(path)!r} is not written in {options.encoding} (byte {error.start:,} "
            "cannot be read); say in what: --encoding cp1252 (of Windows), latin-1, utf-16, ..."
        ) from None
    if not isinstance(frame.index, pd.RangeIndex):
        raise SettingError(
            f"path: the rows of {str(path)!r} have more values than its first line has names "
            f"({len(header)}); every column needs a name"
        )
    if client in frame.columns:
        frame[client] = _own_ids(frame[client])
    return frame


def _open_text(path: Path, encoding: str) -> TextIO:
    """A text file, unpacked where its name ends in .gz."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return open(path, encoding=encoding, newline="")


def _read_workbook(path: Path, options: TableFile) -> pd.DataFrame:
    """The first sheet of an Excel file."""
    import pandas as pd

    with zipfile.ZipFile(path) as archive:  # a file of a few bytes can unpack to any size
        size = sum(entry.file_size for entry in archive.infolist())
    if size > WORKBOOK:
        raise SettingError(f"path: {str(path)!r} unpacks to {size:,} bytes; at most {WORKBOOK:,}")
    with pd.ExcelFile(path, engine="openpyxl") as book:
        sheets = book.sheet_names
        if len(sheets) > 1:
            note(f"{path.name}: the first sheet is read, {sheets[0]!r}, of {len(sheets)}")
        texts = dict.fromkeys(options.categories, str)
        frame = book.parse(sheets[0], dtype=texts)
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


def _find_separator(first: str, path: Path) -> str:
    """The mark that is most frequent in the first line; a comma in doubt."""
    counts = {mark: first.count(mark) for mark in SEPARATORS.values()}
    best = max(counts, key=counts.__getitem__)
    usual = "\t" if ".tsv" in path.suffixes else ","
    if not counts[best] or counts[best] == counts[usual]:
        return usual
    if best != usual:
        name = next(name for name, mark in SEPARATORS.items() if mark == best)
        note(f"{path.name}: values are read as separated by {name} ({best!r}); --separator says so")
    return best


def _own_ids(texts: pd.Series) -> pd.Series:
    """Client ids as they are written: numbers, unless digits of one would be lost (007)."""
    import pandas as pd

    distinct = texts.dropna().unique()
    numbers = pd.to_numeric(pd.Series(distinct), errors="coerce")
    if not len(distinct) or numbers.isna().any():
        return texts
    if any(text.strip("+-0123456789") for text in distinct):  # fractions, which no id has
        return texts.astype(float)
    is_exact = all(str(int(text)) == text and len(text) < 19 for text in distinct)
    return texts.astype("Int64") if is_exact else texts


def _check_size(path: Path) -> None:
    """A Parquet file of a few bytes can unpack to any size; what it says of itself comes first."""
    import pyarrow.parquet

    facts = pyarrow.parquet.read_metadata(path)
    if facts.num_rows * max(facts.num_columns, 1) > CELLS:
        raise SettingError(
            f"path: {str(path)!r} has {facts.num_rows} rows of {facts.num_columns} columns; "
            f"at most {CELLS} cells are accepted"
        )
