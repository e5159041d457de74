"""`idiolect reproduce NAME`: a stored table or figure, and how to make it again."""

from __future__ import annotations

import argparse
from pathlib import Path

from idiolect import SettingError

from .experiments import EXPERIMENTS, GROUPS, unknown


def main(argv: list[str]) -> None:
    """The command."""
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
