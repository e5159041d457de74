"""Your own data from a CSV or Parquet file: one row per sample, one column of client ids."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.files import given_path
from ...core.knobs import SettingError, knob
from ...core.text import note
from ..entries import register
from ..federation import Federation
from ..prepare.columns import refuse_twice
from .frames import TableOptions, read_table

if TYPE_CHECKING:
    import pandas as pd

CELLS = 1 << 28  # rows by columns of a Parquet file: 2 GiB as numbers of eight bytes
SUFFIXES = (".csv", ".tsv", ".parquet")
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}


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
        how = TableOptions(**{f.name: getattr(self, f.name) for f in fields(TableOptions)})
        return read_table(self.frame(), how, Path(self.path).stem)

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
