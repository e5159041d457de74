"""`idiolect deploy`: a federation of real sites, carried by Flower."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import data
from ...core.documents import encode
from ...core.files import given_folder, given_path, read_document, write_document
from ...core.knobs import Knobs, SettingError, build, kinds_of, knob
from ...core.types import leaves
from ...data import DATASETS
from ...data.prepare.columns import CATEGORY, NUMBER, coded
from ...data.prepare.federated import CODE, TEXT
from ...data.prepare.preparation import categories_of
from ...data.read.tables import (
    ONE_CLIENT,
    TableFile,
    feature_columns,
    table_samples,
    with_one_client,
)
from ...deploy.config import FEDERATION, Deployment, Terms
from ...deploy.exclusions import readmit
from ...deploy.flower.process import become
from ...deploy.flower.server import run_server
from ...deploy.folder import DeploymentFolder, RunOrder, RunOutcome, create, make_certificates
from ...deploy.page import write_server_page
from ...deploy.pidfile import holder
from ...deploy.registry import NUMBERED
from ...deploy.site.agreement import check_one_exchange
from ...deploy.site.data import NO_WEIGHTS
from ...deploy.watch import HealthServer, health, in_words, read_status, status
from ...engine.carriers.flower import require
from ...report.console import say
from ...report.tables import results_table
from ...run.plan import Plan, row_spec
from ...run.result import Result
from ...study.load import load
from ...task.losses import LOSSES
from ..options import Parser, peek, run_action
from ..output import add_page, emit, page_path

AWAY = 60.0  # seconds after which a server that was killed is taken to stay away
MOST_CLASSES = 100  # distinct values of a target that is taken as classes
INIT_EXAMPLES = """For example:
  idiolect deploy init heart --method ditto --like visits.csv --target outcome --sites 3
  idiolect deploy init trial --method lp-proj --dim 50 --data digits --sites 2 --insecure"""


def deploy(argv: list[str]) -> None:
    """A new federation, its server, runs, and who may connect."""
    run_action("deploy", ACTIONS, argv, "deploy command")


# -- a new one -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class InitOptions(Knobs):
    """What a new federation is about."""

    method: str = knob("fedavg", "the method, with fields of its own: ditto:lam=0.5")
    model: str = knob("", "the model; '' = chosen from the data")
    loss: str = knob("", f"{', '.join(LOSSES)}; '' = chosen from the data")
    like: str = knob("", "a table with the columns of the sites'; no row is kept")
    target: str = knob("", "the column to predict")
    features: str = knob(
        "",
        "columns to predict from, with commas; '' = all of --like but identifiers and constants",
    )
    classes: str = knob("", "the classes of the target, with commas, or 'none'; '' = as in --like")
    drop: str = knob("", "columns of --like that are no features")
    client: str = knob("", "column of --like that says whose row it is; never a feature")
    group: str = knob("", "column of --like whose rows belong together (patients); no feature")
    time: str = knob("", "column of --like with times; no feature")
    weight: str = knob("", "refused: sites go by numbers of samples; --drop leaves the column out")
    scale: str = knob(
        "federated",
        "federated: by the means of all sites, from counts and sums, as in idiolect init; client: "
        "each site by its own",
    )
    data: str = knob("", f"in place of a table: {', '.join(DATASETS.built_in)}")
    demo: bool = knob(False, "make the private keys of the sites here: all are on this machine")
    categories: str = knob("", "those of --features that hold text; '' = as in --like")


def _init(argv: list[str]) -> None:
    """Write the server's folder of a new federation, and the file that its sites need."""
    parser = Parser("deploy init", _init.__doc__, INIT_EXAMPLES, InitOptions)
    parser.add_argument("folder", help="where it is written")
    name, named_fields, own = row_spec(peek(argv, "--method") or "fedavg")
    parser.add_method(name)
    parser.add_fields("deployment", Terms, "how the server deals with its sites")
    parser.add_run(set(kinds_of(Terms)))  # address and deadline are those of the deployment
    parser.add_model(peek(argv, "--model"))
    parsed = parser.parse(argv)
    options: InitOptions = parsed.options
    plan = Plan(
        name,
        {**named_fields, **parser.values(parsed, "method")},
        model=options.model,
        model_options=parser.values(parsed, "model"),
        loss=options.loss,
        settings={**own, **parser.values(parsed, "run")},
        task_options=parser.values(parsed, "task"),
        data="",
    )
    # values as their fields have them, not as texts of the command line
    chosen_method = plan.make_method()
    check_one_exchange(chosen_method)
    settings, method = plan.make_settings().as_dict(), chosen_method.as_dict()
    plan = dataclasses.replace(
        plan,
        method_fields={n: method.get(n, v) for n, v in plan.method_fields.items()},
        settings={n: settings[n] for n in plan.settings},
    )
    terms = build(Terms, parser.values(parsed, "deployment"), "deployment")
    deployment = Deployment(plan, _form(options), terms)
    layout = create(given_folder(parsed.folder, "folder"), deployment, options.demo)
    _warn_if_insecure(terms)
    say(f"written: {layout.folder}; README.md there has the commands of the server")
    if not options.demo:
        say(f"every site needs {layout.folder / FEDERATION}, and nothing else")
    if not terms.insecure and not options.demo:
        say("no site may connect yet: idiolect deploy add-site FOLDER NAME PUBLIC_KEY")


