"""Flags and TOML keys from dataclass fields: nothing is listed twice."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Collection, Iterable
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
FILE_SECTIONS = ("method", "run", "task", "data", "model")  # of a settings file
MOST = 1 << 20  # bytes of a settings file; one with all settings has a few thousand


class Parser(argparse.ArgumentParser):
    """The flags of one command; those made of dataclass fields belong to a section.

    Errors are SettingErrors; an unknown flag suggests the nearest.
    """

    def __init__(self, command: str, description: str, examples: str = ""):
        super().__init__(
            prog=f"idiolect {command}",
            allow_abbrev=False,
            description=description,
            epilog=examples,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action=Help, help="this text")
        # section -> name -> the field and its type
        self.fields: dict[str, dict[str, tuple[dataclasses.Field, type]]] = {}
        self.open_sections: set[str] = set()  # those that take any other name too

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")

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

    def add_fields(
        self, section: str, cls: type, title: str, without: Collection[str] = ()
    ) -> argparse._ArgumentGroup:
        """A flag per field of a dataclass.

        Fields of data and models whose plain name means something else get the section as prefix.
        """
        group = self.add_argument_group(title)
        kinds = kinds_of(cls)
        flags = {action.dest.partition(".")[2] for action in self._actions}
        section_fields = self.fields.setdefault(section, {})
        section_fields |= {f.name: (f, kinds[f.name]) for f in dataclasses.fields(cls) if f.init}
        if getattr(cls, "takes_any_option", False):
            self.open_sections.add(section)
        for f in dataclasses.fields(cls):
            if not f.metadata or f.name in without:
                continue
            prefixed = section in ("data", "model") and (f.name == "seed" or f.name in flags)
            flag = f"{section}_{f.name}" if prefixed else f.name
            default = written(f, f.default)
            text = f"{f.metadata['help']} (default {default!r}; {accepted(f, kinds[f.name])})"
            switch = {"nargs": "?", "const": "true"} if kinds[f.name] is bool else {}
            action: Any = group.add_argument(
                f"--{flag.replace('_', '-')}",
                dest=f"{section}.{f.name}",
                metavar=f.name.upper(),
                help=text.replace("%", "%%"),
                **switch,  # type: ignore[arg-type]
            )
            action.short = f.metadata["help"]
            action.shown_default = default
        return group

    def add_method(self, name: str) -> None:
        """The fields of a method, before all other sections."""
        cls, fixed = METHODS.find(name)
        groups = [self.add_fields("method", cls, f"method {name}", fixed)]
        if has_preset(cls):
            title = f"fields of {name} that belong together"
            groups.append(self.add_fields("method", Preset, title))
        others = [g for g in self._action_groups if g not in groups]
        self._action_groups = [*others[:2], *groups, *others[2:]]

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """The command's arguments."""
        parsed, unknown = self.parse_known_intermixed_args(self._with_values(argv))
        if unknown and unknown[0].startswith("-"):
            flags = [s for action in self._actions for s in action.option_strings]
            raise unknown_flag(unknown[0], flags, self.prog)
        if unknown:
            self.error(f"{unknown[0]!r} is one argument too many for {self.prog}")
        return parsed

    def _with_values(self, argv: list[str]) -> list[str]:
        """A switch takes the next word only if that says true or false: no method, no file."""
        switches = {s for a in self._actions if a.const == "true" for s in a.option_strings}
        pairs = zip_longest(argv, argv[1:], fillvalue="")
        return [
            f"{word}=true" if word in switches and after.lower() not in BOOLEANS else word
            for word, after in pairs
        ]

    def values(self, parsed: argparse.Namespace, section: str) -> dict[str, Any]:
        """The flags of a section that the user has set."""
        flags = {n: getattr(parsed, f"{section}.{n}", None) for n in self.fields.get(section, {})}
        return {name: value for name, value in flags.items() if value is not None}

    def words(self, argv: list[str], classes: Iterable[type] = ()) -> list[int]:
        """Where the arguments stand that are neither flags nor values of flags.

        `classes`: dataclasses whose flags may occur before this parser has them.
        """
        switches = {s for a in self._actions if a.nargs in (0, "?") for s in a.option_strings}
        for cls in classes:
            fields = (name for name, kind in kinds_of(cls).items() if kind is bool)
            switches |= {f"--{name.replace('_', '-')}" for name in fields}
        places = []
        for i, word in enumerate(argv):
            before = argv[i - 1] if i else ""
            if before in switches:
                is_value = word.lower() in BOOLEANS
            else:
                is_value = before.startswith("-") and "=" not in before
            if not word.startswith("-") and not is_value:
                places.append(i)
        return places


