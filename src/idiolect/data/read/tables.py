"""Tables: one row per sample, one column of client ids.

A data frame, or a CSV or Parquet file, becomes rows with a client and a split each (TableSamples);
these are prepared (data/prepare) and become a federation.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...core.files import given_path
from ...core.knobs import SettingError, knob
from ...core.text import note, option, plural
from ..entries import register
from ..federation import Federation
from ..prepare import Preparation
from ..prepare.columns import (
    candidates,
    choose,
    find,
    read_frame,
    read_names,
    refuse_twice,
    write_names,
)
from ..prepare.fit import TableSamples, extend, fit, say_clients, say_preparation, some
from ..prepare.preparation import MISSING, SCALES
from ..splits import SPLITS, Shares, draw_split, read_split
from .ids import read_ids
from .targets import read_target_column

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 28  # rows by columns of a Parquet file: 2 GiB as numbers of eight bytes
SUFFIXES = (".csv", ".tsv", ".parquet")
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
    frame = read_frame(table)
    roles = _check_roles(frame, options)
    samples = _split(frame, options)
    if preparation is None:
        samples, prepared = _prepare(samples, options, roles)
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
    say_clients(samples.ids, samples.client, options.client)
    clients = [samples.ids[k] for k in samples.client]
    federation = Federation.from_arrays(
        prepared.apply(samples.frame, clients),
        targets,
        clients,
        split=np.array(SPLITS)[samples.part],
        kind="classes" if labels else "values",
        classes=len(labels) or None,
        name=name,
    )
    return replace(federation, class_names=labels, preparation=prepared)


def _prepare(
    samples: TableSamples, options: TableOptions, roles: dict[str, str]
) -> tuple[TableSamples, Preparation]:
    """The samples that are kept, and a new preparation from their training rows."""
    names = candidates(samples.frame.columns, roles, options.features, options.drop)
    kinds, dropped = choose(
        samples.frame,
        names,
        samples.train,
        keep=bool(options.features),
        dates=options.dates,
        most=options.max_categories,
    )
    complete = _without_missing(samples, list(kinds), options.missing)
    prepared = fit(
        complete,
        kinds,
        scale=options.scale,
        missing=options.missing,
        max_categories=options.max_categories,
        dropped=dropped | dict.fromkeys(options.drop, "as asked"),
    )
    say_preparation(prepared)
    return complete, prepared


def _prepare_alike(
    samples: TableSamples, preparation: Preparation
) -> tuple[TableSamples, Preparation]:
    """The same by an earlier preparation, which learns of clients that it does not know."""
    names = [column.name for column in preparation.columns]
    for name in names:
        find(name, "frame", samples.frame.columns)
    complete = _without_missing(samples, names, preparation.missing)
    return complete, extend(preparation, complete)


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
    for name in ("features", "drop", "missing", "scale", "max_categories", "dates"):
        if getattr(options, name) != getattr(TableOptions(), name):
            raise SettingError(f"{name} must be left out with a preparation, which decides it")


def _check_roles(frame: pd.DataFrame, options: TableOptions) -> dict[str, str]:
    """The columns that are no features, by what they are."""
    columns = frame.columns
    roles = {"client": options.client, "target": options.target, "split": options.split}
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
    if not len(frame):
        raise SettingError("the table is empty: it has columns, but no rows")
    return roles


def _split(frame: pd.DataFrame, options: TableOptions) -> TableSamples:
    import pandas as pd

    column = frame[options.client]
    missing = column.isna().to_numpy()
    if missing.any():
        raise SettingError(f"clients: sample {int(np.argmax(missing))} has no client id")
    whole = pd.api.types.is_integer_dtype(column.dtype)
    ids, client = read_ids(column.to_numpy(dtype=np.int64) if whole else column.to_numpy())
    if options.split:
        part = read_split(frame[options.split].to_numpy(), len(frame))
        if not (part == 0).any():
            raise SettingError(f"split: column {options.split!r} has no row for 'train'")
    else:
        part = draw_split(client, **options.shares())
    return TableSamples(frame, ids, client, part)


def _without_missing(samples: TableSamples, names: list[str], missing: str) -> TableSamples:
    """All samples, or with `missing` "drop" those that have a value in every column.

    Missing values are refused here, or counted in a line.
    """
    lacks = samples.frame[names].isna().to_numpy()
    counts = {name: int(count) for name, count in zip(names, lacks.sum(0), strict=True) if count}
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
        note(f"missing values are filled in with the {missing}: {where}")
        return samples
    complete = samples.only(~rows)
    lost = len(samples.ids) - len(complete.ids)
    lost_text = f", and with them all samples of {plural(lost, 'client')}" if lost else ""
    note(f"{int(rows.sum()):,} samples with missing values are dropped ({where}){lost_text}")
    if not complete.train.any():
        raise SettingError("missing: no training sample has a value in every column")
    return complete


def training_rows(
    table: Any, options: TableOptions, features: Sequence[str], missing: str
) -> pd.DataFrame:
    """The training rows of a table, as `read_table` would choose them: for sums of its columns."""
    frame = read_frame(table)
    _check_roles(frame, options)
    complete = _without_missing(_split(frame, options), list(features), missing)
    return complete.frame[complete.train]


# -- files ---------------------------------------------------------------------------------------
@register("table")
@dataclass(frozen=True)
class TableFile(TableOptions):
    """A CSV or Parquet file with a column of client ids, a target column, and features."""

    path: str = knob("", "the file, .csv, .tsv or .parquet")
    separator: str = knob(
        "auto",
        "what stands between the values of a .csv file; auto: by its first line",
        choices=("auto", *SEPARATORS, *SEPARATORS.values()),
    )

    def load(self) -> Federation:
        return read_table(self.frame(), self, Path(self.path).stem)

    def frame(self) -> pd.DataFrame:
        """The table as it is in the file."""
        path = given_path(self.path, "path")
        if path.suffix.lower() not in SUFFIXES:
            raise SettingError(f"path must be a .csv, .tsv or .parquet file, got {self.path!r}")
        if not path.is_file():
            raise SettingError(f"path: there is no file {self.path!r}")
        try:
            if path.suffix.lower() != ".parquet":
                return _read_text(path, self.client, self.separator)
            _check_size(path)
            import pandas as pd

            return pd.read_parquet(path)
        except SettingError:
            raise
        except ImportError:
            raise SettingError(
                "reading Parquet needs pyarrow: pip install 'idiolect[frames]'"
            ) from None
        except Exception as e:  # whatever the libraries raise for a damaged file
            raise SettingError(f"path: {self.path!r} cannot be read: {e}") from None


def _read_text(path: Path, client: str, separator: str) -> pd.DataFrame:
    import pandas as pd

    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        if separator == "auto":
            mark = _find_separator(first, path)
        else:
            mark = SEPARATORS.get(separator, separator)
        file.seek(0)
        header = next(csv.reader(file, delimiter=mark, skipinitialspace=True), [])
    refuse_twice([name for name in header if name])
    frame = pd.read_csv(
        path,
        sep=mark,
        encoding="utf-8-sig",
        low_memory=False,
        skipinitialspace=True,
        dtype={client: str},
    )
    if not isinstance(frame.index, pd.RangeIndex):
        raise SettingError(
            f"path: the rows of {str(path)!r} have more values than its first line has names "
            f"({len(header)}); every column needs a name"
        )
    if client in frame.columns:
        frame[client] = _own_ids(frame[client])
    return frame


def _find_separator(first: str, path: Path) -> str:
    """The mark that is most frequent in the first line; a comma in doubt."""
    counts = {mark: first.count(mark) for mark in SEPARATORS.values()}
    best = max(counts, key=counts.__getitem__)
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
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