def _form(options: InitOptions) -> dict[str, Any]:
    """The data contract."""
    if options.weight:
        raise SettingError(NO_WEIGHTS)
    if options.data:
        federation = data.load(options.data)
        (inputs,) = [[str(t.dtype), list(t.shape[1:])] for t in leaves(federation.inputs)]
        return {"kind": "array", "inputs": inputs, "classes": federation.classes}
    if not options.target:
        raise SettingError("target: name the column to predict: --target NAME")
    features = _words(options.features)
    kinds: dict[str, str] = {}
    classes = _classes(options.classes) if options.classes else None
    if options.like:
        samples, kinds = _columns_like(options, features)
        features = list(kinds)
        if classes is None:
            classes = _classes_of(samples[options.target])
    if not features or classes is None:
        raise SettingError(
            "features: name them and the classes of the target (--features a,b --classes no,yes), "
            "or a table that has the columns: --like FILE"
        )
    form = {"kind": "table", "target": options.target, "features": features, "classes": classes}
    for name in _words(options.categories):
        if name not in features:
            raise SettingError(f"categories must be among the features, got {name!r}")
        kinds[name] = TEXT
    if set(kinds.values()) - {NUMBER}:
        form["kinds"] = [kinds.get(name, NUMBER) for name in features]
    return {**form, "scale": options.scale}


def _columns_like(options: InitOptions, features: list[str]) -> tuple[Any, dict[str, str]]:
    """The rows of --like, and its features with their kinds: by the rules of every table."""
    path = str(given_path(options.like, "like"))
    reader = TableFile(
        path=path,
        client=options.client or ONE_CLIENT,
        target=options.target,
        group=options.group,
        time=options.time,
        features=tuple(features),
        drop=tuple(_words(options.drop)),
        dates="days" if features else "drop",
    )
    frame = reader.frame()
    if not options.client:
        frame = with_one_client(frame, "all")
    samples, _ = table_samples(frame, reader)
    kinds, dropped = feature_columns(samples, reader)
    if dropped:
        words = ", ".join(f"{name!r} ({why})" for name, why in dropped.items())
        say(f"columns of {options.like} that are no features: {words}; --features keeps one")
    for name in (name for name in kinds if kinds[name] == CATEGORY):
        # as everywhere: a text of which every row has its own is no category
        categories_of(samples.frame[name], name, samples.train, reader.max_categories)
    return samples.frame, {name: _kind(samples.frame[name], kinds[name]) for name in kinds}


def _kind(column: Any, kind: str) -> str:
    """What the data contract says of a column."""
    if kind != CATEGORY:
        return NUMBER
    _, values = coded(column)
    return TEXT if all(isinstance(value, str) for value in values) else CODE


def _classes_of(column: Any) -> list[Any]:
    """The classes of a column; [] where its values are measured."""
    if column.dtype.kind == "f":
        return []
    _, values = coded(column)
    distinct = [v.item() if hasattr(v, "item") else v for v in values]
    return sorted(distinct) if len(distinct) <= MOST_CLASSES else []


def _classes(text: str) -> list[Any]:
    """Classes as they are in tables: numbers where they are numbers."""
    names = [] if text == "none" else _words(text)
    whole = all(n.lstrip("-").isdigit() for n in names)
    return [int(n) for n in names] if whole else list(names)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


# -- what runs -------------------------------------------------------------------------------------
def _superlink(argv: list[str]) -> None:
    """Start what the sites connect to, in the foreground."""
    layout, deployment, _ = _opened(_folder_parser("superlink", _superlink.__doc__), argv)
    require()
    _refuse_second(layout, "superlink")
    arguments = layout.superlink_arguments(deployment.terms)
    _warn_if_insecure(deployment.terms)
    say(f"sites may connect at {deployment.terms.address}; Ctrl-C stops")
    become("idiolect.deploy.flower.link", *arguments)  # a process without torch


