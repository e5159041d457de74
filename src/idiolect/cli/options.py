"""Flags and TOML keys from dataclass fields: nothing is listed twice."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NoReturn

from ..core.files import given_path
from ..core.knobs import BOOLEANS, SettingError, accepted, check, kinds_of, nearest, written
from ..data import DATASETS
from ..methods import METHODS, Preset, has_preset
from ..models import MODELS, options_of
from ..run.client_weights import ClientWeights
from ..run.plan import Plan, row_spec
from ..run.settings import SECTIONS
from ..task.initial import Initial
from ..task.losses import LOSSES
from .help import Help
from .suggest import TABLES, unknown_flag

FROM_FILES = ("table", "folder")  # data sets whose `path` is a file or folder of the user's


class Parser(argparse.ArgumentParser):
    """argparse that raises SettingError, for one command."""

    def __init__(self, command: str, description: str):
        super().__init__(
            prog=f"idiolect {command}",
            allow_abbrev=False,
            description=description,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action=Help, help="this text")

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")

    def stray(self, given: str, flags: list[str]) -> SettingError:
        """The error for an argument that the command does not take."""
        if given.startswith("-"):
            return unknown_flag(given, flags, self.prog)
        return SettingError(
            f"{given!r} is one argument too many for {self.prog}; see: {self.prog} --help"
        )

    def add_json(self) -> None:
        """The flag of commands whose output programs read."""
        self.add_argument(
            "--json",
            action="store_true",
            help="print one JSON value on stdout, everything else on stderr",
        )

    def add_output(self) -> None:
        """The flags of commands that train."""
        self.add_argument(
            "--directory", help="where the run is written (default runs/<time>-<name>)"
        )
        self.add_json()
        self.add_argument("--quiet", action="store_true", help="no progress")


@dataclass
class Flags:
    """Flags of one command, by section: method, run, data, model."""

    parser: Parser
    method: str = ""  # the name of the method whose fields are among them
    # argparse destination -> (section, field)
    taken: dict[str, tuple[str, str]] = field(default_factory=dict)
    # section -> name -> the field and its type
    fields: dict[str, dict[str, tuple[dataclasses.Field, type]]] = field(default_factory=dict)
    open_sections: set[str] = field(default_factory=set)  # those that take any other name too

    def add(self, section: str, cls: type, title: str, skip: dict[str, Any] | None = None) -> None:
        """A flag per field.

        One whose plain name is taken, or means something else for a run, gets the section as
        prefix.
        """
        group = self.parser.add_argument_group(title)
        kinds = kinds_of(cls)
        self._know(section, cls, kinds)
        for f in dataclasses.fields(cls):
            if not f.metadata or (skip and f.name in skip):
                continue
            destination = f"{section}.{f.name}"
            flag = self._flag(section, f.name)
            self.taken[destination] = (section, f.name)
            default = written(f, f.default)
            text = f"{f.metadata['help']} (default {default!r}; {accepted(f, kinds[f.name])})"
            switch: dict[str, Any] = {}
            if kinds[f.name] is bool:
                switch = {"nargs": "?", "const": "true"}
            action: Any = group.add_argument(
                f"--{flag.replace('_', '-')}",
                dest=destination,
                default=None,
                metavar=f.name.upper(),
                help=text.replace("%", "%%"),
                **switch,
            )
            action.short = f.metadata["help"]
            action.shown_default = default

    def _know(self, section: str, cls: type, kinds: dict[str, type]) -> None:
        known = self.fields.setdefault(section, {})
        known |= {f.name: (f, kinds[f.name]) for f in dataclasses.fields(cls) if f.init}
        if getattr(cls, "takes_any_option", False):
            self.open_sections.add(section)

    def _flag(self, section: str, name: str) -> str:
        taken = any(other == name for _, other in self.taken.values())
        if section in ("data", "model") and (name == "seed" or taken):
            return f"{section}_{name}"
        return name

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """The command's arguments; an unknown flag suggests the nearest."""
        known, unknown = self.parser.parse_known_intermixed_args(self._switched(argv))
        if unknown:
            flags = [s for a in self.parser._actions for s in a.option_strings]
            raise self.parser.stray(unknown[0], flags)
        return known

    def _switched(self, argv: list[str]) -> list[str]:
        """A switch takes the next word only if that says true or false: no method, no file."""
        switches = {s for a in self.parser._actions if a.const == "true" for s in a.option_strings}
        out = []
        for word, after in zip_longest(argv, argv[1:], fillvalue=""):
            bare = word in switches and after.lower() not in BOOLEANS
            out.append(f"{word}=true" if bare else word)
        return out

    def check_file(self, file: dict[str, Any], path: str) -> None:
        """Refuse a key or a value of a settings file, by its place in the file.

        Sections whose settings are not known yet (those of a model that the data decide) are
        checked when they are used.
        """
        for section, known in self.fields.items():
            if section == "method" and file["method"].get("name", self.method) != self.method:
                continue  # it is about another method, and not used
            more = {"run": ("loss",), "task": ()}.get(section, ("name",))
            for key, value in file[section].items():
                if key in more or (key not in known and section in self.open_sections):
                    continue
                if key not in known:
                    raise nearest(key, (*known, *more), f"config: {path}: {section} setting")
                try:
                    if known[key][0].metadata:
                        check(key, value, *known[key])
                except SettingError as error:
                    raise SettingError(f"config: {path}: [{section}] {error}") from None
        loss = file.get("run", {}).get("loss", "")
        if not isinstance(loss, str):
            raise SettingError(f"config: {path}: [run] loss: {loss!r} is not accepted; text")

    def values(self, parsed: argparse.Namespace, section: str) -> dict[str, Any]:
        """What the user gave for a section."""
        given = vars(parsed)
        return {
            name: given[destination]
            for destination, (s, name) in self.taken.items()
            if s == section and given[destination] is not None
        }


