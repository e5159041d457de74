"""The command; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# module of idiolect -> the tests that are about it; its own examples are run too
TARGETS = {
    "wire.messages": ["tests/wire", "tests/channels/test_link.py", "tests/server"],
    "wire.ragged": ["tests/wire", "tests/channels/test_bits.py", "tests/channels/test_lbgm.py"],
    "wire.admission": [
        "tests/wire",
        "tests/server/test_fates.py",
        "tests/server/test_stream.py",
        "tests/faults/test_messages.py",
    ],
    "wire.ledger": ["tests/wire/test_ledger.py", "tests/server"],
    "core.store": [
        "tests/core",
        "tests/host",
        "tests/faults/test_lost_rounds.py",
        "tests/faults/test_full_disk.py",
        "tests/run/test_foreign_directory.py",
        "tests/run/test_memory.py",
    ],
    "core.tensors": ["tests/core", "tests/run/test_foreign_directory.py"],
    "core.files": [
        "tests/core",
        "tests/run/test_resume.py",
        "tests/run/test_foreign_directory.py",
        "tests/study/test_manifest.py",
    ],
    "run.checkpoint": [
        "tests/run/test_bound_checkpoints.py",
        "tests/run/test_foreign_directory.py",
        "tests/run/test_resume.py",
        "tests/run/test_resume_longer.py",
        "tests/run/robust/test_resume.py",
    ],
    "server.round": ["tests/server", "tests/run/robust/test_faults.py"],
    "server.streaming_mean": ["tests/server"],
    "server.state": [
        "tests/server",
        "tests/engine/test_arrivals.py",
        "tests/run/test_asynchronous_run.py",
        "tests/run/test_foreign_directory.py",
    ],
    "server.server": [
        "tests/server",
        "tests/channels/test_sketch.py",
        "tests/run/test_foreign_directory.py",
        "tests/run/robust/test_faults.py",
        "tests/run/test_run.py",
        "tests/engine",
    ],
}
DEFAULT_OUT = ROOT / "build" / "mutation"
COLUMNS = ("killed", "survived", "no test", "timeout")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module; 0 = all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests per mutant")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help="where the tables are written"
    )
    parser.add_argument("--tests", nargs="*", help="other tests than those of the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a module, in a process of its own
    parsed = parser.parse_args()
    if parsed.one:
        test(parsed)
        return
    there = [name for name in TARGETS if file_of(name).exists()]
    for name in parsed.modules:
        if name not in there:
            parser.error(f"{name!r} is unknown; known: {', '.join(there)}")
    parsed.out.mkdir(parents=True, exist_ok=True)
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    for name in parsed.modules or there:
        print(name, file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.mutation", "--one", name]
        subprocess.run([*command, *sys.argv[1:]], check=False, cwd=ROOT, env=alone)
    text = report(parsed.out)
    (parsed.out / "mutation.md").write_text(text)
    print(text.partition("\n## ")[0])
    print(f"survivors: {parsed.out / 'mutation.md'}")


def file_of(name: str) -> Path:
    return ROOT / "src" / "idiolect" / f"{name.replace('.', '/')}.py"


def test(parsed: argparse.Namespace) -> None:
    """All mutants of one module."""
    import pytest
    import torch
    from hypothesis import settings

    from .plugin import Mutation

    torch.set_num_threads(1)
    settings.register_profile("mutation", database=None, derandomize=True, deadline=None)
    settings.load_profile("mutation")
    name = parsed.one
    module = f"idiolect.{name}"
    plugin = Mutation(module, parsed.sample, parsed.seed, parsed.workers, parsed.budget)
    tests = parsed.tests or TARGETS[name]
    paths = [str(ROOT / path) for path in tests if (ROOT / path).exists()]
    quiet = ["-q", "-s", "-p", "no:warnings", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    pytest.main([*quiet, str(file_of(name)), *paths], plugins=[plugin])
    found = {
        "module": name,
        "mutants": plugin.found,
        "tested": len(plugin.results),
        "seconds": round(plugin.seconds),
        "left out": plugin.skipped,  # tests that fail in a fork of their own
        "results": plugin.results,
    }
    (parsed.out / f"{name}.json").write_text(json.dumps(found, indent=1))


def report(folder: Path) -> str:
    """The table of all modules tested so far, and every mutant that no test noticed."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    lines = [
        "| module | mutants | tested | killed | survived | no test | timeout | score | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    total = dict.fromkeys(("mutants", "tested", *COLUMNS, "seconds"), 0)
    for one in found:
        counts = {c: sum(r["fate"] == c for r in one["results"]) for c in COLUMNS}
        row = {"mutants": one["mutants"], "tested": one["tested"], **counts}
        row["seconds"] = one["seconds"]
        total = {key: total[key] + row[key] for key in total}
        lines.append(_row(one["module"], row))
    lines.append(_row("all", total))
    for one in found:
        alive = [r for r in one["results"] if r["fate"] in ("survived", "no test")]
        lines += ["", f"## {one['module']}: {len(alive)} that no test noticed", ""]
        for r in sorted(alive, key=lambda r: r["line"]):
            lines += [
                f"line {r['line']}, {r['function']}, {r['operator']} ({r['fate']})",
                "```diff",
            ]
            lines += [r["diff"], "```"]
    return "\n".join(lines) + "\n"


def _row(name: str, row: dict[str, int]) -> str:
    noticed = row["killed"] + row["timeout"]
    score = f"{100 * noticed / row['tested']:.1f} %" if row["tested"] else "-"
    counts = " | ".join(str(row[c]) for c in ("mutants", "tested", *COLUMNS))
    return f"| {name} | {counts} | {score} | {row['seconds'] / 60:.1f} |"


if __name__ == "__main__":
    main()
