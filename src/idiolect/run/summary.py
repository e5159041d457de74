"""The figures of a run: one typed object per seed, and one way to merge seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..core.documents import plain
from ..host.scores import interval
from ..report.subgroups import directions, over_seeds

if TYPE_CHECKING:
    from .record import Record, SeedRecord

Figures = dict[str, float]  # of `summarise`: accuracy, accuracy_variance, ..., loss, ...

WAYS = ("up", "down")
GROUPS = ("global_model", "malicious", "held_out")  # of other clients, or of the one shared model
PARTS = {"variance": "variance", "worst10": "worst10", "mean_of_clients": "clients"}
LATE = 20  # the lp-proj paper: "the optimal achievable test accuracy after the 20th round"
BEST_NOTE = "the best round on test data: optimistic, never for comparison"
LATE_NOTE = (
    f"the best evaluated round from round {LATE} on, chosen on test data (lp-proj, Figures 2, 6 "
    "and 7): optimistic, never for comparison"
)
VALID_NOTE = "test figures of the evaluated round that is best on validation data"


@dataclass(frozen=True)
class SeedSummary:
    """The figures of one seed. An empty dict stands for figures that the run does not have."""

    seed: int
    data_seed: int | None  # of its data, where each seed has its own
    rounds: int
    splits: dict[str, Figures]  # test, train, valid -> figures of the honest clients
    bytes: dict[str, float]  # up, down
    values: dict[str, float]  # up, down
    gradients_per_client: float
    seconds: float
    rejected: dict[str, int]  # reason -> messages
    missing: dict[str, int]  # reason -> clients without a message
    stopped: str  # why
    collapsed: int | None  # the round in which the models became useless
    not_finite: int  # clients whose models give a loss that is not finite
    tested: int  # of so many
    best_accuracy: float  # of the best evaluated round on test data
    best_late: Figures  # that round from round 20 on
    best_by_validation: Figures  # the evaluated round that is best on validation data
    messages: dict[str, int] = field(default_factory=dict)  # asked for, and counted; {}: unknown
    counted: dict[str, float] = field(default_factory=dict)  # see Traits.counters
    time: float | None = None  # simulated or real time of the last evaluated round
    staleness: tuple[float, ...] = ()  # mean staleness of each evaluated round
    global_model: Figures = field(default_factory=dict)
    malicious: Figures = field(default_factory=dict)
    held_out: Figures = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)  # how many are malicious, held_out
    subgroups: tuple[dict[str, Any], ...] = ()  # over all clients, see report.subgroups
    privacy: dict[str, Any] = field(default_factory=dict)  # see PrivacyAccount.figures

    @classmethod
    def of(cls, s: SeedRecord) -> SeedSummary:
        """The figures of a finished seed."""
        last = s.history[-1] if s.history else {}
        losses = s.losses()
        return cls(
            seed=s.seed,
            data_seed=s.data_seed,
            rounds=s.rounds,
            splits=s.final,
            bytes={way: s.sent[f"bytes_{way}"] for way in WAYS},
            values={way: s.sent[f"values_{way}"] for way in WAYS},
            gradients_per_client=s.gradients_per_client,
            seconds=s.seconds,
            rejected=s.rejected,
            missing=s.missing,
            stopped=s.stopped,
            collapsed=s.collapsed or None,
            not_finite=sum(not math.isfinite(loss) for loss in losses),
            tested=len(losses),
            best_accuracy=max((row["accuracy"] for row in s.history), default=math.nan),
            best_late=best_after(s.history),
            best_by_validation=s.best,
            messages=dict(s.messages),
            counted=dict(s.counted),
            time=last.get("time"),
            staleness=tuple(row["staleness"] for row in s.history) if "time" in last else (),
            global_model=s.shared_model,
            malicious=s.malicious,
            held_out=s.held_out,
            clients={part: s.count(part) for part in ("malicious", "held_out")},
            subgroups=tuple(row for row in s.subgroups if "client" not in row),
            privacy=dict(s.privacy),
        )


@dataclass(frozen=True)
class Summary:
    """The figures of a run over its seeds, and what all seeds have in common.

    Summaries of runs that differ in their seeds alone are merged by `merge`; means and intervals
    over seeds are formed in `as_dict`, which is what `--json` prints.
    """

    method: str
    label: str
    settings: dict[str, Any]
    metrics: dict[str, dict[str, Any]]  # name -> what is known of it, see host.metrics.described
    metric: str  # the metric that the user chose; "" where none was
    heard: dict[str, float]  # clients heard per round, and of how many
    notes: dict[str, Any]  # see Method.report
    seeds: tuple[SeedSummary, ...]
    drawn: str = ""  # what the seeds of the data draw, where each seed has data of its own

    @classmethod
    def of(cls, record: Record) -> Summary:
        """The figures of a finished run."""
        settings: dict[str, Any] = {
            "method": {"name": record.method, **record.fields},
            "run": record.settings,
            "data": record.data["name"],
            "parameters": record.model_sizes if record.model_sizes[1:] else record.parameters,
            "kernel": record.kernel,
            **{k: record.model[k] for k in ("pretrained", "frozen") if k in record.model},
        }
        timed = "_ms"  # measured times differ from run to run
        return cls(
            record.method,
            record.label,
            settings,
            metrics={name: dict(facts) for name, facts in record.metrics.items()},
            metric=record.figure if record.settings.get("metric") else "",
            heard={k: record.heard[k] for k in ("clients", "of")} if record.heard else {},
            notes={
                name: {k: v for k, v in facts.items() if not k.endswith(timed)}
                for name, facts in record.notes.items()
            },
            seeds=tuple(map(SeedSummary.of, record.seeds)),
            drawn=str(record.data.get("drawn", "")),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data with means and 95 % intervals over seeds; NaN and infinity become null."""
        seeds = self.seeds
        names = ("accuracy", "loss", *self.metrics)
        test, train, valid = (
            {name: measure([s.splits[split] for s in seeds], name) for name in names}
            for split in ("test", "train", "valid")
        )
        out: dict[str, Any] = {
            "method": self.method,
            "label": self.label,
            "settings": self.settings,
            "rounds": round(_mean(s.rounds for s in seeds)),
            "seeds": [s.seed for s in seeds],
            **self._data_seeds(),
            "accuracy": test["accuracy"],
            "loss": test["loss"],
            "train": train,
            "valid": valid,
        }
        if self.metrics:
            undefined = {
                name: _mean(s.splits["test"][f"{name}_undefined"] for s in seeds)
                for name in self.metrics
            }
            out["metrics"] = {
                name: test[name] | {"clients_undefined": undefined[name]} | facts
                for name, facts in self.metrics.items()
            }
        if self.metric:
            out["metric"] = self.metric
        if self.heard:
            out["heard"] = self._heard()
        out |= self.notes
        out["bytes"] = {way: _mean(s.bytes[way] for s in seeds) for way in WAYS}
        out["values"] = {way: _mean(s.values[way] for s in seeds) for way in WAYS}
        out["gradients_per_client"] = _mean(s.gradients_per_client for s in seeds)
        if seeds[0].counted:
            out["counted"] = {n: _mean(s.counted[n] for s in seeds) for n in seeds[0].counted}
        if times := [s.time for s in seeds if s.time is not None]:
            out["time"] = _mean(times)
            out["staleness"] = _mean(stale for s in seeds for stale in s.staleness)
        out["seconds"] = sum(s.seconds for s in seeds)
        for fate in ("rejected", "missing"):
            reasons = sum((Counter(getattr(s, fate)) for s in seeds), Counter())
            out[fate] = reasons.total()
            out[f"{fate}_by_reason"] = dict(reasons)
        if all(s.messages for s in seeds):
            out["messages"] = {n: sum(s.messages[n] for s in seeds) for n in ("asked", "counted")}
        out["stopped"] = [s.stopped for s in seeds]
        out["collapsed"] = [s.collapsed for s in seeds]
        out["clients_not_finite"] = {
            "by_seed": [s.not_finite for s in seeds],
            "of": seeds[0].tested,
        }
        out["best_round"] = {"accuracy": _mean(s.best_accuracy for s in seeds), "note": BEST_NOTE}
        out["best_after_20"] = best_late([s.best_late for s in seeds])
        best = [s.best_by_validation for s in seeds]
        if all(best):
            out["best_by_validation"] = {
                "rounds": [int(row["round"]) for row in best],
                "accuracy": _mean(row["accuracy"] for row in best),
                "loss": _mean(row["loss"] for row in best),
                "note": VALID_NOTE,
            }
        for group in GROUPS:
            figures = [getattr(s, group) for s in seeds]
            if figures[0]:
                count = {"clients": seeds[0].clients[group]} if group in seeds[0].clients else {}
                out[group] = count | {name: measure(figures, name) for name in names}
        if seeds[0].subgroups:
            by_seed = [s.subgroups for s in seeds]
            out["subgroups"] = over_seeds(by_seed, directions(self.metrics))
        if all(s.privacy for s in seeds):
            spent = [s.privacy["epsilon"] for s in seeds]
            out["privacy"] = seeds[0].privacy | {
                "epsilon": max(spent, key=lambda one: one["worst"]),
                "rounds": max(s.privacy["rounds"] for s in seeds),
                "exposures": max(s.privacy["exposures"] for s in seeds),
            }
        return plain(out)

    def _data_seeds(self) -> dict[str, Any]:
        """The seeds of the data and what they draw; {} where all seeds have the same data."""
        if not self.drawn:
            return {}
        return {"data_seeds": {"draw": self.drawn, "seeds": [s.data_seed for s in self.seeds]}}

    def _heard(self) -> dict[str, float]:
        """Clients whose messages counted in the mean round; as planned where nothing is known."""
        rounds = sum(s.rounds for s in self.seeds)
        if not rounds or not all(s.messages for s in self.seeds):
            return dict(self.heard)
        counted = sum(s.messages["counted"] for s in self.seeds)
        return self.heard | {"clients": _mean([counted / rounds])}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Summary:
        """The inverse of `as_dict`, of a run with one seed."""
        metrics = saved.get("metrics", {})
        names = ("accuracy", "loss", *metrics)
        summary_keys = {*_KEYS, *GROUPS}
        test = _figures({**saved, **metrics}, names)
        test |= {f"{name}_undefined": m["clients_undefined"] for name, m in metrics.items()}
        late, valid = saved["best_after_20"], saved.get("best_by_validation")
        groups = {g: _figures(saved[g], names) for g in GROUPS if g in saved}
        drawn = saved.get("data_seeds", {"draw": "", "seeds": [None]})
        seed = SeedSummary(
            seed=saved["seeds"][0],
            data_seed=drawn["seeds"][0],
            rounds=saved["rounds"],
            splits={
                "test": test,
                "train": _figures(saved["train"], names),
                "valid": _figures(saved["valid"], names),
            },
            bytes=saved["bytes"],
            values=saved["values"],
            gradients_per_client=saved["gradients_per_client"],
            seconds=saved["seconds"],
            rejected=saved["rejected_by_reason"],
            missing=saved["missing_by_reason"],
            stopped=saved["stopped"][0],
            collapsed=saved["collapsed"][0],
            not_finite=saved.get("clients_not_finite", {"by_seed": [0]})["by_seed"][0],
            tested=saved.get("clients_not_finite", {}).get("of", 0),
            best_accuracy=_number(saved["best_round"]["accuracy"]),
            best_late={}
            if late["rounds"][0] is None
            else {
                "round": late["rounds"][0],
                "accuracy": _number(late["accuracy"]),
                "accuracy_variance": _number(late["variance"]),
                "loss": _number(late["loss"]),
                "loss_variance": _number(late["loss_variance"]),
            },
            best_by_validation={
                "round": valid["rounds"][0],
                "accuracy": _number(valid["accuracy"]),
                "loss": _number(valid["loss"]),
            }
            if valid
            else {},
            messages=saved.get("messages", {}),
            counted=saved.get("counted", {}),
            time=saved.get("time"),
            staleness=(_number(saved["staleness"]),) if "staleness" in saved else (),
            **groups,
            clients={g: saved[g]["clients"] for g in groups if "clients" in saved[g]},
            subgroups=tuple(
                {k: _number(v) for k, v in row.items() if k != "verdict"}
                for row in saved.get("subgroups", ())
            ),
            privacy=saved.get("privacy", {}),
        )
        facts = {*MEASURE_KEYS, "clients_undefined"}
        return cls(
            saved["method"],
            saved["label"],
            saved["settings"],
            metrics={n: {k: v for k, v in m.items() if k not in facts} for n, m in metrics.items()},
            metric=saved.get("metric", ""),
            heard=saved.get("heard", {}),
            notes={k: v for k, v in saved.items() if k not in summary_keys},
            seeds=(seed,),
            drawn=drawn["draw"],
        )