def peek(argv: list[str], flag: str) -> str | None:
    """The value of a flag before the full parser exists; the last one wins, as in the parser.

    Which data and model there are decides which flags there are.

    >>> peek(["--data", "mnist", "--rounds=3", "--data=digits"], "--data")
    'digits'
    """
    found = None
    for i, arg in enumerate(argv):
        if arg == flag and i + 1 < len(argv):
            found = argv[i + 1]
        if arg.startswith(f"{flag}="):
            found = arg.split("=", 1)[1]
    return found


def words_among(argv: list[str], parser: argparse.ArgumentParser) -> list[int]:
    """Where the arguments stand that are neither flags nor values of flags.

    The parser has all flags but those of a method, which is one of these words.
    """
    alone = {s for a in parser._actions if a.nargs in (0, "?") for s in a.option_strings}
    for cls, _ in METHODS.known().values():
        fields = (name for name, kind in kinds_of(cls).items() if kind is bool)
        alone |= {f"--{name.replace('_', '-')}" for name in fields}
    places = []
    for i, word in enumerate(argv):
        before = argv[i - 1] if i else ""
        value = before.startswith("-") and "=" not in before and before not in alone
        told = before in alone and word.lower() in BOOLEANS
        if not word.startswith("-") and not value and not told:
            places.append(i)
    return places


