"""Flags, help and settings files, all from dataclass fields: nothing is listed twice."""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NoReturn

from ..core.files import given_path, regular_file
from ..core.knobs import BOOLEANS, SettingError, accepted, build, check, kinds_of, nearest, written
from ..data import DATASETS
from ..data.entries import Public, takes_public
from ..methods import METHODS, NAMES, Preset, has_preset, named_method
from ..models import MODELS, options_of
from ..report.console import OUT, say
from ..run.client_weights import ClientWeights
from ..run.plan import Plan, model_specs, row_spec
from ..run.settings import SECTIONS
from ..task.initial import Initial
from ..task.losses import LOSSES
from .commands import COMMANDS
from .flags import remember
from .output import Output
from .suggest import TABLES, unknown_flag

FROM_FILES = ("table", "folder")  # data sets whose `path` is a file or folder of the user's
FILE_SECTIONS = ("method", "run", "task", "data", "model")  # of a settings file
MOST = 1 << 20  # bytes of a settings file; one with all settings has a few thousand


# -- help: a line per flag; `--help all`, `--help rounds`, `--help participation` say more ---------
class HelpFormatter(argparse.HelpFormatter):
    """Texts are folded to the width of the terminal, examples stay as they are."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=min(OUT.width, 100))

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = "") -> None:
        super().add_usage(usage, actions, groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}".strip()

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            line if line.startswith(" ") else textwrap.fill(line, width)
            for line in text.splitlines()
        )


class Help(argparse.Action):
    """Print help and end: short by default, with a word all of it, one section or one flag."""

    def __init__(self, option_strings: Any, dest: str, **options: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", metavar="TOPIC", **options)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        print(_help_text(parser, str(values or "").strip().lstrip("-")), end="", flush=True)
        parser.exit()


def _help_text(parser: Parser, topic: str) -> str:
    words = (_metavar(a) for a in parser._actions if not a.option_strings)
    parser.usage = " ".join([parser.prog, *words, "[flags]"]).replace("%", "%%")
    topics = {s.lstrip("-"): ("flag", [a]) for a in parser._actions for s in a.option_strings}
    for group in parser._action_groups:
        for word in (group.title or "").lower().split(" "):
            topics.setdefault(word, (str(group.title), group._group_actions))
    for action in parser._actions:
        _describe(action, is_short=topic != "all" and topic not in topics)
    if topic in topics:
        formatter = parser._get_formatter()
        formatter.start_section(topics[topic][0])
        formatter.add_arguments(topics[topic][1])
        formatter.end_section()
        return formatter.format_help()
    return parser.format_help()


def _describe(action: argparse.Action, is_short: bool) -> None:
    """What the help says of a flag: in short its default and one clause, without examples."""
    text = action.help or ""
    if hasattr(action, "field"):
        f, kind = action.field
        default = written(f, f.default)
        text = f.metadata["help"].replace("%", "%%")
        if is_short:
            action.metavar = str(default) or "TEXT"
            action.nargs = 0 if default is False else None
        else:
            text += f" (default {default!r}; {accepted(f, kind)})".replace("%", "%%")
    action.help = re.sub(r", e\.g\. [^;]*", "", text) if is_short else text


def _metavar(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest).upper()
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


# -- flags -----------------------------------------------------------------------------------------
class Parser(argparse.ArgumentParser):
    """The flags of one command; those made of dataclass fields belong to a section.

    `options` is a dataclass of the command's own flags, and `output` names the fields of `Output`
    that it has: both are made by `parse`. Errors are SettingErrors; an unknown flag suggests the
    nearest.
    """

    def __init__(
        self,
        command: str,
        description: str | None = "",
        examples: str = "",
        options: type | None = None,
        output: Collection[str] = (),
    ):
        super().__init__(
            prog=f"idiolect {command}",
            allow_abbrev=False,
            description=description or COMMANDS[command].sentence,
            epilog=examples,
            add_help=False,
            formatter_class=HelpFormatter,
        )
        self._positionals.title = "what"
        self._optionals.title = "flags"
        text = "this text; of a flag, a section (--help run) or all, in full"
        self.add_argument("-h", "--help", action=Help, help=text)
        # section -> name -> the field and its type
        self.fields: dict[str, dict[str, tuple[dataclasses.Field, type]]] = {}
        self.open_sections: set[str] = set()  # those that take any other name too
        self.own: dict[str, type] = {}
        if options is not None:
            self.own["options"] = options
            self.add_fields("options", options)
        if output:
            self.own["output"] = Output
            others = {f.name for f in dataclasses.fields(Output)} - set(output)
            self.add_fields("output", Output, without=others)

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; see: {self.prog} --help")

    def add_fields(
        self, section: str, cls: type, title: str = "", without: Collection[str] = ()
    ) -> argparse._ArgumentGroup:
        """A flag per field of a dataclass.

        Fields of data and models whose plain name means something else get the section as prefix.
        """
        group = self.add_argument_group(title) if title else self._optionals
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
            switch = {"nargs": "?", "const": "true"} if kinds[f.name] is bool else {}
            action: Any = group.add_argument(
                f"--{flag.replace('_', '-')}",
                dest=f"{section}.{f.name}",
                metavar=f.name.upper(),
                **switch,  # type: ignore[arg-type]
            )
            action.field = (f, kinds[f.name])  # what the help of it is made of
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

    def add_run(self, without: Collection[str] = ()) -> None:
        """The settings of a run, and how its model starts."""
        for section in SECTIONS:
            title = section.__name__.lower()
            self.add_fields("run", section, title if title == "run" else f"run: {title}", without)
        self.add_fields("task", Initial, "how the model starts")

    def add_model(self, name: str | None) -> None:
        """The options of a model; without a name, the data decide on one.

        Several models ("linear | mlp(hidden=32)") have theirs in parentheses.
        """
        if name and not model_specs(name):
            self.add_fields("model", options_of(MODELS.find(name)), f"model {name}")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """The command's arguments; its own options and output as objects."""
        remember(self._actions)
        switches = {s for a in self._actions if a.const == "true" for s in a.option_strings}
        # a switch takes the next word only if that says true or false: no method, no file
        words = [
            f"{word}=true" if word in switches and after.lower() not in BOOLEANS else word
            for word, after in zip_longest(argv, argv[1:], fillvalue="")
        ]
        parsed, unknown = self.parse_known_intermixed_args(words)
        if unknown and unknown[0].startswith("-"):
            flags = [s for action in self._actions for s in action.option_strings]
            raise unknown_flag(unknown[0], flags, self.prog)
        if unknown:
            self.error(f"{unknown[0]!r} is one argument too many for {self.prog}")
        for section, cls in self.own.items():
            setattr(parsed, section, build(cls, self.values(parsed, section), section))
        return parsed

    def values(self, parsed: argparse.Namespace, section: str) -> dict[str, Any]:
        """The flags of a section that the user has set."""
        flags = {n: getattr(parsed, f"{section}.{n}", None) for n in self.fields.get(section, {})}
        return {name: value for name, value in flags.items() if value is not None}

    def words(self, argv: list[str], classes: Iterable[type]) -> list[int]:
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


