"""`idiolect advise`: should these clients learn together at all, and by which method?"""

from __future__ import annotations

import json
from pathlib import Path

from ...core.files import given_path
from ...core.knobs import refused_in
from ...report.console import OUT, say
from ...report.progress import Meter, style_of
from ...run.settings import Settings
from ...study.advise.advise import advise as run_advise
from ...study.advise.options import AdviceOptions
from ..options import Flags, Parser, plan_of, training_flags
from ..output import directory_for

EXAMPLES = """For example:
  idiolect advise --data table --path visits.csv --client hospital --target outcome
  idiolect advise --config idiolect.toml --quick
  idiolect advise ditto:lam=1 lp-proj:dim=50 --data digits --clients 20
Local and fedavg are always among the candidates."""


def advise(argv: list[str]) -> None:
    """Whether these clients should learn together, by which method, and who gains by it."""
    parser = Parser(
        "advise",
        "Should these clients learn together at all, by which method, and who gains by it? Judged "
        "on validation samples, or folds of the training samples; test samples are not looked at.",
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "methods", nargs="*", help="candidates beside local and fedavg, with fields of their own"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the advice on one page, as PNG")
    flags, file = training_flags(parser, argv, None)
    flags.add("advise", AdviceOptions, "advice")
    parsed = flags.parse(argv)
    picture = given_path(parsed.picture, "picture") if parsed.picture else None
    plan = plan_of(flags, parsed, file, "fedavg", {})
    settings = _settings(plan.settings, flags, parsed)
    directory = directory_for(parsed.directory, "advise")
    federation = plan.make_data()
    task = plan.make_task(federation)
    style = "none" if parsed.quiet else style_of(lines=True)
    with Meter(1, style, "trainings", estimated=True) as trainings:
        advice = run_advise(
            federation,
            task,
            parsed.methods or file["methods"],
            directory=directory,
            progress=lambda done, total, what: trainings.update(done, what, total=total),
            **flags.values(parsed, "advise"),
            **settings,
        )
    if picture is not None:
        advice.picture(Path(picture))
    if parsed.json:
        print(json.dumps(advice.as_dict()))
    else:
        OUT.print(advice)
    say(f"advice directory: {directory}")


def _settings(given: dict, flags: Flags, parsed: object) -> dict:
    """The run's settings; those of a file that are about whole runs are left out, with a word."""
    flagged = flags.values(parsed, "run")  # type: ignore[arg-type]
    refused = refused_in(Settings, "advise")
    ignored = [name for name in given if name in refused and name not in flagged]
    if ignored:
        say(f"ignored from the settings file: {', '.join(ignored)} (not for advise)")
    return {name: value for name, value in given.items() if name not in ignored}
