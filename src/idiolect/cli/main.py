"""The `idiolect` command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path

from ..core.allocator import keep_memory
from ..core.files import disk_is_full, unwritten
from ..core.knobs import SettingError
from ..core.text import command_line, shown
from ..report.console import OUT, fit_pipe, lines, literal, print_anything
from .commands import COMMANDS
from .flags import forget, in_flags

AGAIN = "make room, then resume the run or repeat the command"
GROUP = "idiolect.commands"  # entry points of other packages: NAME = "module:function"


@cache
def installed_commands() -> dict[str, EntryPoint]:
    """Commands of other packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(arguments: list[str]) -> Callable[[list[str]], None]:
    """The function of the command; an unknown one suggests what was meant."""
    name = arguments[0]
    if name in COMMANDS and COMMANDS[name].function:
        module, _, function = COMMANDS[name].function.partition(":")
        return getattr(importlib.import_module(f"{__package__}.commands.{module}"), function)
    if name in installed_commands():
        return installed_commands()[name].load()
    if name in COMMANDS:
        raise SettingError(
            f"{name}: the package idiolect_papers is not installed; it comes with idiolect's "
            "source: pip install . in a checkout"
        )
    from .suggest import unknown_command

    raise unknown_command(arguments, COMMANDS | installed_commands())


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 on success, 1 if the system refused (a full disk) or a model is not finite, 2 for a setting
    that is refused, 130 after Ctrl-C, 143 after SIGTERM.
    """
    print_anything()
    fit_pipe()
    unwritten.clear()
    forget()
    with command_line():
        code = _exit_code(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            unwritten[Path("stdout")] = f"the standard output ({error.strerror})"
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  or Python tries again as it ends
    if unwritten:
        texts = ", ".join(unwritten.values())
        print(f"error: could not be written: {shown(texts)}; {AGAIN}", file=sys.stderr)
    return code or int(bool(unwritten))


def _exit_code(arguments: list[str]) -> int:
    try:
        _run(arguments)
        return 0
    except KeyboardInterrupt as stop:
        print(f"interrupted: {shown(stop)}" if str(stop) else "interrupted", file=sys.stderr)
        return 128 + getattr(stop, "number", 2)
    except BrokenPipeError:
        return 0
    except MemoryError as error:
        print(f"error: out of memory: {shown(error)}", file=sys.stderr)
        return 1
    except OSError as error:  # of the disk, a folder, a file: their names say what to do
        print(f"error: {shown(error)}", file=sys.stderr)
        return 1
    except Exception as error:
        several_lines = getattr(error, "several_lines", False)
        if not isinstance(error, SettingError) and not several_lines:
            raise
        text = lines(error) if several_lines else shown(error)
        print(f"error: {in_flags(text)}", file=sys.stderr)
        return 1 if disk_is_full(error) else getattr(error, "exit_code", 2)


def _run(arguments: list[str]) -> None:
    if not arguments or arguments in (["help"], ["-h"], ["--help"]):
        _help()
        return
    if arguments[0] in ("-V", "--version"):
        print(version("idiolect"))
        return
    if arguments[0] == "help":
        arguments = [arguments[1], "--help", *arguments[2:]]
    command = load(arguments)
    keep_memory()
    command(arguments[1:])


def _help() -> None:
    from rich.table import Table

    title = "idiolect: personalised federated learning"
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, command in COMMANDS.items():
        table.add_row(literal(f"idiolect {name} {command.usage}"), literal(command.text))
    for name, point in installed_commands().items():
        if name in COMMANDS:
            continue
        package = point.module.partition(".")[0]
        table.add_row(literal(f"idiolect {name}"), literal(f"from the package {package}"))
    OUT.print(table)
    OUT.print(
        "Each command has --help (idiolect help run); those that show figures or lists have --json."
    )


if __name__ == "__main__":
    sys.exit(main())