_KEYS = (
    *("method", "label", "settings", "rounds", "seeds", "accuracy", "loss", "train", "valid"),
    *("metrics", "metric", "heard", "bytes", "values", "gradients_per_client", "counted", "time"),
    *("staleness", "seconds", "rejected", "rejected_by_reason", "missing", "missing_by_reason"),
    *("messages", "stopped", "collapsed", "clients_not_finite", "data_seeds"),
    *("best_round", "best_after_20", "best_by_validation", "subgroups", "privacy"),
)


def merge(summaries: Sequence[Summary], label: str = "") -> Summary:
    """One summary of runs that differ in their seeds alone, in the order given."""
    first = summaries[0]
    seeds = tuple(seed for summary in summaries for seed in summary.seeds)
    return replace(first, label=label or first.label, seeds=seeds)


MEASURE_KEYS = ("mean", *PARTS, "ci95", "by_seed")


def measure(figures: Sequence[Figures], name: str) -> dict[str, Any]:
    """A measure over seeds: its mean, the mean of what describes its spread, a 95 % interval."""
    by_seed = [f[name] for f in figures]
    variance, worst10, of_clients = (
        float(_mean(f[f"{name}_{suffix}"] for f in figures)) for suffix in PARTS.values()
    )
    return {
        "mean": float(_mean(by_seed)),
        "variance": variance,
        "worst10": worst10,
        "ci95": interval(by_seed),
        "mean_of_clients": of_clients,
        "by_seed": by_seed,
    }


