"""What the columns of a data frame hold (numbers, categories or dates), and which are features.

A frame of pandas, polars or pyarrow is read as a pandas frame whose column names are text.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import note, option, plural

if TYPE_CHECKING:
    import pandas as pd

NUMBER = "number"
CATEGORY = "category"
DATE = "date"

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([ T].*)?")
_OTHER_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})( .*)?")
DATE_ORDERS = ("auto", "dmy", "mdy")
_WITH_COMMA = re.compile(r"\s*[+-]?[\d.]*\d(,\d+)?\s*")


def read_frame(table: Any) -> pd.DataFrame:
    """A frame of any of the three libraries as a pandas frame with column names of text."""
    import pandas as pd

    library = type(table).__module__.partition(".")[0]
    if isinstance(table, pd.DataFrame):
        frame = table
    elif library == "polars" and hasattr(table, "iter_columns"):
        frame = pd.DataFrame({column.name: _from_polars(column) for column in table.iter_columns()})
    elif library == "polars" and hasattr(table, "collect"):
        raise SettingError("frame must be a DataFrame, got a lazy frame; give frame.collect()")
    elif library == "pyarrow" and hasattr(table, "column_names"):
        refuse_twice(table.column_names)
        frame = pd.DataFrame({name: _from_arrow(table[name]) for name in table.column_names})
    else:
        raise SettingError(
            "frame must be a pandas or polars DataFrame, or a pyarrow Table, got a "
            f"{type(table).__name__}"
        )
    names = [str(name) for name in frame.columns]
    refuse_twice(names)
    return frame.set_axis(names, axis=1)


def _from_polars(column: Any) -> Any:
    """A polars column for pandas; without pyarrow, which polars itself would ask for."""
    import pandas as pd

    values = column.to_numpy()
    if str(column.dtype).startswith("Enum"):
        return pd.Categorical(values, categories=list(column.dtype.categories))
    return pd.Series(values if values.ndim == 1 else column.to_list())


def _from_arrow(column: Any) -> Any:
    """A pyarrow column for pandas; what pandas cannot hold, as Python objects."""
    import pandas as pd

    try:
        return column.to_pandas(date_as_object=False)
    except (TypeError, ValueError):
        return pd.Series(column.to_pylist(), dtype=object)


def refuse_twice(names: list[str]) -> None:
    """Refuse columns of the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise SettingError(
            f"column {name!r} is in the table twice; every column needs a name of its own"
        )


def kind_of(column: pd.Series, name: str) -> str:
    """NUMBER, CATEGORY or DATE; a column that is none of them is refused by name.

    >>> import pandas as pd
    >>> kind_of(pd.Series([1.5, None]), "bp"), kind_of(pd.Series(["f", "m"]), "sex")
    ('number', 'category')
    """
    import pandas as pd

    types = pd.api.types
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
        return CATEGORY
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return DATE
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return NUMBER
    inferred = types.infer_dtype(column, skipna=True)
    if inferred == "string":
        return _kind_of_text(column.dropna(), name)
    if inferred in ("integer", "floating", "mixed-integer-float", "decimal", "empty"):
        return NUMBER
    if inferred == "boolean":
        return CATEGORY
    if inferred in ("date", "datetime", "datetime64"):
        return DATE
    if inferred.startswith("mixed"):
        types_present = sorted({type(value).__name__ for value in column.dropna()})
        several = f"values of several kinds ({', '.join(types_present)})"
        inferred = several if len(types_present) > 1 else f"objects ({types_present[0]})"
    if inferred == "unknown-array":
        inferred = str(dtype)
    raise SettingError(
        f"column {name!r} holds {inferred}; numbers, text, booleans and categories are accepted: "
        f"convert it, or leave it out: {option('drop', name)}"
    )


def text_form(texts: Sequence[str]) -> str:
    """DATE where all texts are dates, otherwise CATEGORY."""
    dates = all(map(_ISO_DATE.fullmatch, texts)) or all(map(_OTHER_DATE.fullmatch, texts))
    return DATE if dates else CATEGORY