def run_action(
    command: str, actions: Mapping[str, Callable[[list[str]], None]], argv: list[str], noun: str
) -> None:
    """Run the action that the arguments name: `idiolect deploy init`."""
    place = next((i for i, word in enumerate(argv) if word in actions), None)
    if place is not None:
        actions[argv[place]]([*argv[:place], *argv[place + 1 :]])
    elif word := next((word for word in argv if not word.startswith("-")), ""):
        raise nearest(word, actions, noun)
    else:  # help, or the error for a missing action
        lines = [f"  {name}: {(action.__doc__ or '')}" for name, action in actions.items()]
        parser = Parser(command, examples="\n".join(lines))
        parser.add_argument(noun.rpartition(" ")[2], help=", ".join(actions))
        parser.parse(argv)


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
            if section == "method" and named_method(self.name("method", method)).method != method:
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
        with regular_file(path, "config").open("rb") as file:
            body = file.read(MOST + 1)
    except OSError as error:
        raise SettingError(f"config: cannot read {path}: {error.strerror}") from None
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
        explicit = self.section("run")
        rows = [row_spec(spec, explicit) for spec in specs]
        for spec in specs:
            say_what_is_named(spec)
        return [dataclasses.replace(self.plan(name, fields), own=own) for name, fields, own in rows]


def say_what_is_named(spec: str) -> None:
    """Tell what a name stands for, where it stands for a method with settings."""
    name = spec.partition(":")[0]
    if name in NAMES:
        say(f"{name}: {NAMES[name].words()}")


class TrainingParser(Parser):
    """The parser of a command that trains: flags of the run, the data, the model and a method.

    The flags of data, model and method follow when the arguments are known: `request` adds them.
    """

    def __init__(
        self,
        command: str,
        examples: str = "",
        options: type | None = None,
        results: Collection[str] = (),
        description: str | None = "",
    ):
        output = ("directory", "json", "quiet", *results)
        super().__init__(command, description, examples, options, output)
        own = "or module:Name of your own"
        add = self.add_argument
        add("--config", help="settings from a TOML file; flags win")
        add("--data", help=f"data set: {', '.join(DATASETS)}, {own} (default synthetic)")
        add(
            "--model",
            help=f"model: {', '.join(MODELS)}, {own} (default: chosen from the data); several for "
            "clients with unlike models: 'linear | mlp(hidden=32)', dealt to them in turn",
        )
        add("--loss", help=f"loss: {', '.join(LOSSES)} (default: chosen from the data)")
        self.add_run()

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
        if takes_public(DATASETS.find(data)):
            self.add_fields("data", Public, "public inputs")
        self.add_model(peek(argv, "--model") or file.name("model"))
        if file.path is not None:
            file.check(self, method)
        return Request(self, self.parse(argv), file)
