"""`idiolect host`: the data owner's side of a deployed federation."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

from ...core.files import given_folder, given_path, private_folder, write_atomic
from ...core.knobs import Knobs, SettingError, build, knob
from ...core.text import shown
from ...data import DATASETS
from ...data.read.tables import ROLES, SUFFIXES, TableFile, clean_cells, file_alike
from ...deploy.certificates import SITE_KEY, SITE_PUBLIC, make_site_key
from ...deploy.models import SiteModels, export
from ...deploy.page import write_site_page
from ...deploy.site.agreement import Builder, Machine, check_machine
from ...deploy.site.data import SiteData
from ...deploy.site.process import in_words, run_site, status
from ...deploy.site.rules import Rules
from ...deploy.site.state import StateFolder
from ...report.console import say
from ...run.predict import predict
from ..options import Parser, SettingsFile, peek, run_action
from ..output import add_page, page_path
from ..portable import write_one
from .models import CSV_FILE, add_format, check_format, csv_path, show_prediction

START_EXAMPLES = """For example:
  idiolect host start --data visits.csv --target outcome --state ~/federation --site north
  idiolect host start --data visits.csv --client ward --state ~/federation --max-rounds 100"""


SECTIONS = ("site", "data", "rules", "machine")


@dataclass(frozen=True)
class SiteOptions(Knobs):
    """A site: its name, and where it keeps what it keeps."""

    state: str = knob("", "your directory for rows, log and socket")
    site: str = knob("", "what this site is called; empty: this machine's name")
    share: str = knob("", "k/n: the k-th of n parts of a data set's clients, for trials")


def host(argv: list[str]) -> None:
    """Start, key, status, export or predict."""
    run_action("host", ACTIONS, argv, "host command")


def _start(argv: list[str]) -> None:
    """Take part in a federation with your own data, which stay where they are."""
    parser = Parser("host start", _start.__doc__, START_EXAMPLES)
    config = peek(argv, "--config")
    file = SettingsFile.read(config, SECTIONS, methods=False)
    source = peek(argv, "--data") or file.name("data")
    path = source if source.lower().endswith(SUFFIXES) else ""
    parser.add_argument("--config", help="[site], [data], [rules], [machine] in TOML; flags win")
    parser.add_argument(
        "--data",
        help=f"your table ({', '.join(SUFFIXES)}), or a data set: {', '.join(DATASETS)}",
    )
    parser.add_fields("site", SiteOptions, "this site")
    parser.add_fields("rules", Rules, "what may leave")
    parser.add_fields("machine", Machine, "what it computes with")
    data = "table" if path or not source else source
    parser.add_fields("data", DATASETS.find(data), f"data {data}")
    parsed = parser.parse(argv)
    if config is not None:
        file.check(parser)

    def values(section: str) -> dict[str, Any]:
        fields = file.sections["site"] if section == "site" else file.fields(section)
        return fields | parser.values(parsed, section)

    if not source:
        raise SettingError("data: name your table: --data FILE, or a data set")
    options = values("data")
    if path:
        if "path" in options:
            raise SettingError("path: the table is named by --data already")
        options["path"] = path
    if options.get("path"):
        options["path"] = str(given_path(options["path"], "path").absolute())
    place = build(SiteOptions, values("site"), "site")
    if not place.state:
        raise SettingError("state: name a directory for rows, log and socket: --state DIR")
    rules = build(Rules, values("rules"), "rules")
    machine = build(Machine, values("machine"), "machine")
    check_machine(machine)
    state = given_folder(place.state, "state")
    owned = SiteData(_site_name(place.site), data, options, place.share)
    run_site(owned, state, rules, Builder(machine), lambda line: say(shown(line)))


def _site_name(text: str) -> str:
    name = text or socket.gethostname().partition(".")[0]
    if not re.fullmatch(r"[\w .+@-]{1,64}", name) or name != name.strip():
        raise SettingError(
            "site must be up to 64 letters, digits and any of . + @ - _ , got "
            f"{name!r}: --site NAME"
        )
    return name


def _reader(command: str, description: str | None) -> Parser:
    """What the commands on a state directory have in common."""
    parser = Parser(f"host {command}", description, output=("json",))
    parser.add_argument("--state", required=True, help="the state directory of your site")
    return parser


def _key(argv: list[str]) -> None:
    """Make the key that your site proves itself with; its private part stays here."""
    parser = _reader("key", _key.__doc__)
    parser.add_argument(
        "--renew", action="store_true", help="make another one; the old one is deleted"
    )
    parsed = parser.parse(argv)
    state = private_folder(given_folder(parsed.state, "state"))
    private, public = state / SITE_KEY, state / SITE_PUBLIC
    if private.exists() and not parsed.renew:
        raise SettingError(f"state: {private} is there already; --renew makes another one")
    line = make_site_key(private)
    write_atomic(public, line)
    if parsed.output.json:
        print(json.dumps({"private": str(private), "public": str(public), "key": line.decode()}))
        return
    print(line.decode(), end="")
    say(f"private part: {private} (0600; it never leaves this machine)")
    say(f"public part: {public}; give it to the operator of the server, who registers it with")
    command = "rotate-key" if parsed.renew else "add-site"
    say(f"  idiolect deploy {command} FOLDER NAME {public.name}")


def _status(argv: list[str]) -> None:
    """What has left your site so far, in plain words."""
    parser = _reader("status", _status.__doc__)
    add_page(parser)
    parsed = parser.parse(argv)
    facts = status(given_path(parsed.state, "state"))
    if parsed.page:
        write_site_page(page_path(parsed.page), facts)
        say(f"written: {parsed.page}")
    print(json.dumps(facts) if parsed.output.json else "\n".join(map(shown, in_words(facts))))


def _models(parsed: Any) -> SiteModels:
    run = None
    if parsed.run is not None:
        if not re.fullmatch("[0-9a-f]{1,8}", parsed.run):
            raise SettingError(
                f"run must be one that idiolect host status shows, got {parsed.run!r}"
            )
        run = int(parsed.run, 16)
    machine = build(Machine, {}, "machine")
    return SiteModels.open(given_path(parsed.state, "state"), Builder(machine), run)


def _export(argv: list[str]) -> None:
    """Your own models as safetensors, with what makes them ready nn.Modules."""
    parser = _reader("export", _export.__doc__)
    parser.add_argument("--to", required=True, help="the folder for the files")
    parser.add_argument("--run", help="an earlier run (default: the last)")
    add_format(parser)
    parsed = parser.parse(argv)
    is_single = check_format(parsed)
    target = given_folder(parsed.to, "to")
    models = _models(parsed)
    many = len(models.ids)
    if is_single:
        client = _owner(models, parsed.client)
        about = {"client": client, "method": str(models.agreement.plan.get("method"))}
        name = f"client-{[str(i) for i in models.ids].index(str(client)):06d}"
        data = models.members.data
        paths = write_one(models.module(client), data, parsed.format, target, name, about)
        many = 1
    else:
        site = StateFolder(given_path(parsed.state, "state")).site().site
        paths = export(models, target, site)
    summary = f"{many} model{'s' * (many != 1)} as after round {models.rounds} in {target}"
    text = f"{summary}; {paths[-1].name} says what goes in"
    print(json.dumps([str(p) for p in paths]) if parsed.output.json else shown(text))


def _predict(argv: list[str]) -> None:
    """What your own model says of the rows of a table."""
    parser = _reader("predict", _predict.__doc__)
    parser.add_argument("table", help=f"the rows: {', '.join(SUFFIXES)}")
    parser.add_argument("--client", help="whose model predicts all rows, if you have several")
    parser.add_argument("--run", help="an earlier run (default: the last)")
    parser.add_argument("-o", "--output", dest="file", help=CSV_FILE)
    parsed = parser.parse(argv)
    file = csv_path(parsed.file, parsed.table)
    models = _models(parsed)
    options = StateFolder(given_path(parsed.state, "state")).site().data.options
    column = options.get("client") or ""
    frame = file_alike(parsed.table, column or "client", options).frame()
    roles = dict.fromkeys(ROLES, "")  # rows to predict need not have them
    frame = clean_cells(frame, TableFile(**{**options, **roles, "client": column}))
    owners: Any
    if column in frame.columns and parsed.client is None and len(models.ids) > 1:
        owners = frame[column].tolist()
    else:
        owners = _owner(models, parsed.client)
    rows = frame.drop(columns=[column]) if column in frame.columns else frame
    prediction = predict(models, rows, owners, models.members.data)
    show_prediction(prediction, owners, column, file, parsed.output.json)


def _owner(models: SiteModels, client: str | None) -> Any:
    """The client that is meant: the only one, or the one that is named."""
    if client is None and len(models.ids) == 1:
        return models.ids[0]
    if client is None:
        names = ", ".join(str(client_id) for client_id in models.ids[:5])
        raise SettingError(f"client: say whose model: --client ID; there are {names}")
    return next((client_id for client_id in models.ids if str(client_id) == client), client)


ACTIONS = {"start": _start, "key": _key, "status": _status, "export": _export, "predict": _predict}