def _kind_of_text(present: pd.Series, name: str) -> str:
    """CATEGORY or DATE; numbers that were read as text are refused, with the likely reason."""
    import pandas as pd

    texts = [str(value) for value in present.unique()]
    if text_form(texts) == DATE:
        return DATE
    comma = next((text for text in texts if "," in text), None)
    if comma is not None and all(map(_WITH_COMMA.fullmatch, texts)):
        raise SettingError(
            f"column {name!r} holds numbers with a comma, such as {comma!r}; say what it is: "
            "--decimal , (and --thousands . if 1.234,5 has one), or --thousands ,"
        )
    _refuse_marked_numbers(texts, name)
    values = pd.to_numeric(pd.Series(texts), errors="coerce").to_numpy()
    odd = {text for text, value in zip(texts, values, strict=True) if np.isnan(value)}
    rows = int(present.isin(odd).sum())
    if odd and len(texts) - len(odd) > 10 and rows <= 0.1 * len(present):
        raise SettingError(
            f"column {name!r} holds numbers and, in {plural(rows, 'row')}, text such as "
            f"{min(odd)!r}; if that is a missing value: "
            f"{option('missing_codes', f'{name}={min(odd)}')}; otherwise correct it, or leave the "
            f"column out: {option('drop', name)}"
        )
    return CATEGORY


MARKED = 3  # distinct numbers with one unit that are taken for measurements


def _refuse_marked_numbers(texts: list[str], name: str) -> None:
    """Refuse measurements with a unit ('12 mg') or a limit ('<7') that would become categories."""
    from .cells import CellRules

    cells = [CellRules().read(text) for text in texts]
    present = [cell for cell in cells if cell is not None]
    if len(present) < len(cells) or len({cell.value for cell in present}) < MARKED:
        return
    units = {cell.unit for cell in present}
    example = next((t for t, c in zip(texts, present, strict=True) if c.limit or c.unit), "")
    if any(cell.limit for cell in present) and len(units) == 1:
        raise SettingError(
            f"column {name!r} holds numbers with a limit, such as {example!r}; take the limit for "
            f"the value: --limits value, or leave the column out: --drop {name}"
        )
    if len(units) == 1 and any(units):
        raise SettingError(
            f"column {name!r} holds numbers with a unit, such as {example!r}; leave the unit out: "
            f"--units strip, or take them for categories: --categories {name}"
        )


def numbers(column: pd.Series, name: str) -> np.ndarray:  # -> float64[n]
    """A column of numbers; NaN where a value is missing. Infinity is refused."""
    try:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise SettingError(f"column {name!r} holds {column.dtype}; numbers are expected") from None
    infinite = np.isinf(values)
    if infinite.any():
        raise SettingError(
            f"column {name!r} holds infinity in row {int(np.argmax(infinite))} (counted from 0); "
            "only finite numbers are accepted"
        )
    return values


def date_order(column: pd.Series, name: str, order: str = "auto") -> str:
    """How dates are written as text: "dmy", "mdy", or "" for 2026-01-31 and for what is no text.

    With "auto", dots mean that the day is first; with other marks, a number above 12 must show it.

    >>> import pandas as pd
    >>> date_order(pd.Series(["31.01.2026"]), "visit"), date_order(pd.Series(["1/31/26"]), "visit")
    ('dmy', 'mdy')
    """
    if kind_of(column, name) != DATE or not pd_text(column):
        return ""
    parts = [_OTHER_DATE.fullmatch(str(text)) for text in column.dropna().unique()]
    matches = [match for match in parts if match is not None]
    if not matches:
        return ""
    day_first = any(int(match[1]) > 12 for match in matches)
    month_first = any(int(match[3]) > 12 for match in matches)
    shows = {(True, False): "dmy", (False, True): "mdy"}.get((day_first, month_first), "")
    dots = all(match[2] == "." for match in matches)
    if order == "auto":
        order = shows or ("dmy" if dots and not month_first else "")
    if not order or (shows and order != shows) or (day_first and month_first):
        example = matches[0][0]
        raise SettingError(
            f"column {name!r} holds dates such as {example!r}, of which the order of day and month "
            f"must be clear; say it: --date-order dmy or mdy, or leave it out: --drop {name}"
        )
    return order


