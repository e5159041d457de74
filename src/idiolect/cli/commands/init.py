"""`idiolect init`: a settings file for the user's own table, and what was found in it."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.documents import toml_text
from ...core.files import given_path, write_atomic
from ...core.knobs import BOOLEANS, SettingError, accepted, kinds_of, written
from ...core.text import listed, plural, shown
from ...data import load
from ...data.check import Finding, TableCheck, check, decodable, kind_or_none
from ...data.federation import SPLITS, Federation
from ...data.prepare.columns import DATE
from ...data.read.tables import ROLES, SUFFIXES, TableFile, clean_cells
from ...report.console import OUT, literal, say
from ..options import Parser
from ..output import emit

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("local", "fedavg", "ditto")
ROUNDS = 100
SEEDS = 3
EXAMPLES = """For example:
  idiolect init visits.csv --client hospital --target outcome
  idiolect compare --config idiolect.toml --clients-table"""


def init(argv: list[str]) -> None:
    """Write a settings file for a table."""
    parser = Parser("init", "", EXAMPLES, output=("json",))
    parser.add_argument("table", help=f"your file: {', '.join(SUFFIXES)}, one row per sample")
    parser.add_argument(
        "-o",
        "--output",
        dest="file",
        default="idiolect.toml",
        help="the file to write (default idiolect.toml)",
    )
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_fields("data", TableFile, "how the table is read", {"path"})
    parsed = parser.parse(argv)
    target = given_path(parsed.file, "output")
    if target.exists() and not parsed.force:
        raise SettingError(f"output: {parsed.file!r} is there already; -o FILE, or --force")
    options = {**parser.values(parsed, "data"), "path": parsed.table}
    report, notes = _complete(options, ask=sys.stdin.isatty() and not parsed.output.json)
    for note in notes:
        say(note)
    federation = _load(options, report)
    settings = sensible(federation)
    file = shlex.quote(parsed.file)
    write_atomic(target, document(options, settings, federation, notes, file).encode())
    command = f"idiolect compare --config {file} --clients-table"
    facts = {"file": str(target), "data": options, "run": settings, "methods": list(METHODS)}
    emit(
        parsed.output.json,
        {**facts, "notes": notes, "findings": report.as_dict()["findings"], "next": command},
        *map(literal, str(federation).splitlines()),
    )
    if not parsed.output.json:
        OUT.print(literal(f"{target} is written. Next: {command}"), soft_wrap=True)


def _load(options: dict[str, Any], report: TableCheck) -> Federation:
    """The federation; where the table cannot be read, all flags that would help at once."""
    try:
        return load("table", **options)
    except SettingError as error:
        columns = [f"--{role} {shlex.quote(options[role])}" for role in ("client", "target")]
        command = " ".join(["idiolect init", shlex.quote(options["path"]), *columns, report.flags])
        raise SettingError(f"{error}. All findings at once: {command}") from None


def _complete(options: dict[str, Any], ask: bool) -> tuple[TableCheck, list[str]]:
    """Fill in what the user did not say, in place; a line for each thing that was guessed.

    The findings about the table are printed, also where a question ends the command.
    """
    findings: list[Finding] = []
    reading = decodable(TableFile(**options), findings)
    if findings:
        options["encoding"] = reading.encoding
    frame = reading.frame()
    frame.columns = [str(c) for c in frame.columns]
    notes = [f"encoding: {f.text}; --encoding says otherwise" for f in findings]
    try:
        for role, guess, other in (
            ("client", guess_client, "target"),
            ("target", guess_target, "client"),
        ):
            if role not in options:
                options[role], reason = guess(frame, options.get(other, ""))
                notes.append(f"{role}: {options[role]!r} ({reason}); --{role} says otherwise")
    except SettingError:
        _say_report(_check(options))
        raise
    report = _check(options)
    _say_report(report)
    notes += _marks(report, options)
    if ask:
        notes += _ask_group(report, options)
    return report, [*notes, *_gaps(options)]


def _check(options: dict[str, Any]) -> TableCheck:
    others = {name: value for name, value in options.items() if name not in ROLES[:2]}
    path = others.pop("path")
    return check(path, options.get("client"), options.get("target"), **others)


def _say_report(report: TableCheck) -> None:
    if report.findings:
        for line in repr(report).splitlines():
            say(line)
    if report.flags:
        say(f"All at once: {report.flags}")


def _marks(report: TableCheck, options: dict[str, Any]) -> list[str]:
    """How numbers are written, which a file shows in its numbers."""
    notes = []
    for finding in report.findings:
        if finding.kind in ("decimal", "thousands") and finding.option not in options:
            options[finding.option] = finding.value
            notes.append(f"{finding.option}: {finding.value!r}; --{finding.option} says otherwise")
    return notes


def _ask_group(report: TableCheck, options: dict[str, Any]) -> list[str]:
    """Whether rows of one value belong together: only who knows the table can say."""
    for finding in report.findings:
        if finding.kind != "repeated" or "group" in options:
            continue
        question = f"Do rows with the same {shown(finding.column)!r} belong together? [y/n] "
        if input(question).strip().lower() in ("y", "yes"):
            options["group"] = finding.column
            return [f"group: {finding.column!r}, as you said"]
    return []


def _gaps(options: dict[str, Any]) -> list[str]:
    """What is done about missing values and dates, which would be refused otherwise."""
    reading = TableFile(**options)
    frame = clean_cells(reading.frame(), reading)
    roles = [getattr(reading, role) for role in ROLES]
    names = [c for c in reading.features or frame.columns if c not in (*roles, *reading.drop)]
    names = [c for c in names if c in frame.columns]
    notes = []
    lacking = {c: int(frame[c].isna().sum()) for c in names}
    lacking = {c: n for c, n in lacking.items() if n}
    if lacking and "missing" not in options:
        options["missing"] = "mean"
        worst = max(lacking, key=lacking.__getitem__)
        notes.append(
            f"missing: {plural(sum(lacking.values()), 'value')} in "
            f"{plural(len(lacking), 'column')} ({lacking[worst]:,} in {worst!r}); "
            "they are filled in with the mean of the training rows, missing text is a category of "
            "its own; --missing says otherwise"
        )
    dates = [c for c in names if kind_or_none(frame[c], c) == DATE]
    if dates and "dates" not in options:
        options["dates"] = "drop"
        notes.append(f"dates: {', '.join(dates)} dropped; --dates days makes numbers of them")
    return notes


def sensible(federation: Federation) -> dict[str, Any]:
    """Run settings for data of this size."""
    train = federation.sizes("train").double()
    typical = float(train.median())
    batch = 8
    while batch < 64 and batch * 4 <= typical:
        batch *= 2
    large = int(train.sum()) > 200_000 or federation.clients > 1000
    return {
        "rounds": ROUNDS // 2 if large else ROUNDS,
        "batch": batch,
        "seeds": 1 if large else SEEDS,
        "eval_every": 5,
        "threads": 1,
    }


# -- the file --------------------------------------------------------------------------------------
RUN_COMMENTS = {
    "rounds": "communication rounds; more if the curves still rise at the end",
    "batch": "samples per mini-batch; about a quarter of a typical client's training rows",
    "seeds": "repetitions with other random numbers: figures get a 95 % interval",
    "eval_every": "rounds between evaluations",
    "threads": "of the processor; steps this small are slower on several",
}


def document(
    options: dict[str, Any],
    settings: dict[str, Any],
    federation: Federation,
    notes: list[str],
    file: str = "idiolect.toml",
) -> str:
    """The settings file: what was chosen, and every other option of the table as a comment."""
    samples = {s: int(federation.sizes(s).sum()) for s in SPLITS}
    kind = plural(federation.classes, "class", "classes") if federation.classes else "real values"
    lines = [
        f"# Settings for {shown(Path(options['path']).name)}: "
        f"{plural(federation.clients, 'client')}, "
        f"{plural(sum(samples.values()), 'sample')}, {kind}.",
        f"# Compare methods:  idiolect compare --config {file} --clients-table",
        f"# Train one method: idiolect run ditto --config {file}",
        "# Flags win over this file: --rounds 200. All settings: idiolect run ditto --help",
        "",
        "# What is compared: training alone, one shared model, and a model of its own per client.",
        '# What else there is: idiolect list methods. Fields: "ditto:lam=0.5"',
        f"methods = {toml_text(list(METHODS))}",
        "",
        "[data]",
        'name = "table"',
    ]
    guessed = {note.partition(":")[0] for note in notes}
    for f in sorted(dataclasses.fields(TableFile), key=lambda f: f.name != "path"):
        if f.metadata:
            lines += _option(f, options, f.name in guessed)
    lines += ["", "[run]"]
    for name, value in settings.items():
        lines += [f"# {RUN_COMMENTS[name]}", f"{name} = {toml_text(value)}"]
    lines += [
        "# clients heard per round; 0 = all of a small federation, a part of a large one",
        "# sample = 0",
        "",
        "# [model]",
        "# linear is the default for tables; mlp can learn more, and needs more data",
        '# name = "mlp"',
        '# hidden = "32"',
    ]
    return "\n".join(lines) + "\n"


def _option(f: dataclasses.Field, options: dict[str, Any], guessed: bool) -> list[str]:
    """A setting of the table with its meaning; one that was not chosen stands as a comment."""
    kinds = kinds_of(TableFile)
    text = f"{f.metadata['help']} ({accepted(f, kinds[f.name])})"
    comment = textwrap.wrap(text, 96, initial_indent="# ", subsequent_indent="#   ")
    is_chosen = f.name in options
    value = options[f.name] if is_chosen else written(f, f.default)
    if is_chosen and kinds[f.name] in (int, float) and isinstance(value, str):
        value = kinds[f.name](value)
    if kinds[f.name] is bool and isinstance(value, str):
        value = BOOLEANS[value.lower()]
    line = f"{f.name} = {toml_text(value)}"
    if guessed:
        line += "  # chosen by idiolect init: check it"
    return [*comment, line if is_chosen else f"# {line}"]


# -- which column is the client, and which the target ---------------------------------------------
# A wrong guess would train silently on the wrong question. So only a name that is usual for the
# role counts, exactly one column must fit, and the reason is printed.

# from the surest to the least sure; the first group with a fitting column decides
CLIENTS = (
    ("client", "client id", "clients", "federated client"),
    ("site", "hospital", "clinic", "centre", "center", "institution", "bank", "branch", "school"),
    ("site id", "hospital id", "clinic id", "centre id", "center id", "bank id", "institution id"),
    ("user", "user id", "device", "device id", "machine", "machine id", "node", "silo", "party"),
    ("plant", "store", "shop", "farm", "station", "sensor", "region", "country", "state", "city"),
)
TARGETS = (
    ("target", "label", "y"),
    ("outcome", "class", "response", "diagnosis", "labels"),
    ("disease", "ill", "sick", "died", "death", "survived", "mortality", "readmitted", "relapse"),
    ("default", "churn", "fraud", "failure", "price", "sales", "demand"),
)
SHOWN = 8  # candidates that a question lists


def guess_client(frame: pd.DataFrame, without: str = "") -> tuple[str, str]:
    """The column that says whose row it is, and why; SettingError asks where that is not plain.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"Hospital": ["a", "a", "b", "b"], "age": [1, 2, 3, 4]})
    >>> guess_client(frame)
    ('Hospital', 'its name, and 2 different values in 4 rows')
    """
    fitting = {c: n for c, n in _distinct(frame, without).items() if 2 <= n <= len(frame) / 2}
    candidates = _by_name(fitting, CLIENTS)
    if len(candidates) == 1:
        values = fitting[candidates[0]]
        return candidates[0], f"its name, and {values:,} different values in {len(frame):,} rows"
    few = sorted((n, c) for c, n in fitting.items() if n <= max(2, len(frame) / 5))
    raise _question(
        "client", "says whose row it is", candidates or [c for _, c in few], _distinct(frame, "")
    )


def guess_target(frame: pd.DataFrame, without: str = "") -> tuple[str, str]:
    """The column to predict, and why; SettingError asks where that is not plain."""
    fitting = {c: n for c, n in _distinct(frame, without).items() if n >= 2}
    candidates = _by_name(fitting, TARGETS)
    if len(candidates) == 1:
        return candidates[0], f"its name, and {fitting[candidates[0]]:,} different values"
    last = [c for c in reversed(frame.columns) if c in fitting]
    raise _question("target", "is to be predicted", candidates or last, fitting)


def _distinct(frame: pd.DataFrame, without: str) -> dict[str, int]:
    return {str(c): int(frame[c].nunique()) for c in frame.columns if c != without}


def _by_name(fitting: dict[str, int], groups: tuple[tuple[str, ...], ...]) -> list[str]:
    """The columns with a usual name: those of the surest group that has one."""
    for group in groups:
        if names := [name for name in fitting if _words(name) in group]:
            return names
    return []


def _words(name: str) -> str:
    """A column's name as words: "Hospital_ID", "hospitalId" and "hospital id" are one.

    >>> _words("Hospital_ID"), _words("hospitalId"), _words("Y")
    ('hospital id', 'hospital id', 'y')
    """
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", str(name))
    return " ".join(re.split(r"[\s_.-]+", apart.strip())).lower()


def _question(role: str, what: str, names: list[str], counts: dict[str, int]) -> SettingError:
    text = f"none looks like it; the columns: {listed(counts, 30)}"
    if names:
        candidates = [f"{n!r} ({counts[n]:,} different values)" for n in names[:SHOWN]]
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        text = f"it may be {', '.join(candidates)}{more}"
    return SettingError(f"{role}: which column {what}? {text}. Say it: --{role} COLUMN")
