"""What a cell of a table means: codes for missing values, decimal commas, units, limits, codes.

The rules are part of a `Preparation`, so that new rows are read as the training rows were.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...core.knobs import SettingError
from ...core.text import listed, note

if TYPE_CHECKING:
    import pandas as pd

DECIMALS = (".", ",")
THOUSANDS = ("", ".", ",", "'", " ")
UNITS = ("refuse", "strip")
LIMITS = ("refuse", "value")
UNIT = r"[A-Za-z%°µμ€$£/][^\d<>=]*(?:\d|²|³|\^\d)?[^\d<>=]*"


@dataclass(frozen=True)
class NumberCell:
    """A number as it stands in a text: '<12,5 mg' has a limit and a unit."""

    value: float
    limit: str
    unit: str


@dataclass(frozen=True)
class CellRules:
    """How cells are read, by the options of a table; nothing is done by default."""

    every_key: ClassVar[bool] = True

    decimal: str = "."
    thousands: str = ""
    missing_codes: tuple[str, ...] = ()  # "?" in every column, "age=999" in one
    units: str = "refuse"
    limits: str = "refuse"
    categories: tuple[str, ...] = ()  # columns of numbers that are codes
    unit_of: dict[str, str] = field(default_factory=dict)  # column -> the unit that was stripped

    @classmethod
    def of(cls, options: Any) -> CellRules:
        """From options of the same names."""
        names = ("decimal", "thousands", "missing_codes", "units", "limits", "categories")
        rules = cls(**{name: getattr(options, name) for name in names})
        if rules.decimal == rules.thousands:
            raise SettingError(
                f"thousands must be another mark than decimal, got {rules.thousands!r} for both"
            )
        return rules

    @property
    def active(self) -> bool:
        return self != CellRules()

    def clean(self, frame: pd.DataFrame, names: Collection[str]) -> tuple[pd.DataFrame, CellRules]:
        """The table with these columns read by the rules, and the rules with their units."""
        if not self.active:
            return frame, self
        self._refuse_unknown(frame)
        columns = {}
        units: dict[str, str] = {}
        for name in frame.columns:
            codes = self._codes_of(name, every=name in names)
            column = _without_codes(frame[name], codes) if codes else frame[name]
            if name in self.categories:
                column = as_codes(column)
            elif name in names and _is_text(column):
                column, unit = self._numbers(column, name)
                units |= {name: unit} if unit else {}
            columns[name] = column
        new = {name: unit for name, unit in units.items() if name not in self.unit_of}
        if new:
            note("units are left out: " + ", ".join(f"{n!r} ({unit})" for n, unit in new.items()))
        cleaned = frame.assign(**columns) if columns else frame
        return cleaned, replace(self, unit_of={**self.unit_of, **new})

    def _refuse_unknown(self, frame: pd.DataFrame) -> None:
        for name in self.categories:
            if name not in frame.columns:
                raise SettingError(f"categories: column {name!r} is not in the table")

    def _codes_of(self, name: str, every: bool) -> list[str]:
        """The codes of a column: its own, and those of all features and the target."""
        own = [code[len(name) + 1 :] for code in self.missing_codes if code.startswith(f"{name}=")]
        return own + [code for code in self.missing_codes if every and "=" not in code]

    def _numbers(self, column: pd.Series, name: str) -> tuple[pd.Series, str]:
        """A column of texts as numbers, if all of them are numbers by the rules."""
        import pandas as pd

        texts = [str(text) for text in column.dropna().unique()]
        cells = {text: self.read(text) for text in texts}
        if not texts or any(cell is None for cell in cells.values()):
            return column, ""
        present = [cell for cell in cells.values() if cell is not None]
        # text that is written as plain numbers may be codes: it stays text
        if name not in self.unit_of and all(map(_is_plain, texts)):
            return column, ""
        if any(cell.limit for cell in present) and self.limits == "refuse":
            return column, ""
        units = sorted({cell.unit for cell in present})
        expected = self.unit_of.get(name, units[0])
        if any(units) and self.units == "refuse":
            return column, ""
        if units != [expected]:
            raise SettingError(
                f"units: column {name!r} must hold one unit"
                f"{f' ({expected})' * (name in self.unit_of)}, got {listed(units)}; convert it, "
                f"or leave it out: --drop {name}"
            )
        values = {text: cell.value for text, cell in cells.items() if cell is not None}
        numbers = pd.to_numeric(column.astype(object).map(values), errors="coerce")
        return numbers, expected

    def plain_numbers(self, column: pd.Series) -> pd.Series:
        """A column of texts as numbers if all are, without units and limits; otherwise as it is."""
        import pandas as pd

        cells = {text: self.read(text) for text in column.dropna().unique()}
        if any(cell is None or cell.limit or cell.unit for cell in cells.values()):
            return column
        values = {text: cell.value for text, cell in cells.items() if cell is not None}
        numbers = pd.to_numeric(column.astype(object).map(values))
        whole = bool((numbers % 1 == 0).all()) and all(map(_is_plain, cells))
        return numbers.astype(np.int64) if whole and column.notna().all() else numbers

    def read(self, text: str) -> NumberCell | None:
        """A text as a number; None if it is none by these marks.

        >>> CellRules(decimal=",", thousands=".").read("<1.012,5 mg")
        NumberCell(value=1012.5, limit='<', unit='mg')
        >>> CellRules().read("18-25")
        """
        mark, decimal = re.escape(self.thousands), re.escape(self.decimal)
        whole = rf"\d{{1,3}}(?:{mark}\d{{3}})+|\d+" if mark else r"\d+"
        number = rf"[+-]?(?:(?:{whole})(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][+-]?\d+)?"
        match = re.fullmatch(rf"\s*([<>≤≥]?)=?\s*({number})\s*({UNIT})?\s*", text)
        if match is None:
            return None
        digits = match[2].replace(self.thousands, "") if self.thousands else match[2]
        value = float(digits.replace(self.decimal, "."))
        return NumberCell(value, match[1], (match[3] or "").strip())


def read_codes(codes: Any) -> tuple[str, ...]:
    """Codes of missing values from a list, or from text with commas.

    >>> read_codes("?, age=999"), read_codes([-1])
    (('?', 'age=999'), ('-1',))
    """
    from .columns import read_names

    return read_names(codes)


def _is_text(column: pd.Series) -> bool:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return False
    return pd.api.types.infer_dtype(column, skipna=True) == "string"


def _is_plain(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+\s*", text) is not None


def _without_codes(column: pd.Series, codes: Sequence[str]) -> pd.Series:
    """The column with its codes as missing values."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        values = pd.to_numeric(pd.Series(list(codes)), errors="coerce").dropna()
        is_code = column.isin(values.tolist())
    else:
        is_code = column.astype(object).map(lambda cell: str(cell).strip() in codes).astype(bool)
    return column.mask(is_code) if is_code.any() else column


def as_codes(column: pd.Series) -> pd.Series:
    """Numbers that are codes, as text: 1067 and 1067.0 are "1067"."""
    import pandas as pd

    def text(value: Any) -> Any:
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            return str(int(value))
        return value if isinstance(value, str) else str(value)

    present = column.notna()
    texts = pd.Series([None] * len(column), index=column.index, dtype=object)
    texts[present] = [text(value) for value in column[present]]
    return texts