def pd_text(column: pd.Series) -> bool:
    """Whether a column holds text."""
    import pandas as pd

    return pd.api.types.infer_dtype(column, skipna=True) == "string"


def _as_iso(text: Any, order: str) -> Any:
    """A date with the day or the month first as 2026-01-31; others stay."""
    match = _OTHER_DATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return text
    day, month = (match[1], match[3]) if order == "dmy" else (match[3], match[1])
    year = match[4] if len(match[4]) == 4 else f"{'19' if int(match[4]) >= 69 else '20'}{match[4]}"
    return f"{year}-{int(month):02d}-{int(day):02d}{match[5] or ''}"


def days(column: pd.Series, name: str, order: str = "") -> np.ndarray:  # -> float64[n]
    """Dates as days since 1970-01-01; NaN where a date is missing. `order` as `date_order` has it.

    >>> import pandas as pd
    >>> days(pd.Series(["02.01.1970", None]), "visit", "dmy").tolist()
    [1.0, nan]
    """
    import pandas as pd

    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if order:
        column = column.map(lambda text: _as_iso(text, order), na_action="ignore")
    try:
        if not pd.api.types.is_datetime64_any_dtype(column.dtype):
            column = pd.to_datetime(column, format="ISO8601", utc=True)
        moments = pd.DatetimeIndex(column).tz_localize(None)
    except (TypeError, ValueError):
        raise SettingError(
            f"column {name!r} holds dates that can be read in more than one way, or not at all; "
            "write them as 2026-01-31, or say the order of day and month: --date-order dmy or mdy"
        ) from None
    return ((moments - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)


def coded(column: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Each row as the number of its value, -1 where it is missing; and the distinct values.

    >>> import pandas as pd
    >>> codes, values = coded(pd.Series(["b", None, "a", "b"]))
    >>> codes.tolist(), values
    ([0, -1, 1, 0], ['b', 'a'])
    """
    import pandas as pd

    codes, distinct = pd.factorize(column)
    return codes.astype(np.int64), [plain_value(value) for value in distinct]


def plain_value(value: Any) -> Any:
    """A cell as a Python bool, int, float or text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if type(value) in (bool, int, float, str) else str(value)


def in_order(values: list[Any], column: pd.Series) -> list[Any]:
    """Distinct values in the order of a pandas categorical, otherwise sorted."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        place = {plain_value(v): i for i, v in enumerate(column.dtype.categories)}
        return sorted(values, key=place.__getitem__)
    return sorted(values)


# -- features: the columns that the user names, or all that carry something to learn -------------

ROW_NUMBERS = (
    *("", "unnamed: 0", "index", "level_0", "__index_level_0__"),
    *("row", "rownames", "row_names"),
)
ID_WORDS = ("id", "ids", "uuid", "guid")
FEW_ROWS = 10  # in fewer rows, numbers that count from 1 may well be measurements


def read_names(names: Any) -> tuple[str, ...]:
    """Column names from a list, or from text with commas (a name with a comma in quotes).

    >>> read_names("age, bp"), read_names([0, "bp"]), read_names('"a, b",c')
    (('age', 'bp'), ('0', 'bp'), ('a, b', 'c'))
    """
    if isinstance(names, str):
        rows = list(csv.reader([names], skipinitialspace=True)) if names.strip() else [[]]
        return tuple(name.strip() for name in rows[0] if name.strip())
    if isinstance(names, (list, tuple)):
        return tuple(str(name) for name in names)
    if names is None:
        return ()
    raise SettingError(f"columns must be a list of names, or text with commas, got {names!r}")


def write_names(names: Sequence[str]) -> str:
    """The inverse of `read_names`, as text.

    >>> write_names(["age", "a, b"])
    'age,"a, b"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def find(name: str, role: str, columns: Collection[str]) -> None:
    """Refuse the name of a column that is not there; the nearest name is suggested."""
    if name in columns:
        return
    columns = list(columns)
    close = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = ", ".join(columns[:30]) + (", ..." if len(columns) > 30 else "")
    raise SettingError(f"{role}: column {name!r} is not in the table; {hint}its columns: {names}")


def candidates(
    columns: Collection[str], roles: dict[str, str], features: Sequence[str], drop: Sequence[str]
) -> list[str]:
    """The columns that may be features; `roles`: what the other columns are ("target" -> name)."""
    role_of = {name: role for role, name in roles.items()}
    for role, names in (("features", features), ("drop", drop)):
        for name in names:
            find(name, role, columns)
            if name in role_of:
                raise SettingError(
                    f"{role}: {name!r} is the column of the {role_of[name]}; name others"
                )
    for name in features:
        if name in drop:
            raise SettingError(f"drop: {name!r} is named in features too; name it once")
    feature_columns = [
        name for name in (features or columns) if name not in role_of and name not in drop
    ]
    feature_columns = list(dict.fromkeys(feature_columns))
    if not feature_columns:
        beside = ", ".join(repr(name) for name in role_of)
        raise SettingError(f"the table has no feature columns beside {beside}")
    return feature_columns


def choose(
    frame: pd.DataFrame,
    names: Sequence[str],
    train: np.ndarray,
    *,
    keep: bool,
    dates: str,
    most: int,
    codes: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """(features, dropped): the kind of each feature, and why a column is none.

    Only training rows (`train`, bool[n]) decide. `keep`: the user named these columns, and none is
    dropped. `most`: distinct values beyond which a column called "..._id" is an identifier.
    `codes`: the columns that the user calls categories.
    """
    kinds = {}
    dropped = {}
    for name in names:
        kind = CATEGORY if name in codes else kind_of(frame[name], name)
        if kind == DATE:
            if dates == "refuse":
                raise SettingError(
                    f"column {name!r} holds dates; leave it out ({option('drop', name)}), or take "
                    f"the days since 1970-01-01 as a number: {option('dates', 'days')}"
                )
            if dates == "drop":
                dropped[name] = "dates"
                continue
        reason = "" if keep or name in codes else why_not(frame[name], name, kind, train, most)
        if reason:
            dropped[name] = reason
        else:
            kinds[name] = kind
    if not kinds:
        why = "; ".join(f"{name!r} is {reason}" for name, reason in dropped.items())
        raise SettingError(f"the table has no feature columns left: {why}")
    return kinds, dropped


def why_not(column: pd.Series, name: str, kind: str, train: np.ndarray, most: int) -> str:
    """Why a column is no feature; "" if it is one."""
    rows = np.flatnonzero(train)
    if kind == NUMBER:
        values = numbers(column, name)[rows]
        present = values == values
        distinct = len(np.unique(values[present]))
        whole = bool((values[present] % 1 == 0).all())
    else:
        values, _ = coded(column)
        values = values[rows]
        present = values >= 0
        distinct = len(np.unique(values[present]))
        whole = False
    if not present.any():
        return "empty"
    if distinct == 1 and present.all() and len(rows) > 1:
        return "constant"
    if kind == DATE:
        return ""
    if whole:
        if name.lower() in ROW_NUMBERS:
            return "a row number"
        if len(column) >= FEW_ROWS and any((values == rows + start).all() for start in (0, 1)):
            return "a row number"
    if whole or kind == CATEGORY:
        return _why_identifier(name, distinct, int(present.sum()), most)
    return ""


def name_words(name: str) -> list[str]:
    """The words in the name of a column.

    >>> name_words("PatientID"), name_words("zip_code")
    (['patient', 'id'], ['zip', 'code'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _why_identifier(name: str, distinct: int, count: int, most: int) -> str:
    """Whether whole numbers or texts under this name are identifiers.

    >>> _why_identifier("patient_id", 300, 900, most=50)
    'an identifier: 300 distinct values'
    >>> _why_identifier("thyroid", 2, 900, most=50)
    ''
    """
    words = name_words(name)
    by_word = bool(words) and (words[0] in ID_WORDS or words[-1] in ID_WORDS)
    by_ending = name.lower().endswith("id") and count >= FEW_ROWS
    if (by_word and distinct > most) or ((by_word or by_ending) and distinct == count):
        return f"an identifier: {distinct:,} distinct values"
    if by_word:
        note(
            f"column {name!r} is called an identifier but has {distinct} distinct values: kept "
            f"as a feature; {option('drop', name)} leaves it out"
        )
    return ""
