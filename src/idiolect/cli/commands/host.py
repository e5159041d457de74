"""`idiolect host`: the data owner's side of a deployed federation."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import sys
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.files import given_folder, given_path, private_folder
from ...core.knobs import Knobs, SettingError, build, knob
from ...core.text import notes_once, shown
from ...data import DATASETS
from ...data.read.tables import ROLES, SUFFIXES, TableFile, clean_cells, file_alike
from ...deploy.certificates import (
    SITE_KEY,
    SITE_PUBLIC,
    certificate_fingerprint,
    key_fingerprint,
    make_site_keys,
)
from ...deploy.config import FEDERATION, Proposal
from ...deploy.flower.process import become
from ...deploy.models import SiteModels, export
from ...deploy.page import write_site_page
from ...deploy.site.agreement import Builder, Machine, check_machine
from ...deploy.site.consent import CONSENT, Consent, ConsentGate, proposed
from ...deploy.site.data import SiteData
from ...deploy.site.process import in_words, run_site, status
from ...deploy.site.rules import Rules
from ...deploy.site.screen import preview
from ...deploy.site.state import SITE, SiteDescription, StateFolder, Usage
from ...deploy.units import write_site_files
from ...engine.carriers.flower import require
from ...report.console import say
from ...run.plan import Plan
from ...run.predict import predict
from ..options import Parser, SettingsFile, peek, run_action
from ..output import add_page, page_path
from ..portable import write_one
from .models import CSV_FILE, add_format, check_format, csv_path, show_prediction

AGREE_EXAMPLES = """For example:
  idiolect host agree federation.toml --data visits.csv --state ~/federation --site north
  idiolect host agree --state ~/federation       # terms that the server has proposed since"""
