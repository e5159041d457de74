"""Hosts on Ray against one process: `python -m benchmarks.on_ray` prints the tables of scale.md.

speed     1,000 clients, LeNet on CIFAR-shaped data: one thread in this process, 1 and 2 hosts, and
          what two processes that know nothing of each other reach on this machine with half each
overhead  what a round costs beside the work: a model of ten parameters, 2 hosts
memory    the driver against the number of clients: data by name, private rows that would fill it
methods   lp-proj with 50 numbers against FedAvg on the same model, by the number of clients
beyond    the same reasoned for more clients than fit here (benchmarks/beyond.py)

Every run is a process of its own. What is compared for speed takes turns, when the machine is
quiet, and of each round the fastest turn counts: others may be at work on it too. Core seconds are
those that the driver and the slower of its hosts have used: what a quiet machine would take.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import beyond

Job = dict[str, Any]
MIB = 2**20
PARTS = ("speed", "overhead", "memory", "methods", "beyond")


# -- one run -----------------------------------------------------------------------------------
def memory(pid: str = "self", what: str = "VmRSS") -> float:
    """MiB of memory that a process has now; VmHWM: that it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Times, frames and memory of a run, noted as it goes."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.frames = 0  # bytes to hosts and back
        self.training = 0.0  # MiB of this process after the last round
        self.hosts: list[float] = []  # MiB
        self.disk = 0.0  # MiB of private rows
        self.bytes: list[int] = []  # between server and clients, so far
        self.frames_by_round: list[int] = []
        self.used: list[list[float]] = []  # seconds of a core: this process, then each host
        self._carriers: list[Any] = []
        self._pids: list[int] = []  # of hosts

    def begin(self) -> None:
        """Look at every carrier that is made from now on."""
        from idiolect.engine.carriers.ray import RayCarrier

        start, send, receive = RayCarrier.__init__, RayCarrier.send, RayCarrier.receive

        def starting(carrier: Any, recipes: Any, place: Any) -> None:
            start(carrier, recipes, place)
            self._carriers.append(carrier)
            self._pids = carrier.ray.get([actor.pid.remote() for actor in carrier.actors])

        def sending(carrier: Any, host: int, frame: bytes) -> int:
            self.frames += len(frame)
            return send(carrier, host, frame)

        def receiving(carrier: Any, seconds: float) -> Any:
            found = receive(carrier, seconds)
            self.frames += sum(len(frame or b"") for _, frame in found)
            return found

        RayCarrier.__init__ = starting  # type: ignore[method-assign]
        RayCarrier.send = sending  # type: ignore[method-assign]
        RayCarrier.receive = receiving  # type: ignore[method-assign]

    def tick(self, moment: Any) -> None:
        """After a round."""
        self.times.append(time.perf_counter())
        self.used.append([cpu(pid) for pid in (os.getpid(), *self._pids)])
        self.bytes.append(int(moment.ledger["bytes_up"] + moment.ledger["bytes_down"]))
        self.frames_by_round.append(self.frames)
        if moment.round == moment.rounds:
            self.training = memory()
        if moment.round == moment.rounds and self._carriers:
            found = self._carriers[-1]
            self.hosts = [memory(str(pid)) for pid in self._pids]
            folders = [found.ray.get(recipe).folder for recipe in found.recipes]
            files = [f for folder in folders for f in Path(folder).rglob("*") if f.is_file()]
            self.disk = sum(f.stat().st_size for f in files) / MIB

    def report(self) -> Job:
        used = [[y - x for x, y in zip(a, b, strict=True)] for a, b in pairwise(self.used)]
        return {
            "rounds": [b - a for a, b in pairwise(self.times)],
            "used": [driver + max(hosts, default=0.0) for driver, *hosts in used],
            "bytes": self.bytes[-1] - self.bytes[-2],
            "frames": self.frames_by_round[-1] - self.frames_by_round[-2],
            "training": self.training,
            "hosts": self.hosts,
            "disk": self.disk,
        }


def work(job: Job) -> Job:
    """Train as a job says; seconds and bytes per round, and memory."""
    import idiolect as il
    from idiolect.run.plan import Plan, method_spec
    from idiolect.run.worker_hosts import data_of

    before = memory()
    watch = Watch()
    settings: dict[str, Any] = {"threads": 1, "eval_every": 0, "checkpoint_minutes": 0.0}
    settings |= {"rounds": job["rounds"], "sample": job["sample"]}
    if job["hosts"]:
        watch.begin()
        settings |= {"engine": "ray", "hosts": job["hosts"]}
    if job.get("data"):
        method, fields = method_spec(job["method"])
        plan = Plan(method, fields, job["data"], job["options"], job["model"], settings=settings)
        federation = data_of([plan])
        task, origin = plan.make_task(federation), plan.as_dict()
    else:
        federation = noise(job["clients"], job["samples"], tuple(job["shape"]))
        task, origin = il.Task(partial(il.models.make, job["model"], tuple(job["shape"]), 10)), None
    il.run(
        job["method"],
        task,
        federation,
        origin=origin,
        on_round=watch.tick,
        progress=False,
        **settings,
    )
    return {**watch.report(), "before": before, "driver": memory(what="VmHWM")}


