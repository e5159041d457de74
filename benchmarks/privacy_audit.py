"""docs/privacy-audit.md: what attackers learn from what is released, against the ε that is claimed.

    python -m benchmarks.privacy_audit            # all cases and planted faults: some minutes
    python -m benchmarks.privacy_audit --page     # the page from the stored figures

Noise comes from the operating system, as in deployment, so that figures differ a little from run to
run. It is a benchmark and not a command of idiolect, since it replaces parts of the code by wrong
ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from idiolect.core.text import plural
from idiolect.privacy import Central, Local, Noise
from idiolect_papers.page import table

from .privacy_canaries import (
    CROWD,
    DELTA,
    STRENGTH,
    CentralSetup,
    LocalSetup,
    RunSetup,
    Scores,
    central_releases,
    central_scores,
    local_scores,
    run_scores,
    source_of,
    uniform_releases,
    watched_scores,
)
from .privacy_faults import FAULTS, planted

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "privacy-audit.json"
PAGE = ROOT / "docs" / "privacy-audit.md"


@dataclass(frozen=True)
class Size:
    """How much an attacker gets to see."""

    runs: int  # whose canaries are put together
    canaries: int  # of each
    releases: int  # with or without one canary
    numbers: int  # of the messages of whole runs
    small_runs: int  # with messages of 50 numbers


FULL = Size(runs=40, canaries=500, releases=20_000, numbers=4000, small_runs=60)
QUICK = Size(runs=20, canaries=250, releases=2000, numbers=500, small_runs=10)
LEAST_NUMBERS = 50  # of a message, as lp-proj sends them


@dataclass(frozen=True)
class Evidence:
    """What is claimed, and the bounds that attackers reach."""

    claim: float
    one_run: float | None
    two_sided: float | None = None
    gaussian: float | None = None
    canaries: int = 0
    releases: int = 0

    @property
    def best(self) -> float:
        """The largest of the bounds."""
        return max(x for x in (self.one_run, self.two_sided, self.gaussian) if x is not None)

    @property
    def refutes(self) -> bool:
        """Whether the claim is proved wrong."""
        return self.best > self.claim


Audit = Callable[[Size, np.random.Generator, Noise], Evidence]


@dataclass(frozen=True)
class Case:
    """A mechanism in words, and its audit."""

    words: str
    audit: Audit


def _of_canaries(scores: Scores) -> Evidence:
    return Evidence(scores.claim, scores.one_run(), canaries=len(scores.values))


def _central(setup: CentralSetup) -> Audit:
    def audit(size: Size, rng: np.random.Generator, source: Noise) -> Evidence:
        runs = [central_scores(setup, size.canaries, rng, source) for _ in range(size.runs)]
        together = Scores.together(runs)
        releases = central_releases(setup, size.releases, rng, source)
        return Evidence(
            releases.claim,
            together.one_run(),
            releases.two_sided(),
            releases.gaussian(),
            len(together.values),
            size.releases,
        )

    return audit


def _sampled(setup: CentralSetup, public_draw: bool) -> Audit:
    def audit(size: Size, rng: np.random.Generator, source: Noise) -> Evidence:
        many = range(size.runs)
        runs = [central_scores(setup, size.canaries, rng, source, public_draw) for _ in many]
        return _of_canaries(Scores.together(runs))

    return audit


def _releases(scores: Scores) -> Evidence:
    count = len(scores.values)
    return Evidence(scores.claim, None, scores.two_sided(), scores.gaussian(), releases=count)


def _uniform(removed: bool) -> Audit:
    protection = Central(noise=2, quantile=0)
    return lambda size, rng, source: _releases(
        uniform_releases(protection, size.releases, rng, source, removed)
    )


def _messages(scores: Scores) -> Evidence:
    """Each message has noise of its own: canaries of one run are releases too."""
    count = len(scores.values)
    bounds = scores.one_run(), scores.two_sided(), scores.gaussian()
    return Evidence(scores.claim, *bounds, canaries=count, releases=count)


def _local(setup: LocalSetup) -> Audit:
    return lambda size, rng, source: _messages(
        local_scores(setup, size.runs * size.canaries, rng, source)
    )


def _run(privacy: str, **options) -> Audit:
    return lambda size, rng, source: _of_canaries(
        run_scores(RunSetup(privacy, size.numbers, **options), rng)
    )


def _small_runs(privacy: str, **options) -> Audit:
    def audit(size: Size, rng: np.random.Generator, source: Noise) -> Evidence:
        setup = RunSetup(privacy, LEAST_NUMBERS, **options)
        runs = [run_scores(setup, rng, seed) for seed in range(size.small_runs)]
        return _of_canaries(Scores.together(runs))

    return audit


def _watched(privacy: str, **options) -> Audit:
    setup = RunSetup(privacy, LEAST_NUMBERS, **options)
    return lambda size, rng, source: _messages(watched_scores(setup, 2 * size.numbers, rng))


ONE_ROUND = Central(noise=2, quantile=0)
FOUR_ROUNDS = Central(noise=4, quantile=0)
CASES: dict[str, Case] = {
    "central": Case("server's noise, C fixed, 1 round", _central(CentralSetup(ONE_ROUND))),
    "rounds": Case(
        "server's noise, twice as much, C fixed, 4 rounds", _central(CentralSetup(FOUR_ROUNDS, 4))
    ),
    "adaptive": Case(
        "server's noise, C follows a quantile, 4 rounds; the count is attacked too",
        _central(CentralSetup(Central(noise=4), 4)),
    ),
    "parts": Case(
        "server's noise, messages of two parts, 1 round",
        _central(CentralSetup(ONE_ROUND, 1, ("c", "w"))),
    ),
    "poisson": Case(
        "Poisson sampling of 2 %, 10 rounds, attacked by all that is released",
        _sampled(CentralSetup(Central(noise=1, quantile=0), 10, rate=0.02), False),
    ),
    "poisson-seed": Case(
        "Poisson sampling of 2 %, 10 rounds, attacked where the run's seed would draw the canary",
        _sampled(CentralSetup(Central(noise=1, quantile=0), 10, rate=0.02), True),
    ),
    "poisson-adaptive": Case(
        "Poisson sampling of 20 %, 5 rounds, C follows a quantile",
        _sampled(CentralSetup(Central(noise=1), 5, rate=0.2), False),
    ),
    "uniform": Case(
        "1 of 2 clients heard, a fixed number: the canary's message or none", _uniform(False)
    ),
    "local": Case("clients' noise, 1 round", _local(LocalSetup(Local(noise=2)))),
    "local-rounds": Case(
        "clients' noise, twice as much, 4 rounds", _local(LocalSetup(Local(noise=4), 4))
    ),
    "run": Case(
        "a run of canaries, messages of thousands of numbers, 2 rounds",
        _run("central(noise=2,quantile=0)", rounds=2),
    ),
    "run-fedavg": Case(
        "a run of FedAvg on canaries' data, 2 rounds",
        _run("central(noise=2,quantile=0)", rounds=2, sender="fedavg"),
    ),
    "run-scaffold": Case(
        "a run of SCAFFOLD (two parts), 1 round",
        _run("central(noise=1.4,quantile=0)", sender="scaffold"),
    ),
    "run-poisson": Case(
        "a run with Poisson sampling of 20 %, 5 rounds",
        _run("central(noise=1,quantile=0)", rounds=5, rate=0.2),
    ),
    "run-small": Case(
        "many runs, messages of 50 numbers, C follows a quantile, 3 rounds",
        _small_runs("central(noise=2)", rounds=3),
    ),
    "run-local": Case(
        "a run with clients' noise, 50 numbers, seen by the server, 2 rounds",
        _watched("local(noise=2)", rounds=2),
    ),
}

# fault -> the cases that it is planted in
PLANTED: tuple[tuple[str, str], ...] = (
    ("noise halved", "central"),
    ("noise halved", "local"),
    ("noise halved", "run-local"),
    ("clipping skipped", "central"),
    ("clipping skipped", "local"),
    ("clipping skipped", "run"),
    ("clipping skipped", "run-scaffold"),
    ("noise reused", "rounds"),
    ("noise reused", "local-rounds"),
    ("noise reused", "run"),
    ("weights after clipping", "central"),
    ("one part not clipped", "parts"),
    ("public draw", "poisson-seed"),
    ("half the sensitivity", "local"),
    ("divided by the number heard", "central"),
    ("count without noise", "adaptive"),
    ("count not accounted", "adaptive"),
    ("rounds not counted", "rounds"),
    ("noise halved", "poisson"),
    ("noise halved", "run"),
)
REMOVED = Case(
    "1 of 2 clients heard, a fixed number: the canary's message or the other's", _uniform(True)
)

HEAD = f"""\
# Is the claimed privacy what attackers see?