def best_after(history: Sequence[Figures], after: int = LATE) -> Figures:
    """The row with the highest accuracy from this round on, the first of equals; {} without one.

    Where targets are real numbers, the row with the lowest loss.

    >>> rows = [{"round": r, "accuracy": a, "loss": 1.0} for r, a in ((10, 0.9), (20, 0.7))]
    >>> best_after([*rows, {"round": 30, "accuracy": 0.8, "loss": 2.0}])["round"]
    30
    """
    late = [row for row in history if row["round"] >= after]
    with_accuracy = [row for row in late if not math.isnan(row["accuracy"])]
    if with_accuracy:
        return max(with_accuracy, key=lambda row: row["accuracy"])
    return min((r for r in late if not math.isnan(r["loss"])), key=lambda r: r["loss"], default={})


def best_late(rows: Sequence[Figures]) -> dict[str, Any]:
    """The best late round of every seed, and the variance over clients in it."""

    def mean(key: str) -> float:
        return sum(row.get(key, math.nan) for row in rows) / len(rows)

    by_seed = [row.get("accuracy", math.nan) for row in rows]
    return {
        "accuracy": mean("accuracy"),
        "ci95": interval(by_seed),
        "variance": mean("accuracy_variance"),
        "loss": mean("loss"),
        "loss_variance": mean("loss_variance"),
        "rounds": [int(row["round"]) if row else None for row in rows],
        "by_seed": by_seed,
        "note": LATE_NOTE,
    }


def _figures(measures: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> Figures:
    """The figures of one seed, from its measures as plain data."""
    out: Figures = {}
    for name in names:
        out[name] = _number(measures[name]["mean"])
        for part, suffix in PARTS.items():
            out[f"{name}_{suffix}"] = _number(measures[name][part])
    return out


def _number(value: Any) -> Any:
    """null as NaN."""
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float:
    """The mean; a whole number where it is one."""
    numbers = list(values)
    total = sum(numbers) / len(numbers)
    return int(total) if isinstance(total, float) and total.is_integer() else total
