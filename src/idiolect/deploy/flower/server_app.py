"""The ServerApp of a run: carries out the run that the server's folder asks for.

Started by `deploy.flower.server` as `flwr-serverapp`, in the folder of the federation. What became
of the run is in server/outcome.json; a run that was interrupted stays wanted.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...core.documents import encode
from ...core.files import read_document, write_document
from ...core.knobs import SettingError
from ...core.text import shown
from ...engine.carriers.flower import FlowerCarrier
from ...report.format import Figure, number
from ...run.checkpoint import CheckpointError
from ...run.interrupts import Interrupted
from ..config import Deployment
from ..folder import DeploymentFolder, RunOrder, RunOutcome
from ..rounds import TooFewSites
from ..server import serve
from .internals import look_sooner
from .server import registered, say

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The run that is wanted, over the nodes of this grid."""
    look_sooner()
    layout = DeploymentFolder(Path.cwd())
    order = read_document(layout.request, RunOrder)
    try:
        error = carry_out(grid, layout, order)
    except Interrupted as stop:
        print(f"interrupted: {shown(stop)}", file=sys.stderr, flush=True)
        return
    write_document(layout.outcome, encode(RunOutcome(order.order_id, error)))
    layout.request.unlink(missing_ok=True)


def carry_out(grid: Grid, layout: DeploymentFolder, order: RunOrder) -> str:
    """Train; why it could not be done, or ""."""
    directory = Path(order.directory)
    deployment = Deployment.read(layout.folder)
    nodes = (lambda: None) if deployment.terms.insecure else partial(registered, layout)
    try:
        serve(
            FlowerCarrier(grid, registered=nodes),
            deployment,
            directory,
            resume=order.resume or (directory / "settings.json").exists(),
            tell=lambda text: say(layout, text),
            progress=lambda seed, rounds, figure: say(layout, _line(rounds, figure)),
            status=layout.status,
        )
    except (SettingError, TooFewSites, CheckpointError) as problem:
        return str(problem)
    return ""


def _line(rounds: int, figure: float) -> str:
    name = figure.name if isinstance(figure, Figure) else "accuracy"
    result = f"{name} {number(figure)}" if figure == figure else f"no site reported {name}"
    return f"round {rounds} is done: {result}"
