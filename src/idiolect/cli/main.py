"""The `idiolect` command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from ..core import allocator
from ..core.knobs import SettingError
from ..core.text import shown
from ..data.download import FetchError
from ..report.console import fit_pipe, lines, print_anything
from ..run.checkpoint import CheckpointError
from ..run.interrupts import exit_code
from .suggest import unknown_command


class Command(NamedTuple):
    """A command of the command line."""

    function: str  # module:function, of this folder
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
    "run": Command("train:run", "METHOD", "train one method"),
    "compare": Command(
        "train:compare",
        "METHODS…",
        "train several methods on the same data, with Local at equal compute beside them",
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
    "init": Command(
        "init:init", "TABLE", "look at your own table and write a settings file for it"
    ),
    "resume": Command("resume:resume", "RUN", "continue an interrupted run, exactly"),
    "show": Command("show:show", "RUNS…", "the table of finished runs again"),
    "export": Command(
        "models:export", "RUN", "every client's own model as safetensors; one as ONNX, ..."
    ),
    "predict": Command(
        "models:predict", "RUN --data FILE", "what clients' own models say of the rows of a table"
    ),
    "personalise": Command(
        "models:personalise", "RUN --data FILE", "models for clients that come after training"
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
    "methods": Command("list:methods", "", "what there is, when to use it, what it costs"),
    "channels": Command(
        "list:channels",
        "",
        "how to send less: what each channel does and the bytes of a message",
    ),
    "attacks": Command("list:attacks", "", "what malicious clients can do"),
    "rules": Command(
        "list:rules",
        "",
        "how the server combines messages, and how many malicious clients it withstands",
    ),
    "projections": Command(
        "list:projections",
        "",
        "what each kind of P costs for your model: singular values, memory, time, bytes",
    ),
    "splits": Command(
        "splits:splits",
        "",
        "which part of your model should be personal: each measured, one recommended",
    ),
    "kernels": Command(
        "list:kernels",
        "",
        "how fast each way to compute the cohort gradient is on your data and model",
    ),
    "data": Command(
        "data:data",
        "list | get NAME | show NAME",
        "data sets: what there is, get one, see who has what",
    ),
    "reproduce": Command("list:reproduce", "NAME", "a stored table again, by name"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command and say how it went.

    0 when it worked, 1 where the system refused (a full disk), 2 for a setting that is not
    accepted, 130 after Ctrl-C, 143 after SIGTERM.
    """
    arguments = sys.argv[1:] if argv is None else argv
    print_anything()
    fit_pipe()
    try:
        if not arguments or arguments in (["help"], ["-h"], ["--help"]):
            _help()
            return 0
        if arguments[0] in ("-V", "--version"):
            from importlib.metadata import version

            print(version("idiolect"))
            return 0
        if arguments[0] == "help" and arguments[1:]:
            arguments = [arguments[1], "--help", *arguments[2:]]
        if arguments[0] not in COMMANDS:
            raise unknown_command(arguments, COMMANDS)
        allocator.keep_memory()
        COMMANDS[arguments[0]].load()(arguments[1:])
        return 0
    except (FetchError, CheckpointError) as error:  # in lines of their own
        print(f"error: {lines(error)}", file=sys.stderr)
        return 2
    except SettingError as error:
        print(f"error: {shown(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"interrupted: {shown(stop)}" if str(stop) else "interrupted", file=sys.stderr)
        return exit_code(stop)
    except BrokenPipeError:
        return 0
    except OSError as error:  # of the disk, a folder, a file: their names say what to do
        print(f"error: {shown(error)}", file=sys.stderr)
        return 1


def _help() -> None:
    from rich.table import Table

    from ..report.console import OUT, literal

    title = "idiolect: personalised federated learning"
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, command in COMMANDS.items():
        table.add_row(literal(f"idiolect {name} {command.usage}"), literal(command.text))
    OUT.print(table)
    OUT.print(
        "Each command has --help (idiolect help run); those that show figures or lists have --json."
    )


if __name__ == "__main__":
    sys.exit(main())