def noise(clients: int, samples: int, shape: tuple[int, ...]) -> Any:
    """Random numbers; all samples are for training, and tested on too."""
    import torch

    from idiolect.data.federation import Federation
    from idiolect.data.splits import SPLITS

    generator = torch.Generator().manual_seed(0)
    return Federation(
        inputs=torch.randn(clients * samples, *shape, generator=generator),
        targets=torch.randint(0, 10, (clients * samples,), generator=generator),
        offsets=dict.fromkeys(SPLITS, samples * torch.arange(clients + 1)),
        ids=tuple(range(clients)),
        classes=10,
        name="noise",
    )


def idle(seconds: float = 3.0) -> float:
    """The part of all cores that nobody has used for a while."""

    def ticks() -> tuple[int, int]:
        spent = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return spent[3] + spent[4], sum(spent)

    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def wait_for_quiet(most: float = 20.0) -> None:
    """Until nobody else is at work on this machine, or so many seconds have passed."""
    end = time.monotonic() + most
    while idle() < 0.9 and time.monotonic() < end:
        pass


def start(job: Job) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.on_ray", "--job", json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Job:
    """What it found."""
    out, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors[-3000:])
    return json.loads(out.splitlines()[-1])


def measure(job: Job) -> Job:
    return result(start(job))


def at_once(job: Job) -> Job:
    """Two such runs at the same time; of each round, the slower one."""
    one, other = [result(process) for process in [start(job), start(job)]]
    slower = {
        name: [max(pair) for pair in zip(one[name], other[name], strict=True)]
        for name in ("rounds", "used")
    }
    return {**one, **slower}


