"""`idiolect advise`: should these clients learn together at all, and by which method?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.files import given_path
from ...core.knobs import refused_in
from ...report.console import say
from ...report.progress import Meter
from ...run.settings import Settings
from ...study.advise.advise import advise as run_advise
from ...study.advise.options import AdviceOptions
from ..options import TrainingParser
from ..output import Output, directory_for, emit

EXAMPLES = """For example:
  idiolect advise --data table --path visits.csv --client hospital --target outcome
  idiolect advise --config idiolect.toml --quick
  idiolect advise ditto:lam=1 lp-proj:dim=50 --data digits --clients 20
Local and fedavg are always among the candidates."""


def advise(argv: list[str]) -> None:
    """Whether these clients should learn together, by which method, and who gains by it."""
    parser = TrainingParser(
        "advise",
        "Should these clients learn together at all, by which method, and who gains by it? Judged "
        "on validation samples, or folds of the training samples; test samples are not looked at.",
        EXAMPLES,
    )
    parser.add_argument(
        "methods", nargs="*", help="candidates beside local and fedavg, with fields of their own"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the advice on one page, as PNG")
    parser.add_fields("advise", AdviceOptions, "advice")
    request = parser.request(argv)
    parsed = request.flags
    output = Output.of(parsed)
    picture = given_path(parsed.picture, "picture") if parsed.picture else None
    plan = request.plan("fedavg", {})
    settings = _settings(plan.settings, parser.values(parsed, "run"))
    directory = directory_for(parsed.directory, "advise")
    federation = plan.make_data()
    task = plan.make_task(federation)
    with Meter(1, output.style, "trainings", estimated=True) as trainings:
        advice = run_advise(
            federation,
            task,
            parsed.methods or request.file.methods,
            directory=directory,
            progress=lambda count, total, what: trainings.update(count, what, total=total),
            **parser.values(parsed, "advise"),
            **settings,
        )
    if picture is not None:
        advice.picture(Path(picture))
    emit(parsed.json, advice.as_dict(), advice)
    say(f"advice directory: {directory}")


def _settings(settings: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The run's settings; those of a file that concern whole runs are left out, with a warning."""
    refused = refused_in(Settings, "advise")
    ignored = [name for name in settings if name in refused and name not in flags]
    if ignored:
        say(f"ignored from the settings file: {', '.join(ignored)} (not for advise)")
    return {name: value for name, value in settings.items() if name not in ignored}
