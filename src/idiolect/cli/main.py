"""The `idiolect` command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from typing import NamedTuple

from ..core.allocator import keep_memory
from ..core.knobs import SettingError
from ..core.text import shown
from ..report.console import OUT, fit_pipe, lines, literal, print_anything

GROUP = "idiolect.commands"  # entry points of other packages: NAME = "module:function"


class Command(NamedTuple):
    """A command of the command line."""

    function: str  # module:function, of the folder `commands`
    usage: str
    text: str

    def load(self) -> Callable[[list[str]], None]:
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"{__package__}.commands.{module}"), name)


COMMANDS = {
    "demo": Command(
        "train:demo",
        "",
        "several methods compared on 100 clients, in under a minute, without a download",
    ),
    "run": Command("train:run", "METHOD", "train one method, or stages METHOD@ROUNDS as one run"),
    "compare": Command(
        "train:compare",
        "METHODS…",
        "train several methods on the same data, with Local at equal compute",
    ),
    "sweep": Command(
        "sweep:sweep",
        "METHODS… --grid NAME=VALUES",
        "every combination of a grid with every seed, on all cores, as one table",
    ),
    "tune": Command(
        "tune:tune",
        "METHODS… [--grid … | --space FILE | --trials N]",
        "choose settings on validation data, then train with them and test",
    ),
    "advise": Command(
        "advise:advise",
        "[METHODS…]",
        "should these clients learn together at all, by which method, and who gains by it?",
    ),
    "pipeline": Command(
        "train:pipeline", "STAGES…", "stages as one run: pre-train, personalise, fine-tune"
    ),
    "splits": Command(
        "splits:splits",
        "",
        "which part of your model should be personal: each measured, one recommended",
    ),
    "init": Command("init:init", "TABLE", "write a settings file for your own table"),
    "resume": Command("resume:resume", "RUN", "continue an interrupted run, exactly"),
    "show": Command("show:show", "RUNS…", "the table of finished runs again"),
    "export": Command(
        "models:export", "RUN", "every client's personal model as safetensors; one as ONNX or pt2"
    ),
    "predict": Command(
        "models:predict", "RUN --data FILE", "predictions of personal models for rows of a table"
    ),
    "personalise": Command(
        "models:personalise", "RUN --data FILE", "personal models for clients that join later"
    ),
    "host": Command(
        "host:host",
        "start | status | export | predict",
        "take part in a federation with your own data: what leaves, your model, its predictions",
    ),
    "deploy": Command(
        "deploy:deploy",
        "init | server | site | run | stop DIR",
        "a federation of real sites that keep their data, carried by Flower",
    ),
    "list": Command(
        "list:list_kind",
        "methods | channels | attacks | rules | kernels | projections",
        "what there is, when to use it, what it costs; --measure: on your data and model",
    ),
    "data": Command(
        "data:data",
        "list | get NAME | show NAME",
        "data sets: what there is, get one, see who has what",
    ),
    "reproduce": Command("reproduce:reproduce", "NAME", "a stored table again, by name"),
}


@cache
def installed_commands() -> dict[str, EntryPoint]:
    """Commands of other packages, by name."""
    return {p.name: p for p in entry_points(group=GROUP) if p.name not in COMMANDS}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 on success, 1 if the system refused (a full disk), 2 for a setting that is not accepted, 130
    after Ctrl-C, 143 after SIGTERM.
    """
    arguments = sys.argv[1:] if argv is None else argv
    print_anything()
    fit_pipe()
    try:
        _run(arguments)
        return 0
    except KeyboardInterrupt as stop:
        print(f"interrupted: {shown(stop)}" if str(stop) else "interrupted", file=sys.stderr)
        return 128 + getattr(stop, "number", 2)
    except BrokenPipeError:
        return 0
    except OSError as error:  # of the disk, a folder, a file: their names say what to do
        print(f"error: {shown(error)}", file=sys.stderr)
        return 1
    except Exception as error:
        several_lines = getattr(error, "several_lines", False)
        if not isinstance(error, SettingError) and not several_lines:
            raise
        print(f"error: {lines(error) if several_lines else shown(error)}", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> None:
    if not arguments or arguments in (["help"], ["-h"], ["--help"]):
        _help()
        return
    if arguments[0] in ("-V", "--version"):
        print(version("idiolect"))
        return
    if arguments[0] == "help":
        arguments = [arguments[1], "--help", *arguments[2:]]
    name, *rest = arguments
    if name in COMMANDS:
        keep_memory()
        COMMANDS[name].load()(rest)
    elif name in installed_commands():
        keep_memory()
        installed_commands()[name].load()(rest)
    else:
        from .suggest import unknown_command

        raise unknown_command(arguments, [*COMMANDS, *installed_commands()])


def _help() -> None:
    from rich.table import Table

    title = "idiolect: personalised federated learning"
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, command in COMMANDS.items():
        table.add_row(literal(f"idiolect {name} {command.usage}"), literal(command.text))
    for name, point in installed_commands().items():
        package = point.module.partition(".")[0]
        table.add_row(literal(f"idiolect {name}"), literal(f"from the package {package}"))
    OUT.print(table)
    OUT.print(
        "Each command has --help (idiolect help run); those that show figures or lists have --json."
    )


if __name__ == "__main__":
    sys.exit(main())
