"""Everything that looks wrong with a table, in one pass, with the flag that settles it."""

from __future__ import annotations

import io
import math
import re
import shlex
import textwrap
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.knobs import SettingError, build
from ..core.text import listed, plural, shown
from .prepare.cells import CellRules, NumberCell
from .prepare.columns import (
    CATEGORY,
    DATE,
    NUMBER,
    coded,
    date_order,
    find,
    kind_of,
    name_words,
    numbers,
    pd_text,
    read_frame,
    text_form,
    why_not,
    write_names,
)
from .prepare.fit import TableSamples
from .read.ids import similar_names
from .read.tables import (
    ROLES,
    TEXTS,
    TableFile,
    TableOptions,
    cell_keys,
    content,
    copies,
    repeated_units,
    table_samples,
)
from .read.targets import read_target_column

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80
SENTINELS = (-1, -9, -99, -999, -9999, 99, 999, 9999, 99999, 888, 8888, 777, 7777)
CODE_WORDS = {"zip", "zipcode", "plz", "postal", "postcode", "postleitzahl", "code", "icd", "drg"}
WEIGHT_NAMES = {  # not "weight" alone, which may be a person's
    *("sample_weight", "sampleweight", "sampling_weight", "survey_weight", "row_weight"),
    *("fnlwgt", "finalwt", "finalweight", "final_weight", "pweight", "wtfinal", "perwt", "hhwt"),
}
CERTAIN = 0.99  # accuracy or share of variance by one column that looks like a leak
TEST_ROWS = 10  # of a client, below which its figures say little
CLASS_ROWS = 10  # of a class, below which it cannot be learnt
LEAK_ROWS = 5000  # that the search for leaks looks at
LISTS = ("drop", "missing_codes", "categories", "exclude_clients")  # options of several values
CLIENT_KINDS = ("one-class client", "small client", "rare class")  # to judge one by one


@dataclass(frozen=True)
class Finding:
    """Something about a table that its owner should decide."""

    kind: str
    text: str
    column: str = ""
    client: str = ""  # the clients that it is about, with commas
    option: str = ""  # that settles it, and the value for it
    value: str = ""

    @property
    def flag(self) -> str:
        """What settles it on the command line; "" where only the data can."""
        name = self.option.replace("_", "-")
        return f"--{name} {shlex.quote(self.value)}" if self.option else ""


@dataclass(frozen=True)
class TableCheck:
    """What `idiolect.check` has to say of a table."""

    rows: int
    columns: int
    findings: tuple[Finding, ...]

    @property
    def flags(self) -> str:
        """The flags that settle what can be settled without a look at single clients."""
        values: dict[str, list[str]] = {}
        for finding in self.findings:
            if finding.option and finding.kind not in CLIENT_KINDS:
                values.setdefault(finding.option, []).append(finding.value)
        dropped = values.get("drop", [])
        words = []
        for option, every in values.items():
            distinct = list(dict.fromkeys(every))
            if option == "missing_codes":  # of columns that stay
                distinct = [code for code in distinct if code.partition("=")[0] not in dropped]
            value = write_names(distinct) if option in LISTS else distinct[0]
            if distinct:
                words.append(f"--{option.replace('_', '-')} {shlex.quote(value)}")
        return " ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        names = ("kind", "column", "client", "text", "flag")
        findings = [{name: getattr(f, name) for name in names} for f in self.findings]
        return {"rows": self.rows, "columns": self.columns, "findings": findings}

    def __repr__(self) -> str:
        count = len(self.findings)
        title = (
            f"{count or 'no'} finding{'s' * (count != 1)} in {plural(self.rows, 'row')} of "
            f"{plural(self.columns, 'column')}"
        )
        lines = [title]
        for finding in self.findings:
            text = f"{finding.kind}: {shown(finding.text)}"
            lines += textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
            lines += [f"    {shown(finding.flag)}"] if finding.flag else []
        return "\n".join(lines)


