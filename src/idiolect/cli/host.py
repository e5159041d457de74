"""`idiolect host`: the data owner's side of a deployed federation."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, build, nearest
from ..core.paths import given_folder, given_path
from ..core.text import shown
from ..data import DATASETS
from ..data.tables import SUFFIXES
from ..host.site.folder import Folder
from ..host.site.owned import Owned
from ..host.site.process import run_site
from ..host.site.rules import Rules
from ..report.console import say
from ..run.at_site import Builder, Machine, check_machine
from .flags import Flags, Parser, peek, words_among

START_EXAMPLES = """For example:
  idiolect host start --data visits.csv --target outcome --state ~/federation --site north
  idiolect host start --data visits.csv --client ward --state ~/federation --max-rounds 100"""


def host(argv: list[str]) -> None:
    """Start, status, export or predict."""
    words = [argv[i] for i in words_among(argv, Parser("host", ""))]
    if not words:
        parser = Parser("host", "The data owner's side of a deployed federation.")
        parser.add_argument("action", help=", ".join(ACTIONS))
        Flags(parser).parse(argv)
    if words[0] not in ACTIONS:
        raise nearest(words[0], ACTIONS, "host command")
    rest = list(argv)
    rest.remove(words[0])
    ACTIONS[words[0]](rest)


def _start(argv: list[str]) -> None:
    """The long-lived process of the data owner."""
    parser = Parser(
        "host start", "Take part in a federation with your own data, which stay where they are."
    )
    parser.epilog = START_EXAMPLES
    named = peek(argv, "--data") or ""
    path = named if named.lower().endswith(SUFFIXES) else ""
    parser.add_argument(
        "--data", help=f"your table (.csv, .tsv, .parquet), or a data set: {', '.join(DATASETS)}"
    )
    parser.add_argument("--state", required=True, help="your directory for rows, log and socket")
    parser.add_argument("--site", help="what this site is called (default: this machine's name)")
    parser.add_argument(
        "--share", default="", help="k/n: the k-th of n parts of a data set's clients, for trials"
    )
    flags = Flags(parser)
    flags.add("rules", Rules, "what may leave")
    flags.add("machine", Machine, "what it computes with")
    data = "table" if path or not named else named
    flags.add("data", DATASETS.find(data), f"data {data}")
    parsed = flags.parse(argv)
    if not named:
        raise SettingError("data: name your table: --data FILE, or a data set")
    options = flags.values(parsed, "data")
    if path:
        if "path" in options:
            raise SettingError("path: the table is named by --data already")
        options["path"] = path
    if options.get("path"):
        options["path"] = str(given_path(options["path"], "path").absolute())
    site = _site_name(parsed.site)
    rules = build(Rules, flags.values(parsed, "rules"), "rules")
    machine = build(Machine, flags.values(parsed, "machine"), "machine")
    check_machine(machine)
    state = given_folder(parsed.state, "state")
    owned = Owned(site, data, options, parsed.share)
    run_site(owned, state, rules, Builder(machine), lambda line: say(shown(line)))


def _site_name(given: str | None) -> str:
    name = socket.gethostname().partition(".")[0] if given is None else given
    if not re.fullmatch(r"[\w .+@-]{1,64}", name) or name != name.strip():
        raise SettingError(
            f"site: {name!r} is not accepted; up to 64 letters, digits and any of . + @ - _ : "
            "--site NAME"
        )
    return name


ACTIONS = {"start": _start}
__all__ = ["Any", "Folder", "Path", "host"]