def _server(argv: list[str]) -> None:
    """Start what carries out the runs of a federation, in the foreground."""
    parser = _folder_parser("server", _server.__doc__)
    parser.add_argument(
        "--health-port", type=int, help="answer GET /health at this port of 127.0.0.1"
    )
    layout, _, parsed = _opened(parser, argv)
    _refuse_second(layout, "server")
    layout.make_secrets()
    port = parsed.health_port
    with nullcontext() if port is None else _health(layout, port):
        say("the server waits for runs: idiolect deploy run; Ctrl-C stops")
        run_server(layout)


def _run(argv: list[str]) -> None:
    """Train with the sites of a federation, and show the table."""
    parser = _folder_parser("run", _run.__doc__, ("directory", "json", "quiet"))
    parser.add_argument("--resume", action="store_true", help="resume the last run")
    layout, deployment, parsed = _opened(parser, argv)
    if holder(layout.pid("server")) is None:
        raise SettingError(f"server: it is not running; idiolect deploy server {layout.folder}")
    directory = _directory(layout, deployment, parsed)
    at = layout.log.stat().st_size if layout.log.exists() else 0
    order = RunOrder(secrets.token_hex(8), str(directory), parsed.resume)
    if layout.request.exists():
        raise SettingError("server: a run is in progress; wait for it, or stop the server")
    if layout.write_proposal(deployment):
        say(f"federation.toml has changed: every site needs the new one ({layout.folder})")
    write_document(layout.request, encode(order))
    error = _follow(layout, order, at, parsed.output.quiet)
    if error:
        raise SettingError(f"{error} (run directory: {directory})")
    result = load(directory)
    assert isinstance(result, Result)
    sites, clients = deployment.terms.sites, len(result.clients_table())
    title = f"{sites} site{'s' * (sites != 1)}, {clients} client{'s' * (clients != 1)}"
    summary = result.summary()
    emit(parsed.output.json, summary, results_table([summary], title))
    say(f"run directory: {directory}")


def _health(layout: DeploymentFolder, port: int) -> HealthServer:
    if not 0 <= port < 65536:
        raise SettingError(f"health_port must be a port, 0 to 65535, got {port}")
    server = HealthServer(port, lambda: health(layout))
    say(f"health: http://127.0.0.1:{server.port}/health")
    return server


def _directory(layout: DeploymentFolder, deployment: Deployment, parsed: Any) -> Path:
    if parsed.output.directory:
        return given_path(parsed.output.directory, "directory").absolute()
    if not parsed.resume:
        return layout.runs / parsed.output.new_directory(deployment.plan.method).name
    directories = sorted(path.parent for path in layout.runs.glob("*/settings.json"))
    if not directories:
        raise SettingError(f"resume: there is no run in {layout.runs}")
    return directories[-1]


def _follow(layout: DeploymentFolder, order: RunOrder, at: int, quiet: bool) -> str:
    """What the server says of the run until it has ended; why it could not, if so."""
    pid = layout.pid("server")
    last_seen = time.monotonic()  # the server
    while True:
        outcome = None
        if layout.outcome.exists():
            outcome = read_document(layout.outcome, RunOutcome)
        if layout.log.exists() and not quiet:
            with layout.log.open("rb") as file:
                # a log that is full is set aside, and a new one begun
                at = at if at <= layout.log.stat().st_size else 0
                file.seek(at)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            at += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                say(line)
        if outcome is not None and outcome.order_id == order.order_id:
            return outcome.error
        now = time.monotonic()
        if holder(pid) is not None:
            last_seen = now
        # a server that was killed leaves its file, and something may start it again
        elif not pid.exists() or now - last_seen > AWAY:
            raise SettingError(
                "server: it has been stopped; the run is resumed when it starts again"
            )
        time.sleep(0.5)