def check(
    table: Any,
    client: Any = None,
    target: Any = None,
    **options: Any,
) -> TableCheck:
    """Everything in a table that needs a decision, and the flag (option) that settles each.

    `table` is a data frame, the path of a file, or an array of features; `client` and `target`
    name columns, or are arrays beside an array. What they tell is left out where they are not
    named. The other options are those of `idiolect.data.load("table", ...)`: what they settle is
    no finding any more.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"site": ["Nord", "NORD"] * 60, "ill": [0, 0, 1] * 40})
    >>> frame["age"] = [30.5 + i if i % 9 else 999 for i in range(120)]
    >>> report = check(frame, client="site", target="ill")
    >>> [finding.kind for finding in report.findings]
    ['client names', 'missing code', 'missing']
    >>> report.flags
    '--merge-names true --missing-codes age=999 --missing mean'
    """
    roles = {"client": client, "target": target}
    if isinstance(table, str | Path):
        named = {role: str(name) for role, name in roles.items() if name is not None}
        settings = build(TableFile, {"path": str(table), **named, **options}, "check")
    else:
        table, roles = _as_table(table, roles)
        named = {role: str(name) for role, name in roles.items() if name is not None}
        settings = build(TableOptions, {**named, **options}, "check")
    unnamed = {role: "" for role in ("client", "target") if roles[role] is None}
    with redirect_stderr(io.StringIO()):  # what reading would say, the findings say
        return _Inspection.of(table, replace(settings, **unnamed)).run()