Made by `python -m benchmarks.privacy_audit` from [privacy-audit.json](privacy-audit.json); do not
edit. Canaries are clients that send {STRENGTH:g} times the clipping norm in a direction of their
own. Each takes part by a fair coin, and an attacker guesses the coins from all that is released.
More right guesses than (ε, δ) allows prove that the claim is wrong. δ is {DELTA:g}; each bound is
below the true ε with a confidence of 95 %. There are three:

- **one run**: the coins of many canaries in one run, the most extreme guessed, the others left out
  (Steinke, Nasr and Jagielski 2023). Holds for any mechanism. Small runs that share no canary count
  as one.
- **two-sided**: error rates over many releases with and without one canary, among {CROWD} clients
  who send the opposite (Clopper and Pearson). Holds for any mechanism.
- **Gaussian**: the same error rates where the claim is that of Gaussian noise without sampling,
  which says how they must be at every ε. By far the closest.

## Mechanisms

"""
MIDDLE = """
A bound below its claim is no proof: a better attacker may exist. The Gaussian bounds leave little
room. The others are low by their nature: to come close, they would need far more guesses.

## Planted faults

The code with one fault in it, everything else as it is. "Seen": a bound is above the claim.

"""
TAIL = """
What is not seen, and why:

- Faults of a few percent. A count that is left out of the accounting makes the noise 3 % too small;
  to see that takes some 200,000 releases. The example of `AdaptiveClip` checks that formula.
