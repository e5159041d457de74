"""Flags and TOML keys from dataclass fields: nothing is listed twice."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .. import data, methods, models
from ..core.knobs import SettingError, accepted, kinds_of, nearest
from ..run.plan import Plan
from ..run.settings import Settings
from ..task.losses import LOSSES


class Parser(argparse.ArgumentParser):
    """argparse that raises SettingError and suggests the nearest flag."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")


@dataclass
class Flags:
    """Flags of one command, by section: method, run, data, model."""

    parser: Parser
    taken: dict[str, tuple[str, str]] = field(
        default_factory=dict
    )  # argparse destination -> (section, field)

    def add(self, section: str, cls: type, title: str, skip: dict[str, Any] | None = None) -> None:
        """A flag a field; one whose plain name is taken, or means something else for a run, gets the section as prefix."""
        group, kinds = self.parser.add_argument_group(title), kinds_of(cls)
        for f in dataclasses.fields(cls):
            if not f.metadata or (skip and f.name in skip):
                continue
            name = f.name
            if section in ("data", "model") and (
                name == "seed" or any(v[1] == name for v in self.taken.values())
            ):
                name = f"{section}_{name}"
            destination = f"{section}.{f.name}"
            self.taken[destination] = (section, f.name)
            text = f"{f.metadata['help']} (default {f.default!r}; {accepted(f, kinds[f.name])})".replace(
                "%", "%%"
            )
            switch: dict[str, Any] = (
                {"nargs": "?", "const": "true"} if kinds[f.name] is bool else {}
            )
            group.add_argument(
                f"--{name.replace('_', '-')}",
                dest=destination,
                default=None,
                metavar=f.name.upper(),
                help=text,
                **switch,
            )

    def parse(self, argv: list[str]) -> argparse.Namespace:
        known, unknown = self.parser.parse_known_intermixed_args(argv)
        if unknown:
            flags = [s for a in self.parser._actions for s in a.option_strings]
            close = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}? " if close else ""
            raise SettingError(
                f"{unknown[0]} is not a flag of {self.parser.prog}; {hint}see: {self.parser.prog} --help"
            )
        return known

    def values(self, parsed: argparse.Namespace, section: str) -> dict[str, Any]:
        """What the user gave for a section."""
        given = vars(parsed)
        return {
            name: given[dest]
            for dest, (s, name) in self.taken.items()
            if s == section and given[dest] is not None
        }


SECTIONS = ("method", "run", "data", "model")


def read_toml(path: str | None) -> dict[str, Any]:
    """A settings file: [method] name = "..." and fields, [run], [data] name = "...", [model] name = "..."."""
    if path is None:
        return {s: {} for s in SECTIONS} | {"methods": []}
    try:
        content = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise SettingError(f"config: cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"config: {path} is not TOML: {error}") from None
    for section in content:
        if section not in (*SECTIONS, "methods"):
            raise nearest(section, SECTIONS, f"config section in {path}")
        if section != "methods" and not isinstance(content[section], dict):
            raise SettingError(
                f"config: {section} in {path} is not a section; write [{section}] and its settings below"
            )
    return {s: dict(content.get(s, {})) for s in SECTIONS} | {"methods": content.get("methods", [])}


def peek(argv: list[str], flag: str) -> str | None:
    """The value of a flag before the full parser exists: which data and model there are decides which flags there are."""
    for i, arg in enumerate(argv):
        if arg == flag and i + 1 < len(argv):
            return argv[i + 1]
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
    return None


def common(parser: Parser, argv: list[str], method: str | None) -> tuple[Flags, dict[str, Any]]:
    """The flags of `run` and `compare`: those of the run, of the data and the model named, and of the method if there is one."""
    file = read_toml(peek(argv, "--config"))
    named_data = peek(argv, "--data") or file["data"].get("name", "synthetic")
    named_model = peek(argv, "--model") or file["model"].get("name")
    if named_data not in data.DATASETS:
        raise nearest(named_data, data.DATASETS, "data")
    if named_model and named_model not in models.MODELS:
        raise nearest(named_model, models.MODELS, "model")
    flags = Flags(parser)
    parser.add_argument("--config", help="settings from a TOML file; flags win")
    parser.add_argument("--data", help=f"data set: {', '.join(data.DATASETS)} (default synthetic)")
    parser.add_argument(
        "--model", help=f"model: {', '.join(models.MODELS)} (default: chosen from the data)"
    )
    parser.add_argument("--loss", help=f"loss: {', '.join(LOSSES)} (default: chosen from the data)")
    parser.add_argument("--directory", help="where the run is written (default runs/<time>-<name>)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON value on stdout, everything else on stderr",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    if method:
        cls, fixed = methods.METHODS[method]
        flags.add("method", cls, f"method {method}", fixed)
    flags.add("run", Settings, "run")
    flags.add("data", data.DATASETS[named_data], f"data {named_data}")
    if named_model:
        flags.add("model", models.MODELS[named_model], f"model {named_model}")
    return flags, file


def plan_of(
    flags: Flags,
    parsed: argparse.Namespace,
    file: dict[str, Any],
    method: str,
    fields: dict[str, Any],
) -> Plan:
    """The plan: file first, flags win."""

    def section(name: str) -> dict[str, Any]:
        return {k: v for k, v in file[name].items() if k != "name"} | flags.values(parsed, name)

    chosen = parsed.data or file["data"].get("name", "synthetic")
    model = parsed.model or file["model"].get("name", "")
    settings = section("run")
    loss = parsed.loss or settings.pop("loss", "")
    return Plan(method, fields, chosen, section("data"), model, section("model"), loss, settings)
