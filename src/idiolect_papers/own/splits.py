"""Is the split that `idiolect splits` recommends the one that training then prefers?

For every candidate, FFGG goes on from the same start with that part private, and its validation
loss is put beside what the advisor had said. `idiolect reproduce splits` writes splits-checked.md;
the State of the Union addresses are fetched if they are not there. Test data are not looked at.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import Federation, Ffgg, Splits, Start, Task, data, models, run, splits
from idiolect.report import count, number
from idiolect.study import SplitCandidate as Candidate

from ..runs import Work, finished
from ..texts import read_text

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
    ffgg_rounds: int = 20
    lr: float = 0.1  # of FFGG's shared part
    steps: int = 50
    rank: int = 4
    seeds: int = 1

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
    "Synthetic(1, 1), 20 clients": Case(
        "synthetic",
        "mlp",
        10,
        {"clients": 20, "alpha": 1.0, "beta": 1.0},
        {"hidden": "64,64"},
        start="fedavg:lr=0.03",
    ),
    "State of the Union, 12 presidents": Case(
        "sotu",
        "transformer",
        6,
        {"clients": 12, "vocabulary": 200, "cap": 2000, "length": 10},
        {"blocks": 2, "heads": 2, "width": 24, "hidden": 48},
        start="fedavg:lr=0.5,steps=10",
        rounds=30,
        ffgg_rounds=5,
        lr=0.5,
        steps=20,
    ),
}


def measure(case: Case) -> dict[str, Any]:
    """The advisor's tables and FFGG's validation losses, by the start of the private part."""
    federation, task = case.load()
    unseen = federation.without("test")
    shared: dict[str, Any] = {"sample": case.heard, "seeds": case.seeds, "threads": 1}
    begun = run(
        case.start, task, unseen, rounds=case.rounds, eval_every=0, progress=False, **shared
    )
    out: dict[str, Any] = {"advisor": {}, "ffgg": {}}
    for how in STARTS:
        advice: Splits = splits(
            task,
            federation,
            rank=case.rank,
            start=case.start,
            private_start=how,
            rounds=case.rounds,
            finetune_steps=case.steps,
            progress=False,
            **shared,
        )
        out["advisor"][how] = advice.summary()
        out["ffgg"][how] = {}
        for row in advice.rows[1:-1]:
            rank = case.rank if row["name"] != row["part"] else 0
            one = Candidate(row["part"], (), rank, "low-rank")
            loss = _ffgg(case, one, row["lr"], how, begun, unseen, task)
            out["ffgg"][how][row["name"]] = loss
    return out


def _ffgg(
    case: Case,
    one: Candidate,
    rates: list[float],
    how: str,
    begun: Any,
    unseen: Federation,
    task: Task,
) -> float | None:
    """The validation loss that FFGG reaches from the same start, mean over seeds.

    None where it has diverged: the step size of the private part is the advisor's, which took it
    for one fine-tuning with the shared part still.
    """
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
    return None if None in losses else sum(losses) / len(losses)


# -- the page -----------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class SplitJob(Work):
    """One case."""

    title: str
    case: Case

    def train(self) -> dict[str, Any]:
        return measure(self.case)

    def describe(self) -> str:
        return self.title


def write(folder: Path, cases: dict[str, Case] = CASES) -> list[Path]:
    """Measure every case (some minutes) and write splits-checked.md and .json."""
    jobs = [SplitJob(title, case) for title, case in cases.items()]
    results = {
        job.title: result for job, result in finished(jobs, folder, "splits", workers=1).items()
    }
    text = folder / "splits-checked.md"
    table = folder / "splits-checked.json"
    text.write_text(page(results, cases), encoding="utf-8")
    table.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return [text, table]


def page(results: dict[str, Any], cases: dict[str, Case]) -> str:
    """The page of what was measured."""
    lines = [HEAD]
    for how in STARTS:
        good = [t for t, r in results.items() if _agrees(r["advisor"][how], r["ffgg"][how])]
        lines.append(
            f"- FFGG {FROM[how]}: the recommended part is the best, or within one standard error "
            f"of it, in {len(good)} of {len(results)} cases."
        )
    lines.append("")
    for title, result in results.items():
        lines += _section(title, cases[title], result)
    return "\n".join(lines)


def _section(title: str, case: Case, result: dict[str, Any]) -> list[str]:
    by_start = result["advisor"]
    first = by_start[STARTS[0]]
    heads = ("advisor", "±", "FFGG")
    lines = [
        f"## {title}: {case.model}, d = {first['d']:,}",
        "",
        f"Start: {case.rounds} rounds of {first['start']['method']}; FFGG: {case.ffgg_rounds} "
        f"rounds of {case.steps} private steps; {case.seeds} seed{'s' * (case.seeds > 1)}.",
        "",
        "| private part | private numbers | ‖F‖ | "
        + " | ".join(f"{how}: {head}" for how in STARTS for head in heads)
        + " |",
        "|---" * (3 + len(heads) * len(STARTS)) + "|",
    ]
    for at, row in enumerate(first["candidates"]):
        cells = [
            " = ".join([row["name"], *row["also"]]),
            count(row["private"]),
            f"{row['gradient_left']:.3g}" if row["shared"] else "–",
        ]
        for how in STARTS:
            advisor = by_start[how]
            mine = advisor["candidates"][at]
            loss = number(mine["valid_loss"])
            cells += [
                f"**{loss}**" if mine["part"] == advisor["choice"] else loss,
                f"{mine['gap_error']:.2g}" if mine["gap_error"] else "–",
                _trained(result["ffgg"][how], row["name"]),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    verdicts = [verdict(how, by_start[how], result["ffgg"][how]) for how in STARTS]
    return [*lines, "", *verdicts, ""]


def _trained(losses: dict[str, float | None], name: str) -> str:
    return "diverged" if name in losses and losses[name] is None else number(losses.get(name))


FROM = {"common": "from the pre-trained private part", "random": "from a random private part"}


def _gap(advisor: dict[str, Any], losses: dict[str, float | None]) -> tuple[str, float, float]:
    """The part that FFGG is best with, by how much, and what the advisor's error allows."""
    trained = {name: math.inf if loss is None else loss for name, loss in losses.items()}
    row = next(r for r in advisor["candidates"] if r["part"] == advisor["choice"])
    errors = {r["name"]: r["gap_error"] for r in advisor["candidates"]}
    best = min(trained, key=lambda name: trained[name])
    if row["name"] not in trained:
        return best, float("nan"), 0.0
    return best, trained[row["name"]] - trained[best], max(errors[best], errors[row["name"]])


def _agrees(advisor: dict[str, Any], trained: dict[str, float | None]) -> bool:
    _, gap, error = _gap(advisor, trained)
    return gap <= error


def verdict(how: str, advisor: dict[str, Any], trained: dict[str, float | None]) -> str:
    """Whether FFGG prefers the recommended part too, in words."""
    best, gap, error = _gap(advisor, trained)
    if gap == 0:
        words = f"the recommended part ({advisor['choice']}) is the best"
    elif gap != gap:
        words = f"no part was recommended; {best} is the best"
    else:
        size = "within" if gap <= error else "more than"
        words = (
            f"{best} is better than the recommended {advisor['choice']} by {gap:.4f}, "
            f"{size} one standard error"
        )
    return f"- FFGG {FROM[how]}: {words}."


TEXTS = read_text("splits-checked")
HEAD = TEXTS["head"]
