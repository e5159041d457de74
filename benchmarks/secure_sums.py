"""What does a secure sum cost? Bytes per client and stage, and CPU seconds of clients and server.

`python -m benchmarks.secure_sums`: the four stages in one process, one thread, with the
cryptography that sites use. 50 numbers are a message of lp-proj, 79,510 one of FedAvg (MLP). The
same sum without masks stands beside it: what clips, rounds and adds up in a simulation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch

from idiolect.privacy.sums.client import SumClient
from idiolect.privacy.sums.cost import by_stage
from idiolect.privacy.sums.server import SumServer
from idiolect.privacy.sums.setting import SecureSums
from idiolect.privacy.sums.stages import KEYS, MASKED, OPENED, SHARES, Place
from idiolect.wire.messages import HEADER

NUMBERS = (50, 79_510)
CLIENTS = (10, 100)
DROPPED = (0.0, 0.1, 0.3)
COLUMNS = (
    *("clients", "numbers", "lost", "survivors", "shares (threshold)", "message", "stages up"),
    *("stages down", "s per client", "s at the server", "s without masks"),
)


@dataclass
class Timed:
    """CPU seconds by name."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __call__(self, name: str, work, *arguments):
        before = time.process_time()
        result = work(*arguments)
        self.seconds[name] += time.process_time() - before
        return result


def measured(sums: SecureSums, clients: int, numbers: int, dropped: float) -> dict[str, float]:
    """One round in which some messages do not come; the sum is checked."""
    grid = sums.grid(numbers)
    ids = list(range(clients))
    server = SumServer(sums, grid, run=1, version=0, clients=ids)
    parties = {k: SumClient(sums, grid, Place(1, 0, k, server.session)) for k in ids}
    rows = 0.001 * torch.randn(clients, numbers)
    timed = Timed()

    def ask(stage: int, requests: dict[int, bytes]) -> dict[int, bytes]:
        return {k: timed("client", parties[k].handle, stage, f) for k, f in requests.items()}

    keys = ask(KEYS, timed("server", server.keys))
    shares = ask(SHARES, timed("server", server.shares, keys))
    ask(MASKED, timed("server", server.masked, shares))
    residues = timed("plain", lambda: grid.residues(grid.quantise(rows)))
    masked = {k: timed("client", parties[k].mask, residues[k]) for k in ids}
    here = ids[round(dropped * clients) :]
    opened = ask(OPENED, timed("server", server.opened, here))
    masks = timed("server", server.masks, opened)
    total = timed("plain", lambda: grid.total(np.stack([masked[k] for k in here])))
    expected = grid.total(residues[here])
    assert (((total - masks) & np.uint64(grid.modulus - 1)) == expected).all()
    last = here[-1]
    return {
        "shares": server.plan.shares,
        "threshold": server.plan.threshold,
        "message": HEADER.itemsize + grid.row_bytes,
        "up": server.bytes_up[last],
        "down": server.bytes_down[last],
        "client": timed.seconds["client"] / clients,
        "server": timed.seconds["server"],
        "plain": timed.seconds["plain"],
    }


def main() -> None:
    torch.set_num_threads(1)
    measured(SecureSums(), 2, 1, 0.0)  # the first use loads the package
    print(f"| {' | '.join(COLUMNS)} |\n|{'--:|' * len(COLUMNS)}")
    for clients in CLIENTS:
        for numbers in NUMBERS:
            for dropped in DROPPED:
                least = 0.9 if dropped < 0.3 and clients == 100 else 0.7
                row = measured(SecureSums(survivors=least), clients, numbers, dropped)
                print(
                    f"| {clients} | {numbers:,} | {dropped:.0%} | {least:.0%} "
                    f"| {row['shares']:.0f} ({row['threshold']:.0f}) | {row['message']:,} "
                    f"| {row['up']:,} | {row['down']:,} | {row['client']:.3f} "
                    f"| {row['server']:.2f} | {row['plain']:.3f} |",
                    flush=True,
                )
    for clients in CLIENTS:
        plan = SecureSums().plan(clients)
        print(f"\n{clients} clients, {plan.shares} shares: bytes up and down of a client by stage")
        for stage, (up, down) in by_stage(plan).items():
            print(f"  {stage:8} {up:8,} {down:8,}")


if __name__ == "__main__":
    main()