def _stop(argv: list[str]) -> None:
    """Stop the server's processes of a folder; a round in progress is finished first."""
    layout, _, _ = _opened(_folder_parser("stop", _stop.__doc__), argv)
    stopped = [name for name in ("server", "superlink") if _end(name, layout.pid(name))]
    say(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


def _end(name: str, path: Path) -> bool:
    """End the process that holds a file; False where there is none."""
    pid = holder(path)
    if pid is None:
        return False
    with suppress(ProcessLookupError):  # it has ended just now
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 90
    while holder(path) == pid:
        if time.monotonic() > end:
            raise SettingError(f"stop: {name} (process {pid}) has not ended within 90 seconds")
        time.sleep(0.2)
    return True


def _status(argv: list[str]) -> None:
    """How far the server of a federation is, with whom, and who was put out."""
    parser = _folder_parser("status", _status.__doc__, ("json",))
    add_page(parser)
    layout, _, parsed = _opened(parser, argv)
    facts = status(layout.folder)
    if parsed.page:
        write_server_page(page_path(parsed.page), facts)
        say(f"written: {parsed.page}")
    print(json.dumps(facts) if parsed.output.json else "\n".join(in_words(facts)))


def _add_site(argv: list[str]) -> None:
    """Register the public key of a site, which may then connect under this name."""
    name = _change_key("add-site", _add_site.__doc__, argv, replace=False)
    say(f"{name} may connect, under this name alone (at the site: --site {shlex.quote(name)})")


def _rotate_key(argv: list[str]) -> None:
    """Register a new public key of a site; the old one opens nothing from the next round on."""
    name = _change_key("rotate-key", _rotate_key.__doc__, argv, replace=True)
    say(f"{name} has a new key; the old one is refused from the next round on")


def _change_key(command: str, text: str | None, argv: list[str], replace: bool) -> str:
    parser = _folder_parser(command, text)
    parser.add_argument("name", help="what the site is called")
    parser.add_argument("public_key", help="file that `idiolect host key` has written at the site")
    layout, deployment, parsed = _opened(parser, argv)
    _refuse_insecure(deployment.terms)
    if NUMBERED.fullmatch(parsed.name):
        raise SettingError(f"name must not be that of a demo's key (site-N), got {parsed.name!r}")
    layout.add_site(parsed.name, given_path(parsed.public_key, "public_key"), replace)
    return str(parsed.name)


def _remove_site(argv: list[str]) -> None:
    """Take away the key of a site; it takes no part from the next round on."""
    parser = _folder_parser("remove-site", _remove_site.__doc__)
    parser.add_argument("name", help="what the site is called")
    layout, deployment, parsed = _opened(parser, argv)
    _refuse_insecure(deployment.terms)
    layout.remove_site(parsed.name)
    say(f"{parsed.name} is removed; a running server asks it no more from the next round on")


def _readmit(argv: list[str]) -> None:
    """Take a site that was put out of the last run back in, from its next round on."""
    parser = _folder_parser("readmit", _readmit.__doc__)
    parser.add_argument("name", help="what the site is called, as deploy status shows it")
    layout, _, parsed = _opened(parser, argv)
    run = read_status(layout)
    if run is None:
        raise SettingError("name: nobody is put out; no run has been started")
    readmit(Path(run.directory), parsed.name)
    say(f"{parsed.name} is readmitted; it is asked from the next round on")


def _refuse_insecure(terms: Terms) -> None:
    if terms.insecure:
        raise SettingError("insecure: this federation has no keys, and everyone may connect")


def _certificates(argv: list[str]) -> None:
    """New test certificates for the server of a federation."""
    parser = _folder_parser("certificates", _certificates.__doc__)
    layout, deployment, _ = _opened(parser, argv)
    make_certificates(layout, deployment)
    layout.write_proposal(deployment)
    say(f"written: {layout.certificates}; every site needs the new federation.toml")


def _folder_parser(command: str, text: str | None, output: tuple[str, ...] = ()) -> Parser:
    parser = Parser(f"deploy {command}", text, output=output)
    parser.add_argument("folder", help="of the federation, as deploy init has written it")
    return parser


def _opened(parser: Parser, argv: list[str]) -> tuple[DeploymentFolder, Deployment, Any]:
    parsed = parser.parse(argv)
    folder = given_path(parsed.folder, "folder").absolute()
    return DeploymentFolder(folder), Deployment.read(folder), parsed


def _refuse_second(layout: DeploymentFolder, role: str) -> None:
    if (pid := holder(layout.pid(role))) is not None:
        raise SettingError(f"{layout.folder}: its {role} is running already (process {pid})")


def _warn_if_insecure(terms: Terms) -> None:
    if terms.insecure:
        say(
            "warning: without TLS and keys everyone on the network can read and forge messages; "
            "for trials on one machine only"
        )


ACTIONS: dict[str, Callable[[list[str]], None]] = {
    "init": _init,
    "superlink": _superlink,
    "server": _server,
    "run": _run,
    "status": _status,
    "stop": _stop,
    "add-site": _add_site,
    "remove-site": _remove_site,
    "rotate-key": _rotate_key,
    "readmit": _readmit,
    "certificates": _certificates,
}
