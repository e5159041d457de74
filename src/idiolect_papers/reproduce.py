"""`idiolect reproduce NAME`: a stored table or figure, and how to make it again."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect import SettingError

SCALES = ("quick", "full")
REPRODUCED = "reproduced"  # the folder of published tables, and of figures of trained models
THEORY = "theory"  # the folder of what the papers prove or show on constructed problems


@dataclass(frozen=True)
class Experiment:
    """A stored experiment: its function writes a page and figures into a folder."""

    function: str  # module:function of this package; it takes the folder, gives the files it wrote
    text: str  # what it shows
    folder: str = ""  # below the output folder
    scales: bool = False  # whether it has a quick and a full scale

    def __call__(self, output: Path, scale: str = "", only: Sequence[str] = ()) -> list[Path]:
        if scale and not self.scales:
            raise SettingError(f"scale must be left out for this experiment, got {scale!r}")
        if scale and scale not in SCALES:
            raise unknown(scale, SCALES, "scale")
        module, _, name = self.function.partition(":")
        write = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        options: dict[str, Any] = {"scale": scale or SCALES[0]} if self.scales else {}
        if only:
            if "only" not in inspect.signature(write).parameters:
                raise SettingError("only must be left out: this experiment is run as a whole")
            options["only"] = only
        folder = output / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        return write(folder, **options)


def unknown(name: str, names: Iterable[str], what: str) -> SettingError:
    """The error for an unknown name, with the nearest one where one is near.

    >>> print(unknown("goldn", ["golden", "rules"], "experiment"))
    experiment: 'goldn' is unknown; did you mean 'golden'? known: golden, rules
    """
    close = difflib.get_close_matches(name, names := sorted(names), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return SettingError(f"{what}: {name!r} is unknown; {hint}known: {', '.join(names)}")


def main(argv: list[str]) -> None:
    """The command."""
    from .names import EXPERIMENTS, GROUPS

    width = max(map(len, EXPERIMENTS)) + 2
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<{width}}{e.text}" for name, e in group.items())]
    parser = argparse.ArgumentParser(
        prog="idiolect reproduce",
        allow_abbrev=False,
        description="Run a stored experiment again and write its page.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", default="", help="one of the experiments below")
    parser.add_argument(
        "--output", default="docs", help="the folder for its page and figures (default docs)"
    )
    parser.add_argument(
        "--scale",
        default="",
        help="quick (minutes, the default) or full (the paper's repeats; it may be stopped, and "
        "the same command resumes it), of experiments that have both",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="DATA",
        help="run a data set of the table alone, e.g. 'Synthetic(0, 0)'; the page has what else is "
        "stored; may be given several times",
    )
    arguments = parser.parse_args(argv)
    if arguments.name not in EXPERIMENTS:
        raise unknown(arguments.name, EXPERIMENTS, "experiment")
    output = Path(arguments.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise SettingError(f"output must be a folder, got {arguments.output!r}: {error}") from None
    for path in EXPERIMENTS[arguments.name](output, arguments.scale, arguments.only):
        print(path)