START_EXAMPLES = """For example:
  idiolect host start --state ~/federation       # as at the last start, or as agreed
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
    """Agree, start, connect, key, status, export or predict."""
    with notes_once():
        run_action("host", ACTIONS, argv, "host command")


@dataclass(frozen=True)
class OwnSite:
    """A site as its owner describes it: on the command line, in a file, or at an earlier start."""

    owned: SiteData
    state: Path
    rules: Rules
    machine: Machine
    given_rules: Set[str]  # names of rules that the owner has set, now or earlier
    parsed: Any

    @classmethod
    def of(cls, parser: Parser, argv: list[str]) -> OwnSite:
        """From the arguments of a command; what they leave out is as it was before."""
        config = peek(argv, "--config")
        file = SettingsFile.read(config, SECTIONS, methods=False)
        earlier = _earlier(peek(argv, "--state") or str(file.sections["site"].get("state", "")))
        source = peek(argv, "--data") or file.name("data")
        path = source if source.lower().endswith(SUFFIXES) else ""
        data = "table" if path or not source else source
        if not source and earlier is not None:
            data = earlier.data.data
        parser.add_argument(
            "--config", help="[site], [data], [rules], [machine] in TOML; flags win"
        )
        parser.add_argument(
            "--data",
            help=f"your table ({', '.join(SUFFIXES)}), or a data set: {', '.join(DATASETS)}",
        )
        parser.add_fields("site", SiteOptions, "this site")
        parser.add_fields("rules", Rules, "what may leave")
        parser.add_fields("machine", Machine, "what it computes with")
        parser.add_fields("data", DATASETS.find(data), f"data {data}")
        parsed = parser.parse(argv)
        if config is not None:
            file.check(parser)

        def values(section: str) -> dict[str, Any]:
            fields = file.sections["site"] if section == "site" else file.fields(section)
            return _before(earlier, section, source) | fields | parser.values(parsed, section)

        if not source and earlier is None:
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
        machine = build(Machine, values("machine"), "machine")
        check_machine(machine)
        owned = SiteData(_site_name(place.site), data, options, place.share)
        rules = values("rules")
        state = given_folder(place.state, "state")
        own = build(Rules, rules, "rules")
        return cls(owned, state, own, machine, rules.keys(), parsed)

    @property
    def builder(self) -> Builder:
        return Builder(self.machine)


def _earlier(state: str) -> SiteDescription | None:
    """What a state directory says of its site; None where there is none yet."""
    folder = StateFolder(Path(state))
    return folder.site() if state and (folder.path / SITE).exists() else None


def _before(earlier: SiteDescription | None, section: str, source: str) -> dict[str, Any]:
    """The fields of a section as they were at an earlier start. Data that are named anew are read
    by new options."""
    if earlier is None:
        return {}
    own: dict[str, Any] = {
        "site": {"site": earlier.site},
        "rules": earlier.rules,
        "machine": earlier.machine,
    }
    if not source:
        own["data"] = earlier.data.options
        own["site"]["share"] = earlier.data.share
    return dict(own.get(section, {}))


def _tell(line: str) -> None:
    say(shown(line))


def _start(argv: list[str]) -> None:
    """Take part in a federation with your own data, which stay where they are."""
    site = OwnSite.of(Parser("host start", _start.__doc__, START_EXAMPLES), argv)

    def decide() -> None:
        """Show terms that are not agreed to, and ask, where somebody is there to answer."""
        gate = ConsentGate(site.state, site.owned, site.rules)
        waiting = _proposal(site.state)
        if waiting is not None and sys.stdin.isatty() and gate.terms() != waiting.terms:
            _decide(site, waiting, "")

    run_site(site.owned, site.state, site.rules, site.builder, _tell, decide=decide)


# -- consent ---------------------------------------------------------------------------------------
def _agree(argv: list[str]) -> None:
    """Read what a federation proposes, and agree to it or not; before that nothing is computed."""
    parser = Parser("host agree", _agree.__doc__, AGREE_EXAMPLES, output=("json",))
    parser.add_argument(
        "federation",
        nargs="?",
        help="federation.toml, from the server's operator; left out: what was proposed since",
    )
    parser.add_argument("--terms", help="agree, without being asked, to the terms with this code")
    site = OwnSite.of(parser, argv)
    parsed = site.parsed
    private_folder(site.state)
    if parsed.federation:
        proposal: Proposal | None = Proposal.read(given_path(parsed.federation, "federation"))
    else:
        proposal = _proposal(site.state)
    if proposal is None:
        raise SettingError(
            "federation: no server has proposed anything here yet; name the file that its operator "
            "has sent: idiolect host agree federation.toml ..."
        )
    if "max_rounds" not in site.given_rules:
        rounds = proposal.plan.make_settings().rounds
        site = replace(site, rules=replace(site.rules, max_rounds=rounds + max(rounds // 10, 5)))
    _tell(site.owned.check())
    if not _decide(site, proposal, parsed.terms or "", parsed.output.json):
        raise SystemExit(1)


def _proposal(state: Path) -> Proposal | None:
    """What a server proposes: what came over the network last, or federation.toml."""
    path = state / FEDERATION
    proposal = Proposal.read(path) if path.exists() else None
    terms = proposed(state)
    if terms is None:
        return proposal
    plan = Plan.read(terms.plan, "plan")
    if proposal is None:
        return Proposal(terms.federation, "", False, "", plan, terms.data)
    return replace(proposal, name=terms.federation, plan=plan, data=terms.data)


def _decide(site: OwnSite, proposal: Proposal, code: str, as_json: bool = False) -> bool:
    """Show the terms, and ask; sign where the owner agrees. Whether they did."""
    public = site.state / SITE_PUBLIC
    key = key_fingerprint(public.read_bytes() if public.exists() else make_site_keys(site.state))
    authority = certificate_fingerprint(proposal.authority) if proposal.authority else ""
    draft = Consent.draft(proposal.terms, proposal.address, authority, site.owned, site.rules)
    used = Usage.load(site.state).rounds
    shown_terms = preview(draft, site.owned, site.rules, site.builder, key, used)
    if as_json:
        print(json.dumps({**shown_terms.facts(), "agreed": code == draft.code}))
    else:
        print("\n".join(["", *shown_terms.lines(), ""]), flush=True)
    if not _answer(draft.code, code):
        return False
    folder = StateFolder(site.state)
    before = _earlier(str(site.state))
    is_first = not (site.state / CONSENT).exists()
    folder.write_site(site.owned, site.rules.as_dict(), dataclasses.asdict(site.machine))
    draft.signed(site.state).save(site.state)
    path = site.owned.options.get("path")
    if proposal.address:
        write_site_files(site.state, proposal, Path(path) if path else None)
    _tell(f"agreed: {site.state / CONSENT}, signed with the key of this site")
    if is_first:
        _tell(f"next: send {public} to the server's operator")
        _tell(f"README.md in {site.state} has the rest")
    elif folder.running() and folder.site() != before:
        _tell("host start is running with the data or rules of before: stop it, and start it again")
    return True


def _answer(code: str, given_code: str) -> bool:
    """Whether the owner agrees."""
    if given_code:
        if given_code != code:
            raise SettingError(f"terms must be {code}, the code of these terms, got {given_code!r}")
        return True
    if not sys.stdin.isatty():
        say(f"not agreed: nobody is at the terminal; to agree to exactly this: --terms {code}")
        return False
    print("Agree? Type yes, or anything else to decline: ", end="", file=sys.stderr, flush=True)
    agrees = sys.stdin.readline().strip().lower() == "yes"
    if not agrees:
        say("not agreed; nothing has left, and nothing will")
    return agrees


def _connect(argv: list[str]) -> None:
    """Connect your site to the server of its federation, in the foreground."""
    parser = Parser("host connect", _connect.__doc__)
    parser.add_argument("--state", required=True, help="the state directory of your site")
    state = given_path(parser.parse(argv).state, "state").absolute()
    require()
    _readable(state / FEDERATION, f"idiolect host agree federation.toml --state {state}")
    proposal = Proposal.read(state / FEDERATION)
    if proposal.insecure:
        say("warning: without TLS and keys everyone on the network can read and forge messages")
    else:
        _readable(state / SITE_KEY, f"idiolect host key --state {state}")
    say(f"connecting to {shown(proposal.address)}; Ctrl-C stops")
    become("idiolect.deploy.flower.node", state)  # a process without torch


def _readable(path: Path, command: str) -> None:
    """Refuse a file that is missing, or another user's."""
    if not path.is_file():
        raise SettingError(f"state: {path} is missing; {command} makes it")
    if not os.access(path, os.R_OK):
        raise SettingError(f"state: {path} cannot be read by this user")


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
    line = make_site_keys(state)
    if parsed.output.json:
        print(json.dumps({"private": str(private), "public": str(public), "key": line.decode()}))
        return
    print(line.decode(), end="")
    say(f"private part: {private} (0600; it never leaves this machine)")
    say(f"public part: {public}; give it to the operator of the server, who registers it with")
    command = "rotate-key" if parsed.renew else "add-site"
    say(f"  idiolect deploy {command} FOLDER NAME {public.name}")
    if parsed.renew and (state / CONSENT).exists():
        say(f"your consent was signed with the old key: idiolect host agree --state {state}")


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


ACTIONS = {
    "agree": _agree,
    "start": _start,
    "connect": _connect,
    "key": _key,
    "status": _status,
    "export": _export,
    "predict": _predict,
}
