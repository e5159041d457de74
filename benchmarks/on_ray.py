"""Hosts on Ray against one process: `python -m benchmarks.on_ray` prints the tables of scale.md.

Three questions, each in the same run as its baseline:
1. 1,000 clients, LeNet on CIFAR-shaped data: rounds per second with one thread in this process, and
   with 1 and 2 hosts on Ray; memory of driver and hosts.
2. What a round costs beside the work: a model of one parameter, 2 hosts.
3. Memory of the driver against the number of clients, with private rows that would fill it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__)


def resident(pid: str = "self") -> float:
    """MiB of memory that a process has now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """One run in a process of its own, as `--job` says."""
    command = [sys.executable, "-m", "benchmarks.on_ray", "--job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Train as a job says; seconds per round, and memory at the end."""
    import torch

    import idiolect as il
    from idiolect.data.federation import Federation
    from idiolect.data.splits import SPLITS
    from idiolect.engine import ray as engine

    clients, samples = job["clients"], job["samples"]
    shape = tuple(job["shape"])
    generator = torch.Generator().manual_seed(0)
    n = clients * samples
    x = torch.randn(n, *shape, generator=generator) if job["data"] else torch.zeros(1, *shape)
    offsets = dict.fromkeys(SPLITS, samples * torch.arange(clients + 1))
    federation = Federation(
        inputs=x if job["data"] else x.expand(n, *shape),
        targets=torch.randint(0, 10, (n,), generator=generator),
        offsets=offsets,
        ids=tuple(range(clients)),
        classes=10,
        name="noise",
    )
    task = il.Task(partial(il.models.make, job["model"], shape, 10))
    times: list[float] = []
    hosts_memory: list[float] = []
    carriers: list[Any] = []
    wait = engine.RayCarrier._wait_for_all

    def noting(carrier: Any) -> None:
        wait(carrier)
        carriers.append(carrier)

    engine.RayCarrier._wait_for_all = noting  # type: ignore[method-assign]

    def tick(moment: Any) -> None:
        times.append(time.perf_counter())
        if moment.round == moment.rounds and carriers:
            found = carriers[-1]
            pids = found.ray.get([actor.pid.remote() for actor in found.actors])
            hosts_memory.extend(resident(str(pid)) for pid in pids)

    before = resident()
    settings: dict[str, Any] = {"threads": 1, "eval_every": 0, "progress": False}
    if job["hosts"]:
        settings |= {"engine": "ray", "hosts": job["hosts"]}
    il.run(
        job["method"],
        task,
        federation,
        rounds=job["rounds"],
        sample=job["sample"],
        on_round=tick,
        checkpoint_minutes=0.0,
        **settings,
    )
    steps = [b - a for a, b in pairwise(times)]
    return {
        "seconds": sorted(steps)[len(steps) // 2],
        "fastest": min(steps),
        "driver": resident(),
        "before": before,
        "hosts": hosts_memory,
    }


LENET = {
    "clients": 1000,
    "samples": 16,
    "shape": [3, 32, 32],
    "model": "lenet",
    "method": "fedavg:steps=5,lr=0.05",
    "sample": 100,
    "rounds": 6,
    "data": True,
}
EMPTY = {
    "clients": 100,
    "samples": 2,
    "shape": [1],
    "model": "linear",
    "method": "fedavg:steps=1",
    "sample": 10,
    "rounds": 60,
    "data": True,
}
MANY = {
    "samples": 1,
    "shape": [1000],
    "model": "linear",
    "method": "ditto:steps=1,personal_steps=1",
    "sample": 100,
    "rounds": 4,
    "data": False,
    "hosts": 2,
}


def main() -> None:
    """All tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    given = parser.parse_args()
    if given.job:
        print(json.dumps(work(json.loads(given.job))))
        return
    part = 10 if given.quick else 1
    head = ("LeNet, 100 clients per round", "s per round", "speed", "driver MiB", "hosts MiB")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    base = 0.0
    for hosts in (0, 1, 2):
        found = measure({**LENET, "clients": LENET["clients"] // part, "hosts": hosts})
        base = base or found["seconds"]
        name = "this process, one thread" if not hosts else f"Ray, {hosts} host{'s' * (hosts > 1)}"
        memory = ", ".join(f"{m:.0f}" for m in found["hosts"]) or "–"
        print(
            f"| {name} | {found['seconds']:.2f} | {base / found['seconds']:.2f} | "
            f"{found['driver']:.0f} | {memory} |",
            flush=True,
        )
    here, there = (measure({**EMPTY, "hosts": hosts}) for hosts in (0, 2))
    print(
        f"\nA round with hardly any work: {1e3 * here['seconds']:.1f} ms in this process, "
        f"{1e3 * there['seconds']:.1f} ms with 2 hosts on Ray: "
        f"{1e3 * (there['seconds'] - here['seconds']):.1f} ms more."
    )
    head = ("clients, 10,010 private numbers each", "driver MiB", "hosts MiB", "all rows MiB")
    print(f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for clients in (1000 // part, 10_000 // part, 100_000 // part):
        found = measure({**MANY, "clients": clients})
        rows = clients * 10_010 * 4 / 2**20
        memory = ", ".join(f"{m:.0f}" for m in found["hosts"])
        driver = f"{found['before']:.0f} → {found['driver']:.0f}"
        print(f"| {clients:,} | {driver} | {memory} | {rows:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
