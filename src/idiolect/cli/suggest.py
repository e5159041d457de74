"""What the user may have meant: by other programs' words, by spelling, by what a name is here."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import join

from ..core.knobs import CLOSE, SettingError
from ..core.registry import Table
from ..data import DATASETS
from ..methods import METHODS, NAMES
from ..models import MODELS, options_of

LISTS = (
    "methods",
    "channels",
    "attacks",
    "rules",
    "selections",
    "protections",
    "augmentations",
    "kernels",
    "projections",
)
TABLES = (".csv", ".tsv", ".parquet")
# our name -> what other programs call it
COMMAND_WORDS = {
    "run": ("train", "fit", "start"),
    "resume": ("continue",),
    "compare": ("benchmark",),
    "show": ("results", "summary"),
    "export": ("save", "models"),
    "init": ("new", "setup"),
    "data": ("datasets",),
    "predict": ("infer",),
    "personalise": ("personalize",),
}
FLAG_WORDS = {
    "batch": ("batch-size",),
    "lr": ("learning-rate", "step-size"),
    "rounds": ("epochs", "num-rounds", "n-rounds"),
    "steps": ("local-steps",),
    "clients": ("num-clients", "n-clients"),
    "data": ("dataset",),
    "method": ("algorithm",),
    "path": ("file", "csv"),
    "target": ("label",),
    "directory": ("output", "out", "output-dir"),
    "device": ("gpu",),
    "seed": ("random-state",),
    "server-optimizer": ("optimizer",),
}


def nearest_word(
    word: str, names: Iterable[str], words: dict[str, tuple[str, ...]], close: float = CLOSE
) -> str:
    """The known name that a word stands for or is a misspelling of; "" where none is near.

    >>> nearest_word("rum", ["run", "show"], {}), nearest_word("fit", ["run"], COMMAND_WORDS)
    ('run', 'run')
    """
    names = list(names)
    meant = [name for name in names if word in words.get(name, ())]
    matches = meant or difflib.get_close_matches(word.lower(), names, n=1, cutoff=close)
    return matches[0] if matches else ""


def unknown_command(argv: list[str], commands: Iterable[str]) -> SettingError:
    """The error for a first argument that is no command, with the command that was meant."""
    word = argv[0]
    commands = list(commands)
    meant = ""
    if command := _command_for(argv):
        meant = f"did you mean: idiolect {command}? "
    elif near := nearest_word(word, commands, COMMAND_WORDS):
        meant = f"did you mean {near!r}? "
    return SettingError(f"command: {word!r} is unknown; {meant}known: {', '.join(commands)}")


def _command_for(argv: list[str]) -> str:
    """The command for arguments that begin with something else than a command."""
    word = argv[0]
    methods = [a for a in argv if is_method(a)]
    if word.startswith("-"):
        return join(["run", *argv]) if len(methods) == 1 else ""
    if is_method(word):
        return join(["compare" if len(methods) > 1 else "run", *argv])
    if word in LISTS:  # commands of their own before
        measure = ["--measure"] if word in ("kernels", "projections") else []
        return join(["list", word, *measure, *argv[1:]])
    if word == "algorithms":
        return "list methods"
    if word in DATASETS.built_in:
        return f"data show {word}"
    if word.endswith(TABLES):
        return join(["init", *argv])
    if any((Path(word) / name).exists() for name in ("settings.json", "compare.json")):
        return join(["show", *argv])
    return ""


def is_method(word: str) -> bool:
    """Whether a word names a built-in method, with or without fields: "lp-proj:p=1"."""
    name = word.partition(":")[0]
    return name in METHODS.built_in or name in NAMES


def unknown_method(word: str) -> str:
    """A hint where something else stands in the place of a method; "" where nothing fits.

    >>> unknown_method("digits")
    "'digits' is a data set: idiolect run METHOD --data digits"
    """
    if word in DATASETS.built_in:
        return f"{word!r} is a data set: idiolect run METHOD --data {word}"
    if word in MODELS.built_in:
        return f"{word!r} is a model: idiolect run METHOD --model {word}"
    if word.endswith(TABLES):
        return f"{word!r} is a table: idiolect init {word}"
    return ""


def unknown_flag(flag: str, flags: Iterable[str], prog: str) -> SettingError:
    """The error for an unknown flag: the flag that was meant, or what it is a flag of."""
    name = flag.partition("=")[0].lstrip("-")
    flag_names = [f.lstrip("-") for f in flags if f.startswith("--")]
    owners = list(_owners(name.replace("-", "_")))
    near = nearest_word(name, flag_names, FLAG_WORDS, 0.85 if owners else CLOSE)
    hints = [f"did you mean --{near}?"] if near else []
    hints += [f"it belongs to {'; '.join(owners)};"] if owners else []
    return SettingError(
        f"{flag} is not a flag of {prog}; {' '.join([*hints, 'see:'])} {prog} --help"
    )


def _owners(field: str) -> Iterator[str]:
    """The methods, data sets and models that have such a setting."""
    methods = [n for n, (cls, fixed) in METHODS.built_in.items() if _has(cls, field, fixed)]
    if methods:
        yield f"the method{'s' if len(methods) > 1 else ''} {', '.join(methods)}"
    tables: tuple[tuple[str, Table], ...] = (("data", DATASETS), ("model", MODELS))
    for flag, table in tables:
        names = [n for n, entry in table.built_in.items() if _has(_options(flag, entry), field)]
        if names:
            yield " or ".join(f"--{flag} {n}" for n in names)


def _options(flag: str, entry: type) -> type:
    return options_of(entry) if flag == "model" else entry


def _has(cls: type, field: str, fixed: Iterable[str] = ()) -> bool:
    own = {f.name for f in dataclasses.fields(cls) if f.init and f.metadata}
    return field in own and field not in fixed
