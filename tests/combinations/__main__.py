"""Try random combinations: `python -m tests.combinations --count 2000 --seed 7`.

What became of each is a line of build/combinations/seed-7.jsonl; a command that is run again
continues where it stopped. Failures are shrunk, and the distinct ones listed in seed-7.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from .checks import Failure, examine, normalised, removable
from .draw import Combination, draw
from .shrink import Cause, shrink

EVERY = 15.0  # seconds between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="combinations")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    parser.add_argument("--removals", type=int, default=2, help="options removed, of each; -1 all")
    parser.add_argument("--only", default="", help="one combination, as JSON")
    parser.add_argument("--folder", default="build/combinations", help="where results go")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--no-shrink", action="store_true", help="failures as they were drawn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        return one(Combination(**json.loads(options.only)))
    return many(options)


def one(c: Combination) -> int:
    """All checks of one combination."""
    outcome = examine(c)
    if outcome.refusal:
        print(f"refused: {outcome.refusal}")
    for failure in outcome.failures:
        print(f"FAILS {failure}")
    if not outcome.refusal and not outcome.failures:
        print("runs; every check holds")
    return bool(outcome.failures)


def many(options: argparse.Namespace) -> int:
    """Many combinations; the distinct failures at the end."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{options.seed}.jsonl"
    if options.fresh:
        path.unlink(missing_ok=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {line["number"]: line for line in lines}
    wanted = range(options.first, options.first + options.count)
    print(f"seed {options.seed}: {len(wanted)} combinations, results in {path}", file=sys.stderr)
    began = said = time.monotonic()
    with path.open("a") as file:
        for number in wanted:
            if number in done:
                continue
            c = draw(options.seed, number)
            names = removable(c)
            if 0 <= options.removals < len(names):
                names = random.Random(number).sample(names, options.removals)
            outcome = examine(c, names)
            failures = [[f.check, f.detail] for f in outcome.failures]
            done[number] = {"number": number, "refusal": outcome.refusal, "failures": failures}
            print(json.dumps(done[number], ensure_ascii=False), file=file, flush=True)
            if time.monotonic() - said > EVERY:
                said = time.monotonic()
                progress(done, began)
    report = summary(options, {n: done[n] for n in wanted if n in done})
    (folder / f"seed-{options.seed}.md").write_text(report)
    print(report)
    return int(any(line["failures"] for line in done.values()))


def progress(done: dict[int, dict], began: float) -> None:
    failed = sum(bool(line["failures"]) for line in done.values())
    refused = sum(bool(line["refusal"]) for line in done.values())
    seconds = time.monotonic() - began
    text = f"{len(done)} tried, {refused} refused, {failed} failed, {seconds:.0f} s"
    print(text, file=sys.stderr, flush=True)


def summary(options: argparse.Namespace, done: dict[int, dict]) -> str:
    """The distinct failures, and what was refused."""
    failed = {n: line["failures"] for n, line in done.items() if line["failures"]}
    refused = Counter(normalised(line["refusal"]) for line in done.values() if line["refusal"])
    lines = [
        f"# Combinations, seed {options.seed}: {len(done)} tried",
        "",
        f"{len(done) - len(failed) - refused.total()} ran and did what they must, "
        f"{refused.total()} were refused before the first round, {len(failed)} failed.",
        "",
    ]
    causes = distinct(options.seed, failed, shrinking=not options.no_shrink)
    lines += [f"## {len(causes)} distinct failures", ""]
    for cause in sorted(causes, key=lambda cause: (cause.check, -len(cause.numbers))):
        s = cause.smallest
        lines += [
            f"- **{cause.check}**, {len(cause.numbers)} times: {cause.detail}",
            f"  {json.dumps(s.as_dict(), ensure_ascii=False)}",
            "",
            f"      {s}",
            "",
        ]
    lines += ["## Refused", ""]
    lines += [f"- {count}: {text}" for text, count in refused.most_common()]
    return "\n".join(lines) + "\n"


def distinct(seed: int, failed: dict[int, list], shrinking: bool) -> list[Cause]:
    """The causes of all failures, each with its smallest combination."""
    causes: list[Cause] = []
    for number, failures in failed.items():
        c = draw(seed, number)
        for check, detail in failures:
            failure = Failure(check, detail)
            cause = next((one for one in causes if one.explains(c, failure)), None)
            if cause is None:
                cause = shrink(c, failure) if shrinking else Cause(check, detail, c)
                causes.append(cause)
                print(f"{check}: {detail}\n    {cause.smallest}", file=sys.stderr, flush=True)
            cause.numbers.append(number)
    return causes


if __name__ == "__main__":
    sys.exit(main())
