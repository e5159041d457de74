"""`idiolect deploy`: a federation of real sites, carried by Flower."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import data
from ...core.files import check_object, given_folder, given_path, read_json, write_json
from ...core.knobs import SettingError, build, kinds_of, nearest
from ...core.types import leaves
from ...data import DATASETS
from ...data.prepare.columns import coded
from ...data.read.table_files import TableFile
from ...deploy.config import Deployment, Terms
from ...deploy.folder import DeploymentFolder, certify, create
from ...methods import METHODS
from ...models import MODELS, options_of
from ...report.console import OUT, say
from ...report.tables import results_table
from ...run.plan import Plan, row_spec
from ...run.result import Result
from ...run.settings import SECTIONS
from ...study.load import load
from ...task.initial import Initial
from ...task.losses import LOSSES
from ..options import Parser, peek
from ..output import directory_for

MOST_CLASSES = 100  # distinct values of a target that is taken as classes
INIT_EXAMPLES = """For example:
  idiolect deploy init heart --method ditto --like visits.csv --target outcome --sites 3
  idiolect deploy init trial --method lp-proj --dim 50 --data digits --sites 2 --insecure"""


def deploy(argv: list[str]) -> None:
    """Init, server, site, run, stop or certificates."""
    words = [argv[i] for i in Parser("deploy", "").words(argv)]
    if not words:
        parser = Parser("deploy", "A federation of real sites, carried by Flower.")
        parser.add_argument("action", help=", ".join(ACTIONS))
        parser.parse(argv)
    if words[0] not in ACTIONS:
        raise nearest(words[0], ACTIONS, "deploy command")
    rest = list(argv)
    rest.remove(words[0])
    ACTIONS[words[0]](rest)


# -- a new one -------------------------------------------------------------------------------------
def _init(argv: list[str]) -> None:
    parser = Parser("deploy init", "Write a folder for a new federation, for server and sites.")
    parser.epilog = INIT_EXAMPLES
    parser.add_argument("folder", help="where it is written")
    parser.add_argument("--method", help=f"{', '.join(METHODS)} (default fedavg)")
    parser.add_argument("--model", help=f"{', '.join(MODELS)} (default: chosen from the data)")
    parser.add_argument("--loss", help=f"{', '.join(LOSSES)} (default: chosen from the data)")
    parser.add_argument("--like", help="a table with the columns of the sites'; no row is kept")
    parser.add_argument("--target", help="the column to predict")
    parser.add_argument("--features", help="columns to predict from, with commas (default: all)")
    parser.add_argument("--classes", help="the classes of the target, with commas, or 'none'")
    parser.add_argument("--drop", default="", help="columns of --like that are no features")
    parser.add_argument(
        "--scale",
        default="client",
        help="client: each site by its own means; federated: by those of all, from counts and sums",
    )
    parser.add_argument("--data", help=f"in place of a table: {', '.join(DATASETS)}")
    name, named_fields, own = row_spec(peek(argv, "--method") or "fedavg")
    parser.add_method(name)
    parser.add_fields("deployment", Terms, "how the server deals with its sites")
    ours = set(kinds_of(Terms))  # address and deadline are those of the deployment
    for section in SECTIONS:
        parser.add_fields("run", section, f"run: {section.__name__.lower()}", ours)
    parser.add_fields("task", Initial, "how the model starts")
    if model := peek(argv, "--model"):
        parser.add_fields("model", options_of(MODELS.find(model)), f"model {model}")
    parsed = parser.parse(argv)
    plan = Plan(
        name,
        {**named_fields, **parser.values(parsed, "method")},
        "",
        {},
        parsed.model or "",
        parser.values(parsed, "model") if parsed.model else {},
        parsed.loss or "",
        {**own, **parser.values(parsed, "run")},
        parser.values(parsed, "task"),
    )
    plan = _plain(plan)
    terms = build(Terms, parser.values(parsed, "deployment"), "deployment")
    layout = create(given_folder(parsed.folder, "folder"), Deployment(plan, _form(parsed), terms))
    _warn_if_insecure(terms)
    say(f"written: {layout.folder}; README.md there has the commands for the server and the sites")


def _plain(plan: Plan) -> Plan:
    """The plan with values as their fields have them, not as texts of the command line."""
    settings = plan.make_settings().as_dict()
    method = plan.make_method().as_dict()
    return Plan(
        plan.method,
        {n: method.get(n, v) for n, v in plan.method_fields.items()},
        "",
        {},
        plan.model,
        plan.model_options,
        plan.loss,
        {n: settings[n] for n in plan.settings},
        plan.task_options,
    )


def _form(parsed: Any) -> dict[str, Any]:
    """The data contract."""
    if parsed.data:
        federation = data.load(parsed.data)
        (inputs,) = [[str(t.dtype), list(t.shape[1:])] for t in leaves(federation.inputs)]
        return {"kind": "array", "inputs": inputs, "classes": federation.classes}
    if not parsed.target:
        raise SettingError("target: name the column to predict: --target NAME")
    features = _words(parsed.features)
    classes = None if parsed.classes is None else _classes(parsed.classes)
    if parsed.like:
        frame = TableFile(path=str(given_path(parsed.like, "like")), client="-").frame()
        drop = {parsed.target, *_words(parsed.drop)}
        for name in (parsed.target, *features):
            if name not in frame.columns:
                raise SettingError(f"column {name!r} is not in {parsed.like}")
        features = features or [str(n) for n in frame.columns if n not in drop]
        if classes is None:
            classes = _classes_of(frame[parsed.target].dropna())
    if not features or classes is None:
        raise SettingError(
            "features: name them and the classes of the target (--features a,b --classes no,yes), "
            "or a table that has the columns: --like FILE"
        )
    form = {"kind": "table", "target": parsed.target, "features": features, "classes": classes}
    return {**form, "scale": parsed.scale}


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
def _server(argv: list[str]) -> None:
    parser = _folder_parser("server", "Start the server of a federation, in the foreground.")
    layout, deployment, _ = _opened(parser, argv)
    _refuse_second(layout.server)
    file = layout.server_processes(deployment.terms)
    _warn_if_insecure(deployment.terms)
    say(f"the server waits for sites at {deployment.terms.address}; Ctrl-C stops")
    _supervise(file)


def _site(argv: list[str]) -> None:
    parser = _folder_parser("site", "Connect a site to the server, in the foreground.")
    parser.add_argument("number", type=int, help="which of the sites: 1, 2, ...")
    parser.add_argument("--socket", help="of the site's process (default sites/N/state/host.sock)")
    layout, deployment, parsed = _opened(parser, argv)
    _refuse_second(layout.site(parsed.number))
    line = Path(parsed.socket).absolute() if parsed.socket else None
    file = layout.site_processes(parsed.number, deployment.terms, line)
    _warn_if_insecure(deployment.terms)
    say(f"site {parsed.number} connects to {deployment.terms.address}; Ctrl-C stops")
    _supervise(file)


def _run(argv: list[str]) -> None:
    parser = _folder_parser("run", "Train with the sites of a federation, and show the table.")
    parser.add_argument("--resume", action="store_true", help="resume the last run")
    parser.add_output()
    layout, deployment, parsed = _opened(parser, argv)
    pid = _pid(layout.server)
    if pid is None:
        raise SettingError(f"server: it is not running; idiolect deploy server {layout.folder}")
    directory = _directory(layout, deployment, parsed)
    log = layout.server / "said.txt"
    at = log.stat().st_size if log.exists() else 0
    request = {"id": secrets.token_hex(8), "directory": str(directory), "resume": parsed.resume}
    if (layout.server / "wanted.json").exists():
        raise SettingError("server: a run is in progress; wait for it, or stop the server")
    write_json(layout.server / "wanted.json", request)
    error = _follow(layout, request["id"], at, parsed.quiet)
    if error:
        raise SettingError(f"{error} (run directory: {directory})")
    result = load(directory)
    assert isinstance(result, Result)
    if parsed.json:
        print(json.dumps(result.summary()))
    else:
        sites, clients = deployment.terms.sites, len(result.clients_table())
        title = f"{sites} site{'s' * (sites != 1)}, {clients} client{'s' * (clients != 1)}"
        OUT.print(results_table([result.summary()], title, OUT.width))
    say(f"run directory: {directory}")


def _directory(layout: DeploymentFolder, deployment: Deployment, parsed: Any) -> Path:
    if parsed.directory:
        return given_path(parsed.directory, "directory").absolute()
    if not parsed.resume:
        return layout.runs / directory_for(None, deployment.plan.method).name
    directories = sorted(path.parent for path in layout.runs.glob("*/settings.json"))
    if not directories:
        raise SettingError(f"resume: there is no run in {layout.runs}")
    return directories[-1]


def _follow(layout: DeploymentFolder, request_id: str, at: int, quiet: bool) -> str:
    """What the server says of the run until it has ended; why it could not, if so."""
    log, outcome = layout.server / "said.txt", layout.server / "outcome.json"
    while True:
        document = read_json(outcome) if outcome.exists() else {}
        ended = isinstance(document, dict) and document.get("id") == request_id
        if log.exists() and not quiet:
            with log.open("rb") as file:
                file.seek(at)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            at += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                say(line)
        if ended:
            return str(check_object(document, {"id": str, "error": str})["error"])
        if _pid(layout.server) is None:
            raise SettingError(
                "server: it has been stopped; the run is resumed when it starts again"
            )
        time.sleep(0.5)


def _stop(argv: list[str]) -> None:
    parser = _folder_parser(
        "stop", "Stop the server and the sites that were started from a folder."
    )
    layout, _, _ = _opened(parser, argv)
    places = [layout.server, *sorted((layout.folder / "sites").glob("*"))]
    running = {place: pid for place in places if (pid := _pid(place)) is not None}
    for pid in reversed(list(running.values())):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 90
    while any(_pid(place) == pid for place, pid in running.items()):
        if time.monotonic() > end:
            raise SettingError("stop: they have not ended within 90 seconds")
        time.sleep(0.2)
    say(f"stopped: {len(running)}" if running else "nothing was running")


def _certificates(argv: list[str]) -> None:
    parser = _folder_parser("certificates", "New test certificates for the server of a federation.")
    layout, deployment, _ = _opened(parser, argv)
    certify(layout, deployment)
    say(f"written: {layout.certificates}; every site needs the new ca.crt")


def _folder_parser(command: str, text: str) -> Parser:
    parser = Parser(f"deploy {command}", text)
    parser.add_argument("folder", help="of the federation, as deploy init has written it")
    return parser


def _opened(parser: Parser, argv: list[str]) -> tuple[DeploymentFolder, Deployment, Any]:
    parsed = parser.parse(argv)
    folder = given_path(parsed.folder, "folder").absolute()
    return DeploymentFolder(folder), Deployment.read(folder), parsed


def _pid(place: Path) -> int | None:
    """The supervisor that is at work in a folder; None where there is none."""
    try:
        pid = int((place / "pid").read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _refuse_second(place: Path) -> None:
    if (pid := _pid(place)) is not None:
        raise SettingError(f"{place}: it is running already (process {pid})")


def _supervise(file: Path) -> None:
    """This process becomes the supervisor: one without torch."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "idiolect.deploy.flower.supervise", str(file)])


def _warn_if_insecure(terms: Terms) -> None:
    if terms.insecure:
        say(
            "warning: without TLS and keys everyone on the network can read and forge messages; "
            "for trials on one machine only"
        )


ACTIONS: dict[str, Callable[[list[str]], None]] = {
    "init": _init,
    "server": _server,
    "site": _site,
    "run": _run,
    "stop": _stop,
    "certificates": _certificates,
}
