"""What comes out of a run: per seed, per round, per client; and the summary that tables and `--json` show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.collapse import COLLAPSE_LOSS
from ..core.knobs import SettingError, nearest
from ..core.plain import plain
from ..engine.inprocess import InProcess
from ..host.scores import Scores, interval, summarise
from .settings import Settings


@dataclass(repr=False)
class SeedResult:
    """One seed's run."""

    seed: int
    engine: InProcess
    clients: Tensor  # int64: the clients evaluated
    held_out: Tensor  # int64: the clients kept out of training
    liars: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int64)
    )  # the malicious clients; never among `clients`
    history: list[dict[str, float]] = field(
        default_factory=list
    )  # one dict an evaluated round, on test data
    by_client: list[Tensor] = field(
        default_factory=list
    )  # float32[N] test accuracy, an entry an evaluated round
    scores: dict[str, Scores] = field(default_factory=dict)  # split -> final scores
    held_out_scores: dict[str, Scores] = field(default_factory=dict)
    liars_scores: dict[str, Scores] = field(default_factory=dict)
    shared_scores: dict[str, Scores] = field(
        default_factory=dict
    )  # of the one global model, where the method has one
    seconds: float = 0.0
    stopped: str = "rounds"  # why: rounds, bytes, target
    collapsed: int = 0  # the round from which on the clients' models are not finite or absurd; 0 = they are sound

    def final(self, split: str = "test") -> dict[str, float]:
        return summarise(self.scores[split], self.clients)

    def note_collapse(self, scores: dict[str, float] | None = None) -> None:
        """Mark the round from which on the models are no use: a test loss that is not finite, or beyond COLLAPSE_LOSS."""
        scores = scores or self.history[-1]
        sound = (math.isnan(scores["loss"]) and not self._tested()) or scores[
            "loss"
        ] <= COLLAPSE_LOSS
        self.collapsed = (
            0 if sound else self.collapsed or int(scores.get("round", self.engine.round)) or 1
        )

    def _tested(self) -> bool:
        return bool(self.engine.host.data.sizes("test")[self.clients].sum())

    @property
    def gradients(self) -> Tensor:  # float64[clients]: training, and personalisation before use
        spent = self.engine.ledger.counts["gradients"] + self.engine.host.deployment
        return spent[self.clients].double()