def training_flags(
    parser: Parser, argv: list[str], method: str | None
) -> tuple[Flags, dict[str, Any]]:
    """The flags of commands that train: those of the run, the data, the model and the method."""
    path = peek(argv, "--config")
    file = read_toml(path)
    named_data = peek(argv, "--data") or file["data"].get("name", "synthetic")
    if named_data.endswith(TABLES):
        raise SettingError(f"data: {named_data!r} is a file; --data table --path {named_data}")
    named_model = peek(argv, "--model") or file["model"].get("name")
    flags = Flags(parser, method or "")
    parser.add_argument("--config", help="settings from a TOML file; flags win")
    own = "or module:Name of your own"
    parser.add_argument(
        "--data", help=f"data set: {', '.join(DATASETS)}, {own} (default synthetic)"
    )
    parser.add_argument(
        "--model", help=f"model: {', '.join(MODELS)}, {own} (default: chosen from the data)"
    )
    parser.add_argument("--loss", help=f"loss: {', '.join(LOSSES)} (default: chosen from the data)")
    parser.add_output()
    if method:
        cls, fixed = METHODS.find(method)
        flags.add("method", cls, f"method {method}", fixed)
        if has_preset(cls):
            flags.add("method", Preset, f"fields of {method} that belong together")
    for section in SECTIONS:
        title = section.__name__.lower()
        flags.add("run", section, title if title == "run" else f"run: {title}")
    flags.add("task", Initial, "how the model starts")
    flags.add("data", DATASETS.find(named_data), f"data {named_data}")
    if named_model:
        flags.add("model", options_of(MODELS.find(named_model)), f"model {named_model}")
    if path is not None:
        flags.check_file(file, path)
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
        from_file = {k: v for k, v in file[name].items() if k != "name"}
        return from_file | flags.values(parsed, name)

    named = parsed.data or file["data"].get("name", "synthetic")
    found = section("data")
    path = found.get("path", "")
    if named in FROM_FILES and path and given_path(path, "path").exists():
        found["path"] = str(given_path(path, "path").absolute())  # for a resume from elsewhere
    task = section("task")
    if task.get("weights"):  # the run may be resumed from elsewhere
        task["weights"] = str(given_path(task["weights"], "weights").absolute())
    settings = section("run")
    if settings.get("client_weights"):  # by value: the file may change, and the folder too
        settings["client_weights"] = str(ClientWeights.parse(settings["client_weights"]))
    loss = parsed.loss or settings.pop("loss", "")
    return Plan(
        method,
        fields,
        named,
        found,
        parsed.model or file["model"].get("name", ""),
        section("model"),
        loss,
        settings,
        task,
    )


def plans_of(
    flags: Flags, parsed: argparse.Namespace, file: dict[str, Any], command: str
) -> list[Plan]:
    """The plans of a command for several methods: those named, or those of the file."""
    specs = parsed.methods or file["methods"]
    if not specs:
        raise SettingError(f"{command}: name methods: {', '.join(METHODS)}")
    plans = []
    for spec in specs:
        name, fields, own = row_spec(spec)
        plan = plan_of(flags, parsed, file, name, fields)
        plans.append(dataclasses.replace(plan, own=own))
    return plans


# -- the settings file: [method] and [data] name = "...", fields; [run], [task], [model] -----------

FILE_SECTIONS = ("method", "run", "task", "data", "model")
MOST = 1 << 20  # bytes; a file of all settings there are has a few thousand


def read_toml(path: str | None, known: tuple[str, ...] = FILE_SECTIONS) -> dict[str, Any]:
    """The sections of a settings file, and its list of methods; all empty without one."""
    content = {} if path is None else _content(path)
    names = (*known, "methods") if known == FILE_SECTIONS else known
    for section, value in content.items():
        if section not in names:
            raise nearest(section, names, f"config section in {path}")
        if section == "methods":
            if not isinstance(value, list) or not all(isinstance(m, str) for m in value):
                raise SettingError(
                    f'config: methods in {path} is not accepted; a list of texts: ["fedavg", ...]'
                )
        elif not isinstance(value, dict):
            raise SettingError(
                f"config: {section} in {path} is not a section; "
                f"write [{section}] and its settings below"
            )
        elif not isinstance(value.get("name", ""), str):
            raise SettingError(
                f"config: name in [{section}] of {path}: {value['name']!r} is not accepted; text"
            )
    sections = {s: dict(content.get(s, {})) for s in known}
    return sections | {"methods": content.get("methods", [])}


def _content(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            body = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"config: cannot read {path}: {reason}") from None
    if len(body) > MOST:
        raise SettingError(f"config: {path} is not accepted; at most {MOST} bytes")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SettingError(
            f"config: {path} is not UTF-8: byte 0x{body[error.start]:02x} in line {line}"
        ) from None
    except RecursionError:
        raise SettingError(f"config: {path} is not accepted; it is nested too deeply") from None
    except ValueError as error:  # of tomllib, or a number of thousands of digits
        raise SettingError(f"config: {path} is not TOML: {error}") from None