def median(found: Job) -> float:
    """Seconds of a round."""
    return sorted(found["rounds"])[len(found["rounds"]) // 2]


def fastest(turns: Sequence[Job], what: str = "rounds") -> float:
    """Seconds of a round: the mean of all rounds, each in its fastest turn.

    >>> fastest([{"rounds": [1.0, 4.0]}, {"rounds": [3.0, 2.0]}])
    1.5
    """
    each = [min(rounds) for rounds in zip(*(turn[what] for turn in turns), strict=True)]
    return sum(each) / len(each)


# -- tables ------------------------------------------------------------------------------------
LENET: Job = {
    "clients": 1000,
    "samples": 16,
    "shape": [3, 32, 32],
    "model": "lenet",
    "method": "fedavg:steps=5,lr=0.05",
    "sample": 100,
    "rounds": 6,
}
EMPTY: Job = {
    "clients": 100,
    "samples": 2,
    "shape": [1],
    "model": "linear",
    "method": "fedavg:steps=1",
    "sample": 10,
    "rounds": 60,
}
MANY: Job = {
    "data": "synthetic",
    "options": {"features": 1000, "samples": 1, "valid": 0.0, "test": 0.0},
    "model": "linear",
    "sample": 100,
    "rounds": 4,
    "hosts": 2,
}
DITTO = "ditto:steps=1,personal_steps=1"
AGAINST = {"FedAvg": "fedavg:steps=1", "lp-proj, 50 numbers": "lp-proj:dim=50,steps=1"}


def many(clients: int, method: str) -> Job:
    """A run by name with so many clients."""
    return {**MANY, "options": {**MANY["options"], "clients": clients}, "method": method}


def largest_share(clients: int, heard: int) -> float:
    """Of those heard in a round, the mean part at the host that has more of them, of 2 equal ones.

    >>> largest_share(4, 2)
    0.6666666666666666
    """
    half = clients // 2
    ways = [math.comb(half, k) * math.comb(clients - half, heard - k) for k in range(heard + 1)]
    most = sum(w * max(k, heard - k) for k, w in enumerate(ways))
    return most / heard / math.comb(clients, heard)


def speed(part: int, turns: int) -> Iterator[Sequence[str]]:
    head = ("LeNet, 100 clients per round", "s per round", "speed", "core s per round", "speed")
    yield (*head, "driver MiB", "hosts MiB")
    clients = LENET["clients"] // part
    job = {**LENET, "clients": clients}
    half = {**job, "hosts": 0, "clients": clients // 2, "sample": LENET["sample"] // 2}
    names = {
        "this process, one thread": lambda: measure({**job, "hosts": 0}),
        "Ray, 1 host": lambda: measure({**job, "hosts": 1}),
        "Ray, 2 hosts": lambda: measure({**job, "hosts": 2}),
        "two processes, half of it each": lambda: at_once(half),
    }
    found: dict[str, list[Job]] = {name: [] for name in names}
    for _ in range(turns):
        for name, run in names.items():
            wait_for_quiet()
            found[name].append(run())
            for what in ("rounds", "used"):
                each = " ".join(f"{seconds:.2f}" for seconds in found[name][-1][what])
                print(f"{name}, {what}: {each}", file=sys.stderr, flush=True)
    alone = found["this process, one thread"]
    for name, jobs in found.items():
        hosts = ", ".join(f"{m:.0f}" for m in jobs[0]["hosts"]) or "–"
        figures = []
        for what in ("rounds", "used"):
            seconds = fastest(jobs, what)
            figures += [f"{seconds:.2f}", f"{fastest(alone, what) / seconds:.2f}"]
        yield name, *figures, f"{jobs[0]['driver']:.0f}", hosts
    share = largest_share(LENET["clients"], LENET["sample"])
    yield (f"of 100 heard, {100 * share:.1f} are at the host with more of them on average",)


def overhead(part: int, turns: int) -> Iterator[Sequence[str]]:
    yield "a round with hardly any work", "ms"
    crowd = {**EMPTY, "clients": 100_000 // part, "samples": 1, "rounds": 20}
    jobs = {
        "this process": {**EMPTY, "hosts": 0},
        "Ray, 2 hosts": {**EMPTY, "hosts": 2},
        f"this process, {crowd['clients']:,} clients": {**crowd, "hosts": 0},
    }
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(turns):
        for name, job in jobs.items():
            found[name].append(median(measure(job)))
    for name, seconds in found.items():
        yield name, f"{1e3 * min(seconds):.1f}"


def memory_table(part: int, turns: int) -> Iterator[Sequence[str]]:
    head = ("clients", "driver MiB: before, after training, most", "hosts MiB")
    yield (*head, "all private rows, MiB")
    driver = {}
    for clients in (1000 // part, 10_000 // part, 100_000 // part):
        found = measure(many(clients, DITTO))
        driver[clients] = (found["training"], found["driver"])
        hosts = ", ".join(f"{m:.0f}" for m in found["hosts"])
        rows = clients * beyond.PARAMETERS * 4 / MIB
        grown = ", ".join(f"{found[name]:.0f}" for name in ("before", "training", "driver"))
        yield f"{clients:,}", grown, hosts, f"{rows:,.0f}"
    (few, least), *_, (most, largest) = driver.items()
    each = [(b - a) * MIB / (most - few) for a, b in zip(least, largest, strict=True)]
    yield (f"{each[0]:.0f} bytes of the driver per client, {each[1]:.0f} with the final tables",)


def methods(part: int, turns: int) -> Iterator[Sequence[str]]:
    head = ("method", "clients", "s per round", "bytes per round", "frames per round")
    yield (*head, "driver MiB", "hosts MiB", "rows on disk, MiB")
    for name, method in AGAINST.items():
        sizes = (1000, 10_000, 100_000) if name == "FedAvg" else (1000, 10_000)
        for clients in sizes:
            found = measure(many(clients // part, method))
            hosts = ", ".join(f"{m:.0f}" for m in found["hosts"])
            figures = [f"{median(found):.3f}", f"{found['bytes']:,}", f"{found['frames']:,}"]
            more = [f"{found['driver']:.0f}", hosts, f"{found['disk']:.0f}"]
            yield name, f"{clients // part:,}", *figures, *more


TABLES = {
    "speed": speed,
    "overhead": overhead,
    "memory": memory_table,
    "methods": methods,
    "beyond": beyond.rows,
}


def main() -> None:
    """The tables, as Markdown; a line of one cell is a sentence below its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--job")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--turns", type=int, default=3, help="of what is compared for speed")
    given = parser.parse_args()
    if given.job:
        print(json.dumps(work(json.loads(given.job))))
        return
    for name in given.parts or PARTS:
        lines = TABLES[name](10 if given.quick else 1, given.turns)
        head = next(lines)
        print(f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
        for line in lines:
            print(f"| {' | '.join(line)} |" if len(line) > 1 else f"\n{line[0]}", flush=True)


if __name__ == "__main__":
    main()