def _as_table(table: Any, roles: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arrays as a frame with a column of clients and one of targets."""
    import pandas as pd

    if not isinstance(table, np.ndarray | list | tuple):
        return table, roles
    values = np.asarray(table)
    frame = pd.DataFrame(values.reshape(len(values), -1)).add_prefix("x")
    names = {}
    for role, column in roles.items():
        names[role] = None if column is None else role
        if column is not None:
            frame[role] = np.asarray(column)
    return frame, names


@dataclass
class _Inspection:
    """A table under inspection: what is known to settle a finding is used for the next ones."""

    raw: pd.DataFrame  # cells as they are
    options: TableOptions
    frame: pd.DataFrame  # cells read by the options
    findings: list[Finding] = field(default_factory=list)
    texts: pd.DataFrame | None = None  # a text file, nothing read as a number

    @classmethod
    def of(cls, table: Any, options: TableOptions) -> _Inspection:
        findings: list[Finding] = []
        texts = None
        if isinstance(options, TableFile):
            options = decodable(options, findings)
            table = options.frame()
            if options.path.lower().endswith(TEXTS):
                texts = replace(options, categories=tuple(map(str, table.columns))).frame()
        frame = read_frame(table)
        for role in ROLES:
            if getattr(options, role):
                find(getattr(options, role), role, frame.columns)
        return cls(frame, options, frame, findings, texts)

    def run(self) -> TableCheck:
        """All checks, in the order in which one makes sense of the next."""
        self._cells()
        self._clean()
        self._clients_and_targets()
        self._columns()
        self._clean()  # without the codes of missing values
        self._missing()
        self._samples()
        self._leaks()
        return TableCheck(len(self.raw), len(self.raw.columns), tuple(self.findings))

    def add(
        self, kind: str, text: str, *, column: str = "", client: str = "", flag: tuple = ("", "")
    ) -> None:
        self.findings.append(Finding(kind, text, column, client, *flag))

    def settle(self, **options: Any) -> None:
        """Go on as if the user had said so."""
        self.options = replace(self.options, **options)

    @property
    def features(self) -> list[str]:
        """The columns that may be features."""
        roles = [getattr(self.options, role) for role in ROLES]
        names = self.options.features or self.raw.columns
        return [c for c in names if c not in roles and c not in self.options.drop]

    # -- cells -----------------------------------------------------------------------------------
    def _cells(self) -> None:
        self._decimal_marks()
        target = [self.options.target] if self.options.target else []
        for name in [*self.features, *target]:
            column = self.raw[name]
            if not pd_text(column) or name in self.options.categories:
                continue
            texts = [str(text) for text in column.dropna().unique()]
            if texts and text_form(texts) == CATEGORY:
                self._marked_numbers(name, texts, column)

    def _decimal_marks(self) -> None:
        """Decimal commas, which one column shows and all are read by."""
        if self.options.decimal != "." or self.options.thousands:
            return
        source = self.raw if self.texts is None else self.texts
        commas = {}
        grouped = False
        german = CellRules(decimal=",", thousands=".")
        for name in self.features:
            if not pd_text(source[name]):
                continue
            texts = [str(text) for text in source[name].dropna().unique()]
            cells = [german.read(text) for text in texts]
            share = sum(cell is not None for cell in cells) / max(len(cells), 1)
            if share > 0.8 and any(re.search(r"\d,\d", text) for text in texts):
                commas[name] = next(text for text in texts if re.search(r"\d,\d", text))
                grouped |= any(re.search(r"\d\.\d{3}(\D|$)", text) for text in texts)
        if not commas:
            return
        name, example = next(iter(commas.items()))
        text = f"{listed(commas)}: numbers with a decimal comma, such as {example!r}"
        self.add("decimal", text, column=name, flag=("decimal", ","))
        self.settle(decimal=",")
        if grouped:
            text = "a point stands between thousands, such as 1.234,5"
            self.add("thousands", text, column=name, flag=("thousands", "."))
            self.settle(thousands=".")
        if isinstance(self.options, TableFile) and self.options.path:
            self.raw = read_frame(self.options.frame())

    def _marked_numbers(self, name: str, texts: list[str], column: pd.Series) -> None:
        """Numbers with units or limits, and numbers among which are words."""
        rules = CellRules.of(self.options)
        cells = {text: rules.read(text) for text in texts}
        present = [cell for cell in cells.values() if cell is not None]
        odd = [text for text, cell in cells.items() if cell is None]
        codes = [code.partition("=")[2] or code for code in self.options.missing_codes]
        odd = [text for text in odd if text.strip() not in codes]
        odd_rows = int(column.isin(odd).sum())
        measured = len({cell.value for cell in present}) >= 3
        if not measured or len(odd) > len(present) or odd_rows > 0.3 * len(column):
            return
        self._limits(name, cells)
        self._units(name, cells)
        for text in odd[:3]:
            rows = int((column == text).sum())
            self.add(
                "mixed types",
                f"{name!r} holds numbers and, in {plural(rows, 'row')}, {text!r}",
                column=name,
                flag=("missing_codes", f"{name}={text.strip()}"),
            )
            self.settle(missing_codes=(*self.options.missing_codes, f"{name}={text.strip()}"))

    def _limits(self, name: str, cells: dict[str, NumberCell | None]) -> None:
        limits = [text for text, cell in cells.items() if cell is not None and cell.limit]
        if limits and self.options.limits == "refuse":
            self.add(
                "limit",
                f"{name!r} holds limits among its numbers, such as {limits[0]!r}; the limit can "
                "stand for the value",
                column=name,
                flag=("limits", "value"),
            )
        if limits:
            self.settle(limits="value")

    def _units(self, name: str, cells: dict[str, NumberCell | None]) -> None:
        units = {cell.unit: text for text, cell in cells.items() if cell is not None}
        if set(units) == {""} or (self.options.units == "strip" and len(units) == 1):
            return
        if len(units) > 1:
            self.add(
                "unit",
                f"{name!r} holds numbers of several units ({listed(sorted(units))}): convert them",
                column=name,
                flag=("drop", name),
            )
            self.settle(drop=(*self.options.drop, name))
            return
        (example,) = units.values()
        self.add(
            "unit",
            f"{name!r} holds numbers with a unit, such as {example!r}",
            column=name,
            flag=("units", "strip"),
        )
        self.settle(units="strip")

    def _clean(self) -> None:
        beside = [getattr(self.options, role) for role in ROLES if role != "target"]
        names = [name for name in self.raw.columns if name not in beside]
        try:
            self.frame, _ = CellRules.of(self.options).clean(self.raw, names)
        except SettingError as error:
            self.add("cells", str(error))

    # -- who and what ----------------------------------------------------------------------------
    def _clients_and_targets(self) -> None:
        client, target = self.options.client, self.options.target
        if client:
            column = self.frame[client]
            lacks = int(column.isna().sum())
            if lacks:
                have = "has" if lacks == 1 else "have"
                text = f"{plural(lacks, 'row')} {have} no client ({client!r}): fill it in"
                self.add("client missing", text)
            if pd_text(column) and not self.options.merge_names:
                for names in similar_names(sorted(column.dropna().unique())):
                    text = f"{listed(names)} differ only in case or spaces: one client?"
                    names_text = write_names([str(n) for n in names])
                    self.add(
                        "client names",
                        text,
                        column=client,
                        client=names_text,
                        flag=("merge_names", "true"),
                    )
                    self.settle(merge_names=True)
        if target and (lacks := int(self.frame[target].isna().sum())):
            text = f"{plural(lacks, 'row')} without a target ({target!r}) will be dropped"
            self.add("target missing", text, column=target)
        if self.options.weight:
            self._weights(self.options.weight)

    def _weights(self, name: str) -> None:
        """Rows whose weight is no number > 0, which are refused."""
        column = self.frame[name]
        if kind_of(column, name) != NUMBER:
            self.add("weights", f"{name!r} must hold numbers > 0, and holds text", column=name)
            return
        wrong = int((~(numbers(column, name) > 0)).sum())
        if wrong:
            text = f"{wrong:,} rows have no weight > 0 ({name!r}): fill it in, or leave them out"
            self.add("weights", text, column=name)

    # -- columns ---------------------------------------------------------------------------------
    def _columns(self) -> None:
        every = np.ones(len(self.frame), dtype=bool)
        for name in self.features:
            column = self.frame[name]
            if name in self.options.categories:
                continue
            try:
                kind = kind_of(column, name)
            except SettingError as error:
                if name not in {finding.column for finding in self.findings}:
                    self.add("mixed types", str(error), column=name, flag=("drop", name))
                self.settle(drop=(*self.options.drop, name))
                continue
            if kind == DATE:
                self._dates(name)
                continue
            reason = why_not(column, name, kind, every, self.options.max_categories)
            if self._is_group(name, kind) or self._is_weight(name, kind):
                continue
            if reason:
                self._useless(name, reason)
            elif kind == NUMBER:
                self._sentinels(name)
                self._codes(name)
            else:
                self._categories(name)

    def _useless(self, name: str, reason: str) -> None:
        kind = reason.partition(":")[0].removeprefix("a ").removeprefix("an ")
        self.add(kind, f"{name!r} is {reason}: left out", column=name, flag=("drop", name))
        self.settle(drop=(*self.options.drop, name))

    def _is_group(self, name: str, kind: str) -> bool:
        """Whether rows of one value may be of one person or device; said if they are."""
        if self.options.group or not self.options.client:
            return False
        count = repeated_units(self.frame, name, kind, self.options.client)
        if not count:
            return False
        self.add(
            "repeated",
            f"{name!r} has {count:,} values in {len(self.frame):,} rows: rows of one patient or "
            "device on both sides of a split make every figure too good",
            column=name,
            flag=("group", name),
        )
        self.settle(group=name)
        return True

    def _is_weight(self, name: str, kind: str) -> bool:
        """Whether a column is called a survey's weight; said if it is."""
        if self.options.weight or kind != NUMBER or name.lower() not in WEIGHT_NAMES:
            return False
        self.add(
            "weights",
            f"{name!r} is called a weight of rows: it is learnt from unless rows count by it",
            column=name,
            flag=("weight", name),
        )
        self.settle(weight=name)
        return True

    def _dates(self, name: str) -> None:
        if self.options.dates != "refuse":
            return
        try:
            date_order(self.frame[name], name, self.options.date_order)
        except SettingError:
            text = f"{name!r}: day or month may be first in its dates"
            self.add("date order", text, column=name, flag=("date_order", "dmy"))
        text = f"{name!r} holds dates: days since 1970 are a number; --time {name} splits by it"
        self.add("date", text, column=name, flag=("dates", "days"))

    def _sentinels(self, name: str) -> None:
        values = numbers(self.frame[name], name)
        for code in sentinels(values):
            count = int((values == code).sum())
            self.add(
                "missing code",
                f"{name!r} is {code:g} in {plural(count, 'row')}, far from all other values: a "
                "missing value?",
                column=name,
                flag=("missing_codes", f"{name}={code:g}"),
            )
            self.settle(missing_codes=(*self.options.missing_codes, f"{name}={code:g}"))

    def _codes(self, name: str) -> None:
        """Numbers that name something: a ZIP code."""
        values = numbers(self.frame[name], name)
        present = values[~np.isnan(values)]
        distinct = len(np.unique(present))
        whole = bool((present % 1 == 0).all())
        zeros = False
        if self.texts is not None:
            texts = self.texts[name].dropna()
            zeros = bool(texts.map(lambda text: re.fullmatch(r"0\d+", str(text)) is not None).any())
        named = bool(CODE_WORDS & set(name_words(name))) and distinct > 2
        if not whole or not (zeros or named):
            return
        why = "leading zeros" if zeros else "its name"
        fits = distinct <= self.options.max_categories
        self.add(
            "code",
            f"{name!r} holds numbers that look like codes ({why}; {distinct:,} distinct)",
            column=name,
            flag=("categories", name) if fits else ("drop", name),
        )

    def _categories(self, name: str) -> None:
        _, values = coded(self.frame[name])
        count = len(values)
        if count <= self.options.max_categories:
            return
        self.add(
            "many categories",
            f"{name!r} has {count:,} distinct texts, such as {values[0]!r}; at most "
            f"{self.options.max_categories} become features",
            column=name,
            flag=("drop", name),
        )
        self.settle(drop=(*self.options.drop, name))

    def _missing(self) -> None:
        if self.options.missing != "refuse":
            return
        lacks = self.frame[self.features].isna()
        for name, count in lacks.sum().items():
            if not count:
                continue
            text = f"{name!r} has {int(count):,} missing values ({count / len(lacks):.0%})"
            empty: list[Any] = []
            if self.options.client:
                share = lacks[name].groupby(self.frame[self.options.client]).mean()
                empty = share.index[share == 1].tolist()
                text += f", all of {listed(empty)}" if empty else f" in {(share > 0).sum()} clients"
            if kind_or_none(self.frame[name], str(name)) == CATEGORY:
                text += "; missing text becomes a category of its own"
            self.add(
                "missing",
                text,
                column=str(name),
                client=write_names([str(i) for i in empty]) if empty else "",
                flag=("missing", "mean"),
            )

    # -- rows ------------------------------------------------------------------------------------
    def _samples(self) -> None:
        """What only shows with a split: copies, clients and classes too small."""
        if not (self.options.client and self.options.target):
            return
        options = {f.name: getattr(self.options, f.name) for f in fields(TableOptions)}
        # `frame` has its cells read already
        cells = {f.name: f.default for f in fields(TableOptions) if f.name in CELL_OPTIONS}
        plain = TableOptions(**{**options, **cells})
        try:
            samples, _ = table_samples(self.frame, plain)
        except SettingError as error:
            if not any(f.kind in ("client missing", "cells") for f in self.findings):
                self.add("rows", str(error))
            return
        self._copies(samples, plain)
        self._small_clients(samples)
        self._classes(samples)

    def _copies(self, samples: TableSamples, options: TableOptions) -> None:
        if options.duplicates == "drop-across":
            return
        within = copies(samples.frame, options, across=False)
        across = copies(samples.frame, options, across=True)
        torn = _torn_copies(samples, options)
        parts = f", {torn:,} of them in another split than the first" if torn else ""
        if across.sum() > 1.5 * within.sum() and _beyond_chance(samples.frame, options, True):
            rows, repeat = _counted(int(across.sum()))
            text = f"{rows} {repeat} an earlier one, also of other clients{parts}"
            self.add("duplicates", text, flag=("duplicates", "drop-across"))
        elif options.duplicates == "keep" and _beyond_chance(samples.frame, options, False):
            rows, repeat = _counted(int(within.sum()))
            text = f"{rows} {repeat} an earlier one of their client{parts}"
            self.add("duplicates", text, flag=("duplicates", "drop"))

    def _small_clients(self, samples: TableSamples) -> None:
        tests = np.bincount(samples.client[samples.part == 2], minlength=len(samples.ids))
        small = [samples.ids[k] for k in np.flatnonzero(tests < TEST_ROWS).tolist()]
        if not small:
            return
        half = 0.98 / math.sqrt(TEST_ROWS)
        self.add(
            "small client",
            f"fewer than {TEST_ROWS} test rows at {listed(small)}: accuracy there is known to "
            f"± {half:.0%} at best; more rows or --test 0.5 help",
            client=write_names([str(i) for i in small]),
            flag=("exclude_clients", write_names([str(i) for i in small])),
        )

    def _classes(self, samples: TableSamples) -> None:
        column = samples.frame[self.options.target]
        try:
            targets, labels, _ = read_target_column(column, self.options.target, self.options.kind)
        except SettingError as error:
            self.add("target", str(error), column=self.options.target)
            return
        if not labels:
            return
        counts = np.zeros((len(samples.ids), len(labels)), dtype=np.int64)
        np.add.at(counts, (samples.client, targets), 1)
        single = [samples.ids[k] for k in np.flatnonzero((counts > 0).sum(1) == 1).tolist()]
        if single:
            names = write_names([str(i) for i in single])
            self.add(
                "one-class client",
                f"rows of one class only at {listed(single)}: always answering it is right there",
                client=names,
                flag=("exclude_clients", names),
            )
        for c in np.flatnonzero(counts.sum(0) < CLASS_ROWS).tolist():
            self.add(
                "rare class",
                f"class {labels[c]!r} has {plural(int(counts[:, c].sum()), 'row')} in "
                f"{plural(int((counts[:, c] > 0).sum()), 'client')}: too few to learn; the flag "
                "drops them",
                column=self.options.target,
                flag=("missing_codes", f"{self.options.target}={labels[c]}"),
            )

    # -- leaks -----------------------------------------------------------------------------------
    def _leaks(self) -> None:
        if not self.options.target:
            return
        frame = self.frame[self.frame[self.options.target].notna()]
        if len(frame) > LEAK_ROWS:
            frame = frame.sample(LEAK_ROWS, random_state=0)
        try:
            targets, labels, _ = read_target_column(
                frame[self.options.target], self.options.target, self.options.kind
            )
        except SettingError:
            return
        for name in self.features:
            with suppress(SettingError):  # a column that cannot be read is a finding already
                share = told_by(frame[name], name, targets, bool(labels))
                if share >= CERTAIN:
                    what = "right" if labels else "of the variance"
                    self.add(
                        "leak",
                        f"{name!r} alone tells the target ({share:.1%} {what}): is it known "
                        "before the outcome?",
                        column=name,
                        flag=("drop", name),
                    )


CELL_OPTIONS = ("decimal", "thousands", "missing_codes", "units", "limits", "categories")


def decodable(options: TableFile, findings: list[Finding]) -> TableFile:
    """The options with an encoding that the file can be read in."""
    path = Path(options.path).expanduser()
    if not options.path.lower().endswith((".csv", ".tsv")) or not path.is_file():
        return options
    body = path.read_bytes()
    for encoding in (options.encoding, "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError, LookupError):
            body.decode(encoding)
            break
    if encoding != options.encoding:
        text = f"the file is not written in {options.encoding}; {encoding} can be read"
        findings.append(Finding("encoding", text, option="encoding", value=encoding))
    return replace(options, encoding=encoding)


def kind_or_none(column: pd.Series, name: str) -> str | None:
    """What a column holds; None where it cannot be read."""
    try:
        return kind_of(column, name)
    except SettingError:
        return None


def sentinels(values: np.ndarray) -> list[float]:
    """The usual codes for a missing value that lie far outside the other values.

    >>> sentinels(np.array([40.0, 55, 61, 999, 999])), sentinels(np.array([-1.0, 0, 1, 1]))
    ([999.0], [])
    """
    present = values[~np.isnan(values)]
    codes = [code for code in SENTINELS if (present == code).sum() >= 2]
    rest = present[~np.isin(present, codes)]
    if len(np.unique(rest)) < 3:
        return []
    low, high = float(rest.min()), float(rest.max())
    spread = high - low
    return [
        float(code)
        for code in codes
        if (code < 0 <= low and (code == -1 or code < low - spread / 2)) or code > high + spread / 2
    ]


def _beyond_chance(frame: pd.DataFrame, options: TableOptions, across: bool) -> bool:
    """Whether more rows are equal than chance makes: coarse tables have equal rows without copies.

    Of the pairs of rows that are equal in all columns but the finest one, chance makes as many
    equal in that one as of all pairs of different rows.
    """
    complete = frame[content(frame, options, across)].dropna()  # gaps are equal to each other
    if len(complete) < 2:
        return False
    keys = cell_keys(complete)
    total = keys.sum(1)
    different = keys[np.unique(total, return_index=True)[1]]
    every = max(len(different) * (len(different) - 1) / 2, 1)
    shares = [_equal_pairs(column) / every for column in different.T]
    finest = int(np.argmin(shares))
    by_chance = _equal_pairs(total - keys[:, finest]) * shares[finest]
    return _equal_pairs(total) > 3 + 3 * by_chance


def _equal_pairs(values: np.ndarray) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1) / 2).sum())