@dataclass(repr=False)
class Result:
    """All seeds of one method on one federation."""

    name: str
    label: str  # the method with the fields that differ from its defaults
    method: dict[str, Any]
    settings: Settings
    data: str
    d: int
    kernel: str
    seeds: list[SeedResult]
    notes: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # what the method says of itself (see Method.report)

    def over_seeds(self, key: str, split: str = "test") -> list[float]:
        return [s.final(split)[key] for s in self.seeds]

    def personal(self, client: int | str, seed: int = 0) -> nn.Module:
        """The model that a client (number or name) predicts with, as a torch module; of the first seed, or the `seed`-th."""
        engine = self.seeds[seed].engine
        names = engine.host.data.names
        if isinstance(client, str) and client not in names:
            raise nearest(client, names, "client")
        number = names.index(client) if isinstance(client, str) else int(client)
        if not 0 <= number < len(names):
            raise SettingError(
                f"client: {number} is not accepted; 0 to {len(names) - 1}, or a client's name"
            )
        return engine.host.task.module_of(
            engine.host.personal(engine.round, engine.message(engine.round), number)
        )

    def summary(self) -> dict[str, Any]:
        """The figures, as plain data: what `--json` prints."""
        out: dict[str, Any] = {
            "method": self.name,
            "label": self.label,
            "settings": {
                "method": self.method,
                "run": self.settings.as_dict(),
                "data": self.data,
                "parameters": self.d,
                "kernel": self.kernel,
            },
            "rounds": round(_mean([s.engine.round for s in self.seeds])),
            "seeds": [s.seed for s in self.seeds],
            "accuracy": self._measure("accuracy", "test"),
            "loss": self._measure("loss", "test"),
            "train": {k: self._measure(k, "train") for k in ("accuracy", "loss")},
            "valid": {k: self._measure(k, "valid") for k in ("accuracy", "loss")},
        }
        for name, facts in self.notes.items():  # what was timed is another number each time
            out[name] = {k: v for k, v in facts.items() if not k.endswith("_ms")}
        for unit in ("bytes", "values"):
            out[unit] = {
                way: _mean([s.engine.ledger.total(f"{unit}_{way}") for s in self.seeds])
                for way in ("up", "down")
            }
        out["gradients_per_client"] = _mean([float(s.gradients.mean()) for s in self.seeds])
        out["seconds"] = sum(s.seconds for s in self.seeds)
        out["rejected"] = sum(sum(s.engine.ledger.rejected.values()) for s in self.seeds)
        out["rejected_by_reason"] = _add([dict(s.engine.ledger.rejected) for s in self.seeds])
        out["stopped"] = [s.stopped for s in self.seeds]
        out["collapsed"] = [s.collapsed or None for s in self.seeds]
        best = [max((h["accuracy"] for h in s.history), default=math.nan) for s in self.seeds]
        out["best_round"] = {
            "accuracy": _mean(best),
            "note": "the best round on test data: optimistic, never for comparison",
        }
        if self.seeds[0].shared_scores:
            shared = [summarise(s.shared_scores["test"], s.clients) for s in self.seeds]
            out["global_model"] = {
                "accuracy": _measure(shared, "accuracy"),
                "loss": _measure(shared, "loss"),
            }
        if len(self.seeds[0].liars):
            theirs = [summarise(s.liars_scores["test"], s.liars) for s in self.seeds]
            out["malicious"] = {
                "clients": len(self.seeds[0].liars),
                "accuracy": _measure(theirs, "accuracy"),
                "loss": _measure(theirs, "loss"),
            }
        if len(self.seeds[0].held_out):
            held = [summarise(s.held_out_scores["test"], s.held_out) for s in self.seeds]
            out["held_out"] = {
                "clients": len(self.seeds[0].held_out),
                "accuracy": _measure(held, "accuracy"),
                "loss": _measure(held, "loss"),
            }
        return plain(out)

    def _measure(self, key: str, split: str) -> dict[str, Any]:
        return _measure([s.final(split) for s in self.seeds], key)

    def rounds_table(self) -> list[dict[str, Any]]:
        """One row a seed and evaluated round, for metrics.csv."""
        return [{"seed": s.seed, **h} for s in self.seeds for h in s.history]

    def clients_table(self) -> list[dict[str, Any]]:
        """One row a seed and client, for clients.csv."""
        rows = []
        for s in self.seeds:
            host, counts = s.engine.host, s.engine.ledger.counts
            columns: dict[str, Tensor] = {}
            for split, scores in s.scores.items():
                accuracy, loss = scores.of_clients()
                for others, which in ((s.held_out_scores, s.held_out), (s.liars_scores, s.liars)):
                    if split in others:
                        theirs = others[split].of_clients()
                        accuracy[which], loss[which] = theirs[0][which], theirs[1][which]
                columns |= {
                    f"{split}_samples": scores.samples,
                    f"{split}_accuracy": accuracy,
                    f"{split}_loss": loss,
                }
            columns |= counts
            lists = {n: t.tolist() for n, t in columns.items()}
            held, lying = set(s.held_out.tolist()), set(s.liars.tolist())
            for k, name in enumerate(host.data.names):
                kinds = {"held_out": k in held, "malicious": k in lying}
                rows.append(
                    {"seed": s.seed, "client": name, **kinds, **{n: v[k] for n, v in lists.items()}}
                )
        return rows

    def __repr__(self) -> str:
        return f"Result({self.label!r}, {self.data!r}, accuracy {_mean(self.over_seeds('accuracy')):.4f}, {len(self.seeds)} seeds)"

    def __str__(self) -> str:
        from ..report.tables import render, results_table

        return render(results_table([self.summary()]))


def _mean(values: list) -> float:
    total = sum(values) / len(values)
    return int(total) if isinstance(total, float) and total.is_integer() else total


def _measure(finals: list[dict[str, float]], key: str) -> dict[str, Any]:
    of = {k: [f[f"{key}{k}"] for f in finals] for k in ("", "_variance", "_clients", "_worst10")}
    return {
        "mean": float(_mean(of[""])),
        "variance": float(_mean(of["_variance"])),
        "worst10": float(_mean(of["_worst10"])),
        "ci95": interval(of[""]),
        "mean_of_clients": float(_mean(of["_clients"])),
        "by_seed": of[""],
    }


def _add(counts: list[dict[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for c in counts:
        for k, v in c.items():
            out[k] = out.get(k, 0) + v
    return out
