"""Heart disease by hospital: four files of the UCI repository, one client each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.knobs import SettingError, knob, nearest
from ...core.text import note
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..prepare.columns import read_names, write_names
from ..read.tables import TableSet, missing_knob, scale_knob

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = {  # name -> file
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "VA": "processed.va.data",
}
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
CODES = {  # what the numbers of a column stand for (heart-disease.names)
    "cp": {1: "typical", 2: "atypical", 3: "non-anginal", 4: "asymptomatic"},
    "restecg": {0: "normal", 1: "ST-T", 2: "hypertrophy"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed", 7: "reversible"},
}
MEASURED = ("trestbps", "chol")  # no living patient has a zero here
SPARSE = ("slope", "ca", "thal")
LIMIT = 1 << 20  # bytes of a file; the largest has 18 kB


def read_hospitals(value: Any) -> tuple[str, ...]:
    """Hospitals by name, with commas; each once.

    >>> read_hospitals("Cleveland, VA")
    ('Cleveland', 'VA')
    """
    names = read_names(value)
    for name in names:
        if name not in HOSPITALS:
            raise nearest(name, HOSPITALS, "hospital")
    if not names or len(set(names)) < len(names):
        raise SettingError(f"hospitals must be one or more, each once, got {value!r}")
    return names


@register("heart")
@dataclass(frozen=True)
class Heart(TableSet):
    """Coronary heart disease of 920 patients in four hospitals; the class is whether it was found.

    Detrano et al. (1989), International application of a new probability algorithm for the
    diagnosis of coronary artery disease.
    """

    hospitals: tuple[str, ...] = knob(
        tuple(HOSPITALS),
        f"those that take part, with commas: {', '.join(HOSPITALS)}",
        parse=read_hospitals,
        write=write_names,
    )
    drop: tuple[str, ...] = knob(
        SPARSE,
        "columns to leave out, with commas; these are missing in most rows outside Cleveland",
        parse=read_names,
        write=write_names,
    )
    missing: str = missing_knob("mean")
    scale: str = scale_knob()
    path: str = path_knob("heart")

    name: ClassVar[str] = "heart"
    client: ClassVar[str] = "hospital"
    target: ClassVar[str] = "disease"

    def frame(self) -> pd.DataFrame:
        """The patients of the chosen hospitals as one table."""
        import pandas as pd

        folder = folder_of("heart", self.path)
        tables = [_read(file_in(folder, HOSPITALS[name], LIMIT)) for name in self.hospitals]
        for name, table in zip(self.hospitals, tables, strict=True):
            table.insert(0, self.client, name)
        frame = pd.concat(tables, ignore_index=True)
        zeros = {name: int((frame[name] == 0).sum()) for name in MEASURED}
        for name, many in zeros.items():
            if many:
                note(f"heart: {name!r} is 0 in {many:,} of {len(frame):,} rows: read as missing")
                frame[name] = frame[name].mask(frame[name] == 0)
        frame[self.target] = (frame.pop("num") > 0).map({False: "no", True: "yes"})
        return frame


def _read(path: Path) -> pd.DataFrame:
    """A hospital's file, with names for columns and codes."""
    import pandas as pd

    with reading(path, "the heart data"):
        table = pd.read_csv(path, header=None, na_values="?", dtype="float64")
        if table.shape[1] != len(COLUMNS):
            raise ValueError(f"{table.shape[1]} columns; {len(COLUMNS)} are expected")
        table.columns = pd.Index(COLUMNS)
        if not table["num"].isin(range(5)).all():
            raise ValueError("the last column is a number from 0 to 4 in every row")
        for name, words in CODES.items():
            odd = table[name].notna() & ~table[name].isin(list(words))
            if odd.any():
                raise ValueError(f"column {name!r} holds {table[name][odd].iloc[0]:g}")
            table[name] = table[name].map(words)
    return table