def _torn_copies(samples: TableSamples, options: TableOptions) -> int:
    """Rows whose first copy is in another split."""
    keys = cell_keys(samples.frame[content(samples.frame, options, across=True)]).sum(1)
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return int((samples.part[first][place] != samples.part).sum())


def told_by(column: pd.Series, name: str, targets: np.ndarray, classes: bool) -> float:
    """How much of the target one column tells by a small tree, on rows that the tree has not seen.

    The accuracy, or the share of the variance; 0 where the most frequent class is nearly as good.
    """
    from sklearn.model_selection import cross_val_score
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    kind = kind_of(column, name)
    if kind == DATE or len(targets) < 20:
        return 0.0
    if kind == CATEGORY:
        codes, values = coded(column)
        if len(values) > 50:
            return 0.0
        x = (codes[:, None] == np.arange(-1, len(values))).astype(float)
    else:
        values_of_rows = numbers(column, name)
        lacks = np.isnan(values_of_rows)
        if lacks.all():
            return 0.0
        x = np.stack([np.where(lacks, np.nanmedian(values_of_rows), values_of_rows), lacks], 1)
    if not classes:
        tree = DecisionTreeRegressor(max_leaf_nodes=200, random_state=0)
        return float(np.mean(cross_val_score(tree, x, targets, cv=_folds(False))))
    counts = np.bincount(targets)
    if (counts[counts > 0] < 2).any():
        common = np.isin(targets, np.flatnonzero(counts >= 2))
        x, targets = x[common], targets[common]
    majority = counts.max() / max(counts.sum(), 1)
    if len(np.unique(targets)) < 2:
        return 0.0
    tree = DecisionTreeClassifier(max_leaf_nodes=max(8, 2 * len(counts)), random_state=0)
    accuracy = float(np.mean(cross_val_score(tree, x, targets, cv=_folds(True))))
    return accuracy if 1 - accuracy <= 0.1 * (1 - majority) else 0.0


def _folds(classes: bool) -> Any:
    from sklearn.model_selection import KFold, StratifiedKFold

    return (StratifiedKFold if classes else KFold)(2, shuffle=True, random_state=0)


def _counted(rows: int) -> tuple[str, str]:
    """A number of rows, and the verb that goes with it."""
    return plural(rows, "row"), "repeats" if rows == 1 else "repeat"
