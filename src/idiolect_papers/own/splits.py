"""Is the split that `idiolect splits` recommends the one that training then prefers?

For every candidate, FFGG goes on from the same start with that part private, and its validation
loss is put beside what the advisor had said. `idiolect reproduce splits` writes splits-checked.md;
the State of the Union addresses are fetched if they are not there. Test data are not looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect import Federation, Ffgg, Result, Start, Task, run, splits
from idiolect.report import count, number
from idiolect.study import SplitCandidate

from ..case import Case
from ..page import Row, table, write_page
from ..runs import Work, train_all
from ..texts import read_text

STARTS = ("common", "random")  # of the private part: the pre-trained one, or anew (the paper)
TEXTS = read_text("splits-checked")


@dataclass(frozen=True)
class SplitCase(Case):
    """A federation, its model, the start and how long FFGG goes on from there."""

    clients_per_round: float = 5
    start: str = "fedavg"
    rounds: int = 50
    ffgg_rounds: int = 20
    lr: float = 0.1  # of FFGG's shared part
    steps: int = 50
    rank: int = 4
    seeds: int = 1


_HIDDEN = {"hidden": "64,64"}
CASES = {
    "digits, 2 classes per client": SplitCase(
        "digits", "mlp", {"clients": 20, "classes_per_client": 2}, _HIDDEN
    ),
    "digits, 5 classes per client": SplitCase(
        "digits", "mlp", {"clients": 20, "classes_per_client": 5}, _HIDDEN
    ),
    "Synthetic(1, 1), 20 clients": SplitCase(
        "synthetic",
        "mlp",
        {"clients": 20, "alpha": 1.0, "beta": 1.0},
        _HIDDEN,
        clients_per_round=10,
        start="fedavg:lr=0.03",
    ),
    "State of the Union, 12 presidents": SplitCase(
        "sotu",
        "transformer",
        {"clients": 12, "vocabulary": 200, "cap": 2000, "length": 10},
        {"blocks": 2, "heads": 2, "width": 24, "hidden": 48},
        clients_per_round=6,
        start="fedavg:lr=0.5,steps=10",
        rounds=30,
        ffgg_rounds=5,
        lr=0.5,
        steps=20,
    ),
}


@dataclass(frozen=True, eq=False)
class SplitJob(Work):
    """The advisor's tables and FFGG's validation losses, by the start of the private part."""

    title: str
    case: SplitCase

    def describe(self) -> str:
        return self.title

    def train(self) -> dict[str, Any]:
        case = self.case
        federation, task = case.load()
        unseen = federation.without("test")
        shared: dict[str, Any] = {"sample": case.sample(unseen.clients), "seeds": case.seeds}
        shared |= {"threads": 1, "progress": False, "rounds": case.rounds}
        start = run(case.start, task, unseen, eval_every=0, **shared)
        out: dict[str, Any] = {"advisor": {}, "ffgg": {}}
        for how in STARTS:
            advice = splits(
                task,
                federation,
                rank=case.rank,
                start=case.start,
                private_start=how,
                finetune_steps=case.steps,
                **shared,
            )
            out["advisor"][how] = advice.summary()
            out["ffgg"][how] = {
                row["name"]: self.loss_of_ffgg(row, how, start, unseen, task)
                for row in advice.rows[1:-1]
            }
        return out

    def loss_of_ffgg(
        self, row: Row, how: str, start: Result, unseen: Federation, task: Task
    ) -> float | None:
        """The validation loss that FFGG reaches from the same start, mean over seeds.

        None where it has diverged: the step size of the private part is the advisor's, which took
        it for one fine-tuning with the shared part still.
        """
        case = self.case
        rank = case.rank if row["name"] != row["part"] else 0
        candidate = SplitCandidate(row["part"], (), rank, "low-rank")
        losses = []
        for seed, lr in enumerate(row["lr"]):
            session = start.session(seed)
            shared_model = session.server.handover()
            assert shared_model is not None
            bound, _, x0 = candidate.on(session.contract.task, shared_model)
            result = run(
                Ffgg(part=row["part"], start=how, steps=case.steps, private_lr=lr, lr=case.lr),
                Task(bound.module, task.criterion) if rank else task,
                unseen,
                rounds=case.ffgg_rounds,
                sample=case.sample(unseen.clients),
                seed=seed,
                threads=1,
                eval_every=0,
                start={seed: Start(x0)},
                progress=False,
            )
            losses.append(result.summary()["valid"]["loss"]["mean"])
        return None if None in losses else sum(losses) / len(losses)


# -- the page -----------------------------------------------------------------------------------
Losses = dict[str, float | None]  # by part


def write(folder: Path, cases: dict[str, SplitCase] = CASES) -> list[Path]:
    """Measure every case (some minutes) and write splits-checked.md and .json."""
    jobs = [SplitJob(title, case) for title, case in cases.items()]
    stored = train_all(jobs, folder, "splits", workers=1)
    results = {job.title: result for job, result in stored.items()}
    return write_page(folder, "splits-checked", page(results, cases), results)


def page(results: dict[str, Any], cases: dict[str, SplitCase]) -> str:
    """The page of what was measured."""
    lines = [TEXTS["head"]]
    for how in STARTS:
        gaps = [_gap(r["advisor"][how], r["ffgg"][how]) for r in results.values()]
        agreeing = sum(gap <= error for _, gap, error in gaps)
        lines.append(TEXTS["agreeing"].format(start=FROM[how], good=agreeing, cases=len(gaps)))
    lines.append("")
    for title, result in results.items():
        lines += _section(title, cases[title], result)
    return "\n".join(lines)


def _section(title: str, case: SplitCase, result: dict[str, Any]) -> list[str]:
    advisors = result["advisor"]
    first = advisors[STARTS[0]]
    rows = []
    for at, candidate in enumerate(first["candidates"]):
        row: Row = {
            "private part": " = ".join([candidate["name"], *candidate["also"]]),
            "private numbers": count(candidate["private"]),
            "‖F‖": f"{candidate['gradient_left']:.3g}" if candidate["shared"] else "–",
        }
        for how, advisor in advisors.items():
            mine = advisor["candidates"][at]
            loss = number(mine["valid_loss"])
            chosen = mine["part"] == advisor["choice"]
            row[f"{how}: advisor"] = f"**{loss}**" if chosen else loss
            row[f"{how}: ±"] = f"{mine['gap_error']:.2g}" if mine["gap_error"] else "–"
            row[f"{how}: FFGG"] = _trained(result["ffgg"][how], candidate["name"])
        rows.append(row)
    return [
        f"## {title}: {case.model}, d = {first['d']:,}",
        "",
        TEXTS["runs"].format(
            case=case, method=first["start"]["method"], plural="s" * (case.seeds > 1)
        ),
        "",
        *table(rows),
        "",
        *(verdict(how, advisors[how], result["ffgg"][how]) for how in STARTS),
        "",
    ]


def _trained(losses: Losses, name: str) -> str:
    return "diverged" if name in losses and losses[name] is None else number(losses.get(name))


FROM = {"common": "from the pre-trained private part", "random": "from a random private part"}


def _gap(advisor: dict[str, Any], losses: Losses) -> tuple[str, float, float]:
    """The part that FFGG is best with, by how much, and what the advisor's error allows."""
    trained = {name: math.inf if loss is None else loss for name, loss in losses.items()}
    row = next(r for r in advisor["candidates"] if r["part"] == advisor["choice"])
    errors = {r["name"]: r["gap_error"] for r in advisor["candidates"]}
    best = min(trained, key=lambda name: trained[name])
    if row["name"] not in trained:
        return best, float("nan"), 0.0
    return best, trained[row["name"]] - trained[best], max(errors[best], errors[row["name"]])


def verdict(how: str, advisor: dict[str, Any], losses: Losses) -> str:
    """Whether FFGG prefers the recommended part too, in words."""
    best, gap, error = _gap(advisor, losses)
    key = "best" if gap == 0 else "none" if math.isnan(gap) else "better"
    words = TEXTS["verdicts"][key].format(
        choice=advisor["choice"], best=best, gap=gap, size="within" if gap <= error else "more than"
    )
    return f"- FFGG {FROM[how]}: {words}."