- Whole runs are judged by the one-run bound alone. With some thousands of canaries it sees a fault
  that takes the noise away, or makes messages ten times as large, but not always one by a factor of
  two. With Poisson sampling it sees less still, for a canary is rarely heard. The same code is
  therefore attacked without a run around it, and without sampling.
- A sum that is divided by the number of messages heard has the noise that it should have. Canaries
  with orthogonal messages do not see it, for the divisor is the same for all of them. It shows to a
  canary among clients who all send the opposite: that it is there moves their mean as well, so that
  it counts nearly twice. idiolect divides by a number that is fixed before the round.
- These attackers look at models and messages only, not at time, bytes, numbers of samples or the
  figures of tables.

## A fixed number of clients per round

Where the number heard is fixed (selection "uniform"), another client is heard in place of one that
is removed from the federation. So what is protected there is a client's message, in place of which
there may be none, but not whether the client is in the federation:

"""


def figures(size: Size, chosen: list[str]) -> dict:
    """All cases, or those of these names."""

    def measure(name: str, case: Case) -> dict:
        began = time.monotonic()
        rng = np.random.default_rng()
        evidence = case.audit(size, rng, source_of(None))
        print(f"{name}: {evidence} in {time.monotonic() - began:.1f} s", flush=True)
        return asdict(evidence)

    stored = json.loads(STORED.read_text()) if chosen else {"cases": {}, "faults": []}
    for name in chosen or CASES:
        stored["cases"][name] = measure(name, CASES[name])
    if chosen:
        return stored
    stored["removed"] = measure("removed", REMOVED)
    for fault, name in PLANTED:
        with planted(fault):
            evidence = measure(f"{fault}, {name}", CASES[name])
        stored["faults"].append({"fault": fault, "case": name} | evidence)
    return stored


def page(stored: dict) -> str:
    """The page from its figures."""
    cases = {name: Evidence(**stored["cases"][name]) for name in CASES}
    mechanisms = [_row(CASES[name].words, one) for name, one in cases.items()]
    faults = []
    for line in stored["faults"]:
        evidence = Evidence(**{n: x for n, x in line.items() if n not in ("fault", "case")})
        row = {
            "fault": FAULTS[line["fault"]].words,
            "planted in": CASES[line["case"]].words,
            "claim": f"{evidence.claim:.2f}",
            "best bound": f"{evidence.best:.2f}",
            "seen": "yes" if evidence.refutes else "no",
        }
        faults.append(row)
    removed = [
        _row(CASES["uniform"].words, cases["uniform"]),
        _row(REMOVED.words, Evidence(**stored["removed"])),
    ]
    parts = (HEAD, mechanisms, MIDDLE, faults, TAIL, removed)
    return "".join(x if isinstance(x, str) else "\n".join(table(x)) + "\n" for x in parts)


def _row(words: str, evidence: Evidence) -> dict:
    size = (plural(evidence.canaries, "canary", "canaries"), plural(evidence.releases, "release"))
    counts = (evidence.canaries, evidence.releases)
    return {
        "mechanism": words,
        "claimed ε": f"{evidence.claim:.2f}",
        "one run": _text(evidence.one_run),
        "two-sided": _text(evidence.two_sided),
        "Gaussian": _text(evidence.gaussian),
        "from": ", ".join(text for text, count in zip(size, counts, strict=True) if count),
    }


def _text(bound: float | None) -> str:
    return "–" if bound is None else f"{bound:.2f}"


def main(arguments: list[str]) -> None:
    if arguments != ["--page"]:
        stored = figures(FULL, arguments)
        STORED.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(json.loads(STORED.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