def peek(argv: list[str], flag: str) -> str | None:
    """The value of a flag before the parser is complete; the last one wins, as in the parser.

    Which data and model there are decides which flags there are.

    >>> peek(["--data", "mnist", "--rounds=3", "--data=digits"], "--data")
    'digits'
    """
    value = None
    for word, after in zip_longest(argv, argv[1:]):
        if word == flag and after is not None:
            value = after
        if word.startswith(f"{flag}="):
            value = word.split("=", 1)[1]
    return value


# -- the settings file -------------------------------------------------------------------------
@dataclass(frozen=True)
class SettingsFile:
    """Sections of a TOML file, each with fields and perhaps a name; all empty without a file."""

    path: str | None
    sections: dict[str, dict[str, Any]]
    methods: list[str] = field(default_factory=list)

    @classmethod
    def read(
        cls, path: str | None, sections: tuple[str, ...] = FILE_SECTIONS, methods: bool = True
    ) -> SettingsFile:
        """The file with these sections and, with `methods`, a list of methods."""
        content = {} if path is None else _read_toml(path)
        names = (*sections, "methods") if methods else sections
        for section, value in content.items():
            if section not in names:
                raise nearest(section, names, f"config section in {path}")
            if section == "methods":
                if not isinstance(value, list) or not all(isinstance(m, str) for m in value):
                    raise SettingError(
                        f'config: methods in {path} must be a list of texts: ["fedavg", ...]'
                    )
            elif not isinstance(value, dict):
                raise SettingError(
                    f"config: {section} in {path} must be a section: "
                    f"write [{section}] and its settings below"
                )
            elif not isinstance(value.get("name", ""), str):
                raise SettingError(
                    f"config: name in [{section}] of {path} must be text, got {value['name']!r}"
                )
        fields = {section: dict(content.get(section, {})) for section in sections}
        return cls(path, fields, content.get("methods", []))

    def name(self, section: str, default: str = "") -> str:
        return self.sections[section].get("name", default)

    def fields(self, section: str) -> dict[str, Any]:
        """The settings of a section, without its name."""
        return {k: v for k, v in self.sections[section].items() if k != "name"}

    def check(self, parser: Parser, method: str = "") -> None:
        """Refuse an unknown key or a wrong value, by its place in the file.

        Sections that the parser does not have yet (a model that the data decide) are checked when
        they are used.
        """
        for section, section_fields in parser.fields.items():
            if section not in self.sections:
                continue
            if section == "method" and self.name("method", method) != method:
                continue  # it is about another method, and not used
            more = {"run": ("loss",), "task": ()}.get(section, ("name",))
            for key, value in self.sections[section].items():
                if key in more or (key not in section_fields and section in parser.open_sections):
                    continue
                if key not in section_fields:
                    raise nearest(
                        key, (*section_fields, *more), f"config: {self.path}: {section} setting"
                    )
                try:
                    if section_fields[key][0].metadata:
                        check(key, value, *section_fields[key])
                except SettingError as error:
                    raise SettingError(f"config: {self.path}: [{section}] {error}") from None
        loss = self.sections.get("run", {}).get("loss", "")
        if not isinstance(loss, str):
            raise SettingError(f"config: {self.path}: [run] loss must be text, got {loss!r}")


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            body = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"config: cannot read {path}: {reason}") from None
    if len(body) > MOST:
        raise SettingError(f"config: {path} must have at most {MOST} bytes")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SettingError(
            f"config: {path} is not UTF-8: byte 0x{body[error.start]:02x} in line {line}"
        ) from None
    except RecursionError:
        raise SettingError(f"config: {path} is nested too deeply") from None
    except ValueError as error:  # of tomllib, or a number of thousands of digits
        raise SettingError(f"config: {path} is not TOML: {error}") from None


