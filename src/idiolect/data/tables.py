"""Your own data from a CSV or Parquet file: one row per sample, one column of client ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.knobs import Knobs, SettingError, knob
from ..core.paths import given_path
from .federation import Federation

CELLS = 1 << 28  # rows by columns of a Parquet file: 2 GiB as numbers of eight bytes


@dataclass(frozen=True)
class TableFile(Knobs):
    """A CSV or Parquet file with a column of client ids, a target column, and numeric features."""

    path: str = knob("", "the file, .csv or .parquet")
    client: str = knob("client", "column of client ids")
    target: str = knob("target", "column to predict")
    split: str = knob("", "column of train, valid or test; empty: drawn at random")
    kind: str = knob(
        "auto",
        "what the target is: classes, values (regression), or auto: "
        "fractions are values, everything else classes",
        choices=("auto", "classes", "values"),
    )
    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    test: float = knob(0.2, "share of each client's samples kept for testing", low=0, below=1)
    seed: int = knob(0, "seed of the split", low=0)

    def load(self) -> Federation:
        path = given_path(self.path, "path")
        if path.suffix not in (".csv", ".parquet"):
            raise SettingError(f"path: {self.path!r} is not accepted; a .csv or .parquet file")
        if not path.is_file():
            raise SettingError(f"path: there is no file {self.path!r}")
        try:
            import pandas as pd
        except ImportError:
            raise SettingError(
                "reading tables needs pandas: pip install 'idiolect[frames]'"
            ) from None
        try:
            if path.suffix == ".csv":
                frame = pd.read_csv(path, encoding="utf-8")
            else:
                _check_size(path)
                frame = pd.read_parquet(path)
        except SettingError:
            raise
        except ImportError:
            raise SettingError(
                "reading Parquet needs pyarrow: pip install 'idiolect[frames]'"
            ) from None
        except Exception as e:  # whatever the libraries raise for a damaged file
            raise SettingError(f"path: {self.path!r} cannot be read: {e}") from None
        options = {"valid": self.valid, "test": self.test, "seed": self.seed, "name": path.stem}
        return Federation.from_frame(
            frame,
            client=self.client,
            target=self.target,
            split=self.split or None,
            kind=self.kind,
            **options,
        )


def _check_size(path: Path) -> None:
    """A Parquet file of a few bytes can unpack to any size; what it says of itself comes first."""
    import pyarrow.parquet

    facts = pyarrow.parquet.read_metadata(path)
    if facts.num_rows * max(facts.num_columns, 1) > CELLS:
        raise SettingError(
            f"path: {str(path)!r} has {facts.num_rows} rows of {facts.num_columns} columns; "
            f"at most {CELLS} cells are accepted"
        )
