"""Tables whose rows belong to many small groups: pupils of schools, ratings by people."""

from __future__ import annotations

import csv
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..partition import largest_clients
from ..read.tables import TableSet, scale_knob
from . import pickles

if TYPE_CHECKING:
    import pandas as pd

LIMIT = 1 << 26  # bytes of a file; the largest has 5 MB
UNPACKED = 1 << 26  # bytes of a pickled table; the largest has 6 MB


@dataclass(frozen=True)
class Groups(TableSet):
    """A table by group."""

    clients: int = knob(0, "number of clients, those with most samples; 0: all", low=0)
    minimum: int = knob(5, "least samples of a client; others are left out", low=1)
    kind: str = knob(
        "classes",
        "what is predicted: classes, or values (a regression)",
        choices=("classes", "values"),
    )
    scale: str = scale_knob()
    path: str = path_knob("")

    columns: ClassVar[tuple[str, ...]] = ()  # of the file; all but `text` are numbers
    text: ClassVar[tuple[str, ...]] = ()
    missing: ClassVar[str] = "refuse"  # as for tables

    def frame(self) -> pd.DataFrame:
        folder = folder_of(self.name, self.path)
        return self.prepare(self._choose(self._read(file_in(folder, f"{self.name}.csv", LIMIT))))

    def prepare(self, table: pd.DataFrame) -> pd.DataFrame:
        """The columns of the file as outcome and features."""
        raise NotImplementedError

    def _choose(self, table: pd.DataFrame) -> pd.DataFrame:
        sizes = table[self.client].value_counts(sort=False).to_dict()
        clients = largest_clients(sizes, self.clients, self.minimum)
        return table[table[self.client].isin(clients)].reset_index(drop=True)

    def _read(self, path: Path) -> pd.DataFrame:
        import pandas as pd

        kinds = {name: str if name in self.text else "float64" for name in self.columns}
        with reading(path, f"the {self.name} data"):
            table = pd.read_csv(path, dtype=kinds, encoding="utf-8")
            if tuple(table.columns) != self.columns:
                raise ValueError(f"columns {', '.join(self.columns)} are expected")
            for name in (self.client, self.source_target):
                if table[name].isna().any():
                    raise ValueError(f"column {name!r} has missing values")
            table[self.client] = table[self.client].astype("int64")
        return table

    @property
    def source_target(self) -> str:
        """The column of the file that the outcome is made of."""
        return self.target


@register("chem97")
@dataclass(frozen=True)
class Chem97(Groups):
    """A-level chemistry scores of pupils in 2,410 English schools, from earlier results.

    Six classes (0, 2 to 10: grades F to A), or their values; features are gender, age in months
    around 18.5 years and the average GCSE score.
    Fielding, Yang and Goldstein (2003), Multilevel ordinal models for examination grades.
    """

    name: ClassVar[str] = "chem97"
    client: ClassVar[str] = "school"
    target: ClassVar[str] = "score"
    columns: ClassVar[tuple[str, ...]] = (
        *("lea", "school", "student", "score", "gender", "age", "gcsescore"),
    )
    text: ClassVar[tuple[str, ...]] = ("gender",)

    def prepare(self, table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({"score": "int64"})
        return table[["school", "score", "gender", "age", "gcsescore"]]


@register("insteval")
@dataclass(frozen=True)
class InstEval(Groups):
    """Ratings of lectures at ETH Zurich by 2,972 students, 1 (poor) to 5, as classes or values.

    Features are the semesters since the lecture and of study, whether it was given for another
    department, and the department.
    Bates, Mächler, Bolker and Walker (2015), Fitting linear mixed-effects models using lme4.
    """

    name: ClassVar[str] = "insteval"
    client: ClassVar[str] = "s"
    target: ClassVar[str] = "y"
    columns: ClassVar[tuple[str, ...]] = ("s", "d", "studage", "lectage", "service", "dept", "y")

    def prepare(self, table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({"y": "int64"})
        table["dept"] = table["dept"].astype("int64").astype(str)  # a name, not a size
        return table[["s", "y", "studage", "lectage", "service", "dept"]]


@register("movielens")
@dataclass(frozen=True)
class MovieLens(Groups):
    """100,004 ratings of films by 671 people: liked (4 stars or more) or not, or the stars.

    Features are the year of the film, in decades from 1990, and its genres, 0 or 1 each.
    Harper and Konstan (2015), The MovieLens datasets: history and context.
    """

    kind: str = knob(
        "classes",
        "what is predicted: classes (liked: 4 stars or more), or values (the stars, 0.5 to 5)",
        choices=("classes", "values"),
    )
    scale: str = scale_knob("none")  # the deviation of a rare genre is next to nothing

    name: ClassVar[str] = "movielens"
    client: ClassVar[str] = "userId"
    target: ClassVar[str] = "outcome"
    columns: ClassVar[tuple[str, ...]] = (
        *("userId", "movieId", "year", "genres", "rating", "timestamp"),
    )
    text: ClassVar[tuple[str, ...]] = ("genres",)
    missing: ClassVar[str] = "mean"  # seven ratings are of films without a year

    @property
    def source_target(self) -> str:
        return "rating"

    def prepare(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        liked = (table["rating"] >= 4).map({False: "no", True: "yes"})
        genres = table["genres"].fillna("").str.get_dummies("|")
        return pd.concat(
            [
                table["userId"],
                (liked if self.kind == "classes" else table["rating"]).rename(self.target),
                ((table["year"] - 1990) / 10).rename("decade"),
                genres.drop(columns="(no genres listed)", errors="ignore").astype("float64"),
            ],
            axis=1,
        )


def table_to_csv(folder: Path) -> None:
    """`NAME.pkl.xz`, a pickled frame, as `NAME.csv` with the columns of that data set."""
    (packed,) = folder.glob("*.pkl.xz")
    name = packed.name.removesuffix(".pkl.xz")
    columns = next(c.columns for c in (Chem97, InstEval, MovieLens) if c.name == name)
    write_columns(packed, columns, folder / f"{name}.csv")


def write_columns(packed: Path, columns: tuple[str, ...], target: Path) -> None:
    """Columns of a pickled and compressed frame, as a CSV file."""
    with lzma.open(packed) as stream:
        raw = stream.read(UNPACKED + 1)
    if len(raw) > UNPACKED:
        raise SettingError(f"{packed.name}: the table unpacks to more than {UNPACKED} bytes")
    table = pickles.table(pickles.read(raw))
    missing = [column for column in columns if column not in table]
    if missing:
        raise SettingError(f"{packed.name}: the table has no column {missing[0]!r}")
    lists = [np.asarray(table[column], dtype=object).tolist() for column in columns]
    with open(target, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*lists, strict=True))  # None is written as nothing