# -- commands that train -----------------------------------------------------------------------
@dataclass(frozen=True)
class Request:
    """What the user asks of a command that trains: flags, and a settings file below them."""

    parser: Parser
    flags: argparse.Namespace
    file: SettingsFile

    def section(self, name: str) -> dict[str, Any]:
        """The settings of a section; flags win."""
        return self.file.fields(name) | self.parser.values(self.flags, name)

    def plan(self, method: str, fields: dict[str, Any]) -> Plan:
        """The plan of a run of this method."""
        data = self.flags.data or self.file.name("data", "synthetic")
        options = self.section("data")
        path = options.get("path", "")
        if data in FROM_FILES and path and given_path(path, "path").exists():
            options["path"] = str(given_path(path, "path").absolute())  # for a resume elsewhere
        task = self.section("task")
        if task.get("weights"):  # the run may be resumed from elsewhere
            task["weights"] = str(given_path(task["weights"], "weights").absolute())
        settings = self.section("run")
        if settings.get("client_weights"):  # by value: the file may change, and the folder too
            settings["client_weights"] = str(ClientWeights.parse(settings["client_weights"]))
        loss = self.flags.loss or settings.pop("loss", "")
        model = self.flags.model or self.file.name("model")
        return Plan(
            method, fields, data, options, model, self.section("model"), loss, settings, task
        )

    def plans(self, command: str, specs: Iterable[str] | None = None) -> list[Plan]:
        """The plans of several methods: those named, or those of the file."""
        specs = specs or self.flags.methods or self.file.methods
        if not specs:
            raise SettingError(f"{command}: name methods: {', '.join(METHODS)}")
        rows = [row_spec(spec) for spec in specs]
        return [dataclasses.replace(self.plan(name, fields), own=own) for name, fields, own in rows]


class TrainingParser(Parser):
    """The parser of a command that trains: flags of the run, the data, the model and a method.

    The flags of data, model and method follow when the arguments are known: `request` adds them.
    """

    def __init__(self, command: str, description: str, examples: str = ""):
        super().__init__(command, description, examples)
        own = "or module:Name of your own"
        add = self.add_argument
        add("--config", help="settings from a TOML file; flags win")
        add("--data", help=f"data set: {', '.join(DATASETS)}, {own} (default synthetic)")
        add("--model", help=f"model: {', '.join(MODELS)}, {own} (default: chosen from the data)")
        add("--loss", help=f"loss: {', '.join(LOSSES)} (default: chosen from the data)")
        self.add_output()
        for section in SECTIONS:
            title = section.__name__.lower()
            self.add_fields("run", section, title if title == "run" else f"run: {title}")
        self.add_fields("task", Initial, "how the model starts")

    def request(
        self, argv: list[str], method: str = "", file: SettingsFile | None = None
    ) -> Request:
        """Parse the arguments."""
        file = file or SettingsFile.read(peek(argv, "--config"))
        if method:
            self.add_method(method)
        data = peek(argv, "--data") or file.name("data", "synthetic")
        if data.endswith(TABLES):
            raise SettingError(f"data: {data!r} is a file; --data table --path {data}")
        self.add_fields("data", DATASETS.find(data), f"data {data}")
        if model := peek(argv, "--model") or file.name("model"):
            self.add_fields("model", options_of(MODELS.find(model)), f"model {model}")
        if file.path is not None:
            file.check(self, method)
        return Request(self, self.parse(argv), file)
