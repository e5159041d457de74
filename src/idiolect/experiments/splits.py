"""Is the split that `idiolect splits` recommends the one that training then prefers?

For every candidate, FFGG goes on from the same start with that part private, and its validation
loss is put beside what the advisor had said. `idiolect reproduce splits` writes splits-checked.md;
the State of the Union addresses are fetched if they are not there. Test data are not looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import data, models
from ..data.federation import Federation
from ..methods.ffgg import Ffgg
from ..report.figures import count, number
from ..run.given import read_method
from ..run.kept import kept
from ..run.run import run
from ..run.session import Start
from ..run.split_candidates import Candidate
from ..run.splits import Splits, splits, without_test
from ..task.task import Task

STARTS = ("common", "random")  # of the private part: the pre-trained one, or anew (the paper)


@dataclass(frozen=True)
class Case:
    """A federation, its model, the start and how long FFGG goes on from there."""

    data: str
    model: str
    heard: int
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    start: str = "fedavg"
    rounds: int = 50
    ffgg_rounds: int = 30
    lr: float = 0.1  # of FFGG's shared part
    steps: int = 50
    rank: int = 4
    seeds: int = 2

    def load(self) -> tuple[Federation, Task]:
        federation = data.load(self.data, **self.options)
        make = partial(
            models.make, self.model, federation.shape, federation.classes, **self.model_options
        )
        return federation, Task(make)


CASES = {
    "digits, 2 classes per client": Case(
        "digits", "mlp", 5, {"clients": 20, "classes_per_client": 2}, {"hidden": "64,64"}
    ),
    "digits, 5 classes per client": Case(
        "digits", "mlp", 5, {"clients": 20, "classes_per_client": 5}, {"hidden": "64,64"}
    ),
    "Synthetic(1, 1), 30 clients": Case(
        "synthetic",
        "mlp",
        10,
        {"clients": 30, "alpha": 1.0, "beta": 1.0},
        {"hidden": "64,64"},
        start="fedavg:lr=0.03",
    ),
    "State of the Union, 12 presidents": Case(
        "sotu",
        "transformer",
        6,
        {"clients": 12, "vocabulary": 300, "cap": 5000, "length": 12},
        {"blocks": 2, "heads": 2, "width": 32, "hidden": 64},
        start="fedavg:lr=0.5,steps=10",
        ffgg_rounds=15,
        lr=0.5,
        steps=30,
        seeds=1,
    ),
}


def measure(case: Case, told: Any = None) -> dict[str, Any]:
    """The advisor's table, and FFGG's validation loss by part and start of the private part."""
    federation, task = case.load()
    unseen = without_test(federation)
    shared = {"sample": case.heard, "seeds": case.seeds, "threads": 1}
    found: Splits = splits(
        task,
        federation,
        rank=case.rank,
        start=case.start,
        rounds=case.rounds,
        finetune_steps=case.steps,
        progress=False,
        tell=told,
        **shared,
    )
    method = read_method(case.start)
    begun = run(method, task, unseen, rounds=case.rounds, eval_every=0, progress=False, **shared)
    trained: dict[str, dict[str, float]] = {}
    for row in found.rows[1:-1]:
        one = Candidate(row["part"], (), case.rank if row["name"] != row["part"] else 0, "low-rank")
        trained[row["name"]] = {
            how: _ffgg(case, one, row["lr"], how, begun, unseen, task) for how in STARTS
        }
        if told is not None:
            told(f"ffgg {row['name']}: {trained[row['name']]}")
    return {"advisor": found.summary(), "ffgg": trained}


def _ffgg(
    case: Case,
    one: Candidate,
    rates: list[float],
    how: str,
    begun: Any,
    unseen: Federation,
    task: Task,
) -> float:
    """The validation loss that FFGG reaches from the same start, mean over seeds."""
    losses = []
    for seed, lr in enumerate(rates):
        session = begun.session(seed)
        bound, _, x0 = one.on(session.contract.task, session.server.handover())
        model = Task(bound.module, task.criterion) if one.rank else task
        method = Ffgg(part=one.part, start=how, steps=case.steps, private_lr=lr, lr=case.lr)
        result = run(
            method,
            model,
            unseen,
            rounds=case.ffgg_rounds,
            sample=case.heard,
            seed=seed,
            threads=1,
            eval_every=0,
            start={seed: Start(x0)},
            progress=False,
        )
        losses.append(result.summary()["valid"]["loss"]["mean"])
    return sum(losses) / len(losses)


# -- the page -----------------------------------------------------------------------------------
def write(folder: Path, cases: dict[str, Case] = CASES) -> list[Path]:
    """Measure every case (some minutes) and write splits-checked.md and .json."""
    console = Console(stderr=True)
    results = {}
    with kept(folder / ".splits.jsonl") as keep:
        for title, case in cases.items():

            def told(text: str, title: str = title) -> None:
                console.print(f"{title}: {text}", highlight=False)

            results[title] = keep(partial(measure, case, told), title, repr(case))
    text = folder / "splits-checked.md"
    table = folder / "splits-checked.json"
    page = [HEAD]
    for title, result in results.items():
        page += _section(title, cases[title], result)
    text.write_text("\n".join(page), encoding="utf-8")
    table.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return [text, table]


def _section(title: str, case: Case, result: dict[str, Any]) -> list[str]:
    advisor = result["advisor"]
    trained = result["ffgg"]
    lines = [
        f"## {title}: {case.model}, d = {advisor['d']:,}",
        "",
        f"Start: {case.rounds} rounds of {advisor['start']['method']}; FFGG: {case.ffgg_rounds} "
        f"rounds of {case.steps} private steps; {case.seeds} seed{'s' * (case.seeds > 1)}.",
        "",
        "| private part | private numbers | ‖F‖ | advisor: valid loss | ± | FFGG, pre-trained | "
        "FFGG, random |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in advisor["candidates"]:
        mine = row["part"] == advisor["choice"]
        own = trained.get(row["name"], {})
        name = " = ".join([row["name"], *row["also"]])
        cells = [
            f"**{name}**" if mine else name,
            count(row["private"]),
            f"{row['gradient_left']:.3g}" if row["shared"] else "–",
            number(row["valid_loss"]),
            f"{row['gap_error']:.2g}" if row["gap_error"] else "–",
            *(number(own.get(how)) for how in STARTS),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *verdicts(advisor, trained), ""]


def verdicts(advisor: dict[str, Any], trained: dict[str, dict[str, float]]) -> list[str]:
    """Whether FFGG prefers the recommended part too, in words."""
    row = next(r for r in advisor["candidates"] if r["part"] == advisor["choice"])
    errors = {r["name"]: r["gap_error"] for r in advisor["candidates"]}
    if row["name"] not in trained:
        return ["Recommended: no private part; FFGG has no row for that."]
    words = {"common": "from the pre-trained private part", "random": "from a random one"}
    out = []
    for how in STARTS:
        best = min(trained, key=lambda name: trained[name][how])
        gap = trained[row["name"]][how] - trained[best][how]
        if best == row["name"]:
            verdict = "the recommended part is the best"
        elif gap <= max(errors[best], errors[row["name"]]):
            verdict = f"{best} is better by {gap:.4f}, within one standard error"
        else:
            verdict = f"{best} is better by {gap:.4f}, more than one standard error"
        out.append(f"- FFGG {words[how]}: {verdict}.")
    return out


HEAD = """\
# Splits: does training agree with the advisor?

`idiolect splits` recommends a part by fine-tuning it once, from a common start. Here FFGG goes on
from the same start with each part private, and its validation loss stands beside: with the private
part started each round where the pre-trained model has it, and anew at random, as the paper does.
The recommended part is in bold type; ± is the standard error of the advisor's difference to its
best. Validation data throughout, no test data. Written by `idiolect reproduce splits`.
"""
